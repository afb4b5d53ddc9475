/* The default number of threads of a call: the CPUs that this process can really use; the stack that
 * is left to this thread. */
#include "crt.h"
#include "os.h"
#include <stdlib.h>

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

int kiln_wished_threads(void)
{
    const char *text = getenv("KILN_NUM_THREADS");
    if (text == NULL || *text == 0)
        return 0;
    const char *digit = text + (*text == '-');
    int value = 0;
    for (int i = 0; digit[i] != 0 || i == 0; i++) {
        if (digit[i] < '0' || digit[i] > '9' || i == 40)
            return -1;
        value = smaller(value * 10 + (digit[i] - '0'), KILN_MOST_THREADS + 1);
    }
    return value > KILN_MOST_THREADS || (value > 0 && *text == '-') ? -1 : value;
}

int kiln_default_threads(void)
{
    static int known; /* threads that race compute the same value */
    int threads = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (threads != 0)
        return threads;
    threads = kiln_os_processors();
    const int wish = kiln_wished_threads();
    if (wish > 0)
        threads = smaller(threads, wish);
    __atomic_store_n(&known, threads, __ATOMIC_RELAXED);
    return threads;
}

/* ---- the stack ---------------------------------------------------------------------------- */

#define STACK_KEPT ((size_t)512 << 10) /* reserved for kernels and the host's callbacks */
#define STACK_OF_CALL (24 << 10)       /* of a call, without its kernels */

/* This thread, with what is known of its stack; NULL as kiln_this_thread(). STACK_KEPT is reserved, or
 * half of a stack below twice that. */
static const kiln_thread *with_stack(void)
{
    kiln_thread *const t = kiln_this_thread();
    size_t size = 0;
    if (t != NULL && t->stack == NULL) {
        t->stack = kiln_os_stack(&size);
        t->stack_floor = t->stack + (size / 2 < STACK_KEPT ? size / 2 : STACK_KEPT);
    }
    return t;
}

int kiln_stack_is_used_up(void)
{
    const kiln_thread *const t = with_stack();
    return t == NULL || (char *)__builtin_frame_address(0) < t->stack_floor;
}

int kiln_check_stack(void)
{
    const kiln_thread *const t = with_stack();
    if (t == NULL)
        return KILN_ERROR_MEMORY;
    const int64_t space = (char *)__builtin_frame_address(0) - t->stack;
    return space >= STACK_OF_CALL
               ? KILN_OK
               : kiln_fail(KILN_ERROR_DEPTH, "this thread has %lld bytes of stack left, and a call "
                           "takes up to %d", (long long)space, STACK_OF_CALL);
}
