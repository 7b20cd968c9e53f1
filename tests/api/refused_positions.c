/* What is refused of positions, packed sequences and context parallel, by the calls and by trope_positions. */
#include "api/refused.h"

static void ids_and_starts(void)
{
    ROW(ids(), a->position_dtype = 0, ARGUMENT, "position_dtype", "(0)");
    ROW(starts(), a->position_dtype = 0, ARGUMENT, "position_dtype", "(0)");
    ROW(ids(), a->position_dtype = 3, ARGUMENT, "position_dtype", "(3)");
    ROW(starts(), a->position_dtype = -1, ARGUMENT, "position_dtype", "(-1)");
    ROW(dense(), a->position_dtype = TROPE_I64, ARGUMENT, "position_dtype", "(2) must be 0");
    ROW(ids(), a->position_ids = plus(in.ids, 2), ARGUMENT, "position_ids", "aligned to 4 bytes");
    ROW(ids(), (a->position_dtype = TROPE_I64, a->position_ids = plus(in.ids, 4)), ARGUMENT, "position_ids",
        "aligned to 8 bytes");
    ROW(starts(), a->start_positions = plus(in.starts, 1), ARGUMENT, "start_positions", "aligned to 4 bytes");
    ROW(ids(), a->start_positions = in.starts, ARGUMENT, "start_positions", "only one of");
    ROW(dense(), a->stream_positions = 1, ARGUMENT, "stream_positions", "(1) needs cu_seqlens");
    ROW(packed(), a->stream_positions = 2, ARGUMENT, "stream_positions", "(2)");
    ROW(packed(), a->stream_positions = -1, ARGUMENT, "stream_positions", "(-1)");
}

/* Where an axis, a batch entry and a token of the ids are. */
static void ids_layouts(void)
{
    ROW(ids(), a->ids_layout = 0, ARGUMENT, "ids_layout", "(0)");
    ROW(ids(), a->ids_layout = 5, ARGUMENT, "ids_layout", "(5)");
    ROW(ids(), a->ids_layout = -1, ARGUMENT, "ids_layout", "(-1)");
    ROW(strided_ids(), a->ids_layout = 0, ARGUMENT, "ids_layout", "has no default");
    ROW(dense(), a->ids_layout = TROPE_IDS_TOKENS, ARGUMENT, "ids_layout", "(3) must be 0");
    ROW(starts(), a->ids_layout = TROPE_IDS_BATCH_TOKENS, ARGUMENT, "ids_layout", "(2) must be 0");
    ROW(axes(), a->position_axes = 0, ARGUMENT, "position_axes", "(0)");
    ROW(strided_ids(), a->position_axes = 0, ARGUMENT, "position_axes", "(0)");
    ROW(axes(), a->position_axes = 5, ARGUMENT, "position_axes", "(5)");
    ROW(axes(), a->position_axes = -1, ARGUMENT, "position_axes", "(-1)");
    ROW(axes(), a->ids_layout = TROPE_IDS_BATCH_TOKENS, ARGUMENT, "position_axes", "(3)");
    ROW(axes(), a->ids_layout = TROPE_IDS_TOKENS, ARGUMENT, "position_axes", "(3)");
    ROW(dense(), a->position_axes = 2, ARGUMENT, "position_axes", "(2) must be 0 or 1 without position_ids");
    ROW(starts(), a->position_axes = 3, ARGUMENT, "position_axes", "(3) must be 0 or 1 without position_ids");
    ROW(strided_ids(), a->ids_layout = TROPE_IDS_AXES_BATCH_TOKENS, ARGUMENT, "ids_stride[0]", "TROPE_IDS_STRIDED");
    for (int d = 0; d < 3; d++) {
        ROW(ids(), a->ids_stride[d] = 1, ARGUMENT, at("ids_stride", d), "(1)");
        ROW(dense(), a->ids_stride[d] = 1, ARGUMENT, at("ids_stride", d), "(1) must be 0");
    }
    /* An axis stride that contradicts the number of axes. */
    ROW(strided_ids(), a->ids_stride[0] = 0, ARGUMENT, "ids_stride[0]", "position_axes (3)");
    ROW(strided_ids(), a->position_axes = 1, ARGUMENT, "ids_stride[0]", "position_axes (1)");
    ROW(strided_ids(), a->ids_stride[2] = INT64_MAX, TOO_LARGE, "ids_stride", "");
    ROW(strided_ids(), a->ids_stride[1] = INT64_MIN, TOO_LARGE, "ids_stride", "");
    ROW(strided_ids(), a->ids_stride[0] = INT64_MAX / 2, TOO_LARGE, "ids_stride", "");
}

static void set_id(int32_t value)
{
    in.ids[5] = value;
}

static void use_start(int64_t start)
{
    memcpy(in.starts, &start, sizeof start);
    a->position_dtype = TROPE_I64;
}

static void out_of_range(void)
{
    DATA_ROW(ids(), set_id(TOKENS), "position_ids", "position 8 of batch entry 0, token 5");
    DATA_ROW(ids(), set_id(-1), "position_ids", "position -1");
    DATA_ROW(ids(), set_id(INT32_MIN), "position_ids", "position -2147483648");
    DATA_ROW(ids(), set_id(TOKENS), "position_ids", "as int32");
    DATA_ROW(starts(), in.starts[1] = 1, "start_positions", "position 8 of batch entry 1, token 7");
    DATA_ROW(starts(), in.starts[0] = -1, "start_positions", "position -1 of batch entry 0, token 0");
    DATA_ROW(starts(), use_start(INT64_MAX), "start_positions", "as int64");
    DATA_ROW(starts(), use_start(INT64_MIN), "start_positions", "as int64");
    DATA_ROW(packed(), (a->start_positions = in.starts, a->position_dtype = TROPE_I32, in.starts[2] = 7), "start_positions",
             "position 8 of batch entry 0, token 5");
    DATA_ROW(packed(), (a->stream_positions = 1, a->angle_rows = 7), "angle_rows", "position 7 of");
    DATA_ROW(packed(), a->angle_rows = 3, "angle_rows", "position 3 of");
}

/* int32 ids with I64: two of them are one, far beyond any table. */
static void ids_of_another_width(void)
{
    for (int i = 0; i < BATCH * TOKENS; i++)
        in.ids[i] = i % TOKENS;
    a->position_dtype = TROPE_I64;
}

static void use_int64_boundaries(void)
{
    const int64_t boundaries[SEQUENCES + 1] = {0, 4, 4, 6, 8};
    memcpy(in.cu_seqlens, boundaries, sizeof boundaries);
}

static void use_one_int64_sequence(void)
{
    const int64_t boundaries[] = {0, TOKENS};
    memcpy(in.cu_seqlens, boundaries, sizeof boundaries);
    a->sequences = 1;
}

static void other_widths(void)
{
    DATA_ROW(ids(), ids_of_another_width(), "position_ids", "as int64");
    DATA_ROW(packed(), use_int64_boundaries(), "cu_seqlens[3]", "as int32");
    DATA_ROW(packed(), use_one_int64_sequence(), "cu_seqlens[1]", "as int32");
    DATA_ROW(packed(), a->cu_seqlens_dtype = TROPE_I64, "cu_seqlens[1]", "as int64");
    ROW(packed(), (use_int64_boundaries(), a->cu_seqlens_dtype = 0), ARGUMENT, "cu_seqlens_dtype", "(0)");
}

static void packing(void)
{
    ROW(packed(), a->cu_seqlens_dtype = 0, ARGUMENT, "cu_seqlens_dtype", "(0)");
    ROW(packed(), a->cu_seqlens_dtype = 3, ARGUMENT, "cu_seqlens_dtype", "(3)");
    ROW(dense(), a->cu_seqlens_dtype = TROPE_I32, ARGUMENT, "cu_seqlens_dtype", "(1) must be 0");
    ROW(packed(), a->sequences = 0, ARGUMENT, "sequences", "(0)");
    ROW(packed(), a->sequences = -1, ARGUMENT, "sequences", "(-1)");
    /* At a place where nothing is: what is refused has not been read. */
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
    ROW(packed(), a->padding = 4, ARGUMENT, "padding", "(4)");
    ROW(packed(), a->padding = -1, ARGUMENT, "padding", "(-1)");
    ROW(dense(), a->padding = TROPE_PADDING_ZERO, ARGUMENT, "padding", "(1)");
    ROW(padded(), a->padding = 0, ARGUMENT, "padding", "(0)");
    ROW(packed(),
        (a->stream_positions = 1, a->position_ids = in.ids, a->position_dtype = TROPE_I32,
         a->ids_layout = TROPE_IDS_TOKENS),
        ARGUMENT, "stream_positions", "only one of");
    ROW(packed(), (a->stream_positions = 1, a->start_positions = in.starts, a->position_dtype = TROPE_I32), ARGUMENT,
        "start_positions", "only one of");
}

static void boundaries(void)
{
    DATA_ROW(packed(), set_boundaries(in.cu_seqlens, 0, 4, 3, 6, 8), "cu_seqlens[2]", "(3, read as int32)");
    DATA_ROW(packed(), set_boundaries(in.cu_seqlens, -1, 4, 4, 6, 8), "cu_seqlens[0]", "(-1, read as int32)");
    DATA_ROW(packed(), set_boundaries(in.cu_seqlens, 0, 4, 4, 6, 9), "cu_seqlens[4]", "(9, read as int32)");
    DATA_ROW(packed(), set_boundaries(in.cu_seqlens, 0, 4, 4, 6, INT32_MAX), "cu_seqlens[4]",
             "(2147483647, read as int32)");
    DATA_ROW(padded(), set_boundaries(in.cu_seqlens_padded, 0, 4, 3, 6, 8), "cu_seqlens_padded[2]", "(3, read as int32)");
    DATA_ROW(padded(), set_boundaries(in.cu_seqlens_padded, 0, 4, 4, 6, 9), "cu_seqlens_padded[4]", "(9, read as int32)");
    DATA_ROW(padded(), set_boundaries(in.cu_seqlens_padded, 0, 3, 4, 6, 8), "cu_seqlens", "sequence 0 ");
    DATA_ROW(padded(), set_boundaries(in.cu_seqlens, 0, 4, 2, 4, 6), "cu_seqlens[2]", "(2, read as int32)");
    /* Tokens of no sequence, and no policy: before the first, after the last (one sequence too few). */
    DATA_ROW(packed(), set_boundaries(in.cu_seqlens, 1, 4, 4, 6, 8), "cu_seqlens[0]", "padding");
    DATA_ROW(packed(), set_boundaries(in.cu_seqlens, 0, 4, 4, 6, 7), "cu_seqlens[4]", "padding");
    DATA_ROW(packed(), a->sequences = SEQUENCES - 1, "cu_seqlens[3]", "padding");
    DATA_ROW(packed(), memset(in.cu_seqlens, 0, sizeof in.cu_seqlens), "cu_seqlens[4]", "padding");
}

static void context_parallel(void)
{
    ROW(zigzag(), a->cp_size = -1, ARGUMENT, "cp_size", "(-1)");
    ROW(zigzag(), a->cp_rank = -1, ARGUMENT, "cp_rank", "(-1)");
    ROW(zigzag(), a->cp_rank = 2, ARGUMENT, "cp_rank", "(2)");
    ROW(dense(), a->cp_rank = 1, ARGUMENT, "cp_size", "cp_rank (1)");
    ROW(dense(), a->cp_layout = TROPE_CP_ZIGZAG, ARGUMENT, "cp_size", "cp_layout (2)");
    ROW(zigzag(), a->cp_size = 0, ARGUMENT, "cp_size", "(0)");
    ROW(zigzag(), a->cp_layout = 0, ARGUMENT, "cp_layout", "(0)");
    ROW(zigzag(), a->cp_layout = 5, ARGUMENT, "cp_layout", "(5)");
    ROW(zigzag(), a->cp_layout = -1, ARGUMENT, "cp_layout", "(-1)");
    ROW(zigzag(), a->tokens = 7, ARGUMENT, "tokens", "(7) * cp_size (2) must be divisible by 4");
    ROW(zigzag(), (a->tokens = (int64_t)1 << 40, a->cp_size = INT32_MAX), TOO_LARGE, "tokens", "cp_size (2147483647)");
}

static void use_ranks(int32_t ranks, int32_t layout)
{
    a->cp_size = ranks;
    a->cp_layout = layout;
}

static void packed_context_parallel(void)
{
    DATA_ROW(packed(), (use_ranks(2, TROPE_CP_STRIPED), set_boundaries(in.cu_seqlens, 1, 9, 9, 13, 15)), "cu_seqlens[0]",
             "(1, read as int32)");
    DATA_ROW(packed(), (use_ranks(2, TROPE_CP_ZIGZAG), set_boundaries(in.cu_seqlens, 0, 8, 8, 14, 16)), "cu_seqlens",
             "sequence 2");
    DATA_ROW(packed(), (use_ranks(3, TROPE_CP_STRIPED), set_boundaries(in.cu_seqlens, 0, 8, 8, 14, 24)), "cu_seqlens",
             "sequence 0");
    DATA_ROW(packed(), (use_ranks(2, TROPE_CP_CONTIGUOUS), set_boundaries(in.cu_seqlens, 0, 8, 8, 11, 16)), "cu_seqlens",
             "sequence 2");
    DATA_ROW(packed(), (use_ranks(2, TROPE_CP_CONTIGUOUS), set_boundaries(in.cu_seqlens, 0, 8, 8, 12, 18)), "cu_seqlens[4]",
             "(18, read as int32)");
    DATA_ROW(packed(), (use_ranks(2, TROPE_CP_FLAT), set_boundaries(in.cu_seqlens, 0, 8, 8, 12, 17)), "cu_seqlens[4]",
             "(17, read as int32)");
    /* The offsets of this rank alone, where those of the whole stream belong. */
    DATA_ROW(packed(), use_ranks(2, TROPE_CP_CONTIGUOUS), "cu_seqlens[4]", "padding");
}

/* trope_positions looks at batch, tokens, positions and sequences, and at nothing else. */
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
    POSITIONS_ROW(packed(), set_boundaries(in.cu_seqlens, 0, 4, 3, 6, 8), DATA, "cu_seqlens[2]", "(3, read as int32)");
    POSITIONS_ROW(packed(), set_boundaries(in.cu_seqlens, 0, 4, 4, 6, 9), DATA, "cu_seqlens[4]", "(9, read as int32)");
    POSITIONS_ROW(packed(), set_boundaries(in.cu_seqlens, 0, 4, 4, 6, 7), DATA, "cu_seqlens[4]", "padding");
    POSITIONS_ROW(packed(), (use_ranks(2, TROPE_CP_ZIGZAG), set_boundaries(in.cu_seqlens, 0, 8, 8, 14, 16)), DATA,
                  "cu_seqlens", "sequence 2");
    POSITIONS_ROW(zigzag(), a->tokens = 7, ARGUMENT, "tokens", "(7)");
    POSITIONS_ROW(zigzag(), a->cp_rank = 2, ARGUMENT, "cp_rank", "(2)");
    POSITIONS_ROW(packed(), (a->cu_seqlens = far_away(), a->sequences = (int64_t)1 << 57), TOO_LARGE, "sequences", "2^57");
    /* The number of a sequence is an int32. */
    POSITIONS_ROW(packed(), (a->cu_seqlens = far_away(), a->sequences = ((int64_t)1 << 31) + 1), TOO_LARGE, "sequences",
                  "(2147483649) must be at most 2^31");
    POSITIONS_ROW(dense(), a->batch = ((int64_t)1 << 31) + 1, TOO_LARGE, "batch", "(2147483649) must be at most 2^31");
    POSITIONS_ROW(dense(), a->reserved = 1, ARGUMENT, "reserved", "(1)");
}

/* What it writes must be apart from what it reads, and from what else it writes. */
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
    out_of_range();
    other_widths();
    packing();
    boundaries();
    context_parallel();
    packed_context_parallel();
    positions_query();
    positions_overlap();
    return refused_result();
}
