/* A contiguous layout is its strides: walking its dimensions in order walks the memory, groups outside heads. trope_fill_strides
 * gives them, trope_fill_operand the operand, and a call that says the layout is the call that says the strides. */
#include "support/call.h"
#include "support/check.h"
#include "support/random.h"
#include "support/tensor.h"

enum { B = TROPE_DIM_BATCH, S = TROPE_DIM_TOKEN, G = TROPE_DIM_GROUP, H = TROPE_DIM_HEAD, D = TROPE_DIM_ELEMENT };

/* The dimensions of a layout, outermost first. */
static const int orders[][TROPE_MAX_DIMS] = {[TROPE_SBHD] = {S, B, G, H, D},
                                             [TROPE_BSHD] = {B, S, G, H, D},
                                             [TROPE_BHSD] = {B, G, H, S, D},
                                             [TROPE_THD] = {B, S, G, H, D}};

static void walk(int32_t layout, const int64_t *size, int64_t *stride)
{
    int64_t next = 1;
    for (int i = TROPE_MAX_DIMS - 1; i >= 0; i--) {
        stride[orders[layout][i]] = next;
        next *= size[orders[layout][i]];
    }
}

static void check_strides(int32_t layout, const int64_t *size)
{
    int64_t stride[TROPE_MAX_DIMS], expected[TROPE_MAX_DIMS];
    const trope_status status = trope_fill_strides(stride, layout, size[B], size[S], (int32_t)size[H], (int32_t)size[D]);
    CHECK_MESSAGE(status == TROPE_OK, "layout %d: %s", layout, trope_last_error());
    walk(layout, size, expected);
    expected[G] = stride[H] * size[H];
    for (int d = 0; d < TROPE_MAX_DIMS; d++)
        CHECK_MESSAGE(stride[d] == expected[d], "layout %d: stride[%d] is %lld, not %lld", layout, d, (long long)stride[d],
                      (long long)expected[d]);
}

static void check_all_strides(void)
{
    const int64_t some[] = {3, 5, 1, 7, 11}, one[] = {1, 1, 1, 1, 1}, packed[] = {1, 5, 1, 7, 11};
    const int64_t large[] = {1 << 10, 1 << 20, 1, 1 << 8, 1 << 8};
    const int64_t *const sizes[] = {some, one, packed, large};
    for (int i = 0; i < 4; i++)
        for (int32_t layout = TROPE_SBHD; layout <= TROPE_BHSD; layout++)
            check_strides(layout, sizes[i]);
    check_strides(TROPE_THD, packed);
}

/* Everything but what the arguments say is 0. */
static void check_fill_operand(int32_t layout, int32_t rotary_dim)
{
    float x[1];
    trope_operand o;
    memset(&o, 0x5a, sizeof o);
    CHECK_MESSAGE(trope_fill_operand(&o, x, layout, 7, 12, rotary_dim) == TROPE_OK, "%s", trope_last_error());
    CHECK(o.src == x && o.dst == x && !o.forward_src);
    CHECK(o.src_layout == layout && o.dst_layout == layout && o.forward_src_layout == 0);
    CHECK((o.groups == 0 || o.groups == 1) && o.heads_per_group == 7 && o.head_dim == 12 && o.rotary_dim == rotary_dim);
    CHECK(o.rotary_offset == 0 && o.shared_heads == TROPE_SHARED_NONE && o.accumulate == 0);
    for (int d = 0; d < TROPE_MAX_DIMS; d++)
        CHECK(o.src_stride[d] == 0 && o.dst_stride[d] == 0 && o.forward_src_stride[d] == 0);
}

enum { TOKENS = 5, GROUPS = 2, HEADS = 3, DIM = 10, ELEMENTS = 2 * TOKENS * GROUPS * HEADS * DIM };

static float x[ELEMENTS], y[2][ELEMENTS];

static call make(int64_t batch, int32_t from, int32_t to, float *dst)
{
    static const double inv_freq[] = {1, 0.3, 0.1, 0.03};
    call c = call_make(TROPE_F32, batch, TOKENS);
    trope_operand *o = call_add(&c, x, from, HEADS, DIM, 8);
    o->groups = GROUPS;
    o->dst = dst;
    o->dst_layout = to;
    o->rotary_offset = 2;
    c.args.inv_freq = inv_freq;
    memset(dst, 0xff, sizeof y[0]);
    return c;
}

/* From one layout to another, both said and both as strides. */
static void check_call(int64_t batch, int32_t from, int32_t to, int backward)
{
    const int64_t size[] = {batch, TOKENS, GROUPS, HEADS, DIM};
    call said = make(batch, from, to, y[0]), as_strides = make(batch, TROPE_BSHD, TROPE_BSHD, y[1]);
    trope_operand *o = &as_strides.operands[0];
    o->src_layout = o->dst_layout = TROPE_STRIDED;
    walk(from, size, o->src_stride);
    walk(to, size, o->dst_stride);
    for (int i = 0; i < 2; i++) {
        trope_args *args = call_args(i ? &as_strides : &said);
        CHECK_MESSAGE((backward ? trope_backward(args) : trope_forward(args)) == TROPE_OK, "%s", trope_last_error());
    }
    CHECK_MESSAGE(!memcmp(y[0], y[1], sizeof y[0]), "batch %d, layout %d to %d is not the call with its strides",
                  (int)batch, from, to);
    CHECK(memcmp(y[0], x, sizeof x) != 0);
}

int main(void)
{
    random_state random = {5};
    for (int i = 0; i < ELEMENTS; i++)
        x[i] = (float)random_real(&random);
    check_all_strides();
    for (int32_t layout = TROPE_SBHD; layout <= TROPE_THD; layout++) {
        check_fill_operand(layout, 8);
        check_fill_operand(layout, TROPE_COPY);
    }
    for (int32_t from = TROPE_SBHD; from <= TROPE_THD; from++)
        for (int32_t to = TROPE_SBHD; to <= TROPE_THD; to++) {
            check_call(1, from, to, 0);
            check_call(1, from, to, 1);
            if (from != TROPE_THD && to != TROPE_THD) {
                check_call(2, from, to, 0);
                check_call(2, from, to, 1);
            }
        }
    return check_result();
}
