/* Validates the numbers of a call. The sections are in the order of the header. Each check is one statement, whose message
 * begins with the wrong argument, and gives its value and the rule. */
#include <float.h>
#include <math.h>

#include "api/args.h"
#include "core/phase.h"
#include "core/require.h"
#include "varlen/position.h"
#include "varlen/position_source.h"

#define ARGUMENT    TROPE_ERROR_ARGUMENT
#define MAX_COUNT   ((int64_t)1 << 60)
#define MAX_RANKS   (1 << 30)          /* trope_plan_cp computes 2 * cp_size in int32_t */
#define MAX_ENTRIES ((int64_t)1 << 57) /* of a table or an index array; at 8 bytes each they take 2^60 bytes */

typedef long long ll;

/* ---- enumerations ---- */

/* `with` tells what makes this field necessary, or is "". */
static trope_status require_between(const char *function, const char *name, int32_t value, int32_t first, int32_t last,
                                    const char *with)
{
    REQUIRE(value >= first && value <= last, ARGUMENT, "%s (%d) must be %d to %d%s%s", name, value, first, last, with,
            value == 0 ? ", and has no default" : "");
    return TROPE_OK;
}

static trope_status require_zero(const char *function, const char *name, int64_t value, const char *without)
{
    REQUIRE(value == 0, ARGUMENT, "%s (%lld) must be 0%s", name, (ll)value, without);
    return TROPE_OK;
}

static trope_status validate_enums(const char *function, const trope_args *a)
{
    CHECK(require_between(function, "device", a->device, TROPE_DEVICE_CPU, TROPE_DEVICE_AUTO, ""));
    CHECK(require_between(function, "isa", a->isa, 0, TROPE_ISA_NEON, ""));
    CHECK(require_between(function, "dtype", a->dtype, TROPE_F32, TROPE_F64, ""));
    CHECK(require_between(function, "rounding", a->rounding, 0, TROPE_ROUND_NATIVE_F32, ""));
    const int32_t pairing = trope_rotates(a) ? TROPE_PAIRING_HALF : 0;
    CHECK(require_between(function, "pairing", a->pairing, pairing, TROPE_PAIRING_INTERLEAVED,
                          pairing ? " if an operand rotates" : ""));
    CHECK(require_between(function, "pairing_out", a->pairing_out, pairing, TROPE_PAIRING_INTERLEAVED, ""));
    CHECK(require_between(function, "parts", a->parts, 1, TROPE_MAX_AXES, ""));
    CHECK(require_between(function, "inverse", a->inverse, 0, 1, ""));
    CHECK(require_between(function, "out_of_range", a->out_of_range, 0, TROPE_RANGE_CLAMP, ""));
    REQUIRE(a->threads >= 0, ARGUMENT, "threads (%d) must be at least 0", a->threads);
    return require_zero(function, "reserved_too", a->reserved_too, "");
}

static trope_status validate_shape(const char *function, const trope_args *a)
{
    int64_t tokens;
    REQUIRE(a->batch >= 1, ARGUMENT, "batch (%lld) must be at least 1", (ll)a->batch);
    REQUIRE(a->tokens >= 0, ARGUMENT, "tokens (%lld) must be at least 0", (ll)a->tokens);
    REQUIRE(!__builtin_mul_overflow(a->batch, a->tokens, &tokens) && tokens <= MAX_COUNT, TROPE_ERROR_OVERFLOW,
            "batch (%lld) * tokens (%lld) must be at most 2^60", (ll)a->batch, (ll)a->tokens);
    return TROPE_OK;
}

/* ---- operands ---- */

static trope_status validate_window(const char *function, const trope_args *a, int i)
{
    const trope_operand *o = &a->operands[i];
    REQUIRE(o->rotary_offset >= 0 && o->rotary_offset <= o->head_dim, ARGUMENT,
            "operands[%d].rotary_offset (%d) must be 0 to head_dim (%d)", i, o->rotary_offset, o->head_dim);
    if (o->rotary_dim == TROPE_COPY) {
        REQUIRE(o->rotary_offset == 0, ARGUMENT, "operands[%d].rotary_offset (%d) must be 0 with rotary_dim TROPE_COPY", i,
                o->rotary_offset);
        return TROPE_OK;
    }
    REQUIRE(o->rotary_dim != 0, ARGUMENT, "operands[%d].rotary_dim (0) must be given; TROPE_COPY (-1) copies", i);
    REQUIRE(o->rotary_dim >= 2 && o->rotary_dim % 2 == 0 && o->rotary_dim <= o->head_dim - o->rotary_offset, ARGUMENT,
            "operands[%d].rotary_dim (%d) must be even and at most head_dim - rotary_offset (%d), or TROPE_COPY (-1)", i,
            o->rotary_dim, o->head_dim - o->rotary_offset);
    REQUIRE(o->rotary_dim <= TROPE_MAX_ROTARY_DIM, ARGUMENT, "operands[%d].rotary_dim (%d) must be at most %d", i,
            o->rotary_dim, TROPE_MAX_ROTARY_DIM);
    REQUIRE(o->rotary_dim % (2 * a->parts) == 0, ARGUMENT,
            "operands[%d].rotary_dim (%d) must be divisible by 2 * parts (%d)", i, o->rotary_dim, 2 * a->parts);
    return TROPE_OK;
}

static trope_status validate_head(const char *function, const trope_args *a, int i)
{
    const trope_operand *o = &a->operands[i];
    int64_t count = a->batch * a->tokens;
    REQUIRE(o->groups >= 1, ARGUMENT, "operands[%d].groups (%d) must be at least 1 (0 stands for 1)", i, o->groups);
    REQUIRE(o->heads_per_group >= 1, ARGUMENT, "operands[%d].heads_per_group (%d) must be at least 1", i,
            o->heads_per_group);
    REQUIRE(o->head_dim >= 1, ARGUMENT, "operands[%d].head_dim (%d) must be at least 1", i, o->head_dim);
    CHECK(validate_window(function, a, i));
    REQUIRE(!__builtin_mul_overflow(count, (int64_t)o->groups * o->heads_per_group, &count) &&
                !__builtin_mul_overflow(count, (int64_t)o->head_dim, &count) && count <= MAX_COUNT,
            TROPE_ERROR_OVERFLOW,
            "operands[%d].head_dim (%d) times groups (%d), heads_per_group (%d), batch (%lld) and tokens (%lld) must be at "
            "most 2^60",
            i, o->head_dim, o->groups, o->heads_per_group, (ll)a->batch, (ll)a->tokens);
    return TROPE_OK;
}

static trope_status validate_sums(const char *function, const trope_args *a, int i, int backward)
{
    const trope_operand *o = &a->operands[i];
    REQUIRE(o->shared_heads >= 0 && o->shared_heads <= TROPE_SHARED_ALL, ARGUMENT,
            "operands[%d].shared_heads (%d) must be 0 to %d", i, o->shared_heads, TROPE_SHARED_ALL);
    REQUIRE(o->accumulate == 0 || o->accumulate == 1, ARGUMENT, "operands[%d].accumulate (%d) must be 0 or 1", i,
            o->accumulate);
    REQUIRE(!o->accumulate || backward, ARGUMENT, "operands[%d].accumulate (%d) must be 0 in forward", i, o->accumulate);
    REQUIRE(!o->accumulate || o->dst, TROPE_ERROR_NULL, "operands[%d].dst is NULL, but accumulate adds to it", i);
    REQUIRE(!o->shared_heads || !o->dst || o->src != o->dst, ARGUMENT,
            "operands[%d].shared_heads (%d) must be 0 in place: src and dst have different numbers of heads", i,
            o->shared_heads);
    REQUIRE(!o->accumulate || o->src != o->dst, ARGUMENT,
            "operands[%d].accumulate (%d) must be 0 in place: dst holds the input, not a sum to add to", i, o->accumulate);
    return TROPE_OK;
}

static trope_status validate_tensor(const char *function, const trope_args *a, int i, const trope_tensor *t)
{
    if (!t->base && a->tokens > 0) {
        REQUIRE(t->layout == 0, ARGUMENT, "operands[%d].%s_layout (%d) must be 0: %s is NULL", i, t->name, t->layout,
                t->name);
    } else if (t->base || t->layout) {
        REQUIRE(t->layout >= TROPE_SBHD && t->layout <= TROPE_STRIDED, ARGUMENT,
                "operands[%d].%s_layout (%d) must be TROPE_SBHD, BSHD, BHSD, THD or STRIDED (1 to 5)%s", i, t->name,
                t->layout, t->layout == 0 ? ", and has no default: see trope_fill_operand" : "");
        REQUIRE(t->layout != TROPE_THD || a->batch == 1, ARGUMENT,
                "operands[%d].%s_layout (TROPE_THD) needs batch 1, not %lld", i, t->name, (ll)a->batch);
    }
    const trope_operand *o = &a->operands[i];
    const int lacks[TROPE_MAX_DIMS] = {0, 0, t->size[TROPE_DIM_GROUP] < o->groups,
                                       t->size[TROPE_DIM_HEAD] < o->heads_per_group};
    for (int d = 0; d < TROPE_MAX_DIMS; d++) {
        REQUIRE(t->layout == TROPE_STRIDED || t->stride[d] == 0, ARGUMENT,
                "operands[%d].%s_stride[%d] (%lld) must be 0 unless %s_layout (%d) is TROPE_STRIDED", i, t->name, d,
                (ll)t->stride[d], t->name, t->layout);
        REQUIRE(!lacks[d] || t->stride[d] == 0, ARGUMENT,
                "operands[%d].%s_stride[%d] (%lld) must be 0: with shared_heads the tensor lacks this dimension", i,
                t->name, d, (ll)t->stride[d]);
    }
    return TROPE_OK;
}

/* Checks which tensors of an operand are NULL. Without tokens there are no elements, so src and dst may be NULL. */
static trope_status validate_presence(const char *function, const trope_args *a, int i, int backward)
{
    const trope_operand *o = &a->operands[i];
    const trope_norm *norm = trope_norm_of(a, i);
    const int has_angles = backward && (a->d_freqs || a->d_inv_freq),
              has_sums = norm && norm->token_sums_use == TROPE_SUMS_WRITE,
              has_result = has_angles || has_sums || (norm && norm->d_weight),
              is_read = (has_angles && o->rotary_dim != TROPE_COPY) || (backward && norm);
    REQUIRE(o->src || !a->tokens, TROPE_ERROR_NULL, "operands[%d].src is NULL", i);
    REQUIRE(o->dst || has_result || !a->tokens, TROPE_ERROR_NULL, "operands[%d].dst is NULL", i);
    REQUIRE(o->forward_src || !is_read || !a->tokens, TROPE_ERROR_NULL, "operands[%d].forward_src is NULL, but %s needs it",
            i,
            norm         ? "a norm"
            : a->d_freqs ? "d_freqs"
                         : "d_inv_freq");
    REQUIRE(
        !o->forward_src || is_read, ARGUMENT,
        "operands[%d].forward_src (%p) must be NULL: only the backward of a norm, or d_freqs or d_inv_freq for operands "
        "that rotate, reads it",
        i, o->forward_src);
    return TROPE_OK;
}

static trope_status validate_operand(const char *function, const trope_args *a, int i, int backward)
{
    CHECK(validate_head(function, a, i));
    CHECK(trope_validate_norm(function, a, i, backward));
    CHECK(validate_presence(function, a, i, backward));
    CHECK(validate_sums(function, a, i, backward));
    for (int role = TROPE_TENSOR_SRC; role <= TROPE_TENSOR_FORWARD_SRC; role++) {
        const trope_tensor t = trope_tensor_of(a, i, (trope_tensor_role)role, backward);
        CHECK(validate_tensor(function, a, i, &t));
    }
    return TROPE_OK;
}

static trope_status validate_operands(const char *function, const trope_args *a, int backward)
{
    for (int i = 0; i < a->operand_count; i++)
        CHECK(validate_operand(function, a, i, backward));
    return trope_rotates(a) ? TROPE_OK : trope_validate_no_rotation(function, a);
}

/* ---- the rotation ---- */

static trope_status validate_rotation(const char *function, const trope_args *a)
{
    const double magnitude = fabs(a->mscale);
    const int fits = a->dtype == TROPE_F64 ? magnitude <= DBL_MAX && magnitude > 0
                                           : magnitude <= (double)FLT_MAX && (double)(float)magnitude > 0;
    REQUIRE(fits, ARGUMENT, "mscale (%.15g) must be finite, and not 0, in the arithmetic of dtype", a->mscale);
    for (int i = 0; i < a->operand_count && a->parts > 1; i++)
        REQUIRE(a->operands[i].rotary_dim == TROPE_COPY || a->operands[i].rotary_dim == 2 * trope_widest_pairs(a), ARGUMENT,
                "operands[%d].rotary_dim (%d) must be the same as in the other operands (%d) with parts (%d)", i,
                a->operands[i].rotary_dim, 2 * trope_widest_pairs(a), a->parts);
    return TROPE_OK;
}

static trope_status validate_pair_axis(const char *function, const trope_args *a)
{
    const int32_t needed = trope_count_axes(a), pairs = trope_widest_pairs(a), given_axes = a->position_axes;
    const int32_t highest = (given_axes > 1 ? given_axes : TROPE_MAX_AXES) - 1;
    for (int32_t pair = 0; a->pair_axis && pair < pairs; pair++)
        REQUIRE(a->pair_axis[pair] <= highest, ARGUMENT, "pair_axis[%d] (%d) must be at most %d%s", pair,
                a->pair_axis[pair], highest, given_axes > 1 ? ", one less than position_axes" : "");
    if (a->position_axes > 1 && !a->pair_axis)
        REQUIRE(
            a->position_axes == needed, ARGUMENT,
            "position_axes (%d) must equal parts (%d), or pair_axis must assign axes to pairs: see trope_fill_pair_axis",
            a->position_axes, a->parts);
    REQUIRE(a->ids_layout != TROPE_IDS_AXES_BATCH_TOKENS || a->position_axes >= needed, ARGUMENT,
            "position_axes (%d) must be at least the %d axes that pairs use; if all axes share their ids, use "
            "TROPE_IDS_BATCH_TOKENS",
            a->position_axes, needed);
    return TROPE_OK;
}

/* ---- the angles ---- */

static trope_status validate_frequencies(const char *function, const trope_args *a)
{
    static const char without[] = " with inv_freq or phase_step";
    CHECK(require_zero(function, "angle_dtype", a->angle_dtype, without));
    CHECK(require_zero(function, "angle_columns", a->angle_columns, without));
    CHECK(require_zero(function, "angle_layout", a->angle_layout, without));
    CHECK(require_zero(function, "out_of_range", a->out_of_range, without));
    CHECK(require_zero(function, "angle_rows", a->angle_rows, without));
    for (int d = 0; d < 4; d++)
        REQUIRE(a->angle_stride[d] == 0, ARGUMENT, "angle_stride[%d] (%lld) must be 0%s", d, (ll)a->angle_stride[d],
                without);
    const uintptr_t host = (uintptr_t)a->inv_freq | (uintptr_t)a->phase_step;
    REQUIRE(host % sizeof(double) == 0, ARGUMENT, "%s (%p) must be aligned to 8 bytes",
            a->inv_freq ? "inv_freq" : "phase_step", (const void *)host);
    const int32_t pairs = trope_widest_pairs(a);
    for (int i = 0; a->inv_freq && i < pairs; i++)
        REQUIRE(fabs(a->inv_freq[i]) < TROPE_MAX_FREQUENCY, ARGUMENT, "inv_freq[%d] (%.15g) must be finite and below 2^64",
                i, a->inv_freq[i]);
    return TROPE_OK;
}

/* Validates angle_stride or d_freqs_stride. `of` is "angle" or "d_freqs". */
static trope_status validate_table_strides(const char *function, const trope_args *a, const char *of, int32_t layout,
                                           const int64_t *stride)
{
    const int64_t sizes[] = {TROPE_MAX_AXES, a->batch, a->angle_rows, 2 * (int64_t)trope_widest_pairs(a)};
    for (int d = 0; d < 4; d++) {
        int64_t reach;
        REQUIRE(layout == TROPE_TABLE_STRIDED || stride[d] == 0, ARGUMENT,
                "%s_stride[%d] (%lld) must be 0 unless %s_layout (%d) is TROPE_TABLE_STRIDED", of, d, (ll)stride[d], of,
                layout);
        REQUIRE(stride[d] >= 0, ARGUMENT, "%s_stride[%d] (%lld) must be at least 0", of, d, (ll)stride[d]);
        REQUIRE(!__builtin_mul_overflow(sizes[d], stride[d], &reach) && reach <= MAX_ENTRIES, TROPE_ERROR_OVERFLOW,
                "%s_stride[%d] (%lld) times the size of its dimension (%lld) must be at most 2^57", of, d, (ll)stride[d],
                (ll)sizes[d]);
    }
    return TROPE_OK;
}

/* Validates the number of rows of a table or of d_freqs. Only contiguous layouts need a limit on the number of entries:
 * validate_table_strides covers strided tables. */
static trope_status validate_rows(const char *function, const trope_args *a, const char *name, int32_t layout)
{
    const int64_t planes = layout == TROPE_TABLE_AXES_BATCH_ROWS ? TROPE_MAX_AXES : 1;
    const int64_t batch = layout == TROPE_TABLE_ROWS ? 1 : a->batch, columns = trope_count_columns(a);
    int64_t entries;
    REQUIRE(a->angle_rows <= MAX_COUNT, TROPE_ERROR_OVERFLOW, "angle_rows (%lld) must be at most 2^60", (ll)a->angle_rows);
    if (layout == TROPE_TABLE_STRIDED)
        return TROPE_OK;
    REQUIRE(!__builtin_mul_overflow(a->angle_rows, planes * columns, &entries) &&
                !__builtin_mul_overflow(entries, batch, &entries) && entries <= MAX_ENTRIES,
            TROPE_ERROR_OVERFLOW,
            "angle_rows (%lld) times %lld axes, %lld batch entries and %lld columns of %s must be at most 2^57",
            (ll)a->angle_rows, (ll)planes, (ll)batch, (ll)columns, name);
    return TROPE_OK;
}

/* A table with axes needs an axis for each pair. `of` is "angle" or "d_freqs". */
static trope_status validate_table_axes(const char *function, const trope_args *a, const char *of, int32_t layout,
                                        int64_t axis_stride)
{
    const int pairs_have_axes = a->pair_axis || a->parts > 1;
    REQUIRE(layout != TROPE_TABLE_AXES_BATCH_ROWS || pairs_have_axes, ARGUMENT,
            "%s_layout (%d) has axes, so pair_axis or parts must be given: see trope_fill_pair_axis", of, layout);
    REQUIRE(axis_stride == 0 || pairs_have_axes, ARGUMENT,
            "%s_stride[0] (%lld) must be 0 unless pair_axis or parts is given: see trope_fill_pair_axis", of,
            (ll)axis_stride);
    return TROPE_OK;
}

static trope_status validate_table(const char *function, const trope_args *a)
{
    CHECK(require_between(function, "angle_dtype", a->angle_dtype, TROPE_F32, TROPE_F64, " with a table"));
    REQUIRE(a->angle_dtype != TROPE_F64 || a->dtype == TROPE_F64, ARGUMENT,
            "angle_dtype (TROPE_F64) must be F32, F16 or BF16 with operands that are not f64 (dtype %d)", a->dtype);
    CHECK(require_between(function, "angle_columns", a->angle_columns, TROPE_COLUMNS_PAIR, TROPE_COLUMNS_INTERLEAVED,
                          " with a table"));
    CHECK(
        require_between(function, "angle_layout", a->angle_layout, TROPE_TABLE_ROWS, TROPE_TABLE_STRIDED, " with a table"));
    REQUIRE(a->angle_rows >= 1, ARGUMENT, "angle_rows (%lld) must be at least 1", (ll)a->angle_rows);
    CHECK(validate_rows(function, a, "the table", a->angle_layout));
    CHECK(validate_table_strides(function, a, "angle", a->angle_layout, a->angle_stride));
    return validate_table_axes(function, a, "angle", a->angle_layout, a->angle_stride[0]);
}

static trope_status validate_angles(const char *function, const trope_args *a)
{
    const int sources = (a->freqs != NULL) + (a->cos || a->sin) + (a->inv_freq != NULL) + (a->phase_step != NULL);
    REQUIRE(!a->cos == !a->sin, TROPE_ERROR_NULL, "%s is NULL and %s is not: a table needs both", a->cos ? "sin" : "cos",
            a->cos ? "cos" : "sin");
    REQUIRE(sources != 0, TROPE_ERROR_NULL, "%s",
            "freqs, cos with sin, inv_freq and phase_step are all NULL: one of them must be given");
    REQUIRE(sources == 1, ARGUMENT, "%s: exactly one of freqs, cos with sin, inv_freq and phase_step must be given",
            a->phase_step ? "phase_step"
            : a->inv_freq ? "inv_freq"
                          : "cos");
    return trope_has_table(a) ? validate_table(function, a) : validate_frequencies(function, a);
}

/* ---- positions and sequences ---- */

static trope_status validate_ids_layout(const char *function, const trope_args *a)
{
    const int has_axes = a->ids_layout == TROPE_IDS_AXES_BATCH_TOKENS || a->ids_layout == TROPE_IDS_STRIDED;
    CHECK(require_between(function, "ids_layout", a->ids_layout, TROPE_IDS_AXES_BATCH_TOKENS, TROPE_IDS_STRIDED,
                          " with position_ids"));
    if (has_axes)
        CHECK(require_between(function, "position_axes", a->position_axes, 1, TROPE_MAX_AXES, " in this ids_layout"));
    else
        REQUIRE(a->position_axes == 0 || a->position_axes == 1, ARGUMENT,
                "position_axes (%d) must be 0 or 1 with ids_layout (%d), where all axes share their ids", a->position_axes,
                a->ids_layout);
    for (int d = 0; d < 3; d++)
        REQUIRE(a->ids_layout == TROPE_IDS_STRIDED || a->ids_stride[d] == 0, ARGUMENT,
                "ids_stride[%d] (%lld) must be 0 unless ids_layout (%d) is TROPE_IDS_STRIDED", d, (ll)a->ids_stride[d],
                a->ids_layout);
    if (a->ids_layout == TROPE_IDS_STRIDED)
        REQUIRE((a->position_axes > 1) == (a->ids_stride[0] != 0), ARGUMENT,
                "ids_stride[0] (%lld) must %sbe 0 with position_axes (%d)", (ll)a->ids_stride[0],
                a->position_axes > 1 ? "not " : "", a->position_axes);
    return TROPE_OK;
}

static trope_status validate_no_ids(const char *function, const trope_args *a)
{
    static const char without[] = " without position_ids";
    CHECK(require_zero(function, "ids_layout", a->ids_layout, without));
    REQUIRE(a->position_axes == 0 || a->position_axes == 1, ARGUMENT, "position_axes (%d) must be 0 or 1%s",
            a->position_axes, without);
    for (int d = 0; d < 3; d++)
        REQUIRE(a->ids_stride[d] == 0, ARGUMENT, "ids_stride[%d] (%lld) must be 0%s", d, (ll)a->ids_stride[d], without);
    return TROPE_OK;
}

static trope_status validate_ids(const char *function, const trope_args *a)
{
    CHECK(require_between(function, "stream_positions", a->stream_positions, 0, 1, ""));
    REQUIRE((a->position_ids != NULL) + (a->start_positions != NULL) + a->stream_positions <= 1, ARGUMENT,
            "%s: only one of position_ids, start_positions and stream_positions may be given",
            a->start_positions ? "start_positions" : "stream_positions");
    REQUIRE(!a->stream_positions || a->cu_seqlens, ARGUMENT, "stream_positions (%d) needs cu_seqlens", a->stream_positions);
    if (a->position_ids || a->start_positions)
        CHECK(require_between(function, "position_dtype", a->position_dtype, TROPE_I32, TROPE_I64,
                              " with position_ids or start_positions"));
    else
        CHECK(require_zero(function, "position_dtype", a->position_dtype, " without position_ids and start_positions"));
    return a->position_ids ? validate_ids_layout(function, a) : validate_no_ids(function, a);
}

static trope_status validate_cu_seqlens(const char *function, const trope_args *a)
{
    static const char without[] = " without cu_seqlens";
    REQUIRE(!a->cu_seqlens_padded || a->cu_seqlens, TROPE_ERROR_NULL, "%s",
            "cu_seqlens is NULL and cu_seqlens_padded is not");
    if (!a->cu_seqlens) {
        CHECK(require_zero(function, "sequences", a->sequences, without));
        CHECK(require_zero(function, "cu_seqlens_dtype", a->cu_seqlens_dtype, without));
        return require_zero(function, "padding", a->padding, without);
    }
    CHECK(require_between(function, "cu_seqlens_dtype", a->cu_seqlens_dtype, TROPE_I32, TROPE_I64, " with cu_seqlens"));
    CHECK(require_between(function, "padding", a->padding, a->cu_seqlens_padded ? TROPE_PADDING_ZERO : 0,
                          TROPE_PADDING_ROTATE, a->cu_seqlens_padded ? " with cu_seqlens_padded" : ""));
    REQUIRE(a->sequences >= (a->tokens > 0), ARGUMENT, "sequences (%lld) must be at least %d with cu_seqlens",
            (ll)a->sequences, a->tokens > 0);
    REQUIRE(a->sequences < MAX_ENTRIES, TROPE_ERROR_OVERFLOW, "sequences (%lld) must be below 2^57", (ll)a->sequences);
    REQUIRE(a->batch == 1, ARGUMENT, "batch (%lld) must be 1 with cu_seqlens", (ll)a->batch);
    return TROPE_OK;
}

static trope_status validate_context_parallel(const char *function, const trope_args *a)
{
    CHECK(require_zero(function, "reserved", a->reserved, ""));
    CHECK(require_between(function, "cp_size", a->cp_size, 0, MAX_RANKS, ""));
    REQUIRE(a->cp_size || (!a->cp_rank && !a->cp_layout), ARGUMENT,
            "cp_size (0) must be given with cp_rank (%d) or cp_layout (%d)", a->cp_rank, a->cp_layout);
    const int32_t size = a->cp_size ? a->cp_size : 1;
    CHECK(require_between(function, "cp_layout", a->cp_layout, size > 1, TROPE_CP_FLAT,
                          size > 1 ? " with cp_size over 1" : ""));
    REQUIRE(a->cp_rank >= 0 && a->cp_rank < size, ARGUMENT, "cp_rank (%d) must be 0 to cp_size - 1 (%d)", a->cp_rank,
            size - 1);
    int64_t global;
    REQUIRE(!__builtin_mul_overflow(a->tokens, (int64_t)size, &global) && global <= MAX_COUNT, TROPE_ERROR_OVERFLOW,
            "tokens (%lld) * cp_size (%d) must be at most 2^60", (ll)a->tokens, size);
    const trope_cp cp = trope_plan_cp(a->cp_layout, size, a->cp_rank, a->tokens);
    const int64_t divisor = trope_cp_divisor(&cp);
    REQUIRE(a->cu_seqlens || a->position_ids || global % divisor == 0, ARGUMENT,
            "tokens (%lld) * cp_size (%d) must be divisible by %lld for cp_layout (%d)", (ll)a->tokens, size, (ll)divisor,
            a->cp_layout);
    return TROPE_OK;
}

trope_status trope_validate_positions(const char *function, const trope_args *a)
{
    CHECK(validate_shape(function, a));
    CHECK(validate_ids(function, a));
    CHECK(validate_cu_seqlens(function, a));
    return validate_context_parallel(function, a);
}

/* Without cu_seqlens, ids and start positions, the positions follow from the shapes. In such a call, with POISON, the table
 * must have a row for each of them. */
static trope_status validate_angle_rows(const char *function, const trope_args *a)
{
    if (!trope_has_table(a) || a->cu_seqlens || a->position_ids || a->start_positions || a->tokens == 0 ||
        a->out_of_range != TROPE_RANGE_POISON)
        return TROPE_OK;
    const trope_position_source s = trope_plan_position_source(a);
    const int64_t highest = trope_dense_position(&s, a->tokens - 1); /* positions ascend in every layout */
    REQUIRE(highest < a->angle_rows, ARGUMENT,
            "angle_rows (%lld) must be more than the highest position of this call (%lld)", (ll)a->angle_rows, (ll)highest);
    return TROPE_OK;
}

/* ---- the gradient of the angles ---- */

static trope_status validate_gradient(const char *function, const trope_args *a, int backward)
{
    REQUIRE(backward || (!a->d_freqs && !a->d_inv_freq), ARGUMENT, "%s must be NULL in forward",
            a->d_freqs ? "d_freqs" : "d_inv_freq");
    REQUIRE(!a->d_freqs || trope_has_table(a), ARGUMENT, "%s", "d_freqs needs freqs, or cos and sin");
    REQUIRE(!a->d_inv_freq || !trope_has_table(a), ARGUMENT, "%s", "d_inv_freq needs inv_freq or phase_step");
    if (a->d_freqs) {
        CHECK(require_between(function, "d_freqs_layout", a->d_freqs_layout, TROPE_TABLE_ROWS, TROPE_TABLE_STRIDED,
                              " with d_freqs"));
        CHECK(validate_rows(function, a, "d_freqs", a->d_freqs_layout));
        CHECK(validate_table_strides(function, a, "d_freqs", a->d_freqs_layout, a->d_freqs_stride));
        REQUIRE(a->d_freqs_layout != TROPE_TABLE_STRIDED || a->d_freqs_stride[3] != 0, ARGUMENT, "%s",
                "d_freqs_stride[3] (0) must be at least 1: sums are over axes, batch entries and rows, not over columns");
        return validate_table_axes(function, a, "d_freqs", a->d_freqs_layout, a->d_freqs_stride[0]);
    }
    CHECK(require_zero(function, "d_freqs_layout", a->d_freqs_layout, " without d_freqs"));
    for (int d = 0; d < 4; d++)
        REQUIRE(a->d_freqs_stride[d] == 0, ARGUMENT, "d_freqs_stride[%d] (%lld) must be 0 without d_freqs", d,
                (ll)a->d_freqs_stride[d]);
    return TROPE_OK;
}

trope_status trope_validate(const char *function, const trope_args *a, int backward)
{
    CHECK(validate_enums(function, a));
    CHECK(trope_validate_positions(function, a));
    CHECK(validate_operands(function, a, backward));
    if (!trope_rotates(a))
        return validate_gradient(function, a, backward);
    CHECK(validate_rotation(function, a));
    CHECK(validate_pair_axis(function, a));
    CHECK(validate_angles(function, a));
    CHECK(validate_angle_rows(function, a));
    return validate_gradient(function, a, backward);
}
