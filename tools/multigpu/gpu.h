/* The GPUs of this host. Without CUDA or NCCL in the build there are none. */
#ifndef TESTS_MULTIGPU_GPU_H
#define TESTS_MULTIGPU_GPU_H

#include <stddef.h>

enum { GPU_NAME = 64, GPU_ID = 32 };

typedef struct gpu_description {
    char name[GPU_NAME];
    char id[GPU_ID]; /* its place on the PCI bus: which GPU this is, whatever number it has in a process */
    int peers;       /* other GPUs of this process that it can reach without the host */
    int others;      /* of so many */
} gpu_description;

int gpu_count(void);

/* Makes a GPU the calling thread's and describes it. Returns NULL, or what is wrong. */
const char *gpu_open(int index, gpu_description *description);

#endif
