#include "fuzz/file.h"

#include <stdarg.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct text {
    char bytes[1 << 14];
    size_t size;
} text;

__attribute__((format(printf, 2, 3))) static void add(text *to, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    to->size += (size_t)vsnprintf(to->bytes + to->size, sizeof to->bytes - to->size, format, arguments);
    va_end(arguments);
    HOLDS(to->size < sizeof to->bytes);
}

const char *file_of(const void *bytes, size_t size)
{
    static char path[64];
    static int descriptor = -1;
    if (descriptor < 0) {
        descriptor = memfd_create("fuzz", 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    }
    HOLDS(descriptor >= 0 && !ftruncate(descriptor, 0));
    HOLDS(pwrite(descriptor, bytes, size, 0) == (ssize_t)size);
    return path;
}

/* A dimension: mostly one of those that tensors of a file must have in common. */
static int64_t take_dim(input *in, const int64_t usual[4])
{
    if (take_below(in, 16))
        return usual[take_below(in, 4)];
    return take_below(in, 4) ? take_below(in, 9) : take_number(in, 4);
}

static void add_tensor(input *in, text *header, uint64_t *end, const int64_t usual[4])
{
    static const char *const names[] = {"q",
                                        "k",
                                        "x",
                                        "v",
                                        "freqs",
                                        "cos",
                                        "sin",
                                        "inv_freq",
                                        "cu_seqlens",
                                        "cu_seqlens_padded",
                                        "start_positions",
                                        "position_ids"};
    static const char *const types[] = {"F64", "F32", "F16", "BF16", "I32", "I64"};
    static const uint64_t sizes[] = {8, 4, 2, 2, 4, 8};
    const int name = take_below(in, 12), type = take_below(in, 6), rank = take_below(in, 6);
    uint64_t bytes = sizes[type];
    add(header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", header->size > 1 ? "," : "", names[name], types[type]);
    for (int i = 0; i < rank; i++) {
        const int64_t dim = take_dim(in, usual);
        add(header, "%s%lld", i ? "," : "", (long long)dim);
        bytes *= (uint64_t)dim;
    }
    add(header, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)*end, (unsigned long long)(*end + bytes));
    *end += bytes;
}

/* Overwrites what is at a place of the header by something that a JSON text may hold, or by any character. */
static void change_text(input *in, text *header)
{
    static const char *const tokens[] = {"{",
                                         "}",
                                         "[",
                                         "]",
                                         ",",
                                         ":",
                                         "\"",
                                         "\\",
                                         "-1",
                                         "1e9",
                                         "0.5",
                                         "00",
                                         "null",
                                         "true",
                                         " ",
                                         "\\u0000",
                                         "\\ud800",
                                         "\xc3\xa4",
                                         "\xff",
                                         "\"a\":\"b\",",
                                         "__metadata__",
                                         "9007199254740993",
                                         "\"__metadata__\":{\"a\":\"b\"},"};
    const char *token = tokens[take_below(in, sizeof tokens / sizeof tokens[0])];
    const size_t at = (size_t)take_below(in, (int)header->size), size = strlen(token);
    if (take_below(in, 4) == 0)
        take_bytes(in, header->bytes + at, 1);
    else if (at + size <= header->size)
        memcpy(header->bytes + at, token, size);
}

const char *take_file(input *in)
{
    static text header;
    static unsigned char file[1 << 17];
    const uint64_t most = sizeof file - sizeof header.bytes - sizeof(uint64_t);
    int64_t usual[4];
    uint64_t end = 0;
    for (int i = 0; i < 4; i++)
        usual[i] = 1 + take_below(in, 8);
    header.size = 0;
    add(&header, "{");
    for (int i = take_below(in, 8); i >= 0; i--)
        add_tensor(in, &header, &end, usual);
    add(&header, "}");
    for (int i = take_below(in, 2) ? take_below(in, 4) : 0; i > 0; i--)
        change_text(in, &header);
    end = end < most ? end : most;
    const uint64_t length = take_below(in, 32) ? header.size : (uint64_t)take_number(in, (int64_t)header.size);
    memcpy(file, &length, sizeof length);
    memcpy(file + sizeof length, header.bytes, header.size);
    take_bytes(in, file + sizeof length + header.size, end);
    return file_of(file, sizeof length + header.size + end);
}
