/* Random calls. A config is one call together with all memory that it reads and writes. It is made from a seed and a
 * choice for each option. The same seed and choices give the same config, byte for byte, on every machine.
 *
 *     config_choices choices = config_choose(seed);              random choices, with contradictions repaired
 *     config *c = config_make(seed, &choices);
 *     call k = config_call(c, backward);                         its pointers point into c's buffers
 *     ... config_run(c, call_args(&k), backward) ...
 *     config_reset(c);                                           restores the initial content of the buffers
 *
 * Every pointer of the call points into one of c->buffers, except inv_freq, phase_step and pair_axis, which stay host
 * arrays. So a call can run elsewhere: copy the buffers to new places, for example to GPU memory, and call config_rebase
 * to move the pointers there.
 *
 * The configs specify their tensors in every possible way. A test that needs the addresses of elements uses
 * support/tensor.h, or makes the call specify strides (tensor_say_strides).
 *
 * Memory that the call reads is random, never zeros or constants, and its size is exact to the byte, so that a sanitizer
 * detects a read beyond it. The gaps between its elements are 0xFF. Memory that the call writes starts as 0xFF (random
 * where the call accumulates), and has guard zones around it. */
#ifndef TESTS_SUPPORT_CONFIG_H
#define TESTS_SUPPORT_CONFIG_H

#include <stddef.h>
#include <stdint.h>

#include "support/call.h"
#include "support/random.h"
#include "trope/trope.h"

typedef enum config_option {
    OPTION_DTYPE,
    OPTION_ROUNDING, /* TROPE_ROUND_... */
    OPTION_PAIRING,
    OPTION_PARTS, /* the number of parts minus 1 */
    OPTION_AXES,
    OPTION_ANGLES,
    OPTION_COLUMNS,
    OPTION_ANGLE_DTYPE,
    OPTION_TABLE,
    OPTION_SEQUENCES,
    OPTION_CU_DTYPE,
    OPTION_PADDING, /* TROPE_PADDING_... or 0 */
    OPTION_CP,      /* TROPE_CP_... or 0 */
    OPTION_POSITIONS,
    OPTION_POSITION_DTYPE,
    OPTION_IDS,
    OPTION_RANGE,
    OPTION_DIRECTION,
    OPTION_MSCALE,
    OPTION_OPERANDS, /* the number of operands minus 1, or OPERANDS_MANY */
    OPTION_HEADS,
    OPTION_WINDOW,
    OPTION_SIZE,
    OPTION_PLACE,
    OPTION_LAYOUT,
    OPTION_GIVEN_BY,
    OPTION_SOURCE,
    OPTION_ELEMENTS,
    OPTION_SHARED,
    OPTION_ACCUMULATE,
    OPTION_GRADIENT,
    OPTION_GRADIENT_TABLE,
    OPTION_NORM,
    OPTION_NORM_SCOPE, /* TROPE_NORM_HEAD or _TOKEN, minus 1 */
    OPTION_NORM_ORDER, /* TROPE_NORM_BEFORE or _AFTER, minus 1 */
    OPTION_WEIGHT,
    OPTION_WEIGHT_HEADS,
    OPTION_WEIGHT_PLUS,   /* weight_plus_one */
    OPTION_NORM_ROUNDING, /* TROPE_NORM_ROUND_..., minus 1 */
    OPTION_RSTD,
    OPTION_D_WEIGHT,
    OPTION_SUMS, /* token_sums of norms over tokens */
    OPTION_STRUCTS,
    OPTION_COUNT
} config_option;

/* The values of the options, in the order of their names in config.c. */
enum { DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_F64 };
enum { INDEX_I32, INDEX_I64 };
enum { PAIRING_HALF, PAIRING_INTERLEAVED, PAIRING_TO_INTERLEAVED, PAIRING_TO_HALF };
/* PARTS: pair_axis is NULL, so the axis of each pair is its part. */
enum { AXES_PARTS, AXES_SECTIONS, AXES_INTERLEAVED, AXES_ALTERNATING, AXES_HWT, AXES_RANDOM };
enum { ANGLES_FREQS, ANGLES_TABLE, ANGLES_INV_FREQ, ANGLES_PHASE_STEP };
enum { COLUMNS_PAIR, COLUMNS_HALF, COLUMNS_INTERLEAVED };
/* PADDED: the strides of one of the first three layouts, with gaps. COLLAPSED: some strides are 0. COMPLEX: cos and sin
 * alternate in memory, in one of the first three layouts. */
enum { TABLE_ROWS, TABLE_BATCH_ROWS, TABLE_AXES_BATCH_ROWS, TABLE_PADDED, TABLE_ANY_ORDER, TABLE_COLLAPSED, TABLE_COMPLEX };
enum { SEQUENCES_NONE, SEQUENCES_EXACT, SEQUENCES_GAPS, SEQUENCES_PADDED, SEQUENCES_PADDED_GAPS };
enum { POSITIONS_INDEX, POSITIONS_START, POSITIONS_STREAM, POSITIONS_IDS, POSITIONS_IDS_AXES };
/* SHARED: some strides are 0. */
enum { IDS_AXES_BATCH_TOKENS, IDS_BATCH_TOKENS, IDS_TOKENS, IDS_STRIDED, IDS_SHARED };
enum { RANGE_INSIDE, RANGE_CLAMP, RANGE_POISON };
enum { DIRECTION_FORWARD, DIRECTION_INVERSE };
enum { MSCALE_DEFAULT, MSCALE_ONE, MSCALE_RANDOM };
enum { OPERANDS_MANY = 4 };
enum { HEADS_ONE, HEADS_MANY, HEADS_GROUPS, HEADS_PACKED_QKV };
enum { WINDOW_WHOLE, WINDOW_FRONT, WINDOW_BACK, WINDOW_MIDDLE };
enum { SIZE_TINY, SIZE_ODD, SIZE_VECTORS };
enum { PLACE_OUT, PLACE_IN, PLACE_EACH };
enum { LAYOUT_SBHD, LAYOUT_BSHD, LAYOUT_BHSD, LAYOUT_THD, LAYOUT_ANY_ORDER, LAYOUT_GAPS };
/* How contiguous tensors are specified: by a layout, or by strides. EACH: a random choice for each tensor. */
enum { GIVEN_BY_LAYOUTS, GIVEN_BY_STRIDES, GIVEN_BY_EACH };
enum { SOURCE_LIKE_DESTINATION, SOURCE_OTHER, SOURCE_BROADCAST, SOURCE_REVERSED };
enum { ELEMENTS_ADJACENT, ELEMENTS_STRIDED };
enum { SHARED_NONE, SHARED_GROUP, SHARED_ALL, SHARED_EACH };
enum { ACCUMULATE_NONE, ACCUMULATE_ALL, ACCUMULATE_EACH };
enum { GRADIENT_NONE, GRADIENT_TOO, GRADIENT_ONLY };
/* The layout of d_freqs. LIKE_TABLE: the layout of the table. Where the table has a stride of 0, d_freqs receives a sum. */
enum { GRADIENT_LIKE_TABLE, GRADIENT_ROWS, GRADIENT_BATCH_ROWS, GRADIENT_AXES_BATCH_ROWS, GRADIENT_STRIDED };
/* EACH: some operands have norms, with different fields. ALONE: no operand rotates, and some have norms. */
enum { NORM_NONE, NORM_ALL, NORM_EACH, NORM_ALONE };
enum { WEIGHT_NONE, WEIGHT_F32, WEIGHT_F16, WEIGHT_BF16, WEIGHT_F64 };
enum { WEIGHT_HEADS_SAME, WEIGHT_HEADS_OWN };
/* WRITE: the forward call writes rstd, and the backward call has no rstd. READ: both calls read it. With token_sums, the
 * backward call always reads rstd, and the forward call writes it or has none. */
enum { RSTD_NONE, RSTD_WRITE, RSTD_READ };
/* ONLY: in backward, an operand with d_weight has no dst. */
enum { D_WEIGHT_NONE, D_WEIGHT_TOO, D_WEIGHT_ONLY };
/* READ: the sums cover the heads of all ranks, and the operand has some of them. WRITE: an operand that writes its sums
 * has no dst. */
enum { SUMS_NONE, SUMS_READ, SUMS_WRITE };
/* LARGER: config_run passes larger structs, with zeros at the end, like a caller of a later version. */
enum { STRUCTS_OWN, STRUCTS_LARGER };

typedef struct config_choices {
    uint8_t value[OPTION_COUNT];
    int32_t times;     /* multiplies the tokens, to give several threads enough work; 0 = 1 */
    int32_t sequences; /* the number of sequences, if the call has any; 0 = 1 to 7 */
    int32_t pairs;     /* of the widest operand; 0 = random */
    int32_t heads;     /* heads per group, unless HEADS_ONE or HEADS_PACKED_QKV; 0 = random */
    /* 1: elements include infinities, NaNs, subnormals and the largest numbers, which the reference does not support. */
    int32_t specials;
} config_choices;

typedef enum config_role { CONFIG_READ, CONFIG_WRITTEN, CONFIG_SCRATCH } config_role;

typedef struct config_buffer {
    unsigned char *bytes;
    unsigned char *initial; /* the bytes when the config was made */
    size_t size;
    config_role role; /* CONFIG_WRITTEN: the call writes some of the bytes and must not change the others */
} config_buffer;

#define CONFIG_MAX_BUFFERS 144

/* A test may read the shapes of a config from args. config_call makes the call to run. */
typedef struct config {
    uint64_t seed;
    config_choices choices;
    trope_args args; /* of the backward call, with the gradient of the angles if chosen; args.operands is operands[1] */
    trope_operand operands[2][TROPE_MAX_OPERANDS]; /* of the forward call and of the backward call */
    trope_norm norms[TROPE_MAX_OPERANDS];          /* with the fields of both calls; struct_size 0: no norm */
    int buffer_count;
    config_buffer buffers[CONFIG_MAX_BUFFERS];
    double inv_freq[TROPE_MAX_ROTARY_DIM / 2];
    uint64_t phase_step[TROPE_MAX_ROTARY_DIM / 2];
    uint8_t pair_axis[TROPE_MAX_ROTARY_DIM / 2];
} config;

const char *config_option_name(int option);
int config_value_count(int option);
const char *config_value_name(int option, int value);

/* Random values for all options, with contradictions repaired. */
config_choices config_choose(uint64_t seed);

/* Changes options that contradict other options, and sets options without effect to 0. */
void config_repair(config_choices *choices);

/* Makes random choices, sets each {option, value} of `fixed`, and repairs contradictions. Returns whether the fixed options
 * still have their values. */
int config_try(random_state *random, const uint8_t (*fixed)[2], int count, config_choices *choices);

/* Calls config_try until it succeeds; aborts if it never does. */
config_choices config_choose_with(uint64_t seed, const uint8_t (*fixed)[2], int count);

/* Never returns NULL. Aborts if trope_workspace_size or trope_phase_steps refuses the config. */
config *config_make(uint64_t seed, const config_choices *choices);
void config_free(config *c);

/* The forward or backward call. call_args gives its args. */
call config_call(const config *c, int backward);

/* Runs a call of c, with structs of the chosen size. */
trope_status config_run(const config *c, const trope_args *args, int backward);

/* Restores the initial content of all buffers. */
void config_reset(config *c);

/* Moves each pointer of k that points into buffer i of c to the same offset from bases[i]. */
void config_rebase(const config *c, call *k, unsigned char *const *bases);

/* The index of the buffer that holds an address, or -1. */
int config_buffer_of(const config *c, const void *address);

/* Writes one line with the sizes and every choice. */
void config_describe(const config *c, char *text, size_t size);

#endif
