/* A hash of bytes, for tables, file names and checksums. It is fast and not cryptographic: whatever is found by a hash is
 * then compared whole. Each bit of the bytes changes the hash. */
#ifndef TROPE_JIT_HASH_H
#define TROPE_JIT_HASH_H

#include <stdint.h>
#include <string.h>

/* Four independent chains of multiplications, because one would wait for each product. */
static inline uint64_t trope_hash(const void *data, size_t bytes, uint64_t seed)
{
    const uint64_t odd = 0x9e3779b97f4a7c15u;
    const unsigned char *at = data;
    uint64_t lane[4] = {seed ^ bytes * odd, odd, ~odd, odd << 1 | 1}, hash = 0;
    for (size_t left = bytes; left; at += 32) {
        uint64_t word[4] = {0, 0, 0, 0};
        const size_t size = left < 32 ? left : 32;
        if (size == 32)
            memcpy(word, at, 32);
        else
            memcpy(word, at, size);
        for (int i = 0; i < 4; i++) {
            lane[i] = (lane[i] ^ word[i]) * odd;
            lane[i] ^= lane[i] >> 32;
        }
        left -= size;
    }
    for (int i = 0; i < 4; i++) {
        hash = (hash ^ lane[i]) * odd;
        hash ^= hash >> 29;
    }
    return hash;
}

#endif
