/* AMX on processors without it, for a process that this library is preloaded into: each of its
 * instructions traps as undefined, and the handler does what Intel's manual says of it (Software
 * Developer's Manual, volume 2, and "Intel AMX" in volume 1). An instruction that would fault on a
 * processor with tiles ends the process. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

typedef struct tile {
    int rows, bytes;
    uint8_t data[16][64];
} tile;

static _Thread_local tile tiles[8];
static _Thread_local int configured;
static struct sigaction before;
static long counts[7];

enum { LDTILECFG, TILERELEASE, TILEZERO, TILELOADD, TILESTORED, TDPBF16PS, TDPBUSD };

long tile_count(int which)
{
    return __atomic_load_n(&counts[which], __ATOMIC_RELAXED);
}

static void counted(int which)
{
    __atomic_fetch_add(&counts[which], 1, __ATOMIC_RELAXED);
}

static void fault(const char *what)
{
    fprintf(stderr, "tiles: #UD: %s\n", what);
    abort();
}

static void require(int holds, const char *what)
{
    if (!holds)
        fault(what);
}

static void clear(tile *t)
{
    memset(t->data, 0, sizeof t->data);
}

static void configure(const uint8_t *m)
{
    require(m[0] == 1, "the palette");
    for (int i = 1; i < 16; i++)
        require(m[i] == 0, "a reserved byte, or a start row");
    for (int i = 0; i < 8; i++) {
        const int bytes = m[16 + 2 * i] | m[17 + 2 * i] << 8, rows = m[48 + i];
        require(rows <= 16 && bytes <= 64 && (rows == 0) == (bytes == 0), "rows or bytes");
        tiles[i].rows = rows;
        tiles[i].bytes = bytes;
        clear(&tiles[i]);
    }
    for (int i = 32; i < 48; i++)
        require(m[i] == 0, "bytes of a tile that there is not");
    for (int i = 56; i < 64; i++)
        require(m[i] == 0, "rows of a tile that there is not");
    configured = 1;
}

static tile *used(int n)
{
    require(configured, "tiles are not configured");
    require(n < 8 && tiles[n].rows > 0, "a tile that has no rows");
    return &tiles[n];
}

static float single(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static float flushed(float x)
{
    return fpclassify(x) == FP_SUBNORMAL ? copysignf(0, x) : x;
}

static float widened(const uint8_t *at)
{
    return flushed(single((uint32_t)(at[0] | at[1] << 8) << 16));
}

static void require_shapes(const tile *c, const tile *a, const tile *b)
{
    require(c != a && c != b && a != b, "one tile twice");
    require(c->bytes % 4 == 0 && a->bytes % 4 == 0 && b->bytes % 4 == 0, "part of a sum");
    require(a->rows == c->rows, "rows of the left factor");
    require(b->bytes == c->bytes, "columns of the right factor");
    require(a->bytes / 4 == b->rows, "terms of the factors");
}

static void products(tile *c, const tile *a, const tile *b)
{
    for (int m = 0; m < c->rows; m++)
        for (int n = 0; n < c->bytes / 4; n++) {
            float even = 0, odd = 0, total;
            for (int k = 0; k < a->bytes / 4; k++) {
                const uint8_t *x = &a->data[m][4 * k], *y = &b->data[k][4 * n];
                even = flushed(fmaf(widened(x), widened(y), even));
                odd = flushed(fmaf(widened(x + 2), widened(y + 2), odd));
            }
            memcpy(&total, &c->data[m][4 * n], sizeof total);
            total = flushed(flushed(total) + flushed(even + odd));
            memcpy(&c->data[m][4 * n], &total, sizeof total);
        }
}

static void products_of_bytes(tile *c, const tile *a, const tile *b)
{
    for (int m = 0; m < c->rows; m++)
        for (int n = 0; n < c->bytes / 4; n++) {
            uint32_t total;
            memcpy(&total, &c->data[m][4 * n], sizeof total);
            for (int k = 0; k < a->bytes / 4; k++)
                for (int i = 0; i < 4; i++)
                    total += (uint32_t)((int)a->data[m][4 * k + i] *
                                        (int)(int8_t)b->data[k][4 * n + i]);
            memcpy(&c->data[m][4 * n], &total, sizeof total);
        }
}

static uint64_t reg(const ucontext_t *u, int n)
{
    static const int where[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                  REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                  REG_R12, REG_R13, REG_R14, REG_R15};
    return (uint64_t)u->uc_mcontext.gregs[where[n]];
}

/* The operand in memory of the instruction whose ModRM byte is at *at: its base and displacement,
 * and its index, apart; *at is moved behind it. */
static uint64_t memory(const ucontext_t *u, const uint8_t **at, int b, int x, uint64_t *index)
{
    const uint8_t *p = *at;
    const int mod = *p >> 6, rm = *p & 7;
    uint64_t place = 0;
    int32_t wide = 0;
    int relative = 0, absolute = 0;
    p++;
    *index = 0;
    if (rm == 4) {
        const int scale = *p >> 6, i = (*p >> 3 & 7) | x << 3, base = (*p & 7) | b << 3;
        if (i != 4)
            *index = reg(u, i) << scale;
        absolute = mod == 0 && (*p & 7) == 5;
        if (!absolute)
            place = reg(u, base);
        p++;
    } else if (mod == 0 && rm == 5) {
        relative = 1;
    } else {
        place = reg(u, rm | b << 3);
    }
    if (mod == 1) {
        place += (uint64_t)(int64_t)(int8_t)*p++;
    } else if (mod == 2 || relative || absolute) {
        memcpy(&wide, p, sizeof wide);
        p += sizeof wide;
        place += (uint64_t)(int64_t)wide;
    }
    if (relative)
        place += (uint64_t)p;
    *at = p;
    return place;
}

/* Do one instruction, and return where the next one is; NULL if it is none of tiles. */
static const uint8_t *step(const ucontext_t *u, const uint8_t *at)
{
    if (at[0] != 0xc4 || (at[1] & 0x1f) != 2 || (at[2] & 0x84) != 0)
        return NULL; /* three bytes of VEX, map 0F38, W0, 128 bits */
    const int x = !(at[1] & 0x40), b = !(at[1] & 0x20), third = ~(at[2] >> 3) & 15;
    const int prefix = at[2] & 3, opcode = at[3], mod = at[4] >> 6; /* none, 66, F3, F2 */
    const int first = at[4] >> 3 & 7, second = at[4] & 7;
    const uint8_t *next = at + 4;
    uint64_t index, place;
    if (opcode == 0x49 && prefix == 0 && at[4] == 0xc0) {
        counted(TILERELEASE);
        configured = 0;
        return at + 5;
    }
    if (opcode == 0x49 && prefix == 0 && mod != 3 && first == 0) {
        counted(LDTILECFG);
        place = memory(u, &next, b, x, &index);
        configure((const uint8_t *)(place + index));
        return next;
    }
    if (opcode == 0x49 && prefix == 3 && mod == 3 && second == 0) {
        counted(TILEZERO);
        clear(used(first));
        return at + 5;
    }
    if (opcode == 0x4b && (prefix == 3 || prefix == 2) && mod != 3 && second == 4) {
        tile *t = used(first);
        counted(prefix == 3 ? TILELOADD : TILESTORED);
        place = memory(u, &next, b, x, &index);
        if (prefix == 3)
            clear(t);
        for (int r = 0; r < t->rows; r++) {
            uint8_t *m = (uint8_t *)(place + (uint64_t)r * index);
            memcpy(prefix == 3 ? t->data[r] : m, prefix == 3 ? m : t->data[r], (size_t)t->bytes);
        }
        return next;
    }
    if ((opcode == 0x5c && prefix == 2) || (opcode == 0x5e && prefix == 1)) {
        tile *c = used(first), *left = used(second), *right = used(third);
        require(mod == 3, "a tile in memory");
        require_shapes(c, left, right);
        counted(opcode == 0x5c ? TDPBF16PS : TDPBUSD);
        (opcode == 0x5c ? products : products_of_bytes)(c, left, right);
        return at + 5;
    }
    return NULL;
}

static void handler(int number, siginfo_t *info, void *context)
{
    ucontext_t *u = context;
    (void)number;
    (void)info;
    const uint8_t *next = step(u, (const uint8_t *)u->uc_mcontext.gregs[REG_RIP]);
    if (next == NULL)
        sigaction(SIGILL, &before, NULL); /* it traps once more */
    else
        u->uc_mcontext.gregs[REG_RIP] = (greg_t)next;
}

/* Threads that block all signals would die of an instruction that traps. */
int pthread_sigmask(int how, const sigset_t *set, sigset_t *old)
{
    int (*real)(int, const sigset_t *, sigset_t *);
    sigset_t less;
    *(void **)&real = dlsym(RTLD_NEXT, "pthread_sigmask");
    if (set == NULL)
        return real(how, NULL, old);
    less = *set;
    sigdelset(&less, SIGILL);
    return real(how, &less, old);
}

__attribute__((constructor)) static void begin(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGILL, &action, &before);
}
