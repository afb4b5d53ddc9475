/* indices.h - which of a tensor's indices is outside of the dimension that it indexes. Generated C
 * calls kiln_outside_<type>() between the kernel that computes indices and those that read there. */
#ifndef KILN_INDICES_H
#define KILN_INDICES_H

#include <stdint.h>

typedef struct kiln_outside {
    int64_t place;   /* of the first index that is outside, counted in row-major order */
    uint64_t index;  /* its value, converted from its type */
    int is_unsigned; /* whether that type is */
} kiln_outside;

/* Return 1 and fill in `outside` if an index is not within 0..extent-1 or, if `negative` is not 0,
 * within -extent..extent-1; else 0. The pass over all of them has no branch, so that C compilers make
 * vectors of it: of types up to 16 bits by the least and the greatest, of wider ones by the sign of
 * differences, since SSE2 has neither; a sign tells it where there are no more legal indices than
 * numbers of that sign. An extent is below 2^62. */
#define KILN_OUTSIDE(name, type, bits)                                                             \
    static inline int kiln_outside_##name(const void *indices, int64_t count, int64_t extent,      \
                                          int64_t negative, kiln_outside *outside)                 \
    {                                                                                              \
        const type *const at = (const type *)indices;                                              \
        const uint64_t least = negative ? (uint64_t)0 - (uint64_t)extent : 0;                      \
        const uint64_t range = (uint64_t)extent - least;                                           \
        if (count <= 0)                                                                            \
            return 0;                                                                              \
        if (bits >= 32 && range <= (uint64_t)1 << (bits - 1)) {                                    \
            uint##bits##_t bad = 0;                                                                \
            for (int64_t i = 0; i < count; i++) {                                                  \
                const uint##bits##_t from = (uint##bits##_t)at[i] - (uint##bits##_t)least;         \
                bad |= from | ((uint##bits##_t)(range - 1) - from);                                \
            }                                                                                      \
            if (bad >> (bits - 1) == 0)                                                            \
                return 0;                                                                          \
        } else {                                                                                   \
            type low = at[0], high = at[0];                                                        \
            for (int64_t i = 0; i < count; i++) {                                                  \
                low = at[i] < low ? at[i] : low;                                                   \
                high = at[i] > high ? at[i] : high;                                                \
            }                                                                                      \
            if ((uint64_t)low - least < range && (uint64_t)high - least < range)                   \
                return 0;                                                                          \
        }                                                                                          \
        int64_t i = 0;                                                                             \
        while ((uint64_t)at[i] - least < range)                                                    \
            i++;                                                                                   \
        outside->place = i;                                                                        \
        outside->index = (uint64_t)at[i];                                                          \
        outside->is_unsigned = (type)-1 > 0;                                                       \
        return 1;                                                                                  \
    }

KILN_OUTSIDE(int8, int8_t, 8)
KILN_OUTSIDE(int16, int16_t, 16)
KILN_OUTSIDE(int32, int32_t, 32)
KILN_OUTSIDE(int64, int64_t, 64)
KILN_OUTSIDE(uint8, uint8_t, 8)
KILN_OUTSIDE(uint16, uint16_t, 16)
KILN_OUTSIDE(uint32, uint32_t, 32)
KILN_OUTSIDE(uint64, uint64_t, 64)
#undef KILN_OUTSIDE

#endif
