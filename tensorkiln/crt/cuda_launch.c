/* CUDA: modules, streams and launches, as the table of device.h has them. */
#include "cuda_api.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CUDA_MOST_LOG 600 /* bytes of the driver's log in a sentence */
#define CUDA_LOG_ROOM 8192

typedef struct cuda_module {
    kiln_cuda_device *device;
    const kiln_device_target *target;
    CUmodule module;
    CUfunction functions[]; /* by number; arguments are given to launches, so all queues use them */
} cuda_module;

typedef struct cuda_queue {
    kiln_cuda_device *device;
    const cuda_module *module;
    CUstream own;
    CUstream stream;          /* in use: `own`, or the host's */
    CUevent left;             /* after what the host has not waited for; NULL: none so far */
    int waits;                /* the next stream has to wait for `left` */
    kiln_cuda_graphs *graphs; /* NULL: none so far */
    int collects;             /* what is launched waits for cuda_submit() */
} cuda_queue;

/* ---- which file of the artifacts ------------------------------------------------------------ */

/* An architecture: sm_90 runs on 9.0 and later, as a binary on 9.x; sm_90a on 9.0 only; sm_100f on
 * its family, 10.x. */
typedef struct cuda_arch {
    int number;
    char suffix; /* 'a', 'f' or 0 */
    int is_binary;
} cuda_arch;

/* Read "kernels.sm_90a.ptx"; 0 if a name is of another form. */
static int read_arch(const char *file_name, cuda_arch *arch)
{
    static const char start[] = "kernels.sm_";
    const size_t length = strlen(start);
    const char *at = file_name + length;
    int number = 0;
    if (strlen(file_name) <= length || memcmp(file_name, start, length) != 0)
        return 0;
    for (; *at >= '0' && *at <= '9' && number < 10000; at++)
        number = 10 * number + (*at - '0');
    arch->number = number;
    arch->suffix = *at == 'a' || *at == 'f' ? *at++ : (char)0;
    arch->is_binary = strcmp(at, ".cubin") == 0;
    return number > 0 && (arch->is_binary || strcmp(at, ".ptx") == 0);
}

static int runs_on(const cuda_arch *arch, int capability)
{
    if (arch->suffix == 'a')
        return arch->number == capability;
    if (arch->is_binary || arch->suffix == 'f')
        return arch->number / 10 == capability / 10 && arch->number <= capability;
    return arch->number <= capability;
}

/* Binaries first, then the newest; of one number the one that is for fewer devices. */
static int rank(const cuda_arch *arch)
{
    return (arch->is_binary ? 1 << 20 : 0) + 4 * arch->number +
           (arch->suffix == 'a' ? 2 : arch->suffix == 'f');
}

static const kiln_artifact *choose_code(const kiln_cuda_device *device,
                                        const kiln_device_target *target,
                                        const kiln_artifact *artifacts, int count, int *code)
{
    const kiln_artifact *best = NULL;
    char seen[200] = "";
    int best_rank = -1;
    for (int i = 0; i < count; i++) {
        cuda_arch arch;
        if (!read_arch(artifacts[i].file_name, &arch))
            continue;
        const size_t used = strlen(seen);
        snprintf(seen + used, sizeof seen - used, "%ssm_%d%c", used == 0 ? "" : ", ", arch.number,
                 arch.suffix);
        if (runs_on(&arch, device->capability) && rank(&arch) > best_rank) {
            best = &artifacts[i];
            best_rank = rank(&arch);
        }
    }
    if (best == NULL && *seen == 0)
        *code = kiln_fail(KILN_ERROR_CONTAINER, "target key '%s' has no file kernels.<arch>.ptx or "
                          ".cubin among its artifacts", target->target_key);
    else if (best == NULL)
        *code = kiln_fail(KILN_ERROR_CAPABILITY, "cuda:%d (%s, compute capability %d.%d) cannot run "
                          "the code of target key '%s', which is for %s", device->index,
                          device->name, device->capability / 10, device->capability % 10,
                          target->target_key, seen);
    return best;
}

/* ---- modules ------------------------------------------------------------------------------- */

static int cuda_lacks(const kiln_cuda_device *device, const kiln_device_function *f,
                      const char *what, int64_t needed, int64_t has)
{
    const kiln_device_words words = {"cuda", device->index, device->name};
    return kiln_device_lacks(&words, f, what, needed, has);
}

/* Check that a device can run a function, before anything is built. */
static int check_cuda_function(const kiln_cuda_device *device, const kiln_device_function *f)
{
    const int64_t threads = kiln_threads_of(f);
    if (f->shared_bytes > device->shared_bytes)
        return cuda_lacks(device, f, "bytes of shared memory", f->shared_bytes, device->shared_bytes);
    if (threads < 0 || threads > device->threads)
        return cuda_lacks(device, f, "threads in a block", threads, device->threads);
    for (int d = 0; d < 3; d++)
        if (f->block[d] > device->threads_along[d])
            return cuda_lacks(device, f, "threads along a dimension", f->block[d],
                              device->threads_along[d]);
    if (f->extensions != NULL && *f->extensions != NULL)
        return kiln_fail(KILN_ERROR_CAPABILITY, "cuda:%d (%s) cannot run %s: it lacks %s",
                         device->index, device->name, f->name, *f->extensions);
    return KILN_OK;
}

/* What the driver says of code that it does not take. */
static int code_refused(kiln_cuda_device *device, const char *file_name, CUresult error,
                        const char *log)
{
    const char *why = *log != 0 ? log : "it gives no reason";
    if (error == CUDA_ERROR_UNSUPPORTED_PTX_VERSION)
        why = "the driver is older than the code; update the driver";
    else if (error == CUDA_ERROR_JIT_COMPILER_NOT_FOUND)
        why = "the driver's compiler is not installed (libnvidia-ptxjitcompiler.so.1)";
    else if (error == CUDA_ERROR_JIT_COMPILATION_DISABLED)
        why = "its compiler is switched off (CUDA_DISABLE_PTX_JIT)";
    char what[64 + CUDA_MOST_LOG + 100];
    snprintf(what, sizeof what, "%.60s: %.*s; cuModuleLoadDataEx", file_name, CUDA_MOST_LOG, why);
    return kiln_cuda_check(device, error, KILN_ERROR_BUILD, what);
}

/* Load the code; PTX ends with a zero byte, which a copy has. */
static int load_code(cuda_module *made, const kiln_artifact *code_file)
{
    char *const log = calloc(1, CUDA_LOG_ROOM);
    char *const text = kiln_room((int64_t)code_file->bytes + 1, 1, "bytes of a device's code");
    int code = KILN_ERROR_MEMORY;
    if (log == NULL)
        kiln_fail(code, "out of memory for the driver's log");
    if (log != NULL && text != NULL) {
        int options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
        void *values[] = {log, (void *)(uintptr_t)(CUDA_LOG_ROOM - 1)};
        memcpy(text, code_file->content, (size_t)code_file->bytes);
        text[code_file->bytes] = 0;
        const CUresult error = kiln_cu.ModuleLoadDataEx(&made->module, text, 2, options, values);
        if (error != CUDA_SUCCESS)
            made->module = NULL;
        code = error == CUDA_SUCCESS
                   ? KILN_OK
                   : code_refused(made->device, code_file->file_name, error, log);
    }
    free(text);
    free(log);
    return code;
}

/* Find a function, check what the device has left for it, and ask for its shared memory. */
static int find_kernel(cuda_module *made, const kiln_device_function *f, CUfunction *found)
{
    kiln_cuda_device *const device = made->device;
    int most = 0, fixed = 0;
    CUresult error = kiln_cu.ModuleGetFunction(found, made->module, f->name);
    if (error == CUDA_ERROR_NOT_FOUND)
        return kiln_fail(KILN_ERROR_BUILD, "the code of target key '%s' has no function %s",
                         made->target->target_key, f->name);
    if (error != CUDA_SUCCESS)
        return kiln_cuda_check(device, error, KILN_ERROR_BUILD, "cuModuleGetFunction");
    error = kiln_cu.FuncGetAttribute(&most, CU_FUNC_MAX_THREADS_PER_BLOCK, *found);
    if (error == CUDA_SUCCESS)
        error = kiln_cu.FuncGetAttribute(&fixed, CU_FUNC_SHARED_SIZE_BYTES, *found);
    if (error != CUDA_SUCCESS)
        return kiln_cuda_check(device, error, KILN_ERROR_BUILD, "cuFuncGetAttribute");
    if (kiln_threads_of(f) > most)
        return cuda_lacks(device, f, "threads in a block of its own", kiln_threads_of(f), most);
    if (fixed + f->shared_bytes > device->shared_bytes)
        return cuda_lacks(device, f, "bytes of shared memory in all", fixed + f->shared_bytes,
                          device->shared_bytes);
    if (fixed + f->shared_bytes <= KILN_CUDA_SHARED_UNASKED)
        return KILN_OK;
    error = kiln_cu.FuncSetAttribute(*found, CU_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                     (int)f->shared_bytes);
    return kiln_cuda_check(device, error, KILN_ERROR_BUILD, "cuFuncSetAttribute");
}

static void cuda_unload(void *module)
{
    cuda_module *const made = module;
    int pushed;
    if (made->module != NULL && kiln_cuda_can_free(made->device, &pushed)) {
        kiln_cu.ModuleUnload(made->module);
        kiln_cuda_leave(pushed);
    }
    free(made);
}

static int cuda_load(void *opened, const kiln_device_target *target, const kiln_artifact *artifacts,
                     int count, void **module)
{
    kiln_cuda_device *const device = opened;
    int code = KILN_OK, pushed;
    for (int i = 0; i < target->n_functions && code == KILN_OK; i++)
        code = check_cuda_function(device, target->functions[i]);
    const kiln_artifact *const file =
        code == KILN_OK ? choose_code(device, target, artifacts, count, &code) : NULL;
    if (file == NULL || (code = kiln_cuda_enter(device, &pushed)) != KILN_OK)
        return code;
    cuda_module *const made =
        calloc(1, sizeof *made + (size_t)target->n_functions * sizeof *made->functions);
    if (made == NULL) {
        kiln_cuda_leave(pushed);
        return kiln_fail(KILN_ERROR_MEMORY, "out of memory for a module");
    }
    made->device = device;
    made->target = target;
    const int mode = kiln_cuda_relax();
    code = load_code(made, file);
    for (int i = 0; i < target->n_functions && code == KILN_OK; i++)
        if ((code = kiln_cuda_find_maps(target->functions[i])) == KILN_OK)
            code = find_kernel(made, target->functions[i], &made->functions[i]);
    kiln_cuda_restore(mode);
    kiln_cuda_leave(pushed);
    if (code == KILN_OK)
        *module = made;
    else
        cuda_unload(made);
    return code;
}

/* ---- queues -------------------------------------------------------------------------------- */

static void cuda_stop(void *started)
{
    cuda_queue *const q = started;
    int pushed;
    kiln_cuda_graphs_free(q->graphs);
    if (q->own != NULL && kiln_cuda_can_free(q->device, &pushed)) {
        kiln_cu.StreamDestroy(q->own);
        if (q->left != NULL)
            kiln_cu.EventDestroy(q->left);
        kiln_cuda_leave(pushed);
    }
    free(q);
}

/* A stream that waits for what the process has queued in its default stream before: what a caller
 * has computed there is done when a kernel here begins. */
static int cuda_start(void *module, void **started)
{
    const cuda_module *const made = module;
    cuda_queue *const q = calloc(1, sizeof *q);
    int pushed;
    if (q == NULL)
        return kiln_fail(KILN_ERROR_MEMORY, "out of memory for a queue");
    q->device = made->device;
    q->module = made;
    int code = kiln_cuda_enter(q->device, &pushed);
    if (code == KILN_OK) {
        code = kiln_cuda_check(q->device, kiln_cu.StreamCreate(&q->own, CU_STREAM_DEFAULT),
                               KILN_ERROR_DRIVER, "cuStreamCreate");
        kiln_cuda_leave(pushed);
    }
    q->stream = q->own;
    if (code == KILN_OK)
        *started = q;
    else
        cuda_stop(q);
    return code;
}

static int cuda_follow(void *started, void *stream, int *is_captured)
{
    cuda_queue *const q = started;
    int status = 0, pushed;
    const int code = kiln_cuda_enter(q->device, &pushed);
    if (code != KILN_OK)
        return code;
    q->stream = stream != NULL ? stream : q->own;
    const char *what = "cuStreamIsCapturing of a stream";
    CUresult error = stream != NULL ? kiln_cu.StreamIsCapturing(q->stream, &status) : CUDA_SUCCESS;
    if (error == CUDA_SUCCESS && status == 0 && q->waits) { /* a capture may not wait for others */
        what = "cuStreamWaitEvent of a stream";
        error = kiln_cu.StreamWaitEvent(q->stream, q->left, 0);
    }
    kiln_cuda_leave(pushed);
    *is_captured = status != 0;
    return kiln_cuda_check(q->device, error, KILN_ERROR_ARGUMENT, what);
}

static int cuda_leave(void *started)
{
    cuda_queue *const q = started;
    int pushed;
    const int code = kiln_cuda_enter(q->device, &pushed);
    if (code != KILN_OK)
        return code;
    CUresult error = CUDA_SUCCESS;
    if (q->left == NULL)
        error = kiln_cu.EventCreate(&q->left, CU_EVENT_DISABLE_TIMING);
    if (error == CUDA_SUCCESS)
        error = kiln_cu.EventRecord(q->left, q->stream);
    q->waits |= error == CUDA_SUCCESS;
    kiln_cuda_leave(pushed);
    return kiln_cuda_check(q->device, error, KILN_ERROR_EXECUTION, "an event after a call");
}

static CUdeviceptr pointer_of(kiln_device_at at)
{
    return (CUdeviceptr)at.handle + (CUdeviceptr)at.offset;
}

/* Have the values that are tensor maps made, if there are any. */
static int make_maps(kiln_cuda_device *device, const kiln_device_function *f, kiln_cuda_maps *maps,
                     void **values)
{
    int pushed;
    if (f->n_params == 0 || f->params[f->n_params - 1] != KILN_TENSOR_MAP) /* they come last */
        return KILN_OK;
    int code = kiln_cuda_enter(device, &pushed);
    if (code != KILN_OK)
        return code;
    code = kiln_cuda_make_maps(device, f, maps, values);
    kiln_cuda_leave(pushed);
    return code;
}

static int cuda_launch(void *started, const kiln_device_function *f, const int64_t grid[3],
                       const kiln_argument *arguments, const kiln_device_at *at)
{
    const cuda_queue *const q = started;
    CUdeviceptr buffers[KILN_MAX_DEVICE_PARAMS];
    void *values[KILN_MAX_DEVICE_PARAMS];
    kiln_cuda_maps maps;
    int pushed;
    for (int d = 0; d < 3; d++)
        if (grid[d] > q->device->blocks_along[d])
            return kiln_fail(KILN_ERROR_LAUNCH, "%s: a grid of [%lld, %lld, %lld] blocks is too "
                             "large", f->name, (long long)grid[0], (long long)grid[1],
                             (long long)grid[2]);
    for (int i = 0; i < f->n_params; i++) {
        values[i] = (void *)(uintptr_t)kiln_value_of(f, i, &arguments[i]);
        if (f->params[i] == KILN_BUFFER) {
            buffers[i] = pointer_of(at[i]);
            values[i] = &buffers[i];
        }
    }
    int code = make_maps(q->device, f, &maps, values);
    if (code != KILN_OK)
        return code;
    const kiln_cuda_launch launch = {
        q->module->functions[f->number],
        f,
        {(uint32_t)grid[0], (uint32_t)grid[1], (uint32_t)grid[2]},
        values,
    };
    if (q->collects)
        return kiln_cuda_graphs_add(q->graphs, &launch);
    code = kiln_cuda_enter(q->device, &pushed);
    if (code != KILN_OK)
        return code;
    code = kiln_cuda_launch_now(q->device, &launch, q->stream);
    kiln_cuda_leave(pushed);
    return code;
}

static int cuda_collect(void *started, const kiln_graph_run *run)
{
    cuda_queue *const q = started;
    q->collects = 0;
    const int code = run == NULL ? KILN_OK : kiln_cuda_graphs_begin(&q->graphs, q->device, run);
    q->collects = run != NULL && code == KILN_OK;
    return code;
}

static int cuda_submit(void *started)
{
    const cuda_queue *const q = started;
    int pushed;
    if (!q->collects)
        return KILN_OK;
    int code = kiln_cuda_enter(q->device, &pushed);
    if (code != KILN_OK)
        return code;
    code = kiln_cuda_graphs_submit(q->graphs, q->stream);
    kiln_cuda_leave(pushed);
    return code;
}

/* The end of a table function: wait if `waits`, leave the context, and say what failed. */
static int cuda_finish(const cuda_queue *q, int pushed, CUresult error, int waits, int code,
                       const char *what)
{
    if (error == CUDA_SUCCESS && waits) {
        const int mode = kiln_cuda_relax();
        error = kiln_cu.StreamSynchronize(q->stream);
        kiln_cuda_restore(mode);
    }
    kiln_cuda_leave(pushed);
    return kiln_cuda_check(q->device, error, code, what);
}

static int cuda_write(void *started, kiln_device_at to, const void *from, int64_t bytes)
{
    const cuda_queue *const q = started;
    int pushed;
    int code = cuda_submit(started);
    if (code != KILN_OK || (code = kiln_cuda_enter(q->device, &pushed)) != KILN_OK)
        return code;
    const CUresult error =
        kiln_cu.MemcpyHtoDAsync(pointer_of(to), from, (size_t)bytes, q->stream);
    return cuda_finish(q, pushed, error, 1, KILN_ERROR_LAUNCH, "a copy from the host");
}

static int cuda_read(void *started, void *to, kiln_device_at from, int64_t bytes)
{
    const cuda_queue *const q = started;
    int pushed;
    int code = cuda_submit(started);
    if (code != KILN_OK || (code = kiln_cuda_enter(q->device, &pushed)) != KILN_OK)
        return code;
    const CUresult error = kiln_cu.MemcpyDtoHAsync(to, pointer_of(from), (size_t)bytes, q->stream);
    return cuda_finish(q, pushed, error, 1, KILN_ERROR_EXECUTION, "a copy to the host");
}

static int cuda_copy(void *started, kiln_device_at to, kiln_device_at from, int64_t bytes)
{
    const cuda_queue *const q = started;
    int pushed;
    if (q->collects)
        return kiln_cuda_graphs_add_copy(q->graphs, pointer_of(to), pointer_of(from), (size_t)bytes);
    const int code = kiln_cuda_enter(q->device, &pushed);
    if (code != KILN_OK)
        return code;
    const CUresult error =
        kiln_cu.MemcpyDtoDAsync(pointer_of(to), pointer_of(from), (size_t)bytes, q->stream);
    return cuda_finish(q, pushed, error, 0, KILN_ERROR_LAUNCH, "a copy on the device");
}

static int cuda_wait(void *started)
{
    const cuda_queue *const q = started;
    int pushed;
    const int code = kiln_cuda_enter(q->device, &pushed);
    if (code != KILN_OK)
        return code;
    return cuda_finish(q, pushed, CUDA_SUCCESS, 1, KILN_ERROR_EXECUTION, "work that was queued before");
}

const kiln_device_kind kiln_cuda = {
    .name = "cuda",
    .dlpack_type = 2,
    .data_is_address = 1,
    .open = kiln_cuda_open,
    .close = kiln_cuda_close,
    .load = cuda_load,
    .unload = cuda_unload,
    .start = cuda_start,
    .stop = cuda_stop,
    .follow = cuda_follow,
    .leave = cuda_leave,
    .allocate = kiln_cuda_allocate,
    .free = kiln_cuda_free,
    .borrow = kiln_cuda_borrow,
    .release = kiln_cuda_release,
    .launch = cuda_launch,
    .write = cuda_write,
    .read = cuda_read,
    .copy = cuda_copy,
    .wait = cuda_wait,
    .find_graphs = kiln_cuda_find_graphs,
    .collect = cuda_collect,
    .submit = cuda_submit,
};
