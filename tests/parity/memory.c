/* Where elements are in memory changes no bits: strides, alignment, in place or out.
 *
 *     parity_memory [--seed S] [--count N] */
#include <stdlib.h>
#include <string.h>

#include "parity/parity.h"
#include "support/number.h"
#include "support/seeds.h"
#include "support/tensor.h"

/* The same call on contiguous tensors at a random alignment, in place if asked for. */
typedef struct contiguous_call {
    trope_args args;
    char *memory[2 * TROPE_MAX_OPERANDS];
} contiguous_call;

static void make_contiguous(contiguous_call *call, const trope_args *from, random_state *random, int in_place)
{
    const int64_t element = (int64_t)number_size(from->dtype);
    call->args = *from;
    for (int i = 0; i < from->operand_count; i++) {
        const trope_operand *o = &from->operands[i];
        trope_operand *to = &call->args.operands[i];
        int64_t size[TROPE_MAX_DIMS], stride = 1;
        tensor_sizes(from, o, size);
        for (int d = TROPE_MAX_DIMS - 1; d >= 0; stride *= size[d], d--)
            to->src_stride[d] = to->dst_stride[d] = stride;
        for (int j = 0; j < 2; j++)
            call->memory[2 * i + j] = malloc((size_t)((stride + 64) * element));
        char *src = call->memory[2 * i] + random_between(random, 0, 63) * element;
        to->src = src;
        to->dst = in_place ? src : call->memory[2 * i + 1] + random_between(random, 0, 63) * element;
        for (int64_t j = 0; j < stride; j++)
            memcpy(src + j * element, (const char *)o->src + tensor_offset(from, o, o->src_stride, j) * element,
                   (size_t)element);
    }
}

static void free_contiguous(contiguous_call *call)
{
    for (int i = 0; i < 2 * call->args.operand_count; i++)
        free(call->memory[i]);
}

static void check_contiguous(config *c, int backward)
{
    random_state random = {c->seed};
    config_reset(c);
    const trope_args args = config_args(c, backward);
    for (int in_place = 0; in_place < 2; in_place++) {
        contiguous_call call;
        config_reset(c);
        make_contiguous(&call, &args, &random, in_place);
        run_call(&call.args, backward);
        run_call(&args, backward);
        check_parity(c, same_elements(&args, &call.args),
                     in_place ? "parity_memory, contiguous in place" : "parity_memory, contiguous");
        free_contiguous(&call);
    }
}

/* All buffers at other addresses. */
static void check_moved(config *c, int backward)
{
    unsigned char *memory[CONFIG_MAX_BUFFERS], *bases[CONFIG_MAX_BUFFERS];
    random_state random = {c->seed};
    config_reset(c);
    trope_args args = config_args(c, backward), moved = args;
    for (int i = 0; i < c->buffer_count; i++) {
        memory[i] = malloc(c->buffers[i].size + 64);
        bases[i] = memory[i] + 16 * random_between(&random, 0, 3); /* the workspace is aligned to 16 */
        memcpy(bases[i], c->buffers[i].bytes, c->buffers[i].size);
    }
    config_rebase(c, &moved, bases);
    run_call(&moved, backward);
    run_call(&args, backward);
    unsigned char *here = snapshot(c);
    for (int i = 0; i < c->buffer_count; i++) {
        memcpy(c->buffers[i].bytes, bases[i], c->buffers[i].size);
        free(memory[i]);
    }
    check_parity(c, is_snapshot(c, here), "parity_memory, moved");
    free(here);
}

/* In place under the very strides of the source. */
static void check_in_place(config *c, int backward)
{
    config_reset(c);
    const trope_args args = config_args(c, backward);
    run_call(&args, backward);
    trope_args in_place = args;
    for (int i = 0; i < args.operand_count; i++) {
        trope_operand *o = &in_place.operands[i];
        o->dst = (void *)(uintptr_t)o->src;
        memcpy(o->dst_stride, o->src_stride, sizeof o->dst_stride);
    }
    run_call(&in_place, backward);
    check_parity(c, same_elements(&args, &in_place), "parity_memory, in place");
}

int main(int argc, char **argv)
{
    const seed_range seeds = parse_seeds(argc, argv, 2000);
    for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; seed++) {
        const uint8_t fixed[][2] = {{OPTION_GRADIENT, GRADIENT_NONE}};
        config_choices choices = config_choose_with(seed, fixed, 1);
        choices.specials = (int32_t)(seed % 2);
        config *c = config_make(seed, &choices);
        for (int backward = 0; backward < 2; backward++) {
            check_moved(c, backward);
            check_contiguous(c, backward);
            if (choices.value[OPTION_PLACE] == PLACE_OUT && choices.value[OPTION_SOURCE] != SOURCE_BROADCAST)
                check_in_place(c, backward);
        }
        config_free(c);
    }
    return check_result();
}
