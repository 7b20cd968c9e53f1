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

/* Leaves the rows of a block in shared memory. `thread`: of the block, which has awaited the beginning of a search. */
template <class R>
__device__ __forceinline__ void find_rows(const typename R::call &call, const boundary_round &round,
                                          typename R::index first_row, uint32_t count, uint32_t thread)
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
        if (thread < 32)
            search_rows<R::ROWS, R::WIDE, ANY_TABLE>(plan, round, call.plan.of_padding, first_row, count, rows, locate);
    } else {
        read_rows<R::ROWS, ANY_TABLE>(plan, count, rows, thread, threads_of_block(), locate);
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

/* ---- what a thread makes at a time ---- */

/* The couples of COUNT pairs of a row. It follows from `number`, which counts couples in the order of shared memory, so that
 * neighbours are made by neighbouring threads. */
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

    /* Whether there is such a pair: by elements the last lane may be no whole one. */
    __device__ __forceinline__ bool is_there(const trope_plan &plan) const
    {
        return R::VECTORS || R::PAIRS == 1 || pair < (uint32_t)plan.pairs;
    }
};

/* Where the positions of rows are known without shared memory: they follow from the tokens, or each thread reads what it needs. */
template <class R> constexpr bool IS_DIRECT = R::ROWS == ROWS_FROM_TOKENS || R::ROWS == ROWS_READ;

/* The positions of a run. ONE_AXIS: the source has the same for all axes (freqs_source). */
template <class R, int COUNT, bool ONE_AXIS> struct run_positions {
    typedef typename R::stride stride;
    static constexpr int DIFFERENT = ONE_AXIS ? 1 : COUNT;
    typename R::index batch, token;
    raw_index read[DIFFERENT];
    const position_type<R> *of_axis;

    __device__ __forceinline__ run_positions(const typename R::call &call, typename R::index first_row,
                                             const couple_run<R, COUNT> &run)
        : batch(0), token(0), of_axis(NULL)
    {
        const block_row<typename R::index> at =
            find_row<R::ADDRESSES, typename R::index>(call.shape, first_row + (typename R::index)run.row);
        const block_rows<position_type<R>> rows = rows_of_block<R>(call);
        if (R::ADDRESSES == ADDRESSES_ANY) {
            batch = found_here((typename R::index)at.batch(call.shape));
            token = found_here((typename R::index)at.token(call.shape));
        }
        if (!IS_DIRECT<R>)
            of_axis = rows.position + (run.row << rows.axis_bits);
    }

    /* (Of a run that may be none: row 0 is read then. Without branches: they would part loads from what waits for them.) */
    __device__ __forceinline__ void request(const cuda_plan &p, const couple_run<R, COUNT> &run, uint32_t rows)
    {
        const bool is_there = run.row < rows;
#pragma unroll
        for (int i = 0; i < DIFFERENT && R::ROWS == ROWS_READ; i++)
            p.source.load<stride>(is_there ? batch : 0, is_there ? token : 0, axis_of(p, run.pair + i), &read[i]);
    }

    __device__ __forceinline__ void await_all(uint32_t *condition)
    {
#pragma unroll
        for (int i = 0; i < DIFFERENT && R::ROWS == ROWS_READ; i++)
            await(read[i].low, condition);
    }

    /* Of pair i of the run. With a table: a row that it has, or NO_POSITION. */
    __device__ __forceinline__ int64_t of(const cuda_plan &p, uint32_t pair, int i) const
    {
        if (R::ROWS == ROWS_FROM_TOKENS)
            return p.positions.of((uint32_t)token);
        if (R::ROWS != ROWS_READ)
            return of_axis[R::ROWS == ROWS_SEARCHED ? 0 : axis_of(p, pair + i)];
        const int64_t position = position_of_index(p.plan.sequences, p.source, read[i], token);
        return finish_position<R::ANGLES != ANGLES_PHASE>(p.plan, true, position);
    }

    /* Bytes from the beginning of a table to column 0 of what it has for a pair. */
    __device__ __forceinline__ stride offset_in_table(const cuda_plan &p, int64_t position, uint32_t pair) const
    {
        const trope_table_stride &strides = p.plan.angles.stride;
        const stride of_row = (stride)(position == NO_POSITION ? 0 : position) * (stride)strides.row;
        if (R::ROWS == ROWS_SEARCHED)
            return of_row;
        return of_row + (stride)batch * (stride)strides.batch +
               (ONE_AXIS ? 0 : trope_pair_plane(&p.plan, (int32_t)pair) * (stride)strides.axis);
    }

  private:
    static __device__ __forceinline__ int32_t axis_of(const cuda_plan &p, uint32_t pair)
    {
        return ONE_AXIS || !p.axis_mask ? 0 : trope_pair_plane(&p.plan, (int32_t)pair) & p.axis_mask;
    }
};

/* Whether a position makes NaN: one that a table does not have. */
template <class R> __device__ __forceinline__ bool is_nan_position(int64_t position)
{
    return R::ROWS != ROWS_FROM_TOKENS && position == NO_POSITION;
}

/* ---- where angles come from ---- */

/* Phase steps. */
template <class R, int COUNT> struct phase_source {
    typedef run_positions<R, COUNT, false> positions_type;
    uint64_t step[2];

    template <bool MAY_BE_NONE>
    __device__ __forceinline__ void request(const typename R::call &, const typename R::steps &steps,
                                            const couple_run<R, COUNT> &run, const positions_type &, uint32_t)
    {
        const uint64_t *const of_pair = steps.of + (MAY_BE_NONE ? min(run.pair, (uint32_t)(R::STEPS - COUNT)) : run.pair);
        if (COUNT == 2)
            load_two_parameters(of_pair, &step[0], &step[1]);
        else
            load_parameter(of_pair, &step[0]);
    }

    __device__ __forceinline__ void await_all(uint32_t *condition)
    {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            await((uint32_t)step[i], condition);
    }

    __device__ __forceinline__ void settle_all()
    {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            settle(&step[i]);
    }

    __device__ __forceinline__ bool is_missing() const
    {
        return false;
    }

    __device__ __forceinline__ bool make(const typename R::call &call, const couple_run<R, COUNT> &run,
                                         const positions_type &positions, couple<R::DTYPE> *to) const
    {
        couples<R, COUNT> made;
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const int64_t position = positions.of(call.plan, run.pair, i);
            /* (Positions of 32 bits are not negative.) */
            sincos_of_phase(sizeof(position_type<R>) == 4 ? (int64_t)(uint32_t)position : position, step[i],
                            &made.of[i].sine, &made.of[i].cosine);
            made.of[i].template finish<R::PLAIN>(call.plan, false);
        }
        *(couples<R, COUNT> *)to = made;
        return false;
    }
};

/* Freqs of fp32, one column a pair, and one position for all pairs of a row (cuda_plan.has_plain_freqs). */
template <class R, int COUNT> struct freqs_source {
    typedef run_positions<R, COUNT, true> positions_type;
    raw_entry raw[COUNT];
    position_type<R> position;

    /* `rows`: those that there are; a run of another one reads the beginning of the table. */
    template <bool MAY_BE_NONE>
    __device__ __forceinline__ void request(const typename R::call &call, const typename R::steps &,
                                            const couple_run<R, COUNT> &run, const positions_type &positions, uint32_t rows)
    {
        typedef typename R::stride stride;
        const stride column = (stride)call.plan.plan.angles.stride.column;
        position = (position_type<R>)positions.of(call.plan, run.pair, 0);
        const stride first = positions.offset_in_table(call.plan, position, run.pair) + (stride)run.pair * column;
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            raw[i].template load<TROPE_F32>(call.plan.table[0] + (!MAY_BE_NONE || run.row < rows ? first + i * column : 0) *
                                                                     (stride)sizeof(float),
                                            sizeof(float));
    }

    __device__ __forceinline__ void await_all(uint32_t *condition)
    {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            await(raw[i].low, condition);
    }

    /* (They are used in what follows.) */
    __device__ __forceinline__ void settle_all()
    {
    }

    __device__ __forceinline__ bool is_missing() const
    {
        return is_nan_position<R>(position);
    }

    __device__ __forceinline__ bool make(const typename R::call &call, const couple_run<R, COUNT> &, const positions_type &,
                                         couple<R::DTYPE> *to) const
    {
        typename R::real angle[COUNT], sine[COUNT], cosine[COUNT];
        couples<R, COUNT> made;
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            angle[i] = trope_float_from_bits(raw[i].low);
        sincos_of_angles<COUNT>(angle, sine, cosine);
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            made.of[i] = {cosine[i], sine[i]};
            made.of[i].template finish<R::PLAIN>(call.plan, is_nan_position<R>(position));
        }
        *(couples<R, COUNT> *)to = made;
        return false;
    }
};

/* Any table, for one pair at a time. */
template <class R, int COUNT> struct table_source {
    typedef run_positions<R, COUNT, false> positions_type;
    raw_couple first, second; /* of the elements of the pair; the same again where they have one column */
    bool is_nan;

    template <bool MAY_BE_NONE>
    __device__ __forceinline__ void request(const typename R::call &call, const typename R::steps &,
                                            const couple_run<R, COUNT> &run, const positions_type &positions, uint32_t rows)
    {
        typedef typename R::stride stride;
        const cuda_plan &p = call.plan;
        const int64_t position = positions.of(p, run.pair, 0);
        const stride of_row = positions.offset_in_table(p, position, run.pair),
                     column = (stride)p.plan.angles.stride.column;
        const bool is_there = !MAY_BE_NONE || (run.row < rows && run.is_there(p.plan));
        stride at[2];
        is_nan = is_nan_position<R>(position);
#pragma unroll
        for (int i = 0; i < (R::PLAIN ? 1 : 2); i++) /* (their branches come before the first load) */
            at[i] = found_here(
                is_there ? (of_row + column_of_pair<R::PLAIN>(p, (int32_t)run.pair, i) * column) * p.entry_bytes : 0);
        first.load<R::DTYPE>(p, at[0]);
        if (!R::PLAIN)
            second.load<R::DTYPE>(p, at[1]);
    }

    __device__ __forceinline__ void await_all(uint32_t *condition)
    {
        first.await_all(condition);
        if (!R::PLAIN)
            second.await_all(condition);
    }

    __device__ __forceinline__ void settle_all()
    {
        first.settle_all();
        if (!R::PLAIN)
            second.settle_all();
    }

    __device__ __forceinline__ bool is_missing() const
    {
        return is_nan;
    }

    /* Returns whether the elements of the pair have different coefficients. */
    __device__ __forceinline__ bool make(const typename R::call &call, const couple_run<R, COUNT> &, const positions_type &,
                                         couple<R::DTYPE> *to) const
    {
        const cuda_plan &p = call.plan;
        const bool differ = !R::PLAIN && p.plan.angles.per_element && first.differs(second, p.plan.angles.dtype);
        couple<R::DTYPE> of_first = couple_of_entries<R::DTYPE>(p.plan.angles, first);
        of_first.template finish<R::PLAIN>(p, is_nan);
        couple<R::DTYPE> of_second = of_first;
        if (differ) {
            of_second = couple_of_entries<R::DTYPE>(p.plan.angles, second);
            of_second.template finish<R::PLAIN>(p, is_nan);
        }
        if (differ && p.plan.swap_sines) {
            const typename R::real sine = of_first.sine;
            of_first.sine = of_second.sine;
            of_second.sine = sine;
        }
        *to = of_first;
        if (!R::PLAIN && p.plan.angles.per_element)
            to[call.shape.second_at] = of_second;
        return differ;
    }
};

/* ---- the couples of a block ---- */

/* Makes all couples of a block, COUNT by a thread at a time. load() asks for the data. What needs no position that is found in
 * shared memory is asked for before that, or else before the barrier after which the positions are there. Returns whether the
 * thread has found elements of a pair that have different coefficients. */
template <class R, int COUNT, template <class, int> class SOURCE, class LOAD, class PREPARE>
__device__ __forceinline__ bool make_couples(const typename R::call &call, const typename R::steps &steps,
                                             typename R::index first_row, uint32_t rows, LOAD load, PREPARE prepare)
{
    constexpr bool IS_EARLY = R::ROWS == ROWS_FROM_TOKENS || R::ANGLES == ANGLES_PHASE;
    const uint32_t threads = threads_of_block(), end = rows * call.shape.couples_of_row / COUNT;
    uint32_t number = thread_of_block();
    couple_run<R, COUNT> run(call.shape, number);
    SOURCE<R, COUNT> source;
    bool differ = false, any_is_missing = false;
    if constexpr (IS_DIRECT<R>) {
        typename SOURCE<R, COUNT>::positions_type positions(call, first_row, run);
        await_previous();
        positions.request(call.plan, run, rows);
        if (IS_EARLY)
            source.template request<true>(call, steps, run, positions, rows);
        load();
        positions.await_all(&number);
        if (IS_EARLY)
            source.await_all(&number);
        prepare();
        admit_next();
        if (!IS_EARLY && number < end) {
            source.template request<true>(call, steps, run, positions, rows);
            source.await_all(&number);
            any_is_missing = source.is_missing();
        }
        if (number < end && run.is_there(call.plan.plan))
            differ = source.make(call, run, positions, (couple<R::DTYPE> *)shared + number * COUNT);
        number += threads;
    } else {
        typename SOURCE<R, COUNT>::positions_type positions(call, first_row, run);
        if (IS_EARLY)
            source.template request<true>(call, steps, run, positions, rows);
        __syncthreads();
        if (IS_EARLY)
            source.await_all(&number);
    }
#pragma unroll 1
    while (number < end) {
        if (IS_DIRECT<R>)
            run = couple_run<R, COUNT>(call.shape, number);
        if (run.is_there(call.plan.plan)) {
            typename SOURCE<R, COUNT>::positions_type positions(call, first_row, run);
            positions.request(call.plan, run, rows);
            if (IS_DIRECT<R> || !IS_EARLY) {
                source.template request<false>(call, steps, run, positions, rows);
                source.settle_all();
                any_is_missing = any_is_missing || source.is_missing();
            }
            differ = source.make(call, run, positions, (couple<R::DTYPE> *)shared + number * COUNT) || differ;
        }
        number += threads;
        if (!IS_DIRECT<R> && number < end) {
            run = couple_run<R, COUNT>(call.shape, number);
            if (IS_EARLY) {
                typename SOURCE<R, COUNT>::positions_type positions(call, first_row, run);
                source.template request<true>(call, steps, run, positions, rows);
                source.await_all(&number);
            }
        }
    }
    if (R::ROWS == ROWS_READ) /* others are found in shared memory, and have been reported there */
        report_if_missing(call.plan.plan, any_is_missing);
    return differ;
}

template <class R, class LOAD, class PREPARE>
__device__ __forceinline__ bool make_any_couples(const typename R::call &call, const typename R::steps &steps,
                                                 typename R::index first_row, uint32_t rows, LOAD load, PREPARE prepare)
{
    constexpr int TOGETHER = COUPLES_TOGETHER<R>;
    const bool are_few = TOGETHER == 1 || rows * call.shape.couples_of_row <= threads_of_block(); /* one a thread */
    if (has_phases<R::ANGLES>(call.plan.plan))
        return are_few ? make_couples<R, 1, phase_source>(call, steps, first_row, rows, load, prepare)
                       : make_couples<R, TOGETHER, phase_source>(call, steps, first_row, rows, load, prepare);
    if (!call.plan.has_plain_freqs)
        return make_couples<R, 1, table_source>(call, steps, first_row, rows, load, prepare);
    return are_few ? make_couples<R, 1, freqs_source>(call, steps, first_row, rows, load, prepare)
                   : make_couples<R, TOGETHER, freqs_source>(call, steps, first_row, rows, load, prepare);
}

/* Asks for the data by load() and then finds the coefficients of all rows of the block, up to the barrier after which all threads
 * may read them. prepare() comes as soon as what it has branches for cannot part loads from what waits for them. Returns whether
 * elements of any pair of the block have different ones. */
template <class R, class LOAD, class PREPARE>
__device__ __forceinline__ bool find_coefficients(const typename R::call &call, const typename R::steps &steps,
                                                  typename R::index first_row, uint32_t count, LOAD load, PREPARE prepare)
{
    const bool rotates = R::ADDRESSES == ADDRESSES_SIMPLE || slice_of_block(call.shape) < call.shape.rotating_slices;
    const uint32_t rotating = rotates ? count : 0; /* other slices are only copied */
    bool differ = false;
    if constexpr (IS_DIRECT<R>) {
        if (rotates) {
            differ = make_any_couples<R>(call, steps, first_row, rotating, load, prepare);
        } else {
            await_previous();
            load();
            prepare();
            admit_next();
        }
    } else {
        await_previous();
        uint32_t thread = thread_of_block();
        const boundary_round round = begin_search<R::ROWS, R::WIDE>(call.plan.plan, thread < 32);
        load();
        round.await_all(&thread);
        prepare();
        find_rows<R>(call, round, first_row, count, thread);
        admit_next();
        differ = make_any_couples<R>(call, steps, first_row, rotating, load, prepare);
    }
    if (R::PLAIN || R::ANGLES == ANGLES_PHASE) {
        __syncthreads();
        return false;
    }
    return __syncthreads_or(differ);
}

#endif
