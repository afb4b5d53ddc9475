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

#define KILN_ABI_VERSION 1

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
    KILN_ERROR_CONDITION = 12 /* sizes that the model cannot take: a table is too short for them */
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

enum kiln_kind { KILN_INT = 1, KILN_BOOL = 2, KILN_FLOAT = 3, KILN_TENSOR = 7 };

/* An argument of kiln_call(); same layout as TVMFFIAny. */
typedef struct kiln_value {
    int32_t kind; /* enum kiln_kind */
    uint32_t zero;
    union {
        int64_t integer;
        double real;
        void *pointer; /* KILN_TENSOR: a kiln_tensor */
    } as;
} kiln_value;

/* ---- the library ------------------------------------------------------------------------ */

/* Version of this interface; a host refuses a library whose version it does not know. */
int kiln_abi_version(void);

/* 0 when this processor has every feature the library was compiled for, else KILN_ERROR_CPU.
 * Every call that runs a kernel checks it too. */
int kiln_open(void);

/* Description of the library as JSON text; the same bytes lie in ELF section ".kiln.meta". */
const char *kiln_metadata(void);

/* The sentence about the last failure in this thread; "" when there was none. */
const char *kiln_last_error(void);

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

/* Calls a function with tensors and scalars in the order of its parameters, without an executor. */
int kiln_call(int function, const kiln_value *arguments, int count);

/* Bytes the executor holds now. */
int64_t kiln_executor_workspace_bytes(const kiln_executor *executor);

/* ---- threads ---------------------------------------------------------------------------- */

/* Threads that one call may use, the caller included. 0 means the default: the smallest of
 * KILN_NUM_THREADS, the CPUs this process may run on, and its cgroup's CPU quota.
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
