/* Where a command's tensors live. One table of functions for each kind of device: the commands know no other difference. */
#ifndef TOOLS_TROPE_DEVICE_H
#define TOOLS_TROPE_DEVICE_H

#include <stddef.h>
#include <stdint.h>

/* Something to time. It queues its work on the stream (trope_args.stream) and returns nonzero after a complaint. */
typedef struct device_work {
    int (*run)(void *context, void *stream);
    void *context;
} device_work;

typedef struct tool_device {
    const char *name;
    int32_t id; /* TROPE_DEVICE_... */

    /* The threads that `threads` (0 = all) stands for; 1 where there are none. */
    int32_t (*threads)(int32_t threads);
    /* Memory for `bytes`, its pages spread over the threads that will use them. NULL if there is none left. */
    void *(*allocate)(size_t bytes, int32_t threads);
    void (*release)(void *memory, size_t bytes);
    /* Host to device and back. On the CPU the two are the same memory, and a copy. */
    int (*upload)(void *device, const void *host, size_t bytes);
    int (*download)(void *host, const void *device, size_t bytes);
    /* Queues the fastest copy that the device has, the yardstick of the bench. */
    int (*copy)(void *to, const void *from, size_t bytes, int32_t threads, void *stream);
    /* Runs works[0], works[1], ... in turn, `repeat` rounds after one to warm up, and writes the seconds that each one
     * took: seconds[w * repeat + round]. */
    int (*measure)(const device_work *works, int count, int repeat, double *seconds);
} tool_device;

extern const tool_device device_cpu;

/* The device of that id (AUTO is the CPU, unless this build has another), or NULL after a complaint. */
const tool_device *device_find(int32_t id);

#endif
