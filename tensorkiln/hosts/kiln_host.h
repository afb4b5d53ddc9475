/* kiln_host.h - loads libraries compiled by Tensorkiln into a program in C (C99) or C++.
 *
 * Header-only: link with -ldl if dlopen() is not in the C library. `kiln compile --headers DIR`
 * writes this header and those that it includes.
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
 * Errors: functions that return int return KILN_OK, or a code of enum kiln_code or kiln_host_code;
 * *error then holds that code and one sentence, the same that Python, C++ and Rust hosts give for
 * the same mistake. After a success *error means nothing; `error` may be NULL. Any function may
 * return KILN_ERROR_MEMORY; comments list the other codes. Pointers other than `error` must not be
 * NULL unless the comment allows it.
 *
 * Threads: a library or an executor may be used by any number of threads at once; several threads
 * in one executor are slower than each in its own (kiln.h). Only kiln_host_close() and
 * kiln_host_executor_destroy() require that no other thread uses the library or the executor.
 */
#ifndef KILN_HOST_H
#define KILN_HOST_H

#include "kiln_dlopen.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The functions of kiln.h: name, result, parameters. These are exported by every library: */
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

/* These are NULL in a library of an earlier version: */
#define KILN_HOST_NEWER_FUNCTIONS(X)                                                              \
    X(check_function, int,                                                                        \
      (const char *name, int kind, const char *const *parameters, int inputs, int outputs))       \
    X(use_weights, int, (int file))

/* These are NULL in a library without outer functions: */
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

/* These are NULL in a library without artifacts for loaders: */
#define KILN_HOST_LOADER_FUNCTIONS(X)                                                             \
    X(register_loader, int, (const char *name, const kiln_loader *loader))                        \
    X(has_loader, int, (const char *name))                                                        \
    X(set_module, int,                                                                            \
      (const char *loader, const char *target_key, const kiln_loader *functions, void *module))   \
    X(module, void *, (const char *loader, const char *target_key))                               \
    X(call_import, int,                                                                           \
      (const char *loader, const char *target_key, const char *function,                          \
       const kiln_value *arguments, int32_t count, kiln_value *result))

/* Only libraries with devices export these; other members are NULL. */
#define KILN_HOST_DEVICE_FUNCTIONS(X)                                                             \
    X(executor_set_device, int, (kiln_executor *executor, int device, int index, void *context))  \
    X(executor_set_stream, int, (kiln_executor *executor, int device, void *stream))              \
    X(executor_run_in_stream, int,                                                                \
      (kiln_executor *executor, int function, const kiln_tensor *const *tensors, int count,       \
       void *stream))                                                                             \
    X(executor_set_graphs, int, (kiln_executor *executor, int on))                                \
    X(executor_graph_count, int64_t, (const kiln_executor *executor, int what))

#define KILN_HOST_MEMBER(name, result, parameters) result(*name) parameters;
/* Pointers to those functions, without the prefix: api.call is kiln_call(). */
typedef struct kiln_host_api {
    KILN_HOST_FUNCTIONS(KILN_HOST_MEMBER)
    KILN_HOST_NEWER_FUNCTIONS(KILN_HOST_MEMBER)
    KILN_HOST_VALUE_FUNCTIONS(KILN_HOST_MEMBER)
    KILN_HOST_LOADER_FUNCTIONS(KILN_HOST_MEMBER)
    KILN_HOST_DEVICE_FUNCTIONS(KILN_HOST_MEMBER)
} kiln_host_api;
#undef KILN_HOST_MEMBER

/* A loaded library. Read-only for the program. */
typedef struct kiln_host_library {
    kiln_host_api api; /* the functions of kiln.h that this library exports */
    kiln_host_description file; /* its path and functions */
    void *handle;               /* of dlopen() */
} kiln_host_library;

/* An executor of a library, which must stay open as long. */
typedef struct kiln_host_executor {
    const kiln_host_library *library;
    kiln_executor *executor;
} kiln_host_executor;

/* Return `code`, the result of a function of the library; copy the library's sentence to *error if
 * it is a failure. Call it in the thread that got the code. */
static inline int kiln_host_report(const kiln_host_library *library, int code,
                                   kiln_host_error *error)
{
    return code == KILN_OK ? code : kiln_host_fail(error, code, "%s", library->api.last_error());
}

/* ---- opening ------------------------------------------------------------------------------- */

/* Return the address of a symbol that the library exports, or NULL if it does not. */
static inline void *kiln_host_address(const kiln_host_library *library, const char *symbol)
{
    return dlsym(library->handle, symbol);
}

/* Set one function pointer of the API, `member` bytes into it, or NULL; return whether it was
 * found. By memcpy(), as C has no conversion from void * to a function pointer. */
static inline int kiln_host_bind(kiln_host_library *library, const char *symbol, size_t member)
{
    void *const address = kiln_host_address(library, symbol);
    memcpy((char *)&library->api + member, &address, sizeof address);
    return address != NULL;
}

/* The error for a library that does not export a function which every library has. */
static inline int kiln_host_lacks(const kiln_host_library *library, const char *symbol,
                                  kiln_host_error *error)
{
    return kiln_host_fail(error, KILN_HOST_ERROR_LIBRARY,
                          "'%s' is not a Tensorkiln library: it has no %s", library->file.path,
                          symbol);
}

/* Set all function pointers of a loaded library, check its version and whether it can run. Codes:
 * KILN_HOST_ERROR_LIBRARY, KILN_HOST_ERROR_VERSION, those of kiln_open(). */
static inline int kiln_host_bind_all(kiln_host_library *library, kiln_host_error *error)
{
    static const struct {
        const char *symbol;
        size_t member;
    } rows[] = {
#define KILN_HOST_ROW(name, result, parameters) {"kiln_" #name, offsetof(kiln_host_api, name)},
        KILN_HOST_FUNCTIONS(KILN_HOST_ROW)
        {NULL, 0},
        KILN_HOST_NEWER_FUNCTIONS(KILN_HOST_ROW)
        KILN_HOST_VALUE_FUNCTIONS(KILN_HOST_ROW)
        KILN_HOST_LOADER_FUNCTIONS(KILN_HOST_ROW)
        KILN_HOST_DEVICE_FUNCTIONS(KILN_HOST_ROW)
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

/* Close a library and free its description. Before, destroy its executors, release its values, and
 * end all calls. Takes NULL, and a library whose opening failed halfway. */
static inline void kiln_host_close(kiln_host_library *library)
{
    if (library == NULL)
        return;
    if (library->handle != NULL)
        dlclose(library->handle);
    kiln_host_forget(&library->file);
    free(library);
}

/* The kind of a function by its name in the metadata; -1 for another word. */
static inline int kiln_host_kind(const char *word)
{
    static const char *const words[] = {"graph", "tensor", "outer"};
    for (int i = 0; i < 3; i++)
        if (strcmp(words[i], word) == 0)
            return i;
    return -1;
}

/* Look up a function of the metadata in the code, and compare what both say of it. Code:
 * KILN_HOST_ERROR_LIBRARY. */
static inline int kiln_host_match(kiln_host_library *library, kiln_host_function *f,
                                  kiln_host_error *error)
{
    const int count = f->n_inputs + f->n_outputs;
    int code = (f->index = library->api.function_index(f->name)) < 0 ? KILN_ERROR_NAME : KILN_OK;
    if (code == KILN_OK && library->api.check_function != NULL) {
        const char **const names =
            (const char **)kiln_host_allocate(&library->file, (size_t)count + 1, sizeof *names);
        if (names == NULL)
            return kiln_host_fail(error, KILN_ERROR_MEMORY, "out of memory");
        for (int p = 0; p < count; p++)
            names[p] = p < f->n_inputs ? f->inputs[p].name : f->outputs[p - f->n_inputs].name;
        code = library->api.check_function(f->name, kiln_host_kind(f->kind), names, f->n_inputs,
                                           f->n_outputs);
    }
    return code == KILN_OK
               ? code
               : kiln_host_fail(error, KILN_HOST_ERROR_LIBRARY,
                                "'%s' is not a Tensorkiln library: its metadata is damaged: %s",
                                library->file.path, library->api.last_error());
}

/* Load the file at `path` into *library, which is all zeros; on failure kiln_host_close() cleans
 * up. */
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
    code = kiln_host_bind_all(library, error);
    for (int i = 0; code == KILN_OK && i < library->file.n_functions; i++)
        code = kiln_host_match(library, &library->file.functions[i], error);
    return code;
}

/* Open the library at `path`; a path without '/' is looked up in the working directory, not in the
 * search path of dlopen(). On success the caller frees *library with kiln_host_close(); after a
 * failure it is NULL. No code of the file runs before its metadata and machine have been checked.
 * Opening a library twice gives two independent kiln_host_library of the same loaded code. Codes:
 * those of enum kiln_host_code, and of kiln_open(). */
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

/* Find a function by name. *function is the library's, valid until it is closed; NULL after a
 * failure. Codes: KILN_ERROR_NAME; KILN_HOST_ERROR_LIBRARY if the metadata does not describe the
 * function. */
static inline int kiln_host_find(const kiln_host_library *library, const char *name,
                                 const kiln_host_function **function, kiln_host_error *error)
{
    for (int i = 0; i < library->file.n_functions; i++)
        if (strcmp((*function = &library->file.functions[i])->name, name) == 0)
            return KILN_OK;
    *function = NULL;
    if (library->api.function_index(name) >= 0)
        return kiln_host_no_library(library->file.path, "its metadata is damaged", error);
    return kiln_host_report(library, KILN_ERROR_NAME, error); /* with the library's sentence */
}

/* ---- running ------------------------------------------------------------------------------- */

/* Describe contiguous row-major data in CPU memory. Data and shape stay the caller's and must live
 * as long as the tensor is used. */
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

/* Create an executor, which the caller frees with kiln_host_executor_destroy() before it closes the
 * library. *executor is NULL after a failure. Codes: those of kiln_open(). */
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

/* Choose and open the device of this system, by its index among those of its kind, that runs code of
 * device `device` for calls in the executor; `context` may be NULL. Codes: those of
 * kiln_executor_set_device(); KILN_ERROR_ARGUMENT also for a library without devices. */
static inline int kiln_host_set_device(const kiln_host_executor *executor, int device, int index,
                                       void *context, kiln_host_error *error)
{
    const kiln_host_library *library = executor->library;
    if (library->api.executor_set_device == NULL)
        return kiln_host_fail(error, KILN_ERROR_ARGUMENT,
                              "'%s' has no devices, there is no number %d", library->file.path,
                              device);
    const int code = library->api.executor_set_device(executor->executor, device, index, context);
    return kiln_host_report(library, code, error);
}

/* Fail if a library has no devices: "'net.so' has no devices, <what>". */
static inline int kiln_host_check_devices(const kiln_host_library *library, const char *what,
                                          kiln_host_error *error)
{
    if (library->api.executor_set_device != NULL)
        return KILN_OK;
    return kiln_host_fail(error, KILN_ERROR_ARGUMENT, "'%s' has no devices, %s", library->file.path,
                          what);
}

/* Let calls in the executor queue what they do on device number `device` in a stream of the
 * program's; NULL: in one of the library's. Codes: those of kiln_executor_set_stream();
 * KILN_ERROR_ARGUMENT also for a library without devices. */
static inline int kiln_host_set_stream(const kiln_host_executor *executor, int device, void *stream,
                                       kiln_host_error *error)
{
    const kiln_host_library *library = executor->library;
    int code = kiln_host_check_devices(library, "so it takes no stream", error);
    if (code != KILN_OK)
        return code;
    code = library->api.executor_set_stream(executor->executor, device, stream);
    return kiln_host_report(library, code, error);
}

/* Let runs in the executor be CUDA graphs, or let them not. Codes: those of
 * kiln_executor_set_graphs(); KILN_ERROR_ARGUMENT also for a library without devices. */
static inline int kiln_host_set_graphs(const kiln_host_executor *executor, int on,
                                       kiln_host_error *error)
{
    const kiln_host_library *library = executor->library;
    int code = kiln_host_check_devices(library, "so its runs cannot be graphs", error);
    if (code != KILN_OK)
        return code;
    code = library->api.executor_set_graphs(executor->executor, on);
    return kiln_host_report(library, code, error);
}

/* A count of enum kiln_graph_count; 0 in a library without devices. */
static inline int64_t kiln_host_graph_count(const kiln_host_executor *executor, int what)
{
    const kiln_host_api *api = &executor->library->api;
    return api->executor_graph_count == NULL ? 0 : api->executor_graph_count(executor->executor, what);
}

/* Free an executor, in which no call is running. Takes NULL. */
static inline void kiln_host_executor_destroy(kiln_host_executor *executor)
{
    if (executor == NULL)
        return;
    executor->library->api.executor_destroy(executor->executor);
    free(executor);
}

/* Write a parameter as text, such as "x: float32 [n, 8]", truncated to `size` bytes with its
 * NUL. */
static inline void kiln_host_show(const kiln_host_param *param, char *text, size_t size)
{
    const char *const open = param->ndim < 0 ? "" : param->ndim == 0 ? " []" : " [";
    int used = snprintf(text, size, "%s: %s%s", param->name, param->dtype, open);
    for (int d = 0; d < param->ndim && used >= 0 && (size_t)used < size; d++)
        used += snprintf(text + used, size - (size_t)used, "%s%s", param->dims[d].text,
                         d + 1 < param->ndim ? ", " : "]");
}

/* The error for a wrong number of inputs or outputs, with the parameters that are expected. */
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

/* Check the numbers of inputs and outputs of a graph function: KILN_ERROR_COUNT. */
static inline int kiln_host_check_counts(const kiln_host_function *f, int n_inputs, int n_outputs,
                                         kiln_host_error *error)
{
    if (strcmp(f->kind, "graph") != 0)
        return KILN_OK; /* the library checks and reports it */
    if (n_inputs != f->n_inputs)
        return kiln_host_wrong_count(f->name, "input", f->inputs, f->n_inputs, n_inputs, error);
    if (n_outputs != f->n_outputs)
        return kiln_host_wrong_count(f->name, "output", f->outputs, f->n_outputs, n_outputs, error);
    return KILN_OK;
}

/* Return an array of pointers to all tensors: `room` if they are at most 16, otherwise allocated,
 * for the caller to free; NULL if memory is short. */
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

/* Run a graph or tensor function; `f` is from kiln_host_find() of the same library. Outputs are
 * written in place; tensors stay the caller's. Any strides and alignment are allowed, and tensors
 * may overlap. For a tensor function, `inputs` followed by `outputs` are its parameters, in order;
 * split them as you like. Codes: those of kiln_executor_run(). */
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

/* Compute the shape of output number `output` of a graph function for these inputs: write *ndim and
 * shape[0..*ndim-1]; shape has room for KILN_MAX_RANK sizes. Codes: those of
 * kiln_output_shape(). */
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

/* ---- values: arguments of kiln_host_call() and kiln_host_invoke() --------------------------- */

/* A value of this kind with zeros; KILN_NONE is complete. */
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

/* KILN_INT below 2^63, otherwise KILN_UINT. */
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

/* A view of a tensor, which stays the caller's and must live until the call returns. */
static inline kiln_value kiln_host_lend(const kiln_tensor *tensor)
{
    kiln_value made = kiln_host_value(KILN_TENSOR);
    memcpy(&made.as.pointer, &tensor, sizeof tensor); /* drops const: no call writes to *tensor */
    return made;
}

/* Whether a tensor is contiguous and row-major. Its sizes are >= 0. */
static inline int kiln_host_is_packed(const kiln_tensor *tensor)
{
    int64_t step = 1;
    int fits = 1;
    if (tensor->strides == NULL || tensor->ndim < 0)
        return 1;
    for (int d = tensor->ndim - 1; d >= 0; d--) {
        const int64_t size = tensor->shape[d];
        if (size == 0)
            return 1; /* empty: strides do not matter */
        fits &= size == 1 || tensor->strides[d] == step;
        fits &= size <= INT64_MAX / step; /* so many elements must overlap */
        step = fits && size > 0 ? step * size : 1;
    }
    return fits;
}

/* Call a tensor function (or a graph function, inputs before outputs) with tensors and numbers in
 * the order of its parameters. Codes: those of kiln_call(). */
static inline int kiln_host_call(const kiln_host_library *library, const kiln_host_function *f,
                                 const kiln_value *arguments, int count, kiln_host_error *error)
{
    return kiln_host_report(library, library->api.call(f->index, arguments, count), error);
}

/* KILN_ERROR_NAME unless the library exports the functions for values. */
static inline int kiln_host_check_values(const kiln_host_library *library, kiln_host_error *error)
{
    return library->api.executor_invoke != NULL
               ? KILN_OK
               : kiln_host_fail(error, KILN_ERROR_NAME,
                                "'%s' has no outer functions, so it takes no values",
                                library->file.path);
}

/* Call any function of a library that has an outer function, with values: from the functions above,
 * which need no release, or from api.make_..., which stay the caller's to release. The caller owns
 * *result and releases it with api.release(); it is KILN_NONE after a failure. Codes: those of
 * kiln_executor_invoke(); KILN_ERROR_NAME for a library without outer functions. */
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

/* Register a callback under a name for the library's call_packed; callback NULL removes the name.
 * destroy(context) runs when the name is replaced or removed and no call uses the callback any
 * more, but not for a name that is still registered when the library is closed. After
 * KILN_ERROR_MEMORY it may have run already. Codes: as
 * kiln_register_function(); KILN_ERROR_NAME for a library without outer functions. */
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
    kiln_host_report(library, code, error); /* before `destroy` can change the sentence */
    library->api.release(&made);
    return code;
}

/* KILN_ERROR_NAME unless the library exports the functions for loaders. */
static inline int kiln_host_check_loaders(const kiln_host_library *library, kiln_host_error *error)
{
    return library->api.register_loader != NULL
               ? KILN_OK
               : kiln_host_fail(error, KILN_ERROR_NAME, "'%s' carries no artifacts for loaders",
                                library->file.path);
}

/* Register a loader with the library, in place of one of the same name; NULL removes it. Ownership
 * and codes as for kiln_register_loader(); KILN_ERROR_NAME for a library without artifacts for
 * loaders. */
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
