/* kiln.h - what a library made by Tensorkiln offers to its host.
 *
 * A library needs nothing but the C library, and no initialisation. There are three ways in:
 *   - the plain C entries of its generated header, one per function: int net_main(const float *x, ...);
 *   - the functions below, found with dlsym() in any library of ours, for hosts that learn
 *     shapes and names at run time;
 *   - the symbols __tvm_ffi_<function>, for hosts that speak the tvm-ffi calling convention.
 *
 * Every function that can fail returns 0 (KILN_OK) or one of the codes below, and leaves one
 * sentence for kiln_last_error() in the calling thread. All functions may be called from any thread.
 */
#ifndef KILN_H
#define KILN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KILN_ABI_VERSION 2

enum kiln_code {
    KILN_OK = 0,
    KILN_ERROR_COUNT = 1,    /* wrong number of arguments */
    KILN_ERROR_RANK = 2,     /* a tensor has the wrong number of dimensions */
    KILN_ERROR_SHAPE = 3,    /* a dimension has the wrong size */
    KILN_ERROR_DTYPE = 4,    /* a tensor holds the wrong element type */
    KILN_ERROR_DEVICE = 5,   /* a tensor is not in CPU memory */
    KILN_ERROR_NULL = 6,     /* a null pointer where there must be none */
    KILN_ERROR_ARGUMENT = 7, /* a scalar for a tensor, or the reverse, or an unknown kind of value */
    KILN_ERROR_MEMORY = 8,   /* out of memory */
    KILN_ERROR_CPU = 9,      /* this processor lacks a feature that the library was compiled for */
    KILN_ERROR_NAME = 10,    /* no function of that name */
    KILN_ERROR_HOST = 11,    /* the host program lacks a service, e.g. tvm-ffi is not loaded */
    KILN_ERROR_CONDITION = 12, /* sizes that the model cannot take: a table is too short for them */
    KILN_ERROR_CALLBACK = 13,  /* a function of the host failed */
    KILN_ERROR_DEPTH = 14,     /* calls within calls, too many or too deep for the stack */
    KILN_ERROR_ASSERTION = 15, /* an assertion of a tensor program does not hold */
    KILN_ERROR_CONTAINER = 16, /* the artifacts that the library carries are damaged, or newer */
    KILN_ERROR_LOADER = 17,    /* nobody registered the loader that a function needs */
    KILN_ERROR_WEIGHTS = 18,   /* the file of weights beside the library is not there, or another */
    KILN_ERROR_RANGE = 19,     /* a number that its type cannot hold, also of sizes multiplied */
    KILN_ERROR_ENVIRONMENT = 20 /* a variable of the environment with a value that it cannot have */
};

/* ---- values ---------------------------------------------------------------------------- */

/* Element type: code 0 int, 1 unsigned, 2 IEEE float, 4 bfloat, 6 bool; size in bits. */
typedef struct kiln_dtype {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
} kiln_dtype;

/* A tensor; same layout as DLTensor, so either may be passed for the other.
 * strides count elements; NULL means row-major without gaps. device_type 1 is CPU memory. */
typedef struct kiln_tensor {
    void *data;
    int32_t device_type;
    int32_t device_id;
    int32_t ndim;
    kiln_dtype dtype;
    int64_t *shape;
    int64_t *strides;
    uint64_t byte_offset;
} kiln_tensor;

/* Numbers as in tvm-ffi. Kinds from 64 on are objects with a count of their references; those
 * before are plain values, or (7 to 9) views of something that the caller keeps alive. */
enum kiln_kind {
    KILN_NONE = 0,
    KILN_INT = 1,
    KILN_BOOL = 2,
    KILN_FLOAT = 3,
    KILN_TENSOR = 7,      /* as.pointer: a kiln_tensor */
    KILN_C_STRING = 8,    /* as.pointer: text that ends with NUL */
    KILN_BYTES_VIEW = 9,  /* as.pointer: address and size */
    KILN_SMALL_STRING = 11, /* up to 7 bytes in as.bytes; `small` is their number */
    KILN_SMALL_BYTES = 12,
    KILN_UINT = 63, /* not tvm-ffi's: as.integer has the bits of a uint64_t from 2^63 on */
    KILN_STRING = 65,
    KILN_BYTES = 66,
    KILN_FUNCTION = 68,
    KILN_SHAPE = 69,
    KILN_TENSOR_OBJECT = 70,
    KILN_TUPLE = 71,
    KILN_LIST = 75
};

/* An argument or a result; same layout as TVMFFIAny. */
typedef struct kiln_value {
    int32_t kind; /* enum kiln_kind */
    uint32_t small; /* 0 but for the size of a small string */
    union {
        int64_t integer;
        double real;
        void *pointer;
        char bytes[8];
    } as;
} kiln_value;

/* ---- the library ------------------------------------------------------------------------ */

/* Version of this interface; a host refuses a library whose version it does not know. */
int kiln_abi_version(void);

/* 0 when this processor has every feature the library was compiled for, its weights are there, and
 * KILN_NUM_THREADS and KILN_VERIFY_WEIGHTS, if set, mean something; else KILN_ERROR_CPU,
 * KILN_ERROR_WEIGHTS or KILN_ERROR_ENVIRONMENT. Every call that runs a kernel checks it too. */
int kiln_open(void);

/* Description of the library as JSON text; the same bytes lie in ELF section ".kiln.meta". */
const char *kiln_metadata(void);

/* The sentence about the last failure in this thread; "" when there was none. */
const char *kiln_last_error(void);
/* Sets it, for a function of the host (a callback, a loader) that is about to fail. */
void kiln_set_last_error(const char *sentence);

/* Position of a function in the library, or -1. */
int kiln_function_index(const char *name);

/* ---- running ---------------------------------------------------------------------------- */

/* An executor owns the memory for intermediate results, which grows on demand and stays.
 * One executor may be used by several threads at once; it is quickest when used by one. */
typedef struct kiln_executor kiln_executor;

int kiln_executor_create(kiln_executor **executor);
void kiln_executor_destroy(kiln_executor *executor);

/* Runs a function on tensors: its inputs, then its outputs, which are filled in place.
 * Gaps, any strides and any alignment are legal; such a tensor is copied on the way. */
int kiln_executor_run(kiln_executor *executor, int function, const kiln_tensor *const *tensors,
                      int count);

/* Checks the inputs and writes the dimensions of output number `output` to shape[0..*ndim-1]
 * (room for KILN_MAX_RANK). */
#define KILN_MAX_RANK 16
int kiln_output_shape(int function, const kiln_tensor *const *inputs, int count, int output,
                      int64_t *shape, int *ndim);

/* Calls a function with tensors and numbers in the order of its parameters, without an executor.
 * Integers must be in the range of the parameter's type (KILN_ERROR_RANGE); a bool is 0 or 1, also
 * for an integer; parameters of floating point take integers too, round to nearest, and refuse what
 * would become infinite. Nothing else is converted. */
int kiln_call(int function, const kiln_value *arguments, int count);

/* Bytes of intermediate results in the executor: the most that a call has needed so far. What the
 * system gives for them is rounded up to its pages. */
int64_t kiln_executor_workspace_bytes(const kiln_executor *executor);

/* ---- outer functions -----------------------------------------------------------------------
 * Functions with branches, calls of functions as values, tuples, strings, or sizes that the data
 * decides. They take and give values; only a library that has one has the functions below.
 *
 * Whoever gets a value from `kiln_make_...`, or as a result, owns a reference and gives it back
 * with kiln_release(). Arguments stay the caller's. A tensor passed as a bare kiln_tensor is copied. */

/* Calls an outer function in an executor (NULL: memory is borrowed for the call). `*result` is
 * KILN_NONE after a failure. */
int kiln_executor_invoke(kiln_executor *executor, int function, const kiln_value *arguments,
                         int count, kiln_value *result);
/* Calls a function that is a value. */
int kiln_call_value(const kiln_value *function, const kiln_value *arguments, int count,
                    kiln_value *result);

/* A new tensor, row-major, 64-byte aligned; its contents are undefined. */
int kiln_make_tensor(const int64_t *shape, int ndim, kiln_dtype dtype, kiln_value *made);
/* A tensor that takes over a DLManagedTensor, in CPU memory. */
int kiln_take_dlpack(void *managed, kiln_value *made);
int kiln_make_tuple(const kiln_value *items, int count, kiln_value *made);
int kiln_make_shape(const int64_t *sizes, int count, kiln_value *made);
int kiln_make_string(const char *text, int64_t bytes, kiln_value *made);
/* A function of the host. It returns KILN_OK with a result that it owns and hands over, or another
 * code after kiln_set_last_error(). `destroy` runs with the last reference; NULL: nothing to do. */
typedef int (*kiln_callback)(void *context, const kiln_value *arguments, int32_t count,
                             kiln_value *result);
int kiln_make_function(kiln_callback callback, void *context, void (*destroy)(void *context),
                       kiln_value *made);
/* Makes a function known to call_packed of this library; NULL takes the name away. */
int kiln_register_function(const char *name, const kiln_value *function);

/* Views into a value, valid while it lives; NULL (or -1) when it is of another kind. */
const kiln_tensor *kiln_tensor_of(const kiln_value *value);
const char *kiln_string_of(const kiln_value *value, int64_t *bytes);
const int64_t *kiln_shape_of(const kiln_value *value, int *count);
const kiln_value *kiln_items_of(const kiln_value *value, int *count); /* of a tuple or list */

void kiln_retain(const kiln_value *value);
void kiln_release(kiln_value *value); /* leaves KILN_NONE */
/* Objects that this library has made and nobody has given back. */
int64_t kiln_live_objects(void);

/* ---- loaders ---------------------------------------------------------------------------- */

/* In libraries with artifacts other than host code only: programs of a device, command streams.
 * They ride in the library as they were made; what a loader makes of them is a module, and a
 * module has functions. */
typedef struct kiln_artifact {
    const char *codegen_id;
    const char *file_name;
    const char *target_key;
    const void *content; /* 64-byte aligned; lives as long as the library */
    uint64_t bytes;
} kiln_artifact;

/* All are called under a lock of the library, but for `call`. Each returns KILN_OK, or another code
 * after kiln_set_last_error(). */
typedef struct kiln_loader {
    uint32_t size; /* of this struct */
    void *context;
    /* Makes a module of all artifacts that name this loader, for one target key. */
    int (*load)(void *context, const char *target_key, const kiln_artifact *artifacts, int count,
                void **module);
    /* Calls a function. A kernel's tensors are KILN_TENSOR, inputs before outputs; sizes are
     * KILN_INT; it has no result. What call_packed passes are values of all kinds, of which
     * kiln_tensor_of() and others give views, and it takes over what is written to `result`.
     * KILN_ERROR_NAME when the module has none of that name: then its imports are asked. */
    int (*call)(void *module, const char *function, const kiln_value *arguments, int32_t count,
                kiln_value *result);
    void (*unload)(void *module); /* when the library is unloaded; NULL: nothing to do */
} kiln_loader;

/* Makes a loader known to this library; NULL takes it away. Modules are loaded when one of their
 * functions is first called. The last registration of a name counts. */
int kiln_register_loader(const char *name, const kiln_loader *loader);
int kiln_has_loader(const char *name);
/* A module that the host has loaded itself from the artifacts of one loader and target key. */
int kiln_set_module(const char *loader, const char *target_key, const kiln_loader *functions,
                    void *module);
/* The module of a loader, loaded when it is not yet; NULL and a sentence when it cannot be, or is
 * being loaded by whoever asks. For host
 * code that talks to a device itself. */
void *kiln_module(const char *loader, const char *target_key);
/* Calls a function of a loaded module, or of one that it imports. */
int kiln_call_import(const char *loader, const char *target_key, const char *function,
                     const kiln_value *arguments, int32_t count, kiln_value *result);

/* ---- threads ---------------------------------------------------------------------------- */

/* Threads that one call may use, the caller included. 0 means the default: the smallest of
 * KILN_NUM_THREADS (0 to 4096), the CPUs this process may run on, and its cgroup's CPU quota.
 * Less than 0 counts as 0, more than 4096 as 4096.
 * With 1 no thread is ever created. Results do not depend on the number. */
void kiln_set_num_threads(int threads);
int kiln_get_num_threads(void);
void kiln_executor_set_num_threads(kiln_executor *executor, int threads);

/* Runs body(closure, begin, end) over disjoint ranges that cover 0..n, on at most `threads`
 * threads, and returns when all are done. */
typedef void (*kiln_body)(void *closure, int64_t begin, int64_t end);
typedef struct kiln_pool_api {
    uint32_t version; /* 1 */
    uint32_t size;    /* of this struct */
    void (*parallel_for)(kiln_body body, void *closure, int64_t n, int threads);
} kiln_pool_api;

/* Makes the library use the host's own thread pool; NULL returns to the built-in one. */
void kiln_use_pool(const kiln_pool_api *pool);

#ifdef __cplusplus
}
#endif
#endif
