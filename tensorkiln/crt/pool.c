/* The built-in thread pool, for callers: publishing jobs. pool.h describes its data and how it is
 * shared by libraries.
 *
 * A job is published under a sequence number, which is odd while the job is being written. Its loop
 * is cut into chunks that threads claim: the caller and even workers from the front, odd workers
 * from the back, so that two threads of equal speed run one contiguous half each. A claim succeeds
 * only with the job's own sequence number, and the caller waits for every chunk that a worker has
 * claimed. So a job cannot change while a worker takes part in it, nor can its library be unloaded.
 * A worker that is asleep or descheduled claims nothing and delays no other one. Counters are never
 * reset, which avoids ABA problems for readers that are late. */
#include "pool.h"

#define CHUNKS_PER_THREAD 8

static int start_worker(kiln_pool *pool, uint32_t number)
{
    kiln_worker *const worker = &pool->worker[number];
    worker->pool = pool;
    worker->left = NULL;
    STORE(worker->thread, 0); /* until it runs: the worker stores its own number */
    worker->number = number;
    worker->seen = 0; /* below every ticket, so that a job published before it runs is new to it */
    ADD(kiln_this_home.residents, 1);
    STORE(worker->exists, 1);
    if (kiln_os_start_thread(kiln_this_home.entry, worker))
        return 1;
    STORE(worker->exists, 0);
    SUB(kiln_this_home.residents, 1);
    return 0;
}

/* Start workers until there are `count`, or fewer if the system starts no more. Only the thread that
 * has set pool->busy calls this. Workers inherit the floating-point state of this thread: the usual
 * one, whatever the caller's is. */
static void start_workers(kiln_pool *pool, uint32_t count)
{
    const uint32_t joined = LOAD(pool->joined);
    uint32_t ready = 0;
    const kiln_float_state state = kiln_get_float_state();
    kiln_set_float_state(KILN_FLOAT_USUAL);
    while (ready < MAX_WORKERS && (LOAD(pool->worker[ready + 1].exists) ||
                                   (ready < count && start_worker(pool, ready + 1))))
        ready++;
    kiln_set_float_state(state);
    pool->ready = ready;
    pool->known_joined = joined; /* as read above: a worker that has left since is replaced next time */
}

/* Publish a job; return its ticket. */
static uint32_t publish(kiln_pool *pool, const kiln_job *job)
{
    const uint32_t ticket = ADD(pool->sequence, 1) + 1;
    STORE(pool->job.home, job->home);
    STORE(pool->job.caller, job->caller);
    STORE(pool->job.body, job->body);
    STORE(pool->job.closure, job->closure);
    STORE(pool->job.n, job->n);
    STORE(pool->job.chunks, job->chunks);
    STORE(pool->job.threads, job->threads);
    STORE(pool->claims, (uint64_t)ticket << 32 | job->chunks);
    STORE(pool->sequence, ticket);
    if (LOAD(pool->sleepers) != 0)
        kiln_ring(pool);
    return ticket;
}

static void await_workers(kiln_pool *pool)
{
    for (;;) {
        const uint32_t value = LOAD(pool->arrived);
        if (value == pool->expected)
            return;
        if (kiln_spin(&pool->arrived, value))
            continue;
        STORE(pool->caller_sleeps, 1);
        if (LOAD(pool->arrived) == value)
            kiln_os_wait(&pool->arrived, value);
        STORE(pool->caller_sleeps, 0);
    }
}

void kiln_pool_for(kiln_body body, void *closure, int64_t n, int threads)
{
    uint32_t count = (uint32_t)(threads > MAX_WORKERS ? MAX_WORKERS + 1 : threads);
    if (n < count)
        count = (uint32_t)n;
    kiln_pool *const pool = count < 2 ? NULL : kiln_shared_pool();
    /* A nested loop, or one while another caller has the pool, runs in this thread alone. */
    if (pool == NULL || LOAD(pool->busy) ||
        __atomic_exchange_n(&pool->busy, 1, __ATOMIC_SEQ_CST) != 0) {
        if (n > 0)
            body(closure, 0, n);
        return;
    }
    if (pool->ready < count - 1 || pool->known_joined != LOAD(pool->joined))
        start_workers(pool, count - 1);
    if (count > pool->ready + 1)
        count = pool->ready + 1;
    uint32_t chunks = count * CHUNKS_PER_THREAD;
    if (n < chunks)
        chunks = (uint32_t)n;
    const kiln_job job = {&kiln_this_home, kiln_os_this_thread(), body, closure, n, chunks, count};
    const uint32_t ticket = publish(pool, &job);
    uint32_t mine = 0;
    int32_t chunk;
    while ((chunk = kiln_claim(pool, ticket, 0)) >= 0) {
        kiln_run_chunk(&job, (uint32_t)chunk);
        mine++;
    }
    pool->expected += chunks - mine;
    await_workers(pool);
    STORE(pool->job.home, NULL);
    STORE(pool->busy, 0);
}
