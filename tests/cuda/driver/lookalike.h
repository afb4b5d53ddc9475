/* A stand-in for libcuda.so.1 over the host's memory, for tests: calls fail on request, what is handed
 * out is counted, handles and addresses are checked, and kernels are those of a shared object that an
 * emulator has made of the same PTX. Of the environment:
 *
 * LOOKALIKE_DIR         where <sha256 of the PTX or cubin>.so is, with a function
 *                            `int emulate_<kernel>(const unsigned grid[3], const unsigned block[3],
 *                            unsigned shared_bytes, void **arguments)` for each kernel, which returns 0, or
 *                            another number after a failure, and `const char *emulator_message(void)`
 * LOOKALIKE_FAIL        "cuMemAlloc:2:700": the second call of a function fails with that error
 * LOOKALIKE_DEVICES     how many there are (2)
 * LOOKALIKE_CAPABILITY  of each device ("9.0")
 * LOOKALIKE_MEMORY      bytes of each device (2^30)
 * LOOKALIKE_LACKS       the name of a function that the driver does not have
 * LOOKALIKE_THREADS, LOOKALIKE_SHARED   what a kernel may have, and has, of its own
 * LOOKALIKE_LOG         what the driver's compiler says
 * LOOKALIKE_VERSION     of CUDA (12040)
 * LOOKALIKE_LATE        1: streams run as late as they may; 2: and in turns (late.c)
 * LOOKALIKE_TRACE       a file that gets a line for each launch and copy: its stream, and what it is
 *
 * Otherwise streams execute at once. What a kernel does wrong comes to light later: the launch succeeds, and
 * from the next call on all fail with CUDA_ERROR_LAUNCH_FAILED. Emulators that have `emulator_buffer`
 * and `emulator_forget` are told of all memory of their device: a kernel may touch nothing else. */
#ifndef LOOKALIKE_H
#define LOOKALIKE_H

#include <stddef.h>
#include <stdint.h>

typedef int32_t CUresult;
typedef uintptr_t CUdeviceptr;

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209,
    INVALID_PTX = 218,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    LAUNCH_FAILED = 719,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901
};

typedef enum { CONTEXT, MODULE, FUNCTION, STREAM, EVENT, GRAPH, NODE, EXEC, KINDS } object_kind;
typedef struct object object;
typedef int (*kernel)(const unsigned *grid, const unsigned *block, unsigned shared, void **arguments);

#define MOST_VALUES 64
#define MOST_VALUE_BYTES 4096 /* of all arguments of a kernel: CUDA's limit */

/* A launch or a copy that a graph has, after those that it depends on. */
typedef struct operation {
    struct operation *next;
    object *node; /* of graphs that were not captured */
    int n_before; /* 1: the operation before it, or another one, which the node names */
    object *before;
    int is_done; /* in a launch of the graph */
    int is_of_graph;
    object *awaited; /* a stream, up to a number of its operations; NULL: this is no wait */
    uint64_t awaited_number;
    object *function; /* NULL: a copy */
    unsigned grid[3], block[3], shared;
    CUdeviceptr to, from;
    size_t bytes;
    unsigned char values[MOST_VALUE_BYTES]; /* each at a multiple of 8 bytes */
} operation;

struct object {
    object *next;
    object_kind kind;
    int number; /* of streams, in the log */
    int device;
    int references; /* of contexts */
    object *owner;  /* of functions: the module; of nodes: the graph */
    void *library;  /* of modules: the emulator */
    char *text;     /* of modules: their PTX */
    char name[128]; /* of functions */
    kernel run;
    int shared; /* that a function has asked for */
    int n_params, sizes[MOST_VALUES]; /* in bytes */
    int capturing, capture_mode, invalid; /* of streams */
    unsigned flags;         /* of streams; 1: does not wait for the default one */
    operation *waiting;     /* of streams: not run yet */
    uint64_t n_issued, n_done; /* of streams; of events what their stream had got */
    operation *operations;  /* of streams that are captured, and of graphs */
};

/* state.c */
void lock(void);
void unlock(void);
object *make(object_kind kind, object *like);
object *first_object(void);
int is_a(const object *o, object_kind kind);
void drop(object *o);
object *next_module(const object *after, int device);
void drop_owned(const object *owner);
object *current_context(void);
CUresult fails(const char *name);
CUresult lost(void);
void lose(CUresult error);
void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
int64_t setting(const char *name, int64_t otherwise);
int capability(void);
/* memory.c */
int is_device_memory(CUdeviceptr address, size_t bytes);
int live_memory(void);
int drop_memory(const object *context);
void copy_bytes(CUdeviceptr to, CUdeviceptr from, size_t bytes);
void tell_all_memory(object *module, int is_there);
/* stream.c */
int is_stream(object *stream);
int is_captured(object *stream);
void invalidate(object *stream);
int breaks_captures(void); /* whether a call that may wait is forbidden now; then it has broken them */
void record(object *stream, const operation *op);
/* late.c */
int runs_late(const object *stream);
int number_of(const object *stream);
void run_in(object *stream, const operation *op);
void run_later(object *stream, const operation *op);
void catch_up(object *stream);
void catch_up_all(int blocking_only);
void record_event(object *event, object *stream);
void wait_for_event(object *stream, const object *event);
/* graph.c */
void set_values(operation *op, void *const *values);
void run_operation(const operation *op, object *stream);
/* module.c */
void tell_memory(object *module, CUdeviceptr start, size_t bytes, int is_there);
int is_launch(const unsigned *grid, const unsigned *block, unsigned shared, const object *function);
CUresult run_kernel(object *function, const unsigned *grid, const unsigned *block, unsigned shared,
                    void **values);

/* The begin of a function: held lock, a requested failure, a lost device; the end. */
#define BEGIN(name)                                                                                \
    lock();                                                                                        \
    CUresult error = fails(name);                                                                  \
    if (error == SUCCESS)                                                                          \
        error = lost();
#define NEED_CONTEXT()                                                                             \
    if (error == SUCCESS && current_context() == NULL)                                             \
        error = INVALID_CONTEXT;
#define NEED(condition, otherwise)                                                                 \
    if (error == SUCCESS && !(condition))                                                          \
        error = otherwise;
#define END()                                                                                      \
    unlock();                                                                                      \
    return error;

#endif
