/* M-RoPE as transformers has it. Qwen2-VL takes tables [3, b, s, d] and selects sections of columns; Qwen3-VL interleaves
 * the axes before it makes its tables [b, s, d]. Both tables are made of ids [3, b, s], and the library takes any of these:
 * the tables, one table of all positions with the ids, or frequencies with the ids. */
#include <stdio.h>

#include "frameworks/checks.h"

enum { AXES = 3, B = 2, S = 9, D = 128, PAIRS = D / 2, ROWS = 40 };

static int64_t ids[AXES][B][S];
static double inv_freq[PAIRS];
static float table[2][ROWS][D];            /* cos and sin of each position */
static float axes_table[2][AXES][B][S][D]; /* Qwen2-VL's, gathered from it */
static float row_table[2][B][S][D];        /* of the axes that the model selects */

/* The axis of column e, as the model selects it. */
typedef int (*axis_of_column)(int e);

/* cat([m[i % 3] for i, m in enumerate(x.split(mrope_section * 2, dim=-1))]) */
static int qwen2_vl(int e)
{
    const int split[6] = {16, 24, 24, 16, 24, 24};
    int i = 0;
    for (; e >= split[i]; i++)
        e -= split[i];
    return i % 3;
}

/* x_t = x[0]; for h and w: x_t[..., offset:3 * section:3] = x[dim, ..., offset:3 * section:3]; cat((x_t, x_t)) */
static int qwen3_vl(int e)
{
    const int section[3] = {24, 20, 20};
    int axis[PAIRS] = {0};
    for (int dim = 1; dim < 3; dim++)
        for (int i = dim; i < 3 * section[dim]; i += 3)
            axis[i] = dim;
    return axis[e % PAIRS];
}

/* Tables as the model makes them, with equal halves; or random ones, whose halves differ. */
static void make_table(int random_ones, random_state *random)
{
    for (int p = 0; p < ROWS; p++)
        for (int e = 0; e < D; e++) {
            const float angle = (float)p * (float)inv_freq[e % PAIRS];
            table[0][p][e] = random_ones ? (float)random_real(random) : cosf(angle);
            table[1][p][e] = random_ones ? (float)random_real(random) : sinf(angle);
        }
}

static void gather(axis_of_column axis_of)
{
    for (int kind = 0; kind < 2; kind++)
        for (int b = 0; b < B; b++)
            for (int s = 0; s < S; s++)
                for (int e = 0; e < D; e++) {
                    for (int a = 0; a < AXES; a++)
                        axes_table[kind][a][b][s][e] = table[kind][ids[a][b][s]][e];
                    row_table[kind][b][s][e] = axes_table[kind][axis_of(e)][b][s][e];
                }
}

static void give_ids(call *c)
{
    c->args.position_ids = ids;
    c->args.position_dtype = TROPE_I64;
    c->args.ids_layout = TROPE_IDS_AXES_BATCH_TOKENS;
    c->args.position_axes = AXES;
}

/* The tables in one dtype, by the three ways of giving them: each has the bits of eager code. */
static void check_tables(const char *what, const rotation *r, int32_t table_dtype, const uint8_t *pair_axis,
                         random_state *random)
{
    const float *made[3] = {table[0][0], axes_table[0][0][0][0], row_table[0][0][0]};
    const int64_t counts[3] = {ROWS * D, AXES * B * S * D, B * S * D}, rows[3] = {ROWS, S, S};
    const int32_t layouts[3] = {TROPE_TABLE_ROWS, TROPE_TABLE_AXES_BATCH_ROWS, TROPE_TABLE_BATCH_ROWS};
    const shape s = {TROPE_BHSD, B, S, 4, D};
    void *row_cos = cast_tensor(table_dtype, TROPE_F32, row_table[0], B * S * D), *row_sin;
    row_sin = cast_tensor(table_dtype, TROPE_F32, row_table[1], B * S * D);
    float *cos = cast_tensor(TROPE_F32, table_dtype, row_cos, B * S * D);
    float *sin = cast_tensor(TROPE_F32, table_dtype, row_sin, B * S * D);
    for (int i = 0; i < 3; i++) {
        void *given_cos = cast_tensor(table_dtype, TROPE_F32, made[i], counts[i]);
        void *given_sin = cast_tensor(table_dtype, TROPE_F32, made[i] + counts[i], counts[i]);
        call c = call_make(r->dtype, B, S);
        call_tables(&c, given_cos, given_sin, table_dtype, TROPE_COLUMNS_HALF, rows[i]);
        c.args.angle_layout = layouts[i];
        if (i < 2)
            c.args.pair_axis = pair_axis;
        if (i == 0)
            give_ids(&c);
        check_eager(what, &c, &s, r, &(coefficients){cos, sin}, random);
        free(given_cos);
        free(given_sin);
    }
    free(row_cos);
    free(row_sin);
    free(cos);
    free(sin);
}

/* Frequencies with the ids, against the angles that the model's tables are made of. */
static void check_ids(const char *what, axis_of_column axis_of, const uint8_t *pair_axis, random_state *random)
{
    static double angle[B][S][D];
    const shape s = {TROPE_BHSD, B, S, 4, D};
    const rotation r = {TROPE_F32, TROPE_ROUND_ONCE, TROPE_PAIRING_HALF, TROPE_PAIRING_HALF, D};
    for (int b = 0; b < B; b++)
        for (int t = 0; t < S; t++)
            for (int e = 0; e < D; e++)
                angle[b][t][e] = (double)ids[axis_of(e)][b][t] * inv_freq[e % PAIRS];
    call c = call_make(TROPE_F32, B, S);
    c.args.inv_freq = inv_freq;
    c.args.pair_axis = pair_axis;
    give_ids(&c);
    check_exact(what, &c, &s, &r, angle[0][0], random);
}

static void check_model(const char *name, axis_of_column axis_of, int32_t order, const int32_t *sections,
                        random_state *random)
{
    uint8_t pair_axis[PAIRS];
    char what[96];
    CHECK(trope_fill_pair_axis(pair_axis, PAIRS, order, sections) == TROPE_OK);
    for (int e = 0; e < D; e++)
        CHECK(pair_axis[e % PAIRS] == axis_of(e));
    for (int random_ones = 0; random_ones < 2; random_ones++) {
        make_table(random_ones, random);
        gather(axis_of);
        for (int i = 0; i < 3; i++) { /* the dtypes of operands and tables: transformers casts its tables, others do not */
            const int32_t dtype = i ? TROPE_BF16 : TROPE_F32, table_dtype = i == 1 ? TROPE_BF16 : TROPE_F32;
            const rotation r = {dtype, TROPE_ROUND_NATIVE, TROPE_PAIRING_HALF, TROPE_PAIRING_HALF, D};
            snprintf(what, sizeof what, "%s, %s, tables of %s, %s", name, number_name(dtype), number_name(table_dtype),
                     random_ones ? "random" : "as made");
            check_tables(what, &r, table_dtype, pair_axis, random);
        }
    }
    check_ids(name, axis_of, pair_axis, random);
}

int main(void)
{
    random_state random = {2};
    for (int i = 0; i < PAIRS; i++)
        inv_freq[i] = pow(1000000.0, -2.0 * i / D);
    for (int b = 0; b < B; b++)
        for (int s = 0; s < S; s++)
            for (int a = 0; a < AXES; a++) /* text has the same id on each axis */
                ids[a][b][s] = s < 3 && a ? ids[0][b][s] : random_between(&random, 0, ROWS - 1);
    check_model("Qwen2-VL", qwen2_vl, TROPE_AXES_SECTIONS, (const int32_t[4]){16, 24, 24, 0}, &random);
    check_model("Qwen3-VL", qwen3_vl, TROPE_AXES_INTERLEAVED, (const int32_t[4]){24, 20, 20, 0}, &random);
    return check_result();
}
