/* A call allocates nothing. This program counts all calls of the functions that allocate and free. The first run of
 * each call is not counted, because it can start worker threads. The test is skipped with sanitizers, which have their
 * own allocator, and without glibc. */
#include <errno.h>
#include <stdlib.h>

#include "parity/parity.h"
#include "support/seeds.h"

#if defined(__GLIBC__) && !defined(SANITIZED) /* defined by the build */
#define COUNTS_ALLOCATIONS
#endif

#ifdef COUNTS_ALLOCATIONS
static int is_counting;
static long allocations;

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *block, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *block);

static void count(void)
{
    if (__atomic_load_n(&is_counting, __ATOMIC_SEQ_CST))
        __atomic_fetch_add(&allocations, 1, __ATOMIC_SEQ_CST);
}

void *malloc(size_t size)
{
    count();
    return __libc_malloc(size);
}

void *calloc(size_t elements, size_t size)
{
    count();
    return __libc_calloc(elements, size);
}

void *realloc(void *block, size_t size)
{
    count();
    return __libc_realloc(block, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    count();
    return __libc_memalign(alignment, size);
}

int posix_memalign(void **block, size_t alignment, size_t size)
{
    count();
    *block = __libc_memalign(alignment, size);
    return *block ? 0 : ENOMEM;
}

void free(void *block)
{
    count();
    __libc_free(block);
}

static void run_counted(const trope_args *args, int backward)
{
    run_call(args, backward);
    __atomic_store_n(&is_counting, 1, __ATOMIC_SEQ_CST);
    run_call(args, backward);
    __atomic_store_n(&is_counting, 0, __ATOMIC_SEQ_CST);
}

static void check_seed(uint64_t seed)
{
    config_choices choices = config_choose(seed);
    choices.times = seed % 8 ? 1 : 60;
    config *c = config_make(seed, &choices);
    for (int i = 0; i < 4; i++) {
        call k = config_call(c, i / 2);
        k.args.threads = i % 2 ? 2 : 1;
        config_reset(c);
        allocations = 0;
        run_counted(call_args(&k), i / 2);
        CHECK_MESSAGE(allocations == 0,
                      "the call allocates or frees %ld times; parity_no_allocation --seed 0x%llx --count 1", allocations,
                      (unsigned long long)seed);
    }
    config_free(c);
}

int main(int argc, char **argv)
{
    const seed_range seeds = parse_seeds(argc, argv, 200);
    is_counting = 1;
    void *volatile block = malloc(1); /* volatile, so that the compiler does not remove malloc and free */
    free(block);
    is_counting = 0;
    CHECK(allocations == 2); /* checks that the counters work */
    for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; seed++)
        check_seed(seed);
    return check_result();
}
#else
int main(void)
{
    printf("skipped: this build cannot count allocations\n");
    return 77;
}
#endif
