/* trope: rotary position embedding (RoPE) for training, forward and backward, on CPU and CUDA.
 *
 * One call rotates up to 16 tensors ("operands": Q, K, or slices of a packed QKV buffer) and copies
 * the elements that are not rotated. It can also compute the RMS norms of the operands. The library
 * computes no attention, allocates nothing (except to compile a CUDA kernel), and never prints.
 * Between calls it keeps sleeping threads, kernels and the last error of each thread, but no state
 * that affects a result. This file is the reference. docs/semantics.md explains it with pictures.
 *
 * M rotates one pair of elements. M' is its transpose:
 *
 *     forward   y  = M x        M = mscale * [ cos a1  -sin a1 ]
 *     backward  dx = M' dy                   [ sin a2   cos a2 ]
 *
 * a1 and a2 are the angles of the first and the second element. They are equal in ordinary RoPE
 * (Su et al., RoFormer, arXiv:2104.09864, equation 34). With an RMS norm n, forward computes
 * y = M n(x) or y = n(M x): see trope_norm.
 *
 * Contents     1  Status, enumerations        3  A call: trope_args    5  Helpers
 *              2  A tensor: trope_operand     4  Functions             6  Frequencies, information
 *
 * The smallest call sets nine fields and the angles, and leaves all other fields 0:
 *     struct_size  device  dtype  operands  operand_count  operand_size  batch  tokens  pairing
 *     and inv_freq, or a table with angle_dtype, angle_columns, angle_layout and angle_rows
 * trope_fill_operand fills in its operands.
 *
 * Rules that hold for the whole interface:
 *   - A function returns TROPE_OK (0), or a status that says what is wrong. A call that fails has
 *     written nothing, and trope_last_error() names the function, the argument, its value and the
 *     rule. The one exception is TROPE_ERROR_DEVICE. Some CUDA calls are several launches: calls
 *     with d_freqs, d_inv_freq or d_weight, and backward calls with a norm over tokens, or in which
 *     only some operands have a norm. The launches before the one that failed are queued.
 *   - Any thread may call any function at any time. A call takes at most 60 KB of stack.
 *   - A field that decides how bytes are read has no default. Its values begin at 1. It must be set
 *     where it applies, and must be 0 where it does not. For other fields 0 is either refused or a
 *     default, as their comments say.
 *   - Strides count elements. Sizes describe the tensors on this rank. Pointers must be aligned to
 *     their elements. A struct may be larger than in this version if all bytes after the fields of
 *     this version are 0.
 *   - For f32, f16 and bf16, the bits of a result element depend only on its input, its angles, its
 *     position and the rounding mode. They do not depend on layout, strides, threads, instruction
 *     set, device, the caller's floating-point environment, or how the work is split. (But a sum
 *     over shared heads, or for a gradient of the angles, covers the tokens and heads of one call.)
 */
#ifndef TROPE_TROPE_H
#define TROPE_TROPE_H

#include <stddef.h>
#include <stdint.h>

#define TROPE_VERSION_MAJOR 0
#define TROPE_VERSION_MINOR 4
#define TROPE_VERSION_PATCH 0

#if defined(TROPE_STATIC)
#define TROPE_API
#elif defined(_WIN32) && defined(TROPE_BUILDING)
#define TROPE_API __declspec(dllexport)
#elif defined(_WIN32)
#define TROPE_API __declspec(dllimport)
#else
#define TROPE_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- 1  Status and enumerations -------------------------------------------------------------- */

typedef int32_t trope_status;
enum {
    TROPE_OK = 0,
    TROPE_ERROR_NULL = 1,        /* a required pointer is NULL */
    TROPE_ERROR_ARGUMENT = 2,    /* a value is missing, out of range, or contradicts another one */
    TROPE_ERROR_OVERLAP = 3,     /* a destination overlaps itself, or other memory of the call */
    TROPE_ERROR_OVERFLOW = 4,    /* a size, an offset or an address is over its limit */
    TROPE_ERROR_DATA = 5,        /* cu_seqlens, ids or start positions have invalid values */
    TROPE_ERROR_UNSUPPORTED = 6, /* this device, machine or build cannot run the call */
    TROPE_ERROR_DEVICE = 7       /* the CUDA runtime refused a launch */
};
/* Bits of the status word of a call (trope_args.status). */
enum {
    TROPE_STATUS_POSITION = 1,   /* a position was outside the angle rows (POISON only) */
    TROPE_STATUS_CU_SEQLENS = 2, /* cu_seqlens decrease, leave the stream, or give a sequence
                                  * more tokens than cu_seqlens_padded has room for */
    TROPE_STATUS_CP_LENGTH = 4,  /* the context parallel layout cannot split a sequence */
    TROPE_STATUS_PADDING = 8     /* a token is in no sequence, and the call has no padding policy */
};

/* Element types of tensors and tables, and integer types of index arrays. */
enum { TROPE_F32 = 1, TROPE_F16 = 2, TROPE_BF16 = 3, TROPE_F64 = 4 };
enum { TROPE_I32 = 1, TROPE_I64 = 2 };
/* The device that runs a call and holds its memory. AUTO is CUDA if the build has it and a device
 * is present, otherwise the CPU. */
enum { TROPE_DEVICE_CPU = 1, TROPE_DEVICE_CUDA = 2, TROPE_DEVICE_AUTO = 3 };
/* The CPU's instruction set. AUTO picks the best one that the CPU has. All of them give the same
 * bits, except for the payloads of NaNs in f64. */
enum {
    TROPE_ISA_AUTO = 0,
    TROPE_ISA_PORTABLE = 1,
    TROPE_ISA_AVX2 = 2,
    TROPE_ISA_AVX512 = 3,
    TROPE_ISA_NEON = 4 /* every aarch64 CPU has it */
};
/* The layout of a tensor. The letters are its dimensions, outermost first: s(equence), b(atch),
 * h(ead), d(im), t(oken of a packed stream). A tensor in one of the first four layouts is
 * contiguous, with groups outside heads, and its stride fields must be 0. THD requires batch 1.
 * STRIDED takes the strides as given, so a stride of 0 repeats an element (an expanded tensor). */
enum { TROPE_SBHD = 1, TROPE_BSHD = 2, TROPE_BHSD = 3, TROPE_THD = 4, TROPE_STRIDED = 5 };
/* How the n elements of a window, or of each of its parts (trope_args.parts), form pairs. HALF
 * pairs element i with i + n/2 (GPT-NeoX, Llama in Hugging Face). INTERLEAVED pairs element 2i with
 * 2i + 1 (RoFormer, GPT-J). */
enum { TROPE_PAIRING_HALF = 1, TROPE_PAIRING_INTERLEAVED = 2 };
/* Which heads of a tensor are one head in memory: none, all heads of a group, or all heads. */
enum { TROPE_SHARED_NONE = 0, TROPE_SHARED_GROUP = 1, TROPE_SHARED_ALL = 2 };
/* How results are rounded to dtype. ONCE computes in fp32 (f64: double) and rounds once, at the
 * store. NATIVE rounds cos, sin, both products and their sum to dtype, like eager PyTorch on bf16
 * tensors (Llama) and apex. NATIVE_F32 performs each operation in fp32, fuses none, and rounds at
 * the store, like eager PyTorch code that casts to fp32 (vision models, OLMo 2 forward). */
enum { TROPE_ROUND_ONCE = 0, TROPE_ROUND_NATIVE = 1, TROPE_ROUND_NATIVE_F32 = 2 };
/* The columns of a table. R is the widest rotary_dim of the call. PAIR has R/2 columns, one for
 * each pair. HALF and INTERLEAVED have R columns, one for each element, in the order of the pairing
 * of that name. The operands may have the other pairing. */
enum { TROPE_COLUMNS_PAIR = 1, TROPE_COLUMNS_HALF = 2, TROPE_COLUMNS_INTERLEAVED = 3 };
/* The layout of a table. The first three are contiguous: [rows, columns], [batch, rows, columns]
 * and [axes, batch, rows, columns]. STRIDED uses the strides of the table. A table has the axes
 * from 0 to the last one that a pair uses. d_freqs also has all axes of the ids. */
enum { TROPE_TABLE_ROWS = 1, TROPE_TABLE_BATCH_ROWS = 2 };
enum { TROPE_TABLE_AXES_BATCH_ROWS = 3, TROPE_TABLE_STRIDED = 4 };
/* The layout of position_ids. The first three are contiguous: [axes, batch, tokens];
 * [batch, tokens], the same for all axes; and [tokens], the same for all axes and batch entries.
 * STRIDED uses ids_stride. */
enum { TROPE_IDS_AXES_BATCH_TOKENS = 1, TROPE_IDS_BATCH_TOKENS = 2 };
enum { TROPE_IDS_TOKENS = 3, TROPE_IDS_STRIDED = 4 };
/* What happens to a position outside [0, angle_rows). CLAMP uses the nearest row. POISON writes NaN
 * to the elements that the position would rotate. With POISON, the call fails instead if it runs on
 * the CPU without `status`, or if the shapes alone imply such a position. */
enum { TROPE_RANGE_POISON = 0, TROPE_RANGE_CLAMP = 1 };
/* For a token that is in no sequence, ZERO writes zeros to the whole head, COPY writes the source,
 * and ROTATE writes the source rotated by the position that trope_positions reports. With padding
 * 0, such a token is an error on the CPU. On CUDA it becomes NaN, and the call sets
 * TROPE_STATUS_PADDING in status. */
enum { TROPE_PADDING_ZERO = 1, TROPE_PADDING_COPY = 2, TROPE_PADDING_ROTATE = 3 };
/* The context parallel layout gives the position of local index i in a sequence that has L tokens
 * on this rank. c is cp_size and r is cp_rank. One rank alone (c = 1) holds whole sequences. Then,
 * in every layout, the position is i, and L may be odd.
 *   CONTIGUOUS  r * L + i
 *   ZIGZAG      i < L/2 ? r * L/2 + i : L * c - (r + 1) * L/2 + i - L/2     L even (Megatron-Core)
 *   STRIPED     i * c + r                                 (striped attention, arXiv:2311.09431)
 *   FLAT        the rank has tokens [r * T, (r + 1) * T) of the whole packed stream, T = tokens */
enum { TROPE_CP_CONTIGUOUS = 1, TROPE_CP_ZIGZAG = 2, TROPE_CP_STRIPED = 3, TROPE_CP_FLAT = 4 };
/* Values of the fields of trope_norm, which explains them. */
enum { TROPE_NORM_HEAD = 1, TROPE_NORM_TOKEN = 2 };
enum { TROPE_NORM_BEFORE = 1, TROPE_NORM_AFTER = 2 };
enum { TROPE_NORM_ROUND_TWICE = 1, TROPE_NORM_ROUND_PRODUCT = 2 };
enum { TROPE_RSTD_WRITE = 1, TROPE_RSTD_READ = 2, TROPE_SUMS_WRITE = 1, TROPE_SUMS_READ = 2 };

/* Indices into the strides s of a tensor. Element e of head h in group g, for token t of batch
 * entry b, is at index b*s[0] + t*s[1] + g*s[2] + h*s[3] + e*s[4]. */
enum { TROPE_DIM_BATCH = 0, TROPE_DIM_TOKEN = 1 };
enum { TROPE_DIM_GROUP = 2, TROPE_DIM_HEAD = 3, TROPE_DIM_ELEMENT = 4 };
#define TROPE_MAX_DIMS       5
#define TROPE_MAX_OPERANDS   16
#define TROPE_MAX_AXES       4
#define TROPE_MAX_ROTARY_DIM 1024 /* head_dim has no limit */
#define TROPE_COPY           (-1) /* rotary_dim of an operand that does not rotate (V) */

/* ---- 2  A tensor ----------------------------------------------------------------------------- */

/* One tensor of a call: [batch, tokens, groups, heads_per_group, head_dim].
 *
 * A call rotates the window [rotary_offset, rotary_offset + rotary_dim) of each head. Without a
 * norm, the other elements pass through: the call copies them or, in place, leaves them unchanged.
 *
 * An operand is in place if dst is src and has the same strides. Otherwise dst must not overlap
 * anything else that the call reads or writes. Two indices of dst must not refer to the same
 * element. src may be expanded (strides of 0) or reversed (negative strides). */
typedef struct trope_operand {
    /* Forward: x. Backward: dy. src, dst and forward_src hold elements of trope_args.dtype. */
    const void *src;
    /* Forward: y. Backward: dx, or NULL if the call computes only gradients of angles or weights.
     * Must be NULL with TROPE_SUMS_WRITE. */
    void *dst;
    /* Backward: x of the forward call. Required for d_freqs and d_inv_freq if the operand rotates,
     * and for a norm. Must be NULL in all other calls. */
    const void *forward_src;
    /* The layout of each tensor, TROPE_SBHD to TROPE_STRIDED; 0 where the pointer is NULL. */
    int32_t src_layout;
    int32_t dst_layout;
    int32_t forward_src_layout;
    int32_t groups;          /* the number of groups of heads; 0 = 1 */
    int32_t heads_per_group; /* at least 1 */
    int32_t head_dim;        /* the number of elements of a head, at least 1 */
    /* The number of elements that rotate, or TROPE_COPY. It is even, a multiple of 2 * parts, and
     * at most head_dim - rotary_offset and TROPE_MAX_ROTARY_DIM. */
    int32_t rotary_dim;
    int32_t rotary_offset; /* the first element of the window; must be 0 with TROPE_COPY */
    /* TROPE_SHARED_NONE (0), GROUP or ALL (MLA's k_pe). GROUP and ALL are refused in place and with
     * a norm. In forward, src has one head for each group (GROUP) or for the whole operand (ALL),
     * and the call computes each head of dst from it. In backward, forward_src and dst have that
     * one head instead, and dst receives M' of the sum of dy over the heads. Elements that pass
     * through, and padding that is copied, are summed without M'. The sum is in fp32 (f64: double),
     * by the binary tree t[i] = t[2i] + t[2i + 1], padded with +0 to a power of two. NATIVE rounds
     * the sum before M'. A STRIDED tensor must have strides of 0 for the dimensions that it
     * lacks. */
    int32_t shared_heads;
    /* 0 overwrites dst. 1 adds the result to old_dst, the content of dst before the call. With
     * padding ZERO, tokens of padding keep old_dst. The sum old_dst + dx is rounded once. NATIVE
     * also rounds dx before the sum. 1 is refused in forward and in place. */
    int32_t accumulate;
    /* Strides of STRIDED tensors, indexed by TROPE_DIM_..., in elements. Must be 0 in all other
     * layouts. The stride of a dimension of size 1 is ignored (except with shared_heads). */
    int64_t src_stride[TROPE_MAX_DIMS];
    int64_t dst_stride[TROPE_MAX_DIMS];
    int64_t forward_src_stride[TROPE_MAX_DIMS];
} trope_operand;

/* The RMS norm of an operand (Zhang and Sennrich, arXiv:1910.07467). It normalises D elements
 * together: the elements of one head, or of all heads of a token (with SUMS_READ, of the heads on
 * all ranks). In the order BEFORE, forward computes y = M n(x), with
 *     rstd = 1 / sqrt(sum x^2 / D + eps)        n(x) = (x rstd) w        w = weight (+ 1)
 * In the order AFTER, it computes y = n(u) with u = M x.
 *
 * The arithmetic is fp32 (f64: double). Forward fuses nothing; backward fuses the difference in dx
 * or du, and the terms of d_weight. A head's sum is a binary tree, neighbours first, padded with +0
 * to a power of two; -0 becomes +0. TOKEN adds the heads' sums by a second such tree, in the order
 * group * heads_per_group + head. With AFTER, sum and weight have the elements in the order of y,
 * and NATIVE and NATIVE_F32 round u to dtype before the norm. With ONCE, only the store rounds.
 *
 * Backward requires forward_src, also with TROPE_COPY. All modes compute it like ONCE, but u = M x,
 * and n(x) in the gradient of the angles, have the bits of forward. p is a sum by these trees.
 *     BEFORE  u = M' dy  g = w u   p = sum g x  dx = rstd (g - x (p / D) rstd^2)
 *             d_weight = sum u x rstd    the gradient of the angles is computed from n(x), not x
 *     AFTER   u = M x    g = w dy  p = sum g u  du = rstd (g - u (p / D) rstd^2)  dx = M' du
 *             d_weight = sum dy u rstd   the gradient of the angles is computed from du, not dy
 *
 * Padding that is zeroed or copied is not normalised, and its rstd is 0. Where a position is
 * poisoned, AFTER and backward write NaN to the whole head (TOKEN: to all heads of the token).
 * Neither kind of token adds to d_weight. */
typedef struct trope_norm {
    uint64_t struct_size; /* sizeof(trope_norm) */
    /* Contiguous [head_dim], or [groups * heads_per_group, head_dim] with weight_per_head. If it is
     * NULL, w is 1, and the other fields of the weight must be 0. */
    const void *weight;
    int32_t weight_dtype;    /* TROPE_F32, F16 or BF16; TROPE_F64 is for f64 operands only */
    int32_t weight_per_head; /* 1: each head has weights of its own; 0: all heads share them */
    int32_t weight_plus_one; /* 1: w is 1 + weight (Gemma 3, Qwen3-Next); 0: w is weight */
    /* TROPE_NORM_HEAD normalises each head by itself. TROPE_NORM_TOKEN normalises all heads of a
     * token together (OLMo 2, MiniMax M2). */
    int32_t scope;
    int32_t order; /* the norm is TROPE_NORM_BEFORE or TROPE_NORM_AFTER the rotation */
    /* How n(x) is rounded to dtype with NATIVE and NATIVE_F32. TROPE_NORM_ROUND_TWICE rounds x rstd
     * and then the product with w (Qwen3). TROPE_NORM_ROUND_PRODUCT rounds only the product
     * (Gemma). Must be 0 with ONCE, and also without a weight, where only x rstd is rounded. */
    int32_t rounding;
    /* Finite and over 0, also in fp32 (f64: double). If e is added to sum x^2: eps = e / D. */
    double eps;
    /* f32 (f64 operands: f64), contiguous: [batch, tokens, groups * heads_per_group] with HEAD, or
     * [batch, tokens] with TOKEN. NULL: the call computes rstd and does not keep it. */
    void *rstd;
    /* TROPE_RSTD_WRITE stores the rstd that forward computes; backward refuses it. TROPE_RSTD_READ
     * takes rstd from memory. Must be 0 if rstd is NULL. */
    int32_t rstd_use;
    int32_t token_sums_use; /* TROPE_SUMS_WRITE or TROPE_SUMS_READ; must be 0 without token_sums */
    /* Backward: receives the gradient of the weight, in f32 (f64 operands: f64) and in the shape of
     * the weight. It is overwritten, also with accumulate. NULL: it is not computed. */
    void *d_weight;
    /* [heads, batch, tokens] in f32 (f64 operands: f64), for TOKEN with heads on several ranks;
     * otherwise NULL. With SUMS_WRITE, the call only stores the sum of each head of this rank: the
     * sum of x^2 (AFTER: of u^2) in forward, p in backward. dst, d_weight, d_freqs and d_inv_freq
     * must then be NULL, and in forward also rstd. With SUMS_READ, the call reads the sums of the
     * heads of all ranks, in the order of the ranks, not its own. Both need rstd in backward. */
    void *token_sums;
    /* With SUMS_READ: the number of heads in token_sums, and the index of this rank's first head
     * among them. Otherwise 0. */
    int32_t heads_of_all_ranks, first_head;
} trope_norm;

/* ---- 3  A call ------------------------------------------------------------------------------- */

/* The arguments of trope_forward and trope_backward.
 *
 * On the CPU, all memory is host memory, and a call returns when its work is done. On CUDA, a call
 * queues its work on `stream` and returns. Arrays marked HOST, and all structs, are host memory
 * that it reads before it returns. Every other pointer is device memory, which the call reads or
 * writes later, when the stream reaches it.
 *
 * R is the widest rotary_dim of the operands, so a call has angles for R/2 pairs. */
typedef struct trope_args {
    uint64_t struct_size; /* sizeof(trope_args) */
    /* CUDA: a cudaStream_t of the current device; NULL is the legacy stream. CPU: must be NULL. */
    void *stream;
    int32_t device;        /* TROPE_DEVICE_... */
    int32_t threads;       /* CPU: the maximum number; 0 = OMP_NUM_THREADS or all processors */
    int32_t isa;           /* CPU: TROPE_ISA_...; 0 = the best one */
    int32_t dtype;         /* the element type of every operand: TROPE_F32, F16, BF16 or F64 */
    int32_t rounding;      /* TROPE_ROUND_...; 0 = ONCE */
    int32_t operand_count; /* 1 to TROPE_MAX_OPERANDS; at least one rotates or has a norm */
    const trope_operand *operands; /* HOST [operand_count] */
    uint64_t operand_size;         /* sizeof(trope_operand), the distance between two operands */
    int64_t batch;                 /* the number of batch entries, at least 1; 1 with cu_seqlens */
    /* The number of tokens of each batch entry on this rank: s of sbhd, t of thd. A call with 0
     * tokens is valid and writes no operand. */
    int64_t tokens;

    /* The rotation. */

    /* TROPE_PAIRING_... of the forward call's input, and of its output (0 = pairing). Backward
     * reads dy with pairing_out and writes dx with pairing. */
    int32_t pairing;
    int32_t pairing_out;
    /* The number of equal parts of the window, 1 to TROPE_MAX_AXES; 0 = 1. Each pair lies in one
     * part (axial RoPE), and the numbers of the pairs continue from part to part. With more than
     * one part, every operand that rotates has the same rotary_dim. Otherwise, an operand with a
     * rotary_dim below R uses the angles of the first pairs. */
    int32_t parts;
    /* 1 rotates by the negative angles; 0 does not. To undo a forward call with mscale m (if a1 is
     * a2), set inverse to 1 and mscale to 1/m. */
    int32_t inverse;
    /* Multiplies cos and sin; 0 = 1. Any other value must be finite and not 0 when it is rounded to
     * fp32 (f64: double). */
    double mscale;
    /* HOST [R/2]: the axis of each pair. It selects the pair's position among ids with several
     * axes, and the pair's plane in a table with axes. An entry is below position_axes if that is
     * over 1, otherwise below 4. NULL: the axis of a pair is its part. See trope_fill_pair_axis. */
    const uint8_t *pair_axis;

    /* The angles. A call has exactly one source: freqs, cos with sin, inv_freq, or phase_step.
     *
     * freqs, cos and sin are tables with a row for each position. The fields from angle_dtype to
     * angle_stride describe the table, and must be 0 without one. inv_freq and phase_step have no
     * rows. Their angle is an exact phase, position * round(2^64 inv_freq / 2 pi) modulo 2^64, in
     * units of 2^-64 of a full circle. */

    const void *freqs; /* a table of angles in radians */
    /* Two tables of cosines and sines in one layout. (In complex64, sin is cos + 1, and the column
     * stride is 2.) */
    const void *cos, *sin;
    const double *inv_freq;     /* HOST [R/2]: radians per position; magnitudes below 2^64 */
    const uint64_t *phase_step; /* HOST [R/2]: made from inv_freq by trope_phase_steps */
    int32_t angle_dtype;        /* TROPE_F32, F16 or BF16; TROPE_F64 is for f64 operands only */
    int32_t angle_columns;      /* TROPE_COLUMNS_... */
    int32_t angle_layout;       /* TROPE_TABLE_...; axes require pair_axis or parts */
    int32_t out_of_range;       /* TROPE_RANGE_...; 0 = POISON */
    int64_t angle_rows;         /* the number of rows, 1 to 2^60, also if the row stride is 0 */
    /* The strides of axis, batch, row and column of a TROPE_TABLE_STRIDED table, each at least 0.
     * Must be 0 in the other layouts. */
    int64_t angle_stride[4];

    /* Positions. The position of a token is its index in its sequence, which is a batch entry or a
     * sequence of cu_seqlens. At most one of three fields changes this. position_ids replaces the
     * index on every rank, and context parallelism does not change the ids. start_positions adds
     * start_positions[sequence] to the index. stream_positions adds cu_seqlens[sequence] to it. */

    const void *position_ids;    /* in the shape that ids_layout gives; NULL = none */
    const void *start_positions; /* [sequences], or [batch] without cu_seqlens; NULL = none */
    int32_t position_dtype;      /* of ids or start positions: TROPE_I32 or I64; 0 without them */
    int32_t ids_layout;          /* TROPE_IDS_...; 0 without ids */
    /* The number of axes of the ids: 1 to 4 in AXES_BATCH_TOKENS and STRIDED, otherwise 0 or 1.
     * More than 1 requires pair_axis, or as many parts. AXES_BATCH_TOKENS needs all axes that pairs
     * use. In STRIDED, 1 means one axis for all pairs. */
    int32_t position_axes;
    int32_t stream_positions; /* 1: count positions through the whole stream; needs cu_seqlens */
    /* The strides of axis, batch and token of TROPE_IDS_STRIDED ids, of any sign. The axis stride
     * is 0 with one axis, and not 0 with more. All are 0 in the other layouts. */
    int64_t ids_stride[3];

    /* Packed sequences and context parallelism. Without cu_seqlens each batch entry is a sequence.
     * Offsets are GLOBAL: they refer to the packed stream of all ranks together. */

    /* [sequences + 1]: ascending boundaries of the sequences, which may be empty. NULL = none. */
    const void *cu_seqlens;
    /* [sequences + 1]: boundaries of the padded sequences in memory, if they differ from
     * cu_seqlens, which then gives the unpadded lengths. Requires padding. NULL = cu_seqlens. */
    const void *cu_seqlens_padded;
    /* The number of sequences of cu_seqlens, 1 to 2^57 - 1. 0 only without cu_seqlens, or if the
     * call has no tokens. */
    int64_t sequences;
    int32_t cu_seqlens_dtype; /* of both arrays: TROPE_I32 or TROPE_I64; 0 without cu_seqlens */
    int32_t padding;          /* TROPE_PADDING_...; 0: every token must be in a sequence */
    /* The number of context parallel ranks, 1 to 2^30; 0 = 1, without cp_rank and cp_layout. */
    int32_t cp_size;
    int32_t cp_rank;   /* 0 to cp_size - 1 */
    int32_t cp_layout; /* TROPE_CP_...; must not be 0 if cp_size is over 1 */
    int32_t reserved;  /* must be 0 */

    /* One int32 on the operands' device, or NULL. The call ORs TROPE_STATUS_... bits into it and
     * never clears it. On CUDA, the host cannot read indices. So the kernels report wrong indices
     * here, and write NaN to the affected elements. On the CPU, wrong indices make the call fail
     * with TROPE_ERROR_DATA, except that positions out of range are reported here if status is not
     * NULL. */
    int32_t *status;

    /* The gradient of the angles, in backward only. Each sum is in double, over operands, heads and
     * all tokens that use a row. Poisoned tokens, and padding that is not rotated, add nothing. The
     * order of the sum depends only on shapes, options and positions; the CPU and CUDA have
     * different orders. For y = M x:
     *   dL/da1 = mscale * sum dy1 (-x1 sin a1 - x2 cos a1)
     *   dL/da2 = mscale * sum dy2 (x1 cos a2 - x2 sin a2)
     *   dL/d inv_freq = sum position * (dL/da1 + dL/da2)
     * With inverse, replace a by -a and change the sign of the sums. A column that serves both
     * elements of a pair receives the sum of both gradients. */

    /* Receives the gradient of a table, in f32 (f64 operands: f64), with the rows and columns of
     * the table. Rows and planes that no token uses receive 0. The gradient is summed over each
     * dimension (axes, batch, rows) that d_freqs_layout lacks or whose stride is 0. NULL: none. */
    void *d_freqs;
    /* [R/2] on the operands' device: receives the gradient of inv_freq, in a call with inv_freq or
     * phase_step. NULL: none. */
    double *d_inv_freq;
    int32_t d_freqs_layout;    /* TROPE_TABLE_...; 0 without d_freqs */
    int32_t reserved_too;      /* must be 0 */
    int64_t d_freqs_stride[4]; /* like angle_stride, but the column stride is at least 1 */
    /* Scratch memory on the operands' device, aligned to 16 bytes, and its size in bytes, at least
     * the result of trope_workspace_size. If that is 0, NULL and 0 are valid. */
    void *workspace;
    uint64_t workspace_size;

    /* HOST [operand_count]: pointers to the norm of each operand, NULL for an operand without one.
     * NULL: the call has no norms. An operand with shared heads cannot have a norm. A call with a
     * norm need not rotate. If it does not, the fields of pairing, angles and positions are 0. */
    const trope_norm *const *norms;
} trope_args;

/* ---- 4  Functions ---------------------------------------------------------------------------- */

/* Forward: writes y for every operand. On the CPU, trope_forward returns when the work is done. On
 * CUDA, it returns when the work is queued on the stream, and waits for nothing. */
TROPE_API trope_status trope_forward(const trope_args *args);

/* Backward: writes dx for every operand that has a dst, and the gradients of angles and weights
 * that the call has pointers for. Take the args of the forward call, and change the operands: src
 * is dy, with the layout of y, and dst is dx, with the layout of x. The function returns like
 * trope_forward: on the CPU when the work is done, on CUDA when it is queued. */
TROPE_API trope_status trope_backward(const trope_args *args);

/* Writes to *bytes the number of bytes of workspace that trope_backward needs. It is 0 for a call
 * that has no d_freqs, no d_inv_freq, no d_weight and no norm over tokens. The args are validated
 * as in trope_backward, but the workspace may be missing or too small, and indices are not read. */
TROPE_API trope_status trope_workspace_size(const trope_args *args, uint64_t *bytes);

/* Computes, on the host, the positions that a call with these args uses. cu_seqlens, ids and start
 * positions must be host memory. The function reads only batch, tokens and the fields of positions,
 * sequences and context parallelism. If these are wrong, it fails like a call on the CPU.
 *
 * positions receives int64 [axes, batch, tokens], where axes is position_axes (0 = 1). CLAMP has no
 * effect. sequences receives int32 [batch, tokens], the sequence of each token or -1 for padding;
 * it may be NULL. Padding after a sequence has the positions that it would have as tokens of that
 * sequence. Before the first sequence and after the last one, the position of a token is its
 * distance from the start of that padding. */
TROPE_API trope_status trope_positions(const trope_args *args, int64_t *positions,
                                       int32_t *sequences);

/* ---- 5  Helpers ------------------------------------------------------------------------------ */

/* Overwrites *operand with a contiguous tensor of shape [.., heads, head_dim] in `layout` (not
 * STRIDED), which is rotated in place from element 0 on. rotary_dim may be TROPE_COPY. For a call
 * out of place, set dst afterwards. */
TROPE_API trope_status trope_fill_operand(trope_operand *operand, void *x, int32_t layout,
                                          int32_t heads, int32_t head_dim, int32_t rotary_dim);

/* A packed QKV buffer. The order GROUPS is [.., kv_heads, (q_heads / kv_heads + 2) * head_dim]:
 * each group has its q heads, then its k head, then its v head (Megatron). The order PARTS is
 * [.., (q_heads + 2 * kv_heads) * head_dim]: all q heads, then all k heads, then all v heads
 * (flash-attention, Hugging Face). */
enum { TROPE_QKV_GROUPS = 1, TROPE_QKV_PARTS = 2 };
enum { TROPE_Q = 1, TROPE_K = 2, TROPE_V = 3 };
typedef struct trope_qkv {
    uint64_t struct_size;      /* sizeof(trope_qkv) */
    void *buffer;              /* the first element of the buffer */
    int64_t batch, tokens;     /* as in trope_args */
    int32_t layout;            /* SBHD, BSHD, BHSD or THD, with the heads of q, k and v together */
    int32_t order, dtype;      /* TROPE_QKV_..., and the element type (TROPE_F32, ...) */
    int32_t q_heads, kv_heads; /* each at least 1; q_heads is a multiple of kv_heads */
    int32_t head_dim, rotary_dim, reserved; /* q and k rotate rotary_dim; reserved must be 0 */
} trope_qkv;

/* Overwrites *operand with the slice `which` (TROPE_Q, TROPE_K or TROPE_V) of the buffer, in place.
 * V gets rotary_dim TROPE_COPY. */
TROPE_API trope_status trope_fill_qkv(trope_operand *operand, const trope_qkv *qkv, int32_t which);

/* Writes to stride[TROPE_MAX_DIMS] the strides of a contiguous tensor of one group, such as
 * [tokens, batch, heads, head_dim] for TROPE_SBHD. Slices of the tensor have the same strides. The
 * group stride covers all heads. */
TROPE_API trope_status trope_fill_strides(int64_t *stride, int32_t layout, int64_t batch,
                                          int64_t tokens, int32_t heads, int32_t head_dim);

/* Writes to pair_axis[pairs] the axis of each pair, in an order that models use. sections[4] is the
 * number of pairs of axis 0, 1, 2 and 3. Their sum must be `pairs`. For pair i the axis is
 *   SECTIONS     axis by axis (Qwen2-VL: {16, 24, 24, 0}; HunYuan, FLUX with four)
 *   INTERLEAVED  i % 3 while i < 3 * sections[i % 3], otherwise 0 (Qwen3-VL)
 *   ALTERNATING  i % 2 (Kimi's and other 2-D vision towers)
 *   HWT          1 + i % 2 (h w h w ..), then axis 0 for the last sections[0] pairs (Ernie 4.5 VL)
 * Sections that the order cannot produce are refused. Only SECTIONS can use sections[3]. */
enum { TROPE_AXES_SECTIONS = 1, TROPE_AXES_INTERLEAVED = 2 };
enum { TROPE_AXES_ALTERNATING = 3, TROPE_AXES_HWT = 4 };
TROPE_API trope_status trope_fill_pair_axis(uint8_t *pair_axis, int32_t pairs, int32_t order,
                                            const int32_t *sections);

/* Writes to phase_step[pairs] the phase step of each inv_freq[pairs]: round(2^64 inv_freq / 2 pi)
 * modulo 2^64. A call with phase_step has the same bits as one with inv_freq. */
TROPE_API trope_status trope_phase_steps(const double *inv_freq, int32_t pairs,
                                         uint64_t *phase_step);

/* ---- 6  Frequencies, information ------------------------------------------------------------- */

/* Frequencies in double, by the rules of Hugging Face transformers' modeling_rope_utils.py. With
 * d = rotary_dim, i from 0 to d/2 - 1, f_i = base^(-2i/d), m = original_max_position and
 * s = max(seq_len, m), inv_freq[i] is
 *   DEFAULT       f_i
 *   LINEAR        f_i / factor                                                   (arXiv:2306.15595)
 *   DYNAMIC       f_i with base * (factor * s / m - factor + 1)^(d / (d - 2)), d > 2 (dynamic NTK)
 *   YARN          a blend of f_i / factor and f_i, by a ramp between the pairs that make beta_fast
 *                 and beta_slow full circles within m positions                  (arXiv:2309.00071)
 *   LONGROPE      f_i / short_factor[i], or f_i / long_factor[i] if s > m        (arXiv:2402.13753)
 *   LLAMA3        f_i / factor for wavelengths over m / low_freq_factor, f_i for wavelengths under
 *                 m / high_freq_factor, and a blend in between                   (Llama 3.1)
 *   PROPORTIONAL  f_i / factor for the first int(partial_rotary_factor * d) / 2 pairs, 0 for others
 * The attention factor goes into mscale of the call. Its value is the field attention_factor if
 * that is not 0. Otherwise its value is 1, except for
 *   YARN          g(1), or g(mscale) / g(mscale_all_dim), with g(k) = 1 + 0.1 k ln(max(factor, 1))
 *   LONGROPE      sqrt(1 + ln(factor) / ln(m)) if factor = max_position_embeddings / m > 1 */
enum { TROPE_RULE_DEFAULT = 1, TROPE_RULE_LINEAR = 2, TROPE_RULE_DYNAMIC = 3 };
enum { TROPE_RULE_YARN = 4, TROPE_RULE_LONGROPE = 5 };
enum { TROPE_RULE_LLAMA3 = 6, TROPE_RULE_PROPORTIONAL = 7 };

/* The arguments of trope_frequencies. A field that the rule does not use must be 0. */
typedef struct trope_frequency_args {
    uint64_t struct_size; /* sizeof(trope_frequency_args) */
    int32_t rule;         /* TROPE_RULE_... */
    int32_t rotary_dim;   /* even, 2 to TROPE_MAX_ROTARY_DIM */
    double base;          /* over 1 (rope_theta: 10000 in Llama 2, 500000 in Llama 3) */
    /* Required by every rule except DEFAULT. PROPORTIONAL: 0 = 1. LONGROPE requires factor or
     * attention_factor. */
    double factor;
    double original_max_position; /* DYNAMIC, YARN, LONGROPE, LLAMA3: positions, over 1 */
    double seq_len;               /* DYNAMIC, LONGROPE: the current length; 0 = m */
    double low_freq_factor, high_freq_factor; /* LLAMA3: low is below high */
    double beta_fast, beta_slow;              /* YARN: fast is at least slow; 0 = 32 and 1 */
    double attention_factor;                  /* YARN, LONGROPE: 0 = computed by the rule */
    double mscale, mscale_all_dim;            /* YARN: both or neither (DeepSeek) */
    double partial_rotary_factor;             /* PROPORTIONAL: over 0, at most 1 */
    const double *short_factor, *long_factor; /* LONGROPE: [rotary_dim / 2] */
    int32_t no_truncate; /* YARN: 1 keeps the ends of the ramp as they are (truncate=False in
                          * transformers); 0 rounds them to whole pairs */
    int32_t reserved;    /* must be 0 */
} trope_frequency_args;

/* Writes inv_freq[rotary_dim / 2], in radians per position, and *attention_factor. Both pointers
 * are required. The call fails with TROPE_ERROR_ARGUMENT if a frequency would be 2^64 or more, or
 * if the factor would be infinite. */
TROPE_API trope_status trope_frequencies(const trope_frequency_args *args, double *inv_freq,
                                         double *attention_factor);

/* Writes to name[size] the name of the kernel that trope_forward (backward = 0) or trope_backward
 * (backward = 1) would run, such as "cpu-avx512-bf16-half". size counts bytes. The args are
 * validated as in trope_workspace_size. */
TROPE_API trope_status trope_kernel_name(const trope_args *args, int32_t backward, char *name,
                                         size_t size);

/* trope_log_calls starts (on = 1) or stops (0) recording the kinds of calls, as TROPE_LOG=calls in
 * the environment does. trope_logged_calls writes the record to text[size], as lines "COUNT KERNEL
 * CALL" (for `trope bench --call CALL`), and returns the bytes that the whole record needs. */
TROPE_API trope_status trope_log_calls(int32_t on);
TROPE_API size_t trope_logged_calls(char *text, size_t size);

/* Returns the name of a status, such as "TROPE_ERROR_NULL": a static string for any value. */
TROPE_API const char *trope_status_name(trope_status status);

/* trope_last_error returns one line about the last call of this thread that failed.
 * trope_last_error_argument returns the argument that this line names, such as
 * "operands[1].src_layout". Both return "" if no call has failed. The strings belong to the library
 * and are valid until the next failure on this thread. */
TROPE_API const char *trope_last_error(void);
TROPE_API const char *trope_last_error_argument(void);

/* trope_version returns "MAJOR.MINOR.PATCH", a static string. trope_info returns lines of the form
 * "name: value" about build and machine: version, backends, instruction sets, threads, devices;
 * with CUDA also the architectures of its code, the driver's version or why there is no device,
 * and the compiler. Its string is valid until the next call of trope_info on this thread. */
TROPE_API const char *trope_version(void);
TROPE_API const char *trope_info(void);

/* For callers without a C compiler, which declare the structs themselves. trope_sizeof returns the
 * size of a public struct in bytes, and 0 for an unknown name. trope_offsetof returns the offset of
 * a field in bytes, and -1 for an unknown struct or field. */
TROPE_API size_t trope_sizeof(const char *struct_name);
TROPE_API int64_t trope_offsetof(const char *struct_name, const char *field);

/* The handler of XLA's custom call "trope_rotate", which trope.jax makes. It takes the structs of a
 * call in the attribute `call`, and the arrays as buffers, on the CPU or on XLA's stream. It checks
 * all of them, and makes one call. XLA's c_api.h (API 0.4) declares the types. */
struct XLA_FFI_CallFrame;
struct XLA_FFI_Error;
TROPE_API struct XLA_FFI_Error *trope_xla_rotate(struct XLA_FFI_CallFrame *call_frame);

#ifdef __cplusplus
}
#endif
#endif
