/* DeepSeek's key and value as Megatron-Core's fused_mla_rope_kv_split makes them: kv [.., heads, k + v] is cut in two, and
 * k_pos_emb [.., 1, emb], rotated once, becomes the end of every head's key [.., heads, k + emb]. One call with three
 * operands; backward, dy of k_pos_emb is summed over the heads, in fp32, by a binary tree, and rotated back once: autograd's order of a head that
 * is rotated and then expanded. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frameworks/checks.h"

enum { ROWS = 16, MAX_HEADS = 32, MAX_EMB = 64 };

typedef struct sizes {
    int32_t layout; /* TROPE_THD: packed sequences; TROPE_SBHD: batch entries */
    int64_t batch, tokens;
    int32_t heads, k, v, emb;
} sizes;

/* The tensors of the forward call, or their gradients. */
typedef struct tensors {
    void *kv, *k_pos_emb, *key, *value;
} tensors;

static const int32_t cu_seqlens[] = {0, 5, 5, 13};
static float cos_table[ROWS * MAX_EMB], sin_table[ROWS * MAX_EMB];

static int64_t rows_of(const sizes *s)
{
    return s->batch * s->tokens;
}

/* The position of a row of [tokens, batch] (batch is 1 if packed). */
static int64_t position_of(const sizes *s, int64_t row)
{
    if (s->layout == TROPE_SBHD)
        return row / s->batch;
    return row - (row < cu_seqlens[2] ? 0 : cu_seqlens[2]);
}

/* One side of an operand: the slice [first, ..) of a tensor with heads of `width` elements. */
static void set_slice(const sizes *s, int64_t *stride, int32_t *layout, int32_t width)
{
    *layout = TROPE_STRIDED;
    trope_fill_strides(stride, s->layout, s->batch, s->tokens, s->heads, width);
}

/* k_nope, k_pe and v, from kv and k_pos_emb to key and value; or back, the sides exchanged. */
static call make_call(const sizes *s, const rotation *r, const tensors *t, int backward)
{
    call c = call_make(r->dtype, s->batch, s->tokens);
    const int32_t widths[3] = {s->k, s->emb, s->v};
    void *joint[3] = {t->kv, t->k_pos_emb, element_of(r->dtype, t->kv, s->k)};
    void *split[3] = {t->key, element_of(r->dtype, t->key, s->k), t->value};
    for (int i = 0; i < 3; i++) {
        trope_operand *o = call_add(&c, joint[i], s->layout, s->heads, widths[i], i == 1 ? s->emb : TROPE_COPY);
        o->src = backward ? split[i] : joint[i];
        o->dst = backward ? joint[i] : split[i];
        if (i == 1)
            o->shared_heads = TROPE_SHARED_ALL;
        else
            set_slice(s, backward ? o->dst_stride : o->src_stride, backward ? &o->dst_layout : &o->src_layout, s->k + s->v);
        if (i < 2)
            set_slice(s, backward ? o->src_stride : o->dst_stride, backward ? &o->src_layout : &o->dst_layout,
                      s->k + s->emb);
    }
    c.args.rounding = r->rounding;
    c.args.pairing = r->pairing;
    c.args.pairing_out = r->pairing_out;
    call_tables(&c, cos_table, sin_table, TROPE_F32, TROPE_COLUMNS_HALF, ROWS);
    if (s->layout == TROPE_THD)
        call_cu_seqlens(&c, cu_seqlens, TROPE_I32, 3);
    return c;
}

static void copy_elements(int32_t dtype, void *to, int64_t to_index, const void *from, int64_t from_index, int count)
{
    const size_t size = number_size(dtype);
    memcpy((char *)to + (size_t)to_index * size, (const char *)from + (size_t)from_index * size, (size_t)count * size);
}

/* What the framework computes: key and value. */
static void split_forward(const sizes *s, const rotation *r, const tensors *t)
{
    for (int64_t row = 0; row < rows_of(s); row++) {
        const int64_t p = position_of(s, row);
        float pe[MAX_EMB], rotated[MAX_EMB];
        load_elements(r->dtype, t->k_pos_emb, row * s->emb, s->emb, pe);
        eager_rotate(r, cos_table + p * s->emb, sin_table + p * s->emb, pe, rotated);
        for (int64_t h = row * s->heads; h < (row + 1) * s->heads; h++) {
            copy_elements(r->dtype, t->key, h * (s->k + s->emb), t->kv, h * (s->k + s->v), s->k);
            store_elements(r->dtype, t->key, h * (s->k + s->emb) + s->k, s->emb, rotated);
            copy_elements(r->dtype, t->value, h * s->v, t->kv, h * (s->k + s->v) + s->k, s->v);
        }
    }
}

/* The sum of one element over the heads: neighbours first, padded with zeros to a power of two. */
static float tree(float terms[MAX_HEADS][MAX_EMB], int heads, int e)
{
    float level[MAX_HEADS] = {0};
    int width = 1;
    while (width < heads)
        width *= 2;
    for (int h = 0; h < heads; h++)
        level[h] = terms[h][e];
    for (; width > 1; width /= 2)
        for (int i = 0; i < width / 2; i++)
            level[i] = level[2 * i] + level[2 * i + 1];
    return level[0];
}

/* And backward: the gradients of kv and k_pos_emb from those of key and value. */
static void split_backward(const sizes *s, const rotation *r, const tensors *t)
{
    for (int64_t row = 0; row < rows_of(s); row++) {
        const int64_t p = position_of(s, row);
        float terms[MAX_HEADS][MAX_EMB], sum[MAX_EMB], rotated[MAX_EMB];
        for (int h = 0; h < s->heads; h++) {
            const int64_t head = row * s->heads + h;
            copy_elements(r->dtype, t->kv, head * (s->k + s->v), t->key, head * (s->k + s->emb), s->k);
            copy_elements(r->dtype, t->kv, head * (s->k + s->v) + s->k, t->value, head * s->v, s->v);
            load_elements(r->dtype, t->key, head * (s->k + s->emb) + s->k, s->emb, terms[h]);
        }
        for (int e = 0; e < s->emb; e++) {
            const float exact = tree(terms, s->heads, e);
            sum[e] = r->rounding == TROPE_ROUND_NATIVE ? (float)number_round(r->dtype, exact) : exact;
        }
        eager_rotate_back(r, cos_table + p * s->emb, sin_table + p * s->emb, sum, rotated);
        store_elements(r->dtype, t->k_pos_emb, row * s->emb, s->emb, rotated);
    }
}

/* The inputs of a direction are random; the outputs are zeros, which no output stays. */
static tensors make_tensors(const sizes *s, int32_t dtype, int backward, random_state *random)
{
    const int64_t heads = rows_of(s) * s->heads;
    tensors t;
    t.kv = backward ? zero_tensor(dtype, heads * (s->k + s->v)) : random_tensor(random, dtype, heads * (s->k + s->v));
    t.k_pos_emb = backward ? zero_tensor(dtype, rows_of(s) * s->emb) : random_tensor(random, dtype, rows_of(s) * s->emb);
    t.key = backward ? random_tensor(random, dtype, heads * (s->k + s->emb)) : zero_tensor(dtype, heads * (s->k + s->emb));
    t.value = backward ? random_tensor(random, dtype, heads * s->v) : zero_tensor(dtype, heads * s->v);
    return t;
}

static void free_tensors(tensors *t)
{
    free(t->kv);
    free(t->k_pos_emb);
    free(t->key);
    free(t->value);
}

static void check_split(const sizes *s, const rotation *r, int backward, random_state *random)
{
    const int64_t heads = rows_of(s) * s->heads;
    tensors t = make_tensors(s, r->dtype, backward, random), expected = t;
    char what[96];
    snprintf(what, sizeof what, "%s, %d heads, rounding %d, %d to %d", backward ? "backward" : "forward", (int)s->heads,
             (int)r->rounding, (int)r->pairing, (int)r->pairing_out);
    call c = make_call(s, r, &t, backward);
    check_call(what, call_args(&c), backward);

    if (backward) {
        expected.kv = zero_tensor(r->dtype, heads * (s->k + s->v));
        expected.k_pos_emb = zero_tensor(r->dtype, rows_of(s) * s->emb);
        split_backward(s, r, &expected);
        check_bits(what, r->dtype, t.kv, expected.kv, heads * (s->k + s->v));
        check_bits(what, r->dtype, t.k_pos_emb, expected.k_pos_emb, rows_of(s) * s->emb);
        free(expected.kv);
        free(expected.k_pos_emb);
    } else {
        expected.key = zero_tensor(r->dtype, heads * (s->k + s->emb));
        expected.value = zero_tensor(r->dtype, heads * s->v);
        split_forward(s, r, &expected);
        check_bits(what, r->dtype, t.key, expected.key, heads * (s->k + s->emb));
        check_bits(what, r->dtype, t.value, expected.value, heads * s->v);
        free(expected.key);
        free(expected.value);
    }
    free_tensors(&t);
}

int main(void)
{
    random_state random = {1};
    const int32_t dtypes[] = {TROPE_F32, TROPE_BF16, TROPE_F16}, heads[] = {1, 2, 5, 6, 16};
    const int32_t widths[2][3] = {{6, 10, 12}, {128, 128, 64}}; /* the second ones are DeepSeek's */
    for (int i = 0; i < ROWS * MAX_EMB; i++) {
        cos_table[i] = (float)random_real(&random);
        sin_table[i] = (float)random_real(&random);
    }
    for (int d = 0; d < 3; d++)
        for (int h = 0; h < 5; h++)
            for (int variant = 0; variant < 32; variant++) {
                const int packed = variant & 1, backward = variant >> 1 & 1, *w = widths[variant >> 4];
                const sizes s = {
                    packed ? TROPE_THD : TROPE_SBHD, packed ? 1 : 3, packed ? 13 : 7, heads[h], w[0], w[1], w[2]};
                const rotation r = {.dtype = dtypes[d],
                                    .rounding = variant & 4 ? TROPE_ROUND_NATIVE : TROPE_ROUND_ONCE,
                                    .pairing = TROPE_PAIRING_INTERLEAVED,
                                    .pairing_out = variant & 8 ? TROPE_PAIRING_INTERLEAVED : TROPE_PAIRING_HALF,
                                    .width = s.emb};
                check_split(&s, &r, backward, &random);
            }
    return check_result();
}
