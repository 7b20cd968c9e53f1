/* Splitting the sequence over context parallel ranks does not change the bits of the results. The results of the ranks, in
 * the order of the whole sequence, equal the results of one rank that has the whole sequence. The test covers all context
 * parallel layouts, dense batches and packed sequences, with and without padding.
 *
 *     parity_context_parallel [--seed S] [--count N] */
#include <stdlib.h>
#include <string.h>

#include "parity/parity.h"
#include "support/number.h"
#include "support/reference.h"
#include "support/seeds.h"
#include "support/tensor.h"
#include "support/token_sums.h"

/* An array of a norm, [outer, batch, tokens] with `bytes` bytes for each token: rstd, or the sums of heads. */
typedef enum norm_array { ARRAY_RSTD, ARRAY_SUMS, ARRAYS } norm_array;
typedef struct token_array {
    char *numbers; /* NULL: the norm has no such array */
    int64_t outer;
    size_t bytes;
    int is_written;
} token_array;

/* A config has the shapes of one rank. The whole sequence has cp_size times as many tokens, in contiguous tensors. */
typedef struct whole {
    config *c;
    call k; /* without context parallelism */
    int backward;
    char *src[TROPE_MAX_OPERANDS], *dst[TROPE_MAX_OPERANDS], *before[TROPE_MAX_OPERANDS]; /* old_dst */
    char *x[TROPE_MAX_OPERANDS];                                                          /* forward_src, or NULL */
    token_array arrays[TROPE_MAX_OPERANDS][ARRAYS];
    float *freqs;
    random_state random;
} whole;

#define TABLE_ROWS 2000 /* above any position of the test */

static void make_angles(whole *w)
{
    trope_args *a = call_args(&w->k);
    const int64_t columns = reference_columns(a);
    w->freqs = NULL;
    if (!a->freqs)
        return;
    w->freqs = malloc((size_t)(TABLE_ROWS * columns) * sizeof *w->freqs);
    for (int64_t i = 0; i < TABLE_ROWS * columns; i++)
        w->freqs[i] = (float)(3.2 * random_real(&w->random));
    call_freqs(&w->k, w->freqs, a->angle_columns, TABLE_ROWS);
    memset(a->angle_stride, 0, sizeof a->angle_stride);
}

static size_t bytes_of(const trope_args *args, int operand, tensor_role role, int backward)
{
    const tensor t = tensor_of(args, operand, role, backward);
    return (size_t)tensor_count(&t) * number_size(args->dtype);
}

/* Sets the tensors of an operand, all [batch, tokens, heads, head_dim]. An operand without a dst gets none. */
static void point_to(trope_operand *o, char *src, char *dst, char *x)
{
    o->src = src;
    o->dst = o->dst ? dst : NULL;
    o->forward_src = x;
    o->src_layout = TROPE_BSHD;
    o->dst_layout = o->dst ? TROPE_BSHD : 0;
    o->forward_src_layout = x ? TROPE_BSHD : 0;
    memset(o->forward_src_stride, 0, sizeof o->forward_src_stride);
    memset(o->src_stride, 0, sizeof o->src_stride);
    memset(o->dst_stride, 0, sizeof o->dst_stride);
}

static char *random_elements(whole *w, size_t bytes)
{
    const size_t element = number_size(w->k.args.dtype);
    char *elements = malloc(bytes);
    for (size_t at = 0; at < bytes; at += element)
        number_store(w->k.args.dtype, elements + at, random_real(&w->random));
    return elements;
}

static void **array_of(call *k, int operand, norm_array which)
{
    return which == ARRAY_RSTD ? &k->norm[operand].rstd : &k->norm[operand].token_sums;
}

/* Makes the arrays of the norm of an operand, for all tokens. Their values are in the range that a config uses. */
static void make_arrays(whole *w, int i)
{
    const trope_args *a = call_args(&w->k);
    const trope_norm *n = &w->k.norm[i];
    const int32_t real = a->dtype == TROPE_F64 ? TROPE_F64 : TROPE_F32;
    const size_t size = number_size(real);
    w->arrays[i][ARRAY_RSTD] =
        (token_array){NULL, 1, (size_t)reference_rstds(a, i) * size, n->rstd_use == TROPE_RSTD_WRITE};
    w->arrays[i][ARRAY_SUMS] = (token_array){NULL, token_sums_heads(&w->k, i), size, n->token_sums_use == TROPE_SUMS_WRITE};
    for (int which = 0; which < ARRAYS; which++) {
        token_array *array = &w->arrays[i][which];
        const size_t bytes = (size_t)(array->outer * a->batch * a->tokens) * array->bytes;
        if (!*array_of(&w->k, i, (norm_array)which))
            continue;
        *array_of(&w->k, i, (norm_array)which) = array->numbers = malloc(bytes);
        for (size_t at = 0; at < bytes; at += size)
            number_store(real, array->numbers + at, 1.5 + random_real(&w->random));
    }
}

static void make_whole(whole *w, config *c, int backward)
{
    *w = (whole){.c = c, .k = config_call(c, backward), .backward = backward, .random = {c->seed}};
    trope_args *a = call_args(&w->k);
    a->tokens *= a->cp_size;
    a->cp_size = a->cp_rank = a->cp_layout = 0;
    a->status = NULL;
    make_angles(w);
    for (int i = 0; i < a->operand_count; i++) {
        const size_t bytes = bytes_of(a, i, TENSOR_DST, backward);
        w->src[i] = random_elements(w, bytes_of(a, i, TENSOR_SRC, backward));
        w->before[i] = random_elements(w, bytes);
        w->dst[i] = memcpy(malloc(bytes), w->before[i], bytes);
        if (w->k.operands[i].forward_src)
            w->x[i] = random_elements(w, bytes_of(a, i, TENSOR_FORWARD_SRC, backward));
        point_to(&w->k.operands[i], w->src[i], w->dst[i], w->x[i]);
        make_arrays(w, i);
    }
}

static void free_whole(whole *w)
{
    for (int i = 0; i < w->k.args.operand_count; i++) {
        free(w->src[i]);
        free(w->x[i]);
        free(w->dst[i]);
        free(w->before[i]);
        free(w->arrays[i][ARRAY_RSTD].numbers);
        free(w->arrays[i][ARRAY_SUMS].numbers);
    }
    free(w->freqs);
}

/* Returns the call of one rank. Its pointers still point to the memory of the whole sequence. */
static call rank_call(const whole *w, int32_t rank)
{
    call k = w->k;
    k.args.tokens = w->c->args.tokens;
    k.args.cp_size = w->c->args.cp_size;
    k.args.cp_layout = w->c->args.cp_layout;
    k.args.cp_rank = rank;
    return k;
}

/* Returns the index that a token of a rank has in the whole sequence. Tokens before the first sequence and after the last
 * one have no such index, and the result is -1. With FLAT, every token has an index. */
static int64_t token_in_whole(const trope_args *rank, int64_t token)
{
    trope_args plain = {.batch = 1, .tokens = rank->tokens, .cp_size = rank->cp_size, .cp_rank = rank->cp_rank};
    plain.cp_layout = rank->cp_layout;
    if (rank->cp_layout == TROPE_CP_FLAT)
        return rank->cp_rank * rank->tokens + token;
    plain.cu_seqlens = rank->cu_seqlens_padded ? rank->cu_seqlens_padded : rank->cu_seqlens;
    plain.cu_seqlens_dtype = rank->cu_seqlens_dtype;
    plain.sequences = rank->sequences;
    const reference_place place = reference_find(&plain, 0, token);
    if (!plain.cu_seqlens)
        return place.position[0];
    if (place.is_padding)
        return -1;
    const int64_t s = place.sequence;
    return place.position[0] + tensor_index(plain.cu_seqlens, plain.cu_seqlens_dtype, s);
}

/* Copies the tokens of a rank from the memory of the whole sequence. A token has `bytes` bytes. */
static char *gather(const whole *w, const trope_args *rank, const char *from, size_t bytes)
{
    char *share = malloc((size_t)(rank->batch * rank->tokens) * bytes);
    for (int64_t i = 0; i < rank->batch * rank->tokens; i++) {
        const int64_t token = token_in_whole(rank, i % rank->tokens);
        const int64_t there = i / rank->tokens * w->k.args.tokens + (token < 0 ? 0 : token);
        memcpy(share + (size_t)i * bytes, from + (size_t)there * bytes, bytes);
    }
    return share;
}

/* Counts the tokens of a rank that differ from the whole. */
static long compare(const whole *w, const trope_args *rank, const char *share, const char *with, size_t bytes)
{
    long different = 0;
    for (int64_t i = 0; i < rank->batch * rank->tokens; i++) {
        const int64_t token = token_in_whole(rank, i % rank->tokens);
        const int64_t there = i / rank->tokens * w->k.args.tokens + token;
        if (token >= 0)
            different += !!memcmp(share + (size_t)i * bytes, with + (size_t)there * bytes, bytes);
    }
    return different;
}

/* Gives a rank its tokens of an array. An array that the call writes is filled with bytes that no result has. */
static void share_array(const whole *w, call *k, int i, norm_array which)
{
    const token_array *array = &w->arrays[i][which];
    const size_t share = (size_t)(k->args.batch * k->args.tokens) * array->bytes,
                 all = (size_t)(w->k.args.batch * w->k.args.tokens) * array->bytes;
    if (!array->numbers)
        return;
    char *const numbers = malloc((size_t)array->outer * share);
    for (int64_t outer = 0; outer < array->outer; outer++) {
        char *const part = gather(w, &k->args, array->numbers + (size_t)outer * all, array->bytes);
        memcpy(numbers + (size_t)outer * share, part, share);
        free(part);
    }
    if (array->is_written)
        memset(numbers, 0xff, (size_t)array->outer * share);
    *array_of(k, i, which) = numbers;
}

/* Counts the tokens that the rank has written and that differ from the whole. Frees the array of the rank. */
static long return_array(const whole *w, call *k, int i, norm_array which)
{
    const token_array *array = &w->arrays[i][which];
    const size_t share = (size_t)(k->args.batch * k->args.tokens) * array->bytes,
                 all = (size_t)(w->k.args.batch * w->k.args.tokens) * array->bytes;
    long different = 0;
    if (!array->numbers)
        return 0;
    char *const numbers = *array_of(k, i, which);
    for (int64_t outer = 0; array->is_written && outer < array->outer; outer++)
        different +=
            compare(w, &k->args, numbers + (size_t)outer * share, array->numbers + (size_t)outer * all, array->bytes);
    free(numbers);
    return different;
}

/* Runs one rank on its tokens and compares its results with the whole. */
static int is_part_of_whole(const whole *w, int32_t rank)
{
    call k = rank_call(w, rank);
    const trope_args *a = call_args(&k);
    const size_t rows = (size_t)(a->batch * a->tokens);
    char *src[TROPE_MAX_OPERANDS], *dst[TROPE_MAX_OPERANDS], *x[TROPE_MAX_OPERANDS] = {NULL};
    long different = 0;
    for (int i = 0; i < a->operand_count; i++) {
        src[i] = gather(w, a, w->src[i], bytes_of(a, i, TENSOR_SRC, w->backward) / rows);
        dst[i] = gather(w, a, w->before[i], bytes_of(a, i, TENSOR_DST, w->backward) / rows);
        if (w->x[i])
            x[i] = gather(w, a, w->x[i], bytes_of(a, i, TENSOR_FORWARD_SRC, w->backward) / rows);
        point_to(&k.operands[i], src[i], dst[i], x[i]);
        for (int which = 0; which < ARRAYS; which++)
            share_array(w, &k, i, (norm_array)which);
    }
    run_call(a, w->backward);
    for (int i = 0; i < a->operand_count; i++) {
        different += compare(w, a, dst[i], w->dst[i], bytes_of(a, i, TENSOR_DST, w->backward) / rows);
        for (int which = 0; which < ARRAYS; which++)
            different += return_array(w, &k, i, (norm_array)which);
        free(src[i]);
        free(dst[i]);
        free(x[i]);
    }
    return different == 0;
}

static void check_ranks(config *c, int backward)
{
    whole w;
    make_whole(&w, c, backward);
    run_call(call_args(&w.k), backward);
    for (int32_t rank = 0; rank < c->args.cp_size; rank++)
        check_parity(c, is_part_of_whole(&w, rank), "parity_context_parallel");
    free_whole(&w);
}

int main(int argc, char **argv)
{
    const seed_range seeds = parse_seeds(argc, argv, 1500);
    static const uint8_t angles[] = {ANGLES_FREQS, ANGLES_INV_FREQ, ANGLES_PHASE_STEP};
    for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; seed++) {
        const uint8_t fixed[][2] = {{OPTION_GRADIENT, GRADIENT_NONE},
                                    {OPTION_CP, (uint8_t)(1 + seed % 4)},
                                    {OPTION_POSITIONS, (uint8_t)(seed / 4 % 3)},
                                    {OPTION_ANGLES, angles[seed / 12 % 3]},
                                    {OPTION_RANGE, RANGE_INSIDE},
                                    {OPTION_D_WEIGHT, D_WEIGHT_NONE}};
        run_directions(seed, fixed, 6, 0, check_ranks);
    }
    return check_result();
}
