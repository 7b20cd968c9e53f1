/* This file is compiled several times. NUMERICS_BUILD is the name of the struct that it defines. */
#include "numerics/kernels.h"

#include "core/sincos.h"

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)

static void sincos_loop(int count, const float *restrict angle, float *restrict sine, float *restrict cosine)
{
    for (int i = 0; i < count; i++)
        trope_sincos(angle[i], &sine[i], &cosine[i]);
}

static void sincos_phase_loop(int count, const uint32_t *restrict phase, float *restrict sine, float *restrict cosine)
{
    for (int i = 0; i < count; i++)
        trope_sincos_quarter(trope_reduce_phase(phase[i]), &sine[i], &cosine[i]);
}

static void fma_loop(int count, const float (*operands)[3], float *restrict result)
{
    for (int i = 0; i < count; i++)
        result[i] = trope_fma(operands[i][0], operands[i][1], operands[i][2]);
}

const numerics_kernels NUMERICS_BUILD = {TEXT(NUMERICS_BUILD), sincos_loop, sincos_phase_loop, fma_loop};
