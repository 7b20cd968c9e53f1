/* A compiled kernel, and the name that trope_kernel_name returns. */
#ifndef TROPE_CORE_CUDA_KERNEL_H
#define TROPE_CORE_CUDA_KERNEL_H

typedef struct trope_cuda_kernel {
    const void *function; /* NULL: there is no such kernel */
    const char *name;
} trope_cuda_kernel;

#endif
