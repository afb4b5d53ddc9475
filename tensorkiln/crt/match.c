/* Checks values against types: kinds, element types, ranks, sizes. Every error names the value,
 * what was expected and what was received. */
#include "element.h"
#include <stdio.h>

typedef struct matching {
    const char *function;
    const char *what;
    const kiln_type *whole; /* the outermost type, for messages about a field of it */
    int64_t *sizes;         /* the entries for dimensions not matched yet */
} matching;

static int expected_kind(const matching *m, const kiln_type *type, const kiln_value *value)
{
    return kiln_fail(KILN_ERROR_ARGUMENT, "%s: %s must be %s%s%s, received %s", m->function,
                     m->what, type->text, type == m->whole ? "" : " in ",
                     type == m->whole ? "" : m->whole->text, kiln_kind_name(value));
}

static int expected_tensor(const matching *m, int code, const kiln_type *type,
                           const kiln_tensor *tensor, int dim)
{
    char dtype[40], shape[KILN_SHAPE_TEXT], why[80] = "";
    kiln_dtype_text(dtype, sizeof dtype, tensor->dtype);
    kiln_shape_text(shape, tensor->shape, tensor->ndim);
    if (dim >= 0)
        snprintf(why, sizeof why, ": dimension %d is %lld, expected %lld", dim,
                 (long long)tensor->shape[dim], (long long)m->sizes[dim]);
    return kiln_fail(code, "%s: %s must be %s, received %s %s%s", m->function, m->what, type->text,
                     dtype, shape, why);
}

/* Check a tensor before its sizes and memory are read: another library may have made the object. */
static int check_readable(const matching *m, const kiln_type *type, const kiln_tensor *tensor)
{
    char why[KILN_SHAPE_TEXT + 160];
    if (tensor->device_type != 1)
        return kiln_fail(KILN_ERROR_DEVICE,
                         "%s: %s must be in CPU memory (device type 1), received device type %d",
                         m->function, m->what, tensor->device_type);
    const int code = kiln_check_tensor(tensor);
    if (code == KILN_OK)
        return KILN_OK;
    snprintf(why, sizeof why, "%s", kiln_last_error());
    return kiln_fail(code, "%s: %s must be %s: %s", m->function, m->what, type->text, why);
}

static int match_tensor(matching *m, const kiln_type *type, const kiln_value *value)
{
    const kiln_tensor *tensor = kiln_tensor_of(value);
    if (tensor == NULL)
        return expected_kind(m, type, value);
    const int code = check_readable(m, type, tensor);
    if (code != KILN_OK)
        return code;
    const kiln_dtype is = tensor->dtype, must = type->dtype;
    if (must.bits != 0 && (is.code != must.code || is.bits != must.bits || is.lanes != must.lanes))
        return expected_tensor(m, KILN_ERROR_DTYPE, type, tensor, -1);
    if (type->count < 0)
        return KILN_OK;
    if (tensor->ndim != type->count)
        return expected_tensor(m, KILN_ERROR_RANK, type, tensor, -1);
    for (int d = 0; d < type->count; d++) {
        if (m->sizes[d] == -1)
            m->sizes[d] = tensor->shape[d];
        else if (m->sizes[d] != tensor->shape[d])
            return expected_tensor(m, KILN_ERROR_SHAPE, type, tensor, d);
    }
    m->sizes += type->count;
    return KILN_OK;
}

/* Read the integers of a tuple, or of a contiguous vector that check_readable() accepted. Return
 * their number, or -1 if the value is neither. */
static int read_sizes(const kiln_value *value, int64_t *sizes)
{
    int count = 0;
    const kiln_value *items = kiln_items_of(value, &count);
    const kiln_tensor *t = kiln_tensor_of(value);
    if (items != NULL && count <= KILN_MAX_RANK) {
        for (int i = 0; i < count; i++) {
            if (items[i].kind != KILN_INT)
                return -1;
            sizes[i] = items[i].as.integer;
        }
        return count;
    }
    if (t == NULL || t->ndim != 1 || t->shape[0] > KILN_MAX_RANK ||
        t->dtype.code != KILN_CODE_INT || !kiln_is_number(t->dtype) || !kiln_is_contiguous(t))
        return -1;
    for (int64_t i = 0; i < t->shape[0]; i++)
        sizes[i] = kiln_load_int(t->dtype, kiln_data(t) + i * kiln_element_bytes(t->dtype));
    return (int)t->shape[0];
}

/* Convert a tuple or vector of integers to a shape, for hosts that have no shape type. Other values
 * are left as they are. */
static int make_shape_of(const matching *m, const kiln_type *type, kiln_value *value)
{
    int64_t sizes[KILN_MAX_RANK];
    kiln_value made;
    const kiln_tensor *const t = kiln_tensor_of(value);
    int code = t == NULL ? KILN_OK : check_readable(m, type, t);
    if (code != KILN_OK)
        return code;
    const int count = read_sizes(value, sizes);
    if (count < 0)
        return KILN_OK; /* match_shape() reports it */
    code = kiln_make_shape(sizes, count, &made);
    if (code == KILN_OK) {
        kiln_release(value);
        *value = made;
    }
    return code;
}

static int match_shape(const matching *m, const kiln_type *type, kiln_value *value)
{
    int count = 0;
    const int code = make_shape_of(m, type, value);
    if (code != KILN_OK)
        return code;
    if (kiln_shape_of(value, &count) == NULL)
        return expected_kind(m, type, value);
    if (type->count >= 0 && count != type->count)
        return kiln_fail(KILN_ERROR_RANK, "%s: %s must be %s, received a shape of %d", m->function,
                         m->what, type->text, count);
    return KILN_OK;
}

/* Convert a 0-dimensional tensor to a number. */
static int tensor_to_number(const matching *m, const kiln_type *type, kiln_value *value)
{
    const kiln_tensor *t = kiln_tensor_of(value);
    const int code = t == NULL ? KILN_OK : check_readable(m, type, t);
    if (t == NULL || code != KILN_OK || t->ndim != 0 || !kiln_is_number(t->dtype))
        return code;
    const char *at = kiln_data(t);
    const kiln_value number = kiln_is_real(t->dtype) ? kiln_real(kiln_load_real(t->dtype, at))
                              : t->dtype.code == KILN_CODE_INT
                                  ? kiln_int(kiln_load_int(t->dtype, at))
                                  : kiln_unsigned(kiln_load_uint(t->dtype, at));
    kiln_release(value);
    *value = number;
    return KILN_OK;
}

static int match_number(const matching *m, const kiln_type *type, kiln_value *value)
{
    int code = tensor_to_number(m, type, value);
    if (code != KILN_OK)
        return code;
    const int high = value->kind == KILN_UINT, integer = high || value->kind == KILN_INT;
    if (type->kind == KILN_IS_FLOAT && integer)
        *value = kiln_real(high ? (double)(uint64_t)value->as.integer : (double)value->as.integer);
    if (type->kind == KILN_IS_FLOAT ? value->kind != KILN_FLOAT
                                    : !integer && value->kind != KILN_BOOL)
        return expected_kind(m, type, value);
    code = kiln_check_number(m->function, m->what, type->dtype, value);
    if (code == KILN_OK && type->kind == KILN_IS_BOOL)
        *value = kiln_bool(value->as.integer != 0);
    else if (code == KILN_OK && value->kind == KILN_BOOL)
        value->kind = KILN_INT;
    return code;
}

static int match_value(matching *m, const kiln_type *type, kiln_value *value);

static int match_fields(matching *m, const kiln_type *type, kiln_value *value)
{
    int count = 0, code;
    const kiln_value *items = kiln_items_of(value, &count);
    if (items == NULL)
        return expected_kind(m, type, value);
    if (count != type->count)
        return kiln_fail(KILN_ERROR_COUNT, "%s: %s must be %s, received a tuple of %d", m->function,
                         m->what, type->text, count);
    /* Matching may convert fields (a tuple to a shape, an integer to a float), so it works on a
     * copy: the given tuple may be shared. */
    kiln_value own;
    if ((code = kiln_make_tuple(items, count, &own)) != KILN_OK)
        return code;
    kiln_value *fields = ((kiln_tuple_object *)own.as.pointer)->data;
    for (int i = 0; i < count && code == KILN_OK; i++)
        code = match_value(m, type->fields[i], &fields[i]);
    kiln_release(code == KILN_OK ? value : &own);
    if (code == KILN_OK)
        *value = own;
    return code;
}

static int match_value(matching *m, const kiln_type *type, kiln_value *value)
{
    int64_t bytes;
    switch (type->kind) {
    case KILN_IS_TENSOR: return match_tensor(m, type, value);
    case KILN_IS_TUPLE: return match_fields(m, type, value);
    case KILN_IS_SHAPE: return match_shape(m, type, value);
    case KILN_IS_INT:
    case KILN_IS_BOOL:
    case KILN_IS_FLOAT: return match_number(m, type, value);
    case KILN_IS_STRING:
        return kiln_string_of(value, &bytes) != NULL ? KILN_OK : expected_kind(m, type, value);
    case KILN_IS_FUNCTION:
        return value->kind == KILN_FUNCTION ? KILN_OK : expected_kind(m, type, value);
    default: return KILN_OK;
    }
}

int kiln_match(kiln_value *value, const kiln_type *type, int64_t *sizes, const char *function,
               const char *what)
{
    matching m = {function, what, type, sizes};
    const int code = match_value(&m, type, value);
    if (code != KILN_OK)
        kiln_locate(NULL, NULL); /* the sentence already names the function */
    return code;
}
