/* What device_host.c needs to know of OpenCL. */
#define DRIVER_LIBRARY "libOpenCL.so.1"

static const int errors[] = {-4, -5, -6, -34, -9999};
static const char *const functions[] = {
    "clGetPlatformIDs",     "clGetDeviceIDs",          "clGetDeviceInfo",
    "clCreateContext",      "clRetainContext",         "clGetContextInfo",
    "clBuildProgram",       "clCreateProgramWithSource", "clCreateKernel",
    "clGetKernelInfo",      "clGetKernelWorkGroupInfo", "clCreateCommandQueue",
    "clCreateBuffer",       "clGetMemObjectInfo",      "clRetainMemObject",
    "clSetKernelArg",       "clEnqueueNDRangeKernel",  "clEnqueueWriteBuffer",
    "clEnqueueReadBuffer",  "clEnqueueCopyBuffer",     "clFinish",
};

/* Functions on memory of the host's own context. */
static int run_there(kiln_executor *executor)
{
    typedef void *(*context_fn)(const intptr_t *, uint32_t, void *const *, void *, void *, int32_t *);
    typedef int32_t (*ids_fn)(void *, uint64_t, uint32_t, void **, uint32_t *);
    typedef void *(*buffer_fn)(void *, uint64_t, size_t, void *, int32_t *);
    typedef int32_t (*release_fn)(void *);
    void *ids[2] = {NULL, NULL};
    uint32_t count = 0;
    int32_t error;
    SYMBOL(driver, "clGetDeviceIDs", ids_fn)(NULL, 0, 2, ids, &count);
    void *const context =
        SYMBOL(driver, "clCreateContext", context_fn)(NULL, 1, ids, NULL, NULL, &error);
    if (context == NULL)
        return 0; /* the host's own call was the one to fail */
    void *const x = SYMBOL(driver, "clCreateBuffer", buffer_fn)(context, 1, N * 4, NULL, &error);
    void *const y = SYMBOL(driver, "clCreateBuffer", buffer_fn)(context, 1, N * 4, NULL, &error);
    int code = note(SYMBOL(library, "kiln_executor_set_device", set_fn)(executor, 1, 0, context));
    if (code == 0 && x != NULL && y != NULL)
        code = run(executor, "there", x, y, 4);
    if (x != NULL)
        SYMBOL(driver, "clReleaseMemObject", release_fn)(x);
    if (y != NULL)
        SYMBOL(driver, "clReleaseMemObject", release_fn)(y);
    SYMBOL(driver, "clReleaseContext", release_fn)(context);
    return code;
}
