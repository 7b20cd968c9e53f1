/* The backward of norms on CUDA, vector kernels: the register block of norm.cuh with dy as src and dx as dst. It also
 * reads x. */
#ifndef TROPE_BWD_CUDA_NORM_GRADIENT_CUH
#define TROPE_BWD_CUDA_NORM_GRADIENT_CUH

#include "bwd/cuda/cell_sums.cuh"

/* Kernels that search, or that keep rotated heads of x, need more registers. Only the generic kernel and those that walk add
 * the heads of tokens. */
template <int OF_DTYPE, int OF_POSITIONS, int OF_ANGLES, int ORDER>
struct norm_gradient_pass : norm_rotation<OF_DTYPE, OF_POSITIONS, OF_ANGLES, ORDER> {
    typedef norm_gradient_call call;
    static constexpr block_limit LIMIT = norm_limit(may_search(OF_POSITIONS) || ORDER != TROPE_NORM_BEFORE ? 3 : 4);
    static constexpr bool TOKENS = OF_POSITIONS == POSITIONS_GENERIC;
    typedef norm_gradient_pass<OF_DTYPE, OF_POSITIONS, OF_ANGLES, TROPE_NORM_BEFORE> before;
    typedef norm_gradient_pass<OF_DTYPE, OF_POSITIONS, OF_ANGLES, TROPE_NORM_AFTER> after;
};

/* A pass in which threads keep sums of d_weight over several tokens. */
template <int OF_DTYPE, int ORDER = 0>
struct norm_gradient_walk : norm_gradient_pass<OF_DTYPE, POSITIONS_GENERIC, ANGLES_GENERIC, ORDER> {
    typedef norm_gradient_walk<OF_DTYPE, TROPE_NORM_BEFORE> before;
    typedef norm_gradient_walk<OF_DTYPE, TROPE_NORM_AFTER> after;
};

/* Returns where a thread has the first of COUNT groups of 16 bytes. The threads of a warp have their first groups side by
 * side, then their second ones, and so on: the distance between two groups of a thread is 32 groups. */
template <int COUNT, class GROUP> __device__ __forceinline__ GROUP *groups_of_thread(uint32_t at)
{
    static_assert(sizeof(GROUP) == 16, "");
    return (GROUP *)(shared_memory + at) + thread_of_block() / 32 * (32 * COUNT) + thread_of_block() % 32;
}

/* A thread's sums of d_weight, one for each element of its heads. They lie in shared memory, because registers are
 * scarce. */
template <class R> struct thread_sums {
    static constexpr int GROUPS = R::PAIRS / CELL_SUMS; /* groups of a vector */
    term_group *of;                                     /* groups_of_thread */

    __device__ __forceinline__ explicit thread_sums(const norm_gradient_call &call)
        : of(groups_of_thread<R::HEADS * 2 * GROUPS, term_group>(call.thread_sums_at))
    {
#pragma unroll
        for (int i = 0; i < R::HEADS * 2 * GROUPS; i++)
            of[i * 32] = {};
    }

    __device__ __forceinline__ void add(int head, const item_values<R> &terms, float factor) const
    {
#pragma unroll
        for (int i = 0; i < 2 * GROUPS; i++) {
            term_group *const to = &of[(head * 2 * GROUPS + i) * 32];
            term_group sums = *to;
#pragma unroll
            for (int j = 0; j < CELL_SUMS; j++)
                sums.of[j] = trope_fma(terms.of[i / GROUPS][i % GROUPS * CELL_SUMS + j], factor, sums.of[j]);
            *to = sums;
        }
    }

    /* Writes the sums of one vector of a head. */
    __device__ __forceinline__ void write(int head, int vector, float *to) const
    {
#pragma unroll
        for (int i = 0; i < GROUPS; i++)
            ((term_group *)to)[i] = of[((head * 2 + vector) * GROUPS + i) * 32];
    }
};

template <class R> struct norm_gradient_job : norm_job<R> {
    typename R::data x[R::HEADS];
    char *from_x[R::HEADS];

    __device__ __forceinline__ norm_gradient_job(const norm_gradient_call &call, typename R::index first_token,
                                                 uint32_t tokens, uint32_t in_block)
        : norm_job<R>(call, first_token, tokens, in_block)
    {
        const block_tensor<int32_t> &t = call.x[this->item().segment];
#pragma unroll
        for (int h = 0; h < R::HEADS; h++) {
            const item_job<R> &dy = this->of[h];
            from_x[h] = dy.from + call.x_moved[this->item().segment];
            if (!call.x_is_alike)
                from_x[h] = dy.item.present ? find_address<R::ADDRESSES>(call.shape, this->segment(call), t, dy.token,
                                                                         dy.item.head, dy.item.in_head)
                                            : t.base;
            from_x[h] = found_here(from_x[h]);
        }
    }

    __device__ __forceinline__ void load_both(const norm_gradient_call &call)
    {
        this->load(call);
#pragma unroll
        for (int h = 0; h < R::HEADS; h++)
            x[h].load(from_x[h], from_x[h] + call.x[this->item().segment].second);
    }

    /* Fills an array of pointers to the vectors of x. */
    __device__ __forceinline__ void point_at_x(typename R::data **of_heads)
    {
#pragma unroll
        for (int h = 0; h < R::HEADS; h++)
            of_heads[h] = &x[h];
    }

    __device__ __forceinline__ void find_rstd(const norm_gradient_call &call)
    {
        typename R::data *of_heads[R::HEADS];
        point_at_x(of_heads);
        norm_job<R>::find_rstd(call, of_heads);
    }

    __device__ __forceinline__ bool rotates(int32_t action) const
    {
        return this->is_present() && action == TROPE_TOKEN_ROTATE;
    }

    /* Rotates either dy or x. If the norm comes before the rotation, g becomes M' dy. If it comes after the rotation, g
     * becomes dy and u becomes M x, and rstd is computed. All threads of a warp must call this. */
    __device__ __forceinline__ void rotate_one(const norm_gradient_call &call, int32_t action, bool own, item_values<R> *g,
                                               item_values<R> *u)
    {
        typename R::data *of_heads[R::HEADS];
        point_at_x(of_heads);
        if (R::IS_AFTER)
            this->template rotate_first<true>(call, action, of_heads, u);
#pragma unroll
        for (int h = 0; h < R::HEADS; h++)
            g[h] = item_values<R>(this->of[h].v);
        if (!R::IS_AFTER)
            rotate_back(call, action, own, g);
    }

    __device__ __forceinline__ void rotate_back(const norm_gradient_call &call, int32_t action, bool own, item_values<R> *g)
    {
        if (!rotates(action) || !this->is_window(call))
            return;
        if (R::ALWAYS_FAST || R::ANGLES == ANGLES_PHASE || !own)
            this->template rotate<true>(call, TROPE_ROUND_ONCE, own, g);
        else
            this->template rotate<false>(call, TROPE_ROUND_ONCE, own, g);
    }

    /* Returns the elements that are normalised. */
    __device__ __forceinline__ item_values<R> normalised(const norm_gradient_call &call, int h,
                                                         const item_values<R> *u) const
    {
        return R::IS_AFTER ? u[h] : item_values<R>(x[h]);
    }

    /* Whether the heads contribute to d_weight. */
    __device__ __forceinline__ bool counts(const norm_gradient_call &call, int32_t action) const
    {
        return IS_DIRECT<R> || (rotates(action) && has_positions<R>(call, this->norm(call).axes, this->item().in_block));
    }

    /* Stores the sum of x * M'dy * rstd (norm after the rotation: M x * dy * rstd) over the thread's heads. The block
     * adds these terms later. */
    __device__ __forceinline__ void leave_terms(const norm_gradient_call &call, int32_t action, const item_values<R> *g,
                                                const item_values<R> *u) const
    {
        const operand_gradient &o = call.of[this->item().segment];
        const uint32_t place = o.places_at + threadIdx.y + threadIdx.z * (o.after_unit - o.first_unit);
        const bool are_added = counts(call, action);
        float *const to = terms_of_block(call.shape) + threadIdx.x * call.terms_of_item + place;
        item_values<R> terms = normalised(call, 0, u);
        terms.multiply(g[0]);
        terms.multiply(this->rstd[0]);
#pragma unroll
        for (int h = 1; h < R::HEADS; h++) {
            item_values<R> more = normalised(call, h, u);
            more.multiply(g[h]);
            if (this->of[h].item.present)
                terms.add(more, this->rstd[h]);
        }
#pragma unroll
        for (int i = 0; i < 2 * R::PAIRS; i++)
            to[i * NORM_TERMS] = are_added ? terms.of[i / R::PAIRS][i % R::PAIRS] : 0;
    }

    /* Adds the terms of d_weight to the sums of earlier tokens, if each head has its own weights. */
    __device__ __forceinline__ void add_terms(const norm_gradient_call &call, int32_t action, const item_values<R> *g,
                                              const item_values<R> *u, const thread_sums<R> &sums) const
    {
        if (!counts(call, action))
            return;
#pragma unroll
        for (int h = 0; h < R::HEADS; h++) {
            item_values<R> terms = normalised(call, h, u);
            terms.multiply(g[h]);
            sums.add(h, terms, this->rstd[h]);
        }
    }

    /* Writes the sums of add_terms. */
    __device__ __forceinline__ void leave_terms_of_heads(const norm_gradient_call &call, const thread_sums<R> &sums) const
    {
        static_assert(R::PAIRS == COLUMN_SUMS, "");
        const operand_gradient &o = call.of[this->item().segment];
        const uint32_t first = this->find_element(call), run = block_of_tokens(call.shape);
#pragma unroll
        for (int h = 0; h < R::HEADS; h++) {
            const uint32_t at = this->of[h].item.head * call.head_dim + first;
            if (!o.is_wanted || !this->of[h].item.present)
                continue;
#pragma unroll
            for (int i = 0; i < 2; i++)
                sums.write(h, i, call.sums.template sum<float>(o, 0, run, at + i * call.join * R::PAIRS));
        }
    }

    /* Computes the slopes of the heads from their sums of products. All threads of the block must call this. */
    __device__ __forceinline__ void find_slopes(const norm_gradient_call &call, typename R::index first_token,
                                                uint32_t in_block, uint32_t count, const head_sums<R> &products,
                                                float *slopes)
    {
        products.find_means(call, slopes);
        if (R::TOKENS && call.adds_heads) {
            this->leave_sums(call, products);
            add_tokens<R>(call, first_token, in_block, count, true);
        }
#pragma unroll
        for (int h = 0; h < R::HEADS; h++) {
            if (R::TOKENS && call.adds_heads)
                slopes[h] = this->mean_of_token(call);
            slopes[h] = trope_norm_slope(slopes[h], this->rstd[h]);
            if (R::TOKENS && call.is_token && !call.adds_heads && this->is_present())
                slopes[h] = this->norm(call).slope[this->find_number(call)];
        }
    }

    /* Computes and stores dx. The threads of the block have `count` tokens, and `in_block` is the index of the first of
     * them. All threads of the block must call this. */
    __device__ __forceinline__ void finish_gradient(const norm_gradient_call &call, typename R::index first_token,
                                                    uint32_t in_block, uint32_t count, int32_t action, bool own,
                                                    item_values<R> *g, const item_values<R> *u)
    {
        head_sums<R> sums;
        float slopes[R::HEADS];
        this->multiply_by_weights(call, g);
#pragma unroll
        for (int h = 0; h < R::HEADS; h++) {
            item_values<R> products = normalised(call, h, u);
            products.multiply(g[h]);
            sums.take(h, products);
        }
        sums.add_items(call, this->is_present());
        find_slopes(call, first_token, in_block, count, sums, slopes);
        if (!this->segment(call).dst.base)
            return;
        if (rotates(action)) {
#pragma unroll
            for (int h = 0; h < R::HEADS; h++) {
                g[h].subtract(normalised(call, h, u), slopes[h]);
                g[h].multiply(this->rstd[h]);
            }
            if (R::IS_AFTER)
                rotate_back(call, action, own, g);
            this->store_heads(call, g);
        } else if (this->is_present()) {
            this->finish_padding(call, action);
        }
    }
};

template <class R>
__device__ __forceinline__ void norm_gradient_block(const norm_gradient_call &call, const typename R::steps &steps)
{
    const block_shape &shape = call.shape;
    const typename R::index first_token = first_token_of_block<typename R::index>(shape);
    const uint32_t tokens = count_tokens(shape, first_token);
    norm_gradient_job<R> job(call, first_token, tokens, threadIdx.z);
    cell_element<R> element;
    item_values<R> g[R::HEADS], u[R::HEADS];
    const bool own = find_coefficients<R>(
        call, steps, first_token, tokens, [&]() { job.load_both(call); }, []() {},
        [&]() {
            element.find(call, thread_of_block()); /* (while the loads are in flight) */
            if (!R::IS_AFTER)
                job.find_rstd(call);
        });
    const int32_t action = action_of_token<R>(call, job.item().in_block < tokens ? job.item().in_block : 0);
    job.rotate_one(call, action, own, g, u);
    job.find_token_rstd(call, first_token, 0, tokens, false);
    if (call.sums.of_columns) {
        job.leave_terms(call, action, g, u);
        __syncthreads();
        for (; element.element < call.head_dim; element.find(call, element.element + threads_of_block()))
            element.add(call, tokens);
    }
    job.finish_gradient(call, first_token, 0, tokens, action, own, g, u);
    if (may_search(R::POSITIONS))
        check_sequences<R::WIDE>(known_position_source<R::POSITIONS>(call.plan.plan.position_source),
                                 call.plan.plan.status);
}

/* The block for heads that have their own weights. A thread goes through all tokens of its block with the same heads,
 * and keeps their sums. */
template <class R>
__device__ __forceinline__ void norm_gradient_walk_block(const norm_gradient_call &call, const typename R::steps &steps)
{
    const typename R::index first_token = first_token_of_block<typename R::index>(call.shape);
    const uint32_t tokens = count_tokens(call.shape, first_token);
    const bool own = find_coefficients<R>(
        call, steps, first_token, tokens, []() {}, []() {}, []() {});
    const thread_sums<R> sums(call);
#pragma unroll 1
    for (uint32_t in_block = 0; in_block < tokens; in_block++) {
        norm_gradient_job<R> job(call, first_token, tokens, in_block);
        item_values<R> g[R::HEADS], u[R::HEADS];
        const int32_t action = action_of_token<R>(call, in_block);
        job.load_both(call);
        if (!R::IS_AFTER)
            job.find_rstd(call);
        job.rotate_one(call, action, own, g, u);
        job.find_token_rstd(call, first_token, in_block, 1, false);
        job.add_terms(call, action, g, u, sums);
        job.finish_gradient(call, first_token, in_block, 1, action, own, g, u);
    }
    norm_gradient_job<R>(call, first_token, tokens, 0).leave_terms_of_heads(call, sums);
    if (may_search(R::POSITIONS))
        check_sequences<R::WIDE>(known_position_source<R::POSITIONS>(call.plan.plan.position_source),
                                 call.plan.plan.status);
}

template <class R>
__global__ void __launch_bounds__(R::LIMIT.threads, R::LIMIT.blocks)
    norm_gradient_kernel(KERNEL_PARAMETER(norm_gradient_call) call, KERNEL_PARAMETER(typename R::steps) steps)
{
    run_in_order<R>(call, [&](auto of) { norm_gradient_block<decltype(of)>(call, steps); });
}

template <class R>
__global__ void __launch_bounds__(R::LIMIT.threads, R::LIMIT.blocks)
    norm_gradient_walk_kernel(KERNEL_PARAMETER(norm_gradient_call) call, KERNEL_PARAMETER(typename R::steps) steps)
{
    run_in_order<R>(call, [&](auto of) { norm_gradient_walk_block<decltype(of)>(call, steps); });
}

#endif
