#include "api/log.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/args.h"
#include "api/call_text.h"
#include "core/element.h"
#include "core/error.h"
#include "core/require.h"

/* A kind of calls, and its call with the most tokens. */
typedef struct logged_kind {
    struct logged_kind *next;
    uint64_t count;
    int64_t tokens;
    char *key, *text;
    char kernel[64];
} logged_kind;

enum { LOG_UNKNOWN, LOG_OFF, LOG_ON };
static _Atomic int log_state = LOG_UNKNOWN;
static int prints_at_exit;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static logged_kind *kinds, **last = &kinds; /* in the order of their first calls */

static void lock(void)
{
    pthread_mutex_lock(&mutex);
}

static void unlock(void)
{
    pthread_mutex_unlock(&mutex);
}

/* A child of fork() has the record of its parent. */
static void read_environment(void)
{
    const char *wanted = getenv("TROPE_LOG");
    const int is_on = wanted && !strcmp(wanted, "calls");
    if (wanted && *wanted && !is_on)
        fprintf(stderr, "trope: TROPE_LOG (%s) has no effect: the only value is calls\n", wanted);
    prints_at_exit = is_on;
    pthread_atfork(lock, unlock, unlock);
    int expected = LOG_UNKNOWN;
    atomic_compare_exchange_strong(&log_state, &expected, is_on ? LOG_ON : LOG_OFF);
}

int trope_is_logging(void)
{
    int state = atomic_load_explicit(&log_state, memory_order_relaxed);
    if (state == LOG_UNKNOWN) {
        pthread_once(&once, read_environment);
        state = atomic_load_explicit(&log_state, memory_order_relaxed);
    }
    return state == LOG_ON;
}

/* ---- areas of memory ---- */

/* The bytes [first, end) of a tensor. */
typedef struct tensor_span {
    uintptr_t first, end;
    int operand, role;
} tensor_span;

static int list_spans(const trope_call *call, int backward, tensor_span *spans)
{
    const trope_args *a = &call->args;
    const int64_t size = trope_element_size(a->dtype);
    int count = 0;
    for (int i = 0; i < a->operand_count; i++) {
        for (int role = 0; role < TROPE_TENSOR_ROLES; role++) {
            const trope_tensor t = trope_tensor_of(a, i, (trope_tensor_role)role, backward);
            int64_t low = 0, high = 0;
            for (int d = 0; d < TROPE_MAX_DIMS; d++) {
                const int64_t reach = t.size[d] > 1 ? (t.size[d] - 1) * t.stride[d] : 0;
                *(reach < 0 ? &low : &high) += reach;
            }
            if (t.base && a->tokens > 0)
                spans[count++] = (tensor_span){(uintptr_t)t.base + (uintptr_t)(low * size),
                                               (uintptr_t)t.base + (uintptr_t)((high + 1) * size), i, role};
        }
    }
    return count;
}

static int compare_spans(const void *a, const void *b)
{
    const uintptr_t x = ((const tensor_span *)a)->first, y = ((const tensor_span *)b)->first;
    return (x > y) - (x < y);
}

/* Gives the areas numbers in the order in which the call names them, so that calls of one kind have equal texts. */
static void number_areas(trope_places *places)
{
    int32_t number[TROPE_MAX_OPERANDS * TROPE_TENSOR_ROLES], count = 0;
    memset(number, -1, sizeof number);
    for (int i = 0; i < TROPE_MAX_OPERANDS * TROPE_TENSOR_ROLES; i++) {
        int32_t *area = &places->area[i / TROPE_TENSOR_ROLES][i % TROPE_TENSOR_ROLES];
        if (*area >= 0 && number[*area] < 0)
            number[*area] = count++;
        *area = *area < 0 ? -1 : number[*area];
    }
}

/* Tensors that overlap or interleave lie in one area. It begins at a multiple of 16 bytes, so offsets also tell how tensors
 * are aligned. */
static void find_places(const trope_call *call, int backward, trope_places *places)
{
    tensor_span spans[TROPE_MAX_OPERANDS * TROPE_TENSOR_ROLES];
    const int count = list_spans(call, backward, spans);
    uintptr_t begin = 0, end = 0;
    int32_t areas = 0;
    memset(places->area, -1, sizeof places->area);
    memset(places->offset, 0, sizeof places->offset);
    qsort(spans, (size_t)count, sizeof spans[0], compare_spans);
    for (int i = 0; i < count; i++) {
        const tensor_span *s = &spans[i];
        const trope_tensor t = trope_tensor_of(&call->args, s->operand, (trope_tensor_role)s->role, backward);
        if (!areas || s->first >= end) {
            areas++;
            begin = s->first / 16 * 16;
        }
        end = s->end > end ? s->end : end;
        places->area[s->operand][s->role] = areas - 1;
        places->offset[s->operand][s->role] = (int64_t)((uintptr_t)t.base - begin);
    }
    number_areas(places);
}

/* ---- kinds ---- */

/* Scratch memory, which is too large for the stack of a call. */
typedef struct log_scratch {
    trope_call call, expanded;
    trope_places places;
    char key[TROPE_CALL_TEXT_BYTES], text[TROPE_CALL_TEXT_BYTES];
} log_scratch;

static logged_kind *find_kind(const char *key, const char *kernel)
{
    logged_kind *kind = kinds;
    while (kind && (strcmp(kind->key, key) || strcmp(kind->kernel, kernel)))
        kind = kind->next;
    if (kind)
        return kind;
    kind = calloc(1, sizeof *kind);
    if (!kind || !(kind->key = strdup(key))) {
        free(kind);
        return NULL;
    }
    snprintf(kind->kernel, sizeof kind->kernel, "%s", kernel);
    *last = kind;
    last = &kind->next;
    return kind;
}

/* Counts the call. If memory runs out, the call is not recorded. */
static void count_call(const log_scratch *s, const char *kernel)
{
    const int64_t tokens = s->call.args.batch * s->call.args.tokens;
    logged_kind *kind = find_kind(s->key, kernel);
    if (!kind)
        return;
    kind->count++;
    if (kind->text && tokens <= kind->tokens)
        return;
    char *text = strdup(s->text);
    if (text) {
        free(kind->text);
        kind->text = text;
        kind->tokens = tokens;
    }
}

void trope_log_call(const trope_args *args, int backward, const char *kernel)
{
    log_scratch *s = malloc(sizeof *s);
    if (!s || trope_copy_call("trope_log_calls", args, &s->call) ||
        trope_copy_call("trope_log_calls", args, &s->expanded)) {
        free(s);
        return;
    }
    trope_expand_layouts(&s->expanded, backward);
    find_places(&s->expanded, backward, &s->places);
    trope_format_call(&s->call, &s->places, backward, 1, s->key, sizeof s->key);
    trope_format_call(&s->call, &s->places, backward, 0, s->text, sizeof s->text);
    lock();
    count_call(s, kernel);
    unlock();
    free(s);
}

/* ---- the public functions ---- */

trope_status trope_log_calls(int32_t on)
{
    const char *function = "trope_log_calls";
    REQUIRE(on == 0 || on == 1, TROPE_ERROR_ARGUMENT, "on (%d) must be 0 or 1", on);
    (void)trope_is_logging();
    atomic_store(&log_state, on ? LOG_ON : LOG_OFF);
    return TROPE_OK;
}

/* Appends a line, of which only the part that fits is written. Returns the bytes used so far, also by what did not fit. */
static size_t append_kind(const logged_kind *kind, char *text, size_t size, size_t used)
{
    const size_t at = used < size ? used : size;
    return used + (size_t)snprintf(size ? text + at : NULL, size - at, "%llu %s %s\n", (unsigned long long)kind->count,
                                   kind->kernel, kind->text ? kind->text : "");
}

size_t trope_logged_calls(char *text, size_t size)
{
    size_t used = 0;
    if (!text)
        size = 0;
    if (size)
        *text = 0;
    lock();
    for (const logged_kind *kind = kinds; kind; kind = kind->next)
        used = append_kind(kind, text, size, used);
    unlock();
    return used + 1;
}

__attribute__((destructor)) static void print_at_exit(void)
{
    if (!prints_at_exit)
        return;
    const size_t size = trope_logged_calls(NULL, 0);
    char *text = malloc(size);
    if (text) {
        trope_logged_calls(text, size);
        fprintf(stderr, "trope: the calls: count, kernel, text (trope bench --call 'TEXT' times one)\n%s", text);
    }
    free(text);
}
