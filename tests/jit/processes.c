/* Several processes and one cache of cubins: eight that start at once, and some that are killed at any time. */
#define _GNU_SOURCE 1
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "jit/jit_case.h"
#include "support/check.h"

enum { PROCESSES = 8, KERNELS = 6, ROUNDS = 60, SEED = 20260727 };

static void find_all(int32_t first)
{
    for (int i = 0; i < KERNELS; i++) {
        const jit_key key = make_key(1 + (first + i) % KERNELS);
        EXPECT_KERNEL(&key, 0, 13000);
    }
}

static void find_in_order(void)
{
    find_all(0);
    EXPECT_COUNTS(0, KERNELS);
}

/* Waits until the writing end of the pipe is closed, so that all processes begin together. */
static void find_together(int32_t first, int start)
{
    char byte;
    CHECK(read(start, &byte, 1) == 0);
    find_all(first);
    fflush(stdout);
    _exit(check_failed ? 1 : 0);
}

static void processes_that_start_at_once_lose_nothing(void)
{
    int start[2], status;
    pid_t children[PROCESSES];
    CHECK(!pipe(start));
    for (int i = 0; i < PROCESSES; i++) {
        children[i] = fork();
        if (!children[i]) {
            close(start[1]);
            find_together(i, start[0]);
        }
    }
    close(start[1]);
    for (int i = 0; i < PROCESSES; i++)
        CHECK(waitpid(children[i], &status, 0) == children[i] && !status);
    CHECK(count_files("sm_") == KERNELS && count_files("") == KERNELS);
    in_child(find_in_order);
}

static void killed_process_leaves_no_wrong_file(void)
{
    unsigned seed = SEED;
    int status, killed = 0;
    for (int i = 0; i < ROUNDS; i++) {
        const pid_t child = fork();
        if (!child) {
            find_all(i);
            _exit(0);
        }
        usleep((useconds_t)(rand_r(&seed) % 1500));
        kill(child, SIGKILL);
        CHECK(waitpid(child, &status, 0) == child);
        killed += WIFSIGNALED(status);
        if (i % 5 == 0 && cache_file())
            CHECK(!unlink(cache_file()));
    }
    printf("%d of %d processes were killed in time, and left %d unfinished files\n", killed, ROUNDS,
           count_files("unfinished"));
    find_all(0);
    in_child(find_in_order);
}

/* A process writes one file again and again, while this one reads it. */
static void reader_sees_a_whole_file(void)
{
    const jit_key key = make_key(1);
    const trope_cubin_id id = id_of(&key, 90);
    static char code[300000];
    const trope_cubin cubin = {code, sizeof code, 13000};
    int status, missed = 0;
    CHECK(trope_cache_write(&id, &cubin));
    const pid_t child = fork();
    if (!child) {
        int wrong = 0;
        for (int i = 0; i < 1000; i++)
            wrong += !trope_cache_write(&id, &cubin);
        _exit(wrong != 0);
    }
    while (!waitpid(child, &status, WNOHANG)) {
        trope_cubin found = {.code = NULL};
        missed += !trope_cache_read(TROPE_CACHE_OWN, &id, &found);
        free(found.code);
    }
    CHECK_MESSAGE(!status && !missed, "missed %d times", missed);
}

static void unfinished_file_is_harmless(void)
{
    const int opened = open(below("cache/unfinished-0123456789abcdef"), O_WRONLY | O_CREAT, 0600);
    CHECK(opened >= 0 && write(opened, "half", 4) == 4 && !close(opened));
    find_all(0);
    in_child(find_in_order);
    CHECK(count_files("sm_") == KERNELS && count_files("") == KERNELS + 1);
}

int main(void)
{
    RUN(processes_that_start_at_once_lose_nothing);
    RUN(reader_sees_a_whole_file);
    RUN(killed_process_leaves_no_wrong_file);
    RUN(unfinished_file_is_harmless);
    return check_result();
}
