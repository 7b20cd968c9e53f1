/* Where a command's tensors live. One table of functions for each kind of device: the commands know no other difference. */
#ifndef TOOLS_TROPE_DEVICE_H
#define TOOLS_TROPE_DEVICE_H

#include <stddef.h>
#include <stdint.h>

/* Something to run or to time. It queues its work on the stream (trope_args.stream), on set `set` of several sets of
 * memory, and returns nonzero after a complaint. */
typedef struct device_work {
    int (*run)(void *context, int set, void *stream);
    void *context;
} device_work;

/* What is to be timed: works[0], works[1], ... in turn, `repeat` rounds after one to warm up. */
typedef struct device_timing {
    const device_work *works;
    int count;
    int repeat;
    int sets;        /* of memory, which the runs of a work take in turn */
    double bytes;    /* that a run moves */
    double *seconds; /* the result: what a run of work w took in a round is at w * repeat + round */
} device_timing;

#define DEVICE_MAX_WAYS 8

/* Equal runs of bytes at equal distances, all in multiples of 16: what a call in place touches of a tensor. */
typedef struct device_runs {
    int64_t first; /* bytes before the first one */
    int64_t bytes; /* of a run */
    int64_t pitch; /* bytes from one to the next */
    int64_t count; /* 0 = they are no runs */
} device_runs;

typedef struct tool_device {
    const char *name;
    int32_t id; /* TROPE_DEVICE_... */

    /* Whether the goals that docs/performance.md explains are for this device. */
    int has_goals;
    /* Writes what it is called. NULL where the host's own name will do. */
    void (*describe)(char *text, size_t size);
    /* The threads that `threads` (0 = all) stands for; 1 where there are none. */
    int32_t (*threads)(int32_t threads);
    /* Memory for `bytes`, its pages spread over the threads that will use them. NULL if there is none left. */
    void *(*allocate)(size_t bytes, int32_t threads);
    void (*release)(void *memory, size_t bytes);
    /* Host to device and back. On the CPU the two are the same memory, and a copy. */
    int (*upload)(void *device, const void *host, size_t bytes);
    int (*download)(void *host, const void *device, size_t bytes);
    /* Runs a work once, on set 0, after all uploads, and returns when it is done. */
    int (*run)(const device_work *work);

    /* The copies that the device has, of which the fastest is the yardstick of the bench. `copy` queues number `way`. */
    int copies;
    /* Whether a copy takes as long at any time of a run, so that one is a yardstick for cases before and after it. */
    int is_steady;
    const char *copy_names[DEVICE_MAX_WAYS];
    int (*copy)(int way, void *to, const void *from, size_t bytes, int32_t threads, void *stream);

    /* The ways to read such runs and to write them again where they are, with nothing computed; 0 where there are none.
     * `move` queues number `way`. */
    int moves;
    const char *move_names[DEVICE_MAX_WAYS];
    int (*move)(int way, void *tensor, const device_runs *runs, void *stream);

    /* How many sets of memory of `bytes` each it takes to find none of a set in a cache when its turn comes again. */
    int (*sets)(double bytes);
    int (*measure)(const device_timing *timing);
    /* Writes the seconds that the host took to queue a run, and right after it an empty kernel, `count` times. NULL where a
     * run returns when it is done. */
    int (*measure_host)(const device_work *work, int sets, int count, double *seconds, double *empty_seconds);
    /* Names what happens between the two, for a profiler. NULL where there is none. */
    void (*begin_range)(const char *name);
    void (*end_range)(void);
} tool_device;

extern const tool_device device_cpu;
#ifdef TROPE_TOOL_HAS_CUDA
extern const tool_device device_cuda;
#endif

/* The device of that id, or NULL after a complaint. AUTO is CUDA if this build has it and a device is present, otherwise
 * the CPU, as for the library. isa is what --isa says, which is refused on CUDA. */
const tool_device *device_find(int32_t id, int32_t isa);

#endif
