#include "bench_calls.h"

#include "bench_problem.h"
#include "command.h"

/* Distance between two areas: larger than the area of any case. */
#define AREA_DISTANCE ((uintptr_t)1 << 40)

static int visit_problem(const bench_case *c, int32_t dtype, int (*visit)(void *context, const bench_made_call *call),
                         void *context)
{
    static const bench_sizes as_they_are = {0};
    char name[64];
    bench_problem p;
    bench_call call;
    void *area[AREA_COUNT];
    for (int i = 0; i < AREA_COUNT; i++)
        area[i] = (void *)((uintptr_t)(i + 1) * AREA_DISTANCE);
    if (bench_plan(&p, c, dtype, &as_they_are) || bench_bind(&p, area, &call))
        return RESULT_REFUSED;
    call.args.device = TROPE_DEVICE_CUDA;
    call.args.workspace_size = bench_reads_forward(p.c) ? AREA_DISTANCE : 0;
    bench_name(c, dtype, name, sizeof name);
    const bench_made_call made = {name, &call.args, p.c->backward};
    return visit(context, &made);
}

int bench_visit_cuda_calls(int (*visit)(void *context, const bench_made_call *call), void *context)
{
    const bench_table table = bench_cuda_cases();
    int result = table.count ? 0 : complain("out of memory");
    for (int i = 0; i < table.count && !result; i++)
        for (int32_t dtype = TROPE_F32; dtype <= TROPE_F64 && !result; dtype++)
            if (table.cases[i].dtypes & BENCH_TYPE(dtype))
                result = visit_problem(&table.cases[i], dtype, visit, context);
    return result;
}
