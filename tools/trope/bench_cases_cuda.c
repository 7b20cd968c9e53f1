/* What is timed on CUDA beside bench_cases.c: the sizes for which figures are stated, ratio against size, and every
 * combination of what a call may have. */
#include <stdio.h>

#include "bench.h"

#define F32         BENCH_TYPE(TROPE_F32)
#define F16         BENCH_TYPE(TROPE_F16)
#define BF16        BENCH_TYPE(TROPE_BF16)
#define ALL         (F32 | F16 | BF16)
#define INTERLEAVED TROPE_PAIRING_INTERLEAVED
#define HALF        TROPE_PAIRING_HALF
#define MIB         1048576.0

/* clang-format off */
/* A case of a number of MiB moved, whose name ends with it. */
#define SIZE(family, mib, ...) {.name = "size-" family "-" #mib, .bytes = mib * MIB, __VA_ARGS__}
#define SIZES(family, ...) \
    SIZE(family, 1, __VA_ARGS__), SIZE(family, 2, __VA_ARGS__), SIZE(family, 4, __VA_ARGS__), \
    SIZE(family, 8, __VA_ARGS__), SIZE(family, 16, __VA_ARGS__), SIZE(family, 32, __VA_ARGS__), \
    SIZE(family, 64, __VA_ARGS__), SIZE(family, 128, __VA_ARGS__), SIZE(family, 256, __VA_ARGS__), \
    SIZE(family, 512, __VA_ARGS__), SIZE(family, 1024, __VA_ARGS__)

static const bench_case cases[] = {
    /* The sizes at which others were measured. */
    {.name = "s8192-b1-h32", .dtypes = BF16, .heads = 32, .tokens = 8192},
    {.name = "s8192-b1-h32-freqs", .dtypes = BF16, .heads = 32, .tokens = 8192, .angles = BENCH_FREQS_FULL},
    {.name = "s8192-b1-h32-backward", .dtypes = BF16, .heads = 32, .tokens = 8192, .backward = 1},
    {.name = "s1024-b10-h96", .dtypes = F32, .heads = 96, .batch = 10, .tokens = 1024},
    {.name = "s1024-b10-h96-freqs", .dtypes = F32, .heads = 96, .batch = 10, .tokens = 1024, .angles = BENCH_FREQS_FULL},

    /* One head: nothing shares a sine. */
    {.name = "s32768-h1", .dtypes = BF16, .heads = 1, .tokens = 32768, .at_least = 0.90},
    {.name = "s32768-h1-freqs", .dtypes = BF16, .heads = 1, .tokens = 32768, .angles = BENCH_FREQS_HALF,
     .at_least = 0.85},
    {.name = "mla-k-pe-in-place", .dtypes = F32 | BF16, .heads = 1, .head_dim = 576, .rotary_dim = 64, .rotary_offset = 512,
     .in_place = 1, .bytes = 24 * MIB},

    /* Many sequences or few, long or short: the same work. */
    {.name = "t65536-64x1024", .dtypes = BF16, .layout = TROPE_THD, .heads = 32, .tokens = 65536,
     .lengths = BENCH_SEQS_OF_1024},
    {.name = "t65536-pareto", .dtypes = BF16, .layout = TROPE_THD, .heads = 32, .tokens = 65536,
     .lengths = BENCH_SEQS_PARETO_256, .at_least = 0.97, .beside = "t65536-64x1024"},
    {.name = "t65536-16384x4", .dtypes = BF16, .layout = TROPE_THD, .heads = 32, .tokens = 65536,
     .lengths = BENCH_SEQS_OF_4, .at_least = 0.97, .beside = "t65536-64x1024"},

    /* From 16 to 64 MiB. */
    {.name = "mid-interleaved", .dtypes = ALL, .heads = 32, .bytes = 24 * MIB, .pairing = INTERLEAVED},
    {.name = "mid-backward", .dtypes = ALL, .heads = 32, .bytes = 24 * MIB, .backward = 1},
    {.name = "mid-in-place", .dtypes = ALL, .heads = 32, .bytes = 24 * MIB, .in_place = 1},
    {.name = "mid-freqs", .dtypes = ALL, .heads = 32, .bytes = 24 * MIB, .angles = BENCH_FREQS_HALF},
    {.name = "mid-heads-8", .dtypes = ALL, .heads = 8, .bytes = 24 * MIB},
    {.name = "mid-bhsd", .dtypes = BF16, .layout = TROPE_BHSD, .batch = 2, .heads = 32, .bytes = 24 * MIB},
    {.name = "mid-thd", .dtypes = BF16, .layout = TROPE_THD, .heads = 32, .bytes = 24 * MIB, .lengths = BENCH_SEQS_PARETO},
    {.name = "mid-thd-heads-8", .dtypes = ALL, .layout = TROPE_THD, .heads = 8, .bytes = 24 * MIB,
     .lengths = BENCH_SEQS_PARETO},
    {.name = "mid-mla", .dtypes = BF16, .heads = 32, .head_dim = 192, .rotary_dim = 64, .rotary_offset = 128,
     .bytes = 24 * MIB},

    {.name = "mid-cp-zigzag", .dtypes = BF16, .heads = 32, .bytes = 24 * MIB, .cp_size = 4},
    SIZE("qkv-split", 4, .dtypes = BF16, .heads = 32, .groups = 8, .form = BENCH_QKV_SPLIT),
    SIZE("qkv-split", 16, .dtypes = BF16, .heads = 32, .groups = 8, .form = BENCH_QKV_SPLIT, .at_least = 0.95),
    SIZE("qkv-split", 32, .dtypes = BF16, .heads = 32, .groups = 8, .form = BENCH_QKV_SPLIT, .at_least = 0.95),
    SIZE("cp-zigzag", 1, .dtypes = BF16, .heads = 32, .cp_size = 4),
    SIZE("cp-zigzag", 4, .dtypes = BF16, .heads = 32, .cp_size = 4),
    SIZE("cp-zigzag", 16, .dtypes = BF16, .heads = 32, .cp_size = 4),

    /* Packed rows of few heads: K of grouped queries by itself. */
    {.name = "thd-heads-8", .dtypes = ALL, .layout = TROPE_THD, .heads = 8, .lengths = BENCH_SEQS_PARETO},
    {.name = "thd-heads-8-freqs", .dtypes = BF16, .layout = TROPE_THD, .heads = 8, .lengths = BENCH_SEQS_PARETO,
     .angles = BENCH_FREQS_HALF},
    {.name = "thd-heads-8-seqs-of-4", .dtypes = BF16, .layout = TROPE_THD, .heads = 8, .lengths = BENCH_SEQS_OF_4},

    /* The gradient of the angles: rows that several batch entries share, packed sequences, few heads. */
    {.name = "d-freqs-batch-4", .dtypes = BF16, .heads = 32, .batch = 4, .angles = BENCH_FREQS_HALF, .backward = 1,
     .angle_gradient = 1, .at_least = 0.85},
    {.name = "d-freqs-thd", .dtypes = BF16, .layout = TROPE_THD, .heads = 32, .angles = BENCH_FREQS_HALF,
     .lengths = BENCH_SEQS_OF_1024, .backward = 1, .angle_gradient = 1, .at_least = 0.85},
    {.name = "d-freqs-heads-8", .dtypes = BF16, .heads = 8, .angles = BENCH_FREQS_HALF, .backward = 1, .angle_gradient = 1,
     .at_least = 0.85},

    SIZES("heads-32", .dtypes = F32 | BF16, .heads = 32),
    SIZES("heads-8-freqs", .dtypes = BF16, .heads = 8, .angles = BENCH_FREQS_HALF),
    SIZES("heads-1", .dtypes = F32 | BF16, .heads = 1),
    SIZES("heads-1-freqs", .dtypes = BF16, .heads = 1, .angles = BENCH_FREQS_HALF),
    SIZES("q-and-k", .dtypes = BF16, .heads = 32, .groups = 8, .form = BENCH_Q_AND_K),
    SIZES("thd", .dtypes = BF16, .layout = TROPE_THD, .heads = 32, .lengths = BENCH_SEQS_PARETO),
    SIZES("thd-heads-8", .dtypes = BF16, .layout = TROPE_THD, .heads = 8, .lengths = BENCH_SEQS_PARETO),
};
/* clang-format on */

const bench_table bench_cuda_cases = {cases, sizeof cases / sizeof cases[0]};

/* ---- every combination ---- */

enum { LAYOUTS = 4, PAIRINGS = 2, WINDOWS = 3, DIRECTIONS = 2, PLACES = 2, SOURCES = 2 };
enum { CROSS = LAYOUTS * PAIRINGS * WINDOWS * DIRECTIONS * PLACES * SOURCES };

static bench_case cross_case(int i, char *name, size_t size)
{
    static const char *const layouts[] = {"sbhd", "bshd", "bhsd", "thd"}, *const windows[] = {"whole", "half", "mla"};
    const int layout = i % LAYOUTS, pairing = i / LAYOUTS % PAIRINGS, window = i / (LAYOUTS * PAIRINGS) % WINDOWS;
    const int rest = i / (LAYOUTS * PAIRINGS * WINDOWS), backward = rest % 2, in_place = rest / 2 % 2, freqs = rest / 4;
    snprintf(name, size, "x-%s-%s-%s-%s-%s-%s", layouts[layout], pairing ? "interleaved" : "halves", windows[window],
             backward ? "bwd" : "fwd", in_place ? "in" : "out", freqs ? "freqs" : "inv_freq");
    bench_case c = {.name = name, .dtypes = ALL, .heads = 32, .layout = TROPE_SBHD + layout};
    c.batch = layout == 3 ? 1 : 2;
    c.lengths = layout == 3 ? BENCH_SEQS_PARETO : BENCH_DENSE;
    c.pairing = pairing ? INTERLEAVED : HALF;
    c.head_dim = window == 2 ? 192 : 128;
    c.rotary_dim = window ? 64 : 128;
    c.rotary_offset = window == 2 ? 128 : 0;
    c.backward = backward;
    c.in_place = in_place;
    c.angles = freqs ? BENCH_FREQS_HALF : BENCH_INV_FREQ;
    return c;
}

bench_table bench_cross_cases(void)
{
    static bench_case all[CROSS];
    static char names[CROSS][64];
    for (int i = 0; i < CROSS; i++)
        all[i] = cross_case(i, names[i], sizeof names[i]);
    return (bench_table){all, CROSS};
}
