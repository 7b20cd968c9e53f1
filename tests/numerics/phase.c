/* The exact phase: the phase step of a frequency to the last bit, and sine and cosine at positions up to 2^31 - 1. The
 * errors of angles that are computed in fp32 are shown for comparison.
 *
 *     numerics_phase          672 frequencies at 2^16 positions each
 *     numerics_phase --all    also all 2^32 phases, the multiples of 2^-32 turn */
#include <math.h>
#include <string.h>

#include "core/sincos.h"
#include "numerics/exact.h"
#include "numerics/kernels.h"
#include "numerics/scale.h"
#include "numerics/worst.h"
#include "support/check.h"
#include "support/random.h"
#include "trope/trope.h"

#define BOUND         1.2e-7
#define LAST_POSITION 2147483647
#define BLOCK         1024

static void check_step(double inv_freq)
{
    const uint64_t step = trope_phase_step(inv_freq), expected = exact_step(inv_freq);
    CHECK_MESSAGE(step == expected, "the step of %a is %016llx, expected %016llx", inv_freq, (unsigned long long)step,
                  (unsigned long long)expected);
}

/* trope_phase_steps, the public function, computes many steps at once. */
static void check_public_steps(void)
{
    double inv_freq[TROPE_MAX_ROTARY_DIM / 2];
    uint64_t steps[TROPE_MAX_ROTARY_DIM / 2 + 1];
    random_state r = {9};
    for (int32_t pairs = 1; pairs <= TROPE_MAX_ROTARY_DIM / 2; pairs += 73) {
        for (int i = 0; i < pairs; i++)
            inv_freq[i] = ldexp(random_real(&r), (int)random_between(&r, -80, 64));
        steps[pairs] = 77;
        CHECK_MESSAGE(trope_phase_steps(inv_freq, pairs, steps) == TROPE_OK, "%s", trope_last_error());
        for (int i = 0; i < pairs; i++)
            CHECK_MESSAGE(steps[i] == exact_step(inv_freq[i]), "the step of %a is %016llx", inv_freq[i],
                          (unsigned long long)steps[i]);
        CHECK(steps[pairs] == 77);
    }
}

static void check_bits(int first, uint64_t bits, uint64_t expected)
{
    CHECK_MESSAGE(bits == expected, "bits from %d on are %016llx, expected %016llx", first, (unsigned long long)bits,
                  (unsigned long long)expected);
}

/* The bits of 1 / (2 pi), for every start of a 64-bit window. fp32 angles need only a part of this range. */
static void check_turn_bits(void)
{
    exact_product one = exact_turns(1);
    for (int first = -191; first <= 192; first++) {
        uint64_t expected = 0;
        for (int i = 0; i < 64; i++)
            expected = expected << 1 | (uint64_t)exact_bit(&one, -first - i);
        check_bits(first, trope_any_turn_bits(first), expected);
        if (first >= -63 && first <= 128)
            check_bits(first, trope_turn_bits(first), expected);
    }
}

static void check_steps(void)
{
    random_state r = {1};
    for (int i = 0; i < (1 << 20) / NUMERICS_THIN; i++) {
        const double mantissa = 1.0 + fabs(random_real(&r));
        const double x = ldexp(mantissa, (int)random_between(&r, -72, 62));
        check_step(random_bits(&r) & 1 ? x : -x);
    }
    for (int e = -1074; e < 64; e++) {
        check_step(ldexp(1.0, e));
        check_step(-nextafter(ldexp(1.0, e), 0.0));
        check_step(nextafter(ldexp(1.0, e), INFINITY));
    }
    for (int k = 1; k < 4096; k++) /* close to multiples of a full turn */
        check_step(k * 6.28318530717958647693);
    check_step(0.0);
    check_step(-0.0);
    check_step(nextafter(TROPE_MAX_FREQUENCY, 0.0));
    CHECK(trope_phase_step(0x1p-70) == 0 && trope_phase_step(0.0) == 0);
}

typedef struct phase_result {
    worst fixed_point, in_double;
    int64_t angles, different; /* `different` counts angles whose bits differ between the two builds */
} phase_result;

static void add_block(int count, const int64_t *position, double inv_freq, phase_result *result)
{
    static _Thread_local float sine[BLOCK], cosine[BLOCK], second_sine[BLOCK], second_cosine[BLOCK];
    uint32_t phase[BLOCK];
    const uint64_t step = trope_phase_step(inv_freq);
    const numerics_kernels *second = numerics_second_build();

    for (int i = 0; i < count; i++)
        phase[i] = trope_phase(position[i], step);
    numerics_portable.sincos_phase(count, phase, sine, cosine);
    for (int i = 0; i < count; i++) {
        double s, c, double_sine, double_cosine;
        exact_sincos((double)position[i], inv_freq, &s, &c);
        worst_add(&result->fixed_point, fmax(fabs(sine[i] - s), fabs(cosine[i] - c)), (double)position[i]);
        trope_sincos_phase_double((uint64_t)position[i] * step, &double_sine, &double_cosine);
        worst_add(&result->in_double, fmax(fabs(double_sine - s), fabs(double_cosine - c)), (double)position[i]);
    }
    result->angles += count;
    if (!second)
        return;
    second->sincos_phase(count, phase, second_sine, second_cosine);
    for (int i = 0; i < count; i++)
        result->different += memcmp(&sine[i], &second_sine[i], 4) || memcmp(&cosine[i], &second_cosine[i], 4);
}

/* Returns position n of a sweep: first both ends of the range, the neighbours of powers of two, and negative positions.
 * Then one position in four is anywhere in the range. The others are spread evenly over [0, 2^8), [2^8, 2^9), ...,
 * [2^30, 2^31). */
static int64_t choose_position(int n, random_state *r)
{
    if (n < 64)
        return n;
    if (n < 128)
        return LAST_POSITION - (n - 64);
    if (n < 224)
        return ((int64_t)1 << (n - 128) / 3) - 1 + (n - 128) % 3;
    if (n < 256)
        return -1 - n * (int64_t)8388607;
    const int64_t octave = n % 32;
    if (octave < 8)
        return random_between(r, 0, LAST_POSITION);
    return random_between(r, octave == 8 ? 0 : (1ll << octave) / 2, (1ll << octave) - 1);
}

static void sweep_frequency(double inv_freq, phase_result *result)
{
    const int count = (1 << 16) / NUMERICS_THIN;
    random_state r = {trope_phase_step(inv_freq)};
    int64_t position[BLOCK];

    for (int first = 0; first < count; first += BLOCK) {
        for (int i = 0; i < BLOCK; i++)
            position[i] = choose_position(first + i, &r);
        add_block(BLOCK, position, inv_freq, result);
    }
}

static void check_sines(double base, int dim)
{
    phase_result total = {{0, 0}, {0, 0}, 0, 0};
#pragma omp parallel for schedule(dynamic)
    for (int i = 0; i < dim / 2; i++) {
        phase_result mine = {{0, 0}, {0, 0}, 0, 0};
        sweep_frequency(pow(base, -2.0 * i / dim), &mine);
#pragma omp critical
        {
            worst_merge(&total.fixed_point, mine.fixed_point);
            worst_merge(&total.in_double, mine.in_double);
            total.angles += mine.angles;
            total.different += mine.different;
        }
    }
    printf("base %.0f, dim %d: %lld angles, largest error %.3g at position %.0f (%.2g in double)\n", base, dim,
           (long long)total.angles, total.fixed_point.error, total.fixed_point.at, total.in_double.error);
    CHECK(total.fixed_point.error <= BOUND);
    CHECK(total.in_double.error <= 4e-10); /* 2^31 * 2^-65 turns, in radians */
    CHECK_MESSAGE(total.different == 0, "%lld angles differ between builds with and without hardware FMA",
                  (long long)total.different);
}

/* Checks one 256th of all phases. */
static void sweep_phases(uint32_t part, worst *result)
{
    static _Thread_local float sine[BLOCK], cosine[BLOCK];
    uint32_t phase[BLOCK];

    for (uint32_t first = 0; first < 1u << 24; first += BLOCK) {
        for (uint32_t i = 0; i < BLOCK; i++)
            phase[i] = part << 24 | (first + i);
        numerics_portable.sincos_phase(BLOCK, phase, sine, cosine);
        for (int i = 0; i < BLOCK; i++) {
            const double angle = phase[i] * (0x1p-32 * 6.28318530717958647693);
            worst_add(result, fmax(fabs(sine[i] - sin(angle)), fabs(cosine[i] - cos(angle))), phase[i]);
        }
    }
}

static void check_every_phase(void)
{
    worst total = {0, 0};
#pragma omp parallel for schedule(dynamic)
    for (int part = 0; part < 256; part++) {
        worst mine = {0, 0};
        sweep_phases((uint32_t)part, &mine);
#pragma omp critical
        worst_merge(&total, mine);
    }
    printf("every phase: largest error %.3g at %.0f / 2^32 of a turn\n", total.error, total.at);
    CHECK(total.error <= BOUND - 2e-9); /* a phase of 32 bits has an error up to 1.5e-9 radians */
}

/* Compares the largest errors of sine and cosine at 1000 positions up to `last`: by the phase, and by position * inv_freq
 * in fp32. */
static void compare_with_fp32(double base, int dim, int64_t last)
{
    double by_phase = 0.0, by_fp32 = 0.0, fp32_angle = 0.0;
    for (int64_t position = last - 999; position <= last; position++) {
        for (int i = 0; i < dim / 2; i++) {
            const double inv_freq = pow(base, -2.0 * i / dim);
            const float angle = (float)position * (float)inv_freq;
            double s, c;
            float fixed_s, fixed_c;
            exact_sincos((double)position, inv_freq, &s, &c);
            trope_sincos_quarter(trope_reduce_phase(trope_phase(position, trope_phase_step(inv_freq))), &fixed_s, &fixed_c);
            by_phase = fmax(by_phase, fmax(fabs(fixed_s - s), fabs(fixed_c - c)));
            by_fp32 = fmax(by_fp32, fmax(fabs(sin(angle) - s), fabs(cos(angle) - c)));
            fp32_angle = fmax(fp32_angle, fabs((double)angle - (double)position * inv_freq));
        }
    }
    printf("base %.0f, dim %d, positions up to %lld: error with exact phase %.3g, with fp32 angle %.3g (angle error %.3g "
           "rad)\n",
           base, dim, (long long)last, by_phase, by_fp32, fp32_angle);
    CHECK(by_phase <= BOUND);
    CHECK(by_fp32 > 1000 * BOUND); /* so the reference can see the errors of fp32 angles */
}

int main(int argc, char **argv)
{
    const double bases[] = {1e4, 5e5, 1e6};

    check_turn_bits();
    check_steps();
    check_public_steps();
    for (int b = 0; b < 3; b++)
        for (int dim = 64; dim <= 256; dim *= 2)
            check_sines(bases[b], dim);
    for (int b = 0; b < 3; b++) {
        compare_with_fp32(bases[b], 128, 1000000);
        compare_with_fp32(bases[b], 128, LAST_POSITION);
    }
    if (argc > 1 && !strcmp(argv[1], "--all"))
        check_every_phase();
    return check_result();
}
