/* Where the tensors of a call are: all of them are listed as strided regions and checked by the same few rules. */
#include <stdio.h>
#include <string.h>

#include "api/args.h"
#include "core/require.h"
#include "core/overlap.h"

/* src, dst and input of each operand; freqs, cos, sin, ids, starts, two cu_seqlens, status, d_freqs, d_inv_freq, workspace.
 */
#define MAX_MEMORY (3 * TROPE_MAX_OPERANDS + 11)

static const int64_t element_sizes[] = {[TROPE_F32] = 4, [TROPE_F16] = 2, [TROPE_BF16] = 2, [TROPE_F64] = 8};

typedef struct memory {
    trope_region region;
    int64_t first, last; /* bytes from region.base */
    const char *name;
    const char *strides; /* what they are called, NULL = name_stride */
    int operand;         /* whose it is, -1 for none */
    int is_written;
} memory;

typedef struct memory_list {
    memory entries[MAX_MEMORY];
    int count;
} memory_list;

typedef struct memory_name {
    char text[40];
} memory_name;

static memory_name name_of(const memory *m)
{
    memory_name name;
    if (m->operand < 0)
        snprintf(name.text, sizeof name.text, "%s", m->name);
    else
        snprintf(name.text, sizeof name.text, "operands[%d].%s", m->operand, m->name);
    return name;
}

static trope_status check_reach(const char *function, memory *m)
{
    const uintptr_t base = (uintptr_t)m->region.base;
    const int reaches = trope_region_extent(&m->region, &m->first, &m->last);
    if (reaches && (uintptr_t)-m->first <= base && (uintptr_t)m->last <= UINTPTR_MAX - base)
        return TROPE_OK;
    const char *what = reaches ? "an element is outside the address space" : "an element is over 2^60 bytes away";
    if (m->strides)
        return trope_fail(TROPE_ERROR_OVERFLOW, "%s: %s: %s", function, m->strides, what);
    return trope_fail(TROPE_ERROR_OVERFLOW, "%s: %s_stride: %s", function, name_of(m).text, what);
}

/* Checks one region by itself and lists it. One without elements is nothing. */
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

static memory operand_memory(const trope_args *a, int i, const char *name, const void *base, const int64_t *stride)
{
    const trope_operand *o = &a->operands[i];
    memory m = {.region = {.base = base,
                           .size = {a->batch, a->tokens, o->groups, o->heads_per_group, o->head_dim},
                           .element_size = element_sizes[a->dtype]},
                .name = name,
                .operand = i};
    memcpy(m.region.stride, stride, sizeof m.region.stride);
    return m;
}

static trope_status list_operand(const char *function, const trope_args *a, int i, int wants_gradient, memory_list *list)
{
    const trope_operand *o = &a->operands[i];
    const int64_t size = element_sizes[a->dtype];
    REQUIRE(o->src, TROPE_ERROR_NULL, "operands[%d].src is NULL", i);
    REQUIRE(o->dst || wants_gradient, TROPE_ERROR_NULL, "operands[%d].dst is NULL", i);
    CHECK(list_memory(function, list, operand_memory(a, i, "src", o->src, o->src_stride), size));
    if (o->dst) {
        const memory dst = operand_memory(a, i, "dst", o->dst, o->dst_stride);
        CHECK(list_written(function, list, dst, size));
        REQUIRE(!trope_overlaps_itself(&dst.region), TROPE_ERROR_OVERLAP, "operands[%d].dst_stride: dst overlaps itself",
                i);
    }
    if (!wants_gradient || !o->rotary_dim)
        return TROPE_OK;
    REQUIRE(o->input, TROPE_ERROR_NULL, "operands[%d].input is NULL, and the gradient of the angles needs it", i);
    return list_memory(function, list, operand_memory(a, i, "input", o->input, o->input_stride), size);
}

/* ---- everything else: most calls have little of it, and what is not given should take no time ---- */

static memory flat_memory(const char *name, const void *base, int64_t count, int64_t element_size)
{
    return (memory){.region = {.base = base, .size = {count, 1, 1, 1, 1}, .stride = {1}, .element_size = element_size},
                    .name = name,
                    .operand = -1};
}

static memory table_memory(const trope_args *a, const char *name, const void *base, int64_t element_size)
{
    return (memory){.region = {.base = base,
                               .size = {a->angle_batch_stride ? a->batch : 1, a->angle_rows, a->angle_cols, 1, 1},
                               .stride = {a->angle_batch_stride, a->angle_row_stride, 1},
                               .element_size = element_size},
                    .name = name,
                    .strides = "angle_row_stride or angle_batch_stride",
                    .operand = -1};
}

static trope_status list_tables(const char *function, const trope_args *a, memory_list *list)
{
    const int64_t size = element_sizes[a->angle_dtype];
    if (a->freqs)
        CHECK(list_memory(function, list, table_memory(a, "freqs", a->freqs, size), size));
    if (a->cos)
        CHECK(list_memory(function, list, table_memory(a, "cos", a->cos, size), size));
    if (a->sin)
        CHECK(list_memory(function, list, table_memory(a, "sin", a->sin, size), size));
    return TROPE_OK;
}

static memory ids_memory(const trope_args *a, int64_t element_size)
{
    return (memory){.region = {.base = a->position_ids,
                               .size = {a->position_axes, a->batch, a->tokens, 1, 1},
                               .stride = {a->position_axis_stride, a->position_batch_stride, a->position_token_stride},
                               .element_size = element_size},
                    .name = "position_ids",
                    .strides = "position_axis_stride, position_batch_stride or position_token_stride",
                    .operand = -1};
}

static trope_status list_indices(const char *function, const trope_args *a, memory_list *list)
{
    const int64_t position_size = a->position_dtype == TROPE_I64 ? 8 : 4,
                  cu_size = a->cu_seqlens_dtype == TROPE_I64 ? 8 : 4;
    const int64_t starts = a->cu_seqlens ? a->sequences : a->batch, boundaries = a->sequences + 1;
    if (a->position_ids)
        CHECK(list_memory(function, list, ids_memory(a, position_size), position_size));
    if (a->start_positions)
        CHECK(list_memory(function, list, flat_memory("start_positions", a->start_positions, starts, position_size),
                          position_size));
    if (a->cu_seqlens)
        CHECK(list_memory(function, list, flat_memory("cu_seqlens", a->cu_seqlens, boundaries, cu_size), cu_size));
    if (a->cu_seqlens_padded)
        CHECK(list_memory(function, list, flat_memory("cu_seqlens_padded", a->cu_seqlens_padded, boundaries, cu_size),
                          cu_size));
    return TROPE_OK;
}

static trope_status list_results(const char *function, const trope_args *a, int backward, memory_list *list)
{
    const int64_t gradient_size = a->dtype == TROPE_F64 ? 8 : 4;
    const int64_t workspace = a->workspace_size > INT64_MAX ? INT64_MAX : (int64_t)a->workspace_size;
    int32_t rotary_dim = 0;
    for (int i = 0; i < a->operand_count; i++)
        rotary_dim = a->operands[i].rotary_dim > rotary_dim ? a->operands[i].rotary_dim : rotary_dim;
    if (a->status)
        CHECK(list_written(function, list, flat_memory("status", a->status, 1, 4), 4));
    if (!backward)
        return TROPE_OK;
    if (a->d_freqs)
        CHECK(list_written(function, list, table_memory(a, "d_freqs", a->d_freqs, gradient_size), gradient_size));
    if (a->d_inv_freq)
        CHECK(list_written(function, list, flat_memory("d_inv_freq", a->d_inv_freq, rotary_dim / 2, 8), 8));
    if (a->workspace)
        CHECK(list_written(function, list, flat_memory("workspace", a->workspace, workspace, 1), 16));
    return TROPE_OK;
}

/* ---- pairs ---- */

/* src and dst of one operand that are the same tensor. */
static int are_in_place(const memory *a, const memory *b)
{
    if (a->operand < 0 || a->operand != b->operand || a->region.base != b->region.base || a->is_written == b->is_written)
        return 0;
    for (int d = 0; d < TROPE_MAX_DIMS; d++)
        if (a->region.size[d] > 1 && a->region.stride[d] != b->region.stride[d])
            return 0;
    return strcmp(a->name, "input") && strcmp(b->name, "input");
}

static int can_overlap(const memory *a, const memory *b)
{
    const uintptr_t a_base = (uintptr_t)a->region.base, b_base = (uintptr_t)b->region.base;
    return a_base + (uintptr_t)a->first <= b_base + (uintptr_t)b->last &&
           b_base + (uintptr_t)b->first <= a_base + (uintptr_t)a->last;
}

static trope_status check_pairs(const char *function, const memory_list *list)
{
    for (int i = 0; i < list->count; i++) {
        for (int j = i + 1; j < list->count; j++) {
            const memory *a = &list->entries[i], *b = &list->entries[j];
            if ((!a->is_written && !b->is_written) || !can_overlap(a, b) || are_in_place(a, b))
                continue;
            const memory *writer = a->is_written ? a : b, *other = a->is_written ? b : a;
            REQUIRE(!trope_regions_overlap(&a->region, &b->region), TROPE_ERROR_OVERLAP, "%s overlaps %s: %s",
                    name_of(writer).text, name_of(other).text,
                    a->operand >= 0 && a->operand == b->operand ? "must be the same tensor, with the same strides, or apart"
                                                                : "nothing else of the call may be where it writes");
        }
    }
    return TROPE_OK;
}

trope_status trope_validate_memory(const char *function, const trope_args *a, int backward)
{
    const int wants_gradient = backward && (a->d_freqs || a->d_inv_freq);
    memory_list list;
    list.count = 0;
    for (int i = 0; i < a->operand_count && a->batch > 0 && a->tokens > 0; i++) /* otherwise no element exists */
        CHECK(list_operand(function, a, i, wants_gradient, &list));
    CHECK(list_tables(function, a, &list));
    CHECK(list_indices(function, a, &list));
    CHECK(list_results(function, a, backward, &list));
    return check_pairs(function, &list);
}

trope_status trope_validate_index_memory(const char *function, const trope_args *a)
{
    memory_list list;
    list.count = 0;
    return list_indices(function, a, &list);
}
