/* The fields of the public structs, in the order of their declarations. */
#ifndef TESTS_API_FIELDS_H
#define TESTS_API_FIELDS_H

#include <stddef.h>

#include "trope/trope.h"

typedef enum field_kind { FIELD_INT32, FIELD_INT64, FIELD_REAL, FIELD_POINTER } field_kind;

typedef struct field {
    const char *name;
    size_t offset, size;
    field_kind kind; /* the type of its elements */
} field;

/* clang-format off */
/* _Generic sees an array of strides as int64_t *. No other field has that type. */
#define KIND(member)                                                                                              \
    _Generic(member, int32_t: FIELD_INT32, int64_t: FIELD_INT64, uint64_t: FIELD_INT64, int64_t *: FIELD_INT64,   \
             double: FIELD_REAL, default: FIELD_POINTER)
#define FIELD(name) {#name, offsetof(STRUCT, name), sizeof(((STRUCT *)0)->name), KIND(((STRUCT *)0)->name)}

#define STRUCT trope_operand
__attribute__((unused)) static const field operand_fields[] = {
    FIELD(src), FIELD(dst), FIELD(forward_src), FIELD(src_layout), FIELD(dst_layout), FIELD(forward_src_layout),
    FIELD(groups), FIELD(heads_per_group), FIELD(head_dim), FIELD(rotary_dim), FIELD(rotary_offset),
    FIELD(shared_heads), FIELD(accumulate), FIELD(src_stride), FIELD(dst_stride), FIELD(forward_src_stride)};
#undef STRUCT

#define STRUCT trope_args
__attribute__((unused)) static const field args_fields[] = {
    FIELD(struct_size), FIELD(stream), FIELD(device), FIELD(threads), FIELD(isa), FIELD(dtype), FIELD(rounding),
    FIELD(operand_count), FIELD(operands), FIELD(operand_size), FIELD(batch), FIELD(tokens), FIELD(pairing),
    FIELD(pairing_out), FIELD(parts), FIELD(inverse), FIELD(mscale), FIELD(pair_axis), FIELD(freqs), FIELD(cos),
    FIELD(sin), FIELD(inv_freq), FIELD(phase_step), FIELD(angle_dtype), FIELD(angle_columns), FIELD(angle_layout),
    FIELD(out_of_range), FIELD(angle_rows), FIELD(angle_stride), FIELD(position_ids), FIELD(start_positions),
    FIELD(position_dtype), FIELD(ids_layout), FIELD(position_axes), FIELD(stream_positions), FIELD(ids_stride),
    FIELD(cu_seqlens), FIELD(cu_seqlens_padded), FIELD(sequences), FIELD(cu_seqlens_dtype), FIELD(padding),
    FIELD(cp_size), FIELD(cp_rank), FIELD(cp_layout), FIELD(reserved), FIELD(status), FIELD(d_freqs), FIELD(d_inv_freq),
    FIELD(d_freqs_layout), FIELD(reserved_too), FIELD(d_freqs_stride), FIELD(workspace), FIELD(workspace_size),
    FIELD(norms)};
#undef STRUCT

#define STRUCT trope_norm
__attribute__((unused)) static const field norm_fields[] = {
    FIELD(struct_size), FIELD(weight), FIELD(weight_dtype), FIELD(weight_per_head), FIELD(weight_plus_one), FIELD(scope),
    FIELD(order), FIELD(rounding), FIELD(eps), FIELD(rstd), FIELD(rstd_use), FIELD(token_sums_use), FIELD(d_weight),
    FIELD(token_sums), FIELD(heads_of_all_ranks), FIELD(first_head)};
#undef STRUCT

#define STRUCT trope_qkv
__attribute__((unused)) static const field qkv_fields[] = {
    FIELD(struct_size), FIELD(buffer), FIELD(batch), FIELD(tokens), FIELD(layout), FIELD(order), FIELD(dtype),
    FIELD(q_heads), FIELD(kv_heads), FIELD(head_dim), FIELD(rotary_dim), FIELD(reserved)};
#undef STRUCT

#define STRUCT trope_frequency_args
__attribute__((unused)) static const field frequency_fields[] = {
    FIELD(struct_size), FIELD(rule), FIELD(rotary_dim), FIELD(base), FIELD(factor), FIELD(original_max_position),
    FIELD(seq_len), FIELD(low_freq_factor), FIELD(high_freq_factor), FIELD(beta_fast), FIELD(beta_slow),
    FIELD(attention_factor), FIELD(mscale), FIELD(mscale_all_dim), FIELD(partial_rotary_factor), FIELD(short_factor),
    FIELD(long_factor), FIELD(no_truncate), FIELD(reserved)};
#undef STRUCT

/* clang-format on */

#define FIELD_COUNT(fields) (sizeof fields / sizeof fields[0])

#endif
