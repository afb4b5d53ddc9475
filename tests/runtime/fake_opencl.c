/* A stand-in for libOpenCL.so.1, whose calls fail on request, and which counts what it has handed
 * out. One platform with two devices; programs, kernels and buffers are real enough for the library
 * of device_library.py: `add` and `scale` are computed here. Of the environment:
 *
 * FAKE_PLATFORMS, FAKE_DEVICES: how many there are
 * FAKE_LACKS: the number of a property of devices that is false
 * FAKE_EXTENSIONS: of a device
 * FAKE_BUILD, FAKE_LOG: what clBuildProgram returns, and its log
 * FAKE_ARGUMENTS, FAKE_THREADS, FAKE_SHARED: more arguments of kernels; what a built kernel may and
 * does need */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct object {
    int count;
    int kind;
    struct object *context;
    size_t bytes;
    char name[64];
    unsigned char *data;
    unsigned char arguments[16][8];
} object;

enum { CONTEXT, QUEUE, PROGRAM, KERNEL, BUFFER, KINDS };
static int live[KINDS];
static object devices[2], platform;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct {
    char name[64];
    int seen;
} counts[64];

/* Let the n-th call of a function from now on, from 1 on, fail with that code. */
static char failing[64];
static int failing_call, failing_code;
void fake_fail(const char *name, int n, int code);
void fake_fail(const char *name, int n, int code)
{
    snprintf(failing, sizeof failing, "%s", name);
    failing_call = n;
    failing_code = code;
    memset(counts, 0, sizeof counts);
}

/* The code that this call of a function fails with, or 0. */
static int failure(const char *name)
{
    int at = 0;
    pthread_mutex_lock(&lock);
    while (counts[at].name[0] != 0 && strcmp(counts[at].name, name) != 0)
        at++;
    snprintf(counts[at].name, sizeof counts[at].name, "%s", name);
    const int seen = ++counts[at].seen;
    pthread_mutex_unlock(&lock);
    return strcmp(failing, name) == 0 && seen == failing_call ? failing_code : 0;
}

/* Objects that are not released. */
int fake_live(void);
int fake_live(void)
{
    return live[CONTEXT] + live[QUEUE] + live[PROGRAM] + live[KERNEL] + live[BUFFER];
}

/* Calls of a function since the last fake_fail(). */
int fake_calls(const char *name);
int fake_calls(const char *name)
{
    for (int at = 0; counts[at].name[0] != 0; at++)
        if (strcmp(counts[at].name, name) == 0)
            return counts[at].seen;
    return 0;
}

static object *make(int kind, object *context, int32_t *error, const char *name)
{
    *error = failure(name);
    if (*error != 0)
        return NULL;
    object *const made = calloc(1, sizeof *made);
    made->count = 1;
    made->kind = kind;
    made->context = context;
    pthread_mutex_lock(&lock);
    live[kind]++;
    pthread_mutex_unlock(&lock);
    return made;
}

static void drop(object *o)
{
    pthread_mutex_lock(&lock);
    const int left = --o->count;
    live[o->kind] -= left == 0;
    pthread_mutex_unlock(&lock);
    if (left == 0) {
        free(o->data);
        free(o);
    }
}

static int number(const char *name, int otherwise)
{
    return getenv(name) != NULL ? atoi(getenv(name)) : otherwise;
}

static int answer(const void *value, size_t size, size_t room, void *to, size_t *bytes)
{
    if (bytes != NULL)
        *bytes = size;
    if (to != NULL && room < size)
        return -30;
    if (to != NULL)
        memcpy(to, value, size);
    return 0;
}

int32_t clGetPlatformIDs(uint32_t room, void **platforms, uint32_t *count)
{
    const int error = failure("clGetPlatformIDs");
    *count = (uint32_t)number("FAKE_PLATFORMS", 1);
    if (error == 0 && *count > 0 && room > 0)
        platforms[0] = &platform;
    return error != 0 ? error : *count == 0 ? -1001 : 0;
}

int32_t clGetDeviceIDs(void *p, uint64_t type, uint32_t room, void **found, uint32_t *count)
{
    const int error = failure("clGetDeviceIDs");
    (void)p, (void)type;
    *count = (uint32_t)number("FAKE_DEVICES", 2);
    for (uint32_t i = 0; i < *count && i < room && i < 2; i++)
        found[i] = &devices[i];
    return error != 0 ? error : *count == 0 ? -1 : 0;
}

int32_t clGetDeviceInfo(void *device, uint32_t what, size_t room, void *to, size_t *bytes)
{
    const int error = failure("clGetDeviceInfo");
    const uint64_t large = 1 << 30, shared = 1 << 15, rounding = 1 << 7;
    const size_t threads = 256, along[3] = {256, 256, 64};
    const uint32_t yes = number("FAKE_LACKS", 0) != (int)what;
    const char *extensions = getenv("FAKE_EXTENSIONS") ? getenv("FAKE_EXTENSIONS") : "cl_a cl_khr_fp16 ";
    (void)device;
    if (error != 0)
        return error;
    switch (what) {
    case 0x1004: return answer(&threads, sizeof threads, room, to, bytes);
    case 0x1005: return answer(along, sizeof along, room, to, bytes);
    case 0x1010: return answer(&large, 8, room, to, bytes);
    case 0x101B: return answer(&rounding, 8, room, to, bytes);
    case 0x1023: return answer(&shared, 8, room, to, bytes);
    case 0x1026:
    case 0x1027:
    case 0x1028: return answer(&yes, 4, room, to, bytes);
    case 0x102B: return answer("Fake", 5, room, to, bytes);
    case 0x1030: return answer(extensions, strlen(extensions) + 1, room, to, bytes);
    default: return -30;
    }
}

void *clCreateContext(const intptr_t *properties, uint32_t count, void *const *ids, void *notify,
                      void *data, int32_t *error)
{
    (void)properties, (void)count, (void)notify, (void)data;
    object *const made = make(CONTEXT, NULL, error, "clCreateContext");
    if (made != NULL)
        made->context = ids[0];
    return made;
}

int32_t clRetainContext(object *context)
{
    const int error = failure("clRetainContext");
    context->count += error == 0;
    return error;
}

int32_t clReleaseContext(object *context)
{
    drop(context);
    return 0;
}

int32_t clGetContextInfo(object *context, uint32_t what, size_t room, void *to, size_t *bytes)
{
    const int error = failure("clGetContextInfo");
    (void)what;
    return error != 0 ? error : answer(&context->context, sizeof(void *), room, to, bytes);
}

void *clCreateProgramWithSource(object *context, uint32_t count, const char **texts,
                                const size_t *sizes, int32_t *error)
{
    (void)count, (void)texts, (void)sizes;
    return make(PROGRAM, context, error, "clCreateProgramWithSource");
}

int32_t clBuildProgram(object *program, uint32_t count, void *const *ids, const char *options,
                       void *notify, void *data)
{
    (void)program, (void)count, (void)ids, (void)options, (void)notify, (void)data;
    const int error = failure("clBuildProgram");
    return error != 0 ? error : number("FAKE_BUILD", 0);
}

int32_t clGetProgramBuildInfo(object *program, void *device, uint32_t what, size_t room, void *to,
                              size_t *bytes)
{
    const char *log = getenv("FAKE_LOG") ? getenv("FAKE_LOG") : "";
    const int error = failure("clGetProgramBuildInfo");
    (void)program, (void)device, (void)what;
    return error != 0 ? error : answer(log, strlen(log) + 1, room, to, bytes);
}

int32_t clReleaseProgram(object *program)
{
    drop(program);
    return 0;
}

void *clCreateKernel(object *program, const char *name, int32_t *error)
{
    (void)program;
    *error = -46;
    if (strcmp(name, "add") != 0 && strcmp(name, "scale") != 0)
        return NULL;
    object *const made = make(KERNEL, NULL, error, "clCreateKernel");
    if (made != NULL)
        snprintf(made->name, sizeof made->name, "%s", name);
    return made;
}

int32_t clGetKernelInfo(object *kernel, uint32_t what, size_t room, void *to, size_t *bytes)
{
    const int error = failure("clGetKernelInfo");
    const uint32_t count = (strcmp(kernel->name, "add") == 0 ? 7 : 4) + number("FAKE_ARGUMENTS", 0);
    (void)what;
    return error != 0 ? error : answer(&count, 4, room, to, bytes);
}

int32_t clGetKernelWorkGroupInfo(object *kernel, void *device, uint32_t what, size_t room, void *to,
                                 size_t *bytes)
{
    const int error = failure("clGetKernelWorkGroupInfo");
    const uint64_t value = what == 0x11B0 ? number("FAKE_THREADS", 256) : number("FAKE_SHARED", 0);
    (void)kernel, (void)device;
    return error != 0 ? error : answer(&value, 8, room, to, bytes);
}

int32_t clReleaseKernel(object *kernel)
{
    drop(kernel);
    return 0;
}

void *clCreateCommandQueue(object *context, void *device, uint64_t properties, int32_t *error)
{
    (void)device, (void)properties;
    return make(QUEUE, context, error, "clCreateCommandQueue");
}

int32_t clReleaseCommandQueue(object *queue)
{
    drop(queue);
    return 0;
}

void *clCreateBuffer(object *context, uint64_t flags, size_t size, void *host, int32_t *error)
{
    (void)flags, (void)host;
    object *const made = make(BUFFER, context, error, "clCreateBuffer");
    if (made != NULL) {
        made->bytes = size;
        made->data = calloc(1, size);
    }
    return made;
}

int32_t clGetMemObjectInfo(object *memory, uint32_t what, size_t room, void *to, size_t *bytes)
{
    const int error = failure("clGetMemObjectInfo");
    if (error != 0)
        return error;
    return what == 0x1102 ? answer(&memory->bytes, 8, room, to, bytes)
                          : answer(&memory->context, 8, room, to, bytes);
}

int32_t clRetainMemObject(object *memory)
{
    const int error = failure("clRetainMemObject");
    memory->count += error == 0;
    return error;
}

int32_t clReleaseMemObject(object *memory)
{
    drop(memory);
    return 0;
}

int32_t clSetKernelArg(object *kernel, uint32_t index, size_t size, const void *value)
{
    const int error = failure("clSetKernelArg");
    if (error == 0)
        memcpy(kernel->arguments[index], value, size);
    return error;
}

static float *buffer(object *kernel, int index)
{
    object *memory;
    int64_t offset;
    memcpy(&memory, kernel->arguments[index], 8);
    memcpy(&offset, kernel->arguments[index + 1], 8);
    return (float *)(void *)(memory->data + offset);
}

int32_t clEnqueueNDRangeKernel(object *queue, object *kernel, uint32_t dims, const size_t *start,
                               const size_t *threads, const size_t *block, uint32_t n,
                               const void *events, void *event)
{
    const int error = failure("clEnqueueNDRangeKernel");
    int64_t count;
    float factor;
    (void)queue, (void)dims, (void)start, (void)threads, (void)block, (void)n, (void)events, (void)event;
    if (error != 0)
        return error;
    const int adds = strcmp(kernel->name, "add") == 0;
    memcpy(&count, kernel->arguments[adds ? 6 : 3], 8);
    memcpy(&factor, kernel->arguments[2], 4);
    for (int64_t i = 0; i < count; i++)
        if (adds)
            buffer(kernel, 4)[i] = buffer(kernel, 0)[i] + buffer(kernel, 2)[i];
        else
            buffer(kernel, 0)[i] *= factor;
    return 0;
}

int32_t clEnqueueWriteBuffer(object *queue, object *memory, uint32_t wait, size_t offset, size_t size,
                             const void *from, uint32_t n, const void *events, void *event)
{
    const int error = failure("clEnqueueWriteBuffer");
    (void)queue, (void)wait, (void)n, (void)events, (void)event;
    if (error == 0)
        memcpy(memory->data + offset, from, size);
    return error;
}

int32_t clEnqueueReadBuffer(object *queue, object *memory, uint32_t wait, size_t offset, size_t size,
                            void *to, uint32_t n, const void *events, void *event)
{
    const int error = failure("clEnqueueReadBuffer");
    (void)queue, (void)wait, (void)n, (void)events, (void)event;
    if (error == 0)
        memcpy(to, memory->data + offset, size);
    return error;
}

int32_t clEnqueueCopyBuffer(object *queue, object *from, object *to, size_t from_offset,
                            size_t to_offset, size_t size, uint32_t n, const void *events, void *event)
{
    const int error = failure("clEnqueueCopyBuffer");
    (void)queue, (void)n, (void)events, (void)event;
    if (error == 0)
        memcpy(to->data + to_offset, from->data + from_offset, size);
    return error;
}

int32_t clFinish(object *queue)
{
    (void)queue;
    return failure("clFinish");
}
