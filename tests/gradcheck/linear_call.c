#include "gradcheck/gradcheck.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/tensor.h"

static config_choices choose(uint64_t seed, const uint8_t (*fixed)[2], int count)
{
    const uint8_t always[][2] = {{OPTION_PLACE, PLACE_OUT},
                                 {OPTION_GRADIENT, GRADIENT_TOO},
                                 {OPTION_ACCUMULATE, ACCUMULATE_NONE},
                                 {OPTION_RSTD, RSTD_NONE}};
    uint8_t all[OPTION_COUNT][2];
    memcpy(all, always, sizeof always);
    if (count)
        memcpy(all[4], fixed, (size_t)count * sizeof *fixed);
    for (random_state random = {seed};; random_bits(&random)) {
        const config_choices choices = config_choose_with(random.state, (const uint8_t(*)[2])all, count + 4);
        if (choices.value[OPTION_RANGE] != RANGE_POISON && choices.value[OPTION_SOURCE] != SOURCE_BROADCAST &&
            choices.value[OPTION_D_WEIGHT] != D_WEIGHT_ONLY)
            return choices;
    }
}

double linear_element_error(const linear_call *p)
{
    static const double units[] = {
        [TROPE_F32] = 0x1p-24, [TROPE_F16] = 0x1p-11, [TROPE_BF16] = 0x1p-8, [TROPE_F64] = 0x1p-53};
    const trope_args *a = &p->forward.args;
    const double v = a->dtype == TROPE_F64 ? 0x1p-53 : 0x1p-24, levels = ceil(log2(p->heads));
    const double roundings = a->rounding == TROPE_ROUND_NATIVE ? 4 : 1;
    return p->amplitude * (roundings * units[a->dtype] + (3 + levels) * v) + number_half_ulp(a->dtype, 0);
}

double *linear_load(const linear_call *p, char *const *address, int64_t count)
{
    double *const values = malloc((size_t)count * sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = number_load(p->forward.args.dtype, address[i]);
    return values;
}

/* |n(x)| is below sqrt(head_dim) times the greatest |weight|, which is at most 2 (with weight_plus_one). */
static double greatest_normalised(const linear_call *p)
{
    double greatest = 0;
    for (int i = 0; i < p->forward.args.operand_count; i++)
        if (p->forward.norm[i].struct_size)
            greatest = fmax(greatest, 2 * sqrt(p->forward.operands[i].head_dim));
    return greatest;
}

/* |cos| and |sin| are at most 1 in every config, so |y| <= m (|x1| + |x2|). With a norm, n(x) replaces x. */
static void find_amplitude(linear_call *p)
{
    double *const x = linear_load(p, p->x, p->inputs), *const dy = linear_load(p, p->dy, p->outputs);
    double greatest = greatest_normalised(p);
    for (int64_t i = 0; i < p->inputs; i++)
        greatest = fmax(greatest, fabs(x[i]));
    for (int64_t i = 0; i < p->outputs; i++)
        greatest = fmax(greatest, fabs(dy[i]));
    free(x);
    free(dy);
    const double m = p->forward.args.mscale != 0 ? fabs(p->forward.args.mscale) : 1;
    p->amplitude = 2 * greatest * fmax(m, 0.5);
}

static void find_heads(linear_call *p)
{
    p->heads = 1;
    for (int i = 0; i < p->forward.args.operand_count; i++) {
        const trope_operand *o = &p->forward.operands[i];
        int heads = o->shared_heads ? o->heads_per_group : 1;
        if (o->shared_heads == TROPE_SHARED_ALL && o->groups)
            heads *= o->groups;
        p->heads = heads > p->heads ? heads : p->heads;
    }
}

/* Returns the addresses of all elements of one tensor of every operand. *count receives their number. */
static char **list_elements(call *k, tensor_role role, int backward, int64_t *count)
{
    const trope_args *args = call_args(k);
    const int64_t size = (int64_t)number_size(args->dtype);
    int64_t at = 0;
    *count = 0;
    for (int i = 0; i < args->operand_count; i++) {
        const tensor t = tensor_of(args, i, role, backward);
        *count += tensor_count(&t);
    }
    char **address = malloc((size_t)*count * sizeof *address);
    for (int i = 0; i < args->operand_count; i++) {
        const tensor t = tensor_of(args, i, role, backward);
        for (int64_t j = 0; j < tensor_count(&t); j++)
            address[at++] = (char *)(uintptr_t)t.base + tensor_offset(&t, j) * size;
    }
    return address;
}

linear_call *linear_make(uint64_t seed, const uint8_t (*fixed)[2], int count)
{
    linear_call *p = calloc(1, sizeof *p);
    const config_choices choices = choose(seed, fixed, count);
    p->c = config_make(seed, &choices);
    p->backward = config_call(p->c, 1);
    p->forward = config_call(p->c, 0);
    for (int i = 0; i < p->forward.args.operand_count; i++) {
        trope_operand *o = &p->forward.operands[i];
        const trope_operand *from = &p->backward.operands[i];
        if (!from->forward_src)
            continue;
        o->src = from->forward_src;
        o->src_layout = from->forward_src_layout;
        memcpy(o->src_stride, from->forward_src_stride, sizeof o->src_stride);
    }
    p->x = list_elements(&p->forward, TENSOR_SRC, 0, &p->inputs);
    p->dx = list_elements(&p->backward, TENSOR_DST, 1, &p->inputs);
    p->y = list_elements(&p->forward, TENSOR_DST, 0, &p->outputs);
    p->dy = list_elements(&p->backward, TENSOR_SRC, 1, &p->outputs);
    find_amplitude(p);
    find_heads(p);
    return p;
}

void linear_free(linear_call *p)
{
    config_free(p->c);
    free(p->x);
    free(p->dx);
    free(p->y);
    free(p->dy);
    free(p);
}
