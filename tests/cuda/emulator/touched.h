/* touched.h - loads and stores of kernels: whether they are aligned and in bounds, and who touched
 * each byte last, from which races follow: part of emulator.c. */
static page last_page;

/* Whether kernels race is known after each launch; what is kept of all of them would be gigabytes. */
static void forget_touched(void)
{
    for (size_t i = 0; i < capacity; i++)
        free(pages[i].bytes);
    free(pages);
    pages = NULL;
    capacity = n_pages = 0;
    last_page = (page){0};
}

static touched *touched_of(uintptr_t address)
{
    uintptr_t number = address / PAGE;
    if (last_page.bytes && last_page.number == number)
        return &last_page.bytes[address % PAGE];
    if (2 * n_pages >= capacity) {
        size_t size = capacity ? 2 * capacity : 1024;
        page *wider = calloc(size, sizeof *wider);
        for (size_t i = 0; i < capacity; i++)
            if (pages[i].bytes) {
                size_t at = pages[i].number * 0x9e3779b97f4a7c15u % size;
                while (wider[at].bytes)
                    at = (at + 1) % size;
                wider[at] = pages[i];
            }
        free(pages);
        pages = wider;
        capacity = size;
    }
    size_t at = number * 0x9e3779b97f4a7c15u % capacity;
    while (pages[at].bytes && pages[at].number != number)
        at = (at + 1) % capacity;
    if (!pages[at].bytes) {
        pages[at].number = number;
        pages[at].bytes = calloc(PAGE, sizeof(touched));
        n_pages++;
    }
    last_page = pages[at];
    return &last_page.bytes[address % PAGE];
}

static int same_block(uint32_t number)
{
    return number - block_first < (uint32_t)n_threads;
}

static void race(const char *how, uint32_t other, const char *space, unsigned long at)
{
    FAIL(RACE, "%s %s byte %lu of %s, which %s %s, with no barrier between them",
         thread_name(own_number()), how[0] == 'r' ? "reads" : "writes", at, space,
         other & MANY_THREADS ? "several threads" : thread_name(other & ~MANY_BLOCKS),
         how[1] == 'w' ? "wrote" : "read");
}

/* Note an access; what happened before barrier number `since` does not count. `in_shared`: it is to
 * shared memory, which barriers there order too. */
static void note(touched *t, int write, uint32_t since, const char *space, unsigned long at,
                 int in_shared)
{
    const uint32_t me = own_number();
    if (t->written >= since && t->writer != me &&
        (!same_block(t->writer) || t->written == now) && !(in_shared && knows_write(at)))
        race(write ? "ww" : "rw", t->writer, space, at);
    int read = t->read >= since;
    uint32_t reader = t->reader & ~(MANY_THREADS | MANY_BLOCKS);
    if (write) {
        if (read && ((t->reader & MANY_BLOCKS) || !same_block(reader) ||
                     (t->read == now && ((t->reader & MANY_THREADS) || reader != me))) &&
            !(in_shared && knows_read(at, t->reader)))
            race("wr", t->reader, space, at);
        t->writer = me;
        t->written = now;
        return;
    }
    if (!read)
        t->reader = me;
    else if (!same_block(reader))
        t->reader = me | MANY_BLOCKS;
    else if (t->read == now && reader != me)
        t->reader |= MANY_THREADS;
    else
        t->reader = me | (t->reader & MANY_BLOCKS);
    t->read = now;
}

static const region *region_of(uintptr_t p, unsigned size)
{
    static int last;
    if (last < n_regions && p >= regions[last].start && p + size <= regions[last].end)
        return &regions[last];
    for (int i = 0; i < n_regions; i++)
        if (p >= regions[i].start && p + size <= regions[i].end) {
            last = i;
            return &regions[i];
        }
    return NULL;
}

/* Where an access out of bounds lies, by the piece of memory that is nearest. */
static const char *beside(uintptr_t p, unsigned size)
{
    static char words[120];
    const region *nearest = NULL;
    uintptr_t least = (uintptr_t)1 << 40;
    for (const region *r = regions; r < regions + n_regions; r++) {
        uintptr_t far = p < r->start ? r->start - p : p + size - r->end;
        if (r->start < r->end && far < least) {
            least = far;
            nearest = r;
        }
    }
    if (!nearest)
        return "outside of all buffers";
    long at = (long)(p - nearest->start);
    snprintf(words, sizeof words, "outside of all buffers: bytes %ld to %ld of one of %lu", at,
             at + (long)size - 1, (unsigned long)(nearest->end - nearest->start));
    return words;
}

static void access_to(char *p, unsigned size, unsigned align, int write)
{
    const char *does = write ? "writes" : "reads";
    char *own = stacks + (size_t)running * STACK;
    if (p >= own && p < own + STACK)
        return;
    if ((uintptr_t)p % align)
        FAIL(ALIGNMENT, "%s %s %u bytes at %p, which is not a multiple of %u",
             thread_name(own_number()), does, size, (void *)p, align);
    if (p >= shared - GUARD && p < shared + MOST_SHARED + GUARD) {
        long at = (long)(p - shared);
        if (at < 0 || at + (long)size > (long)shared_bytes)
            FAIL(SHARED_BOUNDS, "%s %s bytes %ld to %ld of %u bytes of shared memory",
                 thread_name(own_number()), does, at, at + (long)size - 1, shared_bytes);
        if (counting)
            count_access((uintptr_t)at, size, align, write ? SHARED_STORES : SHARED_LOADS);
        for (unsigned i = 0; i < size; i++) {
            touched *t = &shared_touched[at + (long)i];
            if (copying[at + (long)i])
                FAIL(COPYING, "%s %s byte %ld of shared memory before %s has waited for its copy to it",
                     thread_name(own_number()), does, at + (long)i, thread_name(copying[at + (long)i]));
            note(t, write, block_began, "shared memory", (unsigned long)at + i, 1);
            if (write)
                written_for_products((unsigned long)at + i);
            else
                note_tick_of_read((unsigned long)at + i);
            if (!write && t->written < block_began && undefined_at < 0) {
                undefined_at = at + (long)i;
                undefined_by = own_number();
            }
        }
        return;
    }
    const region *r = region_of((uintptr_t)p, size);
    if (!r && n_regions)
        FAIL(BOUNDS, "%s %s %u bytes at %p, %s", thread_name(own_number()), does, size, (void *)p,
             beside((uintptr_t)p, size));
    if (counting)
        count_access((uintptr_t)p, size, align, write ? GLOBAL_STORES : GLOBAL_LOADS);
    if (watch)
        for (unsigned i = 0; i < size; i++)
            note(touched_of((uintptr_t)p + i), write, launch_began, "a buffer",
                 (unsigned long)((uintptr_t)p + i - (r ? r->start : 0)), 0);
}

void emulator_load(char *p, unsigned size, unsigned align, uint32_t site)
{
    access_site = site;
    access_to(p, size, align, 0);
    access_site = 0;
}

void emulator_store(char *p, unsigned size, unsigned align, uint32_t site)
{
    access_site = site;
    access_to(p, size, align, 1);
    access_site = 0;
}
