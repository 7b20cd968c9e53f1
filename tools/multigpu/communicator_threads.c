/* Ranks that are threads of one process. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "communicator.h"

typedef struct meeting {
    int32_t size, arrived;
    uint64_t round;
    const void **mine;
    pthread_mutex_t lock;
    pthread_cond_t all_here;
} meeting;

typedef struct thread_communicator {
    communicator base;
    meeting *meeting;
} thread_communicator;

/* Waits for all ranks. Checks from time to time whether the run is being ended. */
static int meet(thread_communicator *c)
{
    meeting *m = c->meeting;
    pthread_mutex_lock(&m->lock);
    const uint64_t round = m->round;
    if (++m->arrived == m->size) {
        m->arrived = 0;
        m->round++;
        pthread_cond_broadcast(&m->all_here);
    }
    while (m->round == round && !watch_stopped(c->base.watch)) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec++;
        pthread_cond_timedwait(&m->all_here, &m->lock, &until);
    }
    const int failed = m->round == round;
    pthread_mutex_unlock(&m->lock);
    return failed;
}

static int all_gather(communicator *base, const void *mine, void *all, size_t bytes)
{
    thread_communicator *c = (thread_communicator *)base;
    c->meeting->mine[base->rank] = mine;
    if (meet(c))
        return 1;
    for (int32_t r = 0; r < base->size; r++)
        memcpy((char *)all + (size_t)r * bytes, c->meeting->mine[r], bytes);
    return meet(c); /* until then, no rank may change memory that others read */
}

static void close_nothing(communicator *base)
{
    (void)base;
}

communicator **communicator_threads(watch *w, int32_t size)
{
    communicator **all = malloc((size_t)size * sizeof *all);
    thread_communicator *each = calloc((size_t)size, sizeof *each);
    meeting *m = calloc(1, sizeof *m);
    if (!all || !each || !m || !(m->mine = malloc((size_t)size * sizeof *m->mine))) {
        fprintf(stderr, "trope_multigpu: out of memory\n");
        exit(WATCH_EXIT);
    }
    m->size = size;
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->all_here, NULL);
    for (int32_t r = 0; r < size; r++) {
        each[r] = (thread_communicator){
            .base = {.rank = r, .size = size, .is_thread = 1, .watch = w, .all_gather = all_gather, .close = close_nothing},
            .meeting = m};
        each[r].base.sum = communicator_sum_by_gather;
        each[r].base.ring = communicator_ring_by_gather;
        snprintf(each[r].base.kind, sizeof each[r].base.kind, "threads of one process");
        all[r] = &each[r].base;
    }
    return all;
}

void communicator_threads_free(communicator **all)
{
    thread_communicator *each = (thread_communicator *)all[0];
    free(each->meeting->mine);
    free(each->meeting);
    free(each);
    free(all);
}
