/* crt.h - the runtime's internal header: the tables that the generated entry.c fills in, and the
 * prototypes of each file, in the order of a call. Only names marked KILN_API are exported.
 *
 * A file calls only files that come after it here (tests/crt/test_order.py). Headers are in the same
 * order: outer.h has what only values need, loader.h and pool.h what their files share.
 *
 *     the library      library.c
 *     entries          python.c ffi.c
 *     functions        registry.c closure.c
 *     steps of a call  match.c dynamic.c append.c unique.c nms.c outer.c dispatch.c
 *     its arguments    bind.c scalar.c
 *     devices          session.c opencl_launch.c opencl.c cuda_launch.c cuda_graph.c cuda_maps.c
 *                      cuda.c
 *                      driver.c device.c
 *     modules          loader.c container.c
 *     before the first prepare.c weights.c sha256.c cpu.c
 *     threads          parallel.c pool.c share.c worker.c threads.c
 *     memory           storage.c workspace.c
 *     values           value.c tensor.c strided.c foreign.c object.c
 *     below all        lock.c error.c
 *     the system       os_posix.c (os.h) mem.c
 *
 * A function that returns int returns KILN_OK, or a code of kiln.h after kiln_fail(), unless its
 * comment says otherwise. */
#ifndef KILN_CRT_H
#define KILN_CRT_H

#include "kiln.h"
#include "float_state.h"
#include "indices.h"
#include "sizes.h"
#include <stddef.h>

#if defined(__GNUC__)
#define KILN_API __attribute__((visibility("default")))
#define KILN_PRINTF(a, b) __attribute__((format(printf, a, b)))
#else
#define KILN_API
#define KILN_PRINTF(a, b)
#endif

/* Limits of one function; the code generator rejects a function beyond them. A library with a
 * function of more parameters has another KILN_MAX_PARAMS, in the runtime and in entry.c: arrays of
 * this length lie on the stack of a call. */
#if !defined(KILN_MAX_PARAMS)
#define KILN_MAX_PARAMS 256
#endif
#define KILN_MAX_SYMBOLS 64
#define KILN_MAX_COMPUTED 256

/* 1 in the runtime and in entry.c of a library in whose runs numbers below the smallest normal one
 * are 0. */
#if !defined(KILN_FLUSHES_DENORMALS)
#define KILN_FLUSHES_DENORMALS 0
#endif

/* ---- tables in entry.c ----------------------------------------------------------------------- */
/* An entry of a dims table is a constant size >= 0, KILN_SYMBOL(k) for symbol k (`n` in [n, 784]),
 * or KILN_COMPUTED(k) for the k-th size that is computed from symbols (`n * 4`). */
#define KILN_SYMBOL(k) (-1 - (int64_t)(k))
#define KILN_COMPUTED(k) (-1001 - (int64_t)(k))

enum { KILN_IN = 1, KILN_OUT = 2, KILN_INOUT = 3, KILN_SCALAR = 4 };
typedef struct kiln_param {
    const char *name;
    const char *shape; /* as text, for messages: "[n, 784]" */
    const int64_t *dims;
    kiln_dtype dtype;
    uint8_t role;
    uint8_t ndim;
    uint16_t align; /* alignment in bytes that kernels assume; at least the element size */
#if defined(KILN_DEVICES)
    uint8_t device; /* the number of the device that it must be on (device.h); 0: the host */
#endif
} kiln_param;

/* A scalar argument, checked against its parameter's type: `real` for float32 and float64,
 * otherwise `integer`; float16 and bfloat16 as their bits. A plain C entry fills in the type that
 * it declares, and kiln_fit_plain() converts it. */
typedef union kiln_scalar {
    int64_t integer;
    double real;
} kiln_scalar;

/* The arguments of a function's run(): contiguous data of each parameter, and symbol values. */
typedef struct kiln_frame {
    char *const *arg;
    char *workspace; /* 64-byte aligned; its contents are undefined at the start */
    const int64_t *symbol;
    const kiln_scalar *scalar; /* by parameter, like arg */
#if defined(KILN_DEVICES)
    const struct kiln_device_place *device; /* by number; those that the function uses */
#endif
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
    /* `old_computed` and `old_workspace` are set only in artifacts of earlier versions, whose entry
     * files do not check for overflow; then `computed` and `workspace` are NULL. */
    void (*old_computed)(const int64_t *symbol, int64_t *size);
    int (*requires)(const int64_t *symbol); /* KILN_ERROR_CONDITION; NULL: no condition on sizes */
    int64_t (*old_workspace)(const int64_t *symbol);
    void (*run)(const kiln_frame *frame);
    int (*computed)(const int64_t *symbol, int64_t *size); /* NULL: no computed sizes */
    int (*workspace)(const int64_t *symbol, int64_t *bytes);
#if defined(KILN_DEVICES)
    uint32_t devices; /* those that it uses: bits 1 << number */
    int (*device_workspace)(const int64_t *symbol, int64_t *bytes); /* by number; NULL: none */
#endif
} kiln_function;

typedef struct kiln_library {
    const char *name;
    const char *metadata;
    const char *const *cpu_features; /* NULL-terminated */
    int n_functions;
    const kiln_function *const *functions;
    char *const *weights; /* NULL: the library has no weights */
    int64_t weights_bytes;
    int n_outers; /* outer function i has number n_functions + i */
    const struct kiln_outer *const *outers;
    /* kiln_call_any_import() of loader.c; NULL in a library without an artifact container. */
    int (*call_import)(const char *function, const kiln_value *args, int32_t count,
                       kiln_value *result);
#if defined(KILN_DEVICES)
    int n_devices; /* device i has number i + 1 */
    const struct kiln_device_target *devices;
#endif
#if defined(KILN_LEVELS)
    const char *level; /* the processor that these tables are for */
#endif
} kiln_library;

/* Zero bytes behind the weights, because kernels prefetch past the end. */
#define KILN_WEIGHTS_PAD 65536

/* Defined by entry.c. */
#if defined(KILN_LEVELS)
/* A library with kernels for several processors has the tables of each, the least one first; all
 * have the same functions. kiln_level is that of kiln_level_here(), NULL before it was asked. */
extern const kiln_library *const kiln_levels[KILN_LEVELS];
extern const kiln_library *kiln_level;
#define kiln_this_library (*kiln_level_here())
#else
extern const kiln_library kiln_this_library;
#endif

/* ---- types that functions above their own file take ------------------------------------------ */
typedef struct kiln_binding kiln_binding;         /* bind.c */
typedef struct kiln_storage_set kiln_storage_set; /* storage.c */
typedef struct kiln_workspace kiln_workspace;     /* workspace.c */
struct kiln_session;                              /* session.c, in libraries with devices */

/* ---- library.c: what it says of itself, its end ---------------------------------------------- */
/* The library's destructor. */
KILN_API void kiln_unload(void);

/* ---- python.c: calls from CPython ------------------------------------------------------------ */
typedef struct py_object py_object; /* PyObject */
/* Functions of CPython's stable ABI, in the order of fast_call.py, then objects. */
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
    py_object *no_export; /* tuple of exception types that mean: fall back to the Python path */
    py_object *tensor; /* the class of results: tensor(array) */
    py_object *array; /* the name of its attribute that holds the array */
    py_object *none;
    intptr_t large; /* from this size in bytes on, results are made by make_large */
} kiln_python;
/* Store the table; *api is copied, its objects must live as long as the library. */
KILN_API void kiln_python_open(const kiln_python *api);
/* A method with METH_FASTCALL | METH_KEYWORDS. `self` is an instance of an int subclass whose value
 * is the address of a kiln_python_target; calling the instance itself with the same arguments is
 * the Python path, for what this function does not handle. Returns a new reference, or NULL with an
 * exception set. */
KILN_API py_object *kiln_python_call(py_object *self, py_object *const *args, ptrdiff_t count,
                                     py_object *names);

/* The number of calls that are running of functions bound with this library number, in this thread
 * (here = 1) or in all. Called with the GIL held; if it returns 0, the library may be closed before
 * the GIL is released. */
KILN_API int kiln_python_calls(int library, int here);

/* ---- ffi.c: calls from tvm-ffi --------------------------------------------------------------- */
/* The body of the __tvm_ffi_ entry of a graph or tensor function: 0, or -1 with an error raised in
 * tvm-ffi. */
int kiln_ffi_call(const kiln_function *function, const kiln_value *args, int32_t count,
                  kiln_value *result);

/* ---- registry.c: functions by name ----------------------------------------------------------- */
/* At the end of the library: forget all names. */
void kiln_forget_names(void);

/* ---- dispatch.c: binding, copies, workspace, run; executors ---------------------------------- */
/* The name of a function by its number, which must be valid. */
const char *kiln_function_name(int index);
/* Run a bound function in a workspace, or in a borrowed one. */
int kiln_run(kiln_workspace *workspace, kiln_binding *binding);
int kiln_run_anywhere(kiln_binding *binding);
/* The executor whose workspace and thread count outer functions of this thread use; executor NULL:
 * they borrow a workspace for each call. kiln_set_current() saves the previous state in *before. */
typedef struct kiln_current {
    struct kiln_executor *executor;
    int threads;
} kiln_current;
void kiln_set_current(struct kiln_executor *executor, kiln_current *before);
void kiln_restore_current(const kiln_current *before);
int kiln_run_in_current(kiln_binding *binding);
/* The storage sets of the current executor; NULL without an executor. */
kiln_storage_set **kiln_current_sets(void);
/* The body of every plain C entry. */
int kiln_call_plain(const kiln_function *function, const int64_t *symbols, void *const *data,
                    const kiln_scalar *scalars);

/* ---- bind.c: checks arguments against the function's table ----------------------------------- */
/* A function with checked arguments; arrays are by parameter, symbol or computed size. It borrows
 * the tensors. */
struct kiln_binding {
    const kiln_function *function;
    int count; /* parameters bound: all of them, or the inputs only */
    const kiln_tensor *tensor[KILN_MAX_PARAMS]; /* NULL: contiguous, given by address only */
    char *data[KILN_MAX_PARAMS];
    kiln_scalar scalar[KILN_MAX_PARAMS];
    int64_t symbol[KILN_MAX_SYMBOLS];
    int64_t computed[KILN_MAX_COMPUTED];
    int64_t bytes[KILN_MAX_PARAMS]; /* of the data of each tensor parameter, bound or not */
#if defined(KILN_DEVICES)
    const struct kiln_devices *chosen; /* by the executor; NULL: none. Kinds' handles are in `data` */
    void *stream; /* of the host, for this call; NULL: the executor's */
    int asks_host; /* tvm-ffi is asked for its stream where there is none */
    int is_borrowed; /* the workspace belongs to whoever calls next */
#endif
};

/* Bind all parameters of a function, or the inputs of a graph function. */
int kiln_bind(kiln_binding *binding, const kiln_function *function, const kiln_value *values,
              int count);
/* The same for a plain C entry, whose tensors are contiguous and given by address. */
int kiln_bind_plain(kiln_binding *binding, const kiln_function *function, const int64_t *symbols,
                    void *const *data, const kiln_scalar *scalars);
/* Size of one dimension of a parameter, bound or not. */
int64_t kiln_param_dim(const kiln_binding *binding, int param, int dim);

/* ---- scalar.c: checks numbers against the type of their parameter ---------------------------- */
/* Convert a value to the parameter's type: KILN_ERROR_ARGUMENT if it is no number of a suitable
 * kind, KILN_ERROR_RANGE if the type cannot hold it. */
int kiln_fit_scalar(const char *function, const kiln_param *param, const kiln_value *value,
                    kiln_scalar *scalar);
/* The same, in place, for a scalar that a plain C entry passes. */
int kiln_fit_plain(const char *function, const kiln_param *param, kiln_scalar *scalar);
/* KILN_ERROR_RANGE for a number outside the type's range, otherwise KILN_OK. */
int kiln_check_number(const char *function, const char *what, kiln_dtype dtype,
                      const kiln_value *value);

/* ---- loader.c: modules ----------------------------------------------------------------------- */
/* At the end of the library: unload the modules. */
void kiln_unload_modules(void);

/* ---- prepare.c: checks before the first kernel ----------------------------------------------- */
#if defined(KILN_LEVELS)
/* The tables of the last level whose code this processor can run, where it can run any: chosen by
 * the first call. */
const kiln_library *kiln_choose_level(void);
static inline const kiln_library *kiln_level_here(void)
{
    const kiln_library *level = __atomic_load_n(&kiln_level, __ATOMIC_RELAXED);
    return level != NULL ? level : kiln_choose_level();
}
#endif
/* What kiln_open() does; a success is remembered. */
int kiln_prepare(void);

/* ---- weights.c: weights beside the library, and their hash ----------------------------------- */
/* The value of KILN_VERIFY_WEIGHTS: 1 for "1" and "on" (in any case), 0 for "0" and "off" or if it is
 * unset, -1 for anything else. */
int kiln_wished_check(void);
/* Map the weights file beside the library, or the one of kiln_use_weights(), if it has one, and verify all weights against their hash
 * if KILN_VERIFY_WEIGHTS is 1. */
int kiln_map_weights(void);

/* ---- cpu.c: features of the processor -------------------------------------------------------- */
/* Whether processor and operating system support a feature, by LLVM's name: 1 yes, 0 no, -1 unknown
 * name. */
int kiln_has_feature(const char *name);

/* ---- parallel.c: loops over threads ---------------------------------------------------------- */
/* Set the number of threads for calls from this thread (0: the library's number); return the
 * previous one. */
int kiln_limit_threads(int threads);
/* Kernels call this: run body(closure, begin, end) over 0..n, on the host's pool if there is
 * one. All threads compute as this one (float_state.h). */
void kiln_parallel_for(kiln_body body, void *closure, int64_t n);

/* ---- pool.c, share.c, worker.c: the built-in pool (pool.h) ----------------------------------- */
/* kiln_parallel_for() on `threads` threads of the pool. */
void kiln_pool_for(kiln_body body, void *closure, int64_t n, int threads);
/* At the end of the library: send its workers away. */
void kiln_leave_pool(int at_exit);

/* ---- threads.c: the number of threads, the stack of this one --------------------------------- */
int kiln_default_threads(void);
#define KILN_MOST_THREADS 4096 /* as in base/config.py */
/* The value of KILN_NUM_THREADS: 0 if unset, -1 unless it is an integer from 0 to
 * KILN_MOST_THREADS. */
int kiln_wished_threads(void);
/* Whether too little stack is left for a call that may re-enter this library (outer.c, loader.c). The
 * caller then fails with KILN_ERROR_DEPTH. */
int kiln_stack_is_used_up(void);
/* KILN_ERROR_DEPTH if it is too little even for one call. */
int kiln_check_stack(void);

/* ---- storage.c: storages that executors keep ------------------------------------------------- */
/* Take an idle set of that key and those sizes; *found is left unchanged if there is none. */
void kiln_take_set(kiln_storage_set **sets, const char *key, int64_t length,
                   const kiln_value *sizes, kiln_value *found);
/* Keep a new set in place of an idle one with the same key; if that one is in use, it stays and the
 * new one is not kept. */
int kiln_keep_set(kiln_storage_set **sets, const char *key, int64_t length,
                  const kiln_value *sizes, const kiln_value *made);
/* Release a list of sets. */
void kiln_release_sets(kiln_storage_set *sets);

/* ---- workspace.c: memory for intermediate results -------------------------------------------- */
struct kiln_workspace {
    char *base; /* 64-byte aligned */
    int64_t bytes; /* capacity, rounded up to whole pages */
    int64_t asked; /* the most that a call has needed */
    void *block; /* the allocation: a mapping of `mapped` bytes, or from malloc() if that is 0 */
    size_t mapped;
    struct kiln_workspace *next;
#if defined(KILN_DEVICES)
    struct kiln_session *session; /* the same on devices (session.c); NULL: not needed yet */
#endif
};

/* Grow the workspace to at least `bytes`. Growing discards its contents. */
int kiln_workspace_reserve(kiln_workspace *workspace, int64_t bytes);
/* Free its memory, but not the struct. */
void kiln_workspace_release(kiln_workspace *workspace);
/* Borrow a workspace for one call, and return it. NULL with a sentence if memory is short. */
kiln_workspace *kiln_workspace_take(void);
void kiln_workspace_give(kiln_workspace *workspace);
/* At the end of the library: free idle ones, and their sessions with `free_session` (NULL in a library
 * without devices). */
void kiln_release_idle(void (*free_session)(struct kiln_session *session));

/* ---- tensor.c: bytes of tensors -------------------------------------------------------------- */
/* More than any address space. A tensor, or the workspace of a call, beyond it is rejected. */
#define KILN_MOST_BYTES ((int64_t)1 << 56)
static inline int64_t kiln_element_bytes(kiln_dtype dtype)
{
    return (dtype.bits * dtype.lanes + 7) / 8;
}
/* Whether elements are whole bytes. Others are rejected: DLPack packs sub-byte elements, so their
 * memory may be smaller than kiln_element_bytes() says. */
static inline int kiln_has_whole_bytes(kiln_dtype dtype)
{
    const int bits = dtype.bits * dtype.lanes;
    return bits != 0 && bits % 8 == 0;
}
/* Bytes of a tensor whose sizes are all >= 0; -1 if they exceed KILN_MOST_BYTES. Zeros are skipped
 * in that test, so that the product of any subset of the sizes fits: [0, 2^60] gives -1, not 0. */
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
/* malloc(count * size), for the caller to free; NULL on overflow or without memory, with the
 * sentence "out of memory for <count> <what>". */
void *kiln_room(int64_t count, size_t size, const char *what);

/* ---- strided.c: tensors that are not contiguous ---------------------------------------------- */
/* kiln_pack() copies a tensor's elements to contiguous memory, kiln_unpack() back; `data` is the
 * address of element 0, which replaces the one in `tensor`. */
int kiln_is_contiguous(const kiln_tensor *tensor);
void kiln_pack(char *packed, const kiln_tensor *tensor, const char *data);
void kiln_unpack(const kiln_tensor *tensor, char *data, const char *packed);

/* ---- foreign.c: tvm-ffi, if the process has it ----------------------------------------------- */
/* The address of a function that the process exports, or NULL. */
typedef void (*kiln_any_function)(void);
kiln_any_function kiln_host_symbol(const char *name);
#if defined(KILN_DEVICES)
/* The stream in which tvm-ffi's callers want work on a device, in this thread; NULL: none, or the
 * default stream. */
void *kiln_host_stream(int32_t device_type, int32_t index);
#endif
/* Raise this thread's sentence as an error in tvm-ffi; return -1. */
int kiln_raise(int code);
/* Convert a code to what a tvm-ffi entry returns: 0, or -1 with the error raised. */
int kiln_ffi_result(int code);

/* ---- lock.c: locks that are open in a child of fork(), exit() -------------------------------- */
/* Locks that are released in a child of fork(). As a fork may happen while a lock is held, the data
 * that it guards must be consistent at every instant: each change is one store with
 * __ATOMIC_RELEASE. */
typedef uint32_t kiln_lock;
extern kiln_lock kiln_idle_lock, kiln_names_lock, kiln_sets_lock, kiln_modules_lock,
    kiln_weights_lock, kiln_pool_lock;
#if defined(KILN_DEVICES)
extern kiln_lock kiln_devices_lock;
#endif
void kiln_take_lock(kiln_lock *lock);
void kiln_give_lock(kiln_lock *lock);
int kiln_try_lock(kiln_lock *lock); /* 1: taken */
/* What a file does in a child of fork(), where this library has no other threads: it forgets what they
 * were at. It runs before the locks are released, and returns the one that this thread holds; NULL if
 * it holds none. */
typedef const kiln_lock *(*kiln_fork_handler)(void);
enum { KILN_FORK_CALLS, KILN_FORK_WORKERS, KILN_FORK_DEVICES, KILN_FORK_LOADING, KILN_FORK_PARTS };
/* Set the handler of a part of the library, before it has anything to forget. */
void kiln_at_fork(int part, kiln_fork_handler handler);
/* Whether exit() was called. */
int kiln_is_exiting(void);
/* At the end of the library: no handler of it runs any more. */
void kiln_unwatch_process(void);

/* ---- error.c: the last failure of each thread, and its words --------------------------------- */
/* Return KILN_ERROR_NULL from an exported function if its argument `p` is NULL. */
#define KILN_GIVEN(p)                                                                              \
    do {                                                                                           \
        if ((p) == NULL)                                                                           \
            return kiln_fail(KILN_ERROR_NULL, "%s: " #p " is a null pointer", __func__);           \
    } while (0)
/* What the library knows of each thread, all zeros at first; the comments name the files. */
typedef struct kiln_thread {
    char sentence[1024];             /* error.c: the last failure */
    int located;                     /* the sentence says where */
    const char *assertion;           /* the failure of the current run; NULL: none */
    int assertion_code;
    char assertion_text[1024];       /* where `assertion` is a copy */
    int threads;                     /* parallel.c: for calls; 0: the library's number */
    struct kiln_executor *current;   /* dispatch.c */
    int depth;                       /* outer.c: of calls */
    char *stack, *stack_floor;       /* threads.c: its lowest address, that for deep calls; NULL: not asked */
    struct kiln_object *waiting;     /* object.c: to be released */
    int is_releasing;
    int is_raised;                   /* foreign.c: the failure is raised in tvm-ffi already */
    int modules_depth;               /* loader.c */
    int module_users;
    struct kiln_session *running;    /* session.c */
} kiln_thread;
/* That of this thread; NULL if there is no memory for it. A call that kiln_prepare() has let pass has
 * it until it returns. */
kiln_thread *kiln_this_thread(void);
/* At the end of the library. */
void kiln_forget_threads(void);
/* Set this thread's sentence, and return `code`. */
int kiln_fail(int code, const char *format, ...) KILN_PRINTF(2, 3);
/* Kernels return void. One that fails records why, in the thread that called it, and returns:
 * kiln_assertion_failed() with the message of an assertion, which must outlive the run, or
 * kiln_kernel_failed() with the code of a failure whose sentence is set. The first failure
 * counts. */
void kiln_assertion_failed(const char *message);
void kiln_kernel_failed(int code);
/* The failure of a run of `function` at the model's node (empty: it has no name) for an index that
 * kiln_outside_<type>() has named, of a tensor of indices of shape `dims`. */
void kiln_index_failed(const char *function, const char *node, const kiln_outside *outside,
                       int64_t extent, int64_t negative, int rank, const int64_t *dims);
/* The message of the first failure in the current run, or NULL. A run() checks it after each kernel
 * that can fail. */
const char *kiln_assertion(void);
/* End a run: return KILN_OK, or the code of the recorded failure, and clear the record. */
int kiln_end_assertions(const char *function);
/* kiln_fits() returns KILN_OK, or `code` with a sentence if a size noted in `large` overflowed. */
int kiln_too_large(int code, const char *function, const char *what);
static inline int kiln_fits(int code, const char *function, const kiln_large *large)
{
    return large->what == NULL ? KILN_OK : kiln_too_large(code, function, large->what);
}
/* Append " [in function, at step]" to the sentence, once: later calls for the same failure, from
 * the enclosing functions, add nothing. `function` NULL marks the sentence as located without a
 * text. */
void kiln_locate(const char *function, const char *step);
/* The names of a shape and of an element type in a sentence. */
#define KILN_SHAPE_TEXT 256 /* room for the text of a shape */
void kiln_shape_text(char *text, const int64_t *shape, int ndim);
void kiln_dtype_text(char *text, size_t size, kiln_dtype dtype);

/* ---- mem.c: the C functions that LLVM calls -------------------------------------------------- */
void *memcpy(void *to, const void *from, size_t n);
void *memset(void *to, int byte, size_t n);

#if defined(KILN_DEVICES)
#include "device.h"
#endif
#endif
