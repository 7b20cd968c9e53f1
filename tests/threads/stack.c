/* Any call uses at most 60 KB of its caller's stack, as the header promises. This also holds for refused calls and for the
 * other functions of the library. All of them run on a stack that is filled with a pattern, which shows afterwards how many
 * bytes were used. The test subtracts the stack that an idle thread uses, such as thread-local storage.
 *
 *     threads_stack [--seed S] [--count N] */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "support/check.h"
#include "support/config.h"
#include "support/seeds.h"

enum { STACK = 1 << 20, PAINT = 0xa5, PROMISED = 60 << 10 };

/* Made in advance on another stack, because the functions that make a config have large stack frames. */
typedef struct painted_call {
    config *c;
    call k[2];
    uint64_t workspace;
    int64_t *positions;
} painted_call;

static void *run_calls(void *context)
{
    static char name[64];
    static int64_t stride[TROPE_MAX_DIMS];
    static double inv_freq[64], factor;
    painted_call *p = context;
    trope_frequency_args rule = {.struct_size = sizeof rule, .rule = TROPE_RULE_DYNAMIC, .rotary_dim = 128, .base = 1e6};
    rule.factor = 2;
    rule.original_max_position = 4096;
    rule.seq_len = 1e5;
    for (int backward = 0; backward < 2; backward++) {
        trope_args *args = call_args(&p->k[backward]);
        CHECK((backward ? trope_backward(args) : trope_forward(args)) == TROPE_OK);
        CHECK(trope_kernel_name(args, backward, name, sizeof name) == TROPE_OK);
        args->mscale = 1e300 * 1e300;
        CHECK((backward ? trope_backward(args) : trope_forward(args)) == TROPE_ERROR_ARGUMENT);
    }
    CHECK(trope_workspace_size(&p->k[1].args, &p->workspace) == TROPE_ERROR_ARGUMENT);
    CHECK(trope_positions(&p->k[0].args, p->positions, NULL) == TROPE_OK);
    CHECK(trope_frequencies(&rule, inv_freq, &factor) == TROPE_OK);
    CHECK(trope_fill_strides(stride, TROPE_BHSD, 2, 3, 4, 5) == TROPE_OK);
    return NULL;
}

/* Returns the number of bytes from the first changed byte to the end of the stack. */
static size_t used(const unsigned char *stack)
{
    size_t untouched = 0;
    while (untouched < STACK && stack[untouched] == PAINT)
        untouched++;
    return STACK - untouched;
}

static size_t run_painted(unsigned char *stack, void *(*body)(void *), void *context)
{
    pthread_attr_t attributes;
    pthread_t thread;
    memset(stack, PAINT, STACK);
    CHECK(!pthread_attr_init(&attributes) && !pthread_attr_setstack(&attributes, stack, STACK));
    CHECK(!pthread_create(&thread, &attributes, body, context) && !pthread_join(thread, NULL));
    pthread_attr_destroy(&attributes);
    return used(stack);
}

static void *do_nothing(void *context)
{
    return context;
}

static size_t run_config(uint64_t seed, unsigned char *stack)
{
    const config_choices choices = config_choose(seed);
    painted_call p = {.c = config_make(seed, &choices)};
    p.k[0] = config_call(p.c, 0);
    p.k[1] = config_call(p.c, 1);
    const trope_args *a = &p.c->args;
    p.positions = malloc((size_t)(a->batch * a->tokens * TROPE_MAX_AXES) * sizeof *p.positions);
    const size_t bytes = run_painted(stack, run_calls, &p);
    free(p.positions);
    config_free(p.c);
    return bytes;
}

int main(int argc, char **argv)
{
    const seed_range seeds = parse_seeds(argc, argv, 1000);
    unsigned char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    size_t most = 0;
    if (!CHECK(stack != MAP_FAILED))
        return check_result();
    for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; seed++) {
        const size_t nothing = run_painted(stack, do_nothing, NULL), bytes = run_config(seed, stack) - nothing;
        most = bytes > most ? bytes : most;
        CHECK_MESSAGE(bytes <= PROMISED, "the call used %zu bytes of the stack; --seed 0x%llx --count 1", bytes,
                      (unsigned long long)seed);
    }
    printf("calls used at most %zu bytes of the stack\n", most);
    return check_result();
}
