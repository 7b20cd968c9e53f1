#define _GNU_SOURCE 1
#include "jit/jit.h"

#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/require.h"
#include "jit/cache.h"
#include "jit/compile.h"
#include "jit/driver.h"
#include "jit/hash.h"
#include "jit/nvrtc.h"

enum { BUCKETS = 1024, MOST_DEVICES = 64 };

/* A kernel that was found, or not found. It never changes and is never freed, so readers need no lock. */
typedef struct known_kernel {
    struct known_kernel *next;
    trope_jit_kernel kernel;
    uint64_t hash;
    int32_t architecture;
    size_t key_bytes;
    char *why;
    alignas(16) unsigned char key[];
} known_kernel;

/* The mutex protects everything that is not atomic, and all of nvrtc.c. Only one thread compiles at a time: so a second one
 * that needs the same kernel waits for it. */
static struct {
    pthread_mutex_t mutex;
    _Atomic(known_kernel *) buckets[BUCKETS];
    atomic_int architectures[MOST_DEVICES]; /* 0 = not queried yet */
    _Atomic uint64_t compiled, read;        /* for trope_jit_get_counts */
    int64_t failures;
    char first_failure[512];
} jit = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* The versions of NVRTC whose cubins have passed the tests on a GPU. Others are used if the user asks for them, by
 * TROPE_NVRTC or by a mode that requires compiled kernels. */
static int is_tested(int32_t nvrtc_version)
{
    static const int32_t versions[] = {13000};
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++)
        if (versions[i] == nvrtc_version)
            return 1;
    return 0;
}

/* ---- the mode ---- */

static atomic_int mode; /* 0 = not read yet */
static char mode_text[32];

/* A child of fork() starts with nothing, because another thread of its parent may have held the mutex. It could not use its
 * parent's kernels: CUDA does not work in a child of a process that uses it. */
static void forget(void)
{
    memset(&jit, 0, sizeof jit);
    pthread_mutex_init(&jit.mutex, NULL);
    trope_nvrtc_forget();
}

static void read_mode(void)
{
    static const char *const values[] = {"0", "1", "require", "all"};
    const char *value = secure_getenv("TROPE_JIT");
    int found = value && *value ? TROPE_JIT_INVALID : TROPE_JIT_ON;
    for (int i = 0; value && i < 4; i++)
        if (!strcmp(value, values[i]))
            found = TROPE_JIT_OFF + i;
    snprintf(mode_text, sizeof mode_text, "%s", value ? value : "");
    if (pthread_atfork(NULL, NULL, forget)) /* without memory for this, a child could wait for ever */
        found = TROPE_JIT_OFF;
    atomic_store(&mode, found);
}

trope_jit_mode trope_jit_get_mode(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (!atomic_load_explicit(&mode, memory_order_acquire))
        pthread_once(&once, read_mode);
    return (trope_jit_mode)atomic_load_explicit(&mode, memory_order_acquire);
}

/* ---- making a kernel; the caller holds the mutex ---- */

static int is_wanted(int32_t nvrtc_version)
{
    return is_tested(nvrtc_version) || trope_nvrtc_is_named() || trope_jit_get_mode() >= TROPE_JIT_REQUIRE;
}

/* The version of a file must be the compiler's. A tested version needs no look at the compiler, whose opening takes longer
 * than everything else and reads 100 MB from a disk, and which may be absent. */
static int is_usable(int32_t nvrtc_version)
{
    if (is_tested(nvrtc_version) && !trope_nvrtc_is_named())
        return 1;
    const trope_nvrtc *nvrtc = trope_nvrtc_at(0);
    return nvrtc && nvrtc->version == nvrtc_version && is_wanted(nvrtc_version);
}

static int read_cubin(trope_cache_folder folder, const trope_cubin_id *id, trope_cubin *cubin)
{
    if (!trope_cache_read(folder, id, cubin))
        return 0;
    if (is_usable(cubin->nvrtc_version))
        return 1;
    free(cubin->code);
    cubin->code = NULL;
    return 0;
}

static const void *load(const trope_cubin_id *id, int device, trope_cubin *cubin, trope_jit_kernel *kernel, char *why,
                        size_t why_size)
{
    kernel->nvrtc_version = cubin->nvrtc_version;
    kernel->is_tested = is_tested(cubin->nvrtc_version);
    kernel->function = trope_cuda_driver.load(device, cubin->code, cubin->bytes, id->entry, why, why_size);
    return kernel->function;
}

static void find_in_files(const trope_cubin_id *id, int device, trope_jit_kernel *kernel)
{
    char why[512];
    for (int folder = 0; !kernel->function && folder < TROPE_CACHE_FOLDERS; folder++) {
        trope_cubin cubin;
        if (read_cubin((trope_cache_folder)folder, id, &cubin)) {
            if (load(id, device, &cubin, kernel, why, sizeof why))
                atomic_fetch_add(&jit.read, 1);
            free(cubin.code);
        }
    }
}

/* Compiles with compiler i. Returns 0 if there is none. */
static int compile_with(int i, const trope_cubin_id *id, trope_cubin *cubin, char *why, size_t why_size)
{
    const trope_nvrtc *nvrtc = trope_nvrtc_at(i);
    cubin->code = NULL;
    if (!nvrtc)
        return 0;
    if (is_wanted(nvrtc->version)) {
        atomic_fetch_add(&jit.compiled, 1);
        (void)trope_compile(nvrtc, id->program, id->architecture, cubin, why, why_size);
    } else {
        snprintf(why, why_size, "NVRTC %d.%d has not been tested with trope; TROPE_NVRTC=%.400s uses it",
                 nvrtc->version / 1000, nvrtc->version % 1000 / 10, nvrtc->path);
    }
    return 1;
}

/* Tries one compiler after another, because a newer one may know a newer GPU, and an older driver takes the cubins of an
 * older one. `why` becomes the fault of the first. */
static void compile(const trope_cubin_id *id, int device, trope_jit_kernel *kernel, char *why, size_t why_size)
{
    char fault[512] = "";
    trope_cubin cubin;
    *why = 0;
    for (int i = 0; !kernel->function && compile_with(i, id, &cubin, fault, sizeof fault); i++) {
        if (cubin.code && load(id, device, &cubin, kernel, fault, sizeof fault))
            (void)trope_cache_write(id, &cubin);
        if (!*why)
            snprintf(why, why_size, "%s", fault);
        free(cubin.code);
    }
    if (!kernel->function && !*why)
        snprintf(why, why_size, "%s", trope_nvrtc_fault());
}

static trope_cubin_id make_id(const trope_jit_request *request, const char *program, int32_t architecture)
{
    return (trope_cubin_id){request->key, request->key_bytes, request->entry,
                            program,      architecture,       trope_hash_of_sources()};
}

/* Returns NULL if there is no memory. */
static known_kernel *make_kernel(const trope_jit_request *request, uint64_t hash, int32_t architecture, int device)
{
    char why[512] = "";
    char *program = request->make_program(request->key);
    known_kernel *made = program ? calloc(1, sizeof *made + request->key_bytes) : NULL;
    if (made) {
        const trope_cubin_id id = make_id(request, program, architecture);
        find_in_files(&id, device, &made->kernel);
        if (!made->kernel.function)
            compile(&id, device, &made->kernel, why, sizeof why);
        made->hash = hash;
        made->architecture = architecture;
        made->key_bytes = request->key_bytes;
        memcpy(made->key, request->key, request->key_bytes);
    }
    if (made && !made->kernel.function) {
        if (!jit.failures++)
            snprintf(jit.first_failure, sizeof jit.first_failure, "%s", why);
        made->why = strdup(why);
        made->kernel.why = made->why ? made->why : "out of memory";
    }
    free(program);
    return made;
}

/* ---- finding a kernel ---- */

static known_kernel *look_up(const trope_jit_request *request, uint64_t hash, int32_t architecture)
{
    known_kernel *k = atomic_load_explicit(&jit.buckets[hash % BUCKETS], memory_order_acquire);
    while (k && (k->hash != hash || k->architecture != architecture || k->key_bytes != request->key_bytes ||
                 memcmp(k->key, request->key, request->key_bytes)))
        k = k->next;
    return k;
}

static const trope_jit_kernel *make_or_wait(const trope_jit_request *request, uint64_t hash, int32_t architecture,
                                            int device)
{
    static const trope_jit_kernel no_memory = {.why = "out of memory"};
    pthread_mutex_lock(&jit.mutex);
    known_kernel *known = look_up(request, hash, architecture);
    if (!known) {
        known = make_kernel(request, hash, architecture, device);
        if (known) {
            known->next = atomic_load_explicit(&jit.buckets[hash % BUCKETS], memory_order_relaxed);
            atomic_store_explicit(&jit.buckets[hash % BUCKETS], known, memory_order_release);
        }
    }
    pthread_mutex_unlock(&jit.mutex);
    return known ? &known->kernel : &no_memory;
}

static int32_t architecture_of(int device)
{
    if (device < 0 || device >= MOST_DEVICES)
        return trope_cuda_driver.architecture(device);
    int32_t architecture = atomic_load_explicit(&jit.architectures[device], memory_order_relaxed);
    if (!architecture) {
        architecture = trope_cuda_driver.architecture(device);
        atomic_store_explicit(&jit.architectures[device], architecture, memory_order_relaxed);
    }
    return architecture;
}

static const trope_jit_kernel *find(const trope_jit_request *request, int device)
{
    static const trope_jit_kernel no_device = {.why = "the architecture of the GPU is unknown"};
    const int32_t architecture = architecture_of(device);
    if (!architecture)
        return &no_device;
    const uint64_t hash = trope_hash(request->key, request->key_bytes, (uint64_t)architecture);
    const known_kernel *known = look_up(request, hash, architecture);
    return known ? &known->kernel : make_or_wait(request, hash, architecture, device);
}

#define REQUIRE_VALID_MODE()                                                                                               \
    REQUIRE(trope_jit_get_mode() != TROPE_JIT_INVALID, TROPE_ERROR_ARGUMENT,                                               \
            "TROPE_JIT (%s) must be 0, 1, require or all", mode_text)

trope_status trope_jit_check(const char *function)
{
    REQUIRE_VALID_MODE();
    return TROPE_OK;
}

trope_status trope_jit_find(const char *function, const trope_jit_request *request, int device,
                            const trope_jit_kernel **kernel)
{
    static const trope_jit_kernel off = {.why = "TROPE_JIT is 0"};
    REQUIRE_VALID_MODE();
    const trope_jit_mode wanted = trope_jit_get_mode();
    *kernel = wanted == TROPE_JIT_OFF ? &off : find(request, device);
    REQUIRE(wanted < TROPE_JIT_REQUIRE || (*kernel)->function, TROPE_ERROR_UNSUPPORTED,
            "TROPE_JIT requires a kernel compiled for the call: %s", (*kernel)->why);
    return TROPE_OK;
}

/* ---- the other functions ---- */

/* Compiles into the cache, unless the cubin is there. Returns whether it is there now. */
static int prepare(const trope_cubin_id *id, char *why, size_t why_size)
{
    trope_cubin cubin = {.code = NULL};
    char folder[512];
    *why = 0;
    int is_there = read_cubin(TROPE_CACHE_OWN, id, &cubin);
    for (int i = 0; !cubin.code && compile_with(i, id, &cubin, why, why_size); i++)
        continue;
    if (cubin.code && !is_there) {
        is_there = trope_cache_write(id, &cubin);
        trope_cache_describe(TROPE_CACHE_OWN, folder, sizeof folder);
        snprintf(why, why_size, "the cache cannot be written: %s", folder);
    } else if (!*why) {
        snprintf(why, why_size, "%s", trope_nvrtc_fault());
    }
    free(cubin.code);
    return is_there;
}

trope_status trope_jit_prepare(const char *function, const trope_jit_request *request, int32_t architecture)
{
    char why[600] = "out of memory";
    REQUIRE_VALID_MODE();
    char *program = request->make_program(request->key);
    int is_prepared = 0;
    if (program) {
        const trope_cubin_id id = make_id(request, program, architecture);
        pthread_mutex_lock(&jit.mutex);
        is_prepared = prepare(&id, why, sizeof why);
        pthread_mutex_unlock(&jit.mutex);
    }
    free(program);
    REQUIRE(is_prepared, TROPE_ERROR_UNSUPPORTED, "No kernel can be compiled for sm_%d: %s", (int)architecture, why);
    return TROPE_OK;
}

/* Opens no compiler: PyTorch or JAX may load another one later, and opening it takes time. */
static void describe_compiler(char *text, size_t size)
{
    const trope_nvrtc *nvrtc = trope_nvrtc_opened();
    if (!nvrtc && !*trope_nvrtc_fault())
        snprintf(text, size, "not opened yet");
    else if (nvrtc)
        snprintf(text, size, "NVRTC %d.%d (%s)", nvrtc->version / 1000, nvrtc->version % 1000 / 10, nvrtc->path);
    else
        snprintf(text, size, "none (%s)", trope_nvrtc_fault());
}

void trope_jit_describe(char *text, size_t size)
{
    static const char *const modes[] = {"", "off", "on", "require", "all", "TROPE_JIT is not valid"};
    char compiler[600], folders[TROPE_CACHE_FOLDERS][600], failures[600] = "";
    const trope_jit_mode wanted = trope_jit_get_mode();
    if (wanted == TROPE_JIT_OFF) {
        snprintf(text, size, "jit: off\n");
        return;
    }
    pthread_mutex_lock(&jit.mutex);
    describe_compiler(compiler, sizeof compiler);
    if (jit.failures)
        snprintf(failures, sizeof failures, "jit failures: %lld (the first: %s)\n", (long long)jit.failures,
                 jit.first_failure);
    pthread_mutex_unlock(&jit.mutex);
    for (int i = 0; i < TROPE_CACHE_FOLDERS; i++)
        trope_cache_describe((trope_cache_folder)i, folders[i], sizeof folders[i]);
    snprintf(text, size, "jit: %s\njit compiler: %s\njit cache: %s\njit cache read: %s\n%s", modes[wanted], compiler,
             folders[TROPE_CACHE_OWN], folders[TROPE_CACHE_READ_ONLY], failures);
}

void trope_jit_get_counts(uint64_t *compiled, uint64_t *read)
{
    *compiled = atomic_load(&jit.compiled);
    *read = atomic_load(&jit.read);
}
