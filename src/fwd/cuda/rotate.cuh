/* The rotation on CUDA, as a register block: all loads of the data are issued first; the coefficients of the block's rows, each
 * once for all heads, are found meanwhile; one barrier; then each thread rotates its lane and stores it. */
#ifndef TROPE_FWD_CUDA_ROTATE_CUH
#define TROPE_FWD_CUDA_ROTATE_CUH

#include "fwd/cuda/register_block.cuh"

extern __shared__ __align__(16) char shared[];

/* What the kernels of a dtype differ in. IS_WIDE: strides, rows and sequences that 32 bits may be too few for, any number of
 * operands and pairs. */
template <int OF_DTYPE, bool OF_VECTORS, int OF_ROWS, int OF_ANGLES, bool IS_WIDE> struct rotation {
    static constexpr int DTYPE = OF_DTYPE, ROWS = OF_ROWS, ANGLES = OF_ANGLES;
    static constexpr bool VECTORS = OF_VECTORS, WIDE = IS_WIDE;
    static constexpr uint32_t STEPS = IS_WIDE ? TROPE_MAX_PAIRS : OF_ANGLES == ANGLES_TABLE ? 1 : USUAL_PAIRS;
    static constexpr block_limit LIMIT = block_limits(OF_ROWS, IS_WIDE);
    typedef typename elements<OF_DTYPE>::type element;
    typedef typename elements<OF_DTYPE>::real real;
    typedef lane_pair<OF_DTYPE, OF_VECTORS> lane;
    typedef std::conditional_t<IS_WIDE, int64_t, int32_t> index, stride;
    typedef std::conditional_t<IS_WIDE, wide_call, usual_call> call;
    typedef block_segment<stride> segment;
    typedef phase_steps<STEPS> steps;
    static constexpr int PAIRS = lane::WIDTH, HELD = LIMIT.held;

    /* What threads keep of a searched row, each on one axis: nothing, but for the gradient of the angles. */
    static __device__ __forceinline__ void keep(const call &, uint32_t, const found_row &)
    {
    }
};

/* ---- coefficients ---- */

/* The place of a pair's couple in a row of them: the threads of a head's lanes read neighbouring couples. */
template <class R> __device__ __forceinline__ uint32_t place_of_couple(const block_shape &shape, uint32_t pair)
{
    if (R::PAIRS == 1)
        return pair;
    return (pair % R::PAIRS / 2 * shape.lanes_of_row + pair / R::PAIRS) * 2 + pair % 2;
}

/* What becomes of a row of the block, in shared memory. */
template <class R> __device__ __forceinline__ int32_t *action_in_block(const typename R::call &call, uint32_t row)
{
    return (int32_t *)(shared + call.shape.rows_at) + row;
}

/* A run: a warp finds a row of the block, each thread on one axis, and the coefficients of some columns of 32 pairs. */
template <class R> struct coefficient_run {
    /* Whether it is known from the start which step, or which row of a table, is needed. */
    static constexpr bool KNOWS_ANGLES = (R::ROWS == ROWS_FROM_TOKENS && R::ANGLES != ANGLES_ANY) ||
                                         (R::ROWS == ROWS_READ && R::ANGLES == ANGLES_PHASE);

    uint32_t row, column; /* of the block, and the first of the run */
    angle_source angle;   /* of the thread's pair there */
    block_row<typename R::index> place;
    row_lookup<R::ROWS, R::ANGLES != ANGLES_PHASE, R::WIDE> lookup;

    __device__ __forceinline__ void locate(const typename R::call &call, uint32_t number, typename R::index first_row)
    {
        row = trope_divide(&call.shape.runs_of_row, number);
        column = (number - row * call.shape.runs_of_row.divisor) * call.shape.columns_of_run;
        place = find_row<typename R::index>(call.shape, first_row + (typename R::index)row);
    }

    /* After the kernel before this one has ended. */
    __device__ __forceinline__ void request(const typename R::call &call, const typename R::steps &steps)
    {
        const trope_plan &plan = call.plan.plan;
        const int64_t batch = place.batch(call.shape), token = place.token(call.shape);
        lookup.request(plan, call.plan.rows, batch, token, axis_of_thread(plan));
        if (KNOWS_ANGLES)
            request_angle(call, steps, call.plan.rows.positions.of((uint32_t)token),
                          min(column * 32 + thread_of_warp(), (uint32_t)plan.pairs - 1));
    }

    /* What a branch depends on that comes before all that waits for the loads. */
    __device__ __forceinline__ void await_all(uint32_t *condition) const
    {
        lookup.await_all(condition);
        if (KNOWS_ANGLES && R::ANGLES == ANGLES_PHASE)
            await((uint32_t)angle.step, condition);
        if (KNOWS_ANGLES && R::ANGLES == ANGLES_TABLE)
            angle.entries.await_all(condition);
    }

    /* Leaves them, and the row's action, in shared memory. Returns whether elements of a pair have different ones. */
    __device__ __forceinline__ bool finish(const typename R::call &call, const typename R::steps &steps)
    {
        const trope_plan &plan = call.plan.plan;
        const found_row of_axis = lookup.finish(plan, call.plan.rows, place.token(call.shape), axis_of_thread(plan));
        if (may_search(R::ROWS) && column == 0) {
            *action_in_block<R>(call, row) = of_axis.action;
            R::keep(call, row, of_axis);
        }
        if (may_search(R::ROWS) && of_axis.action != TROPE_ROW_ROTATE)
            return false;
        const uint32_t pair = column * 32 + thread_of_warp();
        bool differ = R::ANGLES != ANGLES_ANY && find_pair(call, steps, of_axis, pair);
        /* Rows that are not searched have a run for each column: a second copy of the code costs more than finding them twice. */
#pragma unroll 1
        for (uint32_t i = R::ANGLES != ANGLES_ANY; may_search(R::ROWS) && i < call.shape.columns_of_run; i++)
            differ = find_pair(call, steps, of_axis, pair + i * 32) || differ;
        return differ;
    }

  private:
    static __device__ __forceinline__ int axis_of_thread(const trope_plan &plan)
    {
        return plan.axes == 1 ? 0 : (int)min(thread_of_warp(), (uint32_t)plan.axes - 1);
    }

    __device__ __forceinline__ void request_angle(const typename R::call &call, const typename R::steps &steps,
                                                  int64_t position, uint32_t pair)
    {
        if (has_phases<R::ANGLES>(call.plan.plan))
            load_parameter(steps.of + pair, &angle.step);
        else
            angle.entries.request<R::DTYPE>(call.plan, (typename R::stride)place.batch(call.shape),
                                            (typename R::stride)position, (int)pair);
    }

    __device__ __forceinline__ bool find_pair(const typename R::call &call, const typename R::steps &steps,
                                              const found_row &of_axis, uint32_t pair)
    {
        typedef couple<R::DTYPE> couple_type;
        const trope_plan &plan = call.plan.plan;
        const uint32_t in_range = min(pair, (uint32_t)plan.pairs - 1);
        const found_row found = R::ROWS == ROWS_FROM_TOKENS || plan.axes == 1
                                    ? of_axis
                                    : of_axis.of_thread(trope_pair_axis(&plan, (int)in_range));
        if (pair != in_range)
            return false;
        if (!KNOWS_ANGLES) {
            request_angle(call, steps, found.position, pair);
            if (has_phases<R::ANGLES>(plan))
                settle(&angle.step);
            else
                angle.entries.settle_all();
        }
        const pair_couples<R::DTYPE> of = find_couples<R::DTYPE, R::ANGLES>(call.plan, found, angle);
        couple_type *const to =
            (couple_type *)shared + row * call.shape.couples_of_row + place_of_couple<R>(call.shape, pair);
        *to = of.first;
        if (R::ANGLES != ANGLES_PHASE && plan.angles.per_element)
            to[call.shape.second_at] = of.differ ? of.second : of.first;
        return of.differ;
    }
};

/* The coefficients of all rows of a block, up to the barrier after which all threads may read them, with the thread's loads
 * issued in between, and what comes `then`. Returns whether elements of any pair of the block have different ones. */
template <class R, class ISSUE_LOADS, class THEN>
__device__ __forceinline__ bool find_coefficients(const typename R::call &call, const typename R::steps &steps,
                                                  typename R::index first_row, uint32_t rows, ISSUE_LOADS issue_loads,
                                                  THEN then)
{
    const uint32_t warps = threads_of_block() / 32, warp = thread_of_block() / 32;
    const bool only_copies = slice_of_block(call.shape) >= call.shape.rotating_slices && !have_actions<R::ROWS>(call.plan.plan);
    /* A warp that is not whole has none. */
    const uint32_t runs = warp < warps && !only_copies ? rows * call.shape.runs_of_row.divisor : 0;
    /* What the first run reads is asked for right behind the data, by all warps alike: where branches join, the compiler moves
     * what was loaded, and so waits for it. (General kernels would be a third larger.) */
    constexpr bool FIRST_IS_APART = R::ANGLES != ANGLES_ANY;
    bool differ = false;
    coefficient_run<R> first;
    uint32_t number = warp;
    if (FIRST_IS_APART)
        first.locate(call, warp < runs ? warp : 0, first_row);
    await_previous();
    issue_loads();
    admit_next(); /* (which keeps the loads ahead of what follows) */
    if (FIRST_IS_APART) {
        first.request(call, steps);
        first.await_all(&number);
    }
    if (FIRST_IS_APART && number < runs) {
        differ = first.finish(call, steps);
        number += warps;
    }
    then();
#pragma unroll 1
    for (; number < runs; number += warps) {
        coefficient_run<R> run;
        run.locate(call, number, first_row);
        run.request(call, steps);
        differ = run.finish(call, steps) || differ;
    }
    if (R::ANGLES != ANGLES_PHASE && call.plan.plan.angles.per_element)
        return __syncthreads_or(differ);
    __syncthreads();
    return false;
}

template <class R> __device__ __forceinline__ int32_t action_of_row(const typename R::call &call, uint32_t row)
{
    return have_actions<R::ROWS>(call.plan.plan) ? *action_in_block<R>(call, row) : TROPE_ROW_ROTATE;
}

/* ---- the rotation of a lane ---- */

/* The coefficients of a few pairs of a lane at a time. */
template <class R> struct lane_coefficients {
    typedef couple<R::DTYPE> couple_type;
    static constexpr int TOGETHER = R::PAIRS == 1 ? 1 : 2;
    struct alignas(sizeof(couple_type) * TOGETHER) couples {
        couple_type of[TOGETHER];
    } first, second;

    /* Those of pairs e, e + 1 of the lane. `own`: the elements of a pair may have different ones. NATIVE rounds them. */
    __device__ __forceinline__ void load(const block_shape &shape, const block_item &item, int e, bool own,
                                         int32_t rounding = TROPE_ROUND_ONCE)
    {
        const couple_type *const from = (const couple_type *)shared + item.row * shape.couples_of_row +
                                        (item.lane * TOGETHER + (uint32_t)e * shape.lanes_of_row);
        first = *(const couples *)from;
        second = first;
        if (own)
            second = *(const couples *)(from + shape.second_at);
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            if (rounding == TROPE_ROUND_NATIVE) {
                first.of[i].round();
                second.of[i].round();
            }
        }
    }

    /* Of one head. */
    __device__ __forceinline__ void rotate(int32_t rounding, const typename R::lane &v, int e,
                                           typename R::real y[2][TOGETHER]) const
    {
        typedef typename R::real real;
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const auto rotated = rotate_pair<R::DTYPE>(
                rounding, {(real)v.get(0, e + i), (real)v.get(1, e + i)},
                {first.of[i].cosine, first.of[i].sine, second.of[i].cosine, second.of[i].sine});
            y[0][i] = rotated.first;
            y[1][i] = rotated.second;
        }
    }
};

/* Adds what dst holds to what a few pairs of a lane have become: NATIVE rounds that before. */
template <class R>
__device__ __forceinline__ void add_to(int32_t rounding, const typename R::lane &held, int e,
                                       typename R::real y[2][lane_coefficients<R>::TOGETHER])
{
#pragma unroll
    for (int i = 0; i < 2 * lane_coefficients<R>::TOGETHER; i++) {
        const int which = i / lane_coefficients<R>::TOGETHER, of_pair = i % lane_coefficients<R>::TOGETHER;
        typename R::real &term = y[which][of_pair];
        if (rounding == TROPE_ROUND_NATIVE)
            term = round_to<R::DTYPE>(term);
        term = (typename R::real)held.get(which, e + of_pair) + term;
    }
}

/* What passes through as a term: in fp32 a sum, so that a NaN has the bits of one that arithmetic gives. */
__device__ __forceinline__ float term_of(float x)
{
    return trope_add(x, -0.0f);
}

__device__ __forceinline__ double term_of(double x)
{
    return x;
}

/* The bits that padding is filled with. */
template <int DTYPE> __device__ __forceinline__ typename elements<DTYPE>::type filling_of(int32_t action)
{
    typedef typename elements<DTYPE>::real real;
    return action == TROPE_ROW_POISON ? from_real<DTYPE>((real)NAN) : (typename elements<DTYPE>::type)0;
}

__device__ __forceinline__ bool is_filled(int32_t action)
{
    return action == TROPE_ROW_ZERO || action == TROPE_ROW_POISON;
}

/* What a thread has of the call. */
template <class R> struct lane_job {
    block_item item;
    block_row<typename R::index> row;
    typename R::lane v[R::HELD];
    char *from;   /* (who has nothing to load loads what others do: a branch would part loads from what waits for them) */
    bool has_two; /* heads */

    __device__ __forceinline__ lane_job(const typename R::call &call, typename R::index first_row, uint32_t rows)
    {
        item = find_item<!R::VECTORS>(call, rows);
        row = find_row<typename R::index>(call.shape, first_row + (typename R::index)item.row);
        const typename R::segment &s = segment(call);
        from = s.src.base;
        if (item.present && s.is_loaded)
            from = find_src(call, item.head);
        has_two = R::HELD > 1 && s.held > 1 && item.head + 1 < s.heads;
    }

    __device__ __forceinline__ const typename R::segment &segment(const typename R::call &call) const
    {
        return call.segments[item.segment];
    }

    __device__ __forceinline__ char *find_src(const typename R::call &call, uint32_t head) const
    {
        const typename R::segment &s = segment(call);
        return found_here(find_address(call.shape, s, s.src, row, head, item.lane));
    }

    /* After the kernel before this one has ended. */
    __device__ __forceinline__ void load(const typename R::call &call)
    {
        const typename R::segment &s = segment(call);
        v[0].load(from, from + s.src.second);
        if (R::HELD > 1) {
            const char *const beside = from + s.src.head * (typename R::stride)has_two;
            v[R::HELD - 1].load(beside, beside + s.src.second);
        }
    }

    __device__ __forceinline__ void store_to(const block_tensor<typename R::stride> &dst, char *to) const
    {
        v[0].store(to, to + dst.second);
        if (R::HELD > 1 && has_two)
            v[R::HELD - 1].store(to + dst.head, to + dst.head + dst.second);
    }

    __device__ __forceinline__ void store(const typename R::call &call) const
    {
        const typename R::segment &s = segment(call);
        store_to(s.dst, s.alike ? from + s.moved : find_address(call.shape, s, s.dst, row, item.head, item.lane));
    }

    __device__ __forceinline__ char *find_dst(const typename R::call &call, const block_tensor<typename R::stride> &dst) const
    {
        return find_address(call.shape, segment(call), dst, row, item.head, item.lane);
    }

    /* After the loads: what is added to comes into L2 meanwhile. */
    __device__ __forceinline__ void prefetch_dst(const typename R::call &call) const
    {
        const block_tensor<typename R::stride> &dst = segment(call).dst;
        if (!call.shape.accumulates || !segment(call).accumulate || !item.present)
            return;
        const char *const to = find_dst(call, dst);
#pragma unroll
        for (int h = 0; h < R::HELD; h++) {
            prefetch(to + h * (int64_t)has_two * dst.head);
            prefetch(to + h * (int64_t)has_two * dst.head + dst.second);
        }
    }

    /* What dst holds of the thread's heads. */
    __device__ __forceinline__ void load_dst(const block_tensor<typename R::stride> &dst, const char *to,
                                             typename R::lane held[R::HELD]) const
    {
#pragma unroll
        for (int h = 0; h < R::HELD; h++) {
            const char *const of_head = to + h * (int64_t)has_two * dst.head;
            held[h].load(of_head, of_head + dst.second);
        }
    }

    /* USUAL: of a plain segment, and both elements of each pair by the same coefficients. */
    template <bool USUAL> __device__ __forceinline__ void rotate(const typename R::call &call, bool own)
    {
        const trope_plan &plan = call.plan.plan;
        const bool accumulates = !USUAL && segment(call).accumulate;
        const int32_t rounding = USUAL ? (int32_t)TROPE_ROUND_ONCE : plan.rounding;
        lane_coefficients<R> c;
        typename R::lane held[R::HELD];
        if (accumulates)
            load_dst(segment(call).dst, find_dst(call, segment(call).dst), held);
#pragma unroll
        for (int h = 0; h < R::HELD && !USUAL; h++) {
            if (plan.interleaved_src)
                v[h].separate();
            if (accumulates && plan.interleaved_dst)
                held[h].separate();
        }
#pragma unroll
        for (int e = 0; e < R::PAIRS; e += lane_coefficients<R>::TOGETHER) {
            c.load(call.shape, item, e, !USUAL && own, rounding);
#pragma unroll
            for (int h = 0; h < R::HELD; h++) {
                typename R::real y[2][lane_coefficients<R>::TOGETHER];
                c.rotate(rounding, v[h], e, y);
                if (accumulates)
                    add_to<R>(rounding, held[h], e, y);
                v[h].template set<lane_coefficients<R>::TOGETHER>(0, e, y[0]);
                v[h].template set<lane_coefficients<R>::TOGETHER>(1, e, y[1]);
            }
        }
#pragma unroll
        for (int h = 0; h < R::HELD && !USUAL; h++)
            if (plan.interleaved_dst)
                v[h].join();
        store(call);
    }

    /* Rows that are padding keep the places of their elements in a head, whatever the pairings. */
    __device__ __forceinline__ void pass_on(const typename R::call &call, int32_t action)
    {
        const typename R::segment &s = segment(call);
        const block_tensor<typename R::stride> dst = unrotated_dst(s);
        if ((!is_filled(action) && s.in_place) || (action == TROPE_ROW_ZERO && s.accumulate))
            return;
        char *const to = find_dst(call, dst);
        if (!is_filled(action) && s.accumulate)
            add_unrotated(dst, to);
#pragma unroll
        for (int h = 0; h < R::HELD; h++)
            if (is_filled(action))
                v[h].fill(filling_of<R::DTYPE>(action));
        if (s.accumulate && s.is_odd && item.lane == 0) /* what two lanes have is added to once */
            store_firsts(dst, to);
        else
            store_to(dst, to);
    }

    __device__ __forceinline__ void store_firsts(const block_tensor<typename R::stride> &dst, char *to) const
    {
        v[0].store_first(to);
        if (R::HELD > 1 && has_two)
            v[R::HELD - 1].store_first(to + dst.head);
    }

    __device__ __forceinline__ void add_unrotated(const block_tensor<typename R::stride> &dst, const char *to)
    {
        constexpr int TOGETHER = lane_coefficients<R>::TOGETHER;
        typename R::lane held[R::HELD];
        load_dst(dst, to, held);
#pragma unroll
        for (int i = 0; i < R::HELD * R::PAIRS; i += TOGETHER) {
            const int h = i / R::PAIRS, e = i % R::PAIRS;
            typename R::real y[2][TOGETHER];
#pragma unroll
            for (int j = 0; j < 2 * TOGETHER; j++)
                y[j / TOGETHER][j % TOGETHER] = term_of(v[h].get(j / TOGETHER, e + j % TOGETHER));
            add_to<R>(TROPE_ROUND_ONCE, held[h], e, y);
            v[h].template set<TOGETHER>(0, e, y[0]);
            v[h].template set<TOGETHER>(1, e, y[1]);
        }
    }

    /* What is not rotated. */
    __device__ __forceinline__ void move(const typename R::call &call, int32_t action)
    {
        const typename R::segment &s = segment(call);
        if (action != TROPE_ROW_ROTATE || s.accumulate)
            pass_on(call, action);
        else if (!s.in_place)
            store(call);
    }

    __device__ __forceinline__ void finish(const typename R::call &call, int32_t action, bool own)
    {
        const typename R::segment &s = segment(call);
        if (action == TROPE_ROW_ROTATE && s.is_plain && !own)
            rotate<true>(call, false);
        else if (action == TROPE_ROW_ROTATE && s.rotates)
            rotate<false>(call, own);
        else
            move(call, action);
    }
};

template <class R>
__global__ void __launch_bounds__(R::LIMIT.threads, R::LIMIT.blocks)
    rotate_kernel(KERNEL_PARAMETER(typename R::call) call, KERNEL_PARAMETER(typename R::steps) steps)
{
    const block_shape &shape = call.shape;
    const typename R::index first_row = (typename R::index)block_of_rows(shape) * (typename R::index)shape.rows_of_block;
    const uint32_t rows = (uint32_t)min((typename R::index)shape.rows_of_block, (typename R::index)shape.rows - first_row);
    lane_job<R> job(call, first_row, rows);
    const bool own = find_coefficients<R>(
        call, steps, first_row, rows, [&]() { job.load(call); }, [&]() { job.prefetch_dst(call); });
    if (job.item.present)
        job.finish(call, action_of_row<R>(call, job.item.row), own);
    if (may_search(R::ROWS))
        check_sequences<!R::WIDE>(call.plan.plan.sequences, call.plan.plan.status);
}

#endif
