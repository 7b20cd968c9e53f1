/* trope_positions gives the positions that each layout defines. Over all ranks, the positions are a permutation. In random
 * calls, they equal the positions of the reference. */
#include "support/check.h"
#include "support/config.h"
#include "support/reference.h"
#include "varlen/position.h"
#include "varlen/position_source.h"

/* The rules in 32-bit arithmetic, as CUDA uses them. */
#define INTEGER            int32_t
#define FN(name)           narrow_##name
#define DIVIDE(divisor, n) trope_divide(divisor, (uint32_t)(n))
#include "varlen/sequence_template.h"

/* trope_positions reads no operands and no angles. */
static trope_args dense(int64_t tokens, int32_t layout, int32_t size, int32_t rank)
{
    call c = call_make(TROPE_F32, 1, tokens);
    c.args.cp_layout = layout;
    c.args.cp_size = size;
    c.args.cp_rank = rank;
    return c.args;
}

static void use_cu_seqlens(trope_args *args, const int32_t *cu_seqlens, int64_t sequences)
{
    args->cu_seqlens = cu_seqlens;
    args->cu_seqlens_dtype = TROPE_I32;
    args->sequences = sequences;
}

static void check_list(const trope_args *args, const int64_t *expected, int64_t count, const char *what)
{
    int64_t positions[32];
    CHECK_MESSAGE(trope_positions(args, positions, NULL) == TROPE_OK, "%s", trope_last_error());
    for (int64_t i = 0; i < count; i++)
        CHECK_MESSAGE(positions[i] == expected[i], "%s: token %lld has position %lld, expected %lld", what, (long long)i,
                      (long long)positions[i], (long long)expected[i]);
}

/* The expected positions are written by hand. */
static void check_examples(void)
{
    const trope_args contiguous = dense(4, TROPE_CP_CONTIGUOUS, 3, 1), zigzag_first = dense(4, TROPE_CP_ZIGZAG, 2, 0),
                     zigzag_second = dense(4, TROPE_CP_ZIGZAG, 2, 1), striped = dense(4, TROPE_CP_STRIPED, 3, 2),
                     flat = dense(4, TROPE_CP_FLAT, 3, 2);
    check_list(&contiguous, (const int64_t[]){4, 5, 6, 7}, 4, "contiguous");
    check_list(&zigzag_first, (const int64_t[]){0, 1, 6, 7}, 4, "zigzag, rank 0");
    check_list(&zigzag_second, (const int64_t[]){2, 3, 4, 5}, 4, "zigzag, rank 1");
    check_list(&striped, (const int64_t[]){2, 5, 8, 11}, 4, "striped");
    check_list(&flat, (const int64_t[]){8, 9, 10, 11}, 4, "flat");

    /* Sequences of 4, 0 and 8 tokens on two ranks. The lists have the positions of the 6 tokens on rank 1. */
    const int32_t cu_seqlens[] = {0, 4, 4, 12};
    trope_args packed = dense(6, TROPE_CP_ZIGZAG, 2, 1);
    use_cu_seqlens(&packed, cu_seqlens, 3);
    check_list(&packed, (const int64_t[]){1, 2, 2, 3, 4, 5}, 6, "packed zigzag");
    packed.cp_layout = TROPE_CP_STRIPED;
    check_list(&packed, (const int64_t[]){1, 3, 1, 3, 5, 7}, 6, "packed striped");
    packed.cp_layout = TROPE_CP_FLAT;
    check_list(&packed, (const int64_t[]){2, 3, 4, 5, 6, 7}, 6, "packed flat");
    packed.stream_positions = 1;
    check_list(&packed, (const int64_t[]){6, 7, 8, 9, 10, 11}, 6, "packed flat, stream positions");
}

/* In every layout, a single rank holds whole sequences of any length. The test uses the 64-bit and the 32-bit rules. */
static void check_one_rank(void)
{
    static const int64_t counted[] = {0, 1, 2, 3, 4, 5, 6}, expected[] = {0, 1, 2, 0, 0, 1, 2};
    static const int32_t cu_seqlens[] = {0, 3, 3, 4, 7};
    for (int32_t layout = TROPE_CP_CONTIGUOUS; layout <= TROPE_CP_FLAT; layout++) {
        const trope_args whole = dense(7, layout, 1, 0);
        trope_args packed = whole;
        use_cu_seqlens(&packed, cu_seqlens, 4);
        check_list(&whole, counted, 7, "one rank");
        check_list(&packed, expected, 7, "one rank, packed");
        const trope_position_source s = trope_plan_position_source(&packed);
        for (int i = 0; i < 4; i++) {
            const narrow_bounds b = {cu_seqlens[i], cu_seqlens[i + 1], cu_seqlens[i], cu_seqlens[i + 1]};
            const narrow_span span = narrow_span_of_bounds(&s, i + 1, b, 0);
            CHECK_MESSAGE(narrow_check_bounds(&s, b) == 0, "layout %d: sequence %d is refused", layout, i);
            CHECK_MESSAGE(trope_check_sequence(&s, i) == 0, "layout %d: sequence %d is refused", layout, i);
            for (int32_t token = span.begin; token < span.end; token++)
                CHECK_MESSAGE(narrow_index_in_sequence(&s, &span, token) == token - cu_seqlens[i],
                              "layout %d: token %d of sequence %d has a wrong index", layout, token, i);
        }
    }
}

/* Each position of each sequence must be on exactly one rank. */
static void check_permutation(trope_args *args, const int64_t *first, const int64_t *length, int64_t sequences)
{
    int64_t total = 0;
    for (int64_t i = 0; i < sequences; i++)
        total = first[i] + length[i] > total ? first[i] + length[i] : total;
    int64_t *positions = malloc((size_t)(args->tokens + 1) * sizeof *positions);
    int32_t *sequence_of = malloc((size_t)(args->tokens + 1) * sizeof *sequence_of), wrong = 0;
    char *used = calloc((size_t)total + 1, 1);
    for (args->cp_rank = 0; args->cp_rank < args->cp_size; args->cp_rank++) {
        CHECK_MESSAGE(trope_positions(args, positions, sequence_of) == TROPE_OK, "%s", trope_last_error());
        for (int64_t i = 0; i < args->tokens; i++) {
            const int32_t s = sequence_of[i];
            wrong +=
                s < 0 || s >= sequences || positions[i] < 0 || positions[i] >= length[s] || used[first[s] + positions[i]]++;
        }
    }
    for (int64_t i = 0; i < total; i++)
        wrong += used[i] != 1;
    CHECK_MESSAGE(wrong == 0, "layout %d, %d ranks, %lld sequences: %d positions are missing, repeated or invalid",
                  args->cp_layout, args->cp_size, (long long)sequences, wrong);
    free(positions);
    free(sequence_of);
    free(used);
}

static void check_permutations(random_state *random)
{
    int32_t cu_seqlens[41] = {0};
    int64_t first[40], length[40];
    const int32_t layout = (int32_t)random_between(random, TROPE_CP_CONTIGUOUS, TROPE_CP_FLAT);
    const int32_t ranks = (int32_t)random_between(random, 1, 9);
    const int64_t sequences = random_between(random, 1, 40);
    const int64_t unit = layout == TROPE_CP_ZIGZAG && ranks > 1 ? 2 * ranks : ranks; /* one rank accepts any length */
    for (int64_t i = 0; i < sequences; i++) {
        first[i] = cu_seqlens[i];
        length[i] = unit * (random_between(random, 0, 2) ? random_between(random, 1, 30) : 0);
        if (layout == TROPE_CP_FLAT && i + 1 < sequences) /* only the total must be divisible by ranks */
            length[i] += random_between(random, 0, 5);
        if (i + 1 == sequences)
            length[i] += (ranks - (first[i] + length[i]) % ranks) % ranks;
        cu_seqlens[i + 1] = (int32_t)(first[i] + length[i]);
    }
    trope_args args = dense(cu_seqlens[sequences] / ranks, layout, ranks, 0);
    use_cu_seqlens(&args, cu_seqlens, sequences);
    check_permutation(&args, first, length, sequences);
    trope_args whole = dense(unit * random_between(random, 1, 50) / ranks, layout, ranks, 0);
    const int64_t none = 0, all = whole.tokens * ranks;
    check_permutation(&whole, &none, &all, 1);
}

/* Compares the positions of a random call with the reference. */
static void check_random(uint64_t seed)
{
    const config_choices choices = config_choose(seed);
    config *c = config_make(seed, &choices);
    call k = config_call(c, 0);
    const trope_args args = *call_args(&k);
    const int64_t axes = args.position_axes > 0 ? args.position_axes : 1, rows = args.batch * args.tokens;
    int64_t *positions = malloc((size_t)(axes * rows + 1) * sizeof *positions);
    int32_t *sequences = malloc((size_t)(rows + 1) * sizeof *sequences);
    positions[axes * rows] = -77;
    sequences[rows] = -77;
    CHECK_MESSAGE(trope_positions(&args, positions, sequences) == TROPE_OK, "%s", trope_last_error());
    int wrong = positions[axes * rows] != -77 || sequences[rows] != -77;
    for (int64_t i = 0; i < rows; i++) {
        const reference_place place = reference_find(&args, i / args.tokens, i % args.tokens);
        wrong += sequences[i] != place.sequence;
        for (int64_t axis = 0; axis < axes; axis++)
            wrong += positions[axis * rows + i] != place.position[axis];
    }
    char description[2048];
    config_describe(c, description, sizeof description);
    CHECK_MESSAGE(wrong == 0, "seed 0x%llx: %d positions differ from the reference\n    %s", (unsigned long long)seed,
                  wrong, description);
    free(positions);
    free(sequences);
    config_free(c);
}

int main(void)
{
    random_state random = {2026};
    check_examples();
    check_one_rank();
    for (int i = 0; i < 400; i++)
        check_permutations(&random);
    for (uint64_t seed = 1; seed <= 3000; seed++)
        check_random(seed);
    return check_result();
}
