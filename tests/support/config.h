/* Random calls. A config is one call with everything that it reads and writes, made from a seed and a choice for each
 * option; the same seed and choices give the same config, byte for byte, on every machine.
 *
 *     config_choices choices = config_choose(seed);              at random, contradictions repaired
 *     config *c = config_make(seed, &choices);
 *     trope_args args = config_args(c, backward);                with pointers into c's buffers
 *     ... trope_forward(&args) ...
 *     config_reset(c);                                           buffers as they were made
 *
 * Every pointer of the args points into one of c->buffers (inv_freq alone stays a host array), so a call can be run
 * elsewhere: copy the buffers to new places, a GPU's memory for instance, and let config_rebase move the pointers there.
 *
 * What is read is random, never zeros or constants, and allocated to the byte, so that a sanitizer sees a read beyond it;
 * the gaps between its elements are 0xFF. What is written starts as 0xFF, with guard zones around it. */
#ifndef TESTS_SUPPORT_CONFIG_H
#define TESTS_SUPPORT_CONFIG_H

#include <stddef.h>
#include <stdint.h>

#include "support/random.h"
#include "trope/trope.h"

typedef enum config_option {
    OPTION_DTYPE,
    OPTION_ROUNDING,
    OPTION_PAIRING,
    OPTION_AXES,
    OPTION_ANGLES,
    OPTION_ANGLE_COLS,
    OPTION_ANGLE_DTYPE,
    OPTION_ANGLE_STRIDES,
    OPTION_SEQUENCES,
    OPTION_CU_DTYPE,
    OPTION_PADDING,
    OPTION_CP,
    OPTION_POSITIONS,
    OPTION_POSITION_DTYPE,
    OPTION_ID_STRIDES,
    OPTION_RANGE,
    OPTION_TURN,
    OPTION_MSCALE,
    OPTION_OPERANDS,
    OPTION_HEADS,
    OPTION_WINDOW,
    OPTION_SIZE,
    OPTION_PLACE,
    OPTION_LAYOUT,
    OPTION_SOURCE,
    OPTION_ELEMENTS,
    OPTION_GRADIENT,
    OPTION_COUNT
} config_option;

/* The values of the options, in the order of their names in config.c. */
enum { PAIRING_DEFAULT, PAIRING_HALF, PAIRING_INTERLEAVED, PAIRING_TO_INTERLEAVED, PAIRING_TO_HALF };
enum { AXES_ONE, AXES_TWO_WINDOWS, AXES_THREE_WINDOWS, AXES_SECTIONS, AXES_INTERLEAVED };
enum { ANGLES_FREQS, ANGLES_TABLE, ANGLES_INV_FREQ };
enum { COLS_HALF, COLS_FULL };
enum { ANGLE_F32, ANGLE_OPERANDS };
enum { ANGLE_DENSE, ANGLE_ROW_STRIDE, ANGLE_BATCH_STRIDE, ANGLE_BOTH_STRIDES };
enum { SEQUENCES_NONE, SEQUENCES_EXACT, SEQUENCES_GAPS, SEQUENCES_PADDED, SEQUENCES_PADDED_GAPS };
enum { POSITIONS_INDEX, POSITIONS_START, POSITIONS_PACKED, POSITIONS_IDS, POSITIONS_IDS_AXES };
enum { IDS_DENSE, IDS_SHARED, IDS_STRIDED };
enum { RANGE_INSIDE, RANGE_CLAMP, RANGE_POISON };
enum { TURN_FORWARD, TURN_INVERSE };
enum { MSCALE_DEFAULT, MSCALE_ONE, MSCALE_RANDOM };
enum { HEADS_ONE, HEADS_MANY, HEADS_GROUPS, HEADS_PACKED_QKV };
enum { WINDOW_WHOLE, WINDOW_FRONT, WINDOW_BACK, WINDOW_MIDDLE };
enum { SIZE_TINY, SIZE_ODD, SIZE_VECTORS };
enum { PLACE_OUT, PLACE_IN, PLACE_EACH };
enum { LAYOUT_SBHD, LAYOUT_BSHD, LAYOUT_BHSD, LAYOUT_THD, LAYOUT_ANY_ORDER, LAYOUT_GAPS };
enum { SOURCE_LIKE_DESTINATION, SOURCE_OTHER, SOURCE_BROADCAST, SOURCE_REVERSED };
enum { ELEMENTS_ADJACENT, ELEMENTS_STRIDED };
enum { GRADIENT_NONE, GRADIENT_TOO, GRADIENT_ONLY };

typedef struct config_choices {
    uint8_t value[OPTION_COUNT];
    int32_t times;     /* this many times the tokens, 0 = 1: for work that is worth several threads */
    int32_t sequences; /* so many where there are any, 0 = up to 7 */
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

#define CONFIG_MAX_BUFFERS 24

typedef struct config {
    uint64_t seed;
    config_choices choices;
    trope_args args; /* of the backward call with the gradient of the angles if chosen; config_args gives either */
    int buffer_count;
    config_buffer buffers[CONFIG_MAX_BUFFERS];
    double inv_freq[TROPE_MAX_ROTARY_DIM / 2];
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

/* The args of the forward or backward call. */
trope_args config_args(const config *c, int backward);

/* Makes all buffers what they were. */
void config_reset(config *c);

/* Moves each pointer of args that points into buffer i of c to the same offset of bases[i]. */
void config_rebase(const config *c, trope_args *args, unsigned char *const *bases);

/* The buffer that holds an address, or -1. */
int config_buffer_of(const config *c, const void *address);

/* One line: every choice and the sizes. */
void config_describe(const config *c, char *text, size_t size);

#endif
