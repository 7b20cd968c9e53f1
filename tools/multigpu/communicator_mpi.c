/* Ranks that MPI has started. No call blocks inside MPI, because the watch must be able to stop a rank. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "communicator.h"
#include "trope/trope.h"

#define PATIENT_POLLS 1000 /* after this many polls, sleep between polls */

int communicator_mpi_begin(int *argc, char ***argv, int32_t *rank, int32_t *size)
{
    int provided, r, s;
    if (MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided))
        return 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &r);
    MPI_Comm_size(MPI_COMM_WORLD, &s);
    *rank = r;
    *size = s;
    return 0;
}

int communicator_mpi_share_address(socket_address *address)
{
    return MPI_Bcast(address, (int)sizeof *address, MPI_BYTE, 0, MPI_COMM_WORLD);
}

static int finish(communicator *c, int error, MPI_Request *request)
{
    int done = 0;
    for (int64_t polls = 0; !error && !done; polls++) {
        if (watch_stopped(c->watch))
            return 1;
        error = MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (polls > PATIENT_POLLS) {
            const struct timespec pause = {.tv_nsec = 50000};
            (void)nanosleep(&pause, NULL);
        }
    }
    return error ? watch_fail(c->watch, WATCH_EFFECT, "rank %d: MPI error %d", c->rank, error) : 0;
}

/* MPI counts in int, so large messages are sent as a number of 16-byte pieces. */
static int all_gather(communicator *c, const void *mine, void *all, size_t bytes)
{
    MPI_Request request;
    MPI_Datatype piece;
    MPI_Type_contiguous((int)(bytes % 16 ? 1 : 16), MPI_BYTE, &piece);
    MPI_Type_commit(&piece);
    const int count = (int)(bytes % 16 ? bytes : bytes / 16);
    const int failed = finish(c, MPI_Iallgather(mine, count, piece, all, count, piece, MPI_COMM_WORLD, &request), &request);
    MPI_Type_free(&piece);
    return failed;
}

static int sum(communicator *c, void *values, int64_t count, int32_t dtype)
{
    MPI_Request request;
    const MPI_Datatype type = dtype == TROPE_F64 ? MPI_DOUBLE : MPI_FLOAT;
    return finish(c, MPI_Iallreduce(MPI_IN_PLACE, values, (int)count, type, MPI_SUM, MPI_COMM_WORLD, &request), &request);
}

static int ring(communicator *c, const ring_step *step)
{
    MPI_Request in, out;
    const int count = (int)step->bytes;
    if (MPI_Irecv(step->receive, count, MPI_BYTE, step->from, 0, MPI_COMM_WORLD, &in))
        return watch_fail(c->watch, WATCH_EFFECT, "rank %d: MPI_Irecv failed", c->rank);
    return finish(c, MPI_Isend(step->send, count, MPI_BYTE, step->to, 0, MPI_COMM_WORLD, &out), &out) ||
           finish(c, MPI_SUCCESS, &in);
}

static void close_nothing(communicator *c)
{
    free(c);
}

communicator *communicator_mpi(watch *w)
{
    char library[MPI_MAX_LIBRARY_VERSION_STRING];
    int length, rank, size;
    communicator *c = calloc(1, sizeof *c);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (!c) {
        (void)watch_fail(w, WATCH_CAUSE, "rank %d is out of memory", rank);
        return NULL;
    }
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    *c = (communicator){.rank = rank, .size = size, .watch = w, .all_gather = all_gather, .sum = sum, .ring = ring};
    c->close = close_nothing;
    MPI_Get_library_version(library, &length);
    library[strcspn(library, ",\n")] = 0;
    snprintf(c->kind, sizeof c->kind, "MPI (%.80s)", library);
    return c;
}

void communicator_mpi_end(void)
{
    MPI_Finalize();
}
