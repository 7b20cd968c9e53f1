#include "gradcheck/problem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/number.h"
#include "support/tensor.h"

static config_choices choose(uint64_t seed, const uint8_t (*fixed)[2], int count)
{
    const uint8_t always[][2] = {{OPTION_PLACE, PLACE_OUT}, {OPTION_GRADIENT, GRADIENT_TOO}};
    uint8_t all[OPTION_COUNT][2];
    memcpy(all, always, sizeof always);
    if (count)
        memcpy(all[2], fixed, (size_t)count * sizeof *fixed);
    for (random_state random = {seed};; random_bits(&random)) {
        const config_choices choices = config_choose_with(random.state, (const uint8_t(*)[2])all, count + 2);
        if (choices.value[OPTION_RANGE] != RANGE_POISON && choices.value[OPTION_SOURCE] != SOURCE_BROADCAST)
            return choices;
    }
}

double problem_element_error(const problem *p)
{
    static const double units[] = {
        [TROPE_F32] = 0x1p-24, [TROPE_F16] = 0x1p-11, [TROPE_BF16] = 0x1p-8, [TROPE_F64] = 0x1p-53};
    const int32_t dtype = p->forward.dtype;
    const double v = dtype == TROPE_F64 ? 0x1p-53 : 0x1p-24, roundings = p->forward.rounding == TROPE_ROUND_NATIVE ? 4 : 1;
    return p->amplitude * (roundings * units[dtype] + 3 * v) + number_half_ulp(dtype, 0);
}

double problem_load(const problem *p, const char *element)
{
    return number_load(p->forward.dtype, element);
}

/* cos and sin are at most 1 in magnitude in every config, so |y| <= m (|x1| + |x2|). */
static void find_amplitude(problem *p)
{
    double greatest = 0;
    for (int64_t i = 0; i < p->count; i++)
        greatest = fmax(greatest, fmax(fabs(problem_load(p, p->x[i])), fabs(problem_load(p, p->dy[i]))));
    const double m = p->forward.mscale != 0 ? fabs(p->forward.mscale) : 1;
    p->amplitude = 2 * greatest * fmax(m, 0.5);
}

problem *problem_make(uint64_t seed, const uint8_t (*fixed)[2], int count)
{
    problem *p = calloc(1, sizeof *p);
    const config_choices choices = choose(seed, fixed, count);
    p->c = config_make(seed, &choices);
    p->backward = config_args(p->c, 1);
    p->forward = config_args(p->c, 0);
    for (int i = 0; i < p->forward.operand_count; i++) {
        trope_operand *o = &p->forward.operands[i];
        p->count += tensor_count(&p->forward, o);
        if (!p->c->args.operands[i].input)
            continue;
        o->src = p->c->args.operands[i].input;
        memcpy(o->src_stride, o->input_stride, sizeof o->src_stride);
    }
    p->x = malloc((size_t)p->count * sizeof *p->x);
    p->dy = malloc((size_t)p->count * sizeof *p->dy);
    p->dst = malloc((size_t)p->count * sizeof *p->dst);
    const int64_t size = (int64_t)number_size(p->forward.dtype);
    int64_t at = 0;
    for (int i = 0; i < p->forward.operand_count; i++) {
        const trope_operand *f = &p->forward.operands[i], *b = &p->backward.operands[i];
        for (int64_t j = 0; j < tensor_count(&p->forward, f); j++, at++) {
            p->x[at] = (char *)(uintptr_t)f->src + tensor_offset(&p->forward, f, f->src_stride, j) * size;
            p->dy[at] = (char *)(uintptr_t)b->src + tensor_offset(&p->forward, b, b->src_stride, j) * size;
            p->dst[at] = (char *)b->dst + tensor_offset(&p->forward, b, b->dst_stride, j) * size;
        }
    }
    find_amplitude(p);
    return p;
}

void problem_free(problem *p)
{
    config_free(p->c);
    free(p->x);
    free(p->dy);
    free(p->dst);
    free(p);
}

void problem_print(const problem *p, const char *test)
{
    char description[2048];
    config_describe(p->c, description, sizeof description);
    printf("    %s --seed 0x%llx --count 1\n    %s\n", test, (unsigned long long)p->c->seed, description);
}
