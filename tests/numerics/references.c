/* Checks the references of the other numerics tests with MPFR: libm's double sine and cosine of floats, the phase step of a
 * frequency, and sine and cosine of position * inv_freq. */
#include <stdint.h> /* before mpfr.h, for mpfr_get_uj */

#define MPFR_USE_INTMAX_T
#include <mpfr.h>

#include "core/scalar.h"
#include "numerics/exact.h"
#include "numerics/hard_angles.h"
#include "numerics/scale.h"
#include "numerics/worst.h"
#include "support/check.h"
#include "support/random.h"

#define PRECISION 400

static mpfr_t angle, result, two_pi;

/* Returns the larger error of s and c, taken as sine and cosine of `angle`. */
static double error_of(double s, double c)
{
    mpfr_sin(result, angle, MPFR_RNDN);
    mpfr_sub_d(result, result, s, MPFR_RNDN);
    const double sine_error = fabs(mpfr_get_d(result, MPFR_RNDN));
    mpfr_cos(result, angle, MPFR_RNDN);
    mpfr_sub_d(result, result, c, MPFR_RNDN);
    return fmax(sine_error, fabs(mpfr_get_d(result, MPFR_RNDN)));
}

static void check_libm(void)
{
    static float hard[HARD_ANGLES_MAX];
    const int count = hard_angles(hard);
    random_state r = {3};
    worst at_hard = {0, 0}, at_random = {0, 0};
    double nearest = 1.0;

    for (int i = 0; i < count; i += NUMERICS_THIN) {
        const double s = sin(hard[i]), c = cos(hard[i]);
        mpfr_set_flt(angle, hard[i], MPFR_RNDN);
        worst_add(&at_hard, error_of(s, c), hard[i]);
        if (fabsf(hard[i]) > 1.0f)
            nearest = fmin(nearest, fmin(fabs(s), fabs(c)));
    }
    for (int i = 0; i < 200000 / NUMERICS_THIN; i++) {
        const float x = trope_float_from_bits((uint32_t)random_bits(&r));
        if (!isfinite(x))
            continue;
        mpfr_set_flt(angle, x, MPFR_RNDN);
        worst_add(&at_random, error_of(sin(x), cos(x)), x);
    }
    printf("libm: largest error %.2g at %d hard angles (at least %.3g from a multiple of pi/2), %.2g at random angles\n",
           at_hard.error, count, nearest, at_random.error);
    CHECK(at_hard.error < 1e-15);
    CHECK(at_random.error < 1e-15);
    CHECK(nearest < 2e-9 || NUMERICS_THIN > 1); /* the hardest float, 16367173 * 2^72, was among them */
}

static uint64_t mpfr_step(double inv_freq)
{
    mpfr_t step, turn;
    mpfr_init2(step, PRECISION);
    mpfr_init2(turn, PRECISION);
    mpfr_set_d(step, inv_freq, MPFR_RNDN);
    mpfr_div(step, step, two_pi, MPFR_RNDN);
    mpfr_mul_2si(step, step, 64, MPFR_RNDN);
    mpfr_round(step, step);
    mpfr_set_ui_2exp(turn, 1, 64, MPFR_RNDN);
    mpfr_fmod(step, step, turn, MPFR_RNDN);
    mpfr_abs(step, step, MPFR_RNDN);
    const uint64_t low = (uint64_t)mpfr_get_uj(step, MPFR_RNDN);
    mpfr_clear(step);
    mpfr_clear(turn);
    return inv_freq < 0 ? 0 - low : low;
}

static void check_exact_step(void)
{
    random_state r = {5};
    for (int i = 0; i < 100000 / NUMERICS_THIN; i++) {
        const double x = ldexp(1.0 + fabs(random_real(&r)), (int)random_between(&r, -140, 62)) * (i % 2 ? 1 : -1);
        CHECK_MESSAGE(exact_step(x) == mpfr_step(x), "the step of %a is %016llx, MPFR gives %016llx", x,
                      (unsigned long long)exact_step(x), (unsigned long long)mpfr_step(x));
    }
}

static void check_exact_sincos(void)
{
    random_state r = {9};
    worst w = {0, 0};
    for (int i = 0; i < 100000 / NUMERICS_THIN; i++) {
        const double position = (double)random_between(&r, 0, 2147483647);
        const double inv_freq = pow(1e6, -0.5 * (1.0 + random_real(&r)));
        double s, c;
        exact_sincos(position, inv_freq, &s, &c);
        mpfr_set_d(angle, position, MPFR_RNDN);
        mpfr_mul_d(angle, angle, inv_freq, MPFR_RNDN);
        worst_add(&w, error_of(s, c), position);
    }
    printf("sine and cosine of an exact product: largest error %.2g\n", w.error);
    CHECK(w.error < 1e-13);
}

int main(void)
{
    mpfr_init2(angle, PRECISION);
    mpfr_init2(result, PRECISION);
    mpfr_init2(two_pi, PRECISION);
    mpfr_const_pi(two_pi, MPFR_RNDN);
    mpfr_mul_2ui(two_pi, two_pi, 1, MPFR_RNDN);
    check_libm();
    check_exact_step();
    check_exact_sincos();
    mpfr_clears(angle, result, two_pi, (mpfr_ptr)0);
    mpfr_free_cache();
    return check_result();
}
