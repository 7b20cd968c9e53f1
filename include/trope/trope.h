/* trope: rotary position embedding (RoPE) for training, forward and backward.
 *
 * One call rotates up to 16 tensors ("operands": Q, K, a slice of packed QKV) pair by pair and
 * copies what is not rotated. It computes no attention, allocates nothing, never prints, and keeps
 * nothing but threads that sleep. docs/semantics.md explains this page, with pictures.
 *
 *     forward   y  = M n(x)    M = mscale * [ cos a1  -sin a1 ]
 *     backward  dx = the transpose          [ sin a2   cos a2 ]
 *
 * for each pair of elements; a1 and a2 are the angles of its first and second element (equal in
 * ordinary RoPE; Su et al., RoFormer, arXiv:2104.09864, equation 34). n is the RMS norm of a head
 * where trope_args.norms gives one (or y = n(M x)), and else n(x) = x.
 *
 * Contents     1  Status, enumerations        3  A call: trope_args    5  Helpers
 *              2  A tensor: trope_operand     4  Functions             6  Frequencies, information
 *
 * The least that a call needs, all else being 0, is nine fields and the angles:
 *     struct_size  device  dtype  operands  operand_count  operand_size  batch  tokens  pairing
 *     and inv_freq, or a table with angle_dtype, angle_columns, angle_layout and angle_rows
 * with operands as trope_fill_operand makes them.
 *
 * Rules
 *   - 0 (TROPE_OK) is success. After any other value nothing has been written, and
 *     trope_last_error() names function, argument, value and rule. (But a backward call with
 *     d_freqs or d_inv_freq on CUDA is several launches: after TROPE_ERROR_DEVICE some are queued.)
 *   - Any thread may call any function at any time; a call takes at most 60 KB of its stack.
 *   - A field that decides how bytes are read has no default: its values begin at 1, 0 is refused
 *     where it matters, anything but 0 where it cannot. Where 0 is a default, the field says so.
 *   - Strides count elements, sizes are of the tensor on this rank, pointers are aligned to their
 *     elements. A struct may be larger than this version's if what is behind its end is 0.
 *   - For f32, f16 and bf16 the bits of an element depend only on its input, its angles, its
 *     position and the rounding mode: not on layout, strides, threads, instruction set, device, the
 *     caller's floating-point environment, or how the work is split. (Sums, of shared_heads and of
 *     the angles' gradient, cover the tokens and heads of one call.)
 */
#ifndef TROPE_TROPE_H
#define TROPE_TROPE_H

#include <stddef.h>
#include <stdint.h>

#define TROPE_VERSION_MAJOR 0
#define TROPE_VERSION_MINOR 3
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
    TROPE_ERROR_ARGUMENT = 2,    /* a value is missing, outside its range, or contradicts another */
    TROPE_ERROR_OVERLAP = 3,     /* a destination overlaps itself, or other memory of the call */
    TROPE_ERROR_OVERFLOW = 4,    /* a size or an offset is over 2^60 */
    TROPE_ERROR_DATA = 5,        /* cu_seqlens, ids or start positions hold what cannot be used */
    TROPE_ERROR_UNSUPPORTED = 6, /* not on this device, machine or build (see docs/semantics.md) */
    TROPE_ERROR_DEVICE = 7       /* the CUDA runtime refused a launch */
};
/* Bits of the status word of a call. */
enum {
    TROPE_STATUS_POSITION = 1,   /* a position was outside the angle rows (POISON only) */
    TROPE_STATUS_CU_SEQLENS = 2, /* cu_seqlens decrease, do not fit, or exceed cu_seqlens_padded */
    TROPE_STATUS_CP_LENGTH = 4,  /* a sequence cannot be split by the context parallel layout */
    TROPE_STATUS_PADDING = 8     /* a token is of no sequence, and no padding policy was given */
};

/* Element types, index types, and where the pointers of a call live. AUTO is CUDA if this build has
 * it and a device is present, otherwise CPU. */
enum { TROPE_F32 = 1, TROPE_F16 = 2, TROPE_BF16 = 3, TROPE_F64 = 4 };
enum { TROPE_I32 = 1, TROPE_I64 = 2 };
enum { TROPE_DEVICE_CPU = 1, TROPE_DEVICE_CUDA = 2, TROPE_DEVICE_AUTO = 3 };
/* Instruction set of the CPU; AUTO is its best. Only payloads of NaNs in f64 depend on it. */
enum { TROPE_ISA_AUTO = 0, TROPE_ISA_PORTABLE = 1, TROPE_ISA_AVX2 = 2, TROPE_ISA_AVX512 = 3 };
/* Layout of a tensor, outermost dimension first: s(equence) b(atch) h(ead) d(im), t(oken). All but
 * STRIDED are contiguous, with groups outside heads, and their strides must be 0. STRIDED has the
 * strides as given: 0 is 0 (an expanded tensor). THD needs batch 1. */
enum { TROPE_SBHD = 1, TROPE_BSHD = 2, TROPE_BHSD = 3, TROPE_THD = 4, TROPE_STRIDED = 5 };
/* Pairs of a part of n elements: HALF is (i, i + n/2) (GPT-NeoX, Llama in Hugging Face),
 * INTERLEAVED is (2i, 2i + 1) (RoFormer, GPT-J). */
enum { TROPE_PAIRING_HALF = 1, TROPE_PAIRING_INTERLEAVED = 2 };
/* Heads of one tensor that are one in memory: of each group, or all of them. */
enum { TROPE_SHARED_NONE = 0, TROPE_SHARED_GROUP = 1, TROPE_SHARED_ALL = 2 };
/* ONCE: computed in fp32 and rounded once, at the store. NATIVE: cos, sin and each of the three
 * operations are rounded to dtype (eager PyTorch on bf16 tensors: Llama; apex). NATIVE_F32: each
 * operation in fp32, none fused, rounded at the store (eager fp32: vision, OLMo 2 forward). */
enum { TROPE_ROUND_ONCE = 0, TROPE_ROUND_NATIVE = 1, TROPE_ROUND_NATIVE_F32 = 2 };
/* Columns of a table: one a pair (R/2, R being the widest rotary_dim), or one an element (R), which
 * are paired as HALF or INTERLEAVED says, whatever the operands' pairing is. */
enum { TROPE_COLUMNS_PAIR = 1, TROPE_COLUMNS_HALF = 2, TROPE_COLUMNS_INTERLEAVED = 3 };
/* Layout of a table: [rows, columns], [batch, rows, columns] or [axes, batch, rows, columns],
 * contiguous; or by strides. Axes: up to the last that pairs use, in d_freqs also those of ids. */
enum { TROPE_TABLE_ROWS = 1, TROPE_TABLE_BATCH_ROWS = 2 };
enum { TROPE_TABLE_AXES_BATCH_ROWS = 3, TROPE_TABLE_STRIDED = 4 };
/* Layout of position_ids: [axes, batch, tokens]; or [batch, tokens] or [tokens] for all axes (and
 * batch entries), contiguous; or by ids_stride. */
enum { TROPE_IDS_AXES_BATCH_TOKENS = 1, TROPE_IDS_BATCH_TOKENS = 2 };
enum { TROPE_IDS_TOKENS = 3, TROPE_IDS_STRIDED = 4 };
/* A position outside [0, angle_rows): CLAMP takes the nearest row; POISON makes NaN of what it
 * rotates, and is an error on the CPU without `status`, and where shapes alone give positions. */
enum { TROPE_RANGE_POISON = 0, TROPE_RANGE_CLAMP = 1 };
/* What is written for a token of no sequence: zeros (the whole head), the source, or the source
 * rotated by the position that trope_positions reports. Without a policy (0) such a token is an
 * error on the CPU; on CUDA it becomes NaN, and status says TROPE_STATUS_PADDING. */
enum { TROPE_PADDING_ZERO = 1, TROPE_PADDING_COPY = 2, TROPE_PADDING_ROTATE = 3 };
/* Position of local index i of a sequence with L tokens on this rank, c = cp_size, r = cp_rank. One
 * rank (c = 1) holds whole sequences: the position is i, and L may be odd, whatever the layout is.
 *   CONTIGUOUS  r * L + i
 *   ZIGZAG      i < L/2 ? r * L/2 + i : L * c - (r + 1) * L/2 + i - L/2     L even (Megatron-Core)
 *   STRIPED     i * c + r                                 (striped attention, arXiv:2311.09431)
 *   FLAT        the rank has tokens [r * T, (r + 1) * T) of the whole packed stream, T = tokens */
enum { TROPE_CP_CONTIGUOUS = 1, TROPE_CP_ZIGZAG = 2, TROPE_CP_STRIPED = 3, TROPE_CP_FLAT = 4 };
/* What a norm covers, where it stands, how native rounding rounds it, and what becomes of rstd. */
enum { TROPE_NORM_HEAD = 1, TROPE_NORM_TOKEN = 2 };
enum { TROPE_NORM_BEFORE = 1, TROPE_NORM_AFTER = 2 };
enum { TROPE_NORM_ROUND_TWICE = 1, TROPE_NORM_ROUND_PRODUCT = 2 };
enum { TROPE_RSTD_WRITE = 1, TROPE_RSTD_READ = 2, TROPE_SUMS_WRITE = 1, TROPE_SUMS_READ = 2 };

/* Indices into the strides of a tensor: the element of batch entry b, token t, group g, head h of
 * the group and dimension e is at b*s[0] + t*s[1] + g*s[2] + h*s[3] + e*s[4]. */
enum { TROPE_DIM_BATCH = 0, TROPE_DIM_TOKEN = 1 };
enum { TROPE_DIM_GROUP = 2, TROPE_DIM_HEAD = 3, TROPE_DIM_ELEMENT = 4 };
#define TROPE_MAX_DIMS       5
#define TROPE_MAX_OPERANDS   16
#define TROPE_MAX_AXES       4
#define TROPE_MAX_ROTARY_DIM 1024 /* head_dim has no limit */
#define TROPE_COPY           (-1) /* rotary_dim of an operand that is only copied (V) */

/* ---- 2  A tensor ----------------------------------------------------------------------------- */

/* [batch, tokens, groups, heads_per_group, head_dim]. Of each head the window [rotary_offset,
 * rotary_offset + rotary_dim) is rotated, the rest passes through: copied, or left alone in place.
 *
 * dst is src with the same strides (in place), or shares no element with anything else that the
 * call reads or writes, nor with itself. src may be expanded (strides of 0) or reversed.
 *
 * shared_heads (MLA's k_pe; refused in place): forward, src has one head (of each group, or of all)
 * that every head of dst starts from. Backward, forward_src and dst have that one head, and dst
 * receives M' of the sum of dy over the heads; what passes through, and padding that is copied, is
 * the sum. It is in fp32 (f64: double), a binary tree, t[i] = t[2i] + t[2i + 1], padded with +0 to
 * a power of two; NATIVE rounds it before M'. Strides of dimensions that a shared tensor lacks: 0.
 *
 * accumulate (backward only; refused in place): what would be written is added to dst, which stays
 * as it is where padding is ZERO. dst + dx is rounded once; with NATIVE, dx is rounded before. */
typedef struct trope_operand {
    const void *src;            /* forward: x; backward: dy. Elements of dtype, like all three */
    void *dst;                  /* forward: y; backward: dx, or NULL: the angles' gradient alone */
    const void *forward_src;    /* x of the forward call, for d_freqs and d_inv_freq; else NULL */
    int32_t src_layout;         /* TROPE_SBHD, ..., TROPE_STRIDED */
    int32_t dst_layout;         /* 0 if dst is NULL */
    int32_t forward_src_layout; /* 0 if forward_src is NULL */
    int32_t groups;             /* 0 = 1 */
    int32_t heads_per_group;    /* at least 1 */
    int32_t head_dim;           /* elements, at least 1 */
    int32_t rotary_dim;         /* even, divisible by 2 * parts, at most head_dim - rotary_offset */
    int32_t rotary_offset;      /* first element of the window; 0 with TROPE_COPY */
    int32_t shared_heads;       /* TROPE_SHARED_... */
    int32_t accumulate;         /* 0 or 1 */
    /* STRIDED; not looked at where the size is 1 (but see shared_heads). */
    int64_t src_stride[TROPE_MAX_DIMS];
    int64_t dst_stride[TROPE_MAX_DIMS];
    int64_t forward_src_stride[TROPE_MAX_DIMS];
} trope_operand;

/* The norm of an operand (Zhang and Sennrich, arXiv:1910.07467): each head, all head_dim elements
 * of it, or with TOKEN all heads of a token as one, is normalised before or after the rotation.
 * With D elements (head_dim, or head_dim times heads):
 *     rstd = 1 / sqrt(sum x^2 / D + eps)        n(x) = (x rstd) w        w = weight (+ 1)
 * in fp32 (f64: double), none of it fused. The sum is a binary tree over the elements, neighbours
 * first, padded with +0 to a power of two or beyond. TOKEN adds the sums of heads by another one,
 * in the order of group * heads_per_group + head. ONCE rounds nothing between norm and rotation.
 * NATIVE and NATIVE_F32 round n(x) to dtype; TWICE also rounds x rstd (Qwen3), PRODUCT does not
 * (Gemma). AFTER normalises u = M x for x, which both native modes round to dtype first. Elements
 * of the weight and of the sum are then in the order of y.
 *
 * Backward needs forward_src, x of the forward call, also with TROPE_COPY. In every rounding mode
 * it is computed as with ONCE. With u = M' dy, g = w u and p = sum g x, a like sum:
 *     dx = rstd (g - x (p / D) rstd^2)        d_weight = sum u x rstd
 * The gradient of the angles takes n(x) for x. AFTER, with u = M x, g = w dy and p = sum g u:
 *     du = rstd (g - u (p / D) rstd^2)        dx = M' du        d_weight = sum dy u rstd
 * The gradient of the angles takes du for dy.
 *
 * Padding that is zeroed or copied is not normalised, and its rstd is 0. Where a position is
 * poisoned, AFTER and backward make NaN of the head (TOKEN: of all). Neither adds to d_weight. */
typedef struct trope_norm {
    uint64_t struct_size;    /* sizeof(trope_norm) */
    const void *weight;      /* [head_dim], or [heads, head_dim]; NULL: 1, and fields of it are 0 */
    int32_t weight_dtype;    /* F32, F16 or BF16; F64 with f64 operands alone */
    int32_t weight_per_head; /* 1: [groups * heads_per_group, head_dim] */
    int32_t weight_plus_one; /* 1: multiplies by 1 + weight (Gemma 3, Qwen3-Next) */
    int32_t scope;    /* TROPE_NORM_HEAD, or _TOKEN: all heads of a token (OLMo 2, MiniMax M2) */
    int32_t order;    /* TROPE_NORM_BEFORE or _AFTER the rotation */
    int32_t rounding; /* 0 with TROPE_ROUND_ONCE, else TROPE_NORM_ROUND_... */
    double eps;       /* over 0 in the arithmetic of dtype */
    void *rstd;       /* f32 (f64 with f64): [batch, tokens, heads]; TOKEN: [batch, tokens] */
    int32_t rstd_use; /* TROPE_RSTD_WRITE (forward alone), _READ; 0 with NULL: computed */
    int32_t token_sums_use; /* TROPE_SUMS_WRITE (dst and d_weight NULL), _READ; 0 with NULL */
    void *d_weight;         /* backward: f32 (f64), shaped as weight, overwritten; or NULL */
    /* TOKEN, heads on several ranks: [heads, batch, tokens]. WRITE: the sum of each head, of x^2 or
     * in backward of g x. READ: takes the sums of the heads of all ranks, in order, for its own. */
    void *token_sums;
    int32_t heads_of_all_ranks, first_head; /* READ: first_head is this rank's; else 0 */
} trope_norm;

/* ---- 3  A call ------------------------------------------------------------------------------- */

/* On CUDA a call is queued on stream, one of the current device (NULL: the legacy stream), and
 * every pointer is device memory that it reads and writes later, but for the arrays marked HOST:
 * those, and the structs, are read before the call returns. */
typedef struct trope_args {
    uint64_t struct_size;          /* sizeof(trope_args) */
    void *stream;                  /* CUDA: cudaStream_t; CPU: NULL */
    int32_t device;                /* TROPE_DEVICE_... */
    int32_t threads;               /* CPU: at most so many; 0 = OMP_NUM_THREADS or processors */
    int32_t isa;                   /* CPU: TROPE_ISA_... */
    int32_t dtype;                 /* of every operand */
    int32_t rounding;              /* TROPE_ROUND_... */
    int32_t operand_count;         /* 1 to TROPE_MAX_OPERANDS; one rotates, or has a norm */
    const trope_operand *operands; /* HOST */
    uint64_t operand_size;         /* sizeof(trope_operand), from one to the next */
    int64_t batch;                 /* batch entries, at least 1; 1 with cu_seqlens */
    int64_t tokens;                /* per batch entry, on this rank: s, t of thd; 0 does nothing */

    /* The rotation. pairing is how the forward call's input is paired, pairing_out its output:
     * backward reads pairing_out and writes pairing. parts cuts the window into equal parts, each
     * paired within itself (axial RoPE); then every rotary_dim is the same. Pairs are numbered
     * through all parts; an operand with a smaller rotary_dim has the first pairs. */
    int32_t pairing;     /* TROPE_PAIRING_... */
    int32_t pairing_out; /* 0 = pairing */
    int32_t parts;       /* 1 to TROPE_MAX_AXES, 0 = 1 */
    int32_t inverse;     /* 1: turns the other way. To undo mscale m too: inverse, mscale 1/m */
    double mscale;       /* multiplies cos and sin; finite and not 0 in dtype's arithmetic; 0 = 1 */
    /* HOST [R/2]: the axis of ids, and the plane of a table, of each pair: below position_axes if
     * that is over 1, else below 4. NULL = the pair's part. See trope_fill_pair_axis. */
    const uint8_t *pair_axis;

    /* The angles: exactly one of freqs, cos with sin, inv_freq, phase_step. A table has a row for
     * each position and the fields from angle_dtype on. inv_freq and phase_step have none of them,
     * but an exact phase: position * round(2^64 inv_freq / 2 pi) modulo 2^64, in 2^-64 turns. */
    const void *freqs;      /* radians */
    const void *cos, *sin;  /* both, in one layout (complex64: sin = cos + 1, column stride 2) */
    const double *inv_freq; /* HOST [R/2]: radians a position, finite, magnitude below 2^64 */
    const uint64_t *phase_step; /* HOST [R/2]: inv_freq by trope_phase_steps, for many calls */
    int32_t angle_dtype;        /* F32, F16 or BF16 with any operands, F64 with f64 operands */
    int32_t angle_columns;      /* TROPE_COLUMNS_... */
    int32_t angle_layout;       /* TROPE_TABLE_...; one with axes needs pair_axis, or parts */
    int32_t out_of_range;       /* TROPE_RANGE_... */
    int64_t angle_rows;         /* 1 to 2^60, also where the row stride is 0 */
    int64_t angle_stride[4];    /* TABLE_STRIDED: of axis, batch, row, column, at least 0 */

    /* Positions: the index in the sequence (a batch entry, or one of cu_seqlens); or that plus
     * start_positions[sequence]; or, with stream_positions, plus cu_seqlens[sequence]; or the ids,
     * as they are, on every rank. Only one of the three may be given. */
    const void *position_ids;
    const void *start_positions; /* [sequences], or [batch] without cu_seqlens */
    int32_t position_dtype;      /* of ids or start positions: TROPE_I32, TROPE_I64 */
    int32_t ids_layout;          /* TROPE_IDS_... */
    /* Axes of the ids: 1 to 4 in AXES_BATCH_TOKENS (all that pairs use) and STRIDED, else 0 or 1.
     * Over 1: with pair_axis, or as many as parts. 1 in STRIDED: one for all pairs. */
    int32_t position_axes;
    int32_t stream_positions; /* 0 or 1; needs cu_seqlens */
    int64_t ids_stride[3];    /* IDS_STRIDED: of axis (0 with one axis, else not), batch, token */

    /* Packed sequences, context parallel. Offsets are GLOBAL: in the packed stream of all ranks. */
    const void *cu_seqlens;        /* [sequences + 1]; empty sequences are legal anywhere */
    const void *cu_seqlens_padded; /* where sequences are stored, if not there; needs padding */
    int64_t sequences;             /* 1 to 2^57 - 1 with cu_seqlens; without tokens 0 is legal */
    int32_t cu_seqlens_dtype;      /* of both */
    int32_t padding;               /* TROPE_PADDING_...; 0: no token is outside of a sequence */
    int32_t cp_size;               /* must be given with cp_rank or cp_layout; 0 = 1 */
    int32_t cp_rank;               /* 0 to cp_size - 1 */
    int32_t cp_layout;             /* TROPE_CP_..., if cp_size > 1 */
    int32_t reserved;              /* 0 */

    /* One int32 on the operands' device that TROPE_STATUS_ bits are ORed into; optional. On CUDA
     * what is wrong with indices, which the host cannot read, is reported here, and poisoned. On
     * the CPU it is TROPE_ERROR_DATA, but for positions out of range if status is given. */
    int32_t *status;

    /* Backward only: the gradient of the angles, summed over operands, heads and all tokens at a
     * row (but padding that is not rotated, and poisoned tokens) in double, in an order that
     * shapes, options and positions alone decide (another one on CUDA). From y = M x:
     *   dL/da1 = mscale * sum dy1 (-x1 sin a1 - x2 cos a1)
     *   dL/da2 = mscale * sum dy2 (x1 cos a2 - x2 sin a2)
     *   dL/d inv_freq = sum position * (dL/da1 + dL/da2)
     * (inverse: with -a for a, and the sums change sign). A column that serves both elements of a
     * pair gets both. Rows, and planes, that nothing uses get 0. A dimension of axes, batch or rows
     * that the layout lacks, or whose stride is 0, receives the sum over it. */
    void *d_freqs;             /* with a table; f32, or f64 with f64 operands */
    double *d_inv_freq;        /* with inv_freq or phase_step: [R/2] on the operands' device */
    int32_t d_freqs_layout;    /* TROPE_TABLE_..., of the table's axes, rows and columns */
    int32_t reserved_too;      /* 0 */
    int64_t d_freqs_stride[4]; /* TABLE_STRIDED, like angle_stride, column at least 1 */
    void *workspace;           /* on the operands' device, aligned to 16 bytes; scratch */
    uint64_t workspace_size;   /* bytes, at least what trope_workspace_size says */

    /* HOST [operand_count] or NULL: the norm of each operand, NULL for none; not with shared_heads.
     * With one, a call may rotate nothing: then pairing, angles and positions must be 0. */
    const trope_norm *const *norms;
} trope_args;

/* ---- 4  Functions ---------------------------------------------------------------------------- */

/* Forward: y = M n(x) for every operand. Backward: dx and, if asked for, gradients of the angles
 * and weights. They return when the work is done (CPU) or queued on the stream (CUDA). */
TROPE_API trope_status trope_forward(const trope_args *args);
TROPE_API trope_status trope_backward(const trope_args *args);

/* Bytes of scratch that trope_backward needs: 0 without d_freqs, d_inv_freq, d_weight and norms
 * over tokens. Validates args as the call does, but for workspace and the values of indices. */
TROPE_API trope_status trope_workspace_size(const trope_args *args, uint64_t *bytes);

/* The positions that a call with these args uses, on the host (where cu_seqlens, ids and start
 * positions must be). positions: int64 [axes, batch, tokens], axes = position_axes (0 = 1), without
 * the clamp. sequences: int32 [batch, tokens] or NULL; the sequence of each token, -1 for padding.
 * Reads only batch, tokens and the fields of positions, sequences and context parallel, and fails
 * as a call on the CPU would for these. Padding that a sequence ends with has the positions that it
 * would have if real; before the first and after the last sequence, the distance from there. */
TROPE_API trope_status trope_positions(const trope_args *args, int64_t *positions,
                                       int32_t *sequences);

/* ---- 5  Helpers ------------------------------------------------------------------------------ */

/* Makes *operand a tensor [.., heads, head_dim] of a contiguous layout, rotated in place from
 * element 0 on; rotary_dim may be TROPE_COPY. For another destination, set dst afterwards. */
TROPE_API trope_status trope_fill_operand(trope_operand *operand, void *x, int32_t layout,
                                          int32_t heads, int32_t head_dim, int32_t rotary_dim);

/* A packed QKV buffer. GROUPS: [.., kv_heads, (q_heads / kv_heads + 2) * head_dim], each group its
 * q heads, then k, then v (Megatron). PARTS: [.., (q_heads + 2 * kv_heads) * head_dim], all q
 * heads, then all k, then all v (flash-attention, Hugging Face). */
enum { TROPE_QKV_GROUPS = 1, TROPE_QKV_PARTS = 2 };
enum { TROPE_Q = 1, TROPE_K = 2, TROPE_V = 3 };
typedef struct trope_qkv {
    uint64_t struct_size; /* sizeof(trope_qkv) */
    void *buffer;
    int64_t batch, tokens;
    int32_t layout;       /* SBHD, BSHD, BHSD or THD; its heads are those of q, k and v together */
    int32_t order, dtype; /* TROPE_QKV_..., TROPE_F32, ... */
    int32_t q_heads, kv_heads; /* q_heads is a multiple of kv_heads */
    int32_t head_dim, rotary_dim, reserved;
} trope_qkv;

/* Makes *operand TROPE_Q, _K or _V of the buffer, in place (V: with rotary_dim TROPE_COPY). */
TROPE_API trope_status trope_fill_qkv(trope_operand *operand, const trope_qkv *qkv, int32_t which);

/* Fills stride[5] for a contiguous tensor of one group, for slices of it: [tokens, batch, heads,
 * head_dim] for TROPE_SBHD and so on. (The group stride is set to that of all heads.) */
TROPE_API trope_status trope_fill_strides(int64_t *stride, int32_t layout, int64_t batch,
                                          int64_t tokens, int32_t heads, int32_t head_dim);

/* The axis of each pair as models have it. sections: pairs of axis 0, 1, 2 and 3, in all `pairs`.
 *   SECTIONS     axis by axis (Qwen2-VL: {16, 24, 24, 0}; HunYuan, FLUX with four)
 *   INTERLEAVED  i % 3 while i < 3 * sections[i % 3], else 0 (Qwen3-VL)
 *   ALTERNATING  i % 2 (Kimi's and other 2-D vision towers)
 *   HWT          1 + i % 2 (h w h w ..), then axis 0 for the last sections[0] pairs (Ernie 4.5 VL)
 * Sections that the order does not give are refused; sections[3] is of SECTIONS alone. */
enum { TROPE_AXES_SECTIONS = 1, TROPE_AXES_INTERLEAVED = 2 };
enum { TROPE_AXES_ALTERNATING = 3, TROPE_AXES_HWT = 4 };
TROPE_API trope_status trope_fill_pair_axis(uint8_t *pair_axis, int32_t pairs, int32_t order,
                                            const int32_t *sections);

/* phase_step of each inv_freq. */
TROPE_API trope_status trope_phase_steps(const double *inv_freq, int32_t pairs,
                                         uint64_t *phase_step);

/* ---- 6  Frequencies, information ------------------------------------------------------------- */

/* As in Hugging Face transformers' modeling_rope_utils.py, in double. With d = rotary_dim, i from 0
 * to d/2 - 1, f_i = base^(-2i/d), m = original_max_position and s = max(seq_len, m):
 *   DEFAULT       f_i
 *   LINEAR        f_i / factor                                                   (arXiv:2306.15595)
 *   DYNAMIC       f_i with base * (factor * s / m - factor + 1)^(d / (d - 2)), d > 2 (dynamic NTK)
 *   YARN          f_i / factor and f_i blended by a ramp between the pairs that turn beta_fast and
 *                 beta_slow times in m                                           (arXiv:2309.00071)
 *   LONGROPE      f_i / short_factor[i], or / long_factor[i] where s > m         (arXiv:2402.13753)
 *   LLAMA3        f_i / factor for wavelengths over m / low_freq_factor, f_i under
 *                 m / high_freq_factor, blended between                          (Llama 3.1)
 *   PROPORTIONAL  f_i / factor for the first int(partial_rotary_factor * d) / 2 pairs, else 0
 * attention_factor, for mscale of the call, is 1, or the one given, or else
 *   YARN          g(1), or g(mscale) / g(mscale_all_dim), with g(k) = 1 + 0.1 k ln(max(factor, 1))
 *   LONGROPE      sqrt(1 + ln(factor) / ln(m)) if factor > 1, factor = max_position / m */
enum { TROPE_RULE_DEFAULT = 1, TROPE_RULE_LINEAR = 2, TROPE_RULE_DYNAMIC = 3 };
enum { TROPE_RULE_YARN = 4, TROPE_RULE_LONGROPE = 5 };
enum { TROPE_RULE_LLAMA3 = 6, TROPE_RULE_PROPORTIONAL = 7 };

/* A field that a rule does not use must be 0. */
typedef struct trope_frequency_args {
    uint64_t struct_size; /* sizeof(trope_frequency_args) */
    int32_t rule;         /* TROPE_RULE_... */
    int32_t rotary_dim;   /* even, 2 to TROPE_MAX_ROTARY_DIM */
    double base;          /* over 1 (rope_theta: 10000 in Llama 2, 500000 in Llama 3) */
    double factor;        /* all but DEFAULT (PROPORTIONAL: 0 = 1; LONGROPE: or attention_factor) */
    double original_max_position;             /* DYNAMIC, YARN, LONGROPE, LLAMA3: over 1 */
    double seq_len;                           /* DYNAMIC, LONGROPE: the length now, 0 = m */
    double low_freq_factor, high_freq_factor; /* LLAMA3: low below high */
    double beta_fast, beta_slow;              /* YARN: 0 = 32 and 1; fast at least slow */
    double attention_factor;                  /* YARN, LONGROPE: 0 = from the rule */
    double mscale, mscale_all_dim;            /* YARN: both or neither (DeepSeek) */
    double partial_rotary_factor;             /* PROPORTIONAL: over 0 and at most 1 */
    const double *short_factor, *long_factor; /* LONGROPE: [rotary_dim / 2] */
    int32_t no_truncate;                      /* YARN: 1 is truncate=False, a ramp as it is */
    int32_t reserved;                         /* 0 */
} trope_frequency_args;

/* Writes rotary_dim / 2 frequencies (radians a position) and the attention factor; both must be
 * there. What makes a frequency 2^64 or more, or the factor infinite, is TROPE_ERROR_ARGUMENT. */
TROPE_API trope_status trope_frequencies(const trope_frequency_args *args, double *inv_freq,
                                         double *attention_factor);

/* The name of the kernel that trope_forward (backward = 0) or trope_backward (1) would run, such as
 * "cpu-avx512-bf16-half", in at most size bytes. Args are validated as by trope_workspace_size. */
TROPE_API trope_status trope_kernel_name(const trope_args *args, int32_t backward, char *name,
                                         size_t size);

/* "TROPE_OK", "TROPE_ERROR_NULL", ... A static string for any value. */
TROPE_API const char *trope_status_name(trope_status status);

/* One line about the last call of this thread that failed, "" if none has; and the argument that it
 * names, such as "operands[1].src_layout", "" if none. Valid until this thread's next failure. */
TROPE_API const char *trope_last_error(void);
TROPE_API const char *trope_last_error_argument(void);

/* "MAJOR.MINOR.PATCH"; and lines "name: value" on this build and machine: version, backends,
 * instruction sets, threads, devices (valid until the next call on this thread). */
TROPE_API const char *trope_version(void);
TROPE_API const char *trope_info(void);

/* sizeof of a public struct by its name, 0 for any other; and the offset of its field, -1 for any
 * other: for callers that declare the structs themselves, without a compiler. */
TROPE_API size_t trope_sizeof(const char *struct_name);
TROPE_API int64_t trope_offsetof(const char *struct_name, const char *field);

#ifdef __cplusplus
}
#endif
#endif
