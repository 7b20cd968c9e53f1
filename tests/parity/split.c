/* Splitting the work does not change the bits of the results. The test splits a call into calls on one operand, on one
 * batch entry, on one head (also with a norm over all heads of a token, but not with sums over shared heads), and into two
 * parts of the sequence.
 *
 *     parity_split [--seed S] [--count N] */
#include <stdlib.h>
#include <string.h>

#include "parity/parity.h"
#include "support/number.h"
#include "support/reference.h"
#include "support/seeds.h"
#include "support/tensor.h"
#include "support/token_sums.h"

static const void *advance(const void *pointer, int64_t elements, int32_t dtype)
{
    return pointer ? (const char *)pointer + elements * (int64_t)number_size(dtype) : NULL;
}

static const void *advance_indices(const void *pointer, int64_t count, int32_t dtype)
{
    return pointer ? (const char *)pointer + count * (dtype == TROPE_I64 ? 8 : 4) : NULL;
}

/* Advances the tensors of an operand along a dimension. Their layouts must be STRIDED. */
static void advance_tensors(const trope_args *args, trope_operand *o, int dimension, int64_t steps)
{
    o->forward_src = advance(o->forward_src, steps * o->forward_src_stride[dimension], args->dtype);
    o->src = advance(o->src, steps * o->src_stride[dimension], args->dtype);
    o->dst = (void *)(uintptr_t)advance(o->dst, steps * o->dst_stride[dimension], args->dtype);
}

/* Describes the same table and ids by strides. */
static void say_strides(trope_args *a)
{
    const int64_t columns = reference_columns(a);
    int64_t table[4], ids[3];
    tensor_table_strides(a, a->angle_layout, a->angle_stride, columns, table);
    tensor_ids_strides(a, ids);
    if (a->angle_layout) {
        a->angle_layout = TROPE_TABLE_STRIDED;
        memcpy(a->angle_stride, table, sizeof table);
    }
    if (a->ids_layout) {
        a->ids_layout = TROPE_IDS_STRIDED;
        a->position_axes = a->position_axes ? a->position_axes : 1;
        memcpy(a->ids_stride, ids, sizeof ids);
    }
}

/* Runs the whole call and returns a snapshot of its results. Then resets the config for the calls on the parts. */
static unsigned char *run_whole(config *c, call *k, int backward)
{
    config_reset(c);
    run_call(call_args(k), backward);
    unsigned char *whole = snapshot(c);
    config_reset(c);
    return whole;
}

/* The ways to split a call, and the number of comparisons for each. A call that has only one part proves nothing and is not
 * counted. */
typedef enum split_kind { BY_OPERANDS, BY_BATCH, BY_HEADS, BY_RANKS, BY_SEQUENCE, SPLITS } split_kind;
static const char *const split_names[] = {"parity_split, operands", "parity_split, batch", "parity_split, heads",
                                          "parity_split, heads with token_sums", "parity_split, sequence"};
static long compared[SPLITS];

static void check_parts(config *c, unsigned char *whole, split_kind kind, int64_t parts)
{
    check_parity(c, is_snapshot(c, whole), split_names[kind]);
    compared[kind] += parts > 1;
    free(whole);
}

/* ---- Operands ---- */

static int widest_operand(const trope_args *args)
{
    int i = 0;
    while (args->operands[i].rotary_dim / 2 != reference_pairs(args))
        i++;
    return i;
}

/* An operand that is narrower than the widest one uses the angles of the first pairs. In a table with TROPE_COLUMNS_HALF,
 * the columns of a pair depend on the widest operand. A call on the narrower operand alone would read other columns. */
static int can_be_alone(const trope_args *args, const trope_operand *o)
{
    return args->angle_columns != TROPE_COLUMNS_HALF || o->rotary_dim / 2 == reference_pairs(args);
}

/* Returns whether a call with this operand alone is valid. The operand must rotate, or have a norm in a call without
 * rotated operands. */
static int suffices(const call *together, int i)
{
    return together->operands[i].rotary_dim != TROPE_COPY ||
           (!reference_pairs(&together->args) && together->norm[i].struct_size);
}

/* Operands that cannot be alone in a call are added to the call of the widest operand. */
static call one_operand(const call *together, int operand, int widest)
{
    call alone = *together;
    alone.args.operand_count = 0;
    memset(alone.norm, 0, sizeof alone.norm);
    for (int i = 0; i < together->args.operand_count; i++) {
        if (i != operand && (operand != widest || suffices(together, i)))
            continue;
        alone.norm[alone.args.operand_count] = together->norm[i];
        alone.operands[alone.args.operand_count++] = together->operands[i];
    }
    alone.args.norms = NULL;
    return alone;
}

static void check_operands(config *c, int backward)
{
    call together = config_call(c, backward);
    const trope_args *args = call_args(&together);
    const int widest = widest_operand(args);
    for (int i = 0; i < args->operand_count; i++)
        if (together.operands[i].rotary_dim != TROPE_COPY && !can_be_alone(args, &together.operands[i]))
            return;
    say_strides(&together.args);
    unsigned char *whole = run_whole(c, &together, backward);
    int parts = 0;
    for (int i = 0; i < args->operand_count; i++) {
        if (!suffices(&together, i))
            continue;
        call alone = one_operand(&together, i, widest);
        run_call(call_args(&alone), backward);
        parts++;
    }
    check_parts(c, whole, BY_OPERANDS, parts);
}

/* ---- Batch ---- */

static call entry_of_batch(const call *together, int64_t entry)
{
    call k = *together;
    trope_args *a = call_args(&k);
    a->batch = 1;
    for (int i = 0; i < a->operand_count; i++) {
        const int64_t entries = entry * a->tokens * reference_rstds(a, i);
        advance_tensors(a, &k.operands[i], TROPE_DIM_BATCH, entry);
        k.norm[i].rstd = (void *)(uintptr_t)advance(k.norm[i].rstd, entries, a->dtype == TROPE_F64 ? TROPE_F64 : TROPE_F32);
    }
    a->freqs = advance(a->freqs, entry * a->angle_stride[1], a->angle_dtype);
    a->cos = advance(a->cos, entry * a->angle_stride[1], a->angle_dtype);
    a->sin = advance(a->sin, entry * a->angle_stride[1], a->angle_dtype);
    a->start_positions = advance_indices(a->start_positions, entry, a->position_dtype);
    a->position_ids = advance_indices(a->position_ids, entry * a->ids_stride[1], a->position_dtype);
    return k;
}

static void check_batch(config *c, int backward)
{
    call together = config_call(c, backward);
    unsigned char *whole = run_whole(c, &together, backward);
    tensor_say_strides(call_args(&together), together.operands, backward);
    say_strides(&together.args);
    for (int64_t entry = 0; entry < together.args.batch; entry++) {
        call alone = entry_of_batch(&together, entry);
        token_sums_take(&together, &alone, entry * together.args.tokens);
        run_call(call_args(&alone), backward);
        token_sums_return(&together, &alone, entry * together.args.tokens);
    }
    check_parts(c, whole, BY_BATCH, together.args.batch);
}

/* ---- Heads, split as over tensor parallel ranks ---- */

/* Sets the token_sums of a call on one head. A call that reads sums gets the sums of all heads, and first_head selects
 * the sums of its head. A call that writes sums writes only the sums of its head. */
static void place_sums(const trope_args *args, trope_norm *norm, int32_t head)
{
    const int32_t dtype = args->dtype == TROPE_F64 ? TROPE_F64 : TROPE_F32;
    if (norm->token_sums_use == TROPE_SUMS_READ)
        norm->first_head += head;
    else
        norm->token_sums = (void *)(uintptr_t)advance(norm->token_sums, head * args->batch * args->tokens, dtype);
}

static void check_heads(config *c, int backward)
{
    call together = config_call(c, backward);
    const trope_operand *o = &together.operands[0];
    const trope_norm *n = &together.norm[0];
    if ((backward && o->shared_heads) || (n->scope == TROPE_NORM_TOKEN ? !n->token_sums : n->rstd != NULL))
        return;
    unsigned char *whole = run_whole(c, &together, backward);
    tensor_say_strides(call_args(&together), together.operands, backward);
    for (int group = 0; group < (o->groups ? o->groups : 1); group++)
        for (int head = 0; head < o->heads_per_group; head++) {
            call alone = together;
            alone.operands[0].groups = alone.operands[0].heads_per_group = 1;
            alone.operands[0].shared_heads = TROPE_SHARED_NONE;
            advance_tensors(&alone.args, &alone.operands[0], TROPE_DIM_GROUP, group);
            advance_tensors(&alone.args, &alone.operands[0], TROPE_DIM_HEAD, head);
            const int32_t number = group * o->heads_per_group + head;
            if (alone.norm[0].weight_per_head)
                alone.norm[0].weight =
                    advance(alone.norm[0].weight, (int64_t)number * o->head_dim, alone.norm[0].weight_dtype);
            if (alone.norm[0].token_sums)
                place_sums(&alone.args, &alone.norm[0], number);
            run_call(call_args(&alone), backward);
        }
    check_parts(c, whole, together.norm[0].token_sums ? BY_RANKS : BY_HEADS,
                (o->groups ? o->groups : 1) * o->heads_per_group);
}

/* ---- The sequence ---- */

static int64_t start_of(const trope_args *args, int64_t batch)
{
    return args->start_positions ? tensor_index(args->start_positions, args->position_dtype, batch) : 0;
}

/* Runs tokens [first, end) of every batch entry. `starts` is memory for the start positions of this call. */
static void run_tokens(const call *together, int backward, int64_t first, int64_t end, int64_t *starts)
{
    call k = *together;
    trope_args *a = call_args(&k);
    a->tokens = end - first;
    for (int i = 0; i < a->operand_count; i++)
        advance_tensors(a, &k.operands[i], TROPE_DIM_TOKEN, first);
    if (a->position_ids) {
        a->position_ids = advance_indices(a->position_ids, first * a->ids_stride[2], a->position_dtype);
    } else if (reference_pairs(a)) {
        for (int64_t batch = 0; batch < a->batch; batch++)
            starts[batch] = start_of(a, batch) + first;
        a->start_positions = starts;
        a->position_dtype = TROPE_I64;
    }
    run_call(a, backward);
}

static void check_sequence(config *c, int backward)
{
    call together = config_call(c, backward);
    unsigned char *whole = run_whole(c, &together, backward);
    random_state random = {c->seed};
    const int64_t middle = random_between(&random, 0, together.args.tokens);
    int64_t starts[8];
    tensor_say_strides(call_args(&together), together.operands, backward);
    say_strides(&together.args);
    run_tokens(&together, backward, 0, middle, starts);
    if (middle < together.args.tokens) /* an empty tensor can have the address of another one, as if in place */
        run_tokens(&together, backward, middle, together.args.tokens, starts);
    check_parts(c, whole, BY_SEQUENCE, 1 + (middle > 0 && middle < together.args.tokens));
}

int main(int argc, char **argv)
{
    const seed_range seeds = parse_seeds(argc, argv, 1000);
#define NO_SUMS                                                                                                            \
    {OPTION_GRADIENT, GRADIENT_NONE},                                                                                      \
    {                                                                                                                      \
        OPTION_D_WEIGHT, D_WEIGHT_NONE                                                                                     \
    }
    /* rstd has no strides, so a call on one head or on some tokens cannot address its part of rstd. With a norm over all
     * heads of a token, the heads of the token share one rstd, so calls on single heads can use it. */
    const uint8_t any[][2] = {NO_SUMS};
    const uint8_t batch[][2] = {NO_SUMS, {OPTION_SEQUENCES, SEQUENCES_NONE}, {OPTION_CP, 0}};
    const uint8_t one[][2] = {NO_SUMS, {OPTION_OPERANDS, 0}, {OPTION_RSTD, RSTD_NONE}};
    const uint8_t tokens[][2] = {NO_SUMS, {OPTION_SEQUENCES, SEQUENCES_NONE}, {OPTION_CP, 0}, {OPTION_RSTD, RSTD_NONE}};
    const uint8_t ranks[][4][2] = {{NO_SUMS, {OPTION_OPERANDS, 0}, {OPTION_SUMS, SUMS_READ}},
                                   {NO_SUMS, {OPTION_OPERANDS, 0}, {OPTION_SUMS, SUMS_WRITE}}};
    for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; seed++) {
        run_directions(seed, any, 2, 1, check_operands);
        run_directions(seed, batch, 3, 1, check_batch);
        run_directions(seed, one, 4, 1, check_heads);
        run_directions(seed, ranks[seed % 2], 4, 1, check_heads);
        run_directions(seed, tokens, 5, 1, check_sequence);
    }
    for (int i = 0; i < SPLITS; i++)
        CHECK_MESSAGE(compared[i] > 0, "%s: the test compared nothing", split_names[i]);
    printf("compared: %ld by operands, %ld by batch entries, %ld by heads, %ld with token_sums, %ld by sequence\n",
           compared[BY_OPERANDS], compared[BY_BATCH], compared[BY_HEADS], compared[BY_RANKS], compared[BY_SEQUENCE]);
    return check_result();
}
