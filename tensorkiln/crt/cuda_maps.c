/* CUDA: tensor maps, of which a kernel that copies boxes of tensors takes one for each: 128 bytes that
 * the driver makes of an address and dimensions, by value. They are made anew at each launch, which asks
 * nothing of the device, so they are right wherever a tensor is. (docs.nvidia.com, CUDA Driver API, "Tensor
 * Map Object Management".) */
#include "cuda_api.h"
#include <stdio.h>
#include <string.h>

#define ADDRESS_ALIGN 16

static kiln_cuda_encode encode; /* once a library needs it */
static kiln_cuda_encode_windows encode_windows;

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
    const char *missing = NULL;
    if (encode == NULL &&
        !kiln_cuda_find_function(KILN_CUDA_ENCODE, KILN_CUDA_ENCODE_VERSION, &encode))
        missing = KILN_CUDA_ENCODE;
    else if (encode_windows == NULL && !kiln_cuda_find_function(KILN_CUDA_ENCODE_WINDOWS,
                                                                KILN_CUDA_ENCODE_VERSION, &encode_windows))
        missing = KILN_CUDA_ENCODE_WINDOWS;
    if (missing != NULL)
        return kiln_fail(KILN_ERROR_DRIVER,
                         "%s takes tensor maps, and libcuda.so.1 has no function %s: expected the driver "
                         "of CUDA 12.0 or newer",
                         function->name, missing);
    return KILN_OK;
}

/* A dimension or stride; `by` is the number of an argument, plus one. */
static uint64_t size_of(int64_t factor, uint8_t by, void *const *values)
{
    int64_t times = 1;
    if (by > 0)
        memcpy(&times, values[by - 1], sizeof times);
    return (uint64_t)factor * (uint64_t)times;
}

static int make_map(kiln_cuda_device *device, const kiln_device_function *function,
                    const kiln_tensor_map *described, void *const *values, unsigned char *map)
{
    char what[120];
    uint64_t dims[5], strides[4];
    uint32_t box[5], steps[5];
    CUdeviceptr address;
    const int is_windows = described->steps[0] > 0;
    memcpy(&address, values[described->param], sizeof address);
    int is_used = address % ADDRESS_ALIGN == 0;
    for (int d = 0; d < described->rank; d++) {
        dims[d] = size_of(described->dims[d], described->dim_by[d], values);
        is_used = is_used && dims[d] > 0;
        box[d] = (uint32_t)described->box[d];
        steps[d] = is_windows && (d == 1 || d == 2) ? (uint32_t)described->steps[d - 1] : 1;
        if (d > 0)
            strides[d - 1] = size_of(described->strides[d - 1], described->stride_by[d - 1], values);
    }
    memset(map, 0, KILN_CUDA_MAP_BYTES);
    if (!is_used)
        return KILN_OK;
    const CUresult error =
        is_windows
            ? encode_windows(map, described->type, (uint32_t)described->rank, (void *)address, dims,
                             strides, described->lower, described->upper, box[0], box[1], steps,
                             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
            : encode(map, described->type, (uint32_t)described->rank, (void *)address, dims, strides,
                     box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                     CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    snprintf(what, sizeof what, "the tensor map of argument %d for %.60s", (int)described->param,
             function->name);
    return kiln_cuda_check(device, error, KILN_ERROR_LAUNCH, what);
}

int kiln_cuda_make_maps(kiln_cuda_device *device, const kiln_device_function *function,
                        kiln_cuda_maps *maps, void **values)
{
    unsigned char *map = maps->room;
    int code = KILN_OK;
    while ((uintptr_t)map % KILN_CUDA_MAP_BYTES != 0)
        map++;
    for (int i = 0; i < function->n_params && code == KILN_OK; i++) {
        if (function->params[i] != KILN_TENSOR_MAP)
            continue;
        code = make_map(device, function, values[i], values, map);
        values[i] = map;
        map += KILN_CUDA_MAP_BYTES;
    }
    return code;
}
