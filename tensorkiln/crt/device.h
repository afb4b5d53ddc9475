/* device.h - devices with memory of their own: the interface of generated code, the table of
 * functions that a kind of device has, and the prototypes of the files that all kinds share.
 *
 * Linked only into libraries with devices. Their entry file includes this header instead of crt.h,
 * and their runtime is compiled with it too: it defines KILN_DEVICES, with which the tables of crt.h
 * have the members that devices need. Libraries without devices have neither.
 *
 * Devices have numbers: 0 is the host, 1, 2, ... are the rows of kiln_this_library.devices. A row is
 * what code was generated for. The host of the library chooses which device of the system runs it,
 * for the library or for one executor (kiln_executor_set_device(), kiln.h); by default it is the
 * first one of that kind. A device is opened when it is first needed: its driver is loaded, the
 * functions are built and the weights are copied to it, once per library, device and context.
 *
 * Memory of a device has addresses, with which planned code does arithmetic as with any other, and
 * at which the host can read nothing: touching one by mistake traps. They are the device's own; for
 * kinds whose memory has no addresses (OpenCL) they are reserved, and a launch turns each back into a memory object and an
 * offset in it.
 *
 * What generated code contains
 * ----------------------------
 * For each device function, a function of loader `opencl` in the container's artifacts of its target
 * key (or `cuda`, with `kiln_cuda`: a loader has the name of its kind), its description, and a C function with the arguments of a kernel, which launches it:
 *
 *     static const uint8_t params_add[] = {KILN_BUFFER, KILN_BUFFER, KILN_BITS64};
 *     static const kiln_device_function device_add = {
 *         "add", 1, 0, 3, params_add, {64, 1, 1}, 0, NULL,
 *     };
 *     void add(void *p0, void *p1, int64_t s_n)
 *     {
 *         const int64_t grid[3] = {(s_n + 63) / 64, 1, 1};
 *         const kiln_argument argument[] = {{.buffer = p0}, {.buffer = p1}, {.int64 = s_n}};
 *         kiln_launch(&device_add, grid, argument, 3);
 *     }
 *
 * The table of devices, in the order of their numbers, and at the end of kiln_this_library its
 * length and the table itself. `number` of a function is its index in `functions`:
 *
 *     static const kiln_device_function *const functions_1[] = {&device_add};
 *     static const kiln_device_weights weights_1[] = {{0, 0, 4096}};
 *     static const kiln_device_target devices[] = {
 *         {"opencl", &kiln_opencl, 1, functions_1, 1, weights_1, 4096},
 *     };
 *     ... kiln_this_library = {..., 1, devices};
 *
 * A parameter that must lie on a device says so by its number, the last member of its kiln_param;
 * run() then gets an address of that device in frame->arg. A function that uses devices says which,
 * as bits 1 << number, and how many bytes of storages it needs on each; both are at the end of its
 * kiln_function:
 *
 *     static int device_workspace_main(const int64_t *symbol, int64_t *bytes)
 *     {
 *         bytes[1] = 1024;
 *         return KILN_OK;
 *     }
 *     ... function_main = {..., 1u << 1, device_workspace_main};
 *
 * run() finds its storages and weights on a device in the frame, and copies between devices are
 * lines of it:
 *
 *     static void run_main(const kiln_frame *frame)
 *     {
 *         char *const in_x = frame->arg[0];
 *         char *const out_y = frame->arg[1];
 *         char *const workspace_1 = frame->device[1].workspace;
 *         char *const weights_1 = frame->device[1].weights;
 *
 *         kiln_device_copy(workspace_1, 1, in_x, 0, 512);
 *         add(workspace_1, weights_1 + 64, 128);
 *         kiln_device_copy(out_y, 0, workspace_1, 1, 512);
 *     }
 *
 * Launches are queued, in order, per device; a copy that the host reads, or whose source the host
 * may change, has been done when kiln_device_copy() returns; before run() returns to the caller all
 * queues are waited for. After a failure, which is recorded as that of a kernel
 * (kiln_kernel_failed()), launches and copies do nothing, so a plan has to ask kiln_assertion() only
 * before it calls a kernel of the host. */
#ifndef KILN_DEVICE_H
#define KILN_DEVICE_H

#if defined(KILN_CRT_H) && !defined(KILN_DEVICES)
#error "device.h must be included before crt.h, which it extends"
#endif
#if !defined(KILN_DEVICES)
#define KILN_DEVICES 1
#endif
#include "loader.h"

#define KILN_MAX_DEVICES 31
#define KILN_MAX_DEVICE_PARAMS 64

/* ---- tables of generated code ---------------------------------------------------------------- */
/* A parameter of a device function: a buffer, or a value of so many bytes, which is a scalar up to 8
 * and anything else beyond; or, behind all others, a tensor map, which the launch makes of a
 * kiln_tensor_map. */
enum {
    KILN_BUFFER = 0,
    KILN_BITS8 = 1,
    KILN_BITS16 = 2,
    KILN_BITS32 = 4,
    KILN_BITS64 = 8,
    KILN_TENSOR_MAP = 255
};

/* What of a tensor a map is of, of which the device copies boxes; innermost dimensions first. Those
 * and strides are times an argument of the same launch, an int64, where `dim_by` and `stride_by` are
 * its number plus one. Where `steps` is not zero, it is of windows of images [N, H, W, C], along columns
 * and rows: the first and the last one, counted from the first and the last pixel, and from one to the
 * next; a box has channels and pixels. */
typedef struct kiln_tensor_map {
    int32_t param; /* the buffer, an argument of the same launch */
    int32_t type;  /* of its elements, a number of the driver */
    int32_t rank;
    int64_t dims[5];
    int64_t strides[4]; /* bytes along all dimensions but the first */
    int32_t box[5];
    uint8_t dim_by[5];
    uint8_t stride_by[4];
    int32_t lower[2], upper[2], steps[2];
} kiln_tensor_map;

/* A buffer is an address of the function's device. Scalars have the representation of an element of
 * their type: float16 and bfloat16 as int16, bool as int8, unsigned types as the signed ones. Larger
 * values are copied from an address of the host, where for a tensor map its kiln_tensor_map is. */
typedef union kiln_argument {
    void *buffer;
    const void *bytes;
    int64_t int64;
    int32_t int32;
    int16_t int16;
    int8_t int8;
    float float32;
    double float64;
} kiln_argument;

/* What one launch runs: threads in blocks of a constant size. */
typedef struct kiln_device_function {
    const char *name; /* in the artifacts of its device */
    int32_t device;
    int32_t number; /* among the functions of its device */
    int32_t n_params;
    const uint8_t *params; /* KILN_BUFFER or KILN_BITS... */
    int32_t block[3];
    int64_t shared_bytes; /* memory that the threads of a block share */
    const char *const *extensions; /* that the device must have; NULL-terminated. NULL: none */
} kiln_device_function;

/* Part of the library's weights that a device has a copy of: bytes from offset `host` on of the
 * library's weights, from offset `device` on of those on the device. */
typedef struct kiln_device_weights {
    int64_t host;
    int64_t device;
    int64_t bytes;
} kiln_device_weights;

typedef struct kiln_device_target {
    const char *target_key; /* of its artifacts; their loader is the name of its kind */
    const struct kiln_device_kind *kind;
    int n_functions;
    const kiln_device_function *const *functions;
    int n_weights;
    const kiln_device_weights *weights;
    int64_t weights_bytes; /* of all parts on the device */
} kiln_device_target;

/* The part of kiln_frame for one device: storages and weights of the running function. */
typedef struct kiln_device_place {
    char *workspace; /* aligned as the device's memory objects are; contents undefined */
    char *weights;
} kiln_device_place;

/* ---- the functions of a kind of device ------------------------------------------------------- */
/* A memory object of a device. */
typedef struct kiln_device_memory {
    void *handle;
    char *address; /* of its first byte */
    int64_t bytes;
    int64_t reserved; /* addresses behind `address` that nothing else has; the kind's own */
} kiln_device_memory;

/* An address as what it stands for. */
typedef struct kiln_device_at {
    void *handle;
    int64_t offset;
} kiln_device_at;

/* A run that is to be a graph: those of one function with the same sizes have the same launches. What
 * comes of it is counted, by enum kiln_graph_count. */
typedef struct kiln_graph_run {
    const kiln_function *function;
    const int64_t *symbols; /* function->n_symbols of them */
    int64_t *counts;
} kiln_graph_run;

/* `device`, `module` and `queue` are what open(), load() and start() have made. All may be used by
 * several threads at once, except queues. Functions that return int fail with a sentence. */
typedef struct kiln_device_kind {
    const char *name;    /* of the kind, and of the loader that artifacts for it name */
    int32_t dlpack_type; /* of tensors in its memory */
    int32_t data_is_address; /* DLPack's `data` there is an address; 0: a handle */
    /* Open the device of that index in the system, in a context of the host's if there is one. */
    int (*open)(int index, void *context, void **device);
    void (*close)(void *device);
    /* Build all functions of a target, and check that the device can run them. */
    int (*load)(void *device, const kiln_device_target *target, const kiln_artifact *artifacts,
                int count, void **module);
    void (*unload)(void *module);
    /* A queue, in which what is launched and copied happens in that order. */
    int (*start)(void *module, void **queue);
    void (*stop)(void *queue);
    /* Use a stream of the host's from now on, or, NULL, the queue's own, after what was left in another
     * one; say whether what happens in it is being captured, so that no memory may be made or freed.
     * NULL: a kind without streams. */
    int (*follow)(void *queue, void *stream, int *is_captured);
    /* Note that the host does not wait for what is queued in its stream by now. */
    int (*leave)(void *queue);
    /* Memory: *memory is all zeros if that fails, and may be freed. */
    int (*allocate)(void *device, int64_t bytes, kiln_device_memory *memory);
    void (*free)(void *device, kiln_device_memory *memory);
    /* Memory of a caller, from DLPack's `data` of at least `bytes` bytes. What *memory reserved
     * for another handle before is used again. release() ends that, but keeps the reservation. */
    int (*borrow)(void *device, void *data, int64_t bytes, kiln_device_memory *memory);
    void (*release)(kiln_device_memory *memory);
    /* `at` has an entry for each parameter that is a buffer, others are unused. */
    int (*launch)(void *queue, const kiln_device_function *function, const int64_t grid[3],
                  const kiln_argument *arguments, const kiln_device_at *at);
    /* Copy from and to the host, done on return, and within the device. */
    int (*write)(void *queue, kiln_device_at to, const void *from, int64_t bytes);
    int (*read)(void *queue, void *to, kiln_device_at from, int64_t bytes);
    int (*copy)(void *queue, kiln_device_at to, kiln_device_at from, int64_t bytes);
    /* Wait for all that was queued; failures of it come to light here. */
    int (*wait)(void *queue);
    /* Runs as graphs, of kinds that have some; NULL: one without. Find what they need of the driver. */
    int (*find_graphs)(void *device);
    /* From now on, until the next call: collect what is launched and copied on the device, and launch
     * it together; NULL: each by itself. */
    int (*collect)(void *queue, const kiln_graph_run *run);
    /* Launch what was collected, which write() and read() do as well. */
    int (*submit)(void *queue);
} kiln_device_kind;

/* A library has the files of those kinds that its entry file names. */
extern const kiln_device_kind kiln_opencl; /* opencl_launch.c */
extern const kiln_device_kind kiln_cuda;   /* cuda_launch.c */

/* ---- types that functions above their own file take ------------------------------------------ */
typedef struct kiln_opened kiln_opened;   /* device.c */
typedef struct kiln_session kiln_session; /* session.c */
/* The devices that a host has chosen, by number; NULL: none, it is the library's. */
typedef struct kiln_devices {
    kiln_opened *opened[KILN_MAX_DEVICES + 1];
    void *stream[KILN_MAX_DEVICES + 1]; /* of the host; NULL: each call waits for its own */
    int64_t *graphs; /* counts of graphs, by enum kiln_graph_count; NULL: runs are none */
} kiln_devices;

/* ---- session.c: what one call at a time has on devices: queues, memory ------------------------ */
/* Launch a function; arguments are as many as it has parameters. With a grid of 0 in any dimension
 * nothing happens. */
void kiln_launch(const kiln_device_function *function, const int64_t grid[3],
                 const kiln_argument *arguments, int32_t count);
/* Copy bytes between devices, 0 being the host. The ranges do not overlap. */
void kiln_device_copy(void *to, int32_t to_device, void *from, int32_t from_device, int64_t bytes);


/* Make a session ready for a run of the bound function, and write what run() needs: where its
 * storages and weights are on each device (place has room for all), and the addresses of those
 * arguments that lie on devices. From then on launches and copies of this thread use the session,
 * until kiln_session_end(); after a failure it has ended. *session is NULL before the first call. */
int kiln_session_begin(kiln_session **session, const kiln_binding *binding,
                       kiln_device_place *place, char **arg);
/* Wait for all devices but those with a stream of the host's, and give back memory of the caller; a
 * failure is recorded as a kernel's. */
void kiln_session_end(kiln_session *session);
/* Free a session that no call is using. */
void kiln_session_free(kiln_session *session);

/* ---- driver.c: what kinds of devices have in common ------------------------------------------- */
/* How sentences name a device: "opencl:0 (its name)". */
typedef struct kiln_device_words {
    const char *kind;
    int index;
    const char *name;
} kiln_device_words;

/* Open a driver's library for good, or say that the library of devices of `api` is missing. */
int kiln_open_driver(const char *library, const char *api, const char *hint, void **handle);
/* Write the address of a library's function to the pointer to a function at `place`; whether there is
 * one. C99 has no conversion from dlsym()'s object pointer, so the bytes are copied. */
int kiln_has_function(void *library, const char *name, void *place);
/* Fail: the system has only `count` devices of a kind. */
int kiln_no_device(const char *kind, int index, const char *api, int count);
/* Where the bytes of argument i of a launch are, unless it is a buffer. */
static inline const void *kiln_value_of(const kiln_device_function *function, int i,
                                        const kiln_argument *argument)
{
    /* A scalar is the low bytes of a little-endian union. */
    return function->params[i] > KILN_BITS64 ? argument->bytes : argument;
}
/* The threads of a block; -1 if they are more than any device has. */
int64_t kiln_threads_of(const kiln_device_function *function);
/* Fail: a function needs more of something than the device has. */
int kiln_device_lacks(const kiln_device_words *device, const kiln_device_function *function,
                      const char *what, int64_t needed, int64_t has);

/* ---- device.c: the library's devices, opened -------------------------------------------------- */
struct kiln_opened {
    kiln_opened *next;
    const kiln_device_target *target;
    int number;
    int index;     /* in the system, among devices of its kind */
    void *context; /* of the host; NULL: its own */
    void *device;
    void *module;
    kiln_device_memory weights;
};
/* Choose the device that runs code of device `number`, and open it. */
int kiln_choose_device(kiln_devices *chosen, int number, int index, void *context);
/* Choose the stream on device `number`. */
int kiln_choose_stream(kiln_devices *chosen, int number, void *stream);
/* KILN_ERROR_ARGUMENT if a function uses no device that has streams. */
int kiln_check_takes_stream(const kiln_function *function);
/* Let runs be graphs, and count at `counts`; NULL: let them not. KILN_ERROR_ARGUMENT if no device of
 * the library has graphs; otherwise those that have some are opened, and may refuse. */
int kiln_choose_graphs(kiln_devices *chosen, int64_t *counts);
/* The choice for calls without an executor, and for executors without one of their own. */
extern kiln_devices kiln_default_devices;
/* The device that a choice stands for, opened; NULL with a sentence. */
kiln_opened *kiln_open_device(const kiln_devices *chosen, int number, int *code);
/* The name of a device in sentences: "opencl:0". */
#define KILN_DEVICE_NAME 40
void kiln_device_name(char *text, const kiln_opened *opened);
/* In a child of fork(), and at exit(): call no driver any more, if one was called before. */
void kiln_forget_devices(void);
int kiln_devices_are_lost(void);
/* At the end of the library: close all devices. */
void kiln_close_devices(void);
/* Reserve addresses for `memory->bytes` bytes, unless it has enough; give them back. */
int kiln_reserve_addresses(kiln_device_memory *memory);
void kiln_give_addresses(kiln_device_memory *memory);

#endif
