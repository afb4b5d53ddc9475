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

/* If two threads register the handlers at once, they run twice, which does no harm. */
void kiln_watch_process(void)
{
    if (__atomic_load_n(&watching, __ATOMIC_RELAXED))
        return;
    kiln_os_watch(in_child, note_exit, &watching);
    STORE(watching, 1);
}

void kiln_unwatch_process(void)
{
    if (LOAD(watching))
        kiln_os_unwatch(&watching);
}
