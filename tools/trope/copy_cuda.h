/* Kernels that only copy: the yardstick of `trope bench --device cuda`, next to cudaMemcpyAsync. Also kernels that read
 * parts of a tensor and write them back in place, and one that does nothing. */
#ifndef TOOLS_TROPE_COPY_CUDA_H
#define TOOLS_TROPE_COPY_CUDA_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#include "device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The numbers in a name are the 16-byte loads that a thread has in flight, and the threads of a block. */
#define COPY_KERNELS      7
#define COPY_KERNEL_NAMES "4x256", "4x512", "8x128", "8x256", "4x512-persistent", "4x256-admitting", "8x128-admitting"

/* Queues copy kernel `way`. Both pointers must be aligned to 16 bytes. */
cudaError_t copy_cuda_launch(int way, void *to, const void *from, size_t bytes, cudaStream_t stream);

/* The move kernels are named in the same way. Loaded data stays in L2 until it is stored or, as in the library's own
 * kernels ("leaving"), is marked evict-first. */
#define MOVE_KERNELS      7
#define MOVE_KERNEL_NAMES "1x128", "1x256", "1x512", "2x256", "4x128", "1x256-leaving", "2x256-leaving"

/* Queues move kernel `way`. The tensor must be aligned to 16 bytes, and all runs together have fewer than 2^31 vectors. */
cudaError_t move_cuda_launch(int way, void *tensor, const device_runs *runs, cudaStream_t stream);

/* Queues a kernel that does nothing. It shows the least host time of a launch. */
cudaError_t empty_cuda_launch(cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
