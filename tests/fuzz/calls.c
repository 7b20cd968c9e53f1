/* Calls with structs whose fields may have any value. Validation may read the structs and the host arrays, but no other
 * memory of the call. A call that passes validation must stay inside the memory that its structs describe. Each input
 * begins with a valid call of support/config.h, so that many calls pass validation. Then it changes fields, pointers, index
 * arrays and frequencies. */
#include <stddef.h>

#include "fuzz/input.h"
#include "support/guarded.h"
#include "support/number.h"
#include "support/reference.h"
#include "support/tensor.h"

#define MOST_WORK    1e5 /* elements of a call; a larger call is only validated */
#define MOST_CHANGES 24
#define MOST_BYTES   ((uint64_t)1 << 20) /* of a struct; the library refuses a larger struct without reading it */

/* ---- Changes ---- */

static const size_t args_pointers[] = {offsetof(trope_args, stream),       offsetof(trope_args, freqs),
                                       offsetof(trope_args, cos),          offsetof(trope_args, sin),
                                       offsetof(trope_args, position_ids), offsetof(trope_args, start_positions),
                                       offsetof(trope_args, cu_seqlens),   offsetof(trope_args, cu_seqlens_padded),
                                       offsetof(trope_args, status),       offsetof(trope_args, d_freqs),
                                       offsetof(trope_args, d_inv_freq),   offsetof(trope_args, workspace),
                                       offsetof(trope_args, operands),     offsetof(trope_args, inv_freq),
                                       offsetof(trope_args, phase_step),   offsetof(trope_args, pair_axis)};
enum { ARGS_POINTERS = 16, DEVICE_POINTERS = 12, FIRST_HOST_POINTER = 13 }; /* the last four point to host memory */
static const size_t operand_pointers[] = {offsetof(trope_operand, src), offsetof(trope_operand, dst),
                                          offsetof(trope_operand, forward_src)};
static const size_t norm_pointers[] = {offsetof(trope_norm, weight), offsetof(trope_norm, rstd),
                                       offsetof(trope_norm, d_weight), offsetof(trope_norm, token_sums)};
enum { OPERAND_POINTERS = 3, NORM_POINTERS = 4 };

/* Changes an int32, an int64 or a double of a struct. It may hit padding or a reserved field, but not a pointer. */
static void change_word(input *in, void *object, size_t size, const size_t *pointers, int pointer_count)
{
    const size_t width = take_below(in, 2) ? 8 : 4;
    const size_t at = (size_t)take_below(in, (int)(size / width)) * width;
    int64_t was = 0;
    for (int i = 0; i < pointer_count; i++)
        if (at / 8 == pointers[i] / 8)
            return;
    memcpy(&was, (char *)object + at, width);
    const int64_t now = take_number(in, was);
    memcpy((char *)object + at, &now, width);
}

/* A random pointer field of the call that is not a host pointer. */
static void *device_pointer(input *in, call *k)
{
    const int which = take_below(in, DEVICE_POINTERS + (OPERAND_POINTERS + NORM_POINTERS) * TROPE_MAX_OPERANDS);
    if (which < DEVICE_POINTERS)
        return (char *)&k->args + args_pointers[which];
    const int i = (which - DEVICE_POINTERS) % TROPE_MAX_OPERANDS, field = (which - DEVICE_POINTERS) / TROPE_MAX_OPERANDS;
    return field < OPERAND_POINTERS ? (char *)&k->operands[i] + operand_pointers[field]
                                    : (char *)&k->norm[i] + norm_pointers[field - OPERAND_POINTERS];
}

static void change_device_pointer(input *in, const config *c, call *k)
{
    void *field = device_pointer(in, k);
    uintptr_t address;
    memcpy(&address, field, sizeof address);
    switch (take_below(in, 5)) {
    case 0:
        address = 0;
        break;
    case 1: /* a misaligned address */
        address += address ? 1 : 0;
        break;
    case 2:
        address += address ? (uintptr_t)(intptr_t)(2 * (take_below(in, 256) - 128)) : 0;
        break;
    case 3:
        memcpy(&address, device_pointer(in, k), sizeof address);
        break;
    default:
        address = guarded_nowhere(take_below(in, c->buffer_count), 0);
    }
    memcpy(field, &address, sizeof address);
}

/* Validation reads the host arrays, so their pointers are valid, NULL or misaligned. */
static void change_host_pointer(input *in, call *k)
{
    const int which = take_below(in, ARGS_POINTERS - FIRST_HOST_POINTER);
    const int home = GUARDED_INV_FREQ + which, can_be_odd = home != GUARDED_PAIR_AXIS;
    const uintptr_t address[] = {0, guarded_nowhere(home, 0), guarded_nowhere(home, can_be_odd)};
    memcpy((char *)&k->args + args_pointers[FIRST_HOST_POINTER + which], &address[take_below(in, 3)], sizeof *address);
}

/* Changes the data in the call's memory: cu_seqlens, ids, start positions or numbers. */
static void change_data(input *in, config *c)
{
    const int i = take_below(in, c->buffer_count);
    const size_t width = take_below(in, 2) ? 8 : 4, count = c->buffers[i].size / width;
    if (!count)
        return;
    unsigned char *at = c->buffers[i].bytes + (size_t)take_below(in, count < 65536 ? (int)count : 65535) * width;
    int64_t was = 0;
    memcpy(&was, at, width);
    const int64_t now = take_number(in, was);
    memcpy(at, &now, width);
}

static void change_host_data(input *in, config *c)
{
    const int pair = take_below(in, TROPE_MAX_ROTARY_DIM / 2);
    switch (take_below(in, 3)) {
    case 0:
        take_bytes(in, &c->inv_freq[pair], sizeof c->inv_freq[pair]);
        break;
    case 1:
        take_bytes(in, &c->phase_step[pair], sizeof c->phase_step[pair]);
        break;
    default:
        take_bytes(in, &c->pair_axis[pair], sizeof c->pair_axis[pair]);
    }
}

static void change(input *in, config *c, call *k)
{
    switch (take_below(in, 9)) {
    case 0:
    case 1:
        change_word(in, &k->args, sizeof k->args, args_pointers, ARGS_POINTERS);
        break;
    case 2:
    case 3:
        change_word(in, &k->operands[take_below(in, TROPE_MAX_OPERANDS)], sizeof k->operands[0], operand_pointers,
                    OPERAND_POINTERS);
        break;
    case 4:
        change_device_pointer(in, c, k);
        break;
    case 5:
        change_host_pointer(in, k);
        break;
    case 6:
        change_data(in, c);
        break;
    case 7:
        change_word(in, &k->norm[take_below(in, TROPE_MAX_OPERANDS)], sizeof k->norm[0], norm_pointers, NORM_POINTERS);
        break;
    default:
        change_host_data(in, c);
    }
}

/* ---- The structs ---- */

/* Places `count` structs of `size` bytes each, the last one against the inaccessible page. The bytes that this version
 * does not know are 0. If `tail` is not 0, one such byte of the last struct is 1. */
static unsigned char *place_structs(int home, const void *from, size_t known, int count, size_t size, int tail)
{
    unsigned char *to = guarded_bytes(home, (size_t)count * size, GUARDED_ABOVE);
    memset(to, 0, (size_t)count * size);
    for (int i = 0; i < count; i++)
        memcpy(to + (size_t)i * size, (const char *)from + (size_t)i * known, size < known ? size : known);
    if (tail && count && size > known)
        to[(size_t)count * size - 1 - (size_t)tail % (size - known)] = 1;
    return to;
}

/* The number of bytes to place for a struct that begins with its size. If the library must refuse this size, only the
 * size field is placed. */
static size_t bytes_of(uint64_t struct_size)
{
    return struct_size > sizeof struct_size && struct_size <= MOST_BYTES ? struct_size : sizeof struct_size;
}

/* Places the array of pointers to norms. Norms of size 0 become NULL. */
static const void *place_norms(const call *k, int count, int tail)
{
    const trope_norm *norms[TROPE_MAX_OPERANDS];
    for (int i = 0; i < count; i++) {
        const trope_norm *n = &k->norm[i];
        norms[i] = NULL;
        if (n->struct_size)
            norms[i] = (const void *)place_structs(GUARDED_NORM + i, n, sizeof *n, 1, bytes_of(n->struct_size), tail);
    }
    return guarded_copy(GUARDED_NORMS, norms, (size_t)count * sizeof *norms, GUARDED_ABOVE);
}

/* Places the args, the operands and the norms. */
static const trope_args *place_call(const call *k, int tail)
{
    trope_args args = k->args;
    const size_t known = sizeof k->operands[0];
    const int count = args.operand_count >= 1 && args.operand_count <= TROPE_MAX_OPERANDS ? args.operand_count : 0;
    if (args.operand_size > GUARDED_CAPACITY / TROPE_MAX_OPERANDS && args.operand_size <= MOST_BYTES) /* too big to place */
        args.operand_size = known;
    const int are_read = args.operand_size >= known && args.operand_size <= MOST_BYTES ? count : 0;
    const void *operands =
        place_structs(GUARDED_OPERANDS, k->operands, known, are_read, are_read ? args.operand_size : 0, tail / 2);
    if (args.operands)
        args.operands = operands;
    args.norms = place_norms(k, count, tail % 8 == 4 ? tail : 0); /* always valid, because validation reads it */
    return (const void *)place_structs(GUARDED_ARGS, &args, sizeof args, 1, bytes_of(args.struct_size),
                                       tail % 2 ? tail : 0);
}

/* ---- Running ---- */

/* The number of elements of a valid call. It is a double, because the product of the sizes may overflow. */
static double work_of(const trope_args *a, const trope_operand *operands)
{
    const double tokens = (double)a->batch * (double)a->tokens;
    double work = (double)a->batch + (double)a->sequences + (double)a->angle_rows * 16, heads;
    for (int i = 0; i < a->operand_count; i++) {
        heads = (double)operands[i].heads_per_group * (operands[i].groups ? operands[i].groups : 1);
        work += tokens * (heads * operands[i].head_dim + 1);
    }
    return work;
}

static void check_refused(trope_status status)
{
    HOLDS(status > TROPE_OK && status <= TROPE_ERROR_DEVICE);
    HOLDS(trope_last_error()[0] && strlen(trope_last_error()) < 1024);
}

/* Makes the same call to trope_positions, whose results also end at an inaccessible page. */
static void find_positions(const call *k, const trope_args *args)
{
    const int64_t axes = k->args.position_axes > 0 ? k->args.position_axes : 1, count = k->args.batch * k->args.tokens;
    int64_t *positions = (void *)guarded_bytes(GUARDED_FIRST_FREE, (size_t)(axes * count) * 8, GUARDED_ABOVE);
    int32_t *sequences = (void *)guarded_bytes(GUARDED_FIRST_FREE + 1, (size_t)count * 4, GUARDED_ABOVE);
    if (!positions || !sequences)
        return;
    const trope_status status = trope_positions(args, positions, sequences);
    if (status)
        check_refused(status);
}

/* Whether the call is valid, apart from its data. If it is not, trope_forward or trope_backward must return the same status
 * as trope_kernel_name. */
static int is_valid(const trope_args *args, int backward)
{
    char name[64];
    const trope_status status = trope_kernel_name(args, backward, name, sizeof name);
    if (!status)
        return 1;
    check_refused(status);
    HOLDS((backward ? trope_backward(args) : trope_forward(args)) == status);
    return 0;
}

static void run_in_memory(const trope_args *args, int backward)
{
    guarded_remember();
    const trope_status status = backward ? trope_backward(args) : trope_forward(args);
    if (status)
        check_refused(status);
    HOLDS(guarded_is_remembered(status != TROPE_OK));
}

/* Validates the call with invalid addresses. If it passes, gives it memory, validates it again and runs it. The second
 * validation may refuse it: memory begins or ends at the inaccessible page, so elements whose type has changed may be
 * misaligned. */
static void run(const config *c, const call *k, int backward, int tail, guarded_side side)
{
    call nowhere = *k, here = *k;
    guarded_arrive_host(c, &nowhere, side);
    if (!is_valid(place_call(&nowhere, tail), backward) || work_of(&k->args, k->operands) > MOST_WORK ||
        !guarded_arrive(c, &here, backward, side))
        return;
    const trope_args *args = place_call(&here, tail);
    if (!is_valid(args, backward))
        return;
    run_in_memory(args, backward);
    find_positions(k, args);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input in = {data, size};
    config_choices choices = {.times = 1};
    uint32_t seed;
    for (int option = 0; option < OPTION_COUNT; option++)
        choices.value[option] = (uint8_t)take_below(&in, config_value_count(option));
    config_repair(&choices);
    take_bytes(&in, &seed, sizeof seed);
    const int backward = take_below(&in, 2), tail = take_below(&in, 256);
    const guarded_side side = take_below(&in, 2) ? GUARDED_ABOVE : GUARDED_BELOW;
    config *c = config_make(seed, &choices);
    call k = config_call(c, backward);
    guarded_depart(c, &k);
    for (int i = 0; i < MOST_CHANGES && in.left; i++)
        change(&in, c, &k);
    run(c, &k, 0, tail, side);
    run(c, &k, 1, tail, side);
    config_free(c);
    return 0;
}
