#define _GNU_SOURCE 1
#include "core/threads.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/environment.h"

#define MOST_THREADS 512
/* A thread is worth waking if it has at least this many bytes to move, which takes 13 us. On a virtual machine with 2
 * cores, waking a thread costs its caller 14 us, and the thread runs 30 to 57 us later. */
#define BYTES_PER_THREAD ((int64_t)512 << 10)

/* A waiting thread spins for about as long as waking it would take, and then sleeps. With this, calls of 4 MB on 2 threads
 * take 52 us instead of 128 us if they follow each other at once, and 110 us instead of 153 us with work between them. */
#define SPIN_NANOSECONDS 50000

/* The states of worker i, which runs range i of a call if it takes that range in time. The caller runs range 0, so there is
 * no worker 0. */
enum { PARKED, OFFERED, TAKEN };
typedef _Atomic uint32_t futex;

/* All zero at the start, and also in a child of fork(), which has no workers. */
static struct {
    atomic_int offered, most; /* the threads of a call with threads = 0, and the limit of every call; 0 = not read yet */
    atomic_int is_taken;      /* a call uses the workers; only this call changes the fields below */
    atomic_int processor;     /* the processor on which the caller of that call began */
    int workers_made, threads;
    int64_t count;
    trope_range_body body;
    const void *context;
    futex unfinished; /* the number of ranges that the caller may have to wait for */
    futex states[MOST_THREADS];
} pool;

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void forget_workers(void)
{
    memset(&pool, 0, sizeof pool);
}

static void find_limits(void)
{
    cpu_set_t set;
    if (atomic_load(&pool.most))
        return;
    const int sees_forks = !pthread_atfork(NULL, NULL, forget_workers); /* a child registers it again, without harm */
    const char *setting = getenv("OMP_NUM_THREADS");
    const int64_t wanted = setting ? strtol(setting, NULL, 10) : 0;
    const int64_t processors =
        sched_getaffinity(getpid(), sizeof set, &set) ? sysconf(_SC_NPROCESSORS_ONLN) : CPU_COUNT(&set);
    const int64_t most = !sees_forks ? 1 : processors > 2 ? smaller(4 * processors, MOST_THREADS) : 8;
    atomic_store(&pool.offered, (int)smaller(wanted > 0 ? wanted : processors, most));
    atomic_store(&pool.most, (int)most); /* stored last; threads that are here at the same time find the same values */
}

int trope_default_threads(void)
{
    find_limits();
    return atomic_load(&pool.offered);
}

int trope_useful_threads(int threads, double bytes)
{
    const int offered = bytes < BYTES_PER_THREAD ? 1 : threads > 0 ? threads : trope_default_threads();
    return bytes < (double)offered * BYTES_PER_THREAD ? 1 + (int)(bytes / BYTES_PER_THREAD) : offered;
}

static int64_t nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Returns when *word is no longer `value`. It may also return earlier. */
static void wait_while(futex *word, uint32_t value)
{
    const int64_t end = nanoseconds() + SPIN_NANOSECONDS;
    while (nanoseconds() < end)
        if (atomic_load(word) != value)
            return;
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void wake(futex *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static void run(trope_range_body body, const void *context, int64_t begin, int64_t end)
{
    const trope_environment saved = trope_set_default_environment();
    if (begin < end)
        body(context, begin, end);
    trope_restore_environment(saved);
}

static void run_range(int i)
{
    const int64_t share = pool.count / pool.threads, rest = pool.count % pool.threads;
    const int64_t begin = i * share + smaller(i, rest);
    run(pool.body, pool.context, begin, begin + share + (i < rest));
}

static int change_state(futex *state, uint32_t from, uint32_t to)
{
    return atomic_compare_exchange_strong(state, &from, to);
}

static void *work(void *argument)
{
    futex *state = argument;
    pthread_setname_np(pthread_self(), "trope");
    for (;;) {
        wait_while(state, PARKED);
        if (sched_getcpu() == atomic_load(&pool.processor)) /* the caller runs first: d_freqs takes 490 us, not 554 us */
            sched_yield();
        if (!change_state(state, OFFERED, TAKEN))
            continue;
        run_range((int)(state - pool.states));
        atomic_store(state, PARKED);
        if (atomic_fetch_sub(&pool.unfinished, 1) == 1)
            wake(&pool.unfinished);
    }
    return NULL;
}

/* Blocks all signals in the worker, because they are meant for the program's own threads. Signals of faults stay unblocked:
 * only the thread at fault can get them, and a blocked one would end the process without the program's handler. */
static int make_worker(futex *state)
{
    static const int faults[] = {SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
    sigset_t blocked, before;
    pthread_attr_t attributes;
    pthread_t thread;
    if (pthread_attr_init(&attributes))
        return 0;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, (size_t)512 << 10); /* a body needs 60 KB */
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        sigdelset(&blocked, faults[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    const int is_made = !pthread_create(&thread, &attributes, work, state);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return is_made;
}

/* On a busy machine, a worker can wait for milliseconds before it runs. So the caller, after its own range, takes back the
 * ranges that are still OFFERED. */
static void run_ranges(void)
{
    atomic_store(&pool.processor, sched_getcpu());
    atomic_store(&pool.unfinished, (uint32_t)pool.threads - 1);
    for (int i = 1; i < pool.threads; i++) {
        atomic_store(&pool.states[i], OFFERED);
        wake(&pool.states[i]);
    }
    run_range(0);
    for (int i = 1; i < pool.threads; i++) {
        if (change_state(&pool.states[i], OFFERED, PARKED)) {
            run_range(i);
            atomic_fetch_sub(&pool.unfinished, 1);
        }
    }
    for (uint32_t left; (left = atomic_load(&pool.unfinished));)
        wait_while(&pool.unfinished, left);
}

void trope_parallel_for(int threads, int64_t count, trope_range_body body, const void *context)
{
    if (threads != 1) {
        find_limits();
        threads = (int)smaller(threads > 0 ? smaller(threads, pool.most) : pool.offered, count);
    }
    if (threads <= 1 || atomic_exchange(&pool.is_taken, 1)) {
        run(body, context, 0, count);
        return;
    }
    while (pool.workers_made < threads - 1 && make_worker(&pool.states[pool.workers_made + 1]))
        pool.workers_made++;
    pool.threads = (int)smaller(threads, pool.workers_made + 1);
    pool.count = count;
    pool.body = body;
    pool.context = context;
    run_ranges();
    atomic_store(&pool.is_taken, 0);
}
