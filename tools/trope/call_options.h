/* The options that describe a call of the library, for every command that makes one. */
#ifndef TOOLS_TROPE_CALL_OPTIONS_H
#define TOOLS_TROPE_CALL_OPTIONS_H

#include "options.h"
#include "trope/trope.h"

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
    int32_t windows;
    int32_t inverse;
    int32_t rounding;
    double mscale; /* 0 = not given */
    double base;   /* 0 = not given */
    const char *scaling;
} rotation_options;

typedef struct sequence_options {
    int32_t axis_map;
    const char *axis_sections;
    int32_t padding;
    int32_t packed_positions;
    int32_t out_of_range; /* -1 = not given */
    int32_t cp_size, cp_rank, cp_layout;
} sequence_options;

extern const option_spec machine_specs[], rotation_specs[], sequence_specs[];
extern const choice layout_choices[], pairing_choices[], dtype_choices[], device_choices[], isa_choices[];

/* What the fields are before the command line is read. */
#define ROTATION_DEFAULTS .rotary_dim = -1
#define SEQUENCE_DEFAULTS .out_of_range = -1

/* Copies the options into the call. The rotation's shape (rotary_dim, rotary_offset), the angles and the device are left to
 * the command. sequence_to_args returns nonzero after a complaint. */
void rotation_to_args(const rotation_options *options, trope_args *args);
int sequence_to_args(const sequence_options *options, trope_args *args);

/* Writes rotary_dim / 2 frequencies by --base and --scaling, and the mscale of the call: --mscale, or else the rule's. With
 * several windows each one gets the frequencies of rotary_dim / windows. Returns nonzero after a complaint. */
int frequencies_by_rule(const rotation_options *options, int32_t rotary_dim, double *inv_freq, double *mscale);

#endif
