/* Graphs: explicit nodes, what streams have captured, instances and their updates. */
#include "lookalike.h"
#include <stdlib.h>
#include <string.h>

/* CUDA_KERNEL_NODE_PARAMS, without the two members that _v2 has behind them, which are for other
 * handles of kernels. */
typedef struct kernel_params {
    object *function;
    unsigned grid[3], block[3], shared;
    void **values, **extra;
} kernel_params;

/* CUDA_MEMCPY3D. */
typedef struct copy_end {
    size_t x, y, z, lod;
    unsigned type;
    const void *host;
    CUdeviceptr device;
    void *array, *reserved;
    size_t pitch, height;
} copy_end;

typedef struct copy_params {
    copy_end from, to;
    size_t width, height, depth;
} copy_params;

void set_values(operation *op, void *const *values)
{
    size_t at = 0;
    for (int i = 0; i < op->function->n_params; i++) {
        const size_t size = (size_t)op->function->sizes[i];
        memcpy(op->values + at, values[i], size);
        at += (size + 7) / 8 * 8;
    }
}

static CUresult read_kernel(const kernel_params *params, operation *op)
{
    if (!is_a(params->function, FUNCTION))
        return INVALID_HANDLE;
    if (params->extra != NULL ||
        !is_launch(params->grid, params->block, params->shared, params->function))
        return INVALID_VALUE;
    op->function = params->function;
    memcpy(op->grid, params->grid, sizeof op->grid);
    memcpy(op->block, params->block, sizeof op->block);
    op->shared = params->shared;
    set_values(op, params->values);
    return SUCCESS;
}

static int is_one_dimension(const copy_end *end)
{
    return end->x == 0 && end->y == 0 && end->z == 0 && end->lod == 0 && end->type == 2 &&
           end->host == NULL && end->array == NULL && end->reserved == NULL;
}

/* Copies within a device; the memory is looked at when the graph is launched, as it may be freed. */
static CUresult read_copy(const copy_params *params, operation *op)
{
    if (!is_one_dimension(&params->from) || !is_one_dimension(&params->to) || params->width == 0 ||
        params->height != 1 || params->depth != 1 ||
        !is_device_memory(params->from.device, params->width) ||
        !is_device_memory(params->to.device, params->width))
        return INVALID_VALUE;
    op->function = NULL;
    op->to = params->to.device;
    op->from = params->from.device;
    op->bytes = params->width;
    return SUCCESS;
}

CUresult cuGraphCreate(object **graph, unsigned flags)
{
    BEGIN("cuGraphCreate")
    NEED_CONTEXT()
    NEED(flags == 0, INVALID_VALUE)
    if (error == SUCCESS)
        *graph = make(GRAPH, current_context());
    END()
}

/* Add a node behind at most one other of the graph. */
static CUresult add(object **node, object *graph, object *const *before, size_t count, operation *op)
{
    if (!is_a(graph, GRAPH))
        return INVALID_HANDLE;
    if (count > 1 || (count == 1 && (!is_a(before[0], NODE) || before[0]->owner != graph)))
        return INVALID_VALUE;
    *node = make(NODE, graph);
    (*node)->owner = graph;
    op->node = *node;
    op->n_before = (int)count;
    op->before = count > 0 ? before[0] : NULL;
    record(graph, op);
    return SUCCESS;
}

CUresult cuGraphAddKernelNode(object **node, object *graph, object *const *before, size_t count,
                              const kernel_params *params)
{
    operation op = {0};
    BEGIN("cuGraphAddKernelNode")
    NEED_CONTEXT()
    if (error == SUCCESS)
        error = read_kernel(params, &op);
    if (error == SUCCESS)
        error = add(node, graph, before, count, &op);
    END()
}

CUresult cuGraphAddMemcpyNode(object **node, object *graph, object *const *before, size_t count,
                              const copy_params *params, object *context)
{
    operation op = {0};
    BEGIN("cuGraphAddMemcpyNode")
    NEED(is_a(context, CONTEXT), INVALID_CONTEXT)
    if (error == SUCCESS)
        error = read_copy(params, &op);
    if (error == SUCCESS)
        error = add(node, graph, before, count, &op);
    END()
}

CUresult cuGraphInstantiateWithFlags(object **exec, object *graph, unsigned long long flags)
{
    BEGIN("cuGraphInstantiateWithFlags")
    NEED_CONTEXT()
    NEED(is_a(graph, GRAPH) && flags == 0, INVALID_VALUE)
    if (error == SUCCESS) {
        *exec = make(EXEC, current_context());
        for (const operation *op = graph->operations; op != NULL; op = op->next) {
            operation copy = *op;
            copy.next = NULL;
            record(*exec, &copy);
        }
    }
    END()
}

/* The operation of an instance that a node of its graph, which must still be there, stands for. */
static operation *find_operation(object *exec, object *node)
{
    if (!is_a(exec, EXEC) || !is_a(node, NODE))
        return NULL;
    operation *op = exec->operations;
    while (op != NULL && op->node != node)
        op = op->next;
    return op;
}

CUresult cuGraphExecKernelNodeSetParams(object *exec, object *node, const kernel_params *params)
{
    BEGIN("cuGraphExecKernelNodeSetParams")
    NEED_CONTEXT()
    operation *const op = error == SUCCESS ? find_operation(exec, node) : NULL;
    NEED(op != NULL && op->function == params->function, INVALID_VALUE)
    if (error == SUCCESS)
        error = read_kernel(params, op);
    END()
}

CUresult cuGraphExecMemcpyNodeSetParams(object *exec, object *node, const copy_params *params,
                                        object *context)
{
    BEGIN("cuGraphExecMemcpyNodeSetParams")
    NEED(is_a(context, CONTEXT), INVALID_CONTEXT)
    operation *const op = error == SUCCESS ? find_operation(exec, node) : NULL;
    NEED(op != NULL && op->function == NULL, INVALID_VALUE)
    if (error == SUCCESS)
        error = read_copy(params, op);
    END()
}

void run_operation(const operation *op, object *stream)
{
    void *values[MOST_VALUES];
    size_t at = 0;
    if (op->function == NULL) {
        if (!is_device_memory(op->to, op->bytes) || !is_device_memory(op->from, op->bytes))
            lose(LAUNCH_FAILED);
        else
            copy_bytes(op->to, op->from, op->bytes);
        note("%d copy %zu\n", number_of(stream), op->bytes);
        return;
    }
    for (int i = 0; i < op->function->n_params; i++) {
        values[i] = (void *)(uintptr_t)(op->values + at);
        at += ((size_t)op->function->sizes[i] + 7) / 8 * 8;
    }
    note("%d %s %s\n", number_of(stream), op->is_of_graph ? "graph launch" : "launch",
         op->function->name);
    run_kernel(op->function, op->grid, op->block, op->shared, values);
}

static int is_ready(const operation *first, const operation *previous, const operation *op)
{
    if (op->n_before == 0 || (op->before == NULL && previous == NULL))
        return 1;
    if (op->before == NULL) /* captured: in the order of the stream */
        return previous->is_done;
    while (first->node != op->before)
        first = first->next;
    return first->is_done;
}

/* Of the operations that may run next, the one that was added last runs: whoever forgets what depends
 * on what gets wrong results. */
static operation *next_of(object *exec)
{
    operation *found = NULL, *previous = NULL;
    for (operation *op = exec->operations; op != NULL; previous = op, op = op->next)
        if (!op->is_done && is_ready(exec->operations, previous, op))
            found = op;
    return found;
}

CUresult cuGraphLaunch(object *exec, object *stream)
{
    BEGIN("cuGraphLaunch")
    NEED_CONTEXT()
    NEED(is_a(exec, EXEC) && is_stream(stream), INVALID_HANDLE)
    if (error == SUCCESS && is_captured(stream)) { /* a graph within a graph: not here */
        invalidate(stream);
        error = CAPTURE_UNSUPPORTED;
    }
    for (operation *op = error == SUCCESS ? exec->operations : NULL; op != NULL; op = op->next)
        op->is_done = 0;
    for (operation *op; error == SUCCESS && (op = next_of(exec)) != NULL; op->is_done = 1) {
        op->is_of_graph = 1;
        run_in(stream, op);
    }
    END()
}

CUresult cuGraphExecDestroy(object *exec)
{
    BEGIN("cuGraphExecDestroy")
    NEED(is_a(exec, EXEC), INVALID_HANDLE)
    if (error == SUCCESS)
        drop(exec);
    END()
}

CUresult cuGraphDestroy(object *graph)
{
    BEGIN("cuGraphDestroy")
    NEED(is_a(graph, GRAPH), INVALID_HANDLE)
    if (error == SUCCESS) {
        drop_owned(graph);
        drop(graph);
    }
    END()
}
