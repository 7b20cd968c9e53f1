#include "device.h"

#include <string.h>

#include "command.h"
#include "trope/trope.h"

const tool_device *device_find(int32_t id, int32_t isa)
{
    const int is_present = !strstr(trope_info(), "devices: none\n");
#ifdef TROPE_TOOL_HAS_CUDA
    if (id != TROPE_DEVICE_CPU && is_present && isa) {
        complain("--isa: has no effect on CUDA, only with --device cpu");
        return NULL;
    }
    if (id != TROPE_DEVICE_CPU && is_present)
        return &device_cuda;
    if (id == TROPE_DEVICE_CUDA)
        complain("--device cuda: no CUDA device was found");
#else
    (void)is_present, (void)isa;
    if (id == TROPE_DEVICE_CUDA)
        complain("--device cuda: this build has no CUDA backend");
#endif
    return id == TROPE_DEVICE_CUDA ? NULL : &device_cpu;
}
