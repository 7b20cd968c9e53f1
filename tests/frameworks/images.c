/* Several images and videos of (t, h, w) patches packed in one stream: each patch has ids of its own, cu_seqlens says where
 * an image ends. With three axes as in Qwen2-VL's language model, stored with padding between the images; with two as in its
 * vision tower, in the order of 2 x 2 patches that are merged later, a sequence for each frame. Packed or one by one, the
 * bits are the same. */
#include <stdio.h>

#include "frameworks/checks.h"

enum { IMAGES = 3, FRAMES = 6, MAX_TOKENS = 128, HEADS = 3, D = 64, PAIRS = D / 2 };

typedef struct grid {
    int t, h, w;
} grid;

static const grid grids[IMAGES] = {{1, 4, 6}, {4, 2, 4}, {1, 6, 4}};

/* A packed stream: where its sequences lie, and the ids of its tokens, [axes, tokens]. */
typedef struct stream {
    int32_t axes, sequences, tokens;
    int32_t cu_seqlens[FRAMES + 1], cu_seqlens_padded[FRAMES + 1];
    int64_t ids[3][MAX_TOKENS];
} stream;

/* Ends a sequence of so many tokens, which is stored with `padding` further ones. */
static void end_sequence(stream *s, int length, int padding)
{
    const int n = s->sequences++;
    s->cu_seqlens[n + 1] = s->cu_seqlens[n] + length;
    s->cu_seqlens_padded[n + 1] = s->cu_seqlens_padded[n] + length + padding;
    s->tokens = s->cu_seqlens_padded[n + 1];
}

/* An image after the other, row by row; the padding has ids that a real token has too. */
static void make_language_stream(stream *s)
{
    memset(s, 0, sizeof *s);
    s->axes = 3;
    for (int i = 0; i < IMAGES; i++) {
        const grid g = grids[i];
        for (int n = 0; n < g.t * g.h * g.w + i; n++) {
            s->ids[0][s->tokens + n] = 7 * i + n / (g.h * g.w);
            s->ids[1][s->tokens + n] = 7 * i + n / g.w % g.h;
            s->ids[2][s->tokens + n] = 7 * i + n % g.w;
        }
        end_sequence(s, g.t * g.h * g.w, i);
    }
}

/* A frame after the other, in blocks of 2 x 2. */
static void make_vision_stream(stream *s)
{
    memset(s, 0, sizeof *s);
    s->axes = 2;
    for (int i = 0; i < IMAGES; i++)
        for (int frame = 0; frame < grids[i].t; frame++) {
            int n = s->tokens;
            for (int block = 0; block < grids[i].h * grids[i].w / 4; block++)
                for (int in_block = 0; in_block < 4; in_block++, n++) {
                    s->ids[0][n] = block / (grids[i].w / 2) * 2 + in_block / 2;
                    s->ids[1][n] = block % (grids[i].w / 2) * 2 + in_block % 2;
                }
            end_sequence(s, n - s->tokens, 0);
        }
}

/* ids [first, first + tokens) of the stream, whose axes are MAX_TOKENS apart. */
static call make_call(const stream *s, int64_t first, int64_t tokens, const double *inv_freq, const uint8_t *pair_axis)
{
    call c = call_make(TROPE_F32, 1, tokens);
    c.args.inv_freq = inv_freq;
    c.args.pair_axis = pair_axis;
    c.args.position_ids = s->ids[0] + first;
    c.args.position_dtype = TROPE_I64;
    c.args.position_axes = s->axes;
    c.args.ids_layout = TROPE_IDS_STRIDED;
    c.args.ids_stride[0] = MAX_TOKENS;
    c.args.ids_stride[2] = 1;
    return c;
}

static void *run(call c, const void *x, int64_t tokens, int backward)
{
    const int64_t row = HEADS * D;
    void *y = zero_tensor(TROPE_F32, tokens * row);
    trope_operand *o = call_add(&c, y, TROPE_THD, HEADS, D, D);
    o->src = x;
    check_call("images", call_args(&c), backward);
    return y;
}

static void check_stream(const stream *s, const double *inv_freq, const uint8_t *pair_axis, random_state *random)
{
    static double angle[MAX_TOKENS][D];
    const int64_t row = HEADS * D;
    const int padded = s->cu_seqlens_padded[s->sequences] != s->cu_seqlens[s->sequences];
    const shape all = {TROPE_THD, 1, s->tokens, HEADS, D};
    const rotation r = {TROPE_F32, TROPE_ROUND_ONCE, TROPE_PAIRING_HALF, TROPE_PAIRING_HALF, D};
    for (int n = 0; n < s->tokens; n++)
        for (int e = 0; e < D; e++)
            angle[n][e] = (double)s->ids[pair_axis[e % PAIRS]][n] * inv_freq[e % PAIRS];

    call packed = make_call(s, 0, s->tokens, inv_freq, pair_axis);
    call_cu_seqlens(&packed, s->cu_seqlens, TROPE_I32, s->sequences);
    if (padded) {
        packed.args.cu_seqlens_padded = s->cu_seqlens_padded;
        packed.args.padding = TROPE_PADDING_ZERO;
    } else {
        check_exact("images", &packed, &all, &r, angle[0], random);
    }

    for (int backward = 0; backward < 2; backward++) {
        float *x = random_tensor(random, TROPE_F32, s->tokens * row), *zeros = zero_tensor(TROPE_F32, s->tokens * row);
        float *y = run(packed, x, s->tokens, backward);
        double *expected = zero_tensor(TROPE_F64, s->tokens * row);
        exact_apply(&r, &all, angle[0], backward, x, expected);
        for (int i = 0; i < s->sequences; i++) {
            const int64_t first = s->cu_seqlens_padded[i], length = s->cu_seqlens[i + 1] - s->cu_seqlens[i];
            const int64_t end = first + length, padding = s->cu_seqlens_padded[i + 1] - end;
            const call alone = make_call(s, first, length, inv_freq, pair_axis);
            float *one = run(alone, x + first * row, length, backward);
            check_bits("an image by itself", TROPE_F32, y + first * row, one, length * row);
            check_near("an image", y + first * row, expected + first * row, 1.2e-6, length * row);
            if (padding)
                check_bits("padding", TROPE_F32, y + end * row, zeros, padding * row);
            free(one);
        }
        free(x);
        free(y);
        free(zeros);
        free(expected);
    }
}

int main(void)
{
    static stream s;
    random_state random = {6};
    double inv_freq[PAIRS];
    uint8_t pair_axis[PAIRS];

    for (int i = 0; i < PAIRS; i++)
        inv_freq[i] = pow(1000000.0, -1.0 * i / PAIRS);
    CHECK(trope_fill_pair_axis(pair_axis, PAIRS, TROPE_AXES_SECTIONS, (const int32_t[4]){8, 12, 12, 0}) == TROPE_OK);
    make_language_stream(&s);
    check_stream(&s, inv_freq, pair_axis, &random);

    for (int i = 0; i < PAIRS; i++) /* each axis has the frequencies of half a head */
        inv_freq[i] = pow(10000.0, -2.0 * (i % (PAIRS / 2)) / PAIRS);
    CHECK(trope_fill_pair_axis(pair_axis, PAIRS, TROPE_AXES_SECTIONS, (const int32_t[4]){16, 16, 0, 0}) == TROPE_OK);
    make_vision_stream(&s);
    check_stream(&s, inv_freq, pair_axis, &random);
    return check_result();
}
