/* The built-in thread pool.
 *
 * A job is published under a sequence number that is odd while the job is being written. Its loop
 * is cut into chunks that threads claim: the caller and even workers from the front, odd workers
 * from the back, so two threads that keep pace each run one contiguous half. A claim succeeds only
 * under the job's own sequence number, and the caller waits for every chunk claimed by a worker,
 * so a job cannot change under a worker that takes part. A worker that is asleep or descheduled
 * claims nothing and delays nobody. No counter is ever reset: a late reader cannot be fooled.
 *
 * Who waits spins for some 200 microseconds, then sleeps in the kernel: short loops follow each
 * other fast, and an idle process uses no CPU. To wake a worker costs its caller 5 microseconds and
 * comes 15 to 50 late; a loop that finds it spinning costs less than one. */
#include "crt.h"
#include <pthread.h>
#include <signal.h>
#include <time.h>

#define SPIN_NANOSECONDS 200000
#define MAX_WORKERS 1023
#define CHUNKS_PER_THREAD 8

#define LOAD(x) __atomic_load_n(&(x), __ATOMIC_SEQ_CST)
#define STORE(x, v) __atomic_store_n(&(x), (v), __ATOMIC_SEQ_CST)

static struct {
    kiln_body body;
    void *closure;
    int64_t n;
    uint32_t chunks;  /* pieces of the loop */
    uint32_t threads; /* workers 1 .. threads - 1 may take part */
} job;

/* Claims of the current job: its sequence number, chunks taken from the front, first of the chunks
 * taken from the back. */
static uint64_t claims __attribute__((aligned(64)));

static uint32_t sequence __attribute__((aligned(64))); /* odd: job is being written */
static uint32_t sleepers;                              /* workers asleep on `sequence` */
static uint32_t arrived __attribute__((aligned(64)));  /* chunks finished by workers, ever */
static uint32_t caller_sleeps;
static uint32_t expected;                              /* value of arrived when a job is done */
static uint32_t busy;                                  /* a caller owns the pool */
static uint32_t workers;                               /* threads that exist */
static __thread int inside;                            /* this thread runs a chunk right now */

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

/* Spins while *word == value, for a while; 1 when it changed. */
static int spin(const uint32_t *word, uint32_t value)
{
    const int64_t end = now() + SPIN_NANOSECONDS;
    do {
        for (int i = 0; i < 32; i++) {
            if (__atomic_load_n(word, __ATOMIC_ACQUIRE) != value)
                return 1;
            relax();
        }
    } while (now() < end);
    return 0;
}

/* One of `chunks` even parts of 0..n: the first n % chunks parts get one more. */
static void run_chunk(kiln_body body, void *closure, int64_t n, uint32_t chunks, uint32_t chunk)
{
    const int64_t each = n / chunks, more = n % chunks;
    const int64_t begin = chunk * each + (chunk < more ? chunk : more);
    const int64_t end = begin + each + (chunk < more);
    inside = 1;
    body(closure, begin, end);
    inside = 0;
}

/* The next chunk of the job published as `ticket`, or -1: none is left, or the job is over. */
static int32_t claim(uint32_t ticket, int from_back)
{
    uint64_t now = LOAD(claims);
    for (;;) {
        const uint32_t front = (uint32_t)(now >> 16) & 0xffff, back = (uint32_t)now & 0xffff;
        if ((uint32_t)(now >> 32) != ticket || front >= back)
            return -1;
        const uint64_t next = from_back ? now - 1 : now + 0x10000;
        if (__atomic_compare_exchange_n(&claims, &now, next, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            return (int32_t)(from_back ? back - 1 : front);
    }
}

static void await_job(uint32_t seen)
{
    if (spin(&sequence, seen))
        return;
    __atomic_add_fetch(&sleepers, 1, __ATOMIC_SEQ_CST);
    while (LOAD(sequence) == seen)
        kiln_wait(&sequence, seen);
    __atomic_sub_fetch(&sleepers, 1, __ATOMIC_SEQ_CST);
}

static void *work(void *argument)
{
    const uint32_t number = (uint32_t)(uintptr_t)argument;
    uint32_t seen = 0; /* even and below every published job: a job posted before we ran counts */
    for (;;) {
        const uint32_t ticket = LOAD(sequence);
        if (ticket == seen) {
            await_job(seen);
            continue;
        }
        if (ticket & 1) {
            relax();
            continue;
        }
        const kiln_body body = LOAD(job.body);
        void *const closure = LOAD(job.closure);
        const int64_t n = LOAD(job.n);
        const uint32_t chunks = LOAD(job.chunks), threads = LOAD(job.threads);
        if (LOAD(sequence) != ticket)
            continue;
        seen = ticket;
        if (number >= threads)
            continue;
        int32_t chunk;
        while ((chunk = claim(ticket, number & 1)) >= 0) {
            run_chunk(body, closure, n, chunks, (uint32_t)chunk);
            __atomic_add_fetch(&arrived, 1, __ATOMIC_SEQ_CST);
            if (LOAD(caller_sleeps))
                kiln_wake(&arrived);
        }
    }
    return NULL;
}

/* After fork() the child has no workers; it starts its own when it needs them. */
static void forget_workers(void)
{
    workers = 0;
    sleepers = 0;
    caller_sleeps = 0;
    sequence = (sequence + 1) & ~(uint32_t)1;
    job.threads = 0;
    claims = 0;
    expected = arrived;
    busy = 0;
    inside = 0;
}

#if defined(__GLIBC__)
/* pthread_atfork lives in a static part of glibc that we do not link; this is what it calls. Weak,
 * for musl has only the other name. */
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *)
    __attribute__((weak));
#endif

static void watch_fork(void)
{
    static int watching;
    if (watching)
        return;
    watching = 1;
#if defined(__GLIBC__)
    if (__register_atfork != NULL)
        __register_atfork(NULL, NULL, forget_workers, NULL);
#else
    pthread_atfork(NULL, NULL, forget_workers);
#endif
}

/* Starts threads until there are `count`; fewer when the system refuses. Only the owner of the
 * pool calls this. Workers take no signals: those are the host's business. */
static void start_workers(uint32_t count)
{
    sigset_t all, before;
    watch_fork();
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    while (workers < count) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, (void *)(uintptr_t)(workers + 1)) != 0)
            break;
        pthread_detach(thread);
        workers++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Makes the job known and returns its ticket. */
static uint32_t publish(kiln_body body, void *closure, int64_t n, uint32_t chunks, uint32_t threads)
{
    const uint32_t ticket = __atomic_add_fetch(&sequence, 1, __ATOMIC_SEQ_CST) + 1;
    STORE(job.body, body);
    STORE(job.closure, closure);
    STORE(job.n, n);
    STORE(job.chunks, chunks);
    STORE(job.threads, threads);
    STORE(claims, (uint64_t)ticket << 32 | chunks);
    STORE(sequence, ticket);
    if (LOAD(sleepers) != 0)
        kiln_wake(&sequence);
    return ticket;
}

static void await_workers(void)
{
    for (;;) {
        const uint32_t value = LOAD(arrived);
        if (value == expected)
            return;
        if (spin(&arrived, value))
            continue;
        STORE(caller_sleeps, 1);
        if (LOAD(arrived) == value)
            kiln_wait(&arrived, value);
        STORE(caller_sleeps, 0);
    }
}

static void parallel_for(kiln_body body, void *closure, int64_t n, int threads)
{
    uint32_t count = (uint32_t)(threads > MAX_WORKERS ? MAX_WORKERS + 1 : threads);
    if (n < count)
        count = (uint32_t)n;
    /* A nested loop, or one beside another caller's, runs here and now. */
    if (count < 2 || inside || __atomic_exchange_n(&busy, 1, __ATOMIC_SEQ_CST) != 0) {
        if (n > 0)
            body(closure, 0, n);
        return;
    }
    if (workers < count - 1)
        start_workers(count - 1);
    if (count > workers + 1)
        count = workers + 1;
    uint32_t chunks = count * CHUNKS_PER_THREAD;
    if (n < chunks)
        chunks = (uint32_t)n;
    const uint32_t ticket = publish(body, closure, n, chunks, count);
    uint32_t mine = 0;
    int32_t chunk;
    while ((chunk = claim(ticket, 0)) >= 0) {
        run_chunk(body, closure, n, chunks, (uint32_t)chunk);
        mine++;
    }
    expected += chunks - mine;
    await_workers();
    STORE(busy, 0);
}

KILN_API const kiln_pool_api kiln_pool_v1 = {1, sizeof(kiln_pool_api), parallel_for};
