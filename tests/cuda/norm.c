/* Norms before and after the rotation. Results and rstd have the same bits as on the CPU, for every kernel that has
 * norms.
 *
 *     cuda_norm [--seeds N]        runs each case with N sets of data */
#include <string.h>

#include "cuda/device_call.h"
#include "cuda/problem.h"
#include "support/check.h"
#include "support/number.h"

typedef struct norm_case {
    const char *kernel; /* the name of the kernel must end with this */
    call_case k;
    int32_t weight_dtype, per_head, plus_one; /* weight_dtype 0: no weight */
    int32_t rounding, norm_rounding;          /* TROPE_ROUND_..., TROPE_NORM_ROUND_... */
    int32_t rstd_use;                         /* TROPE_RSTD_... */
    int bare;                                 /* 1 + the index of the operand without a norm; 0: all have norms */
    int after;                                /* 1: the norm is after the rotation, 0: before it */
    int token;                                /* 1: over all heads of a token, 0: over each head */
    int d_weight;                             /* 1: the device also computes d_weight, which is not compared here */
    int groups;                               /* 1: half of the first operand's heads, in groups of two: see set_groups */
} norm_case;

enum { WEIGHTS = 1 << 16, RSTDS = 1 << 16 };

#define SHAPE(dtype, layout, ...)      dtype, layout, .tokens = 37, .operands = {__VA_ARGS__}, .any_numbers = 1
#define FEW_TOKENS(dtype, layout, ...) dtype, layout, .tokens = 5, .operands = {__VA_ARGS__}, .any_numbers = 1
#define QK                                                                                                                 \
    {8, 128, 128, 0},                                                                                                      \
    {                                                                                                                      \
        2, 128, 128, 0                                                                                                     \
    }
/* Each operand fills whole warps. */
#define FULL_WARPS                                                                                                         \
    {8, 128, 128, 0},                                                                                                      \
    {                                                                                                                      \
        4, 128, 128, 0                                                                                                     \
    }
#define TOKEN_WEIGHTS BF16, .token = 1, .per_head = 1, .d_weight = 1
#define BACKWARD      .backward = 1, .forward_src = 1
#define PACKED        .cu_dtype = TROPE_I32, .sequences = 5, .longest = 20, .padding = TROPE_PADDING_ZERO
#define BF16          .weight_dtype = TROPE_BF16
#define F32           .weight_dtype = TROPE_F32

/* clang-format off */
static const norm_case cases[] = {
    {"norm-from-tokens-phase", {"q and k", SHAPE(TROPE_BF16, TROPE_BSHD, QK), .batch = 2}, BF16},
    {"norm-from-tokens-phase", {"in place", SHAPE(TROPE_BF16, TROPE_SBHD, QK), .batch = 2, .in_place = 1}, F32, .plus_one = 1},
    {"norm-from-tokens-phase", {"rstd", SHAPE(TROPE_BF16, TROPE_BHSD, QK)}, F32, .per_head = 1, .rstd_use = TROPE_RSTD_WRITE},
    {"norm-from-tokens-phase", {"rstd read", SHAPE(TROPE_F32, TROPE_BSHD, QK)}, F32, .rstd_use = TROPE_RSTD_READ},
    {"norm-from-tokens-phase", {"a window", SHAPE(TROPE_BF16, TROPE_BSHD, {4, 256, 64, 0}, {2, 256, 64, 0})}, BF16},
    {"vectors-norm", {"a window at the end", SHAPE(TROPE_F16, TROPE_BSHD, {4, 192, 64, 128})}, F32},
    {"norm-from-tokens-phase", {"interleaved", SHAPE(TROPE_BF16, TROPE_BSHD, QK), .pairing = 2}, BF16},
    {"norm-from-tokens-phase", {"96 elements, interleaved", SHAPE(TROPE_BF16, TROPE_BSHD, {3, 96, 96, 0}), .pairing = 2}, F32},
    {"norm-from-tokens-phase", {"q, k and v", SHAPE(TROPE_BF16, TROPE_BSHD, QK, {2, 128, TROPE_COPY, 0})}, BF16},
    {"elements-norm", {"heads of different sizes", SHAPE(TROPE_BF16, TROPE_BSHD, {4, 128, 64, 0}, {2, 64, 64, 0})}, F32},
    {"elements-norm", {"many heads of different sizes", SHAPE(TROPE_BF16, TROPE_BSHD, {32, 128, 128, 0}, {8, 64, 64, 0})}, BF16},
    {"norm-from-tokens-phase", {"one head, no weight", SHAPE(TROPE_F32, TROPE_BSHD, {1, 64, 64, 0})}, .weight_dtype = 0},
    {"norm-from-tokens-table", {"freqs", SHAPE(TROPE_BF16, TROPE_BSHD, QK), .angles = FREQS, .rows = 37}, BF16},
    {"norm", {"cos and sin, native", SHAPE(TROPE_BF16, TROPE_BSHD, QK), .angles = TABLES, .rows = 37}, BF16,
     .rounding = TROPE_ROUND_NATIVE, .norm_rounding = TROPE_NORM_ROUND_TWICE},
    {"norm", {"native in fp32", SHAPE(TROPE_F16, TROPE_BSHD, QK)}, F32,
     .rounding = TROPE_ROUND_NATIVE_F32, .norm_rounding = TROPE_NORM_ROUND_PRODUCT},
    {"norm-searched-phase", {"packed", SHAPE(TROPE_BF16, TROPE_THD, QK), PACKED}, BF16},
    {"norm-searched-table", {"packed, freqs", SHAPE(TROPE_BF16, TROPE_THD, QK), PACKED, .angles = FREQS, .rows = 37, .gap = 5}, F32,
     .rstd_use = TROPE_RSTD_WRITE},
    {"norm-searched-generic-phase", {"packed, a window", SHAPE(TROPE_BF16, TROPE_THD, {4, 128, 64, 0}), PACKED, .gap = 5}, F32},
    {"norm", {"packed, native", SHAPE(TROPE_BF16, TROPE_THD, QK), PACKED, .gap = 5}, BF16,
     .rounding = TROPE_ROUND_NATIVE, .norm_rounding = TROPE_NORM_ROUND_PRODUCT, .rstd_use = TROPE_RSTD_WRITE},
    {"norm-read-phase", {"ids, inv_freq", SHAPE(TROPE_BF16, TROPE_BSHD, QK), .rows = 50, .ids_dtype = TROPE_I32}, BF16},
    {"norm-read-table", {"ids", SHAPE(TROPE_BF16, TROPE_BSHD, QK), .angles = FREQS, .rows = 50, .ids_dtype = TROPE_I64}, BF16},
    {"norm-from-tokens-phase", {"nothing rotates", SHAPE(TROPE_BF16, TROPE_BSHD, {4, 128, TROPE_COPY, 0})}, BF16},
    {"norm", {"nothing rotates, packed", SHAPE(TROPE_F16, TROPE_THD, {4, 64, TROPE_COPY, 0}), PACKED, .gap = 5}, F32,
     .rstd_use = TROPE_RSTD_WRITE},
    {"elements-norm", {"nothing rotates, heads of 7", SHAPE(TROPE_F32, TROPE_BSHD, {3, 7, TROPE_COPY, 0}), .in_place = 1}, F32},
    {"elements-norm", {"80 elements, half pairing", SHAPE(TROPE_BF16, TROPE_BSHD, {4, 80, 80, 0})}, F32, .plus_one = 1},
    {"elements-norm", {"heads of 23", SHAPE(TROPE_F32, TROPE_SBHD, {3, 23, 12, 5}, {2, 23, TROPE_COPY, 0}), .batch = 2}, BF16,
     .per_head = 1, .rstd_use = TROPE_RSTD_WRITE},
    {"elements-norm", {"strided elements", SHAPE(TROPE_F16, TROPE_BSHD, QK), .step = 2}, F32, .rstd_use = TROPE_RSTD_READ},
    {"elements-norm", {"large heads in place", SHAPE(TROPE_BF16, TROPE_BSHD, {2, 2048, 1024, 8}), .in_place = 1}, F32},
    {"elements-norm", {"packed, heads of 20", SHAPE(TROPE_BF16, TROPE_THD, {3, 20, 20, 0}), PACKED, .gap = 5}, F32,
     .rstd_use = TROPE_RSTD_WRITE},
    {"vectors-norm-from-tokens-phase", {"heads without a norm before heads with one",
                                        SHAPE(TROPE_BF16, TROPE_BSHD, {3, 64, 64, 0}, {2, 128, 64, 0})}, F32, .bare = 1},
    {"norm-gradient-from-tokens-phase", {"dx", SHAPE(TROPE_BF16, TROPE_BSHD, QK), BACKWARD, .batch = 2}, BF16},
    {"vectors-norm-gradient", {"dx in place", SHAPE(TROPE_F16, TROPE_SBHD, QK), BACKWARD, .batch = 2, .in_place = 1}, F32,
     .plus_one = 1},
    {"norm-gradient-from-tokens-phase", {"dx, rstd read", SHAPE(TROPE_F32, TROPE_BSHD, QK), BACKWARD}, BF16, .per_head = 1,
     .rstd_use = TROPE_RSTD_READ},
    {"norm-gradient-from-tokens-phase", {"dx of a window", SHAPE(TROPE_BF16, TROPE_BSHD, {4, 256, 64, 128}), BACKWARD}, BF16},
    {"norm-gradient-from-tokens-phase", {"dx of many heads, and v", SHAPE(TROPE_BF16, TROPE_BSHD, {64, 64, 64, 0}, {19, 64, 64, 0},
                                         {3, 64, TROPE_COPY, 0}), BACKWARD}, F32, .bare = 3},
    {"norm-gradient-from-tokens-table", {"dx, freqs", SHAPE(TROPE_BF16, TROPE_BSHD, QK), BACKWARD, .angles = FREQS, .rows = 37}, BF16},
    {"norm-gradient-read-phase", {"dx, ids", SHAPE(TROPE_BF16, TROPE_BSHD, QK), BACKWARD, .rows = 50, .ids_dtype = TROPE_I32}, BF16},
    {"norm-gradient", {"dx, ids and freqs", SHAPE(TROPE_BF16, TROPE_BSHD, QK), BACKWARD, .angles = FREQS, .rows = 50,
                       .ids_dtype = TROPE_I64}, BF16},
    {"norm-gradient-searched-phase", {"dx, packed", SHAPE(TROPE_BF16, TROPE_THD, QK), BACKWARD, PACKED, .gap = 5}, BF16},
    {"norm-gradient-searched-table", {"dx, packed, freqs", SHAPE(TROPE_BF16, TROPE_THD, QK), BACKWARD, PACKED, .angles = FREQS,
                                      .rows = 37}, F32},
    {"norm-gradient-searched-generic-phase", {"dx, packed, a window", SHAPE(TROPE_BF16, TROPE_THD, {3, 128, 64, 0}), BACKWARD, PACKED,
                                              .gap = 5}, F32},
    {"norm-gradient-searched-generic-phase", {"dx, packed, groups of x alone", TROPE_BF16, TROPE_THD, .tokens = 37,
                                              .operands = {{16, 128, 128, 0}}, BACKWARD, PACKED, .gap = 5}, BF16, .groups = 1},
    {"norm-gradient", {"dx, packed, q, k and v", SHAPE(TROPE_F16, TROPE_THD, QK, {2, 128, TROPE_COPY, 0}), BACKWARD, PACKED, .gap = 5},
     BF16, .bare = 3},
    {"elements-norm-gradient", {"dx, heads of 23", SHAPE(TROPE_BF16, TROPE_BSHD, {3, 23, 12, 5}, {2, 23, TROPE_COPY, 0}), BACKWARD},
     F32, .per_head = 1},
    {"elements-norm-gradient", {"dx, and a narrower window without a norm", SHAPE(TROPE_BF16, TROPE_BSHD, {4, 64, 42, 0},
                                {4, 64, 32, 0}), BACKWARD, .angles = TABLES, .columns = TROPE_COLUMNS_HALF, .rows = 37}, F32, .bare = 2},
    {"norm-after-from-tokens-phase", {"after", SHAPE(TROPE_BF16, TROPE_BSHD, QK), .batch = 2}, BF16, .after = 1,
     .rstd_use = TROPE_RSTD_WRITE},
    {"norm-after-from-tokens-phase", {"after, a window", SHAPE(TROPE_BF16, TROPE_BSHD, {3, 256, 64, 0})}, F32, .after = 1},
    {"vectors-norm-after", {"after, packed", SHAPE(TROPE_BF16, TROPE_THD, QK), PACKED, .gap = 5}, BF16, .after = 1, .rstd_use = TROPE_RSTD_WRITE},
    {"vectors-norm", {"after, freqs", SHAPE(TROPE_F32, TROPE_BSHD, QK), .angles = FREQS, .rows = 37}, BF16, .after = 1},
    {"elements-norm", {"after, native", SHAPE(TROPE_BF16, TROPE_BSHD, QK)}, BF16, .after = 1, .rounding = TROPE_ROUND_NATIVE_F32,
     .norm_rounding = TROPE_NORM_ROUND_TWICE},
    {"norm-gradient-after-from-tokens-phase", {"dx, after", SHAPE(TROPE_BF16, TROPE_BSHD, QK), BACKWARD, .batch = 2}, BF16, .after = 1},
    {"vectors-norm-gradient", {"dx, after, packed", SHAPE(TROPE_F16, TROPE_THD, {3, 128, 128, 0}), BACKWARD, PACKED, .gap = 5}, F32,
     .after = 1},
    {"elements-norm-gradient", {"dx, after, heads of 23", SHAPE(TROPE_F32, TROPE_BSHD, {3, 23, 12, 5}), BACKWARD}, F32, .after = 1},
    {"norm-from-tokens-phase", {"token", SHAPE(TROPE_BF16, TROPE_BSHD, QK), .batch = 2}, BF16, .token = 1, .per_head = 1,
     .rstd_use = TROPE_RSTD_WRITE},
    {"norm-from-tokens-phase", {"token, one head", SHAPE(TROPE_BF16, TROPE_SBHD, {1, 32, 32, 0}), .batch = 3}, F32, .token = 1},
    {"norm-from-tokens-phase", {"token, rstd read", SHAPE(TROPE_F32, TROPE_BSHD, QK)}, F32, .token = 1, .rstd_use = TROPE_RSTD_READ},
    {"norm-from-tokens-table", {"token, many heads", SHAPE(TROPE_BF16, TROPE_BSHD, {40, 128, 128, 0}, {40, 128, 128, 0}), .angles = FREQS,
                                .rows = 37}, BF16, .token = 1, .per_head = 1},
    {"vectors-norm", {"token, and v", SHAPE(TROPE_F16, TROPE_BSHD, {8, 80, 80, 0}, {5, 80, 80, 0}, {8, 80, TROPE_COPY, 0}),
                      .pairing = 2}, F32, .token = 1, .bare = 3},
    {"norm-of-tokens-searched-phase", {"token, packed", SHAPE(TROPE_BF16, TROPE_THD, QK), PACKED, .gap = 5}, BF16, .token = 1, .per_head = 1,
     .rstd_use = TROPE_RSTD_WRITE},
    {"norm-of-tokens-searched-table", {"token, packed, freqs", SHAPE(TROPE_BF16, TROPE_THD, QK), PACKED, .angles = FREQS, .rows = 37}, BF16,
     .token = 1},
    {"norm-of-tokens-read-phase", {"token, ids", SHAPE(TROPE_BF16, TROPE_BSHD, QK), .rows = 50, .ids_dtype = TROPE_I32}, BF16, .token = 1,
     .per_head = 1},
    {"norm-read-table", {"token, ids and freqs", SHAPE(TROPE_BF16, TROPE_BSHD, QK), .angles = FREQS, .rows = 50, .ids_dtype = TROPE_I32},
     BF16, .token = 1},
    {"norm-after-from-tokens-phase", {"token, after", SHAPE(TROPE_BF16, TROPE_BSHD, QK)}, BF16, .token = 1, .after = 1},
    {"elements-norm", {"token, more heads than a block has", FEW_TOKENS(TROPE_BF16, TROPE_BSHD, {64, 256, 256, 0})}, BF16, .token = 1,
     .rstd_use = TROPE_RSTD_WRITE},
    {"elements-norm", {"token, heads of 23", SHAPE(TROPE_F32, TROPE_BSHD, {300, 23, 12, 5})}, F32, .token = 1},
    {"vectors-norm-gradient", {"dx, token", SHAPE(TROPE_BF16, TROPE_BSHD, QK), BACKWARD, .batch = 2}, BF16, .token = 1, .per_head = 1},
    {"vectors-norm-gradient", {"dx, token, rstd read", SHAPE(TROPE_F32, TROPE_THD, QK), BACKWARD, PACKED, .gap = 5}, F32, .token = 1,
     .rstd_use = TROPE_RSTD_READ},
    {"vectors-norm-gradient", {"dx, token, more heads than a block has", FEW_TOKENS(TROPE_BF16, TROPE_BSHD, {64, 256, 256, 0}), BACKWARD},
     BF16, .token = 1, .rstd_use = TROPE_RSTD_READ},
    {"of-heads", {"dx, d_weight", SHAPE(TROPE_BF16, TROPE_BSHD, QK), BACKWARD, .batch = 2}, BF16, .per_head = 1, .d_weight = 1},
    {"of-heads", {"dx, token, d_weight, heads in two warps", SHAPE(TROPE_BF16, TROPE_BSHD, QK), BACKWARD, .batch = 2}, TOKEN_WEIGHTS},
    {"of-heads", {"dx, token, d_weight of f32", SHAPE(TROPE_BF16, TROPE_BSHD, FULL_WARPS), BACKWARD}, F32, .token = 1, .per_head = 1,
     .d_weight = 1},
    {"of-tokens", {"dx, token, d_weight", SHAPE(TROPE_BF16, TROPE_BSHD, FULL_WARPS), BACKWARD, .batch = 2}, TOKEN_WEIGHTS},
    {"of-tokens", {"dx, token, d_weight, sbhd, in place", SHAPE(TROPE_BF16, TROPE_SBHD, FULL_WARPS), BACKWARD, .batch = 3,
                   .in_place = 1}, TOKEN_WEIGHTS},
    {"of-tokens", {"dx, token, d_weight, interleaved", SHAPE(TROPE_BF16, TROPE_BSHD, FULL_WARPS), BACKWARD, .pairing = 2}, TOKEN_WEIGHTS},
    {"of-tokens", {"dx, token, d_weight, many heads", FEW_TOKENS(TROPE_BF16, TROPE_BSHD, {104, 64, 64, 0}, {40, 64, 64, 0}, {8, 64, 64, 0}),
                   BACKWARD}, TOKEN_WEIGHTS},
    {"of-tokens", {"dx, token, d_weight, packed", SHAPE(TROPE_BF16, TROPE_THD, FULL_WARPS), BACKWARD, PACKED, .gap = 5}, TOKEN_WEIGHTS,
     .rstd_use = TROPE_RSTD_READ},
    {"of-tokens", {"dx, token, d_weight, padding copied", SHAPE(TROPE_BF16, TROPE_THD, FULL_WARPS), BACKWARD, .cu_dtype = TROPE_I32,
                   .sequences = 5, .longest = 20, .padding = TROPE_PADDING_COPY, .gap = 5}, TOKEN_WEIGHTS},
    {"of-tokens", {"dx, token, d_weight, ids and freqs", SHAPE(TROPE_BF16, TROPE_BSHD, FULL_WARPS), BACKWARD, .angles = FREQS, .rows = 50,
                   .ids_dtype = TROPE_I64}, TOKEN_WEIGHTS},
    {"elements-norm-gradient", {"dx, token, heads of 22, after", SHAPE(TROPE_F16, TROPE_BSHD, {300, 22, 12, 4}), BACKWARD}, F32, .token = 1,
     .after = 1},
    {"elements-norm", {"f64", SHAPE(TROPE_F64, TROPE_BSHD, {2, 64, 64, 0}), .angles = TABLES, .rows = 37}, F32,
     .rstd_use = TROPE_RSTD_WRITE},
};
/* clang-format on */

/* Sets the norms of the operands of a call whose memory begins at `memory`. All norms have the same weights. Each has its
 * own rstd. */
static void set_norms(const norm_case *c, const problem *p, unsigned char *memory, call *made, trope_norm *norm,
                      const trope_norm **norms)
{
    unsigned char *rstd = memory + p->map.regions[REGION_RSTD].at;
    for (int i = 0; i < made->args.operand_count; i++) {
        trope_operand *const o = &made->operands[i];
        norm[i] = (trope_norm){.struct_size = sizeof *norm,
                               .scope = c->token ? TROPE_NORM_TOKEN : TROPE_NORM_HEAD,
                               .order = c->after ? TROPE_NORM_AFTER : TROPE_NORM_BEFORE,
                               .eps = 1e-6};
        if (c->weight_dtype) {
            norm[i].weight = memory + p->map.regions[REGION_WEIGHTS].at;
            norm[i].weight_dtype = c->weight_dtype;
            norm[i].weight_per_head = c->per_head;
            norm[i].weight_plus_one = c->plus_one;
            norm[i].rounding = c->norm_rounding;
        }
        if (c->rstd_use) {
            norm[i].rstd = rstd;
            norm[i].rstd_use = c->rstd_use;
            rstd += (size_t)(made->args.batch * made->args.tokens * (c->token ? 1 : o->heads_per_group)) * 8;
        }
        norms[i] = &norm[i];
        if (i + 1 == c->bare) {
            norms[i] = NULL;
            o->forward_src = NULL;
            o->forward_src_layout = 0;
            memset(o->forward_src_stride, 0, sizeof o->forward_src_stride);
        }
    }
    made->args.norms = norms;
    made->args.rounding = c->rounding;
    if (c->k.operands[0].rotary_dim == TROPE_COPY) { /* the call does not rotate */
        made->args.pairing = 0;
        made->args.inv_freq = NULL;
    }
}

/* Uses half of the heads of a packed operand: dy and dx have them one after another, and x has every other pair. */
static void set_groups(trope_operand *o)
{
    int64_t *const strides[] = {o->src_stride, o->dst_stride, o->forward_src_stride};
    o->groups = o->heads_per_group / 4;
    for (int i = 0; i < 3; i++) {
        strides[i][TROPE_DIM_TOKEN] = (int64_t)o->heads_per_group * o->head_dim;
        strides[i][TROPE_DIM_GROUP] = (i == 2 ? 4 : 2) * o->head_dim;
        strides[i][TROPE_DIM_HEAD] = o->head_dim;
        strides[i][TROPE_DIM_ELEMENT] = 1;
    }
    o->heads_per_group = 2;
    o->src_layout = o->dst_layout = o->forward_src_layout = TROPE_STRIDED;
}

static void draw_norms(const norm_case *c, problem *p, random_state *random)
{
    unsigned char *const weights = problem_region(p, REGION_WEIGHTS), *const rstd = problem_region(p, REGION_RSTD);
    const int32_t dtype = c->weight_dtype ? c->weight_dtype : TROPE_F32,
                  real = c->k.dtype == TROPE_F64 ? TROPE_F64 : TROPE_F32;
    for (size_t i = 0; i < WEIGHTS / number_size(dtype); i++)
        number_store(dtype, weights + i * number_size(dtype), random_real(random));
    for (size_t i = 0; i < RSTDS / number_size(real); i++)
        number_store(real, rstd + i * number_size(real), 1 + 0.5 * random_real(random));
    problem_upload(p, NULL);
}

/* Allocates the workspace of a backward call on the device, and returns it. */
static void *give_workspace(call *c)
{
    void *workspace;
    CHECK_MESSAGE(trope_workspace_size(call_args(c), &c->args.workspace_size) == TROPE_OK, "%s", trope_last_error());
    CUDA_MUST(cudaMalloc(&workspace, c->args.workspace_size + 1));
    CUDA_MUST(cudaMemset(workspace, 0xff, c->args.workspace_size + 1));
    c->args.workspace = workspace;
    return workspace;
}

/* Gives each operand memory of the device for its d_weight. Returns the memory. */
static void *give_d_weight(const norm_case *c, trope_norm *norm)
{
    enum { BYTES = 1 << 16 };
    unsigned char *memory = NULL;
    if (c->d_weight)
        CUDA_MUST(cudaMalloc((void **)&memory, CASE_OPERANDS * BYTES));
    for (int i = 0; memory && i < CASE_OPERANDS && c->k.operands[i].heads; i++)
        norm[i].d_weight = memory + i * BYTES;
    return memory;
}

static void check_case(const norm_case *c, uint64_t seed)
{
    call_case k = c->k;
    trope_norm norm[2][CASE_OPERANDS];
    const trope_norm *norms[2][CASE_OPERANDS];
    char name[128];
    random_state random = {seed};
    k.weight_bytes = WEIGHTS;
    k.rstd_bytes = RSTDS;
    /* Among any numbers, most heads have one so large that rstd is 0, which hides errors. */
    k.any_numbers = k.any_numbers && seed % 2 == 0;
    problem *const p = problem_new(&k, seed);
    set_norms(c, p, p->host, &p->on_host, norm[0], norms[0]);
    set_norms(c, p, p->device, &p->on_device, norm[1], norms[1]);
    draw_norms(c, p, &random);
    if (c->groups) {
        set_groups(&p->on_host.operands[0]);
        set_groups(&p->on_device.operands[0]);
    }
    void *const d_weight = give_d_weight(c, norm[1]);
    void *const workspace = k.backward ? give_workspace(&p->on_device) : NULL;
    CHECK_MESSAGE(trope_kernel_name(call_args(&p->on_device), k.backward, name, sizeof name) == TROPE_OK, "%s: %s", k.name,
                  trope_last_error());
    const size_t length = strlen(name), wanted = strlen(c->kernel);
    CHECK_MESSAGE(length > wanted && !strcmp(name + length - wanted, c->kernel), "%s: the kernel is %s instead of %s",
                  k.name, name, c->kernel);
    CHECK_MESSAGE(problem_queue(p, NULL) == TROPE_OK, "%s: %s", k.name, trope_last_error());
    CHECK_MESSAGE(problem_holds(p, NULL), "%s (%s): differs from the CPU", k.name, name);
    CUDA_MUST(cudaFree(d_weight));
    CUDA_MUST(cudaFree(workspace));
    problem_free(p);
}

/* ---- d_weight ---- */

/* Runs a backward call on the device. Returns d_weight of the first operand, which is at the start of REGION_RSTD. */
static const unsigned char *find_d_weight(problem *p, const char *kernel)
{
    call *const c = &p->on_device;
    char name[128];
    void *const workspace = give_workspace(c);
    CHECK(trope_kernel_name(call_args(c), 1, name, sizeof name) == TROPE_OK && strstr(name, kernel));
    CHECK_MESSAGE(problem_queue(p, NULL) == TROPE_OK, "%s", trope_last_error());
    problem_bring(p, NULL);
    CUDA_MUST(cudaFree(workspace));
    return p->found + p->map.regions[REGION_RSTD].at;
}

/* Checks that the vector kernel and the element kernel add d_weight in the same order. Weights that are not aligned require
 * the element kernel. */
static void check_order_of_d_weight(int64_t tokens, int64_t batch, int per_head, int token, int fills_warps)
{
    enum { BYTES = 2 * 33 * 128 * sizeof(float) };
    const int32_t q_heads = fills_warps ? 8 : per_head ? 7 : 33, k_heads = fills_warps ? 4 : per_head ? 3 : 9;
    const char *const kernel = fills_warps ? "vectors-norm-gradient-of-tokens"
                               : per_head  ? "vectors-norm-gradient-of-heads"
                                           : "vectors-norm-gradient";
    const norm_case c = {"",
                         {"d_weight", TROPE_BF16, TROPE_SBHD, .operands = {{q_heads, 128, 128, 0}, {k_heads, 128, 128, 0}},
                          BACKWARD, .tokens = tokens, .batch = batch},
                         BF16,
                         .per_head = per_head,
                         .token = token};
    call_case k = c.k;
    trope_norm norm[CASE_OPERANDS];
    const trope_norm *norms[CASE_OPERANDS];
    random_state random = {(uint64_t)tokens};
    unsigned char by_vectors[BYTES];
    k.weight_bytes = WEIGHTS;
    k.rstd_bytes = RSTDS;
    problem *const p = problem_new(&k, 5);
    set_norms(&c, p, p->device, &p->on_device, norm, norms);
    draw_norms(&c, p, &random);
    for (int i = 0; i < 2; i++)
        norm[i].d_weight = p->device + p->map.regions[REGION_RSTD].at + i * BYTES / 2;
    memset(p->host + p->map.regions[REGION_RSTD].at, 0, BYTES); /* memory that is not d_weight stays 0 */
    problem_upload(p, NULL);
    memcpy(by_vectors, find_d_weight(p, kernel), BYTES);
    memmove(p->host + p->map.regions[REGION_WEIGHTS].at + 2, problem_region(p, REGION_WEIGHTS), WEIGHTS - 2);
    problem_upload(p, NULL);
    for (int i = 0; i < 2; i++)
        norm[i].weight = (const char *)norm[i].weight + 2;
    CHECK_MESSAGE(!memcmp(by_vectors, find_d_weight(p, "elements-norm-gradient"), BYTES),
                  "%lld tokens, weight_per_head %d, norm over tokens %d: d_weight depends on the kernel", (long long)tokens,
                  per_head, token);
    problem_free(p);
}

/* ---- sequences ---- */

/* A norm over heads or tokens, in a call with packed sequences. A call that writes token_sums has no other results. All
 * other calls have dst. If they are backward calls, they also have d_weight. */
typedef struct packed_norm {
    int32_t dtype, head_dim, token, sums_use, backward;
} packed_norm;

static void set_results(const packed_norm *n, unsigned char *memory, const problem *p, call *made, trope_norm *norm)
{
    unsigned char *const rest = memory + p->map.regions[REGION_RSTD].at + RSTDS / 2;
    if (n->sums_use) {
        norm->token_sums = rest;
        norm->token_sums_use = n->sums_use;
        norm->heads_of_all_ranks = n->sums_use == TROPE_SUMS_READ ? made->operands[0].heads_per_group : 0;
    }
    if (n->sums_use == TROPE_SUMS_WRITE) {
        made->operands[0].dst = NULL;
        made->operands[0].dst_layout = 0;
    } else if (n->backward) {
        norm->d_weight = rest + RSTDS / 4;
    }
}

/* Checks that a call reports a wrong boundary, whichever kernels it launches. Without tokens, memory is the same as on the
 * CPU. */
static void check_sequences(const packed_norm *n, int64_t tokens, int is_wrong)
{
    const norm_case c = {"",
                         {"sequences", n->dtype, TROPE_THD, .operands = {{3, n->head_dim, n->head_dim, 0}},
                          .tokens = tokens, PACKED, .backward = n->backward, .forward_src = n->backward},
                         F32,
                         .per_head = 1,
                         .token = n->token,
                         .rstd_use = n->backward && n->sums_use ? TROPE_RSTD_READ : 0};
    call_case k = c.k;
    trope_norm norm[2][CASE_OPERANDS];
    const trope_norm *norms[2][CASE_OPERANDS];
    random_state random = {1};
    k.weight_bytes = WEIGHTS;
    k.rstd_bytes = RSTDS;
    k.sequences = 3;
    problem *const p = problem_new(&k, 5);
    int32_t *const boundary = problem_region(p, REGION_CU_SEQLENS);
    set_norms(&c, p, p->host, &p->on_host, norm[0], norms[0]);
    set_norms(&c, p, p->device, &p->on_device, norm[1], norms[1]);
    set_results(n, p->host, p, &p->on_host, &norm[0][0]);
    set_results(n, p->device, p, &p->on_device, &norm[1][0]);
    draw_norms(&c, p, &random);
    for (int i = 0; i <= 3; i++)
        boundary[i] = (int32_t)(tokens * i / 3);
    boundary[1] += is_wrong ? (int32_t)tokens + 1 : 0;
    problem_upload(p, NULL);
    void *const workspace = n->backward ? give_workspace(&p->on_device) : NULL;
    CHECK_MESSAGE(problem_queue(p, NULL) == TROPE_OK, "%s", trope_last_error());
    problem_bring(p, NULL);
    const int32_t status = *(const int32_t *)(p->found + p->map.regions[REGION_STATUS].at);
    CHECK_MESSAGE(
        status == (CASE_STATUS_BEFORE | (is_wrong ? TROPE_STATUS_CU_SEQLENS : 0)),
        "%lld tokens, dtype %d, heads of %d, norm over tokens %d, token_sums_use %d, backward %d, wrong %d: status 0x%x",
        (long long)tokens, n->dtype, n->head_dim, n->token, n->sums_use, n->backward, is_wrong, status);
    if (tokens == 0 && !is_wrong) {
        char scratch[1];
        p->on_host.args.workspace = scratch;
        CHECK(problem_run_on_host(p) == TROPE_OK);
        CHECK_MESSAGE(!memcmp(p->found, p->host, p->map.end), "no tokens: memory differs from the CPU's");
    }
    CUDA_MUST(cudaFree(workspace));
    problem_free(p);
}

static void check_all_sequences(void)
{
    static const int32_t kinds[][2] = {{TROPE_BF16, 64}, {TROPE_BF16, 20}, {TROPE_F32, 128}, {TROPE_F64, 64}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        for (int token = 0; token < 2; token++)
            for (int32_t use = 0; use <= (token ? TROPE_SUMS_READ : 0); use++)
                for (int backward = 0; backward < 2; backward++)
                    for (int is_wrong = 0; is_wrong < 2; is_wrong++) {
                        const packed_norm n = {kinds[i][0], kinds[i][1], token, use, backward};
                        check_sequences(&n, 0, is_wrong);
                        check_sequences(&n, 8, is_wrong);
                    }
}

int main(int argc, char **argv)
{
    device_require();
    const long seeds = device_option(argc, argv, "--seeds", 3);
    check_all_sequences();
    static const int kinds[][3] = {{0, 0, 0}, {1, 0, 0}, {1, 1, 0}, {1, 1, 1}}; /* per_head, token, fills_warps */
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        const int *const kind = kinds[i];
        check_order_of_d_weight(1, 1, kind[0], kind[1], kind[2]);
        check_order_of_d_weight(37, 3, kind[0], kind[1], kind[2]);
        if (kind[1] == kind[2]) /* sums of several parts, longer runs */
            check_order_of_d_weight(kind[0] ? 1100 : 1500, 1, kind[0], kind[1], kind[2]);
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (long seed = 1; seed <= seeds; seed++)
            check_case(&cases[i], 100 * i + (uint64_t)seed);
    return check_result();
}
