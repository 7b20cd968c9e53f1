/* Devices that hold a command's tensors. Each kind of device has one table of functions. The commands see no other
 * difference. */
#ifndef TOOLS_TROPE_DEVICE_H
#define TOOLS_TROPE_DEVICE_H

#include <stddef.h>
#include <stdint.h>

/* Work to run or to time. `run` queues it on the stream (trope_args.stream), on set `set` of several sets of memory. It
 * returns nonzero after a complaint. */
typedef struct device_work {
    int (*run)(void *context, int set, void *stream);
    void *context;
} device_work;

/* Works to time: each round times works[0], works[1], ... There is a warm-up round, then `repeat` rounds. */
typedef struct device_timing {
    const device_work *works;
    int count;
    int repeat;
    int sets;        /* sets of memory; the runs of a work cycle through them */
    double bytes;    /* that a run moves */
    double *seconds; /* result: the time of a run of work w in a round is at w * repeat + round */
} device_timing;

#define DEVICE_MAX_WAYS 8

/* Runs of equal length at equal distances, all in multiples of 16 bytes: the parts of a tensor that a call in place
 * touches. */
typedef struct device_runs {
    int64_t first; /* bytes before the first one */
    int64_t bytes; /* of a run */
    int64_t pitch; /* bytes from the start of one run to the next */
    int64_t count; /* 0 = no runs */
} device_runs;

typedef struct tool_device {
    const char *name;
    int32_t id; /* TROPE_DEVICE_... */

    /* Whether the goals in docs/performance.md apply to this device. */
    int has_goals;
    /* Writes the device's name. NULL if the host's name is used. */
    void (*describe)(char *text, size_t size);
    /* Resolves `threads` (0 = all) to a number of threads; 1 if the device has none. */
    int32_t (*threads)(int32_t threads);
    /* Allocates `bytes`, with pages spread over the threads that will use them. Returns NULL if memory is short. */
    void *(*allocate)(size_t bytes, int32_t threads);
    void (*release)(void *memory, size_t bytes);
    /* Copy from host to device and back. On the CPU these copy within the host's memory. */
    int (*upload)(void *device, const void *host, size_t bytes);
    int (*download)(void *host, const void *device, size_t bytes);
    /* Runs a work once, on set 0, after all uploads. Returns when it is done. */
    int (*run)(const device_work *work);

    /* The copies that the device offers. The fastest is the yardstick of the bench. `copy` queues copy number `way`. */
    int copies;
    /* Whether a copy takes equally long throughout a run. If so, it is a yardstick for cases before and after it. */
    int is_steady;
    const char *copy_names[DEVICE_MAX_WAYS];
    int (*copy)(int way, void *to, const void *from, size_t bytes, int32_t threads, void *stream);

    /* The ways to read device_runs and write them back in place without computing anything; 0 if there are none. `move`
     * queues way number `way`. */
    int moves;
    const char *move_names[DEVICE_MAX_WAYS];
    int (*move)(int way, void *tensor, const device_runs *runs, void *stream);

    /* Returns how many sets of memory of `bytes` each are needed so that a set has left the caches before its next turn. */
    int (*sets)(double bytes);
    int (*measure)(const device_timing *timing);
    /* Queues a run and then an empty kernel, `count` times, and writes the seconds that the host took for each. NULL if
     * a run returns only when it is done. */
    int (*measure_host)(const device_work *work, int sets, int count, double *seconds, double *empty_seconds);
    /* Name the work between the two calls, for a profiler. NULL if there is no profiler interface. */
    void (*begin_range)(const char *name);
    void (*end_range)(void);
} tool_device;

extern const tool_device device_cpu;
#ifdef TROPE_TOOL_HAS_CUDA
extern const tool_device device_cuda;
#endif

/* Returns the device with this id, or NULL after a complaint. AUTO chooses CUDA if this build supports it and a device is
 * present, otherwise the CPU, as in the library. isa is the value of --isa; CUDA refuses it. */
const tool_device *device_find(int32_t id, int32_t isa);

#endif
