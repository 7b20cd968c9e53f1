/* The cases that time the CPU. All cases move the same number of bytes, so their times are comparable. */
#include "bench.h"

#define F32         BENCH_TYPE(TROPE_F32)
#define F16         BENCH_TYPE(TROPE_F16)
#define BF16        BENCH_TYPE(TROPE_BF16)
#define F64         BENCH_TYPE(TROPE_F64)
#define ALL         (F32 | F16 | BF16)
#define INTERLEAVED TROPE_PAIRING_INTERLEAVED
#define HALF        TROPE_PAIRING_HALF

/* clang-format off */
static const bench_case cases[] = {
    /* Heads: with more heads, more elements share a token's cos and sin. */
    {.name = "heads-1", .dtypes = ALL, .heads = 1},
    {.name = "heads-8", .dtypes = ALL, .heads = 8},
    {.name = "heads-32", .dtypes = ALL | F64, .heads = 32},
    {.name = "heads-8-dim-64", .dtypes = ALL, .heads = 8, .head_dim = 64},

    /* Direction, pairing, in place. */
    {.name = "backward", .dtypes = ALL, .heads = 32, .backward = 1},
    {.name = "interleaved", .dtypes = ALL, .heads = 32, .pairing = INTERLEAVED},
    {.name = "interleaved-backward", .dtypes = ALL, .heads = 32, .pairing = INTERLEAVED, .backward = 1},
    {.name = "interleaved-to-half", .dtypes = F32 | BF16, .heads = 32, .pairing = INTERLEAVED, .pairing_out = HALF},
    {.name = "in-place", .dtypes = ALL, .heads = 32, .in_place = 1},
    {.name = "in-place-interleaved", .dtypes = F32 | BF16, .heads = 32, .pairing = INTERLEAVED, .in_place = 1},
    {.name = "native-rounding", .dtypes = F16 | BF16, .heads = 32, .rounding = TROPE_ROUND_NATIVE},

    /* Layouts and sequences. */
    {.name = "sbhd-batch-4", .dtypes = F32 | BF16, .batch = 4, .heads = 8},
    {.name = "bshd", .dtypes = ALL, .layout = TROPE_BSHD, .batch = 2, .heads = 32},
    {.name = "bhsd", .dtypes = ALL, .layout = TROPE_BHSD, .batch = 2, .heads = 32},
    {.name = "bhsd-freqs", .dtypes = ALL, .layout = TROPE_BHSD, .batch = 2, .heads = 32, .source.angles = BENCH_FREQS_HALF},
    {.name = "thd", .dtypes = ALL, .layout = TROPE_THD, .heads = 32, .source.lengths = BENCH_SEQS_OF_1024},
    {.name = "thd-pareto", .dtypes = F32 | BF16, .layout = TROPE_THD, .heads = 32, .source.lengths = BENCH_SEQS_PARETO},
    {.name = "thd-seqs-of-4", .dtypes = F32 | BF16, .layout = TROPE_THD, .heads = 32, .source.lengths = BENCH_SEQS_OF_4},
    {.name = "thd-pareto-freqs", .dtypes = BF16, .layout = TROPE_THD, .heads = 32, .source.lengths = BENCH_SEQS_PARETO,
     .source.angles = BENCH_FREQS_HALF, .backward = 1},

    /* A context parallel rank's share of a sequence: with zigzag, the last rank has the middle of the sequence. */
    {.name = "cp-zigzag", .dtypes = F32 | BF16, .heads = 32, .source.cp_size = 4},
    {.name = "cp-zigzag-freqs", .dtypes = BF16, .heads = 32, .source.cp_size = 4, .source.angles = BENCH_FREQS_HALF},
    {.name = "cp-zigzag-table", .dtypes = BF16, .heads = 32, .source.cp_size = 4, .source.angles = BENCH_TABLE_HALF},
    {.name = "cp-zigzag-8-heads", .dtypes = BF16, .heads = 8, .source.cp_size = 4, .source.angles = BENCH_FREQS_HALF},

    /* Sources of the angles. */
    {.name = "heads-1-freqs", .dtypes = F32 | BF16, .heads = 1, .source.angles = BENCH_FREQS_HALF},
    {.name = "freqs", .dtypes = ALL, .heads = 32, .source.angles = BENCH_FREQS_HALF},
    {.name = "freqs-full", .dtypes = F32 | BF16, .heads = 32, .source.angles = BENCH_FREQS_FULL},
    {.name = "thd-table", .dtypes = BF16, .layout = TROPE_THD, .heads = 32, .source.lengths = BENCH_SEQS_PARETO,
     .source.angles = BENCH_TABLE_HALF},
    {.name = "table", .dtypes = F32 | BF16, .heads = 32, .source.angles = BENCH_TABLE_HALF},
    {.name = "table-full", .dtypes = F32 | BF16, .heads = 32, .source.angles = BENCH_TABLE_FULL},
    {.name = "table-own-dtype", .dtypes = F16 | BF16, .heads = 32, .source.angles = BENCH_TABLE_OWN},

    /* Q and K in one call: grouped queries, and one K head for all. */
    {.name = "q-and-k", .dtypes = ALL, .heads = 32, .groups = 8, .form = BENCH_Q_AND_K},
    {.name = "q-and-k-freqs", .dtypes = BF16, .heads = 32, .groups = 8, .form = BENCH_Q_AND_K,
     .source.angles = BENCH_FREQS_HALF},
    {.name = "q-and-k-in-place", .dtypes = BF16, .heads = 32, .groups = 8, .form = BENCH_Q_AND_K, .in_place = 1},
    {.name = "q-and-k-thd", .dtypes = BF16, .layout = TROPE_THD, .heads = 32, .groups = 8, .form = BENCH_Q_AND_K,
     .source.lengths = BENCH_SEQS_PARETO},
    {.name = "q-and-k-bhsd", .dtypes = BF16, .layout = TROPE_BHSD, .batch = 2, .heads = 32, .groups = 8,
     .form = BENCH_Q_AND_K},
    {.name = "q-and-one-k", .dtypes = BF16, .heads = 32, .groups = 1, .form = BENCH_Q_AND_K},

    /* Windows of the head, and tensors inside other tensors. */
    {.name = "half-window", .dtypes = F32 | BF16, .heads = 32, .rotary_dim = 64},
    {.name = "mla", .dtypes = ALL, .heads = 32, .head_dim = 192, .rotary_dim = 64, .rotary_offset = 128,
     .pairing = INTERLEAVED, .pairing_out = HALF},
    {.name = "mla-in-place", .dtypes = F32 | BF16, .heads = 32, .head_dim = 192, .rotary_dim = 64, .rotary_offset = 128,
     .in_place = 1},
    {.name = "qkv-split", .dtypes = ALL, .heads = 32, .groups = 8, .form = BENCH_QKV_SPLIT},
    {.name = "qkv-split-freqs", .dtypes = BF16, .heads = 32, .groups = 8, .form = BENCH_QKV_SPLIT,
     .source.angles = BENCH_FREQS_HALF},
    {.name = "qkv-inside", .dtypes = ALL, .heads = 32, .groups = 8, .form = BENCH_QKV_INSIDE, .in_place = 1},
    {.name = "qkv-inside-backward", .dtypes = BF16, .heads = 32, .groups = 8, .form = BENCH_QKV_INSIDE, .in_place = 1,
     .backward = 1},
    {.name = "strided", .dtypes = F32 | BF16, .heads = 32, .form = BENCH_STRIDED},

    /* A norm before the rotation. Compare with heads-8, heads-32, thd, q-and-k and qkv-split. */
    {.name = "norm-8-heads", .dtypes = ALL, .heads = 8, .norm = TROPE_NORM_BEFORE},
    {.name = "norm-32-heads", .dtypes = ALL | F64, .heads = 32, .norm = TROPE_NORM_BEFORE},
    {.name = "norm-dim-256-quarter", .dtypes = F32 | BF16, .heads = 32, .head_dim = 256, .rotary_dim = 64, .norm = TROPE_NORM_BEFORE},
    {.name = "norm-thd", .dtypes = F32 | BF16, .layout = TROPE_THD, .heads = 32, .source.lengths = BENCH_SEQS_OF_1024,
     .norm = TROPE_NORM_BEFORE},
    {.name = "norm-q-and-k", .dtypes = ALL, .heads = 32, .groups = 8, .form = BENCH_Q_AND_K, .norm = TROPE_NORM_BEFORE},
    {.name = "norm-q-and-k-backward", .dtypes = ALL, .heads = 32, .groups = 8, .form = BENCH_Q_AND_K, .norm = TROPE_NORM_BEFORE,
     .backward = 1},
    {.name = "norm-token", .dtypes = ALL, .heads = 32, .groups = 8, .form = BENCH_Q_AND_K, .norm = TROPE_NORM_BEFORE, .norm_token = 1},
    {.name = "norm-token-backward", .dtypes = ALL, .heads = 32, .groups = 8, .form = BENCH_Q_AND_K, .norm = TROPE_NORM_BEFORE,
     .norm_token = 1, .backward = 1},
    {.name = "norm-qkv-split", .dtypes = BF16, .heads = 32, .groups = 8, .form = BENCH_QKV_SPLIT, .norm = TROPE_NORM_BEFORE},
    {.name = "norm-qkv-split-backward", .dtypes = BF16, .heads = 32, .groups = 8, .form = BENCH_QKV_SPLIT, .norm = TROPE_NORM_BEFORE,
     .backward = 1},

    /* dx and the gradient of the angles in one pass. */
    {.name = "d-freqs", .dtypes = F32 | BF16, .heads = 32, .source.angles = BENCH_FREQS_HALF, .backward = 1,
     .angle_gradient = 1},
    {.name = "d-inv-freq", .dtypes = F32 | BF16, .heads = 32, .backward = 1, .angle_gradient = 1},
};
/* clang-format on */

bench_table bench_cpu_cases(void)
{
    return (bench_table){cases, sizeof cases / sizeof cases[0]};
}
