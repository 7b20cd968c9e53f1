/* Calls with nothing in them succeed, and what they write is what the rules say about no tokens. */
#include "api/valid_call.h"
#include "support/check.h"

static int is_zero(const void *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (((const unsigned char *)bytes)[i])
            return 0;
    return 1;
}

/* No element exists, so no pointer to one is needed. */
static void remove_elements(trope_args *args, int64_t batch, int64_t tokens)
{
    args->batch = batch;
    args->tokens = tokens;
    for (int i = 0; i < args->operand_count; i++) {
        args->operands[i].src = args->operands[i].input = NULL;
        args->operands[i].dst = NULL;
    }
}

static void no_batch_or_no_tokens(void)
{
    const int64_t shapes[][2] = {{0, TOKENS}, {BATCH, 0}, {0, 0}};
    for (int i = 0; i < 3; i++) {
        trope_args *args = dense();
        remove_elements(args, shapes[i][0], shapes[i][1]);
        CHECK_MESSAGE(trope_forward(args) == TROPE_OK, "%s", trope_last_error());
        CHECK_MESSAGE(trope_backward(args) == TROPE_OK, "%s", trope_last_error());
        CHECK(outputs_are_untouched());
    }
}

static void no_tokens_give_no_gradient(void)
{
    const size_t used = sizeof(float) * TOKENS * PAIRS;
    trope_args *args = gradient();
    remove_elements(args, BATCH, 0);
    CHECK_MESSAGE(trope_backward(args) == TROPE_OK, "%s", trope_last_error());
    CHECK(is_zero(out.d_freqs, used));
    CHECK(((const unsigned char *)out.d_freqs)[used] == 0xff);
    args = phase_gradient();
    remove_elements(args, BATCH, 0);
    CHECK_MESSAGE(trope_backward(args) == TROPE_OK, "%s", trope_last_error());
    CHECK(is_zero(out.d_inv_freq, sizeof out.d_inv_freq));
}

/* All tokens are padding when there is no sequence, or only empty ones. */
static void no_sequences(void)
{
    for (int count = 0; count <= SEQUENCES; count += SEQUENCES) {
        trope_args *args = packed();
        args->sequences = count;
        memset(in.cu_seqlens, 0, sizeof in.cu_seqlens);
        memset(in.q, 0x40, sizeof in.q);
        CHECK_MESSAGE(trope_forward(args) == TROPE_OK, "%s", trope_last_error());
        CHECK(is_zero(out.q, sizeof(float) * TOKENS * Q_HEADS * Q_DIM));
        args->padding = TROPE_PADDING_COPY;
        CHECK_MESSAGE(trope_forward(args) == TROPE_OK, "%s", trope_last_error());
        CHECK(memcmp(out.q, in.q, sizeof(float) * TOKENS * Q_HEADS * Q_DIM) == 0);
    }
}

static void sequences_without_tokens(void)
{
    trope_args *args = packed();
    memset(in.cu_seqlens, 0, sizeof in.cu_seqlens);
    remove_elements(args, 1, 0);
    CHECK_MESSAGE(trope_forward(args) == TROPE_OK, "%s", trope_last_error());
    in.cu_seqlens[SEQUENCES] = 1; /* a token that the tensor does not have */
    CHECK(trope_forward(args) == TROPE_ERROR_DATA);
    CHECK(outputs_are_untouched());
}

static void no_positions(void)
{
    trope_args *args = dense();
    int64_t positions = 77;
    args->tokens = 0;
    CHECK_MESSAGE(trope_positions(args, &positions, NULL) == TROPE_OK, "%s", trope_last_error());
    CHECK(positions == 77);
}

static void no_gradient_needs_no_workspace(void)
{
    uint64_t bytes = 77;
    CHECK_MESSAGE(trope_workspace_size(dense(), &bytes) == TROPE_OK, "%s", trope_last_error());
    CHECK(bytes == 0);
}

/* Nothing rotates, so no angles are needed: a copy, and in place not even that. */
static void no_rotation(void)
{
    trope_args *args = dense();
    args->operands[0].rotary_dim = args->operands[1].rotary_dim = 0;
    args->freqs = NULL;
    args->angle_rows = args->angle_cols = 0;
    memset(in.q, 0x3f, sizeof in.q);
    CHECK_MESSAGE(trope_forward(args) == TROPE_OK, "%s", trope_last_error());
    CHECK(memcmp(out.q, in.q, sizeof(float) * Q_COUNT) == 0);
    args->operands[0].src = out.q;
    CHECK_MESSAGE(trope_backward(args) == TROPE_OK, "%s", trope_last_error());
    CHECK(memcmp(out.q, in.q, sizeof(float) * Q_COUNT) == 0);
}

int main(void)
{
    no_batch_or_no_tokens();
    no_tokens_give_no_gradient();
    no_sequences();
    sequences_without_tokens();
    no_positions();
    no_gradient_needs_no_workspace();
    no_rotation();
    return check_result();
}
