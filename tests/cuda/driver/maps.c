/* Tensor maps, of which the emulator knows what they are (emulator/tensor_maps.h). */
#include "lookalike.h"
#include "../emulator/tensor_maps.h"

CUresult cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *address,
                                const uint64_t *dims, const uint64_t *strides, const uint32_t *box,
                                const uint32_t *steps, int interleave, int swizzle, int promotion,
                                int fill)
{
    BEGIN("cuTensorMapEncodeTiled")
    NEED_CONTEXT()
    NEED(capability() >= 90, INVALID_VALUE)
    NEED(encode_tensor_map(map, type, rank, (uint64_t)(uintptr_t)address, dims, strides, box, steps,
                           interleave, swizzle, promotion, fill),
         INVALID_VALUE)
    END()
}

CUresult cuTensorMapEncodeIm2col(void *map, int type, uint32_t rank, void *address,
                                 const uint64_t *dims, const uint64_t *strides, const int *lower,
                                 const int *upper, uint32_t channels, uint32_t pixels,
                                 const uint32_t *steps, int interleave, int swizzle, int promotion,
                                 int fill)
{
    BEGIN("cuTensorMapEncodeIm2col")
    NEED_CONTEXT()
    NEED(capability() >= 90, INVALID_VALUE)
    NEED(encode_windows(map, type, rank, (uint64_t)(uintptr_t)address, dims, strides, lower, upper,
                        channels, pixels, steps, interleave, swizzle, promotion, fill),
         INVALID_VALUE)
    END()
}
