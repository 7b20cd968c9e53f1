#include "parity/parity.h"

#include <stdlib.h>
#include <string.h>

#include "support/number.h"
#include "support/tensor.h"

void run_call(const trope_args *args, int backward)
{
    const trope_status status = backward ? trope_backward(args) : trope_forward(args);
    if (status) {
        printf("%s\n", trope_last_error());
        exit(1);
    }
}

unsigned char *snapshot(const config *c)
{
    size_t size = 1, at = 0;
    for (int i = 0; i < c->buffer_count; i++)
        size += c->buffers[i].size;
    unsigned char *bytes = malloc(size);
    for (int i = 0; i < c->buffer_count; at += c->buffers[i].size, i++)
        memcpy(bytes + at, c->buffers[i].bytes, c->buffers[i].size);
    return bytes;
}

int is_snapshot(const config *c, const unsigned char *before)
{
    size_t at = 0;
    for (int i = 0; i < c->buffer_count; at += c->buffers[i].size, i++) {
        const config_buffer *buffer = &c->buffers[i];
        if (buffer->role == CONFIG_SCRATCH || !memcmp(buffer->bytes, before + at, buffer->size))
            continue;
        size_t byte = 0;
        while (buffer->bytes[byte] == before[at + byte])
            byte++;
        printf("buffer %d, from byte %zu of %zu, expected/found:", i, byte, buffer->size);
        for (size_t j = byte; j < byte + 8 && j < buffer->size; j++)
            printf(" %02x/%02x", before[at + j], buffer->bytes[j]);
        printf("\n");
        return 0;
    }
    return 1;
}

int same_elements(const trope_args *a, const trope_args *b, int backward)
{
    const int64_t size = (int64_t)number_size(a->dtype);
    for (int i = 0; i < a->operand_count; i++) {
        const tensor p = tensor_of(a, i, TENSOR_DST, backward), q = tensor_of(b, i, TENSOR_DST, backward);
        for (int64_t j = 0; p.base && j < tensor_count(&p); j++) {
            const char *first = (const char *)p.base + tensor_offset(&p, j) * size;
            const char *second = (const char *)q.base + tensor_offset(&q, j) * size;
            if (!memcmp(first, second, (size_t)size))
                continue;
            printf("operand %d, element %lld: %g (0x%llx) in one call, %g (0x%llx) in the other\n", i, (long long)j,
                   number_load(a->dtype, first), (unsigned long long)number_bits(a->dtype, first),
                   number_load(a->dtype, second), (unsigned long long)number_bits(a->dtype, second));
            return 0;
        }
    }
    return 1;
}

void run_directions(uint64_t seed, const uint8_t (*fixed)[2], int count, int specials, parity_check check)
{
    config_choices choices = config_choose_with(seed, fixed, count);
    choices.specials = specials && seed % 2;
    config *c = config_make(seed, &choices);
    check(c, 0);
    check(c, 1);
    config_free(c);
}

int same_bytes(config *c, call *first, call *second, int backward)
{
    config_reset(c);
    run_call(call_args(first), backward);
    unsigned char *bytes = snapshot(c);
    config_reset(c);
    run_call(call_args(second), backward);
    const int same = is_snapshot(c, bytes);
    free(bytes);
    return same;
}
