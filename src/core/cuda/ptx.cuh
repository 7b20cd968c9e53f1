/* Instructions that CUDA C++ cannot express, one in each function, and barriers that keep the compiler from moving code.
 * The backend has no other assembly. */
#ifndef TROPE_CORE_CUDA_PTX_CUH
#define TROPE_CORE_CUDA_PTX_CUH

#include <cuda_runtime.h>
#include <stdint.h>

/* A parameter that the kernel reads in place, without a copy. */
#define KERNEL_PARAMETER(TYPE) const __grid_constant__ TYPE

/* ---- the kernel before this one, and the next ---- */

/* Waits for the end of the kernel before this one. */
__device__ __forceinline__ void await_previous()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Lets blocks of the next kernel start as soon as all blocks of this kernel have called this function or ended. */
__device__ __forceinline__ void admit_next()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* ---- values that the compiler should not move ---- */

/* Forces the compiler to compute a value here. It would otherwise postpone the computation until the value is used. */
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

/* The index of a thread in its warp. */
__device__ __forceinline__ uint32_t thread_of_warp()
{
    uint32_t lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

/* The index of a thread in its block, and of a block in the grid. They are computed at each use. Otherwise the compiler
 * would compute them once and keep them in registers during the search. */
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

/* These loads read memory that the call does not write, and the compiler does not move them. The compiler would
 * otherwise postpone a load until its value is used, and the thread would wait for one load after another. One function
 * loads several widths, the most common width first, because a branch would separate the load from the code that
 * follows. Most of these loads come before the loads of the data. */

/* Loads 4 or 2 bytes. */
__device__ __forceinline__ void load_4_or_2(const void *from, bool is_2, uint32_t *to)
{
    asm volatile("{\n\t.reg .pred narrow;\n\t"
                 "setp.ne.s32 narrow, %2, 0;\n\t"
                 "@!narrow ld.global.u32 %0, [%1];\n\t"
                 "@narrow ld.global.u16 %0, [%1];\n\t}"
                 : "=r"(*to)
                 : "l"(from), "r"((int32_t)is_2));
}

/* Loads 4 or 8 bytes. The upper 4 of 8 bytes go to `high`. */
__device__ __forceinline__ void load_4_or_8(const void *from, bool is_8, uint32_t *low, uint32_t *high)
{
    asm volatile("{\n\t.reg .pred wide;\n\t"
                 "setp.ne.s32 wide, %3, 0;\n\t"
                 "@!wide ld.global.u32 %0, [%2];\n\t"
                 "@wide ld.global.v2.u32 {%0, %1}, [%2];\n\t}"
                 : "=r"(*low), "=r"(*high)
                 : "l"(from), "r"((int32_t)is_8));
}

/* Loads nothing if is_there is false. (A single load of 8 bytes would write a register that the load of 4 bytes also
 * writes, and would wait for that load.) */
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

/* Loads a vector from any memory space, or nothing if is_there is false. */
__device__ __forceinline__ void load_16_if(bool is_there, const uint4 *from, uint4 *to)
{
    asm volatile("{\n\t.reg .pred there;\n\t"
                 "setp.ne.s32 there, %5, 0;\n\t"
                 "@there ld.v4.u32 {%0, %1, %2, %3}, [%4];\n\t}"
                 : "+r"(to->x), "+r"(to->y), "+r"(to->z), "+r"(to->w)
                 : "l"(from), "r"((int32_t)is_there));
}

/* Loads a vector, or half of one. */
__device__ __forceinline__ void load_16(const char *from, uint32_t *to)
{
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "l"(from));
}

__device__ __forceinline__ void load_8(const char *from, uint32_t *to)
{
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "l"(from));
}

/* Loads a parameter like ordinary memory. This is faster if each thread of a warp needs a different parameter. (The
 * constant bank, which holds the parameters, serves one address after another, and so takes 32 cycles of the
 * multiprocessor for a warp.) */
__device__ __forceinline__ void load_parameter(const uint64_t *from, uint64_t *to)
{
    asm volatile("ld.u64 %0, [%1];" : "=l"(*to) : "l"(from));
}

/* Loads two parameters, which begin at a multiple of 16 bytes. */
__device__ __forceinline__ void load_two_parameters(const uint64_t *from, uint64_t *first, uint64_t *second)
{
    asm volatile("ld.v2.u64 {%0, %1}, [%2];" : "=l"(*first), "=l"(*second) : "l"(from));
}

/* The compiler gives a load its own scoreboard if it finds a use of the value in the following instructions, with no
 * branch in between. All other loads share one scoreboard: a thread that needs one of them waits for all of them,
 * including the data. So every loaded value gets an early use. settle() multiplies the loaded value by 1. await()
 * multiplies it by 0 and adds the product to a value that a branch depends on, so that the use stays before that branch.
 * (The compiler does not know that the depth of the grid is 1.) */
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

/* Loads of single elements of the operands. (They use no volatile pointer: in a loop with volatile loads, the compiler
 * lets the threads of a warp diverge. See report() in tokens.cuh.) */
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

/* Starts a copy of 16 bytes from global to shared memory. The thread does not wait for it. */
__device__ __forceinline__ void copy_ahead(const char *from, uint4 *to)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from)
                 : "memory");
}

/* Waits for the thread's own copies. */
__device__ __forceinline__ void await_copies()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Loads and stores of vectors of the operands. They are streaming, because data that is used once should not push other
 * data out of L2. (An evict-first policy has the same effect but costs an instruction: 2 to 3 % in calls that have few
 * instructions.) */
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

/* Both functions put the first element into the lower half. */
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

/* ---- arithmetic of two elements ---- */

/* Each result is rounded once. A sum of bf16 is a * 1 + b, and a product of bf16 is a * b + -0, because every device with
 * bf16 has the fused operation. */
__device__ __forceinline__ uint32_t multiply_two_f16(uint32_t a, uint32_t b)
{
    uint32_t product;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
}

__device__ __forceinline__ uint32_t add_two_f16(uint32_t a, uint32_t b)
{
    uint32_t sum;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
    return sum;
}

__device__ __forceinline__ uint32_t multiply_two_bf16(uint32_t a, uint32_t b)
{
    uint32_t product;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000u));
    return product;
}

__device__ __forceinline__ uint32_t add_two_bf16(uint32_t a, uint32_t b)
{
    uint32_t sum;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(0x3f803f80u), "r"(b));
    return sum;
}

#endif
