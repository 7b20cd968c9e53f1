/* What src/core/cuda/ptx.cuh has, where kernels are run by the host. The copy engine is as late as it may be: it loads when
 * the barrier is waited for, and reads what it stores when that is waited for. */
#ifndef TROPE_CORE_CUDA_PTX_CUH
#define TROPE_CORE_CUDA_PTX_CUH

#include "cuda_runtime.h"

#include "core/scalar.h"

/* Parameters are where the launch has them. */
#define KERNEL_PARAMETER(TYPE) const TYPE &

/* ---- what makes no difference here ---- */

static inline void await_previous()
{
}

static inline void admit_next()
{
}

template <typename T> static inline T found_here(T value)
{
    return value;
}

static inline uint64_t evict_first()
{
    return 0;
}

static inline uint64_t evict_last()
{
    return 0;
}

static inline uint64_t evict_normal()
{
    return 0;
}

static inline void prefetch(const void *)
{
}

/* ---- loads, stores, conversions ---- */

template <typename T> static inline void load_at_once(const T *from, uint64_t, T *to)
{
    emulated_aligned(from, sizeof *from);
    *to = *from;
}

static inline int32_t load_at_once(const int32_t *from)
{
    return *from;
}

static inline void load_vector(const char *from, uint64_t, uint4 *to)
{
    emulated_aligned(from, 16);
    memcpy(to, from, 16);
}

static inline void store_vector(char *to, uint64_t, const uint4 &from)
{
    emulated_aligned(to, 16);
    memcpy(to, &from, 16);
}

static inline uint32_t pack_f16(float first, float second)
{
    return (uint32_t)trope_f32_to_f16(first) | (uint32_t)trope_f32_to_f16(second) << 16;
}

static inline uint32_t pack_bf16(float first, float second)
{
    return (uint32_t)trope_f32_to_bf16(first) | (uint32_t)trope_f32_to_bf16(second) << 16;
}

/* ---- shared memory and the copy engine ---- */

typedef char *shared_pointer;

static inline shared_pointer shared_address(const void *p)
{
    return (shared_pointer)p;
}

void copy_vector_later(shared_pointer to, const char *from);
void await_vectors();

bool is_elected();
void make_barrier(shared_pointer barrier);
void arrive_at_barrier(shared_pointer barrier, uint32_t bytes);
void await_barrier(shared_pointer barrier, uint32_t parity);
void load_bulk(shared_pointer to, const char *from, uint32_t bytes, shared_pointer barrier, uint64_t policy);
void store_bulk(char *to, shared_pointer from, uint32_t bytes, uint64_t policy);
void await_bulk_reads();

static inline void publish_shared()
{
}

#endif
