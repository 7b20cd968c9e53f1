/* As order.c, of the gradient of the angles: what its kernels leave for each other in the workspace, what they read that
 * the calls before them wrote, and what follows them.
 *
 * Elements are whole numbers up to 3 and angles are from 0.1 to 1.4, except that d inv_freq has some of 0: sines and
 * cosines in fp32 are then multiples of 2^-27, and a sum of as many terms as there are here has less than 53 bits whatever
 * the order in which it is made. So the sums too have the same bits on both devices.
 *
 *     cuda_order_gradient [--bytes N]        leaves out the chains whose tensors are of more than N bytes */
#include <string.h>

#include "cuda/chain_parts.h"
#include "cuda/device_call.h"
#include "support/check.h"
#include "support/number.h"
#include "support/tensor.h"

enum { ROUNDS = 4, MOST_ROWS = 14 };
#define ROOM ((size_t)128 << 20)

/* `few` and `many` tokens: all at once on a device, and many more than that. */
typedef struct gradient_family {
    const char *name;
    int32_t dtype, heads, head_dim;
    angle_source angles;
    position_source positions;
    int64_t batch, few, many;
} gradient_family;

/* clang-format off */
static const gradient_family gradients[] = {
    {"d freqs", TROPE_BF16, 8, 128, FREQS, FROM_TOKENS, 1, 40, 3000},
    {"d freqs, batch", TROPE_F16, 4, 64, FREQS, FROM_TOKENS, 6, 40, 2000},
    {"d freqs, packed", TROPE_BF16, 8, 128, FREQS, PACKED, 1, 60, 3000},
    {"d freqs, ids", TROPE_F32, 8, 64, FREQS, IDS, 1, 60, 3000},
    {"d freqs of elements, packed", TROPE_F16, 4, 128, OWN_FREQS, PACKED, 1, 60, 3000},
    {"d freqs, pairs, ids", TROPE_F32, 3, 6, FREQS, IDS, 1, 60, 20000},
    {"d inv_freq, packed", TROPE_BF16, 8, 128, INV_FREQ, PACKED, 1, 60, 3000},
};
/* clang-format on */

typedef struct gradient {
    const gradient_family *f;
    int64_t tokens;
    source dy, x;
    chain_angles angles;
    size_t dx, rotated, live, sums[ROUNDS], bytes_of_sums; /* what comes out of a round is copied to its sums */
    size_t compared, workspace, end;
    double inv_freq[CHAIN_MOST_PAIRS];
} gradient;

static size_t operand_bytes(const gradient_family *f, int64_t tokens)
{
    return (size_t)(f->batch * tokens * f->heads * f->head_dim) * number_size(f->dtype);
}

/* ---- the call ---- */

static void ask_for_sums(const gradient *g, chain_place at, call *c)
{
    chain_set_angles(&g->angles, at, c);
    if (g->f->angles == INV_FREQ) {
        c->args.inv_freq = g->inv_freq;
        c->args.d_inv_freq = (double *)(void *)(at.memory + g->live);
    } else {
        c->args.d_freqs = at.memory + g->live;
        c->args.d_freqs_layout = TROPE_TABLE_ROWS;
    }
}

static call gradient_call(const gradient *g, chain_place at)
{
    const gradient_family *f = g->f;
    call c = chain_begin_call(f->dtype, f->batch, g->tokens);
    trope_operand *const o = call_add(&c, at.memory + g->dx, TROPE_BSHD, f->heads, f->head_dim, f->head_dim);
    o->src = at.memory + g->dy.live;
    o->forward_src = at.memory + g->x.live;
    o->forward_src_layout = TROPE_BSHD;
    ask_for_sums(g, at, &c);
    c.args.workspace = at.memory + g->workspace;
    c.args.workspace_size = g->end - g->workspace;
    return c;
}

static size_t workspace_of(const gradient *g, int32_t device)
{
    const chain_place nowhere = {NULL, device, NULL};
    call c = gradient_call(g, nowhere);
    uint64_t bytes = 0;
    c.args.device = device;
    CHECK_MESSAGE(trope_workspace_size(call_args(&c), &bytes) == TROPE_OK, "%s: %s", g->f->name, trope_last_error());
    return (size_t)bytes;
}

/* ---- the chain ---- */

static gradient plan_gradient(const gradient_family *f, int64_t tokens)
{
    gradient g = {.f = f, .tokens = tokens};
    const size_t bytes = operand_bytes(f, tokens);
    chain_take(&g.end, 1); /* so that no offset is 0, nor a pointer NULL when the workspace is asked for */
    g.dy = chain_take_source(&g.end, bytes);
    g.x = chain_take_source(&g.end, bytes);
    g.dx = chain_take(&g.end, bytes);
    g.rotated = chain_take(&g.end, bytes);
    g.angles = chain_plan_angles(f->angles, f->positions, tokens, MOST_ROWS, f->head_dim, &g.end);
    g.bytes_of_sums = f->angles == INV_FREQ ? (size_t)g.angles.columns * sizeof(double)
                                            : (size_t)(g.angles.rows * g.angles.columns) * sizeof(float);
    g.live = chain_take(&g.end, g.bytes_of_sums);
    for (int i = 0; i < ROUNDS; i++)
        g.sums[i] = chain_take_target(&g.end, g.bytes_of_sums);
    g.compared = g.workspace = g.end;
    for (int i = 0; i < CHAIN_MOST_PAIRS; i++)
        g.inv_freq[i] = 0.1 + 0.005 * i / CHAIN_MOST_PAIRS;
    const size_t host = workspace_of(&g, TROPE_DEVICE_CPU), device = workspace_of(&g, TROPE_DEVICE_CUDA);
    chain_take(&g.end, host > device ? host : device);
    return g;
}

static void draw_whole_numbers(const gradient *g, unsigned char *to, random_state *random)
{
    const size_t size = number_size(g->f->dtype), bytes = operand_bytes(g->f, g->tokens);
    for (size_t at = 0; at < bytes; at += size) {
        const uint64_t bits = random_bits(random);
        const double number = (double)(1 + (bits >> 1) % 3);
        number_store(g->f->dtype, to + at, bits % 2 ? number : -number);
    }
}

static void fill_gradient(const void *what, unsigned char *memory)
{
    const gradient *g = what;
    random_state random = {(uint64_t)(g->f - gradients)};
    for (int which = 0; which < 2; which++) {
        draw_whole_numbers(g, memory + g->dy.from[which], &random);
        draw_whole_numbers(g, memory + g->x.from[which], &random);
        chain_draw_angles(&g->angles, which, memory, &random);
    }
}

/* What follows a gradient, and needs dx: turns it by frequencies of its own. */
static void turn_gradient(const gradient *g, chain_place at)
{
    const gradient_family *f = g->f;
    call c = chain_begin_call(f->dtype, f->batch, g->tokens);
    unsigned char *src = at.memory + g->dx;
    trope_operand *const o = call_add(&c, at.memory + g->rotated, TROPE_BSHD, f->heads, f->head_dim, f->head_dim);
    tensor_say_strides(call_args(&c), c.operands, 0);
    chain_reverse(g->tokens, number_size(f->dtype), &src, o->src_stride);
    o->src = src;
    chain_call(&c, at, 0);
}

/* x comes every time, but is another one only every other time, so that all pairs of dy and x are met. */
static void run_gradient(const void *what, chain_place at)
{
    const gradient *g = what;
    for (int round = 0; round < ROUNDS; round++) {
        chain_bring_angles(&g->angles, at, round);
        chain_bring(&g->x, at, round / 2);
        chain_bring(&g->dy, at, round);
        call c = gradient_call(g, at);
        chain_call(&c, at, 1);
        chain_copy_by_call(at, g->sums[round], g->live, g->bytes_of_sums);
        turn_gradient(g, at);
    }
}

static void check_gradient(chain_memory *m, const gradient_family *f, int64_t tokens, long most)
{
    const gradient g = plan_gradient(f, tokens);
    const chain_result result = {f->angles == INV_FREQ ? TROPE_F64 : TROPE_F32, g.sums[0], g.bytes_of_sums};
    const chain c = {f->name, tokens, &g, g.end, g.compared, result, fill_gradient, run_gradient};
    if (operand_bytes(f, tokens) <= (size_t)most)
        chain_check(m, &c);
}

int main(int argc, char **argv)
{
    device_require();
    const long most = device_option(argc, argv, "--bytes", (long)ROOM);
    chain_memory *m = chain_memory_new(ROOM);
    for (size_t i = 0; i < sizeof gradients / sizeof gradients[0]; i++) {
        check_gradient(m, &gradients[i], gradients[i].few, most);
        check_gradient(m, &gradients[i], gradients[i].many, most);
    }
    chain_memory_free(m);
    return check_result();
}
