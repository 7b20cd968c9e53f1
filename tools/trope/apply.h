/* trope apply: calls of the library on the tensors of a file.
 *
 * What a file holds is found out in this order: names (apply_names.c) make groups of tensors, a call each; the layout and
 * the positions of a call (apply_inputs.c); its angles and which elements they rotate (apply_angles.c). Where two readings
 * fit, the call is refused with the option that chooses. */
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
    int32_t head_dim;          /* 0 = not given */
    int32_t columns;           /* TROPE_COLUMNS_..., 0 = not given */
    int32_t table_layout;      /* of apply_angles.c, 0 = not given */
    int32_t table_rows;        /* APPLY_ROWS_..., 0 = not given */
    int32_t backward;
    int32_t in_place;
    int32_t quiet;
    int64_t ulp; /* -1 = not given */
    const char *output;
    const char *expect;
    const char *config, *layer_type;
} apply_options;

/* What a row of a table belongs to. */
enum { APPLY_ROWS_POSITIONS = 1, APPLY_ROWS_TOKENS = 2 };

extern const choice column_choices[], table_layout_choices[], table_row_choices[];

/* What a tensor is, by its name. Those before APPLY_OPERANDS are rotated, or copied. */
typedef enum apply_role {
    APPLY_Q,
    APPLY_K,
    APPLY_X,
    APPLY_V,
    APPLY_OPERANDS,
    APPLY_FREQS = APPLY_OPERANDS,
    APPLY_FREQS_CIS,
    APPLY_COS,
    APPLY_SIN,
    APPLY_INV_FREQ,
    APPLY_CU_SEQLENS,
    APPLY_CU_SEQLENS_PADDED,
    APPLY_START_POSITIONS,
    APPLY_POSITION_IDS,
    APPLY_ROLES
} apply_role;

/* Operands whose names begin alike ("model.layers.3.self_attn."), with the tensors that go with them. */
typedef struct apply_group {
    const safetensor *tensors[APPLY_ROLES]; /* NULL = not there */
} apply_group;

typedef struct apply_groups {
    int32_t count;
    apply_group *groups;
} apply_groups;

/* The groups of a file by its names; loads all tensors but the operands. Returns nonzero after a complaint. Release with
 * free(groups->groups). */
int apply_find_groups(const safetensors *file, apply_groups *groups);

/* How the bytes of a table are read. */
typedef struct apply_table {
    int64_t axes, batch, rows; /* 1 = the same for all */
    int64_t stride[3];         /* of axis, batch and row, in columns; 0 where there is one */
    int32_t columns;           /* numbers in a row */
    int32_t column_form;       /* TROPE_COLUMNS_... */
    int32_t by_token;          /* row i is that of token i */
} apply_table;

/* Makes calls with one operand each. It holds pointers into itself: do not copy it. */
typedef struct apply_call {
    trope_args args; /* all but the operands */
    const safetensors *file;
    const apply_options *options;
    const apply_group *group;
    const safetensor *angles; /* a table, its cosines, or inv_freq; NULL = by rule */
    apply_table table;        /* where angles is a table */
    int32_t layout;           /* of the operands */
    int32_t rotary_dim;       /* of those that rotate; 0 = none does */
    int64_t first_position, last_position;
    int64_t padding;       /* tokens of no sequence, of all batch entries */
    int32_t counts_tokens; /* whether the position of each token is its index */
    uint8_t *is_origin;    /* [batch, tokens]: whether it rotates by position 0 of all axes */
    double inv_freq[TROPE_MAX_ROTARY_DIM / 2];
    uint8_t pair_axis[TROPE_MAX_ROTARY_DIM / 2];
    int64_t *token_ids; /* 0, 1, 2, ... where rows are by token; or NULL */
    int32_t status;     /* what the last call reported */
} apply_call;

/* Fills `call` from a group of a file whose other tensors are loaded. Returns nonzero after a complaint; apply_release is
 * due in any case. */
int apply_prepare(const safetensors *file, const apply_group *group, const apply_options *options, apply_call *call);
void apply_release(apply_call *call);
/* The operand of a tensor, without memory. Returns nonzero after a complaint. */
int apply_fill_operand(const apply_call *call, const safetensor *tensor, trope_operand *operand);
int apply_rotates(const apply_call *call, const safetensor *tensor);

/* The steps of apply_prepare that are in apply_angles.c. Each returns nonzero after a complaint. */
int apply_angles(apply_call *call);
/* Whether a table of the group can have this batch and these many tokens. */
int apply_table_fits(const apply_call *call, int64_t batch, int64_t tokens);

/* "q F32 [2, 3] must ..." on standard error. */
__attribute__((format(printf, 3, 4))) int apply_refuse(const apply_call *call, const safetensor *tensor, const char *format,
                                                       ...);
/* What was understood, a line each of the group's tensors, on standard error. */
void apply_explain(const apply_call *call);

#endif
