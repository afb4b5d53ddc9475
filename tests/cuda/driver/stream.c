/* Streams, their capture, events, and how callers find all functions. */
#include "lookalike.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* The default streams are 0, 1 and 2. */
int is_stream(object *stream)
{
    return stream <= (object *)2 || is_a(stream, STREAM);
}

int is_captured(object *stream)
{
    return stream > (object *)2 && stream->capturing;
}

void invalidate(object *stream)
{
    stream->invalid = 1;
}

enum { CAPTURE_GLOBAL, CAPTURE_THREAD_LOCAL, CAPTURE_RELAXED };
static _Thread_local int thread_mode = CAPTURE_GLOBAL;

int breaks_captures(void)
{
    if (thread_mode == CAPTURE_RELAXED)
        return 0;
    int is_unsafe = 0;
    for (object *o = first_object(); o != NULL; o = o->next)
        if (o->kind == STREAM && o->capturing && o->capture_mode != CAPTURE_RELAXED) {
            invalidate(o);
            is_unsafe = 1;
        }
    return is_unsafe;
}

CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
    BEGIN("cuThreadExchangeStreamCaptureMode")
    NEED(*mode >= CAPTURE_GLOBAL && *mode <= CAPTURE_RELAXED, INVALID_VALUE)
    if (error == SUCCESS) {
        const int former_mode = thread_mode;
        thread_mode = *mode;
        *mode = former_mode;
    }
    END()
}

void record(object *stream, const operation *op)
{
    operation **at = &stream->operations;
    while (*at != NULL)
        at = &(*at)->next;
    *at = malloc(sizeof *op);
    **at = *op;
}

CUresult cuStreamCreate(object **stream, unsigned flags)
{
    BEGIN("cuStreamCreate")
    NEED_CONTEXT()
    NEED(flags <= 1, INVALID_VALUE)
    if (error == SUCCESS) {
        *stream = make(STREAM, current_context());
        (*stream)->flags = flags;
    }
    END()
}

CUresult cuStreamDestroy(object *stream)
{
    BEGIN("cuStreamDestroy")
    NEED_CONTEXT()
    NEED(is_a(stream, STREAM), INVALID_HANDLE)
    if (error == SUCCESS) {
        catch_up(stream);
        drop(stream);
    }
    END()
}

CUresult cuStreamSynchronize(object *stream)
{
    BEGIN("cuStreamSynchronize")
    NEED_CONTEXT()
    NEED(is_stream(stream), INVALID_HANDLE)
    if (error == SUCCESS && is_captured(stream)) {
        invalidate(stream);
        error = CAPTURE_UNSUPPORTED;
    }
    NEED(!breaks_captures(), CAPTURE_UNSUPPORTED)
    if (error == SUCCESS) {
        catch_up(stream);
        error = lost();
    }
    END()
}

CUresult cuStreamIsCapturing(object *stream, int *status)
{
    BEGIN("cuStreamIsCapturing")
    NEED_CONTEXT()
    NEED(is_stream(stream), INVALID_HANDLE)
    if (error == SUCCESS)
        *status = is_captured(stream) ? stream->invalid ? 2 : 1 : 0;
    END()
}

CUresult cuStreamWaitEvent(object *stream, object *event, unsigned flags)
{
    BEGIN("cuStreamWaitEvent")
    NEED_CONTEXT()
    NEED(is_stream(stream) && is_a(event, EVENT), INVALID_HANDLE)
    NEED(flags == 0, INVALID_VALUE)
    NEED(!is_captured(stream), CAPTURE_UNSUPPORTED) /* for what is not captured as well */
    if (error == SUCCESS)
        wait_for_event(stream, event);
    END()
}

CUresult cuEventCreate(object **event, unsigned flags)
{
    BEGIN("cuEventCreate")
    NEED_CONTEXT()
    NEED(flags <= 7, INVALID_VALUE)
    if (error == SUCCESS)
        *event = make(EVENT, current_context());
    END()
}

CUresult cuEventDestroy(object *event)
{
    BEGIN("cuEventDestroy")
    NEED(is_a(event, EVENT), INVALID_HANDLE)
    if (error == SUCCESS)
        drop(event);
    END()
}

CUresult cuEventRecord(object *event, object *stream)
{
    BEGIN("cuEventRecord")
    NEED_CONTEXT()
    NEED(is_a(event, EVENT) && is_stream(stream), INVALID_HANDLE)
    NEED(!is_captured(stream), CAPTURE_UNSUPPORTED)
    if (error == SUCCESS)
        record_event(event, stream);
    END()
}

/* ---- capture ------------------------------------------------------------------------------- */

CUresult cuStreamBeginCapture(object *stream, int mode)
{
    BEGIN("cuStreamBeginCapture")
    NEED_CONTEXT()
    NEED(is_a(stream, STREAM) && !is_captured(stream) && mode >= 0 && mode <= 2, INVALID_VALUE)
    if (error == SUCCESS) {
        stream->capturing = 1;
        stream->capture_mode = mode;
    }
    END()
}

CUresult cuStreamEndCapture(object *stream, object **graph)
{
    BEGIN("cuStreamEndCapture")
    NEED_CONTEXT()
    NEED(is_a(stream, STREAM) && is_captured(stream), INVALID_VALUE)
    if (error == SUCCESS) {
        object *const made = make(GRAPH, current_context());
        made->operations = stream->operations;
        stream->operations = NULL;
        stream->capturing = 0;
        if (stream->invalid) {
            drop(made);
            error = CAPTURE_INVALIDATED;
        } else {
            *graph = made;
        }
        stream->invalid = 0;
    }
    END()
}

/* ---- finding functions --------------------------------------------------------------------- */

#ifndef OLD_DRIVER
/* The function as it was in a version of CUDA; those that are asked for here have had one form since
 * the version in which cuda_api.h asks for them. */
static CUresult find(const char *name, void **found, int version)
{
    const char *lacks = getenv("LOOKALIKE_LACKS");
    Dl_info here;
    *found = NULL;
    if (version > setting("LOOKALIKE_VERSION", 12040))
        return INVALID_VALUE;
    if (version < 2000 || (lacks != NULL && strcmp(lacks, name) == 0))
        return NOT_FOUND;
    dladdr((void *)(uintptr_t)&find, &here);
    void *const self = dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    *found = dlsym(self, name);
    dlclose(self);
    return *found != NULL ? SUCCESS : NOT_FOUND;
}

CUresult cuGetProcAddress(const char *name, void **found, int version, uint64_t flags)
{
    return flags == 0 ? find(name, found, version) : INVALID_VALUE;
}

#ifndef DRIVER_11
CUresult cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status)
{
    const CUresult error = flags == 0 ? find(name, found, version) : INVALID_VALUE;
    if (status != NULL)
        *status = error == SUCCESS ? 0 : 1;
    return error;
}
#endif
#endif
