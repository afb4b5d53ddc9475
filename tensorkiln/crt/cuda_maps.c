/* CUDA: tensor maps, of which a kernel that copies boxes of tensors takes one for each: 128 bytes that
 * the driver makes of an address and dimensions, by value. They are made anew at each launch, which asks
 * nothing of the device, so they are right wherever a tensor is. (docs.nvidia.com, CUDA Driver API, "Tensor
 * Map Object Management".) */
#include "cuda_api.h"
#include <stdio.h>
#include <string.h>

#define MAP_ALIGN 128 /* since CUDA 13; 64 before */
#define ADDRESS_ALIGN 16

static kiln_cuda_encode encode; /* once a library needs it */

size_t kiln_cuda_bytes_of(const kiln_device_function *function, int i)
{
    switch (function->params[i]) {
    case KILN_BUFFER:
        return sizeof(CUdeviceptr);
    case KILN_TENSOR_MAP:
        return KILN_CUDA_MAP_BYTES;
    default:
        return function->params[i];
    }
}

int kiln_cuda_find_maps(const kiln_device_function *function)
{
    int count = 0;
    for (int i = 0; i < function->n_params; i++)
        count += function->params[i] == KILN_TENSOR_MAP;
    if (count == 0)
        return KILN_OK;
    if (count > KILN_CUDA_MOST_MAPS)
        return kiln_fail(KILN_ERROR_CONTAINER, "%s takes %d tensor maps, of at most %d", function->name,
                         count, KILN_CUDA_MOST_MAPS);
    if (encode == NULL &&
        !kiln_cuda_find_function(KILN_CUDA_ENCODE, KILN_CUDA_ENCODE_VERSION, &encode))
        return kiln_fail(KILN_ERROR_DRIVER, "%s takes tensor maps, and libcuda.so.1 has no function "
                         KILN_CUDA_ENCODE ": expected the driver of CUDA 12.0 or newer",
                         function->name);
    return KILN_OK;
}

int kiln_cuda_make_map(kiln_cuda_device *device, const kiln_device_function *function,
                       const kiln_tensor_map *described, CUdeviceptr address, kiln_cuda_maps *maps,
                       void **value)
{
    char what[120];
    uint64_t dims[5], strides[4];
    uint32_t box[5], steps[5];
    const uintptr_t start = (uintptr_t)maps->room + MAP_ALIGN - 1;
    unsigned char *const map = maps->room + (start / MAP_ALIGN * MAP_ALIGN - (uintptr_t)maps->room) +
                               maps->count * KILN_CUDA_MAP_BYTES;
    maps->count++;
    memset(map, 0, KILN_CUDA_MAP_BYTES);
    *value = map;
    if (address % ADDRESS_ALIGN != 0)
        return KILN_OK;
    for (int d = 0; d < described->rank; d++) {
        dims[d] = (uint64_t)described->dims[d];
        box[d] = (uint32_t)described->box[d];
        steps[d] = 1;
        if (d > 0)
            strides[d - 1] = (uint64_t)described->strides[d - 1];
    }
    const CUresult error = encode(
        map, described->type, (uint32_t)described->rank, (void *)address, dims, strides, box, steps,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    snprintf(what, sizeof what, "the tensor map of argument %d for %.60s", (int)described->param,
             function->name);
    return kiln_cuda_check(device, error, KILN_ERROR_LAUNCH, what);
}
