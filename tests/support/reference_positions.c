/* The reference for the position of each token. */
#include "support/reference.h"
#include "support/tensor.h"

static int64_t cp_size(const trope_args *args)
{
    return args->cp_size ? args->cp_size : 1;
}

/* Converts a boundary in the stream of all ranks to an index among the tokens of this rank. */
static int64_t boundary_here(const trope_args *args, int64_t global)
{
    if (cp_size(args) > 1 && args->cp_layout == TROPE_CP_FLAT)
        return global - args->cp_rank * args->tokens;
    return global / cp_size(args);
}

/* The index, within its sequence, of the i-th token of the sequence on this rank. Each rank has `local` tokens of the
 * sequence. */
static int64_t place_in_sequence(const trope_args *args, int64_t local, int64_t i)
{
    const int64_t size = cp_size(args), rank = args->cp_rank, chunk = local / 2;
    if (size == 1)
        return i;
    switch (args->cp_layout) {
    case TROPE_CP_CONTIGUOUS: /* one chunk per rank */
        return rank * local + i;
    case TROPE_CP_ZIGZAG: /* two chunks per rank: one from the front and one from the back */
        return i < chunk ? rank * chunk + i : (2 * size - 1 - rank) * chunk + (i - chunk);
    case TROPE_CP_STRIPED: /* rank r has the tokens r, r + size, r + 2 size, .. */
        return i * size + rank;
    default:
        return i;
    }
}

/* The positions of a token are its index, unless ids replace it. */
static void fill_positions(const trope_args *args, int64_t batch, int64_t token, int64_t index, reference_place *place)
{
    int64_t stride[3];
    tensor_ids_strides(args, stride);
    for (int axis = 0; axis < TROPE_MAX_AXES; axis++) {
        const int64_t row = args->position_axes > 1 ? axis : 0;
        place->position[axis] = index;
        if (args->position_ids && row < (args->position_axes ? args->position_axes : 1))
            place->position[axis] = tensor_index(args->position_ids, args->position_dtype,
                                                 row * stride[0] + batch * stride[1] + token * stride[2]);
    }
}

static reference_place find_dense(const trope_args *args, int64_t batch, int64_t token)
{
    reference_place place = {.sequence = batch};
    int64_t index = place_in_sequence(args, args->tokens, token);
    if (cp_size(args) > 1 && args->cp_layout == TROPE_CP_FLAT)
        index = args->cp_rank * args->tokens + token;
    if (args->start_positions)
        index += tensor_index(args->start_positions, args->position_dtype, batch);
    fill_positions(args, batch, token, index, &place);
    return place;
}

/* Finds a token between the boundaries `begin` and `end` of its sequence. */
static reference_place find_in_sequence(const trope_args *args, int64_t sequence, int64_t begin, int64_t end, int64_t token)
{
    const int32_t dtype = args->cu_seqlens_dtype;
    const int64_t first = tensor_index(args->cu_seqlens, dtype, sequence);
    const int64_t length = tensor_index(args->cu_seqlens, dtype, sequence + 1) - first;
    reference_place place = {.sequence = sequence};
    int64_t index = place_in_sequence(args, end - begin, token - begin);
    if (index >= length) {
        place.sequence = -1;
        place.is_padding = 1;
    }
    if (args->start_positions)
        index += tensor_index(args->start_positions, args->position_dtype, sequence);
    if (args->stream_positions)
        index += first;
    fill_positions(args, 0, token, index, &place);
    return place;
}

reference_place reference_find(const trope_args *args, int64_t batch, int64_t token)
{
    if (!args->cu_seqlens)
        return find_dense(args, batch, token);
    const void *stored = args->cu_seqlens_padded ? args->cu_seqlens_padded : args->cu_seqlens;
    int64_t begin = boundary_here(args, tensor_index(stored, args->cu_seqlens_dtype, 0));
    reference_place gap = {.sequence = -1, .is_padding = 1};
    if (token < begin) {
        fill_positions(args, 0, token, token - boundary_here(args, 0), &gap);
        return gap;
    }
    for (int64_t sequence = 0; sequence < args->sequences; sequence++) {
        const int64_t end = boundary_here(args, tensor_index(stored, args->cu_seqlens_dtype, sequence + 1));
        if (token >= begin && token < end)
            return find_in_sequence(args, sequence, begin, end, token);
        begin = end;
    }
    fill_positions(args, 0, token, token - begin, &gap);
    return gap;
}
