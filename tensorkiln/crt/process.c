/* Handlers for fork() and exit(). */
#include "pool.h"

static uint32_t watching; /* the handlers are registered */
static uint32_t exiting; /* exit() was called */

static void in_child(void)
{
    kiln_forget_calls();
    kiln_forget_workers(); /* before the locks are released: it reads the pool's lock */
#if defined(KILN_DEVICES)
    kiln_forget_devices();
#endif
    kiln_open_locks(kiln_forget_loading() ? &kiln_modules_lock : NULL);
}

static void note_exit(void *nothing)
{
    (void)nothing;
    STORE(exiting, 1);
}

int kiln_is_exiting(void)
{
    return LOAD(exiting) != 0;
}

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
    if (__atomic_load_n(&watching, __ATOMIC_RELAXED))
        return;
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
