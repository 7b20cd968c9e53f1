/* trope check: a problem to check, and a slow evaluation in double that shares no code with the library. */
#ifndef TOOLS_TROPE_CHECK_H
#define TOOLS_TROPE_CHECK_H

#include "call_options.h"
#include "check_progress.h"
#include "device_mirror.h"

enum { ANGLES_INV_FREQ = 0, ANGLES_FREQS = 1, ANGLES_TABLE = 2 };

#define CHECK_LARGEST 0x10000000 /* limit for the elements of all heads, and of the tables that the positions need */

typedef struct check_options {
    rotation_options rotation;
    sequence_options sequence;
    machine_options machine;
    const tool_device *device; /* the device of machine.device */
    int64_t batch, tokens;
    int32_t heads, k_heads, head_dim; /* k_heads: 0 = one operand */
    const char *shape;
    const char *cu_seqlens, *cu_seqlens_padded; /* "0,5,9", NULL = not given */
    int32_t dtype;
    int32_t angles; /* ANGLES_... */
    int32_t full;   /* 1: the table has one column per element */
    int32_t quiet;
    int64_t seed;
} check_options;

/* Q and K. */
enum { CHECK_OPERANDS = 2 };

/* Operands in the chosen layout. The checks use doubles in the order [batch, tokens, heads, head_dim], one operand after
 * the other. */
typedef struct check_problem {
    const check_options *options;
    check_progress *progress;
    trope_args args;                       /* without pointers; each call sets them */
    trope_operand operand[CHECK_OPERANDS]; /* also without pointers */
    int64_t stride[CHECK_OPERANDS][TROPE_MAX_DIMS];
    int64_t first[CHECK_OPERANDS]; /* first element of an operand */
    int64_t elements;              /* of all operands */
    int32_t pairs, cols;
    int64_t *cu_seqlens, *cu_seqlens_padded; /* on the host; NULL = none */
    int64_t *position;                       /* [tokens], the same in each batch entry */
    uint8_t *is_padding;                     /* [tokens] */
    int64_t rows;                            /* number of angles per pair: the last position + 1 */
    double mscale;
    uint64_t seed, drawn;                       /* of the random numbers, and how many have been drawn */
    double *pair_angle;                         /* [rows, 2, pairs]: of the first and of the second element of each pair */
    double *cosine, *sine;                      /* the same, as passed to the library */
    double rule_freq[TROPE_MAX_ROTARY_DIM / 2]; /* by --rope-theta and --scaling */
    double inv_freq[TROPE_MAX_ROTARY_DIM / 2];  /* the same, as passed to the library */
    void *src, *dst, *forward_src;              /* of the call's dtype, with its strides */
    void *freqs, *cos_table, *sin_table;        /* [rows, cols], of the angles' dtype */
    double *d_angles;                           /* [rows, cols], or [pairs] with inv_freq; f64 problems only */
    device_mirror mirror;                       /* copies of these on the device that runs the calls */
    double *x, *y, *z, *result, *magnitude;     /* scratch of the checks, `elements` each */
} check_problem;

/* Allocates a problem of a dtype and gives it random angles. Returns nonzero after a complaint. Call check_release in any
 * case. */
int check_prepare(check_problem *p, const check_options *options, int32_t dtype);
void check_release(check_problem *p);

/* Returns the number of tokens of this rank if --tokens is not given: the tokens in cu_seqlens, or 0 without cu_seqlens.
 * Returns -1 after a complaint. */
int64_t check_tokens_of_sequences(const check_options *options);
/* Sets the sequences, positions and padding of a problem from the options. Its batch and tokens must be set. Returns
 * nonzero after a complaint. */
int check_place_tokens(check_problem *p);

/* Returns a random number in [-1, 1). */
double check_random(check_problem *p);
/* Fills with random values that the dtype represents exactly. */
void check_fill(check_problem *p, double *values);
/* The same, with 0 where the call must write 0. The inverse can restore these values. */
void check_fill_kept(check_problem *p, double *values);
/* Returns whether a result may be infinite or NaN because its magnitude is too large for the dtype. */
int check_overflows(const check_problem *p, double magnitude);

/* Draws the angles of every pair and writes them. The two elements of a pair get different angles, unless `alike` is set or
 * they share a column. */
void check_draw_angles(check_problem *p, int alike);
/* Writes the angle source, and cosine and sine, from pair_angle. */
void check_write_angles(check_problem *p);
/* Rewrites one angle, moved by `step` from its drawn value: in a column of a table, or for a pair in inv_freq (row is not
 * used). */
void check_move_angle(check_problem *p, int64_t row, int32_t column, double step);

/* Computes out = M in, or M' in, with the library. Returns nonzero after a complaint. */
int check_call(check_problem *p, int backward, const double *in, double *out);
/* Writes the gradient of the angles to d_angles, for input x and upstream gradient dy. Returns nonzero after a
 * complaint. */
int check_call_angle_gradient(check_problem *p, const double *x, const double *dy);

/* Returns the first and the second element of pair i of the window. */
void reference_pair(const check_problem *p, int32_t pairing, int32_t pair, int32_t element[2]);
/* Computes out = M in, or M' in, in double. The magnitude of an element is mscale * (|in1| + |in2|) of its pair,
 * or 0 if it is not rotated. */
void reference_apply(const check_problem *p, int backward, const double *in, double *out, double *magnitude);

#endif
