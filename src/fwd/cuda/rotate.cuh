/* The rotation on CUDA, as a register block: all loads of the data are issued first; the coefficients of the block's rows, each
 * once for all heads, are found meanwhile; one barrier; then each thread rotates its lane and stores it. */
#ifndef TROPE_FWD_CUDA_ROTATE_CUH
#define TROPE_FWD_CUDA_ROTATE_CUH

#include "fwd/cuda/register_block.cuh"

extern __shared__ __align__(16) char shared[];

/* What the kernels of a dtype differ in. GENERAL: any rounding, number of operands and pairs, 2^31 rows and more. */
template <int OF_DTYPE, bool OF_VECTORS, int OF_ROWS, int OF_ANGLES, bool IS_GENERAL> struct rotation {
    static constexpr int DTYPE = OF_DTYPE, ROWS = OF_ROWS, ANGLES = OF_ANGLES;
    static constexpr bool VECTORS = OF_VECTORS, GENERAL = IS_GENERAL;
    static constexpr int OPERANDS = IS_GENERAL ? TROPE_MAX_OPERANDS : USUAL_OPERANDS,
                         STEPS = IS_GENERAL ? TROPE_MAX_PAIRS : OF_ANGLES == ANGLES_PHASE ? USUAL_PAIRS : 1;
    typedef typename elements<OF_DTYPE>::type element;
    typedef typename elements<OF_DTYPE>::real real;
    typedef lane_pair<OF_DTYPE, OF_VECTORS> lane;
    typedef std::conditional_t<IS_GENERAL, int64_t, uint32_t> index;
    typedef block_call<OPERANDS> call;
    typedef phase_steps<STEPS> steps;
    static constexpr int PAIRS = lane::WIDTH;

    /* What is kept of a row where a pair's coefficients are found, beside these: nothing, but by the gradient of the angles. */
    static __device__ __forceinline__ void keep(const call &, uint32_t, uint32_t, const found_row &)
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

/* 32 pairs of a row of the block, whose coefficients a warp finds. */
template <class R> struct coefficient_run {
    uint32_t row; /* of the block */
    uint32_t pair;
    uint64_t step;
    block_row<typename R::index> place;
    row_lookup<R::ROWS, R::ANGLES != ANGLES_PHASE> lookup;

    __device__ __forceinline__ coefficient_run(const typename R::call &call, const typename R::steps &steps, uint32_t number,
                                               int64_t first_row)
    {
        row = trope_divide(&call.shape.columns, number);
        pair = (number - row * call.shape.columns.divisor) * 32 + threadIdx.x % 32;
        place = find_row<typename R::index>(call.shape, first_row + row);
        const uint32_t in_range = min(pair, (uint32_t)call.plan.plan.pairs - 1);
        step = has_phases<R::ANGLES>(call.plan.plan) ? steps.of[in_range] : 0;
    }

    /* After the kernel before this one has ended. */
    __device__ __forceinline__ void request(const typename R::call &call)
    {
        const trope_plan &plan = call.plan.plan;
        const uint32_t in_range = min(pair, (uint32_t)plan.pairs - 1);
        const int axis = R::ROWS == ROWS_FROM_TOKENS ? 0 : trope_pair_axis(&plan, (int)in_range);
        lookup.request(plan, place.batch(call.shape), place.token(call.shape), axis);
    }

    /* Leaves them, and the row's action, in shared memory. Returns whether elements of a pair have different ones. */
    __device__ __forceinline__ bool finish(const typename R::call &call)
    {
        typedef couple<R::DTYPE> couple_type;
        const block_shape &shape = call.shape;
        const found_row found = lookup.finish(call.plan.plan, call.plan.positions, place.token(shape));
        R::keep(call, row, pair, found);
        if (R::ROWS == ROWS_SEARCHED && pair == 0)
            ((uint32_t *)(shared + shape.rows_at))[row] = found.action;
        if (found.action != TROPE_ROW_ROTATE || pair >= (uint32_t)call.plan.plan.pairs)
            return false;
        const pair_couples<R::DTYPE> of =
            find_couples<R::DTYPE, R::ANGLES>(call.plan, found, place.batch(shape), (int)pair, step);
        couple_type *const to = (couple_type *)shared + row * shape.couples_of_row + place_of_couple<R>(shape, pair);
        *to = of.first;
        if (R::ANGLES != ANGLES_PHASE && call.plan.plan.angles.per_element)
            to[shape.second_at] = of.differ ? of.second : of.first;
        return of.differ;
    }
};

/* ---- the rotation of a lane ---- */

/* What PAIRS pairs are rotated by. `own`: the elements of a pair may have different coefficients. */
template <class R>
__device__ __forceinline__ void rotate_lane(const cuda_plan &p, const block_shape &shape, uint32_t row, uint32_t lane, bool own,
                                            const typename R::lane &v, typename R::real y[2][R::PAIRS])
{
    typedef typename R::real real;
    typedef couple<R::DTYPE> couple_type;
    enum { TOGETHER = R::PAIRS == 1 ? 1 : 2 };
    struct alignas(sizeof(couple_type) * TOGETHER) couples {
        couple_type of[TOGETHER];
    };
    const couple_type *const from = (const couple_type *)shared + row * shape.couples_of_row;
    const int32_t rounding = R::GENERAL ? p.plan.rounding : TROPE_ROUND_ONCE;
#pragma unroll
    for (int e = 0; e < R::PAIRS; e += TOGETHER) {
        const couple_type *const at = from + ((uint32_t)(e / TOGETHER) * shape.lanes_of_row + lane) * TOGETHER;
        const couples first = *(const couples *)at;
        couples second = first;
        if (R::ANGLES != ANGLES_PHASE && own)
            second = *(const couples *)(at + shape.second_at);
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const auto turned = rotate_pair<R::DTYPE>(
                rounding, {(real)v.get(0, e + i), (real)v.get(1, e + i)},
                {first.of[i].cosine, first.of[i].sine, second.of[i].cosine, second.of[i].sine});
            y[0][e + i] = turned.first;
            y[1][e + i] = turned.second;
        }
    }
}

/* The bits that padding is filled with. */
template <int DTYPE> __device__ __forceinline__ typename elements<DTYPE>::type filling_of(trope_row_action action)
{
    typedef typename elements<DTYPE>::real real;
    return action == TROPE_ROW_POISON ? from_real<DTYPE>((real)NAN) : (typename elements<DTYPE>::type)0;
}

/* What a thread has of the call. */
template <class R> struct lane_job {
    block_item item;
    block_row<typename R::index> row;
    const block_operand *operand;
    typename R::lane v;
    uint64_t loads, stores; /* L2 policies */
    const char *from[2];
    bool is_loaded, has_second;

    __device__ __forceinline__ lane_job(const typename R::call &call, uint32_t slice, int64_t first_row, uint32_t rows)
    {
        item = find_item<!R::VECTORS>(call, slice, rows);
        row = find_row<typename R::index>(call.shape, first_row + item.row);
        const block_operand &o = call.operands[item.operand];
        operand = &o;
        locate(call, item.head);
        /* In place, what passes through is only overwritten. */
        is_loaded = item.present && (item.lane < o.rotating || !o.in_place);
        loads = found_here(o.stays ? evict_last() : evict_first());
        stores = o.stays ? evict_normal() : evict_first();
    }

    __device__ __forceinline__ void locate(const typename R::call &call, uint32_t head)
    {
        const block_operand &o = *operand;
        const lane_place at = find_place<R::PAIRS>(o, item.lane, call.plan.plan.interleaved_src);
        const char *const p = address_of_head(o, o.src, row, head);
        from[0] = found_here(p + at.first * o.src.element);
        from[1] = found_here(p + at.second * o.src.element);
        has_second = at.has_second;
    }

    /* After the kernel before this one has ended. */
    __device__ __forceinline__ void load()
    {
        if (is_loaded)
            v.load(from[0], from[1], has_second, loads);
    }

    __device__ __forceinline__ bool rotates(trope_row_action action) const
    {
        return action == TROPE_ROW_ROTATE && item.lane < operand->rotating;
    }

    /* Rotated, or what else becomes of it. */
    __device__ __forceinline__ void finish(const typename R::call &call, trope_row_action action, bool own)
    {
        const cuda_plan &p = call.plan;
        if (rotates(action)) {
            typename R::real y[2][R::PAIRS];
            if (p.plan.interleaved_src)
                v.separate();
            rotate_lane<R>(p, call.shape, item.row, item.lane, own, v, y);
            v.template set<R::PAIRS>(0, 0, y[0]);
            v.template set<R::PAIRS>(1, 0, y[1]);
            if (p.plan.interleaved_dst)
                v.join();
        } else if (action == TROPE_ROW_ZERO || action == TROPE_ROW_POISON) {
            v.fill(filling_of<R::DTYPE>(action));
        }
    }

    __device__ __forceinline__ void store(const typename R::call &call, trope_row_action action) const
    {
        const block_operand &o = *operand;
        const bool is_filled = action == TROPE_ROW_ZERO || action == TROPE_ROW_POISON;
        if (!item.present || (o.in_place && !rotates(action) && !is_filled))
            return;
        const lane_place at = find_place<R::PAIRS>(
            o, item.lane, rotates(action) ? call.plan.plan.interleaved_dst : call.plan.plan.interleaved_src);
        char *const p = address_of_head(o, o.dst, row, item.head);
        v.store(p + at.first * o.dst.element, p + at.second * o.dst.element, at.has_second, stores);
    }
};

/* ---- the block ---- */

/* The coefficients of all rows of a block, up to the barrier. `ready`: the thread's loads are to be issued. Returns whether
 * elements of any pair of the block have different ones. */
template <class R, class ISSUE_LOADS>
__device__ __forceinline__ bool find_coefficients(const typename R::call &call, const typename R::steps &steps,
                                                  int64_t first_row, uint32_t rows, ISSUE_LOADS issue_loads)
{
    const uint32_t warps = blockDim.x / 32, runs = rows * call.shape.columns.divisor;
    uint32_t number = threadIdx.x / 32;
    bool differ = false;
    coefficient_run<R> run(call, steps, min(number, runs - 1), first_row);
    await_previous();
    if (number < runs)
        run.request(call);
    issue_loads();
    admit_next();
    while (number < runs) {
        differ = run.finish(call) || differ;
        number += warps;
        if (number >= runs)
            break;
        run = coefficient_run<R>(call, steps, number, first_row);
        run.request(call);
    }
    if (R::ANGLES != ANGLES_PHASE && call.plan.plan.angles.per_element)
        return __syncthreads_or(differ);
    __syncthreads();
    return false;
}

template <class R>
__device__ __forceinline__ trope_row_action action_of_row(const typename R::call &call, uint32_t row)
{
    if (R::ROWS != ROWS_SEARCHED)
        return TROPE_ROW_ROTATE;
    return (trope_row_action)((const uint32_t *)(shared + call.shape.rows_at))[row];
}

template <class R>
__global__ void __launch_bounds__(BLOCK_THREADS, R::GENERAL ? 2 : 3)
    rotate_kernel(KERNEL_PARAMETER(typename R::call) call, KERNEL_PARAMETER(typename R::steps) steps)
{
    const block_shape &shape = call.shape;
    const uint32_t group = trope_divide(&shape.slices, blockIdx.x), slice = blockIdx.x - group * shape.slices.divisor;
    const int64_t first_row = (int64_t)group * shape.rows_of_block;
    const uint32_t rows = (uint32_t)min((int64_t)shape.rows_of_block, shape.rows - first_row);
    lane_job<R> job(call, slice, first_row, rows);
    const bool own = find_coefficients<R>(call, steps, first_row, rows, [&]() { job.load(); });
    const trope_row_action action = action_of_row<R>(call, job.item.row < rows ? job.item.row : 0);
    if (job.item.present) {
        job.finish(call, action, own);
        job.store(call, action);
    }
    if (R::ROWS == ROWS_SEARCHED)
        check_sequences(call.plan.plan.sequences, call.plan.plan.status);
}

#endif
