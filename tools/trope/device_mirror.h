/* What a call reads and writes, on the device where the call runs.
 *
 * A part of a mirror stands for memory of the host, and is found by its address there: the same address is the same part,
 * so a tensor that is rotated in place is one on the device, too. The CPU has its mirror like any other device, which is
 * why the tests that need no GPU see all of this. */
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

/* `bytes` on the device for what is at `host`, which is not read. NULL after a complaint. */
void *mirror_reserve(device_mirror *mirror, const void *host, size_t bytes);
/* The same, with a copy of what is at `host`. */
void *mirror_upload(device_mirror *mirror, const void *host, size_t bytes);
/* Copies a part back to `host`. Returns nonzero after a complaint. */
int mirror_download(const device_mirror *mirror, void *host);

/* Runs trope_forward or trope_backward and waits for it. Where the library refuses the call, *refused says so in its words;
 * otherwise that is NULL, and what is returned is nonzero after a complaint about the device. */
int mirror_run(const device_mirror *mirror, trope_args *args, int backward, const char **refused);

void mirror_release(device_mirror *mirror);

#endif
