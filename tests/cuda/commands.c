/* cuda_commands TROPE: tests the command line on the GPU. All checks of `trope check --device cuda` must hold. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda/device_call.h"
#include "support/check.h"

enum { PATH_SIZE = 512, COMMAND_SIZE = 2048 };

/* clang-format off */
static const char *const checks[] = {
    "", "--dtype bf16 --angles freqs --full --pairing interleaved", "--dtype f16 --angles table --layout bhsd --inverse",
    "--dtype f64 --angles table --full --mscale 1.5", "--layout thd --heads 3 --windows 2 --pairing-out interleaved",
    "--shape 2,33,5,48 --rotary-dim 32 --rotary-offset 8 --dtype bf16 --rounding native",
    "--heads 3 --k-heads 1 --cu-seqlens 0,5,5,21 --cu-seqlens-padded 0,8,8,32 --padding zero"
    " --cp-size 2 --cp-rank 1 --cp-layout zigzag --angles freqs"};
/* clang-format on */

static const char *tool;
static char folder[PATH_SIZE];

static const char *path_of(const char *name)
{
    static char path[4][PATH_SIZE + 32];
    static int next;
    char *text = path[next++ % 4];
    snprintf(text, sizeof path[0], "%s/%s", folder, name);
    return text;
}

/* Returns the content of a file with a 0 after it, or NULL if the file does not exist. The caller frees it. */
static char *read_file(const char *path, long *size)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return NULL;
    fseek(file, 0, SEEK_END);
    *size = ftell(file);
    rewind(file);
    char *content = calloc((size_t)*size + 1, 1);
    *size = (long)fread(content, 1, (size_t)*size, file);
    fclose(file);
    return content;
}

/* Runs the tool, writes its output to the files "out" and "err", and returns its exit status. */
static int run(const char *arguments)
{
    char command[COMMAND_SIZE];
    snprintf(command, sizeof command, "'%s' %s >'%s' 2>'%s'", tool, arguments, path_of("out"), path_of("err"));
    const int status = system(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void check(const char *options, const char *device)
{
    char arguments[COMMAND_SIZE / 2];
    long size = 0;
    snprintf(arguments, sizeof arguments, "check --device %s %s", device, options);
    const int status = run(arguments);
    char *text = read_file(path_of("out"), &size), *errors = read_file(path_of("err"), &size);
    CHECK_MESSAGE(status == 0 && strstr(text, "# device cuda") && strstr(text, "6 of 6 checks hold"), "%s: status %d\n%s%s",
                  arguments, status, text, errors);
    free(text);
    free(errors);
}

int main(int argc, char **argv)
{
    static const char *const left[] = {"out", "err"};
    const char *parent = getenv("TMPDIR");
    if (argc != 2) {
        printf("usage: cuda_commands TROPE\n");
        return 2;
    }
    device_require();
    tool = argv[1];
    snprintf(folder, sizeof folder, "%.400s/trope-cuda-XXXXXX", parent ? parent : "/tmp");
    if (!mkdtemp(folder)) {
        printf("cannot create the folder %s\n", folder);
        return 1;
    }
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++)
        check(checks[i], "cuda");
    check("", "auto");
    for (size_t i = 0; i < sizeof left / sizeof left[0]; i++)
        remove(path_of(left[i]));
    rmdir(folder);
    return check_result();
}
