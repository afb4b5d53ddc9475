/* Worker threads of the pool: they wait for jobs, run chunks of them, and move from one library to
 * another. pool.h describes their data.
 *
 * A waiting thread spins for 200 microseconds, then sleeps on a futex: loops often follow each
 * other closely, and an idle process should use no CPU. Waking a worker costs the caller 5
 * microseconds, and the worker starts 15 to 50 microseconds later; for a spinning worker both are
 * below one.
 *
 * After 10 microseconds it also hands its processor over in every round: where other programs run
 * too, the thread that it waits for may be ready on this very processor, with a chunk half done. */
#include "pool.h"

#define SPIN_NANOSECONDS 200000
#define FIRM_NANOSECONDS 10000 /* of these, before it hands over */

/* ---- entry ---------------------------------------------------------------------------------- */

/* kiln_worker_entry() is entered with the kiln_worker as its argument, at the start of a
 * thread or by a jump from the kiln_worker_entry() of another library. It calls kiln_work(), then pops its
 * frame and jumps to the entry that kiln_work() returned, or returns. So its return address always
 * points into the C library, never into another Tensorkiln library. */
#if defined(KILN_OS_CAN_SHARE)
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
#elif defined(__riscv)
        "    addi sp, sp, -16\n"
        "    .cfi_def_cfa_offset 16\n"
        "    sd ra, 8(sp)\n"
        "    .cfi_offset ra, -8\n"
        "    sd a0, 0(sp)\n"
        "    call kiln_work\n"
        "    mv t1, a0\n"
        "    ld a0, 0(sp)\n"
        "    ld ra, 8(sp)\n"
        "    .cfi_restore ra\n"
        "    addi sp, sp, 16\n"
        "    .cfi_def_cfa_offset 0\n"
        "    beqz t1, 1f\n"
        "    jr t1\n"
        "1:  li a0, 0\n"
        "    ret\n"
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
    kiln_work(worker); /* never moves: without the note the pool is not shared */
    return NULL;
}
#endif

kiln_home kiln_this_home = {kiln_worker_entry, 0, 0, NULL};

/* ---- chunks, for callers too --------------------------------------------------------------- */

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __asm__ volatile("pause");
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#elif defined(__riscv)
    __asm__ volatile(".insn i 0x0f, 0, x0, x0, 0x010"); /* pause, a hint where it is not known */
#endif
}

int kiln_spin(const uint32_t *word, uint32_t value)
{
    const int64_t begin = kiln_os_nanoseconds();
    int64_t spent;
    do {
        for (int i = 0; i < 32; i++) {
            if (__atomic_load_n(word, __ATOMIC_ACQUIRE) != value)
                return 1;
            relax();
        }
        spent = kiln_os_nanoseconds() - begin;
        if (spent > FIRM_NANOSECONDS)
            kiln_os_yield();
    } while (spent < SPIN_NANOSECONDS && !__atomic_load_n(&kiln_this_home.closing, __ATOMIC_RELAXED));
    return 0;
}

/* Sizes of parts differ by at most one; the first n % chunks parts are the larger ones. */
void kiln_run_chunk(const kiln_job *job, uint32_t chunk)
{
    const int64_t each = job->n / job->chunks, more = job->n % job->chunks;
    const int64_t begin = chunk * each + (chunk < more ? chunk : more);
    job->body(job->closure, begin, begin + each + (chunk < more));
}

int32_t kiln_claim(kiln_pool *pool, uint32_t ticket, int from_back)
{
    uint64_t seen = LOAD(pool->claims);
    for (;;) {
        const uint32_t front = (uint32_t)(seen >> 16) & 0xffff, back = (uint32_t)seen & 0xffff;
        if ((uint32_t)(seen >> 32) != ticket || front >= back)
            return -1;
        const uint64_t next = from_back ? seen - 1 : seen + 0x10000;
        if (__atomic_compare_exchange_n(&pool->claims, &seen, next, 0, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST))
            return (int32_t)(from_back ? back - 1 : front);
    }
}

void kiln_ring(kiln_pool *pool)
{
    ADD(pool->wake_count, 1);
    kiln_os_wake(&pool->wake_count);
}

/* ---- workers ------------------------------------------------------------------------------- */

static void await_job(kiln_pool *pool, uint32_t seen)
{
    if (kiln_spin(&pool->sequence, seen))
        return;
    ADD(pool->sleepers, 1);
    for (;;) {
        const uint32_t wakes = LOAD(pool->wake_count);
        if (LOAD(pool->sequence) != seen || LOAD(kiln_this_home.closing))
            break;
        kiln_os_wait(&pool->wake_count, wakes);
    }
    SUB(pool->sleepers, 1);
}

/* Count this thread out of `home`. Right after, the home's library may be unmapped: kiln_os_wake()
 * uses only its address. */
static void leave(kiln_pool *pool, kiln_home *home)
{
    SUB(home->residents, 1);
    if (LOAD(pool->closings))
        kiln_os_wake(&home->residents);
}

/* End a worker whose home is being unloaded: queue it to be joined. */
static kiln_thread_start end(kiln_worker *self)
{
    self->next = LOAD(kiln_this_home.ended);
    while (!__atomic_compare_exchange_n(&kiln_this_home.ended, &self->next, self, 0,
                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ;
    leave(self->pool, &kiln_this_home);
    return NULL;
}

static kiln_job read_job(const kiln_pool *pool)
{
    kiln_job job;
    job.home = LOAD(pool->job.home);
    job.caller = LOAD(pool->job.caller);
    job.body = LOAD(pool->job.body);
    job.closure = LOAD(pool->job.closure);
    job.n = LOAD(pool->job.n);
    job.chunks = LOAD(pool->job.chunks);
    job.threads = LOAD(pool->job.threads);
    return job;
}

/* Run a chunk that is claimed already, and then all that this worker can claim. */
static void take_part(kiln_worker *self, const kiln_job *job, int32_t chunk)
{
    kiln_pool *const pool = self->pool;
    do {
        kiln_run_chunk(job, (uint32_t)chunk);
        ADD(pool->arrived, 1);
        if (LOAD(pool->caller_sleeps))
            kiln_os_wake(&pool->arrived);
    } while ((chunk = kiln_claim(pool, self->seen, self->number & 1)) >= 0);
}

kiln_thread_start kiln_work(kiln_worker *self)
{
    kiln_pool *const pool = self->pool;
    STORE(self->thread, kiln_os_this_thread());
    if (self->left != NULL) {
        leave(pool, self->left);
        self->left = NULL;
        const kiln_job job = read_job(pool); /* cannot change: its caller waits for our chunk */
        take_part(self, &job, self->chunk);
    }
    for (;;) {
        if (LOAD(kiln_this_home.closing))
            return end(self);
        const uint32_t ticket = LOAD(pool->sequence);
        if (ticket == self->seen) {
            await_job(pool, ticket);
            continue;
        }
        if (ticket & 1) {
            relax();
            continue;
        }
        const kiln_job job = read_job(pool);
        if (LOAD(pool->sequence) != ticket)
            continue;
        self->seen = ticket;
        int32_t chunk;
        if (self->number >= job.threads || (chunk = kiln_claim(pool, ticket, self->number & 1)) < 0)
            continue;
        if (job.home == &kiln_this_home) {
            take_part(self, &job, chunk);
            continue;
        }
        /* Move to the job's library, which the claim keeps loaded. This thread is counted as its
         * resident before it is counted out of this library. */
        ADD(job.home->residents, 1);
        self->left = &kiln_this_home;
        self->chunk = chunk;
        return job.home->entry;
    }
}
