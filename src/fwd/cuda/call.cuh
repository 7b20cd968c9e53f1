/* What a kernel knows about its call. The constants are the properties that do not change from one step of a training run
 * to the next. The values are all other numbers. The body of a kernel (block.cuh) reads both through one type, CALL:
 *
 *     call.rounding(), call.head_dim(i)   a constant of the call, or of operand i; i must be known when the loop is unrolled
 *     call.values                         pointers, tokens, outer strides, boundaries, ranks, scales
 *
 * A kernel that is compiled for the call has the constants as numbers in its program. The host's planner and the emulation of
 * CUDA read them from memory (generic_call). */
#ifndef TROPE_FWD_CUDA_CALL_CUH
#define TROPE_FWD_CUDA_CALL_CUH

#include "core/divide.h"
#include "core/plan.h"

/* The constants of a call. Strides are in bytes. A stride that is not a constant of the layout (bhsd: of heads) is a
 * value, and its constant is CALL_STRIDE_IS_VALUE. */
#define TROPE_CALL_CONSTANTS(ONE)                                                                                          \
    ONE(dtype)           /* TROPE_F32, _F16, _BF16 */                                                                      \
    ONE(rounding)        /* TROPE_ROUND_... */                                                                             \
    ONE(operands)        /* the number of operands that the call moves */                                                  \
    ONE(interleaved_src) /* 1: the pairs of src are interleaved */                                                         \
    ONE(interleaved_dst)                                                                                                   \
    ONE(interleaved_columns)                                                                                               \
    ONE(swap_sines) /* 1: the two sines of a pair change places (backward, a column for each element) */                   \
    ONE(unit_scale) /* 1: mscale is 1 */                                                                                   \
    ONE(pairs)      /* of the widest window */                                                                             \
    ONE(parts)      /* of the window */                                                                                    \
    ONE(axes)       /* the number of position axes with positions of their own: 1 to 4 */                                  \
    ONE(one_entry)  /* 1: there is one batch entry */                                                                      \
    ONE(batch_outermost)                                                                                                   \
    ONE(positions) /* call_positions */                                                                                    \
    ONE(ids_64)    /* ids or start positions are int64 */                                                                  \
    ONE(boundaries_64)                                                                                                     \
    ONE(starts_64)                                                                                                         \
    ONE(has_starts)   /* packed sequences have start positions */                                                          \
    ONE(has_unpadded) /* cu_seqlens_padded is given beside cu_seqlens */                                                   \
    ONE(stream)       /* positions count through the stream */                                                             \
    ONE(splits)       /* cp_size > 1 */                                                                                    \
    ONE(padding)      /* TROPE_PADDING_... */                                                                              \
    ONE(angles)       /* trope_angle_source */                                                                             \
    ONE(table_dtype)                                                                                                       \
    ONE(per_element)  /* a table has two columns for each pair */                                                          \
    ONE(column)       /* the stride of a table's columns, in elements */                                                   \
    ONE(has_planes)   /* a table has a plane for each axis */                                                              \
    ONE(out_of_range) /* TROPE_RANGE_... */                                                                                \
    ONE(coefficients) /* call_coefficients */                                                                              \
    ONE(tokens_of_block)                                                                                                   \
    ONE(items_of_block) /* the number of threads for each token of a block */

/* The constants of an operand. */
#define TROPE_OPERAND_CONSTANTS(EACH)                                                                                      \
    EACH(groups)                                                                                                           \
    EACH(heads_per_group)                                                                                                  \
    EACH(head_dim)                                                                                                         \
    EACH(rotary_dim)                                                                                                       \
    EACH(rotary_offset)                                                                                                    \
    EACH(in_place)                                                                                                         \
    EACH(moves_rest) /* 1: elements outside of the window are written too */                                               \
    EACH(src_head)                                                                                                         \
    EACH(dst_head)                                                                                                         \
    EACH(src_group)                                                                                                        \
    EACH(dst_group)

#define CALL_OPERANDS        4   /* a call with more operands is not compiled */
#define CALL_PAIRS           128 /* nor one with more pairs */
#define CALL_STRIDE_IS_VALUE INT32_MIN

/* How the tokens of a block find their positions: from their own indices; from ids, or from the start position of their
 * batch entry; by a search of cu_seqlens. */
enum call_positions { CALL_FROM_TOKENS, CALL_READ, CALL_SEARCHED };

/* How a block gets its coefficients: all threads make them together in shared memory, or each thread loads those of its
 * item from tables of cos and sin, as vectors. */
enum call_coefficients { CALL_SHARED, CALL_LOADED };

/* The constants as a struct, which is the key of a compiled kernel. Nothing in it is padding. */
struct call_constants {
#define ONE(name) int32_t name;
    TROPE_CALL_CONSTANTS(ONE)
#undef ONE
    struct {
#define EACH(name) int32_t name;
        TROPE_OPERAND_CONSTANTS(EACH)
#undef EACH
    } operand[CALL_OPERANDS];
    uint32_t axis_bits[CALL_PAIRS / 16]; /* two bits for each pair: its axis, or its plane in a table */
};

struct call_tensor {
    char *base;
    int64_t inner, outer; /* the strides of the two dimensions of tokens, in bytes */
    int32_t head, group;  /* if they are values */
};

/* Positions that are computed from tokens, for every context parallel rank. The tokens are two runs, with a gap between
 * their positions. */
struct call_token_positions {
    uint32_t step, first, second_run, gap;
};

struct call_values {
    call_tensor src[CALL_OPERANDS], dst[CALL_OPERANDS];
    int64_t tokens; /* of all batch entries */
    trope_divisor inner;
    float cosine_scale, sine_scale;
    const char *table[2];                       /* freqs, or cos and sin */
    int64_t table_batch, table_row, table_axis; /* strides in bytes */
    int64_t rows;
    call_token_positions from_tokens;
    const char *ids; /* ids, or start positions of batch entries. Strides are in bytes. */
    int64_t id_batch, id_token, id_axis;
    const void *boundaries, *unpadded, *starts;
    int64_t count, sequence_tokens;
    trope_cp cp;
    int32_t *status;
};

/* The phase steps, as a parameter of their own. If they begin in the middle of 64 bytes, small calls take 0.13 us longer. */
template <int PAIRS> struct alignas(64) call_steps {
    uint64_t of[PAIRS];
};

/* A call whose constants are in memory. ROOM is for operands, AXIS_WORDS for axis_bits, and MADE is the largest number of
 * coefficients that a thread makes; a program has the numbers of its call. */
template <int OF_DTYPE> struct generic_call {
    static constexpr int DTYPE = OF_DTYPE, ROOM = CALL_OPERANDS, AXIS_WORDS = CALL_PAIRS / 16, MADE = 4;
    const call_values &values;
    const call_constants &constants;
#define ONE(name)                                                                                                          \
    __host__ __device__ __forceinline__ int32_t name() const                                                               \
    {                                                                                                                      \
        return constants.name;                                                                                             \
    }
#define EACH(name)                                                                                                         \
    __host__ __device__ __forceinline__ int32_t name(int i) const                                                          \
    {                                                                                                                      \
        return constants.operand[i].name;                                                                                  \
    }
    TROPE_CALL_CONSTANTS(ONE)
    TROPE_OPERAND_CONSTANTS(EACH)
#undef ONE
#undef EACH
    __host__ __device__ __forceinline__ uint32_t axis_bits(int word) const
    {
        return constants.axis_bits[word];
    }
};

#endif
