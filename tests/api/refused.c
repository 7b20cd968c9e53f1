/* Refused values of structs, enums, operands, memory and the rotation. refused.h explains the tests. Angles and their
 * gradient, positions, norms and the helpers have files of their own. */
#include <math.h>

#include "api/refused.h"

static void structs(void)
{
    ROW(dense(), a = NULL, IS_NULL, "args", "args is NULL");
    ROW(dense(), a->struct_size = 0, ARGUMENT, "struct_size", "(0)");
    ROW(dense(), a->struct_size = sizeof(trope_args *), ARGUMENT, "struct_size", "(8)");
    ROW(dense(), a->struct_size = offsetof(trope_args, operands) + 4, ARGUMENT, "struct_size", "sizeof of the struct");
    ROW(dense(), a->struct_size = offsetof(trope_args, d_freqs), ARGUMENT, "struct_size", "sizeof of the struct");
    ROW(dense(), a->struct_size = sizeof *a - 1, ARGUMENT, "struct_size", "sizeof of the struct");
    ROW(dense(), a->struct_size = UINT64_MAX, ARGUMENT, "struct_size", "(18446744073709551615)");
    ROW(dense(), a->reserved = 1, ARGUMENT, "reserved", "(1) must be 0");
    ROW(dense(), a->reserved_too = -1, ARGUMENT, "reserved_too", "(-1) must be 0");
    ROW(dense(), a->operands = NULL, IS_NULL, "operands", "operands is NULL");
    ROW(dense(), a->operands = memcpy(plus(in.k_forward, 4), q, 2 * sizeof *q), ARGUMENT, "operands", "aligned to 8 bytes");
    ROW(dense(), a->operand_size = 0, ARGUMENT, "operand_size", "(0)");
    ROW(dense(), a->operand_size = sizeof(trope_operand *), ARGUMENT, "operand_size", "(8)");
    ROW(dense(), a->operand_size = sizeof *q - 1, ARGUMENT, "operand_size", "sizeof of the struct");
    /* With this size, the bytes of operand 1 count as unknown bytes of operand 0. They are not 0. */
    ROW(dense(), a->operand_size = 2 * sizeof *q, ARGUMENT, "operand_size", "is not 0");
    ROW(dense(), a->operand_size = UINT64_MAX, ARGUMENT, "operand_size", "(18446744073709551615)");
    ROW(dense(), a->operand_count = 0, ARGUMENT, "operand_count", "(0) must be 1 to 16");
    ROW(dense(), a->operand_count = TROPE_MAX_OPERANDS + 1, ARGUMENT, "operand_count", "(17)");
    ROW(dense(), a->operand_count = -1, ARGUMENT, "operand_count", "(-1)");
}

static void enums(void)
{
    VALUES(dense(), a->device, 0, 4, -1);
    ROW(dense(), a->threads = -1, ARGUMENT, "threads", "(-1)");
    VALUES(dense(), a->isa, 5, -1);
    VALUES(dense(), a->dtype, 0, 5, -1);
    VALUES(dense(), a->rounding, 3, -1);
    ROW(dense(), a->stream = &in, ARGUMENT, "stream", "NULL");
}

static void shapes(void)
{
    VALUES(dense(), a->batch, 0, -1);
    ROW(dense(), a->tokens = -1, ARGUMENT, "tokens", "(-1)");
    ROW(dense(), q->groups = -1, ARGUMENT, "operands[0].groups", "(-1)");
    ROW(dense(), k->heads_per_group = 0, ARGUMENT, "operands[1].heads_per_group", "(0)");
    ROW(dense(), q->heads_per_group = -2, ARGUMENT, "operands[0].heads_per_group", "(-2)");
    ROW(dense(), q->head_dim = 0, ARGUMENT, "operands[0].head_dim", "(0)");
    ROW(dense(), k->head_dim = -8, ARGUMENT, "operands[1].head_dim", "(-8)");
}

/* The rotated window of a head. */
static void windows(void)
{
    ROW(dense(), q->rotary_dim = 0, ARGUMENT, "operands[0].rotary_dim", "(0) must be given; TROPE_COPY");
    VALUES(dense(), k->rotary_dim, 0, 10);
    ROW(dense(), q->rotary_dim = 7, ARGUMENT, "operands[0].rotary_dim", "(7) must be even");
    ROW(dense(), q->rotary_dim = -2, ARGUMENT, "operands[0].rotary_dim", "(-2)");
    ROW(dense(), q->rotary_dim = 14, ARGUMENT, "operands[0].rotary_dim", "at most head_dim - rotary_offset (12)");
    VALUES(dense(), q->rotary_offset, -1, 17);
    ROW(dense(), q->rotary_dim = TROPE_COPY, ARGUMENT, "operands[0].rotary_offset", "(4) must be 0");
    ROW(dense(), k->rotary_offset = 2, ARGUMENT, "operands[1].rotary_dim", "(8)");
    ROW(dense(), (q->head_dim = 2048, q->rotary_dim = TROPE_MAX_ROTARY_DIM + 2), ARGUMENT, "operands[0].rotary_dim",
        "(1026) must be at most 1024");
    ROW(dense(), (q->rotary_dim = k->rotary_dim = TROPE_COPY, q->rotary_offset = 0), ARGUMENT, "operands[0].rotary_dim",
        "no operand of the call rotates");
}

static void pointers(void)
{
    ROW(dense(), q->src = NULL, IS_NULL, "operands[0].src", "NULL");
    ROW(dense(), k->src = NULL, IS_NULL, "operands[1].src", "NULL");
    ROW(dense(), (q->dst = NULL, q->dst_layout = 0), IS_NULL, "operands[0].dst", "NULL");
    ROW(dense(), (k->dst = NULL, k->dst_layout = 0), IS_NULL, "operands[1].dst", "NULL");
    ROW(dense(), (k->rotary_dim = TROPE_COPY, k->src = NULL), IS_NULL, "operands[1].src", "NULL");
    ROW(dense(), q->src = plus(in.q, 2), ARGUMENT, "operands[0].src", "aligned to 4 bytes");
    ROW(dense(), k->dst = plus(out.k, 1), ARGUMENT, "operands[1].dst", "aligned to 4 bytes");
    ROW(dense(), (a->dtype = TROPE_BF16, k->src = plus(in.k, 1)), ARGUMENT, "operands[1].src", "aligned to 2 bytes");
    ROW(dense(), (a->dtype = TROPE_F64, q->dst = plus(out.q, 4)), ARGUMENT, "operands[0].dst", "aligned to 8 bytes");
}

static void layouts(void)
{
    ROW(dense(), q->src_layout = 0, ARGUMENT, "operands[0].src_layout", "trope_fill_operand");
    ROW(dense(), q->src_layout = 6, ARGUMENT, "operands[0].src_layout", "(6)");
    ROW(dense(), k->src_layout = -1, ARGUMENT, "operands[1].src_layout", "(-1)");
    VALUES(dense(), k->dst_layout, 0, 6);
    ROW(dense(), q->src_layout = TROPE_THD, ARGUMENT, "operands[0].src_layout", "batch 1, not 2");
    ROW(dense(), k->dst_layout = TROPE_THD, ARGUMENT, "operands[1].dst_layout", "batch 1, not 2");
    BACKWARD_ROW(gradient(), k->forward_src_layout = TROPE_THD, ARGUMENT, "operands[1].forward_src_layout",
                 "batch 1, not 2");
    BACKWARD_ROW(gradient(), q->dst = NULL, ARGUMENT, "operands[0].dst_layout", "NULL");
    BACKWARD_ROW(strided_gradient(), (q->dst = NULL, q->dst_layout = 0), ARGUMENT, "operands[0].dst_stride[0]",
                 "(256) must be 0");
    /* In 0.1, strides alone specified a layout. This is refused now. */
    ROW(strided(), q->src_layout = 0, ARGUMENT, "operands[0].src_layout", "STRIDED");
    ROW(strided(), k->dst_layout = 0, ARGUMENT, "operands[1].dst_layout", "STRIDED");
    ROW(strided(), q->src_layout = TROPE_BSHD, ARGUMENT, "operands[0].src_stride[0]", "TROPE_STRIDED");
    ROW(strided(), k->dst_layout = TROPE_BSHD, ARGUMENT, "operands[1].dst_stride[0]", "TROPE_STRIDED");
    for (int d = 0; d < TROPE_MAX_DIMS; d++) {
        ROW(dense(), q->src_stride[d] = 1, ARGUMENT, at("operands[0].src_stride", d), "(1)");
        ROW(dense(), k->dst_stride[d] = -64, ARGUMENT, at("operands[1].dst_stride", d), "(-64)");
    }
}

/* Shared heads: one head in memory stands for several heads of the other tensor. */
static void shared_heads(void)
{
    ROW(dense(), q->shared_heads = 3, ARGUMENT, "operands[0].shared_heads", "(3)");
    ROW(dense(), k->shared_heads = -1, ARGUMENT, "operands[1].shared_heads", "(-1)");
    ROW(dense(), (q->src = q->dst, q->shared_heads = TROPE_SHARED_ALL), ARGUMENT, "operands[0].shared_heads", "in place");
    ROW(dense(), (k->src = k->dst, k->shared_heads = TROPE_SHARED_GROUP), ARGUMENT, "operands[1].shared_heads", "in place");
    FORWARD_ROW(strided(), q->shared_heads = TROPE_SHARED_ALL, ARGUMENT, "operands[0].src_stride[3]", "(16)");
    FORWARD_ROW(strided(), (q->shared_heads = TROPE_SHARED_GROUP), ARGUMENT, "operands[0].src_stride[3]", "(16)");
    FORWARD_ROW(strided(), (q->shared_heads = TROPE_SHARED_ALL, q->groups = 2, q->heads_per_group = 1), ARGUMENT,
                "operands[0].src_stride[2]", "(32)");
    BACKWARD_ROW(strided(), (q->shared_heads = TROPE_SHARED_ALL, q->groups = 2, q->heads_per_group = 1), ARGUMENT,
                 "operands[0].dst_stride[2]", "(32)");
    BACKWARD_ROW(strided_gradient(), (q->shared_heads = TROPE_SHARED_ALL, q->dst_stride[TROPE_DIM_HEAD] = 0), ARGUMENT,
                 "operands[0].forward_src_stride[3]", "(16)");
    BACKWARD_ROW(strided(), q->shared_heads = TROPE_SHARED_ALL, ARGUMENT, "operands[0].dst_stride[3]", "(16)");
    BACKWARD_ROW(strided(), (q->shared_heads = TROPE_SHARED_GROUP), ARGUMENT, "operands[0].dst_stride[3]", "(16)");
    /* In forward only src has shared heads, so dst must not be expanded. */
    FORWARD_ROW(
        strided(),
        (q->shared_heads = TROPE_SHARED_GROUP, q->src_stride[TROPE_DIM_HEAD] = 0, q->dst_stride[TROPE_DIM_HEAD] = 0),
        OVERLAP, "operands[0].dst_stride", "overlaps itself");
}

static void accumulate(void)
{
    ROW(dense(), q->accumulate = 2, ARGUMENT, "operands[0].accumulate", "(2)");
    ROW(dense(), k->accumulate = -1, ARGUMENT, "operands[1].accumulate", "(-1)");
    FORWARD_ROW(dense(), q->accumulate = 1, ARGUMENT, "operands[0].accumulate", "must be 0 in forward");
    BACKWARD_ROW(dense(), (k->src = k->dst, k->accumulate = 1), ARGUMENT, "operands[1].accumulate", "in place");
    BACKWARD_ROW(gradient(), (k->dst = NULL, k->dst_layout = 0, k->accumulate = 1), IS_NULL, "operands[1].dst",
                 "accumulate");
}

static void overlap_of_operands(void)
{
    ROW(strided(), q->dst_stride[TROPE_DIM_HEAD] = 0, OVERLAP, "operands[0].dst_stride", "overlaps itself");
    ROW(strided(), q->dst_stride[TROPE_DIM_HEAD] = Q_DIM - 1, OVERLAP, "operands[0].dst_stride", "overlaps itself");
    ROW(strided(), k->dst_stride[TROPE_DIM_BATCH] = 0, OVERLAP, "operands[1].dst_stride", "overlaps itself");
    ROW(strided(), k->dst_stride[TROPE_DIM_TOKEN] = 4, OVERLAP, "operands[1].dst_stride", "overlaps itself");
    ROW(strided(), q->dst_stride[TROPE_DIM_ELEMENT] = 0, OVERLAP, "operands[0].dst_stride", "overlaps itself");
    ROW(strided(), q->dst_stride[TROPE_DIM_TOKEN] = -Q_DIM, OVERLAP, "operands[0].dst_stride", "overlaps itself");
    ROW(dense(), q->src = plus(q->dst, 4), OVERLAP, "operands[0].dst", "overlaps operands[0].src");
    ROW(dense(), q->src = plus(q->dst, -4), OVERLAP, "operands[0].dst", "overlaps operands[0].src");
    ROW(dense(), (q->src = q->dst, q->src_layout = TROPE_SBHD), OVERLAP, "operands[0].dst", "overlaps operands[0].src");
    ROW(strided(), (q->src = q->dst, q->src_stride[TROPE_DIM_HEAD] = 0), OVERLAP, "operands[0].dst",
        "overlaps operands[0].src");
    ROW(strided(), (q->src = q->dst, q->src_stride[TROPE_DIM_TOKEN] = Q_DIM), OVERLAP, "operands[0].dst",
        "overlaps operands[0].src");
    ROW(dense(), k->dst = plus(out.q, 64), OVERLAP, "operands[0].dst", "overlaps operands[1].dst");
    ROW(dense(), k->src = out.q, OVERLAP, "operands[0].dst", "overlaps operands[1].src");
    ROW(dense(), q->src = out.k, OVERLAP, "operands[1].dst", "overlaps operands[0].src");
}

/* A destination overlaps memory that the call reads, including host memory. */
static void overlap_of_inputs(void)
{
    ROW(dense(), a->freqs = out.q, OVERLAP, "operands[0].dst", "overlaps freqs");
    ROW(table(), a->cos = plus(out.k, 8), OVERLAP, "operands[1].dst", "overlaps cos");
    ROW(table(), a->sin = out.q, OVERLAP, "operands[0].dst", "overlaps sin");
    ROW(phase(), k->dst = in.inv_freq, OVERLAP, "operands[1].dst", "overlaps inv_freq");
    ROW(phase(), (q->src = q->dst = in.inv_freq), OVERLAP, "operands[0].dst", "overlaps inv_freq");
    ROW(steps(), k->dst = &in.phase_step[1], OVERLAP, "operands[1].dst", "overlaps phase_step");
    ROW(axes(), k->dst = in.pair_axis, OVERLAP, "operands[1].dst", "overlaps pair_axis");
    ROW(ids(), a->position_ids = out.q, OVERLAP, "operands[0].dst", "overlaps position_ids");
    ROW(starts(), a->start_positions = out.q, OVERLAP, "operands[0].dst", "overlaps start_positions");
    ROW(packed(), a->cu_seqlens = out.q, OVERLAP, "operands[0].dst", "overlaps cu_seqlens");
    ROW(padded(), a->cu_seqlens_padded = out.k, OVERLAP, "operands[1].dst", "overlaps cu_seqlens_padded");
    ROW(dense(), (a->batch = a->tokens = 1, k->dst = a), OVERLAP, "operands[1].dst", "overlaps args");
    ROW(dense(), (a->batch = a->tokens = 1, k->dst = q), OVERLAP, "operands[1].dst", "overlaps operands");
}

static void overlap_of_status(void)
{
    ROW(dense(), a->status = (int32_t *)out.q, OVERLAP, "operands[0].dst", "overlaps status");
    ROW(dense(), a->status = (int32_t *)(uintptr_t)in.k, OVERLAP, "status", "overlaps operands[1].src");
    ROW(dense(), a->status = (int32_t *)in.freqs, OVERLAP, "status", "overlaps freqs");
    ROW(phase(), a->status = (int32_t *)in.inv_freq, OVERLAP, "status", "overlaps inv_freq");
    ROW(ids(), a->status = &in.ids[3], OVERLAP, "status", "overlaps position_ids");
    ROW(packed(), a->status = in.cu_seqlens, OVERLAP, "status", "overlaps cu_seqlens");
    ROW(dense(), a->status = &q->groups, OVERLAP, "status", "overlaps operands");
    ROW(dense(), a->status = &a->threads, OVERLAP, "status", "overlaps args");
    ROW(dense(), a->status = (int32_t *)(void *)plus(in.ids, 2), ARGUMENT, "status", "aligned to 4 bytes");
}

/* The last 16 bytes of the address space. */
static void *last_bytes(void)
{
    return (void *)(UINTPTR_MAX - 15);
}

static void overflow(void)
{
    ROW(dense(), (a->batch = (int64_t)1 << 40, a->tokens = (int64_t)1 << 40), TOO_LARGE, "batch", "(1099511627776)");
    ROW(dense(), (a->batch = a->tokens = (int64_t)1 << 31), TOO_LARGE, "batch", "(2147483648) * tokens (2147483648)");
    ROW(strided(), q->src_stride[TROPE_DIM_TOKEN] = INT64_MAX, TOO_LARGE, "operands[0].src_stride", "");
    ROW(strided(), k->src_stride[TROPE_DIM_BATCH] = INT64_MIN, TOO_LARGE, "operands[1].src_stride", "");
    ROW(strided(), q->dst_stride[TROPE_DIM_HEAD] = INT64_MAX / 2, TOO_LARGE, "operands[0].dst_stride", "");
    ROW(strided(), k->dst_stride[TROPE_DIM_ELEMENT] = INT64_MAX / 8, TOO_LARGE, "operands[1].dst_stride", "");
    ROW(dense(), (q->groups = q->heads_per_group = q->head_dim = INT32_MAX), TOO_LARGE, "operands[0].head_dim",
        "groups (2147483647)");
    ROW(dense(), a->batch = a->tokens = (int64_t)1 << 29, TOO_LARGE, "operands[0].head_dim",
        "batch (536870912) and tokens (536870912)");
    ROW(strided(), (a->tokens = (int64_t)1 << 59, q->src_stride[TROPE_DIM_TOKEN] = 0), TOO_LARGE, "operands[0].head_dim",
        "tokens (576460752303423488)");
    BACKWARD_ROW(strided_gradient(), k->forward_src_stride[TROPE_DIM_TOKEN] = INT64_MAX, TOO_LARGE,
                 "operands[1].forward_src_stride", "");
    /* An address near the end of the address space. Only a caller who has set strides reads about them. */
    ROW(dense(), q->src = last_bytes(), TOO_LARGE, "operands[0].src", "with its shape, an element");
    ROW(strided(), k->dst = last_bytes(), TOO_LARGE, "operands[1].dst", "with its shape and strides, an element");
    ROW(dense(), a->freqs = last_bytes(), TOO_LARGE, "freqs", "with its shape, an element");
    ROW(strided_table(), a->freqs = last_bytes(), TOO_LARGE, "freqs", "with its shape and strides, an element");
    ROW(ids(), a->position_ids = last_bytes(), TOO_LARGE, "position_ids", "with its shape, an element");
    ROW(strided_ids(), a->position_ids = last_bytes(), TOO_LARGE, "position_ids", "with its shape and strides, an element");
    BACKWARD_ROW(gradient(), a->d_freqs = last_bytes(), TOO_LARGE, "d_freqs", "with its shape, an element");
    BACKWARD_ROW(gradient(), a->workspace = last_bytes(), TOO_LARGE, "workspace", "outside the address space");
}

static void rotation(void)
{
    VALUES(dense(), a->pairing, 0, 3, -1);
    VALUES(dense(), a->pairing_out, 3, -1);
    VALUES(dense(), a->inverse, 2, -1);
    ROW(dense(), a->mscale = NAN, ARGUMENT, "mscale", "(nan)");
    ROW(dense(), a->mscale = -INFINITY, ARGUMENT, "mscale", "(-inf)");
    ROW(dense(), a->mscale = 1e39, ARGUMENT, "mscale", "(1e+39)");  /* infinite in fp32 */
    ROW(dense(), a->mscale = 1e-60, ARGUMENT, "mscale", "(1e-60)"); /* 0 in fp32 */
    ROW(dense(), a->mscale = 1e300, ARGUMENT, "mscale", "(1e+300)");
    VALUES(dense(), a->parts, 5, -1);
    ROW(dense(), a->parts = 3, ARGUMENT, "operands[0].rotary_dim", "(8) must be divisible by 2 * parts (6)");
    ROW(dense(), (a->parts = 2, k->rotary_dim = 4), ARGUMENT, "operands[1].rotary_dim", "(4)");
}

/* The axis of each pair. */
static void pair_axis(void)
{
    ROW(axes(), a->pair_axis = NULL, ARGUMENT, "position_axes", "trope_fill_pair_axis");
    ROW(axes(), (a->pair_axis = NULL, a->parts = 2), ARGUMENT, "position_axes", "parts (2)");
    ROW(ids(), (a->parts = 2, a->position_axes = 1, a->ids_layout = TROPE_IDS_AXES_BATCH_TOKENS), ARGUMENT, "position_axes",
        "TROPE_IDS_BATCH_TOKENS");
    ROW(axes(), a->position_axes = 1, ARGUMENT, "position_axes", "(1) must be at least the 3 axes");
    ROW(axes(), in.pair_axis[2] = 3, ARGUMENT, "pair_axis[2]", "(3) must be at most 2, one less than position_axes");
    ROW(axes(), in.pair_axis[0] = 255, ARGUMENT, "pair_axis[0]", "(255)");
    ROW(ids(), (a->pair_axis = in.pair_axis, in.pair_axis[3] = 4), ARGUMENT, "pair_axis[3]", "(4)");
    ROW(dense(), (a->pair_axis = in.pair_axis, in.pair_axis[1] = 4), ARGUMENT, "pair_axis[1]", "(4)");
}

/* The device or instruction set is missing in this build or on this machine. */
static void unsupported(void)
{
    if (!strstr(trope_info(), "cuda"))
        ROW(dense(), a->device = TROPE_DEVICE_CUDA, UNSUPPORTED, "device", "(2)");
#if !defined(__x86_64__)
    ROW(dense(), a->isa = TROPE_ISA_AVX2, UNSUPPORTED, "isa", "(2)");
    ROW(dense(), a->isa = TROPE_ISA_AVX512, UNSUPPORTED, "isa", "(3)");
#elif defined(__GNUC__)
    if (!__builtin_cpu_supports("avx2"))
        ROW(dense(), a->isa = TROPE_ISA_AVX2, UNSUPPORTED, "isa", "(2)");
    if (!__builtin_cpu_supports("avx512f"))
        ROW(dense(), a->isa = TROPE_ISA_AVX512, UNSUPPORTED, "isa", "(3)");
#endif
#if !defined(__aarch64__)
    ROW(dense(), a->isa = TROPE_ISA_NEON, UNSUPPORTED, "isa", "(4)");
#endif
}

static void kernel_name_and_workspace_size(void)
{
    char name[4] = "abc";
    begin(gradient());
    CALL_ROW(trope_workspace_size, (a, NULL), IS_NULL, "bytes", "bytes is NULL");
    CALL_ROW(trope_kernel_name, (a, 0, NULL, 8), IS_NULL, "name", "name is NULL");
    CALL_ROW(trope_kernel_name, (a, 2, name, sizeof name), ARGUMENT, "backward", "(2)");
    CALL_ROW(trope_kernel_name, (a, 0, name, 0), ARGUMENT, "size", "(0)");
    CHECK(memcmp(name, "abc", 4) == 0);
}

int main(void)
{
    structs();
    enums();
    shapes();
    windows();
    pointers();
    layouts();
    shared_heads();
    accumulate();
    overlap_of_operands();
    overlap_of_inputs();
    overlap_of_status();
    overflow();
    rotation();
    pair_axis();
    unsupported();
    kernel_name_and_workspace_size();
    return refused_result();
}
