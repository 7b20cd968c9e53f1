/* Compares the conversions of f16 and bf16 with a reference that works on values, not on bits (support/number.h). All
 * 65536 numbers of each format are converted to f32 and back. f32 numbers are converted to both formats, around every
 * representable value and every tie, and over all exponents. */
#include <math.h>

#include "core/rotate.h"
#include "core/scalar.h"
#include "numerics/scale.h"
#include "support/check.h"
#include "support/number.h"
#include "support/random.h"
#include "trope/trope.h"

typedef struct format {
    const char *name;
    int32_t dtype;
    double overflow; /* the lowest magnitude that rounds to infinity */
    float (*to_f32)(uint16_t);
    uint16_t (*from_f32)(float);
    float (*round)(float);
} format;

static const format formats[] = {
    {"f16", TROPE_F16, 65520.0, trope_f16_to_f32, trope_f32_to_f16, trope_round_f16},
    {"bf16", TROPE_BF16, 0x1.ffp127, trope_bf16_to_f32, trope_f32_to_bf16, trope_round_bf16},
};

static double value_of(const format *f, uint16_t bits)
{
    return number_load(f->dtype, &bits);
}

static void check_from_f32(const format *f, float x)
{
    const uint16_t bits = f->from_f32(x);
    if (isnan(x)) {
        CHECK_MESSAGE(bits == 0x7fff, "%s: a NaN becomes %04x, expected 7fff", f->name, bits);
        CHECK_MESSAGE(isnan(f->round(x)), "%s: rounding a NaN gives %a", f->name, f->round(x));
        return;
    }
    const double expected = number_round(f->dtype, x), result = value_of(f, bits);
    const float rounded = f->round(x);
    CHECK_MESSAGE(result == expected && !signbit(result) == !signbit(x), "%s: %a becomes %04x (%a), expected %a", f->name,
                  x, bits, result, expected);
    CHECK_MESSAGE(rounded == expected && !signbit(rounded) == !signbit(x), "%s: %a is rounded to %a, expected %a", f->name,
                  x, rounded, expected);
}

static void check_every_value(const format *f)
{
    for (uint32_t bits = 0; bits < 65536; bits++) {
        const float x = f->to_f32((uint16_t)bits);
        const double expected = value_of(f, (uint16_t)bits);
        if (isnan(expected)) {
            CHECK_MESSAGE(isnan(x), "%s: %04x gives %a, expected a NaN", f->name, bits, x);
            continue;
        }
        CHECK_MESSAGE(x == expected && !signbit(x) == !signbit(expected), "%s: %04x gives %a, expected %a", f->name, bits,
                      x, expected);
        CHECK_MESSAGE(f->from_f32(x) == bits, "%s: %04x is converted to f32 and back to %04x", f->name, bits,
                      f->from_f32(x));
    }
}

/* Checks f32 numbers around each value of the format, and around the tie between it and the next value. */
static void check_ties(const format *f)
{
    for (uint32_t bits = 0; bits < 65536; bits++) {
        const double value = value_of(f, (uint16_t)bits), next = value_of(f, (uint16_t)(bits + 1));
        if (!isfinite(value))
            continue;
        const float tie = isfinite(next) ? (float)((value + next) / 2.0) : (float)copysign(f->overflow, value);
        const float centres[2] = {(float)value, tie};
        for (int c = 0; c < 2; c++)
            for (uint32_t step = 0; step < 7; step++)
                check_from_f32(f, trope_float_from_bits(trope_float_bits(centres[c]) + step - 3));
    }
}

static void check_all_exponents(const format *f)
{
    random_state r = {7};
    for (uint32_t class = 0; class < 512; class ++)
        for (int i = 0; i < (1 << 14) / NUMERICS_THIN; i++)
            check_from_f32(f, trope_float_from_bits(class << 23 | ((uint32_t)random_bits(&r) & 0x7fffffu)));
}

static void check_special_values(const format *f)
{
    const uint32_t special[] = {0,           1,           0x007fffffu, 0x00800000u, 0x7f7fffffu,
                                0x7f800000u, 0x7f800001u, 0x7fc00000u, 0x7fffffffu};
    for (int i = 0; i < (int)(sizeof special / sizeof special[0]); i++) {
        check_from_f32(f, trope_float_from_bits(special[i]));
        check_from_f32(f, trope_float_from_bits(special[i] | 0x80000000u));
    }
}

/* Storing an f32 replaces each NaN by the canonical NaN and changes no other value. */
static void check_canonical(void)
{
    const uint32_t bits[] = {0x7f800001u, 0xff800001u, 0x7fc00000u, 0xffc00000u, 0xffffffffu};
    for (int i = 0; i < (int)(sizeof bits / sizeof bits[0]); i++)
        CHECK(trope_float_bits(trope_canonical(trope_float_from_bits(bits[i]))) == 0x7fffffffu);
    for (uint32_t other = 0; other < 0x7f800000u; other += 99991) {
        CHECK(trope_float_bits(trope_canonical(trope_float_from_bits(other))) == other);
        CHECK(trope_float_bits(trope_canonical(trope_float_from_bits(other | 0x80000000u))) == (other | 0x80000000u));
    }
    CHECK(trope_float_bits(trope_canonical(-INFINITY)) == 0xff800000u);
}

int main(void)
{
    for (int i = 0; i < 2; i++) {
        check_every_value(&formats[i]);
        check_ties(&formats[i]);
        check_all_exponents(&formats[i]);
        check_special_values(&formats[i]);
    }
    check_canonical();
    return check_result();
}
