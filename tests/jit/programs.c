/* Compiles programs with NVRTC for compute capability 9.0.
 *
 *     jit_programs FOLDER    makes NAME.cubin of each file NAME.cu in the folder, and prints the slowest compilation
 *
 * Exits with status 77 (skipped) without NVRTC. */
#define _GNU_SOURCE 1
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "jit/compile.h"
#include "support/check.h"

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Returns the text of a file in memory of malloc. */
static char *read_text(const char *path)
{
    FILE *const file = fopen(path, "rb");
    char *const text = calloc(1, 1 << 16);
    CHECK_MESSAGE(file && text && fread(text, 1, (1 << 16) - 1, file) > 0, "%s cannot be read", path);
    if (file)
        fclose(file);
    return text;
}

static void write_cubin(const char *program, const trope_cubin *cubin)
{
    char path[4096];
    snprintf(path, sizeof path, "%.*s.cubin", (int)strlen(program) - 3, program);
    FILE *const file = fopen(path, "wb");
    CHECK_MESSAGE(file && fwrite(cubin->code, 1, cubin->bytes, file) == cubin->bytes, "%s cannot be written", path);
    if (file)
        fclose(file);
}

int main(int argc, char **argv)
{
    const trope_nvrtc *const nvrtc = trope_nvrtc_at(0);
    char pattern[4096];
    glob_t found;
    double slowest = 0;
    if (argc != 2) {
        fprintf(stderr, "usage: jit_programs FOLDER\n");
        return 2;
    }
    if (!nvrtc) {
        printf("skipped: %s\n", trope_nvrtc_fault());
        return 77;
    }
    snprintf(pattern, sizeof pattern, "%s/*.cu", argv[1]);
    CHECK_MESSAGE(!glob(pattern, 0, NULL, &found), "%s has no programs", argv[1]);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char *const text = read_text(found.gl_pathv[i]);
        char why[512] = "";
        trope_cubin cubin = {0};
        const double begin = seconds_now();
        const int is_compiled = trope_compile(nvrtc, text, 90, &cubin, why, sizeof why);
        CHECK_MESSAGE(is_compiled, "%s: %s", found.gl_pathv[i], why);
        if (is_compiled)
            write_cubin(found.gl_pathv[i], &cubin);
        const double took = seconds_now() - begin;
        slowest = took > slowest ? took : slowest;
        free(cubin.code);
        free(text);
    }
    printf("%zu programs, the slowest in %.2f s\n", found.gl_pathc, slowest);
    globfree(&found);
    return check_result();
}
