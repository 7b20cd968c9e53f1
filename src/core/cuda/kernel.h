/* A compiled kernel and its name, as trope_kernel_name says it. */
#ifndef TROPE_CORE_CUDA_KERNEL_H
#define TROPE_CORE_CUDA_KERNEL_H

typedef struct trope_cuda_kernel {
    const void *function; /* NULL: there is none */
    const char *name;
} trope_cuda_kernel;

#endif
