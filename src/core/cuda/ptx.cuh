/* The instructions that CUDA C++ has no name for, one a function, and what keeps the compiler from moving others. Nothing
 * else in the backend is assembly. */
#ifndef TROPE_CORE_CUDA_PTX_CUH
#define TROPE_CORE_CUDA_PTX_CUH

#include <cuda_runtime.h>
#include <stdint.h>

/* A parameter of a kernel, which is read where the launch has put it. */
#define KERNEL_PARAMETER(TYPE) const __grid_constant__ TYPE

/* ---- the kernel before this one, and the next ---- */

/* Waits for the end of the kernel before this one. */
__device__ __forceinline__ void await_previous()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Lets blocks of the next kernel start once all blocks of this one have come here, and not when they are done. */
__device__ __forceinline__ void admit_next()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* ---- what the compiler should not move ---- */

/* What is found before something else: the compiler would put it off until it is needed. */
template <typename T> __device__ __forceinline__ T *found_here(T *address)
{
    asm volatile("" : "+l"(address));
    return address;
}

__device__ __forceinline__ int64_t found_here(int64_t number)
{
    asm volatile("" : "+l"(number));
    return number;
}

__device__ __forceinline__ uint32_t found_here(uint32_t number)
{
    asm volatile("" : "+r"(number));
    return number;
}

__device__ __forceinline__ int32_t found_here(int32_t number)
{
    asm volatile("" : "+r"(number));
    return number;
}

/* ---- threads ---- */

/* The number of a thread in its warp. */
__device__ __forceinline__ uint32_t thread_of_warp()
{
    uint32_t lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

/* The number of a thread in its block, and of a block in the grid. They are made where they are wanted: the compiler would make
 * them once, and keep them in registers through the search. */
__device__ __forceinline__ uint32_t thread_of_block()
{
    uint32_t x, y, z;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
    asm volatile("mov.u32 %0, %%tid.y;" : "=r"(y));
    asm volatile("mov.u32 %0, %%tid.z;" : "=r"(z));
    return (z * blockDim.y + y) * blockDim.x + x;
}

__device__ __forceinline__ uint32_t threads_of_block()
{
    return blockDim.x * blockDim.y * blockDim.z;
}

__device__ __forceinline__ int64_t block_of_grid()
{
    uint32_t x, y;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
    asm volatile("mov.u32 %0, %%ctaid.y;" : "=r"(y));
    return (int64_t)y * gridDim.x + x;
}

/* ---- loads and stores ---- */

/* Loads of what the call does not write that stay where they are: the compiler would put off those whose values are wanted
 * later, and they would be waited for one after another. Those of several widths are one, because a branch would part
 * them from what follows, and what is usual comes first, before the data. */

/* 4 bytes, or 2. */
__device__ __forceinline__ void load_4_or_2(const void *from, bool is_2, uint32_t *to)
{
    asm volatile("{\n\t.reg .pred narrow;\n\t"
                 "setp.ne.s32 narrow, %2, 0;\n\t"
                 "@!narrow ld.global.u32 %0, [%1];\n\t"
                 "@narrow ld.global.u16 %0, [%1];\n\t}"
                 : "=r"(*to)
                 : "l"(from), "r"((int32_t)is_2));
}

/* 4 bytes, or 8, whose upper half becomes `high`. */
__device__ __forceinline__ void load_4_or_8(const void *from, bool is_8, uint32_t *low, uint32_t *high)
{
    asm volatile("{\n\t.reg .pred wide;\n\t"
                 "setp.ne.s32 wide, %3, 0;\n\t"
                 "@!wide ld.global.u32 %0, [%2];\n\t"
                 "@wide ld.global.v2.u32 {%0, %1}, [%2];\n\t}"
                 : "=r"(*low), "=r"(*high)
                 : "l"(from), "r"((int32_t)is_8));
}

/* Nothing if it is not there. (One load for all 8 would write a register that the other one writes, and wait for it.) */
__device__ __forceinline__ void load_4_or_8_if(bool is_there, const void *from, bool is_8, uint32_t *low, uint32_t *high)
{
    asm volatile("{\n\t.reg .pred there, wide;\n\t"
                 "setp.ne.s32 there, %4, 0;\n\t"
                 "setp.ne.and.s32 wide, %3, 0, there;\n\t"
                 "@there ld.global.u32 %0, [%2];\n\t"
                 "@wide ld.global.u32 %1, [%2+4];\n\t}"
                 : "+r"(*low), "+r"(*high)
                 : "l"(from), "r"((int32_t)is_8), "r"((int32_t)is_there));
}

/* From any memory; nothing where there is no such vector. */
__device__ __forceinline__ void load_16_if(bool is_there, const uint4 *from, uint4 *to)
{
    asm volatile("{\n\t.reg .pred there;\n\t"
                 "setp.ne.s32 there, %5, 0;\n\t"
                 "@there ld.v4.u32 {%0, %1, %2, %3}, [%4];\n\t}"
                 : "+r"(to->x), "+r"(to->y), "+r"(to->z), "+r"(to->w)
                 : "l"(from), "r"((int32_t)is_there));
}

/* Parameters of which the threads of a warp want different ones: as from other memory. (The constant bank, where they are,
 * serves one address after another: 32 cycles of the multiprocessor for a warp.) */
__device__ __forceinline__ void load_parameter(const uint64_t *from, uint64_t *to)
{
    asm volatile("ld.u64 %0, [%1];" : "=l"(*to) : "l"(from));
}

/* Two, at a multiple of 16 bytes. */
__device__ __forceinline__ void load_two_parameters(const uint64_t *from, uint64_t *first, uint64_t *second)
{
    asm volatile("ld.v2.u64 {%0, %1}, [%2];" : "=l"(*first), "=l"(*second) : "l"(from));
}

/* Where the compiler finds a use of loads in the instructions that follow them, with no branch in between, it gives them a
 * scoreboard of their own. All others share one, and who wants one of them waits for all, so for the data. So what is loaded
 * is used at once: settle by a product with 1, await by adding a product with 0 to what a branch depends on, before which
 * the use then stays. (The grid is one deep, which the compiler does not know.) */
__device__ __forceinline__ void settle(uint32_t *loaded)
{
    asm volatile("mul.lo.u32 %0, %0, %1;" : "+r"(*loaded) : "r"(gridDim.z));
}

__device__ __forceinline__ void settle(uint64_t *loaded)
{
    uint32_t low = (uint32_t)*loaded;
    settle(&low);
    *loaded = *loaded >> 32 << 32 | low;
}

__device__ __forceinline__ void await(uint32_t loaded, uint32_t *condition)
{
    asm volatile("mad.lo.u32 %0, %1, %2, %0;" : "+r"(*condition) : "r"(loaded), "r"(gridDim.z >> 1));
}

/* Elements of what the call moves. (Not by a volatile pointer: in a loop with such loads the compiler lets the threads of a warp
 * part, see report_if_missing.) */
__device__ __forceinline__ void load_element(const char *from, uint16_t *to)
{
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(*to) : "l"(from) : "memory");
}

__device__ __forceinline__ void load_element(const char *from, float *to)
{
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(*to) : "l"(from) : "memory");
}

__device__ __forceinline__ void load_element(const char *from, double *to)
{
    asm volatile("ld.global.f64 %0, [%1];" : "=d"(*to) : "l"(from) : "memory");
}

/* Vectors of what the call moves: streaming, since what is needed once should not push other things out of L2. (A policy
 * that says evict-first does the same and costs an instruction: 2 to 3 % of calls that have few.) */
__device__ __forceinline__ void load_vector(const char *from, uint4 *to)
{
    asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to->x), "=r"(to->y), "=r"(to->z), "=r"(to->w)
                 : "l"(from)
                 : "memory");
}

__device__ __forceinline__ void store_vector(char *to, const uint4 &from)
{
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(from.x), "r"(from.y), "r"(from.z), "r"(from.w)
                 : "memory");
}

/* ---- conversions ---- */

/* Two elements, the first in the lower half. */
__device__ __forceinline__ uint32_t pack_f16(float first, float second)
{
    uint32_t packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
    return packed;
}

__device__ __forceinline__ uint32_t pack_bf16(float first, float second)
{
    uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
    return packed;
}

#endif
