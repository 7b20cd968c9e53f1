/* Tests the reference itself: all 16-bit numbers, rounding at ties, sines and cosines that were computed by mpmath with 400
 * bits, and one rotation of each kind that was worked out by hand. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/call.h"
#include "support/check.h"
#include "support/number.h"
#include "support/reference.h"

/* ---- Numbers ---- */

static void check_all_numbers(int32_t dtype)
{
    double before = -INFINITY;
    for (unsigned bits = 0; bits < 0x10000; bits++) {
        uint16_t in = (uint16_t)bits, out;
        const double value = number_load(dtype, &in);
        number_store(dtype, &out, value);
        if (isnan(value))
            continue;
        CHECK_MESSAGE(in == out, "%s 0x%04x is %g, which is stored as 0x%04x", number_name(dtype), in, value, out);
        CHECK(number_round(dtype, value) == value);
        if (bits < 0x8000 && bits) /* ascending in steps of two half ulps */
            CHECK(value > before && (isinf(value) || bits == 1 || value - before == 2 * number_half_ulp(dtype, before)));
        before = value;
    }
}

static void check_rounding(void)
{
    CHECK(number_round(TROPE_BF16, 1 + 0x1p-8) == 1);                    /* a tie, to even */
    CHECK(number_round(TROPE_BF16, 1 + 3 * 0x1p-8) == 1 + 0x1p-6);       /* a tie, to even */
    CHECK(number_round(TROPE_BF16, 1 + 0x1p-8 + 0x1p-40) == 1 + 0x1p-7); /* no tie */
    CHECK(number_round(TROPE_F16, -1 - 0x1p-11) == -1);                  /* a tie, to even */
    CHECK(number_round(TROPE_F16, 65519) == 65504);                      /* the largest number */
    CHECK(number_round(TROPE_F16, 65520) == (double)INFINITY);           /* half an ulp beyond it */
    CHECK(number_round(TROPE_F16, 0x1p-25) == 0);                        /* half of the smallest number: a tie, to even */
    CHECK(number_round(TROPE_F16, 0x1.8p-25) == 0x1p-24);                /* three quarters of the smallest */
    CHECK(number_round(TROPE_F32, 1.0 / 3) == (double)(float)(1.0 / 3)); /* like a conversion by the compiler */
    CHECK(number_half_ulp(TROPE_F32, 1) == 0x1p-24 && number_half_ulp(TROPE_F16, 0) == 0x1p-25);
}

/* ---- Angles ---- */

/* Returns a call with one token and one head of `dim` elements. The middle half of the head is rotated. */
static call one_head(double *x, double *y, int dim)
{
    call c = call_make(TROPE_F64, 1, 1);
    c.args.operand_count = 1;
    c.operands[0] = (trope_operand){.src = x, .dst = y, .heads_per_group = 1, .head_dim = dim, .rotary_dim = dim / 2};
    c.operands[0].rotary_offset = dim / 4;
    c.operands[0].src_layout = c.operands[0].dst_layout = TROPE_BSHD;
    return c;
}

static void check_unit_pair(call *c, long double cosine, long double sine)
{
    reference_result r = reference_run(call_args(c), 0);
    CHECK_MESSAGE(fabsl(r.operands[0][1].value - cosine) < 1e-18L && fabsl(r.operands[0][2].value - sine) < 1e-18L,
                  "(%.19Lg, %.19Lg), expected (%.19Lg, %.19Lg)", r.operands[0][1].value, r.operands[0][2].value, cosine,
                  sine);
    reference_free(&r);
}

/* Rotates the pair (1, 0). The result is (cos, sin). */
static void check_angles(void)
{
    static const struct {
        double angle;
        long double cosine, sine;
    } angles[] = {
        {0x1p0, 0.5403023058681397174L, 0.84147098480789650665L},
        {0x1.921fb6p+1, -0.99999999999999617863L, -8.7422780003724745258e-8L},
        {0x1.dcd65p+29, 0.83788718136390233439L, 0.54584344944869956424L},
        {0x1p100, 0.48917865697472144991L, -0.87218360541826730978L},
        {0x1.ff933cp+127, 0.96975387294150256701L, -0.24408487440838298575L},
        {0x1.99999ap-4, 0.99500416512926238159L, 0.099833418129499897732L},
    };
    static const struct {
        int64_t position;
        double inv_freq;
        long double cosine, sine;
    } phases[] = {
        {2147483647, 0x1p0, -0.68883669187794383468L, -0.72491655514455639055L},
        {2147483647, 0x1.7ae147ae147aep-2, 0.88450693022383148706L, -0.46652705214811937745L},
        {1234567, 0x1.2f1a9fbe76c8bp-5, 0.97549935839832257496L, 0.22000227672563073625L},
        {-5, 0x1p-1, -0.80114361554693371483L, -0.59847214410395649405L},
    };
    double x[4] = {0, 1, 0, 0}, y[4];
    call c = one_head(x, y, 4);
    for (size_t i = 0; i < sizeof phases / sizeof phases[0]; i++) {
        c.args.position_ids = &phases[i].position;
        c.args.position_dtype = TROPE_I64;
        c.args.ids_layout = TROPE_IDS_TOKENS;
        c.args.inv_freq = &phases[i].inv_freq;
        check_unit_pair(&c, phases[i].cosine, phases[i].sine);
    }
    /* The phase step is a quarter turn at position 3, and a sixteenth turn at position -1. */
    const uint64_t quarter = 1ull << 62, sixteenth = 1ull << 60;
    const int64_t three = 3, minus_one = -1;
    c.args.inv_freq = NULL;
    c.args.phase_step = &quarter;
    c.args.position_ids = &three;
    check_unit_pair(&c, 0, -1);
    c.args.phase_step = &sixteenth;
    c.args.position_ids = &minus_one;
    check_unit_pair(&c, 0.92387953251128675613L, -0.38268343236508977173L);
    c = one_head(x, y, 4);
    for (size_t i = 0; i < sizeof angles / sizeof angles[0]; i++) {
        call_freqs(&c, &angles[i].angle, TROPE_COLUMNS_PAIR, 1);
        c.args.angle_dtype = TROPE_F64;
        check_unit_pair(&c, angles[i].cosine, angles[i].sine);
    }
}

/* ---- Pairs ---- */

static double value_of(const reference_element *e)
{
    double value = (double)e->value;
    if (e->kind == REFERENCE_BITS)
        memcpy(&value, &e->bits, sizeof value);
    return value;
}

/* Rotates x = 1 .. 8 by a table of integers. The comments of the callers derive the expected results. */
static void check_pairs(call *c, int backward, const double *expected, const char *what)
{
    double x[8];
    for (int i = 0; i < 8; i++)
        x[i] = i + 1;
    c->operands[0].src = x;
    reference_result r = reference_run(call_args(c), backward);
    for (int i = 0; i < 8; i++)
        CHECK_MESSAGE(value_of(&r.operands[0][i]) == expected[i], "%s, backward %d: element %d is %g, expected %g", what,
                      backward, i, value_of(&r.operands[0][i]), expected[i]);
    reference_free(&r);
}

static void check_rotations(void)
{
    static const double cosines[] = {2, 3, 5, 7}, sines[] = {11, 13, 17, 19};
    double y[8];
    call c = one_head(NULL, y, 8);
    /* The window is 3 4 5 6. With one angle for each pair and half pairing, the pairs are (3, 5) and (4, 6): 3*2 - 5*11,
     * 4*3 - 6*13, 5*2 + 3*11, 6*3 + 4*13. */
    call_tables(&c, cosines, sines, TROPE_F64, TROPE_COLUMNS_PAIR, 1);
    check_pairs(&c, 0, (const double[]){1, 2, -49, -66, 43, 70, 7, 8}, "half");
    check_pairs(&c, 1, (const double[]){1, 2, 61, 90, -23, -34, 7, 8}, "half");
    /* With interleaved pairing, the pairs are (3, 4) and (5, 6): 3*2 - 4*11, 4*2 + 3*11, 5*3 - 6*13, 6*3 + 5*13. With
     * mscale 2 the results are twice as large. */
    c.args.pairing = TROPE_PAIRING_INTERLEAVED;
    c.args.mscale = 2;
    check_pairs(&c, 0, (const double[]){1, 2, -76, 82, -126, 166, 7, 8}, "interleaved");
    /* From interleaved to half pairing, the same numbers are in other places. With inverse, the sines change their sign. */
    c.args.pairing_out = TROPE_PAIRING_HALF;
    c.args.mscale = 1;
    check_pairs(&c, 0, (const double[]){1, 2, -38, -63, 41, 83, 7, 8}, "interleaved to half");
    c.args.inverse = 1;
    check_pairs(&c, 0, (const double[]){1, 2, 50, 93, -25, -47, 7, 8}, "inverse");
    /* With an angle for each element in HALF columns, pair (3, 5) has columns 0 and 2, and pair (4, 6) has columns 1 and 3.
     * Forward 3*2 - 5*11, 4*3 - 6*13, 5*5 + 3*17, 6*7 + 4*19. Backward 3*2 + 5*17, 4*3 + 6*19, 5*5 - 3*11, 6*7 - 4*13. */
    c = one_head(NULL, y, 8);
    call_tables(&c, cosines, sines, TROPE_F64, TROPE_COLUMNS_HALF, 1);
    check_pairs(&c, 0, (const double[]){1, 2, -49, -66, 76, 118, 7, 8}, "HALF columns");
    check_pairs(&c, 1, (const double[]){1, 2, 91, 126, -8, -10, 7, 8}, "HALF columns");
    /* With INTERLEAVED columns and half pairing, pair (3, 5) has columns 0 and 1, and pair (4, 6) has columns 2 and 3:
     * 3*2 - 5*11, 4*5 - 6*17, 5*3 + 3*13, 6*7 + 4*19. */
    c.args.angle_columns = TROPE_COLUMNS_INTERLEAVED;
    check_pairs(&c, 0, (const double[]){1, 2, -49, -82, 54, 118, 7, 8}, "INTERLEAVED columns");
    /* Two parts have one pair each, (3, 4) and (5, 6), as with interleaved pairing. */
    c.args.parts = 2;
    c.args.angle_columns = TROPE_COLUMNS_PAIR;
    check_pairs(&c, 0, (const double[]){1, 2, -38, 41, -63, 83, 7, 8}, "parts");
}

/* Tests tables with strides, planes of axes, and a gradient whose layout differs from the table's. */
static void check_tables(void)
{
    /* The table is [batch 1, axes 2, rows 1, columns 2], with cos and sin interleaved. Pair 0 reads the plane of axis 1
     * (cos 5, sin 17), and pair 1 reads the plane of axis 0 (cos 3, sin 13). The pairs are (3, 5) and (4, 6):
     * 3*5 - 5*17, 4*3 - 6*13, 5*5 + 3*17, 6*3 + 4*13. */
    static const double turns[] = {2, 11, 3, 13, 5, 17, 7, 19};
    static const uint8_t axes[] = {1, 0};
    double y[8], x[8] = {0, 0, 1, 1, 1, 1, 0, 0}, d_freqs[4];
    call c = one_head(NULL, y, 8);
    call_tables(&c, turns, turns + 1, TROPE_F64, TROPE_COLUMNS_PAIR, 1);
    c.args.pair_axis = axes;
    c.args.angle_layout = TROPE_TABLE_STRIDED;
    memcpy(c.args.angle_stride, (const int64_t[]){4, 0, 8, 2}, sizeof c.args.angle_stride);
    check_pairs(&c, 0, (const double[]){1, 2, -70, -66, 76, 70, 7, 8}, "complex table with axes");
    /* dL/da of pair 0, with dy (3, 5) and x (1, 1) at cos 5, sin 17, is 3 (-17 - 5) + 5 (5 - 17) = -126. For pair 1,
     * with dy (4, 6) at cos 3, sin 13, it is 4 (-13 - 3) + 6 (3 - 13) = -124. */
    c.operands[0].forward_src = x;
    c.operands[0].forward_src_layout = TROPE_BSHD;
    double dy[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    c.operands[0].src = dy;
    c.args.d_freqs = d_freqs;
    c.args.d_freqs_layout = TROPE_TABLE_AXES_BATCH_ROWS;
    reference_result r = reference_run(call_args(&c), 1);
    const double by_axes[] = {0, -124, -126, 0};
    for (int i = 0; i < 4; i++)
        CHECK(r.angle_count == 4 && r.angles[i].exists && (double)r.angles[i].value == by_axes[i]);
    CHECK(r.angles[0].terms == 0 && r.angles[1].terms == 2);
    reference_free(&r);
    c.args.d_freqs_layout = TROPE_TABLE_ROWS;
    r = reference_run(call_args(&c), 1);
    CHECK(r.angle_count == 2 && (double)r.angles[0].value == -126 && (double)r.angles[1].value == -124);
    reference_free(&r);
}

/* ---- Sums ---- */

/* Three shared heads: element e of head h is 1000 h + e, with h from 1. Their sum is stored first, then accumulated. */
static void check_sums(void)
{
    static const float cosines[] = {2}, sines[] = {0};
    float dy[3][4], dx[4] = {10, 20, 30, 40};
    call c = call_make(TROPE_F32, 1, 1);
    for (int i = 0; i < 12; i++)
        dy[i / 4][i % 4] = (float)(1000 * (i / 4 + 1) + i % 4);
    trope_operand *o = call_add(&c, dy, TROPE_BSHD, 3, 4, 2);
    call_tables(&c, cosines, sines, TROPE_F32, TROPE_COLUMNS_PAIR, 1);
    o->dst = dx;
    o->shared_heads = TROPE_SHARED_ALL;
    /* Element 0 is rotated: 2 (1000 + 2000 + 3000). Element 2 is not: 6000 + 3 * 2. */
    reference_result r = reference_run(call_args(&c), 1);
    CHECK((double)r.operands[0][0].value == 12000 && (double)r.operands[0][1].value == 12006);
    CHECK((double)r.operands[0][2].value == 6006 && (double)r.operands[0][3].value == 6009);
    CHECK(r.operands[0][0].tolerance < 12000 * 0x1p-22 && r.operands[0][2].tolerance == 0);
    reference_free(&r);
    o->accumulate = 1;
    r = reference_run(call_args(&c), 1);
    CHECK((double)r.operands[0][0].value == 12010 && (double)r.operands[0][3].value == 6049);
    reference_free(&r);
    /* The tree adds neighbours first, in fp32. Heads 2 and 3 are so small that adding either of them alone does not change
     * the sum. The tree does not add them to each other. */
    o->accumulate = 0;
    dy[0][0] = 0x1p24f;
    dy[1][0] = dy[2][0] = 1;
    r = reference_run(call_args(&c), 1);
    CHECK((double)r.operands[0][0].value == 0x1p25);
    reference_free(&r);
}

int main(void)
{
    check_all_numbers(TROPE_F16);
    check_all_numbers(TROPE_BF16);
    check_rounding();
    check_angles();
    check_rotations();
    check_tables();
    check_sums();
    return check_result();
}
