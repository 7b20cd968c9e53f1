/* Calls without tokens succeed. They leave tensors and positions unchanged, and write gradients of 0. */
#include "api/valid_call.h"
#include "support/check.h"

static int is_zero(const void *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (((const unsigned char *)bytes)[i])
            return 0;
    return 1;
}

/* Removes the tokens and the tensors. Without elements, a call needs no pointers to tensors. */
static trope_args *without_tokens(call *c)
{
    c->args.tokens = 0;
    for (int i = 0; i < c->args.operand_count; i++) {
        trope_operand *o = &c->operands[i];
        o->src = o->forward_src = NULL;
        o->dst = NULL;
        o->dst_layout = o->forward_src_layout = 0;
    }
    return call_args(c);
}

static void no_tokens(void)
{
    trope_args *args = without_tokens(dense());
    CHECK_MESSAGE(trope_forward(args) == TROPE_OK, "%s", trope_last_error());
    CHECK_MESSAGE(trope_backward(args) == TROPE_OK, "%s", trope_last_error());
    args = call_args(dense());
    args->tokens = 0;
    CHECK_MESSAGE(trope_forward(args) == TROPE_OK, "%s", trope_last_error());
    CHECK(outputs_are_untouched());
}

static void no_tokens_give_zero_gradients(void)
{
    const size_t used = sizeof(float) * TOKENS * PAIRS;
    trope_args *args = without_tokens(gradient());
    CHECK_MESSAGE(trope_backward(args) == TROPE_OK, "%s", trope_last_error());
    CHECK(is_zero(out.d_freqs, used));
    CHECK(((const unsigned char *)out.d_freqs)[used] == 0xff);
    args = without_tokens(phase_gradient());
    CHECK_MESSAGE(trope_backward(args) == TROPE_OK, "%s", trope_last_error());
    CHECK(is_zero(out.d_inv_freq, sizeof out.d_inv_freq));
}

static void sequences_without_tokens(void)
{
    trope_args *args = without_tokens(packed());
    memset(in.cu_seqlens, 0, sizeof in.cu_seqlens);
    CHECK_MESSAGE(trope_forward(args) == TROPE_OK, "%s", trope_last_error());
    in.cu_seqlens[SEQUENCES] = 1; /* the last sequence has a token, but the tensors have none */
    CHECK(trope_forward(args) == TROPE_ERROR_DATA);
    in.cu_seqlens[SEQUENCES] = 0;
    args->sequences = 0;
    CHECK_MESSAGE(trope_forward(args) == TROPE_OK, "%s", trope_last_error());
    CHECK(outputs_are_untouched());
}

static void no_tokens_write_no_positions(void)
{
    call *c = dense();
    int64_t positions = 77;
    c->args.tokens = 0;
    CHECK_MESSAGE(trope_positions(call_args(c), &positions, NULL) == TROPE_OK, "%s", trope_last_error());
    CHECK(positions == 77);
}

static void calls_without_gradients_need_no_workspace(void)
{
    uint64_t bytes = 77;
    CHECK_MESSAGE(trope_workspace_size(call_args(dense()), &bytes) == TROPE_OK, "%s", trope_last_error());
    CHECK(bytes == 0);
}

int main(void)
{
    no_tokens();
    no_tokens_give_zero_gradients();
    sequences_without_tokens();
    no_tokens_write_no_positions();
    calls_without_gradients_need_no_workspace();
    return check_result();
}
