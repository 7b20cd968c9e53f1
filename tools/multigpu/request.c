#include "request.h"

request request_make(int32_t dtype, int64_t batch, int64_t tokens)
{
    return (request){.args = {.struct_size = sizeof(trope_args),
                              .operand_size = sizeof(trope_operand),
                              .dtype = dtype,
                              .pairing = TROPE_PAIRING_HALF,
                              .batch = batch,
                              .tokens = tokens}};
}

const trope_args *request_args(request *q)
{
    q->args.operands = q->operands;
    for (int i = 0; i < REQUEST_OPERANDS; i++)
        q->norm_list[i] = &q->norms[i];
    q->args.norms = q->norms[0].struct_size ? q->norm_list : NULL;
    return &q->args;
}

trope_operand *request_add(request *q, int32_t heads, int32_t head_dim, int32_t rotary_dim)
{
    trope_operand *o = &q->operands[q->args.operand_count++];
    *o = (trope_operand){.heads_per_group = heads, .head_dim = head_dim, .rotary_dim = rotary_dim};
    return o;
}

void request_tensors(request *q, int operand, const void *src, void *dst, const void *x)
{
    trope_operand *o = &q->operands[operand];
    o->src = src;
    o->dst = dst;
    o->forward_src = x;
    o->src_layout = TROPE_SBHD;
    o->dst_layout = dst ? TROPE_SBHD : 0;
    o->forward_src_layout = x ? TROPE_SBHD : 0;
}

void request_norm(request *q, int operand, int32_t scope, int32_t order, const float *weight)
{
    q->norms[operand] = (trope_norm){.struct_size = sizeof(trope_norm),
                                     .weight = weight,
                                     .weight_dtype = TROPE_F32,
                                     .weight_per_head = scope == TROPE_NORM_TOKEN,
                                     .scope = scope,
                                     .order = order,
                                     .eps = 1e-6};
}

void request_freqs(request *q, const float *freqs, int32_t columns, int64_t rows)
{
    q->args.freqs = freqs;
    q->args.angle_dtype = TROPE_F32;
    q->args.angle_columns = columns;
    q->args.angle_layout = TROPE_TABLE_ROWS;
    q->args.angle_rows = rows;
}

void request_tables(request *q, const float *cos, const float *sin, int32_t columns, int64_t rows)
{
    request_freqs(q, NULL, columns, rows);
    q->args.cos = cos;
    q->args.sin = sin;
}

void request_gradient(request *q, void *d_angles, void *workspace, size_t workspace_size)
{
    if (q->args.inv_freq) {
        q->args.d_inv_freq = d_angles;
    } else {
        q->args.d_freqs = d_angles;
        q->args.d_freqs_layout = TROPE_TABLE_ROWS;
    }
    q->args.workspace = workspace;
    q->args.workspace_size = workspace_size;
}

void request_starts(request *q, const int64_t *starts)
{
    q->args.start_positions = starts;
    q->args.position_dtype = TROPE_I64;
}

void request_ids(request *q, const int64_t *ids, int32_t axes, const uint8_t *pair_axis)
{
    q->args.position_ids = ids;
    q->args.position_dtype = TROPE_I64;
    q->args.ids_layout = TROPE_IDS_STRIDED;
    q->args.ids_stride[0] = q->args.tokens;
    q->args.ids_stride[2] = 1;
    q->args.position_axes = axes;
    q->args.pair_axis = pair_axis;
}

void request_sequences(request *q, const int32_t *unpadded, const int32_t *stored, int64_t sequences, int32_t padding)
{
    q->args.cu_seqlens = unpadded;
    q->args.cu_seqlens_padded = stored;
    q->args.cu_seqlens_dtype = TROPE_I32;
    q->args.sequences = sequences;
    q->args.padding = padding;
}

void request_ranks(request *q, int32_t size, int32_t rank, int32_t layout)
{
    q->args.cp_size = size;
    q->args.cp_rank = rank;
    q->args.cp_layout = layout;
}

request request_positions(const request *q)
{
    const trope_args *a = &q->args;
    request plain = request_make(a->dtype, 1, a->tokens);
    if (a->cu_seqlens)
        request_sequences(&plain, a->cu_seqlens, a->cu_seqlens_padded, a->sequences, a->padding);
    request_ranks(&plain, a->cp_size, a->cp_rank, a->cp_layout);
    return plain;
}
