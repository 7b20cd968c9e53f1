/* The recipe "Norms of Qwen3 and Gemma 3" for Gemma 3: a layer with sliding attention and a layer with full attention. */
enum { BATCH = 2, TOKENS = 3, Q_HEADS = 2, KV_HEADS = 1, DIM = 256 };
#include "recipes/normed.h"

static void check_layer(int sliding)
{
#include "begin.inc"
#include "gemma3.inc"
#include "norms.inc"
    CHECK_OK(status);
    check_normed_model(1.0, sliding ? 10000.0 : 1000000.0, sliding ? 1.0 : 8.0);
    free(args.workspace);
}

int main(void)
{
    fill_normed();
    check_layer(1);
    check_layer(0);
    return check_result();
}
