/* The options that describe a call of the library, for every command that makes one. */
#ifndef TOOLS_TROPE_CALL_OPTIONS_H
#define TOOLS_TROPE_CALL_OPTIONS_H

#include "options.h"
#include "trope/trope.h"

/* Parts of a window that the options speak of. */
enum { CALL_MAX_PARTS = TROPE_MAX_AXES };

/* rotary_offset that is not given. */
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
    double partial_rotary_factor; /* of a head that rotates, in place of rotary_dim; 0 = not given */
    int32_t rotary_offset;        /* of the window; below 0: from the end of a head; or ROTARY_OFFSET_NONE */
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

/* What the fields are before the command line is read. */
#define MACHINE_DEFAULTS  .device = TROPE_DEVICE_AUTO
#define ROTATION_DEFAULTS .parts = 1, .rotary_dim = -1, .rotary_offset = ROTARY_OFFSET_NONE
#define SEQUENCE_DEFAULTS .cp_rank = -1

/* Copies the options into the call. The rotation's shape (rotary_dim, rotary_offset), the angles, the device, and what only
 * goes with cu_seqlens (padding) or a table (out_of_range) are left to the command. */
void rotation_to_args(const rotation_options *options, trope_args *args);
/* Returns nonzero after a complaint. */
int sequence_to_args(const sequence_options *options, trope_args *args);
/* Ranks that share a stream: 1 without --cp-size. */
int64_t cp_ranks(const sequence_options *options);

/* What contradicts by itself. Returns nonzero after a complaint. */
int check_rotation(const rotation_options *options);
/* How many elements of a head of head_dim rotate, -1 where neither --rotary-dim nor --partial-rotary-factor says it. */
int32_t rotary_dim_in(const rotation_options *options, int32_t head_dim);
/* The first element of a window of rotary_dim in a head of head_dim: --rotary-offset, 0 if it is not given. Below 0 where
 * the head is too small for it. */
int32_t rotary_offset_in(const rotation_options *options, int32_t head_dim);

/* The columns of a table: one a pair, or one an element in the order of the forward call's output. */
int32_t columns_of_table(const trope_args *args, int per_element);

/* Writes rotary_dim / 2 frequencies by --rope-theta and --scaling, and the mscale of the call: --mscale, or else the rule's
 * attention_factor. With several parts each one gets the frequencies of rotary_dim / parts. The positions go up to
 * last_position, which a rule that depends on the length must have been told of. Returns nonzero after a complaint. */
int frequencies_by_rule(const rotation_options *options, int32_t rotary_dim, int64_t last_position, double *inv_freq,
                        double *mscale);

/* Complains of what the library refused (`message`, its last error), in the words of the command line. */
int complain_of_library(const char *message);

#endif
