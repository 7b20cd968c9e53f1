/* A program outside the project, built against an installed trope: turns (1, 0) by a right angle and expects (0, 1). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <trope/trope.h>

int main(void)
{
    const float x[2] = {1, 0}, angle[1] = {1.57079632679f};
    float y[2] = {0, 0};
    trope_args args = {0};
    args.struct_size = sizeof args;
    args.device = TROPE_DEVICE_CPU;
    args.operand_count = 1;
    args.batch = args.tokens = 1;
    args.operands[0].src = x;
    args.operands[0].dst = y;
    args.operands[0].heads_per_group = 1;
    args.operands[0].head_dim = args.operands[0].rotary_dim = 2;
    trope_fill_strides(args.operands[0].src_stride, TROPE_BSHD, 1, 1, 1, 2);
    trope_fill_strides(args.operands[0].dst_stride, TROPE_BSHD, 1, 1, 1, 2);
    args.freqs = angle;
    args.angle_rows = args.angle_cols = 1;
    if (trope_forward(&args) != TROPE_OK) {
        fprintf(stderr, "%s\n", trope_last_error());
        return 1;
    }
    printf("trope %s turns (1, 0) to (%g, %g)\n", trope_version(), y[0], y[1]);
    return !(fabsf(y[0]) < 1e-6f && fabsf(y[1] - 1) < 1e-6f);
}
