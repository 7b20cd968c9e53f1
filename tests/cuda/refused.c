/* Calls that are too large for what the GPU counts in 32 bits are refused, by every function that is asked, and those that
 * just are not are accepted. Nothing is read or written: the addresses are of no memory. */
#include <string.h>

#include "cuda/device_call.h"
#include "support/call.h"
#include "support/check.h"

#define ADDRESS(number) ((void *)((uintptr_t)(number) << 44))

/* With one axis of positions. */
#define MOST_TOKENS ((int64_t)INT32_MAX - 1)

static call make_call(int32_t heads, int32_t head_dim, int64_t tokens, const double *inv_freq)
{
    call c = call_make(TROPE_BF16, 1, tokens);
    c.args.device = TROPE_DEVICE_CUDA;
    c.args.inv_freq = inv_freq;
    call_add(&c, ADDRESS(2), TROPE_THD, heads, head_dim, head_dim)->src = ADDRESS(1);
    return c;
}

/* The gradient of the frequencies counts tokens; that of freqs rows of angles as well. */
static void check_gradient(int64_t tokens, int64_t angle_rows, int is_refused)
{
    static const double inv_freq[] = {1, 0.5, 0.25, 0.125};
    static double d_inv_freq[4];
    call c = make_call(1, 8, tokens, angle_rows ? NULL : inv_freq);
    trope_args *const a = call_args(&c);
    c.operands[0].forward_src = ADDRESS(3);
    c.operands[0].forward_src_layout = TROPE_THD;
    if (angle_rows) {
        call_freqs(&c, ADDRESS(4), TROPE_COLUMNS_PAIR, angle_rows);
        a->d_freqs = ADDRESS(5);
        a->d_freqs_layout = TROPE_TABLE_ROWS;
    } else {
        a->d_inv_freq = d_inv_freq;
    }
    uint64_t bytes = 0;
    char name[64];
    const trope_status expected = is_refused ? TROPE_ERROR_UNSUPPORTED : TROPE_OK,
                       of_size = trope_workspace_size(a, &bytes), of_name = trope_kernel_name(a, 1, name, sizeof name);
    CHECK_MESSAGE(of_size == expected, "%lld tokens, %lld rows: trope_workspace_size: %d, %s", (long long)tokens,
                  (long long)angle_rows, of_size, trope_last_error());
    CHECK_MESSAGE(of_name == expected, "%lld tokens, %lld rows: trope_kernel_name: %d", (long long)tokens,
                  (long long)angle_rows, of_name);
    a->workspace = ADDRESS(6);
    a->workspace_size = (uint64_t)1 << 43;
    if (is_refused)
        CHECK_MESSAGE(trope_backward(a) == expected, "%lld tokens, %lld rows: %s", (long long)tokens, (long long)angle_rows,
                      trope_last_error());
}

/* The items of a row are counted in 32 bits. */
static void check_columns(int32_t heads, int32_t head_dim)
{
    static double inv_freq[64];
    call c = make_call(heads, head_dim, 1, inv_freq);
    char name[64] = "";
    c.operands[0].src = (char *)ADDRESS(1) + 2; /* no vector begins there */
    CHECK(trope_kernel_name(call_args(&c), 0, name, sizeof name) == TROPE_OK);
    CHECK_MESSAGE(!strcmp(name, "cuda-bf16-elements"), "%d heads of %d: goes by %s", heads, head_dim, name);
    CHECK_MESSAGE(trope_forward(call_args(&c)) == TROPE_ERROR_UNSUPPORTED, "%d heads of %d are not refused", heads,
                  head_dim);
}

/* So are the heads of a sum. dy is expanded: one head in memory. */
static void check_sum(int32_t groups, int32_t heads)
{
    static const double inv_freq[8];
    call c = make_call(heads, 16, 1, inv_freq); /* two vectors */
    char name[64] = "";
    c.operands[0].groups = groups;
    c.operands[0].shared_heads = TROPE_SHARED_ALL;
    c.operands[0].src_layout = TROPE_STRIDED;
    c.operands[0].src_stride[4] = 1;
    CHECK_MESSAGE(trope_kernel_name(call_args(&c), 1, name, sizeof name) == TROPE_OK, "%s", trope_last_error());
    CHECK_MESSAGE(!strcmp(name, "cuda-bf16-elements-sums"), "%d groups of %d heads: goes by %s", groups, heads, name);
    CHECK_MESSAGE(trope_backward(call_args(&c)) == TROPE_ERROR_UNSUPPORTED, "%d groups of %d heads are not refused", groups,
                  heads);
}

int main(void)
{
    device_require();
    check_gradient(MOST_TOKENS, 0, 0);
    check_gradient(MOST_TOKENS + 1, 0, 1);
    check_gradient(4 * MOST_TOKENS, 0, 1);
    check_gradient(1, MOST_TOKENS, 0);
    check_gradient(1, MOST_TOKENS + 1, 1);
    check_gradient(1, 8 * MOST_TOKENS, 1);
    check_columns(1 << 28, 128);              /* 2^31 columns */
    check_columns(1 << 30, 64);               /* 2^32, which is 0 in 32 bits */
    check_columns((1 << 28) - (1 << 3), 128); /* a few less than 2^31 */
    check_sum(1, INT32_MAX);
    check_sum(3, 1 << 30); /* more than 2^31 */
    check_sum(4, 1 << 30); /* 2^32 */
    return check_result();
}
