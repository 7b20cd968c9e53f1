/* The watch ends a run in which a rank dies, hangs or fails, and prints a line that names the rank.
 *
 * Every process has a thread that does nothing else. Ranks announce the phase they are in. All ranks go through the same
 * phases in the same order, so if ranks wait for each other, the one that is furthest behind is at fault. Processes report
 * their progress to rank 0 over TCP twice a second, and rank 0 decides. A broken connection means that a process died. */
#ifndef TESTS_MULTIGPU_WATCH_H
#define TESTS_MULTIGPU_WATCH_H

#include <stdint.h>

#include "socket.h"

/* Exit status of a run that was ended because of a rank. */
enum { WATCH_EXIT = 2 };

typedef struct watch watch;

/* Starts the thread for ranks [first, first + local) of `size` in this process. A rank that stays in one phase for more
 * than `limit` seconds counts as hung. */
watch *watch_start(int32_t size, int32_t first, int32_t local, double limit);

/* With several processes, rank 0 listens on a port (0 = any) and the others connect. watch_connect returns nonzero after
 * watch_fail. */
int watch_listen(watch *w, int port, socket_address *address);
int watch_connect(watch *w, const socket_address *address);

/* Opens a second connection between rank 0 and `rank`, for data. Rank 0 waits for it and the other rank makes it. Returns
 * -1 on failure. */
int watch_data_socket(watch *w, int32_t rank, const socket_address *address);

/* Call this when a rank begins a phase that all ranks go through. */
void watch_phase(watch *w, int32_t rank, const char *phase);
/* Call this when a rank does something that the others do not. */
void watch_note(watch *w, int32_t rank, const char *what);

/* WATCH_EFFECT marks an error that another rank's failure may have caused. */
typedef enum watch_blame { WATCH_EFFECT, WATCH_CAUSE } watch_blame;
/* Reports that a rank cannot go on; the message must name the rank. Returns nonzero. The run ends shortly after, once it is
 * clear which rank failed first. */
__attribute__((format(printf, 3, 4))) int watch_fail(watch *w, watch_blame blame, const char *format, ...);

/* Returns whether the run is being ended. If so, do not wait for another rank any more. */
int watch_stopped(watch *w);

/* watch_done: a rank has finished normally. watch_thread_ended: a rank's thread has ended before that. */
void watch_done(watch *w, int32_t rank);
void watch_thread_ended(watch *w, int32_t rank);

/* Waits until all ranks are done, then ends the thread. If the run is being ended, it does not return. */
void watch_finish(watch *w);

#endif
