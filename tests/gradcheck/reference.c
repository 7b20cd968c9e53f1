/* The reference itself: numbers of 16 bits in full, rounding at ties, sines and cosines computed elsewhere (mpmath, 400
 * bits), and one rotation of each kind written out by hand. */
#include <math.h>
#include <stdio.h>
#include <string.h>

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
        CHECK_MESSAGE(in == out, "%s 0x%04x is %g and back 0x%04x", number_name(dtype), in, value, out);
        CHECK(number_round(dtype, value) == value);
        if (bits < 0x8000 && bits) /* ascending, with the next at two half ulps */
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
    CHECK(number_round(TROPE_F16, 65519) == 65504);                      /* the largest */
    CHECK(number_round(TROPE_F16, 65520) == (double)INFINITY);           /* half an ulp beyond it */
    CHECK(number_round(TROPE_F16, 0x1p-25) == 0);                        /* half of the smallest */
    CHECK(number_round(TROPE_F16, 0x1.8p-25) == 0x1p-24);                /* three quarters of it */
    CHECK(number_round(TROPE_F32, 1.0 / 3) == (double)(float)(1.0 / 3)); /* the compiler's */
    CHECK(number_half_ulp(TROPE_F32, 1) == 0x1p-24 && number_half_ulp(TROPE_F16, 0) == 0x1p-25);
}

/* ---- Angles ---- */

/* One pair at (1, 0), which becomes cos and sin. */
static trope_args unit_pair(double *src, double *dst)
{
    trope_args a = {.struct_size = sizeof a, .dtype = TROPE_F64, .operand_count = 1, .batch = 1, .tokens = 1};
    a.operands[0] = (trope_operand){.src = src, .dst = dst, .heads_per_group = 1, .head_dim = 2, .rotary_dim = 2};
    for (int d = 0; d < TROPE_MAX_DIMS; d++)
        a.operands[0].src_stride[d] = a.operands[0].dst_stride[d] = 1;
    src[0] = 1;
    src[1] = 0;
    return a;
}

static void check_unit_pair(const trope_args *args, long double cosine, long double sine)
{
    reference_result r = reference_run(args, 0);
    CHECK_MESSAGE(fabsl(r.operands[0][0].value - cosine) < 1e-18L && fabsl(r.operands[0][1].value - sine) < 1e-18L,
                  "(%.19Lg, %.19Lg), expected (%.19Lg, %.19Lg)", r.operands[0][0].value, r.operands[0][1].value, cosine,
                  sine);
    reference_free(&r);
}

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
    double src[2], dst[2];
    trope_args a = unit_pair(src, dst);
    a.position_dtype = TROPE_I64;
    for (size_t i = 0; i < sizeof phases / sizeof phases[0]; i++) {
        a.position_ids = &phases[i].position;
        a.inv_freq = &phases[i].inv_freq;
        check_unit_pair(&a, phases[i].cosine, phases[i].sine);
    }
    a.position_ids = NULL;
    a.inv_freq = NULL;
    a.angle_dtype = TROPE_F64;
    a.angle_rows = a.angle_cols = 1;
    for (size_t i = 0; i < sizeof angles / sizeof angles[0]; i++) {
        a.freqs = &angles[i].angle;
        check_unit_pair(&a, angles[i].cosine, angles[i].sine);
    }
}

/* ---- Pairs ---- */

/* x = 1 .. 8 by a table of whole numbers; the results are in the comments of the callers. */
static void check_pairs(trope_args *args, int backward, const double *expected, const char *what)
{
    double src[8], dst[8];
    trope_operand *o = &args->operands[0];
    *o = (trope_operand){.src = src, .dst = dst, .heads_per_group = 1, .head_dim = 8, .rotary_dim = 4, .rotary_offset = 2};
    for (int i = 0; i < 8; i++)
        src[i] = i + 1;
    for (int d = 0; d < TROPE_MAX_DIMS; d++)
        o->src_stride[d] = o->dst_stride[d] = 1;
    reference_result r = reference_run(args, backward);
    for (int i = 0; i < 8; i++) {
        double value = (double)r.operands[0][i].value;
        if (r.operands[0][i].kind == REFERENCE_BITS)
            memcpy(&value, &r.operands[0][i].bits, sizeof value);
        CHECK_MESSAGE(value == expected[i], "%s, backward %d: element %d is %g, expected %g", what, backward, i, value,
                      expected[i]);
    }
    reference_free(&r);
}

static void check_rotations(void)
{
    static const double cosines[] = {2, 3, 5, 7}, sines[] = {11, 13, 17, 19};
    trope_args a = {.struct_size = sizeof a, .dtype = TROPE_F64, .operand_count = 1, .batch = 1, .tokens = 1};
    a.angle_dtype = TROPE_F64;
    a.angle_rows = 1;
    a.cos = cosines;
    a.sin = sines;
    /* The window is 3 4 5 6. One angle a pair, halves (3, 5), (4, 6): 3*2 - 5*11, 4*3 - 6*13, 5*2 + 3*11, 6*3 + 4*13. */
    a.angle_cols = 2;
    check_pairs(&a, 0, (const double[]){1, 2, -49, -66, 43, 70, 7, 8}, "half");
    check_pairs(&a, 1, (const double[]){1, 2, 61, 90, -23, -34, 7, 8}, "half");
    /* Neighbours (3, 4), (5, 6): 3*2 - 4*11, 4*2 + 3*11, 5*3 - 6*13, 6*3 + 5*13; twice that with mscale 2. */
    a.pairing = TROPE_PAIRING_INTERLEAVED;
    a.mscale = 2;
    check_pairs(&a, 0, (const double[]){1, 2, -76, 82, -126, 166, 7, 8}, "interleaved");
    /* From neighbours to halves, the same numbers in other places; the sines the other way with inverse. */
    a.pairing_out = TROPE_PAIRING_HALF;
    a.mscale = 1;
    check_pairs(&a, 0, (const double[]){1, 2, -38, -63, 41, 83, 7, 8}, "interleaved to half");
    a.inverse = 1;
    check_pairs(&a, 0, (const double[]){1, 2, 50, 93, -25, -47, 7, 8}, "inverse");
    /* An angle for each element of the output, halves: pair (3, 5) has columns 0 and 2, pair (4, 6) columns 1 and 3.
     * Forward 3*2 - 5*11, 4*3 - 6*13, 5*5 + 3*17, 6*7 + 4*19. Backward 3*2 + 5*17, 4*3 + 6*19, 5*5 - 3*11, 6*7 - 4*13. */
    a.inverse = 0;
    a.pairing = a.pairing_out = TROPE_PAIRING_HALF;
    a.angle_cols = 4;
    check_pairs(&a, 0, (const double[]){1, 2, -49, -66, 76, 118, 7, 8}, "full width");
    check_pairs(&a, 1, (const double[]){1, 2, 91, 126, -8, -10, 7, 8}, "full width");
    /* Two windows of one pair each, (3, 4) and (5, 6): as neighbours, whatever the pairing. */
    a.windows = 2;
    a.angle_cols = 2;
    check_pairs(&a, 0, (const double[]){1, 2, -38, 41, -63, 83, 7, 8}, "windows");
}

int main(void)
{
    check_all_numbers(TROPE_F16);
    check_all_numbers(TROPE_BF16);
    check_rounding();
    check_angles();
    check_rotations();
    return check_result();
}
