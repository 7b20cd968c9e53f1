#include "support/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/reference.h"

/* ---- Options ---- */

#define MAX_VALUES 7

static const struct {
    const char *name;
    const char *values[MAX_VALUES + 1];
} options[OPTION_COUNT] = {
    [OPTION_DTYPE] = {"dtype", {"f32", "f16", "bf16", "f64"}},
    [OPTION_ROUNDING] = {"rounding", {"once", "native", "native-f32"}},
    [OPTION_PAIRING] = {"pairing", {"half", "interleaved", "half-to-interleaved", "interleaved-to-half"}},
    [OPTION_PARTS] = {"parts", {"1", "2", "3", "4"}},
    [OPTION_AXES] = {"axes", {"parts", "sections", "interleaved", "alternating", "hwt", "random"}},
    [OPTION_ANGLES] = {"angles", {"freqs", "table", "inv_freq", "phase_step"}},
    [OPTION_COLUMNS] = {"columns", {"pair", "half", "interleaved"}},
    [OPTION_ANGLE_DTYPE] = {"angle_dtype", {"f32", "f16", "bf16", "f64"}},
    [OPTION_TABLE] = {"table", {"rows", "batch-rows", "axes-batch-rows", "padded", "any-order", "collapsed", "complex"}},
    [OPTION_SEQUENCES] = {"sequences", {"none", "exact", "gaps", "padded", "padded-gaps"}},
    [OPTION_CU_DTYPE] = {"cu_dtype", {"i32", "i64"}},
    [OPTION_PADDING] = {"padding", {"none", "zero", "copy", "rotate"}},
    [OPTION_CP] = {"cp", {"none", "contiguous", "zigzag", "striped", "flat"}},
    [OPTION_POSITIONS] = {"positions", {"index", "start", "stream", "ids", "ids-axes"}},
    [OPTION_POSITION_DTYPE] = {"position_dtype", {"i32", "i64"}},
    [OPTION_IDS] = {"ids", {"axes-batch-tokens", "batch-tokens", "tokens", "strided", "shared"}},
    [OPTION_RANGE] = {"range", {"inside", "clamp", "poison"}},
    [OPTION_DIRECTION] = {"direction", {"forward", "inverse"}},
    [OPTION_MSCALE] = {"mscale", {"default", "one", "random"}},
    [OPTION_OPERANDS] = {"operands", {"1", "2", "3", "4", "many"}},
    [OPTION_HEADS] = {"heads", {"one", "many", "groups", "packed-qkv"}},
    [OPTION_WINDOW] = {"window", {"whole", "front", "back", "middle"}},
    [OPTION_SIZE] = {"size", {"tiny", "odd", "vectors"}},
    [OPTION_PLACE] = {"place", {"out", "in", "each"}},
    [OPTION_LAYOUT] = {"layout", {"sbhd", "bshd", "bhsd", "thd", "any-order", "gaps"}},
    [OPTION_GIVEN_BY] = {"given_by", {"layouts", "strides", "each"}},
    [OPTION_SOURCE] = {"source", {"like-destination", "other", "broadcast", "reversed"}},
    [OPTION_ELEMENTS] = {"elements", {"adjacent", "strided"}},
    [OPTION_SHARED] = {"shared", {"none", "group", "all", "each"}},
    [OPTION_ACCUMULATE] = {"accumulate", {"none", "all", "each"}},
    [OPTION_GRADIENT] = {"gradient", {"none", "too", "only"}},
    [OPTION_GRADIENT_TABLE] = {"gradient_table", {"like-table", "rows", "batch-rows", "axes-batch-rows", "strided"}},
    [OPTION_NORM] = {"norm", {"none", "all", "each", "alone"}},
    [OPTION_NORM_SCOPE] = {"norm_scope", {"head", "token"}},
    [OPTION_NORM_ORDER] = {"norm_order", {"before", "after"}},
    [OPTION_WEIGHT] = {"weight", {"none", "f32", "f16", "bf16", "f64"}},
    [OPTION_WEIGHT_HEADS] = {"weight_heads", {"same", "own"}},
    [OPTION_WEIGHT_PLUS] = {"weight_plus", {"zero", "one"}},
    [OPTION_NORM_ROUNDING] = {"norm_rounding", {"twice", "product"}},
    [OPTION_RSTD] = {"rstd", {"none", "write", "read"}},
    [OPTION_D_WEIGHT] = {"d_weight", {"none", "too", "only"}},
    [OPTION_SUMS] = {"sums", {"none", "read", "write"}},
    [OPTION_STRUCTS] = {"structs", {"own", "larger"}},
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

/* Whether the choices give every pair the first axis. */
static int has_one_axis(const uint8_t *v)
{
    return v[OPTION_AXES] == AXES_PARTS && v[OPTION_PARTS] == 0;
}

static void repair_angles(uint8_t *v)
{
    if (v[OPTION_ANGLES] >= ANGLES_INV_FREQ) {
        v[OPTION_COLUMNS] = COLUMNS_PAIR;
        v[OPTION_ANGLE_DTYPE] = DTYPE_F32;
        v[OPTION_TABLE] = TABLE_ROWS;
        v[OPTION_RANGE] = RANGE_INSIDE;
    }
    if (v[OPTION_ANGLE_DTYPE] == DTYPE_F64 && v[OPTION_DTYPE] != DTYPE_F64)
        v[OPTION_ANGLE_DTYPE] = DTYPE_F32;
    if (v[OPTION_TABLE] == TABLE_COMPLEX && v[OPTION_ANGLES] != ANGLES_TABLE)
        v[OPTION_TABLE] = TABLE_PADDED;
    if (v[OPTION_TABLE] == TABLE_AXES_BATCH_ROWS && has_one_axis(v))
        v[OPTION_TABLE] = TABLE_BATCH_ROWS;
    if (v[OPTION_GRADIENT_TABLE] == GRADIENT_AXES_BATCH_ROWS && has_one_axis(v))
        v[OPTION_GRADIENT_TABLE] = GRADIENT_BATCH_ROWS;
    if (v[OPTION_ANGLES] >= ANGLES_INV_FREQ || v[OPTION_GRADIENT] == GRADIENT_NONE)
        v[OPTION_GRADIENT_TABLE] = GRADIENT_LIKE_TABLE;
}

static void repair_sequences(uint8_t *v)
{
    if (v[OPTION_SEQUENCES] == SEQUENCES_NONE) {
        v[OPTION_CU_DTYPE] = INDEX_I32;
        v[OPTION_PADDING] = 0;
        if (v[OPTION_POSITIONS] == POSITIONS_STREAM)
            v[OPTION_POSITIONS] = POSITIONS_INDEX;
    }
    if (v[OPTION_SEQUENCES] > SEQUENCES_EXACT && v[OPTION_PADDING] == 0)
        v[OPTION_PADDING] = TROPE_PADDING_ZERO;
}

static void repair_positions(uint8_t *v)
{
    if (has_one_axis(v) && v[OPTION_POSITIONS] == POSITIONS_IDS_AXES)
        v[OPTION_POSITIONS] = POSITIONS_IDS;
    if (v[OPTION_POSITIONS] == POSITIONS_INDEX || v[OPTION_POSITIONS] == POSITIONS_STREAM)
        v[OPTION_POSITION_DTYPE] = INDEX_I32;
    if (v[OPTION_POSITIONS] < POSITIONS_IDS)
        v[OPTION_IDS] = IDS_AXES_BATCH_TOKENS;
    if (v[OPTION_POSITIONS] == POSITIONS_IDS_AXES && (v[OPTION_IDS] == IDS_BATCH_TOKENS || v[OPTION_IDS] == IDS_TOKENS))
        v[OPTION_IDS] = IDS_AXES_BATCH_TOKENS;
    if (v[OPTION_POSITIONS] == POSITIONS_IDS && v[OPTION_IDS] == IDS_AXES_BATCH_TOKENS && !has_one_axis(v))
        v[OPTION_IDS] = IDS_BATCH_TOKENS; /* ids with one axis for all pairs */
    /* The library refuses a table if the shapes alone imply that it is too short. */
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
        v[OPTION_SHARED] = SHARED_NONE;
    }
    if (v[OPTION_GRADIENT] == GRADIENT_ONLY || v[OPTION_D_WEIGHT] == D_WEIGHT_ONLY || v[OPTION_SUMS] == SUMS_WRITE) {
        v[OPTION_PLACE] = PLACE_OUT;
        v[OPTION_ACCUMULATE] = ACCUMULATE_NONE;
    }
    if (v[OPTION_PLACE] == PLACE_IN) {
        v[OPTION_SOURCE] = SOURCE_LIKE_DESTINATION;
        v[OPTION_SHARED] = SHARED_NONE;
        v[OPTION_ACCUMULATE] = ACCUMULATE_NONE;
    }
}

/* Clears options that have no effect: sets them to 0. */
static void clear_options(uint8_t *v, const uint8_t *of, size_t count)
{
    for (size_t i = 0; i < count; i++)
        v[of[i]] = 0;
}

/* Backward with sums reads rstd. A call that writes sums has no gradients. */
static void repair_sums(uint8_t *v)
{
    if (v[OPTION_NORM_SCOPE] + TROPE_NORM_HEAD != TROPE_NORM_TOKEN)
        v[OPTION_SUMS] = SUMS_NONE;
    if (v[OPTION_SUMS] == SUMS_WRITE &&
        (v[OPTION_GRADIENT] != GRADIENT_NONE || (v[OPTION_D_WEIGHT] != D_WEIGHT_NONE && v[OPTION_NORM] != NORM_EACH)))
        v[OPTION_SUMS] = SUMS_READ;
    if (v[OPTION_SUMS] != SUMS_NONE && v[OPTION_RSTD] == RSTD_NONE)
        v[OPTION_RSTD] = RSTD_READ;
}

static void repair_norms(uint8_t *v)
{
    static const uint8_t of_norm[] = {OPTION_RSTD,         OPTION_WEIGHT,      OPTION_D_WEIGHT,
                                      OPTION_WEIGHT_HEADS, OPTION_WEIGHT_PLUS, OPTION_NORM_ROUNDING,
                                      OPTION_NORM_ORDER,   OPTION_NORM_SCOPE,  OPTION_SUMS},
                         of_rotation[] = {OPTION_PAIRING, OPTION_PARTS,       OPTION_AXES,   OPTION_ANGLES,
                                          OPTION_COLUMNS, OPTION_ANGLE_DTYPE, OPTION_TABLE,  OPTION_POSITIONS,
                                          OPTION_RANGE,   OPTION_DIRECTION,   OPTION_WINDOW, OPTION_MSCALE,
                                          OPTION_GRADIENT};
    if (v[OPTION_NORM] == NORM_NONE)
        clear_options(v, of_norm, sizeof of_norm);
    else if (v[OPTION_NORM] == NORM_ALL || v[OPTION_SHARED] != SHARED_EACH)
        v[OPTION_SHARED] = SHARED_NONE;
    if (v[OPTION_WEIGHT] == WEIGHT_NONE)
        clear_options(v, of_norm + 2, 4);
    if (v[OPTION_WEIGHT] == WEIGHT_F64 && v[OPTION_DTYPE] != DTYPE_F64)
        v[OPTION_WEIGHT] = WEIGHT_F32;
    if (v[OPTION_ROUNDING] == TROPE_ROUND_ONCE)
        v[OPTION_NORM_ROUNDING] = 0;
    if (v[OPTION_NORM] == NORM_ALONE)
        clear_options(v, of_rotation, sizeof of_rotation);
    repair_sums(v);
}

void config_repair(config_choices *choices)
{
    repair_norms(choices->value);
    repair_angles(choices->value);
    repair_sequences(choices->value);
    repair_positions(choices->value);
    repair_tensors(choices->value);
}

config_choices config_choose(uint64_t seed)
{
    return config_choose_with(seed, NULL, 0);
}

int config_try(random_state *random, const uint8_t (*fixed)[2], int count, config_choices *choices)
{
    int holds = 1;
    choices->times = 1;
    choices->sequences = 0;
    choices->pairs = 0;
    choices->heads = 0;
    choices->specials = 0;
    for (int option = 0; option < OPTION_COUNT; option++)
        choices->value[option] = (uint8_t)random_between(random, 0, config_value_count(option) - 1);
    if (choices->value[OPTION_OPERANDS] == OPERANDS_MANY && random_between(random, 0, 5)) /* many operands take long */
        choices->value[OPTION_OPERANDS] = (uint8_t)random_between(random, 0, 1);
    if (random_between(random, 0, 2)) /* so that a quarter of all calls have norms */
        choices->value[OPTION_NORM] = NORM_NONE;
    for (int i = 0; i < count; i++)
        choices->value[fixed[i][0]] = fixed[i][1];
    config_repair(choices);
    for (int i = 0; i < count; i++)
        holds &= choices->value[fixed[i][0]] == fixed[i][1];
    return holds;
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

/* ---- Calls of a config ---- */

/* Clears the layout and strides of a tensor that is NULL. */
static void say_nothing(int32_t *layout, int64_t *stride)
{
    *layout = 0;
    memset(stride, 0, TROPE_MAX_DIMS * sizeof *stride);
}

static void leave_out_rstd(trope_norm *norm)
{
    norm->rstd = NULL;
    norm->rstd_use = 0;
}

/* Removes dst and its layout. An operand that writes sums has no dst. */
static void leave_out_dst(trope_operand *o)
{
    o->dst = NULL;
    say_nothing(&o->dst_layout, o->dst_stride);
}

static void leave_out_gradient(call *k)
{
    for (int i = 0; i < k->args.operand_count; i++) {
        const int32_t sums = k->norm[i].token_sums_use;
        if (sums == TROPE_SUMS_WRITE)
            leave_out_dst(&k->operands[i]);
        if (sums == TROPE_SUMS_WRITE || (sums && k->norm[i].rstd_use == TROPE_RSTD_READ))
            leave_out_rstd(&k->norm[i]);
        k->norm[i].d_weight = NULL;
        k->operands[i].forward_src = NULL;
        say_nothing(&k->operands[i].forward_src_layout, k->operands[i].forward_src_stride);
    }
    k->args.d_freqs = NULL;
    k->args.d_freqs_layout = 0;
    memset(k->args.d_freqs_stride, 0, sizeof k->args.d_freqs_stride);
    k->args.d_inv_freq = NULL;
    k->args.workspace = NULL;
    k->args.workspace_size = 0;
}

/* A backward call for sums, or only for gradients of angles or weights, has no dst. No backward call writes rstd. */
static void leave_out_results(const config *c, call *k)
{
    const uint8_t *v = c->choices.value;
    for (int i = 0; i < k->args.operand_count; i++) {
        const int32_t sums = k->norm[i].token_sums_use;
        if (v[OPTION_GRADIENT] == GRADIENT_ONLY || (v[OPTION_D_WEIGHT] == D_WEIGHT_ONLY && k->norm[i].d_weight) ||
            sums == TROPE_SUMS_WRITE)
            leave_out_dst(&k->operands[i]);
        if (sums)
            k->norm[i].rstd_use = TROPE_RSTD_READ;
        else if (k->norm[i].rstd_use == TROPE_RSTD_WRITE)
            leave_out_rstd(&k->norm[i]);
    }
}

call config_call(const config *c, int backward)
{
    call k = {.args = c->args};
    memcpy(k.operands, c->operands[backward != 0], sizeof k.operands);
    memcpy(k.norm, c->norms, sizeof k.norm);
    if (backward)
        leave_out_results(c, &k);
    else
        leave_out_gradient(&k);
    return k;
}

/* The structs of a later version. They have more fields, which are all 0. */
typedef struct larger_operand {
    trope_operand operand;
    int64_t more[3];
} larger_operand;

typedef struct larger_norm {
    trope_norm norm;
    int64_t more[4];
} larger_norm;

typedef struct larger_args {
    trope_args args;
    int64_t more[5];
} larger_args;

trope_status config_run(const config *c, const trope_args *args, int backward)
{
    larger_operand operands[TROPE_MAX_OPERANDS];
    larger_norm norm[TROPE_MAX_OPERANDS];
    const trope_norm *norms[TROPE_MAX_OPERANDS];
    larger_args larger = {.args = *args};
    if (c->choices.value[OPTION_STRUCTS] == STRUCTS_OWN)
        return backward ? trope_backward(args) : trope_forward(args);
    memset(operands, 0, sizeof operands);
    memset(norm, 0, sizeof norm);
    for (int i = 0; i < args->operand_count; i++) {
        operands[i].operand = args->operands[i];
        norms[i] = args->norms && args->norms[i] ? &norm[i].norm : NULL;
        if (norms[i]) {
            norm[i].norm = *args->norms[i];
            norm[i].norm.struct_size = sizeof norm[i];
        }
    }
    larger.args.norms = norms; /* all entries are NULL without norms */
    larger.args.struct_size = sizeof larger;
    larger.args.operands = &operands[0].operand;
    larger.args.operand_size = sizeof operands[0];
    return backward ? trope_backward(&larger.args) : trope_forward(&larger.args);
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

void config_rebase(const config *c, call *k, unsigned char *const *bases)
{
    trope_args *a = call_args(k);
    for (int i = 0; i < a->operand_count; i++) {
        k->operands[i].src = moved(c, k->operands[i].src, bases);
        k->operands[i].dst = moved(c, k->operands[i].dst, bases);
        k->operands[i].forward_src = moved(c, k->operands[i].forward_src, bases);
        k->norm[i].weight = moved(c, k->norm[i].weight, bases);
        k->norm[i].rstd = moved(c, k->norm[i].rstd, bases);
        k->norm[i].d_weight = moved(c, k->norm[i].d_weight, bases);
        k->norm[i].token_sums = moved(c, k->norm[i].token_sums, bases);
    }
    a->freqs = moved(c, a->freqs, bases);
    a->cos = moved(c, a->cos, bases);
    a->sin = moved(c, a->sin, bases);
    a->start_positions = moved(c, a->start_positions, bases);
    a->position_ids = moved(c, a->position_ids, bases);
    a->cu_seqlens = moved(c, a->cu_seqlens, bases);
    a->cu_seqlens_padded = moved(c, a->cu_seqlens_padded, bases);
    a->status = moved(c, a->status, bases);
    a->d_freqs = moved(c, a->d_freqs, bases);
    a->d_inv_freq = moved(c, a->d_inv_freq, bases);
    a->workspace = moved(c, a->workspace, bases);
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
    for (int i = 0; i < a->operand_count && used < (int)size; i++) {
        const trope_operand *o = &a->operands[i];
        used += snprintf(text + used, size - (size_t)used, " [%dx%dx%d, %d at %d%s%s%s]", o->groups, o->heads_per_group,
                         o->head_dim, o->rotary_dim, o->rotary_offset,
                         o->shared_heads == TROPE_SHARED_ALL     ? ", all shared"
                         : o->shared_heads == TROPE_SHARED_GROUP ? ", shared"
                                                                 : "",
                         o->accumulate ? ", accumulated" : "", c->norms[i].struct_size ? ", normed" : "");
    }
}
