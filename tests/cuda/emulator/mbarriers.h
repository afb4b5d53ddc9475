/* mbarriers.h - barriers in shared memory (mbarrier), and what they order: part of emulator.c.
 *
 * Each thread has a clock, which ticks when it arrives somewhere, and knows of each other thread up to
 * which tick it has done with things: so far as a barrier told it, whose turn ended and for which it
 * waited. What copies write is done by an agent of their thread, with a clock of its own, since an
 * arrival of copies (cp.async.mbarrier.arrive.noinc) says nothing of what their thread does itself. */
enum { AGENTS = 2 * MOST_THREADS, MOST_BARRIERS = 64, MOST_ARRIVALS = 4096 };

typedef struct mbarrier {
    const char *at;
    unsigned count, missing, turn;
    uint32_t made_by, made; /* made: when, as `now` counts */
    int is_fenced;          /* whoever made it has made it visible to the async proxy */
    long bytes;             /* that are expected in this turn and have not come (bulk.h) */
    unsigned promised[MOST_THREADS], left[MOST_THREADS]; /* by thread: the turn, plus one, in which it
                                                            last expected some, and those not begun */
    uint32_t known[AGENTS], told[AGENTS]; /* by those who arrived in this turn; at the last turn's end */
} mbarrier;

static mbarrier mbarriers[MOST_BARRIERS];
static int n_mbarriers;
static uint32_t clocks[AGENTS], (*seen)[AGENTS]; /* seen: by thread */
/* By byte of shared memory: the agent that wrote it last and its clock then; the clock of who read it
 * last; and of each warp that multiplied it, if that was at `multiplied`. */
static uint16_t *wrote_agent;
static uint32_t *wrote_tick, *read_tick, *multiplied, (*multiplied_tick)[MOST_THREADS / WARP_THREADS];

/* Arrivals of copies that have not happened yet. */
typedef struct arrival {
    int thread;
    mbarrier *b;
} arrival;
static arrival arrivals[MOST_ARRIVALS];
static int n_arrivals;

static void forget_barriers(void)
{
    const size_t bytes = (size_t)n_threads * sizeof **seen;
    for (int t = 0; n_mbarriers && t < n_threads; t++) {
        memset(seen[t], 0, bytes);
        memset(seen[t] + MOST_THREADS, 0, bytes);
    }
    if (n_mbarriers)
        memset(wrote_tick, 0, shared_bytes * sizeof *wrote_tick);
    n_mbarriers = n_arrivals = 0;
    for (int t = 0; t < n_threads; t++)
        clocks[t] = clocks[MOST_THREADS + t] = 1;
}

/* Whether the running thread knows that who wrote a byte of shared memory is done with it. */
static int knows_write(unsigned long at)
{
    return n_mbarriers && seen[running][wrote_agent[at]] >= wrote_tick[at];
}

static void note_tick_of_read(unsigned long at)
{
    read_tick[at] = clocks[running];
}

static int knows_read(unsigned long at, uint32_t reader)
{
    return n_mbarriers && !(reader & MANY_THREADS) &&
           seen[running][reader - block_first] >= read_tick[at];
}

/* Whether the running thread knows that all warps are done that multiplied a byte since the last
 * barrier of the block. */
static int knows_products(unsigned long at)
{
    if (multiplied[at] != now)
        return 1;
    for (int w = 0; w < MOST_THREADS / WARP_THREADS; w++)
        if (multiplied_tick[at][w] &&
            (!n_mbarriers ||
             seen[running][w * WARP_THREADS + WARP_THREADS - 1] < multiplied_tick[at][w]))
            return 0;
    return 1;
}

static mbarrier *mbarrier_at(const char *p)
{
    for (int k = 0; k < n_mbarriers; k++)
        if (mbarriers[k].at == p)
            return &mbarriers[k];
    FAIL(OPERAND, "%s uses a barrier at %ld of shared memory, which nobody has made",
         thread_name(own_number()), (long)(p - shared));
    return NULL;
}

static mbarrier *usable(const char *p)
{
    mbarrier *b = mbarrier_at(p);
    if (b->made_by != own_number() && b->made == now)
        FAIL(RACE, "%s uses the barrier at %ld of shared memory, which %s made, with no barrier between "
                   "them",
             thread_name(own_number()), (long)(p - shared), thread_name(b->made_by));
    return b;
}

void nvvm_mbarrier_init_shared(const char *p, unsigned count)
{
    if (p < shared || p + 8 > shared + shared_bytes || (p - shared) % 8)
        FAIL(SHARED_BOUNDS, "%s makes a barrier at %ld of %u bytes of shared memory",
             thread_name(own_number()), (long)(p - shared), shared_bytes);
    for (int k = 0; k < n_mbarriers; k++)
        if (mbarriers[k].at == p)
            FAIL(OPERAND, "%s makes a barrier at %ld of shared memory, where one is",
                 thread_name(own_number()), (long)(p - shared));
    if (n_mbarriers == MOST_BARRIERS || !count)
        FAIL(OPERAND, "%s makes a barrier for %u threads, or one too many", thread_name(own_number()),
             count);
    mbarrier *b = &mbarriers[n_mbarriers++];
    memset(b, 0, sizeof *b);
    b->at = p;
    b->count = b->missing = count;
    b->made_by = own_number();
    b->made = now;
}

/* End the turn of a barrier at which all have arrived that are to. */
static void ends_turn(mbarrier *b)
{
    if (b->missing || b->bytes)
        return;
    memcpy(b->told, b->known, sizeof b->told);
    b->missing = b->count;
    b->turn++;
}

static void arrives(mbarrier *b)
{
    if (!b->missing)
        say(OPERAND, "%s arrives at the barrier at byte %ld of shared memory, where all have arrived",
            thread_name(own_number()), (long)(b->at - shared));
    else
        b->missing--;
    ends_turn(b);
}

static void tell(uint32_t *known, const uint32_t *more)
{
    for (int k = 0; k < AGENTS; k++)
        if (more[k] > known[k])
            known[k] = more[k];
}

uint64_t nvvm_mbarrier_arrive_shared(const char *p)
{
    mbarrier *b = usable(p);
    tell(b->known, seen[running]);
    b->known[running] = clocks[running]++;
    arrives(b);
    return 0;
}

/* What a thread has copied is there, and arrives. */
static void copies_arrive(const arrival *a)
{
    const int was = running, agent = MOST_THREADS + a->thread;
    running = a->thread;
    end_copies(UINT32_MAX, agent);
    a->b->known[agent] = clocks[agent]++;
    running = was;
    arrives(a->b);
}

void nvvm_cp_async_mbarrier_arrive_noinc_shared(const char *p)
{
    const arrival a = {running, usable(p)};
    if (!late) {
        copies_arrive(&a);
        return;
    }
    if (n_arrivals == MOST_ARRIVALS)
        FAIL(OPERAND, "%s has copies arrive that nobody waits for", thread_name(own_number()));
    arrivals[n_arrivals++] = a;
}

/* All threads wait: the first copies arrive that have not yet. Whether there were any. */
static int late_arrival(void)
{
    if (!n_arrivals)
        return 0;
    copies_arrive(&arrivals[0]);
    memmove(arrivals, arrivals + 1, (size_t)--n_arrivals * sizeof *arrivals);
    return 1;
}

/* Wait until a turn of this parity is over. */
int nvvm_mbarrier_try_wait_parity_scope_cta_space_cta(const char *p, unsigned parity)
{
    mbarrier *b = usable(p);
    while ((b->turn & 1) == (parity & 1)) {
        fibers[running].state = IN_BARRIER;
        fibers[running].row = p;
        fibers[running].how = parity;
        leave();
    }
    tell(seen[running], b->told);
    return 1;
}

/* Let threads go on whose turn is over. Whether there were any. */
static int run_barriers(void)
{
    int any = 0;
    for (int t = 0; t < n_threads; t++) {
        fiber *f = &fibers[t];
        if (f->state != IN_BARRIER)
            continue;
        for (int k = 0; k < n_mbarriers; k++)
            if (mbarriers[k].at == f->row && (mbarriers[k].turn & 1) != (f->how & 1)) {
                f->state = READY;
                any = 1;
            }
    }
    return any;
}

/* Say that nobody will end the turn for which threads wait; 0 if none do. */
static int deadlock(void)
{
    int waiting = 0, first = -1;
    for (int t = n_threads - 1; t >= 0; t--)
        if (fibers[t].state == IN_BARRIER) {
            waiting++;
            first = t;
        }
    if (!waiting)
        return 0;
    for (int k = 0; k < n_mbarriers; k++)
        if (mbarriers[k].at == fibers[first].row)
            say(DEADLOCK, "%s waits at the barrier at byte %ld of shared memory, at which %u of %u have "
                          "not arrived in turn %u, and %ld bytes have not; %d threads wait for ever",
                thread_name(block_first + (uint32_t)first), (long)(fibers[first].row - shared),
                mbarriers[k].missing, mbarriers[k].count, mbarriers[k].turn, mbarriers[k].bytes,
                waiting);
    return 1;
}

/* The threads of a warp meet: each knows then what one of them knows, and what they did. */
static void join_warp(fiber *warp, unsigned how)
{
    static uint32_t all[AGENTS];
    (void)how;
    memset(all, 0, sizeof all);
    const int first = (int)(warp - fibers);
    for (int t = first; t < first + WARP_THREADS; t++) {
        tell(all, seen[t]);
        all[t] = clocks[t]++;
    }
    for (int t = first; t < first + WARP_THREADS; t++)
        tell(seen[t], all);
}

__attribute__((noinline)) void nvvm_bar_warp_sync(unsigned mask)
{
    const unsigned site = (unsigned)(uintptr_t)__builtin_return_address(0);
    if (mask != UINT32_MAX)
        FAIL(OPERAND, "%s waits for some threads of its warp", thread_name(own_number()));
    meet("bar.warp.sync", NULL, site, 0, join_warp, WARP_THREADS);
}
