/* trope_jit_find: the modes, which compiler is used, several devices, threads and fork. With a fake NVRTC and driver. */
#define _GNU_SOURCE 1
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "jit/jit_case.h"
#include "support/check.h"

/* ---- modes ---- */

static void finds_each_kernel_once(void)
{
    for (int round = 0; round < 3; round++)
        for (int heads = 1; heads <= 40; heads++) {
            const jit_key key = make_key(heads);
            EXPECT_KERNEL(&key, 0, 13000);
        }
    EXPECT_COUNTS(40, 0);
    CHECK(trope_jit_get_mode() == TROPE_JIT_ON);
    CHECK(strstr(description(), "jit: on\n") && strstr(description(), "NVRTC 13.0 ("));
}

static void one_byte_of_a_key_is_another_kernel(void)
{
    jit_key key = make_key(1);
    EXPECT_KERNEL(&key, 0, 13000);
    key.others[47] ^= (uint64_t)1 << 63;
    EXPECT_KERNEL(&key, 0, 13000);
    EXPECT_COUNTS(2, 0);
}

static void off_uses_the_generic_kernel(void)
{
    const jit_key key = make_key(1);
    setenv("TROPE_JIT", "0", 1);
    EXPECT_KERNEL(&key, 0, 0);
    EXPECT_COUNTS(0, 0);
    CHECK(strstr(description(), "jit: off\n"));
}

static void expect_error(const jit_key *key, trope_status expected, const char *text)
{
    const trope_jit_request request = request_of(key);
    const trope_jit_kernel *kernel;
    const trope_status status = trope_jit_find("trope_forward", &request, 0, &kernel);
    CHECK_MESSAGE(status == expected && strstr(trope_last_error(), text) &&
                      !strncmp(trope_last_error(), "trope_forward: ", 15),
                  "%s: %s", trope_status_name(status), trope_last_error());
}

static void another_value_of_the_mode_is_refused(void)
{
    const jit_key key = make_key(1);
    setenv("TROPE_JIT", "yes", 1);
    expect_error(&key, TROPE_ERROR_ARGUMENT, "TROPE_JIT (yes) must be 0, 1, require or all");
    expect_error(&key, TROPE_ERROR_ARGUMENT, "TROPE_JIT (yes)");
    EXPECT_COUNTS(0, 0);
}

static void require_refuses_with_the_first_error(void)
{
    jit_key key = make_key(1);
    setenv("TROPE_JIT", "require", 1);
    EXPECT_KERNEL(&key, 0, 13000);
    key.does_not_compile = 1;
    for (int i = 0; i < 2; i++)
        expect_error(&key, TROPE_ERROR_UNSUPPORTED, "NVRTC_ERROR_COMPILATION: trope.cu(2): error: #error says so");
    EXPECT_COUNTS(2, 0);
}

static void require_refuses_without_a_compiler(void)
{
    const jit_key key = make_key(1);
    setenv("TROPE_JIT", "require", 1);
    setenv("TROPE_NVRTC", below("nothing.so"), 1);
    expect_error(&key, TROPE_ERROR_UNSUPPORTED, "TROPE_NVRTC cannot be loaded: ");
    expect_error(&key, TROPE_ERROR_UNSUPPORTED, "nothing.so");
}

/* ---- compilers ---- */

static void failure_is_described(void)
{
    jit_key key = make_key(1);
    key.does_not_compile = 1;
    EXPECT_KERNEL(&key, 0, 0);
    EXPECT_KERNEL(&key, 0, 0);
    EXPECT_COUNTS(1, 0);
    CHECK(strstr(description(), "jit failures: 1 (the first: NVRTC_ERROR_COMPILATION"));
}

static void old_compiler_is_refused(void)
{
    const jit_key key = make_key(1);
    setenv("TROPE_NVRTC", fake("old"), 1);
    EXPECT_KERNEL(&key, 0, 0);
    CHECK_MESSAGE(strstr(description(), "is NVRTC 11.8; trope needs 12.2 or later"), "%s", description());
}

static void compiler_without_a_function_is_refused(void)
{
    const jit_key key = make_key(1);
    setenv("TROPE_NVRTC", fake("partial"), 1);
    EXPECT_KERNEL(&key, 0, 0);
    CHECK_MESSAGE(strstr(description(), "has no function nvrtcGetCUBIN"), "%s", description());
}

/* The toolkit's compiler is the last of the list: the machine's own, if it has one, comes before it, and is refused by the
 * test's driver. */
static void use_loaded_and_toolkit(void)
{
    unsetenv("TROPE_NVRTC");
    CHECK(dlopen(fake("current"), RTLD_LAZY | RTLD_LOCAL));
    setenv("CUDA_HOME", FAKES "/other", 1);
}

static void loaded_compiler_comes_first(void)
{
    const jit_key key = make_key(1);
    use_loaded_and_toolkit();
    EXPECT_KERNEL(&key, 0, 13000);
    EXPECT_COUNTS(1, 0);
}

static void next_compiler_is_tried_if_the_driver_refuses(void)
{
    const jit_key key = make_key(1);
    use_loaded_and_toolkit();
    setenv("TROPE_JIT", "require", 1); /* the next compiler is of a version that is not tested */
    refused_version = 13000;
    EXPECT_KERNEL(&key, 0, 12030);
    CHECK(count_files("sm_") == 1);
}

static void refused_file_is_compiled_anew(void)
{
    const jit_key key = make_key(1);
    use_loaded_and_toolkit();
    in_child(loaded_compiler_comes_first);
    setenv("TROPE_JIT", "require", 1);
    refused_version = 13000;
    EXPECT_KERNEL(&key, 0, 12030);
}

/* Copies a fake library to a path below the folder of the case. */
static void copy(const char *name, const char *to)
{
    char command[16384];
    snprintf(command, sizeof command, "mkdir -p \"$(dirname '%s')\" && cp '%s' '%s'", below(to), fake(name), below(to));
    CHECK(!system(command));
}

static void version_that_is_not_tested_is_used_on_demand(void)
{
    const jit_key key = make_key(1);
    unsetenv("TROPE_NVRTC");
    refused_version = 13000; /* of the machine's own, if it has one */
    CHECK(dlopen(fake("other"), RTLD_LAZY | RTLD_LOCAL));
    EXPECT_KERNEL(&key, 0, 0);
    CHECK_MESSAGE(strstr(description(), "NVRTC 12.3 has not been tested with trope"), "%s", description());
}

/* PyTorch may load its compiler after trope has searched. */
static void compiler_that_is_loaded_later_is_found(void)
{
    const jit_key first = make_key(1), second = make_key(2);
    setenv("TROPE_NVRTC", below("no_such_compiler.so"), 1);
    EXPECT_KERNEL(&first, 0, 0);
    copy("current", "no_such_compiler.so");
    EXPECT_KERNEL(&second, 0, 13000);
}

static void description_opens_no_compiler(void)
{
    CHECK_MESSAGE(strstr(description(), "jit compiler: not opened yet"), "%s", description());
}

static void named_compiler_is_the_only_one(void)
{
    const jit_key key = make_key(1);
    use_loaded_and_toolkit();
    setenv("TROPE_NVRTC", fake("other"), 1);
    EXPECT_KERNEL(&key, 0, 12030);
    refused_version = 12030;
    const jit_key second = make_key(2);
    EXPECT_KERNEL(&second, 0, 0);
    EXPECT_COUNTS(2, 0);
}

/* The libraries of NVIDIA's wheels, of which torch has loaded the runtime but not the compiler. */
static void use_wheel(const char *compiler)
{
    const jit_key key = make_key(1);
    unsetenv("TROPE_NVRTC");
    setenv("TROPE_JIT", "require", 1);
    copy("old", "nvidia/cuda_runtime/lib/libcudart.so.12"); /* any library */
    copy("other", compiler);
    CHECK(dlopen(below("nvidia/cuda_runtime/lib/libcudart.so.12"), RTLD_LAZY | RTLD_LOCAL));
    EXPECT_KERNEL(&key, 0, 12030);
    EXPECT_COUNTS(1, 0);
}

static void compiler_beside_the_runtime_is_found(void)
{
    use_wheel("nvidia/cuda_runtime/lib/libnvrtc.so.13");
}

static void compiler_of_the_next_wheel_is_found(void)
{
    use_wheel("nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
}

/* ---- devices ---- */

static void devices_of_one_architecture_share_kernels(void)
{
    const jit_key key = make_key(1);
    EXPECT_KERNEL(&key, 0, 13000);
    EXPECT_KERNEL(&key, 1, 13000);
    EXPECT_COUNTS(1, 0);
    EXPECT_KERNEL(&key, 2, 13000);
    EXPECT_COUNTS(2, 0);
    EXPECT_KERNEL(&key, 3, 0); /* an unknown device */
    EXPECT_KERNEL(&key, 1000, 0);
    EXPECT_KERNEL(&key, -1, 0);
    EXPECT_COUNTS(2, 0);
}

/* ---- threads and fork ---- */

enum { THREADS = 8 };

static void *find_in_thread(void *start)
{
    const jit_key key = make_key(1);
    const trope_jit_request request = request_of(&key);
    const trope_jit_kernel *kernel = NULL;
    pthread_barrier_wait(start);
    return trope_jit_find("test", &request, 0, &kernel) ? NULL : (void *)(uintptr_t)kernel;
}

static void threads_compile_a_new_kernel_once(void)
{
    pthread_barrier_t start;
    pthread_t threads[THREADS];
    void *found[THREADS];
    setenv("FAKE_NVRTC_MS", "50", 1);
    pthread_barrier_init(&start, NULL, THREADS);
    for (int i = 0; i < THREADS; i++)
        CHECK(!pthread_create(&threads[i], NULL, find_in_thread, &start));
    for (int i = 0; i < THREADS; i++)
        CHECK(!pthread_join(threads[i], &found[i]) && found[i] && found[i] == found[0]);
    EXPECT_COUNTS(1, 0);
}

static void *find_many(void *seed)
{
    intptr_t wrong = 0;
    for (int i = 0; i < 4000; i++) {
        const jit_key key = make_key(1 + (int)((i * 7 + (intptr_t)seed) % 100));
        const trope_jit_request request = request_of(&key);
        const trope_jit_kernel *kernel = NULL;
        char heads[32];
        snprintf(heads, sizeof heads, "heads %d,", key.heads);
        wrong += trope_jit_find("test", &request, (int)(i % 2), &kernel) || !kernel->function ||
                 !strstr(kernel->function, heads);
    }
    return (void *)wrong;
}

static void threads_find_their_own_kernels(void)
{
    pthread_t threads[THREADS];
    void *wrong;
    for (int i = 0; i < THREADS; i++)
        CHECK(!pthread_create(&threads[i], NULL, find_many, (void *)(intptr_t)i));
    for (int i = 0; i < THREADS; i++)
        CHECK(!pthread_join(threads[i], &wrong) && !wrong);
    EXPECT_COUNTS(100, 0);
}

static void find_another(void)
{
    const jit_key first = make_key(1), second = make_key(2);
    setenv("FAKE_NVRTC_MS", "0", 1);
    EXPECT_KERNEL(&second, 0, 13000);
    EXPECT_KERNEL(&first, 0, 13000);
}

static void child_of_a_compiling_process_works(void)
{
    pthread_barrier_t start;
    pthread_t thread;
    setenv("FAKE_NVRTC_MS", "500", 1);
    pthread_barrier_init(&start, NULL, 2);
    CHECK(!pthread_create(&thread, NULL, find_in_thread, &start));
    pthread_barrier_wait(&start);
    usleep(100000);
    alarm(20);
    in_child(find_another);
    CHECK(!pthread_join(thread, NULL));
}

/* ---- the cost of a hit ---- */

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void hit_is_cheap(void)
{
    const jit_key key = make_key(1);
    const trope_jit_request request = request_of(&key);
    const trope_jit_kernel *kernel;
    double best = 1;
    EXPECT_KERNEL(&key, 0, 13000);
    for (int round = 0; round < 50; round++) {
        const double begin = seconds();
        for (int i = 0; i < 10000; i++)
            CHECK(!trope_jit_find("test", &request, 0, &kernel));
        const double each = (seconds() - begin) / 10000;
        best = each < best ? each : best;
    }
    printf("a hit with a key of %d bytes takes %.0f ns\n", (int)sizeof key, 1e9 * best);
#if defined(__OPTIMIZE__) && !defined(SANITIZED)
    CHECK(best < 200e-9);
#endif
}

int main(void)
{
    RUN(finds_each_kernel_once);
    RUN(one_byte_of_a_key_is_another_kernel);
    RUN(off_uses_the_generic_kernel);
    RUN(another_value_of_the_mode_is_refused);
    RUN(require_refuses_with_the_first_error);
    RUN(require_refuses_without_a_compiler);
    RUN(failure_is_described);
    RUN(old_compiler_is_refused);
    RUN(compiler_without_a_function_is_refused);
    RUN(loaded_compiler_comes_first);
    RUN(compiler_beside_the_runtime_is_found);
    RUN(compiler_of_the_next_wheel_is_found);
    RUN(next_compiler_is_tried_if_the_driver_refuses);
    RUN(refused_file_is_compiled_anew);
    RUN(version_that_is_not_tested_is_used_on_demand);
    RUN(compiler_that_is_loaded_later_is_found);
    RUN(description_opens_no_compiler);
    RUN(named_compiler_is_the_only_one);
    RUN(devices_of_one_architecture_share_kernels);
    RUN(threads_compile_a_new_kernel_once);
    RUN(threads_find_their_own_kernels);
    RUN(child_of_a_compiling_process_works);
    RUN(hit_is_cheap);
    return check_result();
}
