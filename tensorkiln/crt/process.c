/* What fork() and exit() mean for a library, and its locks.
 *
 * A child of fork() has one thread, and memory as it was at some instant: whoever held a lock is not
 * there to give it back. So the child opens all locks, and what they guard is whole at each instant: it
 * changes by one store of a pointer or a flag.
 *
 * The parent's threads are not waited for: they may wait for the one that forks. Nor could it be done:
 * glibc from 2.36 on calls what should run in the parent while another thread may dlclose() it. */
#include "pool.h"

kiln_lock kiln_idle_lock, kiln_names_lock, kiln_sets_lock, kiln_modules_lock, kiln_weights_lock,
    kiln_pool_lock;
static kiln_lock *const all[] = {&kiln_idle_lock,    &kiln_names_lock,   &kiln_sets_lock,
                                 &kiln_modules_lock, &kiln_weights_lock, &kiln_pool_lock};
static uint32_t watching;
static uint32_t exiting; /* exit() was called */

/* ---- locks: 0 open, 1 held, 2 held and somebody waits ------------------------------------------ */

int kiln_try_lock(kiln_lock *lock)
{
    uint32_t open = 0;
    return __atomic_compare_exchange_n(lock, &open, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

void kiln_take_lock(kiln_lock *lock)
{
    if (!__atomic_load_n(&watching, __ATOMIC_RELAXED))
        kiln_watch_process(); /* before there is a lock that a child must open */
    if (kiln_try_lock(lock))
        return;
    while (__atomic_exchange_n(lock, 2, __ATOMIC_ACQUIRE) != 0)
        kiln_wait(lock, 2);
}

void kiln_give_lock(kiln_lock *lock)
{
    if (__atomic_exchange_n(lock, 0, __ATOMIC_RELEASE) == 2)
        kiln_wake(lock);
}

/* ---- fork() --------------------------------------------------------------------------------- */

static void in_child(void)
{
    kiln_forget_calls();
    kiln_forget_workers(); /* which looks whether the pool's lock was held */
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i] != &kiln_modules_lock || !kiln_forget_loading())
            __atomic_store_n(all[i], 0, __ATOMIC_RELEASE);
}

/* ---- exit() --------------------------------------------------------------------------------- */

static void note_exit(void *nothing)
{
    (void)nothing;
    STORE(exiting, 1);
}

int kiln_is_exiting(void)
{
    return LOAD(exiting) != 0;
}

/* ---- being told ------------------------------------------------------------------------------ */

#if defined(__GLIBC__)
/* pthread_atfork() lives in a static part of glibc that we do not link; this is what it calls. Weak,
 * for musl has only the other name. Both functions forget what they were told with the address of
 * our home when __cxa_finalize() is called with it, so nothing of a library that is gone is called. */
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *)
    __attribute__((weak));
extern int __cxa_atexit(void (*)(void *), void *, void *);
extern void __cxa_finalize(void *);
#endif

/* Two threads may both get here first: then the child opens its locks twice. */
void kiln_watch_process(void)
{
#if defined(__GLIBC__)
    if (__register_atfork != NULL)
        __register_atfork(NULL, NULL, in_child, &kiln_this_home);
    __cxa_atexit(note_exit, NULL, &kiln_this_home);
#else
    pthread_atfork(NULL, NULL, in_child); /* nothing forgets it */
    note_exit(NULL); /* musl unloads nothing: its destructors are those of exit() */
#endif
    STORE(watching, 1);
}

void kiln_unwatch_process(void)
{
#if defined(__GLIBC__)
    if (LOAD(watching))
        __cxa_finalize(&kiln_this_home);
#endif
}
