/* The gradient of the angles on CUDA, first: one pass over dy and x, that stores dx and leaves the sums of units. It
 * is a register block (fwd/cuda/register_block.cuh) with a loop over heads. */
#ifndef TROPE_BWD_CUDA_GRADIENT_PASS_CUH
#define TROPE_BWD_CUDA_GRADIENT_PASS_CUH

#include "bwd/cuda/gradient_call.cuh"
#include "fwd/cuda/rotate.cuh"

/* ---- a place in the call ---- */

/* What a thread has of a block. */
struct unit_thread {
    uint32_t unit, slot, lane;
    block_row<uint32_t> row; /* of the unit's first batch entry */
    uint32_t heads;          /* of the unit; 0 if there is none */

    __device__ __forceinline__ unit_thread(const gradient_call &call, int64_t first_unit, uint32_t units)
    {
        unit = trope_divide(&call.unit_threads, threadIdx.x);
        const uint32_t in_unit = threadIdx.x - unit * call.unit_threads.divisor;
        slot = in_unit >> call.lane_bits;
        lane = in_unit & ((1u << call.lane_bits) - 1);
        row = find_row<uint32_t>(call.shape, first_unit + min(unit, units - 1));
        row.outer *= call.entries;
        heads = unit < units ? min(call.entries, call.batch - row.outer) * call.heads_of_entry.divisor : 0;
    }
};

/* A head of a unit's list. */
struct listed_head {
    const gradient_operand *operand;
    block_row<uint32_t> row;
    uint32_t head;

    __device__ __forceinline__ listed_head(const gradient_call &call, const unit_thread &thread, uint32_t number)
        : operand(call.operands), row(thread.row), head(number)
    {
        if (call.entries > 1) {
            const uint32_t entry = trope_divide(&call.heads_of_entry, number);
            row.outer += entry;
            head -= entry * call.heads_of_entry.divisor;
        }
        for (uint32_t i = 1; i < call.rotating && head >= operand->heads; i++)
            head -= operand++->heads;
    }
};

/* The pairs of a lane: two vectors, or as many pairs whose elements may be anywhere. */
template <int DTYPE, bool VECTORS> struct gradient_lane {
    typedef lane_pair<DTYPE, VECTORS> piece;
    typedef typename elements<DTYPE>::real real;
    static constexpr int PAIRS = 16 / sizeof(typename elements<DTYPE>::type), OF_PIECE = piece::WIDTH,
                         PIECES = PAIRS / OF_PIECE;

    piece of[PIECES];

    /* Each piece that the head has, with its two places there. */
    template <typename MOVE>
    __device__ __forceinline__ void move(const listed_head &head, const block_tensor &t, int32_t interleaved, uint32_t lane,
                                         MOVE move_piece)
    {
        char *const p = address_of_head(*head.operand, t, head.row, head.head);
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            const lane_place at = find_place<OF_PIECE>(*head.operand, lane * PIECES + i, interleaved);
            if (VECTORS || lane * PIECES + i < head.operand->rotating)
                move_piece(of[i], p + at.first * t.element, p + at.second * t.element);
        }
    }

    __device__ __forceinline__ void load(const listed_head &head, const block_tensor &t, int32_t interleaved, uint32_t lane)
    {
        move(head, t, interleaved, lane,
             [](piece &p, char *first, char *second) { p.load(first, second, true, evict_first()); });
    }

    __device__ __forceinline__ void store(const listed_head &head, const block_tensor &t, int32_t interleaved,
                                          uint32_t lane)
    {
        move(head, t, interleaved, lane,
             [](piece &p, char *first, char *second) { p.store(first, second, true, evict_first()); });
    }

    __device__ __forceinline__ real get(int which, int e) const
    {
        return of[e / OF_PIECE].get(which, e % OF_PIECE);
    }

    /* Two pairs that follow each other, from an even one on. */
    __device__ __forceinline__ void set_two(int e, const real values[2][2])
    {
#pragma unroll
        for (int which = 0; which < 2; which++) {
            of[e / OF_PIECE].template set<PIECES == 1 ? 2 : 1>(which, e % OF_PIECE, values[which]);
            if (PIECES > 1)
                of[(e + 1) / OF_PIECE].template set<1>(which, 0, values[which] + 1);
        }
    }

    template <typename CHANGE> __device__ __forceinline__ void each(CHANGE change)
    {
#pragma unroll
        for (int i = 0; i < PIECES; i++)
            change(of[i]);
    }
};

/* What the kernels of a dtype differ in, and all that coefficient_run asks for. */
template <int OF_DTYPE, bool OF_VECTORS> struct gradient_pass {
    static constexpr int DTYPE = OF_DTYPE, ROWS = ROWS_SEARCHED, ANGLES = ANGLES_ANY;
    static constexpr bool VECTORS = OF_VECTORS;
    typedef typename elements<OF_DTYPE>::real real;
    typedef gradient_lane<OF_DTYPE, OF_VECTORS> lane;
    typedef uint32_t index;
    typedef gradient_call call;
    typedef phase_steps<TROPE_MAX_PAIRS> steps;
    /* Heads of a thread that are on their way at a time. By elements one has enough loads. */
    static constexpr int PAIRS = lane::PAIRS, HEADS = OF_VECTORS ? 2 : 1;
    /* Of a block at most, and such blocks that a multiprocessor holds. */
    static constexpr int THREADS = OF_VECTORS ? GRADIENT_THREADS : 2 * GRADIENT_THREADS, BLOCKS = OF_VECTORS ? 4 : 2;

    /* The position of a pair of a unit, for its sums; NaN if it adds nothing to any. */
    static __device__ __forceinline__ double *position(const gradient_call &call, uint32_t unit, uint32_t pair)
    {
        return (double *)(shared + call.positions_at) + unit * (uint32_t)call.plan.plan.pairs + pair;
    }

    static __device__ __forceinline__ void keep(const gradient_call &call, uint32_t unit, uint32_t pair,
                                                const found_row &found)
    {
        if (pair < (uint32_t)call.plan.plan.pairs)
            *position(call, unit, pair) =
                found.action == TROPE_ROW_ROTATE && !found.poisoned ? (double)found.position : (double)NAN;
    }
};

/* ---- a lane of a head ---- */

/* The coefficients of two pairs that follow each other. */
template <int DTYPE> struct alignas(16) two_couples {
    couple<DTYPE> of[2];
};

/* What a thread has loaded at a place in the list of its unit's heads. */
template <class R> struct head_job {
    typedef typename pair_types<R::DTYPE>::coefficients coefficients;

    bool present;
    typename R::lane dy, x;

    /* Asks for it. */
    __device__ __forceinline__ void load(const gradient_call &call, const unit_thread &thread, uint32_t number)
    {
        const listed_head at(call, thread, number);
        present = number < thread.heads && thread.lane * R::lane::PIECES < at.operand->rotating;
        if (!present)
            return;
        dy.load(at, at.operand->src, call.plan.plan.interleaved_src, thread.lane);
        x.load(at, at.operand->x, call.plan.plan.interleaved_forward_src, thread.lane);
    }

    /* A row that is not rotated: what is copied stays where it is in the head, whatever the pairings. */
    __device__ __forceinline__ void store_padding(const gradient_call &call, const listed_head &at, uint32_t lane,
                                                  trope_row_action action)
    {
        typedef typename R::lane::piece piece;
        if (action != TROPE_ROW_COPY)
            dy.each([=](piece &p) { p.fill(filling_of<R::DTYPE>(action)); });
        if (at.operand->is_written && (action != TROPE_ROW_COPY || !at.operand->in_place))
            dy.store(at, at.operand->dst, call.plan.plan.interleaved_src, lane);
    }

    /* Rotates dy into dx, stores it, and adds what the head has for the angles. USUAL: both elements of a pair add to one
     * sum, and dx is rounded once. */
    template <bool USUAL>
    __device__ __forceinline__ void rotate(const gradient_call &call, const unit_thread &thread, const listed_head &at,
                                           double sum[USUAL ? 1 : 2][R::PAIRS])
    {
        typedef typename R::lane::piece piece;
        const trope_plan &plan = call.plan.plan;
        const uint32_t pairs = R::VECTORS ? 0 : at.operand->rotating;
        if (plan.interleaved_src)
            dy.each([](piece &p) { p.separate(); });
        if (plan.interleaved_forward_src)
            x.each([](piece &p) { p.separate(); });
#pragma unroll
        for (int e = 0; e < R::PAIRS; e += 2)
            rotate_two<USUAL>(call, thread, pairs, e, sum);
        if (plan.interleaved_dst)
            dy.each([](piece &p) { p.join(); });
        if (at.operand->is_written)
            dy.store(at, at.operand->dst, plan.interleaved_dst, thread.lane);
    }

  private:
    template <bool USUAL>
    __device__ __forceinline__ void rotate_two(const gradient_call &call, const unit_thread &thread, uint32_t pairs, int e,
                                               double sum[USUAL ? 1 : 2][R::PAIRS])
    {
        typedef two_couples<R::DTYPE> couples;
        const block_shape &shape = call.shape;
        const couple<R::DTYPE> *const at = (const couple<R::DTYPE> *)shared + thread.unit * shape.couples_of_row +
                                           ((uint32_t)e / 2 * shape.lanes_of_row + thread.lane) * 2;
        const couples first = *(const couples *)at;
        couples second = first;
        if (!USUAL && call.plan.plan.angles.per_element)
            second = *(const couples *)(at + shape.second_at);
        typename R::real dx[2][2] = {{0, 0}, {0, 0}};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (!R::VECTORS && thread.lane * R::PAIRS + e + i >= pairs)
                continue;
            const coefficients t = {first.of[i].cosine, first.of[i].sine, second.of[i].cosine, second.of[i].sine};
            add(t, e + i, &sum[0][e + i], &sum[USUAL ? 0 : 1][e + i]);
            const auto turned = rotate_one(USUAL ? (int32_t)TROPE_ROUND_ONCE : call.rounding, t, e + i);
            dx[0][i] = turned.first;
            dx[1][i] = turned.second;
        }
        dy.set_two(e, dx);
    }

    /* dy1 (x1 s2 - x2 c1) and dy2 (x1 c2 + x2 s1), with the transpose's coefficients: see bwd/cpu/angle_gradient.c. */
    __device__ __forceinline__ void add(const coefficients &t, int e, double *first, double *second) const
    {
        const double x1 = (double)x.get(0, e), x2 = (double)x.get(1, e);
        *first = fma((double)dy.get(0, e), fma(x1, (double)t.s2, -(x2 * (double)t.c1)), *first);
        *second = fma((double)dy.get(1, e), fma(x1, (double)t.c2, x2 * (double)t.s1), *second);
    }

    __device__ __forceinline__ typename pair_types<R::DTYPE>::pair rotate_one(int32_t rounding, coefficients t, int e) const
    {
        if (rounding == TROPE_ROUND_NATIVE)
            t = {round_to<R::DTYPE>(t.c1), round_to<R::DTYPE>(t.s1), round_to<R::DTYPE>(t.c2), round_to<R::DTYPE>(t.s2)};
        return rotate_pair<R::DTYPE>(rounding, {dy.get(0, e), dy.get(1, e)}, t);
    }
};

/* ---- the sums of a unit ---- */

/* Adds the slots of a warp: each time a thread hands half of its sums to the one whose slot differs in one bit, and has
 * that one's part of the other half; when it has one left, both have the sum. What it has in the end it leaves for its part
 * of the unit, from `column` on. */
template <int PAIRS>
__device__ __forceinline__ void leave_sums(const gradient_call &call, const unit_thread &thread, uint32_t column,
                                           double sum[PAIRS])
{
    const uint32_t pairs = (uint32_t)call.plan.plan.pairs, last = call.slots_of_warp << call.lane_bits;
    uint32_t distance = 1u << call.lane_bits, first = thread.lane * PAIRS, left = PAIRS;
#pragma unroll
    for (int half = PAIRS / 2; half > 0; half /= 2) {
        if (distance >= last)
            break;
        const bool upper = threadIdx.x & distance;
#pragma unroll
        for (int i = 0; i < half; i++) {
            const double other = __shfl_xor_sync(UINT32_MAX, upper ? sum[i] : sum[i + half], (int)distance);
            sum[i] = (upper ? sum[i + half] : sum[i]) + other;
        }
        first += upper ? half : 0;
        left = half;
        distance *= 2;
    }
    for (; distance < last; distance *= 2)
        sum[0] += __shfl_xor_sync(UINT32_MAX, sum[0], (int)distance);
    const uint32_t share = thread.slot / call.slots_of_warp, in_warp = thread.slot - share * call.slots_of_warp;
    double *const to =
        (double *)(shared + call.left_at) + (thread.unit * call.shares + share) * call.columns.divisor + column;
#pragma unroll
    for (int i = 0; i < PAIRS; i++)
        if ((uint32_t)i < left && in_warp * left < PAIRS && first + i < pairs && thread.heads)
            to[first + i] = sum[i];
}

/* Goes through the thread's heads: dx is stored, the sums are left in shared memory. */
template <class R, bool USUAL>
__device__ __forceinline__ void rotate_heads(const gradient_call &call, const unit_thread &thread, head_job<R> *jobs)
{
    double sum[USUAL ? 1 : 2][R::PAIRS];
    const trope_row_action action = action_of_row<R>(call, thread.heads ? thread.unit : 0);
#pragma unroll
    for (int i = 0; i < (USUAL ? 1 : 2) * R::PAIRS; i++)
        sum[i / R::PAIRS][i % R::PAIRS] = 0;
#pragma unroll 1
    for (uint32_t round = 0; round < call.rounds; round += R::HEADS) {
#pragma unroll
        for (int k = 0; k < R::HEADS; k++) {
            head_job<R> &job = jobs[k];
            const uint32_t number = thread.slot + (round + k) * call.slots;
            const listed_head at(call, thread, number);
            if (call.rearranges)
                __syncthreads();
            if (job.present && action == TROPE_ROW_ROTATE)
                job.template rotate<USUAL>(call, thread, at, sum);
            else if (job.present)
                job.store_padding(call, at, thread.lane, action);
            if (round + R::HEADS + k < call.rounds)
                job.load(call, thread, number + R::HEADS * call.slots);
            else
                job.present = false;
        }
    }
    if (!USUAL && !call.plan.plan.angles.per_element) {
#pragma unroll
        for (int e = 0; e < R::PAIRS; e++)
            sum[0][e] += sum[1][e];
    }
    leave_sums<R::PAIRS>(call, thread, 0, sum[0]);
    if (!USUAL && call.plan.plan.angles.per_element)
        leave_sums<R::PAIRS>(call, thread, (uint32_t)call.plan.plan.pairs, sum[USUAL ? 0 : 1]);
}

/* ---- what passes through ---- */

/* Copies what of the heads of a block's units is not rotated, or fills it where it is padding. */
template <class R>
__device__ __forceinline__ void copy_rest(const gradient_call &call, const gradient_operand &o, int64_t first_unit,
                                          uint32_t units)
{
    typedef lane_pair<R::DTYPE, R::VECTORS> lanes;
    const uint32_t of_unit = o.heads * o.copying;
    if (!o.is_written || !o.copying)
        return;
    for (uint32_t unit = 0; unit < units; unit++) {
        const trope_row_action action = action_of_row<R>(call, unit);
        const bool is_filled = action == TROPE_ROW_ZERO || action == TROPE_ROW_POISON;
        block_row<uint32_t> row = find_row<uint32_t>(call.shape, first_unit + unit);
        row.outer *= call.entries;
        const uint32_t end = min(row.outer + call.entries, call.batch);
        for (; row.outer < end && (is_filled || !o.in_place); row.outer++) {
            for (uint32_t i = threadIdx.x; i < of_unit; i += blockDim.x) {
                const uint32_t head = trope_divide(&o.lanes, i);
                const lane_place at = find_place<lanes::WIDTH>(o, o.rotating + i - head * o.copying, false);
                const char *const from = address_of_head(o, o.src, row, head);
                char *const to = address_of_head(o, o.dst, row, head);
                lanes v;
                v.load(from + at.first * o.src.element, from + at.second * o.src.element, at.has_second, evict_first());
                if (is_filled)
                    v.fill(filling_of<R::DTYPE>(action));
                v.store(to + at.first * o.dst.element, to + at.second * o.dst.element, at.has_second, evict_first());
            }
        }
    }
}

/* ---- where sums go ---- */

/* The sum of a column of a unit: of its shares, in order. */
__device__ __forceinline__ double sum_of_unit(const gradient_call &call, uint32_t unit, uint32_t column)
{
    const double *const left = (const double *)(shared + call.left_at) + unit * call.shares * call.columns.divisor + column;
    double sum = left[0];
    for (uint32_t share = 1; share < call.shares; share++)
        sum += left[share * call.columns.divisor];
    return sum;
}

/* Each unit has sums of its own. SEQUENCES looks at those that count for nothing as well. */
template <class R> __device__ __forceinline__ void emit_units(const gradient_call &call, int64_t first_unit, uint32_t units)
{
    const trope_plan &plan = call.plan.plan;
    for (uint32_t i = threadIdx.x; i < units * call.columns.divisor; i += blockDim.x) {
        const uint32_t unit = trope_divide(&call.columns, i), column = i - unit * call.columns.divisor;
        const double position = *R::position(call, unit, pair_of_column(plan, column));
        const bool counts = position == position;
        if (call.mode == GRADIENT_DIRECT)
            store_angle(plan, find_row<uint32_t>(call.shape, first_unit + unit).outer, (int64_t)position, column,
                        sum_of_unit(call, unit, column));
        else if (counts || call.mode == GRADIENT_SEQUENCES)
            __stcs(call.sums + first_unit * call.columns.divisor + i, counts ? sum_of_unit(call, unit, column) : 0);
    }
}

/* The units of a block are added, for d_inv_freq each times its position. */
template <class R> __device__ __forceinline__ void emit_total(const gradient_call &call, uint32_t units)
{
    for (uint32_t column = threadIdx.x; column < call.columns.divisor; column += blockDim.x) {
        double sum = 0;
        for (uint32_t unit = 0; unit < units; unit++) {
            const double position = *R::position(call, unit, pair_of_column(call.plan.plan, column));
            if (position == position)
                sum = fma(call.plan.plan.d_inv_freq ? position : 1, sum_of_unit(call, unit, column), sum);
        }
        __stcs(call.sums + (int64_t)blockIdx.x * call.columns.divisor + column, sum);
    }
}

/* The row of d_freqs of each unit on each axis, which is that of the first pair of the axis; units without one go last. */
template <class R> __device__ __forceinline__ void emit_keys(const gradient_call &call, int64_t first_unit, uint32_t units)
{
    const trope_plan &plan = call.plan.plan;
    const uint32_t axes = (uint32_t)plan.axes;
    for (uint32_t i = threadIdx.x; i < units * axes; i += blockDim.x) {
        const uint32_t unit = i / axes, axis = i - unit * axes;
        int32_t pair = 0;
        while (pair < plan.pairs && (uint32_t)trope_pair_axis(&plan, pair) != axis)
            pair++;
        const double position = pair < plan.pairs ? *R::position(call, unit, (uint32_t)pair) : (double)NAN;
        const int64_t batch = plan.d_freqs_stride.batch ? find_row<uint32_t>(call.shape, first_unit + unit).outer : 0;
        const int64_t bucket = batch * rows_of_gradient(plan) + (plan.d_freqs_stride.row ? (int64_t)position : 0);
        const int64_t at = axis * call.shape.rows + first_unit + unit;
        call.keys[at] = position == position ? axis * call.buckets + (uint32_t)bucket : axes * call.buckets;
        call.values[at] = (uint32_t)(first_unit + unit);
    }
}

/* ---- the kernel ---- */

template <class R>
__global__ void __launch_bounds__(R::THREADS, R::BLOCKS)
    angle_gradient_kernel(KERNEL_PARAMETER(gradient_call) call, KERNEL_PARAMETER(typename R::steps) steps)
{
    const int64_t first_unit = (int64_t)blockIdx.x * call.shape.rows_of_block;
    const uint32_t units = (uint32_t)min((int64_t)call.shape.rows_of_block, call.shape.rows - first_unit);
    const unit_thread thread(call, first_unit, units);
    head_job<R> jobs[R::HEADS];
    find_coefficients<R>(call, steps, first_unit, units, [&]() {
#pragma unroll
        for (int k = 0; k < R::HEADS; k++)
            jobs[k].load(call, thread, thread.slot + k * call.slots);
    });
    if (call.plan.plan.angles.per_element || call.rounding != TROPE_ROUND_ONCE)
        rotate_heads<R, false>(call, thread, jobs);
    else
        rotate_heads<R, true>(call, thread, jobs);
    for (uint32_t i = 0; i < call.count; i++)
        copy_rest<R>(call, call.operands[i], first_unit, units);
    __syncthreads();
    if (call.mode == GRADIENT_TOTAL)
        emit_total<R>(call, units);
    else
        emit_units<R>(call, first_unit, units);
    if (call.mode == GRADIENT_SORTED)
        emit_keys<R>(call, first_unit, units);
    check_sequences(call.plan.plan.sequences, call.plan.plan.status);
}

#endif
