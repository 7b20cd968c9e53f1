/* trope_positions: computes the position and the sequence of each token of a call. */
#include "api/args.h"
#include "core/require.h"
#include "varlen/check.h"
#include "varlen/position.h"
#include "varlen/position_source.h"

static void write_positions(const trope_position_source *s, int64_t batches, int64_t *positions, int32_t *sequences)
{
    for (int64_t batch = 0; batch < batches; batch++) {
        trope_span span = {0};
        for (int64_t token = 0; token < s->tokens; token++) {
            if (token < span.begin || token >= span.end)
                span = trope_find_span(s, batch, token);
            const int64_t index = trope_index_in_sequence(s, &span, token), cell = batch * s->tokens + token;
            for (int axis = 0; axis < s->position_axes; axis++)
                positions[axis * batches * s->tokens + cell] = trope_position(s, &span, index, batch, token, axis);
            if (sequences)
                sequences[cell] = trope_is_padding(&span, index) ? -1 : (int32_t)span.sequence;
        }
    }
}

trope_status trope_positions(const trope_args *callers, int64_t *positions, int32_t *sequences)
{
    static const char function[] = "trope_positions";
    trope_args args;
    CHECK(trope_copy_positions(function, callers, &args));
    CHECK(trope_validate_positions(function, &args));
    trope_expand_ids(&args);
    REQUIRE(positions, TROPE_ERROR_NULL, "%s", "positions is NULL");
    const int64_t numbers = args.cu_seqlens ? args.sequences : args.batch;
    REQUIRE(!sequences || args.tokens == 0 || numbers <= (int64_t)INT32_MAX + 1, TROPE_ERROR_OVERFLOW,
            "%s (%lld) must be at most 2^31 where the number of each token's sequence is written as int32",
            args.cu_seqlens ? "sequences" : "batch", (long long)numbers);
    CHECK(trope_validate_position_memory(function, &args, callers, positions, sequences));
    const trope_position_source s = trope_plan_position_source(&args);
    CHECK(trope_check_sequences(function, &s));
    write_positions(&s, args.batch, positions, sequences);
    return TROPE_OK;
}
