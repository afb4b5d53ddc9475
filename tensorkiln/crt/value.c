/* Runtime values: reference-counted objects in the layouts of tvm-ffi, which is not needed. */
#include "outer.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define STRONG_ONE ((uint64_t)1)
#define WEAK_ONE ((uint64_t)1 << 32)
#define LAST_OF_BOTH (STRONG_ONE | WEAK_ONE)

const kiln_value kiln_nothing = {KILN_NONE, 0, {0}};

static int64_t live_objects;

void *kiln_new_object(size_t bytes, int32_t kind, void (*release)(void *self, int what))
{
    void *block = NULL;
    if (bytes > (size_t)PTRDIFF_MAX || posix_memalign(&block, 64, bytes) != 0) {
        kiln_fail(KILN_ERROR_MEMORY, "out of memory: could not get %lld bytes for a value",
                  (long long)bytes);
        return NULL;
    }
    kiln_object *object = block;
    *object = (kiln_object){LAST_OF_BOTH, kind, 0, release};
    __atomic_fetch_add(&live_objects, 1, __ATOMIC_RELAXED);
    return object;
}

void kiln_free_object(void *object)
{
    __atomic_fetch_sub(&live_objects, 1, __ATOMIC_RELAXED);
    free(object);
}

KILN_API int64_t kiln_live_objects(void)
{
    return __atomic_load_n(&live_objects, __ATOMIC_RELAXED);
}

kiln_value kiln_object_value(void *object)
{
    kiln_value v = {((kiln_object *)object)->kind, 0, {0}};
    v.as.pointer = object;
    return v;
}

static int is_object(const kiln_value *value)
{
    return value->kind >= 64 && value->as.pointer != NULL;
}

KILN_API void kiln_retain(const kiln_value *value)
{
    if (value != NULL && is_object(value))
        __atomic_fetch_add(&((kiln_object *)value->as.pointer)->counts, STRONG_ONE,
                           __ATOMIC_RELAXED);
}

/* Tuples and functions contain values, so releasing nested ones recursively could exhaust the
 * stack. An object that loses its last reference during another release is queued and released
 * afterwards. The queue is a list linked through `counts`, which are no longer needed. */
static __thread kiln_object *waiting;
static __thread int is_releasing;

static void release_last(kiln_object *object)
{
    if (object->kind != KILN_TUPLE && object->kind != KILN_FUNCTION) {
        object->release(object, 3);
        return;
    }
    object->counts = (uint64_t)(uintptr_t)waiting;
    waiting = object;
    if (is_releasing)
        return;
    is_releasing = 1;
    while ((object = waiting) != NULL) {
        waiting = (kiln_object *)(uintptr_t)object->counts;
        object->release(object, 3);
    }
    is_releasing = 0;
}

KILN_API void kiln_release(kiln_value *value)
{
    if (value == NULL)
        return;
    const kiln_value old = *value;
    *value = (kiln_value){KILN_NONE, 0, {0}};
    if (!is_object(&old))
        return;
    kiln_object *object = old.as.pointer;
    const uint64_t before = __atomic_fetch_sub(&object->counts, STRONG_ONE, __ATOMIC_ACQ_REL);
    if (object->release == NULL)
        return;
    if (before == LAST_OF_BOTH) {
        release_last(object);
    } else if ((uint32_t)before == 1) {
        object->release(object, 1);
        if (__atomic_fetch_sub(&object->counts, WEAK_ONE, __ATOMIC_ACQ_REL) == WEAK_ONE)
            object->release(object, 2);
    }
}

/* ---- strings and shapes ------------------------------------------------------------------- */

static void release_plain(void *self, int what)
{
    if (what & 2)
        kiln_free_object(self);
}

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
                                                 release_plain);
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
    if (is_object(value) && (value->kind == KILN_STRING || value->kind == KILN_BYTES)) {
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
    kiln_shape_object *object = kiln_new_object(sizeof *object + bytes, KILN_SHAPE, release_plain);
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
    if (value == NULL || value->kind != KILN_SHAPE || !is_object(value))
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
    if (value == NULL || !is_object(value) ||
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

typedef struct bytes_view {
    const char *data;
    size_t size;
} bytes_view;

int kiln_take(const kiln_value *value, kiln_value *taken)
{
    if (value->kind == KILN_TENSOR)
        return kiln_copy_tensor(value->as.pointer, taken);
    if (value->kind == KILN_C_STRING && value->as.pointer == NULL)
        return kiln_fail(KILN_ERROR_NULL, "a string is a null pointer");
    if (value->kind == KILN_C_STRING)
        return kiln_make_string(value->as.pointer, (int64_t)strlen(value->as.pointer), taken);
    if (value->kind == KILN_BYTES_VIEW) {
        const bytes_view *view = value->as.pointer;
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

const char *kiln_kind_name(const kiln_value *value)
{
    switch (value == NULL ? KILN_NONE : value->kind) {
    case KILN_NONE: return "nothing";
    case KILN_INT:
    case KILN_UINT: return "an integer";
    case KILN_BOOL: return "a bool";
    case KILN_FLOAT: return "a number with a fraction";
    case KILN_TENSOR:
    case KILN_TENSOR_OBJECT: return "a tensor";
    case KILN_C_STRING:
    case KILN_SMALL_STRING:
    case KILN_STRING: return "a string";
    case KILN_BYTES_VIEW:
    case KILN_SMALL_BYTES:
    case KILN_BYTES: return "bytes";
    case KILN_FUNCTION: return "a function";
    case KILN_SHAPE: return "a shape";
    case KILN_TUPLE:
    case KILN_LIST: return "a tuple";
    default: return "an object of another kind";
    }
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
