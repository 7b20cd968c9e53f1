/* Compares trope_sincos with libm's double sine and cosine, whose errors are below 1e-15 for every argument (references.c
 * checks this with MPFR). Also compares builds with and without hardware FMA bit for bit.
 *
 *     numerics_sincos          more than 2^26 angles over all signs and exponents, and special and hard angles
 *     numerics_sincos --all    all 2^32 floats */
#include <math.h>
#include <string.h>

#include "core/sincos.h"
#include "numerics/hard_angles.h"
#include "numerics/kernels.h"
#include "numerics/scale.h"
#include "numerics/worst.h"
#include "support/check.h"
#include "support/random.h"

#define BOUND 1.2e-7
#define BLOCK 4096

typedef struct sweep_result {
    worst sine, cosine;
    int64_t angles, different; /* `different` counts angles whose bits differ between the two builds */
} sweep_result;

static void add_block(int count, const float *angle, sweep_result *result)
{
    static _Thread_local float sine[BLOCK], cosine[BLOCK], second_sine[BLOCK], second_cosine[BLOCK];
    const numerics_kernels *second = numerics_second_build();

    numerics_portable.sincos(count, angle, sine, cosine);
    for (int i = 0; i < count; i++) {
        const double x = angle[i];
        worst_add(&result->sine, fabs(sine[i] - sin(x)), x);
        worst_add(&result->cosine, fabs(cosine[i] - cos(x)), x);
    }
    result->angles += count;
    if (!second)
        return;
    second->sincos(count, angle, second_sine, second_cosine);
    for (int i = 0; i < count; i++)
        result->different += memcmp(&sine[i], &second_sine[i], 4) || memcmp(&cosine[i], &second_cosine[i], 4);
}

static void merge(sweep_result *into, const sweep_result *from)
{
    worst_merge(&into->sine, from->sine);
    worst_merge(&into->cosine, from->cosine);
    into->angles += from->angles;
    into->different += from->different;
}

/* Divides the 2^23 floats of one sign and exponent into runs of `step`, and checks one random float of each run. */
static void sweep_exponent(uint32_t sign_and_exponent, uint32_t step, sweep_result *result)
{
    random_state random = {sign_and_exponent};
    float angle[BLOCK];
    int filled = 0;

    for (uint32_t run = 0; run < 1u << 23; run += step) {
        const uint32_t mantissa = run + (uint32_t)(random_bits(&random) % step);
        if (mantissa >> 23)
            break;
        angle[filled++] = trope_float_from_bits(sign_and_exponent << 23 | mantissa);
        if (filled == BLOCK) {
            add_block(filled, angle, result);
            filled = 0;
        }
    }
    add_block(filled, angle, result);
}

/* total[0] receives the angles of the fast reduction, total[1] the angles of 2^20 and more. */
static void sweep(uint32_t step, sweep_result total[2])
{
#pragma omp parallel for schedule(dynamic)
    for (int class = 0; class < 512; class ++) {
        sweep_result mine = {{0, 0}, {0, 0}, 0, 0};
        const int exponent = class & 0xff;
        if (exponent == 0xff) /* infinities and NaN: check_special_angles */
            continue;
        sweep_exponent((uint32_t) class, step, &mine);
#pragma omp critical
        merge(&total[exponent >= 127 + 20], &mine);
    }
}

static void report(const char *what, const sweep_result *result)
{
    printf("%s: %lld angles, largest error of sin %.3g at %a, of cos %.3g at %a\n", what, (long long)result->angles,
           result->sine.error, result->sine.at, result->cosine.error, result->cosine.at);
    CHECK_MESSAGE(result->sine.error <= BOUND, "%s: error of sin %g at %a", what, result->sine.error, result->sine.at);
    CHECK_MESSAGE(result->cosine.error <= BOUND, "%s: error of cos %g at %a", what, result->cosine.error,
                  result->cosine.at);
    CHECK_MESSAGE(result->different == 0, "%s: %lld angles differ between builds with and without hardware FMA", what,
                  (long long)result->different);
}

static void check_hard_angles(void)
{
    static float angle[HARD_ANGLES_MAX];
    sweep_result result = {{0, 0}, {0, 0}, 0, 0};
    const int count = hard_angles(angle);

    for (int first = 0; first < count; first += BLOCK)
        add_block(count - first < BLOCK ? count - first : BLOCK, angle + first, &result);
    report("near multiples of pi/2", &result);
}

/* Both sides of the boundary between the fast reduction and the reduction of large angles, the largest floats, and the
 * floats around the smallest normal one. */
static void check_boundaries(void)
{
    const uint32_t seams[] = {0x49800000u, 0x7f7fffffu - BLOCK / 2, 0x00800000u};
    sweep_result result = {{0, 0}, {0, 0}, 0, 0};

    for (int s = 0; s < 6; s++) {
        float angle[BLOCK];
        for (uint32_t i = 0; i < BLOCK; i++)
            angle[i] = trope_float_from_bits((seams[s / 2] - BLOCK / 2 + i) | (uint32_t)(s % 2) << 31);
        add_block(BLOCK, angle, &result);
    }
    report("at boundaries", &result);
}

/* The expected hash of a million results. Compilers, machines and devices must agree to the last bit. A deliberate
 * change of the polynomials or the reduction changes this hash, and changes the results of every user. */
#define FINGERPRINT 0xbc9c68fa0f305f89u

static void check_fingerprint(void)
{
    random_state angles = {2026}, hash = {0};
    for (int i = 0; i < 1 << 20; i++) {
        const float x = trope_float_from_bits((uint32_t)random_bits(&angles));
        float s, c;
        if (!isfinite(x))
            continue;
        trope_sincos(x, &s, &c);
        hash.state ^= (uint64_t)trope_float_bits(s) << 32 | trope_float_bits(c);
        hash.state = random_bits(&hash);
    }
    CHECK_MESSAGE(hash.state == FINGERPRINT,
                  "the bits of a million sines and cosines hash to 0x%016llxu, expected 0x%016llxu",
                  (unsigned long long)hash.state, (unsigned long long)FINGERPRINT);
}

static void check_special_angles(void)
{
    const uint32_t not_finite[] = {0x7f800000u, 0xff800000u, 0x7fc00000u, 0xffc00000u,
                                   0x7f800001u, 0x7fffffffu, 0xffffffffu};
    float s, c;

    for (int i = 0; i < 2; i++) {
        trope_sincos(i ? -0.0f : 0.0f, &s, &c);
        CHECK(s == 0.0f && c == 1.0f);
    }
    for (int i = 0; i < (int)(sizeof not_finite / sizeof not_finite[0]); i++) {
        trope_sincos(trope_float_from_bits(not_finite[i]), &s, &c);
        CHECK_MESSAGE(isnan(s) && isnan(c), "the angle with bits %08x gives %g, %g", not_finite[i], s, c);
    }
    for (uint32_t bits = 1; bits < 0x00800000u; bits += 12345) { /* subnormal angles, which fp32 rounds twice */
        const float x = trope_float_from_bits(bits);
        trope_sincos(x, &s, &c);
        CHECK_MESSAGE(fabsf(s - x) <= 0x1p-149f && c == 1.0f, "the subnormal angle %a gives %a, %a", x, s, c);
    }
}

int main(int argc, char **argv)
{
    const int all = argc > 1 && !strcmp(argv[1], "--all");
    sweep_result result[2] = {{{0, 0}, {0, 0}, 0, 0}, {{0, 0}, {0, 0}, 0, 0}};

    sweep(all ? 1 : 62 * NUMERICS_THIN, result);
    report(all ? "every float below 2^20" : "below 2^20", &result[0]);
    report(all ? "every finite float from 2^20 on" : "from 2^20 on", &result[1]);
    if (!numerics_second_build())
        printf("no second build with FMA instructions to compare with\n");
    check_hard_angles();
    check_boundaries();
    check_fingerprint();
    check_special_angles();
    return check_result();
}
