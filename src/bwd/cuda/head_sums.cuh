/* Sums on CUDA: dst receives the sum of M' dy over the heads that share it, plus what it holds if it accumulates. An item is a
 * lane of one head of a sum; the heads of a sum, as many at once as a block has slots for, are added as a binary tree,
 * neighbours first, and these subtrees in turn as a binary counter. (What is no sum is rotated as in fwd/cuda/rotate.cuh, by
 * the same launch.) */
#ifndef TROPE_BWD_CUDA_HEAD_SUMS_CUH
#define TROPE_BWD_CUDA_HEAD_SUMS_CUH

#include "fwd/cuda/rotate.cuh"

/* What one lane adds: the elements of its two vectors in fp32 (f64 in double), rounded once at the end. */
template <class R> struct lane_terms {
    typename R::real of[2][R::PAIRS];

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int e = 0; e < R::PAIRS; e++)
            of[0][e] = of[1][e] = 0;
    }

    __device__ __forceinline__ void add(const lane_terms &other)
    {
#pragma unroll
        for (int e = 0; e < R::PAIRS; e++) {
            of[0][e] = other.of[0][e] + of[0][e];
            of[1][e] = other.of[1][e] + of[1][e];
        }
    }

    /* With NATIVE a sum is rounded before it is added to what is there. */
    __device__ __forceinline__ void accumulate(int32_t rounding, const typename R::lane &held)
    {
#pragma unroll
        for (int i = 0; i < 2 * R::PAIRS; i++) {
            typename R::real &term = of[i / R::PAIRS][i % R::PAIRS];
            if (rounding == TROPE_ROUND_NATIVE)
                term = round_to<R::DTYPE>(term);
            term = (typename R::real)held.get(i / R::PAIRS, i % R::PAIRS) + term;
        }
    }
};

/* Terms in shared memory, as vectors: those of the block's threads one after another. */
template <class R> struct shared_terms {
    typedef typename R::real real;
    enum { OF_VECTOR = 16 / sizeof(real) < 2 * R::PAIRS ? 16 / sizeof(real) : 2 * R::PAIRS, VECTORS = 2 * R::PAIRS / OF_VECTOR };
    struct alignas(OF_VECTOR * sizeof(real)) vector {
        real of[OF_VECTOR];
    };

    vector *first;
    uint32_t count; /* of lanes that there is room for */

    __device__ __forceinline__ void put(uint32_t at, const lane_terms<R> &t) const
    {
#pragma unroll
        for (int i = 0; i < VECTORS; i++)
            first[i * count + at] = ((const vector *)&t)[i];
    }

    __device__ __forceinline__ lane_terms<R> get(uint32_t at) const
    {
        lane_terms<R> t;
#pragma unroll
        for (int i = 0; i < VECTORS; i++)
            ((vector *)&t)[i] = first[i * count + at];
        return t;
    }
};

/* An item of a sum: the lane of one of its heads in each round. */
template <class R> struct sum_job : lane_job<R> {
    uint32_t first_head, slot; /* of the sum's heads */
    typename R::lane held;     /* what dst is added to */

    __device__ __forceinline__ sum_job(const typename R::call &call, uint32_t slice, int64_t first_row, uint32_t rows)
        : lane_job<R>(call, slice, first_row, rows)
    {
        const block_operand &o = *this->operand;
        const uint32_t sum = this->item.head / o.slots; /* find_item counts slots as heads */
        slot = this->item.head - sum * o.slots;
        first_head = sum * o.terms;
        select(call, 0);
    }

    /* The head of a round. */
    __device__ __forceinline__ void select(const typename R::call &call, uint32_t round)
    {
        const block_operand &o = *this->operand;
        const uint32_t in_sum = round * o.slots + slot;
        this->is_loaded = this->item.present && in_sum < o.terms && (this->item.lane < o.rotating || !o.in_place);
        this->item.head = first_head + in_sum;
        if (this->is_loaded)
            this->locate(call, this->item.head);
    }

    /* The place in dst of the lane that slot 0 stores. */
    __device__ __forceinline__ char *find_dst(const typename R::call &call, bool rotated, lane_place *at)
    {
        const block_operand &o = *this->operand;
        *at = find_place<R::PAIRS>(o, this->item.lane,
                                   rotated ? call.plan.plan.interleaved_dst : call.plan.plan.interleaved_src);
        return address_of_head(o, o.dst, this->row, first_head);
    }

    /* After the kernel before this one has ended: what is loaded of dst, too, where the row is rotated. */
    __device__ __forceinline__ void load_first(const typename R::call &call)
    {
        const block_operand &o = *this->operand;
        lane_place at;
        this->load();
        if (!o.accumulate || !this->item.present || slot != 0)
            return;
        char *const p = find_dst(call, this->item.lane < o.rotating, &at);
        held.load(p + at.first * o.dst.element, p + at.second * o.dst.element, at.has_second, this->loads);
    }

    /* The thread's terms of the head that it has loaded. */
    __device__ __forceinline__ lane_terms<R> find_terms(const typename R::call &call, trope_row_action action, bool own)
    {
        lane_terms<R> t;
        t.clear();
        if (!this->is_loaded)
            return t;
        if (this->rotates(action)) {
            if (call.plan.plan.interleaved_src)
                this->v.separate();
            rotate_lane<R>(call.plan, call.shape, this->item.row, this->item.lane, own, this->v, t.of);
            return t;
        }
#pragma unroll
        for (int e = 0; e < R::PAIRS; e++) {
            t.of[0][e] = this->v.get(0, e);
            t.of[1][e] = this->has_second ? this->v.get(1, e) : 0;
        }
        return t;
    }

    /* Adds to what dst holds if asked to, and stores. */
    __device__ __forceinline__ void store_sum(const typename R::call &call, trope_row_action action, lane_terms<R> t)
    {
        const block_operand &o = *this->operand;
        const bool rotated = this->rotates(action), is_poisoned = action == TROPE_ROW_POISON;
        lane_place at;
        char *const p = find_dst(call, rotated, &at);
        char *const first = p + at.first * o.dst.element, *const second = p + at.second * o.dst.element;
        if (action == TROPE_ROW_ZERO && o.accumulate)
            return;
        if (o.accumulate) {
            if (action == TROPE_ROW_COPY) /* what was loaded is paired as a rotated row is */
                held.load(first, second, at.has_second, this->loads);
            else if (rotated && call.plan.plan.interleaved_dst)
                held.separate();
            t.accumulate(call.plan.plan.rounding, held);
        }
        this->v.template set<R::PAIRS>(0, 0, t.of[0]);
        this->v.template set<R::PAIRS>(1, 0, t.of[1]);
        if (rotated && call.plan.plan.interleaved_dst)
            this->v.join();
        if (action == TROPE_ROW_ZERO || is_poisoned)
            this->v.fill(filling_of<R::DTYPE>(action));
        this->v.store(first, second, at.has_second, this->stores);
    }
};

/* Adds the heads of all slots: slot 0 has their sum. For all threads of the block, of which some only wait for the others. */
template <class R>
__device__ __forceinline__ void add_slots(const sum_job<R> &s, bool adds, uint32_t most_slots, const shared_terms<R> &terms,
                                          lane_terms<R> *t)
{
    const uint32_t lanes = s.operand->lanes.divisor, slots = adds ? s.operand->slots : 1;
    for (uint32_t half = 1; half < most_slots; half *= 2) {
        if (half < slots && s.slot % (2 * half) == half)
            terms.put(threadIdx.x, *t);
        __syncthreads();
        if (half < slots && s.slot % (2 * half) == 0)
            t->add(terms.get(threadIdx.x + half * lanes));
    }
    __syncthreads(); /* or the next round would overwrite what is still to be read */
}

/* The rounds of a sum as a binary counter: level l holds the sum of 2^l rounds, which waits for its neighbour. */
template <class R> struct round_counter {
    shared_terms<R> levels;
    uint32_t of_level, at; /* terms of a level, and which of them are the thread's */

    __device__ __forceinline__ void push(uint32_t round, lane_terms<R> t) const
    {
        uint32_t level = 0;
        for (; round >> level & 1; level++)
            t.add(levels.get(level * of_level + at));
        levels.put(level * of_level + at, t);
    }

    /* The sum, padded with +0 to a power of two. */
    __device__ __forceinline__ lane_terms<R> finish(uint32_t rounds) const
    {
        const uint32_t first = (uint32_t)__ffs((int)rounds) - 1;
        uint32_t level = first;
        lane_terms<R> t = levels.get(first * of_level + at), zero;
        zero.clear();
        for (; rounds >> level > 1; level++)
            t.add(level > first && rounds >> level & 1 ? levels.get(level * of_level + at) : zero);
        if (level > first)
            t.add(levels.get(level * of_level + at));
        return t;
    }
};

template <class R>
__global__ void __launch_bounds__(BLOCK_THREADS, 1)
    sum_heads_kernel(KERNEL_PARAMETER(typename R::call) call, KERNEL_PARAMETER(typename R::steps) steps)
{
    const block_shape &shape = call.shape;
    const uint32_t group = trope_divide(&shape.slices, blockIdx.x), slice = blockIdx.x - group * shape.slices.divisor;
    const int64_t first_row = (int64_t)group * shape.rows_of_block;
    const uint32_t rows = (uint32_t)min((int64_t)shape.rows_of_block, shape.rows - first_row);
    sum_job<R> s(call, slice, first_row, rows);
    const bool own = find_coefficients<R>(call, steps, first_row, rows, [&]() { s.load_first(call); });
    const trope_row_action action = action_of_row<R>(call, s.item.row < rows ? s.item.row : 0);
    const block_operand &o = *s.operand;
    const uint32_t rounds = (o.terms + o.slots - 1) / o.slots, of_sum = o.slots * o.lanes.divisor;
    typename shared_terms<R>::vector *const terms = (typename shared_terms<R>::vector *)(shared + shape.terms_at);
    const shared_terms<R> of_threads = {terms, blockDim.x};
    const round_counter<R> counter = {
        {terms + shared_terms<R>::VECTORS * blockDim.x, blockDim.x / shape.least_slots * shape.levels},
        blockDim.x / shape.least_slots,
        o.slots > 1 ? threadIdx.x / of_sum * of_sum / shape.least_slots + s.item.lane : threadIdx.x};
    lane_terms<R> t;
    for (uint32_t round = 0; round < shape.rounds; round++) {
        const bool adds = o.is_sum && round < rounds;
        if (adds && round > 0) {
            s.select(call, round);
            s.load();
        }
        if (adds)
            t = s.find_terms(call, action, own);
        add_slots(s, adds, shape.slots, of_threads, &t);
        if (adds && rounds > 1 && s.slot == 0)
            counter.push(round, t);
    }
    if (s.item.present && !o.is_sum) {
        s.finish(call, action, own);
        s.store(call, action);
    } else if (s.item.present && s.slot == 0) {
        s.store_sum(call, action, rounds > 1 ? counter.finish(rounds) : t);
    }
    check_sequences(call.plan.plan.sequences, call.plan.plan.status);
}

#endif
