/* Packed sequences with a table that has a plane for each axis (M-RoPE's cos and sin). Each pair reads its own plane. The
 * result has the CPU's bits, forward and backward, with and without a norm. */
#include "cuda/device_call.h"
#include "support/call.h"
#include "support/check.h"
#include "support/random.h"

enum {
    TOKENS = 8,
    HEADS = 4,
    DIM = 32,
    PAIRS = DIM / 2,
    AXES = 3,
    ELEMENTS = TOKENS * HEADS * DIM,
    TABLE = AXES * TOKENS * PAIRS
};

typedef struct arrays {
    uint16_t src[ELEMENTS], dst[ELEMENTS], forward_src[ELEMENTS], weight[DIM];
    float cos[TABLE], sin[TABLE];
    int32_t cu_seqlens[3];
    float d_weight[DIM];
    char workspace[1 << 16] __attribute__((aligned(16)));
} arrays;

static arrays host, copied;
static uint8_t pair_axis[PAIRS];

/* bf16 numbers from 1/2 to 2, of both signs. */
static void fill_bf16(random_state *r, uint16_t *to, int count)
{
    for (int i = 0; i < count; i++)
        to[i] = (uint16_t)((random_bits(r) & 0x80ff) | 0x3f00);
}

static void fill(void)
{
    const int32_t ends[] = {0, 3, TOKENS};
    random_state r = {1};
    memset(&host, 0xff, sizeof host);
    fill_bf16(&r, host.src, ELEMENTS);
    fill_bf16(&r, host.forward_src, ELEMENTS);
    fill_bf16(&r, host.weight, DIM);
    for (int i = 0; i < TABLE; i++) {
        host.cos[i] = (float)random_real(&r);
        host.sin[i] = (float)random_real(&r);
    }
    memcpy(host.cu_seqlens, ends, sizeof ends);
    for (int pair = 0; pair < PAIRS; pair++)
        pair_axis[pair] = (uint8_t)(pair % AXES);
}

/* Runs a call on these arrays, which are in the memory of the device. */
static trope_status run(arrays *a, int32_t device, int backward, int has_norm)
{
    call c = call_make(TROPE_BF16, 1, TOKENS);
    trope_operand *o = call_add(&c, a->dst, TROPE_THD, HEADS, DIM, DIM);
    o->src = a->src;
    c.args.device = device;
    c.args.cos = a->cos;
    c.args.sin = a->sin;
    c.args.angle_dtype = TROPE_F32;
    c.args.angle_columns = TROPE_COLUMNS_PAIR;
    c.args.angle_layout = TROPE_TABLE_AXES_BATCH_ROWS;
    c.args.angle_rows = TOKENS;
    c.args.pair_axis = pair_axis;
    c.args.cu_seqlens = a->cu_seqlens;
    c.args.cu_seqlens_dtype = TROPE_I32;
    c.args.sequences = 2;
    c.args.padding = TROPE_PADDING_ZERO;
    if (has_norm) {
        c.norm[0] = (trope_norm){.struct_size = sizeof c.norm[0],
                                 .weight = a->weight,
                                 .weight_dtype = TROPE_BF16,
                                 .scope = TROPE_NORM_HEAD,
                                 .order = TROPE_NORM_BEFORE,
                                 .eps = 1e-6};
        if (backward) {
            o->forward_src = a->forward_src;
            o->forward_src_layout = TROPE_THD;
        }
    }
    return backward ? trope_backward(call_args(&c)) : trope_forward(call_args(&c));
}

static void compare(int backward, int has_norm)
{
    void *on_device;
    fill();
    CUDA_MUST(cudaMalloc(&on_device, sizeof host));
    CUDA_MUST(cudaMemcpy(on_device, &host, sizeof host, cudaMemcpyHostToDevice));
    CHECK_MESSAGE(run(on_device, TROPE_DEVICE_CUDA, backward, has_norm) == TROPE_OK, "%s", trope_last_error());
    CHECK_MESSAGE(run(&host, TROPE_DEVICE_CPU, backward, has_norm) == TROPE_OK, "%s", trope_last_error());
    CUDA_MUST(cudaMemcpy(&copied, on_device, sizeof host, cudaMemcpyDeviceToHost));
    CHECK_MESSAGE(!memcmp(copied.dst, host.dst, sizeof host.dst), "backward %d, norm %d: not the CPU's bits", backward,
                  has_norm);
    CUDA_MUST(cudaFree(on_device));
}

int main(void)
{
    device_require();
    for (int backward = 0; backward < 2; backward++)
        for (int has_norm = 0; has_norm < 2; has_norm++)
            compare(backward, has_norm);
    return check_result();
}
