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

/* q, k, x and v, and one that is in no file: see add_unseen_operand. */
enum { APPLY_TENSORS = 4, APPLY_OPERANDS = APPLY_TENSORS + 1 };

/* It holds pointers into itself: do not copy it. */
typedef struct apply_call {
    trope_args args;
    trope_operand operands[APPLY_OPERANDS]; /* args.operands */
    const safetensors *file;
    const apply_options *options;
    int32_t count;                            /* tensors that are operands */
    const safetensor *sources[APPLY_TENSORS]; /* of the operands */
    const safetensor *angles;                 /* freqs, cos or inv_freq; NULL = by rule */
    int32_t angle_cols;                       /* of a table */
    int32_t widest;                           /* the largest rotary_dim */
    double inv_freq[TROPE_MAX_ROTARY_DIM / 2];
    uint8_t pair_axis[TROPE_MAX_ROTARY_DIM / 2];
    void *unseen;   /* the memory of the operand that is in no file, or NULL */
    int32_t status; /* what the call reported; 0 where the library refuses instead */
} apply_call;

/* Nonzero after a complaint if the file holds a name that no rule knows. Needs no data. */
int apply_check_names(const safetensors *file);

/* Fills `call` with everything but dst from a loaded file, which must outlive it. Returns nonzero after a complaint;
 * apply_release is due in any case. */
int apply_inputs(const safetensors *file, const apply_options *options, apply_call *call);
void apply_release(apply_call *call);
/* Bytes of operand i. */
size_t apply_operand_bytes(const apply_call *call, int32_t i);

/* The name of the tensor that an error message of the library is about. */
const char *apply_blamed_tensor(const apply_call *call, const char *message);

#endif
