/* copies.h - cp.async: copies to shared memory that a thread begins, and waits for: part of
 * emulator.c. They happen as early as they may, when they are begun, or as late, when their thread
 * waits. Until then nobody may touch what they write; in both cases they count as written when they
 * are begun and again when their thread has waited, so that a barrier must follow. */
typedef struct copy {
    char *to;
    const char *from;
    unsigned size, count; /* bytes that are written, and of these those that are read */
    int next;             /* of the same thread, plus one */
    unsigned batch;       /* how many batches its thread had ended before */
} copy;

static copy *begun;
static int n_begun, room, first_begun[MOST_THREADS]; /* plus one; 0: none */
static unsigned ended[MOST_THREADS]; /* batches */

static void forget_copies(void)
{
    n_begun = 0;
    memset(first_begun, 0, (size_t)n_threads * sizeof *first_begun);
    memset(ended, 0, (size_t)n_threads * sizeof *ended);
    memset(copying, 0, shared_bytes * sizeof *copying);
}

static void happens(const copy *c)
{
    memcpy(c->to, c->from, c->count);
    memset(c->to + c->count, 0, c->size - c->count);
}

static void begin(char *to, const char *from, unsigned size, unsigned count, uint32_t site)
{
    if (to < shared || to + size > shared + shared_bytes)
        FAIL(SHARED_BOUNDS, "%s copies %u bytes to %ld of %u bytes of shared memory",
             thread_name(own_number()), size, (long)(to - shared), shared_bytes);
    if (count > size)
        FAIL(OPERAND, "%s copies %u bytes to %u", thread_name(own_number()), count, size);
    access_site = site;
    if (count)
        access_to((char *)(uintptr_t)from, count, size, 0);
    access_to(to, size, size, 1);
    access_site = 0;
    if (n_begun == room) {
        room = room ? 2 * room : 4096;
        begun = realloc(begun, (size_t)room * sizeof *begun);
    }
    begun[n_begun] = (copy){to, from, size, count, first_begun[running], ended[running]};
    if (!late)
        happens(&begun[n_begun]);
    first_begun[running] = ++n_begun;
    for (unsigned i = 0; i < size; i++)
        copying[to - shared + i] = own_number();
}

/* What this thread has begun in its first batches is there from now on, written by `agent`; it was
 * counted when it was begun. */
static void end_copies(uint32_t batches, int agent)
{
    const int counted = counting;
    int *link = &first_begun[running];
    counting = 0;
    while (*link) {
        copy *c = &begun[*link - 1];
        if (c->batch >= batches) {
            link = &c->next;
            continue;
        }
        for (unsigned k = 0; k < c->size; k++)
            copying[c->to - shared + k] = 0;
        if (late && c->count)
            access_to((char *)(uintptr_t)c->from, c->count, c->size, 0);
        if (late)
            happens(c);
        access_to(c->to, c->size, c->size, 1);
        for (unsigned k = 0; k < c->size; k++) {
            wrote_agent[c->to - shared + k] = (uint16_t)agent;
            wrote_tick[c->to - shared + k] = clocks[agent];
        }
        *link = c->next;
    }
    counting = counted;
}

void nvvm_cp_async_wait_all(void)
{
    end_copies(UINT32_MAX, running);
}

void nvvm_cp_async_commit_group(void)
{
    ended[running]++;
}

void nvvm_cp_async_wait_group(unsigned pending)
{
    end_copies(ended[running] > pending ? ended[running] - pending : 0, running);
}

#define COPY(kind, size)                                                                             \
    void nvvm_cp_async_##kind##_shared_global_##size(char *to, const char *from, uint32_t site)      \
    {                                                                                                \
        begin(to, from, size, size, site);                                                           \
    }                                                                                                \
    void nvvm_cp_async_##kind##_shared_global_##size##_s(char *to, const char *from, unsigned count, \
                                                         uint32_t site)                              \
    {                                                                                                \
        begin(to, from, size, count, site);                                                          \
    }
COPY(ca, 4)
COPY(ca, 8)
COPY(ca, 16)
COPY(cg, 16)

/* Whether copies happen when a thread waits for them, not when it begins them. */
void emulator_copies(int when)
{
    late = when;
}
