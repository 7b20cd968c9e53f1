/* cu_seqlens, position_ids and start_positions that cannot be used are errors that name what is wrong, and nothing has been
 * written; positions out of range are poisoned when a status word is given, or clamped. */
#include <math.h>

#include "varlen/packed_call.h"

/* Both directions are refused with TROPE_ERROR_DATA and the words, and leave everything alone. */
static void check_refused(packed_call *p, const char *words)
{
    for (int backward = 0; backward < 2; backward++) {
        const trope_status status = backward ? trope_backward(call_args(&p->c)) : trope_forward(call_args(&p->c));
        CHECK_MESSAGE(status == TROPE_ERROR_DATA, "expected TROPE_ERROR_DATA (%s), got %s", words,
                      trope_status_name(status));
        CHECK_MESSAGE(strstr(trope_last_error(), words) != NULL, "\"%s\" does not say \"%s\"", trope_last_error(), words);
        CHECK_MESSAGE(is_untouched(p), "%s: something was written", words);
    }
}

static void check_positions_refused(packed_call *p, const char *words)
{
    int64_t positions[64];
    memset(positions, 0xff, sizeof positions);
    CHECK(trope_positions(call_args(&p->c), positions, NULL) == TROPE_ERROR_DATA);
    CHECK_MESSAGE(strstr(trope_last_error(), words) != NULL, "\"%s\" does not say \"%s\"", trope_last_error(), words);
    CHECK(all_bytes_are_ff(positions, sizeof positions));
}

static void check_cu_seqlens(const int32_t *cu_seqlens, const int32_t *cu_seqlens_padded, const char *words)
{
    packed_call p;
    int32_t status_word = 0;
    make_packed_call(&p, 12, cu_seqlens, 4);
    p.c.args.cu_seqlens_padded = cu_seqlens_padded;
    p.c.args.padding = cu_seqlens_padded ? TROPE_PADDING_ZERO : 0;
    check_refused(&p, words);
    check_positions_refused(&p, words);
    p.c.args.status = &status_word; /* on the CPU still an error */
    check_refused(&p, words);
    CHECK(status_word == 0);
    free_packed_call(&p);
}

static void check_boundaries(void)
{
    static const int32_t good[] = {0, 3, 3, 8, 12}, decreasing[] = {0, 5, 3, 8, 12}, negative[] = {-1, 3, 3, 8, 12},
                         overrun[] = {0, 3, 3, 8, 13}, huge[] = {0, 3, 3, 8, INT32_MAX}, longer[] = {0, 3, 4, 8, 12};
    check_cu_seqlens(decreasing, NULL, "cu_seqlens[2] (3, read as int32)");
    check_cu_seqlens(negative, NULL, "cu_seqlens[0] (-1, read as int32)");
    check_cu_seqlens(overrun, NULL, "cu_seqlens[4] (13, read as int32)");
    check_cu_seqlens(huge, NULL, "cu_seqlens[4] (2147483647, read as int32)");
    check_cu_seqlens(good, decreasing, "cu_seqlens_padded[2] (3, read as int32)");
    check_cu_seqlens(good, overrun, "cu_seqlens_padded[4] (13, read as int32)");
    check_cu_seqlens(longer, good, "sequence 1 ");
}

/* Lengths that 64 bits cannot hold. */
static void check_extremes(void)
{
    static const int64_t far_apart[] = {INT64_MIN, INT64_MAX}, far_back[] = {0, INT64_MIN};
    const int32_t one[] = {0, 12};
    packed_call p;
    make_packed_call(&p, 12, one, 1);
    call_cu_seqlens(&p.c, far_apart, TROPE_I64, 1);
    check_refused(&p, "cu_seqlens[0] (-9223372036854775808, read as int64)");
    call_cu_seqlens(&p.c, far_back, TROPE_I64, 1);
    check_refused(&p, "cu_seqlens[1] (-9223372036854775808, read as int64)");
    free_packed_call(&p);
}

static void check_context_parallel(int32_t layout, const int32_t *cu_seqlens, const char *words)
{
    packed_call p;
    make_packed_call(&p, 12, cu_seqlens, 4);
    p.c.args.padding = TROPE_PADDING_ZERO;
    p.c.args.cp_size = 2;
    p.c.args.cp_layout = layout;
    for (p.c.args.cp_rank = 0; p.c.args.cp_rank < 2; p.c.args.cp_rank++) {
        check_refused(&p, words);
        check_positions_refused(&p, words);
    }
    free_packed_call(&p);
}

/* Global lengths that two ranks cannot share. Zigzag needs multiples of 4, the others of 2; flat takes anything. */
static void check_lengths(void)
{
    static const int32_t odd_share[] = {0, 4, 4, 10, 14}, odd[] = {0, 4, 9, 16, 20}, odd_start[] = {1, 5, 5, 9, 13};
    check_context_parallel(TROPE_CP_ZIGZAG, odd_share, "sequence 2 has 6 tokens");
    check_context_parallel(TROPE_CP_ZIGZAG, odd, "sequence 1 has 5 tokens");
    check_context_parallel(TROPE_CP_CONTIGUOUS, odd, "sequence 1 has 5 tokens");
    check_context_parallel(TROPE_CP_STRIPED, odd, "sequence 1 has 5 tokens");
    check_context_parallel(TROPE_CP_ZIGZAG, odd_start, "cu_seqlens[0] (1, read as int32)");
    packed_call p;
    make_packed_call(&p, 12, odd, 4);
    p.c.args.padding = TROPE_PADDING_ZERO;
    p.c.args.cp_size = 2;
    p.c.args.cp_layout = TROPE_CP_FLAT;
    CHECK_MESSAGE(trope_forward(call_args(&p.c)) == TROPE_OK, "%s", trope_last_error());
    free_packed_call(&p);
}

#define ROWS 9

/* Two sequences of 3 tokens with a table of 9 rows, positions given in one of three ways; those of tokens 1 and 5 are
 * outside. */
typedef struct ranged_call {
    packed_call p;
    float freqs[ROWS * 4];
} ranged_call;

static const int32_t two_of_three[] = {0, 3, 6};
static const int64_t ids[] = {8, 9, 0, 4, 5, -2};

static void use_ids(call *c, const int64_t *position_ids)
{
    c->args.position_ids = position_ids;
    c->args.position_dtype = TROPE_I64;
    c->args.ids_layout = TROPE_IDS_TOKENS;
}

static void use_starts(call *c, const int64_t *starts)
{
    c->args.position_ids = NULL;
    c->args.ids_layout = 0;
    c->args.start_positions = starts;
    c->args.position_dtype = starts ? TROPE_I64 : 0;
}

static void make_ranged_call(ranged_call *r)
{
    random_state random = {3};
    make_packed_call(&r->p, 6, two_of_three, 2);
    for (int i = 0; i < ROWS * 4; i++)
        r->freqs[i] = (float)(3 * random_real(&random));
    r->p.c.args.inv_freq = NULL;
    call_freqs(&r->p.c, r->freqs, TROPE_COLUMNS_PAIR, ROWS);
    use_ids(&r->p.c, ids);
}

static void check_refused_positions(void)
{
    ranged_call r;
    make_ranged_call(&r);
    check_refused(&r.p, "position 9 of batch entry 0, token 1");
    static const int64_t starts[] = {6, 7};
    use_starts(&r.p.c, starts);
    check_refused(&r.p, "position 9 of batch entry 0, token 5");
    static const int64_t largest[] = {0, INT64_MAX}; /* to which an index cannot be added */
    use_starts(&r.p.c, largest);
    check_refused(&r.p, "batch entry 0, token 3");
    use_starts(&r.p.c, NULL);
    r.p.c.args.stream_positions = 1;
    r.p.c.args.angle_rows = 5;
    check_refused(&r.p, "position 5 of batch entry 0, token 5");
    r.p.c.args.stream_positions = 0;
    r.p.c.args.angle_rows = 2;
    check_refused(&r.p, "position 2 of batch entry 0, token 2");
    free_packed_call(&r.p);
}

static void check_poisoned(void)
{
    ranged_call r;
    int32_t status_word = 0x40;
    make_ranged_call(&r);
    r.p.c.args.status = &status_word;
    CHECK_MESSAGE(trope_forward(call_args(&r.p.c)) == TROPE_OK, "%s", trope_last_error());
    CHECK(status_word == (0x40 | TROPE_STATUS_POSITION));
    for (int i = 0; i < 6 * ROW_ELEMENTS; i++) {
        const int token = i / ROW_ELEMENTS, outside = token == 1 || token == 5;
        CHECK_MESSAGE((isnan(r.p.dst[i]) != 0) == outside, "token %d, element %d is %g", token, i % ROW_ELEMENTS,
                      (double)r.p.dst[i]);
        CHECK(!all_bytes_are_ff(&r.p.dst[i], sizeof(float)));
    }
    CHECK(guards_are_intact(&r.p));
    status_word = 0;
    static const int64_t inside[] = {8, 7, 0, 4, 5, 2};
    r.p.c.args.position_ids = inside;
    CHECK(trope_forward(call_args(&r.p.c)) == TROPE_OK && status_word == 0);
    free_packed_call(&r.p);
}

/* Clamped, 9 is 8 and -2 is 0, and the status word is left alone. */
static void check_clamped(void)
{
    static const int64_t nearest[] = {8, 8, 0, 4, 5, 0};
    ranged_call r, s;
    int32_t status_word = 0;
    make_ranged_call(&r);
    make_ranged_call(&s);
    r.p.c.args.out_of_range = TROPE_RANGE_CLAMP;
    r.p.c.args.status = &status_word;
    s.p.c.args.position_ids = nearest;
    CHECK_MESSAGE(trope_forward(call_args(&r.p.c)) == TROPE_OK, "%s", trope_last_error());
    CHECK_MESSAGE(trope_forward(call_args(&s.p.c)) == TROPE_OK, "%s", trope_last_error());
    CHECK(status_word == 0 && !memcmp(r.p.dst, s.p.dst, 6 * ROW_ELEMENTS * sizeof(float)));
    free_packed_call(&r.p);
    free_packed_call(&s.p);
}

/* A start position so large that no index can be added to it is out of range for the whole sequence. */
static void check_clamped_start(void)
{
    static const int64_t starts[] = {INT64_MAX - 1, 0}, nearest[] = {8, 8, 8, 0, 1, 2};
    static const int32_t two[] = {0, 3, 6};
    ranged_call r, s;
    make_ranged_call(&r);
    make_ranged_call(&s);
    use_starts(&r.p.c, starts);
    r.p.c.args.cu_seqlens = two;
    r.p.c.args.sequences = 2;
    r.p.c.args.out_of_range = TROPE_RANGE_CLAMP;
    s.p.c.args.position_ids = nearest;
    CHECK_MESSAGE(trope_forward(call_args(&r.p.c)) == TROPE_OK, "%s", trope_last_error());
    CHECK_MESSAGE(trope_forward(call_args(&s.p.c)) == TROPE_OK, "%s", trope_last_error());
    CHECK(!memcmp(r.p.dst, s.p.dst, 6 * ROW_ELEMENTS * sizeof(float)));
    free_packed_call(&r.p);
    free_packed_call(&s.p);
}

/* The ids of padding that is not rotated are not looked at. */
static void check_ids_of_padding(void)
{
    static const int32_t real[] = {0, 1, 3};
    static const int64_t wild[] = {8, INT64_MIN, INT64_MAX, 0, 1, -9};
    ranged_call r;
    make_ranged_call(&r);
    r.p.c.args.cu_seqlens = real;
    r.p.c.args.cu_seqlens_padded = two_of_three;
    r.p.c.args.padding = TROPE_PADDING_ZERO;
    r.p.c.args.position_ids = wild;
    CHECK_MESSAGE(trope_forward(call_args(&r.p.c)) == TROPE_OK, "%s", trope_last_error());
    CHECK(guards_are_intact(&r.p));
    free_packed_call(&r.p);
    make_ranged_call(&r);
    r.p.c.args.cu_seqlens = real;
    r.p.c.args.cu_seqlens_padded = two_of_three;
    r.p.c.args.position_ids = wild;
    r.p.c.args.padding = TROPE_PADDING_ROTATE;
    check_refused(&r.p, "token 1");
    free_packed_call(&r.p);
}

/* Tokens of no sequence are an error where nothing says what to write for them, on whichever rank they are. */
static void check_no_policy(void)
{
    static const int32_t late[] = {1, 3, 3, 8, 12}, early[] = {0, 3, 3, 8, 11}, halves[] = {0, 4, 4, 12, 20};
    packed_call p;
    make_packed_call(&p, 12, late, 4);
    check_refused(&p, "cu_seqlens[0] (1, read as int32)");
    p.c.args.cu_seqlens = early;
    check_refused(&p, "cu_seqlens[4] (11 of 12, read as int32)");
    p.c.args.cu_seqlens = halves; /* 10 of the 12 tokens of either rank */
    p.c.args.cp_size = 2;
    p.c.args.cp_layout = TROPE_CP_CONTIGUOUS;
    check_refused(&p, "cu_seqlens[4] (20 of 24, read as int32)");
    p.c.args.cp_layout = TROPE_CP_FLAT; /* all are the last rank's */
    p.c.args.cp_rank = 1;
    check_refused(&p, "cu_seqlens[4] (20 of 24, read as int32)");
    p.c.args.cp_rank = 0;
    CHECK_MESSAGE(trope_forward(call_args(&p.c)) == TROPE_OK, "%s", trope_last_error());
    free_packed_call(&p);
}

int main(void)
{
    check_boundaries();
    check_extremes();
    check_no_policy();
    check_lengths();
    check_refused_positions();
    check_poisoned();
    check_clamped();
    check_clamped_start();
    check_ids_of_padding();
    return check_result();
}
