#define _GNU_SOURCE 1
#include "jit/cache.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "jit/hash.h"

#define MOST_FILE_BYTES ((size_t)64 << 20)

/* A file is this header, the key, the name of the kernel, the program and the cubin. */
typedef struct file_header {
    uint64_t magic; /* also says that the file is of a machine with this order of bytes */
    uint32_t format;
    int32_t architecture, nvrtc_version, unused;
    uint64_t sources, key_bytes, entry_bytes, program_bytes, cubin_bytes;
    uint64_t checksum; /* of the whole file, in which this field is 0 */
} file_header;

_Static_assert(sizeof(file_header) == 72, "file_header has no padding");

static file_header make_header(const trope_cubin_id *id, int32_t nvrtc_version, uint64_t cubin_bytes)
{
    return (file_header){.magic = 0x0a74696a65706f72u, /* "ropejit" and a line feed, which no text mode leaves alone */
                         .format = 1,
                         .architecture = id->architecture,
                         .nvrtc_version = nvrtc_version,
                         .sources = id->sources,
                         .key_bytes = id->key_bytes,
                         .entry_bytes = strlen(id->entry),
                         .program_bytes = strlen(id->program),
                         .cubin_bytes = cubin_bytes};
}

static uint64_t checksum_of(file_header header, const char *body, size_t bytes)
{
    header.checksum = 0;
    return trope_hash(body, bytes, trope_hash(&header, sizeof header, 0));
}

/* Only a name: two ids with the same name replace each other's file. */
static void name_file(const trope_cubin_id *id, char name[64])
{
    uint64_t hash = trope_hash(id->key, id->key_bytes, id->sources);
    hash = trope_hash(id->entry, strlen(id->entry), hash);
    hash = trope_hash(id->program, strlen(id->program), hash);
    snprintf(name, 64, "sm_%d-%016llx", (int)id->architecture, (unsigned long long)hash);
}

/* ---- folders ---- */

/* Returns the value of a variable, NULL if it is empty. */
static const char *variable(const char *name)
{
    const char *value = secure_getenv(name);
    return value && *value ? value : NULL;
}

/* Finds the path of a folder. If there is none, the text says why. */
static int find_path(trope_cache_folder folder, char *text, size_t size)
{
    const char *name = folder == TROPE_CACHE_OWN ? "TROPE_CACHE" : "TROPE_CACHE_READ", *below = "";
    const char *path = variable(name);
    if (!path && folder == TROPE_CACHE_OWN) {
        name = "XDG_CACHE_HOME";
        below = "/trope";
        path = variable(name);
        if (!path || *path != '/') { /* the standard says that a relative path is ignored */
            name = "HOME";
            below = "/.cache/trope";
            path = variable(name);
        }
    }
    if (path && *path == '/' && (size_t)snprintf(text, size, "%s%s", path, below) < size)
        return 1;
    snprintf(text, size, path ? "none (%s must be an absolute path)" : "none (%s is not set)", name);
    return 0;
}

/* Makes a folder, and the one above it if this belongs to the user's own folder, as ~/.cache does. Others above it must
 * exist: a folder that users share must not get the mode 0700. If that fails, it cannot be opened afterwards. */
static void make_folders(char *path)
{
    const char *home = variable("HOME");
    char *last = strrchr(path, '/');
    *last = 0;
    if (home && !strncmp(path, home, strlen(home)) && path[strlen(home)] == '/')
        (void)mkdir(path, 0700);
    *last = '/';
    (void)mkdir(path, 0700);
}

/* fstat needs glibc 2.33 and statx only 2.28. */
static int find_status(int opened, struct statx *status)
{
    const unsigned wanted = STATX_TYPE | STATX_MODE | STATX_UID | STATX_SIZE;
    return !statx(opened, "", AT_EMPTY_PATH, wanted, status) && (status->stx_mask & wanted) == wanted;
}

static int is_trusted(const struct statx *status, trope_cache_folder folder)
{
    const int is_owner = status->stx_uid == geteuid() || (folder == TROPE_CACHE_READ_ONLY && status->stx_uid == 0);
    return is_owner && !(status->stx_mode & 022);
}

/* Says why an open folder is not used, or returns NULL. */
static const char *find_fault(int opened, trope_cache_folder folder)
{
    struct statx status;
    if (!find_status(opened, &status))
        return "its owner is unknown";
    if (folder == TROPE_CACHE_OWN && status.stx_uid != geteuid())
        return "it belongs to another user";
    if (folder == TROPE_CACHE_OWN && (status.stx_mode & 077))
        return "other users have access: its mode must be 0700";
    return is_trusted(&status, folder) ? NULL : "a user other than root and this one may write to it";
}

/* Opens a folder. Returns a negative number if there is none that can be used. The text becomes its path, or why not. */
static int open_folder(trope_cache_folder folder, int makes, char *text, size_t size)
{
    char path[PATH_MAX];
    if (!find_path(folder, path, sizeof path)) {
        snprintf(text, size, "%s", path);
        return -1;
    }
    if (makes)
        make_folders(path);
    const int opened = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (opened < 0 && errno == ENOENT && folder == TROPE_CACHE_OWN)
        snprintf(text, size, "%s (empty)", path);
    else if (opened < 0)
        snprintf(text, size, "none (%s: %m)", path);
    else
        snprintf(text, size, "%s", path);
    const char *fault = opened < 0 ? NULL : find_fault(opened, folder);
    if (!fault)
        return opened;
    snprintf(text, size, "none (%s: %s)", path, fault);
    (void)close(opened);
    return -1;
}

void trope_cache_describe(trope_cache_folder folder, char *text, size_t size)
{
    const int opened = open_folder(folder, 0, text, size);
    if (opened >= 0)
        (void)close(opened);
}

/* ---- reading ---- */

/* Copies the cubin out of a file if the file is undamaged and has exactly this id. */
static int take_cubin(const char *file, size_t bytes, const trope_cubin_id *id, trope_cubin *cubin)
{
    file_header header;
    if (bytes < sizeof header)
        return 0;
    memcpy(&header, file, sizeof header);
    file_header expected = make_header(id, header.nvrtc_version, header.cubin_bytes);
    expected.checksum = header.checksum;
    const char *body = file + sizeof header, *entry = body + expected.key_bytes;
    const char *program = entry + expected.entry_bytes;
    const uint64_t before = expected.key_bytes + expected.entry_bytes + expected.program_bytes;
    if (memcmp(&header, &expected, sizeof header) || before >= bytes - sizeof header ||
        header.cubin_bytes != bytes - sizeof header - before || memcmp(body, id->key, id->key_bytes) ||
        memcmp(entry, id->entry, expected.entry_bytes) || memcmp(program, id->program, expected.program_bytes) ||
        checksum_of(header, body, bytes - sizeof header) != header.checksum)
        return 0;
    cubin->bytes = (size_t)header.cubin_bytes;
    cubin->nvrtc_version = header.nvrtc_version;
    cubin->code = malloc(cubin->bytes);
    if (cubin->code)
        memcpy(cubin->code, program + expected.program_bytes, cubin->bytes);
    return cubin->code != NULL;
}

/* Reads all bytes of an open file. Returns whether it had them. */
static int read_all(int opened, char *to, size_t bytes)
{
    while (bytes) {
        const ssize_t count = read(opened, to, bytes);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            return 0;
        to += count;
        bytes -= (size_t)count;
    }
    return 1;
}

static int read_cubin(int opened, trope_cache_folder folder, const trope_cubin_id *id, trope_cubin *cubin)
{
    struct statx status;
    if (!find_status(opened, &status) || !S_ISREG(status.stx_mode) || !is_trusted(&status, folder) ||
        status.stx_size > MOST_FILE_BYTES)
        return 0;
    const size_t bytes = (size_t)status.stx_size;
    char *file = malloc(bytes);
    const int is_read = file && read_all(opened, file, bytes) && take_cubin(file, bytes, id, cubin);
    free(file);
    return is_read;
}

int trope_cache_read(trope_cache_folder folder, const trope_cubin_id *id, trope_cubin *cubin)
{
    char text[PATH_MAX + 64], name[64];
    const int in = open_folder(folder, 0, text, sizeof text);
    if (in < 0)
        return 0;
    name_file(id, name);
    /* O_NONBLOCK: something that is not a file must not make the call wait */
    const int opened = openat(in, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    const int is_read = opened >= 0 && read_cubin(opened, folder, id, cubin);
    if (opened >= 0)
        (void)close(opened);
    (void)close(in);
    return is_read;
}

/* ---- writing ---- */

static char *make_file(const trope_cubin_id *id, const trope_cubin *cubin, size_t *bytes)
{
    file_header header = make_header(id, cubin->nvrtc_version, cubin->bytes);
    *bytes = sizeof header + header.key_bytes + header.entry_bytes + header.program_bytes + header.cubin_bytes;
    char *file = *bytes <= MOST_FILE_BYTES ? malloc(*bytes) : NULL;
    if (!file)
        return NULL;
    char *at = file + sizeof header;
    at = mempcpy(at, id->key, header.key_bytes);
    at = mempcpy(at, id->entry, header.entry_bytes);
    at = mempcpy(at, id->program, header.program_bytes);
    memcpy(at, cubin->code, cubin->bytes);
    header.checksum = checksum_of(header, file + sizeof header, *bytes - sizeof header);
    memcpy(file, &header, sizeof header);
    return file;
}

static int write_all(int opened, const char *from, size_t bytes)
{
    while (bytes) {
        const ssize_t count = write(opened, from, bytes);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            return 0;
        from += count;
        bytes -= (size_t)count;
    }
    return 1;
}

/* Whether the limit on the sizes of files permits one. A write beyond the limit would raise a signal. */
static int is_permitted(size_t bytes)
{
    struct rlimit limit;
    return !getrlimit(RLIMIT_FSIZE, &limit) && (limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur);
}

/* Writes under a name that no other process has, and then renames: so no process sees a part of a file. A process that ends
 * in between leaves a file that nobody reads. */
static int write_file(int in, const char *name, const char *file, size_t bytes)
{
    char temporary[64];
    uint64_t number;
    if (getrandom(&number, sizeof number, GRND_NONBLOCK) != sizeof number)
        return 0;
    snprintf(temporary, sizeof temporary, "unfinished-%016llx", (unsigned long long)number);
    const int opened = openat(in, temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (opened < 0)
        return 0;
    const int is_whole = write_all(opened, file, bytes);
    const int is_closed = !close(opened); /* some file systems report a full disk here */
    if (is_whole && is_closed && !renameat(in, temporary, in, name))
        return 1;
    (void)unlinkat(in, temporary, 0);
    return 0;
}

int trope_cache_write(const trope_cubin_id *id, const trope_cubin *cubin)
{
    char text[PATH_MAX + 64], name[64];
    size_t bytes;
    const int in = open_folder(TROPE_CACHE_OWN, 1, text, sizeof text);
    if (in < 0)
        return 0;
    name_file(id, name);
    char *file = make_file(id, cubin, &bytes);
    const int is_written = file && is_permitted(bytes) && write_file(in, name, file, bytes);
    free(file);
    (void)close(in);
    return is_written;
}
