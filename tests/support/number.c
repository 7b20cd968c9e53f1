#include "support/number.h"

#include <math.h>
#include <string.h>

#include "trope/trope.h"

typedef struct number_format {
    const char *name;
    size_t size;
    int precision; /* bits of the significand, including the hidden bit */
    int lowest;    /* exponent of the smallest subnormal */
    int highest;   /* every finite number is below 2^highest */
} number_format;

static const number_format formats[] = {
    [TROPE_F32] = {"f32", 4, 24, -149, 128},
    [TROPE_F16] = {"f16", 2, 11, -24, 16},
    [TROPE_BF16] = {"bf16", 2, 8, -133, 128},
    [TROPE_F64] = {"f64", 8, 53, -1074, 1024},
};

size_t number_size(int32_t dtype)
{
    return formats[dtype].size;
}

const char *number_name(int32_t dtype)
{
    return formats[dtype].name;
}

/* The exponent of the last significand bit of a number as large as `value`. */
static int last_bit(const number_format *format, double value)
{
    int exponent;
    frexp(value, &exponent);
    exponent -= format->precision;
    return exponent < format->lowest || value == 0 ? format->lowest : exponent;
}

double number_half_ulp(int32_t dtype, double value)
{
    return ldexp(0.5, last_bit(&formats[dtype], value));
}

double number_round(int32_t dtype, double value)
{
    const number_format *format = &formats[dtype];
    if (!isfinite(value) || dtype == TROPE_F64)
        return value;
    const int last = last_bit(format, value);
    const double rounded = ldexp(nearbyint(ldexp(value, -last)), last);
    return fabs(rounded) < ldexp(1, format->highest) ? rounded : copysign(INFINITY, value);
}

uint64_t number_bits(int32_t dtype, const void *element)
{
    uint16_t bits16;
    uint32_t bits32;
    uint64_t bits64;
    switch (number_size(dtype)) {
    case 2:
        memcpy(&bits16, element, sizeof bits16);
        return bits16;
    case 4:
        memcpy(&bits32, element, sizeof bits32);
        return bits32;
    default:
        memcpy(&bits64, element, sizeof bits64);
        return bits64;
    }
}

/* f16 and bf16 have a sign, `width` bits of exponent and `precision - 1` bits of fraction. */
static double decode_16(const number_format *format, unsigned bits)
{
    const int fraction_bits = format->precision - 1;
    const unsigned largest = 0x7fffu >> fraction_bits;
    const unsigned exponent = (bits & 0x7fffu) >> fraction_bits, fraction = bits & ((1u << fraction_bits) - 1);
    double value = ldexp(fraction, format->lowest);
    if (exponent == largest)
        value = fraction ? (double)NAN : (double)INFINITY;
    else if (exponent)
        value = ldexp(fraction + (1u << fraction_bits), format->lowest + (int)exponent - 1);
    return bits & 0x8000u ? -value : value;
}

static unsigned encode_16(const number_format *format, double rounded)
{
    const int fraction_bits = format->precision - 1;
    const unsigned sign = signbit(rounded) ? 0x8000u : 0, infinity = 0x7fffu >> fraction_bits << fraction_bits;
    if (isnan(rounded))
        return sign | 0x7fffu;
    if (isinf(rounded))
        return sign | infinity;
    /* The exponent field and the fraction together are (last - lowest) * 2^fraction_bits + significand, for subnormals
     * too. The hidden bit of a normal number adds 1 to the exponent field. */
    const int last = last_bit(format, rounded);
    const unsigned significand = (unsigned)ldexp(fabs(rounded), -last);
    return sign | (((unsigned)(last - format->lowest) << fraction_bits) + significand);
}

double number_load(int32_t dtype, const void *element)
{
    const uint64_t bits = number_bits(dtype, element);
    float value32;
    double value64;
    switch (dtype) {
    case TROPE_F32:
        memcpy(&value32, element, sizeof value32);
        return value32;
    case TROPE_F64:
        memcpy(&value64, element, sizeof value64);
        return value64;
    default:
        return decode_16(&formats[dtype], (unsigned)bits);
    }
}

void number_store(int32_t dtype, void *element, double value)
{
    const float value32 = (float)value;
    uint16_t bits;
    switch (dtype) {
    case TROPE_F32:
        memcpy(element, &value32, sizeof value32);
        break;
    case TROPE_F64:
        memcpy(element, &value, sizeof value);
        break;
    default:
        bits = (uint16_t)encode_16(&formats[dtype], number_round(dtype, value));
        memcpy(element, &bits, sizeof bits);
    }
}
