#include "problem.h"

#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "value.h"

enum { HEAD_DIM = 64, SEQUENCES = 12, BATCH = 2, AXES = 3 };

/* Random number streams of a problem. */
enum { STREAM_WEIGHTS = 8, STREAM_PADDING, STREAM_ANGLES, STREAM_STARTS = STREAM_ANGLES + 2, STREAM_NORMS };

/* ---- sizes ---- */

static int64_t round_up(int64_t value, int64_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

static int32_t largest_proper_divisor(int32_t n)
{
    for (int32_t d = n / 2; d > 1; d--)
        if (n % d == 0)
            return d;
    return 1;
}

static void choose_heads(problem *p)
{
    const int32_t tp = p->grid.tp;
    p->head_dim = HEAD_DIM;
    p->heads[PROBLEM_Q] = tp > 2 ? 2 * tp : 4;
    p->heads[PROBLEM_K] = p->c->keys == CASE_KEYS_SHARED       ? p->heads[PROBLEM_Q]
                          : p->c->keys == CASE_KEYS_SINGLE     ? 1
                          : p->c->keys == CASE_KEYS_REPLICATED ? largest_proper_divisor(tp)
                          : tp > 2                             ? tp
                                                               : 2;
}

static int is_empty_sequence(int64_t i)
{
    return i == 0 || i == SEQUENCES / 2 || i == SEQUENCES - 1;
}

/* Chooses the unpadded and the stored length of sequence i in a replica's stream. All replicas have the same lengths,
 * shifted by one sequence per replica, so that their streams are equally long. */
static void choose_length(const problem *p, int64_t replica, int64_t i, int64_t target, int64_t length[2])
{
    const int64_t number = (i + replica) % SEQUENCES, unit = 2 * (int64_t)p->grid.cp;
    const int64_t weight = data_between(data_seed(p->seed, STREAM_WEIGHTS), (uint64_t)number, 1, 16);
    int64_t stored = round_up(target * weight / (8 * SEQUENCES), unit) + unit, unpadded = stored;
    if (p->c->packing == CASE_PADDED)
        unpadded = data_between(data_seed(p->seed, STREAM_PADDING), (uint64_t)number, stored - unit < 1 ? 1 : stored - unit,
                                stored);
    if (p->c->packing == CASE_ALIGNED)
        unpadded = stored - unit * data_between(data_seed(p->seed, STREAM_PADDING), (uint64_t)number, 0, 1);
    if (is_empty_sequence(number)) {
        unpadded = 0;
        stored = p->c->packing == CASE_PADDED && number ? unit : 0; /* empty, but stored as padding */
    }
    length[0] = unpadded;
    length[1] = stored;
}

static int make_stream(problem *p, int64_t target)
{
    const int64_t count = p->grid.dp * SEQUENCES;
    int64_t unpadded = 0, stored = 0, length[2];
    p->batch = 1;
    p->sequences = SEQUENCES;
    p->unpadded = malloc((size_t)(count + 1) * sizeof *p->unpadded);
    p->stored = malloc((size_t)(count + 1) * sizeof *p->stored);
    if (!p->unpadded || !p->stored)
        return 1;
    p->unpadded[0] = p->stored[0] = 0;
    for (int64_t i = 0; i < count; i++) {
        choose_length(p, i / SEQUENCES, i % SEQUENCES, target / p->grid.dp, length);
        p->unpadded[i + 1] = (int32_t)(unpadded += length[0]);
        p->stored[i + 1] = (int32_t)(stored += length[1]);
    }
    p->tokens = stored / p->grid.dp;
    /* Leave room after the last sequence if there is one replica. One device has all replicas' streams as one. */
    if (p->grid.dp == 1 && p->c->packing != CASE_ALIGNED)
        p->tokens += 4 * p->grid.cp;
    if (p->c->packing == CASE_PACKED) {
        free(p->stored);
        p->stored = NULL;
    }
    return 0;
}

static int make_batch(problem *p, int64_t target)
{
    const int64_t entries = p->grid.dp * BATCH;
    p->batch = BATCH;
    p->tokens = round_up(target / entries, 2 * (int64_t)p->grid.cp);
    if (!p->tokens)
        p->tokens = 2 * p->grid.cp;
    if (p->c->positions != CASE_STARTS)
        return 0;
    p->starts = malloc((size_t)entries * sizeof *p->starts);
    for (int64_t i = 0; p->starts && i < entries; i++)
        p->starts[i] = data_between(data_seed(p->seed, STREAM_STARTS), (uint64_t)i, 1, 1000000);
    return !p->starts;
}

/* ---- angles ---- */

static int64_t longest_sequence(const problem *p)
{
    if (!p->sequences)
        return p->tokens;
    const int32_t *boundary = p->stored ? p->stored : p->unpadded;
    int64_t longest = 1;
    for (int64_t i = 0; i < p->sequences * p->grid.dp; i++)
        if (boundary[i + 1] - boundary[i] > longest)
            longest = boundary[i + 1] - boundary[i];
    return longest;
}

/* Makes random angles, or unrelated random cosines and sines, so that each row and column is different. */
static float *make_table(const problem *p, int which)
{
    float *table = malloc((size_t)(p->rows * p->cols) * sizeof *table);
    const uint64_t seed = data_seed(p->seed, STREAM_ANGLES + (uint64_t)which);
    for (int64_t i = 0; table && i < p->rows * p->cols; i++)
        table[i] = (float)data_real(seed, (uint64_t)i, p->c->angles == CASE_TABLE ? 1 : 3.2);
    return table;
}

static int make_angles(problem *p)
{
    const trope_frequency_args rule = {
        .struct_size = sizeof rule, .rule = TROPE_RULE_DEFAULT, .rotary_dim = p->c->rotary_dim, .base = 500000};
    double attention_factor;
    if (p->c->angles == CASE_INV_FREQ) {
        p->inv_freq = malloc((size_t)p->c->rotary_dim / 2 * sizeof *p->inv_freq);
        return !p->inv_freq || trope_frequencies(&rule, p->inv_freq, &attention_factor);
    }
    p->rows = longest_sequence(p);
    p->cols = p->c->angles == CASE_FREQS ? p->c->rotary_dim : p->c->rotary_dim / 2;
    p->columns = p->c->angles != CASE_FREQS                            ? TROPE_COLUMNS_PAIR
                 : case_pairing_out(p->c) == TROPE_PAIRING_INTERLEAVED ? TROPE_COLUMNS_INTERLEAVED
                                                                       : TROPE_COLUMNS_HALF;
    p->angles[0] = make_table(p, 0);
    p->angles[1] = p->c->angles == CASE_TABLE ? make_table(p, 1) : NULL;
    return !p->angles[0] || (p->c->angles == CASE_TABLE && !p->angles[1]);
}

/* Assigns pairs to axes in M-RoPE sections, as Qwen2-VL does: a third of the pairs for each axis. */
static int make_pair_axis(problem *p)
{
    const int32_t pairs = p->c->rotary_dim / 2, sections[TROPE_MAX_AXES] = {pairs / AXES, pairs / AXES, pairs / AXES};
    if (p->c->positions != CASE_IDS)
        return 0;
    p->pair_axis = malloc((size_t)pairs);
    return !p->pair_axis || trope_fill_pair_axis(p->pair_axis, pairs, TROPE_AXES_SECTIONS, sections);
}

static int make_norms(problem *p)
{
    for (int i = 0; i < PROBLEM_OPERANDS && p->c->norm; i++) {
        p->weight_heads[i] = p->c->norm == CASE_NORM_TOKEN ? p->heads[i] : 1;
        const int64_t count = (int64_t)p->weight_heads[i] * p->head_dim;
        const uint64_t seed = data_seed(p->seed, STREAM_NORMS + (uint64_t)i);
        p->weights[i] = malloc((size_t)count * sizeof *p->weights[i]);
        if (!p->weights[i])
            return 1;
        for (int64_t e = 0; e < count; e++)
            p->weights[i][e] = (float)data_real(seed, (uint64_t)e, 2);
    }
    return 0;
}

int problem_make(problem *p, const problem_choice *choice, int64_t tokens)
{
    const split_case *c = choice->c;
    *p = (problem){.c = c, .grid = choice->grid, .dtype = choice->dtype};
    p->seed = data_seed(choice->seed, (uint64_t)(c->splits * 8 + choice->dtype - TROPE_F32));
    choose_heads(p);
    return (c->packing == CASE_DENSE ? make_batch(p, tokens) : make_stream(p, tokens)) || make_angles(p) ||
           make_pair_axis(p) || make_norms(p);
}

void problem_free(problem *p)
{
    free(p->unpadded);
    free(p->stored);
    free(p->starts);
    free(p->inv_freq);
    free(p->pair_axis);
    free(p->angles[0]);
    free(p->angles[1]);
    free(p->weights[PROBLEM_Q]);
    free(p->weights[PROBLEM_K]);
}

/* ---- ranks ---- */

rank_place problem_place(const problem *p, int32_t rank)
{
    return (rank_place){rank / (p->grid.tp * p->grid.cp), rank % p->grid.tp, rank / p->grid.tp % p->grid.cp};
}

int32_t problem_rank(const problem *p, rank_place place)
{
    return (place.dp * p->grid.cp + place.cp) * p->grid.tp + place.tp;
}

void problem_pair(const problem *p, int32_t pairing, int32_t pair, int32_t element[2])
{
    const int is_half = pairing != TROPE_PAIRING_INTERLEAVED;
    element[0] = p->c->rotary_offset + (is_half ? pair : 2 * pair);
    element[1] = p->c->rotary_offset + (is_half ? pair + p->c->rotary_dim / 2 : 2 * pair + 1);
}

int problem_split_operands(const problem *p, int backward)
{
    return backward && p->c->keys == CASE_KEYS_SHARED ? PROBLEM_K : PROBLEM_OPERANDS;
}

static int32_t other_layout(int32_t layout)
{
    return layout == TROPE_CP_ZIGZAG ? TROPE_CP_CONTIGUOUS : layout == TROPE_CP_FLAT ? TROPE_CP_STRIPED : TROPE_CP_ZIGZAG;
}

mistake mistake_of_rank(const problem *p, mistake_kind kind, int32_t cp_rank)
{
    const int is_split = p->grid.cp > 1;
    const mistake none = {MISTAKE_NONE, 0};
    /* The dimension over which d_weight must be summed. With a norm over tokens, each head's weight is on one tensor
     * parallel rank. */
    const int is_token = p->c->norm == CASE_NORM_TOKEN, adds_tensor = p->grid.tp > 1 && !is_token;
    const int32_t added = is_split ? SPLIT_CONTEXT : adds_tensor ? SPLIT_TENSOR : p->grid.dp > 1 ? SPLIT_DATA : 0;
    switch (kind) {
    case MISTAKE_RANK:
        return is_split ? (mistake){kind, (cp_rank + 1) % p->grid.cp} : none;
    case MISTAKE_LAYOUT:
        return is_split ? (mistake){kind, other_layout(p->c->cp_layout)} : none;
    case MISTAKE_CHUNK:
        return is_split && p->c->cp_layout == TROPE_CP_ZIGZAG ? (mistake){kind, 0} : none;
    case MISTAKE_LOCAL:
        return is_split ? (mistake){kind, 0} : none;
    case MISTAKE_CU_SEQLENS:
        return p->stored ? (mistake){kind, 0} : none;
    case MISTAKE_GATHER:
    case MISTAKE_AXIS:
        return is_token && p->grid.tp > 1 ? (mistake){kind, 0} : none;
    case MISTAKE_REDUCE:
        return p->c->norm && added ? (mistake){kind, added} : none;
    case MISTAKE_SIN:
    case MISTAKE_BIT:
        return (mistake){kind, 0};
    default:
        return none;
    }
}

/* ---- shares ---- */

/* Splits K heads like Q heads. If there are fewer K heads than ranks, each K head goes to one group of ranks. */
static void share_heads(share *s)
{
    const problem *p = s->p;
    const int32_t tp = s->is_whole ? 1 : p->grid.tp, keys = p->heads[PROBLEM_K];
    s->heads[PROBLEM_Q] = p->heads[PROBLEM_Q] / tp;
    s->first_head[PROBLEM_Q] = s->place.tp * s->heads[PROBLEM_Q];
    s->heads[PROBLEM_K] = keys >= tp ? keys / tp : 1;
    s->first_head[PROBLEM_K] = keys >= tp ? s->place.tp * s->heads[PROBLEM_K] : s->place.tp / (tp / keys);
    s->counts_keys = keys >= tp || s->place.tp % (tp / keys) == 0;
    const int is_token = p->c->norm == CASE_NORM_TOKEN;
    s->is_norm_split = is_token && tp > 1;
    for (int i = 0; i < PROBLEM_OPERANDS && p->c->norm; i++) {
        s->weight_heads[i] = is_token ? s->heads[i] : 1;
        s->first_weight[i] = is_token ? s->first_head[i] : 0;
        s->rstd_heads[i] = is_token ? 1 : s->heads[i];
    }
}

static int32_t *rebased(const int32_t *boundaries, int64_t first, int64_t count)
{
    int32_t *copy = malloc((size_t)(count + 1) * sizeof *copy);
    for (int64_t i = 0; copy && i <= count; i++)
        copy[i] = boundaries[first + i] - boundaries[first];
    return copy;
}

/* Returns the padding mode for tokens that belong to no sequence. */
static int32_t padding_of(const split_case *c)
{
    return c->packing == CASE_PACKED    ? TROPE_PADDING_COPY
           : c->packing == CASE_ALIGNED ? TROPE_PADDING_ROTATE
                                        : TROPE_PADDING_ZERO;
}

static int share_sequences(share *s)
{
    const problem *p = s->p;
    const int64_t count = s->is_whole ? p->sequences * p->grid.dp : p->sequences;
    if (!p->sequences)
        return 0;
    s->unpadded = rebased(p->unpadded, s->place.dp * p->sequences, count);
    s->stored = p->stored ? rebased(p->stored, s->place.dp * p->sequences, count) : NULL;
    request_sequences(&s->q, s->unpadded, s->stored, count, padding_of(p->c));
    return !s->unpadded || (p->stored && !s->stored);
}

/* Finds each token's place in the stream. The library gives its sequence and its index there; cu_seqlens gives the start of
 * the sequence. Padding tokens also belong to a sequence here, so the padded boundaries are passed as cu_seqlens. Tokens
 * after the last sequence belong to none. They are distributed over the ranks in order. */
static int locate_tokens(share *s)
{
    request plain = request_positions(&s->q);
    const trope_args *a = request_args(&plain);
    const int32_t *boundary = s->stored ? s->stored : s->unpadded;
    const int64_t ranks = a->cp_size > 1 ? a->cp_size : 1, end = boundary ? boundary[a->sequences] : 0;
    const int64_t rest = a->cp_layout == TROPE_CP_FLAT ? 0 : (a->tokens * ranks - end) / ranks;
    int32_t *sequence = malloc((size_t)s->tokens * sizeof *sequence);
    if (boundary)
        request_sequences(&plain, boundary, NULL, a->sequences, a->padding);
    const int failed = !sequence || trope_positions(a, s->in_whole, sequence);
    for (int64_t i = 0; i < s->tokens && !failed && boundary; i++)
        s->in_whole[i] += sequence[i] >= 0 ? boundary[sequence[i]] : end + a->cp_rank * rest;
    free(sequence);
    return failed;
}

/* With MISTAKE_CHUNK, the first half of each sequence is stored after the second half. */
static void place_in_memory(share *s, mistake m)
{
    const int32_t *boundary = s->stored ? s->stored : s->unpadded;
    const int64_t whole[2] = {0, s->tokens * s->p->grid.cp}, count = boundary ? s->q.args.sequences : 1;
    for (int64_t i = 0; i < s->tokens; i++)
        s->in_memory[i] = i;
    for (int64_t q = 0; q < count && m.kind == MISTAKE_CHUNK; q++) {
        const int64_t begin = (boundary ? boundary[q] : whole[0]) / s->p->grid.cp;
        const int64_t length = (boundary ? boundary[q + 1] : whole[1]) / s->p->grid.cp - begin;
        for (int64_t i = 0; i < length; i++)
            s->in_memory[begin + i] = begin + (i + length / 2) % length;
    }
}

/* Makes ids as a data loader would: three axes, like the rows and columns of an image. */
static int make_ids(share *s)
{
    request plain = request_positions(&s->q);
    if (s->p->c->positions != CASE_IDS)
        return 0;
    s->ids = malloc((size_t)(AXES * s->tokens) * sizeof *s->ids);
    if (!s->ids || trope_positions(request_args(&plain), s->ids, NULL))
        return 1;
    for (int64_t i = 0; i < s->tokens; i++) {
        const int64_t index = s->ids[i];
        s->ids[s->tokens + i] = index / 4;
        s->ids[2 * s->tokens + i] = s->p->rows - 1 - index;
    }
    request_ids(&s->q, s->ids, AXES, s->p->pair_axis);
    return 0;
}

static int share_positions(share *s)
{
    if (s->p->starts)
        request_starts(&s->q, s->p->starts + s->first_batch);
    s->q.args.stream_positions = s->p->c->positions == CASE_IN_STREAM;
    return make_ids(s);
}

static void share_rotation(share *s)
{
    const problem *p = s->p;
    trope_args *a = &s->q.args;
    a->pairing = p->c->pairing;
    a->pairing_out = p->c->pairing_out;
    a->inv_freq = p->inv_freq;
    if (p->c->angles == CASE_FREQS)
        request_freqs(&s->q, p->angles[0], p->columns, p->rows);
    if (p->c->angles == CASE_TABLE)
        request_tables(&s->q, p->angles[0], p->angles[1], p->columns, p->rows);
    for (int i = 0; i < PROBLEM_OPERANDS; i++)
        request_add(&s->q, s->heads[i], p->head_dim, p->c->rotary_dim)->rotary_offset = p->c->rotary_offset;
    if (p->c->keys == CASE_KEYS_SHARED)
        s->q.operands[PROBLEM_K].shared_heads = TROPE_SHARED_ALL;
    for (int i = 0; i < PROBLEM_OPERANDS && p->c->norm; i++)
        request_norm(&s->q, i, p->c->norm == CASE_NORM_TOKEN ? TROPE_NORM_TOKEN : TROPE_NORM_HEAD,
                     p->c->norm == CASE_NORM_AFTER ? TROPE_NORM_AFTER : TROPE_NORM_BEFORE,
                     p->weights[i] + (int64_t)s->first_weight[i] * p->head_dim);
}

static void make_mistake(trope_args *a, mistake m)
{
    if (m.kind == MISTAKE_RANK)
        a->cp_rank = m.value;
    if (m.kind == MISTAKE_LAYOUT)
        a->cp_layout = m.value;
    if (m.kind == MISTAKE_LOCAL)
        a->cp_size = a->cp_rank = a->cp_layout = 0;
    if (m.kind == MISTAKE_SIN)
        a->inverse = 1;
    if (m.kind == MISTAKE_CU_SEQLENS)
        a->cu_seqlens_padded = NULL;
}

static int complete(share *s, mistake m)
{
    s->in_whole = malloc((size_t)s->tokens * sizeof *s->in_whole);
    s->in_memory = malloc((size_t)s->tokens * sizeof *s->in_memory);
    share_heads(s);
    if (!s->in_whole || !s->in_memory || share_sequences(s) || locate_tokens(s))
        return 1;
    place_in_memory(s, m);
    share_rotation(s);
    make_mistake(&s->q.args, m);
    return share_positions(s);
}

int share_make(share *s, const problem *p, rank_place place, mistake m)
{
    *s = (share){.p = p, .place = place, .batch = p->batch, .tokens = p->tokens / p->grid.cp};
    s->first_batch = p->sequences ? 0 : place.dp * p->batch;
    s->first_token = p->sequences ? place.dp * p->tokens : 0;
    s->q = request_make(p->dtype, s->batch, s->tokens);
    if (p->grid.cp > 1)
        request_ranks(&s->q, p->grid.cp, place.cp, p->c->cp_layout);
    return complete(s, m);
}

int share_make_whole(share *s, const problem *p)
{
    *s = (share){.p = p, .is_whole = 1, .batch = p->batch, .tokens = p->tokens};
    if (p->sequences)
        s->tokens *= p->grid.dp;
    else
        s->batch *= p->grid.dp;
    s->q = request_make(p->dtype, s->batch, s->tokens);
    return complete(s, (mistake){MISTAKE_NONE, 0});
}

void share_free(share *s)
{
    free(s->in_whole);
    free(s->in_memory);
    free(s->ids);
    free(s->unpadded);
    free(s->stored);
}

/* ---- elements ---- */

int64_t share_token_elements(const share *s, int operand)
{
    return s->batch * s->heads[operand] * s->p->head_dim;
}

int64_t share_elements(const share *s, int operand)
{
    return s->tokens * share_token_elements(s, operand);
}

int64_t share_all_elements(const share *s)
{
    return share_elements(s, PROBLEM_Q) + share_elements(s, PROBLEM_K);
}

int64_t share_token(const share *s, int operand, int64_t token, int64_t batch)
{
    return (token * s->batch + batch) * s->heads[operand] * s->p->head_dim;
}

static int64_t token_in_whole(const share *s, int64_t token, int64_t batch)
{
    const int64_t whole_batch = s->p->sequences ? 1 : s->p->batch * s->p->grid.dp;
    return (s->in_whole[token] + s->first_token) * whole_batch + batch + s->first_batch;
}

int64_t share_token_in_whole(const share *s, int operand, int64_t token, int64_t batch)
{
    const problem *p = s->p;
    return (token_in_whole(s, token, batch) * p->heads[operand] + s->first_head[operand]) * p->head_dim;
}

static int is_one_in_memory(const problem *p, int tensor, int operand)
{
    return operand == PROBLEM_K && p->c->keys == CASE_KEYS_SHARED && tensor != PROBLEM_DY;
}

int32_t share_tensor_heads(const share *s, int tensor, int operand)
{
    return is_one_in_memory(s->p, tensor, operand) ? 1 : s->heads[operand];
}

int64_t share_tensor_elements(const share *s, int tensor, int operand)
{
    return s->tokens * s->batch * share_tensor_heads(s, tensor, operand) * s->p->head_dim;
}

int64_t share_tensor_token_in_whole(const share *s, int tensor, int operand, int64_t token, int64_t batch)
{
    return is_one_in_memory(s->p, tensor, operand) ? token_in_whole(s, token, batch) * s->p->head_dim
                                                   : share_token_in_whole(s, operand, token, batch);
}

int64_t problem_tensor_elements(const problem *p, int tensor, int operand)
{
    const int32_t heads = is_one_in_memory(p, tensor, operand) ? 1 : p->heads[operand];
    return p->tokens * p->batch * p->grid.dp * heads * p->head_dim;
}

/* For a sum over the tensor parallel ranks, only the first rank has old_dst; the others have zeros. */
static double scale_of(const share *s, int tensor, int operand)
{
    return tensor == PROBLEM_BEFORE && is_one_in_memory(s->p, tensor, operand) && s->place.tp ? 0 : 2;
}

void share_fill(const share *s, int tensor, int operand, void *memory)
{
    const uint64_t seed = data_seed(s->p->seed, (uint64_t)(tensor * PROBLEM_OPERANDS + operand));
    const double scale = scale_of(s, tensor, operand);
    const int64_t elements = (int64_t)share_tensor_heads(s, tensor, operand) * s->p->head_dim;
    for (int64_t t = 0; t < s->tokens; t++)
        for (int64_t b = 0; b < s->batch; b++) {
            const int64_t here = (s->in_memory[t] * s->batch + b) * elements;
            const int64_t there = share_tensor_token_in_whole(s, tensor, operand, t, b);
            for (int64_t e = 0; e < elements; e++)
                value_store(s->p->dtype, memory, here + e, data_real(seed, (uint64_t)(there + e), scale));
        }
}

void share_put_in_order(const share *s, int tensor, int operand, const void *memory, void *ordered)
{
    const int64_t elements = s->batch * share_tensor_heads(s, tensor, operand) * s->p->head_dim;
    const size_t bytes = (size_t)(elements * value_size(s->p->dtype));
    for (int64_t t = 0; t < s->tokens; t++)
        memcpy((char *)ordered + (size_t)t * bytes, (const char *)memory + (size_t)s->in_memory[t] * bytes, bytes);
}
