/* The cache of cubins in files: only an undamaged file of exactly this kernel is used, only folders that others cannot
 * write to are used, and a folder that cannot be written costs nothing but time. */
#define _GNU_SOURCE 1
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "jit/jit_case.h"
#include "support/check.h"

enum { ANOTHER_USER = 12345 };

/* ---- the key of these tests, in new processes ---- */

static void compiles(void)
{
    const jit_key key = make_key(1);
    EXPECT_KERNEL(&key, 0, 13000);
    EXPECT_COUNTS(1, 0);
}

static void reads(void)
{
    const jit_key key = make_key(1);
    EXPECT_KERNEL(&key, 0, 13000);
    EXPECT_COUNTS(0, 1);
}

static void compiles_other(void)
{
    const jit_key key = make_key(1);
    setenv("TROPE_NVRTC", fake("other"), 1);
    EXPECT_KERNEL(&key, 0, 12030);
    EXPECT_COUNTS(1, 0);
}

static void reads_other(void)
{
    const jit_key key = make_key(1);
    setenv("TROPE_NVRTC", fake("other"), 1);
    EXPECT_KERNEL(&key, 0, 12030);
    EXPECT_COUNTS(0, 1);
}

/* ---- hits ---- */

static void later_process_reads(void)
{
    in_child(compiles);
    CHECK(count_files("") == 1);
    in_child(reads);
    in_child(reads);
    CHECK(strstr(description(), "jit cache: /") && strstr(description(), case_folder()));
}

static void folder_is_made(void)
{
    struct stat status;
    setenv("TROPE_CACHE", below("there"), 1);
    CHECK(strstr(description(), "(empty)"));
    in_child(compiles);
    CHECK(!stat(below("there"), &status) && (status.st_mode & 07777) == 0700);
    in_child(reads);
}

/* Other users may share the folders above it, so they do not get its mode. */
static void folders_above_it_are_not_made(void)
{
    struct stat status;
    setenv("TROPE_CACHE", below("not/there"), 1);
    in_child(compiles);
    in_child(compiles);
    CHECK(stat(below("not"), &status));
}

static void folder_is_below_home(void)
{
    unsetenv("TROPE_CACHE");
    CHECK(strstr(description(), "jit cache: none (HOME is not set)"));
    in_child(compiles);
    setenv("HOME", case_folder(), 1);
    setenv("XDG_CACHE_HOME", "relative", 1);
    in_child(compiles);
    in_child(reads);
    setenv("TROPE_CACHE", below(".cache/trope"), 1);
    CHECK(count_files("sm_") == 1);
    unsetenv("TROPE_CACHE");
    setenv("XDG_CACHE_HOME", below("xdg"), 1);
    in_child(compiles);
    setenv("TROPE_CACHE", below("xdg/trope"), 1);
    CHECK(count_files("sm_") == 1);
    setenv("TROPE_CACHE", "relative", 1);
    in_child(compiles);
    CHECK(strstr(description(), "none (TROPE_CACHE must be an absolute path)"));
}

static void tested_version_needs_no_compiler(void)
{
    in_child(compiles);
    unsetenv("TROPE_NVRTC");
    in_child(reads);
}

/* ---- damage ---- */

typedef struct file_bytes {
    size_t count;
    char *bytes;
} file_bytes;

static file_bytes load_file(const char *path)
{
    struct stat status;
    file_bytes file = {0, NULL};
    const int opened = path ? open(path, O_RDONLY) : -1;
    if (CHECK(opened >= 0 && !fstat(opened, &status)) && (file.bytes = malloc((size_t)status.st_size + 1)))
        file.count = (size_t)read(opened, file.bytes, (size_t)status.st_size);
    close(opened);
    return file;
}

static void store_file(const char *path, const char *bytes, size_t count)
{
    const int opened = open(path, O_WRONLY | O_TRUNC);
    CHECK(opened >= 0 && write(opened, bytes, count) == (ssize_t)count && !close(opened));
}

static int can_read(const trope_cubin_id *id)
{
    trope_cubin cubin = {.code = NULL};
    const int is_read = trope_cache_read(TROPE_CACHE_OWN, id, &cubin);
    free(cubin.code);
    return is_read;
}

static void every_damaged_bit_is_seen(void)
{
    const jit_key key = make_key(1);
    const trope_cubin_id id = id_of(&key, 90);
    in_child(compiles);
    const char *path = cache_file();
    file_bytes file = load_file(path);
    CHECK(can_read(&id) && file.count > 72 + sizeof key);
    for (size_t bit = 0; bit < 8 * file.count; bit++) {
        file.bytes[bit / 8] ^= (char)(1 << bit % 8);
        store_file(path, file.bytes, file.count);
        CHECK_MESSAGE(!can_read(&id), "bit %d of byte %d", (int)(bit % 8), (int)(bit / 8));
        file.bytes[bit / 8] ^= (char)(1 << bit % 8);
    }
    for (size_t count = 0; count < file.count; count++) {
        store_file(path, file.bytes, count);
        CHECK_MESSAGE(!can_read(&id), "%d bytes", (int)count);
    }
    file.bytes[file.count] = 0;
    store_file(path, file.bytes, file.count + 1);
    CHECK(!can_read(&id));
    in_child(compiles); /* replaces it */
    in_child(reads);
    free(file.bytes);
}

static void another_id_is_foreign(void)
{
    jit_key key = make_key(1), other = key;
    in_child(compiles);
    const trope_cubin_id id = id_of(&key, 90);
    const file_bytes file = load_file(cache_file());
    other.others[3]++;                  /* not in the text of the program */
    char *program = strdup(id.program); /* of the same length */
    CHECK(program);
    program[0]++;
    trope_cubin_id ids[6] = {id, id, id, id, id, id};
    ids[0].key = &other;
    ids[1].key_bytes--;
    ids[2].entry = "trope_kernal";
    ids[3].program = program;
    ids[4].architecture = 89;
    ids[5].sources ^= 1;
    for (int i = 0; i < 6; i++) {
        /* The file gets the name that a file of the other id has. */
        const trope_cubin cubin = {"x", 1, 13000};
        CHECK(!unlink(cache_file()) && trope_cache_write(&ids[i], &cubin) && can_read(&ids[i]));
        store_file(cache_file(), file.bytes, file.count);
        CHECK_MESSAGE(!can_read(&ids[i]), "id %d", i);
    }
    CHECK(count_files("") == 1);
    free(file.bytes);
    free(program);
}

static void another_compilers_file_is_compiled_anew(void)
{
    in_child(compiles);
    in_child(compiles_other);
    in_child(reads_other);
    in_child(compiles); /* the compiler is named, so the tested version is no reason to keep the other's file */
    in_child(compiles_other);
    setenv("TROPE_NVRTC", below("nothing.so"), 1);
    const jit_key key = make_key(1);
    EXPECT_KERNEL(&key, 0, 0);
}

static void refused_cubin_is_compiled_anew(void)
{
    const jit_key key = make_key(1);
    const trope_cubin_id id = id_of(&key, 90);
    const trope_cubin cubin = {"not a cubin", 11, 13000};
    CHECK(trope_cache_write(&id, &cubin));
    in_child(compiles);
    in_child(reads);
}

/* ---- what may be trusted ---- */

static void shared_folder_is_not_used(void)
{
    in_child(compiles);
    for (int bit = 1; bit <= 040; bit *= 2) {
        CHECK(!chmod(below("cache"), 0700 | (mode_t)bit));
        in_child(compiles);
        CHECK(strstr(description(), "none (") && strstr(description(), "its mode must be 0700"));
    }
    CHECK(!chmod(below("cache"), 0700));
    in_child(reads);
}

static void shared_file_is_not_used(void)
{
    in_child(compiles);
    const char *path = cache_file();
    CHECK(!chmod(path, 0620));
    in_child(compiles);
    CHECK(!chmod(path, 0602));
    in_child(compiles);
    in_child(reads);
}

static void link_is_not_followed(void)
{
    in_child(compiles);
    const char *path = cache_file();
    CHECK(!rename(path, below("file")) && !symlink(below("file"), path));
    in_child(compiles); /* replaces the link */
    in_child(reads);
    CHECK(!unlink(path) && !mkfifo(path, 0600));
    in_child(compiles); /* does not wait for a writer */
    in_child(reads);
    CHECK(!unlink(path) && !mkdir(path, 0700));
    in_child(compiles); /* cannot replace the folder */
    CHECK(count_files("") == 1);
}

static void another_users_folder_is_not_used(void)
{
    if (geteuid()) {
        printf("not root: the folders of other users are not tested\n");
        return;
    }
    in_child(compiles);
    CHECK(!chown(below("cache"), ANOTHER_USER, 0));
    in_child(compiles);
    CHECK(strstr(description(), "it belongs to another user"));
    CHECK(count_files("") == 1);
    CHECK(!chown(below("cache"), 0, 0) && !chown(cache_file(), ANOTHER_USER, 0));
    in_child(compiles); /* replaces the other user's file */
    in_child(reads);
}

static void prepares(void)
{
    const jit_key key = make_key(1);
    const trope_jit_request request = request_of(&key);
    CHECK(!trope_jit_prepare("test", &request, 90));
    EXPECT_COUNTS(1, 0);
    CHECK(!trope_jit_prepare("test", &request, 90)); /* it is there */
    EXPECT_COUNTS(1, 0);
    CHECK(!trope_jit_prepare("test", &request, 100));
    EXPECT_COUNTS(2, 0);
}

static void prepared_files_are_read_from_a_second_folder(void)
{
    in_child(prepares);
    CHECK(count_files("sm_90-") == 1 && count_files("sm_100-") == 1);
    setenv("TROPE_CACHE_READ", below("cache"), 1);
    setenv("TROPE_CACHE", below("own"), 1);
    CHECK(!chmod(below("cache"), 0555));
    in_child(reads);
    CHECK(count_files("") == 0);
    CHECK(!chmod(below("cache"), 0575));
    CHECK(strstr(description(), "jit cache read: none (") && strstr(description(), "may write to it"));
    in_child(compiles);
    in_child(reads);
    CHECK(count_files("") == 1); /* in the user's own folder */
}

static void second_folder_of_another_user_is_not_read(void)
{
    if (geteuid())
        return;
    in_child(compiles);
    setenv("TROPE_CACHE_READ", below("cache"), 1);
    setenv("TROPE_CACHE", "/dev/null", 1);
    in_child(reads);
    CHECK(!chown(below("cache"), ANOTHER_USER, 0));
    in_child(compiles);
}

static void preparing_says_what_is_wrong(void)
{
    jit_key key = make_key(1);
    const trope_jit_request request = request_of(&key);
    setenv("TROPE_CACHE", "/dev/null", 1);
    CHECK(trope_jit_prepare("trope_prepare", &request, 90) == TROPE_ERROR_UNSUPPORTED);
    CHECK_MESSAGE(strstr(trope_last_error(), "trope_prepare: No kernel can be compiled for sm_90: the cache cannot be "
                                             "written: none (/dev/null: Not a directory)"),
                  "%s", trope_last_error());
    setenv("TROPE_CACHE", below("cache"), 1);
    key.does_not_compile = 1;
    CHECK(trope_jit_prepare("trope_prepare", &request, 90) == TROPE_ERROR_UNSUPPORTED);
    CHECK(strstr(trope_last_error(), "error: #error says so"));
}

/* ---- folders that cannot be written ---- */

static void nothing_is_written(void)
{
    in_child(compiles);
    in_child(compiles);
    CHECK_MESSAGE(count_files("") == 0, "%d files", count_files(""));
}

static void limit_file_sizes(void)
{
    const struct rlimit limit = {100, 100};
    CHECK(!setrlimit(RLIMIT_FSIZE, &limit));
    nothing_is_written();
}

static void limit_on_file_sizes_costs_nothing(void)
{
    in_child(limit_file_sizes); /* whose limit the messages of a failure would exceed */
}

static void read_only_folder_costs_nothing(void)
{
    if (!geteuid()) /* root may write to every folder */
        CHECK(!chmod(case_folder(), 0755) && !chown(below("cache"), ANOTHER_USER, 0) && !setuid(ANOTHER_USER));
    CHECK(!chmod(below("cache"), 0500));
    nothing_is_written();
    setenv("TROPE_CACHE", below("cache/deeper"), 1);
    nothing_is_written();
    CHECK(!chmod(below("cache"), 0700));
}

static void no_folder_costs_nothing(void)
{
    setenv("TROPE_CACHE", "/dev/null/nothing", 1);
    nothing_is_written();
    setenv("TROPE_CACHE", "/proc/nothing", 1);
    nothing_is_written();
}

static void no_descriptors_cost_nothing(void)
{
    struct rlimit limit;
    const jit_key first = make_key(1), second = make_key(2);
    EXPECT_KERNEL(&first, 0, 13000); /* opens the compiler */
    CHECK(!getrlimit(RLIMIT_NOFILE, &limit));
    limit.rlim_cur = 3;
    CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
    EXPECT_KERNEL(&second, 0, 13000);
    EXPECT_COUNTS(2, 0);
}

/* Needs a file system of its own, which only root can mount. */
static void full_disk_costs_nothing(void)
{
    if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", below("cache"), "tmpfs", 0, "size=4k,mode=0700")) {
        printf("a full disk is not tested: %s\n", strerror(errno));
        return;
    }
    char block[4096] = "full";
    const int opened = open(below("cache/filler"), O_WRONLY | O_CREAT, 0600);
    CHECK(write(opened, block, sizeof block) == sizeof block);
    close(opened);
    in_child(compiles);
    in_child(compiles);
    CHECK(count_files("") == 1);
}

int main(void)
{
    RUN(later_process_reads);
    RUN(folder_is_made);
    RUN(folders_above_it_are_not_made);
    RUN(folder_is_below_home);
    RUN(tested_version_needs_no_compiler);
    RUN(every_damaged_bit_is_seen);
    RUN(another_id_is_foreign);
    RUN(another_compilers_file_is_compiled_anew);
    RUN(refused_cubin_is_compiled_anew);
    RUN(shared_folder_is_not_used);
    RUN(shared_file_is_not_used);
    RUN(link_is_not_followed);
    RUN(another_users_folder_is_not_used);
    RUN(prepared_files_are_read_from_a_second_folder);
    RUN(second_folder_of_another_user_is_not_read);
    RUN(preparing_says_what_is_wrong);
    RUN(limit_on_file_sizes_costs_nothing);
    RUN(read_only_folder_costs_nothing);
    RUN(no_folder_costs_nothing);
    RUN(no_descriptors_cost_nothing);
    RUN(full_disk_costs_nothing);
    return check_result();
}
