/* Memory for intermediate results: one block per executor, which only grows. Large blocks are in huge
 * pages, which avoids most TLB misses. */
#include "crt.h"
#include "os.h"
#include <stdlib.h>

#define WHOLE_PAGES ((size_t)64 << 10) /* a multiple of the page size of every system */

static int out_of_memory(int64_t bytes)
{
    return kiln_fail(KILN_ERROR_MEMORY, "out of memory: could not get %lld bytes of workspace",
                     (long long)bytes);
}

static int map_block(kiln_workspace *workspace, size_t bytes)
{
    const size_t size = (bytes + WHOLE_PAGES - 1) & ~(WHOLE_PAGES - 1);
    char *const block = kiln_os_map_huge(size);
    if (block == NULL)
        return out_of_memory((int64_t)bytes);
    workspace->block = block;
    workspace->mapped = size;
    workspace->base = block;
    workspace->bytes = (int64_t)size;
    return KILN_OK;
}

static int grow(kiln_workspace *workspace, int64_t bytes)
{
    if (bytes < 0 || (uint64_t)bytes > SIZE_MAX - 2 * KILN_OS_HUGE_PAGE)
        return out_of_memory(bytes);
    kiln_workspace_release(workspace); /* first, as its contents are not needed any more */
    if ((size_t)bytes >= 2 * KILN_OS_HUGE_PAGE)
        return map_block(workspace, (size_t)bytes);
    const size_t size = ((size_t)bytes + 4095) & ~(size_t)4095;
    workspace->block = malloc(size + 64);
    if (workspace->block == NULL)
        return out_of_memory(bytes);
    workspace->base = (char *)(((uintptr_t)workspace->block + 63) & ~(uintptr_t)63);
    workspace->bytes = (int64_t)size;
    return KILN_OK;
}

int kiln_workspace_reserve(kiln_workspace *workspace, int64_t bytes)
{
    if (bytes < 0 || bytes > workspace->bytes) {
        const int code = grow(workspace, bytes);
        if (code != KILN_OK)
            return code;
    }
    if (bytes > workspace->asked)
        __atomic_store_n(&workspace->asked, bytes, __ATOMIC_RELAXED); /* hosts read it any time */
    return KILN_OK;
}

void kiln_workspace_release(kiln_workspace *workspace)
{
    if (workspace->mapped != 0)
        kiln_os_unmap(workspace->block, workspace->mapped);
    else
        free(workspace->block);
    workspace->base = NULL;
    workspace->block = NULL;
    workspace->bytes = 0;
    workspace->mapped = 0;
}

/* Idle workspaces for calls without an executor: a free list, as long as the most calls that have
 * run at once. */
static kiln_workspace *idle;

kiln_workspace *kiln_workspace_take(void)
{
    kiln_take_lock(&kiln_idle_lock);
    kiln_workspace *workspace = idle;
    if (workspace != NULL)
        __atomic_store_n(&idle, workspace->next, __ATOMIC_RELEASE);
    kiln_give_lock(&kiln_idle_lock);
    if (workspace == NULL) {
        workspace = calloc(1, sizeof *workspace);
        if (workspace == NULL)
            out_of_memory((int64_t)sizeof *workspace);
    }
    return workspace;
}

void kiln_workspace_give(kiln_workspace *workspace)
{
    kiln_take_lock(&kiln_idle_lock);
    workspace->next = idle;
    __atomic_store_n(&idle, workspace, __ATOMIC_RELEASE);
    kiln_give_lock(&kiln_idle_lock);
}

void kiln_release_idle(void (*free_session)(struct kiln_session *session))
{
    kiln_take_lock(&kiln_idle_lock); /* at exit() other threads may be calling this library */
    kiln_workspace *workspace = idle;
    idle = NULL;
    kiln_give_lock(&kiln_idle_lock);
    while (workspace != NULL) {
        kiln_workspace *const next = workspace->next;
        kiln_workspace_release(workspace);
#if defined(KILN_DEVICES)
        free_session(workspace->session);
#else
        (void)free_session;
#endif
        free(workspace);
        workspace = next;
    }
}
