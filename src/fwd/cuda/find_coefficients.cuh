/* Computes the coefficients of a block's tokens, once for all heads. All threads compute them into shared memory while
 * the data is loading. R has the template parameters of a kernel: rotation (item_job.cuh) or gradient_pass
 * (bwd/cuda/gradient_pass.cuh). */
#ifndef TROPE_FWD_CUDA_FIND_COEFFICIENTS_CUH
#define TROPE_FWD_CUDA_FIND_COEFFICIENTS_CUH

#include "fwd/cuda/register_block.cuh"

extern __shared__ __align__(16) char shared_memory[];

/* The type of positions. 32 bits are enough without start positions, and for table rows in vector kernels. */
template <class R>
using position_type =
    std::conditional_t<R::POSITIONS == POSITIONS_SEARCHED || (!R::WIDE && R::ANGLES == ANGLES_TABLE), int32_t, int64_t>;

template <class R> __device__ __forceinline__ block_tokens<position_type<R>> tokens_of_block(const typename R::call &call)
{
    return block_tokens<position_type<R>>(shared_memory + call.shape.tokens_at, call.shape.tokens_of_block,
                                          have_actions<R::POSITIONS>(call.plan.plan),
                                          R::POSITIONS == POSITIONS_SEARCHED ? 0 : call.plan.axis_bits);
}

/* The number of threads that search for the tokens of a block. They are its first warp. */
#define SEARCHERS 32

template <class R> __device__ __forceinline__ int32_t action_of_token(const typename R::call &call, uint32_t in_block)
{
    return have_actions<R::POSITIONS>(call.plan.plan) ? tokens_of_block<R>(call).action[in_block]
                                                      : (int32_t)TROPE_TOKEN_ROTATE;
}

/* Returns whether a table has the positions of a rotated token on all of the given axes (one bit for each). */
template <class R>
__device__ __forceinline__ bool has_positions(const typename R::call &call, uint32_t axes, uint32_t in_block)
{
    const auto tokens = tokens_of_block<R>(call);
    bool has = true;
#pragma unroll 1
    for (uint32_t axis = 0; axes >> axis; axis++)
        if (axes >> axis & 1 &&
            is_missing<R::ANGLES != ANGLES_PHASE>(
                call.plan.plan, tokens.position[(in_block << tokens.axis_bits) + (tokens.axis_bits ? axis : 0)]))
            has = false;
    return has;
}

/* Finds the positions of a block's tokens and leaves them in shared memory. `thread` is the thread's index in the block.
 * Its value depends on the loads of the first round of a search, so that the wait for them comes before its use. */
template <class R>
__device__ __forceinline__ void find_positions(const typename R::call &call, const boundary_round &round,
                                               typename R::index first_token, uint32_t count, uint32_t thread)
{
    constexpr bool ANY_TABLE = R::ANGLES != ANGLES_PHASE;
    const trope_plan &plan = call.plan.plan;
    const block_tokens<position_type<R>> tokens = tokens_of_block<R>(call);
    const auto locate = [&](uint32_t in_block, int64_t *batch, int64_t *token) {
        const block_token<typename R::index> at =
            find_token<R::ADDRESSES, typename R::index>(call.shape, first_token + (typename R::index)in_block);
        *batch = at.batch(call.shape);
        *token = at.index(call.shape);
    };
    if (!have_actions<R::POSITIONS>(plan))
        report_if_missing(plan, read_positions<ANY_TABLE>(plan, count, tokens, thread, threads_of_block(), locate));
    else if (thread < SEARCHERS)
        search_positions<R::POSITIONS, R::WIDE, ANY_TABLE>(plan, round, first_token, count, tokens, locate);
}

/* COUNT consecutive couples in shared memory, as the rotating threads read them. */
template <class R, int COUNT> struct alignas(sizeof(couple<R::DTYPE>) * COUNT) couples {
    couple<R::DTYPE> of[COUNT];
};

template <class R> constexpr int COUPLES_TOGETHER = R::PAIRS == 1 ? 1 : 2;

/* Returns pair e of an item. */
template <class R> __device__ __forceinline__ uint32_t pair_of_item(const block_shape &shape, uint32_t in_head, uint32_t e)
{
    constexpr uint32_t half = R::PAIRS == 1 ? 1 : R::PAIRS / 2;
    if (R::PAIRS > 1 && shape.splits) /* one vector in each half of the window */
        return (in_head + e / half * shape.window_items.divisor) * half + e % half;
    return in_head * R::PAIRS + e;
}

/* The place of pair e of an item in shared memory, counted in couples. Two pairs of an item are neighbours. The same
 * pairs of the next item follow them, because the next thread reads these at the same time. */
template <class R>
__device__ __forceinline__ uint32_t place_of_couple(const block_shape &shape, uint32_t in_block, uint32_t in_head,
                                                    uint32_t e)
{
    constexpr uint32_t TOGETHER = COUPLES_TOGETHER<R>;
    return ((in_block * (R::PAIRS / TOGETHER) + e / TOGETHER) * shape.window_items.divisor + in_head) * TOGETHER;
}

/* ---- a thread's couples ---- */

/* The couples that a thread computes at a time: `count` consecutive pairs of a token, either one pair or all that are
 * stored together. The number of a run follows the order of shared memory, so that neighbouring threads compute
 * neighbouring couples. */
template <class R> struct couple_run {
    static constexpr uint32_t MOST = COUPLES_TOGETHER<R>;
    uint32_t in_block = 0, pair = 0, count = 1;

    __device__ __forceinline__ void find(const block_shape &shape, uint32_t number)
    {
        constexpr uint32_t OF_ITEM = R::PAIRS / MOST;
        const uint32_t place = number * count, group = trope_divide(&shape.window_items, place / MOST),
                       in_head = place / MOST - group * shape.window_items.divisor;
        in_block = group / OF_ITEM;
        pair = pair_of_item<R>(shape, in_head, group % OF_ITEM * MOST + place % MOST);
    }

    __device__ __forceinline__ uint32_t last_pair() const
    {
        return pair + count - 1;
    }

    /* Returns whether the pair exists. In element kernels, the last item may be incomplete. */
    __device__ __forceinline__ bool is_there(const trope_plan &plan) const
    {
        return R::VECTORS || R::PAIRS == 1 || pair < (uint32_t)plan.pairs;
    }
};

/* Whether positions are known without shared memory: they come from tokens, or each thread reads the positions that it
 * needs. */
template <class R> constexpr bool IS_DIRECT = R::POSITIONS == POSITIONS_FROM_TOKENS || R::POSITIONS == POSITIONS_READ;

/* The positions of a run. ONE_AXIS: the source has the same positions for all axes (freqs_source). */
template <class R, bool ONE_AXIS> struct run_positions {
    typedef typename R::stride stride;
    static constexpr int DIFFERENT = ONE_AXIS ? 1 : COUPLES_TOGETHER<R>;
    typename R::index batch = 0, token = 0;
    const char *from[DIFFERENT]; /* the addresses of the ids or start positions */
    raw_index read[DIFFERENT];
    const position_type<R> *of_axis = NULL;

    __device__ __forceinline__ explicit run_positions(const cuda_plan &p)
    {
#pragma unroll
        for (int i = 0; i < DIFFERENT; i++)
            from[i] = p.source.base;
    }

    /* If is_there is false, it takes the positions of token 0. */
    __device__ __forceinline__ void find(const typename R::call &call, typename R::index first_token,
                                         const couple_run<R> &run, bool is_there)
    {
        const block_token<typename R::index> at =
            find_token<R::ADDRESSES, typename R::index>(call.shape, first_token + (typename R::index)run.in_block);
        const block_tokens<position_type<R>> tokens = tokens_of_block<R>(call);
        if (R::ADDRESSES == ADDRESSES_GENERIC) {
            batch = found_here((typename R::index)at.batch(call.shape));
            token = found_here((typename R::index)at.index(call.shape));
        }
        if (!IS_DIRECT<R>)
            of_axis = tokens.position + (run.in_block << tokens.axis_bits);
#pragma unroll
        for (int i = 0; i < DIFFERENT && R::POSITIONS == POSITIONS_READ; i++)
            from[i] = found_here(call.plan.source.template address<stride>(
                is_there ? batch : 0, is_there ? token : 0, axis_of(call.plan, i ? run.last_pair() : run.pair)));
    }

    __device__ __forceinline__ void request(const cuda_plan &p)
    {
#pragma unroll
        for (int i = 0; i < DIFFERENT && R::POSITIONS == POSITIONS_READ; i++)
            load_4_or_8(from[i], p.source.is_64, &read[i].low, &read[i].high);
    }

    __device__ __forceinline__ void await_all(uint32_t *condition)
    {
#pragma unroll
        for (int i = 0; i < DIFFERENT && R::POSITIONS == POSITIONS_READ; i++)
            await(read[i].low, condition);
    }

    /* Returns the position of pair i of the run. With a table, this is a row of the table or NO_POSITION. */
    __device__ __forceinline__ int64_t of(const cuda_plan &p, const couple_run<R> &run, int i) const
    {
        if (R::POSITIONS == POSITIONS_FROM_TOKENS)
            return p.positions.of((uint32_t)token);
        if (R::POSITIONS != POSITIONS_READ)
            return of_axis[R::POSITIONS == POSITIONS_SEARCHED ? 0 : axis_of(p, run.pair + i)];
        const int64_t position = position_of_index(p.plan.position_source, p.source, read[i], token);
        return finish_position<R::ANGLES != ANGLES_PHASE>(p.plan, true, position);
    }

    /* Returns the offset of column 0 of a pair's table row, in entries. */
    __device__ __forceinline__ stride offset_in_table(const cuda_plan &p, int64_t position, uint32_t pair) const
    {
        const trope_table_stride &strides = p.plan.angles.stride;
        const stride of_row = (stride)(position == NO_POSITION ? 0 : position) * (stride)strides.row;
        if (R::POSITIONS == POSITIONS_SEARCHED)
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

/* Returns whether a position in a table is NO_POSITION. Table sources use this for is_missing(). Positions from tokens
 * are never missing. */
template <class R> __device__ __forceinline__ bool is_nan_position(int64_t position)
{
    return R::POSITIONS != POSITIONS_FROM_TOKENS && position == NO_POSITION;
}

/* ---- the sources of angles ----
 *
 * find() computes the addresses of a run's entries, and ask() loads the entries. After await_all() or settle_all(),
 * make() computes couples from them. If the token of a run does not exist, or if find() was not called, ask() loads the
 * first entries. */

/* Phase steps. */
template <class R> struct phase_source {
    typedef run_positions<R, false> positions_type;
    static constexpr int MOST = COUPLES_TOGETHER<R>;
    uint64_t step[MOST]; /* of the pairs that are stored together */

    __device__ __forceinline__ void find(const typename R::call &, const couple_run<R> &, const positions_type &, bool)
    {
    }

    __device__ __forceinline__ void ask(const typename R::call &, const typename R::steps &steps, const couple_run<R> &run)
    {
        const uint64_t *const from = steps.of + min(run.pair / MOST * MOST, (uint32_t)(R::STEPS - MOST));
        if constexpr (MOST == 2)
            load_two_parameters(from, &step[0], &step[1]);
        else
            load_parameter(from, &step[0]);
    }

    __device__ __forceinline__ void await_all(uint32_t *condition)
    {
#pragma unroll
        for (int i = 0; i < MOST; i++)
            await((uint32_t)step[i], condition);
    }

    __device__ __forceinline__ void settle_all()
    {
#pragma unroll
        for (int i = 0; i < MOST; i++)
            settle(&step[i]);
    }

    __device__ __forceinline__ bool is_missing() const
    {
        return false;
    }

    template <int COUNT>
    __device__ __forceinline__ bool make(const typename R::call &call, const couple_run<R> &run,
                                         const positions_type &positions, couple<R::DTYPE> *to) const
    {
        couples<R, COUNT> made;
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const int64_t position = positions.of(call.plan, run, i);
            const uint64_t of_pair = COUNT == MOST ? step[i] : run.pair % MOST ? step[MOST - 1] : step[0];
            /* (Positions of 32 bits are never negative.) */
            sincos_of_phase(sizeof(position_type<R>) == 4 ? (int64_t)(uint32_t)position : position, of_pair,
                            &made.of[i].sine, &made.of[i].cosine);
            made.of[i].template finish<R::ALWAYS_FAST>(call.plan, false);
        }
        *(couples<R, COUNT> *)to = made;
        return false;
    }
};

/* freqs in fp32 with one column for each pair, and one position for all pairs of a token (cuda_plan.has_fast_freqs). */
template <class R> struct freqs_source {
    typedef run_positions<R, true> positions_type;
    typedef typename R::stride stride;
    static constexpr int MOST = COUPLES_TOGETHER<R>;
    raw_entry raw[MOST];
    stride first = 0; /* offset of the first pair, in entries */
    position_type<R> position = 0;

    __device__ __forceinline__ void find(const typename R::call &call, const couple_run<R> &run,
                                         const positions_type &positions, bool is_there)
    {
        position = (position_type<R>)positions.of(call.plan, run, 0);
        first = positions.offset_in_table(call.plan, position, run.pair) +
                (stride)run.pair * (stride)call.plan.plan.angles.stride.column;
        first = is_there ? first : 0;
    }

    __device__ __forceinline__ void ask(const typename R::call &call, const typename R::steps &, const couple_run<R> &run)
    {
        const stride second = (stride)call.plan.plan.angles.stride.column * (stride)(run.count - 1);
#pragma unroll
        for (int i = 0; i < MOST; i++)
            raw[i].template load<TROPE_F32>(call.plan.table[0] + (first + i * second) * (stride)sizeof(float),
                                            sizeof(float));
    }

    __device__ __forceinline__ void await_all(uint32_t *condition)
    {
#pragma unroll
        for (int i = 0; i < MOST; i++)
            await(raw[i].low, condition);
    }

    __device__ __forceinline__ void settle_all()
    {
#pragma unroll
        for (int i = 0; i < MOST; i++)
            settle(&raw[i].low);
    }

    __device__ __forceinline__ bool is_missing() const
    {
        return is_nan_position<R>(position);
    }

    template <int COUNT>
    __device__ __forceinline__ bool make(const typename R::call &call, const couple_run<R> &, const positions_type &,
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
            made.of[i].template finish<R::ALWAYS_FAST>(call.plan, is_missing());
        }
        *(couples<R, COUNT> *)to = made;
        return false;
    }
};

/* Any table. It takes one pair at a time. */
template <class R> struct table_source {
    typedef run_positions<R, false> positions_type;
    typedef typename R::stride stride;
    static constexpr int MOST = 1;
    raw_couple first, second; /* for each element of the pair; equal if a pair has one column */
    stride at[2] = {0, 0};    /* their offsets, in bytes */
    bool is_nan = false;

    __device__ __forceinline__ void find(const typename R::call &call, const couple_run<R> &run,
                                         const positions_type &positions, bool is_there)
    {
        const cuda_plan &p = call.plan;
        const int64_t position = positions.of(p, run, 0);
        const stride of_row = positions.offset_in_table(p, position, run.pair),
                     column = (stride)p.plan.angles.stride.column;
        const bool has_entries = is_there && run.is_there(p.plan);
        is_nan = is_nan_position<R>(position);
#pragma unroll
        for (int i = 0; i < (R::ALWAYS_FAST ? 1 : 2); i++)
            at[i] = found_here(has_entries ? (of_row + column_of_pair<R::ALWAYS_FAST>(p, (int32_t)run.pair, i) * column) *
                                                 p.entry_bytes
                                           : 0);
    }

    __device__ __forceinline__ void ask(const typename R::call &call, const typename R::steps &, const couple_run<R> &)
    {
        first.load<R::DTYPE>(call.plan, at[0]);
        if (!R::ALWAYS_FAST)
            second.load<R::DTYPE>(call.plan, at[1]);
    }

    __device__ __forceinline__ void await_all(uint32_t *condition)
    {
        first.await_all(condition);
        if (!R::ALWAYS_FAST)
            second.await_all(condition);
    }

    __device__ __forceinline__ void settle_all()
    {
        first.settle_all();
        if (!R::ALWAYS_FAST)
            second.settle_all();
    }

    __device__ __forceinline__ bool is_missing() const
    {
        return is_nan;
    }

    /* Returns whether the elements of the pair have different coefficients. */
    template <int>
    __device__ __forceinline__ bool make(const typename R::call &call, const couple_run<R> &, const positions_type &,
                                         couple<R::DTYPE> *to) const
    {
        const cuda_plan &p = call.plan;
        const bool differ = !R::ALWAYS_FAST && p.plan.angles.per_element && first.differs(second, p.plan.angles.dtype);
        couple<R::DTYPE> of_first = couple_of_entries<R::DTYPE>(p.plan.angles, first);
        of_first.template finish<R::ALWAYS_FAST>(p, is_nan);
        couple<R::DTYPE> of_second = of_first;
        if (differ) {
            of_second = couple_of_entries<R::DTYPE>(p.plan.angles, second);
            of_second.template finish<R::ALWAYS_FAST>(p, is_nan);
        }
        if (differ && p.plan.swap_sines) {
            const typename R::real sine = of_first.sine;
            of_first.sine = of_second.sine;
            of_second.sine = sine;
        }
        *to = of_first;
        if (!R::ALWAYS_FAST && p.plan.angles.per_element)
            to[call.shape.second_at] = of_second;
        return differ;
    }
};

/* ---- the couples of a block ---- */

template <class R, class SOURCE>
__device__ __forceinline__ bool make_run(const typename R::call &call, const SOURCE &source, const couple_run<R> &run,
                                         const typename SOURCE::positions_type &positions, uint32_t number)
{
    couple<R::DTYPE> *const to = (couple<R::DTYPE> *)shared_memory + number * run.count;
    if (SOURCE::MOST > 1 && run.count > 1)
        return source.template make<SOURCE::MOST>(call, run, positions, to);
    return source.template make<1>(call, run, positions, to);
}

/* Returns the first thread of a block that computes couples. With packed sequences, it is the first thread after the
 * searching warp, if the other threads are enough. */
template <class R> __device__ __forceinline__ uint32_t find_first_maker(const typename R::call &call, uint32_t tokens)
{
    const uint32_t threads = threads_of_block(), couples = tokens * call.shape.couples_of_token;
    const bool others_are_enough = have_actions<R::POSITIONS>(call.plan.plan) && threads > SEARCHERS &&
                                   couples <= (threads - SEARCHERS) * COUPLES_TOGETHER<R>;
    return others_are_enough ? SEARCHERS : 0;
}

/* Computes all couples of a block. Each thread computes `count` of them at a time. If positions are known without shared
 * memory (IS_DIRECT), this function also loads the data by load(). It loads phase steps, and table entries at positions
 * from tokens, before the data. If positions are in shared memory, it loads phase steps before the barrier that makes
 * the positions valid. Returns whether the thread found a pair whose elements have different coefficients. */
template <class R, class SOURCE, class LOAD, class PREPARE>
__device__ __forceinline__ bool make_couples(const typename R::call &call, const typename R::steps &steps,
                                             typename R::index first_token, uint32_t tokens, uint32_t first_maker,
                                             uint32_t count, LOAD load, PREPARE prepare)
{
    constexpr bool IS_EARLY = R::POSITIONS == POSITIONS_FROM_TOKENS || R::ANGLES == ANGLES_PHASE,
                   WAITS_FOR_MEMORY =
                       R::POSITIONS != POSITIONS_FROM_TOKENS || R::ANGLES != ANGLES_PHASE; /* not only for parameters */
    const uint32_t makers = threads_of_block() - first_maker, end = tokens * call.shape.couples_of_token / count;
    uint32_t number = thread_of_block() - first_maker;
    couple_run<R> run;
    typename SOURCE::positions_type positions(call.plan);
    SOURCE source;
    bool differ = false, any_is_missing = false;
    run.count = count;
    if ((number & ~31u) < end) { /* other warps compute no couples */
        run.find(call.shape, number);
        if (IS_DIRECT<R>)
            positions.find(call, first_token, run, run.in_block < tokens);
        if (R::POSITIONS == POSITIONS_FROM_TOKENS)
            source.find(call, run, positions, run.in_block < tokens);
    }
    if constexpr (IS_DIRECT<R>) {
        await_previous();
        positions.request(call.plan);
        if (IS_EARLY)
            source.ask(call, steps, run);
        if (WAITS_FOR_MEMORY)
            admit_next();
        load();
        positions.await_all(&number);
        if (IS_EARLY)
            source.await_all(&number);
        prepare();
        if (!WAITS_FOR_MEMORY)
            admit_next();
    } else if (IS_EARLY) {
        source.ask(call, steps, run);
        __syncthreads();
        source.await_all(&number);
    }
#pragma unroll 1
    while (number < end) {
        if (run.is_there(call.plan.plan)) {
            if (!IS_DIRECT<R>)
                positions.find(call, first_token, run, true);
            if (!IS_EARLY) {
                source.find(call, run, positions, true);
                source.ask(call, steps, run);
                source.settle_all();
                any_is_missing = any_is_missing || source.is_missing();
            }
            differ = make_run<R>(call, source, run, positions, number) || differ;
        }
        number += makers;
        if (number < end) {
            run.find(call.shape, number);
            if (IS_DIRECT<R>) {
                positions.find(call, first_token, run, true);
                positions.request(call.plan);
                positions.await_all(&number);
            }
            if (R::POSITIONS == POSITIONS_FROM_TOKENS)
                source.find(call, run, positions, true);
            if (IS_EARLY) {
                source.ask(call, steps, run);
                source.await_all(&number);
            }
        }
    }
    if (R::POSITIONS == POSITIONS_READ) /* other kinds have already reported missing positions */
        report_if_missing(call.plan.plan, any_is_missing);
    return differ;
}

template <class R, class LOAD, class PREPARE>
__device__ __forceinline__ bool make_all_couples(const typename R::call &call, const typename R::steps &steps,
                                                 typename R::index first_token, uint32_t tokens, uint32_t first_maker,
                                                 LOAD load, PREPARE prepare)
{
    /* If the block has enough threads, each computes one couple at a time. */
    const uint32_t count =
        tokens * call.shape.couples_of_token <= threads_of_block() - first_maker ? 1 : COUPLES_TOGETHER<R>;
    if (!IS_DIRECT<R> && R::ANGLES != ANGLES_PHASE)
        __syncthreads();
    if (has_phases<R::ANGLES>(call.plan.plan))
        return make_couples<R, phase_source<R>>(call, steps, first_token, tokens, first_maker, count, load, prepare);
    if (call.plan.has_fast_freqs)
        return make_couples<R, freqs_source<R>>(call, steps, first_token, tokens, first_maker, count, load, prepare);
    return make_couples<R, table_source<R>>(call, steps, first_token, tokens, first_maker, 1, load, prepare);
}

/* Loads the data by load(), and computes the coefficients of all tokens of the block. After the barrier at its end, all
 * threads may read them. prepare() may have branches, so it comes after the waits for all small loads. meanwhile() runs
 * before the barrier. Returns whether any pair of the block has elements with different coefficients. */
template <class R, class LOAD, class PREPARE, class MEANWHILE>
__device__ __forceinline__ bool find_coefficients(const typename R::call &call, const typename R::steps &steps,
                                                  typename R::index first_token, uint32_t count, LOAD load, PREPARE prepare,
                                                  MEANWHILE meanwhile)
{
    const bool rotates = R::ADDRESSES == ADDRESSES_SIMPLE || slice_of_block(call.shape) < call.shape.rotating_slices;
    const uint32_t rotating = rotates ? count : 0; /* other slices only copy */
    uint32_t first_maker = 0;
    bool only_searches = false, differ = false;
    if constexpr (!IS_DIRECT<R>) {
        uint32_t thread = thread_of_block();
        first_maker = (uint32_t)found_here((int32_t)find_first_maker<R>(call, rotating));
        await_previous();
        const boundary_round round = begin_search<R::POSITIONS, R::WIDE>(call.plan.plan, thread < SEARCHERS);
        admit_next();
        load();
        round.await_all(&thread);
        only_searches = thread < first_maker;
        prepare();
        find_positions<R>(call, round, first_token, count, thread);
    }
    if (only_searches)
        __syncthreads();
    else
        differ = make_all_couples<R>(call, steps, first_token, rotating, first_maker, load, prepare);
    /* The warp that only searches also decides the actions. Without such a warp, the last warp decides, because it has
     * the fewest couples. */
    const uint32_t decider = first_maker ? 0 : (threads_of_block() - 1) & ~31u;
    if (have_actions<R::POSITIONS>(call.plan.plan) && (thread_of_block() & ~31u) == decider)
        decide_actions<R::POSITIONS, R::ANGLES != ANGLES_PHASE>(
            call.plan.plan, call.plan.of_padding, count, tokens_of_block<R>(call), min(threads_of_block() - decider, 32u));
    meanwhile();
    if (R::ALWAYS_FAST || R::ANGLES == ANGLES_PHASE) {
        __syncthreads();
        return false;
    }
    return __syncthreads_or(differ);
}

#endif
