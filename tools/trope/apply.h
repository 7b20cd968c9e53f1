/* trope apply: a call of the library on the tensors of a file. */
#ifndef TOOLS_TROPE_APPLY_H
#define TOOLS_TROPE_APPLY_H

#include "call_options.h"
#include "device.h"
#include "safetensors.h"

typedef struct apply_options {
    rotation_options rotation;
    sequence_options sequence;
    machine_options machine;
    const tool_device *device; /* that machine.device stands for */
    int32_t backward;
    int32_t in_place;
    int64_t ulp;
    const char *output;
    const char *expect;
} apply_options;

typedef struct apply_call {
    trope_args args;
    const safetensors *file;
    const apply_options *options;
    const safetensor *sources[TROPE_MAX_OPERANDS]; /* of args.operands */
    const safetensor *angles;                      /* freqs, cos or inv_freq; NULL = by rule */
    int32_t angle_cols;                            /* of a table */
    int32_t widest;                                /* the largest rotary_dim */
    double inv_freq[TROPE_MAX_ROTARY_DIM / 2];
    int32_t status; /* what the call reported; 0 where the library refuses instead */
} apply_call;

/* Nonzero after a complaint if the file holds a name that no rule knows. Needs no data. */
int apply_check_names(const safetensors *file);

/* Fills `call` with everything but dst from a loaded file, which must outlive it. Returns nonzero after a complaint. */
int apply_inputs(const safetensors *file, const apply_options *options, apply_call *call);

/* The name of the tensor that an error message of the library is about. */
const char *apply_blamed_tensor(const apply_call *call, const char *message);

#endif
