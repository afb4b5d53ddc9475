/* bulk.h - cp.async.bulk.tensor: copies of boxes of tensors to shared memory by hardware (TMA), which one
 * thread begins, and which count their bytes at an mbarrier: part of emulator.c.
 *
 * - An arrival with expect_tx says how many bytes will come in this turn: the turn ends when all threads
 *   have arrived and all of these bytes have ("mbarrier Object", "tx-count"). Here a thread says so before
 *   it begins the copies; the documents allow the other order too, of which no kernel makes use.
 * - A copy counts all bytes of its box, those outside of the tensor too, which become zeros.
 * - The destination is a multiple of 128 bytes; the pieces of 16 bytes of its rows are permuted by bits 7
 *   to 9 of their addresses, where the map says so.
 * - Copies are of the async proxy: products see what they wrote with no fence, whoever waited for their
 *   turn; but what threads wrote there before, and the barrier itself, must have been made visible to that
 *   proxy by a fence of the thread that did it, and a barrier of the block after it.
 * They happen as early as they may, when they are begun, or as late, when all threads wait, in the order
 * in which threads run: forward, backward or at random. */
typedef struct bulk {
    int thread;
    mbarrier *b;
    char *to;
    tensor_map map;
    int at[MOST_DIMS];
    int tap[2]; /* of windows: column and row */
    unsigned turn;
} bulk;

enum { MOST_BULKS = 1024 };
static bulk bulks[MOST_BULKS];
static int n_bulks;

static void forget_bulks(void)
{
    n_bulks = 0;
}

static unsigned bytes_of_box(const tensor_map *m)
{
    unsigned bytes = m->element;
    for (int d = 0; d < m->rank; d++)
        bytes *= m->box[d];
    return bytes;
}

/* Where byte `at` of a box is in shared memory. */
static unsigned long place_of_byte(const bulk *c, unsigned long at)
{
    const unsigned long p = (unsigned long)(c->to - shared) + at;
    return c->map.swizzle ? p ^ ((p >> 7 & (c->map.swizzle / 16 - 1u)) << 4) : p;
}

/* How many windows there are along columns (0) or rows (1). */
static long windows_along(const tensor_map *m, int d)
{
    return ((long)m->dims[d + 1] - 1 + m->upper[d] - m->lower[d]) / m->steps[d] + 1;
}

/* The place of a pixel of windows of images: those of a row one after the other, then the next row, then
 * the next image, from the first window on; 0 if that is none. */
static int place_of_pixel(const bulk *c, long pixel, long place[3])
{
    const tensor_map *const m = &c->map;
    const long columns = windows_along(m, 0), rows = windows_along(m, 1);
    const long column = c->at[1] - m->lower[0], row = c->at[2] - m->lower[1];
    if (column < 0 || row < 0 || c->at[3] < 0 || column % m->steps[0] || row % m->steps[1] ||
        column / m->steps[0] >= columns || row / m->steps[1] >= rows)
        return 0;
    const long number = (c->at[3] * rows + row / m->steps[1]) * columns + column / m->steps[0] + pixel;
    place[0] = m->lower[0] + number % columns * m->steps[0] + c->tap[0];
    place[1] = m->lower[1] + number / columns % rows * m->steps[1] + c->tap[1];
    place[2] = number / columns / rows;
    return 1;
}

/* The element of the tensor for element k of a box, or of windows; NULL: outside. */
static const char *source_of(const bulk *c, unsigned long k)
{
    const tensor_map *const m = &c->map;
    const char *from = (const char *)(uintptr_t)m->address;
    int inside = 1;
    long place[3], rest = (long)k;
    const int is_windows = m->steps[0] > 0;
    if (is_windows)
        place_of_pixel(c, (long)k / m->box[0], place);
    for (int d = 0; d < m->rank; d++) {
        const long index = is_windows && d ? place[d - 1] : c->at[d] + rest % m->box[d];
        rest /= is_windows ? 1 : m->box[d];
        inside &= index >= 0 && (uint64_t)index < m->dims[d];
        from += index * (long)(d ? m->strides[d - 1] : m->element);
    }
    return inside ? from : NULL;
}

/* Do something with each element of a box: its place in shared memory, and in the tensor; NULL: outside. */
static void for_each_element(const bulk *c, void (*what)(const bulk *, unsigned long, const char *))
{
    const tensor_map *const m = &c->map;
    const unsigned long count = bytes_of_box(m) / m->element;
    for (unsigned long k = 0; k < count && !fault; k++)
        what(c, place_of_byte(c, k * m->element), source_of(c, k));
}

static void check_element(const bulk *c, unsigned long to, const char *from)
{
    const unsigned n = c->map.element;
    if (from)
        access_to((char *)(uintptr_t)from, n, n, 0);
    for (unsigned i = 0; i < n; i++) {
        const touched *const t = &shared_touched[to + i];
        if (t->written >= block_began && wrote_at[to + i] > proxy_fenced[t->writer - block_first])
            FAIL(PROXY, "%s copies a box to byte %lu of shared memory, which %s wrote, with no proxy "
                        "fence",
                 thread_name(own_number()), to + i, thread_name(t->writer));
    }
    access_to(shared + to, n, n, 1);
}

static void begin_element(const bulk *c, unsigned long to, const char *from)
{
    (void)from;
    for (unsigned i = 0; i < c->map.element; i++) {
        copying[to + i] = own_number();
        wrote_at[to + i] = 0; /* by the async proxy */
    }
}

static void end_element(const bulk *c, unsigned long to, const char *from)
{
    const int agent = MOST_THREADS + c->thread;
    const unsigned n = c->map.element;
    if (from)
        memcpy(shared + to, from, n);
    else
        memset(shared + to, 0, n);
    for (unsigned i = 0; i < n; i++) { /* what may be wrong with it was asked when it was begun */
        copying[to + i] = 0;
        shared_touched[to + i].writer = block_first + (uint32_t)c->thread;
        shared_touched[to + i].written = now;
        wrote_agent[to + i] = (uint16_t)agent;
        wrote_tick[to + i] = clocks[agent];
    }
}

/* The bytes of a box are there, and are counted at its barrier. */
static void bulk_arrives(const bulk *c)
{
    const int agent = MOST_THREADS + c->thread;
    for_each_element(c, end_element);
    c->b->known[agent] = clocks[agent]++;
    if (c->b->turn != c->turn) {
        say(BYTES, "%s has begun a copy of %u bytes in turn %u of the barrier at byte %ld of shared memory, "
                   "which has ended without them",
            thread_name(block_first + (uint32_t)c->thread), bytes_of_box(&c->map), c->turn,
            (long)(c->b->at - shared));
        return;
    }
    c->b->bytes -= (long)bytes_of_box(&c->map);
    ends_turn(c->b);
}

/* All threads wait: one of the boxes arrives that have not yet. Whether there were any. */
static int late_bulk(void)
{
    if (!n_bulks)
        return 0;
    const int k = order == FORWARD ? 0
                  : order == BACKWARD ? n_bulks - 1
                                      : (int)(random_number() % (uint64_t)n_bulks);
    const bulk c = bulks[k];
    memmove(bulks + k, bulks + k + 1, (size_t)(--n_bulks - k) * sizeof *bulks);
    bulk_arrives(&c);
    return 1;
}

/* mbarrier.arrive.expect_tx */
uint64_t nvvm_mbarrier_arrive_expect_tx_scope_cta_space_cta(const char *p, unsigned bytes)
{
    mbarrier *b = usable(p);
    if (bytes >= 1u << 20)
        FAIL(OPERAND, "%s expects %u bytes at a barrier", thread_name(own_number()), bytes);
    b->bytes += bytes;
    b->promised[running] = b->turn + 1;
    b->left[running] = bytes;
    return nvvm_mbarrier_arrive_shared(p);
}

/* Begin to copy the box at `at`, innermost index first, of a tensor of so many dimensions; or, with a tap,
 * windows of images from the one at `at` on. */
void emulator_bulk(int rank, char *to, const char *map, const int *at, const char *barrier,
                   const int16_t *tap)
{
    bulk c = {.thread = running, .b = usable(barrier), .to = to};
    memcpy(&c.map, map, sizeof c.map);
    memcpy(c.at, at, (size_t)rank * sizeof *at);
    c.turn = c.b->turn;
    if (tap)
        c.tap[0] = (uint8_t)tap[0], c.tap[1] = (uint8_t)tap[1];
    if (c.map.kind != MAP_KIND || c.map.rank != rank || !tap != !c.map.steps[0])
        FAIL(OPERAND, "%s copies a box of a tensor of %d dimensions by what is no map of one",
             thread_name(own_number()), rank);
    long place[3];
    if (tap && (!place_of_pixel(&c, 0, place) || tap[0] < 0 || tap[0] > 255 || tap[1] < 0 || tap[1] > 255))
        FAIL(OPERAND, "%s copies windows from column %d and row %d of image %d on, tap %d %d, where there "
                      "is none",
             thread_name(own_number()), c.at[1], c.at[2], c.at[3], tap[0], tap[1]);
    const unsigned bytes = bytes_of_box(&c.map);
    if (to < shared || to + bytes > shared + shared_bytes)
        FAIL(SHARED_BOUNDS, "%s copies a box of %u bytes to %ld of %u bytes of shared memory",
             thread_name(own_number()), bytes, (long)(to - shared), shared_bytes);
    if ((to - shared) % 128)
        FAIL(ALIGNMENT, "%s copies a box to byte %ld of shared memory, which is not a multiple of 128",
             thread_name(own_number()), (long)(to - shared));
    if (!c.b->is_fenced)
        FAIL(PROXY, "%s copies a box for the barrier at %ld of shared memory, which %s made, with no proxy "
                    "fence",
             thread_name(own_number()), (long)(barrier - shared), thread_name(c.b->made_by));
    if (!c.b->promised[running] || c.b->left[running] < bytes)
        FAIL(BYTES, "%s begins to copy a box of %u bytes, of which the barrier at byte %ld of shared "
                    "memory expects %u",
             thread_name(own_number()), bytes, (long)(barrier - shared), c.b->left[running]);
    c.turn = c.b->promised[running] - 1;
    c.b->left[running] -= bytes;
    const int counted = counting;
    counting = 0;
    for_each_element(&c, check_element);
    counting = counted;
    if (fault)
        leave();
    for_each_element(&c, begin_element);
    if (n_bulks == MOST_BULKS)
        FAIL(OPERAND, "%s has boxes copied that nobody waits for", thread_name(own_number()));
    if (late)
        bulks[n_bulks++] = c;
    else
        bulk_arrives(&c);
    if (fault)
        leave();
}

/* Make a map; 0 if an argument breaks a rule. */
int emulator_tensor_map(void *map, int type, unsigned rank, uint64_t address, const uint64_t *dims,
                        const uint64_t *strides, const uint32_t *box, int swizzle)
{
    static const uint32_t ones[MOST_DIMS] = {1, 1, 1, 1, 1};
    return encode_tensor_map(map, type, rank, address, dims, strides, box, ones, 0, swizzle, 0, 0);
}

/* The same for windows of images. */
int emulator_windows(void *map, int type, unsigned rank, uint64_t address, const uint64_t *dims,
                     const uint64_t *strides, const uint32_t *box, const int *lower, const int *upper,
                     const int *steps, int swizzle)
{
    const uint32_t each[4] = {1, (uint32_t)steps[0], (uint32_t)steps[1], 1};
    return encode_windows(map, type, rank, address, dims, strides, lower, upper, box[0], box[1], each, 0,
                          swizzle, 0, 0);
}
