/* emulator.c - threads of a GPU on a CPU, for tests: the runtime of kernels whose LLVM IR was compiled
 * for this machine (build.py), with a fiber for each thread of a block.
 *
 * What it rests on, of the PTX ISA and the CUDA C++ Programming Guide:
 * - Blocks run in any order, one after the other is one of them. The threads of a block run in any
 *   order between two barriers; there is no order of the threads of a warp.
 * - bar.sync 0 (barrier.sync.aligned) is executed by all threads of the block, at the same place of
 *   the program. That hardware lets go of a barrier when threads have left instead is not relied on.
 * - A barrier orders the accesses of its block to shared and to global memory. Nothing within a launch
 *   orders accesses of two blocks. Two accesses of a byte, one of which writes, by threads that no
 *   barrier orders are a race, whatever the values are.
 * - An access is aligned as its instruction says. Shared memory begins at an address that is aligned
 *   for all; its contents are undefined when a block begins: bytes are 0xff, and reading one that the
 *   block has not written is a fault.
 * - mma.sync and ldmatrix are executed by all 32 threads of a warp, numbers 32 * n to 32 * n + 31 of
 *   the block, at the same place of the program. Products are exact; sums may round towards zero after
 *   each term, in any order: here they do, in ascending order. Factors of type tf32 must have been
 *   rounded to it. ldmatrix reads 16 bytes per row, from the first 8, 16 or 32 threads' addresses, as
 *   accesses of these threads; a thread needs no barrier to see what its warp's other threads loaded.
 * - wgmma is executed by the 128 threads of a warpgroup, numbers 128 * n to 128 * n + 127, at the same
 *   place of the program ("Asynchronous Warpgroup Level Matrix Instructions"). A matrix lies as its
 *   descriptor says, of which the layout with 128-byte swizzling is known here: the pattern is one of
 *   addresses, of eight rows of 128 bytes. It begins after a wgmma.fence that follows what threads did
 *   to their registers; here each wait asks for another. It is done when its threads have waited for
 *   the batch in which they committed it, each warp by itself: until then it may read its matrices at
 *   any time, and its sums are not there.
 * - It reads shared memory through the async proxy: what a thread wrote is there after its
 *   fence.proxy.async, and a barrier.
 * - cp.async is a copy by a thread of its own, which may happen at any time from then until the thread
 *   has waited for it (cp.async.wait_all, or wait_group for all but its last batches, each of which
 *   ends at a commit_group); other threads see it after a barrier behind that. Both
 *   addresses are multiples of its size, 4, 8 or 16; of src-size bytes that are less than these the
 *   rest is zero, and where it is 0 nothing is read.
 * - mbarrier ("Asynchronous Barriers"): a turn ends when as many threads have arrived as it was made for;
 *   what these did before is there for whoever waits for that turn, by its parity. An arrival of copies
 *   (cp.async.mbarrier.arrive.noinc) is one that happens when all copies of its thread have, and says
 *   nothing of what the thread itself did. bar.warp.sync orders the threads of a warp. A fence.proxy.async
 *   of those that multiply, after they waited, serves as well as one of those that wrote ("linked by a
 *   proxy fence along the base causality path").
 * - cp.async.bulk.tensor copies a box of a tensor by hardware; what it rests on is in bulk.h.
 * - A kernel with .reqntid is launched with that block only. A grid has at most 2^31-1 blocks along x
 *   and 65535 along y and z; a block has at most 1024 threads, 64 along z.
 *
 * It counts what requests of warps cost: counts.h has the readings on which that rests.
 *
 * What it does not show: other instructions of warps, memory order finer than barriers, speed. */
#define _GNU_SOURCE
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#include "tensor_maps.h"

enum { RACE = 1, BARRIER, SHARED_BOUNDS, BOUNDS, ALIGNMENT, LAUNCH, UNDEFINED, WARP, OPERAND, COPYING,
       PRODUCT, PROXY, DEADLOCK, BYTES };
enum { FORWARD, BACKWARD, RANDOM };
enum { MOST_THREADS = 1024, STACK = 256 << 10, GUARD = 64 << 10, MOST_SHARED = 227 << 10 };
enum { PAGE = 4096, MOST_REGIONS = 1 << 16, MANY_THREADS = 1u << 31, MANY_BLOCKS = 1u << 30 };

/* Who touched a byte last: threads are numbers in the grid plus one, times count barriers. */
typedef struct touched {
    uint32_t writer, written, reader, read;
} touched;

typedef struct page {
    uintptr_t number;
    touched *bytes;
} page;

typedef struct fiber {
#if defined(__x86_64__)
    void *sp;
#else
    ucontext_t context;
#endif
    unsigned x, y, z;
    enum { READY, WAITING, IN_WARP, IN_BARRIER, DONE } state;
    const void *where; /* of the barrier, or of the instruction of a warp, which is: */
    const char *instruction;
    uint32_t *registers;
    const char *row;
    unsigned how, columns, threads; /* threads: how many execute it together */
    uint64_t left, right;
    void (*together)(struct fiber *, unsigned);
} fiber;

typedef struct region {
    uintptr_t start, end;
} region;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local char message[600];
static char said[600];
static int fault, order = FORWARD, watch = 1;
static uint64_t state_of_random = 1;
static fiber fibers[MOST_THREADS], scheduler;
static int running, n_threads;
static char *stacks, *shared_area, *shared;
static unsigned shared_bytes;
static touched *shared_touched;
static unsigned grid_of[3], block_of[3], block[3];
static const char *kernel;
static void (*body)(void **);
static void **arguments;
static uint32_t now, launch_began, block_began, block_number, block_first;
static long undefined_at; /* a byte that was read before anybody wrote it; -1: none */
static uint32_t undefined_by;
static void written_for_products(unsigned long at);
static int knows_write(unsigned long at), knows_read(unsigned long at, uint32_t reader);
static int knows_products(unsigned long at);
static void note_tick_of_read(unsigned long at);
static void end_copies(uint32_t batches, int agent);
static uint32_t *copying; /* by byte of shared memory: the thread that has begun to copy to it; 0: none */
static page *pages;
static size_t n_pages, capacity;
static region regions[MOST_REGIONS];
static int n_regions;

#include "fibers.h"

/* ---- faults ----------------------------------------------------------------------------------- */
static void say(int number, const char *format, ...)
{
    va_list list;
    if (fault)
        return;
    fault = number;
    int n = snprintf(said, sizeof said, "kernel %s, block (%u, %u, %u): ", kernel, block[0],
                     block[1], block[2]);
    va_start(list, format);
    vsnprintf(said + n, sizeof said - (size_t)n, format, list);
    va_end(list);
}

/* End the launch from within a thread. */
#define FAIL(...)           \
    do {                    \
        say(__VA_ARGS__);   \
        leave();            \
    } while (0)

/* A thread in words, by its number in the grid plus one; with its block if that is another. */
static const char *thread_name(uint32_t number)
{
    static char names[4][80];
    static int next;
    char *name = names[next++ & 3];
    uint32_t of_block = (number - 1) % (uint32_t)n_threads, b = (number - 1) / (uint32_t)n_threads;
    unsigned x = of_block % block_of[0], y = of_block / block_of[0] % block_of[1];
    unsigned z = of_block / block_of[0] / block_of[1];
    int n = snprintf(name, sizeof names[0], "thread (%u, %u, %u)", x, y, z);
    if (b != block_number)
        snprintf(name + n, sizeof names[0] - (size_t)n, " of block (%u, %u, %u)", b % grid_of[0],
                 b / grid_of[0] % grid_of[1], b / grid_of[0] / grid_of[1]);
    return name;
}

static uint32_t own_number(void)
{
    return block_first + (uint32_t)running;
}

#include "counts.h"
#include "touched.h"

/* ---- instructions ----------------------------------------------------------------------------- */
#define REGISTER(name, value)                \
    unsigned nvvm_read_ptx_sreg_##name(void) \
    {                                        \
        return value;                        \
    }
REGISTER(tid_x, fibers[running].x)
REGISTER(tid_y, fibers[running].y)
REGISTER(tid_z, fibers[running].z)
REGISTER(ctaid_x, block[0])
REGISTER(ctaid_y, block[1])
REGISTER(ctaid_z, block[2])

char *emulator_shared(void)
{
    return shared;
}

__attribute__((noinline)) void nvvm_barrier_cta_sync_aligned_all(unsigned number)
{
    (void)number;
    fibers[running].state = WAITING;
    fibers[running].where = __builtin_return_address(0);
    leave();
}

#include "warps.h"
static int late; /* copies happen as late as they may */
static uint64_t random_number(void);
#include "mbarriers.h"
#include "warpgroups.h"
#include "copies.h"
#include "bulk.h"

/* ---- launches --------------------------------------------------------------------------------- */
static uint64_t random_number(void)
{
    state_of_random ^= state_of_random << 13;
    state_of_random ^= state_of_random >> 7;
    state_of_random ^= state_of_random << 17;
    return state_of_random;
}

/* The numbers 0 .. n-1 in the order that is asked for. */
static void arrange(uint32_t *numbers, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        numbers[i] = order == BACKWARD ? n - 1 - i : i;
    for (uint32_t i = n; order == RANDOM && i > 1; i--) {
        uint32_t k = (uint32_t)(random_number() % i), t = numbers[i - 1];
        numbers[i - 1] = numbers[k];
        numbers[k] = t;
    }
}

static void run_block(void)
{
    uint32_t turn[MOST_THREADS];
    memset(shared, 0xff, shared_bytes);
    block_began = ++now;
    undefined_at = -1;
    forget_products();
    forget_copies();
    forget_bulks();
    forget_barriers();
    for (int t = 0; t < n_threads; t++)
        prepare(t);
    for (;;) {
        int waiting = -1, done = -1;
        arrange(turn, (uint32_t)n_threads);
        for (int i = 0; i < n_threads; i++) {
            if (fibers[turn[i]].state == READY)
                enter((int)turn[i]);
            if (fault)
                return;
        }
        if (run_barriers() || run_warps(0) || late_arrival() || late_bulk() || run_warps(1)) {
            if (fault)
                return;
            continue;
        }
        if (deadlock())
            return;
        count_phase();
        if (undefined_at >= 0) { /* and no thread wrote it until the barrier: that were a race */
            say(UNDEFINED, "%s reads byte %ld of shared memory, which nobody wrote",
                thread_name(undefined_by), undefined_at);
            return;
        }
        for (int t = n_threads - 1; t >= 0; t--)
            *(fibers[t].state == DONE ? &done : &waiting) = t;
        if (waiting < 0)
            return;
        if (done >= 0) {
            say(BARRIER, "%s waits at a barrier, and %s has ended without it",
                thread_name(block_first + (uint32_t)waiting), thread_name(block_first + (uint32_t)done));
            return;
        }
        for (int t = 0; t < n_threads; t++)
            if (fibers[t].where != fibers[0].where) {
                say(BARRIER, "%s and %s wait at different barriers", thread_name(block_first),
                    thread_name(block_first + (uint32_t)t));
                return;
            }
        now++;
        for (int t = 0; t < n_threads; t++)
            fibers[t].state = READY;
    }
}

static void make_memory(void)
{
    const int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, both = PROT_READ | PROT_WRITE;
    if (stacks)
        return;
    stacks = mmap(NULL, (size_t)MOST_THREADS * STACK, both, how, -1, 0);
    shared_area = mmap(NULL, MOST_SHARED + 2 * GUARD, both, how, -1, 0);
    shared = shared_area + GUARD;
    shared_touched = calloc(MOST_SHARED, sizeof *shared_touched);
    read_by_products = calloc(MOST_SHARED, sizeof *read_by_products);
    wrote_at = calloc(MOST_SHARED, sizeof *wrote_at);
    copying = calloc(MOST_SHARED, sizeof *copying);
    seen = calloc(MOST_THREADS, sizeof *seen);
    wrote_agent = calloc(MOST_SHARED, sizeof *wrote_agent);
    wrote_tick = calloc(MOST_SHARED, sizeof *wrote_tick);
    read_tick = calloc(MOST_SHARED, sizeof *read_tick);
    multiplied = calloc(MOST_SHARED, sizeof *multiplied);
    multiplied_tick = calloc(MOST_SHARED, sizeof *multiplied_tick);
}

static void free_memory(void)
{
    void *made[] = {shared_touched, read_by_products, wrote_at, copying, seen, wrote_agent,
                    wrote_tick, read_tick, multiplied, multiplied_tick};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        free(made[i]);
    munmap(stacks, (size_t)MOST_THREADS * STACK);
    munmap(shared_area, MOST_SHARED + 2 * GUARD);
    stacks = NULL;
    forget_touched();
}

static int legal(const unsigned grid[3], const unsigned block_[3], const unsigned needed[3],
                 unsigned bytes)
{
    if (memcmp(block_, needed, sizeof block_of))
        say(LAUNCH, "it is launched with %u x %u x %u threads, and made for %u x %u x %u",
            block_[0], block_[1], block_[2], needed[0], needed[1], needed[2]);
    else if (block_[0] * block_[1] * block_[2] > MOST_THREADS || block_[2] > 64)
        say(LAUNCH, "a block of %u x %u x %u threads", block_[0], block_[1], block_[2]);
    else if (!grid[0] || !grid[1] || !grid[2] || grid[0] > INT32_MAX || grid[1] > 65535 ||
             grid[2] > 65535)
        say(LAUNCH, "a grid of %u x %u x %u blocks", grid[0], grid[1], grid[2]);
    else if (bytes > MOST_SHARED)
        say(LAUNCH, "%u bytes of shared memory", bytes);
    return !fault;
}

/* Run a kernel, made for `needed` threads. Returns 0 or a fault. */
int emulator_run(const char *name, void (*call)(void **), const unsigned grid[3],
                 const unsigned block_[3], const unsigned needed[3], unsigned bytes, void **args)
{
    pthread_mutex_lock(&lock);
    make_memory();
    kernel = name;
    body = call;
    arguments = args;
    fault = 0;
    memset(block, 0, sizeof block);
    if (legal(grid, block_, needed, bytes)) {
        memcpy(grid_of, grid, sizeof grid_of);
        memcpy(block_of, block_, sizeof block_of);
        n_threads = (int)(block_[0] * block_[1] * block_[2]);
        shared_bytes = bytes;
        launch_began = ++now;
        n_requests = 0;
        uint32_t count = grid[0] * grid[1] * grid[2];
        uint32_t *turn = malloc(count * sizeof *turn);
        arrange(turn, count);
        for (uint32_t i = 0; i < count && !fault; i++) {
            block_number = turn[i];
            block_first = block_number * (uint32_t)n_threads + 1;
            block[0] = block_number % grid[0];
            block[1] = block_number / grid[0] % grid[1];
            block[2] = block_number / grid[0] / grid[1];
            run_block();
        }
        free(turn);
    }
    memcpy(message, said, sizeof message);
    int found = fault;
    free_memory();
    pthread_mutex_unlock(&lock);
    return found;
}

/* ---- what whoever launches may ask for -------------------------------------------------------- */
const char *emulator_message(void)
{
    return message;
}

/* The order of threads and blocks: 0 forward, 1 backward, 2 random by `seed`. */
void emulator_order(int which, uint64_t seed)
{
    order = which;
    state_of_random = seed * 2 + 1;
}

/* Whether races in buffers are looked for (they are); it takes 16 bytes for each that is touched. */
void emulator_watch(int on)
{
    watch = on;
}

/* Memory that kernels may touch, all of it as it was given. If none is, they may touch any; a piece of
 * no bytes is enough for that they may not. */
int emulator_buffer(const void *start, size_t bytes)
{
    pthread_mutex_lock(&lock);
    const int fits = n_regions < (int)MOST_REGIONS;
    if (fits)
        regions[n_regions++] = (region){(uintptr_t)start, (uintptr_t)start + bytes};
    pthread_mutex_unlock(&lock);
    return fits ? 0 : -1;
}

void emulator_forget(const void *start)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_regions; i++)
        if (regions[i].start == (uintptr_t)start) {
            regions[i] = regions[--n_regions];
            break;
        }
    pthread_mutex_unlock(&lock);
}
