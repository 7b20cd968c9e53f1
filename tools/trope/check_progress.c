#include "check_progress.h"

#include <stdio.h>
#include <unistd.h>

#include "seconds.h"

#define FIRST 1.0 /* seconds before the first message */
#define OFTEN 0.2 /* seconds between messages on a terminal; elsewhere the interval grows with the elapsed time */

check_progress check_progress_begin(int is_quiet, int calls)
{
    return (check_progress){
        .is_quiet = is_quiet, .is_terminal = isatty(STDERR_FILENO), .all = calls, .begin = seconds_now(), .next = FIRST};
}

void check_progress_step(check_progress *progress)
{
    const double passed = seconds_now() - progress->begin;
    progress->done++;
    if (progress->is_quiet || passed < progress->next)
        return;
    progress->next = progress->is_terminal ? passed + OFTEN : 2 * passed;
    progress->is_shown = progress->is_terminal;
    fprintf(stderr, progress->is_terminal ? "\rcall %d of %d, %.0f s: %-30s" : "trope check: call %d of %d, %.0f s: %s\n",
            progress->done, progress->all, passed, progress->name);
}

void check_progress_clear(check_progress *progress)
{
    if (progress->is_shown)
        fprintf(stderr, "\r%60s\r", "");
    progress->is_shown = 0;
}
