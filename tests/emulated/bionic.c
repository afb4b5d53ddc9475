/* What libraries for Android call that musl does not have; all else has the same name and meaning in
 * both. */
#include <errno.h>
#include <pthread.h>

int *__errno(void);
int __register_atfork(void (*before)(void), void (*parent)(void), void (*child)(void), void *owner);

int *__errno(void)
{
    return &errno;
}

int __register_atfork(void (*before)(void), void (*parent)(void), void (*child)(void), void *owner)
{
    (void)owner;
    return pthread_atfork(before, parent, child);
}
