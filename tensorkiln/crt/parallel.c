/* kiln_parallel_for(), which kernels call: chooses the number of threads and the pool. */
#include "crt.h"

static int library_threads;            /* kiln_set_num_threads; 0: default */
static const kiln_pool_api *host_pool; /* NULL: the built-in one */

KILN_API void kiln_set_num_threads(int threads)
{
    const int most = threads > KILN_MOST_THREADS ? KILN_MOST_THREADS : threads;
    __atomic_store_n(&library_threads, most > 0 ? most : 0, __ATOMIC_RELAXED);
}

KILN_API int kiln_get_num_threads(void)
{
    const int threads = __atomic_load_n(&library_threads, __ATOMIC_RELAXED);
    return threads > 0 ? threads : kiln_default_threads();
}

int kiln_limit_threads(int threads)
{
    kiln_thread *const t = kiln_this_thread();
    if (t == NULL)
        return 0; /* the call fails before it runs a loop */
    const int before = t->threads;
    t->threads = threads;
    return before;
}

KILN_API void kiln_use_pool(const kiln_pool_api *pool)
{
    const int usable =
        pool != NULL && pool->size >= sizeof *pool && pool->parallel_for != NULL;
    __atomic_store_n(&host_pool, usable ? pool : NULL, __ATOMIC_RELEASE);
}

typedef struct stateful_loop {
    kiln_body body;
    void *closure;
    kiln_float_state state;
} stateful_loop;

/* The body of a loop that computes as the thread that called it, in whichever thread of a pool. */
static void run_in_state(void *closure, int64_t begin, int64_t end)
{
    const stateful_loop *const loop = closure;
    const kiln_float_state before = kiln_get_float_state();
    const int is_same = ((before ^ loop->state) & ~KILN_FLOAT_RAISED) == 0;
    if (!is_same)
        kiln_set_float_state(loop->state);
    loop->body(loop->closure, begin, end);
    if (!is_same)
        kiln_set_float_state(before);
}

void kiln_parallel_for(kiln_body body, void *closure, int64_t n)
{
    const kiln_thread *const t = kiln_this_thread(); /* NULL: one of a pool */
    const int threads = t == NULL ? 1 : t->threads > 0 ? t->threads : kiln_get_num_threads();
    if (n <= 1 || threads == 1) {
        if (n > 0)
            body(closure, 0, n);
        return;
    }
    stateful_loop loop = {body, closure, kiln_get_float_state()};
    const kiln_pool_api *const pool = __atomic_load_n(&host_pool, __ATOMIC_ACQUIRE);
    if (pool != NULL)
        pool->parallel_for(run_in_state, &loop, n, threads);
    else
        kiln_pool_for(run_in_state, &loop, n, threads);
}
