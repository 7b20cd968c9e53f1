/* The GPUs of this host. A build without CUDA or NCCL has none. */
#ifndef TESTS_MULTIGPU_GPU_H
#define TESTS_MULTIGPU_GPU_H

#include <stddef.h>

enum { GPU_NAME = 64, GPU_ID = 32 };

typedef struct gpu_description {
    char name[GPU_NAME];
    char id[GPU_ID]; /* its PCI bus id, which names the GPU independently of its number in a process */
    int peers;       /* number of other GPUs of this process that it can reach without going through the host */
    int others;      /* number of other GPUs of this process */
} gpu_description;

int gpu_count(void);

/* Makes a GPU current for the calling thread and describes it. Returns NULL, or an error message. */
const char *gpu_open(int index, gpu_description *description);

#endif
