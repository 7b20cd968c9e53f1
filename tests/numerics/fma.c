/* Compares trope_fma bit for bit with fmaf of the C library (the instruction, if the CPU has it), in a build without FMA
 * instructions, which emulates them, and in a build with them. Random operands hardly ever hit the hard cases, so most
 * operands are made for one: a sum that cancels, a tie, a subnormal result or an overflow. */
#include <math.h>

#include "core/scalar.h"
#include "numerics/kernels.h"
#include "numerics/scale.h"
#include "support/check.h"
#include "support/random.h"

#define BLOCK  1024
#define BLOCKS ((1 << 14) / NUMERICS_THIN)

/* A float with a random sign and mantissa, and an exponent (a power of two) in [low, high]. */
static float random_float(random_state *r, int low, int high)
{
    const uint32_t exponent = (uint32_t)(random_between(r, low, high) + 127);
    return trope_float_from_bits(((uint32_t)random_bits(r) & 0x807fffffu) | exponent << 23);
}

/* Moves a few floats up or down. */
static float nudge(random_state *r, float x)
{
    return trope_float_from_bits(trope_float_bits(x) + (uint32_t)random_between(r, -3, 3));
}

static void make_any(random_state *r, float x[3])
{
    for (int i = 0; i < 3; i++)
        x[i] = trope_float_from_bits((uint32_t)random_bits(r));
}

static void make_near(random_state *r, float x[3])
{
    for (int i = 0; i < 3; i++)
        x[i] = random_float(r, -13, 13);
}

static void make_cancelling(random_state *r, float x[3])
{
    x[0] = random_float(r, -60, 60);
    x[1] = random_float(r, -60, 60);
    x[2] = nudge(r, -(x[0] * x[1]));
}

/* The product is one, two or three times half a unit in the last place of the summand, or close to that. In half of the
 * cases, the product instead has up to 4 bits more than a float, and the summand is small. */
static void make_tie(random_state *r, float x[3])
{
    const int exponent = (int)random_between(r, -90, 90), shift = (int)random_between(r, -20, 20);
    const float c = random_float(r, exponent, exponent);
    const float half = ldexpf(random_bits(r) & 1 ? 1.0f : -1.0f, exponent - 24 - shift);
    x[0] = nudge(r, half);
    x[1] = ldexpf((float)random_between(r, 1, 3), shift);
    x[2] = c;
    if (random_bits(r) & 1) {
        x[0] = ldexpf((float)random_between(r, (1 << 23) + 1, (1 << 24) - 1), -shift);
        x[1] = ldexpf((float)random_between(r, 1, 15), shift); /* 24 + 4 bits, so some products are ties */
        x[2] = random_float(r, -10, 0);
    }
}

/* Like make_tie, but x[1] is rounded, so the product misses the tie by a little. */
static void make_near_tie(random_state *r, float x[3])
{
    const int exponent = (int)random_between(r, -60, 60);
    x[0] = random_float(r, -20, 20);
    x[1] = ldexpf((float)random_between(r, -3, 3), exponent - 24) / x[0];
    x[2] = random_float(r, exponent, exponent);
}

static void make_subnormal(random_state *r, float x[3])
{
    const int exponent = (int)random_between(r, -26, 26), sum = (int)random_between(r, -152, -122);
    x[0] = random_float(r, exponent, exponent);
    x[1] = ldexpf(random_float(r, 0, 0), sum - exponent);
    x[2] = trope_float_from_bits((uint32_t)random_bits(r) & 0x81ffffffu);
    if (random_bits(r) & 1) { /* multiples of half the smallest subnormal: odd ones are ties */
        x[0] = ldexpf(1.0f, -75 + exponent);
        x[1] = ldexpf((float)random_between(r, -7, 7), -75 - exponent);
    }
}

static void make_overflowing(random_state *r, float x[3])
{
    const int exponent = (int)random_between(r, 0, 126);
    x[0] = random_float(r, exponent, exponent);
    x[1] = random_float(r, 126 - exponent, 127 - exponent);
    x[2] = random_float(r, 100, 127);
    if (random_bits(r) & 1) {
        x[0] = nudge(r, 0x1.fffffcp127f);
        x[1] = 1.0f;
        x[2] = nudge(r, 0x1p103f);
    }
}

static int same_float(float a, float b)
{
    return trope_float_bits(a) == trope_float_bits(b) || (isnan(a) && isnan(b)); /* the store sets the bits of a NaN */
}

static void check_block(const char *what, const numerics_kernels *kernels, int count, const float (*x)[3])
{
    float result[BLOCK], expected[BLOCK];
    int wrong = -1;

    kernels->fma(count, x, result);
    for (int i = 0; i < count; i++) {
        expected[i] = fmaf(x[i][0], x[i][1], x[i][2]);
        if (!same_float(result[i], expected[i]))
            wrong = i;
    }
    if (wrong < 0)
        CHECK(wrong < 0);
    else
        CHECK_MESSAGE(0, "%s, %s: fma(%a, %a, %a) = %a, expected %a", kernels->name, what, x[wrong][0], x[wrong][1],
                      x[wrong][2], result[wrong], expected[wrong]);
}

static void check_both(const char *what, int count, const float (*x)[3])
{
    const numerics_kernels *second = numerics_second_build();
    check_block(what, &numerics_portable, count, x);
    if (second)
        check_block(what, second, count, x);
}

static const struct {
    const char *what;
    void (*make)(random_state *r, float x[3]);
} families[] = {
    {"random bits", make_any},         {"similar exponents", make_near},
    {"cancellation", make_cancelling}, {"ties", make_tie},
    {"near ties", make_near_tie},      {"subnormal results", make_subnormal},
    {"overflow", make_overflowing},
};

static void check_family(int family)
{
    random_state r = {(uint64_t)family};
    for (int b = 0; b < BLOCKS; b++) {
        float x[BLOCK][3];
        for (int i = 0; i < BLOCK; i++)
            families[family].make(&r, x[i]);
        check_both(families[family].what, BLOCK, (const float(*)[3])x);
    }
    printf("%s: %d triples\n", families[family].what, BLOCK * BLOCKS);
}

/* Checks every triple of special values. */
static void check_special_values(void)
{
    const uint32_t magnitudes[] = {0,           1,           2,           0x007fffffu, 0x00800000u, 0x00800001u,
                                   0x00ffffffu, 0x33800000u, 0x34000000u, 0x3f000000u, 0x3f7fffffu, 0x3f800000u,
                                   0x3f800001u, 0x40000000u, 0x4b7fffffu, 0x7effffffu, 0x7f000000u, 0x7f7ffffeu,
                                   0x7f7fffffu, 0x7f800000u, 0x7fc00000u};
    enum { MAGNITUDES = sizeof magnitudes / sizeof magnitudes[0], VALUES = 2 * MAGNITUDES };
    float values[VALUES], x[VALUES][3];

    for (int i = 0; i < VALUES; i++)
        values[i] = trope_float_from_bits(magnitudes[i / 2] | (uint32_t)(i % 2) << 31);
    for (int i = 0; i < VALUES * VALUES; i++) {
        for (int j = 0; j < VALUES; j++) {
            x[j][0] = values[i / VALUES];
            x[j][1] = values[i % VALUES];
            x[j][2] = values[j];
        }
        check_both("special values", VALUES, (const float(*)[3])x);
    }
}

int main(void)
{
    for (int family = 0; family < (int)(sizeof families / sizeof families[0]); family++)
        check_family(family);
    check_special_values();
    return check_result();
}
