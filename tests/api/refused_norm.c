/* Refused values of norms. refused.h explains the tests. */
#include <math.h>

#include "api/refused.h"

static trope_norm *const n = &norm_of_q;

#define NORM_VALUES(valid, field, ...)                                                                                     \
    do {                                                                                                                   \
        const int32_t values[] = {__VA_ARGS__};                                                                            \
        for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)                                                      \
            ROW_FOR(FORWARD | NAME, valid, n->field = values[i], ARGUMENT, "norms[0]." #field, in_brackets(values[i]));    \
    } while (0)

static void single_fields(void)
{
    NORM_VALUES(normed(), weight_dtype, -1, 0, 5);
    FORWARD_ROW(normed(), n->weight_dtype = TROPE_F64, ARGUMENT, "norms[0].weight_dtype", "not f64");
    NORM_VALUES(normed(), weight_per_head, -1, 2);
    NORM_VALUES(normed(), weight_plus_one, -1, 2);
    NORM_VALUES(normed(), scope, -1, 0, 3);
    NORM_VALUES(normed(), order, -1, 0, 3);
    NORM_VALUES(normed(), rounding, -1, 1, 2, 3);
    NORM_VALUES(normed(), rstd_use, -1, 0, 3);
    NORM_VALUES(normed(), token_sums_use, 1, 2);
    NORM_VALUES(normed(), heads_of_all_ranks, -1, 1);
    NORM_VALUES(normed(), first_head, -1, 1);
    NORM_VALUES(norm_of_ranks(), token_sums_use, -1, 0, 3);
    NORM_VALUES(norm_of_ranks(), heads_of_all_ranks, -1, 0, Q_HEADS - 1);
    NORM_VALUES(norm_of_ranks(), first_head, -1, Q_HEADS + 1);
    NORM_VALUES(sums_of_ranks(), heads_of_all_ranks, 1);
    NORM_VALUES(sums_of_ranks(), first_head, 1);
    FORWARD_ROW(normed(), n->eps = 0, ARGUMENT, "norms[0].eps", "(0)");
    FORWARD_ROW(normed(), n->eps = -1e-6, ARGUMENT, "norms[0].eps", "over 0");
    static const char *const in_fp32[] = {"fp32, the arithmetic of dtype f32", "of dtype f16", "of dtype bf16"};
    for (int32_t dtype = TROPE_F32; dtype <= TROPE_BF16; dtype++) {
        FORWARD_ROW(normed(), (a->dtype = dtype, n->eps = 1e-50), ARGUMENT, "norms[0].eps", in_fp32[dtype - 1]);
        FORWARD_ROW(normed(), (a->dtype = dtype, n->eps = 1e39), ARGUMENT, "norms[0].eps", in_fp32[dtype - 1]);
    }
    FORWARD_ROW(normed(), (a->dtype = TROPE_F64, n->eps = INFINITY), ARGUMENT, "norms[0].eps", "double");
    FORWARD_ROW(normed(), n->eps = NAN, ARGUMENT, "norms[0].eps", "finite");
    for (size_t size = 0; size < sizeof *n; size++)
        FORWARD_ROW(normed(), n->struct_size = size, ARGUMENT, "norms[0].struct_size", in_brackets((int64_t)size));
}

static void field_combinations(void)
{
    FORWARD_ROW(normed(), n->weight = NULL, ARGUMENT, "norms[0].weight_dtype", "without a weight");
    FORWARD_ROW(normed(), (n->weight = NULL, n->weight_dtype = 0, n->weight_plus_one = 1), ARGUMENT,
                "norms[0].weight_plus_one", "without a weight");
    FORWARD_ROW(normed(), a->rounding = TROPE_ROUND_NATIVE, ARGUMENT, "norms[0].rounding", "_PRODUCT");
    FORWARD_ROW(normed(), n->rstd = NULL, ARGUMENT, "norms[0].rstd_use", "without rstd");
    FORWARD_ROW(normed(), n->d_weight = out.d_weight, ARGUMENT, "norms[0].d_weight", "forward");
    FORWARD_ROW(normed(), q->shared_heads = TROPE_SHARED_ALL, ARGUMENT, "operands[0].shared_heads", "norm");
    BACKWARD_ROW(norm_gradient(), (n->rstd = out.rstd, n->rstd_use = TROPE_RSTD_WRITE), ARGUMENT, "norms[0].rstd_use",
                 "TROPE_RSTD_READ");
    BACKWARD_ROW(norm_gradient(), (n->weight = NULL, n->weight_dtype = 0), ARGUMENT, "norms[0].d_weight",
                 "without a weight");
    BACKWARD_ROW(norm_gradient(), (q->forward_src = NULL, q->forward_src_layout = 0), IS_NULL, "operands[0].forward_src",
                 "norm");
    ROW_FOR(BACKWARD, norm_gradient(), a->workspace_size = 1, ARGUMENT, "workspace_size", "(1)");
}

/* The backward call that only writes the sums of q's heads. */
static call *gradient_sums(void)
{
    call *c = norm_gradient();
    n->scope = TROPE_NORM_TOKEN;
    n->rstd = in.sums;
    n->rstd_use = TROPE_RSTD_READ;
    n->token_sums = out.rstd;
    n->token_sums_use = TROPE_SUMS_WRITE;
    n->d_weight = NULL;
    c->operands[0].dst = NULL;
    c->operands[0].dst_layout = 0;
    return c;
}

/* The same call with inv_freq instead of freqs. */
static call *gradient_sums_by_phase(void)
{
    call *c = gradient_sums();
    c->args.freqs = NULL;
    c->args.angle_dtype = c->args.angle_columns = c->args.angle_layout = 0;
    c->args.angle_rows = 0;
    c->args.inv_freq = in.inv_freq;
    return c;
}

static void token_sums_fields(void)
{
    FORWARD_ROW(norm_of_ranks(), n->scope = TROPE_NORM_HEAD, ARGUMENT, "norms[0].token_sums", "TROPE_NORM_TOKEN");
    FORWARD_ROW(norm_of_ranks(), n->rstd_use = TROPE_RSTD_READ, ARGUMENT, "norms[0].token_sums", "TROPE_RSTD_READ");
    FORWARD_ROW(norm_of_ranks(), n->token_sums = NULL, ARGUMENT, "norms[0].token_sums_use", "without token_sums");
    FORWARD_ROW(norm_of_ranks(), n->token_sums = plus(in.sums, 2), ARGUMENT, "norms[0].token_sums", "aligned");
    FORWARD_ROW(norm_of_ranks(), n->token_sums = out.rstd, OVERLAP, "norms[0].rstd", "norms[0].token_sums");
    FORWARD_ROW(norm_of_ranks(), n->token_sums = plus(out.d_weight, 4 - 4 * 2 * Q_HEADS * BATCH * TOKENS), OVERLAP,
                "norms[0].rstd", "norms[0].token_sums");
    FORWARD_ROW(sums_of_ranks(), (n->rstd = out.d_weight, n->rstd_use = TROPE_RSTD_WRITE), ARGUMENT, "norms[0].rstd",
                "TROPE_SUMS_WRITE");
    FORWARD_ROW(sums_of_ranks(), (q->dst = out.q, q->dst_layout = TROPE_BSHD), ARGUMENT, "operands[0].dst",
                "TROPE_SUMS_WRITE");
    FORWARD_ROW(sums_of_ranks(), n->token_sums = out.k, OVERLAP, "operands[1].dst", "norms[0].token_sums");
    FORWARD_ROW(sums_of_ranks(), n->token_sums = plus(out.k, 4 - 4 * Q_HEADS * BATCH * TOKENS), OVERLAP, "operands[1].dst",
                "norms[0].token_sums");
    BACKWARD_ROW(norm_gradient(),
                 (n->scope = TROPE_NORM_TOKEN, n->token_sums = in.sums, n->token_sums_use = TROPE_SUMS_READ,
                  n->heads_of_all_ranks = Q_HEADS),
                 IS_NULL, "norms[0].rstd", "token_sums");
    BACKWARD_ROW(gradient_sums(), n->d_weight = out.d_weight, ARGUMENT, "norms[0].d_weight", "TROPE_SUMS_WRITE");
    BACKWARD_ROW(gradient_sums(), (q->dst = out.q, q->dst_layout = TROPE_BSHD), ARGUMENT, "operands[0].dst",
                 "TROPE_SUMS_WRITE");
    BACKWARD_ROW(gradient_sums(), (n->rstd = NULL, n->rstd_use = 0), IS_NULL, "norms[0].rstd", "token_sums");
    BACKWARD_ROW(gradient_sums(), (a->d_freqs = out.d_freqs, a->d_freqs_layout = TROPE_TABLE_ROWS), ARGUMENT, "d_freqs",
                 "TROPE_SUMS_WRITE");
    BACKWARD_ROW(gradient_sums_by_phase(), a->d_inv_freq = out.d_inv_freq, ARGUMENT, "d_inv_freq", "TROPE_SUMS_WRITE");
}

/* Returns a misaligned copy of a norm. */
static const char *place_oddly(const trope_norm *norm)
{
    _Alignas(8) static char bytes[sizeof *norm + 4];
    return memcpy(bytes + 4, norm, sizeof *norm);
}

/* Fields of the rotation are set in a call in which no operand rotates. */
static void rotation_fields(void)
{
    FORWARD_ROW(only_norm(), a->norms = NULL, ARGUMENT, "operands[0].rotary_dim", "none has a norm");
    FORWARD_ROW(only_norm(), a->pairing = 1, ARGUMENT, "pairing", "no operand");
    FORWARD_ROW(only_norm(), a->parts = 2, ARGUMENT, "parts", "no operand");
    FORWARD_ROW(only_norm(), a->inverse = 1, ARGUMENT, "inverse", "no operand");
    FORWARD_ROW(only_norm(), a->mscale = 2, ARGUMENT, "mscale", "no operand");
    FORWARD_ROW(only_norm(), a->inv_freq = in.inv_freq, ARGUMENT, "inv_freq", "no operand");
    FORWARD_ROW(only_norm(), a->angle_rows = 1, ARGUMENT, "angle_rows", "no operand");
    FORWARD_ROW(only_norm(), (a->position_ids = in.ids, a->position_dtype = TROPE_I32, a->ids_layout = TROPE_IDS_TOKENS),
                ARGUMENT, "position_ids", "no operand");
}

/* A struct of a later version is accepted if the bytes that this version does not know are 0, and refused otherwise. */
static void larger_structs(void)
{
    static struct {
        trope_norm known;
        uint64_t newer;
    } larger;
    char name[64];
    for (int i = 0; i < 2; i++) {
        begin(normed());
        larger.known = *n;
        larger.known.struct_size = sizeof larger;
        larger.known.rstd = NULL;
        larger.known.rstd_use = 0;
        norms_of_call[i] = &larger.known;
        larger.newer = 0;
        CHECK_MESSAGE(!trope_kernel_name(a, 0, name, sizeof name), "norms[%d]: %s", i, trope_last_error());
        larger.newer = 1;
        check_refused(
            &(refusal){"a larger norm", ARGUMENT, i ? "norms[1].struct_size" : "norms[0].struct_size", "is not 0"},
            FORWARD | NAME);
    }
}

static void pointers(void)
{
    FORWARD_ROW(normed(), a->norms = (const trope_norm *const *)(const void *)((char *)norms_of_call + 4), ARGUMENT,
                "norms", "aligned");
    FORWARD_ROW(normed(), norms_of_call[0] = (const trope_norm *)(const void *)place_oddly(n), ARGUMENT, "norms[0]",
                "aligned");
    FORWARD_ROW(normed(), n->weight = plus(in.weight, 1), ARGUMENT, "norms[0].weight", "aligned");
    FORWARD_ROW(normed(), n->rstd = plus(out.rstd, 2), ARGUMENT, "norms[0].rstd", "aligned");
    FORWARD_ROW(normed(), n->rstd = out.q, OVERLAP, "operands[0].dst", "norms[0].rstd");
    FORWARD_ROW(normed(), n->weight = out.k, OVERLAP, "operands[1].dst", "norms[0].weight");
    BACKWARD_ROW(norm_gradient(), n->d_weight = in.weight, OVERLAP, "norms[0].d_weight", "norms[0].weight");
    BACKWARD_ROW(
        norm_gradient(),
        (n->rstd = plus(out.d_weight, 4 - 4 * BATCH * TOKENS), n->rstd_use = TROPE_RSTD_READ, n->scope = TROPE_NORM_TOKEN),
        OVERLAP, "norms[0].d_weight", "norms[0].rstd");
    BACKWARD_ROW(norm_gradient(), n->d_weight = out.q, OVERLAP, "operands[0].dst", "norms[0].d_weight");
}

int main(void)
{
    single_fields();
    field_combinations();
    token_sums_fields();
    rotation_fields();
    larger_structs();
    pointers();
    return refused_result();
}
