/* Sums on CUDA: dst receives the sum of M' dy over the heads that share it, plus what it holds if it accumulates. An item is a
 * lane of one head of a sum; the heads of a sum, as many at once as a block has slots for, are added as a binary tree,
 * neighbours first, and these subtrees in turn as a binary counter. (Operands that are no sums are another launch's.) */
#ifndef TROPE_BWD_CUDA_HEAD_SUMS_CUH
#define TROPE_BWD_CUDA_HEAD_SUMS_CUH

#include "fwd/cuda/rotate.cuh"

/* What one lane adds: the elements of its two vectors in fp32 (f64 in double), rounded once at the end. */
template <class R> struct alignas(2 * R::PAIRS * sizeof(typename R::real) < 16 ? 8 : 16) lane_terms {
    typename R::real of[2][R::PAIRS];

    __device__ __forceinline__ void accumulate(int32_t rounding, const typename R::lane &held)
    {
#pragma unroll
        for (int i = 0; i < 2 * R::PAIRS; i++) {
            typename R::real &term = of[i / R::PAIRS][i % R::PAIRS];
            term = accumulated<R>(rounding, held.get(i / R::PAIRS, i % R::PAIRS), term);
        }
    }
};

/* An item of a sum: the lane of one of its heads in each round. */
template <class R> struct sum_job : lane_job<R> {
    uint32_t first_head, slot; /* of the sum's heads */
    bool is_loaded, has_second;

    __device__ __forceinline__ sum_job(const typename R::call &call, typename R::index first_row, uint32_t rows)
        : lane_job<R>(call, first_row, rows)
    {
        const typename R::segment &s = this->segment(call);
        const uint32_t sum = this->item.head >> s.slot_bits; /* find_item counts slots as heads */
        slot = this->item.head - (sum << s.slot_bits);
        first_head = sum * s.terms;
        has_second = !s.is_odd || this->item.lane != 0;
        select(call, 0);
    }

    /* The head of a round. */
    __device__ __forceinline__ void select(const typename R::call &call, uint32_t round)
    {
        const typename R::segment &s = this->segment(call);
        const uint32_t in_sum = (round << s.slot_bits) + slot;
        is_loaded = this->item.present && s.is_loaded && in_sum < s.terms;
        this->item.head = first_head + in_sum;
        this->from = is_loaded ? this->find_src(call, this->item.head) : s.src.base;
    }

    /* Where in dst the lane that slot 0 stores is. */
    __device__ __forceinline__ char *find_dst(const typename R::call &call,
                                              const block_tensor<typename R::stride> &dst) const
    {
        return find_address(call.shape, this->segment(call), dst, this->row, first_head, this->item.lane);
    }

    /* Who has nothing to load loads what others do: see lane_job. */
    __device__ __forceinline__ void load_term(const typename R::call &call)
    {
        this->v[0].load(this->from, this->from + this->segment(call).src.second);
    }

    /* The thread's terms of the head that it has loaded. */
    __device__ __forceinline__ lane_terms<R> find_terms(const typename R::call &call, int32_t action, bool own)
    {
        lane_terms<R> t = {};
        if (!is_loaded)
            return t;
        if (action == TROPE_ROW_ROTATE && this->segment(call).rotates) {
            if (call.plan.plan.interleaved_src)
                this->v[0].separate();
            lane_coefficients<R> c;
#pragma unroll
            for (int e = 0; e < R::PAIRS; e += lane_coefficients<R>::TOGETHER) {
                typename R::real y[2][lane_coefficients<R>::TOGETHER];
                c.load(call.shape, this->item, e, own);
                c.round(call.plan.plan.rounding);
                c.rotate(call.plan.plan.rounding, this->v[0], e, y);
#pragma unroll
                for (int i = 0; i < lane_coefficients<R>::TOGETHER; i++) {
                    t.of[0][e + i] = y[0][i];
                    t.of[1][e + i] = y[1][i];
                }
            }
            return t;
        }
#pragma unroll
        for (int e = 0; e < R::PAIRS; e++) {
            t.of[0][e] = term_of(this->v[0].get(0, e));
            t.of[1][e] = term_of(this->v[0].get(1, e));
        }
        return t;
    }

    /* One vector where the second is another lane's: to be added to once. */
    __device__ __forceinline__ void store_lane(char *to, typename R::stride second) const
    {
        if (has_second)
            this->v[0].store(to, to + second);
        else
            this->v[0].store_first(to);
    }

    /* Adds to what dst holds if asked to, and stores. */
    __device__ __forceinline__ void store_sum(const typename R::call &call, int32_t action, lane_terms<R> t)
    {
        const typename R::segment &s = this->segment(call);
        const bool rotated = action == TROPE_ROW_ROTATE && s.rotates, joins = rotated && call.plan.plan.interleaved_dst;
        const block_tensor<typename R::stride> dst = action == TROPE_ROW_ROTATE ? s.dst : unrotated_dst(s);
        char *const to = find_dst(call, dst);
        if (s.accumulate && action == TROPE_ROW_ZERO)
            return;
        if (s.accumulate) {
            typename R::lane held;
            held.load(to, to + dst.second);
            if (joins)
                held.separate();
            t.accumulate(call.plan.plan.rounding, held);
        }
        this->v[0].template set<R::PAIRS>(0, 0, t.of[0]);
        this->v[0].template set<R::PAIRS>(1, 0, t.of[1]);
        if (joins)
            this->v[0].join();
        if (is_filled(action))
            this->v[0].fill(filling_of<R::DTYPE>(action));
        store_lane(to, dst.second);
    }
};

/* A tree of so many sums, each `stride` behind the one before. */
template <int COUNT, typename T> __device__ __forceinline__ T add_tree(const T *first, uint32_t stride)
{
    if constexpr (COUNT == 1)
        return *first;
    else
        return add_tree<COUNT / 2>(first + COUNT / 2 * stride, stride) + add_tree<COUNT / 2>(first, stride);
}

/* The threads that add one sum, and where. In a round each warp adds the heads of its slots by halves: a thread hands half of
 * what it has to the one whose slot differs in one bit, and has that one's part of the other half. What it has in the end is
 * a part of the warp's share, in shared memory. Then each thread adds an element or a few over all shares, and over the
 * rounds, like a binary counter: level l holds the sum of 2^l rounds, which waits for its neighbour. */
template <class R> struct slot_group {
    typedef typename R::real real;
    static constexpr uint32_t COUNT = 2 * R::PAIRS; /* of a lane */

    uint32_t lanes, slots, warp_bits, thread, slot, lane; /* a warp has 2^warp_bits of the slots */
    real *shares, *levels;
    uint32_t of_shares, of_level; /* shares of even rounds, and then of odd ones */

    __device__ __forceinline__ slot_group(const typename R::call &call, const sum_job<R> &job)
    {
        const block_segment<typename R::stride> &s = job.segment(call);
        /* Of one slot each thread is a group, since a block may not have all lanes. */
        lanes = s.slot_bits ? s.lanes.divisor : 1;
        slots = 1u << s.slot_bits;
        warp_bits = s.warp_bits;
        slot = job.slot;
        lane = s.slot_bits ? job.item.lane : 0;
        thread = slot * lanes + lane;
        const uint32_t first = thread_of_block() - thread;
        of_shares = threads_of_block() * COUNT;
        of_level = of_shares >> call.shape.least_slot_bits;
        shares = (real *)(shared + call.shape.terms_at) + first * COUNT;
        levels = (real *)(shared + call.shape.terms_at) + 2 * of_shares + (first * COUNT >> call.shape.least_slot_bits);
    }

    /* For all threads of a warp, of which some may have fewer slots in it, or nothing to add. */
    __device__ __forceinline__ void leave(const lane_terms<R> &terms, uint32_t most_slots, bool adds, real *to) const
    {
        real v[COUNT];
        uint32_t first = 0, left = COUNT;
#pragma unroll
        for (int i = 0; i < (int)COUNT; i++)
            v[i] = terms.of[i / R::PAIRS][i % R::PAIRS];
#pragma unroll
        for (int level = 0; COUNT >> level > 1; level++) {
            const int half = (int)COUNT >> (level + 1);
            const bool joins = level < (int)warp_bits, upper = joins && slot >> level & 1;
            if (most_slots >> level <= 1)
                break;
#pragma unroll
            for (int i = 0; i < half; i++) {
                const real low = v[i], high = v[i + half], other = of_other(upper ? low : high, level);
                v[i] = joins ? other + (upper ? high : low) : low;
            }
            first += upper ? half : 0;
            left = joins ? half : left;
        }
        for (uint32_t level = (uint32_t)__ffs(COUNT) - 1; most_slots >> level > 1; level++) {
            const real other = of_other(v[0], level);
            if (level < warp_bits)
                v[0] = other + v[0];
        }
        const uint32_t of_warp = slot & ((1u << warp_bits) - 1);
        real *const at = to + ((slot >> warp_bits) * lanes + lane) * COUNT + first;
#pragma unroll
        for (uint32_t i = 0; i < COUNT; i++)
            if (adds && i < left && of_warp * left < COUNT)
                at[i] = v[i];
    }

    /* The shares of a round. What all rounds have in the end is where the first share of the last one was. */
    __device__ __forceinline__ void add(uint32_t round, uint32_t rounds, real *of_round) const
    {
        for (uint32_t i = thread; i < lanes * COUNT; i += slots * lanes) {
            real sum = add_shares(of_round + i);
            if (rounds > 1)
                sum = count(round, rounds, levels + i, sum);
            of_round[i] = sum;
        }
    }

  private:
    /* That of the thread whose slot differs in one bit, if the warp has it. */
    __device__ __forceinline__ real of_other(real x, uint32_t level) const
    {
        return __shfl_sync(UINT32_MAX, x, (int)(thread_of_warp() ^ (level < warp_bits ? lanes << level : 0)));
    }

    __device__ __forceinline__ real add_shares(const real *first) const
    {
        static_assert(BLOCK_THREADS == 16 * 32, "add_shares");
        const uint32_t count = slots >> warp_bits, stride = lanes * COUNT;
        return count == 1   ? add_tree<1>(first, stride)
               : count == 2 ? add_tree<2>(first, stride)
               : count == 4 ? add_tree<4>(first, stride)
               : count == 8 ? add_tree<8>(first, stride)
                            : add_tree<16>(first, stride);
    }

    /* Returns the sum of all rounds with the last one, padded with +0 to a power of two. */
    __device__ __forceinline__ real count(uint32_t round, uint32_t rounds, real *at, real sum) const
    {
        uint32_t level = 0;
        for (; round >> level & 1; level++)
            sum = at[level * of_level] + sum;
        at[level * of_level] = sum;
        if (round + 1 < rounds)
            return sum;
        const uint32_t first = (uint32_t)__ffs((int)rounds) - 1;
        sum = at[first * of_level];
        for (level = first; rounds >> level > 1; level++)
            sum = (level > first && rounds >> level & 1 ? at[level * of_level] : 0) + sum;
        return level > first ? at[level * of_level] + sum : sum;
    }
};

/* The sum that the thread's slot adds to, in all rounds of the block. */
template <class R>
__device__ __forceinline__ lane_terms<R> add_rounds(const typename R::call &call, int32_t action, bool own, sum_job<R> *job)
{
    const typename R::segment &s = job->segment(call);
    const slot_group<R> group(call, *job);
    lane_terms<R> t = {};
    for (uint32_t round = 0; round < call.shape.rounds; round++) {
        const bool adds = round < s.rounds;
        typename R::real *const shares = group.shares + round % 2 * group.of_shares;
        if (adds)
            t = job->find_terms(call, action, own);
        if (round + 1 < s.rounds) {
            job->select(call, round + 1);
            job->load_term(call);
        }
        group.leave(t, call.shape.most_warp_slots, adds, shares);
        __syncthreads();
        if (adds)
            group.add(round, s.rounds, shares);
    }
    __syncthreads();
    return *(const lane_terms<R> *)(group.shares + (s.rounds - 1) % 2 * group.of_shares + group.lane * group.COUNT);
}

template <class R>
__global__ void __launch_bounds__(R::LIMIT.threads, R::WIDE ? 1 : 4)
    sum_heads_kernel(KERNEL_PARAMETER(typename R::call) call, KERNEL_PARAMETER(typename R::steps) steps)
{
    const block_shape &shape = call.shape;
    const typename R::index first_row = (typename R::index)block_of_rows(shape) * (typename R::index)shape.rows_of_block;
    const uint32_t rows = (uint32_t)min((typename R::index)shape.rows_of_block, (typename R::index)shape.rows - first_row);
    sum_job<R> job(call, first_row, rows);
    const bool own = find_coefficients<R>(
        call, steps, first_row, rows, [&]() { job.load_term(call); }, []() {});
    const int32_t action = action_of_row<R>(call, job.item.row < rows ? job.item.row : 0);
    const lane_terms<R> t = add_rounds(call, action, own, &job);
    if (job.item.present && job.slot == 0)
        job.store_sum(call, action, t);
    check_sequences<!R::WIDE>(call.plan.plan.sequences, call.plan.plan.status);
}

#endif
