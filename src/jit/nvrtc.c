#define _GNU_SOURCE 1
#include "jit/nvrtc.h"

#include <dlfcn.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OLDEST_VERSION 12020 /* the oldest with which tests/jit/compile.c was run */

enum { MOST_CANDIDATES = 48, MOST_COMPILERS = 4 };

/* The paths that may lead to a compiler, and the compilers opened so far. */
static struct {
    int candidates, tried, compilers;
    char *candidate[MOST_CANDIDATES];
    trope_nvrtc compiler[MOST_COMPILERS];
    char fault[512];
} nvrtc;

static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
enum { NAMES = sizeof names / sizeof names[0] };

/* ---- candidates ---- */

__attribute__((format(printf, 1, 2))) static void add_candidate(const char *format, ...)
{
    char *path = NULL;
    va_list arguments;
    va_start(arguments, format);
    const int length = vasprintf(&path, format, arguments);
    va_end(arguments);
    if (length < 0)
        return;
    if (nvrtc.candidates < MOST_CANDIDATES)
        nvrtc.candidate[nvrtc.candidates++] = path;
    else
        free(path);
}

/* The names of a compiler in a folder. */
static void add_folder(int length, const char *folder, const char *below)
{
    for (int i = 0; i < NAMES; i++)
        add_candidate("%.*s%s/%s", length, folder, below, names[i]);
}

static int begins_with(const char *text, const char *prefix)
{
    return !strncmp(text, prefix, strlen(prefix));
}

/* Adds a loaded library if it is NVRTC. Old wheels of torch have a hash in the name. */
static int add_loaded(struct dl_phdr_info *info, size_t size, void *context)
{
    const char *slash = strrchr(info->dlpi_name, '/'), *name = slash ? slash + 1 : info->dlpi_name;
    (void)size, (void)context;
    if (begins_with(name, "libnvrtc.so") || (begins_with(name, "libnvrtc-") && !begins_with(name, "libnvrtc-builtins")))
        add_candidate("%s", info->dlpi_name);
    return 0;
}

/* Adds the folder of a loaded CUDA library, and the folder that NVIDIA's wheels for CUDA 12 have beside it. */
static int add_beside_loaded(struct dl_phdr_info *info, size_t size, void *context)
{
    const char *slash = strrchr(info->dlpi_name, '/');
    (void)size, (void)context;
    if (slash && (begins_with(slash, "/libcudart.so") || begins_with(slash, "/libcublas.so"))) {
        add_folder((int)(slash - info->dlpi_name), info->dlpi_name, "");
        add_folder((int)(slash - info->dlpi_name), info->dlpi_name, "/../../cuda_nvrtc/lib");
    }
    return 0;
}

static void add_toolkit(const char *root)
{
    if (root && *root) {
        add_folder((int)strlen(root), root, "/lib64");
        add_folder((int)strlen(root), root, "/lib");
    }
}

int trope_nvrtc_is_named(void)
{
    const char *named = secure_getenv("TROPE_NVRTC");
    return named && *named;
}

static void list_candidates(void)
{
    if (trope_nvrtc_is_named()) {
        add_candidate("%s", secure_getenv("TROPE_NVRTC"));
        return;
    }
    snprintf(nvrtc.fault, sizeof nvrtc.fault, "no libnvrtc.so.13 or .12 was found");
    dl_iterate_phdr(add_loaded, NULL);
    dl_iterate_phdr(add_beside_loaded, NULL);
    for (int i = 0; i < NAMES; i++)
        add_candidate("%s", names[i]);
    add_toolkit(secure_getenv("CUDA_HOME"));
    add_toolkit(secure_getenv("CUDA_PATH"));
    add_toolkit("/usr/local/cuda");
}

/* ---- opening ---- */

static int find_functions(trope_nvrtc *n)
{
    const struct {
        const char *name;
        void *function; /* where its address goes */
    } functions[] = {{"nvrtcVersion", &n->get_version},           {"nvrtcGetErrorString", &n->error_string},
                     {"nvrtcCreateProgram", &n->create_program},  {"nvrtcCompileProgram", &n->compile_program},
                     {"nvrtcGetProgramLogSize", &n->log_size},    {"nvrtcGetProgramLog", &n->get_log},
                     {"nvrtcGetCUBINSize", &n->cubin_size},       {"nvrtcGetCUBIN", &n->get_cubin},
                     {"nvrtcDestroyProgram", &n->destroy_program}};
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *address = dlsym(n->library, functions[i].name);
        if (!address) {
            snprintf(nvrtc.fault, sizeof nvrtc.fault, "%.400s has no function %s", n->path, functions[i].name);
            return 0;
        }
        memcpy(functions[i].function, &address, sizeof address);
    }
    return 1;
}

static int find_version(trope_nvrtc *n)
{
    int major, minor;
    if (n->get_version(&major, &minor)) {
        snprintf(nvrtc.fault, sizeof nvrtc.fault, "%.400s does not say its version", n->path);
        return 0;
    }
    n->version = 1000 * major + 10 * minor;
    if (n->version < OLDEST_VERSION)
        snprintf(nvrtc.fault, sizeof nvrtc.fault, "%.400s is NVRTC %d.%d; trope needs %d.%d or later", n->path, major,
                 minor, OLDEST_VERSION / 1000, OLDEST_VERSION % 1000 / 10);
    return n->version >= OLDEST_VERSION;
}

static int is_opened(const void *library)
{
    for (int i = 0; i < nvrtc.compilers; i++)
        if (nvrtc.compiler[i].library == library)
            return 1;
    return 0;
}

/* Opens a candidate as the next compiler. Returns whether it is a compiler, and a new one. */
static int open_candidate(const char *path)
{
    trope_nvrtc *n = &nvrtc.compiler[nvrtc.compilers];
    struct link_map *map = NULL;
    memset(n, 0, sizeof *n);
    n->library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    if (!n->library) {
        const char *error = dlerror();
        if (trope_nvrtc_is_named())
            snprintf(nvrtc.fault, sizeof nvrtc.fault, "TROPE_NVRTC cannot be loaded: %s", error ? error : path);
        return 0;
    }
    if (!dlinfo(n->library, RTLD_DI_LINKMAP, &map) && map && map->l_name && *map->l_name)
        path = map->l_name;
    snprintf(n->path, sizeof n->path, "%s", path);
    if (!is_opened(n->library) && find_functions(n) && find_version(n))
        return 1;
    (void)dlclose(n->library); /* if this fails, the library stays loaded, without harm */
    return 0;
}

const trope_nvrtc *trope_nvrtc_opened(void)
{
    return nvrtc.compilers ? &nvrtc.compiler[0] : NULL;
}

const trope_nvrtc *trope_nvrtc_at(int i)
{
    if (i == 0 && !nvrtc.compilers) { /* the process may have loaded one since the last search */
        while (nvrtc.candidates)
            free(nvrtc.candidate[--nvrtc.candidates]);
        nvrtc.tried = 0;
        list_candidates();
    }
    while (nvrtc.compilers <= i && nvrtc.compilers < MOST_COMPILERS && nvrtc.tried < nvrtc.candidates)
        if (open_candidate(nvrtc.candidate[nvrtc.tried++]))
            nvrtc.compilers++;
    return i < nvrtc.compilers ? &nvrtc.compiler[i] : NULL;
}

const char *trope_nvrtc_fault(void)
{
    return nvrtc.fault;
}

void trope_nvrtc_forget(void)
{
    memset(&nvrtc, 0, sizeof nvrtc);
}
