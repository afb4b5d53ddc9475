/* The built-in thread pool.
 *
 * A job is published under a sequence number that is odd while the job is being written. Workers
 * that the job needs run their share and count up `arrived`; the caller waits for them, so the job
 * cannot change under a worker that takes part. Others may read it while it changes, notice by the
 * sequence number, and look again. No counter is ever reset: a late reader cannot be fooled.
 *
 * Who waits spins for some 30 microseconds, then sleeps in the kernel: short loops follow each
 * other fast, and an idle process uses no CPU. */
#include "crt.h"
#include <pthread.h>
#include <signal.h>
#include <time.h>

#define SPIN_NANOSECONDS 30000
#define MAX_WORKERS 1023

#define LOAD(x) __atomic_load_n(&(x), __ATOMIC_SEQ_CST)
#define STORE(x, v) __atomic_store_n(&(x), (v), __ATOMIC_SEQ_CST)

static struct {
    kiln_body body;
    void *closure;
    int64_t n;
    uint32_t parts; /* shares of the loop; share 0 is the caller's, share i worker i's */
} job;

static uint32_t sequence __attribute__((aligned(64))); /* odd: job is being written */
static uint32_t sleepers;                              /* workers asleep on `sequence` */
static uint32_t arrived __attribute__((aligned(64)));  /* shares finished by workers, ever */
static uint32_t caller_sleeps;
static uint32_t expected;                              /* value of arrived when a job is done */
static uint32_t busy;                                  /* a caller owns the pool */
static uint32_t workers;                               /* threads that exist */
static __thread int inside;                            /* this thread runs a share right now */

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

/* The part of 0..n that belongs to one share: the first n % parts shares get one more. */
static void run_share(kiln_body body, void *closure, int64_t n, uint32_t parts, uint32_t share)
{
    const int64_t each = n / parts, more = n % parts;
    const int64_t begin = share * each + (share < more ? share : more);
    const int64_t end = begin + each + (share < more);
    inside = 1;
    if (begin < end)
        body(closure, begin, end);
    inside = 0;
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
    const uint32_t share = (uint32_t)(uintptr_t)argument;
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
        const uint32_t parts = LOAD(job.parts);
        if (LOAD(sequence) != ticket)
            continue;
        seen = ticket;
        if (share >= parts)
            continue;
        run_share(body, closure, n, parts, share);
        __atomic_add_fetch(&arrived, 1, __ATOMIC_SEQ_CST);
        if (LOAD(caller_sleeps))
            kiln_wake(&arrived);
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
    job.parts = 0;
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

static void publish(kiln_body body, void *closure, int64_t n, uint32_t parts)
{
    __atomic_add_fetch(&sequence, 1, __ATOMIC_SEQ_CST);
    STORE(job.body, body);
    STORE(job.closure, closure);
    STORE(job.n, n);
    STORE(job.parts, parts);
    __atomic_add_fetch(&sequence, 1, __ATOMIC_SEQ_CST);
    if (LOAD(sleepers) != 0)
        kiln_wake(&sequence);
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
    uint32_t parts = (uint32_t)(threads > MAX_WORKERS ? MAX_WORKERS + 1 : threads);
    if (n < parts)
        parts = (uint32_t)n;
    /* A nested loop, or one beside another caller's, runs here and now. */
    if (parts < 2 || inside || __atomic_exchange_n(&busy, 1, __ATOMIC_SEQ_CST) != 0) {
        if (n > 0)
            body(closure, 0, n);
        return;
    }
    if (workers < parts - 1)
        start_workers(parts - 1);
    if (parts > workers + 1)
        parts = workers + 1;
    expected += parts - 1;
    publish(body, closure, n, parts);
    run_share(body, closure, n, parts, 0);
    await_workers();
    STORE(busy, 0);
}

KILN_API const kiln_pool_api kiln_pool_v1 = {1, sizeof(kiln_pool_api), parallel_for};
