/* The coefficients of a block's rows, each once for all heads: all threads make them while the data is on its way, and leave
 * them in shared memory. R is what a kernel is compiled for: rotation (rotate.cuh), gradient_pass
 * (bwd/cuda/gradient_pass.cuh). */
#ifndef TROPE_FWD_CUDA_FIND_COEFFICIENTS_CUH
#define TROPE_FWD_CUDA_FIND_COEFFICIENTS_CUH

#include "fwd/cuda/register_block.cuh"

extern __shared__ __align__(16) char shared[];

/* Whether positions of 32 bits are enough: without start positions, or rows of a table that vectors can be rotated with. */
template <class R>
using position_type =
    std::conditional_t<R::ROWS == ROWS_SEARCHED || (!R::WIDE && R::ANGLES == ANGLES_TABLE), int32_t, int64_t>;

template <class R> __device__ __forceinline__ block_rows<position_type<R>> rows_of_block(const typename R::call &call)
{
    return block_rows<position_type<R>>(shared + call.shape.rows_at, call.shape.rows_of_block,
                                        R::ROWS == ROWS_SEARCHED ? 0 : call.plan.axis_bits);
}

template <class R> __device__ __forceinline__ int32_t action_of_row(const typename R::call &call, uint32_t row)
{
    return have_actions<R::ROWS>(call.plan.plan) ? rows_of_block<R>(call).action[row] : (int32_t)TROPE_ROW_ROTATE;
}

/* Leaves the rows of a block in shared memory. */
template <class R>
__device__ __forceinline__ void find_rows(const typename R::call &call, typename R::index first_row, uint32_t count)
{
    constexpr bool ANY_TABLE = R::ANGLES != ANGLES_PHASE;
    const trope_plan &plan = call.plan.plan;
    const block_rows<position_type<R>> rows = rows_of_block<R>(call);
    const auto locate = [&](uint32_t row, int64_t *batch, int64_t *token) {
        const block_row<typename R::index> at =
            find_row<R::ADDRESSES, typename R::index>(call.shape, first_row + (typename R::index)row);
        *batch = at.batch(call.shape);
        *token = at.token(call.shape);
    };
    if (have_actions<R::ROWS>(plan)) {
        if (thread_of_block() < 32)
            search_rows<R::ROWS, R::WIDE, ANY_TABLE>(plan, call.plan.of_padding, first_row, count, rows, locate);
    } else if (R::ROWS != ROWS_FROM_TOKENS) {
        read_rows<R::ROWS, ANY_TABLE>(plan, count, rows, thread_of_block(), threads_of_block(), locate);
    }
}

/* COUNT couples that follow each other in shared memory. Threads that rotate read them so. */
template <class R, int COUNT> struct alignas(sizeof(couple<R::DTYPE>) * COUNT) couples {
    couple<R::DTYPE> of[COUNT];
};

template <class R> constexpr int COUPLES_TOGETHER = R::PAIRS == 1 ? 1 : 2;

/* Pair e of a lane. */
template <class R> __device__ __forceinline__ uint32_t pair_of_lane(const block_shape &shape, uint32_t lane, uint32_t e)
{
    constexpr uint32_t half = R::PAIRS == 1 ? 1 : R::PAIRS / 2;
    if (R::PAIRS > 1 && shape.splits) /* a vector in each half of the window */
        return (lane + e / half * shape.lanes.divisor) * half + e % half;
    return lane * R::PAIRS + e;
}

/* Where in shared memory the couples of pair e of a lane are, in couples. Two pairs of a lane are neighbours, and beside them are
 * those of the next lane, which is the next thread. */
template <class R>
__device__ __forceinline__ uint32_t place_of_couple(const block_shape &shape, uint32_t row, uint32_t lane, uint32_t e)
{
    constexpr uint32_t TOGETHER = COUPLES_TOGETHER<R>;
    return ((row * (R::PAIRS / TOGETHER) + e / TOGETHER) * shape.lanes.divisor + lane) * TOGETHER;
}

/* What the coefficients of a row are made of. */
template <class R> struct row_position {
    typedef typename R::stride stride;
    int64_t batch;
    const position_type<R> *of_axis; /* NULL: the position is the token's */
    int64_t of_token;

    __device__ __forceinline__ row_position(const typename R::call &call, typename R::index number, uint32_t row)
        : of_axis(NULL), of_token(0)
    {
        const block_row<typename R::index> at = find_row<R::ADDRESSES, typename R::index>(call.shape, number);
        const block_rows<position_type<R>> rows = rows_of_block<R>(call);
        batch = R::ADDRESSES != ADDRESSES_ANY ? 0 : at.batch(call.shape);
        if (R::ROWS == ROWS_FROM_TOKENS)
            of_token = call.plan.positions.of((uint32_t)at.token(call.shape));
        else
            of_axis = rows.position + (row << rows.axis_bits);
    }

    /* (Without a branch for calls with one axis: it would part loads from what waits for them.) */
    __device__ __forceinline__ int64_t of_pair(const cuda_plan &p, uint32_t pair) const
    {
        if (R::ROWS == ROWS_FROM_TOKENS)
            return of_token;
        return of_axis[R::ROWS == ROWS_SEARCHED ? 0 : trope_pair_plane(&p.plan, (int32_t)pair) & p.axis_mask];
    }

    /* Whether a position makes NaN: one that a table does not have. */
    __device__ __forceinline__ bool is_nan(const trope_plan &plan, int64_t position) const
    {
        return R::ROWS != ROWS_FROM_TOKENS && !has_phases<R::ANGLES>(plan) && position == NO_POSITION;
    }

    /* Bytes from the beginning of a table to what it has for a row at a position. */
    __device__ __forceinline__ stride offset_in_table(const trope_plan &plan, int64_t position) const
    {
        const stride of_row = (stride)(position == NO_POSITION ? 0 : position) * (stride)plan.angles.stride.row;
        return (R::ADDRESSES != ADDRESSES_ANY ? 0 : (stride)batch * (stride)plan.angles.stride.batch) + of_row;
    }
};

/* The phase steps of two pairs, or one. They are used in the instructions that follow: see settle in core/cuda/ptx.cuh. */
template <class R, int COUNT>
__device__ __forceinline__ void load_steps(const typename R::steps &steps, uint32_t pair, uint64_t step[2])
{
    if (COUNT == 2)
        load_two_parameters(steps.of + pair, &step[0], &step[1]);
    else
        load_parameter(steps.of + pair, &step[0]);
}

template <int COUNT> __device__ __forceinline__ void settle_steps(uint64_t step[2])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        settle(&step[i]);
}

/* Makes the couples of two pairs, or one, from phase steps. */
template <class R, int COUNT>
__device__ __forceinline__ void couples_of_phases(const typename R::call &call, const typename R::steps &steps,
                                                  const row_position<R> &row, uint32_t pair, uint64_t step[2],
                                                  couples<R, COUNT> *made)
{
    int64_t position[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        position[i] = row.of_pair(call.plan, pair + i);
    if (R::ROWS != ROWS_FROM_TOKENS) {
        load_steps<R, COUNT>(steps, pair, step);
        settle_steps<COUNT>(step);
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        /* (Positions of 32 bits are not negative.) */
        sincos_of_phase(sizeof(position_type<R>) == 4 ? (int64_t)(uint32_t)position[i] : position[i], step[i],
                        &made->of[i].sine, &made->of[i].cosine);
        made->of[i].template finish<R::PLAIN>(call.plan, false);
    }
}

/* The same from freqs of fp32, one column a pair (cuda_plan.has_plain_freqs). */
template <class R, int COUNT>
__device__ __forceinline__ void couples_of_freqs(const typename R::call &call, const row_position<R> &row, uint32_t pair,
                                                 couples<R, COUNT> *made)
{
    typedef typename R::stride stride;
    const trope_plan &plan = call.plan.plan;
    const stride column = (stride)plan.angles.stride.column;
    int64_t position[COUNT];
    raw_entry raw[COUNT];
    typename R::real angle[COUNT], sine[COUNT], cosine[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        position[i] = row.of_pair(call.plan, pair + i);
        const stride at = row.offset_in_table(plan, position[i]) + (stride)(pair + i) * column;
        raw[i].template load<TROPE_F32>(call.plan.table[0] + at * (stride)sizeof(float), sizeof(float));
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        angle[i] = trope_float_from_bits(raw[i].low);
    sincos_of_angles<COUNT>(angle, sine, cosine);
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        made->of[i] = {cosine[i], sine[i]};
        made->of[i].template finish<R::PLAIN>(call.plan, row.is_nan(plan, position[i]));
    }
}

/* Makes the couples of one pair from any table. Returns whether its elements have different ones. */
template <class R>
__device__ __forceinline__ bool couples_of_table(const typename R::call &call, const row_position<R> &row, uint32_t pair,
                                                 couple<R::DTYPE> *first, couple<R::DTYPE> *second)
{
    typedef typename R::stride stride;
    const cuda_plan &p = call.plan;
    const trope_table_stride &strides = p.plan.angles.stride;
    const int64_t position = row.of_pair(p, pair);
    const bool is_nan = row.is_nan(p.plan, position);
    const stride of_row = row.offset_in_table(p.plan, position) +
                          (strides.axis ? trope_pair_plane(&p.plan, (int32_t)pair) * (stride)strides.axis : 0);
    const stride column = (stride)strides.column, at[2] = {
        (of_row + column_of_pair<R::PLAIN>(p, (int32_t)pair, 0) * column) * p.entry_bytes,
        (of_row + column_of_pair<R::PLAIN>(p, (int32_t)pair, 1) * column) * p.entry_bytes};
    raw_couple of_first, of_second;
    bool differ = false;
    if (!R::PLAIN && p.plan.angles.per_element) {
        of_first.template load<R::DTYPE>(p, at[0]);
        of_second.template load<R::DTYPE>(p, at[1]);
        of_first.settle_all();
        of_second.settle_all();
        differ = of_first.differs(of_second, p.plan.angles.dtype);
    } else {
        of_first.template load<R::DTYPE>(p, at[0]);
        of_first.settle_all();
    }
    *first = couple_of_entries<R::DTYPE>(p.plan.angles, of_first);
    first->template finish<R::PLAIN>(p, is_nan);
    *second = *first;
    if (differ) {
        *second = couple_of_entries<R::DTYPE>(p.plan.angles, of_second);
        second->template finish<R::PLAIN>(p, is_nan);
    }
    if (differ && p.plan.swap_sines) {
        const typename R::real sine = first->sine;
        first->sine = second->sine;
        second->sine = sine;
    }
    return differ;
}

/* What a thread makes at a time: the couples of COUNT pairs of a row. It follows from `number`, which counts couples in the order
 * of shared memory, so that neighbours are made by neighbouring threads. */
template <class R, int COUNT> struct couple_run {
    uint32_t row, pair;

    __device__ __forceinline__ couple_run(const block_shape &shape, uint32_t number)
    {
        constexpr uint32_t TOGETHER = COUPLES_TOGETHER<R>, OF_LANE = R::PAIRS / TOGETHER;
        const uint32_t place = number * COUNT, group = trope_divide(&shape.lanes, place / TOGETHER),
                       lane = place / TOGETHER - group * shape.lanes.divisor;
        row = group / OF_LANE;
        pair = pair_of_lane<R>(shape, lane, group % OF_LANE * TOGETHER + place % TOGETHER);
    }
};

/* Calls make(row, pair, step, where its couple is) for each COUNT-th pair of a block, by all threads of the block. Where positions
 * follow from the tokens, load() comes before that, with phase steps asked for at the same time; else there is a barrier. */
template <class R, int COUNT, class LOAD, class MAKE>
__device__ __forceinline__ void each_pair(const typename R::call &call, const typename R::steps &steps,
                                          typename R::index first_row, uint32_t count, LOAD load, MAKE make)
{
    constexpr bool ASKS_FIRST = R::ROWS == ROWS_FROM_TOKENS && R::ANGLES == ANGLES_PHASE;
    const uint32_t threads = threads_of_block(), end = count * call.shape.couples_of_row / COUNT;
    uint32_t number = thread_of_block();
    couple_run<R, COUNT> run(call.shape, number);
    uint64_t step[2];
    if (R::ROWS == ROWS_FROM_TOKENS)
        await_previous();
    if (ASKS_FIRST)
        load_steps<R, COUNT>(steps, min(run.pair, (uint32_t)(R::STEPS - COUNT)), step); /* (it may be no pair) */
    load();
    if (ASKS_FIRST)
        settle_steps<COUNT>(step);
    if (R::ROWS == ROWS_FROM_TOKENS)
        admit_next();
    else
        __syncthreads();
#pragma unroll 1
    while (number < end) {
        if (R::VECTORS || R::PAIRS == 1 || run.pair < (uint32_t)call.plan.plan.pairs)
            make(row_position<R>(call, first_row + (typename R::index)run.row, run.row), run.pair, step,
                 (couple<R::DTYPE> *)shared + number * COUNT);
        number += threads;
        if (number < end) {
            run = couple_run<R, COUNT>(call.shape, number);
            if (ASKS_FIRST) {
                load_steps<R, COUNT>(steps, run.pair, step);
                settle_steps<COUNT>(step);
            }
        }
    }
}

/* All couples of the block, from steps or plain freqs, COUNT by a thread at a time. */
template <class R, int COUNT, class LOAD>
__device__ __forceinline__ void make_couples(const typename R::call &call, const typename R::steps &steps,
                                             typename R::index first_row, uint32_t count, LOAD load)
{
    each_pair<R, COUNT>(call, steps, first_row, count, load,
                        [&](const row_position<R> &row, uint32_t pair, uint64_t step[2], couple<R::DTYPE> *to) {
                            couples<R, COUNT> made;
                            if (has_phases<R::ANGLES>(call.plan.plan))
                                couples_of_phases<R, COUNT>(call, steps, row, pair, step, &made);
                            else
                                couples_of_freqs<R, COUNT>(call, row, pair, &made);
                            *(couples<R, COUNT> *)to = made;
                        });
}

/* From any table. Returns whether the thread has found elements of a pair that have different ones. */
template <class R, class LOAD>
__device__ __forceinline__ bool make_couples_of_table(const typename R::call &call, const typename R::steps &steps,
                                                      typename R::index first_row, uint32_t count, LOAD load)
{
    bool differ = false;
    each_pair<R, 1>(call, steps, first_row, count, load,
                    [&](const row_position<R> &row, uint32_t pair, uint64_t *, couple<R::DTYPE> *to) {
                        couple<R::DTYPE> second;
                        differ = couples_of_table<R>(call, row, pair, to, &second) || differ;
                        if (!R::PLAIN && call.plan.plan.angles.per_element)
                            to[call.shape.second_at] = second;
                    });
    return differ;
}

template <class R, class LOAD>
__device__ __forceinline__ bool make_any_couples(const typename R::call &call, const typename R::steps &steps,
                                                 typename R::index first_row, uint32_t count, LOAD load)
{
    if (!has_phases<R::ANGLES>(call.plan.plan) && !call.plan.has_plain_freqs)
        return make_couples_of_table<R>(call, steps, first_row, count, load);
    if (R::PAIRS == 1 || count * call.shape.couples_of_row <= threads_of_block())
        make_couples<R, 1>(call, steps, first_row, count, load);
    else
        make_couples<R, COUPLES_TOGETHER<R>>(call, steps, first_row, count, load);
    return false;
}

/* Issues the thread's loads of data and then finds the coefficients of all rows of the block, up to the barrier after which all
 * threads may read them. Returns whether elements of any pair of the block have different ones. */
template <class R, class ISSUE_LOADS>
__device__ __forceinline__ bool find_coefficients(const typename R::call &call, const typename R::steps &steps,
                                                  typename R::index first_row, uint32_t count, ISSUE_LOADS issue_loads)
{
    const uint32_t rotating = slice_of_block(call.shape) < call.shape.rotating_slices ? count : 0; /* the others only copy */
    bool differ;
    if constexpr (R::ROWS == ROWS_FROM_TOKENS) {
        differ = make_any_couples<R>(call, steps, first_row, rotating, issue_loads);
    } else {
        await_previous();
        issue_loads();
        find_rows<R>(call, first_row, count);
        admit_next();
        differ = make_any_couples<R>(call, steps, first_row, rotating, []() {});
    }
    if (!R::PLAIN && R::ANGLES != ANGLES_PHASE && call.plan.plan.angles.per_element)
        return __syncthreads_or(differ);
    __syncthreads();
    return false;
}

#endif
