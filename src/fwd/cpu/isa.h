/* The common start of every file that is compiled once for each instruction set. The including file defines ISA_NAME and is
 * compiled with the flags of that instruction set. The flags of aarch64 always include NEON, so a file that is written for
 * NEON also defines ISA_NEON. Everything except one table of functions is static.
 *
 * Templates are included twice: first for float (suffix f32), and then for double (suffix f64). real_f64.h defines
 * REAL_IS_DOUBLE. Both real_f32.h and real_f64.h define REAL, REAL_DTYPE, REAL_FMA, REAL_RECIPROCAL_ROOT, REAL_NORM_SLOPE
 * and SUFFIX. */
#ifndef TROPE_FWD_CPU_ISA_H
#define TROPE_FWD_CPU_ISA_H

#include <stdint.h>
#include <string.h>

#include "core/element.h"
#include "core/norm.h"
#include "core/pairs.h"
#include "core/plan.h"
#include "core/rotate.h"
#include "core/sincos.h"
#include "fwd/cpu/vector_memory.h"
#include "varlen/token.h"

#define PASTE_(a, b) a##b
#define PASTE(a, b)  PASTE_(a, b)
#define STRING_(a)   #a
#define STRING(a)    STRING_(a)
#define FN(name)     PASTE(name##_, SUFFIX)

/* The number of elements of a head that a norm processes at a time, a power of two. */
#define NORM_BLOCK 64

/* Returns how many elements of a head, from element `e` on, are stored together: at most NORM_BLOCK, and all inside the
 * window or all outside. */
static inline int count_block(const trope_plan_operand *o, int64_t e)
{
    const int64_t window = o->rotary_offset, after = window + o->rotary_dim;
    const int64_t left = (e < window ? window : e < after ? after : o->head_dim) - e;
    return (int)(left < NORM_BLOCK ? left : NORM_BLOCK);
}

static inline int is_in_window(const trope_plan_operand *o, int64_t e)
{
    return e >= o->rotary_offset && e < o->rotary_offset + o->rotary_dim;
}

#endif
