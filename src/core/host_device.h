/* The function qualifiers that let one header compile as C and as CUDA. */
#ifndef TROPE_CORE_HOST_DEVICE_H
#define TROPE_CORE_HOST_DEVICE_H

#ifdef __CUDACC__
#define TROPE_HD static __host__ __device__ __forceinline__
#else
#define TROPE_HD static inline
#endif

#endif
