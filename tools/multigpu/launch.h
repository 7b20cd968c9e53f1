/* How the ranks of a run came to be: threads of this process, or processes that a launcher has started. */
#ifndef TESTS_MULTIGPU_LAUNCH_H
#define TESTS_MULTIGPU_LAUNCH_H

#include "communicator.h"
#include "watch.h"

enum { LAUNCH_AUTO, LAUNCH_PROCESS, LAUNCH_MPI, LAUNCH_TORCHRUN };

typedef struct launch {
    int32_t kind;
    int32_t size, rank; /* rank: of this process; 0 for threads */
    int32_t local_rank; /* that the launcher gave, -1 = none */
    char text[64];      /* for the header */
} launch;

/* Finds out who started this process. Returns nonzero after a complaint. `ranks`: threads, if it comes to that. */
int launch_find(launch *l, int32_t kind, int32_t ranks, int *argc, char ***argv);

/* Ends what launch_find has begun, in place of launch_run. */
void launch_cancel(const launch *l);

/* Starts the watch and runs body(context, communicator, rank) for each rank of this process. Returns the greatest of what
 * those return, or does not return if the run is being ended. */
typedef int (*rank_body)(void *context, communicator *host);
int launch_run(const launch *l, double limit, rank_body body, void *context);

#endif
