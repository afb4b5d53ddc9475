/* CUDA: launches at once, or together as a graph of explicit nodes. A run's launches and copies are
 * collected as words; at each meeting with the host, and at the run's end, they become a graph, or are
 * compared word by word with the one that an earlier run of the same function and sizes has left, of
 * which only nodes that differ are updated. Nodes depend on each other in the order of the launches:
 * what a graph runs is what a stream would have run. */
#include "cuda_api.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_RUNS 16
#define GRID_WORDS 3
#define COPY_WORDS 3

/* A launch, `count` words from word `at` on: its grid, then its values, each in whole words. A copy,
 * where `described` is NULL: to, from, bytes. */
typedef struct graph_node {
    CUfunction function;
    const kiln_device_function *described;
    size_t at, count;
    CUgraphNode handle; /* once there is a graph */
} graph_node;

/* What is launched together. */
typedef struct graph_part {
    graph_node *nodes;
    uint64_t *words;
    size_t n_nodes, n_words, room_nodes, room_words;
    CUgraph graph; /* updates name nodes of it, so it is kept */
    CUgraphExec exec;
} graph_part;

/* The parts of a run, in order; those that are too short for a graph have none. */
typedef struct graph_run {
    const kiln_function *function; /* NULL: unused */
    int64_t symbols[KILN_MAX_SYMBOLS];
    uint64_t used; /* when; the least was used longest ago */
    graph_part *parts;
    size_t n_parts;
} graph_run;

struct kiln_cuda_graphs {
    kiln_cuda_device *device;
    kiln_graph_run now; /* the run that is being collected */
    int64_t symbols[KILN_MAX_SYMBOLS];
    graph_run *run; /* where its graphs are; NULL: not known yet */
    size_t part;    /* that is being collected, counted in the run */
    graph_part draft;
    uint64_t clock;
    graph_run runs[MOST_RUNS];
};

static void note_graph(const kiln_cuda_graphs *g, int what)
{
    __atomic_fetch_add(&g->now.counts[what], 1, __ATOMIC_RELAXED);
}

/* ---- launches ------------------------------------------------------------------------------ */

/* The result of a call about a launch or copy, in a sentence: "the launch of add failed with ...". */
static int node_result(kiln_cuda_device *device, CUresult error, const char *what,
                       const kiln_device_function *f)
{
    char text[140];
    if (error == CUDA_SUCCESS)
        return KILN_OK;
    snprintf(text, sizeof text, "%s %.60s", what, f != NULL ? f->name : "a copy");
    return kiln_cuda_check(device, error, KILN_ERROR_LAUNCH, text);
}

int kiln_cuda_launch_now(kiln_cuda_device *device, const kiln_cuda_launch *launch, CUstream stream)
{
    const kiln_device_function *const f = launch->described;
    const CUresult error = kiln_cu.LaunchKernel(
        launch->function, launch->grid[0], launch->grid[1], launch->grid[2], (uint32_t)f->block[0],
        (uint32_t)f->block[1], (uint32_t)f->block[2], (uint32_t)f->shared_bytes, stream,
        launch->values, NULL);
    return node_result(device, error, "the launch of", f);
}

static size_t words_of_value(const kiln_device_function *f, int i)
{
    return (kiln_cuda_bytes_of(f, i) + sizeof(uint64_t) - 1) / sizeof(uint64_t);
}

/* A collected launch; `values` has room for KILN_MAX_DEVICE_PARAMS. */
static kiln_cuda_launch launch_of(const graph_part *part, const graph_node *node, void **values)
{
    uint64_t *at = part->words + node->at;
    const kiln_cuda_launch launch = {
        node->function,
        node->described,
        {(uint32_t)at[0], (uint32_t)at[1], (uint32_t)at[2]},
        values,
    };
    at += GRID_WORDS;
    for (int i = 0; i < node->described->n_params; i++) {
        values[i] = at;
        at += words_of_value(node->described, i);
    }
    return launch;
}

/* ---- collecting ---------------------------------------------------------------------------- */

/* Have room for one more node of `words` words, which are zero then; NULL with a sentence. */
static graph_node *new_graph_node(graph_part *part, size_t words)
{
    const size_t nodes_needed = part->n_nodes + 1, words_needed = part->n_words + words;
    if (nodes_needed > part->room_nodes) {
        graph_node *const nodes = realloc(part->nodes, 2 * nodes_needed * sizeof *nodes);
        if (nodes == NULL) {
            kiln_fail(KILN_ERROR_MEMORY, "out of memory for the nodes of a graph");
            return NULL;
        }
        part->nodes = nodes;
        part->room_nodes = 2 * nodes_needed;
    }
    if (words_needed > part->room_words) {
        uint64_t *const more = realloc(part->words, 2 * words_needed * sizeof *more);
        if (more == NULL) {
            kiln_fail(KILN_ERROR_MEMORY, "out of memory for the parameters of a graph");
            return NULL;
        }
        part->words = more;
        part->room_words = 2 * words_needed;
    }
    graph_node *const node = &part->nodes[part->n_nodes++];
    *node = (graph_node){NULL, NULL, part->n_words, words, NULL};
    memset(part->words + part->n_words, 0, words * sizeof(uint64_t));
    part->n_words = words_needed;
    return node;
}

int kiln_cuda_graphs_add(kiln_cuda_graphs *g, const kiln_cuda_launch *launch)
{
    const kiln_device_function *const f = launch->described;
    size_t words = GRID_WORDS;
    for (int i = 0; i < f->n_params; i++)
        words += words_of_value(f, i);
    graph_node *const node = new_graph_node(&g->draft, words);
    if (node == NULL)
        return KILN_ERROR_MEMORY;
    node->function = launch->function;
    node->described = f;
    uint64_t *at = g->draft.words + node->at;
    for (int d = 0; d < GRID_WORDS; d++)
        *at++ = launch->grid[d];
    for (int i = 0; i < f->n_params; i++) {
        memcpy(at, launch->values[i], kiln_cuda_bytes_of(f, i));
        at += words_of_value(f, i);
    }
    return KILN_OK;
}

int kiln_cuda_graphs_add_copy(kiln_cuda_graphs *g, CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    const graph_node *const node = new_graph_node(&g->draft, COPY_WORDS);
    if (node == NULL)
        return KILN_ERROR_MEMORY;
    uint64_t *const at = g->draft.words + node->at;
    at[0] = to;
    at[1] = from;
    at[2] = bytes;
    return KILN_OK;
}

/* ---- graphs -------------------------------------------------------------------------------- */

static kiln_cuda_kernel_node kernel_node(const graph_part *part, const graph_node *node,
                                         void **values)
{
    const kiln_cuda_launch launch = launch_of(part, node, values);
    const kiln_device_function *const f = node->described;
    return (kiln_cuda_kernel_node){
        .func = launch.function,
        .grid = {launch.grid[0], launch.grid[1], launch.grid[2]},
        .block = {(uint32_t)f->block[0], (uint32_t)f->block[1], (uint32_t)f->block[2]},
        .shared_bytes = (uint32_t)f->shared_bytes,
        .values = values,
    };
}

static kiln_cuda_copy_node copy_node(const graph_part *part, const graph_node *node)
{
    const uint64_t *const at = part->words + node->at;
    return (kiln_cuda_copy_node){
        .from = {.type = CU_MEMORYTYPE_DEVICE, .device = (CUdeviceptr)at[1]},
        .to = {.type = CU_MEMORYTYPE_DEVICE, .device = (CUdeviceptr)at[0]},
        .width_in_bytes = (size_t)at[2],
        .height = 1,
        .depth = 1,
    };
}

/* Add a node behind the one before it. The driver copies what parameters point to. */
static int add_to_graph(kiln_cuda_device *device, graph_part *part, size_t i)
{
    void *values[KILN_MAX_DEVICE_PARAMS];
    graph_node *const node = &part->nodes[i];
    const CUgraphNode *const before = i > 0 ? &part->nodes[i - 1].handle : NULL;
    CUresult error;
    if (node->described != NULL) {
        const kiln_cuda_kernel_node made = kernel_node(part, node, values);
        error = kiln_cu_graph.GraphAddKernelNode(&node->handle, part->graph, before, i > 0, &made);
    } else {
        const kiln_cuda_copy_node made = copy_node(part, node);
        error = kiln_cu_graph.GraphAddMemcpyNode(&node->handle, part->graph, before, i > 0, &made,
                                                 device->context);
    }
    return node_result(device, error, "a graph's node for", node->described);
}

/* Memory of another kind than a copy's first one is refused: then *is_refused becomes 1. */
static int update_graph_node(kiln_cuda_device *device, const graph_part *part, const graph_node *node,
                             int *is_refused)
{
    void *values[KILN_MAX_DEVICE_PARAMS];
    CUresult error;
    if (node->described != NULL) {
        const kiln_cuda_kernel_node changed = kernel_node(part, node, values);
        error = kiln_cu_graph.GraphExecKernelNodeSetParams(part->exec, node->handle, &changed);
    } else {
        const kiln_cuda_copy_node changed = copy_node(part, node);
        error = kiln_cu_graph.GraphExecMemcpyNodeSetParams(part->exec, node->handle, &changed,
                                                           device->context);
        *is_refused = error == CUDA_ERROR_INVALID_VALUE;
        if (*is_refused)
            return KILN_OK;
    }
    return node_result(device, error, "an update of a graph's node for", node->described);
}

/* Free a part; a device that is lost has freed its graphs. */
static void drop_graph_part(kiln_cuda_device *device, graph_part *part)
{
    int pushed;
    if (part->graph != NULL && kiln_cuda_can_free(device, &pushed)) {
        if (part->exec != NULL)
            kiln_cu_graph.GraphExecDestroy(part->exec);
        kiln_cu_graph.GraphDestroy(part->graph);
        kiln_cuda_leave(pushed);
    }
    free(part->nodes);
    free(part->words);
    memset(part, 0, sizeof *part);
}

static int make_graph(const kiln_cuda_graphs *g, graph_part *part)
{
    const char *const function = g->now.function->name;
    char what[100];
    snprintf(what, sizeof what, "cuGraphCreate for %.60s", function);
    CUresult error = kiln_cu_graph.GraphCreate(&part->graph, 0);
    int code = kiln_cuda_check(g->device, error, KILN_ERROR_LAUNCH, what);
    for (size_t i = 0; i < part->n_nodes && code == KILN_OK; i++)
        code = add_to_graph(g->device, part, i);
    if (code != KILN_OK)
        return code;
    snprintf(what, sizeof what, "cuGraphInstantiate for %.60s", function);
    error = kiln_cu_graph.GraphInstantiateWithFlags(&part->exec, part->graph, 0);
    return kiln_cuda_check(g->device, error, KILN_ERROR_LAUNCH, what);
}

/* Whether a graph has the draft's nodes, but for their parameters. */
static int has_nodes_of(const graph_part *part, const graph_part *draft)
{
    if (part->exec == NULL || part->n_nodes != draft->n_nodes || part->n_words != draft->n_words)
        return 0;
    for (size_t i = 0; i < part->n_nodes; i++)
        if (part->nodes[i].function != draft->nodes[i].function ||
            part->nodes[i].at != draft->nodes[i].at)
            return 0;
    return 1;
}

/* Update the nodes of a graph whose parameters are others in the draft, unless one is refused. */
static int update_graph(const kiln_cuda_graphs *g, graph_part *part, int *is_refused)
{
    int code = KILN_OK;
    for (size_t i = 0; i < part->n_nodes && code == KILN_OK && !*is_refused; i++) {
        const graph_node *const node = &part->nodes[i];
        uint64_t *const old = part->words + node->at;
        const uint64_t *const wanted = g->draft.words + node->at;
        if (memcmp(old, wanted, node->count * sizeof *wanted) == 0)
            continue;
        memcpy(old, wanted, node->count * sizeof *wanted);
        code = update_graph_node(g->device, part, node, is_refused);
        if (code == KILN_OK && !*is_refused)
            note_graph(g, KILN_GRAPH_UPDATED);
    }
    return code;
}

/* ---- the runs that are kept ---------------------------------------------------------------- */

static void drop_graph_run(kiln_cuda_device *device, graph_run *run)
{
    for (size_t i = 0; i < run->n_parts; i++)
        drop_graph_part(device, &run->parts[i]);
    free(run->parts);
    memset(run, 0, sizeof *run);
}

static graph_run *find_graph_run(kiln_cuda_graphs *g)
{
    const size_t bytes = (size_t)g->now.function->n_symbols * sizeof *g->symbols;
    for (size_t i = 0; i < MOST_RUNS; i++)
        if (g->runs[i].function == g->now.function &&
            memcmp(g->runs[i].symbols, g->symbols, bytes) == 0)
            return &g->runs[i];
    return NULL;
}

/* A place for the run that is being collected: an unused one, or that of the run which was used
 * longest ago. */
static graph_run *place_of_run(kiln_cuda_graphs *g)
{
    graph_run *oldest = &g->runs[0];
    for (size_t i = 1; i < MOST_RUNS; i++)
        if (g->runs[i].used < oldest->used)
            oldest = &g->runs[i];
    if (oldest->function != NULL)
        note_graph(g, KILN_GRAPH_DROPPED);
    drop_graph_run(g->device, oldest);
    oldest->function = g->now.function;
    memcpy(oldest->symbols, g->symbols, sizeof g->symbols);
    return oldest;
}

/* The place of the part that is being collected; NULL with a sentence. */
static graph_part *place_of_part(kiln_cuda_graphs *g)
{
    if (g->run == NULL)
        g->run = place_of_run(g);
    graph_run *const run = g->run;
    run->used = ++g->clock;
    if (g->part >= run->n_parts) {
        const size_t wanted = g->part + 1;
        graph_part *const parts = realloc(run->parts, wanted * sizeof *parts);
        if (parts == NULL) {
            kiln_fail(KILN_ERROR_MEMORY, "out of memory for the graphs of a run");
            return NULL;
        }
        memset(parts + run->n_parts, 0, (wanted - run->n_parts) * sizeof *parts);
        run->parts = parts;
        run->n_parts = wanted;
    }
    return &run->parts[g->part];
}

/* Make the part's graph of the draft, whose memory it takes over. */
static int replace_part(kiln_cuda_graphs *g, graph_part *part)
{
    drop_graph_part(g->device, part);
    *part = g->draft;
    memset(&g->draft, 0, sizeof g->draft);
    const int code = make_graph(g, part);
    if (code == KILN_OK)
        note_graph(g, KILN_GRAPH_MADE);
    return code;
}

/* ---- a run --------------------------------------------------------------------------------- */

int kiln_cuda_graphs_begin(kiln_cuda_graphs **graphs, kiln_cuda_device *device,
                           const kiln_graph_run *run)
{
    if (*graphs == NULL && (*graphs = calloc(1, sizeof **graphs)) == NULL)
        return kiln_fail(KILN_ERROR_MEMORY, "out of memory for graphs");
    kiln_cuda_graphs *const g = *graphs;
    g->device = device;
    g->now = *run;
    memset(g->symbols, 0, sizeof g->symbols);
    memcpy(g->symbols, run->symbols, (size_t)run->function->n_symbols * sizeof *g->symbols);
    g->part = 0;
    g->draft.n_nodes = 0; /* of a run that has failed */
    g->draft.n_words = 0;
    g->run = find_graph_run(g);
    return KILN_OK;
}

/* A launch or copy by itself. */
static int submit_single(const kiln_cuda_graphs *g, CUstream stream)
{
    void *values[KILN_MAX_DEVICE_PARAMS];
    const graph_node *const node = &g->draft.nodes[0];
    note_graph(g, KILN_GRAPH_SINGLE);
    if (node->described != NULL) {
        const kiln_cuda_launch launch = launch_of(&g->draft, node, values);
        return kiln_cuda_launch_now(g->device, &launch, stream);
    }
    const uint64_t *const at = g->draft.words + node->at;
    const CUresult error = kiln_cu.MemcpyDtoDAsync((CUdeviceptr)at[0], (CUdeviceptr)at[1],
                                                   (size_t)at[2], stream);
    return kiln_cuda_check(g->device, error, KILN_ERROR_LAUNCH, "a copy on the device");
}

static int submit_graph(kiln_cuda_graphs *g, CUstream stream)
{
    char what[100];
    graph_part *const part = place_of_part(g);
    if (part == NULL)
        return KILN_ERROR_MEMORY;
    int needs_another = !has_nodes_of(part, &g->draft);
    int code = needs_another ? KILN_OK : update_graph(g, part, &needs_another);
    if (needs_another)
        code = replace_part(g, part);
    if (code == KILN_OK) {
        snprintf(what, sizeof what, "the launch of a graph for %.60s", g->now.function->name);
        code = kiln_cuda_check(g->device, kiln_cu_graph.GraphLaunch(part->exec, stream),
                               KILN_ERROR_LAUNCH, what);
    }
    if (code == KILN_OK)
        note_graph(g, KILN_GRAPH_LAUNCHED);
    else
        drop_graph_part(g->device, part); /* what of it holds is not known */
    return code;
}

int kiln_cuda_graphs_submit(kiln_cuda_graphs *g, CUstream stream)
{
    if (g->draft.n_nodes == 0)
        return KILN_OK;
    if (g->part > 0)
        note_graph(g, KILN_GRAPH_HOST);
    const int code = g->draft.n_nodes == 1 ? submit_single(g, stream) : submit_graph(g, stream);
    g->part++;
    g->draft.n_nodes = 0;
    g->draft.n_words = 0;
    return code;
}

void kiln_cuda_graphs_free(kiln_cuda_graphs *g)
{
    if (g == NULL)
        return;
    for (size_t i = 0; i < MOST_RUNS; i++)
        drop_graph_run(g->device, &g->runs[i]);
    free(g->draft.nodes);
    free(g->draft.words);
    free(g);
}
