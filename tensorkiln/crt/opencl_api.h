/* opencl_api.h - the part of OpenCL 1.2 that we call, declared by ourselves: no OpenCL header or
 * library is needed to compile a library. Names without the prefix `cl` are OpenCL's. */
#ifndef KILN_OPENCL_API_H
#define KILN_OPENCL_API_H

#include "device.h"

typedef struct cl_platform *cl_platform_id;
typedef struct cl_device *cl_device_id;
typedef struct cl_context_object *cl_context;
typedef struct cl_queue_object *cl_command_queue;
typedef struct cl_memory_object *cl_mem;
typedef struct cl_program_object *cl_program;
typedef struct cl_kernel_object *cl_kernel;

enum {
    CL_SUCCESS = 0,
    CL_DEVICE_NOT_FOUND = -1,
    CL_MEM_OBJECT_ALLOCATION_FAILURE = -4,
    CL_OUT_OF_RESOURCES = -5,
    CL_OUT_OF_HOST_MEMORY = -6,
    CL_BUILD_PROGRAM_FAILURE = -11,
    CL_INVALID_KERNEL_NAME = -46,
    CL_PLATFORM_NOT_FOUND_KHR = -1001
};

enum {
    CL_DEVICE_MAX_WORK_GROUP_SIZE = 0x1004,
    CL_DEVICE_MAX_WORK_ITEM_SIZES = 0x1005,
    CL_DEVICE_MAX_MEM_ALLOC_SIZE = 0x1010,
    CL_DEVICE_SINGLE_FP_CONFIG = 0x101B,
    CL_DEVICE_LOCAL_MEM_SIZE = 0x1023,
    CL_DEVICE_ENDIAN_LITTLE = 0x1026,
    CL_DEVICE_AVAILABLE = 0x1027,
    CL_DEVICE_COMPILER_AVAILABLE = 0x1028,
    CL_DEVICE_NAME = 0x102B,
    CL_DEVICE_EXTENSIONS = 0x1030,
    CL_CONTEXT_DEVICES = 0x1081,
    CL_MEM_SIZE = 0x1102,
    CL_MEM_CONTEXT = 0x1106,
    CL_PROGRAM_BUILD_LOG = 0x1183,
    CL_KERNEL_NUM_ARGS = 0x1191,
    CL_KERNEL_WORK_GROUP_SIZE = 0x11B0,
    CL_KERNEL_LOCAL_MEM_SIZE = 0x11B2
};

#define CL_DEVICE_TYPE_ALL ((uint64_t)0xFFFFFFFF)
#define CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT ((uint64_t)1 << 7)
#define CL_MEM_READ_WRITE ((uint64_t)1)

/* More bytes of text than a driver has to say; what it claims to be longer is not read. */
#define KILN_OPENCL_MOST_TEXT ((size_t)1 << 26)

/* X(name, result, arguments): the functions, in the order of a library's life. */
#define KILN_OPENCL_FUNCTIONS(X)                                                                   \
    X(GetPlatformIDs, int32_t, (uint32_t, cl_platform_id *, uint32_t *))                           \
    X(GetDeviceIDs, int32_t, (cl_platform_id, uint64_t, uint32_t, cl_device_id *, uint32_t *))     \
    X(GetDeviceInfo, int32_t, (cl_device_id, uint32_t, size_t, void *, size_t *))                  \
    X(CreateContext, cl_context,                                                                   \
      (const intptr_t *, uint32_t, const cl_device_id *,                                           \
       void (*)(const char *, const void *, size_t, void *), void *, int32_t *))                   \
    X(RetainContext, int32_t, (cl_context))                                                        \
    X(ReleaseContext, int32_t, (cl_context))                                                       \
    X(GetContextInfo, int32_t, (cl_context, uint32_t, size_t, void *, size_t *))                   \
    X(CreateProgramWithSource, cl_program,                                                         \
      (cl_context, uint32_t, const char **, const size_t *, int32_t *))                            \
    X(BuildProgram, int32_t,                                                                       \
      (cl_program, uint32_t, const cl_device_id *, const char *, void (*)(cl_program, void *),     \
       void *))                                                                                    \
    X(GetProgramBuildInfo, int32_t,                                                                \
      (cl_program, cl_device_id, uint32_t, size_t, void *, size_t *))                              \
    X(ReleaseProgram, int32_t, (cl_program))                                                       \
    X(CreateKernel, cl_kernel, (cl_program, const char *, int32_t *))                              \
    X(GetKernelInfo, int32_t, (cl_kernel, uint32_t, size_t, void *, size_t *))                     \
    X(GetKernelWorkGroupInfo, int32_t,                                                             \
      (cl_kernel, cl_device_id, uint32_t, size_t, void *, size_t *))                               \
    X(ReleaseKernel, int32_t, (cl_kernel))                                                         \
    X(CreateCommandQueue, cl_command_queue, (cl_context, cl_device_id, uint64_t, int32_t *))       \
    X(ReleaseCommandQueue, int32_t, (cl_command_queue))                                            \
    X(CreateBuffer, cl_mem, (cl_context, uint64_t, size_t, void *, int32_t *))                     \
    X(GetMemObjectInfo, int32_t, (cl_mem, uint32_t, size_t, void *, size_t *))                     \
    X(RetainMemObject, int32_t, (cl_mem))                                                          \
    X(ReleaseMemObject, int32_t, (cl_mem))                                                         \
    X(SetKernelArg, int32_t, (cl_kernel, uint32_t, size_t, const void *))                          \
    X(EnqueueNDRangeKernel, int32_t,                                                               \
      (cl_command_queue, cl_kernel, uint32_t, const size_t *, const size_t *, const size_t *,      \
       uint32_t, const void *, void *))                                                            \
    X(EnqueueWriteBuffer, int32_t,                                                                 \
      (cl_command_queue, cl_mem, uint32_t, size_t, size_t, const void *, uint32_t, const void *,   \
       void *))                                                                                    \
    X(EnqueueReadBuffer, int32_t,                                                                  \
      (cl_command_queue, cl_mem, uint32_t, size_t, size_t, void *, uint32_t, const void *, void *)) \
    X(EnqueueCopyBuffer, int32_t,                                                                  \
      (cl_command_queue, cl_mem, cl_mem, size_t, size_t, size_t, uint32_t, const void *, void *))  \
    X(Finish, int32_t, (cl_command_queue))

/* The functions, as members of a struct: kiln_cl.CreateBuffer(...). */
#define KILN_OPENCL_MEMBER(name, result, arguments) result(*name) arguments;
typedef struct kiln_opencl_functions {
    KILN_OPENCL_FUNCTIONS(KILN_OPENCL_MEMBER)
} kiln_opencl_functions;

/* ---- opencl_launch.c: what runs on a device: programs, queues, memory ------------------------- */
/* (kiln_opencl is declared in device.h) */

/* ---- opencl.c: the driver, its devices -------------------------------------------------------- */
typedef struct kiln_opencl_device {
    cl_context context;
    cl_device_id id;
    int index;
    char name[64];
    uint64_t most_bytes; /* of one memory object */
    uint64_t shared_bytes; /* of one work-group */
    size_t threads; /* of one work-group */
    size_t threads_along[8]; /* at most so many per dimension; blocks have three */
    int rounds_division; /* float32 division and square roots can be rounded correctly */
} kiln_opencl_device;

/* The functions of libOpenCL.so.1, once a device is open. */
extern kiln_opencl_functions kiln_cl;
int kiln_opencl_open(int index, void *context, void **device);
void kiln_opencl_close(void *device);
/* KILN_OK, or a failure with the sentence "opencl:0 (name): <what> failed with <error>". Errors of
 * memory have codes of their own, all others are `code`. */
int kiln_opencl_check(const kiln_opencl_device *device, int32_t error, int code, const char *what);
/* Write whether the device has an extension of that name. */
int kiln_opencl_extension(const kiln_opencl_device *device, const char *name, int *has);

#endif
