#include "varlen/positions.h"

#include <string.h>

#include "api/args.h"
#include "api/error.h"
#include "core/threads.h"
#include "varlen/row.h"

typedef long long ll;

static trope_status check_boundary(const char *function, const trope_sequences *s, const char *name, const void *array,
                                   int64_t i)
{
    const int64_t value = trope_load_index(array, s->boundaries_64, i);
    const int64_t before = i ? trope_load_index(array, s->boundaries_64, i - 1) : 0;
    if (value < before)
        return trope_fail(TROPE_ERROR_DATA, "%s: %s[%lld] (%lld) must be at least %lld, the one before it", function, name,
                          (ll)i, (ll)value, (ll)before);
    return TROPE_OK;
}

static trope_status check_sequence(const char *function, const trope_sequences *s, int64_t i)
{
    const int64_t stored =
        trope_load_index(s->boundaries, s->boundaries_64, i + 1) - trope_load_index(s->boundaries, s->boundaries_64, i);
    const int64_t real =
        trope_load_index(s->real, s->boundaries_64, i + 1) - trope_load_index(s->real, s->boundaries_64, i);
    const int64_t divisor = trope_cp_divisor(s->cp_layout, s->cp_size);
    if (real > stored)
        return trope_fail(TROPE_ERROR_DATA,
                          "%s: sequence %lld of cu_seqlens has %lld tokens, more than the %lld of cu_seqlens_padded",
                          function, (ll)i, (ll)real, (ll)stored);
    if (stored % divisor)
        return trope_fail(TROPE_ERROR_DATA,
                          "%s: sequence %lld has %lld tokens, which cp_layout and cp_size (%d) need divisible by %lld",
                          function, (ll)i, (ll)stored, s->cp_size, (ll)divisor);
    return TROPE_OK;
}

static trope_status check_ends(const char *function, const trope_sequences *s)
{
    const int64_t first = trope_load_index(s->boundaries, s->boundaries_64, 0);
    const int64_t last = trope_load_index(s->boundaries, s->boundaries_64, s->count);
    const int64_t capacity = s->tokens * s->cp_size;
    const char *name = s->boundaries == s->real ? "cu_seqlens" : "cu_seqlens_padded";
    if (s->cp_layout != TROPE_CP_FLAT && first % s->cp_size)
        return trope_fail(TROPE_ERROR_DATA, "%s: %s[0] (%lld) must be divisible by cp_size (%d)", function, name, (ll)first,
                          s->cp_size);
    if (last > capacity)
        return trope_fail(TROPE_ERROR_DATA, "%s: %s[%lld] (%lld) must be at most tokens * cp_size (%lld)", function, name,
                          (ll)s->count, (ll)last, (ll)capacity);
    return TROPE_OK;
}

trope_status trope_check_sequences(const char *function, const trope_sequences *s)
{
    trope_status status = TROPE_OK;
    if (!s->boundaries)
        return TROPE_OK;
    for (int64_t i = 0; i <= s->count && !status; i++) {
        status = check_boundary(function, s, "cu_seqlens", s->real, i);
        if (!status && s->boundaries != s->real)
            status = check_boundary(function, s, "cu_seqlens_padded", s->boundaries, i);
    }
    if (!status)
        status = check_ends(function, s);
    for (int64_t i = 0; i < s->count && !status; i++)
        status = check_sequence(function, s, i);
    return status;
}

/* The first row, in the order of memory, with a position outside the angle rows. */
typedef struct range_search {
    const trope_plan *plan;
    int64_t *first_bad;
} range_search;

static void find_bad_row(const void *context, int64_t begin, int64_t end)
{
    const range_search *search = context;
    trope_span span = {0};
    trope_row row;
    for (int64_t number = begin; number < end; number++) {
        trope_locate_row(search->plan, number, &row);
        trope_find_row(search->plan, &span, &row);
        if (row.action != TROPE_ROW_ROTATE || !row.poisoned)
            continue;
        int64_t seen = __atomic_load_n(search->first_bad, __ATOMIC_RELAXED);
        while (number < seen &&
               !__atomic_compare_exchange_n(search->first_bad, &seen, number, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            ;
        return;
    }
}

static trope_status report_bad_row(const char *function, const trope_plan *plan, int64_t number)
{
    trope_span span = {0};
    trope_row row;
    trope_locate_row(plan, number, &row);
    trope_find_row(plan, &span, &row);
    const int axis = __builtin_ctz(row.poisoned);
    const int64_t index = trope_index_in_sequence(&plan->sequences, &span, row.token);
    const int64_t position = trope_position(&plan->sequences, &span, index, row.batch, row.token, axis);
    return trope_fail(TROPE_ERROR_DATA,
                      "%s: position %lld of batch entry %lld, token %lld, axis %d must be 0 to angle_rows - 1 (%lld)",
                      function, (ll)position, (ll)row.batch, (ll)row.token, axis, (ll)plan->angles.rows - 1);
}

/* Checking a row takes as long as moving this many bytes: 4 ns, though 37 where its sequence is searched. */
#define BYTES_PER_ROW 128

trope_status trope_check_positions(const char *function, const trope_plan *plan)
{
    const trope_sequences *s = &plan->sequences;
    const int known_from_shapes = !s->boundaries && !s->ids && !s->starts;
    const int has_rows = plan->angles.source == TROPE_ANGLES_FREQS || plan->angles.source == TROPE_ANGLES_TABLE;
    if (!has_rows || known_from_shapes || plan->angles.out_of_range != TROPE_RANGE_POISON)
        return TROPE_OK;
    int64_t first_bad = INT64_MAX;
    const range_search search = {plan, &first_bad};
    const int64_t rows = plan->batch * plan->tokens;
    trope_parallel_for(trope_useful_threads(plan->threads, rows * BYTES_PER_ROW), rows, find_bad_row, &search);
    if (first_bad == INT64_MAX)
        return TROPE_OK;
    if (!plan->status)
        return report_bad_row(function, plan, first_bad);
    *plan->status |= TROPE_STATUS_POSITION;
    return TROPE_OK;
}

static void write_positions(const trope_sequences *s, int64_t batches, int64_t *positions, int32_t *sequences)
{
    for (int64_t batch = 0; batch < batches; batch++) {
        trope_span span = {0};
        for (int64_t token = 0; token < s->tokens; token++) {
            if (token < span.begin || token >= span.end)
                span = trope_find_span(s, batch, token);
            const int64_t index = trope_index_in_sequence(s, &span, token), cell = batch * s->tokens + token;
            for (int axis = 0; axis < s->axes; axis++)
                positions[axis * batches * s->tokens + cell] = trope_position(s, &span, index, batch, token, axis);
            if (sequences)
                sequences[cell] = trope_is_padding(&span, index) ? -1 : (int32_t)span.sequence;
        }
    }
}

trope_status trope_positions(const trope_args *caller_args, int64_t *positions, int32_t *sequences)
{
    static const char function[] = "trope_positions";
    trope_args args;
    trope_status status = trope_copy_struct(function, &args, sizeof args, caller_args);
    if (status)
        return status;
    trope_fill_defaults(&args);
    status = trope_validate_positions(function, &args);
    if (!status)
        status = trope_validate_index_memory(function, &args);
    if (status)
        return status;
    if (!positions)
        return trope_fail(TROPE_ERROR_NULL, "%s: positions is NULL", function);
    const trope_sequences s = trope_plan_sequences(&args);
    status = trope_check_sequences(function, &s);
    if (!status)
        write_positions(&s, args.batch, positions, sequences);
    return status;
}
