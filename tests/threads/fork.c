/* A child of fork() can make calls like its parent, with its own workers: after a call with threads, while another thread
 * of the parent is in a call, and in a child of the child. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/check.h"
#include "threads/call.h"

enum { CHILD_SECONDS = 60, CHILD_FAILED = 3 };

static atomic_int stops;

/* Makes all calls of a child. Returns 0 if all results were right. */
static int make_calls(threaded_call *few, threaded_call *many)
{
    static const int counts[] = {1, 2, 8, 0};
    for (int i = 0; i < 4; i++) {
        if (!run_forward(few, trope_forward, counts[i], few->forward) ||
            !run_backward(few, trope_backward, counts[i], few->backward) ||
            !run_forward(many, trope_forward, counts[i], many->forward) ||
            !run_backward(many, trope_backward, counts[i], many->backward))
            return CHILD_FAILED;
    }
    return 0;
}

/* Forks a chain of `generations` children. Each makes its calls, the last generation first. Returns the status from
 * waitpid(). */
static int fork_and_call(threaded_call *few, threaded_call *many, int generations)
{
    const pid_t child = fork();
    if (child == 0) {
        alarm(CHILD_SECONDS); /* a signal ends a child that hangs */
        const int before = count_threads();
        int status = generations > 1 ? fork_and_call(few, many, generations - 1) : 0;
        if (!status)
            status = make_calls(few, many);
        const int made = count_threads() - before;
        _exit(status ? CHILD_FAILED : made >= 7 ? 0 : CHILD_FAILED + 1);
    }
    int status = -1;
    return child > 0 && waitpid(child, &status, 0) == child ? status : -1;
}

static void check_children(threaded_call *few, threaded_call *many, int children, const char *when)
{
    for (int i = 0; i < children; i++) {
        const int status = fork_and_call(few, many, 1 + i % 2);
        CHECK_MESSAGE(status == 0, "%s, child %d: signal %d, exit %d", when, i, WIFSIGNALED(status) ? WTERMSIG(status) : 0,
                      WIFEXITED(status) ? WEXITSTATUS(status) : 0);
    }
}

static void *call_without_end(void *context)
{
    intptr_t wrong = 0;
    while (!atomic_load(&stops))
        wrong += !run_forward(context, trope_forward, 8, ((threaded_call *)context)->forward);
    return (void *)wrong;
}

int main(void)
{
    threaded_call *few = make_call(FEW), *many = make_call(MANY), *other = make_call(MANY);
    pthread_t caller;
    void *wrong;
    CHECK(expect(few, trope_forward, trope_backward) && expect(many, trope_forward, trope_backward));
    CHECK(expect(other, trope_forward, trope_backward));
    check_children(few, many, 2, "before the first threads");
    CHECK(run_forward(many, trope_forward, 8, many->forward));
    check_children(few, many, 4, "after a call");
    CHECK(!pthread_create(&caller, NULL, call_without_end, other));
    check_children(few, many, 40, "during a call");
    CHECK(make_calls(few, many) == 0);
    atomic_store(&stops, 1);
    CHECK(!pthread_join(caller, &wrong) && !wrong);
    free_call(few);
    free_call(many);
    free_call(other);
    return check_result();
}
