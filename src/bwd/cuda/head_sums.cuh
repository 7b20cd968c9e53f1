/* Sums over heads on CUDA: dst receives M' of the sum of dy over the heads that share it, plus old_dst if the operand
 * accumulates.
 *
 * An item of a sum is two vectors of a head and a slot of the sum. A slot has a power of two of consecutive heads. Its
 * threads add one head in each round, then the slots are added. Both steps are parts of one binary tree. The same launch
 * rotates operands that are not sums, which have ordinary items. All threads that have items of a token also copy the
 * elements of the token that pass through. */
#ifndef TROPE_BWD_CUDA_HEAD_SUMS_CUH
#define TROPE_BWD_CUDA_HEAD_SUMS_CUH

#include "fwd/cuda/item_job.cuh"

/* The sums of a thread: the elements of its two vectors in fp32 (f64: double), rounded once at the end. */
template <class R> struct item_terms {
    typename R::real of[2][R::PAIRS];

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int e = 0; e < R::PAIRS; e++)
            of[0][e] = of[1][e] = 0;
    }

    __device__ __forceinline__ void add(const item_terms &other)
    {
#pragma unroll
        for (int e = 0; e < R::PAIRS; e++) {
            of[0][e] = other.of[0][e] + of[0][e];
            of[1][e] = other.of[1][e] + of[1][e];
        }
    }

    template <bool> __device__ __forceinline__ typename R::real of_pair(int e, int which) const
    {
        return of[which][e];
    }

    /* Rotates the sum. NATIVE first rounds the sum to the dtype, as eager code does when it stores the sum. */
    __device__ __forceinline__ void rotate(const block_shape &shape, const block_item &item, int32_t rounding, bool own)
    {
        constexpr int TOGETHER = item_coefficients<R>::TOGETHER;
#pragma unroll
        for (int i = 0; i < 2 * R::PAIRS && rounding == TROPE_ROUND_NATIVE; i++)
            of[i / R::PAIRS][i % R::PAIRS] = round_to<R::DTYPE>(of[i / R::PAIRS][i % R::PAIRS]);
#pragma unroll
        for (int e = 0; e < R::PAIRS; e += TOGETHER) {
            item_coefficients<R> c;
            typename R::real y[2][TOGETHER];
            c.load(shape, item, e, own);
            c.template rotate<false>(rounding, *this, e, y);
#pragma unroll
            for (int i = 0; i < TOGETHER; i++) {
                of[0][e + i] = y[0][i];
                of[1][e + i] = y[1][i];
            }
        }
    }

    /* Returns the terms of another thread of the warp. */
    __device__ __forceinline__ item_terms of_thread(uint32_t thread) const
    {
        item_terms other;
#pragma unroll
        for (int i = 0; i < 2 * R::PAIRS; i++)
            other.of[i / R::PAIRS][i % R::PAIRS] = __shfl_sync(UINT32_MAX, of[i / R::PAIRS][i % R::PAIRS], (int)thread);
        return other;
    }

    __device__ __forceinline__ void accumulate(int32_t rounding, const typename R::data &old_dst)
    {
#pragma unroll
        for (int i = 0; i < 2 * R::PAIRS; i++) {
            typename R::real &term = of[i / R::PAIRS][i % R::PAIRS];
            term = accumulated<R>(rounding, old_dst.template of_pair<false>(i % R::PAIRS, i / R::PAIRS), term);
        }
    }
};

/* Terms in shared memory, as vectors. The vectors of the block's threads are adjacent. */
template <class R> struct shared_memory_terms {
    typedef typename R::real real;
    enum {
        OF_VECTOR = 16 / sizeof(real) < 2 * R::PAIRS ? 16 / sizeof(real) : 2 * R::PAIRS,
        VECTORS = 2 * R::PAIRS / OF_VECTOR
    };
    struct alignas(OF_VECTOR * sizeof(real)) vector {
        real of[OF_VECTOR];
    };

    vector *first;
    uint32_t count; /* the number of threads for whose terms there is room */

    __device__ __forceinline__ void put(uint32_t at, const item_terms<R> &t) const
    {
#pragma unroll
        for (int i = 0; i < VECTORS; i++)
            first[i * count + at] = ((const vector *)&t)[i];
    }

    __device__ __forceinline__ item_terms<R> get(uint32_t at) const
    {
        item_terms<R> t;
#pragma unroll
        for (int i = 0; i < VECTORS; i++)
            ((vector *)&t)[i] = first[i * count + at];
        return t;
    }
};

/* Whether pass_heads can copy a segment. The thread's items are `step` apart. They must be the same vectors of heads
 * that are equally far apart. */
template <class R> __device__ __forceinline__ bool can_pass_heads(const typename R::segment &s, uint32_t step)
{
    return !s.accumulate && !s.is_intricate && trope_divide(&s.head_items, step) * s.head_items.divisor == step;
}

/* Copies or fills every step_heads-th head of a segment, from the job's head on. */
template <class R>
__device__ __forceinline__ void pass_heads(const typename R::call &call, const item_job<R> &job, uint32_t step_heads,
                                           int32_t action)
{
    const bool fills = is_filled(action, false);
    const typename R::segment &s = job.segment(call);
    const int64_t src_step = (int64_t)(int32_t)step_heads * s.src.head,
                  dst_step = (int64_t)(int32_t)step_heads * s.dst.head;
    const char *from = job.find_src(call, job.item.head);
    char *to = job.find_dst(call, s.dst);
    typename R::data v[SUM_COPIES];
#pragma unroll
    for (int i = 0; i < SUM_COPIES; i++)
        v[i].fill(filling_of<R::DTYPE>(action));
#pragma unroll 1
    for (uint32_t head = job.item.head; head < s.places; head += SUM_COPIES * step_heads) {
#pragma unroll
        for (int i = 0; i < SUM_COPIES; i++)
            if (head + (uint32_t)i * step_heads < s.places && !fills) {
                v[i].load(from, from + s.src.second);
                from += src_step;
            }
#pragma unroll
        for (int i = 0; i < SUM_COPIES; i++)
            if (head + (uint32_t)i * step_heads < s.places) {
                v[i].store(to, to + s.dst.second);
                to += dst_step;
            }
    }
}

/* A thread's share of the rest of a token: the elements that pass through. All threads that have items of the token, in
 * all its blocks, share the work. */
struct rest_share {
    uint32_t first, step; /* the thread's first item of a segment, and the distance to its next one */

    __device__ __forceinline__ explicit rest_share(const block_shape &shape)
    {
        first = slice_of_block(shape) * shape.items_of_block + threadIdx.x;
        step = (shape.slices_first ? gridDim.x : gridDim.y) * shape.items_of_block;
    }
};

template <class R>
__device__ __forceinline__ void pass_rest(const typename R::call &call, int32_t action,
                                          block_token<typename R::index> token)
{
    const block_shape &shape = call.shape;
    const rest_share share(shape);
    item_job<R> job;
    job.token = token;
#pragma unroll 1
    for (job.item.segment = shape.segments; job.item.segment < (uint32_t)shape.segments + shape.rest; job.item.segment++) {
        const typename R::segment &s = job.segment(call);
        job.take_item(s, share.first);
        if (can_pass_heads<R>(s, share.step) && job.item.head < s.places && (s.is_loaded || is_filled(action, false)))
            pass_heads(call, job, trope_divide(&s.head_items, share.step), action);
    }
}

/* Finishes the job's item if it does not belong to a sum. Then copies or fills the elements that pass_rest cannot. */
template <class R>
__device__ __forceinline__ void finish_others(const typename R::call &call, int32_t action, bool own, item_job<R> *job)
{
    const block_shape &shape = call.shape;
    const rest_share share(shape);
    uint32_t i = share.first, segment = shape.segments;
    bool is_there = job->item.present && !job->segment(call).rounds;
#pragma unroll 1
    for (;;) {
        if (is_there)
            job->finish(call, action, own);
#pragma unroll 1
        for (; segment < (uint32_t)shape.segments + shape.rest; segment++, i = share.first)
            if (!can_pass_heads<R>(call.segments[segment], share.step) &&
                i < call.segments[segment].places * call.segments[segment].head_items.divisor)
                break;
        if (segment == (uint32_t)shape.segments + shape.rest)
            break;
        const typename R::segment &s = call.segments[segment];
        job->item.segment = segment;
        job->take_item(s, i);
        is_there = job->item.in_head < s.working;
        i += share.step;
        if (is_there) {
            job->from = job->find_src(call, job->item.head);
            if (s.is_loaded)
                job->load(call);
        }
    }
}

/* An item of a sum: the same vectors of each head of a slot, one head in each round. */
template <class R> struct sum_job : item_job<R> {
    uint32_t first_head, slot; /* the sum's first head in its operand, and the slot of the thread */
    bool is_loaded, has_second;

    __device__ __forceinline__ sum_job(const typename R::call &call, typename R::index first_token, uint32_t tokens)
        : item_job<R>(call, first_token, tokens, threadIdx.z)
    {
        const typename R::segment &s = this->segment(call);
        const uint32_t sum = this->item.head >> s.slot_bits; /* find_item counts slots as heads */
        slot = this->item.head - (sum << s.slot_bits);
        first_head = sum * s.terms;
        has_second = !s.is_odd || this->item.in_head != 0;
        select(call, 0);
    }

    /* Selects the head of a round. A slot may have heads that do not exist. */
    __device__ __forceinline__ void select(const typename R::call &call, uint32_t round)
    {
        const typename R::segment &s = this->segment(call);
        const uint32_t in_sum = slot * max(s.rounds, 1u) + round;
        is_loaded = this->item.present && s.is_loaded && in_sum < s.terms;
        this->item.head = first_head + in_sum;
        this->from = is_loaded ? this->find_src(call, this->item.head) : s.src.base;
    }

    /* Returns the address in dst where slot 0 stores its vectors. */
    __device__ __forceinline__ char *find_dst(const typename R::call &call,
                                              const block_tensor<typename R::stride> &dst) const
    {
        return find_address<ADDRESSES_GENERIC>(call.shape, this->segment(call), dst, this->token, first_head,
                                               this->item.in_head);
    }

    /* Idle threads load a dummy address: see item_job. */
    __device__ __forceinline__ void load_term(const typename R::call &call)
    {
        this->v.load(this->from, this->from + this->segment(call).src.second);
    }

    /* Returns the terms of the head that the thread has loaded. */
    __device__ __forceinline__ item_terms<R> find_terms(const typename R::call &call, int32_t action)
    {
        item_terms<R> t;
        t.clear();
        if (!is_loaded)
            return t;
        if (action == TROPE_TOKEN_ROTATE && this->segment(call).rotates && call.plan.plan.interleaved_src)
            this->v.separate();
#pragma unroll
        for (int e = 0; e < R::PAIRS; e++) {
            t.of[0][e] = term_of(this->v.template of_pair<false>(e, 0));
            t.of[1][e] = term_of(this->v.template of_pair<false>(e, 1));
        }
        return t;
    }

    /* Stores both vectors, or only the first vector if the second one belongs to another thread's item, because each
     * element of dst must be accumulated only once. */
    __device__ __forceinline__ void store_item(char *to, typename R::stride second) const
    {
        if (has_second)
            this->v.store(to, to + second);
        else
            this->v.store_first(to);
    }

    /* Rotates the sum, adds it to dst if the operand accumulates, and stores it. */
    __device__ __forceinline__ void store_sum(const typename R::call &call, int32_t action, bool own, item_terms<R> t)
    {
        const typename R::segment &s = this->segment(call);
        const bool rotated = action == TROPE_TOKEN_ROTATE && s.rotates, joins = rotated && call.plan.plan.interleaved_dst;
        const block_tensor<typename R::stride> dst = action == TROPE_TOKEN_ROTATE ? s.dst : unrotated_dst(s);
        char *const to = find_dst(call, dst);
        if (s.accumulate && action == TROPE_TOKEN_ZERO)
            return;
        if (rotated)
            t.rotate(call.shape, this->item, call.plan.plan.rounding, own);
        if (s.accumulate) {
            typename R::data old_dst;
            old_dst.load(to, to + dst.second);
            if (joins)
                old_dst.separate();
            t.accumulate(call.plan.plan.rounding, old_dst);
        }
        this->v.template set_pairs<R::PAIRS, false>(0, t.of);
        if (joins)
            this->v.join();
        if (is_filled(action, s.rotates))
            this->v.fill(filling_of<R::DTYPE>(action));
        store_item(to, dst.second);
    }
};

/* Adds the heads of the thread's slot like a binary counter: level l of shared memory holds the sum of 2^l heads, which
 * waits for its neighbour. */
template <class R>
__device__ __forceinline__ item_terms<R> add_heads(const typename R::call &call, int32_t action,
                                                   const shared_memory_terms<R> &terms, sum_job<R> *job)
{
    const uint32_t rounds = job->segment(call).rounds, threads = threads_of_block(), thread = thread_of_block();
    item_terms<R> t;
    t.clear();
#pragma unroll 1
    for (uint32_t round = 0; round < rounds; round++) {
        t = job->find_terms(call, action);
        if (round + 1 < rounds) {
            job->select(call, round + 1);
            job->load_term(call);
        }
        uint32_t level = 0;
#pragma unroll 1
        for (; round >> level & 1; level++)
            t.add(terms.get(level * threads + thread));
        if (round + 1 < rounds)
            terms.put(level * threads + thread, t);
    }
    return t;
}

/* Adds the slots. Slot 0 gets the sum. All threads of the block must call this, although some only wait for others. Threads
 * exchange terms by shuffles within a warp, then through shared memory. */
template <class R>
__device__ __forceinline__ void add_slots(const typename R::call &call, const shared_memory_terms<R> &terms,
                                          const sum_job<R> &s, item_terms<R> *t)
{
    const uint32_t head_items = s.segment(call).head_items.divisor, slots = 1u << s.segment(call).slot_bits;
    uint32_t half = 1;
    for (; half < call.shape.slots && half * call.shape.most_head_items < 32; half *= 2) {
        const item_terms<R> other = t->of_thread(thread_of_warp() ^ (half * head_items));
        if (half < slots)
            t->add(other);
    }
    for (; half < call.shape.slots; half *= 2) {
        if (half < slots && s.slot % (2 * half) == half)
            terms.put(thread_of_block(), *t);
        __syncthreads();
        if (half < slots && s.slot % (2 * half) == 0)
            t->add(terms.get(thread_of_block() + half * head_items));
    }
}

template <class R>
__global__ void __launch_bounds__(R::WIDE ? BLOCK_THREADS : SUM_THREADS, R::WIDE ? 1 : 4)
    sum_heads_kernel(KERNEL_PARAMETER(typename R::call) call, KERNEL_PARAMETER(typename R::steps) steps)
{
    const block_shape &shape = call.shape;
    const typename R::index first_token = first_token_of_block<typename R::index>(shape);
    const uint32_t tokens = count_tokens(shape, first_token);
    sum_job<R> job(call, first_token, tokens);
    const bool own = find_coefficients<R>(
        call, steps, first_token, tokens, [&]() { job.load_term(call); }, []() {}, []() {});
    const int32_t action = action_of_token<R>(call, job.item.in_block < tokens ? job.item.in_block : 0);
    const shared_memory_terms<R> terms = {(typename shared_memory_terms<R>::vector *)(shared_memory + shape.terms_at),
                                          shape.terms};
    item_terms<R> t;
    if (slice_of_block(shape) < shape.summing_slices) {
        t = add_heads(call, action, terms, &job);
        add_slots(call, terms, job, &t);
    }
    if (job.item.present && job.segment(call).rounds && job.slot == 0)
        job.store_sum(call, action, own, t);
    if (job.item.in_block < tokens) {
        finish_others<R>(call, action, own, &job);
        pass_rest<R>(call, action, job.token);
    }
    check_sequences<R::WIDE>(call.plan.plan.position_source, call.plan.plan.status);
}

#endif
