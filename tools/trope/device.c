#include "command.h"
#include "device.h"
#include "trope/trope.h"

const tool_device *device_find(int32_t id)
{
    if (id == TROPE_DEVICE_AUTO || id == TROPE_DEVICE_CPU)
        return &device_cpu;
    complain("--device cuda: this build has no CUDA backend");
    return NULL;
}
