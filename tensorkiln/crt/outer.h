/* outer.h - what the generated C of outer functions is written with. Every local value of such a
 * function owns its reference; all are given back in one place, on success and on failure. */
#ifndef KILN_OUTER_H
#define KILN_OUTER_H

#include "crt.h"

/* ---- objects: layouts of tvm-ffi ----------------------------------------------------------- */
typedef struct kiln_object {
    uint64_t counts; /* strong references in the low half, weak ones (all strong are one) above */
    int32_t kind;
    uint32_t padding;
    void (*release)(void *self, int what); /* 1: give back the contents, 2: the memory */
} kiln_object;

typedef struct kiln_tensor_object {
    kiln_object head;
    kiln_tensor tensor;
    void *managed; /* the DLManagedTensor that owns the data; NULL: it lies behind this */
} kiln_tensor_object;

typedef struct kiln_string_object { /* KILN_BYTES too */
    kiln_object head;
    const char *data;
    size_t size;
} kiln_string_object;

typedef struct kiln_shape_object {
    kiln_object head;
    const int64_t *data;
    size_t size;
} kiln_shape_object;

typedef struct kiln_tuple_object { /* KILN_LIST too */
    kiln_object head;
    kiln_value *data;
    int64_t size;
    int64_t capacity;
    void (*free_data)(void *);
} kiln_tuple_object;

typedef int (*kiln_safe_call)(void *self, const kiln_value *args, int32_t count, kiln_value *result);

typedef struct kiln_function_object {
    kiln_object head;
    kiln_safe_call call; /* fails by the rules of tvm-ffi */
    void *reserved;
} kiln_function_object;

#define KILN_LAYOUT(name, condition) typedef char kiln_layout_##name[(condition) ? 1 : -1]
KILN_LAYOUT(value, sizeof(kiln_value) == 16 && offsetof(kiln_value, as) == 8);
KILN_LAYOUT(object, sizeof(kiln_object) == 24 && offsetof(kiln_object, kind) == 8);
KILN_LAYOUT(tensor, sizeof(kiln_tensor) == 48 && offsetof(kiln_tensor_object, tensor) == 24);
KILN_LAYOUT(string, offsetof(kiln_string_object, data) == 24 && sizeof(kiln_string_object) == 40);
KILN_LAYOUT(shape, offsetof(kiln_shape_object, data) == 24 && sizeof(kiln_shape_object) == 40);
KILN_LAYOUT(tuple, offsetof(kiln_tuple_object, free_data) == 48);
KILN_LAYOUT(function, offsetof(kiln_function_object, call) == 24 &&
                          sizeof(kiln_function_object) == 40);

/* ---- value.c: objects and their references ------------------------------------------------- */
/* Memory for an object with one reference; NULL and an error when there is none. */
void *kiln_new_object(size_t bytes, int32_t kind, void (*release)(void *self, int what));
void kiln_free_object(void *object);
kiln_value kiln_object_value(void *object);
/* A reference of one's own to what an argument is: views are copied. */
int kiln_take(const kiln_value *value, kiln_value *taken);
int kiln_item(const kiln_value *tuple, int index, kiln_value *item);
/* The items of a tuple of just that many, into values that are given back first. */
int kiln_spread(const kiln_value *tuple, int count, kiln_value *items);
/* Whether a bool, a number or a tensor of one element is true. */
int kiln_truth(const kiln_value *value, int *truth);
/* What a value is, for messages. */
const char *kiln_kind_name(const kiln_value *value);

extern const kiln_value kiln_nothing;

/* A tensor that lives as long as the step that uses it. */
static inline kiln_value kiln_view(kiln_tensor *tensor)
{
    kiln_value v = {KILN_TENSOR, 0, {0}};
    v.as.pointer = tensor;
    return v;
}

static inline kiln_value kiln_int(int64_t integer)
{
    kiln_value v = {KILN_INT, 0, {0}};
    v.as.integer = integer;
    return v;
}

static inline kiln_value kiln_unsigned(uint64_t integer)
{
    kiln_value v = kiln_int((int64_t)integer);
    v.kind = integer >> 63 != 0 ? KILN_UINT : KILN_INT;
    return v;
}

static inline kiln_value kiln_bool(int truth)
{
    kiln_value v = {KILN_BOOL, 0, {0}};
    v.as.integer = truth != 0;
    return v;
}

static inline kiln_value kiln_real(double real)
{
    kiln_value v = {KILN_FLOAT, 0, {0}};
    v.as.real = real;
    return v;
}

/* ---- tensor.c: tensors as objects ---------------------------------------------------------- */
int kiln_copy_tensor(const kiln_tensor *tensor, kiln_value *copy);
/* KILN_OK for a tensor that the functions of this runtime may read: at most KILN_MAX_RANK sizes, none
 * below 0, which multiply to what memory can hold, and data unless it is empty. */
int kiln_check_tensor(const kiln_tensor *tensor);
/* Elements of a tensor that was checked. */
int64_t kiln_element_count(const kiln_tensor *tensor);
/* A checked tensor without gaps: the value's own, or a packed copy, which `*packed` then owns. */
int kiln_packed(const kiln_value *value, const kiln_tensor **tensor, kiln_value *packed);
static inline char *kiln_data(const kiln_tensor *tensor)
{
    return (char *)tensor->data + tensor->byte_offset;
}

/* ---- match.c: values against types --------------------------------------------------------- */
enum {
    KILN_IS_TENSOR = 1,
    KILN_IS_TUPLE,
    KILN_IS_SHAPE,
    KILN_IS_INT,
    KILN_IS_BOOL,
    KILN_IS_FLOAT,
    KILN_IS_STRING,
    KILN_IS_FUNCTION,
    KILN_IS_ANYTHING
};

typedef struct kiln_type {
    int kind;
    int count;        /* dimensions, fields or sizes; -1: any */
    kiln_dtype dtype; /* bits 0: any */
    const char *text; /* for messages: "float32 [n, 4]" */
    const struct kiln_type *const *fields;
} kiln_type;

/* Checks a value against a type and writes the sizes of all its dimensions, in order, into `sizes`
 * where they hold -1; others must agree. A tuple of integers becomes a shape where one is expected.
 * `what` is for messages: "argument 'x'". */
int kiln_match(kiln_value *value, const kiln_type *type, int64_t *sizes, const char *function,
               const char *what);

/* ---- outer.c: the frame of an outer function ----------------------------------------------- */
typedef struct kiln_outer {
    const char *name;
    int n_params;
    int (*run)(const kiln_value *captured, const kiln_value *args, kiln_value *result);
} kiln_outer;

int kiln_enter(const char *function, kiln_value *locals, size_t bytes);
/* Gives all locals back; adds to the sentence of a failure where it happened. */
int kiln_leave(const char *function, const char *at, int code, kiln_value *locals, size_t bytes);
/* One step of an outer function that binds `name`. */
#define KILN_TRY(name, step)                                                                        \
    do {                                                                                            \
        if ((code = (step)) != KILN_OK) {                                                           \
            at = name;                                                                              \
            goto end;                                                                               \
        }                                                                                           \
    } while (0)

int kiln_invoke_outer(const kiln_outer *outer, const kiln_value *captured, const kiln_value *args,
                      int count, kiln_value *result);
/* Runs a graph function, giving its one output or a tuple of them; or, when every parameter is
 * given, any function, giving nothing. */
int kiln_run_function(const kiln_function *function, const kiln_value *args, int count,
                      int as_tuple, kiln_value *result);
/* The body of the __tvm_ffi_ entry of an outer function. */
int kiln_outer_ffi_call(const kiln_outer *outer, const kiln_value *args, int32_t count,
                        kiln_value *result);

/* ---- closure.c: functions as values -------------------------------------------------------- */
int kiln_make_closure(const kiln_outer *outer, const kiln_value *captured, int count,
                      kiln_value *made);
int kiln_make_native(const kiln_function *function, int as_tuple, kiln_value *made);

/* ---- registry.c: functions by name --------------------------------------------------------- */
int kiln_call_packed(const char *name, const kiln_value *args, int count, kiln_value *result);

/* ---- storage.c: storages that executors keep ------------------------------------------------ */
/* call_packed's "alloc_cached_storage_set": a function that makes a tuple of storages, its shape if
 * it takes one, and a key; the set is the executor's own, and idle when it is given out. */
int kiln_cached_storage_set(const kiln_value *args, int count, kiln_value *result);
/* A tuple of storages as a tensor of their addresses. */
int kiln_make_set(const kiln_value *tuple, kiln_value *set);

/* ---- foreign.c: what tvm-ffi raised -------------------------------------------------------- */
/* The failure of a function that is not ours: its words become our sentence. */
int kiln_foreign_failure(void);
/* A function of tvm-ffi's global table, or KILN_NONE. */
void kiln_find_foreign(const char *name, kiln_value *found);

/* ---- dynamic.c, unique.c, nms.c: results whose size the data decides ------------------------ */
int kiln_nonzero(const kiln_value *x, kiln_value *result);
int kiln_compress(const kiln_value *x, const kiln_value *condition, int axis, int flat,
                  kiln_value *result);
/* `axes` and `steps` may be KILN_NONE. */
int kiln_slice_dynamic(const kiln_value *x, const kiln_value *starts, const kiln_value *ends,
                       const kiln_value *axes, const kiln_value *steps, kiln_value *result);
/* A tuple of values, first positions, positions in the values, counts. */
int kiln_unique(const kiln_value *x, int axis, int flat, int sorted, kiln_value *result);
/* `max_output`, `iou_threshold` and `score_threshold` may be KILN_NONE. */
int kiln_non_max_suppression(const kiln_value *boxes, const kiln_value *scores,
                             const kiln_value *max_output, const kiln_value *iou_threshold,
                             const kiln_value *score_threshold, int center, kiln_value *result);

#endif
