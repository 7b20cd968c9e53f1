/* Replaces src/core/cuda/ptx.cuh for kernels that run on the host. */
#ifndef TROPE_CORE_CUDA_PTX_CUH
#define TROPE_CORE_CUDA_PTX_CUH

#include "cuda_runtime.h"

#include "core/scalar.h"

/* A kernel reads its parameters where the launch stored them. */
#define KERNEL_PARAMETER(TYPE) const TYPE &

/* ---- functions without effect on the host ---- */

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

static inline int64_t found_here(int64_t number)
{
    return number;
}

static inline uint32_t found_here(uint32_t number)
{
    return number;
}

static inline int32_t found_here(int32_t number)
{
    return number;
}

/* Returns the index of a thread in its warp. */
static inline uint32_t thread_of_warp()
{
    return emulated_lane();
}

static inline uint32_t thread_of_block()
{
    return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
}

static inline uint32_t threads_of_block()
{
    return blockDim.x * blockDim.y * blockDim.z;
}

static inline int64_t block_of_grid()
{
    return (int64_t)blockIdx.y * gridDim.x + blockIdx.x;
}

/* ---- loads, stores, conversions ---- */

static inline void load_4_or_2(const void *from, bool is_2, uint32_t *to)
{
    emulated_aligned(from, is_2 ? 2 : 4);
    *to = is_2 ? *(const uint16_t *)from : *(const uint32_t *)from;
}

static inline void load_4_or_8(const void *from, bool is_8, uint32_t *low, uint32_t *high)
{
    emulated_aligned(from, is_8 ? 8 : 4);
    *low = *(const uint32_t *)from;
    if (is_8)
        *high = ((const uint32_t *)from)[1];
}

static inline void load_4_or_8_if(bool is_there, const void *from, bool is_8, uint32_t *low, uint32_t *high)
{
    if (is_there)
        load_4_or_8(from, is_8, low, high);
}

static inline void load_16_if(bool is_there, const uint4 *from, uint4 *to)
{
    if (!is_there)
        return;
    emulated_aligned(from, sizeof *from);
    *to = *from;
}

static inline void load_16(const char *from, uint32_t *to)
{
    emulated_aligned(from, 16);
    memcpy(to, from, 16);
}

static inline void load_8(const char *from, uint32_t *to)
{
    emulated_aligned(from, 8);
    memcpy(to, from, 8);
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

template <typename ELEMENT> static inline void load_element(const char *from, ELEMENT *to)
{
    emulated_aligned(from, sizeof *to);
    *to = *(const ELEMENT *)from;
}

static inline void load_vector(const char *from, uint4 *to)
{
    emulated_aligned(from, 16);
    memcpy(to, from, 16);
}

static inline void copy_ahead(const char *from, uint4 *to)
{
    load_vector(from, to);
}

static inline void await_copies()
{
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

static inline uint32_t multiply_two_f16(uint32_t a, uint32_t b)
{
    return pack_f16(trope_mul(trope_f16_to_f32((uint16_t)a), trope_f16_to_f32((uint16_t)b)),
                    trope_mul(trope_f16_to_f32((uint16_t)(a >> 16)), trope_f16_to_f32((uint16_t)(b >> 16))));
}

static inline uint32_t add_two_f16(uint32_t a, uint32_t b)
{
    return pack_f16(trope_add(trope_f16_to_f32((uint16_t)a), trope_f16_to_f32((uint16_t)b)),
                    trope_add(trope_f16_to_f32((uint16_t)(a >> 16)), trope_f16_to_f32((uint16_t)(b >> 16))));
}

static inline uint32_t multiply_two_bf16(uint32_t a, uint32_t b)
{
    return pack_bf16(trope_mul(trope_bf16_to_f32((uint16_t)a), trope_bf16_to_f32((uint16_t)b)),
                     trope_mul(trope_bf16_to_f32((uint16_t)(a >> 16)), trope_bf16_to_f32((uint16_t)(b >> 16))));
}

static inline uint32_t add_two_bf16(uint32_t a, uint32_t b)
{
    return pack_bf16(trope_add(trope_bf16_to_f32((uint16_t)a), trope_bf16_to_f32((uint16_t)b)),
                     trope_add(trope_bf16_to_f32((uint16_t)(a >> 16)), trope_bf16_to_f32((uint16_t)(b >> 16))));
}

#endif
