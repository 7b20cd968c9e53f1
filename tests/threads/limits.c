/* The default number of threads is OMP_NUM_THREADS, up to a limit, or else the number of processors of the process. A child
 * process determines the number again. Small calls use no workers, and workers sleep between calls. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support/check.h"
#include "threads/call.h"

static int default_threads(void)
{
    int threads = -1;
    const char *line = strstr(trope_info(), "threads: ");
    return line && sscanf(line, "threads: %d", &threads) == 1 ? threads : -1;
}

static int count_processors(void)
{
    cpu_set_t set;
    CHECK(!sched_getaffinity(0, sizeof set, &set));
    return CPU_COUNT(&set);
}

static void use_one_processor(void)
{
    cpu_set_t set, one;
    int first = 0;
    CPU_ZERO(&one);
    CHECK(!sched_getaffinity(0, sizeof set, &set));
    while (!CPU_ISSET(first, &set))
        first++;
    CPU_SET(first, &one);
    CHECK(!sched_setaffinity(0, sizeof one, &one));
}

/* Returns the default number of threads in a child with this OMP_NUM_THREADS (NULL: unset), on one processor if
 * `is_bound`. */
static int default_of_child(const char *setting, int is_bound)
{
    const pid_t child = fork();
    int status = -1;
    if (child == 0) {
        unsetenv("OMP_NUM_THREADS");
        if (setting)
            setenv("OMP_NUM_THREADS", setting, 1);
        if (is_bound)
            use_one_processor();
        const int threads = default_threads();
        setenv("OMP_NUM_THREADS", "1", 1); /* the library has read the variable already and must not read it again */
        _exit(default_threads() == threads ? threads : 255);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void check_default(const char *setting, int is_bound, int expected)
{
    const int threads = default_of_child(setting, is_bound);
    CHECK_MESSAGE(threads == expected, "OMP_NUM_THREADS=%s%s: %d threads instead of %d", setting ? setting : "(unset)",
                  is_bound ? " on one processor" : "", threads, expected);
}

static void check_defaults(void)
{
    const int processors = count_processors();
    CHECK(default_threads() > 0); /* the parent now knows its number, which its children must not reuse */
    check_default(NULL, 0, processors);
    check_default(NULL, 1, 1);
    check_default("3", 0, 3);
    check_default("5,2", 1, 5);
    check_default("many", 0, processors);
    check_default("0", 0, processors);
    check_default("-4", 0, processors);
    check_default("100000", 1, 8);
}

static double processor_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void check_sleep(void)
{
    const struct timespec pause = {0, 300000000};
    const double before = processor_seconds();
    nanosleep(&pause, NULL);
    const double taken = processor_seconds() - before;
    CHECK_MESSAGE(taken < 0.1, "idle workers used %g s of processor time in 0.3 s", taken);
}

static void *stay(void *context)
{
    for (;;)
        pause();
    return context;
}

static void check_workers(void)
{
    pthread_t first; /* makes a sanitizer start its own thread: both must exist before threads are counted */
    CHECK(!pthread_create(&first, NULL, stay, NULL) && !pthread_detach(first));
    threaded_call *few = make_call(FEW), *many = make_call(MANY);
    CHECK(expect(few, trope_forward, trope_backward) && expect(many, trope_forward, trope_backward));
    const int before = count_threads();
    for (int i = 0; i < 100; i++) {
        CHECK(run_forward(few, trope_forward, 8, few->forward));
        CHECK(run_backward(few, trope_backward, 8, few->backward));
    }
    CHECK_MESSAGE(count_threads() == before, "%d workers for a call of %d tokens", count_threads() - before, FEW);
    for (int threads = 2; threads <= 8; threads += 3) {
        CHECK(run_forward(many, trope_forward, threads, many->forward));
        CHECK_MESSAGE(count_threads() - before == threads - 1, "%d threads: %d workers", threads, count_threads() - before);
        CHECK(run_backward(many, trope_backward, threads, many->backward));
        CHECK_MESSAGE(count_threads() - before == threads - 1, "%d threads: %d workers", threads, count_threads() - before);
    }
    check_sleep();
    free_call(few);
    free_call(many);
}

int main(void)
{
    check_defaults();
    check_workers();
    return check_result();
}
