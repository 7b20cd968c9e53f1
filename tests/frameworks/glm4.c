/* GLM-4: a table of equal halves, cat((freqs, freqs)), beside interleaved pairs and half a head that is rotated. The model
 * takes the first half of the columns and repeats each (repeat_interleave). The library takes the table as it is, by halves;
 * or, as the model does, only its first half, whatever the second one holds. */
#include <stdio.h>

#include "frameworks/checks.h"

enum { B = 2, S = 9, R = 64, HEAD_DIM = 128 };

static float table[2][B * S][R];
static float cos_sin[2][B * S][R];

static void check_columns(int32_t columns, int32_t dtype, random_state *random)
{
    const shape s = {TROPE_BHSD, B, S, 4, HEAD_DIM};
    const rotation r = {dtype, TROPE_ROUND_NATIVE, TROPE_PAIRING_INTERLEAVED, TROPE_PAIRING_INTERLEAVED, R};
    char what[64];
    snprintf(what, sizeof what, "GLM-4, columns %d, %s", (int)columns, number_name(dtype));
    for (int kind = 0; kind < 2; kind++)
        for (int row = 0; row < B * S; row++)
            for (int i = 0; i < R / 2; i++) {
                table[kind][row][i] = (float)random_real(random);
                table[kind][row][i + R / 2] = columns == TROPE_COLUMNS_HALF ? table[kind][row][i] : NAN;
                cos_sin[kind][row][i] = cos_sin[kind][row][i + R / 2] = table[kind][row][i];
            }
    call c = call_make(dtype, B, S);
    call_tables(&c, table[0], table[1], TROPE_F32, columns, S);
    c.args.angle_layout = TROPE_TABLE_BATCH_ROWS;
    if (columns == TROPE_COLUMNS_PAIR) {
        const int64_t stride[4] = {0, S * R, R, 1};
        c.args.angle_layout = TROPE_TABLE_STRIDED;
        memcpy(c.args.angle_stride, stride, sizeof stride);
    }
    check_eager(what, &c, &s, &r, &(coefficients){cos_sin[0][0], cos_sin[1][0]}, random);
}

int main(void)
{
    random_state random = {8};
    const int32_t dtypes[] = {TROPE_F32, TROPE_BF16};
    for (int d = 0; d < 2; d++) {
        check_columns(TROPE_COLUMNS_HALF, dtypes[d], &random);
        check_columns(TROPE_COLUMNS_PAIR, dtypes[d], &random);
    }
    return check_result();
}
