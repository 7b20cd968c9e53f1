/* Makes numbers from the fuzzer's bytes, one after the other. When the bytes are used up, it makes them from zeros. */
#ifndef TESTS_FUZZ_INPUT_H
#define TESTS_FUZZ_INPUT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The function that libFuzzer calls with each input. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct input {
    const uint8_t *data;
    size_t left;
} input;

static inline void take_bytes(input *in, void *to, size_t size)
{
    const size_t taken = size < in->left ? size : in->left;
    memset(to, 0, size);
    if (taken)
        memcpy(to, in->data, taken);
    in->data += taken;
    in->left -= taken;
}

/* A number from 0 to count - 1. */
static inline int take_below(input *in, int count)
{
    uint16_t value;
    take_bytes(in, &value, count > 256 ? 2 : 1);
    return (count > 256 ? value : value & 0xff) % count;
}

/* A number that is likely to matter: small, at an edge of a type, near `was`, or arbitrary. */
static inline int64_t take_number(input *in, int64_t was)
{
    static const int64_t edges[] = {0,         -1,        1,          INT8_MAX,  INT16_MAX,    INT32_MAX,       INT32_MIN,
                                    INT64_MAX, INT64_MIN, UINT32_MAX, 1ll << 31, 1ll << 60,    (1ll << 60) + 1, 1ll << 62,
                                    1 << 20,   1024,      1026,       65536,     INT64_MAX / 8};
    int8_t small;
    int64_t any;
    switch (take_below(in, 4)) {
    case 0:
        take_bytes(in, &small, sizeof small);
        return small;
    case 1:
        return edges[take_below(in, sizeof edges / sizeof edges[0])];
    case 2:
        take_bytes(in, &small, sizeof small);
        return (int64_t)((uint64_t)was + (uint64_t)(int64_t)small);
    default:
        take_bytes(in, &any, sizeof any);
        return any;
    }
}

/* A condition that must hold. If it does not, the program aborts, and the fuzzer reports the input. */
#define HOLDS(condition)                                                                                                   \
    do {                                                                                                                   \
        if (!(condition)) {                                                                                                \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                                \
            abort();                                                                                                       \
        }                                                                                                                  \
    } while (0)

#endif
