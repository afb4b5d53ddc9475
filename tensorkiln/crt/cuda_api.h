/* cuda_api.h - the part of the CUDA driver API that we call, declared by ourselves: no CUDA header,
 * toolkit or library is needed to compile a library. Names without the prefix `cu` are CUDA's. */
#ifndef KILN_CUDA_API_H
#define KILN_CUDA_API_H

#include "device.h"

typedef int32_t CUresult;
typedef int32_t CUdevice;
typedef struct cu_context *CUcontext;
typedef struct cu_module *CUmodule;
typedef struct cu_function *CUfunction;
typedef struct cu_stream *CUstream;
typedef struct cu_event *CUevent;
typedef struct cu_graph *CUgraph;
typedef struct cu_graph_node *CUgraphNode;
typedef struct cu_graph_exec *CUgraphExec;
typedef uintptr_t CUdeviceptr; /* CUDA's is unsigned long long: the same on machines with 64 bits */

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_DEINITIALIZED = 4,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
    CUDA_ERROR_ECC_UNCORRECTABLE = 214,
    CUDA_ERROR_INVALID_PTX = 218,
    CUDA_ERROR_NVLINK_UNCORRECTABLE = 220,
    CUDA_ERROR_JIT_COMPILER_NOT_FOUND = 221,
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222,
    CUDA_ERROR_JIT_COMPILATION_DISABLED = 223,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    CUDA_ERROR_LAUNCH_TIMEOUT = 702,
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
    CUDA_ERROR_ASSERT = 710,
    CUDA_ERROR_HARDWARE_STACK_ERROR = 714,
    CUDA_ERROR_ILLEGAL_INSTRUCTION = 715,
    CUDA_ERROR_MISALIGNED_ADDRESS = 716,
    CUDA_ERROR_INVALID_ADDRESS_SPACE = 717,
    CUDA_ERROR_INVALID_PC = 718,
    CUDA_ERROR_LAUNCH_FAILED = 719,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_STREAM_CAPTURE_LAST = 908
};

enum {
    CU_DEVICE_MAX_THREADS_PER_BLOCK = 1,
    CU_DEVICE_MAX_BLOCK_DIM_X = 2, /* and Y, Z */
    CU_DEVICE_MAX_GRID_DIM_X = 5,  /* and Y, Z */
    CU_DEVICE_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_DEVICE_COMPUTE_CAPABILITY_MINOR = 76,
    CU_DEVICE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
    CU_FUNC_MAX_THREADS_PER_BLOCK = 0,
    CU_FUNC_SHARED_SIZE_BYTES = 1,
    CU_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
    CU_JIT_ERROR_LOG_BUFFER = 5,
    CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6,
    CU_POINTER_MEMORY_TYPE = 2,
    CU_POINTER_DEVICE_ORDINAL = 9,
    CU_MEMORYTYPE_DEVICE = 2,
    CU_TENSOR_MAP_INTERLEAVE_NONE = 0,
    CU_TENSOR_MAP_SWIZZLE_128B = 3,
    CU_TENSOR_MAP_L2_PROMOTION_L2_128B = 2,
    CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0, /* zeros */
    CU_STREAM_DEFAULT = 0,
    CU_STREAM_CAPTURE_MODE_RELAXED = 2,
    CU_EVENT_DISABLE_TIMING = 2
};

/* A block may share so much without asking. */
#define KILN_CUDA_SHARED_UNASKED (48 << 10)

/* X(name, version, arguments): the functions, in the order of a library's life. `version` is that of
 * CUDA (1000 * major + 10 * minor) in which they got these arguments; all return CUresult. */
#define KILN_CUDA_FUNCTIONS(X)                                                                     \
    X(Init, 2000, (uint32_t))                                                                      \
    X(GetErrorName, 6000, (CUresult, const char **))                                               \
    X(DeviceGetCount, 2000, (int *))                                                               \
    X(DeviceGet, 2000, (CUdevice *, int))                                                          \
    X(DeviceGetName, 2000, (char *, int, CUdevice))                                                \
    X(DeviceGetAttribute, 2000, (int *, int, CUdevice))                                            \
    X(DevicePrimaryCtxRetain, 7000, (CUcontext *, CUdevice))                                       \
    X(DevicePrimaryCtxRelease, 11000, (CUdevice))                                                  \
    X(CtxGetCurrent, 4000, (CUcontext *))                                                          \
    X(CtxPushCurrent, 4000, (CUcontext))                                                           \
    X(CtxPopCurrent, 4000, (CUcontext *))                                                          \
    X(CtxGetDevice, 2000, (CUdevice *))                                                            \
    X(ModuleLoadDataEx, 2010, (CUmodule *, const void *, uint32_t, int *, void **))                \
    X(ModuleUnload, 2000, (CUmodule))                                                              \
    X(ModuleGetFunction, 2000, (CUfunction *, CUmodule, const char *))                             \
    X(FuncGetAttribute, 2020, (int *, int, CUfunction))                                            \
    X(FuncSetAttribute, 9000, (CUfunction, int, int))                                              \
    X(StreamCreate, 2000, (CUstream *, uint32_t))                                                  \
    X(StreamDestroy, 4000, (CUstream))                                                             \
    X(StreamSynchronize, 2000, (CUstream))                                                         \
    X(StreamIsCapturing, 10000, (CUstream, int *))                                                 \
    X(ThreadExchangeStreamCaptureMode, 10010, (int *))                                             \
    X(StreamWaitEvent, 3020, (CUstream, CUevent, uint32_t))                                        \
    X(EventCreate, 2000, (CUevent *, uint32_t))                                                    \
    X(EventDestroy, 4000, (CUevent))                                                               \
    X(EventRecord, 2000, (CUevent, CUstream))                                                      \
    X(MemAlloc, 3020, (CUdeviceptr *, size_t))                                                     \
    X(MemFree, 3020, (CUdeviceptr))                                                                \
    X(PointerGetAttributes, 7000, (uint32_t, int *, void **, CUdeviceptr))                         \
    X(MemcpyHtoDAsync, 3020, (CUdeviceptr, const void *, size_t, CUstream))                        \
    X(MemcpyDtoHAsync, 3020, (void *, CUdeviceptr, size_t, CUstream))                              \
    X(MemcpyDtoDAsync, 3020, (CUdeviceptr, CUdeviceptr, size_t, CUstream))                         \
    X(LaunchKernel, 4000,                                                                          \
      (CUfunction, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, CUstream, \
       void **, void **))

/* What a kernel node is: CUDA_KERNEL_NODE_PARAMS_v2, whose first ten members are the whole of _v1, so
 * that both forms of the functions below take it. func, grid, block, bytes of dynamic shared memory,
 * pointers to the values, `extra` (NULL); then two that are not read where func is set.
 * (docs.nvidia.com, CUDA Driver API, structs CUDA_KERNEL_NODE_PARAMS_v1 and _v2.) */
typedef struct kiln_cuda_kernel_node {
    CUfunction func;
    uint32_t grid[3];
    uint32_t block[3];
    uint32_t shared_bytes;
    void **values;
    void **extra;
    void *kern;
    CUcontext ctx;
} kiln_cuda_kernel_node;

/* One end of CUDA_MEMCPY3D_v2; the members of a source and of a target are the same, in this order.
 * Only type and device are set, as for any copy of bytes: pitch and height may be 0 where Depth and
 * Height are 1. (docs.nvidia.com, CUDA Driver API, struct CUDA_MEMCPY3D_v2.) */
typedef struct kiln_cuda_copy_end {
    size_t x_in_bytes, y, z, lod;
    uint32_t type; /* CU_MEMORYTYPE_DEVICE */
    const void *host;
    CUdeviceptr device;
    void *array, *reserved;
    size_t pitch, height;
} kiln_cuda_copy_end;

typedef struct kiln_cuda_copy_node {
    kiln_cuda_copy_end from, to;
    size_t width_in_bytes, height, depth;
} kiln_cuda_copy_node;

/* As above, for graphs, which are found when they are first asked for: CUDA 11.4. Nodes of kernels
 * have had another form since 12.0 (`newer`; 0: none), which a driver of that age is asked for first;
 * an older one refuses a version above its own (docs.nvidia.com, cuGetProcAddress). */
#define KILN_CUDA_GRAPH_FUNCTIONS(Y)                                                               \
    Y(GraphCreate, 10000, 0, (CUgraph *, uint32_t))                                                \
    Y(GraphDestroy, 10000, 0, (CUgraph))                                                           \
    Y(GraphAddKernelNode, 10000, 12000,                                                            \
      (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const kiln_cuda_kernel_node *))        \
    Y(GraphAddMemcpyNode, 10000, 0,                                                                \
      (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const kiln_cuda_copy_node *,           \
       CUcontext))                                                                                 \
    Y(GraphInstantiateWithFlags, 11040, 0, (CUgraphExec *, CUgraph, unsigned long long))           \
    Y(GraphExecKernelNodeSetParams, 10010, 12000,                                                  \
      (CUgraphExec, CUgraphNode, const kiln_cuda_kernel_node *))                                   \
    Y(GraphExecMemcpyNodeSetParams, 10020, 0,                                                      \
      (CUgraphExec, CUgraphNode, const kiln_cuda_copy_node *, CUcontext))                          \
    Y(GraphLaunch, 10000, 0, (CUgraphExec, CUstream))                                              \
    Y(GraphExecDestroy, 10000, 0, (CUgraphExec))

/* The functions, as members of structs: kiln_cu.MemAlloc(...), kiln_cu_graph.GraphLaunch(...). */
#define KILN_CUDA_MEMBER(name, version, arguments) CUresult(*name) arguments;
#define KILN_CUDA_GRAPH_MEMBER(name, version, newer, arguments) CUresult(*name) arguments;
typedef struct kiln_cuda_functions {
    KILN_CUDA_FUNCTIONS(KILN_CUDA_MEMBER)
} kiln_cuda_functions;
typedef struct kiln_cuda_graph_functions {
    KILN_CUDA_GRAPH_FUNCTIONS(KILN_CUDA_GRAPH_MEMBER)
} kiln_cuda_graph_functions;

/* ---- cuda_launch.c: what runs on a device: modules, streams, launches ------------------------- */
/* (kiln_cuda is declared in device.h) */

/* ---- cuda_graph.c: launches at once, or together as a graph ----------------------------------- */
struct kiln_cuda_device;

/* A launch: values[i] is the address of argument i, of any size. */
typedef struct kiln_cuda_launch {
    CUfunction function;
    const kiln_device_function *described;
    uint32_t grid[3];
    void **values;
} kiln_cuda_launch;

/* Launch now. The context must be current. */
int kiln_cuda_launch_now(struct kiln_cuda_device *device, const kiln_cuda_launch *launch,
                         CUstream stream);

/* The graphs of one queue: those of the 16 runs that were last used are kept. */
typedef struct kiln_cuda_graphs kiln_cuda_graphs;
/* Begin to collect a run; *graphs is NULL before the first one. */
int kiln_cuda_graphs_begin(kiln_cuda_graphs **graphs, struct kiln_cuda_device *device,
                           const kiln_graph_run *run);
/* Collect a launch, whose values are copied, or a copy within the device. */
int kiln_cuda_graphs_add(kiln_cuda_graphs *graphs, const kiln_cuda_launch *launch);
int kiln_cuda_graphs_add_copy(kiln_cuda_graphs *graphs, CUdeviceptr to, CUdeviceptr from,
                              size_t bytes);
/* Launch what was collected since the run began or this was last called, in its order. */
int kiln_cuda_graphs_submit(kiln_cuda_graphs *graphs, CUstream stream);
void kiln_cuda_graphs_free(kiln_cuda_graphs *graphs);

/* ---- cuda_maps.c: tensor maps ------------------------------------------------------------------ */
/* The driver's function for them, of CUDA 12.0: the map, type of elements, number of dimensions, address;
 * dimensions, strides in bytes, those of a box, of its elements; interleave, swizzle, promotion in the
 * second-level cache, what elements out of bounds are. */
#define KILN_CUDA_ENCODE "cuTensorMapEncodeTiled"
#define KILN_CUDA_ENCODE_VERSION 12000
typedef CUresult (*kiln_cuda_encode)(void *, int, uint32_t, void *, const uint64_t *,
                                     const uint64_t *, const uint32_t *, const uint32_t *, int, int,
                                     int, int);
/* The same for windows of images: instead of a box, their first and last pixel, channels and pixels. */
#define KILN_CUDA_ENCODE_WINDOWS "cuTensorMapEncodeIm2col"
typedef CUresult (*kiln_cuda_encode_windows)(void *, int, uint32_t, void *, const uint64_t *,
                                             const uint64_t *, const int *, const int *, uint32_t,
                                             uint32_t, const uint32_t *, int, int, int, int);
#define KILN_CUDA_MAP_BYTES 128
#define KILN_CUDA_MOST_MAPS 8 /* of a function */
/* Bytes of an argument of a launch. */
size_t kiln_cuda_bytes_of(const kiln_device_function *function, int i);
/* Find it, if a function takes tensor maps; while kiln_devices_lock is held, as devices are opened. */
int kiln_cuda_find_maps(const kiln_device_function *function);
/* Room for the maps of a launch: with some to spare, since each is at a multiple of its size (of 64
 * bytes before CUDA 13). */
typedef struct kiln_cuda_maps {
    unsigned char room[(KILN_CUDA_MOST_MAPS + 1) * KILN_CUDA_MAP_BYTES];
} kiln_cuda_maps;
/* Make the maps that a launch takes of its other values, and write where they are to `values`, where
 * what describes them is. A tensor that is not aligned, or has no elements, has a map of zeros: code
 * that can be given one does not use it. The context must be current. */
int kiln_cuda_make_maps(struct kiln_cuda_device *device, const kiln_device_function *function,
                        kiln_cuda_maps *maps, void **values);

/* ---- cuda.c: the driver, its devices, their memory -------------------------------------------- */
typedef struct kiln_cuda_device {
    CUcontext context;
    CUdevice id;
    int index;
    int retained; /* the device's primary context, which is shared with whoever uses it */
    char name[64];
    int capability; /* 10 * major + minor */
    int shared_bytes; /* of one block that asks for it */
    int threads; /* of one block */
    int threads_along[3];
    int blocks_along[3];
    int lost; /* the error that has made the context unusable; 0: none */
} kiln_cuda_device;

/* The functions of libcuda.so.1, once a device is open. */
extern kiln_cuda_functions kiln_cu;
/* Those for graphs, once kiln_cuda_find_graphs() has succeeded. */
extern kiln_cuda_graph_functions kiln_cu_graph;
int kiln_cuda_find_graphs(void *device);
/* Write the address of a function, as it was in a version of CUDA, to `place`; whether it is there. */
int kiln_cuda_find_function(const char *name, int version, void *place);
int kiln_cuda_open(int index, void *context, void **device);
void kiln_cuda_close(void *device);
int kiln_cuda_allocate(void *device, int64_t bytes, kiln_device_memory *memory);
void kiln_cuda_free(void *device, kiln_device_memory *memory);
int kiln_cuda_borrow(void *device, void *data, int64_t bytes, kiln_device_memory *memory);
void kiln_cuda_release(kiln_device_memory *memory);
/* KILN_OK, or a failure with the sentence "cuda:0 (name): <what> failed with <error>". Errors of
 * memory, and of a context that is lost, have codes of their own, all others are `code`. */
int kiln_cuda_check(kiln_cuda_device *device, CUresult error, int code, const char *what);
/* Make the device's context that of this thread; *pushed is for kiln_cuda_leave(), which must follow
 * unless this fails. */
int kiln_cuda_enter(kiln_cuda_device *device, int *pushed);
/* The same to free something: no failure has a sentence. A lost context has freed everything. */
int kiln_cuda_can_free(kiln_cuda_device *device, int *pushed);
void kiln_cuda_leave(int pushed);
/* While somebody captures a stream, the driver refuses calls that may wait for the device, and breaks
 * the capture, unless the thread says that it knows what it does: between these two it does. The result
 * of the first is for the second. */
int kiln_cuda_relax(void);
void kiln_cuda_restore(int mode);

#endif
