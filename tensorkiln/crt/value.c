/* Strings, shapes and tuples as values; owned values of arguments; conditions. */
#include "outer.h"
#include <limits.h>
#include <string.h>

/* ---- strings and shapes ------------------------------------------------------------------- */

static int make_bytes(const char *data, int64_t size, int32_t small, int32_t kind, kiln_value *made)
{
    if (size < 0)
        return kiln_fail(KILN_ERROR_ARGUMENT, "a string of %lld bytes", (long long)size);
    if (size <= 7) {
        *made = (kiln_value){small, (uint32_t)size, {0}};
        if (size > 0)
            memcpy(made->as.bytes, data, (size_t)size);
        return KILN_OK;
    }
    kiln_string_object *object = kiln_new_object(sizeof *object + (size_t)size + 1, kind,
                                                 kiln_release_plain);
    if (object == NULL)
        return KILN_ERROR_MEMORY;
    char *text = (char *)(object + 1);
    memcpy(text, data, (size_t)size);
    text[size] = 0;
    object->data = text;
    object->size = (size_t)size;
    *made = kiln_object_value(object);
    return KILN_OK;
}

KILN_API int kiln_make_string(const char *text, int64_t bytes, kiln_value *made)
{
    if (bytes > 0)
        KILN_GIVEN(text);
    KILN_GIVEN(made);
    return make_bytes(text, bytes, KILN_SMALL_STRING, KILN_STRING, made);
}

KILN_API const char *kiln_string_of(const kiln_value *value, int64_t *bytes)
{
    int64_t size;
    bytes = bytes != NULL ? bytes : &size;
    if (value == NULL)
        return NULL;
    if (value->kind == KILN_SMALL_STRING || value->kind == KILN_SMALL_BYTES) {
        *bytes = value->small;
        return value->as.bytes;
    }
    if (kiln_is_object(value) && (value->kind == KILN_STRING || value->kind == KILN_BYTES)) {
        const kiln_string_object *object = value->as.pointer;
        *bytes = (int64_t)object->size;
        return object->data;
    }
    if (value->kind == KILN_C_STRING && value->as.pointer != NULL) {
        *bytes = (int64_t)strlen(value->as.pointer);
        return value->as.pointer;
    }
    return NULL;
}

KILN_API int kiln_make_shape(const int64_t *sizes, int count, kiln_value *made)
{
    if (count > 0)
        KILN_GIVEN(sizes);
    KILN_GIVEN(made);
    if (count < 0)
        return kiln_fail(KILN_ERROR_COUNT, "a shape of %d sizes", count);
    const size_t bytes = (size_t)count * sizeof *sizes;
    kiln_shape_object *object = kiln_new_object(sizeof *object + bytes, KILN_SHAPE, kiln_release_plain);
    if (object == NULL)
        return KILN_ERROR_MEMORY;
    int64_t *data = (int64_t *)(object + 1);
    if (count > 0)
        memcpy(data, sizes, bytes);
    object->data = data;
    object->size = (size_t)count;
    *made = kiln_object_value(object);
    return KILN_OK;
}

KILN_API const int64_t *kiln_shape_of(const kiln_value *value, int *count)
{
    int size;
    count = count != NULL ? count : &size;
    if (value == NULL || value->kind != KILN_SHAPE || !kiln_is_object(value))
        return NULL;
    const kiln_shape_object *object = value->as.pointer;
    *count = object->size > INT_MAX ? INT_MAX : (int)object->size;
    return object->data;
}

/* ---- tuples ------------------------------------------------------------------------------- */

static void release_tuple(void *self, int what)
{
    kiln_tuple_object *tuple = self;
    if (what & 1) {
        for (int64_t i = 0; i < tuple->size; i++)
            kiln_release(&tuple->data[i]);
        if (tuple->free_data != NULL) /* another library allocated `data` separately */
            tuple->free_data(tuple->data);
    }
    if (what & 2)
        kiln_free_object(self);
}

KILN_API int kiln_make_tuple(const kiln_value *items, int count, kiln_value *made)
{
    if (count > 0)
        KILN_GIVEN(items);
    KILN_GIVEN(made);
    if (count < 0)
        return kiln_fail(KILN_ERROR_COUNT, "a tuple of %d items", count);
    const size_t bytes = (size_t)count * sizeof *items;
    kiln_tuple_object *tuple = kiln_new_object(sizeof *tuple + bytes, KILN_TUPLE, release_tuple);
    if (tuple == NULL)
        return KILN_ERROR_MEMORY;
    tuple->data = (kiln_value *)(tuple + 1);
    tuple->size = 0;
    tuple->capacity = count;
    tuple->free_data = NULL;
    kiln_value whole = kiln_object_value(tuple);
    for (int i = 0; i < count; i++) {
        const int code = kiln_take(&items[i], &tuple->data[i]);
        if (code != KILN_OK) {
            kiln_release(&whole);
            return code;
        }
        tuple->size = i + 1;
    }
    *made = whole;
    return KILN_OK;
}

KILN_API const kiln_value *kiln_items_of(const kiln_value *value, int *count)
{
    int size;
    count = count != NULL ? count : &size;
    if (value == NULL || !kiln_is_object(value) ||
        (value->kind != KILN_TUPLE && value->kind != KILN_LIST))
        return NULL;
    const kiln_tuple_object *tuple = value->as.pointer;
    *count = tuple->size > INT_MAX ? INT_MAX : (int)tuple->size;
    return tuple->data;
}

int kiln_item(const kiln_value *tuple, int index, kiln_value *item)
{
    int count = 0;
    const kiln_value *items = kiln_items_of(tuple, &count);
    if (items == NULL)
        return kiln_fail(KILN_ERROR_ARGUMENT, "cannot take item %d of %s, expected a tuple", index,
                         kiln_kind_name(tuple));
    if (index >= count)
        return kiln_fail(KILN_ERROR_COUNT, "item %d is outside a tuple of %d items", index, count);
    return kiln_take(&items[index], item);
}

int kiln_spread(const kiln_value *tuple, int count, kiln_value *items)
{
    int found = 0;
    const kiln_value *from = kiln_items_of(tuple, &found);
    if (from == NULL || found != count)
        return kiln_fail(KILN_ERROR_COUNT, "expected a tuple of %d, received %s%s", count,
                         from == NULL ? kiln_kind_name(tuple) : "a tuple",
                         from == NULL ? "" : " of another size");
    for (int i = 0; i < count; i++) {
        kiln_release(&items[i]);
        const int code = kiln_take(&from[i], &items[i]);
        if (code != KILN_OK)
            return code;
    }
    return KILN_OK;
}

/* ---- any value ---------------------------------------------------------------------------- */

int kiln_take(const kiln_value *value, kiln_value *taken)
{
    if (value->kind == KILN_TENSOR)
        return kiln_copy_tensor(value->as.pointer, taken);
    if (value->kind == KILN_C_STRING && value->as.pointer == NULL)
        return kiln_fail(KILN_ERROR_NULL, "a string is a null pointer");
    if (value->kind == KILN_C_STRING)
        return kiln_make_string(value->as.pointer, (int64_t)strlen(value->as.pointer), taken);
    if (value->kind == KILN_BYTES_VIEW) {
        const kiln_bytes *view = value->as.pointer;
        if (view == NULL || (view->data == NULL && view->size > 0))
            return kiln_fail(KILN_ERROR_NULL, "bytes are a null pointer");
        return make_bytes(view->data, (int64_t)view->size, KILN_SMALL_BYTES, KILN_BYTES, taken);
    }
    if (value->kind >= 64 && value->as.pointer == NULL)
        return kiln_fail(KILN_ERROR_NULL, "%s is a null pointer", kiln_kind_name(value));
    if (value->kind == 10) /* tvm-ffi's kTVMFFIObjectRValueRef, not supported */
        return kiln_fail(KILN_ERROR_ARGUMENT, "an argument is a movable reference");
    kiln_retain(value);
    *taken = *value;
    return KILN_OK;
}

static int any_bit(const char *data, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i++)
        if (data[i] != 0)
            return 1;
    return 0;
}

int kiln_truth(const kiln_value *value, int *truth)
{
    const kiln_tensor *tensor = kiln_tensor_of(value);
    const int code = tensor == NULL ? KILN_OK : kiln_check_tensor(tensor);
    if (code != KILN_OK)
        return code;
    if (value->kind == KILN_BOOL || value->kind == KILN_INT || value->kind == KILN_UINT) {
        *truth = value->as.integer != 0;
    } else if (tensor != NULL && tensor->device_type == 1 && kiln_element_count(tensor) == 1 &&
               (tensor->dtype.code == 6 || tensor->dtype.code <= 1)) {
        *truth = any_bit(kiln_data(tensor), kiln_element_bytes(tensor->dtype));
    } else if (tensor != NULL) {
        return kiln_fail(KILN_ERROR_ARGUMENT, "a condition must be a bool or a tensor of one bool, "
                                              "received a tensor of %lld elements%s",
                         (long long)kiln_element_count(tensor),
                         tensor->dtype.code == 6 || tensor->dtype.code <= 1 ? ""
                                                                            : " with a fraction");
    } else {
        return kiln_fail(KILN_ERROR_ARGUMENT, "a condition must be a bool or a tensor of one bool, "
                                              "received %s",
                         kiln_kind_name(value));
    }
    return KILN_OK;
}
