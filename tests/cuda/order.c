/* What is queued after a call sees what it wrote. Kernels are launched before the one in front of them has ended
 * (src/core/cuda/early_launch.cuh), and must wait for that before they touch memory: here many of them are in chains, none
 * of which waits for the host. Each call reads what the one before it wrote, and tables and indices that have just come.
 *
 * The first blocks of a kernel are the first to start early, and the last of the kernel before them are the last to end, so
 * that calls read tokens in the reverse of the order in which they were written; and between large calls are calls of the
 * last few tokens. What memory holds before is NaN, or what another call needs: a kernel that comes too early brings NaN,
 * or a tensor that was rotated by other angles.
 *
 *     cuda_order [--bytes N]        leaves out the chains whose tensors are of more than N bytes */
#include <string.h>

#include "cuda/chain_parts.h"
#include "cuda/device_call.h"
#include "support/check.h"
#include "support/number.h"
#include "support/tensor.h"

enum { SLOTS = 3, ROUNDS = 4, TAIL = 5, MOST_ROWS = 200 };
#define ROOM ((size_t)128 << 20)

/* `few` and `many` tokens: all at once on a device, and many more than that. */
typedef struct family {
    const char *name;
    int32_t dtype, layout, heads, other_heads, head_dim, rotary_dim;
    angle_source angles;
    position_source positions;
    int in_place;
    int64_t batch, few, many;
} family;

/* clang-format off */
static const family families[] = {
    {"a row a block", TROPE_BF16, TROPE_THD, 32, 0, 128, 128, INV_FREQ, FROM_TOKENS, 0, 1, 40, 4096},
    {"a row a block, half a head", TROPE_F32, TROPE_THD, 16, 0, 128, 64, INV_FREQ, FROM_TOKENS, 0, 1, 40, 3000},
    {"several rows a block", TROPE_F16, TROPE_THD, 3, 0, 64, 64, INV_FREQ, FROM_TOKENS, 0, 1, 100, 60000},
    {"rows of one head", TROPE_BF16, TROPE_THD, 1, 0, 128, 64, INV_FREQ, FROM_TOKENS, 0, 1, 100, 100000},
    {"heads apart", TROPE_F16, TROPE_BHSD, 8, 0, 64, 64, INV_FREQ, FROM_TOKENS, 0, 2, 50, 10000},
    {"few rows", TROPE_F16, TROPE_THD, 32, 0, 128, 128, INV_FREQ, FROM_TOKENS, 0, 1, 8, 120},
    {"some rows", TROPE_F32, TROPE_THD, 32, 0, 128, 128, INV_FREQ, FROM_TOKENS, 0, 1, 20, 400},
    {"q and k", TROPE_BF16, TROPE_THD, 32, 8, 128, 128, INV_FREQ, FROM_TOKENS, 0, 1, 40, 3000},
    {"few rows, freqs", TROPE_F32, TROPE_THD, 32, 0, 128, 128, FREQS, FROM_TOKENS, 0, 1, 8, 100},
    {"some rows, freqs", TROPE_F32, TROPE_THD, 32, 0, 128, 128, FREQS, FROM_TOKENS, 0, 1, 20, 400},
    {"rows of one head, whole", TROPE_BF16, TROPE_THD, 1, 0, 128, 128, INV_FREQ, FROM_TOKENS, 0, 1, 60, 16000},
    {"rows of one head, freqs", TROPE_F16, TROPE_THD, 1, 0, 128, 128, FREQS, FROM_TOKENS, 0, 1, 60, 30000},
    {"windows in place", TROPE_BF16, TROPE_THD, 32, 0, 128, 64, INV_FREQ, FROM_TOKENS, 1, 1, 40, 4096},
    {"windows in place, packed freqs", TROPE_F16, TROPE_THD, 16, 0, 192, 64, FREQS, PACKED, 1, 1, 40, 3000},
    {"few heads, freqs", TROPE_BF16, TROPE_THD, 2, 1, 128, 128, FREQS, FROM_TOKENS, 0, 1, 100, 20000},
    {"in place", TROPE_F32, TROPE_THD, 16, 4, 128, 128, INV_FREQ, FROM_TOKENS, 1, 1, 40, 3000},
    {"elements", TROPE_F32, TROPE_THD, 3, 0, 6, 6, INV_FREQ, FROM_TOKENS, 0, 1, 60, 100000},
    {"elements, in place, packed", TROPE_BF16, TROPE_THD, 5, 0, 20, 12, FREQS, PACKED, 1, 1, 60, 40000},
    {"elements, ids", TROPE_F16, TROPE_THD, 3, 0, 20, 20, FREQS, IDS, 0, 1, 60, 40000},
    {"packed, one row", TROPE_BF16, TROPE_THD, 32, 0, 128, 128, INV_FREQ, PACKED, 0, 1, 40, 4096},
    {"packed, two operands, freqs", TROPE_BF16, TROPE_THD, 32, 8, 128, 128, FREQS, PACKED, 0, 1, 40, 3000},
    {"packed, several rows", TROPE_F16, TROPE_THD, 3, 0, 64, 64, FREQS, PACKED, 0, 1, 60, 40000},
    {"packed, one head", TROPE_F32, TROPE_THD, 1, 0, 64, 64, INV_FREQ, PACKED, 0, 1, 60, 40000},
    {"any rows", TROPE_BF16, TROPE_THD, 16, 2, 128, 128, INV_FREQ, IDS, 0, 1, 40, 4096},
    {"any rows, freqs, several", TROPE_F32, TROPE_THD, 2, 0, 64, 64, FREQS, IDS, 0, 1, 60, 20000},
    {"freqs", TROPE_F32, TROPE_THD, 8, 0, 128, 128, FREQS, FROM_TOKENS, 0, 1, 40, 4096},
    {"freqs, heads apart", TROPE_BF16, TROPE_BHSD, 8, 0, 128, 128, FREQS, FROM_TOKENS, 0, 2, 40, 4000},
    {"freqs of elements", TROPE_BF16, TROPE_THD, 16, 0, 128, 128, OWN_FREQS, FROM_TOKENS, 0, 1, 40, 4096},
    {"cos and sin", TROPE_F16, TROPE_THD, 16, 0, 128, 128, TABLES, FROM_TOKENS, 0, 1, 40, 4096},
    {"cos and sin, packed", TROPE_F32, TROPE_THD, 4, 0, 64, 64, TABLES, PACKED, 0, 1, 60, 20000},
};
/* clang-format on */

typedef struct rotation {
    const family *f;
    int64_t tokens;
    size_t slots[SLOTS], other, end; /* of a slot, `other` is where the second operand is */
    chain_angles angles;
} rotation;

static size_t operand_bytes(const rotation *r, int which)
{
    const family *f = r->f;
    const int32_t heads = which ? f->other_heads : f->heads;
    return (size_t)(f->batch * r->tokens * heads * f->head_dim) * number_size(f->dtype);
}

static rotation plan_rotation(const family *f, int64_t tokens)
{
    rotation r = {.f = f, .tokens = tokens};
    size_t slot = 0;
    chain_take(&slot, operand_bytes(&r, 0));
    r.other = chain_take(&slot, operand_bytes(&r, 1));
    for (int i = 0; i < SLOTS; i++)
        r.slots[i] = chain_take(&r.end, slot);
    r.angles = chain_plan_angles(f->angles, f->positions, tokens, MOST_ROWS, f->rotary_dim, &r.end);
    return r;
}

/* Numbers of both signs, none of them near 0, four to 64 bits, or two. */
static void draw_elements(int32_t dtype, unsigned char *to, size_t bytes, random_state *random)
{
    static const uint64_t
        keep[] = {[TROPE_F32] = 0x80ffffff80ffffffu, [TROPE_F16] = 0x8bff8bff8bff8bffu, [TROPE_BF16] = 0x81ff81ff81ff81ffu},
        set[] = {[TROPE_F32] = 0x3e0000003e000000u, [TROPE_F16] = 0x3400340034003400u, [TROPE_BF16] = 0x3e003e003e003e00u};
    for (size_t at = 0; at < bytes; at += 8) {
        const uint64_t bits = (random_bits(random) & keep[dtype]) | set[dtype];
        memcpy(to + at, &bits, bytes - at < 8 ? bytes - at : 8);
    }
}

static void fill_rotation(const void *what, unsigned char *memory)
{
    const rotation *r = what;
    random_state random = {(uint64_t)(r->f - families)};
    for (int which = 0; which < 2; which++) {
        draw_elements(r->f->dtype, memory + r->slots[0] + which * r->other, operand_bytes(r, which), &random);
        chain_draw_angles(&r->angles, which, memory, &random);
    }
}

/* ---- steps ---- */

/* The tensor `which` of a slot. */
static trope_operand *add_operand(const rotation *r, int which, unsigned char *slot, call *c)
{
    const family *f = r->f;
    const int32_t heads = which ? f->other_heads : f->heads;
    return call_add(c, slot + which * r->other, f->layout, heads, f->head_dim, f->rotary_dim);
}

/* Reads the tokens in the reverse order, and writes them to where they were read, or as they come. */
static void reverse(const rotation *r, int in_place, trope_operand *o)
{
    unsigned char *src = (unsigned char *)(uintptr_t)o->src, *dst = o->dst;
    chain_reverse(r->tokens, number_size(r->f->dtype), &src, o->src_stride);
    if (in_place)
        chain_reverse(r->tokens, number_size(r->f->dtype), &dst, o->dst_stride);
    o->src = src;
    o->dst = dst;
}

/* Every other round goes backward, which turns the other way. The reverse order is that of the operands as well; where it
 * can be, its positions are those of another rank, so that its first token is not at 0, where nothing is rotated. */
static void rotate(const rotation *r, chain_place at, int from, int to, int reversed, int round)
{
    const family *f = r->f;
    call c = chain_begin_call(f->dtype, f->batch, r->tokens);
    unsigned char *const src = at.memory + r->slots[from], *const dst = at.memory + r->slots[f->in_place ? from : to];
    const int operands = f->other_heads ? 2 : 1;
    c.args.cp_layout = f->angles == INV_FREQ && f->positions == FROM_TOKENS ? TROPE_CP_CONTIGUOUS : 0;
    c.args.cp_size = c.args.cp_layout ? 2 : 1;
    c.args.cp_rank = c.args.cp_layout ? reversed : 0;
    chain_set_angles(&r->angles, at, &c);
    for (int i = 0; i < operands; i++) {
        const int which = reversed ? operands - 1 - i : i;
        add_operand(r, which, dst, &c)->src = src + which * r->other;
    }
    if (reversed)
        tensor_say_strides(call_args(&c), c.operands, round % 2);
    for (int i = 0; i < operands && reversed; i++)
        reverse(r, src == dst, &c.operands[i]);
    chain_call(&c, at, round % 2);
}

/* The last tokens in place, whatever else the family has. */
static void rotate_tail(const rotation *r, chain_place at, int slot)
{
    const family *f = r->f;
    call all = call_make(f->dtype, f->batch, r->tokens), tail = chain_begin_call(f->dtype, f->batch, TAIL);
    trope_operand *o = add_operand(r, 0, at.memory + r->slots[slot], &all);
    tensor_say_strides(call_args(&all), all.operands, 0);
    const int64_t skipped = (r->tokens - TAIL) * o->src_stride[TROPE_DIM_TOKEN];
    o->src = o->dst = (char *)o->dst + skipped * (int64_t)number_size(f->dtype);
    tail.operands[tail.args.operand_count++] = *o;
    chain_call(&tail, at, 0);
}

static void run_rotation(const void *what, chain_place at)
{
    const rotation *r = what;
    for (int round = 0; round < ROUNDS; round++) {
        chain_bring_angles(&r->angles, at, round);
        const int second = r->f->in_place ? 0 : 1, third = r->f->in_place ? 0 : 2;
        rotate(r, at, 0, 1, 0, round);
        rotate(r, at, second, 2, 1, round);
        rotate_tail(r, at, third);
        rotate(r, at, third, third, 1, round);
        rotate(r, at, third, third, 0, round);
        rotate(r, at, third, 0, 1, round);
    }
}

static void check_rotation(chain_memory *m, const family *f, int64_t tokens, long most)
{
    const rotation r = plan_rotation(f, tokens);
    const chain_result result = {f->dtype, r.slots[0], operand_bytes(&r, 0)};
    const chain c = {f->name, tokens, &r, r.end, r.end, result, fill_rotation, run_rotation};
    if (result.bytes <= (size_t)most)
        chain_check(m, &c);
}

int main(int argc, char **argv)
{
    device_require();
    const long most = device_option(argc, argv, "--bytes", (long)ROOM);
    chain_memory *m = chain_memory_new(ROOM);
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        check_rotation(m, &families[i], families[i].few, most);
        check_rotation(m, &families[i], families[i].many, most);
    }
    chain_memory_free(m);
    return check_result();
}
