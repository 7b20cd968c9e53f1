#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "command.h"
#include "output.h"

enum { MOST_LINKS = 40, PATH_SIZE = 4096 };

/* The file that a signal handler removes. It changes only while all signals are blocked. */
static const char *unfinished;

static void remove_and_end(int number)
{
    if (unfinished)
        unlink(unfinished);
    signal(number, SIG_DFL);
    raise(number);
}

/* Opens each closed standard stream in the mode in which it cannot be used. Otherwise, a file or socket that is opened
 * later would get its number, and receive text that is printed. */
static int open_closed_streams(void)
{
    for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; stream++)
        if (fcntl(stream, F_GETFD) < 0 && open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0)
            return complain("a standard stream is closed, and /dev/null cannot be opened: %m");
    return 0;
}

int run_program(int (*run)(int argc, char **argv), int argc, char **argv)
{
    if (open_closed_streams())
        return RESULT_REFUSED;
    const int result = run(argc, argv);
    return result != RESULT_REFUSED && output_flush() ? RESULT_REFUSED : result;
}

int output_flush(void)
{
    return fflush(stdout) || ferror(stdout) ? complain("cannot write to standard output") : 0;
}

static sigset_t block_signals(void)
{
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before);
    return before;
}

/* Returns whether a signal needs no handler: its default action does not end the process, or no handler can be set. */
static int is_harmless(int number)
{
    static const int harmless[] = {SIGKILL, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, SIGCONT, SIGCHLD, SIGURG, SIGWINCH};
    for (size_t i = 0; i < sizeof harmless / sizeof harmless[0]; i++)
        if (number == harmless[i])
            return 1;
    return 0;
}

/* Handles every signal that would end the process. The mask blocks other signals in the handler, so the first signal
 * ends the process. Signals that are already ignored or handled stay so: nohup, Python and sanitizers rely on that. */
static void handle_signals(void)
{
    struct sigaction action, old;
    memset(&action, 0, sizeof action);
    action.sa_handler = remove_and_end;
    sigfillset(&action.sa_mask);
    for (int number = 1; number < NSIG; number++)
        if (!is_harmless(number) && !sigaction(number, NULL, &old) && old.sa_handler == SIG_DFL)
            sigaction(number, &action, NULL);
}

/* Returns whether a link is in /proc. Such a link leads to an open file (as /dev/stdout does); its text is not a path. */
static int is_of_proc(const char *path)
{
    struct stat link, proc;
    return !lstat(path, &link) && !stat("/proc/self", &proc) && link.st_dev == proc.st_dev;
}

/* Returns whether a path is directly in /dev, where a mistyped name would create a file. /dev/shm is an ordinary folder. */
static int is_among_devices(const char *path)
{
    return !strncmp(path, "/dev/", 5) && !strchr(path + 5, '/');
}

/* Follows links from path and writes the result to target, which has PATH_SIZE bytes. Returns nonzero on failure. */
static int follow_links(const char *path, char *target)
{
    char link[PATH_SIZE];
    if (snprintf(target, PATH_SIZE, "%s", path) >= PATH_SIZE)
        return errno = ENAMETOOLONG;
    for (int i = 0; i < MOST_LINKS; i++) {
        const ssize_t length = readlink(target, link, sizeof link - 1);
        if (length < 0)
            return 0;
        if (is_of_proc(target))
            return errno = EINVAL;
        link[length] = 0;
        const char *slash = strrchr(target, '/');
        const size_t folder = link[0] == '/' || !slash ? 0 : (size_t)(slash + 1 - target);
        if (folder + (size_t)length >= PATH_SIZE)
            return errno = ENAMETOOLONG;
        memcpy(target + folder, link, (size_t)length + 1);
    }
    return errno = ELOOP;
}

/* Gives the new file the mode and owner of the existing file, or the defaults of a new one. */
static int take_attributes(const output *out, const struct stat *there)
{
    if (!there) {
        const mode_t mask = umask(0);
        umask(mask);
        return fchmod(out->descriptor, 0666 & ~mask);
    }
    if ((there->st_uid != geteuid() || there->st_gid != getegid()) && fchown(out->descriptor, there->st_uid, there->st_gid))
        return 1;
    return fchmod(out->descriptor, there->st_mode & 07777);
}

static int open_beside(output *out, const struct stat *there)
{
    const size_t size = strlen(out->target) + sizeof ".XXXXXX";
    char *name = malloc(size);
    if (!name)
        return complain("out of memory");
    snprintf(name, size, "%s.XXXXXX", out->target);
    const sigset_t before = block_signals();
    out->descriptor = mkstemp(name);
    const int failure = errno;
    if (out->descriptor >= 0) {
        unfinished = out->temporary = name;
        handle_signals();
    } else {
        free(name);
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    errno = failure;
    if (out->descriptor < 0)
        return complain_about(out->path, NULL, "cannot create a temporary file beside it: %m");
    return take_attributes(out, there) ? complain_about(out->path, NULL, "its mode and owner cannot be kept: %m") : 0;
}

int output_open(output *out, const char *path)
{
    struct stat status;
    memset(out, 0, sizeof *out);
    out->path = path;
    out->descriptor = -1;
    if (!strcmp(path, "-")) {
        out->descriptor = STDOUT_FILENO;
        return isatty(STDOUT_FILENO) ? complain("-o -: standard output is a terminal") : 0;
    }
    const int is_there = !stat(path, &status);
    out->target = malloc(PATH_SIZE);
    if (!out->target)
        return complain("out of memory");
    const int failure = follow_links(path, out->target);
    if (failure == EINVAL || is_among_devices(out->target) || (is_there && !S_ISREG(status.st_mode)))
        return complain_about(path, NULL, "must be a regular file, or a new one");
    if (failure)
        return complain_about(path, NULL, "%m");
    if (is_there && access(path, W_OK))
        return complain_about(path, NULL, "cannot be written: %m");
    if (is_there && status.st_nlink > 1)
        return complain_about(path, NULL,
                              "has %ju names (hard links), and the others would keep the old contents: write to another "
                              "name, or remove this one first",
                              (uintmax_t)status.st_nlink);
    return open_beside(out, is_there ? &status : NULL);
}

int output_write(output *out, const void *data, size_t bytes)
{
    const char *at = data;
    while (bytes) {
        const ssize_t done = write(out->descriptor, at, bytes < (1u << 30) ? bytes : 1u << 30);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return complain_about(out->path, NULL, "cannot write: %m");
        at += done;
        bytes -= (size_t)done;
    }
    return 0;
}

int output_commit(output *out)
{
    if (!out->temporary)
        return 0;
    if (output_flush())
        return RESULT_REFUSED;
    if (fsync(out->descriptor))
        return complain_about(out->path, NULL, "cannot write: %m");
    const sigset_t before = block_signals();
    const int failed = rename(out->temporary, out->target);
    if (!failed) {
        unfinished = NULL;
        free(out->temporary);
        out->temporary = NULL;
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    return failed ? complain_about(out->path, NULL, "cannot write: %m") : 0;
}

void output_close(output *out)
{
    if (out->target && out->descriptor >= 0)
        close(out->descriptor);
    if (out->temporary) {
        const sigset_t before = block_signals();
        unlink(out->temporary);
        unfinished = NULL;
        sigprocmask(SIG_SETMASK, &before, NULL);
    }
    free(out->temporary);
    free(out->target);
    memset(out, 0, sizeof *out);
}

int output_is_refused(const char *path)
{
    output out;
    const int failed = output_open(&out, path);
    output_close(&out);
    return failed;
}

int output_line(const char *path, const char *text)
{
    output out;
    if (!path) {
        printf("%s\n", text);
        return output_flush();
    }
    const int failed = output_open(&out, path) || output_write(&out, text, strlen(text)) || output_write(&out, "\n", 1) ||
                       output_commit(&out);
    output_close(&out);
    return failed ? RESULT_REFUSED : 0;
}
