/* trope_fill_pair_axis: which axis drives each pair, in the orders that models have, written out by hand; and a rotation by
 * these axes is one by the ids of each pair's axis alone. */
#include "support/call.h"
#include "support/check.h"
#include "support/random.h"

enum { MOST = TROPE_MAX_ROTARY_DIM / 2 };

static void check_axes(const char *what, int32_t order, const int32_t *sections, const char *expected)
{
    const int32_t pairs = (int32_t)strlen(expected);
    uint8_t axis[MOST + 1];
    memset(axis, 77, sizeof axis);
    if (!CHECK_MESSAGE(trope_fill_pair_axis(axis, pairs, order, sections) == TROPE_OK, "%s: %s", what, trope_last_error()))
        return;
    for (int32_t i = 0; i < pairs; i++)
        CHECK_MESSAGE(axis[i] == expected[i] - '0', "%s: pair %d has axis %d, not %c", what, i, axis[i], expected[i]);
    CHECK_MESSAGE(axis[pairs] == 77, "%s: written beyond the end", what);
}

static void examples(void)
{
    check_axes("sections", TROPE_AXES_SECTIONS, (const int32_t[]){2, 3, 3, 0}, "00111222");
    check_axes("four sections", TROPE_AXES_SECTIONS, (const int32_t[]){1, 2, 3, 2}, "01122233");
    check_axes("an empty section", TROPE_AXES_SECTIONS, (const int32_t[]){0, 2, 0, 1}, "113");
    check_axes("one section", TROPE_AXES_SECTIONS, (const int32_t[]){4, 0, 0, 0}, "0000");
    /* Axis 1 has pairs 1, 4, 7, .. below 3 * sections[1], axis 2 has 2, 5, .. below 3 * sections[2]. */
    check_axes("interleaved", TROPE_AXES_INTERLEAVED, (const int32_t[]){4, 2, 2, 0}, "01201200");
    check_axes("interleaved, unequal", TROPE_AXES_INTERLEAVED, (const int32_t[]){4, 3, 1, 0}, "01201001");
    check_axes("interleaved, one axis", TROPE_AXES_INTERLEAVED, (const int32_t[]){5, 0, 0, 0}, "00000");
    check_axes("alternating", TROPE_AXES_ALTERNATING, (const int32_t[]){4, 3, 0, 0}, "0101010");
    check_axes("hwt", TROPE_AXES_HWT, (const int32_t[]){2, 3, 3, 0}, "12121200");
    check_axes("hw alone", TROPE_AXES_HWT, (const int32_t[]){0, 2, 2, 0}, "1212");
    check_axes("t alone", TROPE_AXES_HWT, (const int32_t[]){3, 0, 0, 0}, "000");
}

/* As transformers' Qwen3-VL has it: freqs_t[..., offset : 3 * section : 3] of the axes 1 and 2 over axis 0. */
static void qwen3_vl(void)
{
    const int32_t sections[] = {24, 20, 20, 0};
    char expected[65];
    memset(expected, '0', 64);
    expected[64] = 0;
    for (int axis = 1; axis < 3; axis++)
        for (int i = axis; i < 3 * sections[axis]; i += 3)
            expected[i] = (char)('0' + axis);
    check_axes("Qwen3-VL", TROPE_AXES_INTERLEAVED, sections, expected);
}

static void most_pairs(void)
{
    uint8_t axis[MOST];
    const int32_t sections[] = {MOST, 0, 0, 0}, halves[] = {MOST / 2, MOST / 2, 0, 0};
    CHECK_MESSAGE(trope_fill_pair_axis(axis, MOST, TROPE_AXES_SECTIONS, sections) == TROPE_OK, "%s", trope_last_error());
    CHECK_MESSAGE(trope_fill_pair_axis(axis, MOST, TROPE_AXES_ALTERNATING, halves) == TROPE_OK, "%s", trope_last_error());
    CHECK(axis[MOST - 1] == 1);
}

enum { PAIRS = 8, DIM = 2 * PAIRS, TOKENS = 7, AXES = 4 };

static float x[TOKENS][DIM], y[TOKENS][DIM], alone[AXES][TOKENS][DIM];
static int64_t ids[AXES][TOKENS];
static double inv_freq[PAIRS];

static call one_head(float *dst)
{
    call c = call_make(TROPE_F32, 1, TOKENS);
    call_add(&c, dst, TROPE_THD, 1, DIM, DIM)->src = x;
    c.args.inv_freq = inv_freq;
    c.args.position_dtype = TROPE_I64;
    return c;
}

/* Each pair of y has the bits that a call with the ids of its axis alone gives it. */
static void check_rotation(const uint8_t *axis)
{
    call c = one_head(y[0]);
    c.args.position_ids = ids;
    c.args.ids_layout = TROPE_IDS_AXES_BATCH_TOKENS;
    c.args.position_axes = AXES;
    c.args.pair_axis = axis;
    CHECK_MESSAGE(trope_forward(call_args(&c)) == TROPE_OK, "%s", trope_last_error());
    long wrong = 0;
    for (int t = 0; t < TOKENS; t++)
        for (int e = 0; e < DIM; e++)
            wrong += memcmp(&y[t][e], &alone[axis[e % PAIRS]][t][e], sizeof(float)) != 0;
    CHECK_MESSAGE(wrong == 0, "%ld elements were turned by another axis", wrong);
}

static void rotations(void)
{
    random_state random = {11};
    uint8_t axis[PAIRS];
    for (int i = 0; i < TOKENS * DIM; i++)
        x[i / DIM][i % DIM] = (float)random_real(&random);
    for (int i = 0; i < PAIRS; i++)
        inv_freq[i] = 1.0 / (1 + i);
    for (int i = 0; i < AXES * TOKENS; i++)
        ids[i / TOKENS][i % TOKENS] = random_between(&random, 0, 1000);
    for (int i = 0; i < AXES; i++) {
        call c = one_head(alone[i][0]);
        c.args.position_ids = ids[i];
        c.args.ids_layout = TROPE_IDS_TOKENS;
        CHECK_MESSAGE(trope_forward(call_args(&c)) == TROPE_OK, "%s", trope_last_error());
    }
    CHECK(trope_fill_pair_axis(axis, PAIRS, TROPE_AXES_SECTIONS, (const int32_t[]){1, 2, 3, 2}) == TROPE_OK);
    check_rotation(axis);
    CHECK(trope_fill_pair_axis(axis, PAIRS, TROPE_AXES_HWT, (const int32_t[]){2, 3, 3, 0}) == TROPE_OK);
    check_rotation(axis);
    for (int n = 0; n < 50; n++) {
        for (int i = 0; i < PAIRS; i++)
            axis[i] = (uint8_t)random_between(&random, 0, AXES - 1);
        check_rotation(axis);
    }
}

int main(void)
{
    examples();
    qwen3_vl();
    most_pairs();
    rotations();
    return check_result();
}
