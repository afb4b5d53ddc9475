/* The built-in thread pool: publishing and running jobs. pool.h describes its data and how it is
 * shared by libraries.
 *
 * A job is published under a sequence number, which is odd while the job is being written. Its loop
 * is cut into chunks that threads claim: the caller and even workers from the front, odd workers
 * from the back, so that two threads of equal speed run one contiguous half each. A claim succeeds
 * only with the job's own sequence number, and the caller waits for every chunk that a worker has
 * claimed. So a job cannot change while a worker takes part in it, nor can its library be unloaded.
 * A worker that is asleep or descheduled claims nothing and delays no other one. Counters are never
 * reset, which avoids ABA problems for readers that are late.
 *
 * A waiting thread spins for 200 microseconds, then sleeps on a futex: loops often follow each
 * other closely, and an idle process should use no CPU. Waking a worker costs the caller 5
 * microseconds, and the worker starts 15 to 50 microseconds later; for a spinning worker both are
 * below one. */
#include "pool.h"
#include <signal.h>
#include <time.h>

#define SPIN_NANOSECONDS 200000
#define CHUNKS_PER_THREAD 8

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __asm__ volatile("pause");
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Spin while *word == value, up to SPIN_NANOSECONDS; return 1 if it changed. */
static int spin(const uint32_t *word, uint32_t value)
{
    const int64_t end = now() + SPIN_NANOSECONDS;
    do {
        for (int i = 0; i < 32; i++) {
            if (__atomic_load_n(word, __ATOMIC_ACQUIRE) != value)
                return 1;
            relax();
        }
    } while (now() < end && !__atomic_load_n(&kiln_this_home.closing, __ATOMIC_RELAXED));
    return 0;
}

/* Run one of `chunks` parts of 0..n. Their sizes differ by at most one; the first n % chunks parts
 * are the larger ones. */
static void run_chunk(const kiln_job *job, uint32_t chunk)
{
    const int64_t each = job->n / job->chunks, more = job->n % job->chunks;
    const int64_t begin = chunk * each + (chunk < more ? chunk : more);
    job->body(job->closure, begin, begin + each + (chunk < more));
}

/* Claim a chunk of the job published as `ticket`; return -1 if none is left or the job is over. */
static int32_t claim(kiln_pool *pool, uint32_t ticket, int from_back)
{
    uint64_t seen = LOAD(pool->claims);
    for (;;) {
        const uint32_t front = (uint32_t)(seen >> 16) & 0xffff, back = (uint32_t)seen & 0xffff;
        if ((uint32_t)(seen >> 32) != ticket || front >= back)
            return -1;
        const uint64_t next = from_back ? seen - 1 : seen + 0x10000;
        if (__atomic_compare_exchange_n(&pool->claims, &seen, next, 0, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST))
            return (int32_t)(from_back ? back - 1 : front);
    }
}

/* ---- workers ------------------------------------------------------------------------------ */

/* Wake all workers that sleep in await_job(). */
static void ring(kiln_pool *pool)
{
    ADD(pool->wake_count, 1);
    kiln_wake(&pool->wake_count);
}

static void await_job(kiln_pool *pool, uint32_t seen)
{
    if (spin(&pool->sequence, seen))
        return;
    ADD(pool->sleepers, 1);
    for (;;) {
        const uint32_t wakes = LOAD(pool->wake_count);
        if (LOAD(pool->sequence) != seen || LOAD(kiln_this_home.closing))
            break;
        kiln_wait(&pool->wake_count, wakes);
    }
    SUB(pool->sleepers, 1);
}

/* Count this thread out of `home`. Right after, the home's library may be unmapped: kiln_wake()
 * uses only its address. */
static void leave(kiln_pool *pool, kiln_home *home)
{
    SUB(home->residents, 1);
    if (LOAD(pool->closings))
        kiln_wake(&home->residents);
}

/* End a worker whose home is being unloaded: queue it to be joined. */
static kiln_thread_start end(kiln_worker *self)
{
    self->next = LOAD(kiln_this_home.ended);
    while (!__atomic_compare_exchange_n(&kiln_this_home.ended, &self->next, self, 0,
                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ;
    leave(self->pool, &kiln_this_home);
    return NULL;
}

static kiln_job read_job(const kiln_pool *pool)
{
    kiln_job job;
    job.home = LOAD(pool->job.home);
    job.caller = LOAD(pool->job.caller);
    job.body = LOAD(pool->job.body);
    job.closure = LOAD(pool->job.closure);
    job.n = LOAD(pool->job.n);
    job.chunks = LOAD(pool->job.chunks);
    job.threads = LOAD(pool->job.threads);
    return job;
}

/* Run a chunk that is claimed already, and then all that this worker can claim. */
static void take_part(kiln_worker *self, const kiln_job *job, int32_t chunk)
{
    kiln_pool *const pool = self->pool;
    do {
        run_chunk(job, (uint32_t)chunk);
        ADD(pool->arrived, 1);
        if (LOAD(pool->caller_sleeps))
            kiln_wake(&pool->arrived);
    } while ((chunk = claim(pool, self->seen, self->number & 1)) >= 0);
}

kiln_thread_start kiln_work(kiln_worker *self)
{
    kiln_pool *const pool = self->pool;
    if (self->left != NULL) {
        leave(pool, self->left);
        self->left = NULL;
        const kiln_job job = read_job(pool); /* cannot change: its caller waits for our chunk */
        take_part(self, &job, self->chunk);
    }
    for (;;) {
        if (LOAD(kiln_this_home.closing))
            return end(self);
        const uint32_t ticket = LOAD(pool->sequence);
        if (ticket == self->seen) {
            await_job(pool, ticket);
            continue;
        }
        if (ticket & 1) {
            relax();
            continue;
        }
        const kiln_job job = read_job(pool);
        if (LOAD(pool->sequence) != ticket)
            continue;
        self->seen = ticket;
        int32_t chunk;
        if (self->number >= job.threads || (chunk = claim(pool, ticket, self->number & 1)) < 0)
            continue;
        if (job.home == &kiln_this_home) {
            take_part(self, &job, chunk);
            continue;
        }
        /* Move to the job's library, which the claim keeps loaded. This thread is counted as its
         * resident before it is counted out of this library. */
        ADD(job.home->residents, 1);
        self->left = &kiln_this_home;
        self->chunk = chunk;
        return job.home->entry;
    }
}

/* ---- callers ------------------------------------------------------------------------------ */

static int start_worker(kiln_pool *pool, uint32_t number)
{
    kiln_worker *const worker = &pool->worker[number];
    worker->pool = pool;
    worker->left = NULL;
    worker->number = number;
    worker->seen = 0; /* below every ticket, so that a job published before it runs is new to it */
    ADD(kiln_this_home.residents, 1);
    STORE(worker->exists, 1);
    if (pthread_create(&worker->thread, NULL, kiln_this_home.entry, worker) == 0)
        return 1;
    STORE(worker->exists, 0);
    SUB(kiln_this_home.residents, 1);
    return 0;
}

/* Start workers until there are `count`, or fewer if pthread_create() fails. Only the thread that
 * has set pool->busy calls this. Workers block all signals, so that the host's threads handle
 * them. */
static void start_workers(kiln_pool *pool, uint32_t count)
{
    const uint32_t joined = LOAD(pool->joined);
    uint32_t ready = 0;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    while (ready < MAX_WORKERS && (LOAD(pool->worker[ready + 1].exists) ||
                                   (ready < count && start_worker(pool, ready + 1))))
        ready++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
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
        ring(pool);
    return ticket;
}

static void await_workers(kiln_pool *pool)
{
    for (;;) {
        const uint32_t value = LOAD(pool->arrived);
        if (value == pool->expected)
            return;
        if (spin(&pool->arrived, value))
            continue;
        STORE(pool->caller_sleeps, 1);
        if (LOAD(pool->arrived) == value)
            kiln_wait(&pool->arrived, value);
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
    const kiln_job job = {&kiln_this_home, pthread_self(), body, closure, n, chunks, count};
    const uint32_t ticket = publish(pool, &job);
    uint32_t mine = 0;
    int32_t chunk;
    while ((chunk = claim(pool, ticket, 0)) >= 0) {
        run_chunk(&job, (uint32_t)chunk);
        mine++;
    }
    pool->expected += chunks - mine;
    await_workers(pool);
    STORE(pool->job.home, NULL);
    STORE(pool->busy, 0);
}
