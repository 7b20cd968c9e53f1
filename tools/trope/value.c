#include <math.h>
#include <string.h>

#include "value.h"

/* mantissa: number of stored bits. smallest: exponent of the smallest normal number. */
typedef struct value_type {
    int32_t size, mantissa, smallest;
} value_type;

static const value_type types[] = {
    [TROPE_F32] = {4, 23, -126},
    [TROPE_F16] = {2, 10, -14},
    [TROPE_BF16] = {2, 7, -126},
    [TROPE_F64] = {8, 52, -1022},
};

int32_t value_size(int32_t type)
{
    return types[type].size;
}

double value_epsilon(int32_t type)
{
    return ldexp(1, -types[type].mantissa);
}

/* Returns the bits of element i in the low end. */
static uint64_t load_bits(int32_t type, const void *data, int64_t i)
{
    uint16_t two;
    uint32_t four;
    uint64_t eight;
    /* A constant size lets the compiler turn each copy into a load. */
    switch (types[type].size) {
    case 2:
        memcpy(&two, (const char *)data + 2 * i, 2);
        return two;
    case 4:
        memcpy(&four, (const char *)data + 4 * i, 4);
        return four;
    default:
        memcpy(&eight, (const char *)data + 8 * i, 8);
        return eight;
    }
}

/* Returns the bits without the sign. */
static uint64_t magnitude_of(int32_t type, uint64_t bits)
{
    return bits & (UINT64_MAX >> (65 - 8 * types[type].size));
}

/* The magnitude of a NaN is larger than that of infinity, whose stored mantissa is 0. */
static int bits_are_nan(int32_t type, uint64_t bits)
{
    const int32_t mantissa = types[type].mantissa;
    return magnitude_of(type, bits) > magnitude_of(type, UINT64_MAX) >> mantissa << mantissa;
}

static double from_half_bits(uint64_t bits)
{
    const double sign = bits >> 15 ? -1 : 1;
    const int exponent = bits >> 10 & 31;
    const double mantissa = (double)(bits & 1023);
    if (exponent == 31)
        return mantissa != 0 ? NAN : sign * INFINITY;
    return sign * (exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24));
}

static double from_float_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

double value_load(int32_t type, const void *data, int64_t i)
{
    const uint64_t bits = load_bits(type, data, i);
    double x;
    switch (type) {
    case TROPE_F32:
        return from_float_bits((uint32_t)bits);
    case TROPE_BF16:
        return from_float_bits((uint32_t)bits << 16);
    case TROPE_F16:
        return from_half_bits(bits);
    default:
        memcpy(&x, &bits, sizeof x);
        return x;
    }
}

/* These two functions work on the bits of a double, because ldexp and frexp would take most of the time to fill a tensor.
 * Exponents are those of normal numbers; a subnormal x counts as the smallest normal number. */
static int exponent_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (int)(bits >> 52 & 2047) - 1023;
}

static double power_of_two(int exponent)
{
    const uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Rounds to a 16-bit type. Scales first, so that the mantissa is an integer and rint rounds it. */
static uint64_t to_16_bits(int32_t type, double x)
{
    const value_type *t = &types[type];
    const uint64_t sign = signbit(x) ? 0x8000 : 0;
    const uint64_t infinity = type == TROPE_F16 ? 0x7c00 : 0x7f80;
    if (isnan(x))
        return infinity | 1u << (t->mantissa - 1);
    if (isinf(x) || x == 0)
        return sign | (x == 0 ? 0 : infinity);
    const int own = exponent_of(x), exponent = own < t->smallest ? t->smallest : own;
    /* The leading 1 of a normal number counts as one step of the exponent, so a carry moves to the next exponent. */
    const uint64_t steps = (uint64_t)rint(fabs(x) * power_of_two(t->mantissa - exponent));
    const uint64_t bits = ((uint64_t)(exponent - t->smallest) << t->mantissa) + steps;
    return sign | (bits > infinity ? infinity : bits);
}

void value_store(int32_t type, void *data, int64_t i, double x)
{
    const int32_t size = types[type].size;
    char *at = (char *)data + i * size;
    const float single = (float)x;
    const uint16_t bits = type == TROPE_F16 || type == TROPE_BF16 ? (uint16_t)to_16_bits(type, x) : 0;
    const void *from = type == TROPE_F64 ? (const void *)&x : type == TROPE_F32 ? (const void *)&single : &bits;
    memcpy(at, from, (size_t)size);
}

/* Maps numbers to ordered integers. Negative numbers count down from 0. */
static int64_t ordinal(int32_t type, uint64_t bits)
{
    const int64_t magnitude = (int64_t)magnitude_of(type, bits);
    return bits >> (8 * types[type].size - 1) ? -magnitude : magnitude;
}

uint64_t value_ulp(int32_t type, const void *a, const void *b, int64_t i)
{
    const uint64_t a_bits = load_bits(type, a, i), b_bits = load_bits(type, b, i);
    if (a_bits == b_bits)
        return 0;
    const int a_nan = bits_are_nan(type, a_bits), b_nan = bits_are_nan(type, b_bits);
    if (a_nan || b_nan)
        return a_nan && b_nan ? 0 : VALUE_ULP_INFINITE;
    const int64_t low = ordinal(type, a_bits), high = ordinal(type, b_bits);
    return low < high ? (uint64_t)high - (uint64_t)low : (uint64_t)low - (uint64_t)high;
}
