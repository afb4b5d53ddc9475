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
typedef uintptr_t CUdeviceptr; /* CUDA's is unsigned long long: the same on machines with 64 bits */

enum {
    CUDA_SUCCESS = 0,
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
    CU_STREAM_DEFAULT = 0
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
    X(MemAlloc, 3020, (CUdeviceptr *, size_t))                                                     \
    X(MemFree, 3020, (CUdeviceptr))                                                                \
    X(PointerGetAttributes, 7000, (uint32_t, int *, void **, CUdeviceptr))                         \
    X(MemcpyHtoDAsync, 3020, (CUdeviceptr, const void *, size_t, CUstream))                        \
    X(MemcpyDtoHAsync, 3020, (void *, CUdeviceptr, size_t, CUstream))                              \
    X(MemcpyDtoDAsync, 3020, (CUdeviceptr, CUdeviceptr, size_t, CUstream))                         \
    X(LaunchKernel, 4000,                                                                          \
      (CUfunction, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, CUstream, \
       void **, void **))

/* The functions, as members of a struct: kiln_cu.MemAlloc(...). */
#define KILN_CUDA_MEMBER(name, version, arguments) CUresult(*name) arguments;
typedef struct kiln_cuda_functions {
    KILN_CUDA_FUNCTIONS(KILN_CUDA_MEMBER)
} kiln_cuda_functions;

/* ---- cuda_launch.c: what runs on a device: modules, streams, launches ------------------------- */
/* (kiln_cuda is declared in device.h) */

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

#endif
