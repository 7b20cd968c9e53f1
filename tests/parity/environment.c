/* The bits of a result do not depend on the caller's floating-point environment: subnormals are neither flushed nor taken as
 * zero and rounding is to nearest, whatever a framework has set; and the library leaves the caller's setting as it was. */
#include <fenv.h>
#include <string.h>

#include "support/call.h"
#include "support/check.h"
#include "support/random.h"
#include "trope/trope.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#define FLUSH_SUBNORMALS 0x8040u /* flush to zero, subnormals are zero */
#endif

enum { TOKENS = 64, DIM = 48, ELEMENTS = TOKENS * DIM };

static float source[ELEMENTS], expected[ELEMENTS], result[ELEMENTS];

static trope_status rotate(float *to)
{
    static double inv_freq[DIM / 2];
    for (int i = 0; i < DIM / 2; i++)
        inv_freq[i] = 1.0 / (i + 1);
    call c = call_make(TROPE_F32, 1, TOKENS);
    call_add(&c, source, TROPE_BSHD, 1, DIM, DIM)->dst = to;
    c.args.inv_freq = inv_freq;
    return trope_forward(call_args(&c));
}

static void check_same(const char *what)
{
    memset(result, 0xff, sizeof result);
    const trope_status status = rotate(result);
    CHECK_MESSAGE(status == TROPE_OK, "%s: %s", what, trope_last_error());
    CHECK_MESSAGE(!memcmp(result, expected, sizeof result), "%s: the bits differ", what);
}

int main(void)
{
    random_state random = {20};
    for (int i = 0; i < ELEMENTS; i++) /* some normal, most subnormal */
        source[i] = (float)(random_real(&random) * (i % 5 ? 0x1p-130 : 1));
    CHECK(rotate(expected) == TROPE_OK);
    CHECK(!fesetround(FE_UPWARD));
    check_same("rounding upwards");
    CHECK(fegetround() == FE_UPWARD);
    CHECK(!fesetround(FE_TONEAREST));
#ifdef FLUSH_SUBNORMALS
    const unsigned saved = _mm_getcsr();
    _mm_setcsr(saved | FLUSH_SUBNORMALS);
    check_same("flushing subnormals");
    CHECK((_mm_getcsr() & FLUSH_SUBNORMALS) == FLUSH_SUBNORMALS);
    _mm_setcsr(saved);
#endif
    return check_result();
}
