/* Compares the rotations of models with the calls of the library that replace them. The test gathers the angles of each
 * token like the code of a model, into one row of cos and sin for each token. The reference rotates by these rows. The
 * library gets the angles in the forms that programs have: ids with a table of all positions, a table for each axis, a
 * table with a row for each token, the complex numbers of Llama 4, or frequencies with ids. With a table, the results have
 * the bits of eager code, forward and backward. The numbers in the tables are random. They are not cosines, and the halves
 * of a row differ. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "support/call.h"
#include "support/check.h"
#include "support/number.h"
#include "support/random.h"
#include "support/reference.h"
#include "support/tensor.h"

enum { B = 2, S = 5, MAX_PAIRS = 64, WIDEST = 2 * MAX_PAIRS, MAX_AXES = 4, ROWS = 48, HEADS = 2, HEAD_DIM = 128 };

/* The position and the frequency that rotate each element of one token, in the order of half pairing: pair i has the
 * entries i and i + pairs, also for models with interleaved pairing. */
typedef struct turning {
    int64_t position[WIDEST];
    double frequency[WIDEST];
} turning;

/* The rounding mode reproduces eager code. NATIVE is for models that cast cos and sin to the dtype of q, like Llama.
 * NATIVE_F32 is for models that cast q to fp32 and the result back, like OLMo 2 and vision towers. (Some models multiply
 * a bf16 q by an fp32 cos twice, like Ernie 4.5 VL. There PyTorch casts each of the two gradients before it adds them,
 * but NATIVE_F32 adds them before the cast.) */
typedef struct model {
    const char *name;
    int32_t pairing, rounding, columns;
    int32_t rotary_dim, axes, order, sections[4];
    double attention_scaling; /* multiplies cos and sin in fp32, before they are cast */
    double base;              /* if not 0, the frequency of pair i is base^(-2i/d) */
    void (*turn)(const struct model *m, const int64_t *id, turning *t);
} model;

/* ---- How models compute the angles of a token ---- */

/* Sets the angle of both elements of a pair. */
static void turn_pair(const model *m, turning *t, int pair, int64_t position, double frequency)
{
    for (int half = 0; half < 2; half++) {
        t->position[pair + half * m->rotary_dim / 2] = position;
        t->frequency[pair + half * m->rotary_dim / 2] = frequency;
    }
}

static double plain_frequency(const model *m, int pair)
{
    return pow(m->base, -2.0 * pair / m->rotary_dim);
}

/* Language models: cat((freqs, freqs)). */
static void one_axis(const model *m, const int64_t *id, turning *t)
{
    for (int i = 0; i < m->rotary_dim / 2; i++)
        turn_pair(m, t, i, id[0], plain_frequency(m, i));
}

/* cat([m[i % 3] for i, m in enumerate(x.split(mrope_section * 2, dim=-1))]) */
static void qwen2_vl(const model *m, const int64_t *id, turning *t)
{
    for (int i = 0, e = 0; i < 6; i++)
        for (int end = e + m->sections[i % 3]; e < end; e++) {
            t->position[e] = id[i % 3];
            t->frequency[e] = plain_frequency(m, e % 64);
        }
}

/* x_t = x[0]; for h and w: x_t[..., offset:3 * section:3] = x[dim, ..., offset:3 * section:3]; cat((x_t, x_t)) */
static void qwen3_vl(const model *m, const int64_t *id, turning *t)
{
    one_axis(m, id, t);
    for (int dim = 1; dim < 3; dim++)
        for (int i = dim; i < 3 * m->sections[dim]; i += 3)
            turn_pair(m, t, i, id[dim], plain_frequency(m, i));
}

/* The model reorders the first 44 frequencies ("pre-rotated"): the even ones for h come before the odd ones for w. It cuts
 * the sections [22, 22, 20] of h, w and t, interleaves h and w pair by pair, and appends t. ids are (t, h, w). */
static void ernie_4_5_vl(const model *m, const int64_t *id, turning *t)
{
    double rotated[64];
    int n = 0;
    for (int parity = 0; parity < 2; parity++)
        for (int i = parity; i < 44; i += 2)
            rotated[n++] = plain_frequency(m, i);
    for (; n < 64; n++)
        rotated[n] = plain_frequency(m, n);
    for (int i = 0; i < 44; i++)
        turn_pair(m, t, i, id[1 + i % 2], rotated[i % 2 * 22 + i / 2]);
    for (int i = 44; i < 64; i++)
        turn_pair(m, t, i, id[0], rotated[i]);
}

/* freqs = theta^(-4k/dim). x_cis and y_cis are interleaved: x y x y. ids are (x, y). */
static void kimi_vision(const model *m, const int64_t *id, turning *t)
{
    for (int i = 0; i < 36; i++)
        turn_pair(m, t, i, id[i % 2], pow(10000.0, -4.0 * (i / 2) / 72.0));
}

/* Each of the four axes has its own frequencies, theta^(-2k/32). The axes are concatenated. */
static void flux_2(const model *m, const int64_t *id, turning *t)
{
    for (int i = 0; i < 64; i++)
        turn_pair(m, t, i, id[i / 16], pow(2000.0, -2.0 * (i % 16) / 32.0));
}

/* The sections cut the columns of both halves into chunks. Chunk i uses axis i % axes. */
static void take_sections(const model *m, const int64_t *id, turning *t)
{
    int n = 0;
    for (int axis = 0; axis < m->axes; axis++)
        for (int i = 0; i < m->sections[axis]; i++, n++)
            turn_pair(m, t, n, id[axis], plain_frequency(m, n));
}

/* The angles of h, then the angles of w, each with the frequencies of half a head. ids are (h, w). */
static void glm_4v_vision(const model *m, const int64_t *id, turning *t)
{
    for (int i = 0; i < 64; i++)
        turn_pair(m, t, i, id[i / 32], pow(10000.0, -2.0 * (i % 32) / 64.0));
}

/* clang-format off */
enum { HALVES = TROPE_PAIRING_HALF, INTERLEAVED = TROPE_PAIRING_INTERLEAVED, NATIVE = TROPE_ROUND_NATIVE, IN_F32 = TROPE_ROUND_NATIVE_F32,
       BY_HALVES = TROPE_COLUMNS_HALF, BY_PAIR = TROPE_COLUMNS_PAIR, INTERLEAVED_COLUMNS = TROPE_COLUMNS_INTERLEAVED };
static const model models[] = {
    {"Llama", HALVES, NATIVE, BY_HALVES, 128, 1, 0, {0}, 1, 500000, one_axis},
    {"Llama with YaRN", HALVES, NATIVE, BY_HALVES, 128, 1, 0, {0}, 1.2079441541679836, 500000, one_axis},
    {"OLMo 2 with YaRN", HALVES, IN_F32, BY_HALVES, 128, 1, 0, {0}, 1.2079441541679836, 500000, one_axis},
    {"gpt-oss", HALVES, NATIVE, BY_PAIR, 64, 1, 0, {0}, 1.3465735902799727, 150000, one_axis},
    {"GPT-J", INTERLEAVED, NATIVE, INTERLEAVED_COLUMNS, 64, 1, 0, {0}, 1, 10000, one_axis},
    {"GLM-4", INTERLEAVED, NATIVE, BY_HALVES, 64, 1, 0, {0}, 1, 10000, one_axis},
    {"Llama 4 and torchtitan", INTERLEAVED, IN_F32, BY_PAIR, 128, 1, 0, {0}, 1, 500000, one_axis},
    {"Qwen2-VL", HALVES, NATIVE, BY_HALVES, 128, 3, TROPE_AXES_SECTIONS, {16, 24, 24, 0}, 1, 1000000, qwen2_vl},
    {"Qwen3-VL", HALVES, NATIVE, BY_HALVES, 128, 3, TROPE_AXES_INTERLEAVED, {24, 20, 20, 0}, 1, 5000000, qwen3_vl},
    {"Ernie 4.5 VL", INTERLEAVED, IN_F32, BY_PAIR, 128, 3, TROPE_AXES_HWT, {20, 22, 22, 0}, 1, 500000, ernie_4_5_vl},
    {"Kimi's vision tower", INTERLEAVED, IN_F32, BY_PAIR, 72, 2, TROPE_AXES_ALTERNATING, {18, 18, 0, 0}, 1, 0, kimi_vision},
    {"FLUX.2", INTERLEAVED, IN_F32, BY_PAIR, 128, 4, TROPE_AXES_SECTIONS, {16, 16, 16, 16}, 1, 0, flux_2},
    {"HunYuan VL", HALVES, IN_F32, BY_HALVES, 128, 4, TROPE_AXES_SECTIONS, {16, 16, 16, 16}, 1, 10000, take_sections},
    {"GLM-4V", INTERLEAVED, NATIVE, BY_PAIR, 64, 3, TROPE_AXES_SECTIONS, {8, 12, 12, 0}, 1, 10000, take_sections},
    {"GLM-4V's vision tower", HALVES, IN_F32, BY_HALVES, 128, 2, TROPE_AXES_SECTIONS, {32, 32, 0, 0}, 1, 0, glm_4v_vision},
};
/* clang-format on */

/* ---- The data of a model ---- */

static int32_t ids[MAX_AXES][B][S];      /* [axes, b, s] */
static int32_t ids_last[B][S][MAX_AXES]; /* [b, s, axes], as in FLUX, Kimi and GLM-4V's vision tower */
static turning turnings[B * S];
static float table[2][ROWS][WIDEST];         /* cos and sin of every position, in the model's columns */
static float gathered[2][B * S][WIDEST];     /* the rows of the tokens, in the model's columns */
static float by_halves[2][B * S][WIDEST];    /* the rows for the reference: scaled, with an entry for each element */
static double exact[2][B * S][WIDEST];       /* the exact rows, from the frequencies of the model */
static char given[2][ROWS * WIDEST * 8 + 8]; /* the memory of the table of a call */

/* Returns the column of element e, in half order, in the tables of the model. */
static int column_of(const model *m, int e)
{
    const int pairs = m->rotary_dim / 2;
    return m->columns == BY_HALVES ? e : m->columns == BY_PAIR ? e % pairs : 2 * (e % pairs) + e / pairs;
}

static void gather_element(const model *m, int row, int e, float scale)
{
    const turning *t = &turnings[row];
    const double angle = (double)t->position[e] * t->frequency[e];
    exact[0][row][e] = cos(angle);
    exact[1][row][e] = sin(angle);
    for (int kind = 0; kind < 2; kind++) {
        const float number = table[kind][t->position[e]][column_of(m, e)];
        gathered[kind][row][column_of(m, e)] = number;
        by_halves[kind][row][e] = number * scale;
    }
}

/* The numbers of the tables have table_dtype. A call with an fp32 table multiplies it by attention_scaling, so the
 * reference does too. A table that the model has cast to 16 bits is scaled already. */
static void make_data(const model *m, int32_t table_dtype, random_state *random)
{
    for (int i = 0; i < 2 * ROWS * WIDEST; i++)
        table[i / (ROWS * WIDEST)][i / WIDEST % ROWS][i % WIDEST] = (float)number_round(table_dtype, random_real(random));
    for (int row = 0; row < B * S; row++) {
        int64_t id[MAX_AXES];
        for (int a = 0; a < m->axes; a++) {
            id[a] = random_between(random, 0, ROWS - 1);
            ids[a][row / S][row % S] = ids_last[row / S][row % S][a] = (int32_t)id[a];
        }
        m->turn(m, id, &turnings[row]);
        for (int e = 0; e < m->rotary_dim; e++)
            gather_element(m, row, e, table_dtype == TROPE_F32 ? (float)m->attention_scaling : 1);
    }
}

/* ---- How a call gets its angles ---- */

typedef enum id_layout { WITHOUT_IDS, AXES_OUTSIDE, AXES_INSIDE } id_layout;

static const struct {
    const char *name;
    int32_t layout;
    int64_t stride[4]; /* {axis, batch, row, column}; the first three in units of a row */
    id_layout ids;     /* a row of the table is for a position, or for a token if there are no ids */
} ways[] = {{"all positions", TROPE_TABLE_ROWS, {0}, AXES_OUTSIDE},
            {"all positions, ids [b, s, axes]", TROPE_TABLE_ROWS, {0}, AXES_INSIDE},
            {"[axes, b, s, d]", TROPE_TABLE_AXES_BATCH_ROWS, {0}, WITHOUT_IDS},
            {"[b, s, d]", TROPE_TABLE_BATCH_ROWS, {0}, WITHOUT_IDS},
            /* Megatron-Core. The call reads only the first half of each row, as for GLM-4's tables of equal halves. */
            {"[s, b, 1, d]", TROPE_TABLE_STRIDED, {0, 2, 2 * B, 1}, WITHOUT_IDS},
            {"[b, s, d] of cos + i sin", TROPE_TABLE_STRIDED, {0, 2 * S, 2, 2}, WITHOUT_IDS}};
enum { WAYS = sizeof ways / sizeof ways[0] };

static void give_ids(call *c, const model *m, id_layout layout)
{
    const int64_t stride[3] = {m->axes > 1, S * MAX_AXES, MAX_AXES};
    c->args.position_ids = layout == AXES_INSIDE ? &ids_last[0][0][0] : &ids[0][0][0];
    c->args.position_dtype = TROPE_I32;
    c->args.position_axes = m->axes;
    c->args.ids_layout = layout == AXES_INSIDE ? TROPE_IDS_STRIDED : TROPE_IDS_AXES_BATCH_TOKENS;
    if (layout == AXES_INSIDE)
        memcpy(c->args.ids_stride, stride, sizeof stride);
}

/* Gives a call the table of the model. The memory between its numbers is NaN. */
static void give_table(call *c, const model *m, int way, int32_t dtype)
{
    const int columns = m->columns == BY_PAIR ? m->rotary_dim / 2 : m->rotary_dim, with_ids = ways[way].ids != WITHOUT_IDS;
    const int axes = ways[way].layout == TROPE_TABLE_AXES_BATCH_ROWS ? m->axes : 1, size = (int)number_size(dtype);
    char *sin = ways[way].stride[3] == 2 ? given[0] + size : given[1];
    int64_t stride[4];
    memset(given, 0xff, sizeof given);
    call_tables(c, given[0], sin, dtype, m->columns, with_ids ? ROWS : S);
    c->args.angle_layout = ways[way].layout;
    for (int d = 0; d < 4; d++)
        c->args.angle_stride[d] = ways[way].stride[d] * (d < 3 ? columns : 1);
    tensor_table_strides(&c->args, ways[way].layout, c->args.angle_stride, columns, stride);
    for (int i = 0; i < (with_ids ? ROWS : axes * B * S) * columns; i++) {
        const int column = i % columns, row = i / columns, axis = row / (B * S), b = row / S % B, s = row % S;
        const int64_t at = with_ids ? row * stride[2] : axis * stride[0] + b * stride[1] + s * stride[2];
        for (int kind = 0; kind < 2; kind++) {
            const float number = with_ids   ? table[kind][row][column]
                                 : axes > 1 ? table[kind][ids[axis][b][s]][column]
                                            : gathered[kind][row][column];
            number_store(dtype, (kind ? sin : given[0]) + (at + column * stride[3]) * size, number);
        }
    }
    if (with_ids)
        give_ids(c, m, ways[way].ids);
}

/* ---- The checks ---- */

static double x[2][B * S * HEADS * HEAD_DIM], y[2][B * S * HEADS * HEAD_DIM]; /* q, and k with one head */

/* Returns the same call with another table, which has a row of cos and sin for each token: [2, b, s, WIDEST] in `dtype`, in
 * half order. */
static call make_plain(const call *c, const void *rows, int32_t dtype)
{
    const int64_t stride[4] = {0, S * WIDEST, WIDEST, 1}, count = B * S * WIDEST;
    call plain = *c;
    plain.args.inv_freq = NULL;
    plain.args.pair_axis = NULL;
    plain.args.position_ids = NULL;
    plain.args.position_axes = plain.args.ids_layout = 0;
    plain.args.mscale = 0;
    call_tables(&plain, rows, (const char *)rows + count * (int64_t)number_size(dtype), dtype, BY_HALVES, S);
    plain.args.angle_layout = TROPE_TABLE_STRIDED;
    memcpy(plain.args.angle_stride, stride, sizeof stride);
    return plain;
}

/* Counts the elements of an operand that differ from the expected ones by more than the slack. */
static long count_wrong(const trope_args *args, int operand, int backward, const reference_element *expected, double slack)
{
    const tensor dst = tensor_of(args, operand, TENSOR_DST, backward);
    long wrong = 0;
    for (int64_t n = 0; n < tensor_count(&dst); n++) {
        const char *at = (const char *)dst.base + tensor_offset(&dst, n) * (int64_t)number_size(args->dtype);
        if (expected[n].kind == REFERENCE_BITS)
            wrong += number_bits(args->dtype, at) != expected[n].bits;
        else
            wrong += !(fabs(number_load(args->dtype, at) - (double)expected[n].value) <= slack);
    }
    return wrong;
}

/* Compares a call that has its angles already with the reference, which takes the angles of each token from `rows`. */
static void check_call(const model *m, const char *what, call c, const void *rows, int32_t dtype, double slack)
{
    random_state random = {(uint64_t)m->rotary_dim};
    for (int i = 0; i < 2; i++) {
        for (int n = 0; n < B * S * HEADS * HEAD_DIM; n++)
            number_store(c.args.dtype, (char *)x[i] + (size_t)n * number_size(c.args.dtype), random_real(&random));
        call_add(&c, y[i], TROPE_BHSD, i ? 1 : HEADS, HEAD_DIM, m->rotary_dim)->src = x[i];
    }
    call plain = make_plain(&c, rows, dtype);
    for (int backward = 0; backward < 2; backward++) {
        reference_result expected = reference_run(call_args(&plain), backward);
        const trope_args *args = call_args(&c);
        memset(y, 0xff, sizeof y);
        const trope_status status = backward ? trope_backward(args) : trope_forward(args);
        CHECK_MESSAGE(status == TROPE_OK, "%s, %s: %s", m->name, what, trope_last_error());
        for (int i = 0; i < 2; i++) {
            const long wrong = count_wrong(args, i, backward, expected.operands[i], slack);
            CHECK_MESSAGE(wrong == 0, "%s, %s, %s: %ld elements of operand %d are wrong", m->name, what,
                          backward ? "backward" : "forward", wrong, i);
        }
        reference_free(&expected);
    }
}

/* Checks the table in every form, in fp32, or cast to the dtype of q as transformers does. */
static void check_tables(const model *m, int32_t dtype, int32_t table_dtype, const uint8_t *pair_axis)
{
    for (int way = 0; way < WAYS; way++) {
        const int has_axes = ways[way].ids != WITHOUT_IDS || ways[way].layout == TROPE_TABLE_AXES_BATCH_ROWS;
        char what[128];
        call c = call_make(dtype, B, S);
        if (ways[way].layout == TROPE_TABLE_AXES_BATCH_ROWS && m->axes == 1)
            continue;
        snprintf(what, sizeof what, "%s of %s, %s", number_name(table_dtype), ways[way].name, number_name(dtype));
        c.args.rounding = m->rounding;
        c.args.pairing = m->pairing;
        c.args.mscale = table_dtype == TROPE_F32 ? m->attention_scaling : 0;
        c.args.pair_axis = has_axes && m->axes > 1 ? pair_axis : NULL;
        give_table(&c, m, way, table_dtype);
        check_call(m, what, c, by_halves, TROPE_F32, 0);
    }
}

/* Checks frequencies with ids. Inputs are below 1, sine and cosine have errors up to 1.2e-7, and there are three
 * roundings. */
static void check_frequencies(const model *m, const uint8_t *pair_axis)
{
    for (id_layout layout = AXES_OUTSIDE; layout <= AXES_INSIDE; layout++) {
        call c = call_make(TROPE_F32, B, S);
        c.args.pairing = m->pairing;
        c.args.inv_freq = turnings[0].frequency;
        c.args.pair_axis = m->axes > 1 ? pair_axis : NULL;
        give_ids(&c, m, layout);
        check_call(m, "frequencies", c, exact, TROPE_F64, 6e-7);
    }
}

int main(void)
{
    static const int32_t dtypes[] = {TROPE_F32, TROPE_F16, TROPE_BF16};
    random_state random = {5};
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        const model *m = &models[i];
        uint8_t pair_axis[MAX_PAIRS];
        if (m->axes > 1)
            CHECK(trope_fill_pair_axis(pair_axis, m->rotary_dim / 2, m->order, m->sections) == TROPE_OK);
        for (int n = 0; n < 6; n++) {
            const int32_t dtype = dtypes[n / 2], table_dtype = n % 2 ? dtype : TROPE_F32;
            make_data(m, table_dtype, &random);
            check_tables(m, dtype, table_dtype, pair_axis);
        }
        for (int pair = 0; m->base > 0 && pair < m->rotary_dim / 2; pair++)
            CHECK(fabs(turnings[0].frequency[pair] / plain_frequency(m, pair) - 1) < 1e-14);
        check_frequencies(m, pair_axis);
    }
    return check_result();
}
