/* How the libraries of a process find their common thread pool, and how a library leaves it. */
#include "pool.h"

kiln_pool *kiln_the_pool; /* NULL: this library has not been used */

KILN_OS_PUBLISH(POOL_PROTOCOL, kiln_the_pool)

/* What is done under the dynamic linker's lock: its argument and result. */
typedef struct pool_errand {
    void (*run)(struct pool_errand *);
    kiln_pool *pool;
    int is_done;
} pool_errand;

static void run_pool_errand(void *context)
{
    pool_errand *const errand = context;
    errand->run(errand);
    errand->is_done = 1;
}

/* Set in a child of fork() if another thread of the parent was in run_alone(): it may have held the
 * dynamic linker's lock, which then is never released in the child. This library no longer takes that
 * lock, and uses a pool of its own. */
static uint32_t is_stuck;

/* Run an errand while no other library of the process runs one or is unloaded. To exclude deadlocks,
 * errands take no other lock, and use no thread-local variable, as its first use may take one. */
static void run_alone(pool_errand *errand)
{
    if (!LOAD(is_stuck))
        kiln_os_under_loaders_lock(run_pool_errand, errand);
    if (!errand->is_done)
        errand->run(errand);
}

/* ---- joining the pool --------------------------------------------------------------------- */

/* A child of fork() has no workers; it starts its own when it needs them. The first library that
 * gets here resets the pool. */
static const kiln_lock *forget_workers(void)
{
    kiln_pool *const pool = LOAD(kiln_the_pool);
    if (LOAD(kiln_pool_lock) != 0)
        STORE(is_stuck, 1);
    kiln_this_home.residents = 0;
    kiln_this_home.ended = NULL;
    if (pool == NULL || pool->process == kiln_os_process_id())
        return NULL;
    pool->process = kiln_os_process_id();
    for (int i = 1; i <= MAX_WORKERS; i++)
        if (pool->worker[i].exists)
            pool->worker[i].exists = 0;
    pool->ready = 0;
    pool->sleepers = 0;
    pool->closings = 0;
    pool->caller_sleeps = 0;
    pool->sequence = (pool->sequence + 1) & ~(uint32_t)1;
    pool->job.home = NULL;
    pool->job.threads = 0;
    pool->claims = 0;
    pool->expected = pool->arrived;
    pool->busy = 0;
    return NULL;
}

/* A pool is pages of its own: most of it is room for workers that are never started, whose pages are
 * then never touched; and it is not freed at exit, which a leak checker would report for malloc(). */
static kiln_pool *new_pool(void)
{
    kiln_pool *const pool = kiln_os_map(sizeof *pool);
    if (pool != NULL)
        pool->process = kiln_os_process_id();
    return pool;
}

static void free_pool(kiln_pool *pool)
{
    if (pool != NULL)
        kiln_os_unmap(pool, sizeof *pool);
}

static void join_pool(pool_errand *errand)
{
    kiln_pool *const shared = LOAD(is_stuck) ? NULL : kiln_os_published(POOL_PROTOCOL);
    kiln_pool *const pool = shared != NULL ? shared : errand->pool;
    ADD(pool->users, 1);
    STORE(kiln_the_pool, pool);
    errand->pool = shared != NULL ? errand->pool : NULL; /* for the caller to free */
}

kiln_pool *kiln_shared_pool(void)
{
    if (LOAD(kiln_the_pool) != NULL)
        return LOAD(kiln_the_pool);
    kiln_at_fork(KILN_FORK_WORKERS, forget_workers);
    kiln_take_lock(&kiln_pool_lock);
    pool_errand errand = {join_pool, NULL, 0};
    if (LOAD(kiln_the_pool) == NULL && (errand.pool = new_pool()) != NULL) {
        run_alone(&errand);
        free_pool(errand.pool);
    }
    kiln_give_lock(&kiln_pool_lock);
    return LOAD(kiln_the_pool);
}

/* ---- leaving the pool --------------------------------------------------------------------- */

static void leave_pool(pool_errand *errand)
{
    kiln_pool *const pool = LOAD(kiln_the_pool);
    errand->pool = SUB(pool->users, 1) == 0 ? pool : NULL; /* for the caller to free */
    STORE(kiln_the_pool, NULL);
}

/* Whether this thread is running a parallel loop of this library. */
static int is_inside(kiln_pool *pool)
{
    const uintptr_t self = kiln_os_this_thread();
    int inside = LOAD(pool->job.caller) == self;
    for (int i = 1; i <= MAX_WORKERS && !inside; i++)
        inside = LOAD(pool->worker[i].exists) && LOAD(pool->worker[i].thread) == self;
    return inside && LOAD(pool->job.home) == &kiln_this_home;
}

/* Wait until no worker executes code of this library any more, and join those that have ended. */
static void see_them_off(kiln_pool *pool)
{
    for (uint32_t left; (left = LOAD(kiln_this_home.residents)) != 0;)
        kiln_os_wait(&kiln_this_home.residents, left);
    kiln_worker *ended = __atomic_exchange_n(&kiln_this_home.ended, NULL, __ATOMIC_SEQ_CST);
    while (ended != NULL) {
        kiln_worker *const worker = ended;
        ended = worker->next;
        kiln_os_join_thread(LOAD(worker->thread));
        STORE(worker->exists, 0);
        ADD(pool->joined, 1);
    }
}

/* At exit() other threads may still be calling this library. Their loops continue: nothing that
 * they use is freed, and nothing waits for them. (kiln_is_exiting() may be 0 at exit(), if the
 * first loop of another thread registered the handler after exit() began; `running` covers that
 * case.) */
void kiln_leave_pool(int at_exit)
{
    kiln_pool *const pool = LOAD(kiln_the_pool);
    if (pool == NULL)
        return;
    STORE(kiln_this_home.closing, 1);
    const int running = LOAD(pool->job.home) == &kiln_this_home;
    if (running && !at_exit && is_inside(pool)) /* this thread executes code that would be unmapped */
        kiln_os_abort("tensorkiln: a library was unloaded while one of its functions was running\n");
    ADD(pool->closings, 1);
    ADD(pool->wake_count, 1);
    kiln_os_wake(&pool->wake_count);
    if (!running)
        see_them_off(pool);
    SUB(pool->closings, 1);
    if (at_exit || running)
        return;
    pool_errand errand = {leave_pool, NULL, 0};
    run_alone(&errand);
    free_pool(errand.pool);
}
