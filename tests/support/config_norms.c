/* Makes the norms of operands: weights, memory for their gradients, rstd, and sums of the heads of several ranks. */
#include "support/config_builder.h"
#include "support/number.h"

/* The value of an option for one norm. With NORM_EACH it may differ from the choice. */
static int choose(builder *b, int option)
{
    if (b->v[OPTION_NORM] == NORM_EACH && once_in(b, 3))
        return (int)between(b, 0, config_value_count(option) - 1);
    return b->v[option];
}

static int has_norm(builder *b, int i)
{
    switch (b->v[OPTION_NORM]) {
    case NORM_NONE:
        return 0;
    case NORM_ALL:
        return 1;
    default: /* with NORM_ALONE, operand 0 always has a norm */
        return ((b->v[OPTION_NORM] == NORM_ALONE && i == 0) || once_in(b, 2)) && !b->operands[i].shared_heads;
    }
}

/* Fills `numbers` with random numbers between `middle` - 1 and `middle` + 1. */
static void *fill(builder *b, int32_t dtype, int64_t count, double middle, unsigned char *numbers)
{
    for (int64_t i = 0; i < count; i++)
        number_store(dtype, numbers + (size_t)i * number_size(dtype), middle + random_real(&b->random));
    return numbers;
}

/* Like fill, in new memory that the call reads, at a random alignment. */
static void *add_numbers(builder *b, int32_t dtype, int64_t count, double middle)
{
    const size_t element = number_size(dtype), before = (size_t)between(b, 0, 3) * element;
    return fill(b, dtype, count, middle, config_add_buffer(b, before + (size_t)count * element, CONFIG_READ) + before);
}

/* Makes the sums of a norm over tokens, for an operand with this number of heads. With NORM_EACH, some norms write sums,
 * some read them, and some have none. */
static void make_sums(builder *b, trope_norm *n, int64_t heads, int64_t rows, int32_t dtype)
{
    const int most = b->v[OPTION_SUMS];
    const int sums = b->v[OPTION_NORM] == NORM_EACH && once_in(b, 3) ? (int)between(b, SUMS_NONE, most) : most;
    if (sums == SUMS_NONE || n->scope != TROPE_NORM_TOKEN)
        return;
    if (sums == SUMS_WRITE) {
        n->token_sums_use = TROPE_SUMS_WRITE;
        n->token_sums = config_add_guarded(b, heads * rows, number_size(dtype));
        return;
    }
    n->token_sums_use = TROPE_SUMS_READ;
    n->first_head = (int32_t)between(b, 0, 5);
    n->heads_of_all_ranks = n->first_head + (int32_t)(heads + between(b, 0, 5));
    n->token_sums = add_numbers(b, dtype, n->heads_of_all_ranks * rows, 1.5);
}

/* Makes rstd. If forward writes rstd and the norm has sums, backward reads rstd. So rstd starts with random numbers. */
static void make_rstd(builder *b, trope_norm *n, int64_t rstds, int32_t dtype)
{
    n->rstd_use = b->v[OPTION_RSTD];
    if (n->rstd_use == TROPE_RSTD_READ)
        n->rstd = add_numbers(b, dtype, rstds, 1.5);
    if (n->rstd_use != TROPE_RSTD_WRITE)
        return;
    n->rstd = config_add_guarded(b, rstds, number_size(dtype));
    if (n->token_sums)
        fill(b, dtype, rstds, 1.5, n->rstd);
}

static void make_weight(builder *b, trope_norm *n, int64_t heads, int64_t head_dim, size_t real)
{
    const int weight = choose(b, OPTION_WEIGHT);
    if (weight == WEIGHT_NONE)
        return;
    n->weight_dtype = weight == WEIGHT_F64 && b->v[OPTION_DTYPE] != DTYPE_F64 ? TROPE_F32 : TROPE_F32 + weight - WEIGHT_F32;
    n->weight_per_head = choose(b, OPTION_WEIGHT_HEADS);
    n->weight_plus_one = choose(b, OPTION_WEIGHT_PLUS);
    if (b->v[OPTION_ROUNDING] != TROPE_ROUND_ONCE)
        n->rounding = TROPE_NORM_ROUND_TWICE + choose(b, OPTION_NORM_ROUNDING);
    const int64_t count = (n->weight_per_head ? heads : 1) * head_dim;
    n->weight = add_numbers(b, n->weight_dtype, count, 0);
    if (b->v[OPTION_D_WEIGHT] != D_WEIGHT_NONE && n->token_sums_use != TROPE_SUMS_WRITE)
        n->d_weight = config_add_guarded(b, count, real);
}

int config_make_norm(builder *b, int i)
{
    static const double epsilons[] = {1e-6, 1e-5, 0.1, 1};
    const trope_operand *o = &b->operands[i];
    const int64_t heads = (o->groups ? o->groups : 1) * (int64_t)o->heads_per_group, rows = b->a->batch * b->a->tokens;
    const int32_t dtype = b->a->dtype == TROPE_F64 ? TROPE_F64 : TROPE_F32;
    trope_norm *n = &b->c->norms[i];
    if (!has_norm(b, i))
        return 0;
    *n = (trope_norm){.struct_size = sizeof *n};
    n->scope = TROPE_NORM_HEAD + choose(b, OPTION_NORM_SCOPE);
    n->order = TROPE_NORM_BEFORE + choose(b, OPTION_NORM_ORDER);
    n->eps = epsilons[between(b, 0, 3)];
    make_sums(b, n, heads, rows, dtype);
    make_weight(b, n, heads, o->head_dim, number_size(dtype));
    make_rstd(b, n, rows * (n->scope == TROPE_NORM_TOKEN ? 1 : heads), dtype);
    return 1;
}
