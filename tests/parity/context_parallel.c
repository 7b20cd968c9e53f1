/* How the sequence is split over context parallel ranks changes no bits: what the ranks compute, put back in the order of
 * the whole sequence, is what one rank computes of it. All layouts, dense and packed, with and without padding.
 *
 *     parity_context_parallel [--seed S] [--count N] */
#include <stdlib.h>
#include <string.h>

#include "parity/parity.h"
#include "support/number.h"
#include "support/reference.h"
#include "support/seeds.h"
#include "support/tensor.h"

/* A config tells the shapes of one rank. The whole sequence is cp_size times that, in contiguous tensors of our own. */
typedef struct whole {
    config *c;
    trope_args args; /* without context parallel */
    char *src[TROPE_MAX_OPERANDS], *dst[TROPE_MAX_OPERANDS];
    float *freqs;
    random_state random;
} whole;

#define TABLE_ROWS 2000 /* more than any position here */

static void make_contiguous(const trope_args *args, trope_operand *o)
{
    int64_t size[TROPE_MAX_DIMS], stride = 1;
    tensor_sizes(args, o, size);
    for (int d = TROPE_MAX_DIMS - 1; d >= 0; stride *= size[d], d--)
        o->src_stride[d] = o->dst_stride[d] = stride;
}

static void make_angles(whole *w)
{
    trope_args *a = &w->args;
    w->freqs = NULL;
    if (a->inv_freq)
        return;
    w->freqs = malloc((size_t)TABLE_ROWS * (size_t)a->angle_cols * sizeof *w->freqs);
    for (int64_t i = 0; i < TABLE_ROWS * a->angle_cols; i++)
        w->freqs[i] = (float)(3.2 * random_real(&w->random));
    a->freqs = w->freqs;
    a->angle_rows = TABLE_ROWS;
    a->angle_row_stride = a->angle_batch_stride = 0;
}

static void make_whole(whole *w, config *c)
{
    trope_args *a = &w->args;
    const size_t element = number_size(c->args.dtype);
    *w = (whole){.c = c, .args = config_args(c, 0), .random = {c->seed}};
    a->tokens *= a->cp_size;
    a->cp_size = a->cp_rank = a->cp_layout = 0;
    a->status = NULL;
    make_angles(w);
    for (int i = 0; i < a->operand_count; i++) {
        trope_operand *o = &a->operands[i];
        const int64_t count = tensor_count(a, o);
        w->src[i] = malloc((size_t)count * element);
        w->dst[i] = malloc((size_t)count * element);
        for (int64_t j = 0; j < count; j++)
            number_store(a->dtype, w->src[i] + (size_t)j * element, random_real(&w->random));
        make_contiguous(a, o);
        o->src = w->src[i];
        o->dst = w->dst[i];
    }
}

static void free_whole(whole *w)
{
    for (int i = 0; i < w->args.operand_count; i++) {
        free(w->src[i]);
        free(w->dst[i]);
    }
    free(w->freqs);
    config_free(w->c);
}

/* The args of one rank. */
static trope_args rank_args(const whole *w, int32_t rank)
{
    trope_args a = w->args;
    a.tokens = w->c->args.tokens;
    a.cp_size = w->c->args.cp_size;
    a.cp_layout = w->c->args.cp_layout;
    a.cp_rank = rank;
    return a;
}

/* Where a token of a rank is stored in the whole, -1 for one before the first or after the last sequence, which belong to
 * no place there (but with FLAT, where every token does). */
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
    return place.position[0] + (plain.cu_seqlens_dtype == TROPE_I64 ? ((const int64_t *)plain.cu_seqlens)[s]
                                                                    : ((const int32_t *)plain.cu_seqlens)[s]);
}

/* Copies the tokens of a rank out of the whole (compares = 0), or counts its elements that are not those of the whole. */
static long gather_or_compare(const whole *w, const trope_args *rank, int operand, char *tensor, int compares)
{
    const trope_operand *o = &rank->operands[operand], *p = &w->args.operands[operand];
    const int64_t heads = o->src_stride[TROPE_DIM_TOKEN], size = (int64_t)number_size(rank->dtype);
    long different = 0;
    for (int64_t i = 0; i < rank->batch * rank->tokens; i++) {
        const int64_t token = token_in_whole(rank, i % rank->tokens);
        const int64_t there = (i / rank->tokens * p->src_stride[TROPE_DIM_BATCH] + (token < 0 ? 0 : token) * heads) * size;
        if (!compares)
            memcpy(tensor + i * heads * size, w->src[operand] + there, (size_t)(heads * size));
        else if (token >= 0)
            different += !!memcmp(tensor + i * heads * size, w->dst[operand] + there, (size_t)(heads * size));
    }
    return different;
}

/* Runs one rank on its share and compares it with the whole. */
static int is_part_of_whole(const whole *w, int32_t rank, int backward)
{
    trope_args a = rank_args(w, rank);
    char *src[TROPE_MAX_OPERANDS], *dst[TROPE_MAX_OPERANDS];
    long different = 0;
    for (int i = 0; i < a.operand_count; i++) {
        trope_operand *o = &a.operands[i];
        make_contiguous(&a, o);
        o->src = src[i] = malloc((size_t)tensor_count(&a, o) * number_size(a.dtype));
        o->dst = dst[i] = malloc((size_t)tensor_count(&a, o) * number_size(a.dtype));
        gather_or_compare(w, &a, i, src[i], 0);
    }
    run_call(&a, backward);
    for (int i = 0; i < a.operand_count; i++) {
        different += gather_or_compare(w, &a, i, dst[i], 1);
        free(src[i]);
        free(dst[i]);
    }
    return different == 0;
}

static void check_seed(uint64_t seed)
{
    const uint8_t fixed[][2] = {{OPTION_GRADIENT, GRADIENT_NONE},
                                {OPTION_CP, (uint8_t)(1 + seed % 4)},
                                {OPTION_POSITIONS, (uint8_t)(seed / 4 % 3)},
                                {OPTION_ANGLES, seed / 12 % 2 ? ANGLES_FREQS : ANGLES_INV_FREQ},
                                {OPTION_ANGLE_DTYPE, ANGLE_F32},
                                {OPTION_RANGE, RANGE_INSIDE}};
    const config_choices choices = config_choose_with(seed, fixed, 6);
    whole w;
    make_whole(&w, config_make(seed, &choices));
    for (int backward = 0; backward < 2; backward++) {
        run_call(&w.args, backward);
        for (int32_t rank = 0; rank < w.c->args.cp_size; rank++)
            check_parity(w.c, is_part_of_whole(&w, rank, backward), "parity_context_parallel");
    }
    free_whole(&w);
}

int main(int argc, char **argv)
{
    const seed_range seeds = parse_seeds(argc, argv, 1500);
    for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; seed++)
        check_seed(seed);
    return check_result();
}
