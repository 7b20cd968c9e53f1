/* trope check: a problem to check, and a slow evaluation of it in double that shares nothing with the library. */
#ifndef TOOLS_TROPE_CHECK_H
#define TOOLS_TROPE_CHECK_H

#include "call_options.h"
#include "check_progress.h"
#include "device_mirror.h"

enum { ANGLES_INV_FREQ = 0, ANGLES_FREQS = 1, ANGLES_TABLE = 2 };

#define CHECK_LARGEST 0x10000000 /* elements of all heads, and of the tables that the positions need */

typedef struct check_options {
    rotation_options rotation;
    sequence_options sequence;
    machine_options machine;
    const tool_device *device; /* that machine.device stands for */
    int64_t batch, tokens;
    int32_t heads, k_heads, head_dim; /* k_heads: 0 = one operand */
    const char *shape;
    const char *cu_seqlens, *cu_seqlens_padded; /* "0,5,9", NULL = not given */
    int32_t dtype;
    int32_t angles; /* ANGLES_... */
    int32_t full;   /* a table with one column per element */
    int32_t quiet;
    int64_t seed;
} check_options;

/* Q, and K. */
enum { CHECK_OPERANDS = 2 };

/* Operands in the layout that was asked for. The checks see them as doubles in [batch, tokens, heads, head_dim] order, one
 * behind the other. */
typedef struct check_problem {
    const check_options *options;
    check_progress *progress;
    trope_args args;                       /* without pointers; the calls get them */
    trope_operand operand[CHECK_OPERANDS]; /* likewise */
    int64_t stride[CHECK_OPERANDS][TROPE_MAX_DIMS];
    int64_t first[CHECK_OPERANDS]; /* of an operand's elements */
    int64_t elements;              /* of all operands */
    int32_t pairs, cols;
    int64_t *cu_seqlens, *cu_seqlens_padded; /* NULL = none; the host's */
    int64_t *position;                       /* [tokens], the same in each batch entry */
    uint8_t *is_padding;                     /* [tokens] */
    int64_t rows;                            /* angles that there are: the last position + 1 */
    double mscale;
    uint64_t seed, drawn;                       /* of random numbers, and how many there were */
    double *pair_angle;                         /* [rows, 2, pairs]: of the first and of the second element of each pair */
    double *cosine, *sine;                      /* the same, as the library is given them */
    double rule_freq[TROPE_MAX_ROTARY_DIM / 2]; /* by --rope-theta and --scaling */
    double inv_freq[TROPE_MAX_ROTARY_DIM / 2];  /* the same, as the library is given them */
    void *src, *dst, *forward_src;              /* of the call's dtype, through its strides */
    void *freqs, *cos_table, *sin_table;        /* [rows, cols], of the angles' dtype */
    double *d_angles;                           /* [rows, cols], or [pairs] with inv_freq; f64 problems only */
    device_mirror mirror;                       /* of those, where the calls are made */
    double *x, *y, *z, *result, *magnitude;     /* `elements` each, for the checks to use */
} check_problem;

/* Allocates a problem of a dtype and gives it random angles. Returns nonzero after a complaint; check_release is due. */
int check_prepare(check_problem *p, const check_options *options, int32_t dtype);
void check_release(check_problem *p);

/* The tokens of this rank where --tokens does not say it: what cu_seqlens hold, or 0 without them. -1 after a complaint. */
int64_t check_tokens_of_sequences(const check_options *options);
/* Sequences, positions and padding of a problem with batch and tokens, as the options describe them. Returns nonzero after
 * a complaint. */
int check_place_tokens(check_problem *p);

/* In [-1, 1). */
double check_random(check_problem *p);
/* Random values that the dtype holds exactly. */
void check_fill(check_problem *p, double *values);
/* The same, with 0 where the call has to write 0: what the inverse can give back. */
void check_fill_kept(check_problem *p, double *values);
/* Whether a result may be infinite or NaN: the dtype has no finite number for its magnitude. */
int check_overflows(const check_problem *p, double magnitude);

/* Draws the angles of every pair and writes them. Those of its two elements differ, unless they must be alike or there is
 * only one column for both. */
void check_draw_angles(check_problem *p, int alike);
/* Writes the columns of the angle source, and cosine and sine, from pair_angle. */
void check_write_angles(check_problem *p);
/* Writes one angle anew, `step` from where it was drawn: that of a column of a table, or of a pair in inv_freq (row is not
 * used). */
void check_move_angle(check_problem *p, int64_t row, int32_t column, double step);

/* out = M in, or M' in, by the library. Returns nonzero after a complaint. */
int check_call(check_problem *p, int backward, const double *in, double *out);
/* The gradient of the angles, to d_angles, for input x and upstream gradient dy. Returns nonzero after a complaint. */
int check_call_angle_gradient(check_problem *p, const double *x, const double *dy);

/* Where pair i of the window has its first and its second element. */
void reference_pair(const check_problem *p, int32_t pairing, int32_t pair, int32_t element[2]);
/* out = M in, or M' in, in double. magnitude of an element: mscale * (|in1| + |in2|) of its pair, 0 if it is not rotated.
 */
void reference_apply(const check_problem *p, int backward, const double *in, double *out, double *magnitude);

#endif
