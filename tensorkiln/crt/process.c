/* Locks, and handlers for fork() and exit().
 *
 * A child of fork() has one thread, and a copy of memory from one instant. The thread that held a
 * lock does not exist in the child and cannot release it, so the child releases all locks. This is
 * safe because the data that they guard is consistent at every instant: each change is one store of
 * a pointer or a flag.
 *
 * The fork handler does not acquire the locks in the parent first, as is usual: the threads that
 * hold them may be waiting for the thread that forks. It could not either: glibc from 2.36 on runs
 * handlers in the parent while another thread may dlclose() the library that they are in. */
#include "pool.h"

kiln_lock kiln_idle_lock, kiln_names_lock, kiln_sets_lock, kiln_modules_lock, kiln_weights_lock,
    kiln_pool_lock;
static kiln_lock *const all[] = {&kiln_idle_lock,    &kiln_names_lock,   &kiln_sets_lock,
                                 &kiln_modules_lock, &kiln_weights_lock, &kiln_pool_lock};
static uint32_t watching; /* the handlers are registered */
static uint32_t exiting; /* exit() was called */

/* ---- locks: 0 free, 1 held, 2 held and a thread waits ------------------------------------ */

int kiln_try_lock(kiln_lock *lock)
{
    uint32_t open = 0;
    return __atomic_compare_exchange_n(lock, &open, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

void kiln_take_lock(kiln_lock *lock)
{
    if (!__atomic_load_n(&watching, __ATOMIC_RELAXED))
        kiln_watch_process(); /* before the first lock is held that a child must release */
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
    kiln_forget_workers(); /* before the locks are released: it reads the pool's lock */
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

/* ---- registering the handlers ------------------------------------------------------------- */

#if defined(__GLIBC__)
/* __register_atfork() is what pthread_atfork() calls, which is in a static part of glibc that
 * libraries are not linked with. It is weak because musl does not have it. Handlers are registered
 * with the address of kiln_this_home as their owner: __cxa_finalize(&kiln_this_home) removes those
 * of both functions, so that none is called after the library is unloaded. */
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *)
    __attribute__((weak));
extern int __cxa_atexit(void (*)(void *), void *, void *);
extern void __cxa_finalize(void *);
#endif

/* If two threads register the handlers at once, they run twice, which does no harm. */
void kiln_watch_process(void)
{
#if defined(__GLIBC__)
    if (__register_atfork != NULL)
        __register_atfork(NULL, NULL, in_child, &kiln_this_home);
    __cxa_atexit(note_exit, NULL, &kiln_this_home);
#else
    pthread_atfork(NULL, NULL, in_child); /* cannot be removed again */
    note_exit(NULL); /* musl never unloads: destructors run at exit() only */
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
