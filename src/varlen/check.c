#include "varlen/check.h"

#include "core/error.h"
#include "core/require.h"
#include "core/threads.h"
#include "varlen/token.h"

#define DATA TROPE_ERROR_DATA

typedef long long ll;

static const char *width(int32_t is_64)
{
    return is_64 ? "int64" : "int32";
}

/* The name of the array that says where sequences are stored. */
static const char *stored_name(const trope_position_source *s)
{
    return s->boundaries == s->unpadded ? "cu_seqlens" : "cu_seqlens_padded";
}

/* Reports the wrong boundary of sequence i. */
static trope_status refuse_order(const char *function, const trope_position_source *s, const char *name, const void *array,
                                 int64_t i)
{
    const int64_t begin = trope_load_index(array, s->boundaries_64, i),
                  end = s->count ? trope_load_index(array, s->boundaries_64, i + 1) : begin;
    const int begins_early = i == 0 && begin < 0;
    return trope_fail(DATA, "%s: %s[%lld] (%lld, read as %s) must be at least %lld%s", function, name,
                      (ll)(begins_early ? 0 : i + 1), (ll)(begins_early ? begin : end), width(s->boundaries_64),
                      begins_early ? 0ll : (ll)begin, begins_early ? "" : ", the boundary before it");
}

static trope_status check_sequence(const char *function, const trope_position_source *s, int64_t i)
{
    const trope_bounds_fault fault = trope_check_sequence(s, i);
    if (fault == TROPE_BOUNDS_ORDER)
        return refuse_order(function, s, stored_name(s), s->boundaries, i);
    if (fault == TROPE_BOUNDS_UNPADDED_ORDER)
        return refuse_order(function, s, "cu_seqlens", s->unpadded, i);
    const trope_bounds b = trope_load_bounds(s, s->count ? i + 1 : 0);
    const int64_t stored = b.end - b.begin;
    const char *const width_of_boundaries = width(s->boundaries_64);
    REQUIRE(fault != TROPE_BOUNDS_END, DATA, "%s[%lld] (%lld, read as %s) must be at most tokens * cp_size (%lld)",
            stored_name(s), (ll)(s->count ? i + 1 : 0), (ll)b.end, width_of_boundaries, (ll)(s->tokens * s->cp.size));
    REQUIRE(fault != TROPE_BOUNDS_ROOM, DATA,
            "cu_seqlens: sequence %lld has %lld tokens, more than the %lld of cu_seqlens_padded (read as %s)", (ll)i,
            (ll)(b.unpadded_end - b.unpadded_begin), (ll)stored, width_of_boundaries);
    REQUIRE(fault != TROPE_BOUNDS_BEGIN_SPLIT, DATA, "%s[%lld] (%lld, read as %s) must be divisible by cp_size (%d)",
            stored_name(s), (ll)i, (ll)b.begin, width_of_boundaries, s->cp.size);
    REQUIRE(fault != TROPE_BOUNDS_LENGTH_SPLIT, DATA,
            "%s: sequence %lld has %lld tokens (read as %s): for cp_layout and cp_size (%d), it must be divisible by %lld",
            stored_name(s), (ll)i, (ll)stored, width_of_boundaries, s->cp.size, (ll)trope_cp_divisor(&s->cp));
    return TROPE_OK;
}

/* Without a padding policy, no token may be before the first sequence or after the last one. */
static trope_status check_all_tokens(const char *function, const trope_position_source *s, int64_t first, int64_t last)
{
    static const char rule[] = "this rank has tokens that are in no sequence, so padding must say what is written for them";
    if (s->padding || s->tokens == 0)
        return TROPE_OK;
    REQUIRE(trope_cp_local(&s->cp, first) <= 0, DATA, "%s[0] (%lld, read as %s): %s", stored_name(s), (ll)first,
            width(s->boundaries_64), rule);
    REQUIRE(trope_cp_local(&s->cp, last) >= s->tokens, DATA, "%s[%lld] (%lld of %lld, read as %s): %s", stored_name(s),
            (ll)s->count, (ll)last, (ll)(s->tokens * s->cp.size), width(s->boundaries_64), rule);
    return TROPE_OK;
}

trope_status trope_check_sequences(const char *function, const trope_position_source *s)
{
    if (!s->boundaries)
        return TROPE_OK;
    for (int64_t i = 0; i == 0 || i < s->count; i++)
        CHECK(check_sequence(function, s, i));
    return check_all_tokens(function, s, trope_load_index(s->boundaries, s->boundaries_64, 0),
                            trope_load_index(s->boundaries, s->boundaries_64, s->count));
}

/* The search for the first token, in memory order, that has a position outside the angle rows. */
typedef struct range_search {
    const trope_plan *plan;
    int64_t *first_bad;
} range_search;

static void find_bad_token(const void *context, int64_t begin, int64_t end)
{
    const range_search *search = context;
    trope_span span = {0};
    trope_token token;
    for (int64_t number = begin; number < end; number++) {
        trope_locate_token(search->plan, number, &token);
        trope_find_token(search->plan, &span, &token);
        if (token.action != TROPE_TOKEN_ROTATE || !token.poisoned)
            continue;
        int64_t seen = __atomic_load_n(search->first_bad, __ATOMIC_RELAXED);
        while (number < seen &&
               !__atomic_compare_exchange_n(search->first_bad, &seen, number, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            ;
        return;
    }
}

static trope_status report_bad_token(const char *function, const trope_plan *plan, int64_t number)
{
    const trope_position_source *s = &plan->position_source;
    trope_span span = {0};
    trope_token token;
    trope_locate_token(plan, number, &token);
    trope_find_token(plan, &span, &token);
    const int axis = __builtin_ctz(token.poisoned);
    const int64_t index = trope_index_in_sequence(s, &span, token.index);
    const int64_t position = trope_position(s, &span, index, token.batch, token.index, axis);
    return trope_fail(
        DATA, "%s: %s: position %lld of batch entry %lld, token %lld, axis %d%s%s must be 0 to angle_rows - 1 (%lld)",
        function,
        s->ids      ? "position_ids"
        : s->starts ? "start_positions"
                    : "angle_rows",
        (ll)position, (ll)token.batch, (ll)token.index, axis, s->ids || s->starts ? ", read as " : "",
        s->ids || s->starts ? width(s->ids_64) : "", (ll)plan->angles.rows - 1);
}

/* Checking a token takes as long as moving this many bytes: 4 ns. If its sequence must be searched for, it takes 37 ns. */
#define BYTES_PER_TOKEN 128

trope_status trope_check_positions(const char *function, const trope_plan *plan)
{
    const trope_position_source *s = &plan->position_source;
    const int known_from_shapes = !s->boundaries && !s->ids && !s->starts;
    const int has_rows = plan->angles.source == TROPE_ANGLES_FREQS || plan->angles.source == TROPE_ANGLES_TABLE;
    if (!has_rows || known_from_shapes || plan->angles.out_of_range != TROPE_RANGE_POISON)
        return TROPE_OK;
    int64_t first_bad = INT64_MAX;
    const range_search search = {plan, &first_bad};
    const int64_t tokens = plan->batch * plan->tokens;
    trope_parallel_for(trope_useful_threads(plan->threads, (double)tokens * BYTES_PER_TOKEN), tokens, find_bad_token,
                       &search);
    if (first_bad == INT64_MAX)
        return TROPE_OK;
    if (!plan->status)
        return report_bad_token(function, plan, first_bad);
    *plan->status |= TROPE_STATUS_POSITION;
    return TROPE_OK;
}
