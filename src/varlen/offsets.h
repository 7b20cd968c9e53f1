/* Offsets in the packed stream, and what context parallel layouts make of them: the formulas, once for integers of 64 bits and
 * once for the GPU's search, where they are what a block waits for, of 32. */
#ifndef TROPE_VARLEN_OFFSETS_H
#define TROPE_VARLEN_OFFSETS_H

#include <stdint.h>

#include "core/host_device.h"
#include "core/plan.h"

/* The global length of a sequence must be divisible by this to be split over the ranks. One rank splits nothing. */
TROPE_HD int64_t trope_cp_divisor(int32_t layout, int64_t size)
{
    return size == 1 || layout == TROPE_CP_FLAT ? 1 : layout == TROPE_CP_ZIGZAG ? 2 * size : size;
}

/* A sequence as it is in memory: global offsets where it is stored and, in [real_begin, real_end), what is real of it. */
#define TROPE_DEFINE_BOUNDS(integer, bounds)                                                                               \
    typedef struct bounds {                                                                                                \
        integer begin, end, real_begin, real_end;                                                                          \
    } bounds;

/* The position of local index i of a sequence with `local` tokens on this rank. */
#define TROPE_DEFINE_CP_POSITION(integer, cp_position)                                                                     \
    TROPE_HD integer cp_position(int32_t layout, integer size, integer rank, integer local, integer i)                     \
    {                                                                                                                      \
        const integer half = local / 2;                                                                                    \
        switch (layout) {                                                                                                  \
        case TROPE_CP_CONTIGUOUS:                                                                                          \
            return rank * local + i;                                                                                       \
        case TROPE_CP_ZIGZAG:                                                                                              \
            return i < half ? rank * half + i : local * size - (rank + 1) * half + (i - half);                             \
        case TROPE_CP_STRIPED:                                                                                             \
            return i * size + rank;                                                                                        \
        default:                                                                                                           \
            return i;                                                                                                      \
        }                                                                                                                  \
    }

/* Where global offset `boundary` is on this rank. */
#define TROPE_DEFINE_LOCAL_BOUNDARY(integer, local_boundary, divide)                                                       \
    TROPE_HD integer local_boundary(const trope_sequences *s, integer boundary)                                            \
    {                                                                                                                      \
        if (s->cp_size == 1)                                                                                               \
            return boundary;                                                                                               \
        if (s->cp_layout == TROPE_CP_FLAT)                                                                                 \
            return boundary - (integer)s->cp_rank * (integer)s->tokens;                                                    \
        return (integer)divide(&s->of_ranks, boundary);                                                                    \
    }

/* The least boundary, as it is in memory, that is after a token of this rank. */
#define TROPE_DEFINE_FIRST_AFTER(integer, first_after)                                                                     \
    TROPE_HD integer first_after(const trope_sequences *s, integer token)                                                  \
    {                                                                                                                      \
        if (s->cp_size == 1)                                                                                               \
            return token + 1;                                                                                              \
        if (s->cp_layout == TROPE_CP_FLAT)                                                                                 \
            return token + (integer)s->cp_rank * (integer)s->tokens + 1;                                                   \
        return (token + 1) * (integer)s->cp_size;                                                                          \
    }

/* The status bits of what is wrong with a sequence, 0 if nothing is: it must lie in the stream, have no more real tokens than
 * there is room for, and be split over the ranks as trope_cp_divisor says, from where each of them begins. */
#define TROPE_DEFINE_FAULT(integer, bounds, fault_of_bounds, divide)                                                       \
    TROPE_HD int32_t fault_of_bounds(const trope_sequences *s, bounds b)                                                   \
    {                                                                                                                      \
        const integer size = (integer)s->cp_size;                                                                          \
        if (b.begin < 0 || b.end < b.begin || b.end > (integer)s->tokens * size || b.real_begin < 0 ||                     \
            b.real_end < b.real_begin || b.real_end - b.real_begin > b.end - b.begin)                                      \
            return TROPE_STATUS_CU_SEQLENS;                                                                                \
        if (size == 1 || s->cp_layout == TROPE_CP_FLAT)                                                                    \
            return 0;                                                                                                      \
        const integer length = b.end - b.begin, local = (integer)divide(&s->of_ranks, length);                             \
        const int splits = (integer)divide(&s->of_ranks, b.begin) * size == b.begin && local * size == length &&           \
                           (s->cp_layout != TROPE_CP_ZIGZAG || local % 2 == 0);                                            \
        return splits ? 0 : TROPE_STATUS_CP_LENGTH;                                                                        \
    }

TROPE_HD uint32_t trope_divide_narrow(const trope_divisor *d, int32_t n)
{
    return trope_divide(d, (uint32_t)n);
}

TROPE_DEFINE_BOUNDS(int64_t, trope_bounds)
TROPE_DEFINE_CP_POSITION(int64_t, trope_cp_position)
TROPE_DEFINE_LOCAL_BOUNDARY(int64_t, trope_local_boundary, trope_divide_wide)
TROPE_DEFINE_FIRST_AFTER(int64_t, trope_first_after)
TROPE_DEFINE_FAULT(int64_t, trope_bounds, trope_fault_of_bounds, trope_divide_wide)

/* For streams of fewer than 2^31 - 1 tokens on all ranks together. */
TROPE_DEFINE_BOUNDS(int32_t, trope_narrow_bounds)
TROPE_DEFINE_CP_POSITION(int32_t, trope_narrow_cp_position)
TROPE_DEFINE_LOCAL_BOUNDARY(int32_t, trope_narrow_local_boundary, trope_divide_narrow)
TROPE_DEFINE_FIRST_AFTER(int32_t, trope_narrow_first_after)
TROPE_DEFINE_FAULT(int32_t, trope_narrow_bounds, trope_narrow_fault_of_bounds, trope_divide_narrow)

#endif
