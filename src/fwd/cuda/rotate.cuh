/* The rotation on CUDA, as a register block: all loads of the data are issued first; the coefficients of the block's rows, each
 * once for all heads, are found meanwhile; one barrier; then each thread rotates its lane and stores it. */
#ifndef TROPE_FWD_CUDA_ROTATE_CUH
#define TROPE_FWD_CUDA_ROTATE_CUH

#include "fwd/cuda/find_coefficients.cuh"

/* What the kernels of a dtype differ in. IS_WIDE: strides, rows and sequences that 32 bits may be too few for, any number of
 * operands and pairs. */
template <int OF_DTYPE, bool OF_VECTORS, int OF_ROWS, int OF_ANGLES, bool IS_WIDE> struct rotation {
    static constexpr int DTYPE = OF_DTYPE, ROWS = OF_ROWS, ANGLES = OF_ANGLES;
    static constexpr bool VECTORS = OF_VECTORS, WIDE = IS_WIDE;
    static constexpr uint32_t STEPS = OF_ROWS == ROWS_ANY ? TROPE_MAX_PAIRS : OF_ANGLES == ANGLES_TABLE ? 1 : USUAL_PAIRS;
    static constexpr block_limit LIMIT = block_limits(OF_ROWS, OF_ANGLES, IS_WIDE);
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

/* ---- the rotation of a lane ---- */

/* The coefficients of a few pairs of a lane at a time. */
template <class R> struct lane_coefficients {
    typedef couple<R::DTYPE> couple_type;
    static constexpr int TOGETHER = R::PAIRS == 1 ? 1 : 2;
    struct alignas(sizeof(couple_type) * TOGETHER) couples {
        couple_type of[TOGETHER];
    } first, second;

    /* Those of pairs e, e + 1 of the lane. `own`: the elements of a pair may have different ones. */
    __device__ __forceinline__ void load(const block_shape &shape, const block_item &item, int e, bool own)
    {
        const couple_type *const from = (const couple_type *)shared + item.row * shape.couples_of_row +
                                        (item.lane * TOGETHER + (uint32_t)e * shape.lanes_of_row);
        first = *(const couples *)from;
        second = first;
        if (own)
            second = *(const couples *)(from + shape.second_at);
    }

    /* As NATIVE does, for a caller whose plan says ONCE because it needs them unrounded first. */
    __device__ __forceinline__ void round(int32_t rounding)
    {
#pragma unroll
        for (int i = 0; i < TOGETHER && rounding == TROPE_ROUND_NATIVE; i++) {
            first.of[i].round();
            second.of[i].round();
        }
    }

    /* Of one head. */
    __device__ __forceinline__ void rotate(int32_t rounding, const typename R::lane &v, int e,
                                           typename R::real y[2][TOGETHER]) const
    {
        typedef typename R::real real;
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const auto rotated =
                rotate_pair<R::DTYPE>(rounding, {(real)v.get(0, e + i), (real)v.get(1, e + i)},
                                      {first.of[i].cosine, first.of[i].sine, second.of[i].cosine, second.of[i].sine});
            y[0][i] = rotated.first;
            y[1][i] = rotated.second;
        }
    }
};

/* What an element of dst becomes that a term is added to: NATIVE rounds the term before. */
template <class R>
__device__ __forceinline__ typename R::real accumulated(int32_t rounding, typename R::real held, typename R::real term)
{
    return held + (rounding == TROPE_ROUND_NATIVE ? round_to<R::DTYPE>(term) : term);
}

/* Adds what dst holds to what a few pairs of a lane have become. */
template <class R>
__device__ __forceinline__ void add_to(int32_t rounding, const typename R::lane &held, int e,
                                       typename R::real y[2][lane_coefficients<R>::TOGETHER])
{
#pragma unroll
    for (int i = 0; i < 2 * lane_coefficients<R>::TOGETHER; i++) {
        const int which = i / lane_coefficients<R>::TOGETHER, of_pair = i % lane_coefficients<R>::TOGETHER;
        y[which][of_pair] = accumulated<R>(rounding, held.get(which, e + of_pair), y[which][of_pair]);
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

    __device__ __forceinline__ char *find_dst(const typename R::call &call,
                                              const block_tensor<typename R::stride> &dst) const
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

    /* USUAL: of a plain segment. OWN: the elements of a pair may have different coefficients. */
    template <bool USUAL, bool OWN> __device__ __forceinline__ void rotate(const typename R::call &call)
    {
        const trope_plan &plan = call.plan.plan;
        const bool accumulates = !USUAL && segment(call).accumulate;
        const int32_t rounding = USUAL ? (int32_t)TROPE_ROUND_ONCE : plan.rounding;
        lane_coefficients<R> c;
        typename R::lane held[R::HELD];
        if (accumulates)
            load_dst(segment(call).dst, find_dst(call, segment(call).dst), held);
#pragma unroll
        for (int h = 0; h < R::HELD; h++) {
            if (plan.interleaved_src)
                v[h].separate();
            if (accumulates && plan.interleaved_dst)
                held[h].separate();
        }
#pragma unroll
        for (int e = 0; e < R::PAIRS; e += lane_coefficients<R>::TOGETHER) {
            c.load(call.shape, item, e, OWN);
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
        for (int h = 0; h < R::HELD; h++)
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

    /* Fills what stays in place, and has no items, of a row that is padding: all threads that have items of the row, in all
     * its blocks, share it. */
    __device__ __forceinline__ void fill_rest(const typename R::call &call, int32_t action)
    {
        const block_shape &shape = call.shape;
        const uint32_t blocks = shape.slices_first ? gridDim.x : gridDim.y;
        const uint32_t thread = !R::VECTORS && shape.neighbours == NEAR_ROWS ? threadIdx.y : threadIdx.x;
#pragma unroll 1
        for (item.segment = shape.segments; item.segment < (uint32_t)shape.segments + shape.fills; item.segment++) {
            const typename R::segment &s = segment(call);
            const block_tensor<typename R::stride> dst = unrotated_dst(s);
            const uint32_t end = action == TROPE_ROW_ZERO && s.accumulate ? 0 : s.places * s.lanes.divisor;
#pragma unroll 1
            for (uint32_t i = slice_of_block(shape) * shape.items_of_block + thread; i < end;
                 i += blocks * shape.items_of_block) {
                const uint32_t place = trope_divide(&s.lanes, i);
                item.head = place * s.held;
                item.lane = i - place * s.lanes.divisor;
                has_two = R::HELD > 1 && s.held > 1 && item.head + 1 < s.heads;
#pragma unroll
                for (int h = 0; h < R::HELD; h++)
                    v[h].fill(filling_of<R::DTYPE>(action));
                if (item.lane < s.working)
                    store_to(dst, find_dst(call, dst));
            }
        }
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
        if (__builtin_expect(action == TROPE_ROW_ROTATE && s.is_plain && !own, 1))
            rotate<true, false>(call);
        else if (action == TROPE_ROW_ROTATE && s.rotates && own)
            rotate<false, true>(call);
        else if (action == TROPE_ROW_ROTATE && s.rotates)
            rotate<false, false>(call);
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
    const int32_t action = action_of_row<R>(call, job.item.row);
    if (job.item.present)
        job.finish(call, action, own);
    if (may_search(R::ROWS) && is_filled(action) && job.item.row < rows)
        job.fill_rest(call, action);
    if (may_search(R::ROWS))
        check_sequences<!R::WIDE>(call.plan.plan.sequences, call.plan.plan.status);
}

#endif
