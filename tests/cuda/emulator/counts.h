/* counts.h - what warps ask of memory, as the hardware counts it: turns of the banks of shared memory,
 * sectors of global memory; part of emulator.c. Readings of the documents, beside those at its top:
 *
 * - A warp is 32 consecutive threads of a block, x fastest (CUDA C++ Programming Guide, "Thread
 *   Hierarchy"). Its lanes execute an instruction together: the k-th time that each of them comes to
 *   it between two barriers is one request. Threads here have no order within a warp, so where lanes
 *   take different ways through a loop the hardware may split a request that counts as one.
 * - A request is of 1, 2, 4, 8 or 16 bytes a lane, to multiples of these ("Device Memory Accesses"): a
 *   vector of LLVM that is longer, or not known to be aligned, is several. Loads that LLVM's code
 *   generation would join or drop count as they stand in its text.
 * - Shared memory has 32 banks of 4 bytes, each of which delivers one word in a turn; lanes that want
 *   the same word get it in the same turn, and of those that write one, one wins ("Shared Memory" of
 *   compute capability 5.x and later). Requests of 8 bytes go by halves of a warp, of 16 bytes by
 *   quarters, one after the other. The least is a turn for each half or quarter that has a lane.
 *   cp.async counts as a load of global memory and a store to shared memory, where it is begun.
 * - Global memory is moved in sectors of 32 bytes ("Global Memory" of compute capability 6.0 and
 *   later): a request takes each sector in which it touches a byte. The least is the number of sectors
 *   that its bytes would fill. Tensors begin where the caller has put them. */
enum { SHARED_LOADS, SHARED_STORES, GLOBAL_LOADS, GLOBAL_STORES, COUNTED };
enum { LANES = 32, BANKS = 32, WORD = 4, SECTOR = 32, WIDEST = 16, PIECES = 64 };

typedef struct request {
    uint32_t thread, site, kind, size;
    uintptr_t at;
    size_t sequence;
} request;

typedef struct count {
    uint64_t requests, taken, least;
} count;

static int counting;
static uint32_t access_site; /* the instruction of a load or store; 0: one of a whole warp */
static count counts[COUNTED];
static request *requests;
static size_t n_requests, most_requests;

/* Note an access of the running thread. */
static void count_access(uintptr_t at, unsigned size, unsigned align, uint32_t kind)
{
    unsigned step = size & -size;
    if (step > align)
        step = align;
    if (step > WIDEST)
        step = WIDEST;
    for (unsigned i = 0; i * step < size; i++) {
        if (n_requests == most_requests) {
            most_requests = most_requests ? 2 * most_requests : 1 << 12;
            requests = realloc(requests, most_requests * sizeof *requests);
        }
        requests[n_requests] = (request){
            .thread = (uint32_t)running,
            .site = access_site * PIECES + i,
            .kind = kind,
            .size = step,
            .at = at + i * step,
            .sequence = n_requests,
        };
        n_requests++;
    }
}

/* By warp, instruction, what it does (a copy both loads and stores) and lane; those of one lane in
 * their order. */
static int in_order(const void *left, const void *right)
{
    const request *a = left, *b = right;
    if (a->thread / LANES != b->thread / LANES)
        return a->thread < b->thread ? -1 : 1;
    if (a->site != b->site)
        return a->site < b->site ? -1 : 1;
    if (a->kind != b->kind)
        return a->kind < b->kind ? -1 : 1;
    if (a->thread != b->thread)
        return a->thread < b->thread ? -1 : 1;
    return a->sequence < b->sequence ? -1 : 1;
}

/* How many of n numbers are different. */
static unsigned different(const uintptr_t *numbers, unsigned n)
{
    unsigned found = 0;
    for (unsigned i = 0; i < n; i++) {
        unsigned k = 0;
        while (k < i && numbers[k] != numbers[i])
            k++;
        found += k == i;
    }
    return found;
}

/* The turns of the banks for some lanes, each of which wants `size` bytes. */
static unsigned turns(const uintptr_t *at, unsigned lanes, unsigned size)
{
    uintptr_t words[BANKS][LANES];
    unsigned used[BANKS] = {0}, most = 0;
    for (unsigned i = 0; i < lanes; i++)
        for (unsigned k = 0; k * WORD < size; k++) {
            uintptr_t word = at[i] / WORD + k;
            words[word % BANKS][used[word % BANKS]++] = word;
        }
    for (unsigned b = 0; b < BANKS; b++) {
        unsigned own = different(words[b], used[b]);
        most = own > most ? own : most;
    }
    return most;
}

/* Count what `n` lanes of a warp ask for at once: `who` are their numbers, in order. */
static void count_request(const uintptr_t *at, const unsigned *who, unsigned n, unsigned size,
                          uint32_t kind)
{
    count *c = &counts[kind];
    uintptr_t sectors[LANES];
    c->requests++;
    if (kind == GLOBAL_LOADS || kind == GLOBAL_STORES) {
        for (unsigned i = 0; i < n; i++)
            sectors[i] = at[i] / SECTOR;
        c->taken += different(sectors, n);
        c->least += (different(at, n) * size + SECTOR - 1) / SECTOR;
        return;
    }
    const unsigned together = size <= WORD ? LANES : LANES * WORD / size;
    for (unsigned i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && who[end] / together == who[i] / together;)
            end++;
        c->taken += turns(at + i, end - i, size);
        c->least++;
    }
}

/* Count the requests since the last barrier. */
static void count_phase(void)
{
    if (n_requests == 0)
        return;
    qsort(requests, n_requests, sizeof *requests, in_order);
    for (size_t first = 0, end; first < n_requests; first = end) {
        size_t next[LANES], stop[LANES]; /* of each lane's requests by this instruction */
        const request *const r = &requests[first];
        memset(next, 0, sizeof next);
        memset(stop, 0, sizeof stop);
        for (end = first; end < n_requests && requests[end].site == r->site &&
                          requests[end].kind == r->kind &&
                          requests[end].thread / LANES == r->thread / LANES;
             end++) {
            const unsigned lane = requests[end].thread % LANES;
            if (stop[lane] == 0)
                next[lane] = end;
            stop[lane] = end + 1;
        }
        for (;;) {
            uintptr_t at[LANES];
            unsigned who[LANES], n = 0;
            for (unsigned lane = 0; lane < LANES; lane++)
                if (next[lane] < stop[lane]) {
                    who[n] = lane;
                    at[n++] = requests[next[lane]++].at;
                }
            if (n == 0)
                break;
            count_request(at, who, n, r->size, r->kind);
        }
    }
    n_requests = 0;
}

/* Count from now on (which begins at 0), or no longer. */
void emulator_count(int on)
{
    counting = on;
    if (on)
        memset(counts, 0, sizeof counts);
    n_requests = 0;
}

/* requests, what they took and the least, of loads and stores of shared, then of global memory. */
void emulator_counts(uint64_t found[3 * COUNTED])
{
    memcpy(found, counts, sizeof counts);
}
