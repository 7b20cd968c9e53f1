/* The options that describe a call of the library, shared by all commands that make one. */
#ifndef TOOLS_TROPE_CALL_OPTIONS_H
#define TOOLS_TROPE_CALL_OPTIONS_H

#include "options.h"
#include "trope/trope.h"

/* Largest number of window parts in these options. */
enum { CALL_MAX_PARTS = TROPE_MAX_AXES };

/* Value of rotary_offset if the option is not given. */
#define ROTARY_OFFSET_NONE INT32_MIN

typedef struct machine_options {
    int32_t device; /* TROPE_DEVICE_... */
    int32_t threads;
    int32_t isa;
} machine_options;

typedef struct rotation_options {
    int32_t layout;               /* TROPE_SBHD, ..., 0 = not given */
    int32_t pairing, pairing_out; /* 0 = not given */
    int32_t rotary_dim;           /* -1 = not given */
    double partial_rotary_factor; /* fraction of a head that rotates, instead of rotary_dim; 0 = not given */
    int32_t rotary_offset;        /* of the window; negative: from the end of a head; or ROTARY_OFFSET_NONE */
    int32_t parts;
    int32_t inverse;
    int32_t rounding;
    double mscale;     /* 0 = not given */
    double rope_theta; /* base of the frequencies, 0 = not given */
    int64_t seq_len;   /* tokens, for rules that depend on the length; 0 = not given */
    const char *scaling;
} rotation_options;

typedef struct sequence_options {
    int32_t padding; /* TROPE_PADDING_..., 0 = not given */
    int32_t stream_positions;
    int32_t cp_size, cp_rank, cp_layout; /* 0, -1, 0 = not given */
} sequence_options;

extern const option_spec machine_specs[], rotation_specs[], sequence_specs[];
extern const choice layout_choices[], pairing_choices[], dtype_choices[], device_choices[], isa_choices[];

/* Values of the fields before the command line is read. */
#define MACHINE_DEFAULTS  .device = TROPE_DEVICE_AUTO
#define ROTATION_DEFAULTS .parts = 1, .rotary_dim = -1, .rotary_offset = ROTARY_OFFSET_NONE
#define SEQUENCE_DEFAULTS .cp_rank = -1

/* Copies the options into the call. The command must set the rest: the shape of the rotation (rotary_dim, rotary_offset),
 * the angles, the device, and the fields that need cu_seqlens (padding) or a table (out_of_range). */
void rotation_to_args(const rotation_options *options, trope_args *args);
/* Returns nonzero after a complaint. */
int sequence_to_args(const sequence_options *options, trope_args *args);
/* Returns the number of ranks that share a stream. It is 1 without --cp-size. */
int64_t cp_ranks(const sequence_options *options);

/* Checks for options that contradict each other. Returns nonzero after a complaint. */
int check_rotation(const rotation_options *options);
/* Returns the number of elements that rotate in a head of head_dim, or -1 if neither --rotary-dim nor
 * --partial-rotary-factor is given. */
int32_t rotary_dim_in(const rotation_options *options, int32_t head_dim);
/* Returns the first element of a window of rotary_dim in a head of head_dim: --rotary-offset, or 0 if it is not given. The
 * result is negative if the head is too small. */
int32_t rotary_offset_in(const rotation_options *options, int32_t head_dim);

/* Returns the column kind of a table: one column per pair, or one per element in the order of the forward call's output. */
int32_t columns_of_table(const trope_args *args, int per_element);

/* Writes rotary_dim / 2 frequencies by --rope-theta and --scaling, and the mscale of the call: --mscale, or else the rule's
 * attention_factor. With several parts, each part gets the frequencies of rotary_dim / parts. last_position is the largest
 * position. A rule that depends on the length needs --seq-len to cover it. Returns nonzero after a complaint. */
int frequencies_by_rule(const rotation_options *options, int32_t rotary_dim, int64_t last_position, double *inv_freq,
                        double *mscale);

/* Reports the library's refusal. Translates `message`, its last error, to the names of command line options. */
int complain_of_library(const char *message);

#endif
