/* Makes the program of a call (plan_call.cuh), and launches its kernel. */
#include "fwd/cuda/compiled.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/require.h"
#include "fwd/cuda/plan_call.cuh"
#include "jit/jit.h"

/* ---- the program ---- */

#define PROGRAM_BYTES 16384

struct program_text {
    char *text;
    size_t used;

    void add(const char *format, ...) __attribute__((format(printf, 2, 3)))
    {
        va_list arguments;
        va_start(arguments, format);
        const int count = vsnprintf(text + used, PROGRAM_BYTES - used, format, arguments);
        va_end(arguments);
        used = std::min(used + (size_t)std::max(count, 0), (size_t)PROGRAM_BYTES - 1);
    }

    void add_constant(const char *name, int32_t value)
    {
        add("    static __device__ __forceinline__ constexpr int32_t %s() { return %d; }\n", name, value);
    }

    /* Adds a function of an index. Its values are selected by comparisons, because an indexed array would be in memory. */
    template <typename VALUE> void add_list(const char *type, const char *name, int count, VALUE value)
    {
        add("    static __device__ __forceinline__ constexpr %s %s(int i) { return ", type, name);
        for (int i = 0; i + 1 < count; i++)
            add("i == %d ? (%s)%lld : ", i, type, (long long)value(i));
        add("(%s)%lld; }\n", type, (long long)value(count - 1));
    }
};

/* Returns the text of the program of a call, in memory of malloc. `key` is its call_constants. */
static char *make_program(const void *key)
{
    const call_constants &c = *(const call_constants *)key;
    const call_values none = {};
    const generic_call<TROPE_BF16> call = {none, c};
    const uint32_t made = made_by_thread(call), words = (uint32_t)quotient_up(c.pairs, 16);
    program_text p = {(char *)malloc(PROGRAM_BYTES), 0};
    if (!p.text)
        return NULL;
    p.add("#include \"fwd/cuda/block.cuh\"\n"
          "struct this_call {\n"
          "    static constexpr int DTYPE = %d, ROOM = %d, AXIS_WORDS = %u, MADE = %u;\n"
          "    const call_values &values;\n",
          c.dtype, c.operands, words, made);
#define ONE(name)  p.add_constant(#name, c.name);
#define EACH(name) p.add_list("int32_t", #name, c.operands, [&](int i) { return c.operand[i].name; });
    TROPE_CALL_CONSTANTS(ONE)
    TROPE_OPERAND_CONSTANTS(EACH)
#undef ONE
#undef EACH
    p.add_list("uint32_t", "axis_bits", (int)words, [&](int i) { return c.axis_bits[i]; });
    p.add("};\n"
          "extern \"C\" __global__ void __launch_bounds__(%d, %u)\n"
          "trope_kernel(KERNEL_PARAMETER(call_values) values, KERNEL_PARAMETER(call_steps<CALL_PAIRS>) steps)\n"
          "{\n"
          "    rotate_block(this_call{values}, steps.of);\n"
          "}\n",
          c.items_of_block * c.tokens_of_block, blocks_of_multiprocessor(c));
    return p.text;
}

/* ---- the launch ---- */

static bool describe(const trope_plan &plan, planned_call *call)
{
    const trope_jit_mode mode = trope_jit_get_mode();
    return mode != TROPE_JIT_OFF && describe_call(plan, mode == TROPE_JIT_ALL, call);
}

static trope_status find_kernel(const char *function, const planned_call &call, const void **kernel)
{
    const trope_jit_request request = {&call.constants, sizeof call.constants, "trope_kernel", make_program};
    const trope_jit_kernel *found = NULL;
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess)
        return TROPE_OK;
    const trope_status status = trope_jit_find(function, &request, device, &found);
    *kernel = status || !found ? NULL : found->function;
    return status;
}

trope_status trope_cuda_rotate_compiled(const char *function, const trope_plan *plan, int *has_run)
{
    planned_call call;
    const void *kernel = NULL;
    *has_run = 0;
    if (!describe(*plan, &call))
        return TROPE_OK;
    const trope_status status = find_kernel(function, call, &kernel);
    if (status || !kernel)
        return status;
    *has_run = 1;
    static_assert(CALL_PAIRS <= TROPE_MAX_PAIRS, "the plan has room for as many steps as the parameter");
    void *arguments[] = {&call.values, plan->step, &call.constants}; /* the last one is for the emulation */
    const cudaError_t error = launch_early(facts_of_device(), kernel, call.blocks, call.threads, call.shared_memory_bytes,
                                           plan->stream, arguments);
    return error == cudaSuccess ? TROPE_OK : fail_cuda(function, error);
}

int trope_cuda_name_compiled(const trope_plan *plan, char *name, size_t size)
{
    static const char *const positions[] = {"from-tokens", "read", "searched"}, *const coefficients[] = {"shared",
                                                                                                         "loaded"};
    planned_call call;
    const void *kernel = NULL;
    if (!describe(*plan, &call) || find_kernel("trope_kernel_name", call, &kernel) || !kernel)
        return 0;
    const call_constants &c = call.constants;
    snprintf(name, size, "cuda-%s-compiled-%s-%s-%s",
             c.dtype == TROPE_BF16  ? "bf16"
             : c.dtype == TROPE_F16 ? "f16"
                                    : "f32",
             positions[c.positions], c.angles == TROPE_ANGLES_PHASE ? "phase" : "table", coefficients[c.coefficients]);
    return 1;
}
