/* How the libraries of a process find their common thread pool, and how a library leaves it. */
#include "pool.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined(__linux__)
#include <link.h>
#endif

kiln_pool *kiln_the_pool; /* NULL: this library has not been used */

/* An ELF note in each library contains the offset of its kiln_the_pool; other libraries find the
 * note in memory with dl_iterate_phdr(), under the dynamic linker's lock. */
#if defined(CAN_SHARE)
#define NOTE_TYPE 2
#define TEXT(x) #x
#define NUMBER(x) TEXT(x)
__asm__(".pushsection .note.kiln.pool,\"a\",%note\n"
        ".balign 4\n"
        ".long 11, 16, " NUMBER(NOTE_TYPE) "\n"
        ".asciz \"tensorkiln\"\n"
        ".balign 4\n"
        ".quad " NUMBER(POOL_PROTOCOL) "\n"
        ".quad kiln_the_pool - .\n"
        ".popsection\n");
#endif

/* ---- finding ------------------------------------------------------------------------------ */

#if defined(CAN_SHARE)
/* Whether memory is in a readable segment of a loaded image. Program headers and notes are not
 * trusted: a stripped or damaged file may contain any address. */
static int is_mapped(const struct dl_phdr_info *image, uintptr_t start, size_t size)
{
    for (int i = 0; i < image->dlpi_phnum; i++) {
        const uintptr_t first = image->dlpi_addr + image->dlpi_phdr[i].p_vaddr;
        const size_t there = image->dlpi_phdr[i].p_memsz;
        if (image->dlpi_phdr[i].p_type == PT_LOAD && (image->dlpi_phdr[i].p_flags & PF_R) &&
            start >= first && start - first <= there && size <= there - (start - first))
            return 1;
    }
    return 0;
}

/* Search a note segment of `left` bytes for our note; return the pool of its library, or NULL. */
static kiln_pool *pool_of(const struct dl_phdr_info *image, const char *note, size_t left)
{
    static const char owner[12] = "tensorkiln";
    uint32_t head[3]; /* ELF note header: name size, content size, type */
    int64_t content[2];
    while (left >= sizeof head) {
        memcpy(head, note, sizeof head);
        const size_t name = sizeof head, at = name + (((size_t)head[0] + 3) & ~(size_t)3);
        const size_t size = at + (((size_t)head[1] + 3) & ~(size_t)3);
        if (size > left)
            return NULL;
        if (head[0] == 11 && head[1] == sizeof content && head[2] == NOTE_TYPE &&
            memcmp(note + name, owner, sizeof owner) == 0) {
            memcpy(content, note + at, sizeof content);
            const uintptr_t place = (uintptr_t)note + at + 8 + (uintptr_t)content[1];
            if (content[0] == POOL_PROTOCOL && is_mapped(image, place, sizeof(kiln_pool *)) &&
                LOAD(*(kiln_pool *const *)place) != NULL)
                return LOAD(*(kiln_pool *const *)place);
        }
        note += size;
        left -= size;
    }
    return NULL;
}

static int look_into(struct dl_phdr_info *image, size_t size, void *context)
{
    kiln_pool **const found = context;
    (void)size;
    for (int i = 0; i < image->dlpi_phnum && *found == NULL; i++) {
        const uintptr_t start = image->dlpi_addr + image->dlpi_phdr[i].p_vaddr;
        if (image->dlpi_phdr[i].p_type == PT_NOTE && image->dlpi_phdr[i].p_align <= 4 &&
            is_mapped(image, start, image->dlpi_phdr[i].p_memsz))
            *found = pool_of(image, (const char *)start, image->dlpi_phdr[i].p_memsz);
    }
    return *found != NULL;
}

static kiln_pool *find_pool(void)
{
    kiln_pool *found = NULL;
    dl_iterate_phdr(look_into, &found);
    return found;
}
#else
static kiln_pool *find_pool(void)
{
    return NULL;
}
#endif

/* A function to run under the dynamic linker's lock, and its argument and result. */
typedef struct errand {
    void (*run)(struct errand *);
    kiln_pool *pool;
    int done;
} errand;

#if defined(CAN_SHARE)
static int run_errand(struct dl_phdr_info *image, size_t size, void *context)
{
    errand *const what = context;
    (void)image;
    (void)size;
    what->run(what);
    what->done = 1;
    return 1;
}
#endif

/* Set in a child of fork() if another thread of the parent was in under_loaders_lock(): it may have
 * held the dynamic linker's lock, which then is never released in the child. This library no longer
 * takes that lock, and uses a pool of its own. */
static uint32_t is_stuck;

/* Run an errand while no other library of the process runs one or is unloaded: dl_iterate_phdr()
 * holds the dynamic linker's lock, which is recursive, during its callback. To exclude deadlocks,
 * errands take no other lock, and use no thread-local variable, as its first use may take one. */
static void under_loaders_lock(errand *what)
{
#if defined(CAN_SHARE)
    if (!LOAD(is_stuck))
        dl_iterate_phdr(run_errand, what);
#endif
    if (!what->done)
        what->run(what);
}

/* ---- joining the pool --------------------------------------------------------------------- */

/* A child of fork() has no workers; it starts its own when it needs them. The first library that
 * gets here resets the pool. */
void kiln_forget_workers(void)
{
    kiln_pool *const pool = LOAD(kiln_the_pool);
    if (LOAD(kiln_pool_lock) != 0)
        STORE(is_stuck, 1);
    kiln_this_home.residents = 0;
    kiln_this_home.ended = NULL;
    if (pool == NULL || pool->process == getpid())
        return;
    pool->process = getpid();
    for (int i = 1; i <= MAX_WORKERS; i++)
        if (pool->worker[i].exists)
            pool->worker[i].exists = 0;
    pool->ready = 0;
    pool->sleepers = 0;
    pool->closings = 0;
    pool->caller_sleeps = 0;
    pool->sequence = (pool->sequence + 1) & ~(uint32_t)1;
    pool->job.home = NULL;
    pool->job.threads = 0;
    pool->claims = 0;
    pool->expected = pool->arrived;
    pool->busy = 0;
}

/* Allocate a pool with mmap(): most of it is room for workers that are never started, whose pages
 * are then never touched; and it is not freed at exit, which a leak checker would report for
 * malloc(). */
static kiln_pool *new_pool(void)
{
    kiln_pool *const pool = mmap(NULL, sizeof *pool, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pool == MAP_FAILED)
        return NULL;
    pool->process = getpid();
    return pool;
}

static void free_pool(kiln_pool *pool)
{
    if (pool != NULL)
        munmap(pool, sizeof *pool);
}

static void join_pool(errand *what)
{
    kiln_pool *const found = LOAD(is_stuck) ? NULL : find_pool();
    kiln_pool *const pool = found != NULL ? found : what->pool;
    ADD(pool->users, 1);
    STORE(kiln_the_pool, pool);
    what->pool = found != NULL ? what->pool : NULL; /* for the caller to free */
}

kiln_pool *kiln_shared_pool(void)
{
    if (LOAD(kiln_the_pool) != NULL)
        return LOAD(kiln_the_pool);
    kiln_take_lock(&kiln_pool_lock);
    errand what = {join_pool, NULL, 0};
    if (LOAD(kiln_the_pool) == NULL && (what.pool = new_pool()) != NULL) {
        under_loaders_lock(&what);
        free_pool(what.pool);
    }
    kiln_give_lock(&kiln_pool_lock);
    return LOAD(kiln_the_pool);
}

/* ---- leaving the pool --------------------------------------------------------------------- */

static void leave_pool(errand *what)
{
    kiln_pool *const pool = LOAD(kiln_the_pool);
    what->pool = SUB(pool->users, 1) == 0 ? pool : NULL; /* for the caller to free */
    STORE(kiln_the_pool, NULL);
}

/* Whether this thread is running a parallel loop of this library. */
static int is_inside(kiln_pool *pool)
{
    int inside = pthread_equal(LOAD(pool->job.caller), pthread_self());
    for (int i = 1; i <= MAX_WORKERS && !inside; i++)
        inside = LOAD(pool->worker[i].exists) &&
                 pthread_equal(pool->worker[i].thread, pthread_self());
    return inside && LOAD(pool->job.home) == &kiln_this_home;
}

/* Abort with a message: this thread is executing code that is about to be unmapped. */
static void refuse_to_go(void)
{
    static const char sentence[] =
        "tensorkiln: a library was unloaded while one of its functions was running\n";
    if (write(2, sentence, sizeof sentence - 1) < 0)
        abort();
    abort();
}

/* Wait until no worker executes code of this library any more, and join those that have ended. */
static void see_them_off(kiln_pool *pool)
{
    for (uint32_t left; (left = LOAD(kiln_this_home.residents)) != 0;)
        kiln_wait(&kiln_this_home.residents, left);
    kiln_worker *ended = __atomic_exchange_n(&kiln_this_home.ended, NULL, __ATOMIC_SEQ_CST);
    while (ended != NULL) {
        kiln_worker *const worker = ended;
        ended = worker->next;
        pthread_join(worker->thread, NULL);
        STORE(worker->exists, 0);
        ADD(pool->joined, 1);
    }
}

/* At exit() other threads may still be calling this library. Their loops continue: nothing that
 * they use is freed, and nothing waits for them. (kiln_is_exiting() may be 0 at exit(), if the
 * first loop of another thread registered the handler after exit() began; `running` covers that
 * case.) */
void kiln_leave_pool(int at_exit)
{
    kiln_pool *const pool = LOAD(kiln_the_pool);
    if (pool == NULL)
        return;
    STORE(kiln_this_home.closing, 1);
    const int running = LOAD(pool->job.home) == &kiln_this_home;
    if (running && !at_exit && is_inside(pool))
        refuse_to_go();
    ADD(pool->closings, 1);
    ADD(pool->wake_count, 1);
    kiln_wake(&pool->wake_count);
    if (!running)
        see_them_off(pool);
    SUB(pool->closings, 1);
    if (at_exit || running)
        return;
    errand what = {leave_pool, NULL, 0};
    under_loaders_lock(&what);
    free_pool(what.pool);
}
