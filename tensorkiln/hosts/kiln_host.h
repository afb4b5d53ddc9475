/* kiln_host.h - loads libraries made by Tensorkiln into a program in C (C99) or C++.
 *
 * Nothing is linked but libdl, where dlopen() is not in libc. The headers lie in one folder;
 * `kiln compile --headers DIR` writes them.
 *
 *     kiln_host_error error;
 *     kiln_host_library *library;
 *     kiln_host_executor *executor;
 *     const kiln_host_function *f;
 *     if (kiln_host_open("net.so", &library, &error) != KILN_OK ||
 *         kiln_host_executor_create(library, &executor, &error) != KILN_OK ||
 *         kiln_host_find(library, "main", &f, &error) != KILN_OK ||
 *         kiln_host_run(executor, f, inputs, 1, outputs, 1, &error) != KILN_OK)
 *         fprintf(stderr, "%s\n", error.sentence);
 *
 * Functions return KILN_OK or a code, and then `error` (which may be NULL) holds that code and one
 * sentence: the same that Python, C++ and Rust hosts show for the same mistake.
 *
 * Threads: a library and an executor may be used by any number of threads at once; an executor is
 * quickest when used by one. Only closing and destroying need that nobody uses the thing any more.
 */
#ifndef KILN_HOST_H
#define KILN_HOST_H

#include "kiln_dlopen.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The functions of kiln.h: name, result, parameters. Every library has these, */
#define KILN_HOST_FUNCTIONS(X)                                                                    \
    X(abi_version, int, (void))                                                                   \
    X(open, int, (void))                                                                          \
    X(metadata, const char *, (void))                                                             \
    X(last_error, const char *, (void))                                                           \
    X(function_index, int, (const char *name))                                                    \
    X(executor_create, int, (kiln_executor **executor))                                           \
    X(executor_destroy, void, (kiln_executor *executor))                                          \
    X(executor_run, int,                                                                          \
      (kiln_executor *executor, int function, const kiln_tensor *const *tensors, int count))      \
    X(executor_workspace_bytes, int64_t, (const kiln_executor *executor))                         \
    X(executor_set_num_threads, void, (kiln_executor *executor, int threads))                     \
    X(output_shape, int,                                                                          \
      (int function, const kiln_tensor *const *inputs, int count, int output, int64_t *shape,     \
       int *ndim))                                                                                \
    X(call, int, (int function, const kiln_value *arguments, int count))                          \
    X(set_num_threads, void, (int threads))                                                       \
    X(get_num_threads, int, (void))                                                               \
    X(use_pool, void, (const kiln_pool_api *pool))

/* and these are NULL in a library without outer functions. */
#define KILN_HOST_VALUE_FUNCTIONS(X)                                                              \
    X(executor_invoke, int,                                                                       \
      (kiln_executor *executor, int function, const kiln_value *arguments, int count,             \
       kiln_value *result))                                                                       \
    X(call_value, int,                                                                            \
      (const kiln_value *function, const kiln_value *arguments, int count, kiln_value *result))   \
    X(make_tensor, int, (const int64_t *shape, int ndim, kiln_dtype dtype, kiln_value *made))     \
    X(take_dlpack, int, (void *managed, kiln_value *made))                                        \
    X(make_tuple, int, (const kiln_value *items, int count, kiln_value *made))                    \
    X(make_shape, int, (const int64_t *sizes, int count, kiln_value *made))                       \
    X(make_string, int, (const char *text, int64_t bytes, kiln_value *made))                      \
    X(make_function, int,                                                                         \
      (kiln_callback callback, void *context, void (*destroy)(void *context), kiln_value *made))  \
    X(register_function, int, (const char *name, const kiln_value *function))                     \
    X(set_last_error, void, (const char *sentence))                                               \
    X(tensor_of, const kiln_tensor *, (const kiln_value *value))                                  \
    X(string_of, const char *, (const kiln_value *value, int64_t *bytes))                         \
    X(shape_of, const int64_t *, (const kiln_value *value, int *count))                           \
    X(items_of, const kiln_value *, (const kiln_value *value, int *count))                        \
    X(retain, void, (const kiln_value *value))                                                    \
    X(release, void, (kiln_value *value))                                                         \
    X(live_objects, int64_t, (void))

/* and these in one that carries no artifacts for loaders. */
#define KILN_HOST_LOADER_FUNCTIONS(X)                                                             \
    X(register_loader, int, (const char *name, const kiln_loader *loader))                        \
    X(has_loader, int, (const char *name))                                                        \
    X(set_module, int,                                                                            \
      (const char *loader, const char *target_key, const kiln_loader *functions, void *module))   \
    X(module, void *, (const char *loader, const char *target_key))                               \
    X(call_import, int,                                                                           \
      (const char *loader, const char *target_key, const char *function,                          \
       const kiln_value *arguments, int32_t count, kiln_value *result))

#define KILN_HOST_MEMBER(name, result, parameters) result(*name) parameters;
typedef struct kiln_host_api {
    KILN_HOST_FUNCTIONS(KILN_HOST_MEMBER)
    KILN_HOST_VALUE_FUNCTIONS(KILN_HOST_MEMBER)
    KILN_HOST_LOADER_FUNCTIONS(KILN_HOST_MEMBER)
} kiln_host_api;
#undef KILN_HOST_MEMBER

typedef struct kiln_host_library {
    kiln_host_api api; /* all of kiln.h that this library has */
    kiln_host_description file; /* its path and functions */
    void *handle;               /* of dlopen() */
} kiln_host_library;

typedef struct kiln_host_executor {
    const kiln_host_library *library;
    kiln_executor *executor;
} kiln_host_executor;

/* A result of the library with its sentence. */
static inline int kiln_host_report(const kiln_host_library *library, int code,
                                   kiln_host_error *error)
{
    return code == KILN_OK ? code : kiln_host_fail(error, code, "%s", library->api.last_error());
}

/* ---- opening ---------------------------------------------------------------------------------- */

/* An exported symbol of the library, NULL when it has none of that name. */
static inline void *kiln_host_address(const kiln_host_library *library, const char *symbol)
{
    return dlsym(library->handle, symbol);
}

/* One function of the API, through memory: C has no conversion between its address and a void *. */
static inline int kiln_host_bind(kiln_host_library *library, const char *symbol, size_t member)
{
    void *const address = kiln_host_address(library, symbol);
    memcpy((char *)&library->api + member, &address, sizeof address);
    return address != NULL;
}

static inline int kiln_host_lacks(const kiln_host_library *library, const char *symbol,
                                  kiln_host_error *error)
{
    return kiln_host_fail(error, KILN_HOST_ERROR_LIBRARY,
                          "'%s' is no library of ours: it has no %s", library->file.path, symbol);
}

static inline int kiln_host_bind_all(kiln_host_library *library, kiln_host_error *error)
{
    static const struct {
        const char *symbol;
        size_t member;
    } rows[] = {
#define KILN_HOST_ROW(name, result, parameters) {"kiln_" #name, offsetof(kiln_host_api, name)},
        KILN_HOST_FUNCTIONS(KILN_HOST_ROW)
        {NULL, 0},
        KILN_HOST_VALUE_FUNCTIONS(KILN_HOST_ROW)
        KILN_HOST_LOADER_FUNCTIONS(KILN_HOST_ROW)
#undef KILN_HOST_ROW
    };
    const size_t count = sizeof rows / sizeof *rows;
    size_t i = 0;
    if (!kiln_host_bind(library, "kiln_abi_version", offsetof(kiln_host_api, abi_version)))
        return kiln_host_lacks(library, "kiln_abi_version", error);
    const int version = library->api.abi_version();
    if (version != KILN_ABI_VERSION)
        return kiln_host_fail(error, KILN_HOST_ERROR_VERSION,
                              "'%s' has library interface %d, this Tensorkiln knows %d",
                              library->file.path, version, KILN_ABI_VERSION);
    for (; rows[i].symbol != NULL; i++)
        if (!kiln_host_bind(library, rows[i].symbol, rows[i].member))
            return kiln_host_lacks(library, rows[i].symbol, error);
    for (i++; i < count; i++)
        kiln_host_bind(library, rows[i].symbol, rows[i].member);
    return kiln_host_report(library, library->api.open(), error);
}

/* Closes a library: its executors are destroyed, its values given back, and none of its functions
 * runs. Takes NULL, and one that was opened half. */
static inline void kiln_host_close(kiln_host_library *library)
{
    if (library == NULL)
        return;
    if (library->handle != NULL)
        dlclose(library->handle);
    kiln_host_forget(&library->file);
    free(library);
}

static inline int kiln_host_load(kiln_host_library *library, const char *path,
                                 kiln_host_error *error)
{
    const char *const prefix = strchr(path, '/') == NULL ? "./" : ""; /* never the search path */
    char *const copy = (char *)kiln_host_allocate(&library->file, strlen(path) + 3, 1);
    if (copy == NULL)
        return kiln_host_fail(error, KILN_ERROR_MEMORY, "out of memory");
    strcat(strcpy(copy, prefix), path);
    library->file.path = copy + strlen(prefix);
    int code = kiln_host_load_file(&library->file, copy, &library->handle, error);
    if (code != KILN_OK)
        return code;
    if ((code = kiln_host_bind_all(library, error)) != KILN_OK)
        return code;
    for (int i = 0; i < library->file.n_functions; i++) {
        kiln_host_function *f = &library->file.functions[i];
        f->index = library->api.function_index(f->name);
    }
    return KILN_OK;
}

/* Opens a library by path. `*library` is NULL after a failure. No code of the file runs before it is
 * known to be a library of ours, whole, and for this machine. */
static inline int kiln_host_open(const char *path, kiln_host_library **library,
                                 kiln_host_error *error)
{
    *library = NULL;
    kiln_host_library *made = (kiln_host_library *)calloc(1, sizeof *made);
    if (made == NULL)
        return kiln_host_fail(error, KILN_ERROR_MEMORY, "out of memory");
    const int code = kiln_host_load(made, path, error);
    if (code == KILN_OK)
        *library = made;
    else
        kiln_host_close(made);
    return code;
}

/* A function by name. The library owns the description. */
static inline int kiln_host_find(const kiln_host_library *library, const char *name,
                                 const kiln_host_function **function, kiln_host_error *error)
{
    for (int i = 0; i < library->file.n_functions; i++)
        if (strcmp((*function = &library->file.functions[i])->name, name) == 0)
            return KILN_OK;
    *function = NULL;
    if (library->api.function_index(name) >= 0)
        return kiln_host_no_library(library->file.path, "its metadata is damaged", error);
    return kiln_host_report(library, KILN_ERROR_NAME, error); /* the library has the words */
}

/* ---- running ---------------------------------------------------------------------------------- */

/* Row-major data of the caller's without gaps. `shape` is not copied. */
static inline kiln_tensor kiln_host_tensor(void *data, kiln_dtype dtype, int64_t *shape, int ndim)
{
    kiln_tensor made;
    made.data = data;
    made.device_type = 1;
    made.device_id = 0;
    made.ndim = ndim;
    made.dtype = dtype;
    made.shape = shape;
    made.strides = NULL;
    made.byte_offset = 0;
    return made;
}

static inline int kiln_host_executor_create(const kiln_host_library *library,
                                            kiln_host_executor **executor, kiln_host_error *error)
{
    *executor = NULL;
    kiln_host_executor *made = (kiln_host_executor *)calloc(1, sizeof *made);
    if (made == NULL)
        return kiln_host_fail(error, KILN_ERROR_MEMORY, "out of memory");
    made->library = library;
    const int code = library->api.executor_create(&made->executor);
    if (code == KILN_OK)
        *executor = made;
    else
        free(made);
    return kiln_host_report(library, code, error);
}

/* Takes NULL. */
static inline void kiln_host_executor_destroy(kiln_host_executor *executor)
{
    if (executor == NULL)
        return;
    executor->library->api.executor_destroy(executor->executor);
    free(executor);
}

/* A parameter in a few words: "x: float32 [n, 8]". */
static inline void kiln_host_show(const kiln_host_param *param, char *text, size_t size)
{
    const char *const open = param->ndim < 0 ? "" : param->ndim == 0 ? " []" : " [";
    int used = snprintf(text, size, "%s: %s%s", param->name, param->dtype, open);
    for (int d = 0; d < param->ndim && used >= 0 && (size_t)used < size; d++)
        used += snprintf(text + used, size - (size_t)used, "%s%s", param->dims[d].text,
                         d + 1 < param->ndim ? ", " : "]");
}

static inline int kiln_host_wrong_count(const char *function, const char *what,
                                        const kiln_host_param *params, int expected, int received,
                                        kiln_host_error *error)
{
    char names[768] = "none";
    for (int p = 0, used = 0; p < expected && used < (int)sizeof names - 4; p++) {
        used += snprintf(names + used, sizeof names - (size_t)used, "%s", p == 0 ? "" : ", ");
        kiln_host_show(&params[p], names + used, sizeof names - (size_t)used);
        used += (int)strlen(names + used);
    }
    return kiln_host_fail(error, KILN_ERROR_COUNT, "%s: expected %d %s%s (%s), received %d",
                          function, expected, what, expected == 1 ? "" : "s", names, received);
}

static inline int kiln_host_check_counts(const kiln_host_function *f, int n_inputs, int n_outputs,
                                         kiln_host_error *error)
{
    if (strcmp(f->kind, "graph") != 0)
        return KILN_OK; /* the library has the words */
    if (n_inputs != f->n_inputs)
        return kiln_host_wrong_count(f->name, "input", f->inputs, f->n_inputs, n_inputs, error);
    if (n_outputs != f->n_outputs)
        return kiln_host_wrong_count(f->name, "output", f->outputs, f->n_outputs, n_outputs, error);
    return KILN_OK;
}

/* Addresses of tensors, in `room` for 16 of them or in memory to be freed; NULL without any. */
static inline const kiln_tensor **kiln_host_pointers(const kiln_tensor **room,
                                                     const kiln_tensor *inputs, int n_inputs,
                                                     const kiln_tensor *outputs, int n_outputs)
{
    const size_t count = (size_t)n_inputs + (size_t)n_outputs;
    const kiln_tensor **made = room;
    if (count > 16)
        made = (const kiln_tensor **)malloc(count * sizeof *made);
    if (made == NULL)
        return NULL;
    for (int i = 0; i < n_inputs; i++)
        made[i] = &inputs[i];
    for (int i = 0; i < n_outputs; i++)
        made[n_inputs + i] = &outputs[i];
    return made;
}

/* Runs a function on tensors; outputs are filled in place. Any strides and addresses are legal, and
 * inputs and outputs may share memory. Of a tensor function, inputs are all parameters. */
static inline int kiln_host_run(const kiln_host_executor *executor, const kiln_host_function *f,
                                const kiln_tensor *inputs, int n_inputs,
                                const kiln_tensor *outputs, int n_outputs, kiln_host_error *error)
{
    const kiln_tensor *room[16];
    const kiln_host_api *api = &executor->library->api;
    int code = kiln_host_check_counts(f, n_inputs, n_outputs, error);
    if (code != KILN_OK)
        return code;
    const kiln_tensor **all = kiln_host_pointers(room, inputs, n_inputs, outputs, n_outputs);
    if (all == NULL)
        return kiln_host_fail(error, KILN_ERROR_MEMORY, "out of memory");
    code = api->executor_run(executor->executor, f->index, all, n_inputs + n_outputs);
    if (all != room)
        free((void *)all);
    return kiln_host_report(executor->library, code, error);
}

/* The shape of output number `output` for these inputs: *ndim sizes, in room for KILN_MAX_RANK. */
static inline int kiln_host_output_shape(const kiln_host_library *library,
                                         const kiln_host_function *f, const kiln_tensor *inputs,
                                         int n_inputs, int output, int64_t *shape, int *ndim,
                                         kiln_host_error *error)
{
    const kiln_tensor *room[16];
    int code = kiln_host_check_counts(f, n_inputs, f->n_outputs, error);
    if (code != KILN_OK)
        return code;
    const kiln_tensor **all = kiln_host_pointers(room, inputs, n_inputs, NULL, 0);
    if (all == NULL)
        return kiln_host_fail(error, KILN_ERROR_MEMORY, "out of memory");
    code = library->api.output_shape(f->index, all, n_inputs, output, shape, ndim);
    if (all != room)
        free((void *)all);
    return kiln_host_report(library, code, error);
}

/* ---- values ------------------------------------------------------------------------------------ */

static inline kiln_value kiln_host_value(int32_t kind)
{
    const kiln_value made = {kind, 0, {0}};
    return made;
}

static inline kiln_value kiln_host_int(int64_t number)
{
    kiln_value made = kiln_host_value(KILN_INT);
    made.as.integer = number;
    return made;
}

static inline kiln_value kiln_host_uint(uint64_t number)
{
    kiln_value made = kiln_host_int((int64_t)number);
    made.kind = number >> 63 != 0 ? KILN_UINT : KILN_INT;
    return made;
}

static inline kiln_value kiln_host_bool(int truth)
{
    kiln_value made = kiln_host_value(KILN_BOOL);
    made.as.integer = truth != 0;
    return made;
}

static inline kiln_value kiln_host_float(double number)
{
    kiln_value made = kiln_host_value(KILN_FLOAT);
    made.as.real = number;
    return made;
}

/* A tensor that stays the caller's, for the time of a call. */
static inline kiln_value kiln_host_lend(const kiln_tensor *tensor)
{
    kiln_value made = kiln_host_value(KILN_TENSOR);
    memcpy(&made.as.pointer, &tensor, sizeof tensor); /* which a call does not write to */
    return made;
}

/* Row-major without gaps. */
static inline int kiln_host_is_packed(const kiln_tensor *tensor)
{
    int64_t step = 1;
    int fits = 1;
    if (tensor->strides == NULL || tensor->ndim < 0)
        return 1;
    for (int d = tensor->ndim - 1; d >= 0; d--) {
        const int64_t size = tensor->shape[d];
        if (size == 0)
            return 1; /* there is nothing to have gaps */
        fits &= size == 1 || tensor->strides[d] == step;
        fits &= size <= INT64_MAX / step; /* more than there can be lie on one another */
        step = fits && size > 0 ? step * size : 1;
    }
    return fits;
}

/* Calls a tensor function with tensors and numbers in the order of its parameters. */
static inline int kiln_host_call(const kiln_host_library *library, const kiln_host_function *f,
                                 const kiln_value *arguments, int count, kiln_host_error *error)
{
    return kiln_host_report(library, library->api.call(f->index, arguments, count), error);
}

static inline int kiln_host_check_values(const kiln_host_library *library, kiln_host_error *error)
{
    return library->api.executor_invoke != NULL
               ? KILN_OK
               : kiln_host_fail(error, KILN_ERROR_NAME,
                                "'%s' has no outer functions, so it takes no values",
                                library->file.path);
}

/* Calls an outer function, or any other of a library that has one. Whoever asks gives `*result` back
 * by library->api.release(); values for arguments come from the functions above, or api.make_... */
static inline int kiln_host_invoke(const kiln_host_executor *executor, const kiln_host_function *f,
                                   const kiln_value *arguments, int count, kiln_value *result,
                                   kiln_host_error *error)
{
    const kiln_host_api *api = &executor->library->api;
    int code = kiln_host_check_values(executor->library, error);
    *result = kiln_host_value(KILN_NONE);
    if (code != KILN_OK)
        return code;
    if (strcmp(f->kind, "outer") == 0 && count != f->n_inputs)
        return kiln_host_wrong_count(f->name, "input", f->inputs, f->n_inputs, count, error);
    code = api->executor_invoke(executor->executor, f->index, arguments, count, result);
    return kiln_host_report(executor->library, code, error);
}

/* Gives the library's call_packed a function of the host by name; NULL takes the name away, which
 * must be done before closing for `destroy` to run. */
static inline int kiln_host_register_function(const kiln_host_library *library, const char *name,
                                              kiln_callback callback, void *context,
                                              void (*destroy)(void *context), kiln_host_error *error)
{
    kiln_value made = kiln_host_value(KILN_NONE);
    int code = kiln_host_check_values(library, error);
    if (code != KILN_OK)
        return code;
    if (callback != NULL)
        code = library->api.make_function(callback, context, destroy, &made);
    if (code == KILN_OK)
        code = library->api.register_function(name, callback == NULL ? NULL : &made);
    kiln_host_report(library, code, error); /* before `destroy` may fail at something else */
    library->api.release(&made);
    return code;
}

static inline int kiln_host_check_loaders(const kiln_host_library *library, kiln_host_error *error)
{
    return library->api.register_loader != NULL
               ? KILN_OK
               : kiln_host_fail(error, KILN_ERROR_NAME, "'%s' carries no artifacts for loaders",
                                library->file.path);
}

/* Makes a loader known to the library; NULL takes it away. */
static inline int kiln_host_register_loader(const kiln_host_library *library, const char *name,
                                            const kiln_loader *loader, kiln_host_error *error)
{
    const int code = kiln_host_check_loaders(library, error);
    return code != KILN_OK
               ? code
               : kiln_host_report(library, library->api.register_loader(name, loader), error);
}

#ifdef __cplusplus
}
#endif
#endif
