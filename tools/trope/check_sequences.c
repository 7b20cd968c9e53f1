/* Finds the sequence and the position of each token of a problem. It walks through the stream of all context parallel ranks
 * and shares no code with the library. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "command.h"

/* Parses "0,5,9" into *boundaries, which the caller frees. Returns nonzero after a complaint. */
static int parse_boundaries(const char *label, const char *text, int64_t **boundaries, int64_t *sequences)
{
    const int count = list_length(text);
    int64_t *b = *boundaries = malloc((size_t)count * sizeof *b);
    if (!b)
        return complain("out of memory");
    if (parse_integers(label, text, 0, count, b))
        return RESULT_REFUSED;
    if (b[0])
        return complain("%s: must begin with 0: they are boundaries, not lengths", label);
    for (int i = 1; i < count; i++)
        if (b[i] < b[i - 1])
            return complain("%s: must ascend: they are boundaries, not lengths", label);
    *sequences = count - 1;
    return *sequences ? 0 : complain("%s: has no sequence; for example, 0,5,9 has two", label);
}

static int parse_sequences(check_problem *p)
{
    const check_options *o = p->options;
    int64_t stored;
    if (!o->cu_seqlens)
        return 0;
    if (parse_boundaries("--cu-seqlens", o->cu_seqlens, &p->cu_seqlens, &p->args.sequences))
        return RESULT_REFUSED;
    p->args.cu_seqlens_dtype = TROPE_I64;
    p->args.padding = o->sequence.padding;
    if (!o->cu_seqlens_padded)
        return 0;
    if (parse_boundaries("--cu-seqlens-padded", o->cu_seqlens_padded, &p->cu_seqlens_padded, &stored))
        return RESULT_REFUSED;
    if (stored != p->args.sequences)
        return complain("--cu-seqlens-padded: must have as many boundaries as --cu-seqlens");
    return 0;
}

int64_t check_tokens_of_sequences(const check_options *options)
{
    const int64_t ranks = cp_ranks(&options->sequence);
    const char *label = options->cu_seqlens_padded ? "--cu-seqlens-padded" : "--cu-seqlens";
    const char *text = options->cu_seqlens_padded ? options->cu_seqlens_padded : options->cu_seqlens;
    int64_t *boundaries = NULL, sequences, end = 0;
    if (!text)
        return 0;
    int failed = parse_boundaries(label, text, &boundaries, &sequences);
    if (!failed)
        end = boundaries[sequences];
    free(boundaries);
    if (!failed && (end < ranks || end % ranks))
        failed = complain("%s: ends at %lld, which must be divisible by --cp-size %lld, and not 0; or give --tokens, the "
                          "number of this rank's tokens",
                          label, (long long)end, (long long)ranks);
    return failed ? -1 : end / ranks;
}

/* Returns whether this rank has a token of a sequence of `length`. `place` is the token's index in the stream. Each rank
 * has its tokens in the order of their positions. */
static int is_mine(const check_problem *p, int64_t position, int64_t length, int64_t place)
{
    const int64_t ranks = cp_ranks(&p->options->sequence), rank = p->args.cp_rank;
    int64_t chunk;
    if (ranks == 1)
        return 1;
    switch (p->args.cp_layout) {
    case TROPE_CP_CONTIGUOUS:
        return position / (length / ranks) == rank;
    case TROPE_CP_ZIGZAG:
        chunk = position / (length / (2 * ranks));
        return chunk == rank || chunk == 2 * ranks - 1 - rank;
    case TROPE_CP_STRIPED:
        return position % ranks == rank;
    default:
        return place / p->args.tokens == rank;
    }
}

/* Places this rank's tokens of one sequence, which starts at `begin` in the stream. `next` is the local index of the first
 * of them. Returns the local index after the last one. */
static int64_t place_sequence(check_problem *p, int64_t begin, int64_t length, int64_t unpadded, int64_t origin,
                              int64_t next)
{
    for (int64_t i = 0; i < length; i++) {
        if (!is_mine(p, i, length, begin + i))
            continue;
        p->position[next] = origin + i;
        p->is_padding[next++] = i >= unpadded;
    }
    return next;
}

/* Places the tokens after the last sequence. Their positions count from its end. */
static void place_rest(check_problem *p, int64_t end, int64_t next)
{
    const int64_t place = p->args.cp_rank * p->args.tokens;
    const int64_t first = p->args.cp_layout == TROPE_CP_FLAT && place > end ? place - end : 0;
    for (int64_t t = next; t < p->args.tokens; t++) {
        p->position[t] = first + t - next;
        p->is_padding[t] = 1;
    }
}

static void place_all(check_problem *p)
{
    const int64_t ranks = cp_ranks(&p->options->sequence);
    if (!p->cu_seqlens) {
        (void)place_sequence(p, 0, p->args.tokens * ranks, INT64_MAX, 0, 0);
        return;
    }
    const int64_t *unpadded = p->cu_seqlens, *stored = p->cu_seqlens_padded ? p->cu_seqlens_padded : unpadded;
    int64_t next = 0;
    for (int64_t s = 0; s < p->args.sequences; s++)
        next = place_sequence(p, stored[s], stored[s + 1] - stored[s], unpadded[s + 1] - unpadded[s],
                              p->args.stream_positions ? unpadded[s] : 0, next);
    place_rest(p, stored[p->args.sequences], next);
}

/* Lets the library check that the sequences can be split and that no field is missing, because the walk relies on both. */
static int refuse_sequences(check_problem *p)
{
    trope_args args = p->args;
    args.cu_seqlens = p->cu_seqlens;
    args.cu_seqlens_padded = p->cu_seqlens_padded;
    return trope_positions(&args, p->position, NULL) ? complain_of_library(trope_last_error()) : 0;
}

int check_place_tokens(check_problem *p)
{
    const size_t tokens = (size_t)p->args.tokens;
    p->position = malloc((size_t)p->args.batch * tokens * sizeof *p->position);
    p->is_padding = calloc(tokens, 1);
    if (!p->position || !p->is_padding)
        return complain("out of memory");
    if (parse_sequences(p) || refuse_sequences(p))
        return RESULT_REFUSED;
    place_all(p);
    for (size_t t = 0; t < tokens; t++)
        p->rows = p->position[t] >= p->rows ? p->position[t] + 1 : p->rows;
    if ((double)p->rows * p->operand[0].rotary_dim > CHECK_LARGEST)
        return complain("the positions go up to %lld: %d angles at most can be checked", (long long)p->rows - 1,
                        CHECK_LARGEST);
    return 0;
}
