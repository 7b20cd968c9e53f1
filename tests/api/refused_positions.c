/* Refused values of positions, packed sequences and context parallelism, in calls and in trope_positions. */
#include "api/refused.h"

static void ids_and_starts(void)
{
    VALUES(ids(), a->position_dtype, 0, 3);
    VALUES(starts(), a->position_dtype, 0, -1);
    ROW(dense(), a->position_dtype = TROPE_I64, ARGUMENT, "position_dtype", "(2) must be 0");
    ROW(ids(), a->position_ids = plus(in.ids, 2), ARGUMENT, "position_ids", "aligned to 4 bytes");
    ROW(ids(), (a->position_dtype = TROPE_I64, a->position_ids = plus(in.ids, 4)), ARGUMENT, "position_ids",
        "aligned to 8 bytes");
    ROW(starts(), a->start_positions = plus(in.starts, 1), ARGUMENT, "start_positions", "aligned to 4 bytes");
    ROW(ids(), a->start_positions = in.starts, ARGUMENT, "start_positions", "only one of");
    ROW(dense(), a->stream_positions = 1, ARGUMENT, "stream_positions", "(1) needs cu_seqlens");
    VALUES(packed(), a->stream_positions, 2, -1);
}

/* The layout and the strides of the ids. */
static void ids_layouts(void)
{
    VALUES(ids(), a->ids_layout, 0, 5, -1);
    ROW(strided_ids(), a->ids_layout = 0, ARGUMENT, "ids_layout", "has no default");
    ROW(dense(), a->ids_layout = TROPE_IDS_TOKENS, ARGUMENT, "ids_layout", "(3) must be 0");
    ROW(starts(), a->ids_layout = TROPE_IDS_BATCH_TOKENS, ARGUMENT, "ids_layout", "(2) must be 0");
    VALUES(axes(), a->position_axes, 0, 5, -1);
    ROW(strided_ids(), a->position_axes = 0, ARGUMENT, "position_axes", "(0)");
    ROW(axes(), a->ids_layout = TROPE_IDS_BATCH_TOKENS, ARGUMENT, "position_axes", "(3)");
    ROW(axes(), a->ids_layout = TROPE_IDS_TOKENS, ARGUMENT, "position_axes", "(3)");
    ROW(dense(), a->position_axes = 2, ARGUMENT, "position_axes", "(2) must be 0 or 1 without position_ids");
    ROW(starts(), a->position_axes = 3, ARGUMENT, "position_axes", "(3) must be 0 or 1 without position_ids");
    ROW(strided_ids(), a->ids_layout = TROPE_IDS_AXES_BATCH_TOKENS, ARGUMENT, "ids_stride[0]", "TROPE_IDS_STRIDED");
    for (int d = 0; d < 3; d++) {
        ROW(ids(), a->ids_stride[d] = 1, ARGUMENT, at("ids_stride", d), "(1)");
        ROW(dense(), a->ids_stride[d] = 1, ARGUMENT, at("ids_stride", d), "(1) must be 0");
    }
    /* The axis stride contradicts the number of axes. */
    ROW(strided_ids(), a->ids_stride[0] = 0, ARGUMENT, "ids_stride[0]", "(0) must not be 0 with position_axes (3)");
    ROW(strided_ids(), a->position_axes = 1, ARGUMENT, "ids_stride[0]", "(16) must be 0 with position_axes (1)");
    ROW(strided_ids(), a->ids_stride[2] = INT64_MAX, TOO_LARGE, "ids_stride", "");
    ROW(strided_ids(), a->ids_stride[1] = INT64_MIN, TOO_LARGE, "ids_stride", "");
    ROW(strided_ids(), a->ids_stride[0] = INT64_MAX / 2, TOO_LARGE, "ids_stride", "");
}

static void packing(void)
{
    VALUES(packed(), a->cu_seqlens_dtype, 0, 3);
    ROW(packed(), a->cu_seqlens_dtype = 0, ARGUMENT, "cu_seqlens_dtype", "(0) must be 1 to 2 with cu_seqlens");
    ROW(dense(), a->cu_seqlens_dtype = TROPE_I32, ARGUMENT, "cu_seqlens_dtype", "(1) must be 0");
    VALUES(packed(), a->sequences, 0, -1);
    /* The address has no memory: the call must be refused before it reads cu_seqlens. */
    ROW(packed(), (a->cu_seqlens = far_away(), a->sequences = (int64_t)1 << 57), TOO_LARGE, "sequences",
        "(144115188075855872) must be below 2^57");
    ROW(packed(), (a->cu_seqlens = far_away(), a->sequences = ((int64_t)1 << 57) + 1), TOO_LARGE, "sequences", "2^57");
    ROW(packed(), (a->cu_seqlens = far_away(), a->sequences = INT64_MAX), TOO_LARGE, "sequences", "(9223372036854775807)");
    ROW(packed(), (a->cu_seqlens = far_away(), a->tokens = 0, a->sequences = INT64_MAX), TOO_LARGE, "sequences", "2^57");
    ROW(dense(), a->sequences = 1, ARGUMENT, "sequences", "(1) must be 0");
    ROW(packed(), a->cu_seqlens = NULL, ARGUMENT, "sequences", "(4)");
    ROW(padded(), a->cu_seqlens = NULL, IS_NULL, "cu_seqlens", "cu_seqlens_padded is not");
    ROW(packed(), a->cu_seqlens = plus(in.cu_seqlens, 1), ARGUMENT, "cu_seqlens", "aligned to 4 bytes");
    ROW(padded(), a->cu_seqlens_padded = plus(in.cu_seqlens, 2), ARGUMENT, "cu_seqlens_padded", "aligned to 4 bytes");
    ROW(packed(), a->batch = 2, ARGUMENT, "batch", "(2) must be 1 with cu_seqlens");
    VALUES(packed(), a->padding, 4, -1);
    ROW(dense(), a->padding = TROPE_PADDING_ZERO, ARGUMENT, "padding", "(1)");
    ROW(padded(), a->padding = 0, ARGUMENT, "padding", "(0)");
    ROW(packed(),
        (a->stream_positions = 1, a->position_ids = in.ids, a->position_dtype = TROPE_I32,
         a->ids_layout = TROPE_IDS_TOKENS),
        ARGUMENT, "stream_positions", "only one of");
    ROW(packed(), (a->stream_positions = 1, a->start_positions = in.starts, a->position_dtype = TROPE_I32), ARGUMENT,
        "start_positions", "only one of");
}

static void context_parallel(void)
{
    VALUES(zigzag(), a->cp_size, -1, 0, (1 << 30) + 1, INT32_MAX);
    VALUES(zigzag(), a->cp_rank, -1, 2);
    ROW(dense(), a->cp_rank = 1, ARGUMENT, "cp_size", "cp_rank (1)");
    ROW(dense(), a->cp_layout = TROPE_CP_ZIGZAG, ARGUMENT, "cp_size", "cp_layout (2)");
    VALUES(zigzag(), a->cp_layout, 0, 5, -1);
    ROW(zigzag(), a->tokens = 7, ARGUMENT, "tokens", "(7) * cp_size (2) must be divisible by 4");
    ROW(zigzag(), (a->tokens = (int64_t)1 << 40, a->cp_size = 1 << 30), TOO_LARGE, "tokens", "cp_size (1073741824)");
}

/* trope_positions refuses wrong values of the fields that it reads: sizes, positions, sequences and context parallelism. */
static void positions_query(void)
{
    begin(dense());
    CALL_ROW(trope_positions, (a, NULL, NULL), IS_NULL, "positions", "positions is NULL");
    POSITIONS_ROW(dense(), a = NULL, IS_NULL, "args", "args is NULL");
    POSITIONS_ROW(dense(), a->struct_size = sizeof(trope_args *), ARGUMENT, "struct_size", "(8)");
    POSITIONS_ROW(dense(), a->batch = 0, ARGUMENT, "batch", "(0)");
    POSITIONS_ROW(dense(), a->tokens = -5, ARGUMENT, "tokens", "(-5)");
    POSITIONS_ROW(dense(), a->batch = a->tokens = (int64_t)1 << 40, TOO_LARGE, "batch", "");
    POSITIONS_ROW(axes(), a->position_axes = 5, ARGUMENT, "position_axes", "(5)");
    POSITIONS_ROW(ids(), a->ids_layout = 0, ARGUMENT, "ids_layout", "(0)");
    POSITIONS_ROW(ids(), a->position_dtype = 0, ARGUMENT, "position_dtype", "(0)");
    POSITIONS_ROW(strided_ids(), a->ids_stride[2] = INT64_MAX, TOO_LARGE, "ids_stride", "");
    POSITIONS_ROW(ids(), a->position_ids = plus(in.ids, 2), ARGUMENT, "position_ids", "aligned to 4 bytes");
    POSITIONS_ROW(packed(), a->cu_seqlens = plus(in.cu_seqlens, 1), ARGUMENT, "cu_seqlens", "aligned to 4 bytes");
    POSITIONS_ROW(packed(), a->batch = 2, ARGUMENT, "batch", "(2)");
    POSITIONS_ROW(packed(), a->sequences = 0, ARGUMENT, "sequences", "(0)");
    POSITIONS_ROW(packed(), a->cu_seqlens_dtype = 0, ARGUMENT, "cu_seqlens_dtype", "(0)");
    POSITIONS_ROW(zigzag(), a->tokens = 7, ARGUMENT, "tokens", "(7)");
    POSITIONS_ROW(zigzag(), a->cp_rank = 2, ARGUMENT, "cp_rank", "(2)");
    POSITIONS_ROW(packed(), (a->cu_seqlens = far_away(), a->sequences = (int64_t)1 << 57), TOO_LARGE, "sequences", "2^57");
    /* trope_positions writes the index of a sequence as int32. */
    POSITIONS_ROW(packed(), (a->cu_seqlens = far_away(), a->sequences = ((int64_t)1 << 31) + 1), TOO_LARGE, "sequences",
                  "(2147483649) must be at most 2^31");
    POSITIONS_ROW(dense(), a->batch = ((int64_t)1 << 31) + 1, TOO_LARGE, "batch", "(2147483649) must be at most 2^31");
    POSITIONS_ROW(dense(), a->reserved = 1, ARGUMENT, "reserved", "(1)");
}

/* The outputs of trope_positions must not overlap each other or its inputs. */
static void positions_overlap(void)
{
    int64_t *positions = (int64_t *)out.q;
    int32_t *sequences = (int32_t *)out.k;
    begin(packed());
    CALL_ROW(trope_positions, (a, (int64_t *)(void *)plus(positions, 4), NULL), ARGUMENT, "positions",
             "aligned to 8 bytes");
    CALL_ROW(trope_positions, (a, (int64_t *)(void *)plus(positions, 1), NULL), ARGUMENT, "positions",
             "aligned to 8 bytes");
    CALL_ROW(trope_positions, (a, positions, (int32_t *)(void *)plus(sequences, 2)), ARGUMENT, "sequences",
             "aligned to 4 bytes");
    CALL_ROW(trope_positions, (a, positions, (int32_t *)positions), OVERLAP, "positions", "overlaps sequences");
    CALL_ROW(trope_positions, (a, positions, (int32_t *)(positions + TOKENS) - 1), OVERLAP, "positions",
             "overlaps sequences");
    CALL_ROW(trope_positions, (a, (int64_t *)(void *)in.cu_seqlens, NULL), OVERLAP, "positions", "overlaps cu_seqlens");
    CALL_ROW(trope_positions, (a, positions, in.cu_seqlens), OVERLAP, "sequences", "overlaps cu_seqlens");
    CALL_ROW(trope_positions, (a, (int64_t *)(void *)a, NULL), OVERLAP, "positions", "overlaps args");
    begin(padded());
    CALL_ROW(trope_positions, (a, positions, in.cu_seqlens_padded), OVERLAP, "sequences", "overlaps cu_seqlens_padded");
    begin(ids());
    CALL_ROW(trope_positions, (a, (int64_t *)(void *)in.ids, NULL), OVERLAP, "positions", "overlaps position_ids");
    CALL_ROW(trope_positions, (a, positions, in.ids), OVERLAP, "sequences", "overlaps position_ids");
    begin(starts());
    CALL_ROW(trope_positions, (a, (int64_t *)(void *)in.starts, NULL), OVERLAP, "positions", "overlaps start_positions");
}

int main(void)
{
    ids_and_starts();
    ids_layouts();
    packing();
    context_parallel();
    positions_query();
    positions_overlap();
    return refused_result();
}
