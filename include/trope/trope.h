/* trope: rotary position embedding (RoPE) for training, forward and backward.
 *
 * One call rotates up to four tensors ("operands": Q, K, a slice of packed QKV) pair by pair, and copies what is not
 * rotated. Layouts are strides, so sbhd, bshd, bhsd, packed thd and slices of a larger tensor all take the same path.
 * It does not compute attention, does not allocate, keeps no state and never prints.
 *
 *     forward   y  = M x       M = mscale * [ cos a1  -sin a1 ]    a1, a2: the angles of the first and the second
 *     backward  dx = M' dy                  [ sin a2   cos a2 ]    element of the pair (equal in ordinary RoPE);
 *                                                                  M' is the transpose
 *
 * (Su et al., RoFormer, arXiv:2104.09864, equation 34, written for one pair.)
 *
 * For f32, f16 and bf16 the bits of an element depend only on its input, its angles, its position and the rounding mode:
 * not on layout, strides, threads, instruction set, device or on how the work is split.
 *
 * Rules for every function here: 0 (TROPE_OK) is success; after any other value nothing has been written, and
 * trope_last_error() names function, argument, value and rule. (One exception: a call with d_freqs or d_inv_freq on CUDA is
 * several launches. After TROPE_ERROR_DEVICE those in front of the refused one are queued, and may write dst, d_freqs, the
 * workspace and status.) Every function may be called from any thread at any time. Structs start with struct_size; set it
 * to sizeof the struct and every other unused field to 0, which always means the default. Fields are only ever appended: a
 * smaller struct of an older caller works, and so does a larger one whose unknown tail is zero. (trope_operand, of which
 * trope_args holds an array, never changes.) All strides count elements, all sizes are of the tensor on this rank, all
 * pointers are aligned to their elements. docs/semantics.md explains all of it, with examples.
 */
#ifndef TROPE_TROPE_H
#define TROPE_TROPE_H

#include <stddef.h>
#include <stdint.h>

#define TROPE_VERSION_MAJOR 0
#define TROPE_VERSION_MINOR 1
#define TROPE_VERSION_PATCH 0

#if defined(TROPE_STATIC)
#define TROPE_API
#elif defined(_WIN32)
#ifdef TROPE_BUILDING
#define TROPE_API __declspec(dllexport)
#else
#define TROPE_API __declspec(dllimport)
#endif
#else
#define TROPE_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t trope_status;
enum {
    TROPE_OK = 0,
    TROPE_ERROR_NULL = 1,        /* a required pointer is NULL */
    TROPE_ERROR_ARGUMENT = 2,    /* a value is outside its range, or two values contradict each other */
    TROPE_ERROR_OVERLAP = 3,     /* a destination overlaps itself, or another tensor of the call */
    TROPE_ERROR_OVERFLOW = 4,    /* an offset does not fit 64 bits */
    TROPE_ERROR_DATA = 5,        /* cu_seqlens, position_ids or start_positions hold a value that cannot be used */
    TROPE_ERROR_UNSUPPORTED = 6, /* this build or this machine lacks the device or instruction set asked for; or a call is
                                  * too large for the CUDA backend: see trope_forward and trope_workspace_size */
    TROPE_ERROR_DEVICE = 7       /* the CUDA runtime refused a launch */
};

/* Element types. */
enum { TROPE_F32 = 0, TROPE_F16 = 1, TROPE_BF16 = 2, TROPE_F64 = 3 };
/* Types of indices: cu_seqlens, position_ids, start_positions. */
enum { TROPE_I32 = 0, TROPE_I64 = 1 };
/* Where the pointers of a call live. AUTO is CUDA if this build has it and a device is present, otherwise CPU. */
enum { TROPE_DEVICE_AUTO = 0, TROPE_DEVICE_CPU = 1, TROPE_DEVICE_CUDA = 2 };
/* Instruction set of the CPU backend. AUTO is the best one that this CPU has. Every one gives the same bits. */
enum { TROPE_ISA_AUTO = 0, TROPE_ISA_PORTABLE = 1, TROPE_ISA_AVX2 = 2, TROPE_ISA_AVX512 = 3 };
/* Dimensions of the dense layouts, outermost first: s(equence) b(atch) h(ead) d(im); thd is t(oken) h d. */
enum { TROPE_SBHD = 1, TROPE_BSHD = 2, TROPE_BHSD = 3, TROPE_THD = 4 };
/* Pairs of a window of R elements: HALF is (i, i + R/2) (GPT-NeoX, Llama in Hugging Face), INTERLEAVED is (2i, 2i + 1)
 * (RoFormer, GPT-J). DEFAULT is HALF for `pairing` and "the same as pairing" for `pairing_out`. */
enum { TROPE_PAIRING_DEFAULT = 0, TROPE_PAIRING_HALF = 1, TROPE_PAIRING_INTERLEAVED = 2 };
/* Which position axis drives pair i. WINDOWS: the axis of its window (with one window, axis 0). SECTIONS: axis 0 for the
 * first axis_sections[0] pairs, axis 1 for the next axis_sections[1], axis 2 for the rest (Qwen2-VL). INTERLEAVED: axis
 * i % 3 as long as i < 3 * axis_sections[i % 3], otherwise axis 0 (Qwen3-VL). */
enum { TROPE_AXES_WINDOWS = 0, TROPE_AXES_SECTIONS = 1, TROPE_AXES_INTERLEAVED = 2 };
/* ONCE: computed in fp32 and rounded once, at the store. NATIVE: cos, sin and each of the three operations are rounded to
 * the operand's dtype, as eager PyTorch and apex do. */
enum { TROPE_ROUND_ONCE = 0, TROPE_ROUND_NATIVE = 1 };
/* A position outside [0, angle_rows): POISON makes the rotated elements NaN (on the CPU it is an error unless `status` is
 * given, and everywhere where the positions follow from the shapes alone), CLAMP takes the nearest row. */
enum { TROPE_RANGE_POISON = 0, TROPE_RANGE_CLAMP = 1 };
/* What is written for a token that belongs to no sequence: zeros (the whole head, rotated or not), the source, or the
 * source rotated by the position that trope_positions reports. */
enum { TROPE_PADDING_ZERO = 0, TROPE_PADDING_COPY = 1, TROPE_PADDING_ROTATE = 2 };
/* Position of local index i of a sequence with L tokens on this rank, c = cp_size, r = cp_rank, N = L * c:
 *   CONTIGUOUS  r * L + i
 *   ZIGZAG      i < L/2 ? r * (L/2) + i : N - (r + 1) * (L/2) + (i - L/2)     L even (Megatron-Core, TransformerEngine)
 *   STRIPED     i * c + r                                                   (striped attention, arXiv:2311.09431)
 *   FLAT        the rank holds tokens [r * T, (r + 1) * T) of the whole packed stream, sequences may cross ranks
 * cp_layout has no default when cp_size > 1. */
enum { TROPE_CP_NONE = 0, TROPE_CP_CONTIGUOUS = 1, TROPE_CP_ZIGZAG = 2, TROPE_CP_STRIPED = 3, TROPE_CP_FLAT = 4 };
/* Bits of the status word. */
enum {
    TROPE_STATUS_POSITION = 1,   /* a position was outside the angle rows (POISON only) */
    TROPE_STATUS_CU_SEQLENS = 2, /* cu_seqlens decrease, do not fit the tensor, or are longer than cu_seqlens_padded */
    TROPE_STATUS_CP_LENGTH = 4   /* a sequence cannot be split by the context parallel layout */
};

/* Indices into the stride arrays of an operand. The element of batch entry b, token t, group g, head h of the group and
 * dimension e is at b*s[0] + t*s[1] + g*s[2] + h*s[3] + e*s[4]. */
enum { TROPE_DIM_BATCH = 0, TROPE_DIM_TOKEN = 1, TROPE_DIM_GROUP = 2, TROPE_DIM_HEAD = 3, TROPE_DIM_ELEMENT = 4 };
#define TROPE_MAX_DIMS 5
#define TROPE_MAX_OPERANDS 4
#define TROPE_MAX_AXES 3
/* rotary_dim is at most this; head_dim has no limit. */
#define TROPE_MAX_ROTARY_DIM 1024

/* One tensor of a call, [batch, tokens, groups, heads_per_group, head_dim] through its strides.
 *
 * The window [rotary_offset, rotary_offset + rotary_dim) of each head is rotated, the rest passes through: copied out of
 * place, left alone in place. rotary_dim 0 is a copy (V).
 *
 * src may be broadcast (strides of 0) or reversed (negative strides). dst must not overlap itself. dst is either src with
 * the same strides (in place, whatever the pairings), or it shares no element with anything else that the call reads or
 * writes.
 *
 * A Megatron packed QKV buffer [s, b, groups, (q_per_group + 2) * d] is three operands at different offsets: Q with
 * heads_per_group = q_per_group, K and V with heads_per_group = 1, all with group stride (q_per_group + 2) * d. */
typedef struct trope_operand {
    const void *src;         /* forward: x; backward: dy. Elements of dtype, like dst and input */
    void *dst;               /* forward: y; backward: dx, may be NULL when only the gradient of the angles is wanted */
    const void *input;       /* backward with d_freqs or d_inv_freq: the x of the forward call, otherwise NULL */
    int32_t groups;          /* 0 = 1 */
    int32_t heads_per_group; /* at least 1 */
    int32_t head_dim;        /* elements, at least 1 */
    int32_t rotary_dim;      /* elements, even, divisible by 2 * windows, at most head_dim - rotary_offset; 0 = copy */
    int32_t rotary_offset;   /* first element of the window, 0 to head_dim */
    int32_t reserved;        /* 0 */
    int64_t src_stride[TROPE_MAX_DIMS]; /* that of a dimension of size 1 is never looked at */
    int64_t dst_stride[TROPE_MAX_DIMS];
    int64_t input_stride[TROPE_MAX_DIMS];
} trope_operand;

/* Everything one call needs. The same filled-in struct serves forward and, with dy in src and dx in dst, backward. On CUDA
 * all pointers in it but inv_freq are device memory that the stream's work reads and writes later; inv_freq and the struct
 * itself are read before the call returns. */
typedef struct trope_args {
    uint64_t struct_size; /* sizeof(trope_args) */
    void *stream;         /* CUDA: a cudaStream_t of the current device, NULL = the legacy default stream; CPU: NULL */
    int32_t device;       /* TROPE_DEVICE_... */
    int32_t threads;      /* CPU: threads to use, 0 = OMP_NUM_THREADS or the processors; at most 4 a processor (or 8) */
    int32_t isa;          /* CPU: TROPE_ISA_... */
    int32_t dtype;        /* of every operand: TROPE_F32, ... */
    int32_t rounding;     /* TROPE_ROUND_... */
    int32_t operand_count; /* 1 to TROPE_MAX_OPERANDS */
    int64_t batch;         /* batch entries, 1 with cu_seqlens; 0 is legal and does nothing */
    int64_t tokens;        /* tokens per batch entry on this rank (s, or t of thd); 0 is legal and does nothing */
    trope_operand operands[TROPE_MAX_OPERANDS];

    /* The rotation. pairing is how the forward call's input is paired, pairing_out its output; backward reads
     * pairing_out and writes pairing. windows cuts the rotary window into that many equal parts (1, 2 or 3), each paired
     * within itself (axial and 2-D RoPE); pairs are numbered through all windows. inverse turns the other way. */
    int32_t pairing;
    int32_t pairing_out;
    int32_t windows;                        /* 0 = 1 */
    int32_t axis_map;                       /* TROPE_AXES_...; not with windows > 1 */
    int32_t axis_sections[TROPE_MAX_AXES];  /* pairs per axis, sum = R / 2 (see below); 0 with TROPE_AXES_WINDOWS */
    int32_t inverse;                        /* 0 or 1 */
    double mscale; /* multiplies cos and sin once, in fp32 (f64: in double), where it must be finite and not 0; 0 = 1 */

    /* The angles: exactly one of freqs, cos with sin, or inv_freq. R is the largest rotary_dim of the operands.
     * freqs     angles in radians, [rows, cols], or [batch, rows, cols] when angle_batch_stride is not 0.
     * cos, sin  the same shape, both with the same strides.
     * A row belongs to a position. cols is R / 2, one angle per pair, or R, one per element: column e is the angle of
     * element e of the forward call's *output* window. Operands with a smaller rotary_dim use the first pairs' angles, from
     * the columns that these have in a window of R (not with windows > 1, where all rotary_dim must be equal).
     * inv_freq  HOST array of R / 2 doubles below 2^64, radians per position, one per pair. No table is read: the phase is
     *           position * round(2^64 inv_freq / 2 pi) modulo 2^64, in units of 2^-64 turns, exact at any position. */
    const void *freqs;
    const void *cos;
    const void *sin;
    const double *inv_freq;
    int32_t angle_dtype;        /* freqs: TROPE_F32, or TROPE_F64 with f64 operands; cos, sin: those or the operands' dtype */
    int32_t angle_cols;         /* see above; 0 with inv_freq, like the three that follow */
    int64_t angle_rows;         /* at least 1 */
    int64_t angle_row_stride;   /* at least angle_cols; 0 = angle_cols */
    int64_t angle_batch_stride; /* 0 = one table for all batch entries */
    int32_t out_of_range;       /* TROPE_RANGE_... */

    /* Positions: the index in the sequence (a batch entry, or a sequence of cu_seqlens), plus start_positions[sequence]
     * if given; with packed_positions, the index plus cu_seqlens[sequence]; or position_ids, as they are, on every rank.
     * Only one of the three may be given. */
    int32_t position_dtype;        /* of position_ids and start_positions: TROPE_I32 or TROPE_I64 */
    const void *start_positions;   /* [sequences], or [batch] without cu_seqlens */
    const void *position_ids;      /* [axes, batch, tokens] through the strides below */
    int64_t position_axis_stride;  /* 0 = all axes read the same ids */
    int64_t position_batch_stride; /* 0 = all batch entries read the same ids */
    int64_t position_token_stride; /* 0 = 1 */
    int32_t position_axes;         /* 1 to 3, 0 = 1, over 1 only with ids; with 1, every axis reads the same position */
    int32_t packed_positions;      /* 0 or 1; needs cu_seqlens */

    /* Packed sequences. cu_seqlens [sequences + 1] are GLOBAL offsets of the sequences in the packed stream, over all
     * context parallel ranks. With cu_seqlens_padded, storage follows that one and cu_seqlens gives the real lengths.
     * Empty sequences are legal anywhere. On the operands' device. */
    const void *cu_seqlens;
    const void *cu_seqlens_padded;
    int64_t sequences;        /* 0 without cu_seqlens; 0 with it: all tokens are padding */
    int32_t cu_seqlens_dtype; /* of both: TROPE_I32 or TROPE_I64 */
    int32_t padding;          /* TROPE_PADDING_... */

    /* Context parallel. */
    int32_t cp_size;   /* 0 = 1 */
    int32_t cp_rank;   /* 0 to cp_size - 1 */
    int32_t cp_layout; /* TROPE_CP_... */
    int32_t reserved;  /* 0 */

    /* One int32 on the operands' device that TROPE_STATUS_ bits are ORed into; optional. On CUDA the host cannot read
     * indices, so that all that is wrong with them is reported here; what they are wrong for is poisoned. On the CPU bad
     * indices are an error (TROPE_ERROR_DATA), returned before anything is written, with one exception: when status is
     * given, positions out of range are reported there and poisoned, exactly as on CUDA. */
    int32_t *status;

    /* Backward only: the gradient of the angles, summed over operands, heads, and all tokens at a row (padding that is
     * not rotated and poisoned tokens excluded), in double, in an order that shapes, options and positions alone decide
     * (another one on CUDA than on the CPU). By derivation of y = M x:
     *   dL/da1 = mscale * sum dy1 (-x1 sin a1 - x2 cos a1)      dL/da2 = mscale * sum dy2 (x1 cos a2 - x2 sin a2)
     *   dL/d inv_freq = sum position * (dL/da1 + dL/da2)        (inverse: with -a for a, and the sums change their sign)
     * A column that serves both elements of a pair gets the sum of both. Rows that no token uses get 0. */
    void *d_freqs;         /* with freqs or cos and sin: their shape and strides; f32, or f64 with f64 operands */
    double *d_inv_freq;    /* with inv_freq: R / 2 doubles on the operands' device */
    void *workspace;       /* on the operands' device, aligned to 16 bytes; what is in it before and after means nothing */
    uint64_t workspace_size; /* bytes, at least what trope_workspace_size says */
} trope_args;

/* y = M x for every operand. Returns when the work is done (CPU) or queued on the stream (CUDA). TROPE_ERROR_UNSUPPORTED on
 * CUDA also for heads that are not made of 16-byte vectors, if a token has 2^31 - 512 or more columns: pairs and copied
 * elements, each of 8 heads (16 bits), 4 (f32) or 2 (f64). */
TROPE_API trope_status trope_forward(const trope_args *args);

/* dx = M' dy for every operand and, if asked for, the gradient of the angles. Returns like trope_forward. */
TROPE_API trope_status trope_backward(const trope_args *args);

/* Bytes of scratch that trope_backward needs for these args on their device: 0 unless d_freqs or d_inv_freq is given. The
 * args are validated as by the call itself, but for workspace and the values of indices. TROPE_ERROR_UNSUPPORTED on CUDA,
 * here as from the call, also if such a call has 2^31 / 3 or more tokens or angle rows, or 3.2 GB or more a token. */
TROPE_API trope_status trope_workspace_size(const trope_args *args, uint64_t *bytes);

/* The positions that a call with these args uses, on the host (so cu_seqlens, position_ids and start_positions must be
 * host memory here). positions: int64 [axes, batch, tokens], axes = position_axes (0 = 1), without the clamp.
 * sequences: int32 [batch, tokens] or NULL; the sequence of each token, -1 for padding. Reads only batch, tokens, the
 * position, cu_seqlens and cp fields; operands and angles may be left out. Fails as trope_forward on the CPU would for
 * these.
 *
 * A padding token between a sequence's end and its padded end has the position that it would have if it were real; one
 * that is before the first or after the last sequence has its distance from the start of that gap. */
TROPE_API trope_status trope_positions(const trope_args *args, int64_t *positions, int32_t *sequences);

/* Fills stride[5] for a contiguous tensor of one group: [tokens, batch, heads, head_dim] for TROPE_SBHD and so on; for
 * TROPE_THD batch must be 1. (The group stride is set to that of all heads.) TROPE_ERROR_OVERFLOW if they do not fit. */
TROPE_API trope_status trope_fill_strides(int64_t *stride, int32_t layout, int64_t batch, int64_t tokens, int32_t heads,
                                          int32_t head_dim);

/* Frequency rules, as in Hugging Face transformers' modeling_rope_utils.py, in double, rounded as the caller's thread rounds.
 * base and original_max_position must be over 1, and a field that a rule does not use must be 0. With d = rotary_dim,
 * m = original_max_position and f_i = base^(-2i/d), i in [0, d/2):
 *   DEFAULT       f_i
 *   LINEAR        f_i / factor                                     (position interpolation, arXiv:2306.15595)
 *   DYNAMIC       f_i with base * (factor * s / m - (factor - 1))^(d / (d - 2)), s = max(seq_len, m), d > 2
 *                                                                  (dynamic NTK)
 *   YARN          f_i/factor and f_i blended by a ramp between the pairs that turn beta_fast and beta_slow times in m
 *                                                                  (arXiv:2309.00071)
 *   LONGROPE      f_i / short_factor[i], or / long_factor[i] when seq_len > m    (arXiv:2402.13753)
 *   LLAMA3        f_i/factor for wavelengths over m/low_freq_factor, f_i under m/high_freq_factor, blended between
 *                                                                  (Llama 3.1)
 *   PROPORTIONAL  f_i / factor for the first int(partial_rotary_factor * d) / 2 pairs, 0 for the others (Gemma)
 * mscale is 1, but attention_factor where that is given, and otherwise
 *   YARN          g(1), or g(mscale) / g(mscale_all_dim) where both are given: g(k) = 1 + 0.1 k ln(max(factor, 1))
 *   LONGROPE      sqrt(1 + ln(factor) / ln(m)) if factor > 1 */
enum {
    TROPE_RULE_DEFAULT = 0,
    TROPE_RULE_LINEAR = 1,
    TROPE_RULE_DYNAMIC = 2,
    TROPE_RULE_YARN = 3,
    TROPE_RULE_LONGROPE = 4,
    TROPE_RULE_LLAMA3 = 5,
    TROPE_RULE_PROPORTIONAL = 6
};

typedef struct trope_frequency_args {
    uint64_t struct_size;          /* sizeof(trope_frequency_args) */
    int32_t rule;                  /* TROPE_RULE_... */
    int32_t rotary_dim;            /* even, 2 to TROPE_MAX_ROTARY_DIM */
    double base;                   /* 0 = 10000 */
    double factor;                 /* 0 = 1; LONGROPE: max_position / original_max_position, for mscale only */
    double original_max_position;  /* required by DYNAMIC, YARN, LONGROPE and LLAMA3 */
    double seq_len;                /* DYNAMIC, LONGROPE: the current length; 0 = original_max_position */
    double low_freq_factor;        /* LLAMA3, 0 = 1 */
    double high_freq_factor;       /* LLAMA3, 0 = 4 */
    double beta_fast;              /* YARN, 0 = 32 */
    double beta_slow;              /* YARN, 0 = 1 */
    double attention_factor;       /* YARN, LONGROPE: the mscale to use; 0 = from the rule */
    double mscale;                 /* YARN: with mscale_all_dim (DeepSeek), 0 = not given */
    double mscale_all_dim;         /* YARN */
    double partial_rotary_factor;  /* PROPORTIONAL, 0 = 1 */
    const double *short_factor;    /* LONGROPE, [rotary_dim / 2] */
    const double *long_factor;     /* LONGROPE, [rotary_dim / 2] */
    int32_t no_truncate;           /* YARN: 1 keeps the ramp's ends fractional (transformers' truncate=False) */
    int32_t reserved;              /* 0 */
} trope_frequency_args;

/* Writes rotary_dim / 2 frequencies (radians per position) to inv_freq and the factor of cos and sin to mscale; neither may
 * be NULL. TROPE_ERROR_ARGUMENT also if a frequency comes out at 2^64 or more, or mscale infinite. */
TROPE_API trope_status trope_frequencies(const trope_frequency_args *args, double *inv_freq, double *mscale);

/* The name of the kernel that trope_forward (backward = 0) or trope_backward (1) would run, such as
 * "cpu-avx512-bf16-half": backend, instruction set (cpu) or vector or scalar (cuda), dtype, pairing. The args are validated
 * as by trope_workspace_size. name gets at most size bytes with the final 0, of which there must be one. */
TROPE_API trope_status trope_kernel_name(const trope_args *args, int32_t backward, char *name, size_t size);

/* "TROPE_OK", "TROPE_ERROR_NULL", ... A static string for any value. */
TROPE_API const char *trope_status_name(trope_status status);

/* One line about the last call of this thread that failed, "" if none has. Valid until the next failure on this thread. */
TROPE_API const char *trope_last_error(void);

/* "MAJOR.MINOR.PATCH". */
TROPE_API const char *trope_version(void);

/* Lines "name: value" on this build and machine: version, backends, instruction sets, threads, devices. Valid until the
 * next call on this thread. */
TROPE_API const char *trope_info(void);

/* sizeof of a struct by its name ("trope_args", "trope_operand", "trope_frequency_args"), 0 for any other: for callers
 * that declare the structs themselves, without a compiler. */
TROPE_API size_t trope_sizeof(const char *struct_name);

#ifdef __cplusplus
}
#endif
#endif
