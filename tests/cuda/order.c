/* Work that is queued after a call sees the results of the call. A kernel may start before the previous kernel has ended
 * (src/core/cuda/early_launch.cuh), and must wait for its end before it accesses memory. This test queues many kernels in
 * chains that never wait for the host. Each call reads the results of the previous call, and tables and indices that were
 * copied just before: by a call of the library, which lets the next kernel start early, or by the runtime.
 *
 * The first blocks of a kernel start early, while the last blocks of the previous kernel still run. So calls read tokens in
 * the reverse of the order in which they were written, and calls of a few last tokens are between large calls. Before a
 * call writes a result, the memory for it contains NaN or the input of another call. A kernel that reads too early
 * therefore gets NaN, or a tensor that was rotated by other angles.
 *
 * The gradient of the angles has separate chains. They test the data that its kernels pass to each other in the workspace,
 * the results of earlier calls that they read, and the calls that follow them. Their data makes sums exact (call_case.h).
 *
 *     cuda_order [--bytes N]        leaves out chains with tensors of more than N bytes */
#include <string.h>

#include "cuda/call_case.h"
#include "cuda/chain.h"
#include "cuda/device_call.h"
#include "support/number.h"
#include "support/tensor.h"

enum { SLOTS = 3, ROUNDS = 4, TAIL = 5, MOST_ROWS = 200, MOST_ROWS_OF_GRADIENT = 14 };
#define ROOM ((size_t)256 << 20)

/* A device can process `few` tokens at once. `many` tokens are far more. */
typedef struct family {
    call_case k;
    int64_t few, many;
} family;

#define TENSOR(DTYPE, LAYOUT, HEADS, DIM, ROTARY) TROPE_##DTYPE, TROPE_##LAYOUT, .operands = {{HEADS, DIM, ROTARY, 0}}
#define TENSORS(DTYPE, HEADS, OTHER_HEADS, DIM)                                                                            \
    TROPE_##DTYPE, TROPE_THD, .operands = {{HEADS, DIM, DIM, 0}, {OTHER_HEADS, DIM, DIM, 0}}
#define PACKED   .cu_dtype = TROPE_I32, .padding = TROPE_PADDING_ZERO
#define IDS      .ids_dtype = TROPE_I32
#define ELEMENTS .angles = FREQS, .columns = TROPE_COLUMNS_HALF
#define D_ANGLES .gradient = WITH_GRADIENT

/* clang-format off */
static const family families[] = {
    {{"one token per block", TENSOR(BF16, THD, 32, 128, 128)}, 40, 4096},
    {{"one token per block, half of each head", TENSOR(F32, THD, 16, 128, 64)}, 40, 3000},
    {{"several tokens per block", TENSOR(F16, THD, 3, 64, 64)}, 100, 60000},
    {{"tokens with one head", TENSOR(BF16, THD, 1, 128, 64)}, 100, 100000},
    {{"bhsd", TENSOR(F16, BHSD, 8, 64, 64), .batch = 2}, 50, 10000},
    {{"few tokens", TENSOR(F16, THD, 32, 128, 128)}, 8, 120},
    {{"some tokens", TENSOR(F32, THD, 32, 128, 128)}, 20, 400},
    {{"q and k", TENSORS(BF16, 32, 8, 128)}, 40, 3000},
    {{"few tokens, freqs", TENSOR(F32, THD, 32, 128, 128), .angles = FREQS}, 8, 100},
    {{"some tokens, freqs", TENSOR(F32, THD, 32, 128, 128), .angles = FREQS}, 20, 400},
    {{"tokens with one head, whole", TENSOR(BF16, THD, 1, 128, 128)}, 60, 16000},
    {{"tokens with one head, freqs", TENSOR(F16, THD, 1, 128, 128), .angles = FREQS}, 60, 30000},
    {{"windows in place", TENSOR(BF16, THD, 32, 128, 64), .in_place = 1}, 40, 4096},
    {{"windows in place, packed, freqs", TENSOR(F16, THD, 16, 192, 64), .angles = FREQS, PACKED, .in_place = 1}, 40, 3000},
    {{"few heads, freqs", TENSORS(BF16, 2, 1, 128), .angles = FREQS}, 100, 20000},
    {{"in place", TENSORS(F32, 16, 4, 128), .in_place = 1}, 40, 3000},
    {{"elements", TENSOR(F32, THD, 3, 6, 6)}, 60, 100000},
    {{"elements, in place, packed", TENSOR(BF16, THD, 5, 20, 12), .angles = FREQS, PACKED, .in_place = 1}, 60, 40000},
    {{"elements, ids", TENSOR(F16, THD, 3, 20, 20), .angles = FREQS, IDS}, 60, 40000},
    {{"packed, one token per block", TENSOR(BF16, THD, 32, 128, 128), PACKED}, 40, 4096},
    {{"packed, two operands, freqs", TENSORS(BF16, 32, 8, 128), .angles = FREQS, PACKED}, 40, 3000},
    {{"packed, several tokens per block", TENSOR(F16, THD, 3, 64, 64), .angles = FREQS, PACKED}, 60, 40000},
    {{"packed, one head", TENSOR(F32, THD, 1, 64, 64), PACKED}, 60, 40000},
    {{"ids", TENSORS(BF16, 16, 2, 128), IDS}, 40, 4096},
    {{"ids, freqs, several tokens per block", TENSOR(F32, THD, 2, 64, 64), .angles = FREQS, IDS}, 60, 20000},
    {{"freqs", TENSOR(F32, THD, 8, 128, 128), .angles = FREQS}, 40, 4096},
    {{"freqs, bhsd", TENSOR(BF16, BHSD, 8, 128, 128), .angles = FREQS, .batch = 2}, 40, 4000},
    {{"freqs per element", TENSOR(BF16, THD, 16, 128, 128), ELEMENTS}, 40, 4096},
    {{"cos and sin", TENSOR(F16, THD, 16, 128, 128), .angles = TABLES}, 40, 4096},
    {{"cos and sin, packed", TENSOR(F32, THD, 4, 64, 64), .angles = TABLES, PACKED}, 60, 20000},
    {{"d_freqs", TENSOR(BF16, BSHD, 8, 128, 128), .angles = FREQS, D_ANGLES}, 40, 3000},
    {{"d_freqs, batch", TENSOR(F16, BSHD, 4, 64, 64), .angles = FREQS, D_ANGLES, .batch = 6}, 40, 2000},
    {{"d_freqs, packed", TENSOR(BF16, BSHD, 8, 128, 128), .angles = FREQS, D_ANGLES, PACKED}, 60, 3000},
    {{"d_freqs, ids", TENSOR(F32, BSHD, 8, 64, 64), .angles = FREQS, D_ANGLES, IDS}, 60, 3000},
    {{"d_freqs per element, packed", TENSOR(F16, BSHD, 4, 128, 128), ELEMENTS, D_ANGLES, PACKED}, 60, 3000},
    {{"d_freqs, elements, ids", TENSOR(F32, BSHD, 3, 6, 6), .angles = FREQS, D_ANGLES, IDS}, 60, 20000},
    {{"d_inv_freq, packed", TENSOR(BF16, BSHD, 8, 128, 128), D_ANGLES, PACKED}, 60, 3000},
};
/* clang-format on */

/* ---- the memory of a chain ---- */

/* Two blocks contain inputs in the layout of `map`. Each round copies one of them to the regions of `map`, alternately. */
typedef struct links {
    call_case k;
    case_map map;
    size_t from[2];
    size_t slots[SLOTS][2];       /* for a chain of rotations: memory for both operands */
    size_t rotated, sums[ROUNDS]; /* for a chain of gradients: the rotated dx, and the sums of each round */
    size_t compared, scratch, workspace, end;
} links;

/* Sets the number of table rows so that no sequence is longer than the table and no id is too large. With positions from
 * tokens, the table has a row for each token. */
static call_case case_of(const family *f, int64_t tokens)
{
    const int64_t most = f->k.gradient ? MOST_ROWS_OF_GRADIENT : MOST_ROWS;
    call_case k = f->k;
    k.batch = k.batch ? k.batch : 1;
    k.tokens = tokens;
    k.rows = (k.cu_dtype || k.ids_dtype) && tokens > most ? most : tokens;
    k.sequences = k.cu_dtype ? 1 + 3 * tokens / k.rows : 0;
    return k;
}

static size_t workspace_of(const links *l, int32_t device)
{
    call c = case_call(&l->k, &l->map, NULL, device);
    uint64_t bytes = 0;
    if (l->k.gradient)
        CHECK_MESSAGE(trope_workspace_size(call_args(&c), &bytes) == TROPE_OK, "%s: %s", l->k.name, trope_last_error());
    return (size_t)bytes;
}

static links plan(const family *f, int64_t tokens)
{
    links l = {.k = case_of(f, tokens)};
    const case_region *const regions = l.map.regions;
    size_t largest = 0;
    l.map = case_plan(&l.k);
    l.end = l.map.end;
    for (int i = 0; i < 2; i++) {
        l.from[i] = case_take(&l.end, regions[REGION_SUMS].at).at; /* the sums and later regions are not copied */
        l.slots[0][i] = regions[REGION_SRC + i].at;
        l.slots[1][i] = regions[REGION_DST + i].at;
        l.slots[2][i] = l.k.in_place ? l.slots[0][i] : case_take(&l.end, regions[REGION_SRC + i].bytes).at;
    }
    l.rotated = case_take(&l.end, l.k.gradient ? regions[REGION_DST].bytes : 0).at;
    for (int i = 0; i < ROUNDS; i++)
        l.sums[i] = case_take(&l.end, regions[REGION_SUMS].bytes).at;
    l.compared = l.end;
    for (int i = 0; i < REGIONS; i++)
        largest = regions[i].bytes > largest ? regions[i].bytes : largest;
    l.scratch = case_take(&l.end, chain_scratch_bytes(largest)).at;
    const size_t host = workspace_of(&l, TROPE_DEVICE_CPU), device = workspace_of(&l, TROPE_DEVICE_CUDA);
    l.workspace = case_take(&l.end, host > device ? host : device).at;
    return l;
}

static void fill(const void *what, unsigned char *memory)
{
    const links *l = what;
    for (int i = 0; i < 2; i++)
        case_draw(&l->k, &l->map, memory + l->from[i], (uint64_t)i);
    for (int i = REGION_SRC; i < REGION_DST && !l->k.gradient; i++)
        memcpy(memory + l->map.regions[i].at, memory + l->from[0] + l->map.regions[i].at, l->map.regions[i].bytes);
}

/* Copies all regions before `end`, such as indices and tables. A call copies them in three rounds of four, and the runtime
 * in the fourth. */
static void bring_inputs(const links *l, chain_place at, int end, int round)
{
    for (int region = 0; region < end; region++) {
        const case_region to = l->map.regions[region];
        const size_t from = l->from[round % 2] + to.at;
        if (!to.bytes || region == REGION_PADDED)
            continue;
        if (round % 4 < 3)
            chain_copy_by_call(at, to.at, from, to.bytes, l->scratch);
        else
            chain_copy(at, to.at, from, to.bytes);
    }
}

/* ---- steps of a rotation ---- */

static call begin_call(const links *l, chain_place at)
{
    call c = case_call(&l->k, &l->map, at.memory, at.device);
    c.args.status = NULL;
    return c;
}

/* Returns a call that reads no tables or indices. */
static call begin_plain_call(const links *l, int64_t tokens)
{
    call c = call_make(l->k.dtype, l->k.batch, tokens);
    c.args.inv_freq = l->map.inv_freq;
    return c;
}

/* Makes a call read the tokens in reverse order. A call in place writes each token where it read the token. Any other call
 * writes the tokens in order. */
static void reverse(const links *l, trope_operand *o)
{
    const int in_place = o->src == o->dst;
    unsigned char *src = (unsigned char *)(uintptr_t)o->src, *dst = o->dst;
    case_reverse(l->k.tokens, number_size(l->k.dtype), &src, o->src_stride);
    if (in_place)
        case_reverse(l->k.tokens, number_size(l->k.dtype), &dst, o->dst_stride);
    o->src = src;
    o->dst = dst;
}

/* Every second round is a backward call, which rotates in the opposite direction. `reversed` reverses the order of the
 * tokens and of the operands. If possible, a reversed call has the positions of another rank. Otherwise its first token
 * would be at position 0, where the rotation changes nothing. */
static void rotate(const links *l, chain_place at, int from, int to, int reversed, int round)
{
    const call all = begin_call(l, at);
    const int operands = all.args.operand_count, has_ranks = l->k.angles == INV_FREQ && !l->k.cu_dtype && !l->k.ids_dtype;
    call c = all;
    c.args.cp_layout = has_ranks ? TROPE_CP_CONTIGUOUS : 0;
    c.args.cp_size = has_ranks ? 2 : 1;
    c.args.cp_rank = has_ranks ? reversed : 0;
    for (int i = 0; i < operands; i++) {
        const int which = reversed ? operands - 1 - i : i;
        c.operands[i] = all.operands[which];
        c.operands[i].src = at.memory + l->slots[from][which];
        c.operands[i].dst = at.memory + l->slots[l->k.in_place ? from : to][which];
    }
    if (reversed)
        tensor_say_strides(call_args(&c), c.operands, round % 2);
    for (int i = 0; i < operands && reversed; i++)
        reverse(l, &c.operands[i]);
    chain_call(&c, at, round % 2);
}

/* Rotates the last tokens of the first operand in place. The angles come from inv_freq, even if the family has a table. */
static void rotate_tail(const links *l, chain_place at, int slot)
{
    call all = begin_call(l, at), tail = begin_plain_call(l, TAIL);
    tensor_say_strides(call_args(&all), all.operands, 0);
    trope_operand *const o = &tail.operands[tail.args.operand_count++];
    *o = all.operands[0];
    const int64_t skipped = (l->k.tokens - TAIL) * o->dst_stride[TROPE_DIM_TOKEN];
    o->src = o->dst = at.memory + l->slots[slot][0] + skipped * (int64_t)number_size(l->k.dtype);
    chain_call(&tail, at, 0);
}

static void run_rotation(const void *what, chain_place at)
{
    const links *l = what;
    for (int round = 0; round < ROUNDS; round++) {
        bring_inputs(l, at, REGION_FORWARD_SRC, round);
        const int second = l->k.in_place ? 0 : 1, third = l->k.in_place ? 0 : 2;
        rotate(l, at, 0, 1, 0, round);
        rotate(l, at, second, 2, 1, round);
        rotate_tail(l, at, third);
        rotate(l, at, third, third, 1, round);
        rotate(l, at, third, third, 0, round);
        rotate(l, at, third, 0, 1, round);
    }
}

/* ---- steps of a gradient ---- */

/* Rotates dx by inv_freq. This call follows the gradient and reads its result. */
static void turn_gradient(const links *l, chain_place at)
{
    const case_operand *const from = &l->k.operands[0];
    call c = begin_plain_call(l, l->k.tokens);
    unsigned char *src = at.memory + l->map.regions[REGION_DST].at;
    trope_operand *const o = call_add(&c, at.memory + l->rotated, l->k.layout, from->heads, from->head_dim, from->head_dim);
    tensor_say_strides(call_args(&c), c.operands, 0);
    case_reverse(l->k.tokens, number_size(l->k.dtype), &src, o->src_stride);
    o->src = src;
    chain_call(&c, at, 0);
}

static void run_gradient(const void *what, chain_place at)
{
    const links *l = what;
    const case_region sums = l->map.regions[REGION_SUMS];
    for (int round = 0; round < ROUNDS; round++) {
        bring_inputs(l, at, REGION_DST, round);
        call c = begin_call(l, at);
        c.args.workspace = at.memory + l->workspace;
        c.args.workspace_size = l->end - l->workspace;
        chain_call(&c, at, 1);
        chain_copy_by_call(at, l->sums[round], sums.at, sums.bytes, l->scratch);
        turn_gradient(l, at);
    }
}

static void check_family(chain_memory *m, const family *f, int64_t tokens, long most)
{
    const links l = plan(f, tokens);
    const case_region src = l.map.regions[REGION_SRC], sums = l.map.regions[REGION_SUMS];
    chain c = {f->k.name, tokens, &l, l.end, l.compared, {l.k.dtype, src.at, src.bytes}, fill, run_rotation};
    if (l.k.gradient) {
        c.result = (chain_result){l.k.angles == INV_FREQ ? TROPE_F64 : TROPE_F32, l.sums[0], sums.bytes};
        c.run = run_gradient;
    }
    if (src.bytes <= (size_t)most)
        chain_check(m, &c);
}

int main(int argc, char **argv)
{
    device_require();
    const long most = device_option(argc, argv, "--bytes", (long)ROOM);
    chain_memory *m = chain_memory_new(ROOM);
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        check_family(m, &families[i], families[i].few, most);
        check_family(m, &families[i], families[i].many, most);
    }
    chain_memory_free(m);
    return check_result();
}
