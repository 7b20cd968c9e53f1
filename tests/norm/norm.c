/* Compares the norm of heads and of tokens, forward and backward, with its formulas in double, which share no code with the
 * library.
 *
 * Forward: rstd agrees bit for bit with a tree in this file. (With the norm after the rotation, the tree gets the result
 * of a call without the norm.) y agrees to within its rounding errors, and has the same bits with all instruction sets.
 * Heads that are split over ranks give the same bits as one call. Each rank writes the sums of its heads and reads the
 * sums of all heads. A sum is 0 for padding that is not normalised. A sum over rotated elements is NaN at a poisoned
 * position. A sum is never -0.
 * Backward, in f64: derivatives of L = sum dy y in random directions of x, weight and inv_freq. d_weight does not depend
 * on the number of threads. */
#include <math.h>
#include <stdlib.h>

#include "support/call.h"
#include "support/check.h"
#include "support/number.h"
#include "support/random.h"

enum { BATCH = 2, TOKENS = 5, HEADS = 3, MOST_DIM = 600, ROWS = BATCH * TOKENS * HEADS, PADDED_HEADS = 4 };

typedef struct shape {
    int head_dim, rotary_dim, offset;
} shape;

static const shape shapes[] = {{128, 128, 0}, {80, 80, 0}, {192, 64, 128}, {64, 32, 0},
                               {300, 40, 7},  {6, 4, 1},   {600, 512, 30}, {5, 2, 2}};

typedef struct norm_case {
    shape s;
    int32_t dtype, pairing, per_head, plus_one, order, scope;
} norm_case;

static random_state numbers;

/* A tensor [batch, tokens, heads, head_dim]: its elements in the dtype, and their values as doubles. */
typedef struct tensor {
    double value[ROWS * MOST_DIM];
    _Alignas(16) char bytes[ROWS * MOST_DIM * 8];
} tensor;

static tensor x, dy, y, dx, weight, rotated;
static double inv_freq[MOST_DIM / 2], d_weight[HEADS * MOST_DIM], d_inv_freq[MOST_DIM / 2];
static char rstd_bytes[ROWS * 8], d_weight_bytes[HEADS * MOST_DIM * 8];
static _Alignas(16) char workspace[1 << 20];

static void draw(tensor *t, int count, int32_t dtype)
{
    for (int i = 0; i < count; i++) {
        number_store(dtype, t->bytes + (size_t)i * number_size(dtype), random_real(&numbers));
        t->value[i] = number_load(dtype, t->bytes + (size_t)i * number_size(dtype));
    }
}

/* ---- The formulas ---- */

/* The sum of the squares of a head, by the tree of trope.h. It is in double for f64, otherwise in fp32. */
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

static double add(const norm_case *c, double a, double b)
{
    return c->dtype == TROPE_F64 ? a + b : (float)a + (float)b;
}

/* Returns rstd of a head. `heads` are all heads of its token. */
static double find_rstd(const norm_case *c, const double *heads, int head, double eps)
{
    double of_head[PADDED_HEADS] = {0};
    for (int i = 0; i < HEADS; i++)
        of_head[i] = tree_of_squares(c, heads + i * c->s.head_dim);
    const double of_token = add(c, add(c, of_head[0], of_head[1]), add(c, of_head[2], of_head[3]));
    const int is_token = c->scope == TROPE_NORM_TOKEN, elements = (is_token ? HEADS : 1) * c->s.head_dim;
    const double sum = is_token ? of_token : of_head[head];
    if (c->dtype == TROPE_F64)
        return 1 / sqrt(sum / elements + eps);
    return 1.0f / sqrtf((float)sum / (float)elements + (float)eps);
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

static void normalise(const norm_case *c, const double *weights, double *heads)
{
    double r[HEADS];
    for (int number = 0; number < HEADS; number++)
        r[number] = find_rstd(c, heads, number, 1e-5);
    for (int number = 0; number < HEADS; number++)
        for (int i = 0; i < c->s.head_dim; i++)
            heads[number * c->s.head_dim + i] *= r[number] * factor_of(c, weights, number, i);
}

static void rotate_head(const norm_case *c, const double *frequencies, int token, double *head)
{
    for (int pair = 0; pair < c->s.rotary_dim / 2; pair++) {
        const double a = token * frequencies[pair], first = head[first_of(c, pair)], second = head[second_of(c, pair)];
        head[first_of(c, pair)] = first * cos(a) - second * sin(a);
        head[second_of(c, pair)] = second * cos(a) + first * sin(a);
    }
}

/* Replaces x of the heads of a token by y. */
static void find_y(const norm_case *c, const double *weights, const double *frequencies, int token, double *heads)
{
    if (c->order == TROPE_NORM_BEFORE)
        normalise(c, weights, heads);
    for (int number = 0; number < HEADS; number++)
        rotate_head(c, frequencies, token, heads + number * c->s.head_dim);
    if (c->order == TROPE_NORM_AFTER)
        normalise(c, weights, heads);
}

/* Returns L = sum dy y, with x, the weight and inv_freq moved by `step` times their directions. NULL is no direction. */
static double loss(const norm_case *c, double step, const double *of_x, const double *of_weight, const double *of_frequency)
{
    static double weights[HEADS * MOST_DIM], frequencies[MOST_DIM / 2];
    const int count = HEADS * c->s.head_dim;
    double sum = 0, heads[HEADS * MOST_DIM];
    for (int i = 0; i < count; i++)
        weights[i] = weight.value[i] + step * (of_weight ? of_weight[i] : 0);
    for (int i = 0; i < c->s.rotary_dim / 2; i++)
        frequencies[i] = inv_freq[i] + step * (of_frequency ? of_frequency[i] : 0);
    for (int row = 0; row < BATCH * TOKENS; row++) {
        for (int i = 0; i < count; i++)
            heads[i] = x.value[row * count + i] + step * (of_x ? of_x[row * count + i] : 0);
        find_y(c, weights, frequencies, row % TOKENS, heads);
        for (int i = 0; i < count; i++)
            sum += heads[i] * dy.value[row * count + i];
    }
    return sum;
}

/* ---- The calls ---- */

static call call_of(const norm_case *c, trope_norm *norm, const trope_norm *const *norms, const void *src, void *dst)
{
    call made = call_make(c->dtype, BATCH, TOKENS);
    trope_operand *o = call_add(&made, dst, TROPE_BSHD, HEADS, c->s.head_dim, c->s.rotary_dim);
    o->src = src;
    o->rotary_offset = c->s.offset;
    *norm = (trope_norm){.struct_size = sizeof *norm, .weight = weight.bytes, .weight_dtype = c->dtype};
    norm->weight_per_head = c->per_head;
    norm->weight_plus_one = c->plus_one;
    norm->scope = c->scope;
    norm->order = c->order;
    norm->eps = 1e-5;
    made.args.norms = norms;
    made.args.pairing = c->pairing;
    made.args.inv_freq = inv_freq;
    return made;
}

/* Returns the input of the norm: x, or M x from a call without the norm. In f32 and f64, storing M x does not round it. */
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

/* Checks rstd and y of every token. */
static void check_forward(const norm_case *c, const double *normed)
{
    const int32_t real = c->dtype == TROPE_F64 ? TROPE_F64 : TROPE_F32;
    const int count = HEADS * c->s.head_dim, rstds = c->scope == TROPE_NORM_TOKEN ? 1 : HEADS;
    for (int row = 0; row < BATCH * TOKENS; row++) {
        double expected[HEADS * MOST_DIM], worst = 0;
        for (int i = row * rstds; i < (row + 1) * rstds; i++) {
            const double got = number_load(real, rstd_bytes + (size_t)i * number_size(real));
            const double right = find_rstd(c, normed + row * count, i % rstds, 1e-5);
            CHECK_MESSAGE(got == right, "head_dim %d, scope %d, order %d: rstd[%d] is %.9g, expected %.9g", c->s.head_dim,
                          c->scope, c->order, i, got, right);
        }
        memcpy(expected, x.value + row * count, (size_t)count * sizeof *expected);
        find_y(c, weight.value, inv_freq, row % TOKENS, expected);
        for (int i = 0; i < count; i++) {
            const double got = number_load(c->dtype, y.bytes + (size_t)(row * count + i) * number_size(c->dtype));
            const double error = fabs(got - expected[i]) - number_half_ulp(c->dtype, expected[i]);
            worst = error > worst ? error : worst;
        }
        CHECK_MESSAGE(worst < (c->dtype == TROPE_F64 ? 1e-13 : 1e-5),
                      "head_dim %d, pairing %d, scope %d, order %d, token %d: the error is %g", c->s.head_dim, c->pairing,
                      c->scope, c->order, row, worst);
    }
}

static void test_forward(const norm_case *c)
{
    static char first[sizeof y.bytes];
    const size_t bytes = (size_t)(ROWS * c->s.head_dim) * number_size(c->dtype);
    trope_norm norm;
    const trope_norm *norms[] = {&norm};
    for (int isa = TROPE_ISA_AUTO; isa <= TROPE_ISA_NEON; isa++) {
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
        CHECK_MESSAGE(!memcmp(first, y.bytes, bytes), "head_dim %d: isa %d gives different bits", c->s.head_dim, isa);
    }
    check_forward(c, find_normed(c));
}

/* Compares the derivative of L in a random direction, by differences, with the gradient. */
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
                  "%s, head_dim %d, pairing %d, per_head %d, scope %d, order %d: the gradient gives %.9g, differences %.9g",
                  what, c->s.head_dim, c->pairing, c->per_head, c->scope, c->order, expected, found);
}

static void test_backward(const norm_case *c)
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
        CHECK_MESSAGE(!memcmp(first, d_weight_bytes, (size_t)weights * 8), "d_weight depends on the number of threads");
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

/* ---- Heads on several ranks ---- */

enum { RANKS = 2 };
static const int first_heads[RANKS + 1] = {0, 2, HEADS};
static char sums_bytes[ROWS * 8], rank_rstd_bytes[ROWS * 8], rank_d_weight_bytes[HEADS * MOST_DIM * 8];
static tensor of_ranks;

/* Describes the heads of a rank by strides in the tensor of all heads. */
static void say_heads(const norm_case *c, int rank, const void **base, int32_t *layout, int64_t *stride)
{
    *base = (const char *)*base + (size_t)(first_heads[rank] * c->s.head_dim) * number_size(c->dtype);
    *layout = TROPE_STRIDED;
    stride[TROPE_DIM_BATCH] = TOKENS * HEADS * c->s.head_dim;
    stride[TROPE_DIM_TOKEN] = HEADS * c->s.head_dim;
    stride[TROPE_DIM_HEAD] = c->s.head_dim;
    stride[TROPE_DIM_ELEMENT] = 1;
}

/* Makes the call of a rank from the call of all heads. It writes sums and has no dst, or it reads sums. */
static call call_of_rank(const norm_case *c, const call *whole, trope_norm *norm, int rank, int use)
{
    const size_t real = number_size(c->dtype == TROPE_F64 ? TROPE_F64 : TROPE_F32);
    const int first = first_heads[rank], heads = first_heads[rank + 1] - first;
    call made = *whole;
    trope_operand *o = &made.operands[0];
    const void *dst = of_ranks.bytes;
    o->heads_per_group = heads;
    say_heads(c, rank, &o->src, &o->src_layout, o->src_stride);
    if (o->forward_src)
        say_heads(c, rank, &o->forward_src, &o->forward_src_layout, o->forward_src_stride);
    if (c->per_head)
        norm->weight = (const char *)norm->weight + (size_t)(first * c->s.head_dim) * number_size(c->dtype);
    norm->token_sums_use = use;
    norm->token_sums = sums_bytes;
    if (use == TROPE_SUMS_WRITE) {
        norm->token_sums = sums_bytes + (size_t)(first * BATCH * TOKENS) * real;
        o->dst = NULL;
        o->dst_layout = 0;
        return made;
    }
    say_heads(c, rank, &dst, &o->dst_layout, o->dst_stride);
    o->dst = (void *)(uintptr_t)dst;
    norm->heads_of_all_ranks = HEADS;
    norm->first_head = first;
    return made;
}

/* Packs all tokens into one sequence of UNPADDED tokens with padding behind it. With padding 0 the call stays dense. */
enum { UNPADDED = 7 };
static void pack(call *made, int32_t padding)
{
    static const int32_t boundaries[] = {0, UNPADDED};
    if (!padding)
        return;
    made->args.batch = 1;
    made->args.tokens = BATCH * TOKENS;
    made->args.cu_seqlens = boundaries;
    made->args.cu_seqlens_dtype = TROPE_I32;
    made->args.sequences = 1;
    made->args.padding = padding;
}

/* The sums of all heads are 0 for padding that is not normalised, and for no other token. */
static void check_sums(const norm_case *c, int32_t padding)
{
    const int32_t real = c->dtype == TROPE_F64 ? TROPE_F64 : TROPE_F32;
    for (int i = 0; i < ROWS; i++) {
        const double sum = number_load(real, sums_bytes + (size_t)i * number_size(real));
        const int is_padding = padding && padding != TROPE_PADDING_ROTATE && i % (BATCH * TOKENS) >= UNPADDED;
        CHECK_MESSAGE(is_padding ? sum == 0 : sum != 0 && isfinite(sum), "head %d, token %d: the sum is %g",
                      i / (BATCH * TOKENS), i % (BATCH * TOKENS), sum);
    }
}

/* Runs the calls of all ranks instead of the call of all heads. They write rstd and d_weight to arrays of the ranks. */
static void run_ranks(const norm_case *c, call whole, const trope_norm *norm, int backward)
{
    const size_t real = number_size(c->dtype == TROPE_F64 ? TROPE_F64 : TROPE_F32);
    for (int use = TROPE_SUMS_WRITE; use <= TROPE_SUMS_READ; use++) {
        for (int rank = 0; rank < RANKS; rank++) {
            trope_norm of_rank = *norm;
            const trope_norm *norms[] = {&of_rank};
            call made = call_of_rank(c, &whole, &of_rank, rank, use);
            if (use == TROPE_SUMS_READ && !backward) {
                of_rank.rstd = rank_rstd_bytes;
                of_rank.rstd_use = TROPE_RSTD_WRITE;
            }
            if (use == TROPE_SUMS_READ && backward)
                of_rank.d_weight =
                    rank_d_weight_bytes + (c->per_head ? (size_t)(first_heads[rank] * c->s.head_dim) * real : 0);
            made.args.norms = norms;
            CHECK_MESSAGE((backward ? trope_backward : trope_forward)(call_args(&made)) == TROPE_OK, "%s",
                          trope_last_error());
        }
    }
}

static void test_ranks(const norm_case *c, int32_t padding)
{
    const size_t real = number_size(c->dtype == TROPE_F64 ? TROPE_F64 : TROPE_F32), weights = HEADS * (size_t)c->s.head_dim;
    const size_t bytes = (size_t)(ROWS * c->s.head_dim) * number_size(c->dtype);
    trope_norm norm;
    const trope_norm *norms[] = {&norm};
    call whole = call_of(c, &norm, norms, x.bytes, y.bytes);
    pack(&whole, padding);
    memset(of_ranks.bytes, 0xff, sizeof of_ranks.bytes);
    memset(sums_bytes, 0xff, sizeof sums_bytes);
    run_ranks(c, whole, &norm, 0);
    check_sums(c, padding);
    norm.rstd = rstd_bytes;
    norm.rstd_use = TROPE_RSTD_WRITE;
    CHECK_MESSAGE(trope_forward(call_args(&whole)) == TROPE_OK, "%s", trope_last_error());
    CHECK_MESSAGE(!memcmp(of_ranks.bytes, y.bytes, bytes), "head_dim %d, order %d: ranks give different bits of y",
                  c->s.head_dim, c->order);
    CHECK_MESSAGE(!memcmp(rank_rstd_bytes, rstd_bytes, BATCH * TOKENS * real),
                  "head_dim %d, order %d: ranks give different bits of rstd", c->s.head_dim, c->order);
    whole = call_of(c, &norm, norms, dy.bytes, dx.bytes);
    pack(&whole, padding);
    whole.operands[0].forward_src = x.bytes;
    whole.operands[0].forward_src_layout = TROPE_BSHD;
    whole.args.workspace = workspace;
    whole.args.workspace_size = sizeof workspace;
    norm.rstd = rstd_bytes;
    norm.rstd_use = TROPE_RSTD_READ;
    memset(of_ranks.bytes, 0xff, sizeof of_ranks.bytes);
    memset(sums_bytes, 0xff, sizeof sums_bytes);
    run_ranks(c, whole, &norm, 1);
    check_sums(c, padding);
    norm.d_weight = d_weight_bytes;
    CHECK_MESSAGE(trope_backward(call_args(&whole)) == TROPE_OK, "%s", trope_last_error());
    CHECK_MESSAGE(!memcmp(of_ranks.bytes, dx.bytes, bytes), "head_dim %d, order %d: ranks give different bits of dx",
                  c->s.head_dim, c->order);
    CHECK_MESSAGE(!c->per_head || !memcmp(rank_d_weight_bytes, d_weight_bytes, weights * real),
                  "head_dim %d, order %d: ranks give different bits of d_weight", c->s.head_dim, c->order);
}

/* Sums of calls with a poisoned position in each batch entry. The sum of the squares of x does not depend on positions. */
static void test_poison(const norm_case *c)
{
    enum { POISONED = 2, TABLE_ROWS = 4 };
    static const int32_t ids[TOKENS] = {0, 3, TABLE_ROWS, 1, 2};
    static float freqs[TABLE_ROWS * MOST_DIM / 2];
    const int32_t real = c->dtype == TROPE_F64 ? TROPE_F64 : TROPE_F32;
    trope_norm norm;
    const trope_norm *norms[] = {&norm};
    for (int i = 0; i < TABLE_ROWS * c->s.rotary_dim / 2; i++)
        freqs[i] = (float)random_real(&numbers);
    for (int i = 0; i < BATCH * TOKENS; i++)
        number_store(real, rstd_bytes + (size_t)i * number_size(real), 1);
    int32_t status = 0;
    for (int is_backward = 0; is_backward < 2; is_backward++) {
        call made = call_of(c, &norm, norms, is_backward ? dy.bytes : x.bytes, NULL);
        made.operands[0].dst_layout = 0;
        made.args.inv_freq = NULL;
        call_freqs(&made, freqs, TROPE_COLUMNS_PAIR, TABLE_ROWS);
        made.args.position_ids = ids;
        made.args.position_dtype = TROPE_I32;
        made.args.ids_layout = TROPE_IDS_TOKENS;
        made.args.out_of_range = TROPE_RANGE_POISON;
        made.args.status = &status;
        norm.token_sums = sums_bytes;
        norm.token_sums_use = TROPE_SUMS_WRITE;
        if (is_backward) {
            made.operands[0].forward_src = x.bytes;
            made.operands[0].forward_src_layout = TROPE_BSHD;
            norm.rstd = rstd_bytes;
            norm.rstd_use = TROPE_RSTD_READ;
        }
        memset(sums_bytes, 0, sizeof sums_bytes);
        CHECK_MESSAGE((is_backward ? trope_backward : trope_forward)(call_args(&made)) == TROPE_OK, "%s",
                      trope_last_error());
        for (int i = 0; i < ROWS; i++) {
            const int head = i / (BATCH * TOKENS), row = i % (BATCH * TOKENS);
            const double sum = number_load(real, sums_bytes + (size_t)i * number_size(real));
            const int is_nan = row % TOKENS == POISONED && (is_backward || c->order == TROPE_NORM_AFTER);
            CHECK_MESSAGE(is_nan ? isnan(sum) : sum != 0 && isfinite(sum), "backward %d, order %d, token %d: the sum is %g",
                          is_backward, c->order, row, sum);
            if (!is_backward && c->order == TROPE_NORM_BEFORE)
                CHECK(sum == tree_of_squares(c, x.value + (row * HEADS + head) * c->s.head_dim));
        }
    }
}

/* p of a head whose products are all -0 is +0, with and without padding of the tree. */
static void test_zeros(void)
{
    static const int dims[] = {1, 5, 16, 24, 64, 600};
    static float ones[600], zeros[600], sum;
    static const float rstd = 1;
    for (int i = 0; i < 600; i++) {
        ones[i] = 1;
        zeros[i] = -0.0f;
    }
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        trope_norm norm = {.struct_size = sizeof norm, .scope = TROPE_NORM_TOKEN, .order = TROPE_NORM_BEFORE, .eps = 1e-6};
        norm.rstd = (void *)(uintptr_t)&rstd;
        norm.rstd_use = TROPE_RSTD_READ;
        norm.token_sums = &sum;
        norm.token_sums_use = TROPE_SUMS_WRITE;
        const trope_norm *const norms[] = {&norm};
        call c = call_make(TROPE_F32, 1, 1);
        trope_operand *o = call_add(&c, zeros, TROPE_BSHD, 1, dims[i], TROPE_COPY);
        o->dst = NULL;
        o->dst_layout = 0;
        o->forward_src = ones;
        o->forward_src_layout = TROPE_BSHD;
        c.args.pairing = 0;
        c.args.norms = norms;
        sum = -1;
        CHECK_MESSAGE(trope_backward(call_args(&c)) == TROPE_OK, "%s", trope_last_error());
        CHECK_MESSAGE(sum == 0 && !signbit(sum), "head_dim %d: the sum is %g", dims[i], (double)sum);
    }
}

int main(void)
{
    test_zeros();
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        for (int options = 0; options < 32; options++) {
            norm_case c = {.s = shapes[i], .dtype = options & 4 ? TROPE_F64 : TROPE_F32};
            c.pairing = options & 1 ? TROPE_PAIRING_HALF : TROPE_PAIRING_INTERLEAVED;
            c.per_head = options >> 1 & 1;
            c.plus_one = c.per_head;
            c.order = options & 8 ? TROPE_NORM_AFTER : TROPE_NORM_BEFORE;
            c.scope = options & 16 ? TROPE_NORM_TOKEN : TROPE_NORM_HEAD;
            numbers.state = 1000 * i + (uint64_t)options;
            draw(&x, ROWS * c.s.head_dim, c.dtype);
            draw(&dy, ROWS * c.s.head_dim, c.dtype);
            draw(&weight, HEADS * c.s.head_dim, c.dtype);
            for (int pair = 0; pair < c.s.rotary_dim / 2; pair++)
                inv_freq[pair] = fabs(random_real(&numbers));
            test_forward(&c);
            if (c.scope == TROPE_NORM_TOKEN) {
                test_ranks(&c, (int32_t)((i + (size_t)options) % 4));
                test_poison(&c);
            }
            if (c.dtype == TROPE_F64)
                test_backward(&c);
        }
    }
    return check_result();
}
