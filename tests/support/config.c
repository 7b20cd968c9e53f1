#include "support/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/reference.h"

/* ---- Options ---- */

#define MAX_VALUES 6

static const struct {
    const char *name;
    const char *values[MAX_VALUES + 1];
} options[OPTION_COUNT] = {
    [OPTION_DTYPE] = {"dtype", {"f32", "f16", "bf16", "f64"}},
    [OPTION_ROUNDING] = {"rounding", {"once", "native"}},
    [OPTION_PAIRING] = {"pairing", {"default", "half", "interleaved", "half-to-interleaved", "interleaved-to-half"}},
    [OPTION_AXES] = {"axes", {"one", "2-windows", "3-windows", "sections", "interleaved"}},
    [OPTION_ANGLES] = {"angles", {"freqs", "table", "inv_freq"}},
    [OPTION_ANGLE_COLS] = {"cols", {"half", "full"}},
    [OPTION_ANGLE_DTYPE] = {"angle_dtype", {"f32", "operands"}},
    [OPTION_ANGLE_STRIDES] = {"angle_strides", {"dense", "row", "batch", "row-batch"}},
    [OPTION_SEQUENCES] = {"sequences", {"none", "exact", "gaps", "padded", "padded-gaps"}},
    [OPTION_CU_DTYPE] = {"cu_dtype", {"i32", "i64"}},
    [OPTION_PADDING] = {"padding", {"zero", "copy", "rotate"}},
    [OPTION_CP] = {"cp", {"none", "contiguous", "zigzag", "striped", "flat"}},
    [OPTION_POSITIONS] = {"positions", {"index", "start", "packed", "ids", "ids-axes"}},
    [OPTION_POSITION_DTYPE] = {"position_dtype", {"i32", "i64"}},
    [OPTION_ID_STRIDES] = {"id_strides", {"dense", "shared", "strided"}},
    [OPTION_RANGE] = {"range", {"inside", "clamp", "poison"}},
    [OPTION_TURN] = {"turn", {"forward", "inverse"}},
    [OPTION_MSCALE] = {"mscale", {"default", "one", "random"}},
    [OPTION_OPERANDS] = {"operands", {"1", "2", "3", "4"}},
    [OPTION_HEADS] = {"heads", {"one", "many", "groups", "packed-qkv"}},
    [OPTION_WINDOW] = {"window", {"whole", "front", "back", "middle"}},
    [OPTION_SIZE] = {"size", {"tiny", "odd", "vectors"}},
    [OPTION_PLACE] = {"place", {"out", "in", "each"}},
    [OPTION_LAYOUT] = {"layout", {"sbhd", "bshd", "bhsd", "thd", "any-order", "gaps"}},
    [OPTION_SOURCE] = {"source", {"like-destination", "other", "broadcast", "reversed"}},
    [OPTION_ELEMENTS] = {"elements", {"adjacent", "strided"}},
    [OPTION_GRADIENT] = {"gradient", {"none", "too", "only"}},
};

const char *config_option_name(int option)
{
    return options[option].name;
}

const char *config_value_name(int option, int value)
{
    return options[option].values[value];
}

int config_value_count(int option)
{
    int count = 0;
    while (options[option].values[count])
        count++;
    return count;
}

static void repair_angles(uint8_t *v)
{
    const int is_f64 = v[OPTION_DTYPE] == TROPE_F64;
    if (v[OPTION_ANGLES] == ANGLES_INV_FREQ) {
        v[OPTION_ANGLE_COLS] = COLS_HALF;
        v[OPTION_ANGLE_DTYPE] = ANGLE_F32;
        v[OPTION_ANGLE_STRIDES] = ANGLE_DENSE;
        v[OPTION_RANGE] = RANGE_INSIDE;
    }
    if (v[OPTION_ANGLES] == ANGLES_FREQS && !is_f64)
        v[OPTION_ANGLE_DTYPE] = ANGLE_F32;
}

static void repair_positions(uint8_t *v)
{
    if (v[OPTION_SEQUENCES] == SEQUENCES_NONE) {
        v[OPTION_CU_DTYPE] = TROPE_I32;
        v[OPTION_PADDING] = TROPE_PADDING_ZERO;
        if (v[OPTION_POSITIONS] == POSITIONS_PACKED)
            v[OPTION_POSITIONS] = POSITIONS_INDEX;
    }
    if (v[OPTION_AXES] == AXES_ONE && v[OPTION_POSITIONS] == POSITIONS_IDS_AXES)
        v[OPTION_POSITIONS] = POSITIONS_IDS;
    if (v[OPTION_POSITIONS] == POSITIONS_INDEX || v[OPTION_POSITIONS] == POSITIONS_PACKED)
        v[OPTION_POSITION_DTYPE] = TROPE_I32;
    if (v[OPTION_POSITIONS] < POSITIONS_IDS)
        v[OPTION_ID_STRIDES] = IDS_DENSE;
    /* A table that is too short for the shapes alone is refused. */
    if (v[OPTION_SEQUENCES] == SEQUENCES_NONE && v[OPTION_POSITIONS] == POSITIONS_INDEX && v[OPTION_RANGE] == RANGE_POISON)
        v[OPTION_RANGE] = RANGE_INSIDE;
}

static void repair_tensors(uint8_t *v)
{
    if (v[OPTION_HEADS] == HEADS_PACKED_QKV) {
        if (v[OPTION_OPERANDS] != 1)
            v[OPTION_OPERANDS] = 2;
        if (v[OPTION_LAYOUT] == LAYOUT_BHSD || v[OPTION_LAYOUT] > LAYOUT_THD)
            v[OPTION_LAYOUT] = LAYOUT_SBHD;
        v[OPTION_SOURCE] = SOURCE_LIKE_DESTINATION;
        v[OPTION_ELEMENTS] = ELEMENTS_ADJACENT;
    }
    if (v[OPTION_GRADIENT] == GRADIENT_ONLY)
        v[OPTION_PLACE] = PLACE_OUT;
    if (v[OPTION_PLACE] == PLACE_IN)
        v[OPTION_SOURCE] = SOURCE_LIKE_DESTINATION;
}

void config_repair(config_choices *choices)
{
    repair_angles(choices->value);
    repair_positions(choices->value);
    repair_tensors(choices->value);
}

config_choices config_choose(uint64_t seed)
{
    return config_choose_with(seed, NULL, 0);
}

int config_try(random_state *random, const uint8_t (*fixed)[2], int count, config_choices *choices)
{
    int held = 1;
    choices->times = 1;
    choices->sequences = 0;
    choices->specials = 0;
    for (int option = 0; option < OPTION_COUNT; option++)
        choices->value[option] = (uint8_t)random_between(random, 0, config_value_count(option) - 1);
    for (int i = 0; i < count; i++)
        choices->value[fixed[i][0]] = fixed[i][1];
    config_repair(choices);
    for (int i = 0; i < count; i++)
        held &= choices->value[fixed[i][0]] == fixed[i][1];
    return held;
}

config_choices config_choose_with(uint64_t seed, const uint8_t (*fixed)[2], int count)
{
    random_state random = {seed};
    config_choices choices;
    for (int attempt = 0; attempt < 10000; attempt++)
        if (config_try(&random, fixed, count, &choices))
            return choices;
    fprintf(stderr, "config_choose_with: the fixed options contradict each other\n");
    abort();
}

/* ---- Using ---- */

trope_args config_args(const config *c, int backward)
{
    trope_args args = c->args;
    if (backward) {
        for (int i = 0; i < args.operand_count && c->choices.value[OPTION_GRADIENT] == GRADIENT_ONLY; i++)
            args.operands[i].dst = NULL;
        return args;
    }
    for (int i = 0; i < args.operand_count; i++)
        args.operands[i].input = NULL;
    args.d_freqs = NULL;
    args.d_inv_freq = NULL;
    args.workspace = NULL;
    args.workspace_size = 0;
    return args;
}

void config_reset(config *c)
{
    for (int i = 0; i < c->buffer_count; i++)
        memcpy(c->buffers[i].bytes, c->buffers[i].initial, c->buffers[i].size);
}

int config_buffer_of(const config *c, const void *address)
{
    const uintptr_t at = (uintptr_t)address;
    for (int i = 0; i < c->buffer_count; i++) {
        const uintptr_t begin = (uintptr_t)c->buffers[i].bytes;
        if (at >= begin && (at < begin + c->buffers[i].size || (at == begin && c->buffers[i].size == 0)))
            return i;
    }
    return -1;
}

static void *moved(const config *c, const void *address, unsigned char *const *bases)
{
    const int i = address ? config_buffer_of(c, address) : -1;
    return i < 0 ? NULL : bases[i] + ((const unsigned char *)address - c->buffers[i].bytes);
}

void config_rebase(const config *c, trope_args *args, unsigned char *const *bases)
{
    for (int i = 0; i < args->operand_count; i++) {
        args->operands[i].src = moved(c, args->operands[i].src, bases);
        args->operands[i].dst = moved(c, args->operands[i].dst, bases);
        args->operands[i].input = moved(c, args->operands[i].input, bases);
    }
    args->freqs = moved(c, args->freqs, bases);
    args->cos = moved(c, args->cos, bases);
    args->sin = moved(c, args->sin, bases);
    args->start_positions = moved(c, args->start_positions, bases);
    args->position_ids = moved(c, args->position_ids, bases);
    args->cu_seqlens = moved(c, args->cu_seqlens, bases);
    args->cu_seqlens_padded = moved(c, args->cu_seqlens_padded, bases);
    args->status = moved(c, args->status, bases);
    args->d_freqs = moved(c, args->d_freqs, bases);
    args->d_inv_freq = moved(c, args->d_inv_freq, bases);
    args->workspace = moved(c, args->workspace, bases);
}

void config_describe(const config *c, char *text, size_t size)
{
    const trope_args *a = &c->args;
    int used =
        snprintf(text, size, "batch=%lld tokens=%lld rotary=%d rows=%lld cp=%d/%d mscale=%g", (long long)a->batch,
                 (long long)a->tokens, 2 * reference_pairs(a), (long long)a->angle_rows, a->cp_rank, a->cp_size, a->mscale);
    for (int option = 0; option < OPTION_COUNT && used < (int)size; option++)
        used += snprintf(text + used, size - (size_t)used, " %s=%s", config_option_name(option),
                         config_value_name(option, c->choices.value[option]));
    for (int i = 0; i < a->operand_count && used < (int)size; i++)
        used += snprintf(text + used, size - (size_t)used, " [%dx%dx%d, %d at %d]", a->operands[i].groups,
                         a->operands[i].heads_per_group, a->operands[i].head_dim, a->operands[i].rotary_dim,
                         a->operands[i].rotary_offset);
}
