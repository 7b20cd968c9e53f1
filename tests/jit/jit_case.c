#define _GNU_SOURCE 1
#include "jit/jit_case.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "jit/driver.h"
#include "support/check.h"

enum { CASE_SECONDS = 60 };

static char folder[PATH_MAX];
static check_counts test; /* of the test that runs */

/* ---- requests ---- */

jit_key make_key(int32_t heads)
{
    jit_key key = {.heads = heads};
    uint64_t state = 0x243f6a8885a308d3u + (uint64_t)heads;
    for (int i = 0; i < 48; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        key.others[i] = state;
    }
    return key;
}

static char *make_program(const void *key)
{
    const jit_key *k = key;
    char *text = NULL;
    return asprintf(&text, "%sheads %d, last %" PRIu64, k->does_not_compile ? "#error " : "", k->heads, k->others[47]) < 0
               ? NULL
               : text;
}

trope_jit_request request_of(const jit_key *key)
{
    return (trope_jit_request){key, sizeof *key, "trope_kernel", make_program};
}

trope_cubin_id id_of(const jit_key *key, int32_t architecture)
{
    static char *program;
    free(program);
    program = make_program(key);
    return (trope_cubin_id){key, sizeof *key, "trope_kernel", program, architecture, trope_hash_of_sources()};
}

/* ---- the driver ---- */

int32_t refused_version;

static int32_t architecture(int device)
{
    return device == 0 || device == 1 ? 90 : device == 2 ? 100 : 0;
}

/* The function of a kernel is a copy of its cubin. It is never freed, as with a real driver. */
static const void *load(int device, const void *cubin, size_t bytes, const char *entry, char *why, size_t why_size)
{
    int version = 0, of = 0;
    char *copy = calloc(1, bytes + 1);
    if (copy)
        memcpy(copy, cubin, bytes);
    if (copy && sscanf(copy, "NVRTC %d sm_%d", &version, &of) == 2 && version != refused_version &&
        of == architecture(device) && !strcmp(entry, "trope_kernel"))
        return copy;
    free(copy);
    snprintf(why, why_size, "the test's driver refuses version %d", version);
    return NULL;
}

const trope_jit_driver trope_cuda_driver = {architecture, load};

/* ---- checks ---- */

void expect_kernel(const jit_key *key, int device, int32_t nvrtc_version, int line)
{
    const trope_jit_request request = request_of(key);
    const trope_jit_kernel *kernel = NULL;
    char expected[256] = "";
    char *program = make_program(key);
    if (nvrtc_version)
        snprintf(expected, sizeof expected, "NVRTC %d sm_%d: %s", nvrtc_version, architecture(device), program);
    const trope_status status = trope_jit_find("test", &request, device, &kernel);
    const char *found = kernel && kernel->function ? kernel->function : "";
    CHECK_MESSAGE(!status && !strcmp(found, expected), "line %d: found %s (%s) instead of %s", line, found,
                  kernel && kernel->why ? kernel->why : trope_last_error(), expected);
    CHECK_MESSAGE(!kernel || !kernel->function || kernel->nvrtc_version == nvrtc_version, "line %d", line);
    CHECK_MESSAGE(!kernel || !kernel->function == !!kernel->why, "line %d", line);
    free(program);
}

void expect_counts(uint64_t compiled, uint64_t read, int line)
{
    uint64_t has_compiled, has_read;
    trope_jit_get_counts(&has_compiled, &has_read);
    CHECK_MESSAGE(has_compiled == compiled && has_read == read, "line %d: compiled %d, not %d; read %d, not %d", line,
                  (int)has_compiled, (int)compiled, (int)has_read, (int)read);
}

/* ---- files ---- */

const char *case_folder(void)
{
    return folder;
}

const char *below(const char *name)
{
    static char paths[5][2 * PATH_MAX];
    static int next;
    char *path = paths[next++ % 5];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

/* Copies the path of the first file with the prefix, and counts them. */
static int scan(const char *prefix, char *path, size_t size)
{
    const char *cache = getenv("TROPE_CACHE");
    DIR *open = cache ? opendir(cache) : NULL;
    int count = 0;
    for (struct dirent *entry; open && (entry = readdir(open));)
        if (entry->d_name[0] != '.' && !strncmp(entry->d_name, prefix, strlen(prefix)) && !count++ && path)
            snprintf(path, size, "%s/%s", cache, entry->d_name);
    if (open)
        closedir(open);
    return count;
}

int count_files(const char *prefix)
{
    return scan(prefix, NULL, 0);
}

const char *cache_file(void)
{
    static char path[PATH_MAX];
    return scan("sm_", path, sizeof path) ? path : NULL;
}

const char *fake(const char *name)
{
    static char paths[4][PATH_MAX];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, PATH_MAX, "%s/%s/lib64/libnvrtc.so.13", FAKES, name);
    return path;
}

const char *description(void)
{
    static char text[4096];
    trope_jit_describe(text, sizeof text);
    return text;
}

/* ---- children ---- */

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *place)
{
    (void)status, (void)type, (void)place;
    return remove(path);
}

/* The child sends how many checks passed and failed. */
static void run_child(const char *name, void (*body)(void))
{
    int ends[2], status = -1;
    long results[2] = {0, 1};
    fflush(stdout);
    if (!CHECK(!pipe(ends)))
        return;
    const pid_t child = fork();
    if (child == 0) {
        alarm(CASE_SECONDS);
        check_passed = check_failed = *test.passed = *test.failed = 0;
        body();
        results[0] = check_passed + *test.passed, results[1] = check_failed + *test.failed;
        fflush(stdout);
        _exit(write(ends[1], results, sizeof results) != sizeof results);
    }
    close(ends[1]);
    const int is_ended = child > 0 && waitpid(child, &status, 0) == child && !status;
    const int has_results = read(ends[0], results, sizeof results) == sizeof results;
    close(ends[0]);
    CHECK_MESSAGE(is_ended && has_results, "%s: the child ended with status %d", name, status);
    check_passed += results[0], check_failed += results[1];
}

void in_child(void (*body)(void))
{
    run_child(folder, body);
}

static void set_up(void)
{
    static const char *const others[] = {"TROPE_JIT",      "TROPE_CACHE_READ", "CUDA_HOME",     "CUDA_PATH",  "HOME",
                                         "XDG_CACHE_HOME", "FAKE_NVRTC_LOG",   "FAKE_NVRTC_MS", "TROPE_CACHE"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        unsetenv(others[i]);
    setenv("TROPE_NVRTC", fake("current"), 1);
    setenv("TROPE_CACHE", below("cache"), 1);
    CHECK(!mkdir(below("cache"), 0700));
}

void run_case(const char *name, void (*body)(void), check_counts of_test)
{
    struct stat status;
    const char *temporary = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/trope-jit-XXXXXX", temporary && *temporary ? temporary : "/tmp");
    if (!CHECK(mkdtemp(folder)))
        return;
    check_passed = check_failed = 0;
    test = of_test;
    const int errors = open(below("stderr"), O_CREAT | O_RDWR, 0600), before = dup(2);
    set_up();
    dup2(errors, 2);
    run_child(name, body);
    dup2(before, 2);
    close(before);
    CHECK_MESSAGE(!fstat(errors, &status) && status.st_size == 0, "%s printed to stderr", name);
    close(errors);
    if (check_failed)
        printf("%s failed\n", name);
    *test.passed += check_passed, *test.failed += check_failed;
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}
