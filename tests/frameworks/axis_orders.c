/* The axis that drives each pair, in the models whose order has a name: Ernie 4.5 VL, Kimi's vision tower, FLUX.2, HunYuan,
 * and GLM-4V's language model and vision tower. Each model's own movement of its data is followed here with the position
 * and the frequency of each pair. The library gets ids, frequencies or a table, and the helper's axes. */
#include <stdio.h>

#include "frameworks/checks.h"

enum { B = 2, S = 7, MAX_PAIRS = 64, MAX_AXES = 4, ROWS = 48 };

/* What a pair of one token is turned by. */
typedef struct turning {
    int64_t position[MAX_PAIRS];
    double frequency[MAX_PAIRS];
} turning;

typedef struct model {
    const char *name;
    int32_t pairing, rounding;
    int32_t head_dim, rotary_dim;
    int32_t axes, order;
    int32_t sections[4];
    double base; /* of plain frequencies, or 0 if they are not base^(-2i/d) */
    void (*turn)(const int64_t *id, turning *t);
} model;

/* The h and w frequencies are the even and the odd ones of the first 44, "pre-rotated" to lie one after the other; the
 * sections [22, 22, 20] of h, w and t are cut, h and w stacked pair by pair, and t put behind them. ids are (t, h, w). */
static void ernie_4_5_vl(const int64_t *id, turning *t)
{
    double inv_freq[64], rotated[64];
    int n = 0;
    for (int i = 0; i < 64; i++)
        inv_freq[i] = pow(500000.0, -2.0 * i / 128.0);
    for (int parity = 0; parity < 2; parity++)
        for (int i = parity; i < 44; i += 2)
            rotated[n++] = inv_freq[i];
    for (; n < 64; n++)
        rotated[n] = inv_freq[n];
    for (int i = 0; i < 22; i++) {
        t->position[2 * i] = id[1];
        t->frequency[2 * i] = rotated[i];
        t->position[2 * i + 1] = id[2];
        t->frequency[2 * i + 1] = rotated[22 + i];
    }
    for (int i = 44; i < 64; i++) {
        t->position[i] = id[0];
        t->frequency[i] = rotated[i];
    }
}

/* freqs = theta^(-4k/dim); x_cis and y_cis stacked behind each other: x y x y. ids are (x, y). */
static void kimi_vision(const int64_t *id, turning *t)
{
    for (int k = 0; k < 18; k++)
        for (int axis = 0; axis < 2; axis++) {
            t->position[2 * k + axis] = id[axis];
            t->frequency[2 * k + axis] = pow(10000.0, -4.0 * k / 72.0);
        }
}

/* Each of four ids has frequencies of its own, theta^(-2k/32); the axes are put one behind the other. */
static void flux_2(const int64_t *id, turning *t)
{
    int n = 0;
    for (int axis = 0; axis < 4; axis++)
        for (int k = 0; k < 16; k++) {
            t->position[n] = id[axis];
            t->frequency[n++] = pow(2000.0, -2.0 * k / 32.0);
        }
}

/* Chunk i of the columns, cut by sections twice, is taken from axis i % axes. */
static void take_sections(const int64_t *id, const int *sections, int axes, double base, turning *t)
{
    int pairs = 0, n = 0;
    for (int axis = 0; axis < axes; axis++)
        pairs += sections[axis];
    for (int axis = 0; axis < axes; axis++)
        for (int i = 0; i < sections[axis]; i++, n++) {
            t->position[n] = id[axis];
            t->frequency[n] = pow(base, -2.0 * n / (2.0 * pairs));
        }
}

static void hunyuan_vl(const int64_t *id, turning *t)
{
    take_sections(id, (const int[]){16, 16, 16, 16}, 4, 10000.0, t);
}

static void glm_4v_text(const int64_t *id, turning *t)
{
    take_sections(id, (const int[]){8, 12, 12}, 3, 10000.0, t);
}

/* The angles of the row, then those of the column, each with the frequencies of half a head. ids are (h, w). */
static void glm_4v_vision(const int64_t *id, turning *t)
{
    for (int i = 0; i < 64; i++) {
        t->position[i] = id[i / 32];
        t->frequency[i] = pow(10000.0, -2.0 * (i % 32) / 64.0);
    }
}

static const model models[] = {
    {"Ernie 4.5 VL",
     TROPE_PAIRING_INTERLEAVED,
     TROPE_ROUND_NATIVE_F32,
     128,
     128,
     3,
     TROPE_AXES_HWT,
     {20, 22, 22, 0},
     500000.0,
     ernie_4_5_vl},
    {"Kimi's vision tower",
     TROPE_PAIRING_INTERLEAVED,
     TROPE_ROUND_NATIVE_F32,
     72,
     72,
     2,
     TROPE_AXES_ALTERNATING,
     {18, 18, 0, 0},
     0.0,
     kimi_vision},
    {"FLUX.2",
     TROPE_PAIRING_INTERLEAVED,
     TROPE_ROUND_NATIVE_F32,
     128,
     128,
     4,
     TROPE_AXES_SECTIONS,
     {16, 16, 16, 16},
     0.0,
     flux_2},
    {"HunYuan VL",
     TROPE_PAIRING_HALF,
     TROPE_ROUND_NATIVE_F32,
     128,
     128,
     4,
     TROPE_AXES_SECTIONS,
     {16, 16, 16, 16},
     10000.0,
     hunyuan_vl},
    {"GLM-4V",
     TROPE_PAIRING_INTERLEAVED,
     TROPE_ROUND_NATIVE,
     128,
     64,
     3,
     TROPE_AXES_SECTIONS,
     {8, 12, 12, 0},
     10000.0,
     glm_4v_text},
    {"GLM-4V's vision tower",
     TROPE_PAIRING_HALF,
     TROPE_ROUND_NATIVE_F32,
     128,
     128,
     2,
     TROPE_AXES_SECTIONS,
     {32, 32, 0, 0},
     0.0,
     glm_4v_vision},
};

static int32_t ids[MAX_AXES][B][S];      /* [axes, b, s] */
static int32_t ids_last[B][S][MAX_AXES]; /* [b, s, axes], as FLUX, Kimi and GLM-4V's vision tower have them */
static turning turnings[B][S];

static void make_ids(const model *m, random_state *random)
{
    for (int b = 0; b < B; b++)
        for (int s = 0; s < S; s++) {
            int64_t id[MAX_AXES];
            for (int a = 0; a < m->axes; a++) {
                id[a] = random_between(random, 0, ROWS - 1);
                ids[a][b][s] = ids_last[b][s][a] = (int32_t)id[a];
            }
            m->turn(id, &turnings[b][s]);
        }
}

/* ids with the axes outside, or inside. */
static void give_ids(call *c, const model *m, int inside)
{
    const int64_t stride[3] = {1, S * MAX_AXES, MAX_AXES};
    c->args.position_ids = inside ? &ids_last[0][0][0] : &ids[0][0][0];
    c->args.position_dtype = TROPE_I32;
    c->args.position_axes = m->axes;
    c->args.ids_layout = inside ? TROPE_IDS_STRIDED : TROPE_IDS_AXES_BATCH_TOKENS;
    if (inside)
        memcpy(c->args.ids_stride, stride, sizeof stride);
}

static void check_frequencies(const model *m, const uint8_t *pair_axis, random_state *random)
{
    static double angle[B * S * 2 * MAX_PAIRS];
    const int pairs = m->rotary_dim / 2;
    const shape s = {TROPE_BSHD, B, S, 3, m->head_dim};
    const rotation r = {TROPE_F32, TROPE_ROUND_ONCE, m->pairing, m->pairing, m->rotary_dim};
    for (int row = 0; row < B * S; row++)
        for (int e = 0; e < 2 * pairs; e++) {
            const turning *t = &turnings[row / S][row % S];
            angle[row * 2 * pairs + e] = (double)t->position[e % pairs] * t->frequency[e % pairs];
        }
    for (int inside = 0; inside < 2; inside++) {
        call c = call_make(TROPE_F32, B, S);
        c.args.inv_freq = turnings[0][0].frequency;
        c.args.pair_axis = pair_axis;
        give_ids(&c, m, inside);
        check_exact(m->name, &c, &s, &r, angle, random);
    }
}

/* A table of all positions, one column a pair, in the model's rounding. */
static void check_table(const model *m, int32_t dtype, const uint8_t *pair_axis, random_state *random)
{
    static float table[2][ROWS * MAX_PAIRS], cos_sin[2][B * S * 2 * MAX_PAIRS];
    const int pairs = m->rotary_dim / 2;
    const shape s = {TROPE_BSHD, B, S, 3, m->head_dim};
    const rotation r = {dtype, m->rounding, m->pairing, m->pairing, m->rotary_dim};
    for (int i = 0; i < ROWS * pairs; i++) {
        const float angle = (float)(i / pairs) * (float)turnings[0][0].frequency[i % pairs];
        table[0][i] = cosf(angle);
        table[1][i] = sinf(angle);
    }
    for (int row = 0; row < B * S; row++)
        for (int e = 0; e < 2 * pairs; e++) {
            const turning *t = &turnings[row / S][row % S];
            const float angle = (float)t->position[e % pairs] * (float)t->frequency[e % pairs];
            cos_sin[0][row * 2 * pairs + e] = cosf(angle);
            cos_sin[1][row * 2 * pairs + e] = sinf(angle);
        }
    call c = call_make(dtype, B, S);
    call_tables(&c, table[0], table[1], TROPE_F32, TROPE_COLUMNS_PAIR, ROWS);
    c.args.pair_axis = pair_axis;
    give_ids(&c, m, 1);
    check_eager(m->name, &c, &s, &r, &(coefficients){cos_sin[0], cos_sin[1]}, random);
}

int main(void)
{
    random_state random = {5};
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        const model *m = &models[i];
        const int pairs = m->rotary_dim / 2;
        uint8_t pair_axis[MAX_PAIRS];
        CHECK(trope_fill_pair_axis(pair_axis, pairs, m->order, m->sections) == TROPE_OK);
        make_ids(m, &random);
        for (int pair = 0; m->base != 0.0 && pair < pairs; pair++) /* in the order of the pairs they are the plain ones */
            CHECK(fabs(turnings[0][0].frequency[pair] / pow(m->base, -1.0 * pair / pairs) - 1.0) < 1e-14);
        check_frequencies(m, pair_axis, &random);
        check_table(m, TROPE_F32, pair_axis, &random);
        check_table(m, TROPE_BF16, pair_axis, &random);
    }
    return check_result();
}
