#include "core/error.h"

typedef long long ll;

/* Dimensions of each layout from the innermost but one outwards; the innermost is always the element. */
static const int orders[][3] = {
    [TROPE_SBHD] = {TROPE_DIM_HEAD, TROPE_DIM_BATCH, TROPE_DIM_TOKEN},
    [TROPE_BSHD] = {TROPE_DIM_HEAD, TROPE_DIM_TOKEN, TROPE_DIM_BATCH},
    [TROPE_BHSD] = {TROPE_DIM_TOKEN, TROPE_DIM_HEAD, TROPE_DIM_BATCH},
    [TROPE_THD] = {TROPE_DIM_HEAD, TROPE_DIM_TOKEN, TROPE_DIM_BATCH},
};

trope_status trope_fill_strides(int64_t *stride, int32_t layout, int64_t batch, int64_t tokens, int32_t heads,
                                int32_t head_dim)
{
    static const char function[] = "trope_fill_strides";
    if (!stride)
        return trope_fail(TROPE_ERROR_NULL, "%s: stride is NULL", function);
    if (layout < TROPE_SBHD || layout > TROPE_THD)
        return trope_fail(TROPE_ERROR_ARGUMENT, "%s: layout (%d) must be one of 1 to 4", function, layout);
    if (batch < 0 || tokens < 0)
        return trope_fail(TROPE_ERROR_ARGUMENT, "%s: batch (%lld) and tokens (%lld) must be at least 0", function,
                          (ll)batch, (ll)tokens);
    if (heads < 1 || head_dim < 1)
        return trope_fail(TROPE_ERROR_ARGUMENT, "%s: heads (%d) and head_dim (%d) must be at least 1", function, heads,
                          head_dim);
    if (layout == TROPE_THD && batch != 1)
        return trope_fail(TROPE_ERROR_ARGUMENT, "%s: batch (%lld) must be 1 for thd", function, (ll)batch);
    const int64_t size[] = {[TROPE_DIM_BATCH] = batch, [TROPE_DIM_TOKEN] = tokens, [TROPE_DIM_HEAD] = heads};
    int64_t filled[TROPE_MAX_DIMS] = {[TROPE_DIM_ELEMENT] = 1}, step = head_dim;
    for (int i = 0; i < 3; i++) {
        const int d = orders[layout][i];
        filled[d] = step;
        if (__builtin_mul_overflow(step, size[d] > 1 ? size[d] : 1, &step))
            return trope_fail(TROPE_ERROR_OVERFLOW,
                              "%s: batch (%lld) * tokens (%lld) * heads (%d) * head_dim (%d) does not fit", function,
                              (ll)batch, (ll)tokens, heads, head_dim);
    }
    filled[TROPE_DIM_GROUP] = heads * filled[TROPE_DIM_HEAD];
    for (int d = 0; d < TROPE_MAX_DIMS; d++)
        stride[d] = filled[d];
    return TROPE_OK;
}
