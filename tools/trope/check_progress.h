/* Shows the progress of a check on standard error: on a terminal as a line that is overwritten, elsewhere as occasional
 * lines. */
#ifndef TOOLS_TROPE_CHECK_PROGRESS_H
#define TOOLS_TROPE_CHECK_PROGRESS_H

typedef struct check_progress {
    int is_quiet, is_terminal;
    int done, all;    /* calls of the library */
    const char *name; /* of the current check */
    double begin;     /* seconds, at the first call */
    double next;      /* seconds after that, when the next message is due */
    int is_shown;
} check_progress;

check_progress check_progress_begin(int is_quiet, int calls);
/* Counts one more call. */
void check_progress_step(check_progress *progress);
/* Clears the line, so that a result can be printed. */
void check_progress_clear(check_progress *progress);

#endif
