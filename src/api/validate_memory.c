/* Validates the memory of a call. All tensors and arrays go into one list of strided regions, and the same few rules apply
 * to each region and to each pair of regions. */
#include <stdio.h>
#include <string.h>

#include "api/args.h"
#include "core/element.h"
#include "core/overlap.h"
#include "core/require.h"

/* An upper bound of the number of regions. Each operand has up to 8: src, dst and forward_src; weight, rstd, d_weight,
 * token_sums and the struct of its norm. The call itself has at most 17: freqs or cos and sin; two cu_seqlens; ids or start
 * positions; status; d_freqs or d_inv_freq; workspace; inv_freq or phase_step; pair_axis; the arrays of operands and norms,
 * and the args; and the two results of trope_positions. */
#define MAX_MEMORY    (8 * TROPE_MAX_OPERANDS + 17)
#define MAX_WORKSPACE ((uint64_t)1 << 60)

typedef struct memory {
    trope_region region;
    int64_t first, last; /* offsets of the first and last byte from region.base */
    const char *name;    /* NULL: the struct of the operand's norm */
    const char *strides; /* the name of the caller's strides in messages; NULL if it has none */
    int operand;         /* the operand that it belongs to, or -1 */
    int is_of_norm;      /* it belongs to the operand's norm */
    int may_be_in_place; /* it is src or dst of an operand that may be in place */
    int is_workspace;
    int is_written;
} memory;

typedef struct memory_list {
    memory entries[MAX_MEMORY];
    int count;
} memory_list;

typedef struct memory_name {
    char text[48];
} memory_name;

static memory_name name_of(const memory *m)
{
    memory_name name;
    if (m->operand < 0)
        snprintf(name.text, sizeof name.text, "%s", m->name);
    else
        snprintf(name.text, sizeof name.text, "%s[%d]%s%s", m->is_of_norm ? "norms" : "operands", m->operand,
                 m->name ? "." : "", m->name ? m->name : "");
    return name;
}

/* The message names the strides if they are wrong for any address, and otherwise the address. */
static trope_status check_reach(const char *function, memory *m)
{
    const uintptr_t base = (uintptr_t)m->region.base;
    if (!trope_region_extent(&m->region, &m->first, &m->last)) {
        REQUIRE(!m->strides, TROPE_ERROR_OVERFLOW, "%s%s: an element is over 2^60 bytes away",
                m->operand < 0 ? "" : name_of(m).text, m->strides);
        return trope_fail(TROPE_ERROR_OVERFLOW, "%s: %s (%p): with its shape, an element is over 2^60 bytes away", function,
                          name_of(m).text, (const void *)base);
    }
    REQUIRE((uintptr_t)-m->first <= base && (uintptr_t)m->last <= UINTPTR_MAX - base, TROPE_ERROR_OVERFLOW,
            "%s (%p): with its shape%s, an element is outside the address space", name_of(m).text, (const void *)base,
            m->strides ? " and strides" : "");
    return TROPE_OK;
}

/* Checks one region by itself and lists it. Skips a region without elements. */
static trope_status list_memory(const char *function, memory_list *list, memory m, int64_t alignment)
{
    for (int d = 0; d < TROPE_MAX_DIMS; d++)
        if (m.region.size[d] == 0)
            return TROPE_OK;
    const uintptr_t base = (uintptr_t)m.region.base;
    REQUIRE(base % (uintptr_t)alignment == 0, TROPE_ERROR_ARGUMENT, "%s (%p) must be aligned to %lld bytes",
            name_of(&m).text, (const void *)m.region.base, (long long)alignment);
    CHECK(check_reach(function, &m));
    list->entries[list->count++] = m;
    return TROPE_OK;
}

static trope_status list_written(const char *function, memory_list *list, memory m, int64_t alignment)
{
    m.is_written = 1;
    return list_memory(function, list, m, alignment);
}

/* ---- operands ---- */

static memory tensor_memory(const trope_args *a, int i, const trope_tensor *t)
{
    memory m = {.region = {.base = t->base, .element_size = trope_element_size(a->dtype)},
                .name = t->name,
                .strides = t->layout == TROPE_STRIDED ? "_stride" : NULL,
                .operand = i};
    memcpy(m.region.size, t->size, sizeof m.region.size);
    memcpy(m.region.stride, t->stride, sizeof m.region.stride);
    return m;
}

/* Lists the tensors of an operand. In place, src and dst are one region, which is listed once. */
static trope_status list_operand(const char *function, const trope_args *a, int i, int backward, memory_list *list)
{
    const int64_t size = trope_element_size(a->dtype);
    const int may_be_in_place = !a->operands[i].shared_heads && !a->operands[i].accumulate;
    for (int role = TROPE_TENSOR_SRC; role <= TROPE_TENSOR_FORWARD_SRC; role++) {
        const trope_tensor t = trope_tensor_of(a, i, (trope_tensor_role)role, backward);
        memory m = tensor_memory(a, i, &t);
        m.is_written = role == TROPE_TENSOR_DST;
        m.may_be_in_place = may_be_in_place && role != TROPE_TENSOR_FORWARD_SRC;
        if (!t.base || (role == TROPE_TENSOR_SRC && trope_operand_is_in_place(a, i, backward)))
            continue;
        CHECK(list_memory(function, list, m, size));
        REQUIRE(!m.is_written || !trope_overlaps_itself(&m.region), TROPE_ERROR_OVERLAP,
                "operands[%d].dst_stride: dst overlaps itself", i);
    }
    return TROPE_OK;
}

/* ---- everything else: most calls have little of it, and absent memory must cost no time ---- */

static memory flat_memory(const char *name, const void *base, int64_t count, int64_t element_size)
{
    return (memory){.region = {.base = base, .size = {count, 1, 1, 1, 1}, .stride = {1}, .element_size = element_size},
                    .name = name,
                    .operand = -1};
}

/* The region of a table. A dimension with stride 0 has one entry. */
static memory table_memory(const trope_args *a, const char *name, const void *base, const int64_t *stride)
{
    const int is_gradient = base == a->d_freqs;
    const int64_t planes = is_gradient ? trope_count_planes(a) : trope_count_axes(a);
    const int64_t sizes[] = {planes, a->batch, a->angle_rows, trope_count_columns(a)};
    memory m = {.region = {.base = base, .size = {1, 1, 1, 1, 1}}, .name = name, .operand = -1};
    if ((is_gradient ? a->d_freqs_layout : a->angle_layout) == TROPE_TABLE_STRIDED)
        m.strides = is_gradient ? "d_freqs_stride" : "angle_stride";
    for (int d = 0; d < 4; d++) {
        m.region.size[d] = stride[d] ? sizes[d] : 1;
        m.region.stride[d] = stride[d];
    }
    return m;
}

static trope_status list_table(const char *function, const trope_args *a, const char *name, const void *base,
                               memory_list *list)
{
    const int64_t size = trope_element_size(a->angle_dtype);
    if (!base)
        return TROPE_OK;
    memory m = table_memory(a, name, base, a->angle_stride);
    m.region.element_size = size;
    return list_memory(function, list, m, size);
}

static trope_status list_d_freqs(const char *function, const trope_args *a, memory_list *list)
{
    const int64_t size = trope_element_size(trope_gradient_dtype(a->dtype));
    memory m = table_memory(a, "d_freqs", a->d_freqs, a->d_freqs_stride);
    m.region.element_size = size;
    CHECK(list_written(function, list, m, size));
    REQUIRE(!trope_overlaps_itself(&m.region), TROPE_ERROR_OVERLAP, "%s",
            "d_freqs_stride: d_freqs overlaps itself (a stride of 0 is allowed, and receives the sum)");
    return TROPE_OK;
}

static memory ids_memory(const trope_args *a, int64_t element_size)
{
    return (memory){.region = {.base = a->position_ids,
                               .size = {a->position_axes ? a->position_axes : 1, a->batch, a->tokens, 1, 1},
                               .stride = {a->ids_stride[0], a->ids_stride[1], a->ids_stride[2]},
                               .element_size = element_size},
                    .name = "position_ids",
                    .strides = a->ids_layout == TROPE_IDS_STRIDED ? "ids_stride" : NULL,
                    .operand = -1};
}

/* Lists contiguous host or device memory that is read, unless base is NULL. */
static trope_status list_flat(const char *function, memory_list *list, const char *name, const void *base, int64_t count,
                              int64_t element_size)
{
    return base ? list_memory(function, list, flat_memory(name, base, count, element_size), element_size) : TROPE_OK;
}

/* ---- norms ---- */

static memory norm_memory(const char *name, int i, const void *base, int64_t count, int64_t element_size)
{
    memory m = flat_memory(name, base, count, element_size);
    m.operand = i;
    m.is_of_norm = 1;
    return m;
}

static trope_status list_norm(const char *function, const trope_call *call, int i, memory_list *list)
{
    const trope_args *a = &call->args;
    const trope_norm *n = trope_norm_of(a, i);
    const trope_operand *o = &a->operands[i];
    if (!n)
        return TROPE_OK;
    const int64_t real = trope_element_size(trope_gradient_dtype(a->dtype)), heads = trope_count_heads(o),
                  weights = (n->weight_per_head ? heads : 1) * o->head_dim, tokens = a->batch * a->tokens,
                  rstds = n->scope == TROPE_NORM_TOKEN ? 1 : heads;
    if (n->weight)
        CHECK(list_memory(function, list, norm_memory("weight", i, n->weight, weights, trope_element_size(n->weight_dtype)),
                          trope_element_size(n->weight_dtype)));
    if (n->rstd) {
        memory m = norm_memory("rstd", i, n->rstd, tokens * rstds, real);
        m.is_written = n->rstd_use == TROPE_RSTD_WRITE;
        CHECK(list_memory(function, list, m, real));
    }
    if (n->d_weight)
        CHECK(list_written(function, list, norm_memory("d_weight", i, n->d_weight, weights, real), real));
    if (n->token_sums) {
        memory m = norm_memory("token_sums", i, n->token_sums, tokens, real);
        m.is_written = n->token_sums_use == TROPE_SUMS_WRITE;
        m.region.size[1] = m.is_written ? heads : n->heads_of_all_ranks;
        m.region.stride[1] = tokens;
        CHECK(list_memory(function, list, m, real));
    }
    return list_memory(function, list, norm_memory(NULL, i, call->callers_norms[i], (int64_t)n->struct_size, 1), 8);
}

static trope_status list_norms(const char *function, const trope_call *call, memory_list *list)
{
    const int count = call->args.operand_count;
    for (int i = 0; i < count; i++)
        CHECK(list_norm(function, call, i, list));
    return list_memory(function, list, flat_memory("norms", call->callers_norms, count, sizeof(void *)), 1);
}

static trope_status list_indices(const char *function, const trope_args *a, memory_list *list)
{
    const int64_t position_size = trope_index_size(a->position_dtype), cu_size = trope_index_size(a->cu_seqlens_dtype);
    const int64_t starts = a->cu_seqlens ? a->sequences : a->batch, boundaries = a->sequences + 1;
    if (a->position_ids)
        CHECK(list_memory(function, list, ids_memory(a, position_size), position_size));
    CHECK(list_flat(function, list, "start_positions", a->start_positions, starts, position_size));
    CHECK(list_flat(function, list, "cu_seqlens", a->cu_seqlens, boundaries, cu_size));
    return list_flat(function, list, "cu_seqlens_padded", a->cu_seqlens_padded, boundaries, cu_size);
}

static trope_status list_args(const char *function, const trope_args *a, const trope_args *callers, memory_list *list)
{
    return list_memory(function, list, flat_memory("args", callers, (int64_t)a->struct_size, 1), 8);
}

/* Lists host memory that the call reads before it returns. */
static trope_status list_host(const char *function, const trope_call *call, memory_list *list)
{
    const trope_args *a = &call->args;
    const int32_t pairs = trope_widest_pairs(a);
    CHECK(list_flat(function, list, "inv_freq", a->inv_freq, pairs, sizeof(double)));
    CHECK(list_flat(function, list, "phase_step", a->phase_step, pairs, sizeof(uint64_t)));
    CHECK(list_flat(function, list, "pair_axis", a->pair_axis, pairs, 1));
    const int64_t bytes = (int64_t)(a->operand_size * (uint64_t)a->operand_count);
    CHECK(list_memory(function, list, flat_memory("operands", call->callers_operands, bytes, 1), 8));
    return list_args(function, a, call->callers, list);
}

static trope_status list_results(const char *function, const trope_args *a, int backward, memory_list *list)
{
    if (a->status)
        CHECK(list_written(function, list, flat_memory("status", a->status, 1, 4), 4));
    if (!backward)
        return TROPE_OK;
    if (a->d_freqs)
        CHECK(list_d_freqs(function, a, list));
    if (a->d_inv_freq)
        CHECK(list_written(function, list, flat_memory("d_inv_freq", a->d_inv_freq, trope_widest_pairs(a), 8), 8));
    if (!a->workspace)
        return TROPE_OK;
    REQUIRE(a->workspace_size <= MAX_WORKSPACE, TROPE_ERROR_OVERFLOW, "workspace_size (%llu) must be at most 2^60",
            (unsigned long long)a->workspace_size);
    memory m = flat_memory("workspace", a->workspace, (int64_t)a->workspace_size, 1);
    m.is_workspace = 1;
    return list_written(function, list, m, 16);
}

/* ---- pairs of regions ---- */

static int can_overlap(const memory *a, const memory *b)
{
    const uintptr_t a_base = (uintptr_t)a->region.base, b_base = (uintptr_t)b->region.base;
    return a_base + (uintptr_t)a->first <= b_base + (uintptr_t)b->last &&
           b_base + (uintptr_t)b->first <= a_base + (uintptr_t)a->last;
}

/* If only a smaller workspace would not reach the other region, the message names workspace_size. */
static trope_status fail_overlap(const char *function, const memory *a, const memory *b)
{
    static const char rule[] = "memory that the call writes must not overlap its other memory";
    const memory *const writer = a->is_written ? a : b, *const other = a->is_written ? b : a;
    const memory *const workspace = a->is_workspace ? a : b, *const beside = a->is_workspace ? b : a;
    if (workspace->is_workspace &&
        (uintptr_t)workspace->region.base < (uintptr_t)beside->region.base + (uintptr_t)beside->first)
        return trope_fail(TROPE_ERROR_OVERLAP, "%s: workspace_size (%lld): workspace overlaps %s: %s", function,
                          (long long)workspace->region.size[0], name_of(beside).text, rule);
    return trope_fail(TROPE_ERROR_OVERLAP, "%s: %s overlaps %s: %s", function, name_of(writer).text, name_of(other).text,
                      a->operand == b->operand && a->may_be_in_place && b->may_be_in_place
                          ? "src and dst must have the same address and strides (in place), or not overlap"
                          : rule);
}

static trope_status check_pairs(const char *function, const memory_list *list)
{
    for (int i = 0; i < list->count; i++) {
        for (int j = i + 1; j < list->count; j++) {
            const memory *a = &list->entries[i], *b = &list->entries[j];
            if ((a->is_written || b->is_written) && can_overlap(a, b) && trope_regions_overlap(&a->region, &b->region))
                return fail_overlap(function, a, b);
        }
    }
    return TROPE_OK;
}

static trope_status list_call(const char *function, const trope_call *call, int backward, memory_list *list)
{
    const trope_args *a = &call->args;
    list->count = 0;
    for (int i = 0; i < a->operand_count && a->tokens > 0; i++)
        CHECK(list_operand(function, a, i, backward, list));
    CHECK(list_table(function, a, "freqs", a->freqs, list));
    CHECK(list_table(function, a, "cos", a->cos, list));
    CHECK(list_table(function, a, "sin", a->sin, list));
    CHECK(list_indices(function, a, list));
    CHECK(list_host(function, call, list));
    CHECK(list_results(function, a, backward, list));
    return a->norms ? list_norms(function, call, list) : TROPE_OK;
}

trope_status trope_validate_memory(const char *function, const trope_call *call, int backward)
{
    memory_list list;
    CHECK(list_call(function, call, backward, &list));
    return check_pairs(function, &list);
}

static const trope_buffer *buffer_of(const memory *m, const trope_buffer *buffers, int count)
{
    for (int i = 0; i < count; i++)
        if (m->region.base == buffers[i].base)
            return &buffers[i];
    return NULL;
}

/* Returns whether the region has as many elements as a buffer of this size. An expanded tensor has more. */
static int has_bytes(const trope_region *r, int64_t bytes)
{
    int64_t product = r->element_size;
    for (int d = 0; d < TROPE_MAX_DIMS; d++)
        if (__builtin_mul_overflow(product, r->size[d], &product))
            return 0;
    return product == bytes;
}

trope_status trope_validate_buffers(const char *function, const trope_call *call, int backward, const trope_buffer *buffers,
                                    int count)
{
    memory_list list;
    CHECK(list_call(function, call, backward, &list));
    for (int i = 0; i < list.count; i++) {
        const memory *m = &list.entries[i];
        const trope_buffer *buffer = buffer_of(m, buffers, count);
        REQUIRE(buffer, TROPE_ERROR_ARGUMENT, "%s is in none of the buffers", name_of(m).text);
        REQUIRE(m->first == 0 && m->last == buffer->bytes - 1, TROPE_ERROR_ARGUMENT,
                "%s reaches from byte %lld to byte %lld of a buffer of %lld bytes, and must fill it", name_of(m).text,
                (long long)m->first, (long long)m->last, (long long)buffer->bytes);
        REQUIRE(m->operand < 0 || has_bytes(&m->region, buffer->bytes), TROPE_ERROR_ARGUMENT,
                "%s has another number of elements than its buffer of %lld bytes", name_of(m).text,
                (long long)buffer->bytes);
    }
    return TROPE_OK;
}

trope_status trope_validate_position_memory(const char *function, const trope_args *a, const trope_args *callers,
                                            const int64_t *positions, const int32_t *sequences)
{
    const int64_t count = a->batch * a->tokens, axes = a->position_axes ? a->position_axes : 1;
    memory_list list;
    list.count = 0;
    CHECK(list_indices(function, a, &list));
    CHECK(list_args(function, a, callers, &list));
    CHECK(list_written(function, &list, flat_memory("positions", positions, count * axes, 8), 8));
    if (sequences)
        CHECK(list_written(function, &list, flat_memory("sequences", sequences, count, 4), 4));
    return check_pairs(function, &list);
}
