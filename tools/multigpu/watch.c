#include "watch.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "seconds.h"

#define TICK      100 /* milliseconds */
#define HEARTBEAT 0.5 /* seconds */
/* Wait this long before judging: an error is often the effect of another one that is reported later. */
#define GRACE 1.0
/* Seconds that ranks have to leave their communicators once the run is being ended. */
#define FAREWELL 1.0

enum { TEXT = 320, PHASE = 48 };

typedef enum member_state { MEMBER_ABSENT, MEMBER_RUNNING, MEMBER_DONE } member_state;

typedef enum record_kind {
    RECORD_HELLO,  /* to rank 0: the identity of a new connection */
    RECORD_DATA,   /* to rank 0: the same, for a data connection */
    RECORD_REPORT, /* to rank 0: progress; from rank 0: it is alive */
    RECORD_FAIL,   /* to rank 0 */
    RECORD_DONE,   /* to rank 0 */
    RECORD_STOP,   /* from rank 0: the run is being ended */
    RECORD_BYE     /* from rank 0: all are done */
} record_kind;

typedef struct record {
    int32_t kind, rank, pid, priority;
    uint64_t steps, notes;
    char phase[PHASE];
    char text[TEXT]; /* message of a failure, or host name */
} record;

typedef struct member {
    member_state state;
    int32_t pid, fd, data_fd;
    uint64_t steps, notes;
    double changed, heard;
    char phase[PHASE], host[SOCKET_HOST];
    record partial; /* received part of the next record */
    size_t have;
} member;

struct watch {
    int32_t size, first, local;
    double limit, started;
    int listener;
    member *members; /* all ranks; only rank 0, or a single process, keeps them up to date */
    member hub;      /* rank 0, as seen by the others */
    int priority;    /* of the known failure, 0 = none */
    double decide_at;
    char failure[TEXT];
    int told;           /* rank 0 knows of the failure */
    atomic_int stopped; /* the run is being ended */
    int finishing, closed;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    struct pollfd *polled;
};

enum { PRIORITY_EFFECT = 1, PRIORITY_HANG = 2, PRIORITY_CAUSE = 3 };

static volatile sig_atomic_t terminated;

static void on_terminate(int number)
{
    terminated = number;
}

static int is_one_process(const watch *w)
{
    return w->local == w->size;
}

static int decides(const watch *w)
{
    return w->first == 0;
}

/* Call the functions below, up to the thread's loop, with the lock held. */

static void keep_failure(watch *w, int priority, const char *text)
{
    if (!w->priority)
        w->decide_at = seconds_now() + GRACE;
    if (priority > w->priority) {
        w->priority = priority;
        snprintf(w->failure, sizeof w->failure, "%s", text);
    }
}

static void member_name(const watch *w, int32_t rank, char *name, size_t size)
{
    const member *m = &w->members[rank];
    if (is_one_process(w))
        snprintf(name, size, "rank %d", rank);
    else
        snprintf(name, size, "rank %d (%s, process %d)", rank, m->host[0] ? m->host : "unknown host", m->pid);
}

static void member_died(watch *w, int32_t rank)
{
    char name[128], text[TEXT];
    member_name(w, rank, name, sizeof name);
    snprintf(text, sizeof text, "%s died; it was last seen in phase '%s'", name, w->members[rank].phase);
    keep_failure(w, PRIORITY_CAUSE, text);
}

/* ---- records ---- */

static void fill_record(const watch *w, record *r, record_kind kind, int32_t rank)
{
    const member *m = &w->members[rank];
    memset(r, 0, sizeof *r);
    r->kind = kind;
    r->rank = rank;
    r->pid = (int32_t)getpid();
    r->steps = m->steps;
    r->notes = m->notes;
    memcpy(r->phase, m->phase, sizeof r->phase);
}

static void tell_members(watch *w, record_kind kind, const char *text)
{
    record r;
    fill_record(w, &r, kind, 0);
    snprintf(r.text, sizeof r.text, "%s", text);
    for (int32_t i = w->local; i < w->size; i++)
        if (w->members[i].fd >= 0)
            (void)socket_send(w->members[i].fd, &r, sizeof r);
}

static void hear_member(watch *w, member *m, const record *r)
{
    m->heard = seconds_now();
    if (r->steps != m->steps || r->notes != m->notes)
        m->changed = m->heard;
    m->steps = r->steps;
    m->notes = r->notes;
    memcpy(m->phase, r->phase, sizeof m->phase);
    if (r->kind == RECORD_FAIL)
        keep_failure(w, r->priority, r->text);
    if (r->kind == RECORD_DONE)
        m->state = MEMBER_DONE;
}

static void hear_hub(watch *w, const record *r)
{
    w->hub.heard = seconds_now();
    if (r->kind == RECORD_STOP) {
        keep_failure(w, PRIORITY_CAUSE, r->text);
        w->told = 1;
        atomic_store(&w->stopped, 1);
    }
    if (r->kind == RECORD_BYE)
        w->hub.state = MEMBER_DONE;
}

static void connection_lost(watch *w, member *m)
{
    close(m->fd);
    m->fd = -1;
    if (m == &w->hub && m->state != MEMBER_DONE)
        keep_failure(w, PRIORITY_CAUSE, "rank 0 died");
    else if (m != &w->hub && m->state != MEMBER_DONE)
        member_died(w, (int32_t)(m - w->members));
}

/* Reads the available data, record by record. */
static void read_records(watch *w, member *m)
{
    while (m->fd >= 0) {
        const ssize_t n = recv(m->fd, (char *)&m->partial + m->have, sizeof m->partial - m->have, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
            return;
        if (n <= 0) {
            connection_lost(w, m);
            return;
        }
        m->have += (size_t)n;
        if (m->have < sizeof m->partial)
            continue;
        m->have = 0;
        if (m == &w->hub)
            hear_hub(w, &m->partial);
        else
            hear_member(w, m, &m->partial);
    }
}

static void greet(watch *w, int fd, const record *r)
{
    if (r->rank < w->local || r->rank >= w->size || (r->kind != RECORD_HELLO && r->kind != RECORD_DATA)) {
        close(fd);
        return;
    }
    member *m = &w->members[r->rank];
    if (r->kind == RECORD_DATA) {
        m->data_fd = fd;
        pthread_cond_broadcast(&w->changed);
        return;
    }
    m->fd = fd;
    m->state = MEMBER_RUNNING;
    m->pid = r->pid;
    m->changed = m->heard = seconds_now();
    snprintf(m->host, sizeof m->host, "%.*s", SOCKET_HOST - 1, r->text);
}

static void accept_one(watch *w)
{
    record r;
    const int fd = accept(w->listener, NULL, NULL);
    const struct timeval limit = {.tv_sec = 1};
    if (fd < 0)
        return;
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (recv(fd, &r, sizeof r, MSG_WAITALL) != (ssize_t)sizeof r) { /* not a rank of this run */
        close(fd);
        return;
    }
    greet(w, fd, &r);
}

/* ---- judging ---- */

static void judge_silence(watch *w, double now)
{
    const double silence = w->limit / 2 > 10 ? w->limit / 2 : 10;
    char name[128], text[TEXT];
    if (!decides(w)) {
        if (w->hub.fd >= 0 && now - w->hub.heard > silence)
            keep_failure(w, PRIORITY_CAUSE, "rank 0 does not respond: it was stopped, or its host is gone");
        return;
    }
    for (int32_t i = w->local; i < w->size && w->listener >= 0; i++) {
        const member *m = &w->members[i];
        member_name(w, i, name, sizeof name);
        if (m->state == MEMBER_ABSENT && now - w->started > w->limit) {
            snprintf(text, sizeof text, "rank %d has not connected within %.0f s", i, w->limit);
            keep_failure(w, PRIORITY_CAUSE, text);
        } else if (m->state == MEMBER_RUNNING && now - m->heard > silence) {
            snprintf(text, sizeof text, "%s does not respond: it was stopped, or its host is gone", name);
            keep_failure(w, PRIORITY_CAUSE, text);
        }
    }
}

/* Returns the rank that is furthest behind; of several, the one that has been in its phase longest. -1 = all are done. */
static int32_t find_last(const watch *w, int32_t begin, int32_t end)
{
    int32_t last = -1;
    for (int32_t i = begin; i < end; i++) {
        const member *m = &w->members[i], *l = last < 0 ? NULL : &w->members[last];
        if (m->state == MEMBER_RUNNING && (!l || m->steps < l->steps || (m->steps == l->steps && m->changed < l->changed)))
            last = i;
    }
    return last;
}

static void judge_progress(watch *w, double now)
{
    const int32_t last = decides(w) ? find_last(w, 0, w->size) : -1;
    char name[128], text[TEXT];
    if (last < 0 || now - w->members[last].changed <= w->limit)
        return;
    const member *m = &w->members[last];
    int32_t ahead = 0, first = last;
    for (int32_t i = 0; i < w->size; i++) {
        ahead += w->members[i].steps > m->steps;
        first = w->members[i].steps > w->members[first].steps ? i : first;
    }
    member_name(w, last, name, sizeof name);
    if (ahead)
        snprintf(text, sizeof text, "%s hangs: it is in phase '%s' for %.0f s, while %d other%s, in '%s'", name, m->phase,
                 now - m->changed, ahead, ahead == 1 ? " waits for it" : "s wait for it", w->members[first].phase);
    else
        snprintf(text, sizeof text, "%s hangs: it is in phase '%s' for %.0f s, like all others", name, m->phase,
                 now - m->changed);
    keep_failure(w, PRIORITY_HANG, text);
}

/* ---- the end ---- */

static void tell_hub(watch *w)
{
    record r;
    fill_record(w, &r, RECORD_FAIL, w->first);
    r.priority = w->priority;
    memcpy(r.text, w->failure, sizeof r.text);
    w->told = 1;
    if (w->hub.fd >= 0)
        (void)socket_send(w->hub.fd, &r, sizeof r);
}

/* The other processes report to rank 0 and wait for its decision. If rank 0 is gone, each process ends by itself. */
static int is_decided(watch *w, double now)
{
    if (terminated)
        keep_failure(w, PRIORITY_EFFECT, "ended by a signal from outside");
    if (!w->priority)
        return 0;
    const int asks = !decides(w) && w->hub.fd >= 0;
    if (asks && !w->told)
        tell_hub(w);
    if (atomic_load(&w->stopped) || (!asks && w->priority == PRIORITY_CAUSE))
        return 1;
    return now >= w->decide_at + (asks ? 3 * GRACE : 0);
}

__attribute__((noreturn)) static void end_run(watch *w)
{
    const int heard_it = !decides(w) && atomic_load(&w->stopped);
    atomic_store(&w->stopped, 1);
    if (decides(w))
        tell_members(w, RECORD_STOP, w->failure);
    if (!heard_it) {
        fprintf(stderr, "trope_multigpu: %s\n", w->failure);
        fflush(stderr);
    }
    for (const double end = seconds_now() + FAREWELL; seconds_now() < end;) {
        struct pollfd late = {.fd = w->listener, .events = POLLIN};
        pthread_mutex_unlock(&w->lock);
        const int has_come = poll(&late, 1, TICK) > 0;
        pthread_mutex_lock(&w->lock);
        if (has_come && decides(w)) { /* tell ranks that connect late, too */
            accept_one(w);
            tell_members(w, RECORD_STOP, w->failure);
        }
    }
    fflush(stdout);
    _exit(WATCH_EXIT);
}

/* ---- the thread ---- */

static void heartbeat(watch *w)
{
    record r;
    if (decides(w)) {
        if (!is_one_process(w))
            tell_members(w, RECORD_REPORT, "");
        return;
    }
    fill_record(w, &r, RECORD_REPORT, w->first);
    if (w->hub.fd >= 0 && w->members[w->first].state == MEMBER_RUNNING)
        (void)socket_send(w->hub.fd, &r, sizeof r);
}

/* Fills `polled` with the connections to read from. In rank 0's process, entry i + 1 belongs to rank i. In the others,
 * entry 1 belongs to rank 0. */
static int list_connections(watch *w)
{
    int count = 0;
    w->polled[count++] = (struct pollfd){.fd = w->listener, .events = POLLIN};
    if (!decides(w))
        w->polled[count++] = (struct pollfd){.fd = w->hub.fd, .events = POLLIN};
    for (int32_t i = 0; decides(w) && i < w->size; i++)
        w->polled[count++] = (struct pollfd){.fd = w->members[i].fd, .events = POLLIN};
    return count;
}

static void read_connections(watch *w, int count)
{
    if (w->polled[0].revents)
        accept_one(w);
    for (int i = 1; i < count; i++)
        if (w->polled[i].revents)
            read_records(w, decides(w) ? &w->members[i - 1] : &w->hub);
}

static void *keep_watch(void *context)
{
    watch *w = context;
    double beat = 0;
    pthread_mutex_lock(&w->lock);
    while (!w->closed) {
        const int count = list_connections(w);
        pthread_mutex_unlock(&w->lock);
        const int ready = poll(w->polled, (nfds_t)count, TICK);
        pthread_mutex_lock(&w->lock);
        const double now = seconds_now();
        if (ready > 0)
            read_connections(w, count);
        if (now - beat >= HEARTBEAT) {
            heartbeat(w);
            beat = now;
        }
        judge_silence(w, now);
        judge_progress(w, now);
        if (is_decided(w, now))
            end_run(w);
        if (w->finishing)
            pthread_cond_broadcast(&w->changed);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

watch *watch_start(int32_t size, int32_t first, int32_t local, double limit)
{
    watch *w = calloc(1, sizeof *w);
    struct sigaction action = {.sa_handler = on_terminate};
    if (!w || !(w->members = calloc((size_t)size, sizeof *w->members)) ||
        !(w->polled = calloc((size_t)size + 2, sizeof *w->polled))) {
        fprintf(stderr, "trope_multigpu: out of memory\n");
        exit(WATCH_EXIT);
    }
    w->size = size;
    w->first = first;
    w->local = local;
    w->limit = limit;
    w->started = seconds_now();
    w->listener = w->hub.fd = -1;
    for (int32_t i = 0; i < size; i++) {
        w->members[i].fd = w->members[i].data_fd = -1;
        snprintf(w->members[i].phase, PHASE, "start");
    }
    for (int32_t i = first; i < first + local; i++) {
        w->members[i].state = MEMBER_RUNNING;
        w->members[i].changed = w->started;
        w->members[i].pid = (int32_t)getpid();
        (void)gethostname(w->members[i].host, SOCKET_HOST - 1);
    }
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    /* A launcher sends SIGTERM to the other processes as soon as one dies. First print the line that names the rank. */
    (void)sigaction(SIGTERM, &action, NULL);
    pthread_create(&w->thread, NULL, keep_watch, w);
    return w;
}

int watch_listen(watch *w, int port, socket_address *address)
{
    const int fd = socket_listen(port, address);
    if (fd < 0)
        return watch_fail(w, WATCH_CAUSE, "rank 0 cannot listen on port %d: %s", port, strerror(errno));
    pthread_mutex_lock(&w->lock);
    w->listener = fd;
    pthread_mutex_unlock(&w->lock);
    return 0;
}

static int connect_as(watch *w, const socket_address *address, record_kind kind)
{
    record r;
    const int fd = socket_connect(address, w->limit);
    pthread_mutex_lock(&w->lock);
    fill_record(w, &r, kind, w->first);
    pthread_mutex_unlock(&w->lock);
    (void)gethostname(r.text, SOCKET_HOST - 1);
    if (fd >= 0 && !socket_send(fd, &r, sizeof r))
        return fd;
    (void)watch_fail(w, WATCH_CAUSE, "rank %d cannot reach rank 0 at %s port %d: %s", w->first, address->host,
                     address->port, strerror(errno));
    return -1;
}

int watch_connect(watch *w, const socket_address *address)
{
    const int fd = connect_as(w, address, RECORD_HELLO);
    pthread_mutex_lock(&w->lock);
    w->hub.fd = fd;
    w->hub.heard = seconds_now();
    pthread_mutex_unlock(&w->lock);
    return fd < 0;
}

int watch_data_socket(watch *w, int32_t rank, const socket_address *address)
{
    if (!decides(w))
        return connect_as(w, address, RECORD_DATA);
    pthread_mutex_lock(&w->lock);
    while (w->members[rank].data_fd < 0 && !atomic_load(&w->stopped))
        pthread_cond_wait(&w->changed, &w->lock);
    const int fd = w->members[rank].data_fd;
    pthread_mutex_unlock(&w->lock);
    return fd;
}

static void enter(watch *w, int32_t rank, const char *phase, uint64_t steps)
{
    pthread_mutex_lock(&w->lock);
    member *m = &w->members[rank];
    m->steps += steps;
    m->notes++;
    m->changed = seconds_now();
    snprintf(m->phase, sizeof m->phase, "%s", phase);
    pthread_mutex_unlock(&w->lock);
}

void watch_phase(watch *w, int32_t rank, const char *phase)
{
    enter(w, rank, phase, 1);
}

void watch_note(watch *w, int32_t rank, const char *what)
{
    enter(w, rank, what, 0);
}

int watch_fail(watch *w, watch_blame blame, const char *format, ...)
{
    char text[TEXT];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    pthread_mutex_lock(&w->lock);
    keep_failure(w, blame == WATCH_CAUSE ? PRIORITY_CAUSE : PRIORITY_EFFECT, text);
    pthread_mutex_unlock(&w->lock);
    return 1;
}

int watch_stopped(watch *w)
{
    return atomic_load(&w->stopped);
}

void watch_done(watch *w, int32_t rank)
{
    pthread_mutex_lock(&w->lock);
    w->members[rank].state = MEMBER_DONE;
    pthread_mutex_unlock(&w->lock);
}

void watch_thread_ended(watch *w, int32_t rank)
{
    pthread_mutex_lock(&w->lock);
    if (w->members[rank].state != MEMBER_DONE && !w->priority)
        member_died(w, rank);
    pthread_mutex_unlock(&w->lock);
}

static int all_done(const watch *w)
{
    for (int32_t i = 0; i < w->size; i++)
        if (w->members[i].state != MEMBER_DONE)
            return 0;
    return 1;
}

void watch_finish(watch *w)
{
    record r;
    pthread_mutex_lock(&w->lock);
    w->finishing = 1;
    fill_record(w, &r, RECORD_DONE, w->first);
    if (!decides(w) && w->hub.fd >= 0 && w->members[w->first].state == MEMBER_DONE)
        (void)socket_send(w->hub.fd, &r, sizeof r);
    while (decides(w) ? !all_done(w) : w->hub.state != MEMBER_DONE)
        pthread_cond_wait(&w->changed, &w->lock);
    if (decides(w))
        tell_members(w, RECORD_BYE, "");
    w->closed = 1;
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    for (int32_t i = 0; i < w->size; i++)
        if (w->members[i].fd >= 0)
            close(w->members[i].fd);
    if (w->listener >= 0)
        close(w->listener);
    if (w->hub.fd >= 0)
        close(w->hub.fd);
    free(w->members);
    free(w->polled);
    free(w);
}
