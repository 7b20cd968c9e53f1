/* trope_fill_strides gives the strides of a contiguous tensor: walking its dimensions in order walks the memory. */
#include "support/check.h"
#include "trope/trope.h"

/* The dimensions of a layout, outermost first. */
static void check_layout(int32_t layout, const int *order, const int64_t *size)
{
    int64_t stride[TROPE_MAX_DIMS], expected = 1;
    const trope_status status = trope_fill_strides(stride, layout, size[TROPE_DIM_BATCH], size[TROPE_DIM_TOKEN],
                                                   (int32_t)size[TROPE_DIM_HEAD], (int32_t)size[TROPE_DIM_ELEMENT]);
    CHECK_MESSAGE(status == TROPE_OK, "layout %d: %s", layout, trope_last_error());
    for (int i = 3; i >= 0; i--) {
        CHECK_MESSAGE(stride[order[i]] == expected, "layout %d: stride[%d] is %lld, not %lld", layout, order[i],
                      (long long)stride[order[i]], (long long)expected);
        expected *= size[order[i]];
    }
    const int64_t group = stride[TROPE_DIM_HEAD] * size[TROPE_DIM_HEAD];
    CHECK_MESSAGE(stride[TROPE_DIM_GROUP] == group, "layout %d: the group stride is %lld, not %lld", layout,
                  (long long)stride[TROPE_DIM_GROUP], (long long)group);
}

int main(void)
{
    enum { B = TROPE_DIM_BATCH, S = TROPE_DIM_TOKEN, H = TROPE_DIM_HEAD, D = TROPE_DIM_ELEMENT };
    const int sbhd[] = {S, B, H, D}, bshd[] = {B, S, H, D}, bhsd[] = {B, H, S, D};
    const int64_t some[] = {3, 5, 1, 7, 11}, one[] = {1, 1, 1, 1, 1}, packed[] = {1, 5, 1, 7, 11};
    const int64_t large[] = {1 << 10, 1 << 20, 1, 1 << 8, 1 << 8};
    const int64_t *sizes[] = {some, one, packed, large};
    for (int i = 0; i < 4; i++) {
        check_layout(TROPE_SBHD, sbhd, sizes[i]);
        check_layout(TROPE_BSHD, bshd, sizes[i]);
        check_layout(TROPE_BHSD, bhsd, sizes[i]);
    }
    check_layout(TROPE_THD, bshd, packed);
    return check_result();
}
