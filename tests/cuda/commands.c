/* cuda_commands TROPE: the command line on the GPU. `trope apply` on a file writes, with --device cuda, what it writes with
 * --device cpu, byte for byte, and refuses what it refuses there; `trope check --device cuda` holds. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda/device_call.h"
#include "support/check.h"
#include "support/random.h"

enum { MAX_DIMS = 4, MAX_TENSORS = 6, MAX_INDICES = 16, PATH_SIZE = 512, COMMAND_SIZE = 2048 };

typedef struct tensor {
    const char *name, *dtype;
    int64_t shape[MAX_DIMS];      /* 0 ends it */
    int64_t indices[MAX_INDICES]; /* of I32 and I64; operands are random */
} tensor;

typedef struct configuration {
    const char *name, *options;
    tensor tensors[MAX_TENSORS];
    int status; /* of `trope apply` on either device */
} configuration;

#define SBHD " --layout sbhd"
#define HALF " --pairing half"
#define BASE " --rope-theta 10000"

/* clang-format off */
static const configuration configurations[] = {
    {"dense f32", SBHD HALF BASE, {{"q", "F32", {40, 2, 4, 64}, {0}}, {"k", "F32", {40, 2, 2, 64}, {0}},
                                   {"v", "F32", {40, 2, 2, 64}, {0}}}, 0},
    {"backward f32", "--backward --pairing interleaved --layout bhsd" BASE, {{"q", "F32", {2, 3, 33, 48}, {0}}}, 0},
    {"bf16 with freqs", "--layout bshd" HALF, {{"q", "BF16", {2, 17, 4, 64}, {0}}, {"freqs", "F32", {17, 32}, {0}}}, 0},
    {"bf16 with a full table, backward", "--backward --rotary-offset 8 --columns half" SBHD HALF,
     {{"x", "BF16", {19, 2, 3, 72}, {0}}, {"cos", "BF16", {19, 1, 1, 64}, {0}}, {"sin", "BF16", {19, 1, 1, 64}, {0}}}, 0},
    {"f32 with a complex table", "--layout bshd" HALF,
     {{"q", "F32", {2, 17, 4, 64}, {0}}, {"freqs_cis", "F32", {17, 32, 2}, {0}}}, 0},
    {"rows by token", "--layout bshd --table-rows tokens" HALF,
     {{"q", "F32", {1, 4, 2, 16}, {0}}, {"freqs", "F32", {4, 8}, {0}}, {"position_ids", "I64", {4}, {5, 6, 1, 2}}}, 0},
    {"packed f32", HALF BASE, {{"q", "F32", {37, 4, 64}, {0}}, {"k", "F32", {37, 1, 64}, {0}},
                               {"v", "F32", {37, 1, 32}, {0}}, {"cu_seqlens", "I32", {5}, {0, 9, 9, 20, 37}}}, 0},
    {"packed bf16, backward", "--backward --padding copy" HALF BASE,
     {{"q", "BF16", {40, 3, 128}, {0}}, {"cu_seqlens", "I64", {4}, {0, 9, 14, 30}},
      {"cu_seqlens_padded", "I64", {4}, {0, 12, 20, 36}}}, 0},
    {"packed with zeros behind it", "--padding zero" HALF BASE,
     {{"q", "BF16", {40, 3, 128}, {0}}, {"v", "BF16", {40, 3, 64}, {0}}, {"cu_seqlens", "I64", {4}, {0, 9, 14, 30}}}, 0},
    {"a rank of packed bf16", "--cp-size 2 --cp-rank 1 --cp-layout zigzag --rounding native" HALF BASE,
     {{"q", "BF16", {20, 2, 32}, {0}}, {"cu_seqlens", "I32", {3}, {0, 16, 40}},
      {"start_positions", "I64", {2}, {100, 70000}}}, 0},
    {"f16 with three axes, in place", "--in-place --axis-map sections --axis-sections 4,2,2" SBHD HALF BASE,
     {{"q", "F16", {4, 1, 2, 16}, {0}}, {"k", "F16", {4, 1, 1, 16}, {0}},
      {"position_ids", "I32", {3, 1, 4}, {0, 1, 2, 3, 7, 7, 8, 8, 1, 2, 1, 2}}}, 0},
    {"f32 with inv_freq, in place", "--in-place --backward --mscale 1.25 --rotary-offset -32" SBHD HALF,
     {{"q", "F32", {9, 2, 2, 40}, {0}}, {"inv_freq", "F64", {16}, {0}}}, 0},
    {"positions made NaN", "--out-of-range poison" SBHD HALF,
     {{"q", "BF16", {4, 1, 2, 16}, {0}}, {"freqs", "F32", {6, 8}, {0}}, {"position_ids", "I64", {4}, {5, 6, -1, 0}}}, 0},
    {"positions moved inside", "--out-of-range clamp" SBHD HALF,
     {{"q", "F32", {4, 1, 2, 16}, {0}}, {"freqs", "F32", {6, 8}, {0}}, {"position_ids", "I64", {4}, {5, 6, -1, 0}}}, 0},
    {"no sequences", HALF BASE, {{"q", "F32", {4, 2, 16}, {0}}, {"cu_seqlens", "I32", {1}, {0}}}, 2},
    {"positions outside", SBHD HALF,
     {{"q", "F32", {4, 1, 2, 16}, {0}}, {"freqs", "F32", {6, 8}, {0}}, {"position_ids", "I64", {4}, {5, 6, 1, 0}}}, 2},
    {"cu_seqlens that decrease", HALF BASE, {{"q", "F32", {8, 2, 16}, {0}}, {"cu_seqlens", "I32", {4}, {0, 5, 3, 8}}}, 2},
    {"cu_seqlens beyond the tokens", "--layout thd" HALF BASE,
     {{"q", "F32", {8, 2, 16}, {0}}, {"cu_seqlens", "I32", {2}, {0, 9}}}, 2},
    {"an odd length under zigzag", "--cp-size 2 --cp-rank 0 --cp-layout zigzag" HALF BASE,
     {{"q", "F32", {8, 2, 16}, {0}}, {"cu_seqlens", "I32", {3}, {0, 6, 16}}}, 2},
    {"a window that does not fit", "--rotary-dim 18 --layout thd" HALF BASE, {{"q", "F32", {8, 2, 16}, {0}}}, 2},
};

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

/* What a file holds, with a 0 behind it, for free(). NULL without the file. */
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

/* The exit status of the tool, whose output goes to the files "out" and "err". */
static int run(const char *arguments)
{
    char command[COMMAND_SIZE];
    snprintf(command, sizeof command, "'%s' %s >'%s' 2>'%s'", tool, arguments, path_of("out"), path_of("err"));
    const int status = system(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Files of tensors */

static int element_size(const tensor *t)
{
    return strstr(t->dtype, "16") ? 2 : strstr(t->dtype, "64") ? 8 : 4;
}

static int64_t element_count(const tensor *t)
{
    int64_t count = 1;
    for (int i = 0; i < MAX_DIMS && t->shape[i]; i++)
        count *= t->shape[i];
    return count;
}

/* Element i of a tensor of angles: position 0 has angles of 0, and cosines go with their sines. Frequencies are positive. */
static double angle_element(const tensor *t, int64_t i)
{
    if (!strcmp(t->name, "inv_freq"))
        return 1 / (double)(1 + i);
    const int is_complex = !strcmp(t->name, "freqs_cis");
    const int64_t columns = t->shape[t->shape[2] && !is_complex ? 3 : 1], entry = is_complex ? i / 2 : i;
    const double angle = (double)(entry / columns) * (0.1 + (double)(entry % columns) / 8);
    return !strcmp(t->name, "freqs") ? angle : !strcmp(t->name, "sin") || (is_complex && i % 2) ? sin(angle) : cos(angle);
}

/* The first bytes of a number in its dtype; bf16 is cut off. */
static void encode(const char *dtype, double x, unsigned char *bytes)
{
    const float single = (float)x;
    if (!strcmp(dtype, "F64"))
        memcpy(bytes, &x, sizeof x);
    else
        memcpy(bytes, (const char *)&single + (strcmp(dtype, "BF16") ? 0 : 2), strcmp(dtype, "BF16") ? 4 : 2);
}

static int is_angle(const tensor *t)
{
    return !strncmp(t->name, "freqs", 5) || !strcmp(t->name, "cos") || !strcmp(t->name, "sin") ||
           !strcmp(t->name, "inv_freq");
}

static void write_elements(const tensor *t, random_state *random, FILE *file)
{
    const int size = element_size(t);
    for (int64_t i = 0; i < element_count(t); i++) {
        /* Of a real number the uppermost byte, which is the last, makes its magnitude less than 2 and not tiny. */
        unsigned char bytes[8];
        for (int b = 0; b < 8; b++)
            bytes[b] = (unsigned char)random_bits(random);
        bytes[size - 1] = (bytes[size - 1] & 0x80) | 0x3f;
        if (is_angle(t))
            encode(t->dtype, angle_element(t, i), bytes);
        fwrite(t->dtype[0] == 'I' ? (const void *)&t->indices[i] : bytes, (size_t)size, 1, file);
    }
}

/* safetensors: the length of a JSON header, the header, the tensors' bytes. */
static void write_input(const configuration *c, const char *path)
{
    char header[2048] = "{";
    int64_t end = 0;
    random_state random = {1};
    for (const tensor *t = c->tensors; t < c->tensors + MAX_TENSORS && t->name; t++) {
        char *at = header + strlen(header);
        const int64_t begin = end;
        end += element_count(t) * element_size(t);
        at += sprintf(at, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", begin ? "," : "", t->name, t->dtype);
        for (int i = 0; i < MAX_DIMS && t->shape[i]; i++)
            at += sprintf(at, "%s%lld", i ? "," : "", (long long)t->shape[i]);
        sprintf(at, "],\"data_offsets\":[%lld,%lld]}", (long long)begin, (long long)end);
    }
    strcat(header, "}");
    const uint64_t length = strlen(header);
    FILE *file = fopen(path, "wb");
    fwrite(&length, sizeof length, 1, file);
    fwrite(header, (size_t)length, 1, file);
    for (const tensor *t = c->tensors; t < c->tensors + MAX_TENSORS && t->name; t++)
        write_elements(t, &random, file);
    fclose(file);
}

/* The tests */

/* Refused or not, as the configuration says. Returns what was written, or NULL. */
static char *apply(const configuration *c, const char *device, long *size)
{
    char arguments[COMMAND_SIZE / 2];
    long length = 0;
    const char *out = path_of("result.safetensors");
    snprintf(arguments, sizeof arguments, "apply '%.400s' -o '%.400s' --device %s %s", path_of("input.safetensors"), out,
             device, c->options);
    remove(out);
    const int status = run(arguments);
    char *result = read_file(out, size), *errors = read_file(path_of("err"), &length);
    CHECK_MESSAGE(status == c->status, "%s on %s: exit status %d: %s", c->name, device, status, errors);
    CHECK_MESSAGE(!result == (status != 0), "%s on %s: a result, exactly where it succeeds", c->name, device);
    if (c->status)
        CHECK_MESSAGE(strchr(errors, '\n') == errors + length - 1, "%s on %s is one line: %s", c->name, device, errors);
    free(errors);
    return result;
}

static void compare(const configuration *c)
{
    long host_size = 0, device_size = 0;
    write_input(c, path_of("input.safetensors"));
    char *on_host = apply(c, "cpu", &host_size), *on_device = apply(c, "cuda", &device_size);
    if (on_host && on_device)
        CHECK_MESSAGE(host_size == device_size && !memcmp(on_host, on_device, (size_t)host_size), "%s: the files differ",
                      c->name);
    free(on_host);
    free(on_device);
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

/* Where the tool was built without cJSON it has no apply, and says so. */
static int has_apply(void)
{
    if (!run("apply --help"))
        return 1;
    printf("this build of the tool has no 'apply'\n");
    return 0;
}

int main(int argc, char **argv)
{
    static const char *const left[] = {"input.safetensors", "result.safetensors", "out", "err"};
    const char *parent = getenv("TMPDIR");
    if (argc != 2) {
        printf("usage: cuda_commands TROPE\n");
        return 2;
    }
    device_require();
    tool = argv[1];
    snprintf(folder, sizeof folder, "%.400s/trope-cuda-XXXXXX", parent ? parent : "/tmp");
    if (!mkdtemp(folder)) {
        printf("%s cannot be made\n", folder);
        return 1;
    }
    for (size_t i = 0; i < sizeof configurations / sizeof configurations[0] && (i || has_apply()); i++)
        compare(&configurations[i]);
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++)
        check(checks[i], "cuda");
    check("", "auto");
    for (size_t i = 0; i < sizeof left / sizeof left[0]; i++)
        remove(path_of(left[i]));
    rmdir(folder);
    return check_result();
}
