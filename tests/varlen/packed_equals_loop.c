/* A call with packed sequences gives each sequence the same bits as a call for that sequence alone. The test makes random
 * calls, and one call with thousands of sequences. Many of these are empty, including the first and the last.
 *
 *     varlen_packed_equals_loop [--seed S] [--count N] */
#include "support/compare.h"
#include "support/number.h"
#include "support/seeds.h"
#include "support/tensor.h"
#include "support/token_sums.h"
#include "varlen/packed_call.h"

/* A result with elements for each token: a destination, or the sums of an operand's heads. */
typedef struct result {
    tensor t;
    const char *base;
    size_t element;
} result;

static int find_results(const call *k, int backward, result *results)
{
    int count = 0;
    for (int i = 0; i < k->args.operand_count; i++) {
        const tensor dst = tensor_of(&k->args, i, TENSOR_DST, backward);
        const int64_t rows = k->args.batch * k->args.tokens;
        if (dst.base)
            results[count++] = (result){dst, dst.base, number_size(k->args.dtype)};
        if (k->norm[i].token_sums_use == TROPE_SUMS_WRITE) /* viewed with tokens before heads, as in a tensor */
            results[count++] =
                (result){.t = {.size = {1, k->args.tokens, 1, token_sums_heads(k, i), 1}, .stride = {0, 1, 0, rows, 0}},
                         .base = k->norm[i].token_sums,
                         .element = k->args.dtype == TROPE_F64 ? 8 : 4};
    }
    return count;
}

/* Returns the bits of all results. */
static uint64_t *gather(const call *k, int backward)
{
    result results[TROPE_MAX_OPERANDS];
    int64_t total = 0, at = 0;
    const int count = find_results(k, backward, results);
    for (int i = 0; i < count; i++)
        total += tensor_count(&results[i].t);
    uint64_t *bits = calloc((size_t)total + 1, sizeof *bits);
    for (int i = 0; i < count; i++)
        for (int64_t j = 0; j < tensor_count(&results[i].t); j++, at++)
            memcpy(&bits[at], results[i].base + tensor_offset(&results[i].t, j) * (int64_t)results[i].element,
                   results[i].element);
    return bits;
}

/* Makes the call for one sequence of `packed`. All tensors of `packed` must have strides. *start receives the start
 * position, and the new call points to it. */
static call one_sequence(const call *packed, int64_t sequence, int64_t *start)
{
    const trope_args *args = &packed->args;
    const int32_t dtype = args->cu_seqlens_dtype;
    const void *stored = args->cu_seqlens_padded ? args->cu_seqlens_padded : args->cu_seqlens;
    const int64_t begin = tensor_index(stored, dtype, sequence), first = tensor_index(args->cu_seqlens, dtype, sequence);
    call c = *packed;
    int64_t ids[3];
    trope_args *a = call_args(&c);
    a->tokens = tensor_index(args->cu_seqlens, dtype, sequence + 1) - first;
    a->cu_seqlens = a->cu_seqlens_padded = NULL;
    a->sequences = 0;
    a->cu_seqlens_dtype = a->padding = a->stream_positions = 0;
    for (int i = 0; i < a->operand_count; i++) {
        trope_operand *o = &c.operands[i];
        const int64_t size = (int64_t)number_size(a->dtype), rstd = reference_rstds(a, i) * (a->dtype == TROPE_F64 ? 8 : 4);
        o->src = (const char *)o->src + begin * o->src_stride[TROPE_DIM_TOKEN] * size;
        if (o->dst)
            o->dst = (char *)o->dst + begin * o->dst_stride[TROPE_DIM_TOKEN] * size;
        if (o->forward_src)
            o->forward_src = (const char *)o->forward_src + begin * o->forward_src_stride[TROPE_DIM_TOKEN] * size;
        if (c.norm[i].rstd)
            c.norm[i].rstd = (char *)c.norm[i].rstd + begin * rstd;
    }
    if (a->position_ids) {
        tensor_ids_strides(args, ids);
        a->ids_layout = TROPE_IDS_STRIDED;
        a->position_axes = a->position_axes ? a->position_axes : 1;
        memcpy(a->ids_stride, ids, sizeof ids);
        if (a->position_axes == 1)
            a->ids_stride[0] = 0;
        a->position_ids = (const char *)a->position_ids + begin * ids[2] * (a->position_dtype == TROPE_I64 ? 8 : 4);
        return c;
    }
    if (!reference_pairs(args))
        return c;
    *start = args->start_positions ? tensor_index(args->start_positions, args->position_dtype, sequence) : 0;
    *start += args->stream_positions ? first : 0;
    a->position_dtype = TROPE_I64;
    a->start_positions = start;
    return c;
}

static int is_unpadded(const trope_args *args, int64_t element, int64_t count)
{
    const int64_t per_token = count / args->tokens;
    return !reference_find(args, 0, element / per_token).is_padding;
}

static long count_different(const call *k, int backward, const uint64_t *a, const uint64_t *b)
{
    result results[TROPE_MAX_OPERANDS];
    long different = 0;
    const int operands = find_results(k, backward, results);
    for (int i = 0; i < operands; i++) {
        const int64_t count = tensor_count(&results[i].t);
        for (int64_t j = 0; j < count; j++)
            different += a[j] != b[j] && is_unpadded(&k->args, j, count);
        a += count;
        b += count;
    }
    return different;
}

static uint64_t *rotate_each(config *c, const call *packed, int backward)
{
    const trope_args *args = &packed->args;
    const void *stored = args->cu_seqlens_padded ? args->cu_seqlens_padded : args->cu_seqlens;
    config_reset(c);
    for (int64_t s = 0; s < args->sequences; s++) {
        int64_t start;
        call one = one_sequence(packed, s, &start);
        trope_args *a = call_args(&one);
        const int64_t begin = tensor_index(stored, args->cu_seqlens_dtype, s);
        token_sums_take(packed, &one, begin);
        CHECK_MESSAGE((backward ? trope_backward(a) : trope_forward(a)) == TROPE_OK, "%s", trope_last_error());
        token_sums_return(packed, &one, begin);
    }
    return gather(packed, backward);
}

static void check_seed(uint64_t seed)
{
    const uint8_t fixed[][2] = {{OPTION_GRADIENT, GRADIENT_NONE},
                                {OPTION_SEQUENCES, (uint8_t)(1 + seed % 4)},
                                {OPTION_CP, 0},
                                {OPTION_STRUCTS, STRUCTS_OWN},
                                {OPTION_D_WEIGHT, D_WEIGHT_NONE},
                                {OPTION_RANGE, (uint8_t)(seed / 4 % 2)}};
    const config_choices choices = config_choose_with(seed, fixed, 6);
    config *c = config_make(seed, &choices);
    for (int backward = 0; backward < 2; backward++) {
        char description[2048];
        call k = config_call(c, backward);
        const trope_args *args = call_args(&k);
        tensor_say_strides(args, k.operands, backward);
        config_reset(c);
        CHECK_MESSAGE((backward ? trope_backward(args) : trope_forward(args)) == TROPE_OK, "%s", trope_last_error());
        uint64_t *packed = gather(&k, backward), *alone = rotate_each(c, &k, backward);
        const long different = count_different(&k, backward, packed, alone);
        config_describe(c, description, sizeof description);
        CHECK_MESSAGE(different == 0,
                      "%ld elements differ; to repeat: varlen_packed_equals_loop --seed 0x%llx --count 1\n    %s",
                      different, (unsigned long long)seed, description);
        free(packed);
        free(alone);
    }
    config_free(c);
}

#define MANY 20000

/* Sequences have 0 to 3 tokens. The first hundred, the last hundred and some runs of 50 between them are empty. */
static void check_many(void)
{
    random_state random = {7};
    int32_t *cu_seqlens = calloc(MANY + 1, sizeof *cu_seqlens);
    for (int i = 0; i < MANY; i++) {
        const int empty = i < 100 || i >= MANY - 100 || i / 50 % 7 == 3;
        cu_seqlens[i + 1] = cu_seqlens[i] + (empty ? 0 : (int32_t)random_between(&random, 0, 3));
    }
    packed_call p;
    make_packed_call(&p, cu_seqlens[MANY], cu_seqlens, MANY);
    CHECK_MESSAGE(trope_forward(call_args(&p.c)) == TROPE_OK, "%s", trope_last_error());
    long different = 0;
    for (int i = 0; i < MANY; i++)
        for (int32_t token = cu_seqlens[i]; token < cu_seqlens[i + 1]; token++) {
            float alone[ROW_ELEMENTS];
            rotate_alone(&p, token, token - cu_seqlens[i], alone);
            different += !!memcmp(alone, p.dst + token * ROW_ELEMENTS, sizeof alone);
        }
    CHECK_MESSAGE(different == 0, "%ld of %d tokens of %d sequences differ", different, cu_seqlens[MANY], MANY);
    CHECK(guards_are_intact(&p));
    free_packed_call(&p);
    free(cu_seqlens);
}

int main(int argc, char **argv)
{
    const seed_range seeds = parse_seeds(argc, argv, 1500);
    for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; seed++)
        check_seed(seed);
    check_many();
    return check_result();
}
