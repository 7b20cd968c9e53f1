#define _GNU_SOURCE
#include "support/guarded.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "support/number.h"
#include "support/reference.h"
#include "support/tensor.h"

/* ---- Homes ---- */

#define MARGIN 256 /* bytes beside the memory of a call that are checked for changes */

/* A home. The call may access its bytes [first, end), counted from the origin. The origin is the address of offset 0. */
static struct {
    unsigned char *begin; /* the first of GUARDED_CAPACITY bytes between two inaccessible pages */
    unsigned char *origin;
    int64_t first, end;
    size_t before, behind; /* the sizes of its margins */
} homes[GUARDED_HOMES];

static void make_homes(void)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), step = GUARDED_CAPACITY + page;
    unsigned char *all =
        mmap(NULL, GUARDED_HOMES * step + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED)
        abort();
    for (int i = 0; i < GUARDED_HOMES; i++) {
        homes[i].begin = all + (size_t)i * step + page;
        if (mprotect(homes[i].begin, GUARDED_CAPACITY, PROT_READ | PROT_WRITE))
            abort();
    }
}

unsigned char *guarded_bytes(int home, size_t size, guarded_side side)
{
    if (!homes[0].begin)
        make_homes();
    if (size > GUARDED_CAPACITY)
        return NULL;
    return side == GUARDED_BELOW ? homes[home].begin : homes[home].begin + GUARDED_CAPACITY - size;
}

void *guarded_copy(int home, const void *from, size_t size, guarded_side side)
{
    unsigned char *to = guarded_bytes(home, size, side);
    if (to && size)
        memcpy(to, from, size);
    return to;
}

/* ---- Invalid addresses ---- */

/* No 64-bit processor can access these addresses. They are in neither the lower nor the upper half of a 48-bit address
 * space. (57 bits exist, but a program must request them.) An offset is counted from the middle, so that it may be below
 * 0. */
#define NOWHERE_BITS   48
#define NOWHERE_MIDDLE ((uintptr_t)1 << (NOWHERE_BITS - 1))

uintptr_t guarded_nowhere(int home, int64_t offset)
{
    return ((uintptr_t)(home + 1) << NOWHERE_BITS) + NOWHERE_MIDDLE + (uintptr_t)offset;
}

static int home_of(uintptr_t address)
{
    const uintptr_t number = address >> NOWHERE_BITS;
    return number >= 1 && number <= GUARDED_HOMES ? (int)number - 1 : -1;
}

static int64_t offset_of(uintptr_t address)
{
    return (int64_t)(address & (((uintptr_t)1 << NOWHERE_BITS) - 1)) - (int64_t)NOWHERE_MIDDLE;
}

/* Read or write the pointer `field` of a call. The pointer may have any type. */
static uintptr_t get_pointer(const void *field)
{
    uintptr_t address;
    memcpy(&address, field, sizeof address);
    return address;
}

static void set_pointer(void *field, uintptr_t address)
{
    memcpy(field, &address, sizeof address);
}

void guarded_depart(const config *c, call *k)
{
    unsigned char *bases[CONFIG_MAX_BUFFERS];
    trope_args *a = call_args(k);
    for (int i = 0; i < c->buffer_count; i++)
        set_pointer(&bases[i], guarded_nowhere(i, 0));
    config_rebase(c, k, bases);
    if (a->inv_freq)
        set_pointer(&a->inv_freq, guarded_nowhere(GUARDED_INV_FREQ, 0));
    if (a->phase_step)
        set_pointer(&a->phase_step, guarded_nowhere(GUARDED_PHASE_STEP, 0));
    if (a->pair_axis)
        set_pointer(&a->pair_axis, guarded_nowhere(GUARDED_PAIR_AXIS, 0));
}

/* ---- The memory that a call describes ---- */

/* The bytes [first, end), counted from the address in the pointer `field`. */
typedef struct extent {
    void *field;
    int64_t first, end;
} extent;

typedef struct extent_list {
    extent entries[7 * TROPE_MAX_OPERANDS + 16];
    int count;
} extent_list;

/* Adds the extent of `dims` dimensions of elements, if the pointer is not NULL. */
static void add_strided(extent_list *list, void *field, int dims, const int64_t *size, const int64_t *stride,
                        size_t element)
{
    extent e = {.field = field, .end = (int64_t)element};
    if (!get_pointer(field))
        return;
    for (int d = 0; d < dims; d++)
        if (size[d] == 0)
            return;
    for (int d = 0; d < dims; d++) {
        const int64_t reach = (size[d] - 1) * stride[d] * (int64_t)element;
        *(reach < 0 ? &e.first : &e.end) += reach;
    }
    list->entries[list->count++] = e;
}

static void add_flat(extent_list *list, void *field, int64_t count, size_t element)
{
    add_strided(list, field, 1, &count, (const int64_t[]){1}, element);
}

static void add_tensors(extent_list *list, call *k, int i, int backward)
{
    trope_operand *o = &k->operands[i];
    void *const fields[] = {&o->src, &o->dst, &o->forward_src};
    for (int role = TENSOR_SRC; role <= TENSOR_FORWARD_SRC; role++) {
        const tensor t = tensor_of(&k->args, i, (tensor_role)role, backward);
        add_strided(list, fields[role], TROPE_MAX_DIMS, t.size, t.stride, number_size(k->args.dtype));
    }
}

static void add_norm(extent_list *list, call *k, int i)
{
    trope_norm *n = &k->norm[i];
    if (!n->struct_size)
        return;
    const int64_t rows = k->args.batch * k->args.tokens, weights = reference_weights(&k->args, i);
    const size_t real = k->args.dtype == TROPE_F64 ? 8 : 4;
    add_flat(list, &n->weight, weights, n->weight ? number_size(n->weight_dtype) : 0);
    add_flat(list, &n->rstd, rows * reference_rstds(&k->args, i), real);
    add_flat(list, &n->d_weight, weights, real);
    const int64_t heads = n->token_sums_use == TROPE_SUMS_READ ? n->heads_of_all_ranks : reference_heads(&k->args, i);
    add_strided(list, &n->token_sums, 2, (const int64_t[]){heads, rows}, (const int64_t[]){rows, 1}, real);
}

static void add_table(extent_list *list, trope_args *a, void *field, int32_t layout, const int64_t given[4], int planes,
                      size_t element)
{
    const int64_t columns = reference_columns(a);
    const int64_t size[4] = {planes, a->batch, a->angle_rows, columns};
    int64_t stride[4];
    tensor_table_strides(a, layout, given, columns, stride);
    add_strided(list, field, 4, size, stride, element);
}

static void add_indices(extent_list *list, trope_args *a)
{
    const int64_t size[3] = {a->position_axes ? a->position_axes : 1, a->batch, a->tokens};
    const size_t position = a->position_dtype == TROPE_I64 ? 8 : 4, cu = a->cu_seqlens_dtype == TROPE_I64 ? 8 : 4;
    int64_t stride[3];
    tensor_ids_strides(a, stride);
    add_strided(list, &a->position_ids, 3, size, stride, position);
    add_flat(list, &a->start_positions, a->cu_seqlens ? a->sequences : a->batch, position);
    add_flat(list, &a->cu_seqlens, a->sequences + 1, cu);
    add_flat(list, &a->cu_seqlens_padded, a->sequences + 1, cu);
}

/* Lists all memory except the host arrays. A workspace is aligned to 16 bytes, so its extent is rounded up to a multiple
 * of 16. Its size may be any number. */
static extent_list list_extents(call *k, int backward)
{
    extent_list list = {.count = 0};
    trope_args *a = call_args(k);
    for (int i = 0; i < a->operand_count; i++) {
        if (a->tokens > 0)
            add_tensors(&list, k, i, backward);
        add_norm(&list, k, i);
    }
    const size_t angle = a->freqs || a->cos ? number_size(a->angle_dtype) : 0;
    add_table(&list, a, &a->freqs, a->angle_layout, a->angle_stride, reference_axes(a), angle);
    add_table(&list, a, &a->cos, a->angle_layout, a->angle_stride, reference_axes(a), angle);
    add_table(&list, a, &a->sin, a->angle_layout, a->angle_stride, reference_axes(a), angle);
    add_indices(&list, a);
    add_flat(&list, &a->status, 1, sizeof *a->status);
    add_table(&list, a, &a->d_freqs, a->d_freqs_layout, a->d_freqs_stride, reference_planes(a),
              a->dtype == TROPE_F64 ? 8 : 4);
    add_flat(&list, &a->d_inv_freq, reference_pairs(a), sizeof(double));
    const uint64_t most = 2 * GUARDED_CAPACITY, scratch = a->workspace_size < most ? a->workspace_size : most;
    add_flat(&list, &a->workspace, (int64_t)(scratch + 15) / 16, 16);
    return list;
}

/* ---- Giving a call memory ---- */

static void arrive_array(void *field, const void *array, int count, size_t element, guarded_side side)
{
    const int home = home_of(get_pointer(field));
    if (home >= 0 && offset_of(get_pointer(field)) == 0)
        set_pointer(field, (uintptr_t)guarded_copy(home, array, (size_t)count * element, side));
}

void guarded_arrive_host(const config *c, call *k, guarded_side side)
{
    int pairs = 0;
    for (int i = 0; i < k->args.operand_count && i < TROPE_MAX_OPERANDS; i++) {
        const int32_t dim = k->operands[i].rotary_dim;
        pairs = dim <= TROPE_MAX_ROTARY_DIM && dim / 2 > pairs ? dim / 2 : pairs;
    }
    arrive_array(&k->args.inv_freq, c->inv_freq, pairs, sizeof c->inv_freq[0], side);
    arrive_array(&k->args.phase_step, c->phase_step, pairs, sizeof c->phase_step[0], side);
    arrive_array(&k->args.pair_axis, c->pair_axis, pairs, 1, side);
}

/* Finds the first and the last byte in each home that the call may access. */
static void measure_homes(const extent_list *list)
{
    for (int i = 0; i < GUARDED_HOMES; i++) {
        homes[i].first = homes[i].end = 0;
        homes[i].before = homes[i].behind = 0;
    }
    for (int i = 0; i < list->count; i++) {
        const extent *e = &list->entries[i];
        const int home = home_of(get_pointer(e->field));
        const int64_t offset = offset_of(get_pointer(e->field));
        if (home < 0)
            continue;
        const int is_first = homes[home].first == homes[home].end;
        if (is_first || offset + e->first < homes[home].first)
            homes[home].first = offset + e->first;
        if (is_first || offset + e->end > homes[home].end)
            homes[home].end = offset + e->end;
    }
}

/* Gives a home its memory, and fills it with the bytes of its buffer. If the memory is larger than the buffer, the bytes
 * repeat. Without a buffer, the memory is 0. */
static int furnish_home(int home, const config_buffer *buffer, guarded_side side)
{
    const int64_t first = homes[home].first, size = homes[home].end - first;
    unsigned char *to = guarded_bytes(home, (size_t)size, side);
    if (!to)
        return 0;
    const size_t room = GUARDED_CAPACITY - (size_t)size, margin = room < MARGIN ? room : MARGIN;
    homes[home].origin = to - first;
    homes[home].before = side == GUARDED_ABOVE ? margin : 0; /* the inaccessible page is on the other side */
    homes[home].behind = side == GUARDED_BELOW ? margin : 0;
    memset(to - homes[home].before, 0xff, homes[home].before);
    memset(to + size, 0xff, homes[home].behind);
    if (buffer && first >= 0 && first + size <= (int64_t)buffer->size) {
        memcpy(to, buffer->bytes + first, (size_t)size);
        return 1;
    }
    const int64_t period = buffer && buffer->size ? (int64_t)buffer->size : 1;
    for (int64_t i = 0; i < size; i++)
        to[i] = buffer && buffer->size ? buffer->bytes[((first + i) % period + period) % period] : 0;
    return 1;
}

int guarded_arrive(const config *c, call *k, int backward, guarded_side side)
{
    guarded_arrive_host(c, k, side);
    const extent_list list = list_extents(k, backward);
    measure_homes(&list);
    for (int i = 0; i < GUARDED_HOMES; i++)
        if (homes[i].end > homes[i].first && !furnish_home(i, i < c->buffer_count ? &c->buffers[i] : NULL, side))
            return 0;
    for (int i = 0; i < list.count; i++) {
        const uintptr_t address = get_pointer(list.entries[i].field);
        const int home = home_of(address);
        if (home >= 0)
            set_pointer(list.entries[i].field, (uintptr_t)homes[home].origin + (uintptr_t)offset_of(address));
    }
    return 1;
}

void guarded_return(const config *c)
{
    for (int i = 0; i < c->buffer_count; i++) {
        const int64_t size = (int64_t)c->buffers[i].size, first = homes[i].first;
        const int64_t end = homes[i].end < size ? homes[i].end : size; /* a workspace may end beyond its buffer */
        if (end > first)
            memcpy(c->buffers[i].bytes + first, homes[i].origin + first, (size_t)(end - first));
    }
}

static int is_empty(int home)
{
    return homes[home].end == homes[home].first;
}

static unsigned char *remembered;

void guarded_remember(void)
{
    size_t size = 0, at = 0;
    for (int i = 0; i < GUARDED_HOMES; i++)
        size += homes[i].before + (size_t)(homes[i].end - homes[i].first) + homes[i].behind;
    free(remembered);
    remembered = malloc(size + 1);
    for (int i = 0; i < GUARDED_HOMES; i++) {
        const size_t bytes = homes[i].before + (size_t)(homes[i].end - homes[i].first) + homes[i].behind;
        if (!is_empty(i))
            memcpy(remembered + at, homes[i].origin + homes[i].first - homes[i].before, bytes);
        at += bytes;
    }
}

int guarded_is_remembered(int contents)
{
    const unsigned char *was = remembered;
    int same = 1;
    for (int i = 0; i < GUARDED_HOMES; i++) {
        const size_t bytes = (size_t)(homes[i].end - homes[i].first), before = homes[i].before, behind = homes[i].behind;
        if (is_empty(i))
            continue;
        const unsigned char *is = homes[i].origin + homes[i].first;
        same &= !memcmp(is - before, was, before) && !memcmp(is + bytes, was + before + bytes, behind);
        same &= !contents || !memcmp(is, was + before, bytes);
        was += before + bytes + behind;
    }
    return same;
}
