/* tensor_maps.h - what a tensor map (CUtensorMap) is here, and what one may be: shared by the emulator and
 * the look-alike of the driver. A real map is opaque; this one lists what it was made of.
 *
 * The rules are those that cuda.h has at cuTensorMapEncodeTiled: a map is at a multiple of 64 bytes;
 * at most 5 dimensions, of up to 2^31 elements; the tensor begins at a multiple of 16 bytes, and so do its
 * rows: strides are multiples of 16 below 2^40, each of the one before; a box has up to 256 elements along
 * each dimension, along the first one whole pieces of 16 bytes, and no more of them than the pattern of
 * permuted pieces is wide. Of element strides only 1, and no interleaving, is known here. */
#ifndef TENSOR_MAPS_H
#define TENSOR_MAPS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { MAP_BYTES = 128, MAP_KIND = 0x7a3, MOST_DIMS = 5 };

typedef struct tensor_map {
    uint16_t kind;
    uint8_t rank, element, type, swizzle; /* element: bytes; swizzle: 0 or the width in bytes */
    uint64_t address;
    uint64_t dims[MOST_DIMS];
    uint64_t strides[MOST_DIMS - 1];
    uint16_t box[MOST_DIMS]; /* of windows: channels and pixels */
    int8_t lower[2], upper[2]; /* of windows, along columns and rows */
    uint8_t steps[2];          /* 0: a box */
} tensor_map;

typedef char a_map_fits[sizeof(tensor_map) <= MAP_BYTES ? 1 : -1];

/* Bytes of elements, by CUtensorMapDataType: UINT8 to BFLOAT16. */
static const uint8_t bytes_of_elements[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2};

/* Make a map; 0 if an argument breaks a rule. */
static inline int encode_tensor_map(void *map, int type, uint32_t rank, uint64_t address,
                                    const uint64_t *dims, const uint64_t *strides,
                                    const uint32_t *box, const uint32_t *steps, int interleave,
                                    int swizzle, int promotion, int fill)
{
    static const uint8_t widths[] = {0, 32, 64, 128};
    tensor_map made;
    memset(&made, 0, sizeof made);
    if ((uintptr_t)map % 64 || type < 0 || type >= (int)sizeof bytes_of_elements || !rank ||
        rank > MOST_DIMS || address % 16 || interleave || swizzle < 0 || swizzle > 3 ||
        promotion < 0 || promotion > 3 || fill)
        return 0;
    made.kind = MAP_KIND;
    made.rank = (uint8_t)rank;
    made.type = (uint8_t)type;
    made.element = bytes_of_elements[type];
    made.swizzle = widths[swizzle];
    made.address = address;
    for (uint32_t d = 0; d < rank; d++) {
        if (!dims[d] || dims[d] > (uint64_t)1 << 31 || !box[d] || box[d] > 256 || steps[d] != 1)
            return 0;
        made.dims[d] = dims[d];
        made.box[d] = (uint16_t)box[d];
    }
    for (uint32_t d = 0; d + 1 < rank; d++) {
        const uint64_t inner = d ? strides[d - 1] : dims[0] * made.element;
        if (strides[d] % 16 || strides[d] >= (uint64_t)1 << 40 || strides[d] < inner ||
            (d && strides[d] % inner))
            return 0;
        made.strides[d] = strides[d];
    }
    const uint32_t row = box[0] * made.element;
    if (row % 16 || (made.swizzle && row > made.swizzle))
        return 0;
    memset(map, 0, MAP_BYTES);
    memcpy(map, &made, sizeof made);
    return 1;
}

/* Make a map of windows of images [N, H, W, C] (cuTensorMapEncodeIm2col): corners are of 8 bits for 4
 * dimensions; at most 256 channels and 1024 pixels, and 8 from one window to the next. 0 if an argument
 * breaks a rule. */
static inline int encode_windows(void *map, int type, uint32_t rank, uint64_t address,
                                 const uint64_t *dims, const uint64_t *strides, const int *lower,
                                 const int *upper, uint32_t channels, uint32_t pixels,
                                 const uint32_t *steps, int interleave, int swizzle, int promotion,
                                 int fill)
{
    const uint32_t box[4] = {channels, 1, 1, 1}, ones[4] = {1, 1, 1, 1};
    if (rank != 4 || !pixels || pixels > 1024 || steps[0] != 1 || steps[3] != 1 ||
        !encode_tensor_map(map, type, rank, address, dims, strides, box, ones, interleave, swizzle,
                           promotion, fill))
        return 0;
    tensor_map *const made = map;
    made->box[1] = (uint16_t)pixels;
    for (int d = 0; d < 2; d++) {
        const long size = (long)dims[d + 1];
        if (lower[d] < -128 || lower[d] > 127 || upper[d] < -128 || upper[d] > 127 ||
            !steps[d + 1] || steps[d + 1] > 8 || size - 1 + upper[d] < lower[d])
            return 0;
        made->lower[d] = (int8_t)lower[d];
        made->upper[d] = (int8_t)upper[d];
        made->steps[d] = (uint8_t)steps[d + 1];
    }
    return 1;
}

#endif
