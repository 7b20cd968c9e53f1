/* Tests padding under each policy: between a sequence's end and its padded end, after the last sequence and before the
 * first. The expected values are written by hand. Also tests sequences of one token, and that a call writes every token of
 * the destination and nothing around it. */
#include "varlen/packed_call.h"

#define TOKENS 12

/* The padded sequences are [1, 3), [3, 3), [3, 7), [7, 8) and [8, 10), with unpadded lengths 1, 0, 3, 1 and 0. So tokens 0,
 * 2, 6 and 8 to 11 are in no sequence. Before the first sequence and after the last one, positions count from the start of
 * the gap. */
static const int32_t padded[] = {1, 3, 3, 7, 8, 10}, unpadded[] = {0, 1, 1, 4, 5, 5};
static const int sequence_of[TOKENS] = {-1, 0, -1, 2, 2, 2, -1, 3, -1, -1, -1, -1};
static const int64_t position_of[TOKENS] = {0, 0, 1, 0, 1, 2, 3, 0, 0, 1, 0, 1};

static void check_query(call *p)
{
    int64_t positions[TOKENS];
    int32_t sequences[TOKENS];
    CHECK(trope_positions(call_args(p), positions, sequences) == TROPE_OK);
    for (int i = 0; i < TOKENS; i++)
        CHECK_MESSAGE(positions[i] == position_of[i] && sequences[i] == sequence_of[i],
                      "token %d has position %lld in sequence %d", i, (long long)positions[i], sequences[i]);
}

static void check_token(const packed_call *p, const float *source, int64_t token, const float *y)
{
    float rotated[ROW_ELEMENTS], zero[ROW_ELEMENTS] = {0};
    const float *expected = rotated;
    rotate_alone(p, token, position_of[token], rotated);
    if (sequence_of[token] < 0 && p->c.args.padding == TROPE_PADDING_ZERO)
        expected = zero;
    if (sequence_of[token] < 0 && p->c.args.padding == TROPE_PADDING_COPY)
        expected = source + token * ROW_ELEMENTS;
    CHECK_MESSAGE(!memcmp(expected, y + token * ROW_ELEMENTS, sizeof rotated), "policy %d: token %lld is wrong",
                  p->c.args.padding, (long long)token);
}

/* Backward with inverse equals forward, so both directions have the same expected values. */
static void check_policy(int32_t policy, int backward, int in_place)
{
    packed_call p;
    make_packed_call(&p, TOKENS, unpadded, 5);
    p.c.args.cu_seqlens_padded = padded;
    p.c.args.padding = policy;
    p.c.args.inverse = backward;
    check_query(&p.c);
    float source[TOKENS * ROW_ELEMENTS];
    memcpy(source, p.src, sizeof source);
    if (in_place) {
        memcpy(p.dst, p.src, sizeof source);
        p.c.operands[0].src = p.dst;
    }
    trope_args *args = call_args(&p.c);
    CHECK_MESSAGE((backward ? trope_backward(args) : trope_forward(args)) == TROPE_OK, "%s", trope_last_error());
    for (int64_t token = 0; token < TOKENS; token++)
        check_token(&p, source, token, p.dst);
    CHECK(guards_are_intact(&p));
    free_packed_call(&p);
}

/* With one token per sequence, all positions are 0, and the rotation changes nothing. */
static void check_lengths_of_one(void)
{
    int32_t cu_seqlens[65];
    packed_call p;
    for (int i = 0; i < 65; i++)
        cu_seqlens[i] = i;
    make_packed_call(&p, 64, cu_seqlens, 64);
    CHECK_MESSAGE(trope_forward(call_args(&p.c)) == TROPE_OK, "%s", trope_last_error());
    CHECK(!memcmp(p.src, p.dst, 64 * ROW_ELEMENTS * sizeof(float)));
    free_packed_call(&p);
}

/* All sequences are empty, so all tokens are padding. */
static void check_all_padding(int64_t sequences)
{
    const int32_t cu_seqlens[4] = {0};
    const float zero[5 * ROW_ELEMENTS] = {0};
    packed_call p;
    make_packed_call(&p, 5, cu_seqlens, sequences);
    p.c.args.padding = TROPE_PADDING_ZERO;
    CHECK_MESSAGE(trope_forward(call_args(&p.c)) == TROPE_OK, "%s", trope_last_error());
    CHECK(!memcmp(p.dst, zero, sizeof zero) && guards_are_intact(&p));
    free_packed_call(&p);
}

int main(void)
{
    for (int32_t policy = TROPE_PADDING_ZERO; policy <= TROPE_PADDING_ROTATE; policy++)
        for (int i = 0; i < 4; i++)
            check_policy(policy, i / 2, i % 2);
    check_lengths_of_one();
    check_all_padding(1);
    check_all_padding(3);
    return check_result();
}
