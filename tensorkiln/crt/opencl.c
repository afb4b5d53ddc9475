/* OpenCL: the driver, which is opened when it is first used, and its devices. */
#include "opencl_api.h"
#include "os.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY "libOpenCL.so.1"
#define MOST_PLATFORMS 32
#define MOST_DEVICES 64 /* of one platform */

kiln_opencl_functions kiln_cl;

/* ---- errors -------------------------------------------------------------------------------- */

static const char *error_name(int32_t error)
{
    static const struct {
        int32_t error;
        const char *name;
    } names[] = {
        {-1, "CL_DEVICE_NOT_FOUND"},           {-2, "CL_DEVICE_NOT_AVAILABLE"},
        {-3, "CL_COMPILER_NOT_AVAILABLE"},     {-4, "CL_MEM_OBJECT_ALLOCATION_FAILURE"},
        {-5, "CL_OUT_OF_RESOURCES"},           {-6, "CL_OUT_OF_HOST_MEMORY"},
        {-8, "CL_MEM_COPY_OVERLAP"},           {-11, "CL_BUILD_PROGRAM_FAILURE"},
        {-13, "CL_MISALIGNED_SUB_BUFFER_OFFSET"}, {-14, "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST"},
        {-30, "CL_INVALID_VALUE"},             {-33, "CL_INVALID_DEVICE"},
        {-34, "CL_INVALID_CONTEXT"},           {-36, "CL_INVALID_COMMAND_QUEUE"},
        {-38, "CL_INVALID_MEM_OBJECT"},        {-43, "CL_INVALID_BUILD_OPTIONS"},
        {-44, "CL_INVALID_PROGRAM"},           {-45, "CL_INVALID_PROGRAM_EXECUTABLE"},
        {-46, "CL_INVALID_KERNEL_NAME"},       {-48, "CL_INVALID_KERNEL"},
        {-49, "CL_INVALID_ARG_INDEX"},         {-50, "CL_INVALID_ARG_VALUE"},
        {-51, "CL_INVALID_ARG_SIZE"},          {-52, "CL_INVALID_KERNEL_ARGS"},
        {-54, "CL_INVALID_WORK_GROUP_SIZE"},   {-55, "CL_INVALID_WORK_ITEM_SIZE"},
        {-59, "CL_INVALID_OPERATION"},         {-61, "CL_INVALID_BUFFER_SIZE"},
        {-63, "CL_INVALID_GLOBAL_WORK_SIZE"},  {-1001, "CL_PLATFORM_NOT_FOUND_KHR"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].error == error)
            return names[i].name;
    return "an error of the driver";
}

int kiln_opencl_check(const kiln_opencl_device *device, int32_t error, int code, const char *what)
{
    if (error == CL_SUCCESS)
        return KILN_OK;
    const char *why = "";
    if (error == CL_OUT_OF_HOST_MEMORY) {
        code = KILN_ERROR_MEMORY;
        why = ": the host is out of memory";
    } else if (error == CL_MEM_OBJECT_ALLOCATION_FAILURE ||
               (error == CL_OUT_OF_RESOURCES && code == KILN_ERROR_DEVICE_MEMORY)) {
        code = KILN_ERROR_DEVICE_MEMORY;
        why = ": the device is out of memory";
    }
    return kiln_fail(code, "opencl:%d (%s): %s failed with %s (%d)%s", device->index, device->name,
                     what, error_name(error), error, why);
}

/* ---- the driver ---------------------------------------------------------------------------- */

/* Open the library, once. */
static int open_library(void)
{
    static int is_open;
    void *library;
    if (is_open)
        return KILN_OK;
    int code = kiln_open_driver(LIBRARY, "OpenCL",
                                "install the driver of a device, or a loader of drivers", &library);
    if (code != KILN_OK)
        return code;
#define FIND(name, result, arguments)                                                              \
    if (code == KILN_OK && !kiln_has_function(library, "cl" #name, &kiln_cl.name))                 \
        code = kiln_fail(KILN_ERROR_DRIVER, LIBRARY " has no function cl" #name                    \
                         ": expected OpenCL 1.2");
    KILN_OPENCL_FUNCTIONS(FIND)
#undef FIND
    if (code == KILN_OK)
        is_open = 1;
    else
        kiln_os_close_library(library);
    return code;
}

/* ---- devices ------------------------------------------------------------------------------- */

/* Find the device of an index: the devices of all platforms, one platform after the other. */
static int find_device(int index, cl_device_id *found)
{
    cl_platform_id platforms[MOST_PLATFORMS];
    cl_device_id devices[MOST_DEVICES];
    uint32_t count = 0, before = 0;
    int32_t error = kiln_cl.GetPlatformIDs(MOST_PLATFORMS, platforms, &count);
    if (error == CL_PLATFORM_NOT_FOUND_KHR || (error == CL_SUCCESS && count == 0))
        return kiln_fail(KILN_ERROR_DRIVER, LIBRARY " finds no platform: no driver of OpenCL is "
                         "installed");
    if (error != CL_SUCCESS)
        return kiln_fail(KILN_ERROR_DRIVER, "clGetPlatformIDs failed with %s (%d)",
                         error_name(error), error);
    for (uint32_t p = 0; p < count && p < MOST_PLATFORMS; p++) {
        uint32_t here = 0;
        error = kiln_cl.GetDeviceIDs(platforms[p], CL_DEVICE_TYPE_ALL, MOST_DEVICES, devices, &here);
        if (error != CL_SUCCESS && error != CL_DEVICE_NOT_FOUND)
            return kiln_fail(KILN_ERROR_DRIVER, "clGetDeviceIDs failed with %s (%d)",
                             error_name(error), error);
        if (error == CL_DEVICE_NOT_FOUND)
            continue;
        here = here < MOST_DEVICES ? here : MOST_DEVICES;
        if ((uint32_t)index - before < here) {
            *found = devices[(uint32_t)index - before];
            return KILN_OK;
        }
        before += here;
    }
    return kiln_no_device("opencl", index, "OpenCL", (int)before);
}

static int info(const kiln_opencl_device *device, uint32_t what, void *value, size_t bytes)
{
    const int32_t error = kiln_cl.GetDeviceInfo(device->id, what, bytes, value, NULL);
    return kiln_opencl_check(device, error, KILN_ERROR_DRIVER, "clGetDeviceInfo");
}

/* Refuse a device on which no library of ours runs. */
static int check_use(const kiln_opencl_device *device)
{
    static const struct {
        uint32_t what;
        const char *words;
    } needed[] = {
        {CL_DEVICE_AVAILABLE, "is not available"},
        {CL_DEVICE_COMPILER_AVAILABLE, "has no compiler of OpenCL C"},
        {CL_DEVICE_ENDIAN_LITTLE, "is not little-endian"},
    };
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        uint32_t is_so = 0;
        const int code = info(device, needed[i].what, &is_so, sizeof is_so);
        if (code != KILN_OK)
            return code;
        if (!is_so)
            return kiln_fail(KILN_ERROR_CAPABILITY, "opencl:%d (%s) %s", device->index,
                             device->name, needed[i].words);
    }
    return KILN_OK;
}

static int read_limits(kiln_opencl_device *device)
{
    uint64_t rounding = 0;
    char name[256] = ""; /* one that does not fit stays unknown: it is for messages */
    if (kiln_cl.GetDeviceInfo(device->id, CL_DEVICE_NAME, sizeof name - 1, name, NULL) == CL_SUCCESS)
        snprintf(device->name, sizeof device->name, "%.63s", name);
    int code = check_use(device);
    const struct {
        uint32_t what;
        void *value;
        size_t bytes;
    } wanted[] = {
        {CL_DEVICE_MAX_MEM_ALLOC_SIZE, &device->most_bytes, sizeof device->most_bytes},
        {CL_DEVICE_LOCAL_MEM_SIZE, &device->shared_bytes, sizeof device->shared_bytes},
        {CL_DEVICE_MAX_WORK_GROUP_SIZE, &device->threads, sizeof device->threads},
        {CL_DEVICE_MAX_WORK_ITEM_SIZES, device->threads_along, sizeof device->threads_along},
        {CL_DEVICE_SINGLE_FP_CONFIG, &rounding, sizeof rounding},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted && code == KILN_OK; i++)
        code = info(device, wanted[i].what, wanted[i].value, wanted[i].bytes);
    device->rounds_division = (rounding & CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT) != 0;
    return code;
}

/* Use a context of the host's, which must be of one device. */
static int take_context(kiln_opencl_device *device, cl_context context)
{
    cl_device_id ids[MOST_DEVICES];
    size_t bytes = 0;
    int32_t error = kiln_cl.GetContextInfo(context, CL_CONTEXT_DEVICES, sizeof ids, ids, &bytes);
    if (error != CL_SUCCESS)
        return kiln_fail(KILN_ERROR_ARGUMENT, "the context for opencl:%d is none: clGetContextInfo "
                         "failed with %s (%d)", device->index, error_name(error), error);
    if (bytes != sizeof *ids)
        return kiln_fail(KILN_ERROR_ARGUMENT, "the context for opencl:%d must be of one device, "
                         "received one of %d", device->index, (int)(bytes / sizeof *ids));
    device->id = ids[0];
    error = kiln_cl.RetainContext(context);
    if (error == CL_SUCCESS)
        device->context = context;
    return kiln_opencl_check(device, error, KILN_ERROR_DRIVER, "clRetainContext");
}

static int make_context(kiln_opencl_device *device)
{
    int32_t error;
    const int code = find_device(device->index, &device->id);
    if (code != KILN_OK)
        return code;
    device->context = kiln_cl.CreateContext(NULL, 1, &device->id, NULL, NULL, &error);
    return kiln_opencl_check(device, error, KILN_ERROR_DRIVER, "clCreateContext");
}

int kiln_opencl_open(int index, void *context, void **opened)
{
    int code = open_library();
    if (code != KILN_OK)
        return code;
    kiln_opencl_device *const device = calloc(1, sizeof *device);
    if (device == NULL)
        return kiln_fail(KILN_ERROR_MEMORY, "out of memory for a device");
    device->index = index;
    memcpy(device->name, "?", 2); /* in messages, until it is known */
    code = context != NULL ? take_context(device, context) : make_context(device);
    if (code == KILN_OK)
        code = read_limits(device);
    if (code == KILN_OK)
        *opened = device;
    else
        kiln_opencl_close(device);
    return code;
}

void kiln_opencl_close(void *opened)
{
    kiln_opencl_device *const device = opened;
    if (device->context != NULL)
        kiln_cl.ReleaseContext(device->context);
    free(device);
}

static int has_word(const char *text, const char *word)
{
    const size_t length = strlen(word);
    while (*text != 0) {
        size_t next = 0;
        while (text[next] != 0 && text[next] != ' ')
            next++;
        if (next == length && memcmp(text, word, length) == 0)
            return 1;
        text += next + (text[next] == ' ');
    }
    return 0;
}

int kiln_opencl_extension(const kiln_opencl_device *device, const char *name, int *has)
{
    size_t bytes = 0;
    int32_t error = kiln_cl.GetDeviceInfo(device->id, CL_DEVICE_EXTENSIONS, 0, NULL, &bytes);
    if (error != CL_SUCCESS)
        return kiln_opencl_check(device, error, KILN_ERROR_DRIVER, "clGetDeviceInfo");
    if (bytes >= KILN_OPENCL_MOST_TEXT)
        return kiln_fail(KILN_ERROR_DRIVER, "opencl:%d (%s) has names of extensions of %llu bytes",
                         device->index, device->name, (unsigned long long)bytes);
    char *const text = kiln_room((int64_t)bytes + 1, 1, "names of extensions");
    if (text == NULL)
        return KILN_ERROR_MEMORY;
    error = kiln_cl.GetDeviceInfo(device->id, CL_DEVICE_EXTENSIONS, bytes, text, NULL);
    text[bytes] = 0;
    *has = error == CL_SUCCESS && has_word(text, name);
    free(text);
    return kiln_opencl_check(device, error, KILN_ERROR_DRIVER, "clGetDeviceInfo");
}
