/* Of many positions that are out of range the first is named, by any number of threads that look for one. */
#include <stdlib.h>
#include <string.h>

#include "support/check.h"
#include "trope/trope.h"

enum { TOKENS = 40000, DIM = 2 }; /* as many as are worth eight threads */

static float src[TOKENS * DIM], dst[TOKENS * DIM], freqs[TOKENS];
static int64_t ids[TOKENS];

static trope_status call(int threads)
{
    trope_args a = {.struct_size = sizeof a, .device = TROPE_DEVICE_CPU, .operand_count = 1, .batch = 1, .tokens = TOKENS};
    a.threads = threads;
    a.freqs = freqs;
    a.angle_rows = TOKENS;
    a.angle_cols = DIM / 2;
    a.position_ids = ids;
    a.position_dtype = TROPE_I64;
    a.operands[0] = (trope_operand){.src = src, .dst = dst, .heads_per_group = 1, .head_dim = DIM, .rotary_dim = DIM};
    trope_fill_strides(a.operands[0].src_stride, TROPE_BSHD, 1, TOKENS, 1, DIM);
    trope_fill_strides(a.operands[0].dst_stride, TROPE_BSHD, 1, TOKENS, 1, DIM);
    return trope_forward(&a);
}

/* Makes every id from `token` on that `step` says bad, and checks that `token` is the one that is named. */
static void check_named(int token, int step)
{
    char words[64];
    snprintf(words, sizeof words, "position %d of batch entry 0, token %d,", TOKENS + token, token);
    for (int i = 0; i < TOKENS; i++)
        ids[i] = i >= token && (i - token) % step == 0 ? TOKENS + i : i;
    for (int threads = 1; threads <= 8; threads++) {
        CHECK(call(threads) == TROPE_ERROR_DATA);
        CHECK_MESSAGE(strstr(trope_last_error(), words), "%d threads: \"%s\" does not say \"%s\"", threads,
                      trope_last_error(), words);
    }
}

int main(void)
{
    for (int i = 0; i < TOKENS; i++)
        ids[i] = TOKENS - 1 - i;
    for (int threads = 1; threads <= 8; threads++)
        CHECK(call(threads) == TROPE_OK);
    for (int token = 0; token < TOKENS; token += TOKENS / 16 - 1) {
        check_named(token, 1);
        check_named(token, TOKENS / 8);
        check_named(token, TOKENS);
    }
    return check_result();
}
