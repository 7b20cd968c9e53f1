/* NVRTC, NVIDIA's compiler of CUDA C++. The library is opened when a kernel is first compiled, so trope does not depend on
 * it: a machine may have none, or several. */
#ifndef TROPE_JIT_NVRTC_H
#define TROPE_JIT_NVRTC_H

#include <stddef.h>
#include <stdint.h>

typedef struct trope_nvrtc_program *trope_nvrtc_program;

/* The functions return 0 if they succeed. */
typedef struct trope_nvrtc {
    void *library;
    int32_t version; /* 13000 is 13.0, as in CUDA's own headers */
    char path[512];
    int (*get_version)(int *major, int *minor);
    const char *(*error_string)(int result);
    int (*create_program)(trope_nvrtc_program *program, const char *text, const char *name, int headers,
                          const char *const *texts, const char *const *names); /* of the headers */
    int (*compile_program)(trope_nvrtc_program program, int count, const char *const *options);
    int (*log_size)(trope_nvrtc_program program, size_t *bytes);
    int (*get_log)(trope_nvrtc_program program, char *log);
    int (*cubin_size)(trope_nvrtc_program program, size_t *bytes);
    int (*get_cubin)(trope_nvrtc_program program, char *cubin);
    int (*destroy_program)(trope_nvrtc_program *program);
} trope_nvrtc;

/* Returns compiler i of this process, or NULL if there are not so many. It is opened when it is first requested. The order
 * is: the one in the variable TROPE_NVRTC, and then no other; those that the process has loaded; those of the folders from
 * which it has loaded CUDA's other libraries, such as torch's; the loader's; the toolkit's. The caller holds a lock. */
const trope_nvrtc *trope_nvrtc_at(int i);

/* Returns compiler 0 if it has been opened, otherwise NULL. */
const trope_nvrtc *trope_nvrtc_opened(void);

/* Says why there is no compiler, or no further one. */
const char *trope_nvrtc_fault(void);

/* Whether the variable TROPE_NVRTC names the compiler. */
int trope_nvrtc_is_named(void);

/* Forgets what was found, for a child of fork(): another thread may have been looking. */
void trope_nvrtc_forget(void);

#endif
