/* Sizes and offsets of the public structs, for callers without a C compiler, which declare the structs themselves. */
#include <stddef.h>
#include <string.h>

#include "trope/trope.h"

typedef struct field_offset {
    const char *name;
    size_t offset;
} field_offset;

static const field_offset args_fields[] = {
    {"struct_size", offsetof(trope_args, struct_size)},
    {"stream", offsetof(trope_args, stream)},
    {"device", offsetof(trope_args, device)},
    {"threads", offsetof(trope_args, threads)},
    {"isa", offsetof(trope_args, isa)},
    {"dtype", offsetof(trope_args, dtype)},
    {"rounding", offsetof(trope_args, rounding)},
    {"operand_count", offsetof(trope_args, operand_count)},
    {"operands", offsetof(trope_args, operands)},
    {"operand_size", offsetof(trope_args, operand_size)},
    {"batch", offsetof(trope_args, batch)},
    {"tokens", offsetof(trope_args, tokens)},
    {"pairing", offsetof(trope_args, pairing)},
    {"pairing_out", offsetof(trope_args, pairing_out)},
    {"parts", offsetof(trope_args, parts)},
    {"inverse", offsetof(trope_args, inverse)},
    {"mscale", offsetof(trope_args, mscale)},
    {"pair_axis", offsetof(trope_args, pair_axis)},
    {"freqs", offsetof(trope_args, freqs)},
    {"cos", offsetof(trope_args, cos)},
    {"sin", offsetof(trope_args, sin)},
    {"inv_freq", offsetof(trope_args, inv_freq)},
    {"phase_step", offsetof(trope_args, phase_step)},
    {"angle_dtype", offsetof(trope_args, angle_dtype)},
    {"angle_columns", offsetof(trope_args, angle_columns)},
    {"angle_layout", offsetof(trope_args, angle_layout)},
    {"out_of_range", offsetof(trope_args, out_of_range)},
    {"angle_rows", offsetof(trope_args, angle_rows)},
    {"angle_stride", offsetof(trope_args, angle_stride)},
    {"position_ids", offsetof(trope_args, position_ids)},
    {"start_positions", offsetof(trope_args, start_positions)},
    {"position_dtype", offsetof(trope_args, position_dtype)},
    {"ids_layout", offsetof(trope_args, ids_layout)},
    {"position_axes", offsetof(trope_args, position_axes)},
    {"stream_positions", offsetof(trope_args, stream_positions)},
    {"ids_stride", offsetof(trope_args, ids_stride)},
    {"cu_seqlens", offsetof(trope_args, cu_seqlens)},
    {"cu_seqlens_padded", offsetof(trope_args, cu_seqlens_padded)},
    {"sequences", offsetof(trope_args, sequences)},
    {"cu_seqlens_dtype", offsetof(trope_args, cu_seqlens_dtype)},
    {"padding", offsetof(trope_args, padding)},
    {"cp_size", offsetof(trope_args, cp_size)},
    {"cp_rank", offsetof(trope_args, cp_rank)},
    {"cp_layout", offsetof(trope_args, cp_layout)},
    {"reserved", offsetof(trope_args, reserved)},
    {"status", offsetof(trope_args, status)},
    {"d_freqs", offsetof(trope_args, d_freqs)},
    {"d_inv_freq", offsetof(trope_args, d_inv_freq)},
    {"d_freqs_layout", offsetof(trope_args, d_freqs_layout)},
    {"reserved_too", offsetof(trope_args, reserved_too)},
    {"d_freqs_stride", offsetof(trope_args, d_freqs_stride)},
    {"workspace", offsetof(trope_args, workspace)},
    {"workspace_size", offsetof(trope_args, workspace_size)},
    {"norms", offsetof(trope_args, norms)},
    {NULL, 0},
};

static const field_offset operand_fields[] = {
    {"src", offsetof(trope_operand, src)},
    {"dst", offsetof(trope_operand, dst)},
    {"forward_src", offsetof(trope_operand, forward_src)},
    {"src_layout", offsetof(trope_operand, src_layout)},
    {"dst_layout", offsetof(trope_operand, dst_layout)},
    {"forward_src_layout", offsetof(trope_operand, forward_src_layout)},
    {"groups", offsetof(trope_operand, groups)},
    {"heads_per_group", offsetof(trope_operand, heads_per_group)},
    {"head_dim", offsetof(trope_operand, head_dim)},
    {"rotary_dim", offsetof(trope_operand, rotary_dim)},
    {"rotary_offset", offsetof(trope_operand, rotary_offset)},
    {"shared_heads", offsetof(trope_operand, shared_heads)},
    {"accumulate", offsetof(trope_operand, accumulate)},
    {"src_stride", offsetof(trope_operand, src_stride)},
    {"dst_stride", offsetof(trope_operand, dst_stride)},
    {"forward_src_stride", offsetof(trope_operand, forward_src_stride)},
    {NULL, 0},
};

static const field_offset norm_fields[] = {
    {"struct_size", offsetof(trope_norm, struct_size)},
    {"weight", offsetof(trope_norm, weight)},
    {"weight_dtype", offsetof(trope_norm, weight_dtype)},
    {"weight_per_head", offsetof(trope_norm, weight_per_head)},
    {"weight_plus_one", offsetof(trope_norm, weight_plus_one)},
    {"scope", offsetof(trope_norm, scope)},
    {"order", offsetof(trope_norm, order)},
    {"rounding", offsetof(trope_norm, rounding)},
    {"eps", offsetof(trope_norm, eps)},
    {"rstd", offsetof(trope_norm, rstd)},
    {"rstd_use", offsetof(trope_norm, rstd_use)},
    {"token_sums_use", offsetof(trope_norm, token_sums_use)},
    {"d_weight", offsetof(trope_norm, d_weight)},
    {"token_sums", offsetof(trope_norm, token_sums)},
    {"heads_of_all_ranks", offsetof(trope_norm, heads_of_all_ranks)},
    {"first_head", offsetof(trope_norm, first_head)},
    {NULL, 0},
};

static const field_offset frequency_args_fields[] = {
    {"struct_size", offsetof(trope_frequency_args, struct_size)},
    {"rule", offsetof(trope_frequency_args, rule)},
    {"rotary_dim", offsetof(trope_frequency_args, rotary_dim)},
    {"base", offsetof(trope_frequency_args, base)},
    {"factor", offsetof(trope_frequency_args, factor)},
    {"original_max_position", offsetof(trope_frequency_args, original_max_position)},
    {"seq_len", offsetof(trope_frequency_args, seq_len)},
    {"low_freq_factor", offsetof(trope_frequency_args, low_freq_factor)},
    {"high_freq_factor", offsetof(trope_frequency_args, high_freq_factor)},
    {"beta_fast", offsetof(trope_frequency_args, beta_fast)},
    {"beta_slow", offsetof(trope_frequency_args, beta_slow)},
    {"attention_factor", offsetof(trope_frequency_args, attention_factor)},
    {"mscale", offsetof(trope_frequency_args, mscale)},
    {"mscale_all_dim", offsetof(trope_frequency_args, mscale_all_dim)},
    {"partial_rotary_factor", offsetof(trope_frequency_args, partial_rotary_factor)},
    {"short_factor", offsetof(trope_frequency_args, short_factor)},
    {"long_factor", offsetof(trope_frequency_args, long_factor)},
    {"no_truncate", offsetof(trope_frequency_args, no_truncate)},
    {"reserved", offsetof(trope_frequency_args, reserved)},
    {NULL, 0},
};

static const field_offset qkv_fields[] = {
    {"struct_size", offsetof(trope_qkv, struct_size)},
    {"buffer", offsetof(trope_qkv, buffer)},
    {"batch", offsetof(trope_qkv, batch)},
    {"tokens", offsetof(trope_qkv, tokens)},
    {"layout", offsetof(trope_qkv, layout)},
    {"order", offsetof(trope_qkv, order)},
    {"dtype", offsetof(trope_qkv, dtype)},
    {"q_heads", offsetof(trope_qkv, q_heads)},
    {"kv_heads", offsetof(trope_qkv, kv_heads)},
    {"head_dim", offsetof(trope_qkv, head_dim)},
    {"rotary_dim", offsetof(trope_qkv, rotary_dim)},
    {"reserved", offsetof(trope_qkv, reserved)},
    {NULL, 0},
};

static const struct {
    const char *name;
    size_t size;
    const field_offset *fields;
} structs[] = {
    {"trope_args", sizeof(trope_args), args_fields},
    {"trope_operand", sizeof(trope_operand), operand_fields},
    {"trope_norm", sizeof(trope_norm), norm_fields},
    {"trope_frequency_args", sizeof(trope_frequency_args), frequency_args_fields},
    {"trope_qkv", sizeof(trope_qkv), qkv_fields},
};

#define STRUCT_COUNT (sizeof structs / sizeof structs[0])

/* Returns the index of a struct in `structs`, or STRUCT_COUNT for an unknown name. */
static size_t find_struct(const char *name)
{
    size_t i = 0;
    while (i < STRUCT_COUNT && (!name || strcmp(name, structs[i].name)))
        i++;
    return i;
}

size_t trope_sizeof(const char *struct_name)
{
    const size_t i = find_struct(struct_name);
    return i < STRUCT_COUNT ? structs[i].size : 0;
}

int64_t trope_offsetof(const char *struct_name, const char *field)
{
    const size_t i = find_struct(struct_name);
    if (i == STRUCT_COUNT || !field)
        return -1;
    for (const field_offset *f = structs[i].fields; f->name; f++)
        if (!strcmp(f->name, field))
            return (int64_t)f->offset;
    return -1;
}
