/* How far a check is, on standard error: on a terminal a line that changes and goes, elsewhere a line now and then. */
#ifndef TOOLS_TROPE_CHECK_PROGRESS_H
#define TOOLS_TROPE_CHECK_PROGRESS_H

typedef struct check_progress {
    int is_quiet, is_terminal;
    int done, all;    /* calls of the library */
    const char *name; /* of the check that is being made */
    double begin;     /* seconds, when the first one was */
    double next;      /* seconds after that, when something is said */
    int is_shown;
} check_progress;

check_progress check_progress_begin(int is_quiet, int calls);
/* One more call begins. */
void check_progress_step(check_progress *progress);
/* Makes room for a line of the result. */
void check_progress_clear(check_progress *progress);

#endif
