/* What src/core/cuda/ptx.cuh has, where kernels are run by the host. */
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

template <typename T> static inline T *found_here(T *address)
{
    return address;
}

/* The number of a thread in its warp. */
static inline uint32_t thread_of_warp()
{
    return emulated_lane();
}

/* ---- loads, stores, conversions ---- */

static inline void load_at_once(const uint32_t *from, uint32_t *to)
{
    emulated_aligned(from, sizeof *from);
    *to = *from;
}

static inline void load_at_once(const uint4 *from, uint4 *to)
{
    emulated_aligned(from, sizeof *from);
    *to = *from;
}

static inline void load_at_once(const void *from, int32_t is_16, uint32_t *to)
{
    emulated_aligned(from, is_16 ? 2 : 4);
    *to = is_16 ? *(const uint16_t *)from : *(const uint32_t *)from;
}

static inline void load_at_once(const uint2 *from, uint32_t *low, uint32_t *high)
{
    emulated_aligned(from, sizeof *from);
    *low = from->x;
    *high = from->y;
}

template <typename T> static inline void settle(T *)
{
}

static inline void await(uint32_t, uint32_t *)
{
}

static inline void load_parameter(const uint64_t *from, uint64_t *to)
{
    *to = *from;
}

static inline void load_two_parameters(const uint64_t *from, uint64_t *first, uint64_t *second)
{
    *first = from[0];
    *second = from[1];
}

static inline void prefetch(const char *)
{
}

static inline void load_vector(const char *from, uint4 *to)
{
    emulated_aligned(from, 16);
    memcpy(to, from, 16);
}

static inline void store_vector(char *to, const uint4 &from)
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

#endif
