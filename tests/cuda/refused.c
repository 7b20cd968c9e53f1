/* All functions that take a call refuse it if it is too large for the 32-bit counters of the GPU code, and accept the
 * largest calls below that limit. The addresses are invalid, because nothing is read or written. */
#include <string.h>

#include "cuda/device_call.h"
#include "support/call.h"
#include "support/check.h"

#define ADDRESS(number) ((void *)((uintptr_t)(number) << 44))

/* The largest accepted count, with one axis of positions. */
#define MOST ((int64_t)INT32_MAX - 1)

static const double inv_freq[64] = {1, 0.5, 0.25, 0.125};

static call make_call(int32_t heads, int32_t head_dim, int64_t tokens)
{
    call c = call_make(TROPE_BF16, 1, tokens);
    c.args.device = TROPE_DEVICE_CUDA;
    c.args.inv_freq = inv_freq;
    call_add(&c, ADDRESS(2), TROPE_THD, heads, head_dim, head_dim)->src = ADDRESS(1);
    return c;
}

/* Checks that all functions that take a backward call return `expected`. Accepted calls are not run. `text` describes the
 * call. */
static void check_all_functions(trope_args *a, trope_status expected, const char *text)
{
    uint64_t bytes = 0;
    char name[64];
    const trope_status of_size = trope_workspace_size(a, &bytes), of_name = trope_kernel_name(a, 1, name, sizeof name);
    a->workspace = ADDRESS(6);
    a->workspace_size = (uint64_t)1 << 43;
    const trope_status of_call = expected ? trope_backward(a) : TROPE_OK;
    CHECK_MESSAGE(of_size == expected && of_name == expected && of_call == expected,
                  "%s: trope_workspace_size %d, trope_kernel_name %d, trope_backward %d: %s", text, of_size, of_name,
                  of_call, trope_last_error());
}

/* The gradient of inv_freq counts tokens. The gradient of freqs also counts rows of angles. */
static const struct {
    int64_t tokens, angle_rows;
    trope_status expected;
} gradients[] = {
    {MOST, 0, TROPE_OK}, {MOST + 1, 0, TROPE_ERROR_UNSUPPORTED}, {4 * MOST, 0, TROPE_ERROR_UNSUPPORTED},
    {1, MOST, TROPE_OK}, {1, MOST + 1, TROPE_ERROR_UNSUPPORTED}, {1, 8 * MOST, TROPE_ERROR_UNSUPPORTED},
};

static void check_gradient(int64_t tokens, int64_t angle_rows, trope_status expected)
{
    static double d_inv_freq[4];
    call c = make_call(1, 8, tokens);
    trope_args *const a = call_args(&c);
    char text[64];
    c.operands[0].forward_src = ADDRESS(3);
    c.operands[0].forward_src_layout = TROPE_THD;
    a->d_inv_freq = d_inv_freq;
    if (angle_rows) {
        a->inv_freq = NULL;
        a->d_inv_freq = NULL;
        call_freqs(&c, ADDRESS(4), TROPE_COLUMNS_PAIR, angle_rows);
        a->d_freqs = ADDRESS(5);
        a->d_freqs_layout = TROPE_TABLE_ROWS;
    }
    snprintf(text, sizeof text, "%lld tokens, %lld angle rows", (long long)tokens, (long long)angle_rows);
    check_all_functions(a, expected, text);
}

/* Kernels use 32 bits to count the items of a token, or the heads of a sum. The stride of the summed heads is 0, so all of
 * them have the same address. The number of items or heads is 2^31, slightly less than 2^31, or more, such as 2^32, which
 * is 0 in 32 bits. */
static const struct {
    int32_t groups, heads, head_dim; /* the number of groups of a sum, or 0 for no sum */
} rows[] = {{0, 1 << 28, 128},  {0, 1 << 30, 64}, {0, (1 << 28) - (1 << 3), 128},
            {1, INT32_MAX, 16}, {3, 1 << 30, 16}, {4, 1 << 30, 16}};

static void check_token(int32_t groups, int32_t heads, int32_t head_dim)
{
    call c = make_call(heads, head_dim, 1);
    trope_operand *const o = &c.operands[0];
    char name[64] = "";
    if (groups) {
        o->groups = groups;
        o->shared_heads = TROPE_SHARED_ALL;
        o->src_layout = TROPE_STRIDED;
        o->src_stride[TROPE_DIM_ELEMENT] = 1;
    } else {
        o->src = (char *)ADDRESS(1) + 2; /* not aligned to a vector */
    }
    CHECK_MESSAGE(trope_kernel_name(call_args(&c), groups > 0, name, sizeof name) == TROPE_OK, "%s", trope_last_error());
    CHECK_MESSAGE(!strcmp(name, groups ? "cuda-bf16-elements-sums" : "cuda-bf16-elements"),
                  "%d groups of %d heads of %d: unexpected kernel %s", groups, heads, head_dim, name);
    CHECK_MESSAGE((groups ? trope_backward : trope_forward)(call_args(&c)) == TROPE_ERROR_UNSUPPORTED,
                  "%d groups of %d heads of %d: not refused", groups, heads, head_dim);
}

/* Checks the limit for the number of heads that d_weight is summed over. All heads of dy have the same address, and so do
 * all heads of x. */
static void check_norm(int32_t groups, int32_t heads, int32_t scope, trope_status expected)
{
    call c = make_call(heads, 8, 1);
    trope_operand *const o = &c.operands[0];
    char text[64];
    o->groups = groups;
    o->forward_src = ADDRESS(3);
    o->dst = NULL;
    o->dst_layout = 0;
    o->src_layout = o->forward_src_layout = TROPE_STRIDED;
    o->src_stride[TROPE_DIM_ELEMENT] = o->forward_src_stride[TROPE_DIM_ELEMENT] = 1;
    c.norm[0] = (trope_norm){.struct_size = sizeof c.norm[0], .scope = scope, .order = TROPE_NORM_BEFORE, .eps = 1};
    c.norm[0].weight = ADDRESS(4);
    c.norm[0].weight_dtype = TROPE_BF16;
    c.norm[0].d_weight = ADDRESS(5);
    trope_args *const a = call_args(&c);
    snprintf(text, sizeof text, "%d groups of %d heads with a norm of scope %d", groups, heads, scope);
    check_all_functions(a, expected, text);
}

int main(void)
{
    device_require();
    check_norm(1, 1 << 20, TROPE_NORM_HEAD, TROPE_OK);
    check_norm(1, 1 << 20, TROPE_NORM_TOKEN, TROPE_OK);
    check_norm(1 << 16, 1 << 16, TROPE_NORM_HEAD, TROPE_ERROR_UNSUPPORTED); /* 2^32, which is 0 in 32 bits */
    check_norm(3, 1 << 30, TROPE_NORM_HEAD, TROPE_ERROR_UNSUPPORTED);
    for (size_t i = 0; i < sizeof gradients / sizeof gradients[0]; i++)
        check_gradient(gradients[i].tokens, gradients[i].angle_rows, gradients[i].expected);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        check_token(rows[i].groups, rows[i].heads, rows[i].head_dim);
    return check_result();
}
