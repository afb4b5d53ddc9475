/* crt.h - the inside of the runtime: the tables that entry.c fills in, and one paragraph of
 * prototypes per file, in the order of a call. Nothing here is visible outside the library. */
#ifndef KILN_CRT_H
#define KILN_CRT_H

#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* affinity, dladdr, futex: before the first system header */
#endif
#include "kiln.h"
#include "sizes.h"
#include <stddef.h>

#if defined(__GNUC__)
#define KILN_API __attribute__((visibility("default")))
#define KILN_PRINTF(a, b) __attribute__((format(printf, a, b)))
#else
#define KILN_API
#define KILN_PRINTF(a, b)
#endif

/* Limits of one function; the code generator refuses what exceeds them. */
#define KILN_MAX_PARAMS 256
#define KILN_MAX_SYMBOLS 64
#define KILN_MAX_COMPUTED 256

/* ---- tables in entry.c -------------------------------------------------------------------- */

/* Entry of a dims table: a size >= 0, a symbol, or number k of the function's computed sizes. */
#define KILN_SYMBOL(k) (-1 - (int64_t)(k))
#define KILN_COMPUTED(k) (-1001 - (int64_t)(k))

enum { KILN_IN = 1, KILN_OUT = 2, KILN_INOUT = 3, KILN_SCALAR = 4 };
enum { KILN_GRAPH = 0, KILN_TENSOR_FUNCTION = 1 };

typedef struct kiln_param {
    const char *name;
    const char *shape; /* as text, for messages: "[n, 784]" */
    const int64_t *dims;
    kiln_dtype dtype;
    uint8_t role;
    uint8_t ndim;
    uint16_t align; /* bytes the kernels rely on; at least the element size */
} kiln_param;

/* A number in the range of its parameter's type: `real` for float32 and float64, else `integer`; of
 * float16 and bfloat16 the bits. (Given to a plain C entry: as it declares it.) */
typedef union kiln_scalar {
    int64_t integer;
    double real;
} kiln_scalar;

/* What a call plan sees: data of each parameter without gaps, and the values of the symbols. */
typedef struct kiln_frame {
    char *const *arg;
    char *workspace; /* 64-byte aligned; its contents are undefined at the start */
    const int64_t *symbol;
    const kiln_scalar *scalar; /* indexed like arg */
} kiln_frame;

typedef struct kiln_function {
    const char *name;
    int kind;      /* KILN_GRAPH or KILN_TENSOR_FUNCTION */
    int n_params;  /* inputs, then outputs */
    int n_inputs;
    int n_symbols;
    const kiln_param *params;
    const char *const *symbols;
    const int64_t *symbol_min;
    /* The two `old` ones are of entry files that do not check sizes, in artifacts of former versions;
     * NULL in others. What gives an int gives KILN_OK, or the failure. */
    void (*old_computed)(const int64_t *symbol, int64_t *size);
    int (*requires)(const int64_t *symbol); /* NULL: any sizes will do */
    int64_t (*old_workspace)(const int64_t *symbol);
    void (*run)(const kiln_frame *frame);
    int (*computed)(const int64_t *symbol, int64_t *size); /* NULL when nothing is computed */
    int (*workspace)(const int64_t *symbol, int64_t *bytes);
} kiln_function;

typedef struct kiln_library {
    const char *name;
    const char *metadata;
    const char *const *cpu_features; /* NULL-terminated */
    int n_functions;
    const kiln_function *const *functions;
    char *const *weights; /* NULL when there are none */
    int64_t weights_bytes;
    int n_outers; /* their numbers follow those of `functions` */
    const struct kiln_outer *const *outers;
    /* Calls a function of a loaded module; NULL in a library that carries no container. */
    int (*call_import)(const char *function, const kiln_value *args, int32_t count,
                       kiln_value *result);
} kiln_library;

/* Zero bytes behind the weights: kernels prefetch past the end. */
#define KILN_WEIGHTS_PAD 65536

/* ---- weights.c: maps weights that are in a file beside the library, and checks all where
 * KILN_VERIFY_WEIGHTS is 1; KILN_OK, or the failure -------------------------------------------- */
int kiln_map_weights(void);

/* Defined by entry.c. */
extern const kiln_library kiln_this_library;

/* ---- error.c: the last failure of each thread -------------------------------------------- */
/* Whether a call that may come back to this library should better not: RecursionError. (outer.c) */
int kiln_stack_is_used_up(void);
/* The first line of a function that hosts call with a pointer: without one there is an error. */
#define KILN_GIVEN(p)                                                                              \
    do {                                                                                           \
        if ((p) == NULL)                                                                           \
            return kiln_fail(KILN_ERROR_NULL, "%s: " #p " is a null pointer", __func__);           \
    } while (0)
int kiln_fail(int code, const char *format, ...) KILN_PRINTF(2, 3);
void kiln_clear_error(void);
/* What a kernel calls, in the thread of its caller, before it leaves at a failed assertion. */
void kiln_assertion_failed(const char *message);
/* The same for a kernel that failed for the reason in this thread's sentence. */
void kiln_kernel_failed(int code);
/* The assertion that failed since the last run ended, or NULL: call plans stop there. */
const char *kiln_assertion(void);
/* The end of a run: KILN_OK, or the failure of its assertion, which is forgotten. */
int kiln_end_assertions(const char *function);
/* The failure of a call that has a size which 64 bits do not hold, if there is one. */
int kiln_too_large(int code, const char *function, const char *what);
static inline int kiln_fits(int code, const char *function, const kiln_large *large)
{
    return large->what == NULL ? KILN_OK : kiln_too_large(code, function, large->what);
}
/* Adds to the sentence in which function and step it happened, unless it says so already: then
 * nothing is added, as when `function` is NULL. */
void kiln_locate(const char *function, const char *step);

/* ---- tensor.c: what sizes take ---------------------------------------------------------- */
/* More than any address space has. Sizes of one tensor, or of a call, that are larger are refused. */
#define KILN_MOST_BYTES ((int64_t)1 << 56)
static inline int64_t kiln_element_bytes(kiln_dtype dtype)
{
    return (dtype.bits * dtype.lanes + 7) / 8;
}
/* Of elements without, memory may have fewer: DLPack packs what is smaller than a byte. */
static inline int kiln_has_whole_bytes(kiln_dtype dtype)
{
    const int bits = dtype.bits * dtype.lanes;
    return bits != 0 && bits % 8 == 0;
}
/* Bytes of `ndim` sizes of none below 0, or -1: more than there can be, also of what is left without
 * the zeros among them, so that products of some of the sizes fit as well. */
static inline int64_t kiln_bytes_of(const int64_t *sizes, int ndim, int64_t element)
{
    int64_t span = element;
    int is_empty = 0;
    for (int d = 0; d < ndim; d++) {
        is_empty |= sizes[d] == 0;
        if (sizes[d] != 0 && (__builtin_mul_overflow(span, sizes[d], &span) || span > KILN_MOST_BYTES))
            return -1;
    }
    return is_empty ? 0 : span;
}
/* Room for `count` things of `size` bytes, to be freed; NULL, and the sentence that there is no memory
 * for `what`. */
void *kiln_room(int64_t count, size_t size, const char *what);

/* ---- cpu.c: may this processor use a feature? 1 yes, 0 no, -1 unknown name ------------------ */
int kiln_has_feature(const char *name);

/* ---- library.c: what a variable says that is on or off: 1, 0, or -1 for anything else ------------ */
int kiln_flag(const char *text);

/* ---- library.c: facts; before the first kernel, after the last -------------------------------- */
int kiln_prepare(void);
KILN_API void kiln_unload(void);
/* What it calls, in loader.c, registry.c, workspace.c, share.c, process.c. */
void kiln_unload_modules(void);
void kiln_forget_names(void);
void kiln_release_idle(void);
void kiln_leave_pool(void);
void kiln_unwatch_process(void);
/* By its number, which is one. */
const char *kiln_function_name(int index);

/* ---- process.c: fork() and exit(), and locks that a child of fork() finds open. What they guard must
 * be whole at each instant: it changes by one store with __ATOMIC_RELEASE ---------------------- */
typedef uint32_t kiln_lock;
extern kiln_lock kiln_idle_lock, kiln_names_lock, kiln_sets_lock, kiln_modules_lock,
    kiln_weights_lock, kiln_pool_lock;
void kiln_take_lock(kiln_lock *lock);
void kiln_give_lock(kiln_lock *lock);
int kiln_try_lock(kiln_lock *lock); /* 1: taken */
void kiln_watch_process(void);
int kiln_is_exiting(void);
/* What a child calls, in loader.c, share.c and python.c. The first says whether the thread that forked
 * is in a loader, and so holds the modules' lock in the child too. */
int kiln_forget_loading(void);
void kiln_forget_workers(void);
void kiln_forget_calls(void);

/* ---- workspace.c: memory for intermediate results ----------------------------------------- */
typedef struct kiln_workspace {
    char *base; /* 64-byte aligned */
    int64_t bytes; /* that there is room for: pages are whole */
    int64_t asked; /* the most that a call needed */
    void *block; /* what to give back: a mapping when mapped != 0, else from the heap */
    size_t mapped;
    struct kiln_workspace *next;
} kiln_workspace;

int kiln_workspace_reserve(kiln_workspace *workspace, int64_t bytes);
void kiln_workspace_release(kiln_workspace *workspace);
/* A workspace for one call without an executor; NULL and an error when memory is short. */
kiln_workspace *kiln_workspace_take(void);
void kiln_workspace_give(kiln_workspace *workspace);

/* ---- strided.c: tensors with gaps --------------------------------------------------------- */
int kiln_is_contiguous(const kiln_tensor *tensor);
void kiln_pack(char *packed, const kiln_tensor *tensor, const char *data);
void kiln_unpack(const kiln_tensor *tensor, char *data, const char *packed);

/* ---- bind.c: arguments against the table -------------------------------------------------- */
typedef struct kiln_binding {
    const kiln_function *function;
    int count; /* parameters bound: all of them, or the inputs only */
    const kiln_tensor *tensor[KILN_MAX_PARAMS]; /* NULL: contiguous, given by address only */
    char *data[KILN_MAX_PARAMS];
    kiln_scalar scalar[KILN_MAX_PARAMS];
    int64_t symbol[KILN_MAX_SYMBOLS];
    int64_t computed[KILN_MAX_COMPUTED];
    int64_t bytes[KILN_MAX_PARAMS]; /* of the data of each tensor, bound or not */
} kiln_binding;

#define KILN_SHAPE_TEXT 256 /* room for the text of a shape */
void kiln_shape_text(char *text, const int64_t *shape, int ndim);
void kiln_dtype_text(char *text, size_t size, kiln_dtype dtype);

int kiln_bind(kiln_binding *binding, const kiln_function *function, const kiln_value *values,
              int count);
int kiln_bind_plain(kiln_binding *binding, const kiln_function *function, const int64_t *symbols,
                    void *const *data, const kiln_scalar *scalars);
int64_t kiln_param_dim(const kiln_binding *binding, int param, int dim);

/* ---- scalar.c: numbers against the type of their parameter ---------------------------------- */
int kiln_fit_scalar(const char *function, const kiln_param *param, const kiln_value *value,
                    kiln_scalar *scalar);
/* The same for what a plain C entry was given. */
int kiln_fit_plain(const char *function, const kiln_param *param, kiln_scalar *scalar);
/* KILN_OK unless the value is a number out of the type's range. */
int kiln_check_number(const char *function, const char *what, kiln_dtype dtype,
                      const kiln_value *value);

/* ---- dispatch.c: binding, copies, workspace, run ------------------------------------------ */
int kiln_run(kiln_workspace *workspace, kiln_binding *binding);
int kiln_run_anywhere(kiln_binding *binding);
/* The executor whose memory outer functions of this thread use; NULL: borrowed for each call. */
typedef struct kiln_current {
    struct kiln_executor *executor;
    int threads;
} kiln_current;
void kiln_set_current(struct kiln_executor *executor, kiln_current *before);
void kiln_restore_current(const kiln_current *before);
int kiln_run_in_current(kiln_binding *binding);
/* The storage sets of the current executor; NULL without one. */
typedef struct kiln_storage_set kiln_storage_set;
kiln_storage_set **kiln_current_sets(void);
/* storage.c */
void kiln_release_sets(kiln_storage_set *sets);
/* The body of every plain C entry. */
int kiln_call_plain(const kiln_function *function, const int64_t *symbols, void *const *data,
                    const kiln_scalar *scalars);

/* ---- ffi.c: the body of every __tvm_ffi_ entry --------------------------------------------- */
int kiln_ffi_call(const kiln_function *function, const kiln_value *args, int32_t count,
                  kiln_value *result);
/* A function of the process by name, or NULL. */
typedef void (*kiln_any_function)(void);
kiln_any_function kiln_host_symbol(const char *name);
/* Hands this thread's sentence to tvm-ffi; -1. */
int kiln_raise(int code);

/* ---- python.c: calls from CPython ---------------------------------------------------------- */
typedef struct py_object py_object; /* PyObject */
/* Functions of CPython's stable interface in the order of fast_call.py, then objects. */
typedef struct kiln_python {
    void *(*address)(py_object *); /* PyLong_AsVoidPtr */
    void *(*capsule_pointer)(py_object *, const char *);
    void *(*save_thread)(void);
    void (*restore_thread)(void *);
    py_object *(*new_long)(long long);
    py_object *(*new_tuple)(ptrdiff_t);
    ptrdiff_t (*tuple_size)(py_object *);
    py_object *(*tuple_item)(py_object *, ptrdiff_t);
    int (*set_item)(py_object *, ptrdiff_t, py_object *);
    py_object *(*vectorcall)(py_object *, py_object *const *, size_t, py_object *);
    py_object *(*call_method)(py_object *, py_object *const *, size_t, py_object *);
    py_object *(*type_of)(py_object *);
    py_object *(*attribute)(py_object *, py_object *);
    int (*matches)(py_object *);
    void (*clear)(void);
    void (*incref)(py_object *);
    void (*decref)(py_object *);
    py_object *dlpack; /* "__dlpack__" */
    py_object *no_export; /* exceptions of refused exports */
    py_object *tensor; /* the class of results: tensor(array) */
    py_object *array; /* the name of its attribute */
    py_object *none;
    intptr_t large; /* bytes of a result whose address should be aligned */
} kiln_python;
KILN_API void kiln_python_open(const kiln_python *api);
/* METH_FASTCALL | METH_KEYWORDS. `self` is an int, the address of a kiln_python_target, that can be
 * called with the same arguments: it does what this function does not. */
KILN_API py_object *kiln_python_call(py_object *self, py_object *const *args, ptrdiff_t count,
                                     py_object *names);

/* How many calls of functions that were bound with that number are under way, in this thread or in all.
 * Called with the interpreter's lock, and so may whoever closes the library at 0. */
KILN_API int kiln_python_calls(int library, int here);

/* foreign.c: what a tvm-ffi entry returns for a code of ours. */
int kiln_ffi_result(int code);

/* ---- threads.c, parallel.c, pool.c, share.c, wait.c: threads -------------------------------- */
int kiln_default_threads(void);
#define KILN_MOST_THREADS 4096 /* as in base/config.py */
/* KILN_NUM_THREADS: 0 when it is not set, -1 when it is no whole number up to KILN_MOST_THREADS. */
int kiln_wished_threads(void);
/* Sets the number of threads for calls from this thread; returns the previous one (0: default). */
int kiln_limit_threads(int threads);
/* What kernels call. */
void kiln_parallel_for(kiln_body body, void *closure, int64_t n);
/* The same on the pool of this process (pool.h). */
void kiln_pool_for(kiln_body body, void *closure, int64_t n, int threads);
/* Sleeps while *word == value; may return early. Wakes all who sleep on word. */
void kiln_wait(uint32_t *word, uint32_t value);
void kiln_wake(uint32_t *word);

/* ---- mem.c --------------------------------------------------------------------------------- */
void *memcpy(void *to, const void *from, size_t n);
void *memset(void *to, int byte, size_t n);

#endif
