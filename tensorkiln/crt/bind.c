/* Checks arguments against a function's table: kinds, devices, types, ranks, sizes; derives the
 * values of symbols from them. Every error names the argument, what was expected and what was
 * received. */
#include "crt.h"
#include <stdio.h>
#include <string.h>

#define CPU_DEVICE 1

static const char *role_name(const kiln_binding *b, int p)
{
    if (b->function->kind == KILN_TENSOR_FUNCTION)
        return "argument";
    return p < b->function->n_inputs ? "input" : "output";
}

static int same_dtype(kiln_dtype a, kiln_dtype b)
{
    return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

static int wrong_dtype(const kiln_binding *b, int p, const kiln_tensor *t)
{
    char expected[40], received[40];
    kiln_dtype_text(expected, sizeof expected, b->function->params[p].dtype);
    kiln_dtype_text(received, sizeof received, t->dtype);
    return kiln_fail(KILN_ERROR_DTYPE, "%s: %s '%s' must be %s, received %s", b->function->name,
                     role_name(b, p), b->function->params[p].name, expected, received);
}

static int wrong_rank(const kiln_binding *b, int p, const kiln_tensor *t)
{
    const kiln_param *param = &b->function->params[p];
    char received[KILN_SHAPE_TEXT];
    kiln_shape_text(received, t->shape, t->ndim);
    return kiln_fail(KILN_ERROR_RANK,
                     "%s: %s '%s' must have %d dimension%s %s, received %d: %s",
                     b->function->name, role_name(b, p), param->name, param->ndim,
                     param->ndim == 1 ? "," : "s,", param->shape, t->ndim, received);
}

static int wrong_size(const kiln_binding *b, int p, int d, int64_t expected)
{
    const kiln_tensor *t = b->tensor[p];
    char received[KILN_SHAPE_TEXT];
    kiln_shape_text(received, t->shape, t->ndim);
    return kiln_fail(KILN_ERROR_SHAPE,
                     "%s: %s '%s' must have shape %s, received %s: dimension %d is %lld, "
                     "expected %lld",
                     b->function->name, role_name(b, p), b->function->params[p].name,
                     b->function->params[p].shape, received, d, (long long)t->shape[d],
                     (long long)expected);
}

static int check_type(const kiln_binding *b, int p, const kiln_tensor *t)
{
    const kiln_param *param = &b->function->params[p];
    if (!same_dtype(t->dtype, param->dtype))
        return wrong_dtype(b, p, t);
    if (t->ndim > 0 && t->shape == NULL)
        return kiln_fail(KILN_ERROR_NULL, "%s: %s '%s' has no shape: its address is null",
                         b->function->name, role_name(b, p), param->name);
    if (t->ndim != param->ndim)
        return wrong_rank(b, p, t);
    return KILN_OK;
}

/* Where a tensor is, by the names of DLPack: "CPU memory (device type 1)", "cuda:0 (device type 2)". */
static void name_place(char *text, size_t room, const kiln_tensor *t)
{
    static const char *const names[] = {
        [2] = "cuda",   [3] = "cuda_host", [4] = "opencl",        [7] = "vulkan",
        [8] = "metal",  [9] = "vpi",       [10] = "rocm",         [11] = "rocm_host",
        [12] = "extdev", [13] = "cuda_managed", [14] = "oneapi", [15] = "webgpu",
        [16] = "hexagon",
    };
    const int type = t->device_type;
    if (type == CPU_DEVICE)
        snprintf(text, room, "CPU memory (device type 1)");
    else if (type > 0 && type < (int)(sizeof names / sizeof *names) && names[type] != NULL)
        snprintf(text, room, "%s:%d (device type %d)", names[type], t->device_id, type);
    else
        snprintf(text, room, "device type %d, index %d", type, t->device_id);
}

#if defined(KILN_DEVICES)
static int check_on_device(const kiln_binding *b, int p, const kiln_tensor *t)
{
    const kiln_param *param = &b->function->params[p];
    const kiln_device_kind *kind = kiln_this_library.devices[param->device - 1].kind;
    char received[60];
    if (t->device_type == kind->dlpack_type)
        return check_type(b, p, t);
    name_place(received, sizeof received, t);
    return kiln_fail(KILN_ERROR_DEVICE,
                     "%s: %s '%s' must be in memory of a device of %s (device type %d), received a "
                     "tensor in %s; copy it there first: tk.nd.array(x, tk.%s(0)) in Python",
                     b->function->name, role_name(b, p), param->name, kind->name,
                     kind->dlpack_type, received, kind->name);
}
#endif

static int check_tensor(const kiln_binding *b, int p, const kiln_tensor *t)
{
    const kiln_param *param = &b->function->params[p];
    char received[60];
    if (t == NULL)
        return kiln_fail(KILN_ERROR_NULL, "%s: %s '%s' is a null pointer", b->function->name,
                         role_name(b, p), param->name);
#if defined(KILN_DEVICES)
    if (param->device != 0)
        return check_on_device(b, p, t);
#endif
    if (t->device_type == CPU_DEVICE)
        return check_type(b, p, t);
    name_place(received, sizeof received, t);
    return kiln_fail(KILN_ERROR_DEVICE,
                     "%s: %s '%s' must be in CPU memory (device type 1), received a tensor in %s; "
                     "copy it to the host first: x.numpy() in Python",
                     b->function->name, role_name(b, p), param->name, received);
}

/* Check sizes that are constants or bare symbols; the first occurrence of a symbol sets its
 * value. */
static int bind_sizes(kiln_binding *b, int p, uint64_t *bound)
{
    const kiln_param *param = &b->function->params[p];
    const kiln_tensor *t = b->tensor[p];
    for (int d = 0; d < param->ndim; d++) {
        const int64_t dim = param->dims[d], size = t->shape[d];
        if (dim <= KILN_COMPUTED(0))
            continue;
        if (dim >= 0) {
            if (size != dim)
                return wrong_size(b, p, d, dim);
            continue;
        }
        const int symbol = (int)(-1 - dim); /* below KILN_MAX_SYMBOLS */
        /* cppcheck-suppress shiftTooManyBits */
        if (!(*bound >> symbol & 1)) {
            *bound |= (uint64_t)1 << symbol;
            b->symbol[symbol] = size;
            if (size < b->function->symbol_min[symbol])
                return kiln_fail(KILN_ERROR_SHAPE,
                                 "%s: %s '%s' has %lld for %s in shape %s, expected at least %lld",
                                 b->function->name, role_name(b, p), param->name, (long long)size,
                                 b->function->symbols[symbol], param->shape,
                                 (long long)b->function->symbol_min[symbol]);
        } else if (size != b->symbol[symbol]) {
            return wrong_size(b, p, d, b->symbol[symbol]);
        }
    }
    return KILN_OK;
}

static int check_data(const kiln_binding *b, int p)
{
    if (b->data[p] == NULL && b->bytes[p] != 0)
        return kiln_fail(KILN_ERROR_NULL, "%s: %s '%s' has no data: its address is null",
                         b->function->name, role_name(b, p), b->function->params[p].name);
    return KILN_OK;
}

static int too_many_bytes(const kiln_binding *b, int p, const int64_t *sizes)
{
    const kiln_param *param = &b->function->params[p];
    char shape[KILN_SHAPE_TEXT], dtype[40];
    kiln_shape_text(shape, sizes, param->ndim);
    kiln_dtype_text(dtype, sizeof dtype, param->dtype);
    return kiln_fail(KILN_ERROR_MEMORY,
                     "%s: %s '%s', shape %s, is too large: %s elements of %s are more than any "
                     "memory holds",
                     b->function->name, role_name(b, p), param->name, param->shape, shape, dtype);
}

/* Check computed sizes, which need the values of all symbols, and compute the bytes of the
 * tensor. */
static int check_sizes(kiln_binding *b, int p)
{
    const kiln_param *param = &b->function->params[p];
    int64_t sizes[KILN_MAX_RANK];
    for (int d = 0; d < param->ndim; d++) {
        const int64_t expected = sizes[d] = kiln_param_dim(b, p, d);
        if (p < b->count && b->tensor[p] != NULL && b->tensor[p]->shape[d] != expected)
            return wrong_size(b, p, d, expected);
        if (expected < 0)
            return kiln_fail(KILN_ERROR_CONDITION,
                             "%s: the sizes are too small: dimension %d of %s '%s', shape %s, "
                             "would be %lld",
                             b->function->name, d, role_name(b, p), param->name, param->shape,
                             (long long)expected);
    }
    /* cppcheck-suppress uninitvar ; ndim of them are set */
    b->bytes[p] = kiln_bytes_of(sizes, param->ndim, kiln_element_bytes(param->dtype));
    return b->bytes[p] < 0 ? too_many_bytes(b, p, sizes) : KILN_OK;
}

/* Check conditions and sizes that depend on the values of the symbols only, and then that what is
 * not empty has data. */
static int check_symbols(kiln_binding *b)
{
    const kiln_function *f = b->function;
    int code;
    if (f->requires != NULL && (code = f->requires(b->symbol)) != KILN_OK)
        return code;
    if (f->computed != NULL && (code = f->computed(b->symbol, b->computed)) != KILN_OK)
        return code;
    if (f->old_computed != NULL)
        f->old_computed(b->symbol, b->computed);
    for (int p = 0; p < f->n_params; p++)
        if (f->params[p].role != KILN_SCALAR && (code = check_sizes(b, p)) != KILN_OK)
            return code;
    for (int p = 0; p < b->count; p++)
        if (f->params[p].role != KILN_SCALAR && (code = check_data(b, p)) != KILN_OK)
            return code;
    return KILN_OK;
}

static int bind_value(kiln_binding *b, int p, const kiln_value *value, uint64_t *bound)
{
    b->tensor[p] = NULL;
    b->data[p] = NULL;
    if (b->function->params[p].role == KILN_SCALAR)
        return kiln_fit_scalar(b->function->name, &b->function->params[p], value, &b->scalar[p]);
    if (value->kind != KILN_TENSOR)
        return kiln_fail(KILN_ERROR_ARGUMENT,
                         "%s: %s '%s' must be a tensor of shape %s, received %s",
                         b->function->name, role_name(b, p), b->function->params[p].name,
                         b->function->params[p].shape,
                         value->kind == 0 ? "nothing" : "a value that is not a tensor");
    const kiln_tensor *t = value->as.pointer;
    const int code = check_tensor(b, p, t);
    if (code != KILN_OK)
        return code;
    b->tensor[p] = t;
    b->data[p] = t->data == NULL ? NULL : (char *)t->data + t->byte_offset;
#if defined(KILN_DEVICES)
    if (b->function->params[p].device != 0)
        b->data[p] = t->data; /* a handle */
#endif
    return bind_sizes(b, p, bound);
}

static int wrong_count(const kiln_function *f, int count)
{
    const int outputs = f->n_params - f->n_inputs;
    if (f->kind == KILN_TENSOR_FUNCTION)
        return kiln_fail(KILN_ERROR_COUNT, "%s: expected %d argument%s, received %d", f->name,
                         f->n_params, f->n_params == 1 ? "" : "s", count);
    return kiln_fail(KILN_ERROR_COUNT,
                     "%s: expected %d input%s, or %d with the output%s to fill, received %d",
                     f->name, f->n_inputs, f->n_inputs == 1 ? "" : "s", f->n_params,
                     outputs == 1 ? "" : "s", count);
}

int kiln_bind(kiln_binding *b, const kiln_function *function, const kiln_value *values, int count)
{
    uint64_t bound = 0;
    int code;
    b->function = function;
    b->count = count;
#if defined(KILN_DEVICES)
    b->chosen = NULL;
    b->stream = NULL;
    b->asks_host = b->is_borrowed = 0;
#endif
    if (count != function->n_params && (function->kind == KILN_TENSOR_FUNCTION ||
                                        count != function->n_inputs))
        return wrong_count(function, count);
    for (int p = 0; p < count; p++)
        if ((code = bind_value(b, p, &values[p], &bound)) != KILN_OK)
            return code;
    return check_symbols(b);
}

int kiln_bind_plain(kiln_binding *b, const kiln_function *function, const int64_t *symbols,
                    void *const *data, const kiln_scalar *scalars)
{
    int code;
    b->function = function;
    b->count = function->n_params;
#if defined(KILN_DEVICES)
    b->chosen = NULL;
    b->stream = NULL;
    b->asks_host = b->is_borrowed = 0;
#endif
    for (int s = 0; s < function->n_symbols; s++) {
        b->symbol[s] = symbols[s];
        if (symbols[s] < function->symbol_min[s])
            return kiln_fail(KILN_ERROR_SHAPE, "%s: '%s' is %lld, expected at least %lld",
                             function->name, function->symbols[s], (long long)symbols[s],
                             (long long)function->symbol_min[s]);
    }
    for (int p = 0; p < b->count; p++) {
        b->tensor[p] = NULL;
        b->data[p] = data[p];
        if (function->params[p].role != KILN_SCALAR)
            continue;
        b->scalar[p] = scalars[p];
        if ((code = kiln_fit_plain(function->name, &function->params[p], &b->scalar[p])) != KILN_OK)
            return code;
    }
    return check_symbols(b);
}

int64_t kiln_param_dim(const kiln_binding *b, int param, int dim)
{
    const int64_t entry = b->function->params[param].dims[dim];
    if (entry >= 0)
        return entry;
    if (entry > KILN_COMPUTED(0))
        return b->symbol[-1 - entry]; /* cppcheck-suppress arrayIndexOutOfBoundsCond */
    return b->computed[-1001 - entry];
}
