/* outer.h - the functions that the generated C of outer functions calls. Every local value of such
 * a function owns a reference; kiln_leave() releases all of them, on success and on failure.
 *
 * A function that returns int returns KILN_OK, or a code after kiln_fail(). Unless its comment says
 * otherwise it writes its last parameter on success only, and the caller then owns that value. */
#ifndef KILN_OUTER_H
#define KILN_OUTER_H

#include "crt.h"

/* ---- objects, in the layouts of tvm-ffi ------------------------------------------------------ */
typedef struct kiln_object {
    uint64_t counts; /* low half: strong references; high half: weak, +1 while any is strong */
    int32_t kind;
    uint32_t padding;
    void (*release)(void *self, int what); /* 1: release contents, 2: free memory, 3: both */
} kiln_object;

typedef struct kiln_tensor_object {
    kiln_object head;
    kiln_tensor tensor;
    void *managed; /* the DLManagedTensor that owns the data; NULL: data follows this struct */
} kiln_tensor_object;

typedef struct kiln_managed_tensor { /* the layout of DLManagedTensor */
    kiln_tensor tensor;
    void *context;
    void (*deleter)(void *self);
} kiln_managed_tensor;

typedef struct kiln_bytes { /* the layout of TVMFFIByteArray; what a KILN_BYTES_VIEW points to */
    const char *data;
    size_t size;
} kiln_bytes;

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
    kiln_safe_call call; /* tvm-ffi's convention: -1 on failure, with the error raised there */
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

static inline int kiln_is_object(const kiln_value *value)
{
    return value->kind >= 64 && value->as.pointer != NULL;
}

/* ---- values ---------------------------------------------------------------------------------- */
extern const kiln_value kiln_nothing;

/* A view of a tensor, for one step of an outer function: it holds no reference. */
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

/* ---- outer functions, in tables of entry.c --------------------------------------------------- */
typedef struct kiln_outer {
    const char *name;
    int n_params;
    int (*run)(const kiln_value *captured, const kiln_value *args, kiln_value *result);
} kiln_outer;

/* ---- registry.c: functions by name ----------------------------------------------------------- */
/* Call a function by name. It is searched in this order: functions that the host registered,
 * tvm-ffi's global functions, functions of this library, functions of loaded modules. *result must
 * be KILN_NONE. */
int kiln_call_packed(const char *name, const kiln_value *args, int count, kiln_value *result);

/* ---- closure.c: functions as values ---------------------------------------------------------- */
/* The value of an outer function with `count` captured values, which are taken. */
int kiln_make_closure(const kiln_outer *outer, const kiln_value *captured, int count,
                      kiln_value *made);
/* The value of a graph or tensor function; `as_tuple` as for kiln_run_function(). */
int kiln_make_native(const kiln_function *function, int as_tuple, kiln_value *made);

/* ---- match.c: values against types ----------------------------------------------------------- */
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

/* Check a value against a type. `sizes` has an entry for each dimension of each tensor in the type,
 * in order: -1 takes the size found, any other entry must equal it. The value is converted in place
 * where the type asks for it: a tuple or vector of integers to a shape, a 0-dimensional tensor to a
 * number. `what` is for messages: "argument 'x'". */
int kiln_match(kiln_value *value, const kiln_type *type, int64_t *sizes, const char *function,
               const char *what);

/* ---- dynamic.c, append.c, unique.c, nms.c: results whose size the data decides ------------------------- */
int kiln_nonzero(const kiln_value *x, kiln_value *result);
int kiln_compress(const kiln_value *x, const kiln_value *condition, int axis, int flat,
                  kiln_value *result);
/* `axes` and `steps` may be KILN_NONE; `node` is whose bounds these are, for messages. */
int kiln_slice_dynamic(const kiln_value *x, const kiln_value *starts, const kiln_value *ends,
                       const kiln_value *axes, const kiln_value *steps, const char *node,
                       kiln_value *result);
/* A tensor without elements, of shape [x[0], x[1], ..., 0]. A negative one fails with what `what` is
 * and what was `expected` of it, if these are not empty: its value is that of `shown`, or of x if
 * that is KILN_NONE. */
int kiln_sized(const kiln_value *x, const kiln_value *shown, const char *what,
               const char *expected, kiln_value *result);
/* `stack` with `rows`, a tensor of the same rank, after its last one. */
int kiln_append(const kiln_value *stack, const kiln_value *rows, kiln_value *result);
/* As ONNX Unique: a tuple of the unique values or slices, the first index of each, the index into
 * them for each input row, and counts. */
int kiln_unique(const kiln_value *x, int axis, int flat, int sorted, kiln_value *result);
/* `max_output`, `iou_threshold` and `score_threshold` may be KILN_NONE. */
int kiln_non_max_suppression(const kiln_value *boxes, const kiln_value *scores,
                             const kiln_value *max_output, const kiln_value *iou_threshold,
                             const kiln_value *score_threshold, int center, kiln_value *result);

/* ---- outer.c: the frame of an outer function ------------------------------------------------- */
/* Begin the frame of an outer function: set its locals, an array of `bytes` bytes, to KILN_NONE,
 * and fail with KILN_ERROR_DEPTH if calls are nested too deep. */
int kiln_enter(const char *function, kiln_value *locals, size_t bytes);
/* End the frame, also after kiln_enter() failed: release all locals, append to the sentence of a
 * failure that it happened at step `at`, and return `code`. */
int kiln_leave(const char *function, const char *at, int code, kiln_value *locals, size_t bytes);
/* Run one step, which computes the variable `name` of the model; jump to `end` if it fails. */
#define KILN_TRY(name, step)                                                                        \
    do {                                                                                            \
        if ((code = (step)) != KILN_OK) {                                                           \
            at = name;                                                                              \
            goto end;                                                                               \
        }                                                                                           \
    } while (0)

/* Call an outer function. `captured` are the values of a closure, in order; NULL without any.
 * *result is always written: KILN_NONE after a failure. */
int kiln_invoke_outer(const kiln_outer *outer, const kiln_value *captured, const kiln_value *args,
                      int count, kiln_value *result);
/* Run a graph or tensor function. With all parameters given, outputs included, *result is not
 * written. With only the inputs of a graph function, outputs are allocated: *result is a tuple of
 * them, or the only output itself unless `as_tuple` is set. */
int kiln_run_function(const kiln_function *function, const kiln_value *args, int count,
                      int as_tuple, kiln_value *result);
/* The body of the __tvm_ffi_ entry of an outer function. */
int kiln_outer_ffi_call(const kiln_outer *outer, const kiln_value *args, int32_t count,
                        kiln_value *result);

/* ---- storage.c: storages as kernels take them ------------------------------------------------ */
/* Convert a tuple of storages to a tensor of their addresses, as kernels take it. */
int kiln_make_set(const kiln_value *tuple, kiln_value *set);

/* ---- value.c: owned values ------------------------------------------------------------------- */
/* Make an owned value of an argument: retain an object, copy a view (kinds 7 to 9) into an
 * object. */
int kiln_take(const kiln_value *value, kiln_value *taken);
/* Take item `index`, which must be >= 0, of a tuple. */
int kiln_item(const kiln_value *tuple, int index, kiln_value *item);
/* Take all items of a tuple, which must have exactly `count`, into items[], whose old values are
 * released first. */
int kiln_spread(const kiln_value *tuple, int count, kiln_value *items);
/* Write whether a condition is true: a bool, an integer, or a tensor of one bool or integer. */
int kiln_truth(const kiln_value *value, int *truth);

/* ---- tensor.c: tensors as objects ------------------------------------------------------------ */
/* Arguments with views of tensors in place of tensor objects; of more than KILN_MAX_PARAMS, which no
 * function takes, the first. */
void kiln_views(kiln_value *views, const kiln_value *args, int count);
/* Copy a tensor in CPU memory, of any strides, into a new contiguous one. */
int kiln_copy_tensor(const kiln_tensor *tensor, kiln_value *copy);
/* Check that the runtime can read a tensor: at most KILN_MAX_RANK sizes, all >= 0, at most
 * KILN_MOST_BYTES in all, elements of whole bytes, and a data pointer unless it is empty. The
 * device is not checked. */
int kiln_check_tensor(const kiln_tensor *tensor);
/* Number of elements of a tensor that kiln_check_tensor() has accepted. */
int64_t kiln_element_count(const kiln_tensor *tensor);
/* Get the tensor of a value, checked, contiguous and in CPU memory: the value's own, with *packed
 * KILN_NONE, or a copy that *packed owns. *packed is written in either case. */
int kiln_packed(const kiln_value *value, const kiln_tensor **tensor, kiln_value *packed);
static inline char *kiln_data(const kiln_tensor *tensor)
{
    return (char *)tensor->data + tensor->byte_offset;
}

/* ---- foreign.c: errors and functions of tvm-ffi ---------------------------------------------- */
/* After a function of another library failed: copy the error raised in tvm-ffi, if there is one, to
 * this thread's sentence; return KILN_ERROR_CALLBACK. */
int kiln_foreign_failure(void);
/* Look up a function in tvm-ffi's global table; *found is left unchanged if it is not there. */
void kiln_find_foreign(const char *name, kiln_value *found);

/* ---- object.c: objects and their references -------------------------------------------------- */
/* Allocate an object of `bytes` bytes with one reference, 64-byte aligned; NULL with a sentence if
 * memory is short. Only the head is initialised. */
void *kiln_new_object(size_t bytes, int32_t kind, void (*release)(void *self, int what));
void kiln_free_object(void *object);
/* The `release` of an object that holds no other one. */
void kiln_release_plain(void *self, int what);
/* The value of an object; takes over the caller's reference. */
kiln_value kiln_object_value(void *object);
/* The kind of a value for messages, such as "a tensor". */
const char *kiln_kind_name(const kiln_value *value);

#endif
