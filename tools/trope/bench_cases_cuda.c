/* The cases that time CUDA: the calls of training. A group is a tensor shape in several sizes, each with several sources of
 * positions and angles. Each combination is a case with the name SHAPE-sTOKENS-SOURCE. */
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"

#define F32         BENCH_TYPE(TROPE_F32)
#define F16         BENCH_TYPE(TROPE_F16)
#define BF16        BENCH_TYPE(TROPE_BF16)
#define F64         BENCH_TYPE(TROPE_F64)
#define INTERLEAVED TROPE_PAIRING_INTERLEAVED
#define HALF        TROPE_PAIRING_HALF

/* ---- sources of positions and angles ---- */

typedef enum source_kind {
    TOKENS,
    STEPS,
    FREQS,
    FREQS_FULL,
    TABLE,
    TABLE_FULL,
    TABLE_OWN,
    TABLE_AXES,
    RANK,
    IDS,
    IDS_I64,
    IDS_FREQS,
    IDS_DISTINCT,
    IDS_TABLE,
    MROPE,
    MROPE_INTERLEAVED,
    STARTS,
    THD,
    THD_I64,
    THD_FREQS,
    THD_STREAM,
    THD_4,
    THD_16384,
    THD_PARETO,
    PADDED,
    PADDED_FREQS,
    PADDED_ZIGZAG,
    THD_CONTIGUOUS,
    THD_ZIGZAG,
    THD_STRIPED,
    THD_FLAT,
    KINDS
} source_kind;

/* clang-format off */
#define SEQS BENCH_SEQS_64
static const struct {
    const char *name;
    bench_source source;
} kinds[KINDS] = {
    /* Positions from tokens. */
    [TOKENS] = {"tokens", {0}},
    [STEPS] = {"steps", {.angles = BENCH_PHASE_STEP}},
    [FREQS] = {"freqs", {.angles = BENCH_FREQS_HALF}},
    [FREQS_FULL] = {"freqs-full", {.angles = BENCH_FREQS_FULL}},
    [TABLE] = {"table", {.angles = BENCH_TABLE_HALF}},
    [TABLE_FULL] = {"table-full", {.angles = BENCH_TABLE_FULL}},
    [TABLE_OWN] = {"table-own", {.angles = BENCH_TABLE_OWN}},
    [TABLE_AXES] = {"table-axes", {.angles = BENCH_TABLE_OWN_AXES}},
    [RANK] = {"rank", {.cp_size = 4}},
    /* Read positions. */
    [IDS] = {"ids", {.positions = BENCH_IDS}},
    [IDS_I64] = {"ids-i64", {.positions = BENCH_IDS, .index_dtype = TROPE_I64}},
    [IDS_FREQS] = {"ids-freqs", {.positions = BENCH_IDS, .angles = BENCH_FREQS_HALF}},
    [IDS_DISTINCT] = {"ids-freqs-distinct", {.positions = BENCH_IDS_DISTINCT, .angles = BENCH_FREQS_HALF}},
    [IDS_TABLE] = {"ids-table", {.positions = BENCH_IDS, .angles = BENCH_TABLE_OWN, .index_dtype = TROPE_I64}},
    [MROPE] = {"mrope", {.positions = BENCH_IDS_SECTIONS}},
    [MROPE_INTERLEAVED] = {"mrope-interleaved", {.positions = BENCH_IDS_INTERLEAVED}},
    /* Searched positions. */
    [STARTS] = {"starts", {.positions = BENCH_STARTS, .lengths = SEQS}},
    [THD] = {"thd", {.lengths = SEQS}},
    [THD_I64] = {"thd-i64", {.lengths = SEQS, .index_dtype = TROPE_I64}},
    [THD_FREQS] = {"thd-freqs", {.lengths = SEQS, .angles = BENCH_FREQS_HALF}},
    [THD_STREAM] = {"thd-stream", {.lengths = SEQS, .stream = 1}},
    [THD_4] = {"thd-4", {.lengths = BENCH_SEQS_4}},
    [THD_16384] = {"thd-16384", {.lengths = BENCH_SEQS_16384}},
    [THD_PARETO] = {"thd-pareto", {.lengths = BENCH_SEQS_PARETO}},
    [PADDED] = {"padded", {.lengths = SEQS, .padded = 1}},
    [PADDED_FREQS] = {"padded-freqs", {.lengths = SEQS, .angles = BENCH_FREQS_HALF, .padded = 1}},
    [PADDED_ZIGZAG] = {"padded-zigzag", {.lengths = SEQS, .padded = 1, .cp_size = 4}},
    [THD_CONTIGUOUS] = {"thd-contiguous", {.lengths = SEQS, .cp_size = 4, .cp_layout = TROPE_CP_CONTIGUOUS}},
    [THD_ZIGZAG] = {"thd-zigzag", {.lengths = SEQS, .cp_size = 4}},
    [THD_STRIPED] = {"thd-striped", {.lengths = SEQS, .cp_size = 4, .cp_layout = TROPE_CP_STRIPED}},
    [THD_FLAT] = {"thd-flat", {.lengths = SEQS, .cp_size = 4, .cp_layout = TROPE_CP_FLAT}},
};
/* clang-format on */

#define KIND(kind) (1u << (kind))
#define SMALL      (KIND(TOKENS) | KIND(FREQS) | KIND(THD))
#define SOME       (SMALL | KIND(IDS) | KIND(MROPE) | KIND(PADDED))
#define RANKS      (KIND(THD_CONTIGUOUS) | KIND(THD_ZIGZAG) | KIND(THD_STRIPED) | KIND(THD_FLAT))
#define MANY                                                                                                               \
    (SOME | RANKS | KIND(FREQS_FULL) | KIND(TABLE) | KIND(IDS_I64) | KIND(MROPE_INTERLEAVED) | KIND(STARTS) |              \
     KIND(THD_I64) | KIND(THD_STREAM) | WITH_FREQS)
#define RARE          (KIND(STEPS) | KIND(TABLE_OWN) | KIND(IDS_TABLE) | KIND(RANK) | KIND(PADDED_ZIGZAG))
#define SOME_OF_MLA   (SMALL | KIND(TABLE) | KIND(IDS) | KIND(PADDED) | KIND(THD_ZIGZAG) | KIND(THD_FREQS))
#define WITH_FREQS    (KIND(IDS_FREQS) | KIND(IDS_DISTINCT) | KIND(THD_FREQS) | KIND(PADDED_FREQS))
#define OTHER_LENGTHS (KIND(THD_4) | KIND(THD_16384) | KIND(THD_PARETO))

/* ---- shapes ---- */

enum { MAX_SIZES = 6 };

typedef struct case_group {
    bench_case shape; /* its name is the beginning of the cases' names; dtypes 0 = bf16 */
    uint32_t sources; /* KIND(...) of each kind of source */
    int64_t tokens[MAX_SIZES];
} case_group;

#define ONE(h)      .heads = h
#define QK(h, g)    .form = BENCH_Q_AND_K, .heads = h, .groups = g
#define SPLIT(h, g) .form = BENCH_QKV_SPLIT, .heads = h, .groups = g
#define IN(h, g)    .form = BENCH_QKV_INSIDE, .heads = h, .groups = g, .in_place = 1
#define MLA_Q(h)                                                                                                           \
    .heads = h, .head_dim = 192, .rotary_dim = 64, .rotary_offset = 128, .in_place = 1, .pairing = INTERLEAVED,            \
    .pairing_out = HALF
#define MLA_KV(h) .form = BENCH_MLA_KV, .heads = h, .pairing = INTERLEAVED, .pairing_out = HALF

/* clang-format off */
static const case_group groups[] = {
    /* Q and K in one call. 8 + 1 heads are a 70B model on one of 8 ranks. */
    {{"qk-8-1-in", QK(8, 1), .in_place = 1}, MANY, {8192}}, /* 38 MB */
    {{"qk-8-1-in", QK(8, 1), .in_place = 1}, SOME, {2048, 4096, 32768, 262144}},
    {{"qk-8-1-in", QK(8, 1), .in_place = 1}, SMALL, {256, 512, 1024}},
    {{"qk-8-1-out", QK(8, 1)}, SOME, {8192}},
    {{"qk-8-1-in", QK(8, 1), .in_place = 1}, WITH_FREQS, {32768}}, /* 151 MB */
    {{"qk-4-1-in", QK(4, 1), .in_place = 1}, SOME | WITH_FREQS, {16384, 65536}}, /* 42 and 168 MB: an 8B model */
    {{"qk-2-1-in", QK(2, 1), .in_place = 1}, SOME | WITH_FREQS, {32768}}, /* 50 MB */
    {{"qk-2-1-dim-64-in", QK(2, 1), .head_dim = 64, .in_place = 1}, SMALL | KIND(THD_FREQS) | KIND(PADDED), {65536}},
    {{"qk-32-8-in", QK(32, 8), .in_place = 1}, MANY, {2048}}, /* 42 MB */
    {{"qk-32-8-in", QK(32, 8), .in_place = 1}, MANY | RARE, {8192}}, /* 168 MB */
    {{"qk-32-8-in", QK(32, 8), .in_place = 1}, SOME, {512, 1024}},
    {{"qk-32-8-in", QK(32, 8), .in_place = 1}, SOME | OTHER_LENGTHS, {65536}}, /* 1.3 GB */
    {{"qk-32-8-in", QK(32, 8), .in_place = 1}, SMALL, {64, 128, 256}},
    {{"qk-32-8-out", QK(32, 8)}, SOME, {2048, 8192}},
    {{"qk-64-8-in", QK(64, 8), .in_place = 1}, MANY, {1024}}, /* 38 MB */
    {{"qk-64-8-in", QK(64, 8), .in_place = 1}, SOME, {4096, 32768}},
    {{"qk-64-8-out", QK(64, 8)}, SOME, {4096}},
    {{"qk-32-8-in", QK(32, 8), .dtypes = F16 | F32, .in_place = 1}, SOME, {1024, 8192}},
    {{"qk-32-8-in", QK(32, 8), .dtypes = F16 | F32, .in_place = 1}, WITH_FREQS, {8192}},
    {{"qk-32-8-bwd-in", QK(32, 8), .in_place = 1, .backward = 1}, SOME, {8192}},
    {{"qk-32-8-bshd-in", QK(32, 8), .layout = TROPE_BSHD, .batch = 2, .in_place = 1},
     KIND(TOKENS) | KIND(FREQS) | KIND(IDS) | KIND(MROPE) | KIND(TABLE_OWN) | KIND(TABLE_AXES), {4096}},
    {{"qk-32-8-sbhd-in", QK(32, 8), .batch = 2, .in_place = 1}, KIND(TOKENS) | KIND(FREQS) | KIND(IDS), {4096}},
    {{"qk-32-8-bhsd-in", QK(32, 8), .layout = TROPE_BHSD, .batch = 2, .in_place = 1},
     KIND(TOKENS) | KIND(IDS) | KIND(TABLE_OWN), {4096}},
    {{"qk-32-8-interleaved-in", QK(32, 8), .pairing = INTERLEAVED, .in_place = 1}, SMALL, {2048, 8192}},
    {{"qk-64-8-dim-64-in", QK(64, 8), .head_dim = 64, .in_place = 1}, SMALL, {8192}},
    {{"qk-8-4-dim-256-in", QK(8, 4), .head_dim = 256, .in_place = 1}, SMALL, {16384}},
    {{"qk-32-8-half-in", QK(32, 8), .rotary_dim = 64, .in_place = 1}, SMALL, {16384}},

    /* Packed QKV: rotated in place; split, with a copy of V; and joined again. */
    {{"qkv-32-8-inside", IN(32, 8)}, MANY, {8192}},
    {{"qkv-32-8-inside", IN(32, 8)}, SOME, {2048}},
    {{"qkv-8-1-inside", IN(8, 1)}, SOME, {8192}},
    {{"qkv-32-8-split", SPLIT(32, 8)}, MANY, {8192}},
    {{"qkv-32-8-split", SPLIT(32, 8)}, SOME, {2048}},
    {{"qkv-8-1-split", SPLIT(8, 1)}, SOME, {8192}},
    {{"qkv-32-8-inside-bwd", IN(32, 8), .backward = 1}, SMALL, {8192}},
    {{"qkv-32-8-split-bwd", SPLIT(32, 8), .backward = 1}, SMALL, {8192}},

    /* One operand. */
    {{"h-32-out", ONE(32)}, MANY, {2048}}, /* 34 MB */
    {{"h-32-out", ONE(32)}, MANY | KIND(RANK) | KIND(TABLE_OWN), {8192}}, /* 134 MB */
    {{"h-32-out", ONE(32)}, SOME, {512, 1024}},
    {{"h-32-out", ONE(32)}, SOME | OTHER_LENGTHS, {65536}}, /* 1.1 GB */
    {{"h-32-out", ONE(32)}, SMALL, {64, 128, 256}},
    {{"h-8-out", ONE(8)}, MANY, {8192, 32768}},
    {{"h-8-out", ONE(8)}, SOME, {2048, 4096, 262144}},
    {{"h-8-out", ONE(8)}, SMALL, {256, 512, 1024}},
    {{"h-128-out", ONE(128)}, SOME, {256, 512, 2048}},
    {{"h-32-in", ONE(32), .in_place = 1}, SOME, {2048, 8192}},
    {{"h-32-out", ONE(32), .dtypes = F16 | F32}, SOME, {1024, 8192}},
    {{"h-32-out", ONE(32), .dtypes = F16 | F32}, KIND(THD_FREQS) | KIND(IDS_TABLE), {8192}},
    {{"h-32-bwd", ONE(32), .backward = 1}, SOME, {2048, 8192}},
    {{"h-32-bhsd", ONE(32), .layout = TROPE_BHSD, .batch = 2},
     KIND(TOKENS) | KIND(FREQS) | KIND(IDS) | KIND(MROPE), {4096}},
    {{"h-32-interleaved", ONE(32), .dtypes = BF16 | F32, .pairing = INTERLEAVED}, SMALL | KIND(FREQS_FULL), {8192}},
    {{"h-32-to-half", ONE(32), .pairing = INTERLEAVED, .pairing_out = HALF}, SMALL, {8192}},
    {{"h-32-to-half-in", ONE(32), .dtypes = F32 | F16 | BF16, .pairing = INTERLEAVED, .pairing_out = HALF, .in_place = 1},
     KIND(TOKENS), {8192}},
    {{"h-32-half", ONE(32), .dtypes = BF16 | F32, .rotary_dim = 64}, SMALL, {8192}},
    {{"h-8-dim-512-out", ONE(8), .dtypes = F32 | F16 | BF16, .head_dim = 512},
     KIND(TOKENS) | KIND(FREQS) | KIND(FREQS_FULL), {8192}},
    {{"h-32-quarter-in", ONE(32), .rotary_dim = 32, .in_place = 1}, SMALL, {32768}},
    {{"h-32-strided", ONE(32), .dtypes = BF16 | F32, .form = BENCH_STRIDED}, KIND(TOKENS), {8192}},
    {{"h-32-out", ONE(32), .dtypes = F64}, KIND(TOKENS) | KIND(THD), {2048}},

    /* One head: no other head shares its cos and sin. */
    {{"h-1-out", ONE(1)}, SOME | KIND(IDS_I64), {131072}}, /* 67 MB */
    {{"h-1-out", ONE(1)}, SMALL, {2048, 4096, 8192, 16384, 32768}},
    {{"h-1-out", ONE(1), .dtypes = F16 | F32}, SMALL | KIND(IDS), {65536}},
    {{"k-pe-in", ONE(1), .head_dim = 64, .in_place = 1}, SMALL | KIND(IDS), {262144}}, /* 67 MB */

    /* Rounding at each operation. */
    {{"h-32-native", ONE(32), .dtypes = F32 | F16 | BF16, .rounding = TROPE_ROUND_NATIVE},
     KIND(TOKENS) | KIND(TABLE_OWN), {8192}},
    {{"qk-32-8-native-in", QK(32, 8), .rounding = TROPE_ROUND_NATIVE, .in_place = 1}, KIND(TABLE_OWN), {8192}},
    {{"qk-32-8-native-f32-in", QK(32, 8), .rounding = TROPE_ROUND_NATIVE_F32, .in_place = 1}, KIND(TABLE_FULL), {8192}},

    /* Multi-head latent attention: the last 64 of 192 elements; keys and values from latents, with k_pe for all heads. */
    {{"mla-q-128", MLA_Q(128)}, SOME_OF_MLA, {4096}},
    {{"mla-q-16", MLA_Q(16)}, SMALL, {4096}},
    {{"mla-kv-128", MLA_KV(128)}, SOME_OF_MLA, {4096}},
    {{"mla-kv-128-bwd", MLA_KV(128), .backward = 1}, SOME_OF_MLA, {4096}},
    {{"mla-kv-128-bwd", MLA_KV(128), .dtypes = F32 | F16, .backward = 1}, KIND(TOKENS), {2048}},
    {{"mla-kv-16", MLA_KV(16)}, SMALL, {4096}},
    {{"mla-kv-16-bwd", MLA_KV(16), .backward = 1}, SMALL, {4096}},

    /* Norm and rotation of the heads of Q and K. Backward includes the gradients of the weights. */
    {{"norm-32-8", QK(32, 8), .norm = TROPE_NORM_BEFORE}, SOME | KIND(THD_PARETO) | KIND(IDS_FREQS) | KIND(THD_FREQS) | KIND(PADDED_FREQS),
     {2048, 8192}},
    {{"norm-64-8", QK(64, 8), .norm = TROPE_NORM_BEFORE}, SOME, {1024, 4096}}, /* 38 and 151 MB */
    {{"norm-8-1", QK(8, 1), .norm = TROPE_NORM_BEFORE}, SOME, {8192, 32768}}, /* 38 and 151 MB */
    {{"norm-32-8-dim-64", QK(32, 8), .head_dim = 64, .norm = TROPE_NORM_BEFORE}, SMALL, {4096, 16384}},
    {{"norm-32-8-dim-256", QK(32, 8), .head_dim = 256, .norm = TROPE_NORM_BEFORE}, SMALL, {1024, 4096}},
    {{"norm-16-2-dim-256-quarter", QK(16, 2), .head_dim = 256, .rotary_dim = 64, .norm = TROPE_NORM_BEFORE}, SMALL,
     {2048, 8192}}, /* 38 and 151 MB */
    {{"norm-32-8", QK(32, 8), .dtypes = F16 | F32, .norm = TROPE_NORM_BEFORE}, SOME | WITH_FREQS, {4096}},
    {{"norm-qkv-32-8-split", SPLIT(32, 8), .norm = TROPE_NORM_BEFORE}, SMALL | KIND(IDS) | KIND(MROPE), {2048, 8192}},
    {{"norm-32-8-bwd", QK(32, 8), .norm = TROPE_NORM_BEFORE, .backward = 1}, SOME | KIND(THD_FREQS) | KIND(PADDED_FREQS), {2048, 8192}},
    {{"norm-32-8-bwd", QK(32, 8), .dtypes = F16 | F32, .norm = TROPE_NORM_BEFORE, .backward = 1}, SMALL | KIND(IDS_FREQS), {4096}},
    {{"norm-64-8-bwd", QK(64, 8), .norm = TROPE_NORM_BEFORE, .backward = 1}, SMALL | KIND(MROPE), {1024, 4096}},
    {{"norm-8-1-bwd", QK(8, 1), .norm = TROPE_NORM_BEFORE, .backward = 1}, SMALL | KIND(MROPE), {8192, 32768}},
    {{"norm-32-8-dim-64-bwd", QK(32, 8), .head_dim = 64, .norm = TROPE_NORM_BEFORE, .backward = 1}, SMALL, {4096, 16384}},
    {{"norm-32-8-dim-256-bwd", QK(32, 8), .head_dim = 256, .norm = TROPE_NORM_BEFORE, .backward = 1}, SMALL, {1024, 4096}},
    {{"norm-16-2-dim-256-quarter-bwd", QK(16, 2), .head_dim = 256, .rotary_dim = 64, .norm = TROPE_NORM_BEFORE, .backward = 1}, SMALL,
     {2048, 8192}},
    {{"norm-qkv-32-8-split-bwd", SPLIT(32, 8), .norm = TROPE_NORM_BEFORE, .backward = 1}, SMALL, {2048, 8192}},
    {{"norm-after-32-8", QK(32, 8), .norm = TROPE_NORM_AFTER}, SMALL | KIND(IDS), {2048, 8192}},
    {{"norm-after-32-8-bwd", QK(32, 8), .norm = TROPE_NORM_AFTER, .backward = 1}, SMALL, {2048, 8192}},
    /* OLMo 2 with 7 and 32 billion parameters, MiniMax M2. */
    {{"norm-token-32-32", QK(32, 32), .norm = TROPE_NORM_BEFORE, .norm_token = 1}, SMALL | KIND(THD_PARETO), {2048, 8192}},
    {{"norm-token-40-8", QK(40, 8), .norm = TROPE_NORM_BEFORE, .norm_token = 1}, SMALL | WITH_FREQS, {2048, 8192}},
    {{"norm-token-48-8", QK(48, 8), .norm = TROPE_NORM_BEFORE, .norm_token = 1}, KIND(IDS), {2048, 8192}},
    {{"norm-token-32-32-bwd", QK(32, 32), .norm = TROPE_NORM_BEFORE, .norm_token = 1, .backward = 1}, SMALL | KIND(THD_PARETO), {2048, 8192}},
    {{"norm-token-40-8-bwd", QK(40, 8), .norm = TROPE_NORM_BEFORE, .norm_token = 1, .backward = 1}, SMALL | WITH_FREQS, {2048, 8192}},
    /* The heads of a token do not fit one block; the heads of an operand do not fill whole warps. */
    {{"norm-token-128-8", QK(128, 8), .norm = TROPE_NORM_BEFORE, .norm_token = 1}, KIND(TOKENS), {2048}},
    {{"norm-token-128-8-bwd", QK(128, 8), .norm = TROPE_NORM_BEFORE, .norm_token = 1, .backward = 1}, KIND(TOKENS), {2048}},
    {{"norm-token-6-1-bwd", QK(6, 1), .norm = TROPE_NORM_BEFORE, .norm_token = 1, .backward = 1}, KIND(TOKENS), {16384}},

    /* dx and the gradient of the angles in one call. */
    {{"h-32-d-angles", ONE(32), .dtypes = F16, .backward = 1, .angle_gradient = 1}, KIND(FREQS), {8192}},
    {{"h-32-d-angles", ONE(32), .dtypes = BF16 | F32, .backward = 1, .angle_gradient = 1}, SMALL | KIND(THD_FREQS), {8192}},
    {{"h-8-d-angles", ONE(8), .backward = 1, .angle_gradient = 1}, SMALL | KIND(THD_FREQS), {32768}},
    {{"h-32-b4-d-angles", ONE(32), .batch = 4, .backward = 1, .angle_gradient = 1}, KIND(TOKENS) | KIND(FREQS), {2048}},
    {{"qk-32-8-d-angles", QK(32, 8), .backward = 1, .angle_gradient = 1}, SMALL | KIND(IDS), {8192}},

    /* dx added to old_dst. */
    {{"h-32-add", ONE(32), .backward = 1, .accumulate = 1}, SOME, {8192}},
    {{"qk-32-8-add", QK(32, 8), .dtypes = BF16 | F16 | F32, .backward = 1, .accumulate = 1}, KIND(TOKENS), {8192}},
};
/* clang-format on */

/* ---- the table ---- */

enum { GROUPS = sizeof groups / sizeof groups[0], NAME_SIZE = 48 };

static int count_cases(void)
{
    int count = 0;
    for (int g = 0; g < GROUPS; g++)
        for (int size = 0; size < MAX_SIZES && groups[g].tokens[size]; size++)
            count += __builtin_popcount(groups[g].sources);
    return count;
}

static bench_case combine(const case_group *group, int64_t tokens, int kind, char *name)
{
    bench_case c = group->shape;
    c.dtypes = c.dtypes ? c.dtypes : BF16;
    snprintf(name, NAME_SIZE, "%s-s%lld-%s", c.name, (long long)tokens, kinds[kind].name);
    c.name = name;
    c.tokens = tokens;
    c.source = kinds[kind].source;
    return c;
}

static void write_cases(bench_case *cases, char (*names)[NAME_SIZE])
{
    int i = 0;
    for (int g = 0; g < GROUPS; g++)
        for (int size = 0; size < MAX_SIZES && groups[g].tokens[size]; size++)
            for (int kind = 0; kind < KINDS; kind++)
                if (groups[g].sources & KIND(kind)) {
                    cases[i] = combine(&groups[g], groups[g].tokens[size], kind, names[i]);
                    i++;
                }
}

/* Calls that programs make (bench/real_calls.py writes the file). Their text decides the dtype, which is bf16. */
static const struct {
    const char *name, *call;
} real_calls[] = {
#include "bench_cases_real.inc"
};
enum { REAL_CALLS = sizeof real_calls / sizeof real_calls[0] };

static void write_real_cases(bench_case *cases)
{
    for (int i = 0; i < REAL_CALLS; i++)
        cases[i] = (bench_case){.name = real_calls[i].name, .dtypes = BF16, .call = real_calls[i].call, .tokens = 1};
}

bench_table bench_cuda_cases(void)
{
    static bench_case *cases;
    static char(*names)[NAME_SIZE];
    const int count = count_cases();
    if (!cases) {
        cases = calloc((size_t)(count + REAL_CALLS), sizeof *cases);
        names = calloc((size_t)count, sizeof *names);
        if (!cases || !names)
            return (bench_table){NULL, 0};
        write_cases(cases, names);
        write_real_cases(cases + count);
    }
    return (bench_table){cases, count + REAL_CALLS};
}
