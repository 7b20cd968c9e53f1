#include "cases.h"

#include <stdio.h>
#include <string.h>

#include "call_options.h"
#include "trope/trope.h"

enum { HEAD_DIM = 64, SPLIT_ALL = SPLIT_DATA | SPLIT_TENSOR | SPLIT_CONTEXT };

/* The shape of a case's tensors. Each split is tested with several of these variants. */
typedef struct form {
    const char *name;
    case_packing packing;
    case_positions positions;
    case_angles angles;
    int32_t pairing, pairing_out, rotary_dim, rotary_offset;
} form;

static const form forms[] = {
    {"dense", CASE_DENSE, CASE_INDEX, CASE_INV_FREQ, TROPE_PAIRING_HALF, 0, HEAD_DIM, 0},
    {"padded", CASE_PADDED, CASE_INDEX, CASE_TABLE, TROPE_PAIRING_HALF, 0, HEAD_DIM, 0},
    {"packed", CASE_PACKED, CASE_INDEX, CASE_FREQS, TROPE_PAIRING_HALF, 0, HEAD_DIM, 0},
    {"starts", CASE_DENSE, CASE_STARTS, CASE_INV_FREQ, TROPE_PAIRING_INTERLEAVED, TROPE_PAIRING_HALF, 48, 16},
    {"aligned", CASE_ALIGNED, CASE_INDEX, CASE_INV_FREQ, TROPE_PAIRING_INTERLEAVED, 0, HEAD_DIM, 0},
    {"ids", CASE_DENSE, CASE_IDS, CASE_FREQS, TROPE_PAIRING_HALF, 0, 48, 8},
    {"stream", CASE_PACKED, CASE_IN_STREAM, CASE_INV_FREQ, TROPE_PAIRING_HALF, 0, HEAD_DIM, 0},
};
enum { FORMS = sizeof forms / sizeof forms[0], DENSE_AND_PADDED = 2, UNTIL_PACKED = 3, UNTIL_STARTS = 4 };

static const struct {
    const char *name;
    int32_t id;
} layouts[] = {{"zigzag", TROPE_CP_ZIGZAG},
               {"contiguous", TROPE_CP_CONTIGUOUS},
               {"striped", TROPE_CP_STRIPED},
               {"flat", TROPE_CP_FLAT}};
enum { LAYOUTS = sizeof layouts / sizeof layouts[0] };

static const char *const keys_names[] = {"", "-gqa", "-mqa"};

/* Sums in backward: over the heads of all ranks, of dx and old_dst, or both. */
static const struct {
    const char *name;
    case_keys keys;
    int32_t accumulate;
} additions[] = {{"mla", CASE_KEYS_SHARED, 0}, {"accumulate", CASE_KEYS_SPLIT, 1}, {"mla-accumulate", CASE_KEYS_SHARED, 1}};
enum { ADDITIONS = sizeof additions / sizeof additions[0] };

/* If the norm follows the rotation, verify_angles.c needs a rotation that keeps the length of pairs, as with inv_freq. */
static const struct {
    const form *form;
    const char *name;
    case_norm norm;
} norms[] = {{&forms[2], "packed-norm", CASE_NORM_HEAD},
             {&forms[3], "starts-norm-after", CASE_NORM_AFTER},
             {&forms[1], "padded-norm-token", CASE_NORM_TOKEN}};
enum { NORMS = sizeof norms / sizeof norms[0] };

static split_case make_case(const char *split, int32_t splits, const form *f)
{
    split_case c = {.split = split,
                    .splits = splits,
                    .packing = f->packing,
                    .positions = f->positions,
                    .angles = f->angles,
                    .pairing = f->pairing,
                    .pairing_out = f->pairing_out,
                    .rotary_dim = f->rotary_dim,
                    .rotary_offset = f->rotary_offset};
    return c;
}

/* Adds the splits without context parallelism: each form with each way to share the keys. */
static int add_plain(split_case *cases, const char *split, int32_t splits, int form_count)
{
    const int keys = splits & SPLIT_TENSOR ? 3 : 1;
    int count = 0;
    for (int f = 0; f < form_count; f++)
        for (int k = 0; k < keys; k++) {
            split_case *c = &cases[count++];
            *c = make_case(split, splits, &forms[f]);
            c->keys = (case_keys)k;
            snprintf(c->variant, sizeof c->variant, "%s%s", forms[f].name, keys_names[k]);
        }
    return count;
}

static int add_additions(split_case *cases, const char *split, int32_t splits, int form_count)
{
    int count = 0;
    for (int f = 0; f < form_count; f++)
        for (int a = 0; a < ADDITIONS; a++) {
            split_case *c = &cases[count++];
            *c = make_case(split, splits, &forms[f]);
            c->keys = additions[a].keys;
            c->accumulate = additions[a].accumulate;
            snprintf(c->variant, sizeof c->variant, "%s-%s", forms[f].name, additions[a].name);
        }
    return count;
}

static int add_context(split_case *cases, const char *split, int32_t splits, int form_count)
{
    int count = 0;
    for (int l = 0; l < LAYOUTS; l++)
        for (int f = 0; f < form_count; f++) {
            split_case *c = &cases[count++];
            *c = make_case(split, splits, &forms[f]);
            c->cp_layout = layouts[l].id;
            c->keys = splits & SPLIT_TENSOR ? CASE_KEYS_REPLICATED : CASE_KEYS_SPLIT;
            snprintf(c->variant, sizeof c->variant, "%s-%s", layouts[l].name, forms[f].name);
        }
    return count;
}

/* Adds cases with context parallelism that sum over heads and add to old_dst. */
static int add_context_sums(split_case *cases, const char *split, int32_t splits, int form_count)
{
    const int count = add_context(cases, split, splits, form_count);
    for (int i = 0; i < count; i++) {
        split_case *c = &cases[i];
        c->keys = CASE_KEYS_SHARED;
        c->accumulate = 1;
        const size_t used = strlen(c->variant);
        snprintf(c->variant + used, sizeof c->variant - used, "-mla-accumulate");
    }
    return count;
}

/* Adds each norm or, with context parallelism, each layout with one of the norms. A norm over tokens gathers token sums, so
 * each tensor parallel rank has its own K heads. With the other norms, several ranks have the same K heads. */
static int add_norms(split_case *cases, const char *split, int32_t splits)
{
    int count = 0;
    for (int l = 0; l < (splits & SPLIT_CONTEXT ? LAYOUTS : NORMS); l++) {
        split_case *c = &cases[count++];
        *c = make_case(split, splits, norms[l % NORMS].form);
        c->norm = norms[l % NORMS].norm;
        c->keys = splits & SPLIT_TENSOR && c->norm != CASE_NORM_TOKEN ? CASE_KEYS_REPLICATED : CASE_KEYS_SPLIT;
        c->cp_layout = splits & SPLIT_CONTEXT ? layouts[l].id : 0;
        snprintf(c->variant, sizeof c->variant, "%s%s%s", c->cp_layout ? layouts[l].name : "", c->cp_layout ? "-" : "",
                 norms[l % NORMS].name);
    }
    return count;
}

int cases_list(split_case *cases)
{
    int n = add_plain(cases, "dp", SPLIT_DATA, UNTIL_PACKED);
    n += add_plain(cases + n, "tp", SPLIT_TENSOR, DENSE_AND_PADDED);
    n += add_additions(cases + n, "tp", SPLIT_TENSOR, UNTIL_STARTS);
    n += add_context(cases + n, "cp", SPLIT_CONTEXT, FORMS);
    n += add_plain(cases + n, "dp-x-tp", SPLIT_DATA | SPLIT_TENSOR, DENSE_AND_PADDED);
    n += add_context(cases + n, "dp-x-cp", SPLIT_DATA | SPLIT_CONTEXT, UNTIL_PACKED);
    n += add_context(cases + n, "tp-x-cp", SPLIT_TENSOR | SPLIT_CONTEXT, UNTIL_PACKED);
    n += add_context_sums(cases + n, "tp-x-cp", SPLIT_TENSOR | SPLIT_CONTEXT, UNTIL_PACKED);
    n += add_context(cases + n, "dp-x-tp-x-cp", SPLIT_ALL, UNTIL_PACKED);
    n += add_context_sums(cases + n, "dp-x-tp-x-cp", SPLIT_ALL, DENSE_AND_PADDED);
    n += add_norms(cases + n, "dp", SPLIT_DATA);
    n += add_norms(cases + n, "tp", SPLIT_TENSOR);
    n += add_norms(cases + n, "cp", SPLIT_CONTEXT);
    n += add_norms(cases + n, "dp-x-tp", SPLIT_DATA | SPLIT_TENSOR);
    n += add_norms(cases + n, "tp-x-cp", SPLIT_TENSOR | SPLIT_CONTEXT);
    n += add_norms(cases + n, "dp-x-tp-x-cp", SPLIT_ALL);
    return n;
}

int32_t case_pairing_out(const split_case *c)
{
    return c->pairing_out ? c->pairing_out : c->pairing;
}

void case_name(const split_case *c, int32_t dtype, char *name, size_t size)
{
    snprintf(name, size, "%s/%s/%s", c->split, c->variant, choice_name(dtype_choices, dtype));
}

static int32_t smallest_factor(int32_t n)
{
    for (int32_t f = 2; f < n; f++)
        if (n % f == 0)
            return f;
    return n;
}

int case_grid(const split_case *c, int32_t ranks, rank_grid *grid)
{
    const int32_t first = smallest_factor(ranks), rest = ranks / first, second = smallest_factor(rest);
    *grid = (rank_grid){1, 1, 1};
    switch (c->splits) {
    case SPLIT_DATA:
        grid->dp = ranks;
        return 0;
    case SPLIT_TENSOR:
        grid->tp = ranks;
        return 0;
    case SPLIT_CONTEXT:
        grid->cp = ranks;
        return 0;
    case SPLIT_DATA | SPLIT_TENSOR:
        *grid = (rank_grid){rest, first, 1};
        break;
    case SPLIT_DATA | SPLIT_CONTEXT:
        *grid = (rank_grid){first, 1, rest};
        break;
    case SPLIT_TENSOR | SPLIT_CONTEXT:
        *grid = (rank_grid){1, first, rest};
        break;
    default:
        *grid = (rank_grid){second, first, rest / second};
        return grid->cp < 2;
    }
    return rest < 2;
}
