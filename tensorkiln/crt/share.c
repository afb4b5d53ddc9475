/* How the libraries of a process find one pool, how threads get from one to another, and how a
 * library leaves: what has no place inside of a single library. */
#include "pool.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined(__linux__)
#include <link.h>
#endif

kiln_pool *kiln_the_pool; /* NULL: this library has not been used */

/* ---- a note with the way to kiln_the_pool, and the jump ------------------------------------------ */

/* The note tells other libraries where kiln_the_pool is; it is found in memory, under the loader's lock.
 * A worker starts at kiln_worker_entry, with itself as the argument, be it from pthread_create() or
 * from the entry of another library; in both cases the return address is that of the C library. */
#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__))
#define CAN_SHARE 1
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

void *kiln_worker_entry(void *worker);
__asm__(".pushsection .text.kiln_worker_entry,\"ax\",%progbits\n"
        ".balign 16\n"
        ".globl kiln_worker_entry\n"
        ".hidden kiln_worker_entry\n"
        ".type kiln_worker_entry, %function\n"
        "kiln_worker_entry:\n"
        ".cfi_startproc\n"
#if defined(__x86_64__)
        "    .byte 0xf3, 0x0f, 0x1e, 0xfa\n" /* endbr64 */
        "    pushq %rdi\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    callq kiln_work\n"
        "    popq %rdi\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    testq %rax, %rax\n"
        "    je 1f\n"
        "    jmpq *%rax\n"
        "1:  retq\n"
#else
        "    hint #34\n" /* bti c */
        "    stp x29, x30, [sp, #-32]!\n"
        "    .cfi_def_cfa_offset 32\n"
        "    .cfi_offset 29, -32\n"
        "    .cfi_offset 30, -24\n"
        "    mov x29, sp\n"
        "    str x0, [sp, #16]\n"
        "    bl kiln_work\n"
        "    mov x16, x0\n"
        "    ldr x0, [sp, #16]\n"
        "    ldp x29, x30, [sp], #32\n"
        "    .cfi_restore 29\n"
        "    .cfi_restore 30\n"
        "    .cfi_def_cfa_offset 0\n"
        "    cbz x16, 1f\n"
        "    br x16\n"
        "1:  mov x0, #0\n"
        "    ret\n"
#endif
        ".cfi_endproc\n"
        ".size kiln_worker_entry, . - kiln_worker_entry\n"
        ".popsection\n");
#else
static void *kiln_worker_entry(void *worker)
{
    kiln_work(worker); /* all work is this library's: nobody else knows of its pool */
    return NULL;
}
#endif

kiln_home kiln_this_home = {kiln_worker_entry, 0, 0, NULL};

/* ---- finding ------------------------------------------------------------------------------ */

#if defined(CAN_SHARE)
/* Whether memory of an image is there to be read: a note's own segment may name any. */
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

/* The pool that the library of a note uses. */
static kiln_pool *pool_of(const struct dl_phdr_info *image, const char *note, size_t left)
{
    static const char owner[12] = "tensorkiln";
    uint32_t head[3]; /* bytes of the name, of the content, type */
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

/* In a child of fork() glibc's lock stays as another thread held it: for good. Where that was in the
 * midst of what follows, this library keeps to itself. */
static uint32_t is_stuck;

/* Does it while no other library of the process does such a thing, or goes: the loader holds its
 * lock while it shows us the loaded files, and lets the same thread look at them again. Nothing
 * that is done there takes another lock, or touches a thread-local variable, whose first use may. */
static void under_loaders_lock(errand *what)
{
#if defined(CAN_SHARE)
    if (!LOAD(is_stuck))
        dl_iterate_phdr(run_errand, what);
#endif
    if (!what->done)
        what->run(what);
}

/* ---- coming ------------------------------------------------------------------------------- */

/* In the child of fork() nobody works: it starts its own threads when it needs them. The pool is
 * cleared by the first of its users that gets here. */
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
        if (pool->worker[i].there)
            pool->worker[i].there = 0;
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

/* Pages of its own: nearly all of it is room for workers that are never there, and at exit it is
 * left as it is, which should not look like a leak. */
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
    what->pool = found != NULL ? what->pool : NULL; /* to be freed */
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

/* ---- leaving ------------------------------------------------------------------------------ */

static void leave_pool(errand *what)
{
    kiln_pool *const pool = LOAD(kiln_the_pool);
    what->pool = SUB(pool->users, 1) == 0 ? pool : NULL; /* to be freed */
    STORE(kiln_the_pool, NULL);
}

/* Whether this thread is in a loop of this library. */
static int is_inside(kiln_pool *pool)
{
    int inside = pthread_equal(LOAD(pool->job.caller), pthread_self());
    for (int i = 1; i <= MAX_WORKERS && !inside; i++)
        inside = LOAD(pool->worker[i].there) &&
                 pthread_equal(pool->worker[i].thread, pthread_self());
    return inside && LOAD(pool->job.home) == &kiln_this_home;
}

/* Nothing after this sentence would be better: our code is about to be taken away from under it. */
static void refuse_to_go(void)
{
    static const char sentence[] =
        "tensorkiln: a library was unloaded while one of its functions was running\n";
    if (write(2, sentence, sizeof sentence - 1) < 0)
        abort();
    abort();
}

/* All residents have gone: here, none runs a line of the library any more. */
static void see_them_off(kiln_pool *pool)
{
    for (uint32_t left; (left = LOAD(kiln_this_home.residents)) != 0;)
        kiln_wait(&kiln_this_home.residents, left);
    kiln_worker *ended = __atomic_exchange_n(&kiln_this_home.ended, NULL, __ATOMIC_SEQ_CST);
    while (ended != NULL) {
        kiln_worker *const worker = ended;
        ended = worker->next;
        pthread_join(worker->thread, NULL);
        STORE(worker->there, 0);
        ADD(pool->gaps, 1);
    }
}

/* At exit other threads may be calling us: their loops go on, and we go without waiting; what they
 * may use stays. (That it is exit() is not always known: another thread's very first loop may have
 * begun after exit() had asked for it.) */
void kiln_leave_pool(void)
{
    kiln_pool *const pool = LOAD(kiln_the_pool);
    if (pool == NULL)
        return;
    const int at_exit = kiln_is_exiting();
    STORE(kiln_this_home.closing, 1);
    const int running = LOAD(pool->job.home) == &kiln_this_home;
    if (running && !at_exit && is_inside(pool))
        refuse_to_go();
    ADD(pool->closings, 1);
    ADD(pool->bell, 1);
    kiln_wake(&pool->bell);
    if (!running)
        see_them_off(pool);
    SUB(pool->closings, 1);
    if (at_exit || running)
        return;
    errand what = {leave_pool, NULL, 0};
    under_loaders_lock(&what);
    free_pool(what.pool);
}
