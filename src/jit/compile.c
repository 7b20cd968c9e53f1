#define _GNU_SOURCE 1
#include "jit/compile.h"

#include <fenv.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jit/hash.h"
#include "jit/sources.h"

/* The options that nvcc gets for the kernels that are made ahead of time (CMakeLists.txt), and three more. The headers also
 * declare functions for the host, which NVRTC refuses unless functions without a qualifier are for the device. (nvcc still
 * checks the qualifiers.) With TROPE_STATIC, the public header has no attributes for symbols. No file of the current folder may replace
 * a header. The first option is the architecture. */
static const char *const options[] = {
    NULL, "--std=c++17", "--fmad=false", "--device-as-default-execution-space", "-DTROPE_STATIC", "--no-source-include"};
enum { OPTIONS = sizeof options / sizeof options[0], MOST_SOURCES = 64 };

uint64_t trope_hash_of_sources(void)
{
    uint64_t hash = 0;
    for (int i = 1; i < OPTIONS; i++)
        hash = trope_hash(options[i], strlen(options[i]), hash);
    for (int i = 0; i < trope_source_count; i++) {
        hash = trope_hash(trope_sources[i].name, strlen(trope_sources[i].name), hash);
        hash = trope_hash(trope_sources[i].text, trope_sources[i].bytes, hash);
    }
    return hash;
}

static trope_nvrtc_program create_program(const trope_nvrtc *nvrtc, const char *text, char *why, size_t why_size)
{
    const char *names[MOST_SOURCES], *texts[MOST_SOURCES];
    const int count = trope_source_count < MOST_SOURCES ? trope_source_count : MOST_SOURCES;
    trope_nvrtc_program program = NULL;
    for (int i = 0; i < count; i++) {
        names[i] = trope_sources[i].name;
        texts[i] = trope_sources[i].text;
    }
    const int error = nvrtc->create_program(&program, text, "trope.cu", count, texts, names);
    if (error)
        snprintf(why, why_size, "NVRTC: %s", nvrtc->error_string(error));
    return error ? NULL : program;
}

/* Puts the first line of the log that has an error, or else the first line, after the name of the error. */
static void describe_failure(const trope_nvrtc *nvrtc, trope_nvrtc_program program, int error, char *why, size_t why_size)
{
    size_t bytes = 0;
    char *log = nvrtc->log_size(program, &bytes) || !bytes ? NULL : calloc(1, bytes + 1);
    const char *line = log && !nvrtc->get_log(program, log) ? log : "";
    const char *first = strstr(line, "error");
    while (first && first > line && first[-1] != '\n')
        first--;
    line = first ? first : line;
    snprintf(why, why_size, "%s%s%.*s", nvrtc->error_string(error), *line ? ": " : "", (int)strcspn(line, "\n"), line);
    free(log);
}

static int get_cubin(const trope_nvrtc *nvrtc, trope_nvrtc_program program, trope_cubin *cubin, char *why, size_t why_size)
{
    cubin->nvrtc_version = nvrtc->version;
    int error = nvrtc->cubin_size(program, &cubin->bytes);
    if (!error && cubin->bytes) {
        cubin->code = malloc(cubin->bytes);
        error = cubin->code ? nvrtc->get_cubin(program, cubin->code) : 0;
        if (cubin->code && !error)
            return 1;
    }
    snprintf(why, why_size, "NVRTC: %s", error ? nvrtc->error_string(error) : cubin->bytes ? "out of memory" : "no cubin");
    free(cubin->code);
    cubin->code = NULL;
    return 0;
}

static int compile(const trope_nvrtc *nvrtc, const char *text, int32_t architecture, trope_cubin *cubin, char *why,
                   size_t why_size)
{
    char architecture_option[64];
    const char *all_options[OPTIONS];
    trope_nvrtc_program program = create_program(nvrtc, text, why, why_size);
    if (!program)
        return 0;
    snprintf(architecture_option, sizeof architecture_option, "--gpu-architecture=sm_%d", (int)architecture);
    memcpy(all_options, options, sizeof options);
    all_options[0] = architecture_option;
    const int error = nvrtc->compile_program(program, OPTIONS, all_options);
    if (error)
        describe_failure(nvrtc, program, error, why, why_size);
    const int is_compiled = !error && get_cubin(nvrtc, program, cubin, why, why_size);
    (void)nvrtc->destroy_program(&program); /* a failure would only waste memory */
    return is_compiled;
}

/* NVRTC computes constants in the floating-point environment of its thread, so it gets the default one. Versions 12.2 and
 * 12.4 change the locale of the thread. */
int trope_compile(const trope_nvrtc *nvrtc, const char *program, int32_t architecture, trope_cubin *cubin, char *why,
                  size_t why_size)
{
    const locale_t locale = uselocale((locale_t)0);
    fenv_t environment;
    memset(cubin, 0, sizeof *cubin);
    if (fegetenv(&environment) || fesetenv(FE_DFL_ENV)) {
        snprintf(why, why_size, "the floating-point environment cannot be set");
        return 0;
    }
    const int is_compiled = compile(nvrtc, program, architecture, cubin, why, why_size);
    uselocale(locale);
    fesetenv(&environment);
    return is_compiled;
}
