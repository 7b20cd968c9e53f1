/* From the names of a file's tensors to groups of those that belong together. */
#include <stdlib.h>
#include <string.h>

#include "apply.h"
#include "command.h"

static const struct {
    const char *name;
    apply_role role;
} known_names[] = {
    {"q", APPLY_Q},
    {"k", APPLY_K},
    {"x", APPLY_X},
    {"v", APPLY_V},
    {"freqs", APPLY_FREQS},
    {"freqs_cis", APPLY_FREQS_CIS},
    {"cos", APPLY_COS},
    {"sin", APPLY_SIN},
    {"inv_freq", APPLY_INV_FREQ},
    {"cu_seqlens", APPLY_CU_SEQLENS},
    {"cu_seqlens_padded", APPLY_CU_SEQLENS_PADDED},
    {"start_positions", APPLY_START_POSITIONS},
    {"position_ids", APPLY_POSITION_IDS},
    /* As frameworks have them. */
    {"query", APPLY_Q},
    {"query_states", APPLY_Q},
    {"q_pe", APPLY_Q},
    {"key", APPLY_K},
    {"key_states", APPLY_K},
    {"k_pe", APPLY_K},
    {"value", APPLY_V},
    {"value_states", APPLY_V},
    {"rotary_pos_emb", APPLY_FREQS},
};

#define ALL_NAMES                                                                                                          \
    "q, k, x, v, freqs, freqs_cis, cos, sin, inv_freq, cu_seqlens, cu_seqlens_padded, start_positions, position_ids"

/* The bytes of a name before its last word: "model.layers.3." of "model.layers.3.q". */
static size_t prefix_length(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? (size_t)(dot + 1 - name) : 0;
}

/* APPLY_ROLES for a name that no rule knows. */
static apply_role role_of(const char *name)
{
    for (size_t i = 0; i < sizeof known_names / sizeof known_names[0]; i++)
        if (!strcmp(known_names[i].name, name + prefix_length(name)))
            return known_names[i].role;
    return APPLY_ROLES;
}

/* How much of a name has to begin an operand's name for the tensor to go with it. Modules of this name hold the angles of
 * the module that they are in. */
static size_t scope_length(const char *name)
{
    static const char *const modules[] = {"rotary_emb.", "rotary_pos_emb."};
    const size_t length = prefix_length(name);
    for (size_t i = 0; i < 2; i++) {
        const size_t own = strlen(modules[i]);
        if (length >= own && !strncmp(name + length - own, modules[i], own))
            return length - own;
    }
    return length;
}

static const char *any_operand(const apply_group *group)
{
    int i = 0;
    while (!group->tensors[i])
        i++;
    return group->tensors[i]->name;
}

/* The group whose operands have the prefix of `name`; a new one if there is none. */
static apply_group *group_of(apply_groups *groups, const char *name)
{
    const size_t length = prefix_length(name);
    for (int32_t i = 0; i < groups->count; i++) {
        const char *other = any_operand(&groups->groups[i]);
        if (prefix_length(other) == length && !strncmp(other, name, length))
            return &groups->groups[i];
    }
    return &groups->groups[groups->count++];
}

static int add(const safetensors *file, apply_group *group, apply_role role, const safetensor *tensor)
{
    if (group->tensors[role])
        return complain_about(file->path, tensor->name, "and '%.64s' may both be meant for '%.64s'",
                              group->tensors[role]->name, any_operand(group));
    group->tensors[role] = tensor;
    return 0;
}

/* Gives a tensor to each group that it goes with, and loads it. */
static int share(const safetensors *file, apply_groups *groups, apply_role role, safetensor *tensor)
{
    int used = 0;
    for (int32_t i = 0; i < groups->count; i++) {
        if (strncmp(any_operand(&groups->groups[i]), tensor->name, scope_length(tensor->name)))
            continue;
        if (add(file, &groups->groups[i], role, tensor))
            return RESULT_REFUSED;
        used = 1;
    }
    if (!used)
        return complain_about(file->path, tensor->name, "goes with no q, k, x or v: none has a name that begins alike");
    return safetensors_load(file, tensor);
}

int apply_find_groups(const safetensors *file, apply_groups *groups)
{
    memset(groups, 0, sizeof *groups);
    groups->groups = calloc((size_t)file->count + 1, sizeof *groups->groups);
    if (!groups->groups)
        return complain("out of memory");
    for (int32_t i = 0; i < file->count; i++) {
        const safetensor *tensor = &file->tensors[i];
        const apply_role role = role_of(tensor->name);
        if (role == APPLY_ROLES)
            return complain_about(file->path, tensor->name, "unknown name, the last word must be one of " ALL_NAMES);
        if (role < APPLY_OPERANDS && add(file, group_of(groups, tensor->name), role, tensor))
            return RESULT_REFUSED;
    }
    if (!groups->count)
        return complain_about(file->path, NULL, "must hold at least one of the tensors q, k, x, v");
    for (int32_t i = 0; i < file->count; i++) {
        const apply_role role = role_of(file->tensors[i].name);
        if (role >= APPLY_OPERANDS && share(file, groups, role, &file->tensors[i]))
            return RESULT_REFUSED;
    }
    return 0;
}
