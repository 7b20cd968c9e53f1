/* The norm of heads, forward and backward, against its formulas in double, which share no code with the library.
 *
 * Forward: rstd bit for bit in f32, from a tree of its own (after the rotation, from what a call without the norm gives); results to
 * within their roundings; the same bits by all instruction sets.
 * Backward in f64: derivatives of L = sum dy y in random directions of x, weight and inv_freq. d_weight does not depend on threads. */
#include <math.h>
#include <stdlib.h>

#include "support/call.h"
#include "support/check.h"
#include "support/number.h"
#include "support/random.h"

enum { BATCH = 2, TOKENS = 5, HEADS = 3, MOST_DIM = 600, ROWS = BATCH * TOKENS * HEADS };

typedef struct shape {
    int head_dim, rotary_dim, offset;
} shape;

static const shape shapes[] = {{128, 128, 0}, {80, 80, 0}, {192, 64, 128}, {64, 32, 0},
                               {300, 40, 7},  {6, 4, 1},   {600, 512, 30}, {5, 2, 2}};

typedef struct norm_case {
    shape s;
    int32_t dtype, pairing, per_head, plus_one, order;
} norm_case;

static random_state numbers;

/* x [batch, tokens, heads, head_dim] as numbers of the dtype, in both forms. */
typedef struct tensor {
    double value[ROWS * MOST_DIM];
    _Alignas(16) char bytes[ROWS * MOST_DIM * 8];
} tensor;

static tensor x, dy, y, dx, weight, rotated;
static double inv_freq[MOST_DIM / 2], rstd[ROWS], d_weight[HEADS * MOST_DIM], d_inv_freq[MOST_DIM / 2];
static char rstd_bytes[ROWS * 8], d_weight_bytes[HEADS * MOST_DIM * 8];
static _Alignas(16) char workspace[1 << 20];

static void draw(tensor *t, int count, int32_t dtype)
{
    for (int i = 0; i < count; i++) {
        number_store(dtype, t->bytes + (size_t)i * number_size(dtype), random_real(&numbers));
        t->value[i] = number_load(dtype, t->bytes + (size_t)i * number_size(dtype));
    }
}

/* ---- the formulas ---- */

/* The sum of squares of a head as the header says, in f32 where the dtype is. */
static double tree_of_squares(const norm_case *c, const double *head)
{
    float single[1024] = {0};
    double real[1024] = {0};
    int count = 1;
    while (count < c->s.head_dim)
        count *= 2;
    for (int i = 0; i < c->s.head_dim; i++) {
        single[i] = (float)head[i] * (float)head[i];
        real[i] = head[i] * head[i];
    }
    for (; count > 1; count /= 2)
        for (int i = 0; i < count / 2; i++) {
            single[i] = single[2 * i] + single[2 * i + 1];
            real[i] = real[2 * i] + real[2 * i + 1];
        }
    return c->dtype == TROPE_F64 ? real[0] : single[0];
}

static double find_rstd(const norm_case *c, const double *head, double eps)
{
    const double sum = tree_of_squares(c, head);
    if (c->dtype == TROPE_F64)
        return 1 / sqrt(sum / c->s.head_dim + eps);
    return 1.0f / sqrtf((float)sum / (float)c->s.head_dim + (float)eps);
}

static double factor_of(const norm_case *c, const double *weights, int head, int element)
{
    return weights[(c->per_head ? head * c->s.head_dim : 0) + element] + c->plus_one;
}

static int first_of(const norm_case *c, int pair)
{
    return c->s.offset + (c->pairing == TROPE_PAIRING_HALF ? pair : 2 * pair);
}

static int second_of(const norm_case *c, int pair)
{
    return c->s.offset + (c->pairing == TROPE_PAIRING_HALF ? pair + c->s.rotary_dim / 2 : 2 * pair + 1);
}

static void normalise_head(const norm_case *c, const double *weights, int number, double *head)
{
    const double r = find_rstd(c, head, 1e-5);
    for (int i = 0; i < c->s.head_dim; i++)
        head[i] *= r * factor_of(c, weights, number, i);
}

static void rotate_head(const norm_case *c, const double *frequencies, int token, double *head)
{
    for (int pair = 0; pair < c->s.rotary_dim / 2; pair++) {
        const double a = token * frequencies[pair], first = head[first_of(c, pair)], second = head[second_of(c, pair)];
        head[first_of(c, pair)] = first * cos(a) - second * sin(a);
        head[second_of(c, pair)] = second * cos(a) + first * sin(a);
    }
}

/* y of a head of a token, which replaces x. */
static void find_y(const norm_case *c, const double *weights, const double *frequencies, int token, int number,
                   double *head)
{
    if (c->order == TROPE_NORM_BEFORE)
        normalise_head(c, weights, number, head);
    rotate_head(c, frequencies, token, head);
    if (c->order == TROPE_NORM_AFTER)
        normalise_head(c, weights, number, head);
}

/* L = sum dy y, with x, the weight and inv_freq moved by `step` in the directions given. */
static double loss(const norm_case *c, double step, const double *of_x, const double *of_weight, const double *of_frequency)
{
    static double weights[HEADS * MOST_DIM], frequencies[MOST_DIM / 2];
    double sum = 0, head[MOST_DIM];
    for (int i = 0; i < HEADS * c->s.head_dim; i++)
        weights[i] = weight.value[i] + step * (of_weight ? of_weight[i] : 0);
    for (int i = 0; i < c->s.rotary_dim / 2; i++)
        frequencies[i] = inv_freq[i] + step * (of_frequency ? of_frequency[i] : 0);
    for (int row = 0; row < ROWS; row++) {
        const double *from = x.value + row * c->s.head_dim;
        for (int i = 0; i < c->s.head_dim; i++)
            head[i] = from[i] + step * (of_x ? of_x[row * c->s.head_dim + i] : 0);
        find_y(c, weights, frequencies, row / HEADS % TOKENS, row % HEADS, head);
        for (int i = 0; i < c->s.head_dim; i++)
            sum += head[i] * dy.value[row * c->s.head_dim + i];
    }
    return sum;
}

/* ---- the calls ---- */

static call call_of(const norm_case *c, trope_norm *norm, const trope_norm *const *norms, const void *src, void *dst)
{
    call made = call_make(c->dtype, BATCH, TOKENS);
    trope_operand *o = call_add(&made, dst, TROPE_BSHD, HEADS, c->s.head_dim, c->s.rotary_dim);
    o->src = src;
    o->rotary_offset = c->s.offset;
    *norm = (trope_norm){.struct_size = sizeof *norm, .weight = weight.bytes, .weight_dtype = c->dtype};
    norm->weight_per_head = c->per_head;
    norm->weight_plus_one = c->plus_one;
    norm->scope = TROPE_NORM_HEAD;
    norm->order = c->order;
    norm->eps = 1e-5;
    made.args.norms = norms;
    made.args.pairing = c->pairing;
    made.args.inv_freq = inv_freq;
    return made;
}

/* What is normalised: x, or what a call without the norm makes of it, which is not rounded in f32 and f64. */
static const double *find_normed(const norm_case *c)
{
    trope_norm norm;
    if (c->order == TROPE_NORM_BEFORE)
        return x.value;
    call made = call_of(c, &norm, NULL, x.bytes, rotated.bytes);
    CHECK_MESSAGE(trope_forward(call_args(&made)) == TROPE_OK, "%s", trope_last_error());
    for (int i = 0; i < ROWS * c->s.head_dim; i++)
        rotated.value[i] = number_load(c->dtype, rotated.bytes + (size_t)i * number_size(c->dtype));
    return rotated.value;
}

static void forward(const norm_case *c)
{
    static char first[sizeof y.bytes];
    const size_t bytes = (size_t)(ROWS * c->s.head_dim) * number_size(c->dtype);
    trope_norm norm;
    const trope_norm *norms[] = {&norm};
    for (int isa = TROPE_ISA_AUTO; isa <= TROPE_ISA_AVX512; isa++) {
        call made = call_of(c, &norm, norms, x.bytes, y.bytes);
        norm.rstd = rstd_bytes;
        norm.rstd_use = TROPE_RSTD_WRITE;
        made.args.isa = isa;
        memset(y.bytes, 0xff, sizeof y.bytes);
        const trope_status status = trope_forward(call_args(&made));
        if (isa && status == TROPE_ERROR_UNSUPPORTED)
            continue;
        CHECK_MESSAGE(status == TROPE_OK, "%s", trope_last_error());
        if (isa == TROPE_ISA_AUTO)
            memcpy(first, y.bytes, bytes);
        CHECK_MESSAGE(!memcmp(first, y.bytes, bytes), "head_dim %d: isa %d gives other bits", c->s.head_dim, isa);
    }
    const double *normed = find_normed(c);
    for (int row = 0; row < ROWS; row++) {
        const double *head = normed + row * c->s.head_dim;
        const int32_t real = c->dtype == TROPE_F64 ? TROPE_F64 : TROPE_F32;
        double expected[MOST_DIM], worst = 0;
        rstd[row] = number_load(real, rstd_bytes + (size_t)row * number_size(real));
        CHECK_MESSAGE(rstd[row] == find_rstd(c, head, 1e-5), "head_dim %d, row %d: rstd is %.9g, not %.9g", c->s.head_dim,
                      row, rstd[row], find_rstd(c, head, 1e-5));
        memcpy(expected, x.value + row * c->s.head_dim, (size_t)c->s.head_dim * sizeof *expected);
        find_y(c, weight.value, inv_freq, row / HEADS % TOKENS, row % HEADS, expected);
        for (int i = 0; i < c->s.head_dim; i++) {
            const double got = number_load(c->dtype, y.bytes + (size_t)(row * c->s.head_dim + i) * number_size(c->dtype));
            const double error = fabs(got - expected[i]) - number_half_ulp(c->dtype, expected[i]);
            worst = error > worst ? error : worst;
        }
        CHECK_MESSAGE(worst < (c->dtype == TROPE_F64 ? 1e-13 : 1e-5),
                      "head_dim %d, pairing %d, order %d, row %d: off by %g", c->s.head_dim, c->pairing, c->order, row,
                      worst);
    }
}

/* The derivative of L in a random direction, by differences and by the gradient. */
static void check_direction(const norm_case *c, const char *what, const double *gradient, int count, int which)
{
    static double direction[ROWS * MOST_DIM];
    const double step = 1e-6;
    double expected = 0, magnitude = 0;
    for (int i = 0; i < count; i++) {
        direction[i] = random_real(&numbers);
        expected += gradient[i] * direction[i];
        magnitude += fabs(gradient[i] * direction[i]);
    }
    const double *of[3] = {which == 0 ? direction : NULL, which == 1 ? direction : NULL, which == 2 ? direction : NULL};
    const double found = (loss(c, step, of[0], of[1], of[2]) - loss(c, -step, of[0], of[1], of[2])) / (2 * step);
    CHECK_MESSAGE(fabs(found - expected) < 1e-7 * (magnitude + 1),
                  "%s, head_dim %d, pairing %d, per_head %d, order %d: %.9g, not %.9g", what, c->s.head_dim, c->pairing,
                  c->per_head, c->order, expected, found);
}

static void backward(const norm_case *c)
{
    static char first[sizeof d_weight_bytes];
    const int weights = (c->per_head ? HEADS : 1) * c->s.head_dim, count = ROWS * c->s.head_dim;
    trope_norm norm;
    const trope_norm *norms[] = {&norm};
    for (int threads = 1; threads < 4; threads += 2) {
        call made = call_of(c, &norm, norms, dy.bytes, dx.bytes);
        made.operands[0].forward_src = x.bytes;
        made.operands[0].forward_src_layout = TROPE_BSHD;
        made.args.d_inv_freq = d_inv_freq;
        made.args.workspace = workspace;
        made.args.workspace_size = sizeof workspace;
        made.args.threads = threads;
        norm.d_weight = d_weight_bytes;
        CHECK_MESSAGE(trope_backward(call_args(&made)) == TROPE_OK, "%s", trope_last_error());
        if (threads == 1)
            memcpy(first, d_weight_bytes, sizeof first);
        CHECK_MESSAGE(!memcmp(first, d_weight_bytes, (size_t)weights * 8), "d_weight depends on threads");
    }
    for (int i = 0; i < count; i++)
        dx.value[i] = number_load(TROPE_F64, dx.bytes + (size_t)i * 8);
    for (int i = 0; i < weights; i++)
        d_weight[i] = number_load(TROPE_F64, d_weight_bytes + (size_t)i * 8);
    for (int i = 0; i < 3; i++) {
        check_direction(c, "dx", dx.value, count, 0);
        check_direction(c, "d_weight", d_weight, weights, 1);
        check_direction(c, "d_inv_freq", d_inv_freq, c->s.rotary_dim / 2, 2);
    }
}

int main(void)
{
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        for (int options = 0; options < 16; options++) {
            norm_case c = {.s = shapes[i], .dtype = options & 4 ? TROPE_F64 : TROPE_F32};
            c.pairing = options & 1 ? TROPE_PAIRING_HALF : TROPE_PAIRING_INTERLEAVED;
            c.per_head = options >> 1 & 1;
            c.plus_one = c.per_head;
            c.order = options & 8 ? TROPE_NORM_AFTER : TROPE_NORM_BEFORE;
            numbers.state = 1000 * i + (uint64_t)options;
            draw(&x, ROWS * c.s.head_dim, c.dtype);
            draw(&dy, ROWS * c.s.head_dim, c.dtype);
            draw(&weight, HEADS * c.s.head_dim, c.dtype);
            for (int pair = 0; pair < c.s.rotary_dim / 2; pair++)
                inv_freq[pair] = fabs(random_real(&numbers));
            forward(&c);
            if (c.dtype == TROPE_F64)
                backward(&c);
        }
    }
    return check_result();
}
