/* The recipe "Norms of Qwen3 and Gemma 3" for Qwen3. */
enum { BATCH = 2, TOKENS = 3, Q_HEADS = 4, KV_HEADS = 2, DIM = 128 };
#include "recipes/normed.h"

int main(void)
{
    fill_normed();
#include "begin.inc"
#include "qwen3.inc"
#include "norms.inc"
    CHECK_OK(status);
    check_normed_model(0.0, 1000000.0, 1.0);
    free(args.workspace);
    return check_result();
}
