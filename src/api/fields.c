/* The fields of the public structs: trope_sizeof, trope_offsetof and the text of a call (call_text.h) read these tables. */
#include "api/fields.h"

#include <stddef.h>
#include <string.h>

/* The words of enums whose values begin at 1. They are the names in the header, without what they share. */
static const char *const dtypes[] = {"f32", "f16", "bf16", "f64", NULL};
static const char *const indices[] = {"i32", "i64", NULL};
static const char *const roundings[] = {"native", "native_f32", NULL};
static const char *const pairings[] = {"half", "interleaved", NULL};
static const char *const columns[] = {"pair", "half", "interleaved", NULL};
static const char *const tables[] = {"rows", "batch_rows", "axes_batch_rows", "strided", NULL};
static const char *const ids[] = {"axes_batch_tokens", "batch_tokens", "tokens", "strided", NULL};
static const char *const ranges[] = {"clamp", NULL};
static const char *const paddings[] = {"zero", "copy", "rotate", NULL};
static const char *const cp_layouts[] = {"contiguous", "zigzag", "striped", "flat", NULL};
static const char *const layouts[] = {"sbhd", "bshd", "bhsd", "thd", "strided", NULL};
static const char *const sharings[] = {"group", "all", NULL};
static const char *const scopes[] = {"head", "token", NULL};
static const char *const orders[] = {"before", "after", NULL};
static const char *const norm_roundings[] = {"twice", "product", NULL};
static const char *const uses[] = {"write", "read", NULL};

#define FIELD(type, field) .name = #field, .offset = offsetof(type, field)
#define HIDDEN(type, field)                                                                                                \
    {                                                                                                                      \
        FIELD(type, field), .kind = TROPE_FIELD_HIDDEN                                                                     \
    }
#define INT32(type, field, default_)                                                                                       \
    {                                                                                                                      \
        FIELD(type, field), .kind = TROPE_FIELD_INT32, .absent = (default_)                                                \
    }
#define INT64(type, field)                                                                                                 \
    {                                                                                                                      \
        FIELD(type, field), .kind = TROPE_FIELD_INT64                                                                      \
    }
#define DOUBLE(type, field, default_)                                                                                      \
    {                                                                                                                      \
        FIELD(type, field), .kind = TROPE_FIELD_DOUBLE, .absent = (default_)                                               \
    }
#define WORD(type, field, words_)                                                                                          \
    {                                                                                                                      \
        FIELD(type, field), .kind = TROPE_FIELD_INT32, .words = (words_)                                                   \
    }
#define ARRAY(type, field)                                                                                                 \
    {                                                                                                                      \
        FIELD(type, field), .kind = TROPE_FIELD_ARRAY                                                                      \
    }
#define TENSOR(type, field)                                                                                                \
    {                                                                                                                      \
        FIELD(type, field), .kind = TROPE_FIELD_TENSOR                                                                     \
    }
#define AXES(type, field)                                                                                                  \
    {                                                                                                                      \
        FIELD(type, field), .kind = TROPE_FIELD_AXES                                                                       \
    }
#define STRIDES(type, field)                                                                                               \
    {                                                                                                                      \
        FIELD(type, field), .kind = TROPE_FIELD_STRIDES, .count = sizeof((type *)0)->field / sizeof(int64_t)               \
    }

static const trope_field args_fields[] = {
    HIDDEN(trope_args, struct_size),
    HIDDEN(trope_args, stream),
    HIDDEN(trope_args, device),
    HIDDEN(trope_args, threads),
    HIDDEN(trope_args, isa),
    WORD(trope_args, dtype, dtypes),
    WORD(trope_args, rounding, roundings),
    HIDDEN(trope_args, operand_count),
    HIDDEN(trope_args, operands),
    HIDDEN(trope_args, operand_size),
    INT64(trope_args, batch),
    INT64(trope_args, tokens),
    WORD(trope_args, pairing, pairings),
    WORD(trope_args, pairing_out, pairings),
    INT32(trope_args, parts, 1),
    INT32(trope_args, inverse, 0),
    DOUBLE(trope_args, mscale, 1),
    AXES(trope_args, pair_axis),
    ARRAY(trope_args, freqs),
    ARRAY(trope_args, cos),
    ARRAY(trope_args, sin),
    ARRAY(trope_args, inv_freq),
    ARRAY(trope_args, phase_step),
    WORD(trope_args, angle_dtype, dtypes),
    WORD(trope_args, angle_columns, columns),
    WORD(trope_args, angle_layout, tables),
    WORD(trope_args, out_of_range, ranges),
    INT64(trope_args, angle_rows),
    STRIDES(trope_args, angle_stride),
    ARRAY(trope_args, position_ids),
    ARRAY(trope_args, start_positions),
    WORD(trope_args, position_dtype, indices),
    WORD(trope_args, ids_layout, ids),
    INT32(trope_args, position_axes, 0),
    INT32(trope_args, stream_positions, 0),
    STRIDES(trope_args, ids_stride),
    ARRAY(trope_args, cu_seqlens),
    ARRAY(trope_args, cu_seqlens_padded),
    INT64(trope_args, sequences),
    WORD(trope_args, cu_seqlens_dtype, indices),
    WORD(trope_args, padding, paddings),
    INT32(trope_args, cp_size, 0),
    INT32(trope_args, cp_rank, 0),
    WORD(trope_args, cp_layout, cp_layouts),
    HIDDEN(trope_args, reserved),
    ARRAY(trope_args, status),
    ARRAY(trope_args, d_freqs),
    ARRAY(trope_args, d_inv_freq),
    WORD(trope_args, d_freqs_layout, tables),
    HIDDEN(trope_args, reserved_too),
    STRIDES(trope_args, d_freqs_stride),
    HIDDEN(trope_args, workspace),
    HIDDEN(trope_args, workspace_size),
    HIDDEN(trope_args, norms),
    {.name = NULL},
};

static const trope_field operand_fields[] = {
    TENSOR(trope_operand, src),
    TENSOR(trope_operand, dst),
    TENSOR(trope_operand, forward_src),
    WORD(trope_operand, src_layout, layouts),
    WORD(trope_operand, dst_layout, layouts),
    WORD(trope_operand, forward_src_layout, layouts),
    INT32(trope_operand, groups, 1),
    INT32(trope_operand, heads_per_group, 0),
    INT32(trope_operand, head_dim, 0),
    INT32(trope_operand, rotary_dim, 0),
    INT32(trope_operand, rotary_offset, 0),
    WORD(trope_operand, shared_heads, sharings),
    INT32(trope_operand, accumulate, 0),
    STRIDES(trope_operand, src_stride),
    STRIDES(trope_operand, dst_stride),
    STRIDES(trope_operand, forward_src_stride),
    {.name = NULL},
};

static const trope_field norm_fields[] = {
    HIDDEN(trope_norm, struct_size),
    ARRAY(trope_norm, weight),
    WORD(trope_norm, weight_dtype, dtypes),
    INT32(trope_norm, weight_per_head, 0),
    INT32(trope_norm, weight_plus_one, 0),
    WORD(trope_norm, scope, scopes),
    WORD(trope_norm, order, orders),
    WORD(trope_norm, rounding, norm_roundings),
    DOUBLE(trope_norm, eps, 0),
    ARRAY(trope_norm, rstd),
    WORD(trope_norm, rstd_use, uses),
    WORD(trope_norm, token_sums_use, uses),
    ARRAY(trope_norm, d_weight),
    ARRAY(trope_norm, token_sums),
    INT32(trope_norm, heads_of_all_ranks, 0),
    INT32(trope_norm, first_head, 0),
    {.name = NULL},
};

static const trope_field frequency_args_fields[] = {
    HIDDEN(trope_frequency_args, struct_size),
    HIDDEN(trope_frequency_args, rule),
    HIDDEN(trope_frequency_args, rotary_dim),
    HIDDEN(trope_frequency_args, base),
    HIDDEN(trope_frequency_args, factor),
    HIDDEN(trope_frequency_args, original_max_position),
    HIDDEN(trope_frequency_args, seq_len),
    HIDDEN(trope_frequency_args, low_freq_factor),
    HIDDEN(trope_frequency_args, high_freq_factor),
    HIDDEN(trope_frequency_args, beta_fast),
    HIDDEN(trope_frequency_args, beta_slow),
    HIDDEN(trope_frequency_args, attention_factor),
    HIDDEN(trope_frequency_args, mscale),
    HIDDEN(trope_frequency_args, mscale_all_dim),
    HIDDEN(trope_frequency_args, partial_rotary_factor),
    HIDDEN(trope_frequency_args, short_factor),
    HIDDEN(trope_frequency_args, long_factor),
    HIDDEN(trope_frequency_args, no_truncate),
    HIDDEN(trope_frequency_args, reserved),
    {.name = NULL},
};

static const trope_field qkv_fields[] = {
    HIDDEN(trope_qkv, struct_size),
    HIDDEN(trope_qkv, buffer),
    HIDDEN(trope_qkv, batch),
    HIDDEN(trope_qkv, tokens),
    HIDDEN(trope_qkv, layout),
    HIDDEN(trope_qkv, order),
    HIDDEN(trope_qkv, dtype),
    HIDDEN(trope_qkv, q_heads),
    HIDDEN(trope_qkv, kv_heads),
    HIDDEN(trope_qkv, head_dim),
    HIDDEN(trope_qkv, rotary_dim),
    HIDDEN(trope_qkv, reserved),
    {.name = NULL},
};

static const trope_struct structs[] = {
    {"trope_args", sizeof(trope_args), args_fields},
    {"trope_operand", sizeof(trope_operand), operand_fields},
    {"trope_norm", sizeof(trope_norm), norm_fields},
    {"trope_frequency_args", sizeof(trope_frequency_args), frequency_args_fields},
    {"trope_qkv", sizeof(trope_qkv), qkv_fields},
};

const trope_struct *trope_find_struct(const char *name)
{
    for (size_t i = 0; name && i < sizeof structs / sizeof structs[0]; i++)
        if (!strcmp(name, structs[i].name))
            return &structs[i];
    return NULL;
}

const trope_field *trope_find_field(const trope_struct *of, const char *name)
{
    for (const trope_field *f = of->fields; f->name; f++)
        if (!strcmp(f->name, name))
            return f;
    return NULL;
}
