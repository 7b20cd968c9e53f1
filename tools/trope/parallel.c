#include "parallel.h"

#include "core/threads.h"

#define PAGE_BYTES ((size_t)4096)

typedef struct byte_job {
    parallel_body body;
    void *context;
    size_t bytes;
} byte_job;

static size_t begin_of_page(const byte_job *job, int64_t page)
{
    const size_t begin = (size_t)page * PAGE_BYTES;
    return begin < job->bytes ? begin : job->bytes;
}

static void run_pages(const void *context, int64_t begin, int64_t end)
{
    const byte_job *job = context;
    job->body(job->context, begin_of_page(job, begin), begin_of_page(job, end));
}

int32_t parallel_threads(int32_t threads)
{
    return threads > 0 ? threads : trope_default_threads();
}

int32_t parallel_useful_threads(int32_t threads, size_t bytes)
{
    return trope_useful_threads(threads, (int64_t)bytes);
}

void parallel_bytes(parallel_body body, void *context, size_t bytes, int32_t threads)
{
    const byte_job job = {body, context, bytes};
    trope_parallel_for(threads, (int64_t)((bytes + PAGE_BYTES - 1) / PAGE_BYTES), run_pages, &job);
}
