/* Checks the gradient of shared heads bit for bit. The expected result is computed in three steps. The test sums dy over
 * the heads by the tree of trope.h, t[i] = t[2i] + t[2i+1], padded with +0 to a power of two. A call of the library without
 * shared heads rotates the sum, in fp32 unless the sum is rounded first. The test rounds the result once, and adds it to
 * dst if the operand accumulates. The calls have 1 to 128 heads in a group, and every dtype, rounding, padding and layout.
 * Half of them have zeros of either sign, subnormals and infinities among the elements.
 *
 *     parity_head_sums [--seed S] [--count N] */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "parity/parity.h"
#include "support/number.h"
#include "support/reference.h"
#include "support/seeds.h"
#include "support/tensor.h"

/* The call that rotates the sums. Its tensors are contiguous and have as many heads as dst. */
typedef struct sums {
    call k;
    char *src[TROPE_MAX_OPERANDS], *dst[TROPE_MAX_OPERANDS];
} sums;

/* Sums have the type of the arithmetic. With ROUND_NATIVE they have the dtype of the operands. */
static int32_t dtype_of_sums(const trope_args *args)
{
    return args->rounding == TROPE_ROUND_NATIVE || args->dtype == TROPE_F64 ? args->dtype : TROPE_F32;
}

/* Sums `count` numbers by the tree, and overwrites them. */
static double sum_tree(double *t, int64_t count, int is_double)
{
    int64_t size = 1;
    while (size < count)
        size *= 2;
    for (int64_t i = count; i < size; i++)
        t[i] = 0;
    for (; size > 1; size /= 2)
        for (int64_t i = 0; i < size / 2; i++)
            t[i] = is_double ? t[2 * i] + t[2 * i + 1] : (double)((float)t[2 * i] + (float)t[2 * i + 1]);
    return t[0];
}

/* Returns dy of an operand, summed over the heads that share one head of dst. */
static char *sum_heads(const trope_args *args, int i, int32_t dtype)
{
    const tensor src = tensor_of(args, i, TENSOR_SRC, 1), dst = tensor_of(args, i, TENSOR_DST, 1);
    const int64_t heads = src.size[2] * src.size[3] / (dst.size[2] * dst.size[3]), dim = dst.size[4];
    const int64_t size = (int64_t)number_size(args->dtype);
    double *tree = malloc((size_t)(2 * heads) * sizeof *tree);
    char *elements = malloc((size_t)tensor_count(&dst) * number_size(dtype));
    for (int64_t n = 0; n < tensor_count(&dst); n++) {
        for (int64_t h = 0; h < heads; h++) {
            const int64_t at = tensor_offset(&src, (n / dim * heads + h) * dim + n % dim);
            tree[h] = number_load(args->dtype, (const char *)src.base + at * size);
        }
        number_store(dtype, elements + (size_t)n * number_size(dtype), sum_tree(tree, heads, args->dtype == TROPE_F64));
    }
    free(tree);
    return elements;
}

static void make_sums(sums *t, const call *from)
{
    t->k = *from;
    trope_args *a = call_args(&t->k);
    a->dtype = dtype_of_sums(&from->args);
    for (int i = 0; i < a->operand_count; i++) {
        trope_operand *o = &t->k.operands[i];
        const tensor dst = tensor_of(&from->args, i, TENSOR_DST, 1);
        t->src[i] = sum_heads(&from->args, i, a->dtype);
        t->dst[i] = malloc((size_t)tensor_count(&dst) * number_size(a->dtype));
        *o = (trope_operand){.src = t->src[i],
                             .dst = t->dst[i],
                             .groups = (int32_t)dst.size[2],
                             .heads_per_group = (int32_t)dst.size[3],
                             .head_dim = o->head_dim,
                             .rotary_dim = o->rotary_dim,
                             .rotary_offset = o->rotary_offset,
                             .src_layout = TROPE_BSHD,
                             .dst_layout = TROPE_BSHD};
    }
}

static void free_sums(sums *t)
{
    for (int i = 0; i < t->k.args.operand_count; i++) {
        free(t->src[i]);
        free(t->dst[i]);
    }
}

/* Stores the expected element of dst. On entry, `element` holds old_dst. */
static void finish(const trope_args *args, const trope_operand *o, double sum, void *element)
{
    if (args->rounding == TROPE_ROUND_NATIVE)
        sum = number_round(args->dtype, sum);
    if (o->accumulate) {
        const double before = number_load(args->dtype, element);
        sum = args->dtype == TROPE_F64 ? before + sum : (double)((float)before + (float)sum);
    }
    number_store(args->dtype, element, sum);
}

/* Counts the elements of an operand that differ from the expected bits. */
static long count_wrong(const call *k, const sums *t, const config *c, int i)
{
    const trope_args *args = &k->args;
    const trope_operand *o = &k->operands[i];
    const tensor dst = tensor_of(args, i, TENSOR_DST, 1);
    const int64_t size = (int64_t)number_size(args->dtype), sum_size = (int64_t)number_size(t->k.args.dtype);
    const config_buffer *buffer = &c->buffers[config_buffer_of(c, dst.base)];
    long wrong = 0;
    for (int64_t n = 0; n < tensor_count(&dst); n++) {
        const char *got = (const char *)dst.base + tensor_offset(&dst, n) * size;
        char expected[8];
        memcpy(expected, buffer->initial + (got - (const char *)buffer->bytes), (size_t)size);
        const int64_t row = n / (dst.size[4] * dst.size[2] * dst.size[3]);
        const reference_place place = reference_find(args, row / args->tokens, row % args->tokens);
        if (!(o->accumulate && place.is_padding && args->padding == TROPE_PADDING_ZERO))
            finish(args, o, number_load(t->k.args.dtype, t->dst[i] + n * sum_size), expected);
        const int both_nan = isnan(number_load(args->dtype, expected)) && isnan(number_load(args->dtype, got));
        wrong += !both_nan && memcmp(expected, got, (size_t)size);
    }
    return wrong;
}

static long checked[3]; /* operands by shared_heads: NONE, GROUP, ALL */

static void check_seed(uint64_t seed)
{
    const uint8_t fixed[][2] = {{OPTION_GRADIENT, GRADIENT_NONE},
                                {OPTION_NORM, NORM_NONE},
                                {OPTION_PLACE, PLACE_OUT},
                                {OPTION_SIZE, (uint8_t)(seed % 8 ? SIZE_TINY : SIZE_VECTORS)},
                                {OPTION_HEADS, (uint8_t)(HEADS_MANY + seed % 2)}};
    config_choices choices = config_choose_with(seed, fixed, 5);
    choices.heads = (int32_t)(1 + seed / 2 % 128);
    choices.specials = (int32_t)(seed / 4 % 2);
    config *c = config_make(seed, &choices);
    call k = config_call(c, 1);
    sums t;
    long wrong = 0;
    make_sums(&t, &k);
    run_call(call_args(&t.k), 1);
    config_reset(c);
    run_call(call_args(&k), 1);
    for (int i = 0; i < k.args.operand_count; i++) {
        wrong += count_wrong(&k, &t, c, i);
        checked[k.operands[i].shared_heads]++;
    }
    check_parity(c, wrong == 0, "parity_head_sums");
    free_sums(&t);
    config_free(c);
}

int main(int argc, char **argv)
{
    const seed_range seeds = parse_seeds(argc, argv, 512);
    for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; seed++)
        check_seed(seed);
    printf("operands: %ld without shared heads, %ld with heads shared in groups, %ld with one shared head\n",
           checked[TROPE_SHARED_NONE], checked[TROPE_SHARED_GROUP], checked[TROPE_SHARED_ALL]);
    return check_result();
}
