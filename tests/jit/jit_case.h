/* What the tests of src/jit share: requests whose programs tell them apart, a driver without a GPU, and children in which
 * each case starts with a new process, because variables and kernels are found once per process. */
#ifndef TESTS_JIT_JIT_CASE_H
#define TESTS_JIT_JIT_CASE_H

#include <stddef.h>
#include <stdint.h>

#include "jit/cache.h"
#include "jit/jit.h"

/* A key: the constants of a call. Its program is made of them. */
typedef struct jit_key {
    int32_t heads, does_not_compile;
    uint64_t others[48]; /* as long as a real key */
} jit_key;

/* The key of a kind of calls. All words of it are random. */
jit_key make_key(int32_t heads);

trope_jit_request request_of(const jit_key *key);

/* The id that files of this request have. Frees nothing; the program stays valid until the next call. */
trope_cubin_id id_of(const jit_key *key, int32_t architecture);

/* Finds the kernel of a key on a device. Checks that it is the kernel of the key, by the compiler of `nvrtc_version`. With
 * nvrtc_version 0, checks that there is none. */
void expect_kernel(const jit_key *key, int device, int32_t nvrtc_version, int line);
#define EXPECT_KERNEL(key, device, nvrtc_version) expect_kernel(key, device, nvrtc_version, __LINE__)

/* Checks how many programs this process has compiled and how many files it has read. */
void expect_counts(uint64_t compiled, uint64_t read, int line);
#define EXPECT_COUNTS(compiled, read) expect_counts(compiled, read, __LINE__)

/* The driver: device 0 and 1 are sm_90, device 2 is sm_100, and others are unknown. It refuses cubins that were not made by
 * the fake NVRTC, or by this version of it. */
extern int32_t refused_version;

/* The counts of checks of the test's file (support/check.h). */
typedef struct check_counts {
    long *passed, *failed;
} check_counts;

/* Runs a case in a child with an empty cache folder $TROPE_CACHE (mode 0700) and the fake NVRTC 13.0, and counts its
 * checks. A child that prints to stderr, is killed or hangs fails. */
void run_case(const char *name, void (*body)(void), check_counts of_test);
#define RUN(body) run_case(#body, body, (check_counts){&check_passed, &check_failed})

/* Runs a part of a case in a further child, which has its variables and files. Its checks count. */
void in_child(void (*body)(void));

/* The folder of the case, and a path below it. The path stays valid for four further calls. */
const char *case_folder(void);
const char *below(const char *name);

/* Returns the number of files in the cache whose names begin so. */
int count_files(const char *prefix);

/* The path of the first file of the cache that is not unfinished, NULL if there is none. */
const char *cache_file(void);

/* The path of a fake NVRTC: "current" (13.0), "other" (12.3, not on the list of tested ones), "old" (11.8), "partial". */
const char *fake(const char *name);

/* Returns what trope_jit_describe writes. */
const char *description(void);

#endif
