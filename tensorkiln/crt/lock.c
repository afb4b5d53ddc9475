/* Locks that are open in a child of fork(), what else is forgotten there, and whether the process
 * exits.
 *
 * A child of fork() has one thread, and a copy of memory from one instant. The thread that held a
 * lock does not exist in the child and cannot release it, so the child releases all locks. This is
 * safe because the data that they guard is consistent at every instant: each change is one store of
 * a pointer or a flag.
 *
 * The fork handler does not acquire the locks in the parent first, as is usual: the threads that
 * hold them may be waiting for the thread that forks. It could not either: glibc from 2.36 on runs
 * handlers in the parent while another thread may dlclose() the library that they are in. */
#include "crt.h"
#include "os.h"

kiln_lock kiln_idle_lock, kiln_names_lock, kiln_sets_lock, kiln_modules_lock, kiln_weights_lock,
    kiln_pool_lock;
#if defined(KILN_DEVICES)
kiln_lock kiln_devices_lock;
#endif
static kiln_lock *const all[] = {&kiln_idle_lock,    &kiln_names_lock,   &kiln_sets_lock,
                                 &kiln_modules_lock, &kiln_weights_lock, &kiln_pool_lock,
#if defined(KILN_DEVICES)
                                 &kiln_devices_lock,
#endif
};

static kiln_fork_handler fork_handlers[KILN_FORK_PARTS]; /* NULL: nothing to forget yet */
static uint32_t is_watching; /* the handlers are registered */
static uint32_t is_exiting; /* exit() was called */

static void in_child(void)
{
    const kiln_lock *own = NULL;
    for (int part = 0; part < KILN_FORK_PARTS; part++) {
        const kiln_fork_handler handler = __atomic_load_n(&fork_handlers[part], __ATOMIC_ACQUIRE);
        const kiln_lock *const lock = handler == NULL ? NULL : handler();
        own = lock != NULL ? lock : own;
    }
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i] != own)
            __atomic_store_n(all[i], 0, __ATOMIC_RELEASE);
}

static void note_exit(void *nothing)
{
    (void)nothing;
    __atomic_store_n(&is_exiting, 1, __ATOMIC_SEQ_CST);
}

int kiln_is_exiting(void)
{
    return __atomic_load_n(&is_exiting, __ATOMIC_SEQ_CST) != 0;
}

/* If two threads register the handlers at once, they run twice, which does no harm. */
static void watch_process(void)
{
    if (__atomic_load_n(&is_watching, __ATOMIC_RELAXED))
        return;
    kiln_os_watch(in_child, note_exit, &is_watching);
    __atomic_store_n(&is_watching, 1, __ATOMIC_SEQ_CST);
}

void kiln_unwatch_process(void)
{
    if (__atomic_load_n(&is_watching, __ATOMIC_SEQ_CST))
        kiln_os_unwatch(&is_watching);
}

void kiln_at_fork(int part, kiln_fork_handler handler)
{
    if (__atomic_load_n(&fork_handlers[part], __ATOMIC_RELAXED) == NULL)
        __atomic_store_n(&fork_handlers[part], handler, __ATOMIC_RELEASE);
    watch_process();
}

/* 0: free, 1: held, 2: held and a thread waits. */
int kiln_try_lock(kiln_lock *lock)
{
    uint32_t open = 0;
    return __atomic_compare_exchange_n(lock, &open, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

void kiln_take_lock(kiln_lock *lock)
{
    watch_process(); /* before the first lock is held that a child must release */
    if (kiln_try_lock(lock))
        return;
    while (__atomic_exchange_n(lock, 2, __ATOMIC_ACQUIRE) != 0)
        kiln_os_wait(lock, 2);
}

void kiln_give_lock(kiln_lock *lock)
{
    if (__atomic_exchange_n(lock, 0, __ATOMIC_RELEASE) == 2)
        kiln_os_wake(lock);
}
