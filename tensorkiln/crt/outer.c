/* The frame of an outer function, with its locals and the limit on call depth; calls of graph and
 * tensor functions with values. */
#include "outer.h"
#include <string.h>

#define MAX_DEPTH 10000

int kiln_enter(const char *function, kiln_value *locals, size_t bytes)
{
    memset(locals, 0, bytes); /* KILN_NONE is 0 */
    kiln_thread *const t = kiln_this_thread();
    if (t == NULL)
        return KILN_ERROR_MEMORY;
    const int depth = ++t->depth;
    if (depth > MAX_DEPTH || kiln_stack_is_used_up())
        return kiln_fail(KILN_ERROR_DEPTH,
                         "%s: calls are %d deep, %s; a while_loop needs no stack", function, depth,
                         depth > MAX_DEPTH ? "which is the limit" : "and the stack is used up");
    return KILN_OK;
}

int kiln_leave(const char *function, const char *at, int code, kiln_value *locals, size_t bytes)
{
    for (size_t i = 0; i < bytes / sizeof *locals; i++)
        kiln_release(&locals[i]);
    kiln_thread *const t = kiln_this_thread();
    if (t != NULL)
        t->depth--;
    if (code != KILN_OK)
        kiln_locate(function, at);
    return code;
}

int kiln_invoke_outer(const kiln_outer *outer, const kiln_value *captured, const kiln_value *args,
                      int count, kiln_value *result)
{
    *result = (kiln_value){KILN_NONE, 0, {0}};
    if (count != outer->n_params)
        return kiln_fail(KILN_ERROR_COUNT, "%s: expected %d argument%s, received %d", outer->name,
                         outer->n_params, outer->n_params == 1 ? "" : "s", count);
    const int code = kiln_prepare();
    return code == KILN_OK ? outer->run(captured, args, result) : code;
}

/* ---- graph functions ---------------------------------------------------------------------- */

static int new_outputs(kiln_binding *b, kiln_value *outputs)
{
    const kiln_function *f = b->function;
    for (int p = f->n_inputs; p < f->n_params; p++) {
        int64_t shape[KILN_MAX_RANK];
        kiln_value *output = &outputs[p - f->n_inputs];
        for (int d = 0; d < f->params[p].ndim; d++)
            shape[d] = kiln_param_dim(b, p, d);
        /* cppcheck-suppress uninitvar ; ndim of them are set */
        const int code = kiln_make_tensor(shape, f->params[p].ndim, f->params[p].dtype, output);
        if (code != KILN_OK)
            return code;
        b->tensor[p] = kiln_tensor_of(output);
        b->data[p] = b->tensor[p]->data;
    }
    b->count = f->n_params;
    return KILN_OK;
}

static int run_into_outputs(kiln_binding *b, int empty, int as_tuple, kiln_value *result)
{
    const int count = b->function->n_params - b->function->n_inputs;
    kiln_value outputs[KILN_MAX_PARAMS] = {{0, 0, {0}}};
    int code = new_outputs(b, outputs);
    if (code == KILN_OK && !empty)
        code = kiln_run_in_current(b);
    if (code == KILN_OK)
        code = as_tuple || count != 1 ? kiln_make_tuple(outputs, count, result)
                                      : kiln_take(&outputs[0], result);
    for (int i = 0; i < count; i++)
        kiln_release(&outputs[i]);
    return code;
}

/* Whether a symbol is below its minimum and all outputs are empty. Kernels are compiled for sizes
 * of at least 1 (or the model's minimum), but data-dependent operators produce empty tensors; if
 * there is nothing to write, the function need not run. */
static int nothing_to_write(const kiln_binding *b, const int64_t *least)
{
    int below = 0;
    for (int s = 0; s < b->function->n_symbols; s++)
        below |= b->symbol[s] < least[s];
    for (int p = 0; below && p < b->function->n_params; p++)
        if ((b->function->params[p].role & KILN_OUT) && b->bytes[p] != 0)
            return 0;
    return below;
}

static const int64_t no_least[KILN_MAX_SYMBOLS];

static int bind_and_run(const kiln_function *function, const kiln_value *values, int count,
                        int as_tuple, kiln_value *result)
{
    kiln_binding b;
    kiln_function any_size = *function;
    const int plain_sizes = function->computed == NULL && function->old_computed == NULL &&
                            function->requires == NULL;
    any_size.symbol_min = no_least;
    int empty = 0;
    int code = kiln_bind(&b, function, values, count);
    if (code == KILN_ERROR_SHAPE && plain_sizes && function->n_symbols > 0)
        empty = kiln_bind(&b, &any_size, values, count) == KILN_OK &&
                nothing_to_write(&b, function->symbol_min);
    if (code != KILN_OK && !empty)
        return code;
    if (count < function->n_params)
        return run_into_outputs(&b, empty, as_tuple, result);
    return empty ? KILN_OK : kiln_run_in_current(&b);
}

int kiln_run_function(const kiln_function *function, const kiln_value *args, int count,
                      int as_tuple, kiln_value *result)
{
    kiln_value values[KILN_MAX_PARAMS];
    kiln_views(values, args, count);
    return bind_and_run(function, values, count, as_tuple, result);
}

/* ---- hosts -------------------------------------------------------------------------------- */

static const kiln_outer *outer_at(int index)
{
    const int k = index - kiln_this_library.n_functions;
    return k >= 0 && k < kiln_this_library.n_outers ? kiln_this_library.outers[k] : NULL;
}

static int invoke_by_index(int function, const kiln_value *args, int count, kiln_value *result)
{
    const kiln_outer *outer = outer_at(function);
    if (args == NULL && count > 0)
        return kiln_fail(KILN_ERROR_NULL, "%d arguments are a null pointer", count);
    if (outer != NULL)
        return kiln_invoke_outer(outer, NULL, args, count, result);
    if (function < 0 || function >= kiln_this_library.n_functions)
        return kiln_fail(KILN_ERROR_NAME, "library %s has no function number %d",
                         kiln_this_library.name, function);
    return kiln_run_function(kiln_this_library.functions[function], args, count, 0, result);
}

KILN_API int kiln_executor_invoke(kiln_executor *executor, int function,
                                  const kiln_value *arguments, int count, kiln_value *result)
{
    kiln_current before;
    KILN_GIVEN(result);
    *result = (kiln_value){KILN_NONE, 0, {0}};
    kiln_set_current(executor, &before);
    const int code = invoke_by_index(function, arguments, count, result);
    kiln_restore_current(&before);
    return code;
}

int kiln_outer_ffi_call(const kiln_outer *outer, const kiln_value *args, int32_t count,
                        kiln_value *result)
{
    if (result == NULL || (args == NULL && count > 0))
        return kiln_raise(kiln_fail(KILN_ERROR_NULL, "%s: arguments or result are a null pointer",
                                    outer->name));
    return kiln_ffi_result(kiln_invoke_outer(outer, NULL, args, count, result));
}
