/* If many positions are out of range, the error names the first one, with any number of threads. */
#include <stdlib.h>
#include <string.h>

#include "support/call.h"
#include "support/check.h"

enum { TOKENS = 40000, DIM = 2 }; /* enough for eight threads */

static float src[TOKENS * DIM], dst[TOKENS * DIM], freqs[TOKENS];
static int64_t ids[TOKENS];

static trope_status run(int threads)
{
    call c = call_make(TROPE_F32, 1, TOKENS);
    call_add(&c, dst, TROPE_BSHD, 1, DIM, DIM)->src = src;
    call_freqs(&c, freqs, TROPE_COLUMNS_PAIR, TOKENS);
    c.args.threads = threads;
    c.args.position_ids = ids;
    c.args.position_dtype = TROPE_I64;
    c.args.ids_layout = TROPE_IDS_TOKENS;
    return trope_forward(call_args(&c));
}

/* Makes the ids of `token`, `token + step`, ... invalid, and checks that the error names `token`. */
static void check_first_named(int token, int step)
{
    char words[64];
    snprintf(words, sizeof words, "position %d of batch entry 0, token %d,", TOKENS + token, token);
    for (int i = 0; i < TOKENS; i++)
        ids[i] = i >= token && (i - token) % step == 0 ? TOKENS + i : i;
    for (int threads = 1; threads <= 8; threads++) {
        CHECK(run(threads) == TROPE_ERROR_DATA);
        CHECK_MESSAGE(strstr(trope_last_error(), words), "%d threads: \"%s\" does not contain \"%s\"", threads,
                      trope_last_error(), words);
    }
}

int main(void)
{
    for (int i = 0; i < TOKENS; i++)
        ids[i] = TOKENS - 1 - i;
    for (int threads = 1; threads <= 8; threads++)
        CHECK(run(threads) == TROPE_OK);
    for (int token = 0; token < TOKENS; token += TOKENS / 16 - 1) {
        check_first_named(token, 1);
        check_first_named(token, TOKENS / 8);
        check_first_named(token, TOKENS);
    }
    return check_result();
}
