/* What device_host.c needs to know of CUDA. */
#define DRIVER_LIBRARY "libcuda.so.1"

static const int errors[] = {2, 1, 700, 9999};
static const char *const functions[] = {
    "cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain", "cuCtxGetCurrent", "cuCtxPushCurrent", "cuCtxGetDevice",
    "cuThreadExchangeStreamCaptureMode", "cuModuleLoadDataEx", "cuModuleGetFunction",
    "cuFuncGetAttribute", "cuFuncSetAttribute",
    "cuStreamCreate", "cuStreamSynchronize", "cuStreamIsCapturing", "cuStreamWaitEvent",
    "cuEventCreate", "cuEventRecord", "cuMemAlloc", "cuPointerGetAttributes",
    "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemcpyDtoDAsync", "cuLaunchKernel",
    "cuGraphCreate", "cuGraphAddKernelNode", "cuGraphAddMemcpyNode", "cuGraphInstantiateWithFlags",
    "cuGraphExecKernelNodeSetParams", "cuGraphExecMemcpyNodeSetParams", "cuGraphLaunch",
};

/* The same in the default stream, for which the host waits. */
static int run_in_stream(kiln_executor *executor, void *x, void *y)
{
    typedef int (*stream_fn)(kiln_executor *, int, void *);
    typedef int (*wait_fn)(void *);
    void *const stream = (void *)1;
    int code = note(SYMBOL(library, "kiln_executor_set_stream", stream_fn)(executor, 1, stream));
    for (int i = 0; code == 0 && i < 2; i++)
        code = run(executor, "there", x, y, 2);
    SYMBOL(driver, "cuStreamSynchronize", wait_fn)(stream);
    if (code == 0)
        code = note(SYMBOL(library, "kiln_executor_set_stream", stream_fn)(executor, 1, NULL));
    return code == 0 ? run(executor, "there", x, y, 2) : code;
}

/* `across` with launches as graphs, after its workspace has moved. */
static int run_across_moved(void)
{
    static const int64_t sizes[] = {N / 2, N, N / 2};
    typedef int (*graphs_fn)(kiln_executor *, int);
    static float x[N], y[N], z[N];
    kiln_executor *executor = NULL;
    for (int i = 0; i < N; i++)
        x[i] = (float)i;
    int code = note(SYMBOL(library, "kiln_executor_create", create_fn)(&executor));
    if (code == 0)
        code = run(executor, "across", x, y, 1);
    SYMBOL(library, "kiln_executor_destroy", destroy_fn)(executor);
    executor = NULL;
    if (code == 0)
        code = note(SYMBOL(library, "kiln_executor_create", create_fn)(&executor));
    if (code == 0)
        code = note(SYMBOL(library, "kiln_executor_set_graphs", graphs_fn)(executor, 1));
    for (int i = 0; code == 0 && i < 3; i++) {
        code = run_on(executor, "across", x, z, 1, sizes[i]);
        if (code == 0 && memcmp(y, z, (size_t)sizes[i] * 4) != 0) {
            printf("across as a graph disagrees, run %d\n", i);
            exit(3);
        }
    }
    SYMBOL(library, "kiln_executor_destroy", destroy_fn)(executor);
    return code;
}

/* The same function on other memory. */
static int run_graphs(kiln_executor *executor, void *x, void *y)
{
    typedef int (*graphs_fn)(kiln_executor *, int);
    int code = note(SYMBOL(library, "kiln_executor_set_graphs", graphs_fn)(executor, 1));
    if (code == 0)
        code = run(executor, "there", x, y, 2);
    if (code == 0)
        code = run(executor, "there", y, x, 2);
    if (code == 0)
        code = note(SYMBOL(library, "kiln_executor_set_graphs", graphs_fn)(executor, 0));
    return code == 0 ? run_across_moved() : code;
}

/* Functions on memory of the host's own, in the primary context. */
static int run_there(kiln_executor *executor)
{
    typedef int (*retain_fn)(void **, int);
    typedef int (*push_fn)(void *);
    typedef int (*pop_fn)(void **);
    typedef int (*allocate_fn)(void **, size_t);
    typedef int (*free_fn)(void *);
    typedef int (*release_fn)(int);
    void *context = NULL, *x = NULL, *y = NULL;
    SYMBOL(driver, "cuDevicePrimaryCtxRetain", retain_fn)(&context, 0);
    if (context == NULL)
        return 0; /* the host's own call was the one to fail */
    const int pushed = SYMBOL(driver, "cuCtxPushCurrent", push_fn)(context);
    SYMBOL(driver, "cuMemAlloc", allocate_fn)(&x, N * 4);
    SYMBOL(driver, "cuMemAlloc", allocate_fn)(&y, N * 4);
    int code = note(SYMBOL(library, "kiln_executor_set_device", set_fn)(executor, 1, 0, context));
    if (code == 0 && x != NULL && y != NULL)
        code = run(executor, "there", x, y, 2);
    if (code == 0 && x != NULL && y != NULL)
        code = run_in_stream(executor, x, y);
    if (code == 0 && x != NULL && y != NULL)
        code = run_graphs(executor, x, y);
    if (x != NULL)
        SYMBOL(driver, "cuMemFree", free_fn)(x);
    if (y != NULL)
        SYMBOL(driver, "cuMemFree", free_fn)(y);
    if (pushed == 0)
        SYMBOL(driver, "cuCtxPopCurrent", pop_fn)(&context);
    SYMBOL(driver, "cuDevicePrimaryCtxRelease", release_fn)(0);
    return code;
}
