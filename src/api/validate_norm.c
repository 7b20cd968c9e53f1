/* Validates the numbers of a norm, and the numbers of a call that has norms and rotates nothing. */
#include <float.h>

#include "api/args.h"
#include "api/backend.h"
#include "core/require.h"

#define ARGUMENT    TROPE_ERROR_ARGUMENT
#define MAX_ENTRIES ((int64_t)1 << 57)

static trope_status require_zero(const char *function, int i, const char *name, int64_t value, const char *why)
{
    REQUIRE(value == 0, ARGUMENT, "norms[%d].%s (%lld) must be 0 %s", i, name, (long long)value, why);
    return TROPE_OK;
}

static trope_status require_flag(const char *function, int i, const char *name, int32_t value)
{
    REQUIRE(value == 0 || value == 1, ARGUMENT, "norms[%d].%s (%d) must be 0 or 1", i, name, value);
    return TROPE_OK;
}

static trope_status validate_weight(const char *function, const trope_args *a, int i)
{
    const trope_norm *n = a->norms[i];
    if (!n->weight) {
        static const char without[] = "without a weight";
        CHECK(require_zero(function, i, "weight_dtype", n->weight_dtype, without));
        CHECK(require_zero(function, i, "weight_per_head", n->weight_per_head, without));
        CHECK(require_zero(function, i, "weight_plus_one", n->weight_plus_one, without));
        CHECK(require_zero(function, i, "rounding", n->rounding, without));
        REQUIRE(!n->d_weight, ARGUMENT, "norms[%d].d_weight (%p) must be NULL without a weight", i, n->d_weight);
        return TROPE_OK;
    }
    REQUIRE(n->weight_dtype >= TROPE_F32 && n->weight_dtype <= TROPE_F64, ARGUMENT,
            "norms[%d].weight_dtype (%d) must be 1 to 4%s", i, n->weight_dtype,
            n->weight_dtype == 0 ? ", and has no default" : "");
    REQUIRE(n->weight_dtype != TROPE_F64 || a->dtype == TROPE_F64, ARGUMENT,
            "norms[%d].weight_dtype (TROPE_F64) must be F32, F16 or BF16 with operands that are not f64 (dtype %d)", i,
            a->dtype);
    CHECK(require_flag(function, i, "weight_per_head", n->weight_per_head));
    CHECK(require_flag(function, i, "weight_plus_one", n->weight_plus_one));
    if (a->rounding == TROPE_ROUND_ONCE)
        return require_zero(function, i, "rounding", n->rounding, "with TROPE_ROUND_ONCE");
    REQUIRE(n->rounding == TROPE_NORM_ROUND_TWICE || n->rounding == TROPE_NORM_ROUND_PRODUCT, ARGUMENT,
            "norms[%d].rounding (%d) must be TROPE_NORM_ROUND_TWICE or _PRODUCT (1 or 2) with rounding (%d)", i,
            n->rounding, a->rounding);
    return TROPE_OK;
}

static trope_status validate_rstd(const char *function, const trope_args *a, int i, int backward)
{
    const trope_norm *n = a->norms[i];
    if (!n->rstd)
        return require_zero(function, i, "rstd_use", n->rstd_use, "without rstd");
    REQUIRE(n->rstd_use == TROPE_RSTD_WRITE || n->rstd_use == TROPE_RSTD_READ, ARGUMENT,
            "norms[%d].rstd_use (%d) must be TROPE_RSTD_WRITE or TROPE_RSTD_READ (1 or 2) with rstd", i, n->rstd_use);
    REQUIRE(n->rstd_use == TROPE_RSTD_READ || !backward, ARGUMENT,
            "norms[%d].rstd_use (TROPE_RSTD_WRITE) must be TROPE_RSTD_READ in backward", i);
    return TROPE_OK;
}

/* Checks that the heads of this rank lie among the heads of all ranks. */
static trope_status validate_ranks(const char *function, const trope_args *a, int i)
{
    const trope_norm *n = a->norms[i];
    const int64_t heads = trope_count_heads(&a->operands[i]);
    REQUIRE(n->heads_of_all_ranks >= heads, ARGUMENT,
            "norms[%d].heads_of_all_ranks (%d) must be at least the number of heads of operands[%d] (%lld)", i,
            n->heads_of_all_ranks, i, (long long)heads);
    REQUIRE(n->first_head >= 0 && n->first_head <= n->heads_of_all_ranks - heads, ARGUMENT,
            "norms[%d].first_head (%d) must be 0 to heads_of_all_ranks (%d) minus the heads of operands[%d] (%lld)", i,
            n->first_head, n->heads_of_all_ranks, i, (long long)heads);
    return TROPE_OK;
}

/* With SUMS_WRITE, the sums must be the operand's only result. */
static trope_status validate_sums_written(const char *function, const trope_args *a, int i, int backward)
{
    const trope_norm *n = a->norms[i];
    const void *dst = a->operands[i].dst;
    REQUIRE(backward || !n->rstd, ARGUMENT, "norms[%d].rstd (%p) must be NULL with TROPE_SUMS_WRITE", i, n->rstd);
    REQUIRE(!n->d_weight, ARGUMENT, "norms[%d].d_weight (%p) must be NULL with TROPE_SUMS_WRITE", i, n->d_weight);
    REQUIRE(!dst, ARGUMENT, "operands[%d].dst (%p) must be NULL with TROPE_SUMS_WRITE in norms[%d]", i, dst, i);
    REQUIRE(!backward || !a->d_freqs, ARGUMENT, "d_freqs (%p) must be NULL with TROPE_SUMS_WRITE in norms[%d]", a->d_freqs,
            i);
    REQUIRE(!backward || !a->d_inv_freq, ARGUMENT, "d_inv_freq (%p) must be NULL with TROPE_SUMS_WRITE in norms[%d]",
            (void *)a->d_inv_freq, i);
    return TROPE_OK;
}

static trope_status validate_token_sums(const char *function, const trope_args *a, int i, int backward)
{
    const trope_norm *n = a->norms[i];
    if (!n->token_sums)
        CHECK(require_zero(function, i, "token_sums_use", n->token_sums_use, "without token_sums"));
    else
        REQUIRE(n->token_sums_use == TROPE_SUMS_WRITE || n->token_sums_use == TROPE_SUMS_READ, ARGUMENT,
                "norms[%d].token_sums_use (%d) must be TROPE_SUMS_WRITE or TROPE_SUMS_READ (1 or 2) with token_sums", i,
                n->token_sums_use);
    if (n->token_sums_use == TROPE_SUMS_READ) {
        CHECK(validate_ranks(function, a, i));
    } else {
        CHECK(require_zero(function, i, "heads_of_all_ranks", n->heads_of_all_ranks, "without TROPE_SUMS_READ"));
        CHECK(require_zero(function, i, "first_head", n->first_head, "without TROPE_SUMS_READ"));
    }
    if (!n->token_sums)
        return TROPE_OK;
    REQUIRE(n->scope == TROPE_NORM_TOKEN, ARGUMENT, "norms[%d].token_sums (%p) must be NULL without TROPE_NORM_TOKEN", i,
            n->token_sums);
    REQUIRE(!backward || n->rstd, TROPE_ERROR_NULL, "norms[%d].rstd is NULL, but backward with token_sums reads it", i);
    REQUIRE(backward || n->rstd_use != TROPE_RSTD_READ, ARGUMENT,
            "norms[%d].token_sums (%p) must be NULL in forward with TROPE_RSTD_READ", i, n->token_sums);
    return n->token_sums_use == TROPE_SUMS_WRITE ? validate_sums_written(function, a, i, backward) : TROPE_OK;
}

trope_status trope_validate_norm(const char *function, const trope_args *a, int i, int backward)
{
    const trope_norm *n = trope_norm_of(a, i);
    if (!n)
        return TROPE_OK;
    int64_t weights;
    REQUIRE(!__builtin_mul_overflow(trope_count_heads(&a->operands[i]), (int64_t)a->operands[i].head_dim, &weights) &&
                weights <= MAX_ENTRIES,
            TROPE_ERROR_OVERFLOW, "operands[%d].head_dim (%d) times its heads must be at most 2^57 with a norm", i,
            a->operands[i].head_dim);
    REQUIRE(a->operands[i].shared_heads == TROPE_SHARED_NONE, ARGUMENT,
            "operands[%d].shared_heads (%d) must be 0 with a norm", i, a->operands[i].shared_heads);
    CHECK(validate_weight(function, a, i));
    REQUIRE(n->scope == TROPE_NORM_HEAD || n->scope == TROPE_NORM_TOKEN, ARGUMENT,
            "norms[%d].scope (%d) must be TROPE_NORM_HEAD or TROPE_NORM_TOKEN (1 or 2)%s", i, n->scope,
            n->scope == 0 ? ", and has no default" : "");
    REQUIRE(n->order == TROPE_NORM_BEFORE || n->order == TROPE_NORM_AFTER, ARGUMENT,
            "norms[%d].order (%d) must be TROPE_NORM_BEFORE or TROPE_NORM_AFTER (1 or 2)%s", i, n->order,
            n->order == 0 ? ", and has no default" : "");
    const int fits = a->dtype == TROPE_F64 ? n->eps > 0 && n->eps <= DBL_MAX
                                           : n->eps > 0 && n->eps <= (double)FLT_MAX && (float)n->eps > 0;
    REQUIRE(fits, ARGUMENT, "norms[%d].eps (%g) must be finite and over 0 in %s, the arithmetic of dtype %s", i, n->eps,
            a->dtype == TROPE_F64 ? "double" : "fp32", trope_dtype_name(a->dtype));
    CHECK(validate_rstd(function, a, i, backward));
    CHECK(validate_token_sums(function, a, i, backward));
    REQUIRE(!n->d_weight || backward, ARGUMENT, "norms[%d].d_weight (%p) must be NULL in forward", i, n->d_weight);
    return TROPE_OK;
}

int trope_rotates(const trope_args *a)
{
    for (int i = 0; i < a->operand_count; i++)
        if (a->operands[i].rotary_dim != TROPE_COPY)
            return 1;
    return 0;
}

/* A call without a rotation must not set the fields of a rotation. The table compares each field with the value that means
 * "not given" after trope_copy_call has filled in the defaults. */
trope_status trope_validate_no_rotation(const char *function, const trope_args *a)
{
    REQUIRE(a->norms, ARGUMENT, "operands[0].rotary_dim (%d): no operand of the call rotates, and none has a norm",
            a->operands[0].rotary_dim);
    const struct {
        const char *name;
        int given;
    } fields[] = {
        {"pairing", a->pairing != 0},
        {"pairing_out", a->pairing_out != 0},
        {"parts", a->parts != 1},
        {"inverse", a->inverse != 0},
        {"mscale", a->mscale != 1},
        {"pair_axis", a->pair_axis != NULL},
        {"freqs", a->freqs != NULL},
        {"cos", a->cos != NULL},
        {"sin", a->sin != NULL},
        {"inv_freq", a->inv_freq != NULL},
        {"phase_step", a->phase_step != NULL},
        {"angle_dtype", a->angle_dtype != 0},
        {"angle_columns", a->angle_columns != 0},
        {"angle_layout", a->angle_layout != 0},
        {"out_of_range", a->out_of_range != 0},
        {"angle_rows", a->angle_rows != 0},
        {"angle_stride", a->angle_stride[0] || a->angle_stride[1] || a->angle_stride[2] || a->angle_stride[3]},
        {"position_ids", a->position_ids != NULL},
        {"start_positions", a->start_positions != NULL},
        {"stream_positions", a->stream_positions != 0},
        {"d_freqs", a->d_freqs != NULL},
        {"d_inv_freq", a->d_inv_freq != NULL},
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        REQUIRE(!fields[i].given, ARGUMENT, "%s must not be given: no operand of the call rotates", fields[i].name);
    return TROPE_OK;
}
