/* The tvm-ffi calling convention, from its published C layouts, without its headers or library.
 *
 * Functions of tvm-ffi are looked up when they are needed, because this library may be loaded
 * before tvm-ffi is; a weak reference would then stay null. A dlsym() in a process with many
 * libraries takes as long as a small call, so the function that every call needs
 * (find_from_dlpack()) is cached once it is found. tvm-ffi is never unloaded. */
#include "crt.h"
#include <dlfcn.h>
#include <stdlib.h>

enum { FFI_NONE = 0, FFI_TENSOR_POINTER = 7, FFI_TENSOR_OBJECT = 70 };
#define OBJECT_HEADER 24 /* bytes before the DLTensor in a tensor object */

typedef struct managed_tensor { /* same layout as DLManagedTensor */
    kiln_tensor tensor;
    void *context;
    void (*deleter)(void *self);
} managed_tensor;

typedef struct byte_array {
    const char *data;
    size_t size;
} byte_array;

typedef int (*from_dlpack_fn)(managed_tensor *, int32_t, int32_t, void **);
typedef int (*get_global_fn)(const byte_array *, void **);
typedef int (*function_call_fn)(void *, kiln_value *, int32_t, kiln_value *);
typedef void (*set_error_fn)(const char *, const char *);
typedef int (*dec_ref_fn)(void *);

/* C99 has no conversion from dlsym()'s object pointer to a function pointer, hence the union. */
kiln_any_function kiln_host_symbol(const char *name)
{
    union {
        void *object;
        kiln_any_function function;
    } found;
    found.object = dlsym(RTLD_DEFAULT, name);
    return found.function;
}

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

/* Allocate a tensor for output p as one heap block: the struct, its shape, then the data at a
 * 64-byte boundary. Its deleter is free() of the C library, so the tensor may outlive this
 * library. */
static managed_tensor *new_tensor(const kiln_binding *b, int p)
{
    const kiln_param *param = &b->function->params[p];
    const size_t head = (sizeof(managed_tensor) + param->ndim * sizeof(int64_t) + 63) & ~(size_t)63;
    void *block = NULL;
    if (posix_memalign(&block, 64, head + (size_t)b->bytes[p]) != 0) {
        kiln_fail(KILN_ERROR_MEMORY, "%s: out of memory for output '%s'", b->function->name,
                  param->name);
        return NULL;
    }
    managed_tensor *managed = block;
    managed->tensor = (kiln_tensor){(char *)block + head, 1, 0, param->ndim, param->dtype,
                                    (int64_t *)(managed + 1), NULL, 0};
    managed->context = NULL;
    managed->deleter = free;
    for (int d = 0; d < param->ndim; d++)
        managed->tensor.shape[d] = kiln_param_dim(b, p, d);
    return managed;
}

static int missing_service(const char *name)
{
    return kiln_fail(KILN_ERROR_HOST,
                     "cannot return new tensors: tvm-ffi is not loaded in this process (no %s); "
                     "pass the outputs as arguments",
                     name);
}

/* Make one result of tensor objects: the object itself, or a tvm-ffi Array of several. */
static int pack_result(kiln_value *objects, int count, kiln_value *result)
{
    if (count == 1) {
        *result = objects[0];
        return KILN_OK;
    }
    const get_global_fn get_global = (get_global_fn)kiln_host_symbol("TVMFFIFunctionGetGlobal");
    const function_call_fn call = (function_call_fn)kiln_host_symbol("TVMFFIFunctionCall");
    const dec_ref_fn dec_ref = (dec_ref_fn)kiln_host_symbol("TVMFFIObjectDecRef");
    const byte_array name = {"ffi.Array", 9};
    void *make_array = NULL;
    int failed = 0;
    if (get_global == NULL || call == NULL || dec_ref == NULL ||
        get_global(&name, &make_array) != 0 || make_array == NULL)
        return missing_service("ffi.Array");
    failed = call(make_array, objects, count, result);
    for (int i = 0; i < count; i++)
        dec_ref(objects[i].as.pointer);
    dec_ref(make_array);
    return failed ? kiln_fail(KILN_ERROR_HOST, "tvm-ffi could not make an Array") : KILN_OK;
}

/* Allocate the outputs, bind them and run. made[] receives the outputs, also on failure, and the
 * caller frees them. */
static int run_into_new(kiln_binding *b, managed_tensor **made)
{
    const kiln_function *f = b->function;
    for (int p = f->n_inputs; p < f->n_params; p++) {
        managed_tensor *managed = new_tensor(b, p);
        if (managed == NULL)
            return KILN_ERROR_MEMORY;
        made[p - f->n_inputs] = managed;
        b->tensor[p] = &managed->tensor;
        b->data[p] = managed->tensor.data;
    }
    b->count = f->n_params;
    return kiln_run_anywhere(b);
}

static from_dlpack_fn find_from_dlpack(void)
{
    static from_dlpack_fn found;
    from_dlpack_fn function = __atomic_load_n(&found, __ATOMIC_RELAXED);
    if (function == NULL) {
        function = (from_dlpack_fn)kiln_host_symbol("TVMFFITensorFromDLPack");
        __atomic_store_n(&found, function, __ATOMIC_RELAXED);
    }
    return function;
}

static int return_new(kiln_binding *b, kiln_value *result)
{
    const from_dlpack_fn from_dlpack = find_from_dlpack();
    const int outputs = b->function->n_params - b->function->n_inputs;
    managed_tensor *made[KILN_MAX_PARAMS] = {NULL};
    kiln_value objects[KILN_MAX_PARAMS];
    if (from_dlpack == NULL)
        return missing_service("TVMFFITensorFromDLPack");
    int code = run_into_new(b, made), taken = 0;
    for (; code == KILN_OK && taken < outputs; taken++) {
        objects[taken] = (kiln_value){FFI_TENSOR_OBJECT, 0, {0}};
        if (from_dlpack(made[taken], 0, 0, &objects[taken].as.pointer) != 0) {
            code = kiln_fail(KILN_ERROR_HOST, "tvm-ffi refused output %d", taken);
            break;
        }
    }
    for (int i = taken; i < outputs; i++)
        free(made[i]);
    return code == KILN_OK ? pack_result(objects, outputs, result) : code;
}

int kiln_ffi_call(const kiln_function *function, const kiln_value *args, int32_t count,
                  kiln_value *result)
{
    kiln_value values[KILN_MAX_PARAMS];
    kiln_binding b;
    if (result == NULL || (args == NULL && count > 0))
        return kiln_raise(kiln_fail(KILN_ERROR_NULL, "%s: arguments or result are a null pointer",
                                    function->name));
    for (int p = 0; p < count && p < KILN_MAX_PARAMS; p++) {
        values[p] = args[p];
        if (values[p].kind == FFI_TENSOR_OBJECT && values[p].as.pointer != NULL) {
            values[p].kind = FFI_TENSOR_POINTER;
            values[p].as.pointer = (char *)values[p].as.pointer + OBJECT_HEADER;
        }
    }
    int code = kiln_bind(&b, function, values, count);
    if (code == KILN_OK && count < function->n_params) {
        code = return_new(&b, result);
    } else if (code == KILN_OK) {
        code = kiln_run_anywhere(&b);
        *result = (kiln_value){FFI_NONE, 0, {0}};
    }
    return code == KILN_OK ? 0 : kiln_raise(code);
}
