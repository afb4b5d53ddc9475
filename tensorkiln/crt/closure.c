/* Function values: closures of outer functions, functions of this library, callbacks of the host,
 * and functions of other libraries that use tvm-ffi. */
#include "outer.h"

typedef struct closure {
    kiln_function_object head;
    const kiln_outer *outer;
    int64_t count;
    kiln_value captured[];
} closure;

typedef struct native {
    kiln_function_object head;
    const kiln_function *function;
    int as_tuple;
} native;

typedef struct host_function_object {
    kiln_function_object head;
    kiln_callback callback;
    void *context;
    void (*destroy)(void *context);
} host_function_object;

/* ---- calls in this library's convention: a code and a sentence ----------------------------- */

static int run_closure(void *self, const kiln_value *args, int32_t count, kiln_value *result)
{
    const closure *c = self;
    return kiln_invoke_outer(c->outer, c->captured, args, count, result);
}

static int run_native(void *self, const kiln_value *args, int32_t count, kiln_value *result)
{
    const native *n = self;
    const int code = kiln_prepare();
    return code == KILN_OK ? kiln_run_function(n->function, args, count, n->as_tuple, result) : code;
}

static int run_host(void *self, const kiln_value *args, int32_t count, kiln_value *result)
{
    const host_function_object *h = self;
    kiln_fail(KILN_ERROR_CALLBACK, "a function of the host failed without a message");
    return h->callback(h->context, args, count, result) == 0 ? KILN_OK : KILN_ERROR_CALLBACK;
}

/* ---- calls in tvm-ffi's convention: -1, and the error raised in tvm-ffi --------------------- */

static int call_closure(void *self, const kiln_value *args, int32_t count, kiln_value *result)
{
    return kiln_ffi_result(run_closure(self, args, count, result));
}

static int call_native(void *self, const kiln_value *args, int32_t count, kiln_value *result)
{
    return kiln_ffi_result(run_native(self, args, count, result));
}

static int call_host(void *self, const kiln_value *args, int32_t count, kiln_value *result)
{
    return kiln_ffi_result(run_host(self, args, count, result));
}

/* ---- making ------------------------------------------------------------------------------- */

static void release_closure(void *self, int what)
{
    closure *c = self;
    if (what & 1)
        for (int64_t i = 0; i < c->count; i++)
            kiln_release(&c->captured[i]);
    if (what & 2)
        kiln_free_object(self);
}

static void release_host(void *self, int what)
{
    host_function_object *h = self;
    if ((what & 1) && h->destroy != NULL)
        h->destroy(h->context);
    if (what & 2)
        kiln_free_object(self);
}

static void *function_object(size_t bytes, void (*release)(void *, int), kiln_safe_call call)
{
    kiln_function_object *object = kiln_new_object(bytes, KILN_FUNCTION, release);
    if (object != NULL) {
        object->call = call;
        object->reserved = NULL;
    }
    return object;
}

int kiln_make_closure(const kiln_outer *outer, const kiln_value *captured, int count,
                      kiln_value *made)
{
    closure *c = function_object(sizeof *c + (size_t)count * sizeof *captured, release_closure,
                                 call_closure);
    if (c == NULL)
        return KILN_ERROR_MEMORY;
    kiln_value whole = kiln_object_value(c);
    c->outer = outer;
    c->count = 0;
    for (int i = 0; i < count; i++) {
        const int code = kiln_take(&captured[i], &c->captured[i]);
        if (code != KILN_OK) {
            kiln_release(&whole);
            return code;
        }
        c->count = i + 1;
    }
    *made = whole;
    return KILN_OK;
}

int kiln_make_native(const kiln_function *function, int as_tuple, kiln_value *made)
{
    native *n = function_object(sizeof *n, kiln_release_plain, call_native);
    if (n == NULL)
        return KILN_ERROR_MEMORY;
    n->function = function;
    n->as_tuple = as_tuple;
    *made = kiln_object_value(n);
    return KILN_OK;
}

KILN_API int kiln_make_function(kiln_callback callback, void *context,
                                void (*destroy)(void *context), kiln_value *made)
{
    KILN_GIVEN(callback);
    KILN_GIVEN(made);
    host_function_object *h = function_object(sizeof *h, release_host, call_host);
    if (h == NULL)
        return KILN_ERROR_MEMORY;
    h->callback = callback;
    h->context = context;
    h->destroy = destroy;
    *made = kiln_object_value(h);
    return KILN_OK;
}

/* ---- calling ------------------------------------------------------------------------------ */

KILN_API int kiln_call_value(const kiln_value *function, const kiln_value *arguments, int count,
                             kiln_value *result)
{
    KILN_GIVEN(result);
    *result = (kiln_value){KILN_NONE, 0, {0}};
    KILN_GIVEN(function);
    if (count > 0)
        KILN_GIVEN(arguments);
    if (function->kind != KILN_FUNCTION)
        return kiln_fail(KILN_ERROR_ARGUMENT, "expected a function to call, received %s",
                         kiln_kind_name(function));
    if (function->as.pointer == NULL)
        return kiln_fail(KILN_ERROR_NULL, "%s: the function is a null pointer", __func__);
    kiln_function_object *object = function->as.pointer;
    kiln_safe_call run = object->call == call_closure  ? run_closure
                         : object->call == call_native ? run_native
                         : object->call == call_host   ? run_host
                                                       : NULL;
    if (run != NULL)
        return run(object, arguments, count, result);
    return object->call(object, arguments, count, result) == 0 ? KILN_OK : kiln_foreign_failure();
}
