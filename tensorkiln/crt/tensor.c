/* Tensor objects, whose data follow the object in memory or belong to a DLManagedTensor. */
#include "outer.h"
#include <stdlib.h>
#include <string.h>

#define DATA_ALIGN ((size_t)64)

static void release_tensor(void *self, int what)
{
    kiln_tensor_object *object = self;
    kiln_managed_tensor *managed = object->managed;
    if ((what & 1) && managed != NULL && managed->deleter != NULL)
        managed->deleter(managed);
    if (what & 2)
        kiln_free_object(self);
}

/* Allocate a tensor object with room for its shape, strides and `bytes` of 64-byte aligned data. */
static kiln_tensor_object *tensor_object(int ndim, size_t bytes)
{
    const size_t head = sizeof(kiln_tensor_object) + 2 * (size_t)ndim * sizeof(int64_t);
    const size_t start = (head + DATA_ALIGN - 1) & ~(DATA_ALIGN - 1);
    kiln_tensor_object *object = kiln_new_object(start + bytes, KILN_TENSOR_OBJECT, release_tensor);
    if (object == NULL)
        return NULL;
    int64_t *shape = (int64_t *)(object + 1);
    object->managed = NULL;
    object->tensor = (kiln_tensor){(char *)object + start, 1, 0, ndim, {0, 0, 1}, shape,
                                   shape + ndim, 0};
    return object;
}

static void fill_strides(kiln_tensor *tensor)
{
    int64_t step = 1;
    for (int d = tensor->ndim - 1; d >= 0; d--) {
        tensor->strides[d] = step;
        step *= tensor->shape[d];
    }
}

int64_t kiln_element_count(const kiln_tensor *tensor)
{
    int64_t count = 1; /* cannot overflow: kiln_check_tensor() */
    for (int d = 0; d < tensor->ndim; d++)
        count *= tensor->shape[d];
    return count;
}

void *kiln_room(int64_t count, size_t size, const char *what)
{
    size_t bytes;
    void *made = NULL;
    if (!__builtin_mul_overflow(count, size, &bytes) && bytes <= (size_t)PTRDIFF_MAX)
        made = malloc(bytes != 0 ? bytes : 1);
    if (made == NULL)
        kiln_fail(KILN_ERROR_MEMORY, "out of memory for %lld %s", (long long)count, what);
    return made;
}

/* Check the sizes and type of a tensor to be made, or of one made elsewhere; compute its bytes. */
static int check_shape(const int64_t *shape, int ndim, kiln_dtype dtype, int64_t *bytes)
{
    char text[KILN_SHAPE_TEXT];
    if (ndim < 0 || ndim > KILN_MAX_RANK)
        return kiln_fail(KILN_ERROR_RANK, "a tensor with %d dimensions, the limit is %d", ndim,
                         KILN_MAX_RANK);
    if (ndim > 0 && shape == NULL)
        return kiln_fail(KILN_ERROR_NULL, "a tensor has no shape: its address is null");
    if (!kiln_has_whole_bytes(dtype)) {
        kiln_dtype_text(text, sizeof text, dtype);
        return kiln_fail(KILN_ERROR_DTYPE, "a tensor of %s, expected elements of whole bytes", text);
    }
    for (int d = 0; d < ndim; d++)
        if (shape[d] < 0)
            return kiln_fail(KILN_ERROR_SHAPE, "a tensor of negative size %lld in dimension %d",
                             (long long)shape[d], d);
    *bytes = kiln_bytes_of(shape, ndim, kiln_element_bytes(dtype));
    if (*bytes >= 0)
        return KILN_OK;
    kiln_shape_text(text, shape, ndim);
    return kiln_fail(KILN_ERROR_MEMORY, "a tensor of shape %s is too large: these are more elements than "
                     "any memory holds", text);
}

int kiln_check_tensor(const kiln_tensor *tensor)
{
    int64_t bytes = -1;
    const int code = check_shape(tensor->shape, tensor->ndim, tensor->dtype, &bytes);
    if (code == KILN_OK && bytes != 0 && tensor->data == NULL)
        return kiln_fail(KILN_ERROR_NULL, "a tensor has no data: its address is null");
    return code;
}

static int make_object(const int64_t *shape, int ndim, kiln_dtype dtype, kiln_tensor_object **made)
{
    int64_t bytes = -1;
    const int code = check_shape(shape, ndim, dtype, &bytes);
    if (code != KILN_OK)
        return code;
    kiln_tensor_object *const object = *made = tensor_object(ndim, (size_t)bytes);
    if (object == NULL)
        return KILN_ERROR_MEMORY;
    object->tensor.dtype = dtype;
    for (int d = 0; d < ndim; d++)
        object->tensor.shape[d] = shape[d];
    fill_strides(&object->tensor);
    return KILN_OK;
}

KILN_API int kiln_make_tensor(const int64_t *shape, int ndim, kiln_dtype dtype, kiln_value *made)
{
    kiln_tensor_object *object = NULL;
    if (ndim > 0)
        KILN_GIVEN(shape);
    KILN_GIVEN(made);
    const int code = make_object(shape, ndim, dtype, &object);
    if (code == KILN_OK)
        *made = kiln_object_value(object);
    return code;
}

KILN_API int kiln_take_dlpack(void *managed, kiln_value *made)
{
    kiln_managed_tensor *from = managed;
    KILN_GIVEN(managed);
    KILN_GIVEN(made);
    const int code = kiln_check_tensor(&from->tensor);
    if (code != KILN_OK)
        return code;
    kiln_tensor_object *object = tensor_object(from->tensor.ndim, 0);
    if (object == NULL)
        return KILN_ERROR_MEMORY;
    kiln_tensor *tensor = &object->tensor;
    int64_t *shape = tensor->shape, *strides = tensor->strides;
    *tensor = from->tensor;
    tensor->shape = shape;
    tensor->strides = strides;
    for (int d = 0; d < tensor->ndim; d++)
        shape[d] = from->tensor.shape[d];
    if (from->tensor.strides == NULL)
        fill_strides(tensor);
    else
        for (int d = 0; d < tensor->ndim; d++)
            strides[d] = from->tensor.strides[d];
    object->managed = from;
    *made = kiln_object_value(object);
    return KILN_OK;
}

KILN_API const kiln_tensor *kiln_tensor_of(const kiln_value *value)
{
    if (value == NULL || value->as.pointer == NULL)
        return NULL;
    if (value->kind == KILN_TENSOR)
        return value->as.pointer;
    if (value->kind == KILN_TENSOR_OBJECT)
        return &((kiln_tensor_object *)value->as.pointer)->tensor;
    return NULL;
}

void kiln_views(kiln_value *views, const kiln_value *args, int count)
{
    for (int p = 0; p < count && p < KILN_MAX_PARAMS; p++) {
        views[p] = args[p];
        const kiln_tensor *tensor = kiln_tensor_of(&views[p]);
        if (tensor != NULL)
            views[p] = kiln_view((kiln_tensor *)(uintptr_t)tensor);
    }
}

int kiln_copy_tensor(const kiln_tensor *tensor, kiln_value *copy)
{
    if (tensor == NULL)
        return kiln_fail(KILN_ERROR_NULL, "a tensor is a null pointer");
    if (tensor->device_type != 1)
        return kiln_fail(KILN_ERROR_DEVICE,
                         "a tensor must be in CPU memory (device type 1), received device type %d",
                         tensor->device_type);
    kiln_tensor_object *object = NULL;
    int code = kiln_check_tensor(tensor);
    if (code == KILN_OK)
        code = make_object(tensor->shape, tensor->ndim, tensor->dtype, &object);
    if (code != KILN_OK)
        return code;
    if (kiln_element_count(tensor) != 0)
        kiln_pack(kiln_data(&object->tensor), tensor, kiln_data(tensor));
    *copy = kiln_object_value(object);
    return KILN_OK;
}

int kiln_packed(const kiln_value *value, const kiln_tensor **tensor, kiln_value *packed)
{
    *packed = (kiln_value){KILN_NONE, 0, {0}};
    *tensor = kiln_tensor_of(value);
    if (*tensor == NULL)
        return kiln_fail(KILN_ERROR_ARGUMENT, "expected a tensor, received %s",
                         kiln_kind_name(value));
    int code = kiln_check_tensor(*tensor);
    if (code != KILN_OK || ((*tensor)->device_type == 1 && kiln_is_contiguous(*tensor)))
        return code;
    code = kiln_copy_tensor(*tensor, packed);
    *tensor = code == KILN_OK ? kiln_tensor_of(packed) : NULL;
    return code;
}
