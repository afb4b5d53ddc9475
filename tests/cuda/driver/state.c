/* Objects, failures on request, contexts and devices. */
#include "lookalike.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_DEVICES 8

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static object *objects;
static object *primary[MOST_DEVICES];
static __thread object *stack[16];
static __thread int depth;
static CUresult sticky;
static int streams_made, left_behind;
static char log_text[1 << 16];

void lock(void)
{
    pthread_mutex_lock(&mutex);
}

void unlock(void)
{
    pthread_mutex_unlock(&mutex);
}

int64_t setting(const char *name, int64_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? atoll(text) : otherwise;
}

int capability(void)
{
    const char *text = getenv("LOOKALIKE_CAPABILITY");
    int major = 9, minor = 0;
    if (text != NULL)
        sscanf(text, "%d.%d", &major, &minor);
    return 10 * major + minor;
}

/* ---- failures ------------------------------------------------------------------------------ */

static struct {
    char name[64];
    int seen;
} counts[64];
static char failing[64];
static int failing_call, failing_code;

/* Let the n-th call of a function from now on, from 1 on, fail with that code; and forget that a
 * device is lost. */
void fake_fail(const char *name, int n, int code);
void fake_fail(const char *name, int n, int code)
{
    lock();
    snprintf(failing, sizeof failing, "%s", name);
    failing_call = n;
    failing_code = code;
    sticky = SUCCESS;
    memset(counts, 0, sizeof counts);
    unlock();
}

int fake_calls(const char *name);
int fake_calls(const char *name)
{
    for (int at = 0; counts[at].name[0] != 0; at++)
        if (strcmp(counts[at].name, name) == 0)
            return counts[at].seen;
    return 0;
}

/* What was handed out and is not given back, or was not when its context went. */
int fake_live(void);
int fake_live(void)
{
    int found = left_behind + live_memory();
    for (const object *o = objects; o != NULL; o = o->next)
        found += o->kind != FUNCTION;
    left_behind = 0;
    return found;
}

const char *fake_log(void);
const char *fake_log(void)
{
    return log_text;
}

void note(const char *format, ...)
{
    va_list values;
    const size_t used = strlen(log_text);
    va_start(values, format);
    vsnprintf(log_text + used, sizeof log_text - used, format, values);
    va_end(values);
    FILE *const trace = getenv("LOOKALIKE_TRACE") != NULL ? fopen(getenv("LOOKALIKE_TRACE"), "a") : NULL;
    if (trace != NULL) {
        fputs(log_text + used, trace);
        fclose(trace);
    }
}

static void read_request(void)
{
    static int is_read;
    const char *text = getenv("LOOKALIKE_FAIL");
    if (is_read || text == NULL)
        return;
    is_read = 1;
    sscanf(text, "%63[^:]:%d:%d", failing, &failing_call, &failing_code);
}

CUresult fails(const char *name)
{
    int at = 0;
    read_request();
    while (counts[at].name[0] != 0 && strcmp(counts[at].name, name) != 0)
        at++;
    snprintf(counts[at].name, sizeof counts[at].name, "%s", name);
    const int seen = ++counts[at].seen;
    if (strcmp(failing, name) != 0 || seen != failing_call)
        return SUCCESS;
    if (failing_code >= 700 && failing_code < 720)
        sticky = failing_code;
    return failing_code;
}

CUresult lost(void)
{
    return sticky;
}

void lose(CUresult error)
{
    sticky = error;
}

/* ---- objects ------------------------------------------------------------------------------- */

object *make(object_kind kind, object *like)
{
    object *const made = calloc(1, sizeof *made);
    made->kind = kind;
    made->number = kind == STREAM ? ++streams_made : 0;
    made->device = like != NULL ? like->device : 0;
    made->next = objects;
    objects = made;
    return made;
}

object *first_object(void)
{
    return objects;
}

int is_a(const object *o, object_kind kind)
{
    for (const object *at = objects; at != NULL; at = at->next)
        if (at == o)
            return at->kind == kind;
    return 0;
}

void drop(object *o)
{
    object **at = &objects;
    while (*at != o)
        at = &(*at)->next;
    *at = o->next;
    while (o->operations != NULL) {
        operation *const next = o->operations->next;
        free(o->operations);
        o->operations = next;
    }
    free(o->text);
    free(o);
}

/* The functions of a module, the nodes of a graph. */
void drop_owned(const object *owner)
{
    for (object *o = objects, *next; o != NULL; o = next) {
        next = o->next;
        if ((o->kind == FUNCTION || o->kind == NODE) && o->owner == owner)
            drop(o);
    }
}

/* The next module of a device; the first after NULL. */
object *next_module(const object *after, int device)
{
    for (object *o = after != NULL ? after->next : objects; o != NULL; o = o->next)
        if (o->kind == MODULE && o->device == device)
            return o;
    return NULL;
}

object *current_context(void)
{
    return depth > 0 ? stack[depth - 1] : NULL;
}

/* ---- devices ------------------------------------------------------------------------------- */

CUresult cuInit(unsigned flags)
{
    BEGIN("cuInit")
    NEED(flags == 0, INVALID_VALUE)
    NEED(setting("LOOKALIKE_DEVICES", 2) > 0, NO_DEVICE)
    END()
}

CUresult cuDriverGetVersion(int *version)
{
    BEGIN("cuDriverGetVersion")
    *version = (int)setting("LOOKALIKE_VERSION", 12040);
    END()
}

CUresult cuGetErrorName(CUresult code, const char **name)
{
    static const struct {
        CUresult code;
        const char *name;
    } names[] = {
        {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
        {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
        {NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
        {NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
        {INVALID_PTX, "CUDA_ERROR_INVALID_PTX"},
        {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
        {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED"},
        {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
    };
    lock();
    const CUresult error = fails("cuGetErrorName");
    unlock();
    for (size_t i = 0; error == SUCCESS && i < sizeof names / sizeof *names; i++)
        if (names[i].code == code) {
            *name = names[i].name;
            return SUCCESS;
        }
    return INVALID_VALUE;
}

CUresult cuDeviceGetCount(int *count)
{
    BEGIN("cuDeviceGetCount")
    *count = (int)setting("LOOKALIKE_DEVICES", 2);
    END()
}

CUresult cuDeviceGet(int *device, int index)
{
    BEGIN("cuDeviceGet")
    NEED(index >= 0 && index < setting("LOOKALIKE_DEVICES", 2), INVALID_DEVICE)
    *device = index;
    END()
}

CUresult cuDeviceGetName(char *name, int room, int device)
{
    BEGIN("cuDeviceGetName")
    (void)device;
    if (error == SUCCESS)
        snprintf(name, (size_t)room, "Look-alike");
    END()
}

CUresult cuDeviceTotalMem(size_t *bytes, int device)
{
    BEGIN("cuDeviceTotalMem")
    (void)device;
    *bytes = (size_t)setting("LOOKALIKE_MEMORY", 1 << 30);
    END()
}

CUresult cuDeviceGetAttribute(int *value, int what, int device)
{
    static const struct {
        int what, value;
    } values[] = {{1, 1024}, {2, 1024}, {3, 1024}, {4, 64}, {5, 0x7FFFFFFF}, {6, 65535}, {7, 65535},
                  {8, 49152}, {10, 32}, {16, 4}, {41, 1}, {97, 232448}};
    BEGIN("cuDeviceGetAttribute")
    (void)device;
    *value = what == 75 ? capability() / 10 : what == 76 ? capability() % 10 : -1;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        if (values[i].what == what)
            *value = values[i].value;
    NEED(*value >= 0, INVALID_VALUE)
    END()
}

/* ---- contexts ------------------------------------------------------------------------------ */

CUresult cuDevicePrimaryCtxRetain(object **context, int device)
{
    BEGIN("cuDevicePrimaryCtxRetain")
    NEED(device >= 0 && device < setting("LOOKALIKE_DEVICES", 2), INVALID_DEVICE)
    if (error == SUCCESS) {
        if (primary[device] == NULL)
            (primary[device] = make(CONTEXT, NULL))->device = device;
        primary[device]->references++;
        *context = primary[device];
    }
    END()
}

/* The last one takes all of the context with it. */
CUresult cuDevicePrimaryCtxRelease(int device)
{
    lock();
    object *const context = primary[device];
    if (context != NULL && --context->references == 0) {
        const int memory = drop_memory(context);
        left_behind += sticky == SUCCESS ? memory : 0;
        for (object *o = objects, *next; o != NULL; o = next) {
            next = o->next;
            if (o->device != device || o == context)
                continue;
            left_behind += o->kind != FUNCTION && sticky == SUCCESS;
            drop(o);
            next = objects;
        }
        drop(context);
        primary[device] = NULL;
    }
    unlock();
    return SUCCESS;
}

CUresult cuCtxGetCurrent(object **context)
{
    lock();
    const CUresult error = fails("cuCtxGetCurrent");
    unlock();
    if (error == SUCCESS)
        *context = current_context();
    return error;
}

CUresult cuCtxPushCurrent(object *context)
{
    BEGIN("cuCtxPushCurrent")
    NEED(is_a(context, CONTEXT), INVALID_CONTEXT)
    if (error == SUCCESS)
        stack[depth++] = context;
    END()
}

CUresult cuCtxPopCurrent(object **context)
{
    *context = depth > 0 ? stack[--depth] : NULL;
    return *context != NULL ? SUCCESS : INVALID_CONTEXT;
}

CUresult cuCtxGetDevice(int *device)
{
    BEGIN("cuCtxGetDevice")
    NEED_CONTEXT()
    if (error == SUCCESS)
        *device = current_context()->device;
    END()
}
