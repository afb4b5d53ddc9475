/* The tvm-ffi calling convention, from its published C layouts, without its headers or library.
 *
 * Functions of tvm-ffi are looked up when they are needed, because this library may be loaded
 * before tvm-ffi is; a weak reference would then stay null. A dlsym() in a process with many
 * libraries takes as long as a small call, so the function that every call needs
 * (find_from_dlpack()) is cached once it is found. tvm-ffi is never unloaded. */
#include "os.h"
#include "outer.h"

typedef int (*from_dlpack_fn)(kiln_managed_tensor *, int32_t, int32_t, void **);
typedef int (*function_call_fn)(void *, kiln_value *, int32_t, kiln_value *);

/* Allocate a tensor for output p as one heap block: the struct, its shape, then the data at a
 * 64-byte boundary. Its deleter is a function of the C library, so the tensor may outlive
 * this library. */
static kiln_managed_tensor *new_tensor(const kiln_binding *b, int p)
{
    const kiln_param *param = &b->function->params[p];
    const size_t head = (sizeof(kiln_managed_tensor) + param->ndim * sizeof(int64_t) + 63) & ~(size_t)63;
    void *const block = kiln_os_allocate(head + (size_t)b->bytes[p], 64);
    if (block == NULL) {
        kiln_fail(KILN_ERROR_MEMORY, "%s: out of memory for output '%s'", b->function->name,
                  param->name);
        return NULL;
    }
    kiln_managed_tensor *managed = block;
    managed->tensor = (kiln_tensor){(char *)block + head, 1, 0, param->ndim, param->dtype,
                                    (int64_t *)(managed + 1), NULL, 0};
    managed->context = NULL;
    managed->deleter = kiln_os_deleter();
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
    const function_call_fn call = (function_call_fn)kiln_host_symbol("TVMFFIFunctionCall");
    kiln_value make_array = {KILN_NONE, 0, {0}};
    kiln_find_foreign("ffi.Array", &make_array);
    if (call == NULL || make_array.kind == KILN_NONE)
        return missing_service("ffi.Array");
    const int failed = call(make_array.as.pointer, objects, count, result);
    for (int i = 0; i < count; i++)
        kiln_release(&objects[i]);
    kiln_release(&make_array);
    return failed ? kiln_fail(KILN_ERROR_HOST, "tvm-ffi could not make an Array") : KILN_OK;
}

/* Allocate the outputs, bind them and run. made[] receives the outputs, also on failure, and the
 * caller frees them. */
static int run_into_new(kiln_binding *b, kiln_managed_tensor **made)
{
    const kiln_function *f = b->function;
    for (int p = f->n_inputs; p < f->n_params; p++) {
        kiln_managed_tensor *managed = new_tensor(b, p);
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
    kiln_managed_tensor *made[KILN_MAX_PARAMS] = {NULL};
    kiln_value objects[KILN_MAX_PARAMS];
    if (from_dlpack == NULL)
        return missing_service("TVMFFITensorFromDLPack");
    int code = run_into_new(b, made), taken = 0;
    for (; code == KILN_OK && taken < outputs; taken++) {
        objects[taken] = (kiln_value){KILN_TENSOR_OBJECT, 0, {0}};
        if (from_dlpack(made[taken], 0, 0, &objects[taken].as.pointer) != 0) {
            code = kiln_fail(KILN_ERROR_HOST, "tvm-ffi refused output %d", taken);
            break;
        }
    }
    for (int i = taken; i < outputs; i++)
        kiln_os_deleter()(made[i]);
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
    kiln_views(values, args, count);
    int code = kiln_bind(&b, function, values, count);
#if defined(KILN_DEVICES)
    b.asks_host = 1;
#endif
    if (code == KILN_OK && count < function->n_params) {
        code = return_new(&b, result);
    } else if (code == KILN_OK) {
        code = kiln_run_anywhere(&b);
        *result = (kiln_value){KILN_NONE, 0, {0}};
    }
    return code == KILN_OK ? 0 : kiln_raise(code);
}
