#include "launch.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "command.h"
#include "options.h"

/* MASTER_PORT itself is taken by torchrun's store. */
#define PORT_AFTER_MASTER 1
#define PORT_VARIABLE     "TROPE_MULTIGPU_PORT"

/* ---- detecting the launcher ---- */

static int is_set(const char *name)
{
    const char *value = getenv(name);
    return value && *value;
}

static int number_of(const char *name, int64_t low, int64_t high, int32_t *value)
{
    int64_t number = 0;
    if (parse_integer(name, is_set(name) ? getenv(name) : "", low, high, &number))
        return 1;
    *value = (int32_t)number;
    return 0;
}

/* Environment variables with the number of ranks, for the MPI launchers that set one. */
static const char *const mpi_sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"};
enum { MPI_SIZES = sizeof mpi_sizes / sizeof mpi_sizes[0] };

/* Returns the variable that holds the number of MPI ranks, or NULL if there is none. Slurm sets its variables even without
 * a job step. */
static const char *mpi_size_variable(void)
{
    for (int i = 0; i < MPI_SIZES; i++)
        if (is_set(mpi_sizes[i]))
            return mpi_sizes[i];
    return is_set("SLURM_PROCID") && is_set("SLURM_NTASKS") ? "SLURM_NTASKS" : NULL;
}

/* RANK and WORLD_SIZE show that there are other processes. MASTER_ADDR and MASTER_PORT alone prove nothing, because they
 * may be left over in a shell. */
static int choose_kind(launch *l)
{
    const char *variable = mpi_size_variable();
    int32_t ranks = 1;
    if (variable && number_of(variable, 1, INT32_MAX, &ranks))
        return RESULT_REFUSED;
    const int is_slurm_alone = variable && !strcmp(variable, "SLURM_NTASKS") && ranks == 1;
    if (is_set("PMIX_RANK") || (variable && !is_slurm_alone))
        l->kind = LAUNCH_MPI;
    else
        l->kind = is_set("RANK") || is_set("WORLD_SIZE") ? LAUNCH_TORCHRUN : LAUNCH_PROCESS;
    return 0;
}

static int find_torchrun(launch *l)
{
    static const char *const names[] = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};
    int32_t port;
    for (int i = 0; i < 4; i++)
        if (!is_set(names[i]))
            return complain("%s: is missing from the environment: torchrun sets RANK, WORLD_SIZE, MASTER_ADDR and "
                            "MASTER_PORT together; --launch process ignores them",
                            names[i]);
    if (number_of("WORLD_SIZE", 1, INT32_MAX, &l->size) || number_of("RANK", 0, (int64_t)l->size - 1, &l->rank) ||
        number_of("MASTER_PORT", 1, 65534, &port) || (is_set(PORT_VARIABLE) && number_of(PORT_VARIABLE, 1, 65535, &port)))
        return RESULT_REFUSED;
    if (is_set("LOCAL_RANK") && number_of("LOCAL_RANK", 0, (int64_t)l->size - 1, &l->local_rank))
        return RESULT_REFUSED;
    snprintf(l->text, sizeof l->text, "one process for each rank, by torchrun");
    return 0;
}

#ifdef TROPE_MULTIGPU_HAS_MPI
/* Checks the number of ranks. If MPI does not know the launcher, each process becomes the only rank of a separate run, and
 * each of these runs would pass. */
static int check_size(const launch *l, int is_chosen)
{
    const char *variable = mpi_size_variable();
    int32_t ranks = 1;
    if (!is_chosen && is_set("RANK") && is_set("WORLD_SIZE")) { /* torchrun in a job step of Slurm */
        if (number_of("WORLD_SIZE", 1, INT32_MAX, &ranks))
            return RESULT_REFUSED;
        if (ranks != l->size)
            return l->rank ? RESULT_REFUSED
                           : complain("WORLD_SIZE: %d contradicts MPI, which has %d rank%s: choose one with --launch "
                                      "torchrun or mpi",
                                      ranks, l->size, l->size > 1 ? "s" : "");
    }
    if (variable && number_of(variable, 1, INT32_MAX, &ranks))
        return RESULT_REFUSED;
    if (variable && ranks > 1 && l->size == 1)
        return complain("%s: is %d, but MPI has only one rank: start the program with the MPI that it was built with (srun "
                        "--mpi), or with --launch process",
                        variable, ranks);
    return 0;
}
#endif

static int find_mpi(launch *l, int is_chosen, int *argc, char ***argv)
{
#ifdef TROPE_MULTIGPU_HAS_MPI
    if (communicator_mpi_begin(argc, argv, &l->rank, &l->size))
        return complain("MPI_Init failed");
    if (check_size(l, is_chosen)) {
        communicator_mpi_end();
        return RESULT_REFUSED;
    }
    snprintf(l->text, sizeof l->text, "one process for each rank, by MPI");
    return 0;
#else
    (void)l, (void)is_chosen, (void)argc, (void)argv;
    return complain("this build has no MPI: start the program in one process, or with torchrun");
#endif
}

int launch_find(launch *l, int32_t kind, int32_t ranks, int *argc, char ***argv)
{
    *l = (launch){.kind = kind, .size = ranks, .local_rank = -1};
    if (kind == LAUNCH_AUTO && choose_kind(l))
        return RESULT_REFUSED;
    if (l->kind == LAUNCH_MPI)
        return find_mpi(l, kind != LAUNCH_AUTO, argc, argv);
    if (l->kind == LAUNCH_TORCHRUN)
        return find_torchrun(l);
    snprintf(l->text, sizeof l->text, "one thread for each rank, in one process");
    return 0;
}

void launch_cancel(const launch *l)
{
#ifdef TROPE_MULTIGPU_HAS_MPI
    if (l->kind == LAUNCH_MPI)
        communicator_mpi_end();
#else
    (void)l;
#endif
}

/* ---- threads ---- */

typedef struct rank_thread {
    pthread_t thread;
    watch *watch;
    communicator *host;
    rank_body body;
    void *context;
    int result;
} rank_thread;

static void note_end(void *context)
{
    const rank_thread *t = context;
    watch_thread_ended(t->watch, t->host->rank);
}

static void *run_thread(void *context)
{
    rank_thread *t = context;
    pthread_cleanup_push(note_end, t);
    t->result = t->body(t->context, t->host);
    pthread_cleanup_pop(0);
    return NULL;
}

static int run_threads(const launch *l, double limit, rank_body body, void *context)
{
    rank_thread *threads = calloc((size_t)l->size, sizeof *threads);
    if (!threads)
        return complain("out of memory");
    watch *w = watch_start(l->size, 0, l->size, limit);
    communicator **hosts = communicator_threads(w, l->size);
    int result = 0;
    for (int32_t i = 0; i < l->size; i++) {
        threads[i] = (rank_thread){.watch = w, .host = hosts[i], .body = body, .context = context};
        if (pthread_create(&threads[i].thread, NULL, run_thread, &threads[i]))
            (void)watch_fail(w, WATCH_CAUSE, "no thread could be started for rank %d", i);
    }
    watch_finish(w); /* before joining the threads, because a hung thread cannot be joined */
    for (int32_t i = 0; i < l->size; i++) {
        pthread_join(threads[i].thread, NULL);
        result = threads[i].result > result ? threads[i].result : result;
    }
    communicator_threads_free(hosts);
    free(threads);
    return result;
}

/* ---- processes ---- */

/* Finds rank 0's address. Returns nonzero after watch_fail or a complaint. */
static int find_hub(const launch *l, watch *w, socket_address *hub)
{
    memset(hub, 0, sizeof *hub);
#ifdef TROPE_MULTIGPU_HAS_MPI
    if (l->kind == LAUNCH_MPI)
        return (l->rank == 0 && watch_listen(w, 0, hub)) || communicator_mpi_share_address(hub);
#endif
    int32_t port = 0;
    if (is_set(PORT_VARIABLE) ? number_of(PORT_VARIABLE, 1, 65535, &port) : number_of("MASTER_PORT", 1, 65534, &port))
        return watch_fail(w, WATCH_CAUSE, "rank %d has no port to connect to the others", l->rank);
    port += is_set(PORT_VARIABLE) ? 0 : PORT_AFTER_MASTER;
    if (l->rank == 0)
        return watch_listen(w, port, hub);
    /* This host's own name may not resolve here. */
    char own[SOCKET_HOST] = "";
    (void)gethostname(own, sizeof own - 1);
    snprintf(hub->host, sizeof hub->host, "%s", getenv("MASTER_ADDR"));
    if (!strcmp(hub->host, own))
        snprintf(hub->numbers[0], sizeof hub->numbers[0], "127.0.0.1");
    hub->port = port;
    return 0;
}

static communicator *connect_processes(const launch *l, watch *w)
{
    socket_address hub;
    if (find_hub(l, w, &hub) || (l->rank && watch_connect(w, &hub)))
        return NULL;
#ifdef TROPE_MULTIGPU_HAS_MPI
    if (l->kind == LAUNCH_MPI)
        return communicator_mpi(w);
#endif
    return communicator_tcp(w, l->rank, l->size, &hub);
}

static int run_process(const launch *l, double limit, rank_body body, void *context)
{
    watch *w = watch_start(l->size, l->rank, 1, limit);
    communicator *host = connect_processes(l, w);
    int result = 0;
    if (host)
        result = body(context, host);
    watch_finish(w);
    if (host)
        host->close(host);
#ifdef TROPE_MULTIGPU_HAS_MPI
    if (l->kind == LAUNCH_MPI)
        communicator_mpi_end();
#endif
    return result;
}

int launch_run(const launch *l, double limit, rank_body body, void *context)
{
    return l->kind == LAUNCH_PROCESS ? run_threads(l, limit, body, context) : run_process(l, limit, body, context);
}
