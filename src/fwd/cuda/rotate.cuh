/* The rotation on CUDA, in a register block. All threads first load their items, then compute the coefficients of the
 * block's tokens, once for all heads. After one barrier, each thread rotates its item and stores it. */
#ifndef TROPE_FWD_CUDA_ROTATE_CUH
#define TROPE_FWD_CUDA_ROTATE_CUH

#include "fwd/cuda/item_job.cuh"

/* Fills the REST segments of a padding token, which have no items. All threads with items of the token, in all its
 * blocks, share the work. It overwrites the item of `job`. */
template <class R> __device__ __forceinline__ void fill_rest(const typename R::call &call, int32_t action, item_job<R> *job)
{
    const block_shape &shape = call.shape;
    const uint32_t blocks = shape.slices_first ? gridDim.x : gridDim.y;
    const uint32_t thread =
        !R::VECTORS && shape.neighbours == NEAR_TOKENS ? threadIdx.y : threadIdx.y * blockDim.x + threadIdx.x;
    job->v.fill(filling_of<R::DTYPE>(action));
#pragma unroll 1
    for (job->item.segment = shape.segments; job->item.segment < (uint32_t)shape.segments + shape.rest;
         job->item.segment++) {
        const typename R::segment &s = job->segment(call);
        const block_tensor<typename R::stride> dst = R::ALWAYS_FAST ? s.dst : unrotated_dst(s);
        const uint32_t end = action == TROPE_TOKEN_ZERO && s.accumulate ? 0 : s.places * s.head_items.divisor;
#pragma unroll 1
        for (uint32_t i = slice_of_block(shape) * shape.items_of_block + thread; i < end;
             i += blocks * shape.items_of_block) {
            job->take_item(s, i);
            char *const at = job->find_dst(call, dst);
            if (job->item.in_head < s.working)
                job->v.store(at, at + dst.second);
        }
    }
}

template <class R>
__global__ void __launch_bounds__(R::LIMIT.threads, R::LIMIT.blocks)
    rotate_kernel(KERNEL_PARAMETER(typename R::call) call, KERNEL_PARAMETER(typename R::steps) steps)
{
    const block_shape &shape = call.shape;
    const typename R::index first_token = first_token_of_block<typename R::index>(shape);
    const uint32_t tokens = count_tokens(shape, first_token);
    item_job<R> job(call, first_token, tokens, threadIdx.z);
    const bool own = find_coefficients<R>(
        call, steps, first_token, tokens, [&]() { job.load(call); }, [&]() { job.prepare(call); }, []() {});
    const int32_t action = action_of_token<R>(call, job.item.in_block);
    if (!job.item.present || !job.is_fast(call, action, own)) {
        if (job.item.present)
            job.finish(call, action, own);
    } else if (R::VECTORS && call.plan.plan.interleaved_src && call.plan.plan.interleaved_dst) {
        job.template rotate_fast<true>(call);
    } else {
        job.template rotate_fast<false>(call);
    }
    if (may_search(R::POSITIONS) && is_filled(action, false) && job.item.in_block < tokens)
        fill_rest<R>(call, action, &job);
    if (may_search(R::POSITIONS))
        check_sequences<R::WIDE>(known_position_source<R::POSITIONS>(call.plan.plan.position_source),
                                 call.plan.plan.status);
}

#endif
