/* Megatron-Core's MultimodalRotaryEmbedding makes freqs [s, b, 1, d], in which the sequence is outside and each batch entry
 * has rows of its own; apply_rotary_pos_emb takes them with t [s, b, h, head_dim]. Also where s and b are the same number,
 * so that no shape tells them apart. */
#include <stdio.h>

#include "frameworks/checks.h"

enum { MAX_ROWS = 64, D = 64, HEAD_DIM = 80, HEADS = 3 };

static float freqs[MAX_ROWS][D];      /* [s, b, 1, d] */
static double angle[MAX_ROWS][D];     /* [b, s, d], by halves */
static float cos_sin[2][MAX_ROWS][D]; /* the same, as the framework takes them of freqs */
static float table[2][MAX_ROWS][D];   /* [s, b, 1, d] again, for a call that is given cos and sin */

/* The column of an element by halves. */
static int column_of(const rotation *r, int e)
{
    return r->pairing == TROPE_PAIRING_HALF ? e : 2 * (e % (D / 2)) + e / (D / 2);
}

static void make_angles(const shape *s, const rotation *r, random_state *random)
{
    for (int64_t row = 0; row < s->tokens * s->batch; row++)
        for (int e = 0; e < D; e++) {
            freqs[row][e] = (float)(50.0 * random_real(random));
            table[0][row][e] = cosf(freqs[row][e]);
            table[1][row][e] = sinf(freqs[row][e]);
        }
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t t = 0; t < s->tokens; t++)
            for (int e = 0; e < D; e++) {
                const int64_t from = t * s->batch + b, to = b * s->tokens + t;
                angle[to][e] = freqs[from][column_of(r, e)];
                cos_sin[0][to][e] = table[0][from][column_of(r, e)];
                cos_sin[1][to][e] = table[1][from][column_of(r, e)];
            }
}

/* The layout [s, b, 1, d]: no axes, and the strides of batch, row and column. */
static void set_layout(call *c, const shape *s, const rotation *r)
{
    const int64_t stride[4] = {0, D, s->batch * D, 1};
    c->args.angle_columns = r->pairing == TROPE_PAIRING_HALF ? TROPE_COLUMNS_HALF : TROPE_COLUMNS_INTERLEAVED;
    c->args.angle_layout = TROPE_TABLE_STRIDED;
    memcpy(c->args.angle_stride, stride, sizeof stride);
}

/* The gradient of the angles in the same layout, against the sums in double. */
static void check_gradient(const char *what, call c, const shape *s, const rotation *r, random_state *random)
{
    static float gradient[MAX_ROWS][D];
    static double expected[MAX_ROWS][D];
    float x[EAGER_MAX_WIDTH], dy[EAGER_MAX_WIDTH];
    float *forward_x = random_tensor(random, TROPE_F32, shape_count(s)), *upstream;
    upstream = random_tensor(random, TROPE_F32, shape_count(s));
    memset(expected, 0, sizeof expected);
    for (int64_t row = 0; row < s->tokens * s->batch; row++)
        for (int h = 0; h < s->heads; h++) {
            load_elements(TROPE_F32, forward_x, (row * s->heads + h) * s->head_dim, D, x);
            load_elements(TROPE_F32, upstream, (row * s->heads + h) * s->head_dim, D, dy);
            for (int i = 0; i < D / 2; i++) {
                const int first = column_of(r, i), second = column_of(r, i + D / 2);
                const double a1 = freqs[row][first], a2 = freqs[row][second], x1 = x[first], x2 = x[second];
                expected[row][first] += dy[first] * (-x1 * sin(a1) - x2 * cos(a1));
                expected[row][second] += dy[second] * (x1 * cos(a2) - x2 * sin(a2));
            }
        }
    trope_operand *o = call_add(&c, upstream, s->layout, s->heads, s->head_dim, D);
    o->dst = NULL;
    o->dst_layout = 0;
    o->forward_src = forward_x;
    o->forward_src_layout = s->layout;
    c.args.pairing = r->pairing;
    c.args.d_freqs = gradient;
    c.args.d_freqs_layout = TROPE_TABLE_STRIDED;
    memcpy(c.args.d_freqs_stride, c.args.angle_stride, sizeof c.args.angle_stride);
    CHECK_MESSAGE(trope_workspace_size(call_args(&c), &c.args.workspace_size) == TROPE_OK, "%s: %s", what,
                  trope_last_error());
    void *workspace = aligned_alloc(64, (size_t)(c.args.workspace_size + 63) / 64 * 64);
    c.args.workspace = workspace;
    check_call(what, call_args(&c), 1);
    check_near(what, gradient, expected[0], 3e-6, s->tokens * s->batch * D);
    free(workspace);
    free(forward_x);
    free(upstream);
}

static void check_sizes(int64_t tokens, int64_t batch, int32_t pairing, random_state *random)
{
    const shape s = {TROPE_SBHD, batch, tokens, HEADS, HEAD_DIM};
    const rotation r = {TROPE_F32, TROPE_ROUND_ONCE, pairing, pairing, D};
    char what[96];
    snprintf(what, sizeof what, "s %d, b %d, pairing %d", (int)tokens, (int)batch, (int)pairing);
    make_angles(&s, &r, random);

    call c = call_make(TROPE_F32, batch, tokens);
    call_freqs(&c, freqs, TROPE_COLUMNS_HALF, tokens);
    set_layout(&c, &s, &r);
    check_exact(what, &c, &s, &r, angle[0], random);
    check_gradient(what, c, &s, &r, random);

    /* t * cos + rotate_half(t) * sin in the dtype of t */
    const rotation native = {TROPE_BF16, TROPE_ROUND_NATIVE, pairing, pairing, D};
    call_tables(&c, table[0], table[1], TROPE_F32, TROPE_COLUMNS_HALF, tokens);
    set_layout(&c, &s, &r);
    check_eager(what, &c, &s, &native, &(coefficients){cos_sin[0][0], cos_sin[1][0]}, random);
}

int main(void)
{
    random_state random = {3};
    const int32_t pairings[] = {TROPE_PAIRING_HALF, TROPE_PAIRING_INTERLEAVED};
    for (int i = 0; i < 2; i++) {
        check_sizes(7, 3, pairings[i], &random);
        check_sizes(3, 7, pairings[i], &random);
        check_sizes(5, 5, pairings[i], &random);
        check_sizes(9, 1, pairings[i], &random);
    }
    return check_result();
}
