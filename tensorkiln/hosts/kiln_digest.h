/* kiln_digest.h - the digest that a library has of its own file, by which damage is found before
 * the dynamic loader reads it. Internal to kiln_host.h.
 *
 * Behind the section header table, at a multiple of 8: 32 bytes of name, the size of the file, the
 * sum of all bytes before it (8 bytes each, little-endian). Weights inside the file follow.
 * tensorkiln/artifact/digest.py says what the sum is and what it is good for.
 */
#ifndef KILN_DIGEST_H
#define KILN_DIGEST_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KILN_HOST_DIGEST_NAME "tensorkiln: digest of this file\n"
#define KILN_HOST_DIGEST_BYTES 48

/* Whether 32 bytes are the name, or what damage has left of it: a word of it. */
static inline int kiln_host_is_digest(const unsigned char *name)
{
    static const char whole[] = KILN_HOST_DIGEST_NAME;
    for (size_t i = 0; i < 32; i += 8)
        if (memcmp(name + i, whole + i, 8) == 0)
            return 1;
    return 0;
}

/* The sum of `count` words: word i is part of total i % 256, and of total 256 + i % 255. Loops of an
 * even, constant length are those that gcc vectorizes with -O2. */
static inline uint64_t kiln_host_digest_sum(const uint64_t *words, size_t count)
{
    uint64_t totals[511] = {0}, sum = 0;
    size_t at = 0;
    for (; count - at >= 256; at += 256)
        for (size_t i = 0; i < 256; i++)
            totals[i] += words[at + i];
    for (size_t i = 0; i < count - at; i++)
        totals[i] += words[at + i];
    for (at = 0; count - at >= 255; at += 255) {
        for (size_t i = 0; i < 254; i++)
            totals[256 + i] += words[at + i];
        totals[510] += words[at + 254];
    }
    for (size_t i = 0; i < count - at; i++)
        totals[256 + i] += words[at + i];
    for (uint64_t i = 0; i < 511; i++) {
        uint64_t z = totals[i] + i * 0x9E3779B97F4A7C15u;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
        z = (z ^ z >> 27) * 0x94D049BB133111EBu;
        sum ^= z ^ z >> 31;
    }
    return sum;
}

#ifdef __cplusplus
}
#endif
#endif
