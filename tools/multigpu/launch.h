/* Starts the ranks of a run: as threads of this process, or as processes that a launcher has started. */
#ifndef TESTS_MULTIGPU_LAUNCH_H
#define TESTS_MULTIGPU_LAUNCH_H

#include "communicator.h"
#include "watch.h"

enum { LAUNCH_AUTO, LAUNCH_PROCESS, LAUNCH_MPI, LAUNCH_TORCHRUN };

typedef struct launch {
    int32_t kind;
    int32_t size, rank; /* rank of this process; 0 for threads */
    int32_t local_rank; /* from the launcher, -1 = none */
    char text[64];      /* description for the header */
} launch;

/* Detects the launcher of this process. `ranks` is the number of threads to start if there is no launcher. Returns nonzero
 * after a complaint. */
int launch_find(launch *l, int32_t kind, int32_t ranks, int *argc, char ***argv);

/* Undoes launch_find if launch_run is not going to be called. */
void launch_cancel(const launch *l);

/* Starts the watch and runs body(context, communicator, rank) for each rank of this process. Returns the largest return
 * value of the bodies. If the run is being ended, it does not return. */
typedef int (*rank_body)(void *context, communicator *host);
int launch_run(const launch *l, double limit, rank_body body, void *context);

#endif
