/* trope_sizeof and trope_offsetof tell size and offset of everything public, which is what a caller without a compiler proves
 * its own declaration by. */
#include <stddef.h>
#include <string.h>

#include "support/check.h"
#include "trope/trope.h"

typedef struct field {
    const char *name;
    size_t offset, size;
} field;

#define FIELD(name)                                                                                                        \
    {                                                                                                                      \
#name, offsetof(STRUCT, name), sizeof(((STRUCT *)0)->name)                                                         \
    }

#define STRUCT trope_operand
static const field operand_fields[] = {FIELD(src),           FIELD(dst),
                                       FIELD(forward_src),   FIELD(src_layout),
                                       FIELD(dst_layout),    FIELD(forward_src_layout),
                                       FIELD(groups),        FIELD(heads_per_group),
                                       FIELD(head_dim),      FIELD(rotary_dim),
                                       FIELD(rotary_offset), FIELD(shared_heads),
                                       FIELD(accumulate),    FIELD(src_stride),
                                       FIELD(dst_stride),    FIELD(forward_src_stride)};
#undef STRUCT

#define STRUCT trope_args
static const field args_fields[] = {FIELD(struct_size),
                                    FIELD(stream),
                                    FIELD(device),
                                    FIELD(threads),
                                    FIELD(isa),
                                    FIELD(dtype),
                                    FIELD(rounding),
                                    FIELD(operand_count),
                                    FIELD(operands),
                                    FIELD(operand_size),
                                    FIELD(batch),
                                    FIELD(tokens),
                                    FIELD(pairing),
                                    FIELD(pairing_out),
                                    FIELD(parts),
                                    FIELD(inverse),
                                    FIELD(mscale),
                                    FIELD(pair_axis),
                                    FIELD(freqs),
                                    FIELD(cos),
                                    FIELD(sin),
                                    FIELD(inv_freq),
                                    FIELD(phase_step),
                                    FIELD(angle_dtype),
                                    FIELD(angle_columns),
                                    FIELD(angle_layout),
                                    FIELD(out_of_range),
                                    FIELD(angle_rows),
                                    FIELD(angle_stride),
                                    FIELD(position_ids),
                                    FIELD(start_positions),
                                    FIELD(position_dtype),
                                    FIELD(ids_layout),
                                    FIELD(position_axes),
                                    FIELD(stream_positions),
                                    FIELD(ids_stride),
                                    FIELD(cu_seqlens),
                                    FIELD(cu_seqlens_padded),
                                    FIELD(sequences),
                                    FIELD(cu_seqlens_dtype),
                                    FIELD(padding),
                                    FIELD(cp_size),
                                    FIELD(cp_rank),
                                    FIELD(cp_layout),
                                    FIELD(reserved),
                                    FIELD(status),
                                    FIELD(d_freqs),
                                    FIELD(d_inv_freq),
                                    FIELD(d_freqs_layout),
                                    FIELD(reserved_too),
                                    FIELD(d_freqs_stride),
                                    FIELD(workspace),
                                    FIELD(workspace_size)};
#undef STRUCT

#define STRUCT trope_qkv
static const field qkv_fields[] = {FIELD(struct_size), FIELD(buffer),   FIELD(batch),      FIELD(tokens),
                                   FIELD(layout),      FIELD(order),    FIELD(dtype),      FIELD(q_heads),
                                   FIELD(kv_heads),    FIELD(head_dim), FIELD(rotary_dim), FIELD(reserved)};
#undef STRUCT

#define STRUCT trope_frequency_args
static const field frequency_fields[] = {FIELD(struct_size),
                                         FIELD(rule),
                                         FIELD(rotary_dim),
                                         FIELD(base),
                                         FIELD(factor),
                                         FIELD(original_max_position),
                                         FIELD(seq_len),
                                         FIELD(low_freq_factor),
                                         FIELD(high_freq_factor),
                                         FIELD(beta_fast),
                                         FIELD(beta_slow),
                                         FIELD(attention_factor),
                                         FIELD(mscale),
                                         FIELD(mscale_all_dim),
                                         FIELD(partial_rotary_factor),
                                         FIELD(short_factor),
                                         FIELD(long_factor),
                                         FIELD(no_truncate),
                                         FIELD(reserved)};
#undef STRUCT

/* The fields follow each other without a gap, so that none is missing here, and no struct has padding that a caller would
 * have to zero. */
static void check_struct(const char *name, size_t size, const field *fields, size_t count)
{
    size_t end = 0;
    CHECK_MESSAGE(trope_sizeof(name) == size, "%s has %zu bytes, not %zu", name, size, trope_sizeof(name));
    for (size_t i = 0; i < count; i++) {
        const int64_t offset = trope_offsetof(name, fields[i].name);
        CHECK_MESSAGE(offset == (int64_t)fields[i].offset, "%s.%s is at %zu, not %lld", name, fields[i].name,
                      fields[i].offset, (long long)offset);
        CHECK_MESSAGE(fields[i].offset == end, "%s has something before %s that this test does not know", name,
                      fields[i].name);
        end = fields[i].offset + fields[i].size;
    }
    CHECK_MESSAGE(end == size, "%s has something behind %s that this test does not know", name, fields[count - 1].name);
}

#define CHECK_STRUCT(type, fields) check_struct(#type, sizeof(type), fields, sizeof fields / sizeof fields[0])

static void unknown_names(void)
{
    CHECK(trope_sizeof("trope_arg") == 0);
    CHECK(trope_sizeof("trope_args ") == 0);
    CHECK(trope_sizeof("") == 0);
    CHECK(trope_sizeof(NULL) == 0);
    CHECK(trope_offsetof("trope_args", "nothing") == -1);
    CHECK(trope_offsetof("trope_args", "src") == -1); /* an operand's */
    CHECK(trope_offsetof("trope_args", "operand") == -1);
    CHECK(trope_offsetof("trope_operand", "src_stride[1]") == -1);
    CHECK(trope_offsetof("trope_args", "") == -1);
    CHECK(trope_offsetof("trope_args", NULL) == -1);
    CHECK(trope_offsetof("trope_arg", "struct_size") == -1);
    CHECK(trope_offsetof(NULL, "struct_size") == -1);
}

int main(void)
{
    CHECK_STRUCT(trope_operand, operand_fields);
    CHECK_STRUCT(trope_args, args_fields);
    CHECK_STRUCT(trope_qkv, qkv_fields);
    CHECK_STRUCT(trope_frequency_args, frequency_fields);
    unknown_names();
    return check_result();
}
