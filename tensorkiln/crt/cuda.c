/* CUDA: the driver, which is opened when it is first used, its devices and their memory. */
#include "cuda_api.h"
#include "os.h"
#include <stdlib.h>
#include <string.h>

#define CUDA_LIBRARY "libcuda.so.1"
#define CUDA_NEEDED "expected the driver of CUDA 11.3 or newer"

kiln_cuda_functions kiln_cu;
kiln_cuda_graph_functions kiln_cu_graph;

/* ---- errors -------------------------------------------------------------------------------- */

static const char *cuda_error_name(CUresult error)
{
    const char *name = NULL;
    if (kiln_cu.GetErrorName(error, &name) != CUDA_SUCCESS || name == NULL)
        return "an error of the driver";
    return name;
}

/* Errors after which the driver refuses everything in the context. */
static int is_sticky(CUresult error)
{
    static const CUresult sticky[] = {
        CUDA_ERROR_DEINITIALIZED,        CUDA_ERROR_ECC_UNCORRECTABLE,
        CUDA_ERROR_NVLINK_UNCORRECTABLE, CUDA_ERROR_ILLEGAL_ADDRESS,
        CUDA_ERROR_LAUNCH_TIMEOUT,       CUDA_ERROR_CONTEXT_IS_DESTROYED,
        CUDA_ERROR_ASSERT,               CUDA_ERROR_HARDWARE_STACK_ERROR,
        CUDA_ERROR_ILLEGAL_INSTRUCTION,  CUDA_ERROR_MISALIGNED_ADDRESS,
        CUDA_ERROR_INVALID_ADDRESS_SPACE, CUDA_ERROR_INVALID_PC,
        CUDA_ERROR_LAUNCH_FAILED,
    };
    for (size_t i = 0; i < sizeof sticky / sizeof *sticky; i++)
        if (sticky[i] == error)
            return 1;
    return 0;
}

static int is_lost(const kiln_cuda_device *device)
{
    return __atomic_load_n(&device->lost, __ATOMIC_RELAXED);
}

/* The sentence of every call after one that has made the context unusable. */
static int device_lost(const kiln_cuda_device *device)
{
    const int error = is_lost(device);
    return kiln_fail(KILN_ERROR_DEVICE_LOST, "cuda:%d (%s) was lost by %s (%d) before: its context "
                     "cannot be used any more in this process", device->index, device->name,
                     cuda_error_name(error), error);
}

int kiln_cuda_check(kiln_cuda_device *device, CUresult error, int code, const char *what)
{
    if (error == CUDA_SUCCESS)
        return KILN_OK;
    if (is_lost(device))
        return device_lost(device);
    const char *why = "";
    if (error == CUDA_ERROR_OUT_OF_MEMORY) {
        code = KILN_ERROR_DEVICE_MEMORY;
        why = ": the device is out of memory";
    } else if (is_sticky(error)) {
        __atomic_store_n(&device->lost, error, __ATOMIC_RELAXED);
        code = KILN_ERROR_EXECUTION; /* of a kernel before, whichever call says so */
        why = ": the device is lost, its context cannot be used any more in this process";
    } else if (error >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
               error <= CUDA_ERROR_STREAM_CAPTURE_LAST) {
        why = ": a stream is being captured, which copies from and to the host cannot be";
    }
    return kiln_fail(code, "cuda:%d (%s): %s failed with %s (%d)%s", device->index, device->name,
                     what, cuda_error_name(error), error, why);
}

/* ---- the driver ---------------------------------------------------------------------------- */

/* cuGetProcAddress: of CUDA 12, or, without the last argument, of 11.3. */
typedef CUresult (*find_12)(const char *, void **, int, uint64_t, void *);
typedef CUresult (*find_11)(const char *, void **, int, uint64_t);

static int old_driver(void *library)
{
    CUresult (*ask)(int *);
    int version = 0;
    if (!kiln_has_function(library, "cuDriverGetVersion", &ask) || ask(&version) != CUDA_SUCCESS)
        return kiln_fail(KILN_ERROR_DRIVER, CUDA_LIBRARY " has no function cuGetProcAddress: "
                         CUDA_NEEDED);
    return kiln_fail(KILN_ERROR_DRIVER, CUDA_LIBRARY " is a driver of CUDA %d.%d: " CUDA_NEEDED,
                     version / 1000, version % 1000 / 10);
}

static find_12 find_newer; /* one of the two, once the driver is open */
static find_11 find_older;

int kiln_cuda_find_function(const char *name, int version, void *place)
{
    void *found = NULL;
    const CUresult error = find_newer != NULL ? find_newer(name, &found, version, 0, NULL)
                                              : find_older(name, &found, version, 0);
    if (error != CUDA_SUCCESS || found == NULL)
        return 0;
    memcpy(place, &found, sizeof found);
    return 1;
}

static int find_cuda_functions(void *library)
{
    if (!kiln_has_function(library, "cuGetProcAddress_v2", &find_newer) &&
        !kiln_has_function(library, "cuGetProcAddress", &find_older))
        return old_driver(library);
    int code = KILN_OK;
#define FIND(name, version, arguments)                                                             \
    if (code == KILN_OK && !kiln_cuda_find_function("cu" #name, version, &kiln_cu.name))                \
        code = kiln_fail(KILN_ERROR_DRIVER, CUDA_LIBRARY " has no function cu" #name ": "          \
                         CUDA_NEEDED);
    KILN_CUDA_FUNCTIONS(FIND)
#undef FIND
    return code;
}

static int find_graph_functions(void)
{
    int code = KILN_OK;
#define FIND(name, version, newer, arguments)                                                      \
    if (code == KILN_OK &&                                                                         \
        (newer == 0 || !kiln_cuda_find_function("cu" #name, newer, &kiln_cu_graph.name)) &&             \
        !kiln_cuda_find_function("cu" #name, version, &kiln_cu_graph.name))                             \
        code = kiln_fail(KILN_ERROR_DRIVER, CUDA_LIBRARY " has no function cu" #name ": graphs "   \
                         "need the driver of CUDA 11.4 or newer");
    KILN_CUDA_GRAPH_FUNCTIONS(FIND)
#undef FIND
    return code;
}

int kiln_cuda_find_graphs(void *device)
{
    static int are_found;
    int code = KILN_OK;
    (void)device; /* it is open, and so is the driver */
    kiln_take_lock(&kiln_devices_lock);
    if (!are_found)
        code = find_graph_functions();
    are_found = code == KILN_OK;
    kiln_give_lock(&kiln_devices_lock);
    return code;
}

static int open_cuda(void)
{
    static int is_open;
    void *library = NULL;
    if (is_open)
        return KILN_OK;
    int code = kiln_open_driver(CUDA_LIBRARY, "CUDA", "install the driver of an NVIDIA GPU", &library);
    if (code == KILN_OK)
        code = find_cuda_functions(library);
    is_open = code == KILN_OK;
    if (library != NULL && !is_open)
        kiln_os_close_library(library);
    return code;
}

/* ---- devices ------------------------------------------------------------------------------- */

static int check_driver(CUresult error, const char *what)
{
    if (error == CUDA_SUCCESS)
        return KILN_OK;
    return kiln_fail(KILN_ERROR_DRIVER, "%s failed with %s (%d)", what, cuda_error_name(error), error);
}

static int find_cuda_device(kiln_cuda_device *device)
{
    int count = 0;
    CUresult error = kiln_cu.Init(0);
    if (error == CUDA_ERROR_NO_DEVICE)
        return kiln_no_device("cuda", device->index, "CUDA", 0);
    int code = check_driver(error, "cuInit");
    if (code == KILN_OK)
        code = check_driver(kiln_cu.DeviceGetCount(&count), "cuDeviceGetCount");
    if (code == KILN_OK && device->index >= count)
        return kiln_no_device("cuda", device->index, "CUDA", count);
    return code != KILN_OK ? code
                           : check_driver(kiln_cu.DeviceGet(&device->id, device->index), "cuDeviceGet");
}

static int read_cuda_limits(kiln_cuda_device *device)
{
    int major = 0, minor = 0;
    const struct {
        int what;
        int *value;
    } wanted[] = {
        {CU_DEVICE_COMPUTE_CAPABILITY_MAJOR, &major},
        {CU_DEVICE_COMPUTE_CAPABILITY_MINOR, &minor},
        {CU_DEVICE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, &device->shared_bytes},
        {CU_DEVICE_MAX_THREADS_PER_BLOCK, &device->threads},
        {CU_DEVICE_MAX_BLOCK_DIM_X, &device->threads_along[0]},
        {CU_DEVICE_MAX_BLOCK_DIM_X + 1, &device->threads_along[1]},
        {CU_DEVICE_MAX_BLOCK_DIM_X + 2, &device->threads_along[2]},
        {CU_DEVICE_MAX_GRID_DIM_X, &device->blocks_along[0]},
        {CU_DEVICE_MAX_GRID_DIM_X + 1, &device->blocks_along[1]},
        {CU_DEVICE_MAX_GRID_DIM_X + 2, &device->blocks_along[2]},
    };
    char name[64] = ""; /* for messages only: it may stay unknown */
    if (kiln_cu.DeviceGetName(name, (int)sizeof name - 1, device->id) == CUDA_SUCCESS && *name != 0)
        memcpy(device->name, name, sizeof name);
    int code = KILN_OK;
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted && code == KILN_OK; i++)
        code = kiln_cuda_check(device, kiln_cu.DeviceGetAttribute(wanted[i].value, wanted[i].what,
                                                                  device->id),
                               KILN_ERROR_DRIVER, "cuDeviceGetAttribute");
    device->capability = 10 * major + minor;
    return code;
}

/* Use a context of the host's, which must be of this device. */
static int take_cuda_context(kiln_cuda_device *device, CUcontext context)
{
    CUdevice of = -1;
    int pushed = 0;
    device->context = context;
    int code = kiln_cuda_enter(device, &pushed);
    if (code != KILN_OK)
        return code;
    code = kiln_cuda_check(device, kiln_cu.CtxGetDevice(&of), KILN_ERROR_DRIVER, "cuCtxGetDevice");
    kiln_cuda_leave(pushed);
    if (code == KILN_OK && of != device->id)
        return kiln_fail(KILN_ERROR_ARGUMENT, "the context for cuda:%d is of another device",
                         device->index);
    return code;
}

static int retain_context(kiln_cuda_device *device)
{
    const int code =
        kiln_cuda_check(device, kiln_cu.DevicePrimaryCtxRetain(&device->context, device->id),
                        KILN_ERROR_DRIVER, "cuDevicePrimaryCtxRetain");
    device->retained = code == KILN_OK;
    return code;
}

int kiln_cuda_open(int index, void *context, void **opened)
{
    int code = open_cuda();
    if (code != KILN_OK)
        return code;
    kiln_cuda_device *const device = calloc(1, sizeof *device);
    if (device == NULL)
        return kiln_fail(KILN_ERROR_MEMORY, "out of memory for a device");
    device->index = index;
    memcpy(device->name, "?", 2); /* in messages, until it is known */
    code = find_cuda_device(device);
    if (code == KILN_OK)
        code = read_cuda_limits(device);
    if (code == KILN_OK)
        code = context != NULL ? take_cuda_context(device, context) : retain_context(device);
    if (code == KILN_OK)
        *opened = device;
    else
        kiln_cuda_close(device);
    return code;
}

void kiln_cuda_close(void *opened)
{
    kiln_cuda_device *const device = opened;
    if (device->retained)
        kiln_cu.DevicePrimaryCtxRelease(device->id);
    free(device);
}

static CUresult push_context(const kiln_cuda_device *device, int *pushed)
{
    CUcontext current = NULL;
    *pushed = 0;
    if (kiln_cu.CtxGetCurrent(&current) == CUDA_SUCCESS && current == device->context)
        return CUDA_SUCCESS;
    const CUresult error = kiln_cu.CtxPushCurrent(device->context);
    *pushed = error == CUDA_SUCCESS;
    return error;
}

int kiln_cuda_enter(kiln_cuda_device *device, int *pushed)
{
    if (is_lost(device))
        return device_lost(device);
    return kiln_cuda_check(device, push_context(device, pushed), KILN_ERROR_DRIVER,
                           "cuCtxPushCurrent");
}

int kiln_cuda_can_free(kiln_cuda_device *device, int *pushed)
{
    return !is_lost(device) && push_context(device, pushed) == CUDA_SUCCESS;
}

void kiln_cuda_leave(int pushed)
{
    CUcontext ours;
    if (pushed)
        kiln_cu.CtxPopCurrent(&ours);
}

int kiln_cuda_relax(void)
{
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    return kiln_cu.ThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS ? mode : -1;
}

void kiln_cuda_restore(int mode)
{
    if (mode >= 0)
        kiln_cu.ThreadExchangeStreamCaptureMode(&mode);
}

/* ---- memory -------------------------------------------------------------------------------- */

int kiln_cuda_allocate(void *opened, int64_t bytes, kiln_device_memory *memory)
{
    kiln_cuda_device *const device = opened;
    CUdeviceptr address = 0;
    int pushed;
    int code = kiln_cuda_enter(device, &pushed);
    if (code != KILN_OK)
        return code;
    const int mode = kiln_cuda_relax();
    code = kiln_cuda_check(device, kiln_cu.MemAlloc(&address, (size_t)bytes),
                           KILN_ERROR_DEVICE_MEMORY, "cuMemAlloc");
    kiln_cuda_restore(mode);
    kiln_cuda_leave(pushed);
    if (code != KILN_OK)
        return code;
    memory->handle = (void *)address;
    memory->address = (char *)address;
    memory->bytes = bytes;
    return KILN_OK;
}

/* The driver waits for what still uses it. */
void kiln_cuda_free(void *opened, kiln_device_memory *memory)
{
    int pushed;
    if (memory->handle != NULL && kiln_cuda_can_free(opened, &pushed)) {
        const int mode = kiln_cuda_relax();
        kiln_cu.MemFree((CUdeviceptr)memory->handle);
        kiln_cuda_restore(mode);
        kiln_cuda_leave(pushed);
    }
    memset(memory, 0, sizeof *memory);
}

int kiln_cuda_borrow(void *opened, void *data, int64_t bytes, kiln_device_memory *memory)
{
    kiln_cuda_device *const device = opened;
    int attributes[] = {CU_POINTER_MEMORY_TYPE, CU_POINTER_DEVICE_ORDINAL};
    uint32_t type = 0;
    int ordinal = -1, pushed;
    void *values[] = {&type, &ordinal};
    int code = kiln_cuda_enter(device, &pushed);
    if (code != KILN_OK)
        return code;
    code = kiln_cuda_check(device, kiln_cu.PointerGetAttributes(2, attributes, values,
                                                                (CUdeviceptr)data),
                           KILN_ERROR_ARGUMENT, "cuPointerGetAttributes of an argument");
    kiln_cuda_leave(pushed);
    if (code != KILN_OK)
        return code;
    if (type != CU_MEMORYTYPE_DEVICE)
        return kiln_fail(KILN_ERROR_DEVICE, "cuda:%d (%s): the address of an argument is not of a "
                         "device's memory", device->index, device->name);
    if (ordinal != device->id)
        return kiln_fail(KILN_ERROR_DEVICE, "cuda:%d (%s): an argument is in memory of cuda:%d",
                         device->index, device->name, ordinal);
    memory->handle = data;
    memory->address = data;
    memory->bytes = bytes;
    return KILN_OK;
}

void kiln_cuda_release(kiln_device_memory *memory)
{
    memory->handle = NULL;
    memory->address = NULL;
}
