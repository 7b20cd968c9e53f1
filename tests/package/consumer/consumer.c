/* A program outside the project, built with an installed trope. It rotates (1, 0) by a right angle and expects (0, 1). */
#include <math.h>
#include <stdio.h>

#include <trope/trope.h>

int main(void)
{
    const float x[2] = {1, 0}, angle[1] = {1.57079632679f};
    float y[2] = {0, 0};
    trope_operand operand;
    trope_fill_operand(&operand, y, TROPE_BSHD, 1, 2, 2);
    operand.src = x;
    trope_args args = {0};
    args.struct_size = sizeof args;
    args.device = TROPE_DEVICE_CPU;
    args.dtype = args.angle_dtype = TROPE_F32;
    args.operands = &operand;
    args.operand_count = 1;
    args.operand_size = sizeof operand;
    args.batch = args.tokens = 1;
    args.pairing = TROPE_PAIRING_HALF;
    args.freqs = angle;
    args.angle_columns = TROPE_COLUMNS_PAIR;
    args.angle_layout = TROPE_TABLE_ROWS;
    args.angle_rows = 1;
    if (trope_forward(&args) != TROPE_OK) {
        fprintf(stderr, "%s\n", trope_last_error());
        return 1;
    }
    printf("trope %s rotates (1, 0) to (%g, %g)\n", trope_version(), y[0], y[1]);
    return !(fabsf(y[0]) < 1e-6f && fabsf(y[1] - 1) < 1e-6f);
}
