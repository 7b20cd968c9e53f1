#include <cuda_runtime_api.h>
#include <stdio.h>

#include "gpu.h"

int gpu_count(void)
{
    int count = 0;
    return cudaGetDeviceCount(&count) ? 0 : count;
}

static void count_peers(int index, gpu_description *description)
{
    const int count = gpu_count();
    for (int other = 0; other < count; other++) {
        int can = 0;
        if (other != index && !cudaDeviceCanAccessPeer(&can, index, other))
            description->peers += can;
    }
    description->others = count - 1;
}

const char *gpu_open(int index, gpu_description *description)
{
    struct cudaDeviceProp properties;
    cudaError_t error = cudaSetDevice(index);
    *description = (gpu_description){.peers = 0};
    if (!error)
        error = cudaFree(NULL); /* initialises the device now, not in the first call */
    if (!error)
        error = cudaGetDeviceProperties(&properties, index);
    if (!error)
        error = cudaDeviceGetPCIBusId(description->id, GPU_ID, index);
    if (error)
        return cudaGetErrorString(error);
    snprintf(description->name, sizeof description->name, "%.63s", properties.name);
    count_peers(index, description);
    return NULL;
}
