/* Locks that are open in a child of fork().
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

/* 0: free, 1: held, 2: held and a thread waits. */
int kiln_try_lock(kiln_lock *lock)
{
    uint32_t open = 0;
    return __atomic_compare_exchange_n(lock, &open, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

void kiln_take_lock(kiln_lock *lock)
{
    kiln_watch_process(); /* before the first lock is held that a child must release */
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

void kiln_open_locks(const kiln_lock *but)
{
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i] != but)
            __atomic_store_n(all[i], 0, __ATOMIC_RELEASE);
}
