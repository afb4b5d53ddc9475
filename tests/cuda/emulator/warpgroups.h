/* warpgroups.h - wgmma: products of the 128 threads of a warpgroup, of matrices in shared memory, which
 * go on while these threads do other things: part of emulator.c. A product happens as early as it may,
 * when it is begun, or as late, when its threads wait for it: each warp's rows by themselves. Until all
 * of them have waited nobody writes to its matrices. */
enum { GROUP_THREADS = 128, MOST_PRODUCTS = 64, MATRIX_TERMS = 16 };

typedef struct product {
    int first;        /* the first thread of its warpgroup */
    unsigned columns, how;
    uint64_t left, right; /* descriptors */
    unsigned batch;   /* how many batches were committed before */
    unsigned waiting; /* warps that have not waited for it, as bits */
    uint32_t *sums[GROUP_THREADS];
    const uint32_t *fragments[GROUP_THREADS]; /* in place of the left matrix, or NULL */
} product;

static product products[MOST_PRODUCTS];
static int n_products, late_products;
static unsigned batches[MOST_THREADS];
static unsigned char fenced[MOST_THREADS];
/* By byte of shared memory: products that read it, and when a thread wrote it last. Those writes of a
 * thread that are not after its last fence are not there for products. */
static uint16_t *read_by_products;
static uint64_t *wrote_at, clock_of_writes, proxy_fenced[MOST_THREADS], least_fenced;
static uint32_t least_seen[AGENTS]; /* what all threads know that begin a product */

static void forget_products(void)
{
    n_products = 0;
    memset(batches, 0, (size_t)n_threads * sizeof *batches);
    memset(fenced, 0, (size_t)n_threads * sizeof *fenced);
    memset(proxy_fenced, 0, (size_t)n_threads * sizeof *proxy_fenced);
    memset(read_by_products, 0, shared_bytes * sizeof *read_by_products);
}

/* ---- matrices --------------------------------------------------------------------------------- */
/* Where element (at, term) of a matrix is, from the start of shared memory: rows of 128 bytes, eight of
 * them after each other, whose pieces of 16 bytes are permuted by bits 7 to 9 of the address. */
static unsigned long place_in(uint64_t descriptor, int at, int term, int flips)
{
    const uintptr_t start = (uintptr_t)(descriptor & 0x3fff) << 4;
    const uintptr_t across = (uintptr_t)(descriptor >> 16 & 0x3fff) << 4;
    const uintptr_t eight = (uintptr_t)(descriptor >> 32 & 0x3fff) << 4;
    uintptr_t p = flips ? start + (uintptr_t)(at % 64 * 2 + term % 8 * 128) +
                              (uintptr_t)(at / 64) * across + (uintptr_t)(term / 8) * eight
                        : start + (uintptr_t)(at % 8 * 128 + term * 2) + (uintptr_t)(at / 8) * eight;
    p ^= (p >> 7 & 7) << 4;
    return (unsigned long)((p - (uintptr_t)shared) & 0x3ffff);
}

static double element_of(uint64_t descriptor, int at, int term, int flips, unsigned type)
{
    uint16_t bits;
    memcpy(&bits, shared + place_in(descriptor, at, term, flips), sizeof bits);
    return type == F16 ? half_of(bits) : float_of((uint32_t)bits << 16);
}

static void for_each_byte(const product *w, void (*what)(const product *, unsigned long))
{
    const uint64_t descriptors[2] = {w->left, w->right};
    const int sizes[2] = {64, (int)w->columns};
    for (int k = w->how >> 7 & 1; k < 2; k++)
        for (int at = 0; at < sizes[k]; at++)
            for (int term = 0; term < MATRIX_TERMS; term++)
                for (unsigned i = 0; i < 2 && !fault; i++)
                    what(w, place_in(descriptors[k], at, term, w->how >> (4 + k) & 1) + i);
}

static void begin_reading(const product *w, unsigned long at)
{
    const uint32_t me = block_first + (uint32_t)w->first;
    if (at >= shared_bytes) {
        say(SHARED_BOUNDS, "%s multiplies byte %lu of %u bytes of shared memory", thread_name(me), at,
            shared_bytes);
        return;
    }
    touched *t = &shared_touched[at];
    if (t->written < block_began) {
        say(UNDEFINED, "%s multiplies byte %lu of shared memory, which nobody wrote",
            thread_name(me), at);
        return;
    }
    if (t->written == now && least_seen[wrote_agent[at]] < wrote_tick[at])
        say(RACE, "%s multiplies byte %lu of shared memory, which %s wrote, with no barrier between them",
            thread_name(me), at, thread_name(t->writer));
    else if (copying[at])
        say(COPYING, "%s multiplies byte %lu of shared memory before %s has waited for its copy to it",
            thread_name(me), at, thread_name(copying[at]));
    else if (wrote_at[at] > proxy_fenced[t->writer - block_first] && wrote_at[at] > least_fenced)
        say(PROXY, "%s multiplies byte %lu of shared memory, which %s wrote, with no proxy fence",
            thread_name(me), at, thread_name(t->writer));
    if (multiplied[at] != now) {
        multiplied[at] = now;
        memset(multiplied_tick[at], 0, sizeof multiplied_tick[at]);
    }
    read_by_products[at]++;
}

/* The running thread's warp has waited. */
static void warp_has_read(const product *w, unsigned long at)
{
    const int last = running - running % WARP_THREADS + WARP_THREADS - 1;
    (void)w;
    if (multiplied[at] != now)
        memset(multiplied_tick[at], 0, sizeof multiplied_tick[at]);
    multiplied[at] = now;
    multiplied_tick[at][last / WARP_THREADS] = clocks[last];
}

static void end_reading(const product *w, unsigned long at)
{
    (void)w;
    read_by_products[at]--;
}

/* ---- products --------------------------------------------------------------------------------- */
/* Add to the sums of one warp, 16 rows. Element (i, j) is in register j / 8 * 4 + i % 16 / 8 * 2 + j % 2
 * of thread i / 16 * 32 + i % 8 * 4 + j % 8 / 2. */
static void add_rows(product *w, int warp)
{
    static double right[256][MATRIX_TERMS];
    const unsigned type = w->how & 15;
    for (int j = 0; j < (int)w->columns; j++)
        for (int k = 0; k < MATRIX_TERMS; k++)
            right[j][k] = element_of(w->right, j, k, w->how >> 5 & 1, type);
    for (int i = 16 * warp; i < 16 * warp + 16; i++) {
        double left[MATRIX_TERMS];
        for (int k = 0; k < MATRIX_TERMS; k++)
            left[k] = w->how >> 7 & 1
                          ? number_in(w->fragments[i / 16 * 32 + i % 8 * 4 + k % 8 / 2],
                                      k / 8 * 4 + i % 16 / 8 * 2 + k % 2, type)
                          : element_of(w->left, i, k, w->how >> 4 & 1, type);
        for (int j = 0; j < (int)w->columns; j++) {
            uint32_t *sum = &w->sums[i / 16 * 32 + i % 8 * 4 + j % 8 / 2]
                                    [j / 8 * 4 + i % 16 / 8 * 2 + j % 2];
            float total = w->how >> 6 & 1 ? 0 : float_of(*sum);
            for (int k = 0; k < MATRIX_TERMS; k++)
                total = towards_zero(total + left[k] * right[j][k]);
            *sum = bits_of(total);
        }
    }
}

static void begin_product(fiber *group, unsigned how)
{
    const int first = (int)(group - fibers);
    product *w = &products[n_products];
    if (n_products == MOST_PRODUCTS) {
        say(PRODUCT, "%s has begun %d products and waited for none of them",
            thread_name(block_first + (uint32_t)first), MOST_PRODUCTS);
        return;
    }
    *w = (product){first, group->columns, how, group->left, group->right, batches[first], 15, {0}, {0}};
    for (int t = 0; t < GROUP_THREADS; t++) {
        const fiber *f = &group[t];
        w->fragments[t] = (const uint32_t *)(uintptr_t)f->left;
        if ((!(how >> 7 & 1) && f->left != w->left) || f->right != w->right) {
            say(OPERAND, "%s and %s give other matrices of one product",
                thread_name(block_first + (uint32_t)first),
                thread_name(block_first + (uint32_t)(first + t)));
            return;
        }
        w->sums[t] = f->registers;
    }
    least_fenced = UINT64_MAX;
    memset(least_seen, 0xff, sizeof least_seen);
    for (int t = first; t < first + GROUP_THREADS; t++) {
        least_fenced = proxy_fenced[t] < least_fenced ? proxy_fenced[t] : least_fenced;
        for (int k = 0; k < AGENTS; k++)
            if (!n_mbarriers)
                least_seen[k] = 0;
            else if (seen[t][k] < least_seen[k])
                least_seen[k] = seen[t][k];
    }
    for_each_byte(w, begin_reading);
    if (fault)
        return;
    n_products++;
    for (int warp = 0; warp < 4 && !late_products; warp++)
        add_rows(w, warp);
}

/* A descriptor must say that rows are permuted, and be of a matrix at a multiple of 1024 bytes. */
static int legal_matrix(uint64_t descriptor, int flips)
{
    const unsigned start = (descriptor & 0x3fff) << 4;
    if (descriptor >> 62 != 1 || (descriptor >> 49 & 7) != 0 ||
        (descriptor >> 32 & 0x3fff) << 4 != 1024)
        say(OPERAND, "%s multiplies a matrix of descriptor %#llx: rows of 128 bytes are permuted, and "
                     "eight of them are 1024 bytes",
            thread_name(own_number()), (unsigned long long)descriptor);
    else if (start % 1024 >= (flips ? 1u : 128u))
        say(ALIGNMENT, "%s multiplies a matrix at %#x, which is not a multiple of 1024",
            thread_name(own_number()), start);
    return !fault;
}

/* how: the type of factors, then whether each is transposed, whether sums begin at zero, and whether
 * `left` is the address of the registers that this thread holds of the left factor. */
static void multiplies(uint32_t *sums, uint64_t left, uint64_t right, unsigned columns, unsigned how,
                       unsigned site)
{
    fiber *f = &fibers[running];
    if (!fenced[running])
        FAIL(PRODUCT, "%s multiplies with no wgmma.fence after what it did to its registers",
             thread_name(own_number()));
    if ((!(how >> 7 & 1) && !legal_matrix(left, how >> 4 & 1)) || !legal_matrix(right, how >> 5 & 1))
        leave();
    f->left = left;
    f->right = right;
    f->columns = columns;
    meet("wgmma", sums, site, how, begin_product, GROUP_THREADS);
}

void emulator_wgmma(uint32_t *sums, uint64_t left, uint64_t right, unsigned columns, unsigned how,
                    unsigned site)
{
    multiplies(sums, left, right, columns, how, site);
}

void emulator_wgmma_fragment(uint32_t *sums, const uint32_t *left, uint64_t right, unsigned columns,
                             unsigned how, unsigned site)
{
    multiplies(sums, (uint64_t)(uintptr_t)left, right, columns, how | 128, site);
}

void emulator_wgmma_fence(void)
{
    fenced[running] = 1;
}

/* Only how fast a kernel is depends on the registers that its warpgroups have. */
void nvvm_setmaxnreg_inc_sync_aligned_u32(unsigned count)
{
    if (count < 24 || count > 256 || count % 8)
        FAIL(OPERAND, "%s asks for %u registers", thread_name(own_number()), count);
}

void nvvm_setmaxnreg_dec_sync_aligned_u32(unsigned count)
{
    nvvm_setmaxnreg_inc_sync_aligned_u32(count);
}

void emulator_wgmma_commit(void)
{
    batches[running]++;
}

/* Wait until at most `pending` of the batches that this thread has committed are not done. */
void emulator_wgmma_wait(unsigned pending)
{
    const int first = running - running % GROUP_THREADS, warp = running % GROUP_THREADS / WARP_THREADS;
    fenced[running] = 0;
    for (int k = 0; k < n_products; k++) {
        product *w = &products[k];
        if (w->first != first || w->batch + pending >= batches[running] || !(w->waiting >> warp & 1))
            continue;
        if (late_products)
            add_rows(w, warp);
        w->waiting &= ~(1u << warp);
        for_each_byte(w, warp_has_read);
        if (!w->waiting)
            for_each_byte(w, end_reading);
    }
    int kept = 0;
    for (int k = 0; k < n_products; k++)
        if (products[k].waiting)
            products[kept++] = products[k];
    n_products = kept;
}

/* Find a product of the running thread, with these sums or any, for which it has not waited. */
static const product *not_waited_for(const uint32_t *sums)
{
    const int at = running % GROUP_THREADS;
    for (int k = 0; k < n_products; k++)
        if (products[k].first == running - at && products[k].waiting >> at / WARP_THREADS & 1 &&
            (!sums || products[k].sums[at] == sums))
            return &products[k];
    return NULL;
}

/* The running thread uses sums. */
void emulator_wgmma_used(const uint32_t *sums)
{
    const product *w = not_waited_for(sums);
    if (w)
        FAIL(PRODUCT, "%s uses the sums of a product that it has not %s", thread_name(own_number()),
             w->batch < batches[running] ? "waited for" : "committed");
}

/* The running thread has come to its end. */
static void ends(void)
{
    if (not_waited_for(NULL))
        FAIL(PRODUCT, "%s ends before it has waited for its product", thread_name(own_number()));
}

/* ---- shared memory ---------------------------------------------------------------------------- */
void emulator_proxy_fence(void)
{
    proxy_fenced[running] = clock_of_writes;
    for (int k = 0; k < n_mbarriers; k++)
        mbarriers[k].is_fenced |= mbarriers[k].made_by == own_number();
}

/* Note that the running thread writes a byte of shared memory. */
static void written_for_products(unsigned long at)
{
    wrote_at[at] = ++clock_of_writes;
    wrote_agent[at] = (uint16_t)running;
    wrote_tick[at] = clocks[running];
    if (!knows_products(at))
        race("wr", MANY_THREADS, "shared memory", at);
    if (read_by_products[at])
        FAIL(PRODUCT, "%s writes byte %lu of shared memory, which a product reads that not all threads "
                      "have waited for",
             thread_name(own_number()), at);
}

/* Whether products happen when threads wait for them, not when they begin them. */
void emulator_products(int when)
{
    late_products = when;
}
