/* A call: bind the arguments, copy tensors that kernels cannot use in place, reserve the workspace,
 * run, copy outputs back. */
#include "crt.h"
#include <stdlib.h>

struct kiln_executor {
    kiln_workspace workspace;
    int threads;
    int busy; /* a thread is using `workspace`; other threads borrow one */
    kiln_storage_set *sets;
#if defined(KILN_DEVICES)
    kiln_devices devices;
    int64_t graph_counts[KILN_GRAPH_COUNTS];
#endif
};

#define ALIGNED(n) (((n) + 63) & ~(int64_t)63) /* cannot overflow for n <= KILN_MOST_BYTES */

static int overlap(const char *a, int64_t a_bytes, const char *b, int64_t b_bytes)
{
    const uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return x < y ? y - x < (uint64_t)a_bytes && b_bytes > 0
                 : x - y < (uint64_t)b_bytes && a_bytes > 0;
}

/* Whether a written parameter overlaps another one. Kernels assume that it does not, and may write
 * an output before all inputs are read, so such a parameter is computed in a copy, and copied back
 * in the order of the parameters. Non-contiguous tensors are always copied and do not reach this
 * function. */
static int shares_memory(const kiln_binding *b, int output)
{
    const kiln_function *f = b->function;
    if (!(f->params[output].role & KILN_OUT))
        return 0;
    /* Of two overlapping outputs of a graph function, copying the later one is enough. */
    const int others = f->kind == KILN_GRAPH ? output : b->count;
    for (int p = 0; p < others; p++) {
        if (p == output || f->params[p].role == KILN_SCALAR)
            continue;
#if defined(KILN_DEVICES)
        if (f->params[p].device != 0)
            continue;
#endif
        if (b->tensor[p] != NULL && !kiln_is_contiguous(b->tensor[p]))
            return 1; /* assume an overlap rather than compute the extent of its memory */
        if (overlap(b->data[output], b->bytes[output], b->data[p], b->bytes[p]))
            return 1;
    }
    return 0;
}

static int needs_copy(const kiln_binding *b, int p)
{
    const kiln_param *param = &b->function->params[p];
    if (param->role == KILN_SCALAR)
        return 0;
#if defined(KILN_DEVICES)
    if (param->device != 0)
        return 0; /* its device refuses what it cannot use (session.c) */
#endif
    if (b->tensor[p] != NULL && !kiln_is_contiguous(b->tensor[p]))
        return 1;
    return (uintptr_t)b->data[p] % param->align != 0 || shares_memory(b, p);
}

static kiln_tensor packed_view(const kiln_binding *b, int p, int64_t *shape)
{
    const kiln_param *param = &b->function->params[p];
    kiln_tensor view = {NULL, 1, 0, param->ndim, param->dtype, shape, NULL, 0};
    for (int d = 0; d < param->ndim; d++)
        shape[d] = kiln_param_dim(b, p, d);
    return view;
}

static void move(const kiln_binding *b, int p, char *packed, int to_packed)
{
    int64_t shape[KILN_MAX_RANK];
    const kiln_tensor view = b->tensor[p] != NULL ? *b->tensor[p] : packed_view(b, p, shape);
    if (to_packed)
        kiln_pack(packed, &view, b->data[p]);
    else
        kiln_unpack(&view, b->data[p], packed);
}

/* Bytes of intermediate results for the sizes that are bound. */
static int scratch_bytes(const kiln_binding *b, int64_t *bytes)
{
    const kiln_function *f = b->function;
    int code = KILN_OK;
    if (f->workspace != NULL)
        code = f->workspace(b->symbol, bytes);
    else
        *bytes = f->old_workspace(b->symbol);
    if (code == KILN_OK && *bytes < 0)
        return kiln_fail(KILN_ERROR_CONDITION, "%s: the sizes are too small: intermediate results "
                         "would take %lld bytes", b->function->name, (long long)*bytes);
    if (code == KILN_OK && *bytes > KILN_MOST_BYTES)
        return kiln_fail(KILN_ERROR_MEMORY, "%s: out of memory: could not get %lld bytes of "
                         "workspace", b->function->name, (long long)*bytes);
    return code;
}

/* Call the kernels of a function. A library that flushes does so from here to the last of them: the
 * caller's floating-point state is as before, whatever becomes of the run. */
static void run_kernels(const kiln_function *f, const kiln_frame *frame)
{
    if (!KILN_FLUSHES_DENORMALS) {
        f->run(frame);
        return;
    }
    const kiln_float_state before = kiln_get_float_state();
    kiln_set_float_state(before | KILN_FLOAT_FLUSH);
    f->run(frame);
    kiln_set_float_state(before);
}

#if defined(KILN_DEVICES)
/* Run a function that may use devices. Failures of launches are recorded, as those of kernels. */
static int run_on_devices(kiln_workspace *workspace, const kiln_binding *b, char **arg)
{
    const kiln_function *f = b->function;
    kiln_device_place place[KILN_MAX_DEVICES + 1];
    const kiln_frame frame = {arg, workspace->base, b->symbol, b->scalar, place};
    int code = KILN_OK;
    if (f->devices != 0)
        code = kiln_session_begin(&workspace->session, b, place, arg);
    if (code != KILN_OK)
        return code;
    run_kernels(f, &frame);
    if (f->devices != 0)
        kiln_session_end(workspace->session);
    return KILN_OK;
}
#endif

int kiln_run(kiln_workspace *workspace, kiln_binding *b)
{
    const kiln_function *f = b->function;
    char *arg[KILN_MAX_PARAMS];
    int copied[KILN_MAX_PARAMS], copies = 0;
    int64_t scratch;
    int code = kiln_prepare();
    if (code != KILN_OK || (code = scratch_bytes(b, &scratch)) != KILN_OK)
        return code;
    scratch = ALIGNED(scratch);
    int64_t bytes = scratch;
    for (int p = 0; p < b->count; p++) {
        arg[p] = b->data[p];
        if (needs_copy(b, p)) {
            copied[copies++] = p;
            bytes += ALIGNED(b->bytes[p]);
            if (bytes > KILN_MOST_BYTES)
                return kiln_fail(KILN_ERROR_MEMORY, "%s: out of memory for a copy of '%s', shape %s",
                                 f->name, f->params[p].name, f->params[p].shape);
        }
    }
    if ((code = kiln_workspace_reserve(workspace, bytes)) != KILN_OK)
        return code;
    char *at = workspace->base + scratch;
    for (int c = 0; c < copies; c++) {
        const int p = copied[c];
        arg[p] = at;
        at += ALIGNED(b->bytes[p]);
        /* A tensor function may write only part of its output, or read it before. */
        if ((f->params[p].role & KILN_IN) || f->kind == KILN_TENSOR_FUNCTION)
            move(b, p, arg[p], 1);
    }
#if defined(KILN_DEVICES)
    if ((code = run_on_devices(workspace, b, arg)) != KILN_OK)
        return code;
#else
    const kiln_frame frame = {arg, workspace->base, b->symbol, b->scalar};
    run_kernels(f, &frame);
#endif
    code = kiln_end_assertions(f->name);
    if (code != KILN_OK)
        return code;
    for (int c = 0; c < copies; c++)
        if (f->params[copied[c]].role & KILN_OUT)
            move(b, copied[c], arg[copied[c]], 0);
    return KILN_OK;
}

int kiln_run_anywhere(kiln_binding *b)
{
    kiln_workspace *workspace = kiln_workspace_take();
    if (workspace == NULL)
        return KILN_ERROR_MEMORY;
#if defined(KILN_DEVICES)
    b->is_borrowed = 1;
#endif
    const int code = kiln_run(workspace, b);
    kiln_workspace_give(workspace);
    return code;
}

int kiln_call_plain(const kiln_function *function, const int64_t *symbols, void *const *data,
                    const kiln_scalar *scalars)
{
    kiln_binding b;
    const int code = kiln_bind_plain(&b, function, symbols, data, scalars);
    return code == KILN_OK ? kiln_run_anywhere(&b) : code;
}

const char *kiln_function_name(int index)
{
    const int outer = index - kiln_this_library.n_functions;
    if (outer < 0)
        return kiln_this_library.functions[index]->name;
    return *(const char *const *)kiln_this_library.outers[outer]; /* name is the first member */
}

static const kiln_function *function_at(int index)
{
    if (index >= 0 && index < kiln_this_library.n_functions)
        return kiln_this_library.functions[index];
    const int outer = index - kiln_this_library.n_functions;
    if (outer >= 0 && outer < kiln_this_library.n_outers)
        kiln_fail(KILN_ERROR_NAME,
                  "%s is an outer function: it takes and gives values, by kiln_executor_invoke",
                  kiln_function_name(index));
    else
        kiln_fail(KILN_ERROR_NAME, "library %s has %d functions, there is no number %d",
                  kiln_this_library.name, kiln_this_library.n_functions, index);
    return NULL;
}

static int bind_tensors(kiln_binding *b, const kiln_function *f, const kiln_tensor *const *tensors,
                        int count)
{
    kiln_value values[KILN_MAX_PARAMS];
    if (tensors == NULL && count > 0)
        return kiln_fail(KILN_ERROR_NULL, "%s: the tensors are a null pointer", f->name);
    for (int p = 0; p < count && p < KILN_MAX_PARAMS; p++) {
        values[p].kind = KILN_TENSOR;
        values[p].as.pointer = (void *)(uintptr_t)tensors[p];
    }
    return kiln_bind(b, f, values, count);
}

/* Reject a call of a graph function without outputs, which kiln_bind() would accept. */
static int require_outputs(const kiln_function *f, int count)
{
    if (count == f->n_params || f->kind == KILN_TENSOR_FUNCTION)
        return KILN_OK; /* kiln_bind() reports a wrong count of a tensor function */
    return kiln_fail(KILN_ERROR_COUNT, "%s: expected %d inputs and %d outputs, received %d tensors",
                     f->name, f->n_inputs, f->n_params - f->n_inputs, count);
}

KILN_API int kiln_executor_create(kiln_executor **executor)
{
    KILN_GIVEN(executor);
    *executor = NULL;
    const int code = kiln_prepare();
    if (code != KILN_OK)
        return code;
    *executor = calloc(1, sizeof **executor);
    return *executor != NULL ? KILN_OK : kiln_fail(KILN_ERROR_MEMORY, "out of memory");
}

KILN_API void kiln_executor_destroy(kiln_executor *executor)
{
    if (executor == NULL)
        return;
    kiln_workspace_release(&executor->workspace);
#if defined(KILN_DEVICES)
    kiln_session_free(executor->workspace.session);
#endif
    kiln_release_sets(executor->sets);
    free(executor);
}

/* Run in the executor's workspace, or in a borrowed one if another thread is using it. */
static int run_in(kiln_executor *executor, kiln_binding *b)
{
#if defined(KILN_DEVICES)
    b->chosen = &executor->devices;
#endif
    if (__atomic_exchange_n(&executor->busy, 1, __ATOMIC_ACQUIRE) != 0)
        return kiln_run_anywhere(b);
    const int code = kiln_run(&executor->workspace, b);
    __atomic_store_n(&executor->busy, 0, __ATOMIC_RELEASE);
    return code;
}

#if defined(KILN_DEVICES)
KILN_API int kiln_executor_set_device(kiln_executor *executor, int device, int index, void *context)
{
    kiln_devices *const chosen = executor != NULL ? &executor->devices : &kiln_default_devices;
    return kiln_choose_device(chosen, device, index, context);
}

KILN_API int kiln_executor_set_stream(kiln_executor *executor, int device, void *stream)
{
    KILN_GIVEN(executor);
    return kiln_choose_stream(&executor->devices, device, stream);
}

KILN_API int kiln_executor_set_graphs(kiln_executor *executor, int on)
{
    KILN_GIVEN(executor);
    return kiln_choose_graphs(&executor->devices, on != 0 ? executor->graph_counts : NULL);
}

KILN_API int64_t kiln_executor_graph_count(const kiln_executor *executor, int what)
{
    if (executor == NULL || what < 0 || what >= KILN_GRAPH_COUNTS)
        return -1;
    return __atomic_load_n(&executor->graph_counts[what], __ATOMIC_RELAXED);
}
#endif

/* Bind and run a function. `stream` is NULL in a library without devices. Its frame is not that of
 * the caller, which asks before whether there is room for it. */
__attribute__((noinline)) static int run_tensors(kiln_executor *executor, int function, const kiln_tensor *const *tensors,
                       int count, void *stream)
{
    kiln_binding b;
    const kiln_function *f = function_at(function);
    if (f == NULL)
        return KILN_ERROR_NAME;
    int code = require_outputs(f, count);
    if (code != KILN_OK || (code = bind_tensors(&b, f, tensors, count)) != KILN_OK)
        return code;
#if defined(KILN_DEVICES)
    b.stream = stream;
    if (stream != NULL && (code = kiln_check_takes_stream(f)) != KILN_OK)
        return code;
#else
    (void)stream;
#endif
    kiln_thread *const t = kiln_this_thread(); /* not NULL: kiln_check_stack() has been asked */
    const int before = t->threads;
    t->threads = __atomic_load_n(&executor->threads, __ATOMIC_RELAXED);
    code = run_in(executor, &b);
    t->threads = before;
    return code;
}

KILN_API int kiln_executor_run(kiln_executor *executor, int function,
                               const kiln_tensor *const *tensors, int count)
{
    KILN_GIVEN(executor);
    const int code = kiln_check_stack();
    return code == KILN_OK ? run_tensors(executor, function, tensors, count, NULL) : code;
}

#if defined(KILN_DEVICES)
KILN_API int kiln_executor_run_in_stream(kiln_executor *executor, int function,
                                         const kiln_tensor *const *tensors, int count, void *stream)
{
    KILN_GIVEN(executor);
    const int code = kiln_check_stack();
    return code == KILN_OK ? run_tensors(executor, function, tensors, count, stream) : code;
}
#endif

void kiln_set_current(kiln_executor *executor, kiln_current *before)
{
    kiln_thread *const t = kiln_this_thread();
    before->executor = t == NULL ? NULL : t->current;
    if (t != NULL)
        t->current = executor;
    const int threads = executor == NULL ? 0 : __atomic_load_n(&executor->threads, __ATOMIC_RELAXED);
    before->threads = kiln_limit_threads(threads);
}

void kiln_restore_current(const kiln_current *before)
{
    kiln_thread *const t = kiln_this_thread();
    if (t != NULL)
        t->current = before->executor;
    kiln_limit_threads(before->threads);
}

kiln_storage_set **kiln_current_sets(void)
{
    const kiln_thread *const t = kiln_this_thread();
    return t != NULL && t->current != NULL ? &t->current->sets : NULL;
}

int kiln_run_in_current(kiln_binding *b)
{
    const kiln_thread *const t = kiln_this_thread();
    return t != NULL && t->current != NULL ? run_in(t->current, b) : kiln_run_anywhere(b);
}

KILN_API int64_t kiln_executor_workspace_bytes(const kiln_executor *executor)
{
    return executor == NULL ? -1 : __atomic_load_n(&executor->workspace.asked, __ATOMIC_RELAXED);
}

KILN_API void kiln_executor_set_num_threads(kiln_executor *executor, int threads)
{
    const int most = threads > KILN_MOST_THREADS ? KILN_MOST_THREADS : threads;
    if (executor != NULL)
        __atomic_store_n(&executor->threads, most > 0 ? most : 0, __ATOMIC_RELAXED);
}

__attribute__((noinline)) static int call_values(int function, const kiln_value *arguments, int count)
{
    kiln_binding b;
    const kiln_function *f = function_at(function);
    if (f == NULL)
        return KILN_ERROR_NAME;
    int code = require_outputs(f, count);
    if (code != KILN_OK || (code = kiln_bind(&b, f, arguments, count)) != KILN_OK)
        return code;
    return kiln_run_anywhere(&b);
}

KILN_API int kiln_call(int function, const kiln_value *arguments, int count)
{
    if (count > 0)
        KILN_GIVEN(arguments);
    const int code = kiln_check_stack();
    return code == KILN_OK ? call_values(function, arguments, count) : code;
}

KILN_API int kiln_output_shape(int function, const kiln_tensor *const *inputs, int count,
                               int output, int64_t *shape, int *ndim)
{
    kiln_binding b;
    KILN_GIVEN(shape);
    KILN_GIVEN(ndim);
    const kiln_function *f = function_at(function);
    if (f == NULL)
        return KILN_ERROR_NAME;
    const int p = f->n_inputs + output;
    if (output < 0 || p >= f->n_params)
        return kiln_fail(KILN_ERROR_COUNT, "%s has %d outputs, there is no number %d", f->name,
                         f->n_params - f->n_inputs, output);
    const int code = bind_tensors(&b, f, inputs, count);
    if (code != KILN_OK)
        return code;
    *ndim = f->params[p].ndim;
    for (int d = 0; d < *ndim; d++)
        shape[d] = kiln_param_dim(&b, p, d);
    return KILN_OK;
}
