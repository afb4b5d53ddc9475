/* Operators whose result's size the data decides, and values against types, with every element type at
 * every address, with tensors that lack their data or shape, and with sizes of which one is 0: a result
 * or a typed error, at once. Linked with files of crt; status 0 when nothing was wrong. */
#include "element.h"
#include <stdio.h>
#include <string.h>

/* What those files need of the others. */
const kiln_library kiln_this_library = {.name = "builtins"};
int kiln_nonzero(const kiln_value *value, kiln_value *result);
int kiln_append(const kiln_value *stack, const kiln_value *rows, kiln_value *result);
int kiln_unique(const kiln_value *value, int axis, int flat, int sorted, kiln_value *result);
int kiln_compress(const kiln_value *x, const kiln_value *condition, int axis, int flat,
                  kiln_value *result);
int kiln_slice_dynamic(const kiln_value *x, const kiln_value *starts, const kiln_value *ends,
                       const kiln_value *axes, const kiln_value *steps, const char *node,
                       kiln_value *result);
int kiln_sized(const kiln_value *x, const kiln_value *shown, const char *what,
               const char *expected, kiln_value *result);
int kiln_non_max_suppression(const kiln_value *boxes, const kiln_value *scores,
                             const kiln_value *max_output, const kiln_value *iou_threshold,
                             const kiln_value *score_threshold, int center, kiln_value *result);

enum { WHOLE, NO_DATA, NO_SHAPE, N_FORMS };
static const kiln_dtype types[] = {
    {0, 8, 1},  {0, 16, 1}, {0, 32, 1}, {0, 64, 1},  {1, 8, 1},  {1, 16, 1}, {1, 32, 1}, {1, 64, 1},
    {2, 16, 1}, {2, 32, 1}, {2, 64, 1}, {4, 16, 1},  {6, 8, 1},  {0, 4, 1},  {0, 12, 1}, {1, 24, 1},
    {17, 4, 2}, {2, 0, 1},  {2, 32, 0}, {5, 128, 1}, {2, 32, 4}, {6, 1, 1},
};
static char memory[4096];
static int wrong;

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            printf("line %d: %s; %s\n", __LINE__, #condition, kiln_last_error());                  \
            wrong = 1;                                                                             \
        }                                                                                          \
    } while (0)

static kiln_tensor tensor(kiln_dtype dtype, int ndim, int64_t *shape, int form, int offset)
{
    const kiln_tensor made = {form == NO_DATA ? NULL : memory, 1, 0, ndim, dtype,
                              form == NO_SHAPE ? NULL : shape, NULL, (uint64_t)offset};
    return made;
}

/* Whether a call did what it should; its result is given back. */
static int gave(int code, int should, kiln_value *result)
{
    kiln_release(result);
    return (code == KILN_OK) == should;
}

static void operators(kiln_dtype dtype, int form, int offset)
{
    int64_t shape[] = {2, 3}, three[] = {1, 3}, two[] = {2}, one[] = {1};
    const int is_whole = form == WHOLE, is_number = is_whole && kiln_is_number(dtype);
    kiln_tensor x = tensor(dtype, 2, shape, form, offset), index = tensor(dtype, 1, one, form, offset);
    kiln_tensor keep = tensor((kiln_dtype){6, 8, 1}, 1, two, WHOLE, offset);
    kiln_tensor f = tensor((kiln_dtype){2, 32, 1}, 2, shape, WHOLE, offset);
    const kiln_value v = kiln_view(&x), i = kiln_view(&index), k = kiln_view(&keep), g = kiln_view(&f);
    kiln_value r = kiln_nothing;
    CHECK(gave(kiln_nonzero(&v, &r), is_number, &r));
    kiln_tensor row = tensor(dtype, 2, three, form, offset);
    const kiln_value last = kiln_view(&row);
    CHECK(gave(kiln_append(&v, &last, &r), is_whole && kiln_has_whole_bytes(dtype), &r));
    CHECK(gave(kiln_append(&v, &i, &r), 0, &r));
    CHECK(gave(kiln_append(&i, &v, &r), 0, &r));
    CHECK(gave(kiln_append(&last, &v, &r), is_whole && kiln_has_whole_bytes(dtype), &r));
    CHECK(gave(kiln_unique(&v, 0, 1, 1, &r), is_number, &r));
    CHECK(gave(kiln_unique(&v, 1, 0, 0, &r), is_number, &r));
    CHECK(gave(kiln_compress(&v, &k, 0, 0, &r), is_whole && kiln_has_whole_bytes(dtype), &r));
    CHECK(gave(kiln_slice_dynamic(&g, &i, &i, &kiln_nothing, &kiln_nothing, "", &r),
               is_number && dtype.code == KILN_CODE_INT, &r));
    CHECK(gave(kiln_sized(&i, &kiln_nothing, "", "", &r), is_number && dtype.code == KILN_CODE_INT, &r));
    CHECK(gave(kiln_non_max_suppression(&v, &v, &i, &i, &i, 0, &r), 0, &r));
}

/* A refusal of what cannot be read names the function and the argument. */
static void matching(kiln_dtype dtype, int form, int offset)
{
    static const kiln_type wanted[] = {
        {KILN_IS_TENSOR, 1, {0, 0, 0}, "a tensor", NULL}, {KILN_IS_SHAPE, -1, {0, 0, 0}, "a shape", NULL},
        {KILN_IS_INT, -1, {0, 64, 1}, "an int", NULL},    {KILN_IS_FLOAT, -1, {2, 64, 1}, "a float", NULL},
        {KILN_IS_BOOL, -1, {6, 8, 1}, "a bool", NULL},
    };
    for (size_t t = 0; t < sizeof wanted / sizeof *wanted; t++)
        for (int ndim = 0; ndim < 2; ndim++) {
            int64_t sizes[] = {-1}, one[] = {1};
            kiln_tensor x = tensor(dtype, ndim, one, form, offset);
            kiln_value v = kiln_view(&x);
            const int code = kiln_match(&v, &wanted[t], sizes, "f", "argument 'x'");
            CHECK(code == KILN_OK || strncmp(kiln_last_error(), "f: argument 'x' must be ", 24) == 0);
            CHECK(code != KILN_OK || form == WHOLE || (form == NO_SHAPE && ndim == 0));
            kiln_release(&v);
        }
}

/* Two boxes of which the second, better one hides the first. */
static void boxes_at(int offset)
{
    static const float boxes[] = {0, 0, 1, 1, 0, 0, 1, .9f}, scores[] = {.5f, .9f};
    int64_t of_boxes[] = {1, 2, 4}, of_scores[] = {1, 1, 2};
    const kiln_dtype f32 = {2, 32, 1};
    kiln_tensor b = tensor(f32, 3, of_boxes, WHOLE, offset), s = tensor(f32, 3, of_scores, WHOLE, 64 + offset);
    const kiln_value bv = kiln_view(&b), sv = kiln_view(&s), half = kiln_real(.5);
    kiln_value r = kiln_nothing, most = kiln_int(10);
    memcpy(memory + offset, boxes, sizeof boxes);
    memcpy(memory + 64 + offset, scores, sizeof scores);
    CHECK(kiln_non_max_suppression(&bv, &sv, &most, &half, &kiln_nothing, 0, &r) == KILN_OK);
    const kiln_tensor *t = kiln_tensor_of(&r);
    CHECK(t->shape[0] == 1 && ((const int64_t *)t->data)[2] == 1);
    kiln_release(&r);
    most = kiln_real(__builtin_nan(""));
    CHECK(kiln_non_max_suppression(&bv, &sv, &most, &half, &kiln_nothing, 0, &r) == KILN_OK);
    CHECK(kiln_tensor_of(&r)->shape[0] == 0);
    kiln_release(&r);
}

/* One of three sizes is 0, the others are as large as they like: nobody may walk along them. */
static void empty(int64_t a, int64_t b, int64_t c)
{
    int64_t shape[] = {a, b, c}, of_boxes[] = {a, b, 4}, of_scores[] = {a, c, b}, two[] = {2};
    int64_t zeros[] = {0, 0, 0}, ends[] = {INT64_MAX, INT64_MAX, INT64_MAX};
    const kiln_dtype f32 = {2, 32, 1};
    kiln_tensor x = tensor((kiln_dtype){0, 8, 1}, 3, shape, WHOLE, 0);
    kiln_tensor boxes = tensor(f32, 3, of_boxes, WHOLE, 0), scores = tensor(f32, 3, of_scores, WHOLE, 0);
    kiln_tensor keep = tensor((kiln_dtype){6, 8, 1}, 1, two, WHOLE, 0);
    x.strides = boxes.strides = scores.strides = zeros;
    const kiln_value v = kiln_view(&x), k = kiln_view(&keep), bv = kiln_view(&boxes);
    const kiln_value sv = kiln_view(&scores), most = kiln_int(INT64_MAX), half = kiln_real(.5);
    kiln_value r = kiln_nothing, from = kiln_nothing, to = kiln_nothing;
    int code = kiln_non_max_suppression(&bv, &sv, &most, &half, &kiln_nothing, 0, &r);
    CHECK(code == KILN_ERROR_MEMORY || (code == KILN_OK && kiln_tensor_of(&r)->shape[0] == 0));
    kiln_release(&r);
    for (int axis = 0; axis < 3; axis++) {
        /* A result of gigabytes is one, where there is memory for it. */
        code = shape[axis] == (int64_t)1 << 31 ? KILN_OK : kiln_unique(&v, axis, 0, axis & 1, &r);
        CHECK(code == KILN_OK || code == KILN_ERROR_MEMORY);
        kiln_release(&r);
        code = kiln_compress(&v, &k, axis, 0, &r);
        CHECK(code == KILN_OK || code == KILN_ERROR_MEMORY || shape[axis] < 2);
        kiln_release(&r);
    }
    code = kiln_nonzero(&v, &r);
    CHECK(code == KILN_OK || code == KILN_ERROR_MEMORY);
    kiln_release(&r);
    CHECK(kiln_make_shape(zeros, 3, &from) == KILN_OK && kiln_make_shape(ends, 3, &to) == KILN_OK);
    code = kiln_slice_dynamic(&v, &from, &to, &kiln_nothing, &kiln_nothing, "", &r);
    CHECK(code == KILN_OK || code == KILN_ERROR_MEMORY);
    kiln_release(&r);
    kiln_release(&from);
    kiln_release(&to);
}

static int holds(const kiln_value *stack, int64_t rows, int32_t first, int32_t last)
{
    const kiln_tensor *t = kiln_tensor_of(stack);
    const int32_t *data = (const int32_t *)t->data;
    int ok = t->ndim == 2 && t->shape[0] == rows && t->shape[1] == 2 && t->strides[0] == 2;
    for (int64_t i = 0; ok && i < rows; i++) {
        const int32_t want = i == rows - 1 ? last : first + (int32_t)i;
        ok = data[2 * i] == want && data[2 * i + 1] == -want;
    }
    return ok;
}

/* A stack keeps its rows whoever appends to it, and outlives those it was made of. */
static void stacks(void)
{
    enum { ROWS = 3000 };
    static kiln_value stack[ROWS + 1];
    int64_t none[] = {0, 2}, two[] = {1, 2};
    int32_t pair[] = {0, 0};
    const kiln_dtype i32 = {0, 32, 1};
    kiln_tensor row = {pair, 1, 0, 2, i32, two, NULL, 0};
    const kiln_value one = kiln_view(&row);
    const int64_t before = kiln_live_objects();
    kiln_value other = kiln_nothing, again = kiln_nothing;
    CHECK(kiln_make_tensor(none, 2, i32, &stack[0]) == KILN_OK);
    for (int i = 0; i < ROWS; i++) {
        pair[0] = i;
        pair[1] = -i;
        CHECK(kiln_append(&stack[i], &one, &stack[i + 1]) == KILN_OK);
    }
    for (int i = 0; i <= ROWS; i++)
        CHECK(holds(&stack[i], i, 0, i - 1));
    pair[0] = 77;
    pair[1] = -77;
    CHECK(kiln_append(&stack[5], &one, &other) == KILN_OK && holds(&other, 6, 0, 77));
    CHECK(kiln_append(&stack[ROWS], &one, &again) == KILN_OK && holds(&again, ROWS + 1, 0, 77));
    CHECK(holds(&stack[6], 6, 0, 5));
    for (int i = 0; i <= ROWS; i += 2)
        kiln_release(&stack[i]);
    for (int i = 1; i <= ROWS; i += 2) {
        CHECK(holds(&stack[i], i, 0, i - 1));
        kiln_release(&stack[i]);
    }
    CHECK(holds(&again, ROWS + 1, 0, 77));
    kiln_release(&again);
    kiln_release(&other);
    CHECK(kiln_live_objects() == before);
}

int main(void)
{
    static const int64_t sizes[] = {0, 1, 2, (int64_t)1 << 31, (int64_t)1 << 50, (int64_t)1 << 60,
                                    INT64_MAX};
    const int n = sizeof sizes / sizeof *sizes;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (int form = WHOLE; form < N_FORMS; form++)
            for (int offset = 0; offset < 9; offset++) {
                operators(types[t], form, offset);
                matching(types[t], form, offset);
            }
    for (int offset = 0; offset < 5; offset++)
        boxes_at(offset);
    stacks();
    for (int i = 0; i < n * n * n; i++) {
        const int64_t a = sizes[i / (n * n)], b = sizes[i / n % n], c = sizes[i % n];
        if (a == 0 || b == 0 || c == 0)
            empty(a, b, c);
    }
    CHECK(kiln_live_objects() == 0);
    return wrong;
}
