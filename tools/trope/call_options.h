/* The options that describe a call of the library, for every command that makes one. */
#ifndef TOOLS_TROPE_CALL_OPTIONS_H
#define TOOLS_TROPE_CALL_OPTIONS_H

#include "options.h"
#include "trope/trope.h"

/* Axes of ids, and parts of a window, that the options speak of. */
enum { CALL_MAX_AXES = 3 };

typedef struct machine_options {
    int32_t device; /* TROPE_DEVICE_... */
    int32_t threads;
    int32_t isa;
} machine_options;

typedef struct rotation_options {
    int32_t layout; /* TROPE_SBHD, ..., 0 = not given */
    int32_t pairing, pairing_out;
    int32_t rotary_dim; /* -1 = not given */
    int32_t rotary_offset;
    int32_t parts;
    int32_t inverse;
    int32_t rounding;
    double mscale; /* 0 = not given */
    double base;   /* 0 = 10000 */
    const char *scaling;
} rotation_options;

typedef struct sequence_options {
    int32_t axis_map; /* TROPE_AXES_..., 0 = the axis of the part */
    const char *axis_sections;
    int32_t padding;
    int32_t stream_positions;
    int32_t out_of_range; /* -1 = not given */
    int32_t cp_size, cp_rank, cp_layout;
} sequence_options;

extern const option_spec machine_specs[], rotation_specs[], sequence_specs[];
extern const choice layout_choices[], pairing_choices[], dtype_choices[], device_choices[], isa_choices[];

/* What the fields are before the command line is read. */
#define MACHINE_DEFAULTS  .device = TROPE_DEVICE_AUTO
#define ROTATION_DEFAULTS .pairing = TROPE_PAIRING_HALF, .parts = 1, .rotary_dim = -1
#define SEQUENCE_DEFAULTS .padding = TROPE_PADDING_ZERO, .out_of_range = -1, .cp_size = 1

/* Copies the options into the call. The rotation's shape (rotary_dim, rotary_offset), the angles, the device, and what only
 * goes with cu_seqlens (padding) or a table (out_of_range) are left to the command. */
void rotation_to_args(const rotation_options *options, trope_args *args);
void sequence_to_args(const sequence_options *options, trope_args *args);

/* Has the axes of --axis-map drive the pairs of a call whose parts and ids are known. pair_axis, of `pairs`, must outlive
 * the call. Returns nonzero after a complaint. */
int axes_to_args(const sequence_options *options, int32_t pairs, uint8_t *pair_axis, trope_args *args);

/* The columns of a table: one a pair, or one an element in the order of the forward call's output. */
int32_t columns_of_table(const trope_args *args, int per_element);

/* Writes rotary_dim / 2 frequencies by --base and --scaling, and the mscale of the call: --mscale, or else the rule's
 * attention_factor. With several parts each one gets the frequencies of rotary_dim / parts. Returns nonzero after a
 * complaint. */
int frequencies_by_rule(const rotation_options *options, int32_t rotary_dim, double *inv_freq, double *mscale);

#endif
