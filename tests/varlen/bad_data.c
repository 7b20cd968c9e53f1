/* Wrong values in cu_seqlens, position_ids and start_positions give errors that name the value, and nothing is written (see
 * api/refused.h). With a status word, positions out of range are poisoned. With CLAMP, they are clamped. */
#include <math.h>

#include "api/refused.h"
#include "varlen/packed_call.h"

/* Wrong sequences. Calls refuse them with and without a status word, and leave the status word unchanged. trope_positions
 * refuses them too. */
#define BOUNDARIES_ROW(valid, change, ...)                                                                                 \
    do {                                                                                                                   \
        int32_t word = 0;                                                                                                  \
        DATA_ROW(valid, change, __VA_ARGS__);                                                                              \
        DATA_ROW(valid, (change, a->status = &word), __VA_ARGS__);                                                         \
        CHECK(word == 0);                                                                                                  \
        POSITIONS_ROW(valid, change, DATA, __VA_ARGS__);                                                                   \
    } while (0)

static void set_boundaries(int32_t *array, int32_t first, int32_t second, int32_t third, int32_t fourth, int32_t fifth)
{
    const int32_t values[SEQUENCES + 1] = {first, second, third, fourth, fifth};
    memcpy(array, values, sizeof values);
}

static void boundaries(void)
{
    BOUNDARIES_ROW(packed(), set_boundaries(in.cu_seqlens, 0, 4, 3, 6, 8), "cu_seqlens[2]", "(3, read as int32)");
    BOUNDARIES_ROW(packed(), set_boundaries(in.cu_seqlens, -1, 4, 4, 6, 8), "cu_seqlens[0]", "(-1, read as int32)");
    BOUNDARIES_ROW(packed(), set_boundaries(in.cu_seqlens, 0, 4, 4, 6, 9), "cu_seqlens[4]", "(9, read as int32)");
    BOUNDARIES_ROW(packed(), set_boundaries(in.cu_seqlens, 0, 4, 4, 6, INT32_MAX), "cu_seqlens[4]",
                   "(2147483647, read as int32)");
    BOUNDARIES_ROW(padded(), set_boundaries(in.cu_seqlens_padded, 0, 4, 3, 6, 8), "cu_seqlens_padded[2]",
                   "(3, read as int32)");
    BOUNDARIES_ROW(padded(), set_boundaries(in.cu_seqlens_padded, 0, 4, 4, 6, 9), "cu_seqlens_padded[4]",
                   "(9, read as int32)");
    BOUNDARIES_ROW(padded(), set_boundaries(in.cu_seqlens_padded, 0, 3, 4, 6, 8), "cu_seqlens", "sequence 0 has 4 tokens");
    BOUNDARIES_ROW(padded(), set_boundaries(in.cu_seqlens, 0, 4, 2, 4, 6), "cu_seqlens[2]", "(2, read as int32)");
    BOUNDARIES_ROW(padded(), set_boundaries(in.cu_seqlens, 0, 4, 5, 6, 8), "cu_seqlens", "sequence 1 has 1 tokens");
}

static void use_int64_boundaries(int64_t sequences, int64_t first, int64_t second, int64_t third, int64_t fourth,
                                 int64_t fifth)
{
    const int64_t values[SEQUENCES + 1] = {first, second, third, fourth, fifth};
    memcpy(in.cu_seqlens, values, sizeof values);
    a->sequences = sequences;
}

/* Boundaries whose differences can overflow 64 bits. */
static void extreme_boundaries(void)
{
    BOUNDARIES_ROW(packed(), (use_int64_boundaries(1, INT64_MIN, INT64_MAX, 0, 0, 0), a->cu_seqlens_dtype = TROPE_I64),
                   "cu_seqlens[0]", "(-9223372036854775808, read as int64)");
    BOUNDARIES_ROW(packed(), (use_int64_boundaries(1, 0, INT64_MIN, 0, 0, 0), a->cu_seqlens_dtype = TROPE_I64),
                   "cu_seqlens[1]", "(-9223372036854775808, read as int64)");
}

/* The call reads int32 ids as int64, so two ids become one, which is far outside the table. */
static void ids_of_wrong_width(void)
{
    for (int i = 0; i < BATCH * TOKENS; i++)
        in.ids[i] = i % TOKENS;
    a->position_dtype = TROPE_I64;
}

static void wrong_widths(void)
{
    DATA_ROW(ids(), ids_of_wrong_width(), "position_ids", "as int64");
    BOUNDARIES_ROW(packed(), use_int64_boundaries(4, 0, 4, 4, 6, 8), "cu_seqlens[3]", "as int32");
    BOUNDARIES_ROW(packed(), use_int64_boundaries(1, 0, TOKENS, 0, 0, 0), "cu_seqlens[1]", "as int32");
    BOUNDARIES_ROW(packed(), a->cu_seqlens_dtype = TROPE_I64, "cu_seqlens[1]", "as int64");
}

static void use_rank(int32_t layout, int32_t ranks, int32_t rank)
{
    a->cp_layout = layout;
    a->cp_size = ranks;
    a->cp_rank = rank;
}

/* Boundaries in the whole stream that the ranks cannot split. With two ranks, lengths must be multiples of 4 for zigzag,
 * and of 2 for contiguous and striped. Flat accepts any length. */
static void boundaries_that_ranks_cannot_split(void)
{
    for (int rank = 0; rank < 2; rank++) {
        BOUNDARIES_ROW(packed(), (use_rank(TROPE_CP_STRIPED, 2, rank), set_boundaries(in.cu_seqlens, 1, 9, 9, 13, 15)),
                       "cu_seqlens[0]", "(1, read as int32)");
        BOUNDARIES_ROW(packed(), (use_rank(TROPE_CP_ZIGZAG, 2, rank), set_boundaries(in.cu_seqlens, 1, 5, 5, 9, 13)),
                       "cu_seqlens[0]", "(1, read as int32)");
        BOUNDARIES_ROW(packed(), (use_rank(TROPE_CP_ZIGZAG, 2, rank), set_boundaries(in.cu_seqlens, 0, 8, 8, 14, 16)),
                       "cu_seqlens", "sequence 2 has 6 tokens");
        BOUNDARIES_ROW(packed(), (use_rank(TROPE_CP_ZIGZAG, 2, rank), set_boundaries(in.cu_seqlens, 0, 4, 9, 13, 16)),
                       "cu_seqlens", "sequence 1 has 5 tokens");
        BOUNDARIES_ROW(packed(), (use_rank(TROPE_CP_STRIPED, 3, rank), set_boundaries(in.cu_seqlens, 0, 8, 8, 14, 24)),
                       "cu_seqlens", "sequence 0 has 8 tokens");
        BOUNDARIES_ROW(packed(), (use_rank(TROPE_CP_CONTIGUOUS, 2, rank), set_boundaries(in.cu_seqlens, 0, 8, 8, 11, 16)),
                       "cu_seqlens", "sequence 2 has 3 tokens");
        BOUNDARIES_ROW(packed(), (use_rank(TROPE_CP_CONTIGUOUS, 2, rank), set_boundaries(in.cu_seqlens, 0, 8, 8, 12, 18)),
                       "cu_seqlens[4]", "(18, read as int32)");
        BOUNDARIES_ROW(packed(), (use_rank(TROPE_CP_FLAT, 2, rank), set_boundaries(in.cu_seqlens, 0, 8, 8, 12, 17)),
                       "cu_seqlens[4]", "(17, read as int32)");
        begin(packed());
        use_rank(TROPE_CP_FLAT, 2, rank);
        set_boundaries(in.cu_seqlens, 0, 3, 8, 13, 16);
        CHECK_MESSAGE(trope_forward(a) == TROPE_OK, "%s", trope_last_error());
    }
}

/* Tokens of this rank are in no sequence, and the call has no padding policy. */
static void tokens_in_no_sequence(void)
{
    BOUNDARIES_ROW(packed(), set_boundaries(in.cu_seqlens, 1, 4, 4, 6, 8), "cu_seqlens[0]", "padding");
    BOUNDARIES_ROW(packed(), set_boundaries(in.cu_seqlens, 0, 4, 4, 6, 7), "cu_seqlens[4]", "(7 of 8, read as int32)");
    BOUNDARIES_ROW(packed(), a->sequences = SEQUENCES - 1, "cu_seqlens[3]", "padding");
    BOUNDARIES_ROW(packed(), memset(in.cu_seqlens, 0, sizeof in.cu_seqlens), "cu_seqlens[4]", "padding");
    /* In the first call, cu_seqlens has the offsets of this rank instead of the offsets of the whole stream. In the others,
     * the last tokens of the stream are in no sequence. With FLAT, all of them are on the last rank. */
    BOUNDARIES_ROW(packed(), use_rank(TROPE_CP_CONTIGUOUS, 2, 0), "cu_seqlens[4]", "(8 of 16, read as int32)");
    BOUNDARIES_ROW(packed(), (use_rank(TROPE_CP_FLAT, 2, 1), set_boundaries(in.cu_seqlens, 0, 4, 4, 8, 12)),
                   "cu_seqlens[4]", "(12 of 16, read as int32)");
    begin(packed());
    use_rank(TROPE_CP_FLAT, 2, 0);
    set_boundaries(in.cu_seqlens, 0, 4, 4, 8, 12);
    CHECK_MESSAGE(trope_forward(a) == TROPE_OK, "%s", trope_last_error());
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
    DATA_ROW(starts(), use_start(INT64_MAX), "start_positions", "as int64"); /* adding an index overflows */
    DATA_ROW(starts(), use_start(INT64_MIN), "start_positions", "as int64");
    DATA_ROW(packed(), (a->start_positions = in.starts, a->position_dtype = TROPE_I32, in.starts[2] = 7), "start_positions",
             "position 8 of batch entry 0, token 5");
    DATA_ROW(packed(), (a->stream_positions = 1, a->angle_rows = 7), "angle_rows", "position 7 of");
    DATA_ROW(packed(), a->angle_rows = 3, "angle_rows", "position 3 of");
}

/* ---- Poisoned and clamped positions ---- */

enum { ROWS = 9, OUTSIDE = 6 };

/* Two sequences of 3 tokens, with a table of 9 rows. In some_outside, the ids of tokens 1 and 5 are outside the table. */
typedef struct ranged_call {
    packed_call p;
    float freqs[ROWS * 4];
} ranged_call;

static const int32_t two_of_three[] = {0, 3, 6};
static const int64_t some_outside[OUTSIDE] = {8, 9, 0, 4, 5, -2};

static void make_ranged_call(ranged_call *r, const int64_t *position_ids)
{
    random_state random = {3};
    make_packed_call(&r->p, OUTSIDE, two_of_three, 2);
    for (int i = 0; i < ROWS * 4; i++)
        r->freqs[i] = (float)(3 * random_real(&random));
    r->p.c.args.inv_freq = NULL;
    call_freqs(&r->p.c, r->freqs, TROPE_COLUMNS_PAIR, ROWS);
    r->p.c.args.position_ids = position_ids;
    r->p.c.args.position_dtype = TROPE_I64;
    r->p.c.args.ids_layout = TROPE_IDS_TOKENS;
}

static void check_poisoned(void)
{
    static const int64_t inside[] = {8, 7, 0, 4, 5, 2};
    ranged_call r;
    int32_t word = 0x40;
    make_ranged_call(&r, some_outside);
    r.p.c.args.status = &word;
    CHECK_MESSAGE(trope_forward(call_args(&r.p.c)) == TROPE_OK, "%s", trope_last_error());
    CHECK(word == (0x40 | TROPE_STATUS_POSITION));
    for (int i = 0; i < OUTSIDE * ROW_ELEMENTS; i++) {
        const int token = i / ROW_ELEMENTS, outside = token == 1 || token == 5;
        CHECK_MESSAGE((isnan(r.p.dst[i]) != 0) == outside, "token %d, element %d is %g", token, i % ROW_ELEMENTS,
                      (double)r.p.dst[i]);
        CHECK(!all_bytes_are_ff(&r.p.dst[i], sizeof(float)));
    }
    CHECK(guards_are_intact(&r.p));
    word = 0;
    r.p.c.args.position_ids = inside;
    CHECK(trope_forward(call_args(&r.p.c)) == TROPE_OK && word == 0);
    free_packed_call(&r.p);
}

/* With CLAMP, these ids or start positions give the same result as the ids `nearest`. The status word stays unchanged. */
static void check_clamped(const int64_t *position_ids, const int64_t *start_positions, const int64_t *nearest)
{
    ranged_call r, s;
    int32_t word = 0;
    make_ranged_call(&r, position_ids);
    make_ranged_call(&s, nearest);
    r.p.c.args.start_positions = start_positions;
    r.p.c.args.ids_layout = start_positions ? 0 : TROPE_IDS_TOKENS;
    r.p.c.args.out_of_range = TROPE_RANGE_CLAMP;
    r.p.c.args.status = &word;
    CHECK_MESSAGE(trope_forward(call_args(&r.p.c)) == TROPE_OK, "%s", trope_last_error());
    CHECK_MESSAGE(trope_forward(call_args(&s.p.c)) == TROPE_OK, "%s", trope_last_error());
    CHECK(word == 0 && !memcmp(r.p.dst, s.p.dst, OUTSIDE * ROW_ELEMENTS * sizeof(float)));
    free_packed_call(&r.p);
    free_packed_call(&s.p);
}

/* The ids of padding are ignored, unless padding is rotated. */
static void check_ids_of_padding(void)
{
    static const int32_t unpadded[] = {0, 1, 3};
    static const int64_t wild[OUTSIDE] = {8, INT64_MIN, INT64_MAX, 0, 1, -9};
    for (int32_t padding = TROPE_PADDING_ZERO; padding <= TROPE_PADDING_ROTATE; padding++) {
        ranged_call r;
        make_ranged_call(&r, wild);
        r.p.c.args.cu_seqlens = unpadded;
        r.p.c.args.cu_seqlens_padded = two_of_three;
        r.p.c.args.padding = padding;
        const trope_status status = trope_forward(call_args(&r.p.c));
        if (padding == TROPE_PADDING_ROTATE)
            CHECK(status == TROPE_ERROR_DATA && strstr(trope_last_error(), "token 1") && is_untouched(&r.p));
        else
            CHECK_MESSAGE(status == TROPE_OK && guards_are_intact(&r.p), "%s", trope_last_error());
        free_packed_call(&r.p);
    }
}

int main(void)
{
    boundaries();
    extreme_boundaries();
    wrong_widths();
    boundaries_that_ranks_cannot_split();
    tokens_in_no_sequence();
    out_of_range();
    check_poisoned();
    check_clamped(some_outside, NULL, (const int64_t[]){8, 8, 0, 4, 5, 0});
    /* Adding an index to a start position of this size overflows. */
    check_clamped(NULL, (const int64_t[]){INT64_MAX - 1, 0}, (const int64_t[]){8, 8, 8, 0, 1, 2});
    check_ids_of_padding();
    return refused_result();
}
