/* Copies tensors with strides or insufficient alignment to contiguous memory before a run, and back
 * after it. */
#include "crt.h"

int kiln_is_contiguous(const kiln_tensor *tensor)
{
    if (tensor->strides == NULL)
        return 1;
    int64_t expected = 1;
    int gaps = 0;
    for (int d = tensor->ndim - 1; d >= 0; d--) {
        if (tensor->shape[d] == 0)
            return 1; /* empty: strides do not matter */
        if (tensor->shape[d] != 1 && tensor->strides[d] != expected)
            gaps = 1;
        gaps |= __builtin_mul_overflow(expected, tensor->shape[d], &expected);
    }
    return !gaps;
}

/* Copy between strided and contiguous data, in row-major order; return the contiguous position
 * after the last element. */
static char *walk(const kiln_tensor *tensor, int dim, char *data, char *packed, int64_t size,
                  int to_packed)
{
    if (dim == tensor->ndim) {
        if (to_packed)
            memcpy(packed, data, (size_t)size);
        else
            memcpy(data, packed, (size_t)size);
        return packed + size;
    }
    for (int64_t i = 0; i < tensor->shape[dim]; i++)
        packed = walk(tensor, dim + 1, data + i * tensor->strides[dim] * size, packed, size,
                      to_packed);
    return packed;
}

static void copy(const kiln_tensor *tensor, char *data, char *packed, int to_packed)
{
    const int64_t size = kiln_element_bytes(tensor->dtype);
    const int64_t bytes = kiln_bytes_of(tensor->shape, tensor->ndim, size);
    if (bytes == 0)
        return; /* data of an empty tensor may be NULL, which memcpy() does not take */
    if (!kiln_is_contiguous(tensor))
        walk(tensor, 0, data, packed, size, to_packed);
    else if (to_packed)
        memcpy(packed, data, (size_t)bytes);
    else
        memcpy(data, packed, (size_t)bytes);
}

void kiln_pack(char *packed, const kiln_tensor *tensor, const char *data)
{
    copy(tensor, (char *)(uintptr_t)data, packed, 1);
}

void kiln_unpack(const kiln_tensor *tensor, char *data, const char *packed)
{
    copy(tensor, data, (char *)(uintptr_t)packed, 0);
}
