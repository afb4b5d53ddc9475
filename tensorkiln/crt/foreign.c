/* Errors and functions of tvm-ffi, if the process has loaded it. */
#include "outer.h"
#include "os.h"

typedef struct error_object { /* the first fields of tvm-ffi's error object */
    kiln_object head;
    kiln_bytes kind;
    kiln_bytes message;
} error_object;

typedef void (*set_error_fn)(const char *, const char *);
typedef void (*move_error_fn)(void **);
typedef void (*put_error_fn)(void *);
typedef int (*find_global_fn)(const kiln_bytes *, void **);

/* C99 has no conversion from an object pointer to a function pointer, hence the union. */
kiln_any_function kiln_host_symbol(const char *name)
{
    union {
        void *object;
        kiln_any_function function;
    } found;
    found.object = kiln_os_symbol(NULL, name);
    return found.function;
}

#if defined(KILN_DEVICES)
void *kiln_host_stream(int32_t device_type, int32_t index)
{
    typedef void *(*get_stream_fn)(int32_t, int32_t);
    static get_stream_fn found; /* tvm-ffi is never unloaded */
    get_stream_fn function = __atomic_load_n(&found, __ATOMIC_RELAXED);
    if (function == NULL) {
        function = (get_stream_fn)kiln_host_symbol("TVMFFIEnvGetStream");
        __atomic_store_n(&found, function, __ATOMIC_RELAXED);
    }
    return function == NULL ? NULL : function(device_type, index);
}
#endif

static const char *error_kind(int code)
{
    switch (code) {
    case KILN_ERROR_COUNT:
    case KILN_ERROR_DTYPE:
    case KILN_ERROR_ARGUMENT:
        return "TypeError";
    case KILN_ERROR_MEMORY:
        return "MemoryError";
    case KILN_ERROR_CPU:
    case KILN_ERROR_HOST:
    case KILN_ERROR_CALLBACK:
        return "RuntimeError";
    case KILN_ERROR_DEPTH:
        return "RecursionError";
    case KILN_ERROR_ASSERTION:
        return "AssertionError";
#if defined(KILN_DEVICES)
    case KILN_ERROR_DEVICE_MEMORY:
        return "MemoryError";
    case KILN_ERROR_DRIVER:
    case KILN_ERROR_NO_DEVICE:
    case KILN_ERROR_CAPABILITY:
    case KILN_ERROR_BUILD:
    case KILN_ERROR_LAUNCH:
    case KILN_ERROR_EXECUTION:
        return "RuntimeError";
#endif
    default:
        return "ValueError";
    }
}

int kiln_raise(int code)
{
    const set_error_fn set_error = (set_error_fn)kiln_host_symbol("TVMFFIErrorSetRaisedFromCStr");
    if (set_error != NULL)
        set_error(error_kind(code), kiln_last_error());
    return -1;
}

static void describe(const error_object *error)
{
    kiln_fail(KILN_ERROR_CALLBACK, "%.*s: %.*s", (int)error->kind.size, error->kind.data,
              (int)error->message.size, error->message.data);
}

int kiln_foreign_failure(void)
{
    const move_error_fn move_error = (move_error_fn)kiln_host_symbol("TVMFFIErrorMoveFromRaised");
    const put_error_fn put_error = (put_error_fn)kiln_host_symbol("TVMFFIErrorSetRaised");
    void *error = NULL;
    kiln_fail(KILN_ERROR_CALLBACK, "a function from outside this library failed");
    if (move_error != NULL && put_error != NULL)
        move_error(&error);
    if (error != NULL) {
        kiln_value owned = kiln_object_value(error);
        describe(error);
        put_error(error);
        kiln_release(&owned);
        kiln_thread *const t = kiln_this_thread();
        if (t != NULL)
            t->is_raised = 1;
    }
    return KILN_ERROR_CALLBACK;
}

int kiln_ffi_result(int code)
{
    kiln_thread *const t = kiln_this_thread();
    const int there = t != NULL && t->is_raised;
    if (there)
        t->is_raised = 0;
    if (code == KILN_OK)
        return 0;
    return code == KILN_ERROR_CALLBACK && there ? -1 : kiln_raise(code);
}

void kiln_find_foreign(const char *name, kiln_value *found)
{
    const find_global_fn get_global = (find_global_fn)kiln_host_symbol("TVMFFIFunctionGetGlobal");
    void *function = NULL;
    kiln_bytes text = {name, 0};
    while (name[text.size] != 0)
        text.size++;
    if (get_global != NULL && get_global(&text, &function) == 0 && function != NULL)
        *found = kiln_object_value(function);
}
