/* The CPU as a device of the tool. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "device.h"
#include "parallel.h"
#include "seconds.h"
#include "trope/trope.h"

#define HUGE_PAGE ((size_t)2 << 20)

static void touch(void *context, size_t begin, size_t end)
{
    memset((char *)context + begin, 0, end - begin);
}

/* Aligns large memory to huge pages and requests them, so that times do not depend on how the kernel allocates pages. */
static void *allocate(size_t bytes, int32_t threads)
{
    void *memory = NULL;
    const size_t alignment = bytes >= HUGE_PAGE ? HUGE_PAGE : 4096;
    if (posix_memalign(&memory, alignment, bytes ? bytes : 1))
        return NULL;
    if (bytes >= HUGE_PAGE)
        (void)madvise(memory, bytes & ~(HUGE_PAGE - 1), MADV_HUGEPAGE);
    parallel_bytes(touch, memory, bytes, threads);
    return memory;
}

static void release(void *memory, size_t bytes)
{
    (void)bytes;
    free(memory);
}

static int transfer(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
    return 0;
}

static int run(const device_work *work)
{
    return work->run(work->context, 0, NULL);
}

typedef struct copy_job {
    char *to;
    const char *from;
} copy_job;

static void copy_part(void *context, size_t begin, size_t end)
{
    const copy_job *job = context;
    memcpy(job->to + begin, job->from + begin, end - begin);
}

static int copy(int way, void *to, const void *from, size_t bytes, int32_t threads, void *stream)
{
    (void)way;
    (void)stream;
    copy_job job = {to, from};
    parallel_bytes(copy_part, &job, bytes, parallel_useful_threads(threads, 2 * bytes));
    return 0;
}

/* One set is enough, because the cases are larger than the caches. */
static int sets(double bytes)
{
    (void)bytes;
    return 1;
}

static int measure(const device_timing *t)
{
    for (int round = -1; round < t->repeat; round++) {
        for (int w = 0; w < t->count; w++) {
            const double begin = seconds_now();
            if (t->works[w].run(t->works[w].context, 0, NULL))
                return 1;
            if (round >= 0)
                t->seconds[w * t->repeat + round] = seconds_now() - begin;
        }
    }
    return 0;
}

const tool_device device_cpu = {
    .name = "cpu",
    .id = TROPE_DEVICE_CPU,
    .threads = parallel_threads,
    .allocate = allocate,
    .release = release,
    .upload = transfer,
    .download = transfer,
    .run = run,
    .copies = 1,
    .copy_names = {"memcpy"},
    .copy = copy,
    .sets = sets,
    .measure = measure,
};
