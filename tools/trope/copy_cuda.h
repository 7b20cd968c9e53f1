/* Kernels that copy, with nothing else to do: the yardstick of `trope bench --device cuda`, beside cudaMemcpyAsync. And
 * kernels that read parts of a tensor and write them again where they are. And one that does nothing. */
#ifndef TOOLS_TROPE_COPY_CUDA_H
#define TOOLS_TROPE_COPY_CUDA_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#include "device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Named by the 16-byte loads that a thread has in flight and the threads of a block. */
#define COPY_KERNELS      7
#define COPY_KERNEL_NAMES "4x256", "4x512", "8x128", "8x256", "4x512-persistent", "4x256-admitting", "8x128-admitting"

/* Queues kernel `way` of them. Both pointers are aligned to 16 bytes. */
cudaError_t copy_cuda_launch(int way, void *to, const void *from, size_t bytes, cudaStream_t stream);

/* Named in the same manner. What they load stays in L2 until it is stored or, as in the library's own kernels, leaves it
 * first. */
#define MOVE_KERNELS      7
#define MOVE_KERNEL_NAMES "1x128", "1x256", "1x512", "2x256", "4x128", "1x256-leaving", "2x256-leaving"

/* Queues kernel `way` of them. The tensor is aligned to 16 bytes; there are less than 2^31 of them in all runs. */
cudaError_t move_cuda_launch(int way, void *tensor, const device_runs *runs, cudaStream_t stream);

/* Queues a kernel that does nothing: what a launch takes of the host at least. */
cudaError_t empty_cuda_launch(cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
