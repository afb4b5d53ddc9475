/* What one call at a time has on the devices that it uses: a queue, memory for storages, and
 * addresses for memory of the caller. Each workspace has a session, which is kept for its next call;
 * once it is as large as that call needs, nothing is allocated any more. With a stream of the host's
 * nothing is waited for: the next call in that workspace waits on the device, by an event. */
#include "device.h"
#include <stdlib.h>
#include <string.h>

#define STAGING ((int64_t)1 << 20) /* bytes at a time of copies from one device to another */

/* A session on one device. */
typedef struct lane {
    kiln_opened *opened; /* NULL: not used yet */
    void *queue;
    kiln_device_memory storages;
    void *stream;    /* of the host, in use; NULL: the queue's own */
    int must_follow; /* the queue does not use it yet, since that has failed */
    int is_captured; /* by the host, in that stream */
    int collects;    /* the run is to be a graph */
    kiln_device_memory *borrowed; /* memory of the caller, by parameter; NULL: none so far */
} lane;

struct kiln_session {
    struct kiln_session *outer; /* that of the call in this thread that this one is nested in */
    uint32_t devices;           /* that the running call uses */
    int n_params;
    char *staging;
    const lane *streams; /* the first whose stream is that of the call; NULL: none yet */
    lane lanes[KILN_MAX_DEVICES + 1];
};

/* The session of the call that runs in this thread, or NULL. */
static kiln_session *running(void)
{
    const kiln_thread *const t = kiln_this_thread();
    return t == NULL ? NULL : t->running;
}


static const kiln_device_kind *kind_of(const lane *l)
{
    return l->opened->target->kind;
}

/* ---- before a run -------------------------------------------------------------------------- */

static void close_lane(lane *l)
{
    if (l->opened == NULL)
        return;
    const kiln_device_kind *kind = kind_of(l);
    for (int p = 0; l->borrowed != NULL && p < KILN_MAX_PARAMS; p++)
        kiln_give_addresses(&l->borrowed[p]);
    free(l->borrowed);
    if (!kiln_devices_are_lost()) {
        kind->free(l->opened->device, &l->storages);
        if (l->queue != NULL)
            kind->stop(l->queue);
    }
    kiln_give_addresses(&l->storages);
    memset(l, 0, sizeof *l);
}

/* Have a queue on the device that is chosen now; it may be another one than before. */
static int open_lane(lane *l, const kiln_devices *chosen, int number)
{
    int code;
    kiln_opened *const opened = kiln_open_device(chosen, number, &code);
    if (opened == NULL)
        return code;
    if (l->opened == opened)
        return KILN_OK;
    close_lane(l);
    l->opened = opened;
    code = kind_of(l)->start(opened->module, &l->queue);
    if (code != KILN_OK)
        close_lane(l);
    return code;
}

/* The stream of the host for a call: that of the call itself, of the executor, or of tvm-ffi. */
static void *stream_of_call(const lane *l, const kiln_binding *b, int number)
{
    void *stream = b->stream;
    if (stream == NULL && b->chosen != NULL)
        stream = __atomic_load_n(&b->chosen->stream[number], __ATOMIC_ACQUIRE);
    if (stream == NULL && b->asks_host)
        stream = kiln_host_stream(kind_of(l)->dlpack_type, l->opened->index);
    return stream;
}

/* Have the queue use the stream that is chosen now. That of a call is of one device. */
static int choose_stream(kiln_session *session, lane *l, const kiln_binding *b, int number)
{
    void *const stream = kind_of(l)->follow == NULL ? NULL : stream_of_call(l, b, number);
    l->is_captured = 0;
    if (stream != NULL && stream == b->stream) {
        if (session->streams != NULL && session->streams->opened->index != l->opened->index)
            return kiln_fail(KILN_ERROR_ARGUMENT, "%s: the stream of a call is of one device, and it "
                             "runs on %s:%d and %s:%d", b->function->name,
                             kind_of(session->streams)->name, session->streams->opened->index,
                             kind_of(l)->name, l->opened->index);
        session->streams = l;
    }
    if (stream == NULL && l->stream == NULL && !l->must_follow)
        return KILN_OK;
    l->stream = stream;
    const int code = kind_of(l)->follow(l->queue, stream, &l->is_captured);
    l->must_follow = code != KILN_OK;
    return code;
}

static int reserve_storages(lane *l, int64_t bytes, const kiln_binding *b)
{
    const char *const function = b->function->name;
    const kiln_device_kind *kind = kind_of(l);
    if (bytes < 0)
        return kiln_fail(KILN_ERROR_CONDITION, "%s: the sizes are too small: intermediate results "
                         "would take %lld bytes", function, (long long)bytes);
    if (bytes > 0 && l->is_captured && b->is_borrowed)
        return kiln_fail(KILN_ERROR_CONDITION, "%s: a graph of the host's would keep memory for "
                         "intermediate results that other calls use as well: capture a call in an "
                         "executor that runs no other", function);
    if (bytes <= l->storages.bytes)
        return KILN_OK;
    if (l->is_captured)
        return kiln_fail(KILN_ERROR_CONDITION, "%s: no memory can be made for intermediate results "
                         "while a stream is captured: run once with these sizes before", function);
    kind->free(l->opened->device, &l->storages); /* first, as its contents are not needed any more */
    return kind->allocate(l->opened->device, bytes, &l->storages);
}

/* ---- arguments on devices ------------------------------------------------------------------ */

static const char *param_role(const kiln_function *f, int p)
{
    if (f->kind == KILN_TENSOR_FUNCTION)
        return "argument";
    return p < f->n_inputs ? "input" : "output";
}

static int bad_argument(const kiln_binding *b, int p, const lane *l, int code, const char *what)
{
    char name[KILN_DEVICE_NAME];
    kiln_device_name(name, l->opened);
    return kiln_fail(code, "%s: %s '%s' on %s %s", b->function->name, param_role(b->function, p),
                     b->function->params[p].name, name, what);
}

static uint64_t offset_of(const kiln_binding *b, int p)
{
    return b->tensor[p] != NULL ? b->tensor[p]->byte_offset : 0;
}

/* Where an argument begins: an address, or an offset in what its handle stands for. */
static uint64_t start_of(const kiln_binding *b, int p, const kiln_device_kind *kind)
{
    return offset_of(b, p) + (kind->data_is_address ? (uintptr_t)b->data[p] : 0);
}

/* Whether an argument on a device shares bytes with another one, and one of them is written. */
static int shares_memory_on_device(const kiln_binding *b, int p, const kiln_device_kind *kind)
{
    const kiln_function *f = b->function;
    const uint64_t start = start_of(b, p, kind);
    for (int q = 0; q < p; q++) {
        if (f->params[q].device != f->params[p].device ||
            (!kind->data_is_address && b->data[q] != b->data[p]) ||
            !((f->params[p].role | f->params[q].role) & KILN_OUT))
            continue;
        const uint64_t other = start_of(b, q, kind);
        if (start < other ? other - start < (uint64_t)b->bytes[p] && b->bytes[q] > 0
                          : start - other < (uint64_t)b->bytes[q] && b->bytes[p] > 0)
            return 1;
    }
    return 0;
}

/* Borrow the memory of an argument for the run; *address becomes that of its first element. */
static int borrow_argument(lane *l, const kiln_binding *b, int p, char **address)
{
    const kiln_tensor *t = b->tensor[p];
    const int64_t offset = (int64_t)offset_of(b, p);
    int64_t end;
    *address = NULL;
    if (b->bytes[p] == 0)
        return KILN_OK;
    if (t != NULL && t->device_id != l->opened->index)
        return kiln_fail(KILN_ERROR_DEVICE, "%s: %s '%s' must be on device %s:%d, received %s:%d",
                         b->function->name, param_role(b->function, p), b->function->params[p].name,
                         kind_of(l)->name, l->opened->index, kind_of(l)->name, t->device_id);
    if (t != NULL && !kiln_is_contiguous(t))
        return bad_argument(b, p, l, KILN_ERROR_SHAPE, "must be contiguous, received strides");
    if (offset < 0 || __builtin_add_overflow(offset, b->bytes[p], &end))
        return bad_argument(b, p, l, KILN_ERROR_RANGE, "begins beyond any memory");
    if (start_of(b, p, kind_of(l)) % b->function->params[p].align != 0)
        return bad_argument(b, p, l, KILN_ERROR_ARGUMENT,
                            "begins where its alignment does not allow: copy it");
    if (shares_memory_on_device(b, p, kind_of(l)))
        return bad_argument(b, p, l, KILN_ERROR_ARGUMENT,
                            "shares memory with another argument; give each its own");
    if (l->borrowed == NULL && (l->borrowed = calloc(KILN_MAX_PARAMS, sizeof *l->borrowed)) == NULL)
        return kiln_fail(KILN_ERROR_MEMORY, "out of memory for arguments on devices");
    const int code = kind_of(l)->borrow(l->opened->device, b->data[p], end, &l->borrowed[p]);
    if (code == KILN_OK)
        *address = l->borrowed[p].address + offset;
    return code;
}

/* Have the queue collect the run as a graph, if that is chosen. While a stream is captured, the
 * host's graph gets the launches themselves. */
static int choose_graph(lane *l, const kiln_binding *b)
{
    int64_t *const counts =
        b->chosen == NULL ? NULL : __atomic_load_n(&b->chosen->graphs, __ATOMIC_ACQUIRE);
    const kiln_graph_run run = {b->function, b->symbol, counts};
    const int collects = counts != NULL && !l->is_captured && kind_of(l)->collect != NULL;
    if (counts != NULL && l->is_captured)
        __atomic_fetch_add(&counts[KILN_GRAPH_CAPTURED], 1, __ATOMIC_RELAXED);
    if (!collects && !l->collects)
        return KILN_OK;
    l->collects = collects;
    return kind_of(l)->collect(l->queue, collects ? &run : NULL);
}

static int begin_on(kiln_session *session, int number, const kiln_binding *b, int64_t bytes,
                    kiln_device_place *place, char **arg)
{
    const kiln_function *f = b->function;
    lane *const l = &session->lanes[number];
    int code = open_lane(l, b->chosen, number);
    if (code != KILN_OK || (code = choose_stream(session, l, b, number)) != KILN_OK ||
        (code = reserve_storages(l, bytes, b)) != KILN_OK || (code = choose_graph(l, b)) != KILN_OK)
        return code;
    place[number].workspace = l->storages.address;
    place[number].weights = l->opened->weights.address;
    for (int p = 0; p < b->count && code == KILN_OK; p++)
        if (f->params[p].device == number)
            code = borrow_argument(l, b, p, &arg[p]);
    return code;
}

static void give_arguments_back(kiln_session *session)
{
    for (int d = 1; d <= kiln_this_library.n_devices; d++) {
        lane *const l = &session->lanes[d];
        for (int p = 0; l->borrowed != NULL && p < session->n_params; p++)
            if (l->borrowed[p].handle != NULL)
                kind_of(l)->release(&l->borrowed[p]);
    }
}

int kiln_session_begin(kiln_session **session, const kiln_binding *b, kiln_device_place *place,
                       char **arg)
{
    const kiln_function *f = b->function;
    int64_t bytes[KILN_MAX_DEVICES + 1] = {0};
    int code = f->device_workspace == NULL ? KILN_OK : f->device_workspace(b->symbol, bytes);
    if (code != KILN_OK)
        return code;
    if (*session == NULL && (*session = calloc(1, sizeof **session)) == NULL)
        return kiln_fail(KILN_ERROR_MEMORY, "out of memory for a session on devices");
    kiln_session *const s = *session;
    s->n_params = b->count;
    s->devices = f->devices;
    s->streams = NULL;
    if ((f->devices & (f->devices - 1)) != 0 && s->staging == NULL &&
        (s->staging = malloc((size_t)STAGING)) == NULL)
        return kiln_fail(KILN_ERROR_MEMORY, "out of memory for copies between devices");
    for (int d = 1; d <= kiln_this_library.n_devices && code == KILN_OK; d++)
        if (f->devices >> d & 1)
            code = begin_on(s, d, b, bytes[d], place, arg);
    if (code != KILN_OK) {
        give_arguments_back(s);
        return code;
    }
    kiln_thread *const t = kiln_this_thread(); /* not NULL: kiln_prepare() has been asked */
    s->outer = t->running;
    t->running = s;
    return KILN_OK;
}

/* Launch what was collected, unless the run has failed, and wait for all but a stream of the host's. */
static int finish_lane(const lane *l)
{
    const kiln_device_kind *kind = kind_of(l);
    int code = KILN_OK, later = KILN_OK;
    if (l->collects && kiln_assertion() == NULL)
        code = kind->submit(l->queue);
    if (l->stream == NULL)
        later = kind->wait(l->queue);
    else if (!l->is_captured)
        later = kind->leave(l->queue);
    return code != KILN_OK ? code : later;
}

void kiln_session_end(kiln_session *session)
{
    for (int d = 1; d <= kiln_this_library.n_devices; d++)
        if (session->devices >> d & 1) {
            const int code = finish_lane(&session->lanes[d]);
            if (code != KILN_OK)
                kiln_kernel_failed(code);
        }
    give_arguments_back(session);
    kiln_this_thread()->running = session->outer;
}

void kiln_session_free(kiln_session *session)
{
    if (session == NULL)
        return;
    for (int d = 1; d <= kiln_this_library.n_devices; d++)
        close_lane(&session->lanes[d]);
    free(session->staging);
    free(session);
}

/* ---- during a run -------------------------------------------------------------------------- */

static int has_address(const kiln_device_memory *memory, const char *address, kiln_device_at *at)
{
    const uint64_t offset = (uint64_t)((uintptr_t)address - (uintptr_t)memory->address);
    if (memory->handle == NULL || offset > (uint64_t)memory->bytes)
        return 0;
    at->handle = memory->handle;
    at->offset = (int64_t)offset;
    return 1;
}

/* Find the memory that an address stands for; a null pointer, of an empty tensor, is none. */
static int find_memory(const lane *l, const char *address, kiln_device_at *at)
{
    at->handle = NULL;
    at->offset = 0;
    if (address == NULL || has_address(&l->storages, address, at) ||
        has_address(&l->opened->weights, address, at))
        return 1;
    const kiln_session *const s = running();
    const int borrowed = s == NULL || l->borrowed == NULL ? 0 : s->n_params;
    for (int p = 0; p < borrowed; p++)
        if (has_address(&l->borrowed[p], address, at))
            return 1;
    return 0;
}

/* The running call's lane on a device; NULL with a sentence if the call does not use it. */
static lane *lane_of(int32_t device, const char *what)
{
    kiln_session *const s = running();
    if (s != NULL && device > 0 && device <= kiln_this_library.n_devices &&
        s->devices >> device & 1)
        return &s->lanes[device];
    kiln_fail(KILN_ERROR_ARGUMENT, "%s uses device %d, which the function that runs does not name",
              what, device);
    return NULL;
}

static int launch_on_lane(const kiln_device_function *f, const int64_t grid[3],
                  const kiln_argument *arguments, int32_t count)
{
    kiln_device_at at[KILN_MAX_DEVICE_PARAMS];
    const lane *l = lane_of(f->device, f->name);
    if (l == NULL)
        return KILN_ERROR_ARGUMENT;
    if (count != f->n_params || count > KILN_MAX_DEVICE_PARAMS)
        return kiln_fail(KILN_ERROR_COUNT, "%s: expected %d arguments, at most %d, received %d",
                         f->name, f->n_params, KILN_MAX_DEVICE_PARAMS, count);
    for (int32_t i = 0; i < count; i++)
        if (f->params[i] == KILN_BUFFER && !find_memory(l, arguments[i].buffer, &at[i]))
            return kiln_fail(KILN_ERROR_ARGUMENT, "%s: argument %d is not an address of device %d",
                             f->name, i, f->device);
    if (grid[0] < 0 || grid[1] < 0 || grid[2] < 0)
        return kiln_fail(KILN_ERROR_CONDITION, "%s: a grid of [%lld, %lld, %lld] blocks", f->name,
                         (long long)grid[0], (long long)grid[1], (long long)grid[2]);
    if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0)
        return KILN_OK;
    return kind_of(l)->launch(l->queue, f, grid, arguments, at);
}

void kiln_launch(const kiln_device_function *function, const int64_t grid[3],
                 const kiln_argument *arguments, int32_t count)
{
    const int code = kiln_assertion() != NULL ? KILN_OK : launch_on_lane(function, grid, arguments, count);
    if (code != KILN_OK)
        kiln_kernel_failed(code);
}

/* Copy to or within one device. `to` is the host if its lane is NULL, and so is `from`. */
static int copy_piece(const lane *l, const lane *from_lane, char *to, char *from, int64_t bytes)
{
    kiln_device_at target, source;
    if ((l != NULL && !find_memory(l, to, &target)) ||
        (from_lane != NULL && !find_memory(from_lane, from, &source)))
        return kiln_fail(KILN_ERROR_ARGUMENT, "a copy of %lld bytes is not of memory of its devices",
                         (long long)bytes);
    if (l == NULL)
        return kind_of(from_lane)->read(from_lane->queue, to, source, bytes);
    if (from_lane == NULL)
        return kind_of(l)->write(l->queue, target, from, bytes);
    return kind_of(l)->copy(l->queue, target, source, bytes);
}

static int copy_bytes(char *to, int32_t to_device, char *from, int32_t from_device, int64_t bytes)
{
    const lane *l = NULL, *source = NULL;
    if ((to_device != 0 && (l = lane_of(to_device, "a copy")) == NULL) ||
        (from_device != 0 && (source = lane_of(from_device, "a copy")) == NULL))
        return KILN_ERROR_ARGUMENT;
    if (bytes < 0)
        return kiln_fail(KILN_ERROR_CONDITION, "a copy of %lld bytes", (long long)bytes);
    if (bytes == 0)
        return KILN_OK;
    if (l == NULL && source == NULL) {
        memcpy(to, from, (size_t)bytes);
        return KILN_OK;
    }
    if (l == NULL || source == NULL || l == source)
        return copy_piece(l, source, to, from, bytes);
    const kiln_session *const s = running();
    if (s == NULL) /* cannot be: it has these lanes */
        return KILN_ERROR_ARGUMENT;
    int code = KILN_OK;
    for (int64_t at = 0; at < bytes && code == KILN_OK; at += STAGING) {
        const int64_t size = bytes - at < STAGING ? bytes - at : STAGING;
        code = copy_piece(NULL, source, s->staging, from + at, size);
        if (code == KILN_OK)
            code = copy_piece(l, NULL, to + at, s->staging, size);
    }
    return code;
}

void kiln_device_copy(void *to, int32_t to_device, void *from, int32_t from_device, int64_t bytes)
{
    const int code =
        kiln_assertion() != NULL ? KILN_OK : copy_bytes(to, to_device, from, from_device, bytes);
    if (code != KILN_OK)
        kiln_kernel_failed(code);
}
