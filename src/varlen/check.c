#include "varlen/check.h"

#include "core/error.h"
#include "core/require.h"
#include "core/threads.h"
#include "varlen/row.h"

#define DATA TROPE_ERROR_DATA

typedef long long ll;

static const char *width(int32_t is_64)
{
    return is_64 ? "int64" : "int32";
}

/* What boundaries are called that say where sequences are stored. */
static const char *stored_name(const trope_sequences *s)
{
    return s->boundaries == s->real ? "cu_seqlens" : "cu_seqlens_padded";
}

static trope_status check_boundary(const char *function, const trope_sequences *s, const char *name, const void *array,
                                   int64_t i)
{
    const int64_t value = trope_load_index(array, s->boundaries_64, i);
    const int64_t before = i ? trope_load_index(array, s->boundaries_64, i - 1) : 0;
    REQUIRE(value >= before, DATA, "%s[%lld] (%lld, read as %s) must be at least %lld%s", name, (ll)i, (ll)value,
            width(s->boundaries_64), (ll)before, i ? ", the one before it" : "");
    return TROPE_OK;
}

static trope_status check_sequence(const char *function, const trope_sequences *s, int64_t i)
{
    const trope_bounds b = trope_load_bounds(s, i);
    const int64_t stored = b.end - b.begin, real = b.real_end - b.real_begin;
    const int64_t divisor = trope_cp_divisor(s->cp_layout, s->cp_size);
    REQUIRE(real <= stored, DATA,
            "cu_seqlens: sequence %lld has %lld tokens, more than the %lld of cu_seqlens_padded (read as %s)", (ll)i,
            (ll)real, (ll)stored, width(s->boundaries_64));
    REQUIRE(stored % divisor == 0, DATA,
            "%s: sequence %lld has %lld tokens (read as %s), which cp_layout and cp_size (%d) need divisible by %lld",
            stored_name(s), (ll)i, (ll)stored, width(s->boundaries_64), s->cp_size, (ll)divisor);
    return TROPE_OK;
}

/* Without a padding policy no token may be before the first sequence or after the last. */
static trope_status check_all_tokens(const char *function, const trope_sequences *s, int64_t first, int64_t last)
{
    static const char rule[] = "this rank has tokens of no sequence, and padding must say what is written for them";
    if (s->padding || s->tokens == 0)
        return TROPE_OK;
    REQUIRE(trope_local_boundary(s, first) <= 0, DATA, "%s[0] (%lld, read as %s): %s", stored_name(s), (ll)first,
            width(s->boundaries_64), rule);
    REQUIRE(trope_local_boundary(s, last) >= s->tokens, DATA, "%s[%lld] (%lld of %lld, read as %s): %s", stored_name(s),
            (ll)s->count, (ll)last, (ll)(s->tokens * s->cp_size), width(s->boundaries_64), rule);
    return TROPE_OK;
}

static trope_status check_ends(const char *function, const trope_sequences *s)
{
    const int64_t first = trope_load_index(s->boundaries, s->boundaries_64, 0);
    const int64_t last = trope_load_index(s->boundaries, s->boundaries_64, s->count);
    const int64_t capacity = s->tokens * s->cp_size;
    REQUIRE(s->cp_layout == TROPE_CP_FLAT || first % s->cp_size == 0, DATA,
            "%s[0] (%lld, read as %s) must be divisible by cp_size (%d)", stored_name(s), (ll)first,
            width(s->boundaries_64), s->cp_size);
    REQUIRE(last <= capacity, DATA, "%s[%lld] (%lld, read as %s) must be at most tokens * cp_size (%lld)", stored_name(s),
            (ll)s->count, (ll)last, width(s->boundaries_64), (ll)capacity);
    return check_all_tokens(function, s, first, last);
}

trope_status trope_check_sequences(const char *function, const trope_sequences *s)
{
    if (!s->boundaries)
        return TROPE_OK;
    for (int64_t i = 0; i <= s->count; i++) {
        CHECK(check_boundary(function, s, "cu_seqlens", s->real, i));
        if (s->boundaries != s->real)
            CHECK(check_boundary(function, s, "cu_seqlens_padded", s->boundaries, i));
    }
    CHECK(check_ends(function, s));
    for (int64_t i = 0; i < s->count; i++)
        CHECK(check_sequence(function, s, i));
    return TROPE_OK;
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
    const trope_sequences *s = &plan->sequences;
    trope_span span = {0};
    trope_row row;
    trope_locate_row(plan, number, &row);
    trope_find_row(plan, &span, &row);
    const int axis = __builtin_ctz(row.poisoned);
    const int64_t index = trope_index_in_sequence(s, &span, row.token);
    const int64_t position = trope_position(s, &span, index, row.batch, row.token, axis);
    return trope_fail(
        DATA, "%s: %s: position %lld of batch entry %lld, token %lld, axis %d%s%s must be 0 to angle_rows - 1 (%lld)",
        function,
        s->ids      ? "position_ids"
        : s->starts ? "start_positions"
                    : "angle_rows",
        (ll)position, (ll)row.batch, (ll)row.token, axis, s->ids || s->starts ? ", read as " : "",
        s->ids || s->starts ? width(s->ids_64) : "", (ll)plan->angles.rows - 1);
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
    trope_parallel_for(trope_useful_threads(plan->threads, (double)rows * BYTES_PER_ROW), rows, find_bad_row, &search);
    if (first_bad == INT64_MAX)
        return TROPE_OK;
    if (!plan->status)
        return report_bad_row(function, plan, first_bad);
    *plan->status |= TROPE_STATUS_POSITION;
    return TROPE_OK;
}
