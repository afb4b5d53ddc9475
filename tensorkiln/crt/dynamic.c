/* The operators nonzero, compress, slice_dynamic and sized, whose result sizes depend on the data. */
#include "element.h"

#include <stdio.h>

static const kiln_dtype index_dtype = {KILN_CODE_INT, 64, 1};

/* Release the copies that kiln_packed() made of two operands, and return `code`. */
static int done(int code, kiln_value *a, kiln_value *b)
{
    kiln_release(a);
    kiln_release(b);
    return code;
}

static int64_t count_nonzero(const kiln_tensor *x, int64_t count)
{
    const int64_t size = kiln_element_bytes(x->dtype);
    int64_t found = 0;
    for (int64_t i = 0; i < count; i++)
        found += !kiln_is_zero(x->dtype, kiln_data(x) + i * size);
    return found;
}

static void write_positions(const kiln_tensor *x, int64_t count, int64_t found, int64_t *to)
{
    const int64_t size = kiln_element_bytes(x->dtype);
    int64_t column = 0;
    for (int64_t i = 0; i < count; i++) {
        if (kiln_is_zero(x->dtype, kiln_data(x) + i * size))
            continue;
        int64_t rest = i;
        for (int d = x->ndim - 1; d >= 0; d--) {
            to[d * found + column] = rest % x->shape[d];
            rest /= x->shape[d];
        }
        column++;
    }
}

int kiln_nonzero(const kiln_value *value, kiln_value *result)
{
    const kiln_tensor *x;
    kiln_value packed;
    int code = kiln_packed(value, &x, &packed);
    if (code != KILN_OK)
        return code;
    int64_t count = 0, found = 0;
    if ((code = kiln_check_number_type("nonzero", x->dtype)) == KILN_OK) {
        count = kiln_element_count(x);
        found = count_nonzero(x, count);
        code = kiln_make_tensor((const int64_t[]){x->ndim, found}, 2, index_dtype, result);
    }
    if (code == KILN_OK)
        write_positions(x, count, found, (int64_t *)(void *)kiln_data(kiln_tensor_of(result)));
    kiln_release(&packed);
    return code;
}

/* ---- compress ----------------------------------------------------------------------------- */

/* A tensor seen as [outer, length, inner] around an axis, `inner` in bytes; if flat, as
 * [1, number of elements, bytes of an element]. */
typedef struct axis_view {
    int64_t outer, length, inner;
} axis_view;

static int view_axis(const kiln_tensor *x, int axis, int flat, axis_view *view)
{
    *view = (axis_view){1, kiln_element_count(x), kiln_element_bytes(x->dtype)};
    if (flat)
        return KILN_OK;
    if (axis < 0)
        axis += x->ndim;
    if (axis < 0 || axis >= x->ndim)
        return kiln_fail(KILN_ERROR_RANK, "axis %d of a tensor with %d dimensions", axis, x->ndim);
    view->length = x->shape[axis];
    for (int d = 0; d < axis; d++)
        view->outer *= x->shape[d];
    for (int d = axis + 1; d < x->ndim; d++)
        view->inner *= x->shape[d];
    return KILN_OK;
}

static int compress(const kiln_tensor *x, const kiln_tensor *condition, int axis, int flat,
                    kiln_value *result)
{
    int64_t shape[KILN_MAX_RANK];
    axis_view view;
    int code = view_axis(x, axis, flat, &view);
    if (code != KILN_OK)
        return code;
    if (condition->dtype.code != KILN_CODE_BOOL || !kiln_is_number(condition->dtype) ||
        condition->ndim != 1 || condition->shape[0] > view.length)
        return kiln_fail(KILN_ERROR_SHAPE,
                         "compress: the condition must be a vector of at most %lld bools",
                         (long long)view.length);
    const char *keep = kiln_data(condition);
    const int64_t asked = condition->shape[0], kept = count_nonzero(condition, asked);
    for (int d = 0; d < x->ndim; d++)
        shape[d] = x->shape[d];
    /* NOLINTNEXTLINE(clang-analyzer-security.ArrayBound): view_axis() has checked the axis */
    shape[flat ? 0 : axis < 0 ? axis + x->ndim : axis] = kept;
    if ((code = kiln_make_tensor(shape, flat ? 1 : x->ndim, x->dtype, result)) != KILN_OK)
        return code;
    char *to = kiln_data(kiln_tensor_of(result));
    const int64_t outer = kiln_element_count(kiln_tensor_of(result)) == 0 ? 0 : view.outer;
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < asked; i++)
            if (keep[i]) {
                memcpy(to, kiln_data(x) + (o * view.length + i) * view.inner, (size_t)view.inner);
                to += view.inner;
            }
    return KILN_OK;
}

int kiln_compress(const kiln_value *x, const kiln_value *condition, int axis, int flat,
                  kiln_value *result)
{
    const kiln_tensor *data, *keep;
    kiln_value a, b = kiln_nothing;
    int code = kiln_packed(x, &data, &a);
    if (code == KILN_OK && (code = kiln_packed(condition, &keep, &b)) == KILN_OK)
        code = compress(data, keep, axis, flat, result);
    return done(code, &a, &b);
}

/* ---- slice_dynamic ------------------------------------------------------------------------ */

/* Read at most KILN_MAX_RANK integers of a shape, a tuple or a tensor; *count is -1 for
 * KILN_NONE. */
static int read_integers(const kiln_value *value, const char *op, const char *what, int64_t *to,
                         int *count)
{
    const int64_t *sizes = kiln_shape_of(value, count);
    const kiln_value *items = kiln_items_of(value, count);
    const kiln_tensor *t;
    kiln_value packed;
    if (value->kind == KILN_NONE) {
        *count = -1;
        return KILN_OK;
    }
    if (sizes != NULL && *count <= KILN_MAX_RANK) {
        for (int i = 0; i < *count; i++)
            to[i] = sizes[i];
        return KILN_OK;
    }
    if (items != NULL && *count <= KILN_MAX_RANK) {
        for (int i = 0; i < *count; i++) {
            if (items[i].kind != KILN_INT)
                return kiln_fail(KILN_ERROR_ARGUMENT, "%s: %s must be integers, received %s",
                                 op, what, kiln_kind_name(&items[i]));
            to[i] = items[i].as.integer;
        }
        return KILN_OK;
    }
    int code = kiln_packed(value, &t, &packed);
    if (code != KILN_OK)
        return code;
    const int64_t n = kiln_element_count(t);
    if (t->dtype.code != KILN_CODE_INT || !kiln_is_number(t->dtype) || n > KILN_MAX_RANK)
        code = kiln_fail(KILN_ERROR_DTYPE, "%s: %s must be at most %d signed integers", op,
                         what, KILN_MAX_RANK);
    for (int64_t i = 0; code == KILN_OK && i < n; i++)
        to[i] = kiln_load_int(t->dtype, kiln_data(t) + i * kiln_element_bytes(t->dtype));
    *count = (int)n;
    kiln_release(&packed);
    return code;
}

typedef struct slicing {
    int64_t start[KILN_MAX_RANK], step[KILN_MAX_RANK], length[KILN_MAX_RANK];
} slicing;

static int64_t clamp(int64_t value, int64_t low, int64_t high)
{
    return value < low ? low : value > high ? high : value;
}

static void slice_axis(slicing *s, int axis, int64_t size, int64_t start, int64_t end, int64_t step)
{
    start += start < 0 ? size : 0;
    end += end < 0 ? size : 0;
    if (step > 0) {
        start = clamp(start, 0, size);
        end = clamp(end, 0, size);
        s->length[axis] = start < end ? (end - start - 1) / step + 1 : 0;
    } else {
        start = clamp(start, -1, size - 1);
        end = clamp(end, -1, size - 1);
        /* cppcheck-suppress zerodivcond ; no step is 0 */
        s->length[axis] = start > end ? (start - end - 1) / (step == INT64_MIN ? INT64_MAX : -step) + 1
                                      : 0;
    }
    s->start[axis] = start;
    s->step[axis] = step;
}

static int plan_slices(const kiln_tensor *x, const kiln_value *const *operands, const char *node,
                       slicing *s)
{
    static const char *const names[] = {"starts", "ends", "axes", "steps"};
    int64_t values[4][KILN_MAX_RANK];
    int counts[4];
    for (int k = 0; k < 4; k++) {
        const int code = read_integers(operands[k], node, names[k], values[k], &counts[k]);
        if (code != KILN_OK)
            return code;
        if (k > 0 && counts[k] != counts[0] && (k == 1 || counts[k] >= 0))
            return kiln_fail(KILN_ERROR_COUNT, "%s: %d starts, %d %s", node, counts[0],
                             counts[k], names[k]);
    }
    for (int d = 0; d < x->ndim; d++)
        slice_axis(s, d, x->shape[d], 0, x->shape[d], 1);
    for (int i = 0; i < counts[0]; i++) {
        const int64_t asked = counts[2] < 0 ? i : values[2][i];
        const int64_t axis = asked < 0 ? asked + x->ndim : asked;
        const int64_t step = counts[3] < 0 ? 1 : values[3][i];
        if (axis < 0 || axis >= x->ndim)
            return kiln_fail(KILN_ERROR_RANK, "%s: axis %lld of a tensor with %d dimensions", node,
                             (long long)asked, x->ndim);
        if (step == 0)
            return kiln_fail(KILN_ERROR_SHAPE, "%s: the step of axis %lld is 0", node,
                             (long long)asked);
        slice_axis(s, (int)axis, x->shape[axis], values[0][i], values[1][i], step);
    }
    return KILN_OK;
}

static char *copy_slice(const kiln_tensor *x, const slicing *s, int dim, const char *from, char *to)
{
    int64_t stride = kiln_element_bytes(x->dtype);
    if (dim == x->ndim) {
        memcpy(to, from, (size_t)stride);
        return to + stride;
    }
    for (int d = x->ndim - 1; d > dim; d--)
        stride *= x->shape[d];
    if (dim == x->ndim - 1 && s->step[dim] == 1) {
        memcpy(to, from + s->start[dim] * stride, (size_t)(s->length[dim] * stride));
        return to + s->length[dim] * stride;
    }
    for (int64_t i = 0; i < s->length[dim]; i++)
        to = copy_slice(x, s, dim + 1, from + (s->start[dim] + i * s->step[dim]) * stride, to);
    return to;
}

int kiln_slice_dynamic(const kiln_value *value, const kiln_value *starts, const kiln_value *ends,
                       const kiln_value *axes, const kiln_value *steps, const char *node,
                       kiln_value *result)
{
    const kiln_value *const operands[] = {starts, ends, axes, steps};
    const kiln_tensor *x;
    kiln_value packed;
    slicing s = {{0}, {0}, {0}};
    int code = kiln_packed(value, &x, &packed);
    if (code != KILN_OK)
        return code;
    if ((code = plan_slices(x, operands, node, &s)) == KILN_OK)
        code = kiln_make_tensor(s.length, x->ndim, x->dtype, result);
    if (code == KILN_OK && kiln_element_count(kiln_tensor_of(result)) != 0)
        copy_slice(x, &s, 0, kiln_data(x), kiln_data(kiln_tensor_of(result)));
    kiln_release(&packed);
    return code;
}

/* ---- sized -------------------------------------------------------------------------------- */

/* The integers of a value as text, "3" or "[1, -2]"; "..." stands for what `text` has no space for. */
static void show_integers(const kiln_value *value, char *text, size_t size)
{
    int64_t numbers[KILN_MAX_RANK];
    int count = 0;
    snprintf(text, size, "...");
    if (read_integers(value, "sized", "shown", numbers, &count) != KILN_OK || count < 0)
        return;
    size_t used = 0;
    for (int i = 0; i < count; i++) {
        const char *before = i > 0 ? ", " : count > 1 ? "[" : "";
        const char *after = i + 1 == count && count > 1 ? "]" : "";
        const int n = snprintf(text + used, size - used, "%s%lld%s", before,
                               (long long)numbers[i], after);
        if (n < 0 || (size_t)n >= size - used) {
            snprintf(text + used, size - used, "...");
            return;
        }
        used += (size_t)n;
    }
    if (count == 0)
        snprintf(text, size, "[]");
}

int kiln_sized(const kiln_value *x, const kiln_value *shown, const char *what,
               const char *expected, kiln_value *result)
{
    int64_t shape[KILN_MAX_RANK + 1];
    int count = 0;
    const int code = read_integers(x, "sized", "x", shape, &count);
    if (code != KILN_OK)
        return code;
    if (count < 0 || count >= KILN_MAX_RANK)
        return kiln_fail(KILN_ERROR_RANK, "sized: expected at most %d sizes", KILN_MAX_RANK - 1);
    for (int i = 0; i < count; i++)
        if (shape[i] < 0) {
            char text[200];
            show_integers(shown->kind == KILN_NONE ? x : shown, text, sizeof text);
            if (what[0] != 0)
                return kiln_fail(KILN_ERROR_SHAPE, "%s is %s, expected %s", what, text, expected);
            return kiln_fail(KILN_ERROR_SHAPE, "sized: size %d is %lld, expected 0 or more", i,
                             (long long)shape[i]);
        }
    shape[count] = 0;
    return kiln_make_tensor(shape, count + 1, (kiln_dtype){KILN_CODE_BOOL, 8, 1}, result);
}
