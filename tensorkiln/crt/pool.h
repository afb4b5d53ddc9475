/* pool.h - one thread pool for all Tensorkiln libraries of a process, each of which may be unloaded
 * at any time.
 *
 * The pool is a reference-counted block of memory; `users` counts the libraries. A worker thread
 * executes the pool code (kiln_work()) of one library, its home. When it claims a chunk of another
 * library's job, it moves: it jumps to that library's code from the bottom of its stack (worker.c),
 * so that no return address on the stack points into the old library. A worker that sleeps or spins
 * stays in the library whose job it ran last.
 *
 * A library that is unloaded wakes its residents. No function of the library is running, so none of
 * them executes its kernels: they end, or have just claimed a chunk of another library and are
 * moving there. Unloading therefore waits only for threads on their way out, never for a kernel or
 * a lock. (dlclose() holds the dynamic linker's lock, which a kernel may need.)
 *
 * Libraries of several Tensorkiln versions share these structs if their POOL_PROTOCOL is equal. */
#ifndef KILN_POOL_H
#define KILN_POOL_H

#include "crt.h"
#include "os.h"

#define POOL_PROTOCOL 1 /* increase it with any change to these structs or to their use */
#define MAX_WORKERS 1023

#define LOAD(x) __atomic_load_n(&(x), __ATOMIC_SEQ_CST)
#define STORE(x, v) __atomic_store_n(&(x), (v), __ATOMIC_SEQ_CST)
#define ADD(x, v) __atomic_add_fetch(&(x), (v), __ATOMIC_SEQ_CST)
#define SUB(x, v) __atomic_sub_fetch(&(x), (v), __ATOMIC_SEQ_CST)

typedef void *(*kiln_thread_start)(void *worker);

/* A library as a home of worker threads; a static variable of the library. */
typedef struct kiln_home {
    kiln_thread_start entry;   /* where a thread starts to run the library's code */
    uint32_t residents;        /* threads that execute its code or are moving to it */
    uint32_t closing;          /* it is being unloaded: its residents must leave */
    struct kiln_worker *ended; /* residents that have ended and are to be joined */
} kiln_home;

typedef struct kiln_worker {
    struct kiln_pool *pool;
    kiln_home *left;          /* while it moves: the old home, which still counts it a resident */
    struct kiln_worker *next; /* in home->ended */
    uintptr_t thread;
    uint32_t number; /* from 1 */
    uint32_t seen;   /* ticket of the last job that it examined */
    int32_t chunk;   /* while it moves: the chunk that it has claimed */
    uint32_t exists; /* the thread exists or is yet to be joined */
} kiln_worker;

typedef struct kiln_job {
    kiln_home *home; /* the library of the loop body; NULL: no job is running */
    uintptr_t caller;
    kiln_body body;
    void *closure;
    int64_t n;
    uint32_t chunks;  /* pieces of the loop */
    uint32_t threads; /* workers 1 .. threads - 1 may take part */
} kiln_job;

typedef struct kiln_pool {
    kiln_job job;

    /* Unclaimed chunks front..back-1 of the current job: ticket in the high 32 bits, front in the
     * next 16, back in the low 16. */
    uint64_t claims __attribute__((aligned(64)));

    uint32_t sequence __attribute__((aligned(64))); /* ticket; odd: job is being written */
    uint32_t sleepers;                              /* workers that sleep on `wake_count` */
    uint32_t wake_count;                            /* futex: changes when they must wake up */
    uint32_t closings;                              /* libraries that wait for their residents */

    uint32_t arrived __attribute__((aligned(64))); /* chunks finished by workers, of all jobs */
    uint32_t caller_sleeps;

    uint32_t busy __attribute__((aligned(64))); /* a caller owns the pool and the next 3 fields */
    uint32_t expected;                          /* value of `arrived` when the job is done */
    uint32_t ready;                             /* workers 1 .. ready exist */
    uint32_t known_joined;                      /* value of `joined` when `ready` was counted */
    uint32_t joined;                            /* workers joined so far, by any library */

    uint32_t users;  /* libraries that use the pool; changed under the dynamic linker's lock */
    int32_t process; /* process id of the owner; differs in a child of fork() */
    kiln_worker worker[MAX_WORKERS + 1]; /* by number */
} kiln_pool;

/* ---- share.c: the pool of the process ---------------------------------------------------------- */
extern kiln_pool *kiln_the_pool; /* NULL: not found or made yet */
/* Return the pool, found in another library or made on first use; NULL if memory is short. */
kiln_pool *kiln_shared_pool(void);

/* ---- worker.c: threads of the pool ------------------------------------------------------------- */
extern kiln_home kiln_this_home; /* of this library */
/* Run jobs until the thread moves or ends: return the entry of the library to move to, or NULL. */
kiln_thread_start kiln_work(kiln_worker *self);
/* Spin while *word == value, for 200 microseconds at most; return 1 if it changed. */
int kiln_spin(const uint32_t *word, uint32_t value);
/* Claim a chunk of the job published as `ticket`; return -1 if none is left or the job is over. */
int32_t kiln_claim(kiln_pool *pool, uint32_t ticket, int from_back);
/* Run a chunk that was claimed: one of job->chunks parts of 0..n. */
void kiln_run_chunk(const kiln_job *job, uint32_t chunk);
/* Wake all workers that sleep. */
void kiln_ring(kiln_pool *pool);

#endif
