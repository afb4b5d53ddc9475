/* kiln_parallel_for: what kernels call. Chooses the number of threads and the pool.
 *
 * Several libraries in one process must not start a pool each. All of them take the pool of the
 * library that was loaded first, so they agree without writing anything down; the chosen one is
 * pinned in memory, for its threads run its code. */
#include "crt.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#if defined(__linux__)
#include <link.h>
#endif

static int library_threads;            /* kiln_set_num_threads; 0: default */
static __thread int call_threads;      /* of the executor that runs in this thread; 0: library's */
static const kiln_pool_api *chosen;

KILN_API void kiln_set_num_threads(int threads)
{
    __atomic_store_n(&library_threads, threads > 0 ? threads : 0, __ATOMIC_RELAXED);
}

KILN_API int kiln_get_num_threads(void)
{
    const int threads = __atomic_load_n(&library_threads, __ATOMIC_RELAXED);
    return threads > 0 ? threads : kiln_default_threads();
}

int kiln_limit_threads(int threads)
{
    const int before = call_threads;
    call_threads = threads;
    return before;
}

KILN_API void kiln_use_pool(const kiln_pool_api *pool)
{
    __atomic_store_n(&chosen, pool, __ATOMIC_RELEASE);
}

#if defined(__linux__)
typedef struct names {
    char *text; /* NUL after each name */
    size_t used, room;
} names;

static int add_name(struct dl_phdr_info *info, size_t size, void *context)
{
    names *list = context;
    (void)size;
    if (info->dlpi_name == NULL || info->dlpi_name[0] == 0)
        return 0;
    const size_t length = strlen(info->dlpi_name) + 1;
    if (list->used + length > list->room) {
        const size_t room = 2 * list->room + length + 4096;
        char *text = realloc(list->text, room);
        if (text == NULL)
            return 1;
        list->text = text;
        list->room = room;
    }
    memcpy(list->text + list->used, info->dlpi_name, length);
    list->used += length;
    return 0;
}

/* The pool of one loaded file, pinned; NULL when it has none. */
static const kiln_pool_api *pool_of(const char *file)
{
    void *handle = dlopen(file, RTLD_LAZY | RTLD_NOLOAD);
    if (handle == NULL)
        return NULL;
    const kiln_pool_api *pool = dlsym(handle, "kiln_pool_v1");
    Dl_info where;
    if (pool != NULL && (pool->version != 1 || dladdr(pool, &where) == 0 ||
                         strcmp(where.dli_fname, file) != 0))
        pool = NULL; /* another version, or found in a dependency: its own turn comes */
    if (pool != NULL) {
        void *pinned = dlopen(file, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
        if (pinned != NULL)
            dlclose(pinned);
    }
    dlclose(handle);
    return pool;
}

static const kiln_pool_api *find_pool(void)
{
    names list = {NULL, 0, 0};
    const kiln_pool_api *pool = NULL;
    /* Names first, dlopen after: the walk holds the loader's lock. Load order is list order. */
    dl_iterate_phdr(add_name, &list);
    for (size_t at = 0; at < list.used && pool == NULL; at += strlen(list.text + at) + 1)
        pool = pool_of(list.text + at);
    free(list.text);
    return pool != NULL ? pool : &kiln_pool_v1;
}
#else
static const kiln_pool_api *find_pool(void)
{
    return &kiln_pool_v1;
}
#endif

void kiln_parallel_for(kiln_body body, void *closure, int64_t n)
{
    const int threads = call_threads > 0 ? call_threads : kiln_get_num_threads();
    if (n <= 1 || threads == 1) {
        if (n > 0)
            body(closure, 0, n);
        return;
    }
    const kiln_pool_api *pool = __atomic_load_n(&chosen, __ATOMIC_ACQUIRE);
    if (pool == NULL) {
        pool = find_pool();
        __atomic_store_n(&chosen, pool, __ATOMIC_RELEASE);
    }
    pool->parallel_for(body, closure, n, threads);
}
