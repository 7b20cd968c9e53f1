/* Random calls. A config is one call with everything that it reads and writes, made from a seed and a choice for each
 * option; the same seed and choices give the same config, byte for byte, on every machine.
 *
 *     config_choices choices = config_choose(seed);              at random, contradictions repaired
 *     config *c = config_make(seed, &choices);
 *     call k = config_call(c, backward);                         with pointers into c's buffers
 *     ... config_run(c, call_args(&k), backward) ...
 *     config_reset(c);                                           buffers as they were made
 *
 * Every pointer of the call points into one of c->buffers (inv_freq, phase_step and pair_axis alone stay host arrays), so a
 * call can be run elsewhere: copy the buffers to new places, a GPU's memory for instance, and let config_rebase move the
 * pointers there.
 *
 * The tensors of a call are said in every way there is. A test that needs their addresses asks support/tensor.h, or has the
 * call say them by strides (tensor_say_strides).
 *
 * What is read is random, never zeros or constants, and allocated to the byte, so that a sanitizer sees a read beyond it;
 * the gaps between its elements are 0xFF. What is written starts as 0xFF (random where it is added to), with guard zones
 * around it. */
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
    OPTION_PARTS, /* less 1 */
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
    OPTION_TURN,
    OPTION_MSCALE,
    OPTION_OPERANDS, /* less 1, or OPERANDS_MANY */
    OPTION_HEADS,
    OPTION_WINDOW,
    OPTION_SIZE,
    OPTION_PLACE,
    OPTION_LAYOUT,
    OPTION_SAID,
    OPTION_SOURCE,
    OPTION_ELEMENTS,
    OPTION_SHARED,
    OPTION_ACCUMULATE,
    OPTION_GRADIENT,
    OPTION_GRADIENT_TABLE,
    OPTION_NORM,
    OPTION_NORM_SCOPE, /* TROPE_NORM_HEAD or _TOKEN less 1 */
    OPTION_NORM_ORDER, /* TROPE_NORM_BEFORE or _AFTER less 1 */
    OPTION_WEIGHT,
    OPTION_WEIGHT_HEADS,
    OPTION_WEIGHT_PLUS,   /* weight_plus_one */
    OPTION_NORM_ROUNDING, /* TROPE_NORM_ROUND_... less 1 */
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
/* PARTS: no pair_axis, every pair is driven by the axis of its part. */
enum { AXES_PARTS, AXES_SECTIONS, AXES_INTERLEAVED, AXES_ALTERNATING, AXES_HWT, AXES_RANDOM };
enum { ANGLES_FREQS, ANGLES_TABLE, ANGLES_INV_FREQ, ANGLES_PHASE_STEP };
enum { COLUMNS_PAIR, COLUMNS_HALF, COLUMNS_INTERLEAVED };
/* PADDED: the strides of one of the three before, with room between. COLLAPSED: some of them 0. COMPLEX: cos and sin in
 * turn, of one of the first three. */
enum { TABLE_ROWS, TABLE_BATCH_ROWS, TABLE_AXES_BATCH_ROWS, TABLE_PADDED, TABLE_ANY_ORDER, TABLE_COLLAPSED, TABLE_COMPLEX };
enum { SEQUENCES_NONE, SEQUENCES_EXACT, SEQUENCES_GAPS, SEQUENCES_PADDED, SEQUENCES_PADDED_GAPS };
enum { POSITIONS_INDEX, POSITIONS_START, POSITIONS_STREAM, POSITIONS_IDS, POSITIONS_IDS_AXES };
/* SHARED: some strides are 0. */
enum { IDS_AXES_BATCH_TOKENS, IDS_BATCH_TOKENS, IDS_TOKENS, IDS_STRIDED, IDS_SHARED };
enum { RANGE_INSIDE, RANGE_CLAMP, RANGE_POISON };
enum { TURN_FORWARD, TURN_INVERSE };
enum { MSCALE_DEFAULT, MSCALE_ONE, MSCALE_RANDOM };
enum { OPERANDS_MANY = 4 };
enum { HEADS_ONE, HEADS_MANY, HEADS_GROUPS, HEADS_PACKED_QKV };
enum { WINDOW_WHOLE, WINDOW_FRONT, WINDOW_BACK, WINDOW_MIDDLE };
enum { SIZE_TINY, SIZE_ODD, SIZE_VECTORS };
enum { PLACE_OUT, PLACE_IN, PLACE_EACH };
enum { LAYOUT_SBHD, LAYOUT_BSHD, LAYOUT_BHSD, LAYOUT_THD, LAYOUT_ANY_ORDER, LAYOUT_GAPS };
/* Whether what is contiguous is said to be so, or by its strides. */
enum { SAID_LAYOUTS, SAID_STRIDES, SAID_EACH };
enum { SOURCE_LIKE_DESTINATION, SOURCE_OTHER, SOURCE_BROADCAST, SOURCE_REVERSED };
enum { ELEMENTS_ADJACENT, ELEMENTS_STRIDED };
enum { SHARED_NONE, SHARED_GROUP, SHARED_ALL, SHARED_EACH };
enum { ACCUMULATE_NONE, ACCUMULATE_ALL, ACCUMULATE_EACH };
enum { GRADIENT_NONE, GRADIENT_TOO, GRADIENT_ONLY };
/* The layout of d_freqs. LIKE_TABLE: the table's (where that has a stride of 0, d_freqs has its sum). */
enum { GRADIENT_LIKE_TABLE, GRADIENT_ROWS, GRADIENT_BATCH_ROWS, GRADIENT_AXES_BATCH_ROWS, GRADIENT_STRIDED };
/* EACH: some operands have norms, whose fields differ. ALONE: no operand rotates, and some have norms. */
enum { NORM_NONE, NORM_ALL, NORM_EACH, NORM_ALONE };
enum { WEIGHT_NONE, WEIGHT_F32, WEIGHT_F16, WEIGHT_BF16, WEIGHT_F64 };
enum { WEIGHT_HEADS_SAME, WEIGHT_HEADS_OWN };
/* WRITE: the forward call writes rstd, and the backward call has none. READ: both calls read it. With token_sums, backward
 * always reads it, and forward writes it or has none. */
enum { RSTD_NONE, RSTD_WRITE, RSTD_READ };
/* ONLY: an operand with d_weight has no dst. */
enum { D_WEIGHT_NONE, D_WEIGHT_TOO, D_WEIGHT_ONLY };
/* READ: some of all heads. WRITE: an operand that writes its sums has no dst. */
enum { SUMS_NONE, SUMS_READ, SUMS_WRITE };
/* LARGER: as a caller of a later version passes them, with zeros behind; config_run does. */
enum { STRUCTS_OWN, STRUCTS_LARGER };

typedef struct config_choices {
    uint8_t value[OPTION_COUNT];
    int32_t times;     /* this many times the tokens, 0 = 1: for work that is worth several threads */
    int32_t sequences; /* so many where there are any, 0 = up to 7 */
    int32_t pairs;     /* of the widest operand, 0 = some */
    int32_t heads;     /* so many a group where there may be many, 0 = some */
    int32_t
        specials; /* 1: infinities, NaNs, subnormals and the largest numbers among the elements, as no reference has them */
} config_choices;

typedef enum config_role { CONFIG_READ, CONFIG_WRITTEN, CONFIG_SCRATCH } config_role;

typedef struct config_buffer {
    unsigned char *bytes;
    unsigned char *initial; /* what the bytes were when the config was made */
    size_t size;
    config_role role; /* CONFIG_WRITTEN: some of the bytes are, the rest must stay */
} config_buffer;

#define CONFIG_MAX_BUFFERS 144

/* The shapes of a config can be read from args; its calls are config_call's. */
typedef struct config {
    uint64_t seed;
    config_choices choices;
    trope_args args; /* of the backward call with the gradient of the angles if chosen; args.operands is operands[1] */
    trope_operand operands[2][TROPE_MAX_OPERANDS]; /* of the forward and of the backward call */
    trope_norm norms[TROPE_MAX_OPERANDS];          /* with what both calls have; struct_size 0: none */
    int buffer_count;
    config_buffer buffers[CONFIG_MAX_BUFFERS];
    double inv_freq[TROPE_MAX_ROTARY_DIM / 2];
    uint64_t phase_step[TROPE_MAX_ROTARY_DIM / 2];
    uint8_t pair_axis[TROPE_MAX_ROTARY_DIM / 2];
} config;

const char *config_option_name(int option);
int config_value_count(int option);
const char *config_value_name(int option, int value);

/* Random values for all options, repaired. */
config_choices config_choose(uint64_t seed);

/* Brings options that contradict those before them to a value that does not. */
void config_repair(config_choices *choices);

/* One attempt at random choices in which option has value for each {option, value} of `fixed`. Returns whether repairing
 * has left those as they were. */
int config_try(random_state *random, const uint8_t (*fixed)[2], int count, config_choices *choices);

/* The same until it holds; aborts if it never does. */
config_choices config_choose_with(uint64_t seed, const uint8_t (*fixed)[2], int count);

/* Never fails: aborts if the library refuses what trope_workspace_size needs. */
config *config_make(uint64_t seed, const config_choices *choices);
void config_free(config *c);

/* The forward or backward call. Get its args by call_args. */
call config_call(const config *c, int backward);

/* Runs a call of c, by structs of the size that was chosen. */
trope_status config_run(const config *c, const trope_args *args, int backward);

/* Makes all buffers what they were. */
void config_reset(config *c);

/* Moves each pointer of a call that points into buffer i of c to the same offset of bases[i]. */
void config_rebase(const config *c, call *k, unsigned char *const *bases);

/* The buffer that holds an address, or -1. */
int config_buffer_of(const config *c, const void *address);

/* One line: every choice and the sizes. */
void config_describe(const config *c, char *text, size_t size);

#endif
