/* A library with NVRTC's functions that compiles nothing. Its cubin is a text: its version, the architecture and the
 * program. A program with the word "#error" does not compile. The tests of src/jit load it, so they need no NVRTC and know
 * which compiler made what.
 *
 * FAKE_VERSION is the version, 13000 for 13.0. $FAKE_NVRTC_LOG is a file that gets a byte for each compiled program, and
 * $FAKE_NVRTC_MS is the time that each takes. With FAKE_PARTIAL, a function is missing. */
#define _GNU_SOURCE 1
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct fake_program {
    char *text, *cubin;
} fake_program;

static const char error_log[] = "trope.cu(1): warning: this is a fake\ntrope.cu(2): error: #error says so\n1 error\n";

int nvrtcVersion(int *major, int *minor);
const char *nvrtcGetErrorString(int result);
int nvrtcCreateProgram(fake_program **program, const char *text, const char *name, int headers, const char *const *texts,
                       const char *const *names);
int nvrtcCompileProgram(fake_program *program, int count, const char *const *options);
int nvrtcGetProgramLogSize(fake_program *program, size_t *bytes);
int nvrtcGetProgramLog(fake_program *program, char *log);
int nvrtcGetCUBINSize(fake_program *program, size_t *bytes);
int nvrtcGetCUBIN(fake_program *program, char *cubin);
int nvrtcDestroyProgram(fake_program **program);

int nvrtcVersion(int *major, int *minor)
{
    *major = FAKE_VERSION / 1000;
    *minor = FAKE_VERSION % 1000 / 10;
    return 0;
}

const char *nvrtcGetErrorString(int result)
{
    return result == 6 ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR_OTHER";
}

int nvrtcCreateProgram(fake_program **program, const char *text, const char *name, int headers, const char *const *texts,
                       const char *const *names)
{
    *program = calloc(1, sizeof **program);
    if (!*program || !name || headers < 1 || !texts[0] || !names[0])
        return 1;
    (*program)->text = strdup(text);
    return (*program)->text ? 0 : 1;
}

int nvrtcCompileProgram(fake_program *program, int count, const char *const *options)
{
    const char *log = getenv("FAKE_NVRTC_LOG"), *milliseconds = getenv("FAKE_NVRTC_MS");
    const int opened = log ? open(log, O_WRONLY | O_APPEND | O_CREAT, 0600) : -1;
    if (opened >= 0 && write(opened, "x", 1) != 1)
        return 2;
    if (opened >= 0)
        close(opened);
    usleep((useconds_t)(milliseconds ? 1000 * atoi(milliseconds) : 0));
    if (count < 1 || strncmp(options[0], "--gpu-architecture=", 19) || strstr(program->text, "#error"))
        return 6;
    return asprintf(&program->cubin, "NVRTC %d %s: %s", FAKE_VERSION, options[0] + 19, program->text) < 0 ? 1 : 0;
}

int nvrtcGetProgramLogSize(fake_program *program, size_t *bytes)
{
    *bytes = program->cubin ? 1 : sizeof error_log;
    return 0;
}

int nvrtcGetProgramLog(fake_program *program, char *log)
{
    strcpy(log, program->cubin ? "" : error_log);
    return 0;
}

int nvrtcGetCUBINSize(fake_program *program, size_t *bytes)
{
    *bytes = strlen(program->cubin) + 1;
    return 0;
}

#ifndef FAKE_PARTIAL
int nvrtcGetCUBIN(fake_program *program, char *cubin)
{
    strcpy(cubin, program->cubin);
    return 0;
}
#endif

int nvrtcDestroyProgram(fake_program **program)
{
    free((*program)->text);
    free((*program)->cubin);
    free(*program);
    *program = NULL;
    return 0;
}
