/* Shared by the files that build a config. config_build.c calls the others in a fixed order, and all draw from one
 * stream of random numbers. An additional or earlier draw changes the config of every seed. */
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

/* True in one of n cases. */
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

/* Adds a buffer to the config, filled with 0xFF. */
unsigned char *config_add_buffer(builder *b, size_t size, config_role role);

/* Adds memory for `count` elements that the call writes, between guard zones and at a random alignment. */
void *config_add_guarded(builder *b, int64_t count, size_t element);

/* Chooses the head_dim of an operand and the place of the rotated elements in it. */
void config_choose_window(builder *b, trope_operand *o);

/* ---- config_positions.c ---- */

/* Chooses the sequences, tokens and padding of a call that has cu_seqlens. */
void config_choose_packed_shape(builder *b);

void config_make_positions(builder *b);

/* ---- config_angles.c ---- */

/* Makes the angle source for the rotary_dim of the widest operand. Requires the positions. */
void config_make_angles(builder *b, int32_t rotary_dim);

/* Makes the memory for the gradient of the angles. Requires everything else except the workspace. */
void config_make_gradient(builder *b);

/* Makes the scratch memory that sums of gradients need. */
void config_make_workspace(builder *b);

/* ---- config_norms.c ---- */

/* Makes the norm of operand i, whose heads are known. Returns whether the operand has a norm. */
int config_make_norm(builder *b, int i);

/* ---- config_tensors.c ---- */

/* Makes the tensors of all operands, for the forward and for the backward call. */
void config_make_operands(builder *b);

#endif
