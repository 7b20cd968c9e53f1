/* What can be wrong with a call and is known on the host. In the order of the header; each check is one line and its
 * message names function, argument, value and rule. */
#include <math.h>
#include <string.h>

#include "api/args.h"
#include "core/error.h"
#include "core/require.h"
#include "core/phase.h"
#include "core/plan.h"

#define ARGUMENT  TROPE_ERROR_ARGUMENT
#define MAX_COUNT ((int64_t)1 << 60)

typedef long long ll;

static trope_status require_enum(const char *function, const char *name, int32_t value, int32_t last)
{
    REQUIRE(value >= 0 && value <= last, ARGUMENT, "%s (%d) must be one of 0 to %d", name, value, last);
    return TROPE_OK;
}

static trope_status validate_enums(const char *function, const trope_args *a)
{
    CHECK(require_enum(function, "device", a->device, TROPE_DEVICE_CUDA));
    CHECK(require_enum(function, "isa", a->isa, TROPE_ISA_AVX512));
    CHECK(require_enum(function, "dtype", a->dtype, TROPE_F64));
    CHECK(require_enum(function, "rounding", a->rounding, TROPE_ROUND_NATIVE));
    CHECK(require_enum(function, "pairing", a->pairing, TROPE_PAIRING_INTERLEAVED));
    CHECK(require_enum(function, "pairing_out", a->pairing_out, TROPE_PAIRING_INTERLEAVED));
    CHECK(require_enum(function, "axis_map", a->axis_map, TROPE_AXES_INTERLEAVED));
    CHECK(require_enum(function, "inverse", a->inverse, 1));
    CHECK(require_enum(function, "angle_dtype", a->angle_dtype, TROPE_F64));
    CHECK(require_enum(function, "out_of_range", a->out_of_range, TROPE_RANGE_CLAMP));
    REQUIRE(a->windows >= 1 && a->windows <= 3, ARGUMENT, "windows (%d) must be 1 to 3", a->windows);
    REQUIRE(a->threads >= 0, ARGUMENT, "threads (%d) must be at least 0", a->threads);
    return TROPE_OK;
}

static trope_status validate_shape(const char *function, const trope_args *a)
{
    int64_t rows;
    REQUIRE(a->batch >= 0, ARGUMENT, "batch (%lld) must be at least 0", (ll)a->batch);
    REQUIRE(a->tokens >= 0, ARGUMENT, "tokens (%lld) must be at least 0", (ll)a->tokens);
    REQUIRE(!__builtin_mul_overflow(a->batch, a->tokens, &rows) && rows <= MAX_COUNT, TROPE_ERROR_OVERFLOW,
            "batch (%lld) * tokens (%lld) does not fit", (ll)a->batch, (ll)a->tokens);
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
    REQUIRE(o->reserved == 0, ARGUMENT, "operands[%d].reserved (%d) must be 0", i, o->reserved);
    REQUIRE(o->rotary_offset >= 0 && o->rotary_offset <= o->head_dim, ARGUMENT,
            "operands[%d].rotary_offset (%d) must be 0 to head_dim (%d)", i, o->rotary_offset, o->head_dim);
    REQUIRE(o->rotary_dim >= 0 && o->rotary_dim % 2 == 0 && o->rotary_dim <= o->head_dim - o->rotary_offset, ARGUMENT,
            "operands[%d].rotary_dim (%d) must be even and at most head_dim - rotary_offset (%d)", i, o->rotary_dim,
            o->head_dim - o->rotary_offset);
    REQUIRE(o->rotary_dim <= TROPE_MAX_ROTARY_DIM, ARGUMENT, "operands[%d].rotary_dim (%d) must be at most %d", i,
            o->rotary_dim, TROPE_MAX_ROTARY_DIM);
    REQUIRE(o->rotary_dim % (2 * a->windows) == 0, ARGUMENT,
            "operands[%d].rotary_dim (%d) must be divisible by 2 * windows (%d)", i, o->rotary_dim, 2 * a->windows);
    REQUIRE(!__builtin_mul_overflow(count, (int64_t)o->groups * o->heads_per_group, &count) &&
                !__builtin_mul_overflow(count, (int64_t)o->head_dim, &count) && count <= MAX_COUNT,
            TROPE_ERROR_OVERFLOW, "operands[%d]: the number of elements does not fit", i);
    return TROPE_OK;
}

static trope_status validate_operands(const char *function, const trope_args *a)
{
    REQUIRE(a->operand_count >= 1 && a->operand_count <= TROPE_MAX_OPERANDS, ARGUMENT, "operand_count (%d) must be 1 to %d",
            a->operand_count, TROPE_MAX_OPERANDS);
    for (int i = 0; i < a->operand_count; i++)
        CHECK(validate_head(function, a, i));
    return TROPE_OK;
}

static int32_t widest_rotary_dim(const trope_args *a)
{
    int32_t widest = 0;
    for (int i = 0; i < a->operand_count; i++)
        widest = a->operands[i].rotary_dim > widest ? a->operands[i].rotary_dim : widest;
    return widest;
}

static trope_status validate_rotation(const char *function, const trope_args *a, int32_t rotary_dim)
{
    const int32_t *s = a->axis_sections;
    const double mscale = a->dtype == TROPE_F64 ? a->mscale : (double)(float)a->mscale;
    REQUIRE(isfinite(mscale) && mscale != 0, ARGUMENT, "mscale (%g) must be finite, and not 0, in the arithmetic of dtype",
            a->mscale);
    if (a->windows > 1) {
        REQUIRE(a->axis_map == TROPE_AXES_WINDOWS, ARGUMENT,
                "axis_map (%d) must be 0 with windows (%d), which drive the axes themselves", a->axis_map, a->windows);
        for (int i = 0; i < a->operand_count; i++)
            REQUIRE(a->operands[i].rotary_dim == 0 || a->operands[i].rotary_dim == rotary_dim, ARGUMENT,
                    "operands[%d].rotary_dim (%d) must be that of the other operands (%d) with windows (%d)", i,
                    a->operands[i].rotary_dim, rotary_dim, a->windows);
    }
    if (a->axis_map == TROPE_AXES_WINDOWS) {
        REQUIRE(!s[0] && !s[1] && !s[2], ARGUMENT, "axis_sections (%d, %d, %d) must be 0 without axis_map", s[0], s[1],
                s[2]);
        return TROPE_OK;
    }
    REQUIRE(s[0] >= 0 && s[1] >= 0 && s[2] >= 0 && (int64_t)s[0] + s[1] + s[2] == rotary_dim / 2, ARGUMENT,
            "axis_sections (%d, %d, %d) must be at least 0 and add up to rotary_dim / 2 (%d)", s[0], s[1], s[2],
            rotary_dim / 2);
    if (a->axis_map == TROPE_AXES_INTERLEAVED)
        for (int axis = 1; axis < 3; axis++)
            REQUIRE(s[axis] == 0 || 3 * (s[axis] - 1) + axis < rotary_dim / 2, ARGUMENT,
                    "axis_sections[%d] (%d) must leave its last pair (%d) below rotary_dim / 2 (%d)", axis, s[axis],
                    3 * (s[axis] - 1) + axis, rotary_dim / 2);
    return TROPE_OK;
}

static trope_status validate_inv_freq(const char *function, const trope_args *a, int32_t rotary_dim)
{
    REQUIRE(a->angle_rows == 0 && a->angle_cols == 0 && a->angle_row_stride == 0 && a->angle_batch_stride == 0, ARGUMENT,
            "angle_rows (%lld), angle_cols (%d) and the angle strides must be 0 with inv_freq", (ll)a->angle_rows,
            a->angle_cols);
    REQUIRE((uintptr_t)a->inv_freq % sizeof(double) == 0, ARGUMENT, "inv_freq (%p) must be aligned to 8 bytes",
            (const void *)a->inv_freq);
    for (int i = 0; i < rotary_dim / 2; i++)
        REQUIRE(fabs(a->inv_freq[i]) < TROPE_MAX_FREQUENCY, ARGUMENT, "inv_freq[%d] (%g) must be finite and below 2^64", i,
                a->inv_freq[i]);
    return TROPE_OK;
}

static trope_status validate_angle_dtype(const char *function, const trope_args *a)
{
    const int is_f64 = a->angle_dtype == TROPE_F64 && a->dtype == TROPE_F64;
    if (a->freqs)
        REQUIRE(a->angle_dtype == TROPE_F32 || is_f64, ARGUMENT,
                "angle_dtype (%d) must be TROPE_F32 for freqs, or TROPE_F64 with f64 operands", a->angle_dtype);
    else
        REQUIRE(a->angle_dtype == TROPE_F32 || a->angle_dtype == a->dtype, ARGUMENT,
                "angle_dtype (%d) must be TROPE_F32 or the operands' dtype (%d) for cos and sin", a->angle_dtype, a->dtype);
    return TROPE_OK;
}

static trope_status validate_angle_table(const char *function, const trope_args *a, int32_t rotary_dim)
{
    int64_t rows, batches;
    CHECK(validate_angle_dtype(function, a));
    REQUIRE(a->angle_cols == rotary_dim || a->angle_cols == rotary_dim / 2, ARGUMENT,
            "angle_cols (%d) must be rotary_dim (%d) or rotary_dim / 2", a->angle_cols, rotary_dim);
    REQUIRE(a->angle_rows >= 1, ARGUMENT, "angle_rows (%lld) must be at least 1", (ll)a->angle_rows);
    REQUIRE(a->angle_row_stride >= a->angle_cols, ARGUMENT, "angle_row_stride (%lld) must be at least angle_cols (%d)",
            (ll)a->angle_row_stride, a->angle_cols);
    REQUIRE(a->angle_batch_stride >= 0, ARGUMENT, "angle_batch_stride (%lld) must be at least 0",
            (ll)a->angle_batch_stride);
    REQUIRE(!__builtin_mul_overflow(a->angle_rows, a->angle_row_stride, &rows) &&
                !__builtin_mul_overflow(a->batch, a->angle_batch_stride, &batches) && rows <= MAX_COUNT / 8 &&
                batches <= MAX_COUNT / 8,
            TROPE_ERROR_OVERFLOW, "angle_rows (%lld) * angle_row_stride (%lld) or batch * angle_batch_stride does not fit",
            (ll)a->angle_rows, (ll)a->angle_row_stride);
    return TROPE_OK;
}

static trope_status validate_angles(const char *function, const trope_args *a, int32_t rotary_dim)
{
    const int sources = (a->freqs != NULL) + (a->cos || a->sin) + (a->inv_freq != NULL);
    REQUIRE(!a->cos == !a->sin, TROPE_ERROR_NULL, "%s is NULL and %s is not: a table needs both", a->cos ? "sin" : "cos",
            a->cos ? "cos" : "sin");
    if (rotary_dim == 0)
        return TROPE_OK;
    REQUIRE(sources != 0, TROPE_ERROR_NULL, "%s",
            "freqs, cos with sin, and inv_freq are all NULL: one of them must be given");
    REQUIRE(sources == 1, ARGUMENT, "%s", "exactly one of freqs, cos with sin, and inv_freq must be given");
    return a->inv_freq ? validate_inv_freq(function, a, rotary_dim) : validate_angle_table(function, a, rotary_dim);
}

static trope_status validate_ids(const char *function, const trope_args *a)
{
    CHECK(require_enum(function, "position_dtype", a->position_dtype, TROPE_I64));
    CHECK(require_enum(function, "packed_positions", a->packed_positions, 1));
    REQUIRE(a->position_axes >= 1 && a->position_axes <= TROPE_MAX_AXES, ARGUMENT, "position_axes (%d) must be 1 to %d",
            a->position_axes, TROPE_MAX_AXES);
    REQUIRE(a->position_axes == 1 || a->position_ids, ARGUMENT, "position_axes (%d) must be 1 without position_ids",
            a->position_axes);
    REQUIRE((a->position_ids != NULL) + (a->start_positions != NULL) + a->packed_positions <= 1, ARGUMENT, "%s",
            "only one of position_ids, start_positions and packed_positions may be given");
    REQUIRE(!a->packed_positions || a->cu_seqlens, ARGUMENT, "packed_positions (%d) needs cu_seqlens", a->packed_positions);
    return TROPE_OK;
}

/* How many axes the rotation needs: with one axis of ids all of them read that. */
static trope_status validate_axes(const char *function, const trope_args *a)
{
    int32_t needed = a->windows;
    for (int axis = 0; axis < TROPE_MAX_AXES; axis++)
        if (a->axis_sections[axis] > 0)
            needed = axis + 1;
    REQUIRE(a->position_axes == 1 || a->position_axes >= needed, ARGUMENT,
            "position_axes (%d) must be 1 or at least the %d axes that windows or axis_sections use", a->position_axes,
            needed);
    return TROPE_OK;
}

static trope_status validate_cu_seqlens(const char *function, const trope_args *a)
{
    CHECK(require_enum(function, "cu_seqlens_dtype", a->cu_seqlens_dtype, TROPE_I64));
    CHECK(require_enum(function, "padding", a->padding, TROPE_PADDING_ROTATE));
    REQUIRE(!a->cu_seqlens_padded || a->cu_seqlens, TROPE_ERROR_NULL, "%s",
            "cu_seqlens is NULL and cu_seqlens_padded is not");
    if (!a->cu_seqlens) {
        REQUIRE(a->sequences == 0, ARGUMENT, "sequences (%lld) must be 0 without cu_seqlens", (ll)a->sequences);
        return TROPE_OK;
    }
    REQUIRE(a->sequences >= 0 && a->sequences < MAX_COUNT / 8, ARGUMENT,
            "sequences (%lld) must be at least 0 and below 2^57", (ll)a->sequences);
    REQUIRE(a->batch == 1, ARGUMENT, "batch (%lld) must be 1 with cu_seqlens", (ll)a->batch);
    return TROPE_OK;
}

static trope_status validate_context_parallel(const char *function, const trope_args *a)
{
    CHECK(require_enum(function, "cp_layout", a->cp_layout, TROPE_CP_FLAT));
    REQUIRE(a->cp_size >= 1, ARGUMENT, "cp_size (%d) must be at least 1 (0 stands for 1)", a->cp_size);
    REQUIRE(a->cp_rank >= 0 && a->cp_rank < a->cp_size, ARGUMENT, "cp_rank (%d) must be 0 to cp_size - 1 (%d)", a->cp_rank,
            a->cp_size - 1);
    REQUIRE(a->cp_size == 1 || a->cp_layout != TROPE_CP_NONE, ARGUMENT, "cp_layout (%d) must be given with cp_size (%d)",
            a->cp_layout, a->cp_size);
    int64_t global;
    REQUIRE(!__builtin_mul_overflow(a->tokens, (int64_t)a->cp_size, &global) && global <= MAX_COUNT, TROPE_ERROR_OVERFLOW,
            "tokens (%lld) * cp_size (%d) does not fit", (ll)a->tokens, a->cp_size);
    const int64_t divisor = trope_cp_divisor(a->cp_layout, a->cp_size);
    REQUIRE(a->cu_seqlens || a->position_ids || a->cp_size == 1 || global % divisor == 0, ARGUMENT,
            "tokens (%lld) * cp_size (%d) must be divisible by %lld for cp_layout (%d)", (ll)a->tokens, a->cp_size,
            (ll)divisor, a->cp_layout);
    REQUIRE(a->reserved == 0, ARGUMENT, "reserved (%d) must be 0", a->reserved);
    return TROPE_OK;
}

trope_status trope_validate_positions(const char *function, const trope_args *a)
{
    CHECK(validate_shape(function, a));
    CHECK(validate_ids(function, a));
    CHECK(validate_cu_seqlens(function, a));
    return validate_context_parallel(function, a);
}

/* Without cu_seqlens, ids and start positions the positions follow from the shapes, and so does whether the table has them.
 */
static trope_status validate_table_rows(const char *function, const trope_args *a, int32_t rotary_dim)
{
    if (rotary_dim == 0 || a->inv_freq || a->cu_seqlens || a->position_ids || a->start_positions || a->batch == 0 ||
        a->tokens == 0 || a->out_of_range != TROPE_RANGE_POISON)
        return TROPE_OK;
    const trope_sequences s = trope_plan_sequences(a);
    const trope_span span = trope_dense_span(&s, 0);
    const int64_t highest = trope_index_in_sequence(&s, &span, a->tokens - 1); /* every layout ascends */
    REQUIRE(highest < a->angle_rows, ARGUMENT,
            "angle_rows (%lld) must be more than the highest position of this call (%lld)", (ll)a->angle_rows, (ll)highest);
    return TROPE_OK;
}

static trope_status validate_gradient(const char *function, const trope_args *a, int32_t rotary_dim)
{
    REQUIRE(!a->d_freqs || (rotary_dim && !a->inv_freq), ARGUMENT, "%s", "d_freqs needs freqs, or cos and sin");
    REQUIRE(!a->d_inv_freq || (rotary_dim && a->inv_freq), ARGUMENT, "%s", "d_inv_freq needs inv_freq");
    REQUIRE(!a->d_freqs || a->angle_batch_stride == 0 ||
                a->angle_batch_stride >= (a->angle_rows - 1) * a->angle_row_stride + a->angle_cols,
            TROPE_ERROR_OVERLAP, "angle_batch_stride (%lld): the batch entries of d_freqs overlap",
            (ll)a->angle_batch_stride);
    return TROPE_OK;
}

trope_status trope_validate(const char *function, const trope_args *a, int backward)
{
    CHECK(validate_enums(function, a));
    CHECK(trope_validate_positions(function, a));
    CHECK(validate_operands(function, a));
    const int32_t rotary_dim = widest_rotary_dim(a);
    CHECK(validate_rotation(function, a, rotary_dim));
    CHECK(validate_angles(function, a, rotary_dim));
    CHECK(validate_axes(function, a));
    CHECK(validate_table_rows(function, a, rotary_dim));
    if (backward)
        CHECK(validate_gradient(function, a, rotary_dim));
    return trope_validate_memory(function, a, backward);
}
