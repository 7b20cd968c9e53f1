/* A program may repeatedly open the library, make calls with threads, and close it. Nothing crashes and memory does not
 * grow. Usage: reload LIBRARY (the program must not be linked with it) */
#include <dlfcn.h>
#include <unistd.h>

#include "support/check.h"
#include "threads/call.h"

enum { WARM = 10, CYCLES = 200 };

static direction find_direction(void *library, const char *name)
{
    direction found = NULL;
    void *symbol = dlsym(library, name);
    memcpy(&found, &symbol, sizeof found);
    return found;
}

static int open_call_and_close(const char *path, threaded_call *c)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!CHECK_MESSAGE(library, "%s", dlerror()))
        return 0;
    const direction forward = find_direction(library, "trope_forward"),
                    backward = find_direction(library, "trope_backward");
    int holds = forward && backward && expect(c, forward, backward);
    for (int threads = 2; threads <= 3 && holds; threads++)
        holds = run_forward(c, forward, threads, c->forward) && run_backward(c, backward, threads, c->backward);
    return !dlclose(library) && holds;
}

/* Measures the bytes of address space and of memory. */
static void measure_memory(long size[2])
{
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%ld %ld", &size[0], &size[1]) == 2);
    if (file)
        fclose(file);
    size[0] *= sysconf(_SC_PAGESIZE);
    size[1] *= sysconf(_SC_PAGESIZE);
}

int main(int argc, char **argv)
{
    long before[2], after[2];
    threaded_call *c = make_call(256);
    if (argc != 2)
        return 2;
    for (int i = 0; i < WARM; i++)
        CHECK(open_call_and_close(argv[1], c));
    const int threads = count_threads();
    measure_memory(before);
    for (int i = 0; i < CYCLES; i++)
        CHECK(open_call_and_close(argv[1], c));
    measure_memory(after);
    CHECK_MESSAGE(count_threads() == threads, "%d threads instead of %d", count_threads(), threads);
#ifndef SANITIZED               /* a sanitizer keeps records of freed memory */
    for (int i = 0; i < 2; i++) /* detects 10 KB a cycle; a worker's stack is larger */
        CHECK_MESSAGE(after[i] - before[i] < CYCLES * 10240L, "%s grew by %ld bytes", i ? "memory" : "address space",
                      after[i] - before[i]);
#endif
    free_call(c);
    return check_result();
}
