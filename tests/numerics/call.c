/* The numerical results of whole calls, through the public API and with every instruction set of this CPU: the error
 * bound for angles of any size and positions up to 2^31 - 1, and NaN. (gradcheck_random checks the order of operations
 * to the last bit, in each rounding mode, with tables of cos and sin.) */
#include <math.h>
#include <string.h>

#include "numerics/exact.h"
#include "support/call.h"
#include "support/check.h"
#include "support/number.h"
#include "support/random.h"

#define TOKENS       512
#define PAIRS        32
#define DIM          (2 * PAIRS)
#define HEAD         (DIM + 3) /* three elements pass through */
#define SINCOS_BOUND 1.2e-7

/* A call with one operand, and all memory that it may use. x and y have the dtype of the call. x_value is x as doubles. */
typedef struct problem {
    call c;
    double x_value[TOKENS][HEAD];
    double x[TOKENS * HEAD], y[TOKENS * HEAD]; /* room for any dtype */
    double inv_freq[PAIRS];
    int64_t position[TOKENS];
    float freqs[TOKENS][PAIRS];
} problem;

static problem p; /* a megabyte, too large for the stack */

static const int32_t isas[] = {TROPE_ISA_PORTABLE, TROPE_ISA_AVX2, TROPE_ISA_AVX512, TROPE_ISA_NEON};
static const int32_t dtypes[] = {TROPE_F32, TROPE_F16, TROPE_BF16, TROPE_F64};

static void start_problem(int32_t dtype, random_state *r)
{
    memset(&p, 0, sizeof p);
    for (int n = 0; n < TOKENS * HEAD; n++) {
        void *element = (char *)p.x + (size_t)n * number_size(dtype);
        number_store(dtype, element, random_real(r) * 4.0);
        p.x_value[n / HEAD][n % HEAD] = number_load(dtype, element);
    }
    p.c = call_make(dtype, 1, TOKENS);
    call_add(&p.c, p.y, TROPE_SBHD, 1, HEAD, DIM)->src = p.x;
}

/* Runs the call with one instruction set. Returns 0 if this machine lacks it. */
static int run(int32_t isa)
{
    p.c.args.isa = isa;
    memset(p.y, 0xff, sizeof p.y);
    const trope_status status = trope_forward(call_args(&p.c));
    if (status == TROPE_ERROR_UNSUPPORTED && isa != TROPE_ISA_PORTABLE)
        return 0;
    return CHECK_MESSAGE(status == TROPE_OK, "%s", trope_last_error());
}

static const void *result_at(int token, int element)
{
    return (const char *)p.y + (size_t)(token * HEAD + element) * number_size(p.c.args.dtype);
}

/* Compares y with the exact rotation. y may have the error of one rounding to the dtype, of sine and cosine, and of two
 * operations. */
static double check_pair(int token, int pair, double s, double c)
{
    const int32_t dtype = p.c.args.dtype;
    const double x1 = p.x_value[token][pair], x2 = p.x_value[token][pair + PAIRS];
    const double exact[2] = {x1 * c - x2 * s, x2 * c + x1 * s};
    const double allowed = (fabs(x1) + fabs(x2)) * (dtype == TROPE_F64 ? 4e-10 : SINCOS_BOUND + 0x1p-23);
    double worst = 0.0;

    for (int half = 0; half < 2; half++) {
        const double y = number_load(dtype, result_at(token, pair + half * PAIRS));
        const double error = fabs(y - exact[half]);
        CHECK_MESSAGE(error <= allowed + number_half_ulp(dtype, exact[half]), "%s: token %d, pair %d is %a, expected %a",
                      number_name(dtype), token, pair, y, exact[half]);
        worst = fmax(worst, error);
    }
    return worst;
}

/* inv_freq at both ends of the range of positions and at random positions between them. */
static void check_positions(int32_t dtype)
{
    random_state r = {17};
    double worst = 0.0;

    start_problem(dtype, &r);
    for (int i = 0; i < PAIRS; i++)
        p.inv_freq[i] = pow(500000.0, -2.0 * i / DIM);
    for (int t = 0; t < TOKENS; t++)
        p.position[t] = t < 128 ? t : t < 256 ? 2147483647 - (t - 128) : random_between(&r, 0, 2147483647);
    p.c.args.inv_freq = p.inv_freq;
    p.c.args.position_ids = p.position;
    p.c.args.position_dtype = TROPE_I64;
    p.c.args.ids_layout = TROPE_IDS_TOKENS;
    for (int k = 0; k < 4; k++) {
        if (!run(isas[k]))
            continue;
        for (int t = 0; t < TOKENS; t++) {
            for (int i = 0; i < PAIRS; i++) {
                double s, c;
                exact_sincos((double)p.position[t], p.inv_freq[i], &s, &c);
                worst = fmax(worst, check_pair(t, i, s, c));
            }
        }
    }
    printf("%s, positions up to 2^31 - 1: largest error %.3g\n", number_name(dtype), worst);
}

/* Frequencies that differ from the previous call only in the last pair, and frequencies after a call with fewer pairs. */
static void check_changed_frequencies(void)
{
    random_state r = {29};
    start_problem(TROPE_F32, &r);
    for (int i = 0; i < PAIRS; i++)
        p.inv_freq[i] = pow(10000.0, -2.0 * i / DIM);
    p.c.args.inv_freq = p.inv_freq;
    for (int change = 0; change < 4; change++) {
        if (change == 1)
            p.inv_freq[PAIRS - 1] *= 3.0;
        if (change > 1)
            p.c.operands[0].rotary_dim = change == 2 ? DIM / 2 : DIM;
        if (!run(TROPE_ISA_PORTABLE))
            return;
        for (int pair = 0; pair < PAIRS && change != 2; pair++) {
            double s, c;
            exact_sincos(TOKENS - 1.0, p.inv_freq[pair], &s, &c);
            check_pair(TOKENS - 1, pair, s, c);
        }
    }
}

/* Fills freqs with random bits, so that all exponents of a float occur. */
static void fill_angles(random_state *r)
{
    for (int n = 0; n < TOKENS * PAIRS; n++) {
        const uint32_t bits = (uint32_t)random_bits(r);
        float *angle = &p.freqs[n / PAIRS][n % PAIRS];
        memcpy(angle, &bits, sizeof bits);
        if (!isfinite(*angle))
            *angle = 0.0f;
    }
}

static void check_angles(int32_t dtype)
{
    random_state r = {19};
    start_problem(dtype, &r);
    fill_angles(&r);
    call_freqs(&p.c, p.freqs, TROPE_COLUMNS_PAIR, TOKENS);
    for (int k = 0; k < 4; k++) {
        if (!run(isas[k]))
            continue;
        for (int t = 0; t < TOKENS; t++)
            for (int i = 0; i < PAIRS; i++)
                check_pair(t, i, sin(p.freqs[t][i]), cos(p.freqs[t][i]));
    }
}

/* Infinities and NaNs in x and in the angles. A computed NaN has the canonical bits. Elements that pass through keep
 * theirs. */
static void check_nan(int32_t dtype, int32_t rounding)
{
    const uint64_t canonical = dtype == TROPE_F32 ? 0x7fffffffu : 0x7fffu;
    const uint32_t specials[] = {0x7f800000u, 0xff800000u, 0xffc00000u, 0x7f800001u, 0x7fc12345u, 0xffffffffu};
    const uint32_t payloads[] = {0xffc10000u, 0x7f810000u, 0xff800000u, 0x7fff0000u};
    random_state r = {31};
    long found = 0;

    start_problem(dtype, &r);
    p.c.args.rounding = rounding;
    for (int n = 0; n < TOKENS * HEAD; n++) {
        const uint32_t bits = payloads[n % 4];
        if (n % 5 == 0 || n % HEAD >= DIM) /* the upper bytes are a NaN or an infinity in f16 and bf16, too */
            memcpy((char *)p.x + (size_t)n * number_size(dtype), (const char *)&bits + 4 - number_size(dtype),
                   number_size(dtype));
    }
    for (int n = 0; n < TOKENS * PAIRS; n++)
        memcpy(&p.freqs[n / PAIRS][n % PAIRS], &specials[n % 6], n % 7 ? 0 : sizeof specials[0]);
    call_freqs(&p.c, p.freqs, TROPE_COLUMNS_PAIR, TOKENS);
    for (int n = 0; n < 4 * TOKENS * HEAD; n++) {
        const int k = n / (TOKENS * HEAD), t = n / HEAD % TOKENS, e = n % HEAD;
        if (n % (TOKENS * HEAD) == 0 && !run(isas[k])) {
            n += TOKENS * HEAD - 1;
            continue;
        }
        const uint64_t bits = number_bits(dtype, result_at(t, e));
        const char *source = (const char *)p.x + (size_t)(t * HEAD + e) * number_size(dtype);
        if (e >= DIM)
            CHECK(bits == number_bits(dtype, source));
        else if (isnan(number_load(dtype, result_at(t, e))) && ++found)
            CHECK_MESSAGE(bits == canonical, "%s, isa %d: token %d, element %d is a NaN with bits %llx", number_name(dtype),
                          (int)p.c.args.isa, t, e, (unsigned long long)bits);
    }
    CHECK(found > 1000);
}

int main(void)
{
    for (int d = 0; d < 4; d++) {
        check_positions(dtypes[d]);
        check_angles(dtypes[d]);
    }
    for (int d = 0; d < 3; d++)
        for (int32_t rounding = TROPE_ROUND_ONCE; rounding <= TROPE_ROUND_NATIVE_F32; rounding++)
            check_nan(dtypes[d], rounding);
    check_changed_frequencies();
    return check_result();
}
