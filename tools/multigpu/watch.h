/* The watch: what ends a run in which a rank dies, hangs or fails, with a line that names the rank.
 *
 * Every process has a thread that does nothing else. Ranks say which phase they are in; all go through the same phases in
 * the same order, so of ranks that wait for each other the one that is behind is at fault. Processes tell rank 0 over TCP,
 * twice a second, how far they are; rank 0 decides. A connection that breaks is a process that died. */
#ifndef TESTS_MULTIGPU_WATCH_H
#define TESTS_MULTIGPU_WATCH_H

#include <stdint.h>

#include "socket.h"

/* Exit status of a run that a rank has ended. */
enum { WATCH_EXIT = 2 };

typedef struct watch watch;

/* Starts the thread, for ranks [first, first + local) of `size` in this process. `limit` seconds in one phase are a hang.
 */
watch *watch_start(int32_t size, int32_t first, int32_t local, double limit);

/* With several processes: rank 0 listens on a port (0 = any), the others connect. watch_connect returns nonzero after
 * watch_fail. */
int watch_listen(watch *w, int port, socket_address *address);
int watch_connect(watch *w, const socket_address *address);

/* A connection between rank 0 and `rank` beside the watch's own: rank 0 waits for it, the other one makes it. -1 = failed.
 */
int watch_data_socket(watch *w, int32_t rank, const socket_address *address);

/* A rank begins a phase that all ranks go through. */
void watch_phase(watch *w, int32_t rank, const char *phase);
/* A rank does something that the others do not. */
void watch_note(watch *w, int32_t rank, const char *what);

/* WATCH_EFFECT: an error that another rank's failure may have caused. */
typedef enum watch_blame { WATCH_EFFECT, WATCH_CAUSE } watch_blame;
/* A rank cannot go on; the line names it. Returns nonzero. The run ends soon after, once it is clear who was first. */
__attribute__((format(printf, 3, 4))) int watch_fail(watch *w, watch_blame blame, const char *format, ...);

/* Whether the run is being ended: nobody should wait for another rank any more. */
int watch_stopped(watch *w);

/* A rank has come to its end, as it should (in a thread: or its thread has ended before that). */
void watch_done(watch *w, int32_t rank);
void watch_thread_ended(watch *w, int32_t rank);

/* Waits until all ranks are done, then ends the thread. Does not return if the run is being ended. */
void watch_finish(watch *w);

#endif
