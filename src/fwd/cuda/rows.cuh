/* The rows of a call on CUDA: from a row's number, which is that of the order in which rows are stored, to its batch entry
 * and token. */
#ifndef TROPE_FWD_CUDA_ROWS_CUH
#define TROPE_FWD_CUDA_ROWS_CUH

#include "fwd/cuda/angles.cuh"

/* The positions of a plain call, which follow from the tokens: of all of them, or of those of a context parallel rank,
 * which are one run, two, or every so manieth. */
struct token_positions {
    uint32_t scale, first, second_run, gap;

    __host__ __device__ __forceinline__ uint32_t of(uint32_t token) const
    {
        const uint32_t position = token * scale + first;
        return token < second_run ? position : position + gap;
    }
};

struct cuda_rows {
    int64_t count;
    uint32_t two_dimensions; /* batch and token, outer and inner: whichever is further apart in memory is outer */
    fast_divisor length;     /* inner ones of each outer, if rows are below 2^31 */
    int32_t batch_outermost; /* as in the plan */
    token_positions positions;
};

/* The operand that has a block, or any other part of which each has some, from these on; UINT32_MAX where there is none. */
TROPE_HD uint32_t operand_of_block(const uint32_t *first, uint32_t block)
{
    static_assert(MAX_CUDA_OPERANDS == 4, "operand_of_block");
    return (block >= first[1]) + (block >= first[2]) + (block >= first[3]);
}

/* The two dimensions of a row. NARROW: in 32 bits. */
template <bool NARROW> struct row_place {
    std::conditional_t<NARROW, uint32_t, int64_t> outer, inner;
};

template <bool NARROW>
__device__ __forceinline__ row_place<NARROW> locate_row(const cuda_rows &rows, const trope_plan &plan, int64_t number)
{
    row_place<NARROW> p = {0, (decltype(p.inner))number};
    if (rows.two_dimensions) {
        if (NARROW || rows.count <= INT32_MAX) {
            const uint32_t outer = rows.length.divide((uint32_t)number);
            p.outer = outer;
            p.inner = (uint32_t)number - outer * rows.length.divisor;
        } else {
            p.outer = number / trope_inner_rows(&plan);
            p.inner = number - p.outer * trope_inner_rows(&plan);
        }
    }
    return p;
}

template <bool NARROW>
__device__ __forceinline__ void set_row(const cuda_rows &rows, const row_place<NARROW> &p, trope_row *row)
{
    row->batch = rows.batch_outermost ? p.outer : p.inner;
    row->token = rows.batch_outermost ? p.inner : p.outer;
}

/* The rows of a plain call have nothing to be looked up for. Tokens are below 2^31 here, and it saves the compiler
 * instructions to see that. */
template <bool NARROW>
__device__ __forceinline__ trope_row find_plain_row(const cuda_rows &rows, const row_place<NARROW> &p)
{
    const uint32_t token = (uint32_t)(rows.batch_outermost ? p.inner : p.outer);
    return row_of_plain(rows.batch_outermost ? p.outer : p.inner, rows.positions.of(token));
}

#endif
