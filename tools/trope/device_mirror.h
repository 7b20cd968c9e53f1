/* Copies of a call's arrays on the device that runs the call.
 *
 * A part of a mirror is the copy of a host array and is found by the host address. The same address gives the same
 * part, so a tensor that is rotated in place is one array on the device, too. The CPU has a mirror like any other device,
 * so tests without a GPU cover this code. */
#ifndef TOOLS_TROPE_DEVICE_MIRROR_H
#define TOOLS_TROPE_DEVICE_MIRROR_H

#include "device.h"
#include "trope/trope.h"

#define MIRROR_MAX_PARTS 24

typedef struct mirror_part {
    const void *host;
    void *memory;
    size_t bytes;
} mirror_part;

typedef struct device_mirror {
    const tool_device *device;
    int32_t threads; /* of the calls */
    int count;
    mirror_part parts[MIRROR_MAX_PARTS];
} device_mirror;

/* Reserves `bytes` on the device for the array at `host`, without reading it. Returns NULL after a complaint. */
void *mirror_reserve(device_mirror *mirror, const void *host, size_t bytes);
/* The same, and copies the array at `host`. */
void *mirror_upload(device_mirror *mirror, const void *host, size_t bytes);
/* Copies a part back to `host`. Returns nonzero after a complaint. */
int mirror_download(const device_mirror *mirror, void *host);

/* Runs trope_forward or trope_backward and waits for it. If the library refuses the call, *refused is its error message;
 * otherwise it is NULL. Returns nonzero after a complaint about the device. */
int mirror_run(const device_mirror *mirror, trope_args *args, int backward, const char **refused);

void mirror_release(device_mirror *mirror);

#endif
