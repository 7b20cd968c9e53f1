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
__device__ __forceinline__ uint32_t found_here(uint32_t value)
{
    asm volatile("" : "+r"(value));
    return value;
}

__device__ __forceinline__ uint64_t found_here(uint64_t value)
{
    asm volatile("" : "+l"(value));
    return value;
}

template <typename T> __device__ __forceinline__ T *found_here(T *address)
{
    asm volatile("" : "+l"(address));
    return address;
}

/* ---- what L2 should keep ---- */

/* What is needed once should not push other things out of L2. */
__device__ __forceinline__ uint64_t evict_first()
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* For what is soon written with another policy: it stays there until then. */
__device__ __forceinline__ uint64_t evict_last()
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ __forceinline__ uint64_t evict_normal()
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* ---- loads and stores ---- */

/* Loads of what the call does not write that stay where they are: the compiler would put off those whose values are wanted
 * later, and they would be waited for one after another. They are not loads of what is constant (ld.global.nc): the kernel
 * before this one may write it while this one runs already, and then they find what a prefetch has brought before. */
__device__ __forceinline__ void load_at_once(const uint4 *from, uint64_t policy, uint4 *to)
{
    asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(to->x), "=r"(to->y), "=r"(to->z), "=r"(to->w)
                 : "l"(from), "l"(policy));
}

__device__ __forceinline__ void load_at_once(const uint2 *from, uint64_t policy, uint2 *to)
{
    asm volatile("ld.global.L2::cache_hint.v2.u32 {%0, %1}, [%2], %3;" : "=r"(to->x), "=r"(to->y) : "l"(from), "l"(policy));
}

__device__ __forceinline__ void load_at_once(const uint32_t *from, uint64_t policy, uint32_t *to)
{
    asm volatile("ld.global.L2::cache_hint.u32 %0, [%1], %2;" : "=r"(*to) : "l"(from), "l"(policy));
}

__device__ __forceinline__ int32_t load_at_once(const int32_t *from)
{
    int32_t value;
    asm volatile("ld.global.s32 %0, [%1];" : "=r"(value) : "l"(from));
    return value;
}

/* The same of what the call may write in place. */
__device__ __forceinline__ void load_vector(const char *from, uint64_t policy, uint4 *to)
{
    asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(to->x), "=r"(to->y), "=r"(to->z), "=r"(to->w)
                 : "l"(from), "l"(policy)
                 : "memory");
}

__device__ __forceinline__ void store_vector(char *to, uint64_t policy, const uint4 &from)
{
    asm volatile("st.global.L2::cache_hint.v4.u32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(to), "r"(from.x), "r"(from.y),
                 "r"(from.z), "r"(from.w), "l"(policy)
                 : "memory");
}

/* Into L2, which is no load: it need not wait for the kernel before. */
__device__ __forceinline__ void prefetch(const void *from)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
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

/* ---- shared memory ---- */

/* Addresses there. */
typedef uint32_t shared_pointer;

__device__ __forceinline__ shared_pointer shared_address(const void *p)
{
    return (shared_pointer)__cvta_generic_to_shared(p);
}

/* 16 bytes, to be waited for by the thread that asks for them. */
__device__ __forceinline__ void copy_vector_later(shared_pointer to, const char *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ void await_vectors()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* ---- the copy engine, from compute capability 9.0 on ---- */

/* True in one thread of the warp, the same each time. Told like this, the compiler knows that there is only one. */
__device__ __forceinline__ bool is_elected()
{
    uint32_t elected;
    asm volatile("{\n"
                 ".reg .pred is_elected;\n"
                 "elect.sync _|is_elected, 0xffffffff;\n"
                 "selp.u32 %0, 1, 0, is_elected;\n"
                 "}"
                 : "=r"(elected));
    return elected;
}

/* A barrier that one thread arrives at, with the bytes that there will be, and that is passed when these have come. */
__device__ __forceinline__ void make_barrier(shared_pointer barrier)
{
    asm volatile("mbarrier.init.shared.b64 [%0], 1;\n"
                 "fence.mbarrier_init.release.cluster;" ::"r"(barrier)
                 : "memory");
}

__device__ __forceinline__ void arrive_at_barrier(shared_pointer barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

/* Waits until the barrier has been passed for the first time, the second, ... with parity 0, 1, 0, ... */
__device__ __forceinline__ void await_barrier(shared_pointer barrier, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred arrived;\n"
                 "again: mbarrier.try_wait.parity.shared.b64 arrived, [%0], %1;\n"
                 "@!arrived bra again;\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* Contiguous bytes, in multiples of 16. */
__device__ __forceinline__ void load_bulk(shared_pointer to, const char *from, uint32_t bytes, shared_pointer barrier,
                                          uint64_t policy)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
            to),
        "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
        : "memory");
}

__device__ __forceinline__ void store_bulk(char *to, shared_pointer from, uint32_t bytes, uint64_t policy)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;" ::"l"(to), "r"(from),
                 "r"(bytes), "l"(policy)
                 : "memory");
}

/* What this thread has written to shared memory comes before what the copy engine then does with it. */
__device__ __forceinline__ void publish_shared()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Waits until what this thread has stored in bulk has been read. */
__device__ __forceinline__ void await_bulk_reads()
{
    asm volatile("cp.async.bulk.commit_group;\n"
                 "cp.async.bulk.wait_group.read 0;" ::
                     : "memory");
}

#endif
