/* Sleeping until a word changes: a futex on Linux, one mutex and condition variable elsewhere. */
#include "crt.h"

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

void kiln_wait(uint32_t *word, uint32_t value)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

void kiln_wake(uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 0x7fffffff, NULL, NULL, 0);
}
#else
#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

void kiln_wait(uint32_t *word, uint32_t value)
{
    pthread_mutex_lock(&lock);
    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) == value)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

void kiln_wake(uint32_t *word)
{
    (void)word;
    pthread_mutex_lock(&lock);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}
#endif
