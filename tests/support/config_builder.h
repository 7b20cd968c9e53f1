/* What the files that build a config share. config_build.c calls the others in a fixed order, and all draw from one stream
 * of random numbers: to draw one more, or one earlier, changes the configs of seeds. */
#ifndef TESTS_SUPPORT_CONFIG_BUILDER_H
#define TESTS_SUPPORT_CONFIG_BUILDER_H

#include <stddef.h>
#include <stdint.h>

#include "support/config.h"
#include "support/random.h"
#include "trope/trope.h"

typedef struct builder {
    config *c;
    trope_args *a;
    trope_operand *operands; /* of the backward call */
    const uint8_t *v;        /* the choices */
    random_state random;
} builder;

static inline int64_t between(builder *b, int64_t low, int64_t high)
{
    return random_between(&b->random, low, high);
}

/* True once in n times. */
static inline int once_in(builder *b, int n)
{
    return between(b, 1, n) == 1;
}

static inline void shuffle(builder *b, int *order, int count)
{
    for (int i = count - 1; i > 0; i--) {
        const int j = (int)between(b, 0, i), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

/* ---- config_build.c ---- */

/* A new buffer of the config, all 0xFF. */
unsigned char *config_add_buffer(builder *b, size_t size, config_role role);

/* Room for `count` elements that are written, in the middle of guard zones and at a random alignment. */
void *config_add_guarded(builder *b, int64_t count, size_t element);

/* The head_dim of an operand and where in it the rotated elements are. */
void config_choose_window(builder *b, trope_operand *o);

/* ---- config_positions.c ---- */

/* Sequences, tokens and padding of a call that has cu_seqlens. */
void config_choose_packed_shape(builder *b);

void config_make_positions(builder *b);

/* ---- config_angles.c ---- */

/* The angle source, for the widest operand's rotary_dim. Positions must have been made. */
void config_make_angles(builder *b, int32_t rotary_dim);

/* Where the gradient of the angles goes. All else must have been made. */
void config_make_gradient(builder *b);

/* Scratch for what sums a gradient. */
void config_make_workspace(builder *b);

/* ---- config_norms.c ---- */

/* The norm of operand i, whose heads are known. Returns whether it has one. */
int config_make_norm(builder *b, int i);

/* ---- config_tensors.c ---- */

/* The tensors of all operands, of the forward and of the backward call. */
void config_make_operands(builder *b);

#endif
