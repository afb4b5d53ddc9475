/* Several threads call functions at once, on the same libraries and executors. */
#include "driver.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

enum { CALLS = 12 };

typedef struct worker {
    draws state;
    kiln_executor *shared[N_LIBRARIES];
} worker;

/* Call random functions in a shared or an own executor, and change the number of threads. */
static void *work(void *argument)
{
    worker *w = argument;
    for (int i = 0; i < CALLS; i++) {
        const int k = (int)draw(&w->state, N_LIBRARIES);
        const kiln_host_library *library = libraries[k];
        kiln_executor *own = NULL;
        if (seldom(&w->state, 3))
            check_code(library, library->api.executor_create(&own), "kiln_executor_create");
        const uint64_t number = draw(&w->state, (uint64_t)library->file.n_functions);
        call_function(&w->state, library, &library->file.functions[number],
                      own != NULL ? own : w->shared[k]);
        library->api.executor_destroy(own);
        if (seldom(&w->state, 4))
            library->api.set_num_threads((int)draw(&w->state, 4));
    }
    return NULL;
}

static void start(draws *d, worker *workers, pthread_t *threads, int count)
{
    for (int i = 0; i < count; i++)
        workers[i] = (worker){{draw(d, 0) | 1}, {NULL}};
    for (int k = 0; k < N_LIBRARIES; k++)
        check_code(libraries[k], libraries[k]->api.executor_create(&workers[0].shared[k]),
                   "kiln_executor_create");
    for (int i = 0; i < count; i++) {
        memcpy(workers[i].shared, workers[0].shared, sizeof workers[0].shared);
        if (pthread_create(&threads[i], NULL, work, &workers[i]) != 0)
            abort();
    }
}

static void finish(worker *workers, pthread_t *threads, int count)
{
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    for (int k = 0; k < N_LIBRARIES; k++)
        libraries[k]->api.executor_destroy(workers[0].shared[k]);
}

static void nothing(int number)
{
    (void)number;
}

void several_threads(draws *d)
{
    worker workers[6];
    pthread_t threads[6];
    const int count = 2 + (int)draw(d, 5), signals = seldom(d, 2);
    const struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    struct sigaction act;
    memset(&act, 0, sizeof act);
    act.sa_handler = nothing; /* without SA_RESTART, so that signals interrupt system calls */
    say("\n: %d threads%s:", count, signals ? " and signals" : "");
    sigaction(SIGALRM, &act, NULL);
    if (signals)
        setitimer(ITIMER_REAL, &often, NULL);
    start(d, workers, threads, count);
    finish(workers, threads, count);
    setitimer(ITIMER_REAL, &never, NULL);
}
