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
 * vectors of it: of types up to 32 bits by the least and the greatest, of 64 bits by the sign of
 * differences, since SSE2 does not compare them. An extent is below 2^62. */
#define KILN_OUTSIDE(name, type, is_wide)                                                          \
    static inline int kiln_outside_##name(const void *indices, int64_t count, int64_t extent,      \
                                          int64_t negative, kiln_outside *outside)                 \
    {                                                                                              \
        const type *const at = (const type *)indices;                                              \
        const uint64_t least = negative ? (uint64_t)0 - (uint64_t)extent : 0;                      \
        const uint64_t range = (uint64_t)extent - least;                                           \
        if (count <= 0)                                                                            \
            return 0;                                                                              \
        if (is_wide) {                                                                             \
            uint64_t bad = 0;                                                                      \
            for (int64_t i = 0; i < count; i++) {                                                  \
                const uint64_t from = (uint64_t)at[i] - least;                                     \
                bad |= from | (range - 1 - from);                                                  \
            }                                                                                      \
            if (bad >> 63 == 0)                                                                    \
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

KILN_OUTSIDE(int8, int8_t, 0)
KILN_OUTSIDE(int16, int16_t, 0)
KILN_OUTSIDE(int32, int32_t, 0)
KILN_OUTSIDE(int64, int64_t, 1)
KILN_OUTSIDE(uint8, uint8_t, 0)
KILN_OUTSIDE(uint16, uint16_t, 0)
KILN_OUTSIDE(uint32, uint32_t, 0)
KILN_OUTSIDE(uint64, uint64_t, 1)
#undef KILN_OUTSIDE

#endif
