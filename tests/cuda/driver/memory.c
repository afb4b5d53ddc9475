/* Memory of devices: mappings with pages around them that nobody can touch. */
#include "lookalike.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE ((size_t)4096)

typedef struct allocation {
    struct allocation *next;
    CUdeviceptr start;
    size_t bytes, mapped;
    object *context;
} allocation;

static allocation *allocations;

static allocation *find(CUdeviceptr address, size_t bytes)
{
    for (allocation *a = allocations; a != NULL; a = a->next)
        if (address >= a->start && address - a->start <= a->bytes &&
            bytes <= a->bytes - (address - a->start))
            return a;
    return NULL;
}

int is_device_memory(CUdeviceptr address, size_t bytes)
{
    return find(address, bytes) != NULL;
}

int live_memory(void)
{
    int found = 0;
    for (const allocation *a = allocations; a != NULL; a = a->next)
        found++;
    return found;
}

/* Let the emulators of a device know that it has memory, or has it no longer. */
static void tell(const allocation *a, int is_there)
{
    for (object *m = NULL; (m = next_module(m, a->context->device)) != NULL;)
        tell_memory(m, a->start, a->bytes, is_there);
}

/* Let the emulator of a module know all of its device's memory, or forget it. */
void tell_all_memory(object *module, int is_there)
{
    for (const allocation *a = allocations; a != NULL; a = a->next)
        if (a->context->device == module->device)
            tell_memory(module, a->start, a->bytes, is_there);
}

/* What was freed last keeps its addresses, which nobody can touch, so that memory which is made next
 * lies elsewhere. */
static void drop_at(allocation **at)
{
    static char *last;
    static size_t last_bytes;
    allocation *const gone = *at;
    *at = gone->next;
    tell(gone, 0);
    if (last != NULL)
        munmap(last, last_bytes);
    last = (char *)gone->start - PAGE;
    last_bytes = gone->mapped;
    mprotect(last, last_bytes, PROT_NONE);
    free(gone);
}

/* Free what a context still has; return how much that is. */
int drop_memory(const object *context)
{
    int found = 0;
    allocation **at = &allocations;
    while (*at != NULL) {
        if ((*at)->context == context) {
            drop_at(at);
            found++;
        } else {
            at = &(*at)->next;
        }
    }
    return found;
}

void copy_bytes(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    memcpy((void *)to, (const void *)from, bytes);
}

CUresult cuMemAlloc(CUdeviceptr *address, size_t bytes)
{
    BEGIN("cuMemAlloc")
    NEED_CONTEXT()
    NEED(bytes > 0, INVALID_VALUE)
    NEED(!breaks_captures(), CAPTURE_UNSUPPORTED)
    NEED(bytes <= (size_t)setting("LOOKALIKE_MEMORY", 1 << 30), OUT_OF_MEMORY)
    if (error == SUCCESS) {
        allocation *const made = calloc(1, sizeof *made);
        made->mapped = (bytes + 3 * PAGE - 1) / PAGE * PAGE;
        char *const at = mmap(NULL, made->mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        mprotect(at + PAGE, made->mapped - 2 * PAGE, PROT_READ | PROT_WRITE);
        made->start = (CUdeviceptr)at + PAGE;
        made->bytes = bytes;
        made->context = current_context();
        memset((void *)made->start, 0xAB, bytes);
        made->next = allocations;
        allocations = made;
        tell(made, 1);
        *address = made->start;
    }
    END()
}

CUresult cuMemFree(CUdeviceptr address)
{
    BEGIN("cuMemFree")
    NEED_CONTEXT()
    allocation **at = &allocations;
    while (*at != NULL && (*at)->start != address)
        at = &(*at)->next;
    NEED(*at != NULL, INVALID_VALUE)
    NEED(!breaks_captures(), CAPTURE_UNSUPPORTED)
    if (error == SUCCESS) {
        catch_up_all(0);
        drop_at(at);
    }
    END()
}

CUresult cuPointerGetAttributes(unsigned count, int *what, void **values, CUdeviceptr address)
{
    BEGIN("cuPointerGetAttributes")
    NEED_CONTEXT()
    const allocation *const a = find(address, 0);
    for (unsigned i = 0; i < count && error == SUCCESS; i++)
        if (what[i] == 2)
            *(unsigned *)values[i] = a != NULL ? 2 : 0;
        else if (what[i] == 9)
            *(int *)values[i] = a != NULL ? a->context->device : -2;
        else
            error = INVALID_VALUE;
    END()
}

static CUresult copied(CUresult error, CUdeviceptr to, CUdeviceptr from, size_t bytes, object *stream,
                       const char *what)
{
    NEED_CONTEXT()
    NEED(is_stream(stream), INVALID_HANDLE)
    if (error == SUCCESS && is_captured(stream)) {
        invalidate(stream);
        error = CAPTURE_UNSUPPORTED;
    }
    if (error == SUCCESS) {
        catch_up(stream);
        note("%d %s %zu\n", number_of(stream), what, bytes);
        copy_bytes(to, from, bytes);
    }
    return error;
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, object *stream)
{
    BEGIN("cuMemcpyHtoDAsync")
    NEED(is_device_memory(to, bytes) && !is_device_memory((CUdeviceptr)from, 0), INVALID_VALUE)
    error = copied(error, to, (CUdeviceptr)from, bytes, stream, "write");
    END()
}

CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, object *stream)
{
    BEGIN("cuMemcpyDtoHAsync")
    NEED(is_device_memory(from, bytes) && !is_device_memory((CUdeviceptr)to, 0), INVALID_VALUE)
    error = copied(error, (CUdeviceptr)to, from, bytes, stream, "read");
    END()
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, object *stream)
{
    BEGIN("cuMemcpyDtoDAsync")
    NEED(is_device_memory(from, bytes) && is_device_memory(to, bytes), INVALID_VALUE)
    NEED_CONTEXT()
    NEED(is_stream(stream), INVALID_HANDLE)
    const operation op = {.to = to, .from = from, .bytes = bytes, .n_before = 1};
    if (error == SUCCESS && is_captured(stream))
        record(stream, &op);
    else if (error == SUCCESS)
        run_in(stream, &op);
    END()
}
