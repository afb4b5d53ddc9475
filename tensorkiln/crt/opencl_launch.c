/* OpenCL: programs, queues, memory and launches, as the table of device.h has them. */
#include "opencl_api.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_SOURCES 16
#define MOST_LOG 600 /* bytes of a compiler's log in a sentence */

typedef struct opencl_program {
    kiln_opencl_device *device;
    const kiln_device_target *target;
    cl_program program;
} opencl_program;

typedef struct opencl_queue {
    const kiln_opencl_device *device;
    cl_command_queue queue;
    int n_kernels;
    cl_kernel kernels[]; /* of its own: their arguments are set before each launch */
} opencl_queue;

/* ---- programs ------------------------------------------------------------------------------ */

static int opencl_lacks(const kiln_opencl_device *device, const kiln_device_function *f,
                        const char *what, int64_t needed, uint64_t has)
{
    const kiln_device_words words = {"opencl", device->index, device->name};
    return kiln_device_lacks(&words, f, what, needed, (int64_t)has);
}

/* Check that a device can run a function, before anything is built. */
static int check_function(const kiln_opencl_device *device, const kiln_device_function *f)
{
    const int64_t threads = kiln_threads_of(f);
    if ((uint64_t)f->shared_bytes > device->shared_bytes)
        return opencl_lacks(device, f, "bytes of local memory", f->shared_bytes,
                     device->shared_bytes);
    if ((uint64_t)threads > device->threads)
        return opencl_lacks(device, f, "work-items in a work-group", threads,
                     device->threads);
    for (int d = 0; d < 3; d++)
        if ((size_t)f->block[d] > device->threads_along[d])
            return opencl_lacks(device, f, "work-items along a dimension", f->block[d],
                         device->threads_along[d]);
    for (const char *const *name = f->extensions; name != NULL && *name != NULL; name++) {
        int has = 0;
        const int code = kiln_opencl_extension(device, *name, &has);
        if (code != KILN_OK)
            return code;
        if (!has)
            return kiln_fail(KILN_ERROR_CAPABILITY, "opencl:%d (%s) cannot run %s: it lacks "
                             "extension %s", device->index, device->name, f->name, *name);
    }
    return KILN_OK;
}

/* Whether functions use extensions that are of OpenCL C 3.0: their code is 1.2 else. */
static int needs_later(const kiln_device_target *target)
{
    for (int i = 0; i < target->n_functions; i++)
        for (const char *const *name = target->functions[i]->extensions;
             name != NULL && *name != NULL; name++)
            if (strcmp(*name, "cl_khr_subgroups") == 0
                || strcmp(*name, "cl_khr_integer_dot_product") == 0)
                return 1;
    return 0;
}

/* The arguments of a function in OpenCL: a buffer is a memory object and an offset. */
static uint32_t count_arguments(const kiln_device_function *f)
{
    uint32_t count = 0;
    for (int i = 0; i < f->n_params; i++)
        count += f->params[i] == KILN_BUFFER ? 2 : 1;
    return count;
}

static int make_kernel(const opencl_program *made, const kiln_device_function *f, cl_kernel *kernel)
{
    int32_t error;
    *kernel = kiln_cl.CreateKernel(made->program, f->name, &error);
    if (error == CL_INVALID_KERNEL_NAME)
        return kiln_fail(KILN_ERROR_BUILD, "the code of target key '%s' has no function %s",
                         made->target->target_key, f->name);
    return kiln_opencl_check(made->device, error, KILN_ERROR_BUILD, "clCreateKernel");
}

/* Check a function as it was built: its arguments, and what the device has left for it. */
static int check_kernel(const opencl_program *made, const kiln_device_function *f, cl_kernel kernel)
{
    const kiln_opencl_device *device = made->device;
    const int64_t threads = kiln_threads_of(f);
    uint32_t count = 0;
    size_t most = 0;
    uint64_t shared = 0;
    int32_t error = kiln_cl.GetKernelInfo(kernel, CL_KERNEL_NUM_ARGS, sizeof count, &count, NULL);
    if (error != CL_SUCCESS)
        return kiln_opencl_check(device, error, KILN_ERROR_BUILD, "clGetKernelInfo");
    if (count != count_arguments(f))
        return kiln_fail(KILN_ERROR_BUILD, "%s takes %d arguments, expected %d", f->name, (int)count,
                         (int)count_arguments(f));
    error = kiln_cl.GetKernelWorkGroupInfo(kernel, device->id, CL_KERNEL_WORK_GROUP_SIZE,
                                           sizeof most, &most, NULL);
    if (error == CL_SUCCESS)
        error = kiln_cl.GetKernelWorkGroupInfo(kernel, device->id, CL_KERNEL_LOCAL_MEM_SIZE,
                                               sizeof shared, &shared, NULL);
    if (error != CL_SUCCESS)
        return kiln_opencl_check(device, error, KILN_ERROR_BUILD, "clGetKernelWorkGroupInfo");
    if ((uint64_t)threads > most)
        return opencl_lacks(device, f, "work-items in a work-group of its own", threads,
                     most);
    if (shared > device->shared_bytes)
        return opencl_lacks(device, f, "bytes of local memory", (int64_t)shared,
                     device->shared_bytes);
    return KILN_OK;
}

/* The sentence of a failed build: the first lines of the compiler's log. */
static int build_failed(const opencl_program *made)
{
    const kiln_opencl_device *device = made->device;
    size_t bytes = 0;
    char *log = NULL;
    int32_t error = kiln_cl.GetProgramBuildInfo(made->program, device->id, CL_PROGRAM_BUILD_LOG, 0,
                                                NULL, &bytes);
    if (error == CL_SUCCESS && bytes < KILN_OPENCL_MOST_TEXT && (log = malloc(bytes + 1)) != NULL)
        error = kiln_cl.GetProgramBuildInfo(made->program, device->id, CL_PROGRAM_BUILD_LOG, bytes,
                                            log, NULL);
    if (log != NULL)
        log[bytes] = 0;
    kiln_fail(KILN_ERROR_BUILD, "opencl:%d (%s) cannot compile the code of target key '%s': %.*s",
              device->index, device->name, made->target->target_key, MOST_LOG,
              log == NULL || error != CL_SUCCESS || *log == 0 ? "it gives no reason" : log);
    free(log);
    return KILN_ERROR_BUILD;
}

static int opencl_build(opencl_program *made, const kiln_artifact *artifacts, int count)
{
    const kiln_opencl_device *device = made->device;
    const char *texts[MOST_SOURCES];
    size_t sizes[MOST_SOURCES];
    uint32_t n = 0;
    int32_t error;
    for (int i = 0; i < count; i++) {
        const size_t length = strlen(artifacts[i].file_name);
        if (length < 3 || strcmp(artifacts[i].file_name + length - 3, ".cl") != 0)
            continue;
        if (n == MOST_SOURCES)
            return kiln_fail(KILN_ERROR_CONTAINER, "target key '%s' has more than %d files .cl",
                             made->target->target_key, MOST_SOURCES);
        texts[n] = artifacts[i].content;
        sizes[n++] = (size_t)artifacts[i].bytes;
    }
    if (n == 0)
        return kiln_fail(KILN_ERROR_CONTAINER, "target key '%s' has no file .cl among its artifacts",
                         made->target->target_key);
    made->program = kiln_cl.CreateProgramWithSource(device->context, n, texts, sizes, &error);
    if (error != CL_SUCCESS)
        return kiln_opencl_check(device, error, KILN_ERROR_BUILD, "clCreateProgramWithSource");
    char options[80];
    snprintf(options, sizeof options, "-cl-std=%s%s", needs_later(made->target) ? "CL3.0" : "CL1.2",
             device->rounds_division ? " -cl-fp32-correctly-rounded-divide-sqrt" : "");
    error = kiln_cl.BuildProgram(made->program, 1, &device->id, options, NULL, NULL);
    if (error == CL_BUILD_PROGRAM_FAILURE)
        return build_failed(made);
    return kiln_opencl_check(device, error, KILN_ERROR_BUILD, "clBuildProgram");
}

static void opencl_unload(void *module)
{
    opencl_program *const made = module;
    if (made->program != NULL)
        kiln_cl.ReleaseProgram(made->program);
    free(made);
}

static int opencl_load(void *device, const kiln_device_target *target, const kiln_artifact *artifacts,
                int count, void **module)
{
    opencl_program *const made = calloc(1, sizeof *made);
    int code = KILN_OK;
    if (made == NULL)
        return kiln_fail(KILN_ERROR_MEMORY, "out of memory for a program");
    made->device = device;
    made->target = target;
    for (int i = 0; i < target->n_functions && code == KILN_OK; i++)
        code = check_function(device, target->functions[i]);
    if (code == KILN_OK)
        code = opencl_build(made, artifacts, count);
    for (int i = 0; i < target->n_functions && code == KILN_OK; i++) {
        cl_kernel kernel;
        code = make_kernel(made, target->functions[i], &kernel);
        if (code == KILN_OK)
            code = check_kernel(made, target->functions[i], kernel);
        if (kernel != NULL)
            kiln_cl.ReleaseKernel(kernel);
    }
    if (code == KILN_OK)
        *module = made;
    else
        opencl_unload(made);
    return code;
}

/* ---- queues -------------------------------------------------------------------------------- */

static void opencl_stop(void *started)
{
    opencl_queue *const q = started;
    for (int i = 0; i < q->n_kernels; i++)
        if (q->kernels[i] != NULL)
            kiln_cl.ReleaseKernel(q->kernels[i]);
    if (q->queue != NULL)
        kiln_cl.ReleaseCommandQueue(q->queue);
    free(q);
}

static int opencl_start(void *module, void **started)
{
    const opencl_program *made = module;
    const kiln_device_target *target = made->target;
    opencl_queue *const q = calloc(1, sizeof *q + (size_t)target->n_functions * sizeof *q->kernels);
    int32_t error;
    if (q == NULL)
        return kiln_fail(KILN_ERROR_MEMORY, "out of memory for a queue");
    q->device = made->device;
    q->n_kernels = target->n_functions;
    q->queue = kiln_cl.CreateCommandQueue(made->device->context, made->device->id, 0, &error);
    int code = kiln_opencl_check(made->device, error, KILN_ERROR_DRIVER, "clCreateCommandQueue");
    for (int i = 0; i < target->n_functions && code == KILN_OK; i++)
        code = make_kernel(made, target->functions[i], &q->kernels[i]);
    if (code == KILN_OK)
        *started = q;
    else
        opencl_stop(q);
    return code;
}

static int launch_failed(const opencl_queue *q, const kiln_device_function *f, int32_t error)
{
    char what[100];
    snprintf(what, sizeof what, "the launch of %.60s", f->name);
    return kiln_opencl_check(q->device, error, KILN_ERROR_LAUNCH, what);
}

static int set_arguments(const opencl_queue *q, const kiln_device_function *f,
                         const kiln_argument *arguments, const kiln_device_at *at)
{
    cl_kernel kernel = q->kernels[f->number];
    int32_t error = CL_SUCCESS;
    uint32_t next = 0;
    for (int i = 0; i < f->n_params && error == CL_SUCCESS; i++) {
        if (f->params[i] != KILN_BUFFER) {
            error = kiln_cl.SetKernelArg(kernel, next++, f->params[i],
                                         kiln_value_of(f, i, &arguments[i]));
            continue;
        }
        error = kiln_cl.SetKernelArg(kernel, next++, sizeof at[i].handle, &at[i].handle);
        if (error == CL_SUCCESS)
            error = kiln_cl.SetKernelArg(kernel, next++, sizeof at[i].offset, &at[i].offset);
    }
    return error == CL_SUCCESS ? KILN_OK : launch_failed(q, f, error);
}

static int opencl_launch(void *started, const kiln_device_function *f, const int64_t grid[3],
                  const kiln_argument *arguments, const kiln_device_at *at)
{
    const opencl_queue *q = started;
    size_t threads[3], block[3];
    for (int d = 0; d < 3; d++) {
        block[d] = (size_t)f->block[d];
        if (__builtin_mul_overflow((size_t)grid[d], block[d], &threads[d]))
            return kiln_fail(KILN_ERROR_LAUNCH, "%s: a grid of [%lld, %lld, %lld] blocks is too "
                             "large", f->name, (long long)grid[0], (long long)grid[1],
                             (long long)grid[2]);
    }
    const int code = set_arguments(q, f, arguments, at);
    if (code != KILN_OK)
        return code;
    const int32_t error = kiln_cl.EnqueueNDRangeKernel(q->queue, q->kernels[f->number], 3, NULL,
                                                       threads, block, 0, NULL, NULL);
    return error == CL_SUCCESS ? KILN_OK : launch_failed(q, f, error);
}

static int write_memory(void *started, kiln_device_at to, const void *from, int64_t bytes)
{
    const opencl_queue *q = started;
    const int32_t error = kiln_cl.EnqueueWriteBuffer(q->queue, to.handle, 1, (size_t)to.offset,
                                                     (size_t)bytes, from, 0, NULL, NULL);
    return kiln_opencl_check(q->device, error, KILN_ERROR_LAUNCH, "a copy from the host");
}

static int read_memory(void *started, void *to, kiln_device_at from, int64_t bytes)
{
    const opencl_queue *q = started;
    const int32_t error = kiln_cl.EnqueueReadBuffer(q->queue, from.handle, 1, (size_t)from.offset,
                                                    (size_t)bytes, to, 0, NULL, NULL);
    return kiln_opencl_check(q->device, error, KILN_ERROR_EXECUTION, "a copy to the host");
}

static int copy_memory(void *started, kiln_device_at to, kiln_device_at from, int64_t bytes)
{
    const opencl_queue *q = started;
    const int32_t error =
        kiln_cl.EnqueueCopyBuffer(q->queue, from.handle, to.handle, (size_t)from.offset,
                                  (size_t)to.offset, (size_t)bytes, 0, NULL, NULL);
    return kiln_opencl_check(q->device, error, KILN_ERROR_LAUNCH, "a copy on the device");
}

static int wait_for(void *started)
{
    const opencl_queue *q = started;
    return kiln_opencl_check(q->device, kiln_cl.Finish(q->queue), KILN_ERROR_EXECUTION,
                             "work that was queued before");
}

/* ---- memory -------------------------------------------------------------------------------- */

static void free_memory(void *opened, kiln_device_memory *memory)
{
    (void)opened;
    if (memory->handle != NULL)
        kiln_cl.ReleaseMemObject(memory->handle);
    kiln_give_addresses(memory);
    memset(memory, 0, sizeof *memory);
}

static int opencl_allocate(void *opened, int64_t bytes, kiln_device_memory *memory)
{
    const kiln_opencl_device *device = opened;
    int32_t error;
    if ((uint64_t)bytes > device->most_bytes)
        return kiln_fail(KILN_ERROR_DEVICE_MEMORY, "opencl:%d (%s) has no memory of %lld bytes in "
                         "one piece, at most %llu", device->index, device->name, (long long)bytes,
                         (unsigned long long)device->most_bytes);
    memory->bytes = bytes;
    int code = kiln_reserve_addresses(memory);
    if (code == KILN_OK) {
        memory->handle =
            kiln_cl.CreateBuffer(device->context, CL_MEM_READ_WRITE, (size_t)bytes, NULL, &error);
        code = kiln_opencl_check(device, error, KILN_ERROR_DEVICE_MEMORY, "clCreateBuffer");
    }
    if (code != KILN_OK)
        free_memory(opened, memory);
    return code;
}

static int opencl_borrow(void *opened, void *data, int64_t bytes, kiln_device_memory *memory)
{
    const kiln_opencl_device *device = opened;
    cl_context context = NULL;
    size_t size = 0;
    int32_t error = kiln_cl.GetMemObjectInfo(data, CL_MEM_CONTEXT, sizeof context, &context, NULL);
    if (error == CL_SUCCESS)
        error = kiln_cl.GetMemObjectInfo(data, CL_MEM_SIZE, sizeof size, &size, NULL);
    if (error != CL_SUCCESS)
        return kiln_opencl_check(device, error, KILN_ERROR_ARGUMENT,
                                 "clGetMemObjectInfo of an argument");
    if (context != device->context)
        return kiln_fail(KILN_ERROR_DEVICE, "opencl:%d (%s): an argument is a memory object of "
                         "another OpenCL context; kiln_executor_set_device() takes a context to use",
                         device->index, device->name);
    if ((uint64_t)bytes > size)
        return kiln_fail(KILN_ERROR_SHAPE, "opencl:%d (%s): an argument needs %lld bytes, its "
                         "memory object has %llu", device->index, device->name, (long long)bytes,
                         (unsigned long long)size);
    memory->bytes = bytes;
    const int code = kiln_reserve_addresses(memory);
    if (code != KILN_OK)
        return code;
    error = kiln_cl.RetainMemObject(data);
    if (error == CL_SUCCESS)
        memory->handle = data;
    return kiln_opencl_check(device, error, KILN_ERROR_ARGUMENT, "clRetainMemObject");
}

static void opencl_release(kiln_device_memory *memory)
{
    kiln_cl.ReleaseMemObject(memory->handle);
    memory->handle = NULL;
}

const kiln_device_kind kiln_opencl = {
    .name = "opencl",
    .dlpack_type = 4,
    .open = kiln_opencl_open,
    .close = kiln_opencl_close,
    .load = opencl_load,
    .unload = opencl_unload,
    .start = opencl_start,
    .stop = opencl_stop,
    .allocate = opencl_allocate,
    .free = free_memory,
    .borrow = opencl_borrow,
    .release = opencl_release,
    .launch = opencl_launch,
    .write = write_memory,
    .read = read_memory,
    .copy = copy_memory,
    .wait = wait_for,
};
