/* A program that a user of 0.2 could have written. It is compiled twice (see caller.h). CALLER is the name of its
 * function. */
#include "api/caller.h"
#include "support/call.h"
#include "support/random.h"

enum { BATCH = 2, TOKENS = 8, ALL = BATCH * TOKENS, HEADS = 4, DIM = 16, PAIRS = DIM / 2, COUNT = ALL * 3 * HEADS * DIM };
enum { SEQUENCES = 3, AXES = 3 };

static const int32_t cu_seqlens[] = {0, 5, 5, 14}, cu_seqlens_padded[] = {0, 6, 6, 16};
static double inv_freq[PAIRS];

/* The memory of the calls. An f32 tensor has at most COUNT elements, and a 16-bit tensor at most twice as many. */
static struct {
    float x[COUNT], y[COUNT], forward_src[COUNT], freqs[ALL * PAIRS];
    int32_t ids[AXES * ALL];
    uint8_t pair_axis[PAIRS];
    double d_inv_freq[PAIRS];
    int32_t status;
    _Alignas(16) char workspace[1 << 14];
} m;

/* Fills the tensors, freqs and ids with random numbers, and sets everything else to 0. */
static void fill_memory(void)
{
    random_state r = {1};
    memset(&m, 0, sizeof m);
    for (int i = 0; i < COUNT; i++) {
        m.x[i] = (float)random_real(&r);
        m.y[i] = (float)random_real(&r);
        m.forward_src[i] = (float)random_real(&r);
    }
    for (int i = 0; i < ALL * PAIRS; i++)
        m.freqs[i] = (float)(10 * random_real(&r));
    for (int i = 0; i < AXES * ALL; i++)
        m.ids[i] = (int32_t)random_between(&r, 0, 1000);
}

static void keep(caller_results *results, const void *data, size_t size)
{
    if (size > CALLER_BYTES - results->count)
        abort();
    memcpy(results->bytes + results->count, data, size);
    results->count += size;
}

static void keep_status(caller_results *results, const char *what, trope_status status)
{
    keep(results, &status, sizeof status);
    if (status && !results->failures++)
        snprintf(results->failure, sizeof results->failure, "%s: %s", what, trope_last_error());
}

/* Makes a call and adds its statuses, its kernel's name, its workspace size and all bytes that it changed to the results.
 * The args have an allocation of their own, so that a sanitizer sees reads beyond their end. */
static void run(caller_results *results, const char *what, call *c, int backward)
{
    static unsigned char before[sizeof m];
    char kernel[64] = "";
    uint64_t workspace = 0;
    trope_args *args = malloc(sizeof *args);
    if (!args)
        abort();
    memcpy(args, call_args(c), sizeof *args);
    memcpy(before, &m, sizeof m);
    keep_status(results, what, trope_workspace_size(args, &workspace));
    if (workspace > sizeof m.workspace)
        abort();
    keep_status(results, what, trope_kernel_name(args, backward, kernel, sizeof kernel));
    keep_status(results, what, backward ? trope_backward(args) : trope_forward(args));
    free(args);
    keep(results, kernel, sizeof kernel);
    keep(results, &workspace, sizeof workspace);
    for (size_t i = 0; i < offsetof(__typeof__(m), workspace); i++)
        if (before[i] != ((unsigned char *)&m)[i])
            keep(results, &((unsigned char *)&m)[i], 1);
}

/* Q and K of a model, with frequencies from a rule. */
static void dense(caller_results *results)
{
    const trope_frequency_args rule = {.struct_size = sizeof rule,
                                       .rule = TROPE_RULE_LLAMA3,
                                       .rotary_dim = DIM,
                                       .base = 500000,
                                       .factor = 8,
                                       .original_max_position = 8192,
                                       .low_freq_factor = 1,
                                       .high_freq_factor = 4};
    double attention_factor;
    keep_status(results, "frequencies", trope_frequencies(&rule, inv_freq, &attention_factor));
    keep(results, inv_freq, sizeof inv_freq);
    for (int backward = 0; backward < 2; backward++) {
        fill_memory();
        call c = call_make(TROPE_F32, BATCH, TOKENS);
        call_add(&c, m.x, TROPE_BSHD, HEADS, DIM, DIM)->dst = m.y;
        call_add(&c, m.x + ALL * HEADS * DIM, TROPE_BHSD, 2, DIM, DIM / 2)->rotary_offset = 4;
        c.args.inv_freq = inv_freq;
        c.args.mscale = 1.5;
        run(results, "dense", &c, backward);
    }
}

/* Packed sequences with padding. */
static void packed(caller_results *results)
{
    for (int backward = 0; backward < 2; backward++) {
        fill_memory();
        call c = call_make(TROPE_BF16, 1, ALL);
        call_add(&c, m.x, TROPE_THD, HEADS, DIM, DIM);
        call_freqs(&c, m.freqs, TROPE_COLUMNS_PAIR, ALL);
        call_cu_seqlens(&c, cu_seqlens, TROPE_I32, SEQUENCES);
        c.args.cu_seqlens_padded = cu_seqlens_padded;
        c.args.padding = TROPE_PADDING_ZERO;
        c.args.rounding = TROPE_ROUND_NATIVE;
        c.args.status = &m.status;
        run(results, "packed", &c, backward);
    }
}

/* The positions on the second of two zigzag ranks. */
static void positions(caller_results *results)
{
    int64_t position[ALL];
    int32_t sequence[ALL];
    call c = call_make(TROPE_BF16, 1, ALL / 2);
    const int32_t even[] = {0, 4, 16};
    call_cu_seqlens(&c, even, TROPE_I32, 2);
    c.args.cp_size = 2;
    c.args.cp_rank = 1;
    c.args.cp_layout = TROPE_CP_ZIGZAG;
    keep_status(results, "positions", trope_positions(call_args(&c), position, sequence));
    keep(results, position, ALL / 2 * sizeof position[0]);
    keep(results, sequence, ALL / 2 * sizeof sequence[0]);
}

/* Q and K inside a packed QKV buffer, with ids of three axes. */
static void inside_packed_qkv(caller_results *results)
{
    const int32_t sections[] = {2, 3, 3, 0};
    const trope_qkv qkv = {.struct_size = sizeof qkv,
                           .buffer = m.x,
                           .batch = BATCH,
                           .tokens = TOKENS,
                           .layout = TROPE_BSHD,
                           .order = TROPE_QKV_GROUPS,
                           .dtype = TROPE_F32,
                           .q_heads = HEADS,
                           .kv_heads = 2,
                           .head_dim = DIM,
                           .rotary_dim = DIM};
    for (int backward = 0; backward < 2; backward++) {
        fill_memory();
        call c = call_make(TROPE_F32, BATCH, TOKENS);
        keep_status(results, "qkv", trope_fill_qkv(&c.operands[0], &qkv, TROPE_Q));
        keep_status(results, "qkv", trope_fill_qkv(&c.operands[1], &qkv, TROPE_K));
        keep_status(results, "axes", trope_fill_pair_axis(m.pair_axis, PAIRS, TROPE_AXES_SECTIONS, sections));
        c.args.operand_count = 2;
        c.args.pairing = TROPE_PAIRING_INTERLEAVED;
        c.args.pairing_out = TROPE_PAIRING_HALF;
        c.args.inv_freq = inv_freq;
        c.args.pair_axis = m.pair_axis;
        c.args.position_ids = m.ids;
        c.args.position_dtype = TROPE_I32;
        c.args.position_axes = AXES;
        c.args.ids_layout = TROPE_IDS_AXES_BATCH_TOKENS;
        run(results, "inside", &c, backward);
    }
}

/* Adds dx to dst, and computes the gradient of inv_freq. */
static void gradients(caller_results *results)
{
    fill_memory();
    call c = call_make(TROPE_F32, BATCH, TOKENS);
    trope_operand *o = call_add(&c, m.x, TROPE_SBHD, HEADS, DIM, DIM);
    o->dst = m.y;
    o->forward_src = m.forward_src;
    o->forward_src_layout = TROPE_SBHD;
    o->accumulate = 1;
    c.args.inv_freq = inv_freq;
    c.args.d_inv_freq = m.d_inv_freq;
    c.args.workspace = m.workspace;
    c.args.workspace_size = sizeof m.workspace;
    run(results, "gradients", &c, 1);
}

void CALLER(caller_results *results)
{
    results->minor_version = TROPE_VERSION_MINOR;
    results->args_size = sizeof(trope_args);
    dense(results);
    packed(results);
    positions(results);
    inside_packed_qkv(results);
    gradients(results);
}
