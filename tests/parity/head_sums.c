/* The sum over shared heads is the tree of trope.h, bit for bit: t[i] = t[2i] + t[2i+1], padded with +0 to a power of two,
 * rounded once, and added to dst where that is asked for. Its terms are an unshared call's of the library itself, in fp32
 * where they are not rounded before. 1 to 128 heads a group, every dtype, rounding, padding and layout; zeros of either
 * sign, subnormals and infinities among the elements of half of the calls.
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

/* The call that gives the terms: every head for itself, in tensors of its own. */
typedef struct terms {
    call k;
    char *src[TROPE_MAX_OPERANDS], *dst[TROPE_MAX_OPERANDS];
} terms;

/* The terms are sums of numbers of the arithmetic, but natively of those of the operands. */
static int32_t dtype_of_terms(const trope_args *args)
{
    return args->rounding == TROPE_ROUND_NATIVE || args->dtype == TROPE_F64 ? args->dtype : TROPE_F32;
}

static char *convert(const tensor *t, int32_t from, int32_t to)
{
    char *elements = malloc((size_t)tensor_count(t) * number_size(to));
    for (int64_t i = 0; i < tensor_count(t); i++)
        number_store(to, elements + (size_t)i * number_size(to),
                     number_load(from, (const char *)t->base + tensor_offset(t, i) * (int64_t)number_size(from)));
    return elements;
}

static void make_terms(terms *t, const call *from)
{
    t->k = *from;
    trope_args *a = call_args(&t->k);
    a->dtype = dtype_of_terms(&from->args);
    for (int i = 0; i < a->operand_count; i++) {
        trope_operand *o = &t->k.operands[i];
        const tensor src = tensor_of(a, i, TENSOR_SRC, 1);
        t->src[i] = convert(&src, from->args.dtype, a->dtype);
        t->dst[i] = malloc((size_t)tensor_count(&src) * number_size(a->dtype));
        *o = (trope_operand){.src = t->src[i],
                             .dst = t->dst[i],
                             .groups = o->groups,
                             .heads_per_group = o->heads_per_group,
                             .head_dim = o->head_dim,
                             .rotary_dim = o->rotary_dim,
                             .rotary_offset = o->rotary_offset,
                             .src_layout = TROPE_BSHD,
                             .dst_layout = TROPE_BSHD};
    }
}

static void free_terms(terms *t)
{
    for (int i = 0; i < t->k.args.operand_count; i++) {
        free(t->src[i]);
        free(t->dst[i]);
    }
}

/* The tree over `count` numbers, which it overwrites. */
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

/* What an element of dst, from what it was and the sum. */
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

/* Elements of an operand whose bits are not those of its terms' tree. */
static long count_wrong(const call *k, const terms *t, const config *c, int i)
{
    const trope_args *args = &k->args, *of_terms = &t->k.args;
    const trope_operand *o = &k->operands[i];
    const tensor dst = tensor_of(args, i, TENSOR_DST, 1), term = tensor_of(of_terms, i, TENSOR_DST, 1);
    const int64_t heads = term.size[2] * term.size[3] / (dst.size[2] * dst.size[3]), dim = dst.size[4];
    const int64_t size = (int64_t)number_size(args->dtype), term_size = (int64_t)number_size(of_terms->dtype);
    const config_buffer *buffer = &c->buffers[config_buffer_of(c, dst.base)];
    double *tree = malloc((size_t)(2 * heads) * sizeof *tree);
    long wrong = 0;
    for (int64_t n = 0; n < tensor_count(&dst); n++) {
        const char *got = (const char *)dst.base + tensor_offset(&dst, n) * size;
        char expected[8];
        memcpy(expected, buffer->initial + (got - (const char *)buffer->bytes), (size_t)size);
        for (int64_t h = 0; h < heads; h++)
            tree[h] = number_load(of_terms->dtype, t->dst[i] + ((n / dim * heads + h) * dim + n % dim) * term_size);
        const int64_t row = n / (dim * dst.size[2] * dst.size[3]);
        const reference_place place = reference_find(args, row / args->tokens, row % args->tokens);
        if (!(o->accumulate && place.is_padding && args->padding == TROPE_PADDING_ZERO))
            finish(args, o, sum_tree(tree, heads, args->dtype == TROPE_F64), expected);
        const int both_nan = isnan(number_load(args->dtype, expected)) && isnan(number_load(args->dtype, got));
        wrong += !both_nan && memcmp(expected, got, (size_t)size);
    }
    free(tree);
    return wrong;
}

static long checked[3]; /* operands whose heads are not, by group, all shared */

static void check_seed(uint64_t seed)
{
    const uint8_t fixed[][2] = {{OPTION_GRADIENT, GRADIENT_NONE},
                                {OPTION_PLACE, PLACE_OUT},
                                {OPTION_SIZE, (uint8_t)(seed % 8 ? SIZE_TINY : SIZE_VECTORS)},
                                {OPTION_HEADS, (uint8_t)(HEADS_MANY + seed % 2)}};
    config_choices choices = config_choose_with(seed, fixed, 4);
    choices.heads = (int32_t)(1 + seed / 2 % 128);
    choices.specials = (int32_t)(seed / 4 % 2);
    config *c = config_make(seed, &choices);
    call k = config_call(c, 1);
    terms t;
    long wrong = 0;
    make_terms(&t, &k);
    run_call(call_args(&t.k), 1);
    config_reset(c);
    run_call(call_args(&k), 1);
    for (int i = 0; i < k.args.operand_count; i++) {
        wrong += count_wrong(&k, &t, c, i);
        checked[k.operands[i].shared_heads]++;
    }
    check_parity(c, wrong == 0, "parity_head_sums");
    free_terms(&t);
    config_free(c);
}

int main(int argc, char **argv)
{
    const seed_range seeds = parse_seeds(argc, argv, 512);
    for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; seed++)
        check_seed(seed);
    printf("operands: %ld unshared, %ld shared by group, %ld shared by all\n", checked[TROPE_SHARED_NONE],
           checked[TROPE_SHARED_GROUP], checked[TROPE_SHARED_ALL]);
    return check_result();
}
