/* The operator unique, as ONNX Unique: the unique elements of a tensor, or slices along an axis.
 * Both are handled as unique rows. */
#include "element.h"
#include <stdlib.h>

typedef struct unique_rows {
    kiln_dtype dtype;
    int64_t count;    /* number of rows */
    int64_t length;   /* elements of a row */
    int64_t size;     /* bytes of an element */
    const char *data; /* row by row */
} unique_rows;

/* Compare numbers; NaNs are equal to each other and greater than all numbers. */
static int compare_reals(double a, double b)
{
    const int a_nan = a != a, b_nan = b != b;
    return a_nan || b_nan ? a_nan - b_nan : (a > b) - (a < b);
}

static int compare_elements(kiln_dtype dtype, const char *a, const char *b)
{
    if (kiln_is_real(dtype))
        return compare_reals(kiln_load_real(dtype, a), kiln_load_real(dtype, b));
    if (dtype.code == KILN_CODE_INT) {
        const int64_t x = kiln_load_int(dtype, a), y = kiln_load_int(dtype, b);
        return (x > y) - (x < y);
    }
    const uint64_t x = kiln_load_uint(dtype, a), y = kiln_load_uint(dtype, b);
    return (x > y) - (x < y);
}

static int compare_rows(const unique_rows *rows, int64_t i, int64_t j)
{
    const int64_t bytes = rows->length * rows->size;
    for (int64_t at = 0; at < bytes; at += rows->size) {
        const int c = compare_elements(rows->dtype, rows->data + i * bytes + at,
                                       rows->data + j * bytes + at);
        if (c != 0)
            return c;
    }
    return 0;
}

/* Sort row numbers in `order` with a bottom-up merge sort, which is stable; `other` is scratch. */
static void sort_rows(const unique_rows *rows, int64_t *order, int64_t *other)
{
    int64_t *from = order, *to = other;
    if (rows->length == 0)
        return; /* all rows are equal, and there may be very many */
    for (int64_t width = 1; width < rows->count; width *= 2) {
        for (int64_t low = 0; low < rows->count; low += 2 * width) {
            const int64_t middle = kiln_min(low + width, rows->count);
            const int64_t high = kiln_min(low + 2 * width, rows->count);
            int64_t a = low, b = middle;
            for (int64_t k = low; k < high; k++) {
                const int first = a < middle &&
                                  (b >= high || compare_rows(rows, from[a], from[b]) <= 0);
                to[k] = first ? from[a++] : from[b++];
            }
        }
        int64_t *swap = from;
        from = to;
        to = swap;
    }
    if (from != order)
        memcpy(order, from, (size_t)rows->count * sizeof *order);
}

/* Find groups of equal rows: write the first row and the number of rows of each group, and the
 * group of each row; return the number of groups. */
static int64_t group_rows(const unique_rows *rows, const int64_t *order, int64_t *first,
                          int64_t *counts, int64_t *group)
{
    int64_t groups = 0;
    for (int64_t k = 0; k < rows->count; k++) {
        if (k == 0 || compare_rows(rows, order[k - 1], order[k]) != 0) {
            first[groups] = order[k];
            counts[groups] = 0;
            groups++;
        }
        counts[groups - 1]++;
        group[order[k]] = groups - 1;
    }
    return groups;
}

/* Renumber groups in the order of their first rows; `place` and `copy` are scratch, one entry per
 * group. */
static void by_appearance(int64_t rows, int64_t groups, int64_t *first, int64_t *counts,
                          int64_t *group, int64_t *place, int64_t *copy)
{
    int64_t next = 0;
    for (int64_t i = 0; i < rows; i++)
        if (first[group[i]] == i)
            place[group[i]] = next++;
    for (int64_t i = 0; i < rows; i++)
        group[i] = place[group[i]];
    for (int pass = 0; pass < 2; pass++) {
        int64_t *values = pass == 0 ? first : counts;
        memcpy(copy, values, (size_t)groups * sizeof *copy);
        for (int64_t g = 0; g < groups; g++)
            values[place[g]] = copy[g];
    }
}

/* Transpose [outer, count, inner] to [count, outer, inner], so that slices along the axis become
 * rows; with `back` the reverse. */
static void turn(const unique_rows *rows, int64_t count, int64_t outer, const char *from, char *to,
                 int back)
{
    const int64_t inner = outer == 0 ? 0 : rows->length / outer * rows->size;
    if (inner == 0 || count == 0)
        return; /* empty, though another size may be huge */
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < count; i++) {
            const int64_t as_rows = (i * outer + o) * inner, as_tensor = (o * count + i) * inner;
            memcpy(to + (back ? as_tensor : as_rows), from + (back ? as_rows : as_tensor),
                   (size_t)inner);
        }
}

static int index_vector(const int64_t *values, int64_t count, kiln_value *made)
{
    const int code = kiln_make_tensor(&count, 1, (kiln_dtype){KILN_CODE_INT, 64, 1}, made);
    if (code == KILN_OK)
        memcpy(kiln_data(kiln_tensor_of(made)), values, (size_t)count * sizeof *values);
    return code;
}

static int unique_values(const kiln_tensor *x, const unique_rows *rows, int axis, int flat,
                         int64_t outer, const int64_t *first, int64_t groups, char *room,
                         kiln_value *made)
{
    const int64_t bytes = rows->length * rows->size;
    int64_t shape[KILN_MAX_RANK];
    for (int d = 0; d < x->ndim; d++)
        shape[d] = x->shape[d];
    shape[flat ? 0 : axis] = groups;
    const int code = kiln_make_tensor(shape, flat ? 1 : x->ndim, x->dtype, made);
    if (code != KILN_OK)
        return code;
    for (int64_t g = 0; g < groups; g++)
        memcpy(room + g * bytes, rows->data + first[g] * bytes, (size_t)bytes);
    turn(rows, groups, outer, room, kiln_data(kiln_tensor_of(made)), 1);
    return KILN_OK;
}

static int unique(const kiln_tensor *x, int axis, int flat, int sorted, kiln_value *result)
{
    unique_rows rows = {x->dtype, flat ? kiln_element_count(x) : x->shape[axis], 1,
                        kiln_element_bytes(x->dtype), NULL};
    int64_t outer = 1;
    for (int d = 0; !flat && d < x->ndim; d++) {
        outer *= d < axis ? x->shape[d] : 1;
        rows.length *= d != axis ? x->shape[d] : 1;
    }
    /* No product exceeds KILN_MOST_BYTES: kiln_packed() has checked all sizes. */
    const size_t n = (size_t)rows.count, bytes = n * (size_t)(rows.length * rows.size);
    int64_t *integers = kiln_room(rows.count, 6 * sizeof *integers, "rows of unique");
    char *turned = kiln_room((int64_t)bytes, 2, "bytes of unique, twice");
    kiln_value parts[4] = {{0, 0, {0}}};
    int code = integers != NULL && turned != NULL ? KILN_OK : KILN_ERROR_MEMORY;
    if (code == KILN_OK) {
        int64_t *order = integers, *first = order + n, *counts = first + n, *group = counts + n;
        turn(&rows, rows.count, outer, kiln_data(x), turned, 0);
        rows.data = turned;
        for (int64_t i = 0; i < rows.count; i++)
            order[i] = i;
        sort_rows(&rows, order, group + n);
        const int64_t groups = group_rows(&rows, order, first, counts, group);
        if (!sorted)
            by_appearance(rows.count, groups, first, counts, group, group + n, group + 2 * n);
        code = unique_values(x, &rows, axis, flat, outer, first, groups, turned + bytes, &parts[0]);
        code = code == KILN_OK ? index_vector(first, groups, &parts[1]) : code;
        code = code == KILN_OK ? index_vector(group, rows.count, &parts[2]) : code;
        code = code == KILN_OK ? index_vector(counts, groups, &parts[3]) : code;
    }
    code = code == KILN_OK ? kiln_make_tuple(parts, 4, result) : code;
    for (int i = 0; i < 4; i++)
        kiln_release(&parts[i]);
    free(integers);
    free(turned);
    return code;
}

int kiln_unique(const kiln_value *value, int axis, int flat, int sorted, kiln_value *result)
{
    const kiln_tensor *x;
    kiln_value packed;
    int code = kiln_packed(value, &x, &packed);
    if (code != KILN_OK)
        return code;
    if ((code = kiln_check_number_type("unique", x->dtype)) != KILN_OK) {
        kiln_release(&packed);
        return code;
    }
    const int from_zero = axis < 0 ? axis + x->ndim : axis;
    if (!flat && (from_zero < 0 || from_zero >= x->ndim))
        code = kiln_fail(KILN_ERROR_RANK, "unique: axis %d of a tensor with %d dimensions", axis,
                         x->ndim);
    else
        code = unique(x, from_zero, flat, sorted, result);
    kiln_release(&packed);
    return code;
}
