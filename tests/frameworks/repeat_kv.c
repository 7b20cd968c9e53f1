/* transformers' repeat_kv behind the rotation: k [b, kv_heads, s, d] becomes [b, kv_heads * n_rep, s, d], each head n_rep
 * times; with one head for all (MQA) it is the same with shared_heads ALL. Forward each head is rotated once and has eager's
 * bits. Backward the gradient of k is that of the sum over its copies, which is rotated once: dy of each is added in fp32, neighbours
 * first, and the result to what dk holds where that is asked for. */
#include <stdio.h>

#include "frameworks/checks.h"

enum { B = 2, S = 5, KV = 3, MAX_COPIES = 32, D = 48, R = 32 };

static float cos_sin[2][S][R];

typedef struct repeats {
    int32_t kv_heads, n_rep, shared;
} repeats;

/* Element 0 of head h of [b, heads, s, d]. */
static int64_t head_at(int b, int heads, int h, int s)
{
    return (((int64_t)b * heads + h) * S + s) * D;
}

static void copies_forward(const repeats *n, const rotation *r, const void *k, void *out, int b, int s)
{
    for (int h = 0; h < n->kv_heads * n->n_rep; h++) {
        float x[D], y[D];
        load_elements(r->dtype, k, head_at(b, n->kv_heads, h / n->n_rep, s), D, x);
        memcpy(y, x, sizeof y);
        eager_rotate(r, cos_sin[0][s], cos_sin[1][s], x, y);
        store_elements(r->dtype, out, head_at(b, n->kv_heads * n->n_rep, h, s), D, y);
    }
}

/* The sum of the copies of one head, into the first of them. */
static void sum_copies(float terms[MAX_COPIES][D], int copies)
{
    int width = 1;
    while (width < copies)
        width *= 2;
    for (int h = copies; h < width; h++)
        memset(terms[h], 0, sizeof terms[h]);
    for (; width > 1; width /= 2)
        for (int h = 0; h < width / 2; h++)
            for (int e = 0; e < D; e++)
                terms[h][e] = terms[2 * h][e] + terms[2 * h + 1][e];
}

static void copies_backward(const repeats *n, const rotation *r, const void *upstream, void *dk, int b, int s)
{
    static float terms[MAX_COPIES][D];
    for (int kv = 0; kv < n->kv_heads; kv++) {
        const int64_t at = head_at(b, n->kv_heads, kv, s);
        float held[D], sum[D], rotated[D];
        for (int h = 0; h < n->n_rep; h++) {
            load_elements(r->dtype, upstream, head_at(b, n->kv_heads * n->n_rep, kv * n->n_rep + h, s), D, terms[h]);
        }
        sum_copies(terms, n->n_rep);
        for (int e = 0; e < D; e++)
            sum[e] = r->rounding == TROPE_ROUND_NATIVE ? eager_round(r->dtype, terms[0][e]) : terms[0][e];
        memcpy(rotated, sum, sizeof rotated);
        eager_rotate_back(r, cos_sin[0][s], cos_sin[1][s], sum, rotated);
        load_elements(r->dtype, dk, at, D, held);
        for (int e = 0; e < D; e++)
            held[e] += r->rounding == TROPE_ROUND_NATIVE ? eager_round(r->dtype, rotated[e]) : rotated[e];
        store_elements(r->dtype, dk, at, D, held);
    }
}

/* The operand: k is one side, its copies the other. With ALL the heads are in two groups, which must not matter. */
static call make_call(const repeats *n, const rotation *r, void *one, void *copies, int backward)
{
    call c = call_make(r->dtype, B, S);
    trope_operand *o = call_add(&c, backward ? one : copies, TROPE_BHSD, n->n_rep, D, R);
    o->src = backward ? copies : one;
    o->groups = n->kv_heads;
    if (n->shared == TROPE_SHARED_ALL) {
        o->groups = 2;
        o->heads_per_group = n->n_rep / 2;
    }
    o->shared_heads = n->shared;
    o->accumulate = backward;
    c.args.rounding = r->rounding;
    call_tables(&c, cos_sin[0], cos_sin[1], TROPE_F32, TROPE_COLUMNS_HALF, S);
    return c;
}

static void check_repeats(const repeats *n, const rotation *r, random_state *random)
{
    const int64_t one = B * S * D * n->kv_heads, copies = one * n->n_rep;
    char what[64];
    snprintf(what, sizeof what, "%d heads %d times, %s, rounding %d", (int)n->kv_heads, (int)n->n_rep,
             number_name(r->dtype), (int)r->rounding);
    void *k = random_tensor(random, r->dtype, one), *repeated = zero_tensor(r->dtype, copies);
    void *expected = zero_tensor(r->dtype, copies);
    call forward = make_call(n, r, k, repeated, 0);
    check_call(what, call_args(&forward), 0);
    for (int row = 0; row < B * S; row++)
        copies_forward(n, r, k, expected, row / S, row % S);
    check_bits(what, r->dtype, repeated, expected, copies);

    void *upstream = random_tensor(random, r->dtype, copies), *dk = copy_tensor(r->dtype, k, one);
    call backward = make_call(n, r, dk, upstream, 1);
    check_call(what, call_args(&backward), 1);
    for (int row = 0; row < B * S; row++)
        copies_backward(n, r, upstream, k, row / S, row % S);
    check_bits(what, r->dtype, dk, k, one);
    free(k);
    free(repeated);
    free(expected);
    free(upstream);
    free(dk);
}

int main(void)
{
    random_state random = {11};
    const int32_t dtypes[] = {TROPE_F32, TROPE_BF16};
    const int32_t roundings[] = {TROPE_ROUND_ONCE, TROPE_ROUND_NATIVE, TROPE_ROUND_NATIVE_F32};
    const repeats repeated[] = {{KV, 1, TROPE_SHARED_GROUP},
                                {KV, 4, TROPE_SHARED_GROUP},
                                {KV, 7, TROPE_SHARED_GROUP},
                                {1, 6, TROPE_SHARED_ALL},
                                {1, 16, TROPE_SHARED_ALL}};
    for (int i = 0; i < 2 * S * R; i++)
        cos_sin[i / (S * R)][i / R % S][i % R] = (float)random_real(&random);
    for (int d = 0; d < 2; d++)
        for (int m = 0; m < 3; m++)
            for (int i = 0; i < 5; i++) {
                const rotation r = {dtypes[d], roundings[m], TROPE_PAIRING_HALF, TROPE_PAIRING_HALF, R};
                check_repeats(&repeated[i], &r, &random);
            }
    return check_result();
}
