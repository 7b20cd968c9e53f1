/* trope_compile with the machine's NVRTC: the device code that the library contains compiles with its own standard headers.
 * Skipped if there is no NVRTC. */
#define _GNU_SOURCE 1
#include <fenv.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include "jit/compile.h"
#include "support/check.h"

/* A kernel that uses each of these headers. It needs the constant OPERANDS. */
static const char kernel[] =
    "#include \"core/cuda/elements.cuh\"\n"
    "#include \"core/rotate.h\"\n"
    "#include \"core/sincos.h\"\n"
    "#include \"varlen/cuda/search.cuh\"\n"
    "#include \"varlen/cuda/tokens.cuh\"\n"
    "extern \"C\" __global__ void __launch_bounds__(128) trope_kernel(KERNEL_PARAMETER(trope_plan) plan)\n"
    "{\n"
    "    __shared__ uint4 memory[64];\n"
    "    block_tokens<int32_t> tokens((char *)memory, 32, true, 0);\n"
    "    const int64_t first = 32 * block_of_grid();\n"
    "    const auto locate = [&](uint32_t i, int64_t *batch, int64_t *token) { *batch = 0, *token = first + i; };\n"
    "    if (thread_of_block() < 32) {\n"
    "        const boundary_round round = begin_search<POSITIONS_SEARCHED, false>(plan, true);\n"
    "        search_positions<POSITIONS_SEARCHED, false, true>(plan, round, first, 32, tokens, locate);\n"
    "        decide_actions<POSITIONS_SEARCHED, true>(plan, TROPE_TOKEN_ZERO, 32, tokens, 32);\n"
    "    }\n"
    "    __syncthreads();\n"
    "    const float angle = 0.001f * (float)tokens.position[thread_of_warp()];\n"
    "    trope_coefficients t;\n"
    "    trope_sincos(angle, &t.s1, &t.c1);\n"
    "    t.s2 = t.s1, t.c2 = t.c1;\n"
    "    for (int i = 0; i < OPERANDS; i++) {\n"
    "        vector_pair<TROPE_BF16> x;\n"
    "        x.load(plan.operands[i].src, plan.operands[i].src + 16);\n"
    "        const trope_pair from = {x.of_pair<false>(0, 0), x.of_pair<false>(0, 1)};\n"
    "        const trope_pair y = rotate_pair<TROPE_BF16>(TROPE_ROUND_ONCE, from, t);\n"
    "        const float pairs[2][2] = {{y.first, y.first}, {y.second, y.second}};\n"
    "        x.set_pairs<2, false>(0, pairs);\n"
    "        x.store(plan.operands[i].dst, plan.operands[i].dst + 16);\n"
    "    }\n"
    "}\n";

static trope_cubin compile(const trope_nvrtc *nvrtc, const char *constants, const char *text, int32_t architecture,
                           const char *expected)
{
    trope_cubin cubin;
    char program[8192], why[512] = "";
    snprintf(program, sizeof program, "%s%s", constants, text);
    const int is_compiled = trope_compile(nvrtc, program, architecture, &cubin, why, sizeof why);
    CHECK_MESSAGE(is_compiled == !*expected && strstr(why, expected), "%s instead of %s", why, expected);
    CHECK(is_compiled == (cubin.code != NULL) && !strchr(why, '\n'));
    if (is_compiled) {
        CHECK(cubin.bytes > 64 && !memcmp(cubin.code, "\177ELF", 4) && cubin.code[18] == (char)190); /* EM_CUDA */
        CHECK(memmem(cubin.code, cubin.bytes, "trope_kernel", 12));
        CHECK(!memmem(cubin.code, cubin.bytes, ".target", 7)); /* it is machine code without PTX */
    }
    return cubin;
}

static int are_equal(const trope_cubin *a, const trope_cubin *b)
{
    return a->bytes == b->bytes && a->code && b->code && !memcmp(a->code, b->code, a->bytes);
}

static void check_kernels(const trope_nvrtc *nvrtc)
{
    trope_cubin two = compile(nvrtc, "#define OPERANDS 2\n", kernel, 90, "");
    trope_cubin again = compile(nvrtc, "#define OPERANDS 2\n", kernel, 90, "");
    trope_cubin three = compile(nvrtc, "#define OPERANDS 3\n", kernel, 90, "");
    trope_cubin older = compile(nvrtc, "#define OPERANDS 2\n", kernel, 80, "");
    CHECK(are_equal(&two, &again) && !are_equal(&two, &three) && !are_equal(&two, &older));
    free(again.code), free(three.code), free(older.code);
    free(two.code);
}

/* The caller's rounding and flushing to zero do not change the constants of a kernel. */
static void check_environment(const trope_nvrtc *nvrtc)
{
    static const char constants[] = "extern \"C\" __global__ void trope_kernel(float *x, double *y)\n"
                                    "{\n"
                                    "    x[0] = 0.1f * 0.3f, x[1] = 1e-30f * 1e-12f, x[2] = 1.2345678901f;\n"
                                    "    x[3] = 1.0f / 3.0f, x[4] = 1e-42f * 2.0f, x[5] = (float)0.1;\n"
                                    "    y[0] = 0.1 * 0.3, y[1] = 1.0 / 3, y[2] = 2.34567890123456789;\n"
                                    "    constexpr float z = 0.1f * 0.7f;\n"
                                    "    x[6] = z, x[7] = sqrtf(2.0f), y[3] = sin(0.5);\n"
                                    "}\n";
    fenv_t before;
    CHECK(!fegetenv(&before));
    trope_cubin nearest = compile(nvrtc, "", constants, 90, "");
    CHECK(!fesetround(FE_UPWARD));
#if defined(__SSE2__)
    _mm_setcsr(_mm_getcsr() | 0x8040);
#endif
    trope_cubin upward = compile(nvrtc, "", constants, 90, "");
    CHECK(fegetround() == FE_UPWARD);
    CHECK(!fesetenv(&before));
    CHECK(are_equal(&nearest, &upward));
    free(nearest.code), free(upward.code);
}

static void check_failures(const trope_nvrtc *nvrtc)
{
    static const char warns_first[] = "__global__ void f()\n{\n    int unused;\n    nothing();\n}\n";
    compile(nvrtc, "", kernel, 90, "NVRTC_ERROR_COMPILATION: ");
    compile(nvrtc, "", kernel, 90, "\"OPERANDS\" is undefined");
    compile(nvrtc, "", warns_first, 90, "\"nothing\" is undefined");
    compile(nvrtc, "#define OPERANDS 2\n", kernel, 11, "gpu-architecture");
    compile(nvrtc, "#include \"core/no_such_header.h\"\n", "", 90, "no_such_header");
}

int main(void)
{
    const locale_t locale = uselocale((locale_t)0);
    const trope_nvrtc *nvrtc = trope_nvrtc_at(0);
    if (!nvrtc) {
        printf("skipped: %s\n", trope_nvrtc_fault());
        return 77;
    }
    for (int i = 0; (nvrtc = trope_nvrtc_at(i)); i++) {
        printf("NVRTC %d.%d: %s\n", nvrtc->version / 1000, nvrtc->version % 1000 / 10, nvrtc->path);
        check_kernels(nvrtc);
        check_environment(nvrtc);
        check_failures(nvrtc);
        CHECK(uselocale((locale_t)0) == locale); /* NVRTC 12.2 changes it */
    }
    return check_result();
}
