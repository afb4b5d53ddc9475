/* Reference-counted objects in the layouts of tvm-ffi, which is not needed. */
#include "os.h"
#include "outer.h"

#define STRONG_ONE ((uint64_t)1)
#define WEAK_ONE ((uint64_t)1 << 32)
#define LAST_OF_BOTH (STRONG_ONE | WEAK_ONE)

const kiln_value kiln_nothing = {KILN_NONE, 0, {0}};

static int64_t live_objects;

void *kiln_new_object(size_t bytes, int32_t kind, void (*release)(void *self, int what))
{
    kiln_object *const object = bytes > (size_t)PTRDIFF_MAX ? NULL : kiln_os_allocate(bytes, 64);
    if (object == NULL) {
        kiln_fail(KILN_ERROR_MEMORY, "out of memory: could not get %lld bytes for a value",
                  (long long)bytes);
        return NULL;
    }
    *object = (kiln_object){LAST_OF_BOTH, kind, 0, release};
    __atomic_fetch_add(&live_objects, 1, __ATOMIC_RELAXED);
    return object;
}

void kiln_free_object(void *object)
{
    __atomic_fetch_sub(&live_objects, 1, __ATOMIC_RELAXED);
    kiln_os_deleter()(object);
}

void kiln_release_plain(void *self, int what)
{
    if (what & 2)
        kiln_free_object(self);
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

KILN_API void kiln_retain(const kiln_value *value)
{
    if (value != NULL && kiln_is_object(value))
        __atomic_fetch_add(&((kiln_object *)value->as.pointer)->counts, STRONG_ONE,
                           __ATOMIC_RELAXED);
}

/* Tuples and functions contain values, so releasing nested ones recursively could exhaust the
 * stack. An object that loses its last reference during another release is queued and released
 * afterwards. The queue is a list linked through `counts`, which are no longer needed. */
static void release_last(kiln_object *object)
{
    const int is_leaf = object->kind != KILN_TUPLE && object->kind != KILN_FUNCTION;
    kiln_thread *const t = is_leaf ? NULL : kiln_this_thread();
    if (t == NULL) {
        object->release(object, 3);
        return;
    }
    object->counts = (uint64_t)(uintptr_t)t->waiting;
    t->waiting = object;
    if (t->is_releasing)
        return;
    t->is_releasing = 1;
    while ((object = t->waiting) != NULL) {
        t->waiting = (kiln_object *)(uintptr_t)object->counts;
        object->release(object, 3);
    }
    t->is_releasing = 0;
}

KILN_API void kiln_release(kiln_value *value)
{
    if (value == NULL)
        return;
    const kiln_value old = *value;
    *value = (kiln_value){KILN_NONE, 0, {0}};
    if (!kiln_is_object(&old))
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
