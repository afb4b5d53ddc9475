/* pool.h - one pool of threads for all libraries of ours in a process, each of which may be unloaded
 * at any time.
 *
 * The pool is a block of memory that its users count. Its threads have no code of their own: a
 * thread runs that of a library, its home, and moves into another one with the first piece of work
 * that it takes from there. It moves by a jump from the bottom of its stack (share.c), so nothing on
 * the stack leads back. Whoever is asleep or spins stays where it worked last.
 *
 * A library that is unloaded wakes its residents. None of them works, since no function of the
 * library runs, so they end, or have just claimed a piece of another library's work and leave. To
 * unload is therefore to wait for threads that do nothing but go: never for anybody's kernel, and
 * never for a lock. (dlclose() holds that of the loader, which a kernel may want.)
 *
 * Libraries of several versions share these structs: POOL_PROTOCOL says which agree. */
#ifndef KILN_POOL_H
#define KILN_POOL_H

#include "crt.h"
#include <pthread.h>

#define POOL_PROTOCOL 1 /* changes with every struct of this file, and what is done with them */
#define MAX_WORKERS 1023

#define LOAD(x) __atomic_load_n(&(x), __ATOMIC_SEQ_CST)
#define STORE(x, v) __atomic_store_n(&(x), (v), __ATOMIC_SEQ_CST)
#define ADD(x, v) __atomic_add_fetch(&(x), (v), __ATOMIC_SEQ_CST)
#define SUB(x, v) __atomic_sub_fetch(&(x), (v), __ATOMIC_SEQ_CST)

typedef void *(*kiln_entry)(void *worker);

/* What the threads of the pool know of a library; it lies in the library. */
typedef struct kiln_home {
    kiln_entry entry;          /* where a thread starts to run the library's code */
    uint32_t residents;        /* threads that run it, and those that are on their way */
    uint32_t closing;          /* it is being unloaded: its residents must go */
    struct kiln_worker *ended; /* residents that have gone, and only have to be joined */
} kiln_home;

typedef struct kiln_worker {
    struct kiln_pool *pool;
    kiln_home *left;          /* the library that the thread came from, until it says so there */
    struct kiln_worker *next; /* in home->ended */
    pthread_t thread;
    uint32_t number; /* from 1 */
    uint32_t seen;   /* the last job that it looked at */
    int32_t chunk;   /* claimed, to be run on arrival */
    uint32_t there;  /* the thread exists, or is still to be joined */
} kiln_worker;

typedef struct kiln_job {
    kiln_home *home; /* whose work it is; NULL: no job is being done */
    pthread_t caller;
    kiln_body body;
    void *closure;
    int64_t n;
    uint32_t chunks;  /* pieces of the loop */
    uint32_t threads; /* workers 1 .. threads - 1 may take part */
} kiln_job;

typedef struct kiln_pool {
    kiln_job job;

    /* Claims of the current job: its sequence number, chunks taken from the front, first of the
     * chunks taken from the back. */
    uint64_t claims __attribute__((aligned(64)));

    uint32_t sequence __attribute__((aligned(64))); /* odd: job is being written */
    uint32_t sleepers;                              /* workers asleep on `bell` */
    uint32_t bell;                                  /* changes when they should look around */
    uint32_t closings;                              /* libraries that wait for their residents */

    uint32_t arrived __attribute__((aligned(64))); /* chunks finished by workers, ever */
    uint32_t caller_sleeps;

    uint32_t busy __attribute__((aligned(64))); /* a caller owns the pool, and what follows */
    uint32_t expected;                          /* value of arrived when a job is done */
    uint32_t ready;                             /* workers 1 .. ready are there */
    uint32_t known_gaps;                        /* of `gaps`, when `ready` was counted */
    uint32_t gaps;                              /* workers taken away, ever; whoever does counts */

    uint32_t users;  /* libraries; under the loader's lock */
    int32_t process; /* another one after fork() */
    kiln_worker worker[MAX_WORKERS + 1]; /* by number */
} kiln_pool;

/* This library's. */
extern kiln_home kiln_this_home;
/* The pool, found or made when the library is first used; NULL when memory is short. */
extern kiln_pool *kiln_the_pool;
kiln_pool *kiln_shared_pool(void);
/* Where a thread runs this library's code until it returns: an entry to go on at, or NULL. */
kiln_entry kiln_work(kiln_worker *self);

#endif
