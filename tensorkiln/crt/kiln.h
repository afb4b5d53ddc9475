/* kiln.h - the C interface of every library that Tensorkiln compiles.
 *
 * A library needs nothing but the C library, and no initialisation. A host calls it in one of three
 * ways:
 *   - the plain C entries of its generated header, one per function, such as
 *     int net_main(const float *x, float *out);
 *   - the functions below, which any such library exports and dlsym() finds, for hosts that learn
 *     names and shapes at run time;
 *   - the symbols __tvm_ffi_<function>, for hosts that use the tvm-ffi calling convention.
 *
 * Errors: a function that can fail returns 0 (KILN_OK) or a code of enum kiln_code, unless its
 * comment says otherwise. After a failure kiln_last_error() returns one sentence about it, in the
 * thread that made the call. A null pointer gives KILN_ERROR_NULL unless the comment allows it; a
 * function that allocates may return KILN_ERROR_MEMORY. Comments list the codes beyond these two,
 * without the prefix: SHAPE is KILN_ERROR_SHAPE.
 *
 * Ownership: arguments stay the caller's and are not used after the call; strings are copied. The
 * exceptions are marked: contexts, modules, DLPack tensors and thread pools.
 *
 * Threads: every function may be called by any number of threads at once, also on the same
 * executor, function value or loader name. Only kiln_executor_destroy() and dlclose() require that
 * no other thread uses the executor or the library. Reference counts are atomic, but one kiln_value
 * variable that several threads write to or release needs a lock of the host's.
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
    KILN_ERROR_COUNT = 1,    /* wrong number of arguments or items, or no output of that number */
    KILN_ERROR_RANK = 2,     /* a tensor has the wrong number of dimensions, or lacks an axis */
    KILN_ERROR_SHAPE = 3,    /* a dimension has the wrong size */
    KILN_ERROR_DTYPE = 4,    /* a tensor holds the wrong element type */
    KILN_ERROR_DEVICE = 5,   /* a tensor is not in CPU memory, or not on its parameter's device */
    KILN_ERROR_NULL = 6,     /* a null pointer that is not allowed */
    KILN_ERROR_ARGUMENT = 7, /* the wrong kind of value, e.g. a scalar instead of a tensor */
    KILN_ERROR_MEMORY = 8,   /* out of memory, or a tensor larger than any address space */
    KILN_ERROR_CPU = 9,      /* this processor lacks a feature that the library was compiled for */
    KILN_ERROR_NAME = 10,    /* no function, or no artifacts for a loader, of that name or number */
    KILN_ERROR_HOST = 11,    /* a service of tvm-ffi is missing in this process, or failed */
    KILN_ERROR_CONDITION = 12, /* sizes that the model rejects, e.g. more rows than a table has */
    KILN_ERROR_CALLBACK = 13,  /* a callback or a loader of the host failed */
    KILN_ERROR_DEPTH = 14,     /* calls nested too deep: over 10000, or the stack is used up */
    KILN_ERROR_ASSERTION = 15, /* an assertion of a tensor program does not hold */
    KILN_ERROR_CONTAINER = 16, /* the artifact container is damaged, or its format is newer */
    KILN_ERROR_LOADER = 17,    /* the loader that a function needs is not registered */
    KILN_ERROR_WEIGHTS = 18,   /* the weights file beside the library is missing or of another
                                  library, or KILN_VERIFY_WEIGHTS=1 found damaged weights */
    KILN_ERROR_RANGE = 19,     /* a number outside its parameter's type, or a size computed from the
                                  inputs that does not fit into 64 bits */
    KILN_ERROR_ENVIRONMENT = 20, /* an environment variable has an invalid value */
    KILN_ERROR_DRIVER = 21,     /* a kind of device has no driver here: its library or platform is
                                   missing, or unusable in a child of fork() */
    KILN_ERROR_NO_DEVICE = 22,  /* the system has no device of that kind and index */
    KILN_ERROR_CAPABILITY = 23, /* the device lacks what the library was compiled for */
    KILN_ERROR_DEVICE_MEMORY = 24, /* a device is out of memory */
    KILN_ERROR_BUILD = 25,      /* the driver cannot compile the library's code for a device */
    KILN_ERROR_LAUNCH = 26,     /* a device refused a kernel or a copy */
    KILN_ERROR_EXECUTION = 27,  /* a kernel or a copy failed on a device after it was started */
    KILN_ERROR_DEVICE_LOST = 28, /* a device cannot be used any more in this process: an earlier
                                    kernel failed so badly that the driver has given it up */
    KILN_ERROR_INDEX = 29        /* data has an index that is outside of the dimension it indexes */
};

/* ---- values ---------------------------------------------------------------------------- */

/* Element type, as DLDataType. code: 0 int, 1 unsigned, 2 IEEE float, 3 address, 4 bfloat, 6 bool;
 * bits: size of one lane, e.g. 32; lanes: 1 for scalar elements. */
typedef struct kiln_dtype {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
} kiln_dtype;

/* A tensor; same layout as DLTensor, so a pointer to either may be passed for the other. Element 0
 * is byte_offset bytes behind data. strides count elements, not bytes; NULL means contiguous,
 * row-major. device_type must be 1 (CPU memory), and device_id is ignored, unless the function's
 * parameter is on a device ("devices" below). */
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

/* Type index of a value; the numbers are tvm-ffi's, except KILN_UINT. Kinds from 64 on are
 * reference-counted objects. Kinds 7 to 9 are views: they point to memory that the caller keeps
 * alive for the time of the call. All others hold their data in the kiln_value itself. */
enum kiln_kind {
    KILN_NONE = 0,
    KILN_INT = 1,
    KILN_BOOL = 2,
    KILN_FLOAT = 3,
    KILN_TENSOR = 7,      /* as.pointer: a kiln_tensor */
    KILN_C_STRING = 8,    /* as.pointer: text that ends with NUL */
    KILN_BYTES_VIEW = 9,  /* as.pointer: struct {const char *data; size_t size;} */
    KILN_SMALL_STRING = 11, /* up to 7 bytes in as.bytes; `small` is their number */
    KILN_SMALL_BYTES = 12,
    KILN_UINT = 63, /* an integer from 2^63 on: as.integer holds the bits of a uint64_t */
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
    uint32_t small; /* number of bytes for KILN_SMALL_STRING and KILN_SMALL_BYTES, otherwise 0 */
    union {
        int64_t integer;
        double real;
        void *pointer;
        char bytes[8];
    } as;
} kiln_value;

/* ---- the library ------------------------------------------------------------------------ */

/* Return KILN_ABI_VERSION as it was when the library was compiled. A host rejects a library whose
 * version is not its own. */
int kiln_abi_version(void);

/* Check whether kernels can run: the processor has every feature the library was compiled for
 * (KILN_ERROR_CPU), the environment variables KILN_NUM_THREADS and KILN_VERIFY_WEIGHTS are unset or
 * valid (KILN_ERROR_ENVIRONMENT), and the weights can be mapped (KILN_ERROR_WEIGHTS). Every call
 * that runs a kernel makes the same check, so calling this is optional; success is remembered. */
int kiln_open(void);

/* Return the library's description as JSON text ending with NUL, the content of the ELF section
 * ".kiln.meta" (docs/formats/library.md). The text is the library's and lives as long as it. */
const char *kiln_metadata(void);

/* Return the processor, by LLVM's name, whose kernels this library runs here: the last one of the
 * metadata's `levels` whose features are all there, else the first one, and kiln_open() says what is
 * missing. Only libraries with kernels for several processors have this function. */
const char *kiln_processor_level(void);

/* Return the sentence about the last failure in the calling thread, at most 1023 bytes; "" before
 * any. It means nothing after a call that succeeded. The text is the library's, and valid until the
 * thread's next call of this library. */
const char *kiln_last_error(void);
/* Set that sentence, before a callback or a loader of the host returns a failure. NULL means "". */
void kiln_set_last_error(const char *sentence);

/* Return the number of the function `name` in this library, from 0 on, or -1 with a sentence if the
 * library has no such function or name is NULL. The functions below take this number. */
int kiln_function_index(const char *name);

enum kiln_function_kind { KILN_GRAPH = 0, KILN_TENSOR_FUNCTION = 1, KILN_OUTER_FUNCTION = 2 };

/* Check that the code of a function is what a description of the library says, which a host has read
 * from its file: KILN_ERROR_NAME if there is no function `name`, KILN_ERROR_COUNT for other numbers of
 * inputs and outputs, KILN_ERROR_ARGUMENT for another kind or other names of parameters, which are
 * `inputs` names and then `outputs`. Of an outer function only the number of inputs is compared.
 * Libraries of earlier versions do not export it. */
int kiln_check_function(const char *name, int kind, const char *const *parameters, int inputs,
                        int outputs);

/* Map weights that lie beside the library from an open file, not from the one of that name: a host
 * that has checked a file keeps others from exchanging it. Before kiln_open(), after which the host
 * may close the file. If the weights are mapped already, these are compared with their hash.
 * KILN_ERROR_WEIGHTS if they do not match it, for another file than that of the library's weights, or
 * for a library whose weights are inside it. Libraries of earlier versions do not export it. */
int kiln_use_weights(int file);

/* ---- running ---------------------------------------------------------------------------- */

/* An executor owns the workspace, the memory for intermediate results. The workspace grows on
 * demand and is kept for the next call. Several threads may use one executor at once, but only one
 * of them gets its workspace; the others borrow one, which is slower. */
typedef struct kiln_executor kiln_executor;

/* Create an executor, which the caller frees with kiln_executor_destroy() before it unloads the
 * library. *executor is NULL after a failure. Codes: those of kiln_open(). */
int kiln_executor_create(kiln_executor **executor);
/* Free an executor. No call may be running in it. NULL is allowed. */
void kiln_executor_destroy(kiln_executor *executor);

/* Run function number `function` on `count` tensors: its inputs, then its outputs, which are
 * written in place. The memory is the caller's. Any strides and any alignment are allowed, and
 * tensors may overlap: where a kernel cannot use the memory directly, it works on a copy in the
 * workspace. Arguments are checked before any kernel runs. If a kernel fails, outputs have
 * undefined contents. Codes:
 *   arguments       COUNT, RANK, SHAPE, DTYPE, DEVICE; NULL also for missing shapes and data
 *   function        NAME: no such number, or an outer function (use kiln_executor_invoke());
 *                   ARGUMENT: it has scalar parameters (use kiln_call())
 *   sizes           CONDITION, RANGE
 *   kernels         CPU, WEIGHTS and ENVIRONMENT, as kiln_open(); ASSERTION
 *   loaded modules  LOADER, CONTAINER, NAME, DEPTH, or what the loader's call() returned */
int kiln_executor_run(kiln_executor *executor, int function, const kiln_tensor *const *tensors,
                      int count);

/* Compute the shape of output number `output` (from 0 on) for these inputs: write *ndim and the
 * sizes shape[0..*ndim-1]; shape must have room for KILN_MAX_RANK sizes. The inputs are checked as
 * by kiln_executor_run(), with the same codes for arguments, function and sizes, but no element is
 * read and nothing is run. */
#define KILN_MAX_RANK 16
int kiln_output_shape(int function, const kiln_tensor *const *inputs, int count, int output,
                      int64_t *shape, int *ndim);

/* Run a function as kiln_executor_run() does, in a borrowed workspace, with scalars too: arguments
 * are given in the order of the parameters, a tensor as KILN_TENSOR.
 *   - integer and bool parameters take KILN_INT, KILN_UINT and KILN_BOOL; a bool takes 0 or 1;
 *   - floating-point parameters take KILN_FLOAT, KILN_INT and KILN_UINT, rounded to nearest even.
 * Codes: those of kiln_executor_run(); ARGUMENT for any other kind of value; RANGE for a number
 * outside the parameter's type, and for a finite one that rounding would make infinite (1e300 for
 * float32). */
int kiln_call(int function, const kiln_value *arguments, int count);

/* Return the size of the executor's workspace in bytes: the most that one call in it has needed so
 * far, copies of tensors included, before rounding up to pages. -1 if executor is NULL. */
int64_t kiln_executor_workspace_bytes(const kiln_executor *executor);

/* ---- outer functions -----------------------------------------------------------------------
 * Functions with branches, calls of function values, tuples, strings, or sizes that depend on the
 * data (kind "outer" in the metadata). Their arguments and results are values. Only a library that
 * has such a function exports the functions of this section. kiln_set_last_error() is exported with
 * them, and with the functions for loaders.
 *
 * Ownership: a value from `kiln_make_...`, or a result, is one reference that the caller owns and
 * gives back with kiln_release(). Arguments are borrowed for the call. An outer function copies a
 * tensor that is passed as KILN_TENSOR; a KILN_TENSOR_OBJECT is shared.
 *
 * `kiln_make_...` and kiln_take_dlpack() write *made only on success. */

/* Call function number `function`, outer or not, with `count` arguments. `executor` lends its
 * memory; NULL: memory is borrowed for the call. A graph function may be called with its inputs
 * only: it then returns its output, or a tuple of its outputs. *result is overwritten, not
 * released; it is KILN_NONE after a failure. Codes: those of kiln_call(), CALLBACK, DEPTH. */
int kiln_executor_invoke(kiln_executor *executor, int function, const kiln_value *arguments,
                         int count, kiln_value *result);
/* Call a value of kind KILN_FUNCTION (ARGUMENT for any other kind). Otherwise as
 * kiln_executor_invoke(), in the executor of the call that this one is nested in, if any. */
int kiln_call_value(const kiln_value *function, const kiln_value *arguments, int count,
                    kiln_value *result);

/* Make a contiguous row-major tensor with 64-byte aligned, uninitialised data. Codes: RANK (more
 * than KILN_MAX_RANK dimensions), SHAPE (a negative size), DTYPE (elements that are not whole
 * bytes). */
int kiln_make_tensor(const int64_t *shape, int ndim, kiln_dtype dtype, kiln_value *made);
/* Make a tensor from a DLManagedTensor * without copying. On success the value owns it, and calls
 * its deleter with the last reference; on failure it stays the caller's. Its device is checked when
 * the tensor is used. Codes: as kiln_make_tensor(); NULL also for missing shape or data. */
int kiln_take_dlpack(void *managed, kiln_value *made);
/* Make a tuple of `count` items, with a new reference to each; views are copied. Codes: COUNT (a
 * negative count); ARGUMENT, DEVICE, or those of kiln_make_tensor(), if a view cannot be copied. */
int kiln_make_tuple(const kiln_value *items, int count, kiln_value *made);
/* Make a shape, a vector of integers, which are not checked. Code: COUNT (a negative count). */
int kiln_make_shape(const int64_t *sizes, int count, kiln_value *made);
/* Make a string: a copy of `bytes` bytes of UTF-8 text, which is not checked. Code: ARGUMENT (a
 * negative length). */
int kiln_make_string(const char *text, int64_t bytes, kiln_value *made);
/* A function of the host. The arguments are borrowed: to keep one, call kiln_retain(), but a view
 * (kinds 7 to 9) is valid for the call only. *result is KILN_NONE on entry; with KILN_OK the
 * callback hands over one reference in it. On failure it calls kiln_set_last_error() and returns
 * any other code, which the caller of the function sees as KILN_ERROR_CALLBACK. May run in any
 * thread, and in several at once. */
typedef int (*kiln_callback)(void *context, const kiln_value *arguments, int32_t count,
                             kiln_value *result);
/* Make a function value of a callback. On success the value owns `context`: destroy(context) runs
 * with the last reference, in the thread that releases it (destroy may be NULL). On failure the
 * context stays the caller's. */
int kiln_make_function(kiln_callback callback, void *context, void (*destroy)(void *context),
                       kiln_value *made);
/* Register a function under a name that call_packed of this library finds, before functions of
 * tvm-ffi and of the library itself. It replaces one of the same name, and takes a reference;
 * function NULL removes the name. Names that are left when the library is unloaded are dropped
 * without a release, so `destroy` does not run for them. Code: ARGUMENT (the value is not a
 * function). */
int kiln_register_function(const char *name, const kiln_value *function);

/* Return a pointer into a value, valid while the value is; NULL if value is NULL or of another
 * kind, and then *bytes or *count is not written (both may be NULL).
 *   kiln_tensor_of   of KILN_TENSOR and KILN_TENSOR_OBJECT
 *   kiln_string_of   of strings and bytes but KILN_BYTES_VIEW: *bytes of them, not always followed
 *                    by NUL; of a small string they lie in *value itself
 *   kiln_shape_of    of KILN_SHAPE: *count sizes
 *   kiln_items_of    of KILN_TUPLE and KILN_LIST: *count items, without a reference of their own */
const kiln_tensor *kiln_tensor_of(const kiln_value *value);
const char *kiln_string_of(const kiln_value *value, int64_t *bytes);
const int64_t *kiln_shape_of(const kiln_value *value, int *count);
const kiln_value *kiln_items_of(const kiln_value *value, int *count); /* of a tuple or list */

/* Add a reference to an object. Does nothing for other values, and for NULL. */
void kiln_retain(const kiln_value *value);
/* Give a reference back and set *value to KILN_NONE. The last reference frees the object, which may
 * run a `destroy` of the host or a DLPack deleter. NULL is allowed. */
void kiln_release(kiln_value *value);
/* Return the number of objects that this library has made and that are not freed yet. */
int64_t kiln_live_objects(void);

/* ---- loaders ---------------------------------------------------------------------------- */

/* Only a library that carries artifacts other than host code exports the functions of this section.
 * Artifacts are, for example, the binary of a device or its command stream. The library stores them
 * as the code generator made them; a loader of the host turns them into a module, which has
 * functions. All artifacts of one loader and one target key make one module. */
typedef struct kiln_artifact {
    const char *codegen_id; /* the code generator that made it */
    const char *file_name;
    const char *target_key; /* what it is compiled for; "" where the generator gave none */
    const void *content; /* 64-byte aligned; lives as long as the library */
    uint64_t bytes;
} kiln_artifact;

/* The functions of a loader and of its modules. load() and call() return KILN_OK, or another code
 * after kiln_set_last_error(). load() runs under a lock of the library, so never twice at once;
 * call() runs without it, in several threads at once. */
typedef struct kiln_loader {
    uint32_t size; /* sizeof(kiln_loader) */
    void *context; /* passed to load() */
    /* Make a module of all artifacts for this loader and target key, and write it to *module. It
     * may call kiln_module() for other modules, not for its own (KILN_ERROR_LOADER). */
    int (*load)(void *context, const char *target_key, const kiln_artifact *artifacts, int count,
                void **module);
    /* Call a function of the module. For a kernel, tensors are KILN_TENSOR, inputs before outputs,
     * sizes are KILN_INT, and there is no result. Arguments from call_packed may be of any kind
     * (read them with kiln_tensor_of() and the like), and the library takes over the reference that
     * is written to *result, which is KILN_NONE on entry. Return KILN_ERROR_NAME if the module has
     * no such function: the library then tries the modules that this one imports. */
    int (*call)(void *module, const char *function, const kiln_value *arguments, int32_t count,
                kiln_value *result);
    /* Free a module when the library is unloaded; NULL: nothing to do. It does not run for a module
     * that kiln_set_module() replaced, nor at exit() while a call of a module is running. */
    void (*unload)(void *module);
} kiln_loader;

/* Register a loader under a name, in place of an earlier one; NULL removes the name. *loader is
 * copied; its context must live until the loader is replaced or removed, or the library is
 * unloaded. A module is loaded when one of its functions is first called, and then keeps the
 * functions of the loader that loaded it. Code: ARGUMENT (size is too small, or load or call is
 * NULL). */
int kiln_register_loader(const char *name, const kiln_loader *loader);
/* Return 1 if a loader of that name is registered, otherwise 0, also for NULL. */
int kiln_has_loader(const char *name);
/* Set the module of a loader and target key to one that the host has made itself. *functions is
 * copied; only its call and unload are used. The library owns the module when this succeeds. Codes:
 * ARGUMENT (as kiln_register_loader(), but load may be NULL), NAME (the library has no artifacts
 * for that loader and target key), CONTAINER. */
int kiln_set_module(const char *loader, const char *target_key, const kiln_loader *functions,
                    void *module);
/* Return the module of a loader and target key, for host code that uses a device itself; load it if
 * it is not loaded yet. The library keeps it. Return NULL with a sentence if it cannot be loaded,
 * or if its own load() is the caller. */
void *kiln_module(const char *loader, const char *target_key);
/* Call a function of a module, which is loaded first if need be. If it has no such function, the
 * modules that it imports are tried, nearest first. *result as for kiln_executor_invoke(). Codes:
 * NAME, LOADER, CONTAINER, DEPTH, or what load() or call() of the module returned. */
int kiln_call_import(const char *loader, const char *target_key, const char *function,
                     const kiln_value *arguments, int32_t count, kiln_value *result);

/* ---- devices ---------------------------------------------------------------------------- */

/* Only a library with code for devices that have memory of their own exports these functions. Its
 * metadata lists them (`devices`), with a `number` from 1 on, and says which parameters must be on
 * which (`device`). Such a tensor has the device_type of DLPack (2: CUDA, 4: OpenCL), the index as device_id,
 * and in `data` what DLPack has there: for CUDA an
 * address, for OpenCL the cl_mem. It is row-major, and shares no memory
 * with another argument that is written; plain C entries take the same `data`. A call returns when
 * the devices are done. The other codes of a call are then DRIVER, NO_DEVICE, CAPABILITY, BUILD (when
 * a device is first used), DEVICE_MEMORY, LAUNCH, EXECUTION, DEVICE_LOST. After fork() a child cannot use devices
 * that its parent has used (DRIVER).
 *
 * Choose the device of this system, by its index among those of its kind, that runs code of device
 * number `device` for calls in an executor, and open it: build the code and copy the weights, unless
 * the library has done so before. executor NULL: for calls without one, and for executors without a
 * choice of their own; if nothing is chosen it is index 0, opened by the first call that needs it.
 *
 * `context` is a context of the host's to use, of that one device (OpenCL: a cl_context, CUDA: a CUcontext,
 * which must outlive the library): memory objects of OpenCL belong to a context, so a host that has
 * some passes it. NULL: the library makes its own, and shares CUDA's primary context. A device and its context stay in use until the library is unloaded. Codes: ARGUMENT (no
 * device of that number, or a context that cannot be used), DRIVER, NO_DEVICE, CAPABILITY, BUILD,
 * DEVICE_MEMORY, CONTAINER; those of kiln_open(). */
int kiln_executor_set_device(kiln_executor *executor, int device, int index, void *context);
/* Let calls in an executor queue what they do on device number `device` in a stream of the host's
 * (CUDA: a CUstream; 1 is the default stream) and return without waiting for it, unless they copy
 * from or to the host. NULL: in a stream of the library's, and wait, as without this. Results, also
 * failures of kernels, are there when the host has waited for the stream. A later call that uses the
 * same memory for intermediate results, in whatever stream, waits for it on the device.
 *
 * Such calls can be captured by the host (cuStreamBeginCapture()) if no parameter is on the host and
 * the same sizes have run in the executor before (CONDITION), and replayed as long as the executor
 * and the tensors live, once what earlier calls have left in other streams is done and while no
 * other call runs in the executor. Codes: ARGUMENT (no device of that number, or of a kind without
 * streams). */
int kiln_executor_set_stream(kiln_executor *executor, int device, void *stream);
/* kiln_executor_run() with all that it does on devices with streams in this one; they must be one
 * device of the system. NULL: as the executor has it. Calls of tvm-ffi use tvm-ffi's stream in the same
 * way. */
int kiln_executor_run_in_stream(kiln_executor *executor, int function,
                                const kiln_tensor *const *tensors, int count, void *stream);
/* Let runs in an executor be graphs of CUDA (on != 0), or let them not. What a run launches between two
 * copies from or to the host is then one graph, which is made when a function first runs with its
 * sizes; later runs update those of its nodes whose parameters have changed, and launch it. The graphs
 * of the 16 runs that were last used, by function and sizes, are kept per workspace. A run in a stream
 * that the host captures is no graph of ours: the host's graph gets its launches. Results are the same.
 *
 * A failure of the driver in making, updating or launching a graph is that of the run (LAUNCH). Opens
 * the devices that have graphs. Codes: ARGUMENT (the library has no device with graphs), DRIVER (also
 * one older than CUDA 11.4), and those of kiln_executor_set_device(). */
int kiln_executor_set_graphs(kiln_executor *executor, int on);
/* What kiln_executor_graph_count() counts, since the executor was created. */
enum kiln_graph_count {
    KILN_GRAPH_LAUNCHED = 0, /* graphs launched */
    KILN_GRAPH_MADE = 1,     /* graphs made */
    KILN_GRAPH_UPDATED = 2,  /* nodes updated */
    KILN_GRAPH_DROPPED = 3,  /* runs whose graphs were dropped, since 16 others came after */
    KILN_GRAPH_CAPTURED = 4, /* runs without: the host was capturing their stream */
    KILN_GRAPH_SINGLE = 5,   /* parts without: a launch or copy by itself */
    KILN_GRAPH_HOST = 6,     /* parts of a run after its first: the host has work in between */
    KILN_GRAPH_COUNTS = 7
};
/* Return a count; -1 if there is none of that number, or executor is NULL. */
int64_t kiln_executor_graph_count(const kiln_executor *executor, int what);

/* ---- threads ---------------------------------------------------------------------------- */

/* Set how many threads one call into this library may use, the calling thread included. 0 is the
 * default: the smallest of KILN_NUM_THREADS (unless it is unset or 0), the CPUs this process may
 * run on, and its cgroup's CPU quota. Values below 0 count as 0, above 4096 as 4096. With 1 the
 * library never creates a thread. Results do not depend on the number. */
void kiln_set_num_threads(int threads);
/* Return the number that is in force, the default included; at least 1. */
int kiln_get_num_threads(void);
/* Set the number for calls in one executor; 0 means the library's number. NULL is ignored. */
void kiln_executor_set_num_threads(kiln_executor *executor, int threads);

/* The loop body of a kernel: computes iterations begin to end - 1. */
typedef void (*kiln_body)(void *closure, int64_t begin, int64_t end);
/* A thread pool of the host. parallel_for() calls body(closure, begin, end) on disjoint ranges that
 * cover 0..n, on at most `threads` threads (n and threads are at least 2), and returns when all of
 * them are done. Several threads may call it at once. */
typedef struct kiln_pool_api {
    uint32_t version; /* 1 */
    uint32_t size;    /* sizeof(kiln_pool_api) */
    void (*parallel_for)(kiln_body body, void *closure, int64_t n, int threads);
} kiln_pool_api;

/* Make the library use the host's thread pool. NULL, one of a smaller size, or one without
 * parallel_for returns to the built-in pool. *pool is not copied: it must live until another pool is set and no call that began
 * before is running. */
void kiln_use_pool(const kiln_pool_api *pool);

#ifdef __cplusplus
}
#endif
#endif
