/* Processes that can only communicate over TCP. All data goes through rank 0, so this suits the start of a run and few
 * ranks. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "communicator.h"

typedef struct tcp_communicator {
    communicator base;
    int *fd; /* rank 0: the connection to each rank; other ranks: fd[0] is the connection to rank 0 */
} tcp_communicator;

static int lost(communicator *base, int32_t rank)
{
    return watch_fail(base->watch, WATCH_EFFECT, "rank %d has lost its connection to rank %d", base->rank, rank);
}

/* Waits for something to read, or until the run is being ended. */
static int has_come(communicator *base, int fd)
{
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    while (!watch_stopped(base->watch))
        if (poll(&wait, 1, 200) > 0)
            return 1;
    return 0;
}

static int serve(tcp_communicator *c, char *all, size_t bytes)
{
    const int32_t size = c->base.size;
    for (int32_t r = 1; r < size; r++)
        if (!has_come(&c->base, c->fd[r]) || socket_receive(c->fd[r], all + (size_t)r * bytes, bytes))
            return lost(&c->base, r);
    for (int32_t r = 1; r < size; r++)
        if (socket_send(c->fd[r], all, (size_t)size * bytes))
            return lost(&c->base, r);
    return 0;
}

static int all_gather(communicator *base, const void *mine, void *all, size_t bytes)
{
    tcp_communicator *c = (tcp_communicator *)base;
    if (bytes == 0)
        return 0;
    if (base->rank == 0) {
        memcpy(all, mine, bytes);
        return serve(c, all, bytes);
    }
    if (socket_send(c->fd[0], mine, bytes) || !has_come(base, c->fd[0]) ||
        socket_receive(c->fd[0], all, (size_t)base->size * bytes))
        return lost(base, 0);
    return 0;
}

static void close_all(communicator *base)
{
    tcp_communicator *c = (tcp_communicator *)base;
    for (int32_t r = 0; r < base->size; r++)
        if (c->fd[r] >= 0)
            close(c->fd[r]);
    free(c->fd);
    free(c);
}

communicator *communicator_tcp(watch *w, int32_t rank, int32_t size, const socket_address *hub)
{
    tcp_communicator *c = calloc(1, sizeof *c);
    int failed = !c || !(c->fd = malloc((size_t)size * sizeof *c->fd));
    if (failed) {
        (void)watch_fail(w, WATCH_CAUSE, "rank %d is out of memory", rank);
        free(c);
        return NULL;
    }
    c->base = (communicator){.rank = rank, .size = size, .watch = w, .all_gather = all_gather, .close = close_all};
    c->base.sum = communicator_sum_by_gather;
    c->base.ring = communicator_ring_by_gather;
    snprintf(c->base.kind, sizeof c->base.kind, "TCP through rank 0");
    for (int32_t r = 0; r < size; r++)
        c->fd[r] = -1;
    for (int32_t r = rank ? 0 : 1; r < (rank ? 1 : size) && !failed; r++)
        failed = (c->fd[r] = watch_data_socket(w, rank ? rank : r, hub)) < 0;
    if (!failed)
        return &c->base;
    close_all(&c->base);
    return NULL;
}
