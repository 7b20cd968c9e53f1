#include "cuda/chain_parts.h"

#include <math.h>
#include <string.h>

#include "support/tensor.h"

/* What is copied by a call has one head of WIDTH elements a token. No call only copies: UNSEEN elements behind them all are
 * rotated. */
enum { ALIGNMENT = 256, WIDTH = ALIGNMENT / sizeof(float), UNSEEN = 16 };

static size_t whole(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

size_t chain_take(size_t *end, size_t bytes)
{
    const size_t at = *end;
    *end += whole(bytes);
    return at;
}

size_t chain_take_target(size_t *end, size_t bytes)
{
    return chain_take(end, whole(bytes) + whole(bytes) / WIDTH * UNSEEN);
}

source chain_take_source(size_t *end, size_t bytes)
{
    source s = {.bytes = bytes};
    s.live = chain_take_target(end, bytes);
    s.from[0] = chain_take(end, bytes);
    s.from[1] = chain_take(end, bytes);
    return s;
}

/* ---- tables and indices ---- */

chain_angles chain_plan_angles(angle_source angles, position_source positions, int64_t tokens, int64_t most_rows,
                               int32_t rotary_dim, size_t *end)
{
    chain_angles t = {.angles = angles, .positions = positions, .tokens = tokens};
    t.rows = positions == FROM_TOKENS || tokens < most_rows ? tokens : most_rows;
    t.columns = angles == OWN_FREQS ? rotary_dim : rotary_dim / 2;
    t.indices = positions == PACKED ? 2 + 3 * tokens / t.rows : tokens;
    const size_t bytes = (size_t)(t.rows * t.columns) * sizeof(float);
    if (angles != INV_FREQ)
        t.table = chain_take_source(end, bytes);
    if (angles == TABLES)
        t.sines = chain_take_source(end, bytes);
    if (positions != FROM_TOKENS)
        t.index = chain_take_source(end, (size_t)t.indices * sizeof(int32_t));
    return t;
}

static void draw_rows(const chain_angles *t, int which, unsigned char *memory, random_state *random)
{
    float *const table = (float *)(void *)(memory + t->table.from[which]);
    float *const sines = (float *)(void *)(memory + t->sines.from[which]);
    for (int64_t i = 0; i < t->rows * t->columns; i++) {
        const double angle = 0.75 + 0.65 * random_real(random);
        table[i] = (float)(t->angles == TABLES ? cos(angle) : angle);
        if (t->angles == TABLES)
            sines[i] = (float)sin(angle);
    }
}

static void draw_ids(const chain_angles *t, int32_t *ids, random_state *random)
{
    for (int64_t i = 0; i < t->indices; i++)
        ids[i] = (int32_t)random_between(random, 0, t->rows - 1);
}

/* Every token is in a sequence: each one leaves no more than those after it can have. */
static void draw_boundaries(const chain_angles *t, int32_t *to, random_state *random)
{
    to[0] = 0;
    for (int64_t i = 1; i < t->indices; i++) {
        const int64_t left = t->tokens - to[i - 1], too_many = left - t->rows * (t->indices - 1 - i);
        to[i] = to[i - 1] + (int32_t)random_between(random, too_many > 0 ? too_many : 0, left < t->rows ? left : t->rows);
    }
}

void chain_draw_angles(const chain_angles *t, int which, unsigned char *memory, random_state *random)
{
    int32_t *const indices = (int32_t *)(void *)(memory + t->index.from[which]);
    if (t->angles != INV_FREQ)
        draw_rows(t, which, memory, random);
    if (t->positions == IDS)
        draw_ids(t, indices, random);
    if (t->positions == PACKED)
        draw_boundaries(t, indices, random);
}

/* ---- calls ---- */

static const double *frequencies(void)
{
    static double inv_freq[CHAIN_MOST_PAIRS];
    for (int i = 0; i < CHAIN_MOST_PAIRS; i++)
        inv_freq[i] = pow(100, -i / (double)CHAIN_MOST_PAIRS);
    return inv_freq;
}

call chain_begin_call(int32_t dtype, int64_t batch, int64_t tokens)
{
    call c = call_make(dtype, batch, tokens);
    c.args.inv_freq = frequencies();
    return c;
}

static void set_table(const chain_angles *t, chain_place at, call *c)
{
    unsigned char *const table = at.memory + t->table.live;
    const int32_t columns = t->angles == OWN_FREQS ? TROPE_COLUMNS_HALF : TROPE_COLUMNS_PAIR;
    c->args.inv_freq = NULL;
    if (t->angles == TABLES)
        call_tables(c, table, at.memory + t->sines.live, TROPE_F32, columns, t->rows);
    else
        call_freqs(c, table, columns, t->rows);
}

void chain_set_angles(const chain_angles *t, chain_place at, call *c)
{
    unsigned char *const index = at.memory + t->index.live;
    if (t->angles != INV_FREQ)
        set_table(t, at, c);
    if (t->positions == IDS) {
        c->args.position_ids = index;
        c->args.position_dtype = TROPE_I32;
        c->args.ids_layout = TROPE_IDS_BATCH_TOKENS;
    }
    if (t->positions == PACKED) {
        call_cu_seqlens(c, index, TROPE_I32, t->indices - 1);
        c->args.padding = TROPE_PADDING_ZERO;
    }
}

void chain_reverse(int64_t tokens, size_t element, unsigned char **base, int64_t *stride)
{
    *base += (tokens - 1) * stride[TROPE_DIM_TOKEN] * (int64_t)element;
    stride[TROPE_DIM_TOKEN] *= -1;
}

/* ---- what is brought ---- */

void chain_copy_by_call(chain_place at, size_t to, size_t from, size_t bytes)
{
    call c = chain_begin_call(TROPE_F32, 1, (int64_t)(whole(bytes) / ALIGNMENT));
    unsigned char *src = at.memory + from, *dst = at.memory + to;
    trope_operand *const o = call_add(&c, dst, TROPE_THD, 1, WIDTH, TROPE_COPY);
    call_add(&c, dst + whole(bytes), TROPE_THD, 1, UNSEEN, UNSEEN);
    tensor_say_strides(call_args(&c), c.operands, 0);
    chain_reverse(c.args.tokens, sizeof(float), &src, o->src_stride);
    chain_reverse(c.args.tokens, sizeof(float), &dst, o->dst_stride);
    o->src = src;
    o->dst = dst;
    chain_call(&c, at, 0);
}

/* Mostly by a call, but each source sometimes by the runtime. */
void chain_bring(const source *s, chain_place at, int round)
{
    if (s->bytes && round % 4 < 3)
        chain_copy_by_call(at, s->live, s->from[round % 2], s->bytes);
    else if (s->bytes)
        chain_copy(at, s->live, s->from[round % 2], s->bytes);
}

void chain_bring_angles(const chain_angles *t, chain_place at, int round)
{
    chain_bring(&t->index, at, round);
    chain_bring(&t->sines, at, round);
    chain_bring(&t->table, at, round);
}
