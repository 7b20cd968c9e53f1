/* Compiled kernels on a GPU: the real compiler, cache and driver. A kernel is loaded and launched alone, during stream
 * capture in each mode, on each device, in a context that is made anew, and with much shared memory. The driver refuses
 * machine code of another architecture. Skipped without a GPU or NVRTC. */
#define _GNU_SOURCE 1
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "jit/cache.h"
#include "jit/driver.h"
#include "jit/jit.h"
#include "jit/nvrtc.h"
#include "support/check.h"

enum { COUNT = 256, SHARED_BYTES = 90 << 10 };

#define CUDA(call)                                                                                                         \
    do {                                                                                                                   \
        const cudaError_t error_ = (call);                                                                                 \
        CHECK_MESSAGE(!error_, "%s: %s", #call, cudaGetErrorString(error_));                                               \
    } while (0)

/* The kernel multiplies by a constant. */
static char *make_program(const void *key)
{
    char *text = NULL;
    const int32_t *factor = key;
    return asprintf(&text,
                    "#include \"core/rotate.h\"\n"
                    "extern \"C\" __global__ void trope_kernel(float *x)\n"
                    "{\n"
                    "    extern __shared__ float memory[];\n"
                    "    memory[threadIdx.x] = x[threadIdx.x];\n"
                    "    __syncthreads();\n"
                    "    x[threadIdx.x] = trope_mul(memory[threadIdx.x], %d.0f);\n"
                    "}\n",
                    *factor) < 0
               ? NULL
               : text;
}

static const trope_jit_kernel *find(int32_t factor, int device)
{
    const trope_jit_request request = {&factor, sizeof factor, "trope_kernel", make_program};
    const trope_jit_kernel *kernel = NULL;
    CHECK(!trope_jit_find("test", &request, device, &kernel));
    CHECK_MESSAGE(kernel && kernel->function, "factor %d: %s", factor, kernel && kernel->why ? kernel->why : "");
    return kernel;
}

static void launch(const trope_jit_kernel *kernel, float *x, size_t shared_bytes, cudaStream_t stream)
{
    void *arguments[] = {&x};
    cudaLaunchConfig_t config;
    memset(&config, 0, sizeof config);
    config.gridDim.x = config.gridDim.y = config.gridDim.z = 1;
    config.blockDim.x = COUNT;
    config.blockDim.y = config.blockDim.z = 1;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    CUDA(cudaLaunchKernelExC(&config, kernel->function, arguments));
}

static void expect_values(const float *x, float factor, const char *when)
{
    float values[COUNT];
    int wrong = 0;
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpy(values, x, sizeof values, cudaMemcpyDeviceToHost));
    for (int i = 0; i < COUNT; i++)
        wrong += values[i] != (float)(i + 1) * factor;
    CHECK_MESSAGE(!wrong, "%s: %d wrong values", when, wrong);
}

static float *make_values(void)
{
    float *x = NULL, values[COUNT];
    for (int i = 0; i < COUNT; i++)
        values[i] = (float)(i + 1);
    CUDA(cudaMalloc((void **)&x, sizeof values));
    CUDA(cudaMemcpy(x, values, sizeof values, cudaMemcpyHostToDevice));
    return x;
}

static void check_launch(int32_t factor, int device, size_t shared_bytes, const char *when)
{
    const trope_jit_kernel *kernel = find(factor, device);
    float *x = make_values();
    if (kernel && kernel->function && x) {
        if (shared_bytes > 48 << 10)
            CUDA(cudaFuncSetAttribute(kernel->function, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes));
        launch(kernel, x, shared_bytes, NULL);
        expect_values(x, (float)factor, when);
    }
    CUDA(cudaFree(x));
}

/* The kernel is compiled and loaded while a stream captures. */
static void check_capture(int32_t factor, enum cudaStreamCaptureMode mode, const char *when)
{
    float *x = make_values();
    cudaStream_t stream;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t ready;
    CUDA(cudaStreamCreate(&stream));
    CUDA(cudaStreamBeginCapture(stream, mode));
    const trope_jit_kernel *kernel = find(factor, 0);
    if (kernel && kernel->function)
        launch(kernel, x, sizeof(float) * COUNT, stream);
    CUDA(cudaStreamEndCapture(stream, &graph));
    if (CHECK(graph)) {
        CUDA(cudaGraphInstantiate(&ready, graph, 0));
        CUDA(cudaGraphLaunch(ready, stream));
        expect_values(x, (float)factor, when);
        CUDA(cudaGraphExecDestroy(ready));
        CUDA(cudaGraphDestroy(graph));
    }
    CUDA(cudaStreamDestroy(stream));
    CUDA(cudaFree(x));
}

static void check_devices(int devices)
{
    for (int device = 0; device < devices; device++) {
        CUDA(cudaSetDevice(device));
        check_launch(2, device, sizeof(float) * COUNT, "each device");
        check_launch(2, device, SHARED_BYTES, "much shared memory");
    }
    CUDA(cudaSetDevice(0));
}

/* The driver must refuse these at once, not at a launch. */
static void check_refusals(void)
{
    const int32_t here = trope_cuda_driver.architecture(0), other = here == 80 ? 90 : 80, factor = 3;
    const trope_nvrtc *nvrtc = trope_nvrtc_at(0);
    char *program = make_program(&factor), why[512] = "";
    trope_cubin cubin = {.code = NULL};
    CHECK_MESSAGE(trope_compile(nvrtc, program, other, &cubin, why, sizeof why), "%s", why);
    CHECK(!trope_cuda_driver.load(0, cubin.code, cubin.bytes, "trope_kernel", why, sizeof why));
    printf("sm_%d on sm_%d: %s\n", (int)other, (int)here, why);
    free(cubin.code);
    CHECK_MESSAGE(trope_compile(nvrtc, program, here, &cubin, why, sizeof why), "%s", why);
    CHECK(!trope_cuda_driver.load(0, cubin.code, cubin.bytes, "no_kernel", why, sizeof why));
    printf("another name: %s\n", why);
    CHECK(trope_cuda_driver.load(0, cubin.code, cubin.bytes, "trope_kernel", why, sizeof why));
    memset(cubin.code, 0, 64);
    CHECK(!trope_cuda_driver.load(0, cubin.code, cubin.bytes, "trope_kernel", why, sizeof why));
    printf("damaged: %s\n", why);
    free(cubin.code);
    free(program);
    CUDA(cudaGetLastError());
    check_launch(4, 0, sizeof(float) * COUNT, "after refusals");
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Prints how long the first call takes, with an empty cache and from a file. */
static void time_first_calls(void)
{
    for (int32_t factor = 20; factor < 23; factor++) {
        const double begin = seconds();
        find(factor, 0);
        printf("a new kernel: %.1f ms\n", 1e3 * (seconds() - begin));
    }
}

static void remove_folder(const char *folder)
{
    char command[256];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    CHECK(!system(command));
}

int main(int count, char **arguments)
{
    char folder[] = "/tmp/trope-jit-XXXXXX";
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || !devices || !trope_nvrtc_at(0)) {
        printf("skipped: %s\n", devices ? trope_nvrtc_fault() : "no GPU");
        return 77;
    }
    if (count == 1) { /* the first process; the second has the folder as an argument */
        if (!CHECK(mkdtemp(folder)))
            return check_result();
        setenv("TROPE_CACHE", folder, 1);
    }
    time_first_calls();
    check_capture(10, cudaStreamCaptureModeGlobal, "capture, global");
    check_capture(11, cudaStreamCaptureModeThreadLocal, "capture, of the thread");
    check_capture(12, cudaStreamCaptureModeRelaxed, "capture, relaxed");
    check_devices(devices);
    check_refusals();
    CUDA(cudaDeviceReset());
    check_launch(2, 0, sizeof(float) * COUNT, "a new context");
    uint64_t compiled, read;
    char text[2048];
    trope_jit_get_counts(&compiled, &read);
    trope_jit_describe(text, sizeof text);
    printf("%s%d compiled, %d read from files\n", text, (int)compiled, (int)read);
    if (count > 1) {
        CHECK(compiled == 0 && read > 0);
    } else {
        char command[512];
        CHECK(compiled > 0 && read == 0);
        snprintf(command, sizeof command, "'%s' second", arguments[0]);
        fflush(stdout);
        CHECK(!system(command));
        remove_folder(folder);
    }
    return check_result();
}
