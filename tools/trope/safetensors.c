#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "command.h"
#include "safetensors.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "safetensors files are little-endian");

#define LENGTH_BYTES  8
#define LARGEST_EXACT 9007199254740992.0 /* 2^53: every whole number below it is a double */

void *aligned_bytes(uint64_t bytes)
{
    void *memory = NULL;
    if (bytes > SIZE_MAX / 2)
        return NULL;
    return posix_memalign(&memory, 64, bytes ? (size_t)bytes : 1) ? NULL : memory;
}

safetensor *safetensors_find(const safetensors *file, const char *name)
{
    for (int32_t i = 0; i < file->count; i++)
        if (!strcmp(file->tensors[i].name, name))
            return &file->tensors[i];
    return NULL;
}

const char *safetensor_describe(const safetensor *tensor, char *text)
{
    int used = snprintf(text, SAFETENSORS_TEXT, "%s [", value_type_name(tensor->type));
    for (int32_t i = 0; i < tensor->rank; i++)
        used += snprintf(text + used, SAFETENSORS_TEXT - (size_t)used, "%s%" PRId64, i ? ", " : "", tensor->shape[i]);
    snprintf(text + used, SAFETENSORS_TEXT - (size_t)used, "]");
    return text;
}

void safetensors_free(safetensors *file)
{
    for (int32_t i = 0; i < file->count; i++) {
        free(file->tensors[i].name);
        free(file->tensors[i].data);
    }
    free(file->tensors);
    free(file->metadata);
    if (file->path && file->descriptor >= 0)
        close(file->descriptor);
    memset(file, 0, sizeof *file);
}

static int compare_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

const char *safetensors_duplicate_name(const cJSON *object)
{
    const char *found = NULL;
    const int count = cJSON_GetArraySize(object);
    const char **names = malloc((size_t)count * sizeof *names + 1);
    if (!names)
        return NULL;
    int i = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, object) names[i++] = item->string;
    qsort(names, (size_t)count, sizeof *names, compare_text);
    for (i = 1; i < count && !found; i++)
        if (!strcmp(names[i - 1], names[i]))
            found = names[i];
    free(names);
    return found;
}

/* The header's text */

/* The bytes of the character that starts at c, 0 if it is no UTF-8. The text ends with a zero byte, which continues
 * nothing. */
static int character_bytes(const unsigned char *c)
{
    const int more = c[0] < 0x80 ? 0 : c[0] < 0xc2 ? -1 : c[0] < 0xe0 ? 1 : c[0] < 0xf0 ? 2 : c[0] < 0xf5 ? 3 : -1;
    for (int i = 1; i <= more; i++)
        if ((c[i] & 0xc0) != 0x80)
            return 0;
    const unsigned start = more > 0 ? c[0] << 8 | c[1] : 0; /* too long a form, a surrogate, beyond the last character */
    if ((start >= 0xe000 && start < 0xe0a0) || (start >= 0xeda0 && start < 0xee00))
        return 0;
    if ((start >= 0xf000 && start < 0xf090) || start >= 0xf490)
        return 0;
    return more + 1;
}

static int is_utf8(const char *text)
{
    const unsigned char *c = (const unsigned char *)text;
    while (*c) {
        const int bytes = character_bytes(c);
        if (!bytes)
            return 0;
        c += bytes;
    }
    return 1;
}

/* What JSON allows and a header does not, in numbers and names; NULL if there is none. A double no longer tells 2.0 from 2,
 * nor a C string "q\0x" from "q". */
static const char *number_rule(const char *c)
{
    if (*c == '-' || *c == '+' || *c == '.')
        return "must hold no negative and no fractional number";
    if (*c == 'e' || *c == 'E')
        return "must write its numbers without an exponent";
    return NULL;
}

static const char *text_rule(const char *text)
{
    int in_string = 0;
    const char *rule = NULL;
    for (const char *c = text; *c && !rule; c++) {
        if (in_string && *c == '\\') {
            if (!strncmp(c, "\\u0000", 6))
                rule = "must hold no name with a zero character";
            c += c[1] ? 1 : 0;
        } else if (*c == '"') {
            in_string = !in_string;
        } else if (!in_string && ((*c >= '0' && *c <= '9') || *c == '-')) {
            if (*c == '0' && c[1] >= '0' && c[1] <= '9')
                rule = "must write its numbers without leading zeros";
            while (!rule && *c && strchr("0123456789-+.eE", *c))
                rule = number_rule(c++);
            c--;
        }
    }
    return rule;
}

/* Reads a member that must be a whole number that fits; -1 otherwise. */
static int64_t whole_number(const cJSON *item)
{
    if (!cJSON_IsNumber(item))
        return -1;
    const double x = item->valuedouble;
    if (!(x >= 0) || x >= LARGEST_EXACT || x != (double)(int64_t)x)
        return -1;
    return (int64_t)x;
}

/* One tensor of the header */

static int read_shape(const safetensors *file, const cJSON *entry, safetensor *tensor)
{
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(entry, "shape");
    if (!cJSON_IsArray(shape))
        return complain_about(file->path, tensor->name, "shape must be an array");
    if (cJSON_GetArraySize(shape) > SAFETENSORS_MAX_RANK)
        return complain_about(file->path, tensor->name, "shape must have at most %d dims, not %d", SAFETENSORS_MAX_RANK,
                              cJSON_GetArraySize(shape));
    const uint64_t size = (uint64_t)value_size(tensor->type);
    int empty = 0;
    uint64_t elements = 1;
    const cJSON *item;
    cJSON_ArrayForEach(item, shape)
    {
        const int64_t dim = whole_number(item);
        if (dim < 0)
            return complain_about(file->path, tensor->name, "shape must hold whole numbers in [0, 2^53), dim %d does not",
                                  (int)tensor->rank);
        tensor->shape[tensor->rank++] = dim;
        empty |= dim == 0;
        if (dim && elements > INT64_MAX / size / (uint64_t)dim)
            return complain_about(file->path, tensor->name, "shape times dtype must fit 64 bits");
        elements *= dim ? (uint64_t)dim : 1;
    }
    tensor->elements = empty ? 0 : elements;
    return 0;
}

static int read_offsets(const safetensors *file, const cJSON *entry, safetensor *tensor)
{
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(entry, "data_offsets");
    if (!cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2)
        return complain_about(file->path, tensor->name, "data_offsets must be an array of two numbers");
    const int64_t begin = whole_number(cJSON_GetArrayItem(offsets, 0));
    const int64_t end = whole_number(cJSON_GetArrayItem(offsets, 1));
    if (begin < 0 || end < 0)
        return complain_about(file->path, tensor->name, "data_offsets must be whole numbers in [0, 2^53)");
    if (end < begin)
        return complain_about(file->path, tensor->name, "data_offsets [%" PRId64 ", %" PRId64 "] must not decrease", begin,
                              end);
    tensor->begin = (uint64_t)begin;
    tensor->end = (uint64_t)end;
    const uint64_t needed = tensor->elements * (uint64_t)value_size(tensor->type);
    char text[SAFETENSORS_TEXT];
    if (tensor->end - tensor->begin != needed)
        return complain_about(file->path, tensor->name,
                              "data_offsets [%" PRId64 ", %" PRId64 "] hold %" PRId64 " bytes, but %s needs %" PRIu64,
                              begin, end, end - begin, safetensor_describe(tensor, text), needed);
    return 0;
}

static int read_tensor(const safetensors *file, const cJSON *entry, safetensor *tensor)
{
    tensor->name = strdup(entry->string);
    if (!tensor->name)
        return complain_about(file->path, NULL, "out of memory");
    if (!cJSON_IsObject(entry))
        return complain_about(file->path, tensor->name, "must be an object with dtype, shape and data_offsets");
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(entry, "dtype");
    if (!cJSON_IsString(dtype))
        return complain_about(file->path, tensor->name, "dtype must be a string");
    tensor->type = value_type_of(dtype->valuestring);
    if (tensor->type < 0)
        return complain_about(file->path, tensor->name, "dtype '%.32s' is not one of F32, F16, BF16, F64, I32, I64, C64",
                              dtype->valuestring);
    if (read_shape(file, entry, tensor) || read_offsets(file, entry, tensor))
        return RESULT_REFUSED;
    if (cJSON_GetArraySize(entry) != 3)
        return complain_about(file->path, tensor->name,
                              "must have dtype, shape and data_offsets, each once, and nothing else");
    return 0;
}

static int read_metadata(safetensors *file, const cJSON *metadata)
{
    if (!cJSON_IsObject(metadata))
        return complain_about(file->path, NULL, "__metadata__ must be an object");
    const cJSON *item;
    cJSON_ArrayForEach(item, metadata) if (!cJSON_IsString(item)) return complain_about(
        file->path, NULL, "__metadata__ must map names to strings, '%.64s' is none", item->string);
    const char *twice = safetensors_duplicate_name(metadata);
    if (twice)
        return complain_about(file->path, NULL, "__metadata__ must hold each name once, '%.64s' is there again", twice);
    file->metadata = cJSON_PrintUnformatted(metadata);
    return file->metadata ? 0 : complain_about(file->path, NULL, "out of memory");
}

/* The header as a whole */

static int by_begin(const void *a, const void *b)
{
    const safetensor *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

/* The tensors must fill the data area, without a hole and without sharing a byte. */
static int check_offsets(safetensors *file, uint64_t data_bytes)
{
    qsort(file->tensors, (size_t)file->count, sizeof *file->tensors, by_begin);
    uint64_t expected = 0;
    for (int32_t i = 0; i < file->count; i++) {
        const safetensor *t = &file->tensors[i];
        if (t->end > data_bytes)
            return complain_about(file->path, t->name,
                                  "data_offsets end at byte %" PRIu64 ", beyond the file, which has %" PRIu64
                                  " bytes of data",
                                  t->end, data_bytes);
        if (t->begin != expected)
            return complain_about(file->path, t->name,
                                  "data_offsets begin at byte %" PRIu64
                                  ", which %s the tensor before that ends at %" PRIu64,
                                  t->begin, t->begin < expected ? "overlaps" : "leaves a hole after", expected);
        expected = t->end;
    }
    if (expected != data_bytes)
        return complain_about(file->path, NULL,
                              "the tensors end at byte %" PRIu64 ", but there are %" PRIu64 " bytes of data", expected,
                              data_bytes);
    return 0;
}

static int read_entries(safetensors *file, const cJSON *root)
{
    const char *twice = safetensors_duplicate_name(root);
    if (twice)
        return complain_about(file->path, twice, "the name must occur only once");
    file->tensors = calloc((size_t)cJSON_GetArraySize(root) + 1, sizeof *file->tensors);
    if (!file->tensors)
        return complain_about(file->path, NULL, "out of memory");
    const cJSON *entry;
    cJSON_ArrayForEach(entry, root)
    {
        if (!strcmp(entry->string, "__metadata__")) {
            if (read_metadata(file, entry))
                return RESULT_REFUSED;
        } else if (read_tensor(file, entry, &file->tensors[file->count++])) {
            return RESULT_REFUSED;
        }
    }
    return 0;
}

static int read_header(safetensors *file, const char *text, uint64_t length, uint64_t data_bytes)
{
    if (memchr(text, 0, (size_t)length))
        return complain_about(file->path, NULL, "the header is not JSON: it has a zero byte");
    if (!is_utf8(text))
        return complain_about(file->path, NULL, "the header is not JSON: it is not UTF-8");
    cJSON *root = text[0] == '{' ? cJSON_ParseWithLengthOpts(text, (size_t)length + 1, NULL, 1) : NULL;
    if (!cJSON_IsObject(root)) {
        cJSON_Delete(root);
        return complain_about(file->path, NULL, "the header is not a JSON object");
    }
    int result = read_entries(file, root);
    cJSON_Delete(root);
    if (result)
        return result;
    const char *rule = text_rule(text);
    if (rule)
        return complain_about(file->path, NULL, "the header %s", rule);
    return check_offsets(file, data_bytes);
}

uint64_t safetensor_bytes(const safetensor *tensor)
{
    return tensor->end - tensor->begin;
}

/* Reads all of `bytes`, or returns nonzero. */
static int read_at(int descriptor, uint64_t offset, void *data, uint64_t bytes)
{
    char *at = data;
    while (bytes) {
        const ssize_t got = pread(descriptor, at, bytes < (1u << 30) ? (size_t)bytes : 1u << 30, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return 1;
        at += got;
        offset += (uint64_t)got;
        bytes -= (uint64_t)got;
    }
    return 0;
}

/* What a file is that is no safetensors file, by its first bytes; NULL if that is not known. */
static const char *other_format(const unsigned char *raw)
{
    if (!memcmp(raw, "PK\3\4", 4))
        return "a zip archive, such as torch.save's .pt and NumPy's .npz";
    if (!memcmp(raw, "\x93NUMPY", 6))
        return "NumPy's .npy";
    if (raw[0] == 0x80 && raw[1] >= 2 && raw[1] <= 5)
        return "a pickle, such as an old .pt";
    if (!memcmp(raw, "GGUF", 4))
        return "GGUF";
    return NULL;
}

static int read_file(safetensors *file, uint64_t size)
{
    unsigned char raw[LENGTH_BYTES];
    if (size < LENGTH_BYTES || read_at(file->descriptor, 0, raw, LENGTH_BYTES))
        return complain_about(file->path, NULL, "a file of %" PRIu64 " bytes has no safetensors header length", size);
    uint64_t length;
    memcpy(&length, raw, sizeof length);
    if (length > size - LENGTH_BYTES && other_format(raw))
        return complain_about(file->path, NULL, "is %s; what is read is safetensors (safetensors.torch.save_file)",
                              other_format(raw));
    if (length > SAFETENSORS_MAX_HEADER)
        return complain_about(file->path, NULL, "the header length (%" PRIu64 ") must be at most %d", length,
                              SAFETENSORS_MAX_HEADER);
    if (length > size - LENGTH_BYTES)
        return complain_about(file->path, NULL,
                              "the header length (%" PRIu64 ") is beyond the file, which has %" PRIu64 " bytes", length,
                              size);
    char *text = malloc((size_t)length + 1);
    if (!text)
        return complain_about(file->path, NULL, "out of memory");
    text[length] = 0;
    file->data_start = LENGTH_BYTES + length;
    int result;
    if (read_at(file->descriptor, LENGTH_BYTES, text, length))
        result = complain_about(file->path, NULL, "cannot read the header");
    else
        result = read_header(file, text, length, size - file->data_start);
    free(text);
    return result;
}

int safetensors_open(const char *path, safetensors *file)
{
    struct stat status;
    memset(file, 0, sizeof *file);
    file->path = path;
    file->descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file->descriptor < 0 || fstat(file->descriptor, &status))
        return complain_about(path, NULL, "%m");
    if (!S_ISREG(status.st_mode))
        return complain_about(path, NULL, "must be a regular file");
    return read_file(file, (uint64_t)status.st_size);
}

int safetensors_read(const safetensors *file, const safetensor *tensor, void *data)
{
    const uint64_t bytes = safetensor_bytes(tensor);
    if (read_at(file->descriptor, file->data_start + tensor->begin, data, bytes))
        return complain_about(file->path, tensor->name, "cannot read its %" PRIu64 " bytes", bytes);
    return 0;
}

int safetensors_load(const safetensors *file, safetensor *tensor)
{
    if (tensor->data)
        return 0;
    tensor->data = aligned_bytes(safetensor_bytes(tensor));
    if (!tensor->data)
        return complain_about(file->path, tensor->name, "out of memory for %" PRIu64 " bytes", safetensor_bytes(tensor));
    return safetensors_read(file, tensor, tensor->data);
}

/* Writing */

static void print_name(FILE *text, const char *name)
{
    cJSON *string = cJSON_CreateStringReference(name);
    char *quoted = string ? cJSON_PrintUnformatted(string) : NULL;
    fputs(quoted ? quoted : "\"\"", text);
    cJSON_free(quoted);
    cJSON_Delete(string);
}

static void print_tensor(FILE *text, const safetensor *tensor, uint64_t begin)
{
    print_name(text, tensor->name);
    fprintf(text, ":{\"dtype\":\"%s\",\"shape\":[", value_type_name(tensor->type));
    for (int32_t i = 0; i < tensor->rank; i++)
        fprintf(text, "%s%" PRId64, i ? "," : "", tensor->shape[i]);
    const uint64_t end = begin + tensor->elements * (uint64_t)value_size(tensor->type);
    fprintf(text, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", begin, end);
}

/* With its length in front, padded with spaces so that the data starts at a multiple of 8. */
char *safetensors_header(const safetensors *file, size_t *size)
{
    char *header = NULL;
    FILE *text = open_memstream(&header, size);
    if (!text)
        return NULL;
    fwrite("\0\0\0\0\0\0\0\0", 1, LENGTH_BYTES, text);
    fputc('{', text);
    if (file->metadata)
        fprintf(text, "\"__metadata__\":%s%s", file->metadata, file->count ? "," : "");
    uint64_t begin = 0;
    for (int32_t i = 0; i < file->count; i++) {
        const safetensor *tensor = &file->tensors[i];
        print_tensor(text, tensor, begin);
        fputs(i + 1 < file->count ? "," : "", text);
        begin += tensor->elements * (uint64_t)value_size(tensor->type);
    }
    fputc('}', text);
    while (ftello(text) % 8)
        fputc(' ', text);
    if (fclose(text)) {
        free(header);
        return NULL;
    }
    const uint64_t length = *size - LENGTH_BYTES;
    memcpy(header, &length, sizeof length);
    return header;
}
