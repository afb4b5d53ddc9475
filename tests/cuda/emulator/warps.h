/* warps.h - instructions of the 32 threads of a warp together: part of emulator.c. Where the elements
 * of a matrix are is in fragments.h, which build.py writes from schedule/intrin/fragments.py. */
#include "fragments.h"

enum { WARP_THREADS = 32, MMA_REGISTERS = 10 };
enum { F16, BF16, TF32, S8, U8 };

/* Wait for the other threads of the warp, or of a group of so many `threads`, at `site`, a place of the
 * program. What they do together is done by `together` for all of them, with the registers that each
 * has given. */
static void meet(const char *name, uint32_t *registers, unsigned site, unsigned how,
                 void (*together)(fiber *, unsigned), unsigned threads)
{
    fiber *f = &fibers[running];
    f->state = IN_WARP;
    f->where = (const void *)(uintptr_t)site;
    f->instruction = name;
    f->registers = registers;
    f->how = how;
    f->threads = threads;
    f->together = together;
    leave();
}

/* ---- mma.sync --------------------------------------------------------------------------------- */
static double half_of(uint16_t bits)
{
    int exponent = bits >> 10 & 31, sign = bits >> 15 ? -1 : 1;
    double fraction = bits & 1023;
    if (exponent == 31)
        return fraction ? NAN : sign * INFINITY;
    fraction = exponent ? (1024 + fraction) : fraction;
    for (int k = exponent ? exponent : 1; k < 25; k++)
        fraction /= 2;
    for (int k = 25; k < exponent; k++)
        fraction *= 2;
    return sign * fraction;
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static double number_in(const uint32_t *registers, int k, unsigned type)
{
    switch (type) {
    case F16:
        return half_of((uint16_t)(registers[k / 2] >> 16 * (k % 2)));
    case BF16:
        return float_of(registers[k / 2] >> 16 * (k % 2) << 16);
    case TF32:
        return float_of(registers[k]);
    case S8:
        return (int8_t)(registers[k / 4] >> 8 * (k % 4));
    default:
        return (uint8_t)(registers[k / 4] >> 8 * (k % 4));
    }
}

/* The float next to x towards zero. */
static float towards_zero(double x)
{
    float near = (float)x;
    if (!isinf(near) && fabs((double)near) > fabs(x))
        near = float_of(bits_of(near) - 1);
    return near;
}

static void multiply(fiber *warp, unsigned types)
{
    const unsigned left = types & 15, right = types >> 4 & 15, at = types >> 8;
    const int terms = TERMS[at];
    static double a[16][32], b[32][8];
    for (int t = 0; t < WARP_THREADS; t++) {
        const uint32_t *r = warp[t].registers;
        for (int k = 0; left == TF32 && k < 6; k++)
            if (r[k] & 0x1fff) {
                say(OPERAND, "%s multiplies a number that is not rounded to tf32",
                    thread_name(block_first + (uint32_t)(warp + t - fibers)));
                return;
            }
        for (int k = 0; k < LEFT_COUNT[at]; k++)
            a[LEFT[at][t][k][0]][LEFT[at][t][k][1]] = number_in(r, k, left);
        for (int k = 0; k < RIGHT_COUNT[at]; k++)
            b[RIGHT[at][t][k][0]][RIGHT[at][t][k][1]] = number_in(r + 4, k, right);
    }
    for (int t = 0; t < WARP_THREADS; t++)
        for (int k = 0; k < SUMS_COUNT[at]; k++) {
            const double *x = a[SUMS[at][t][k][0]];
            uint32_t *sum = &warp[t].registers[6 + k];
            const int column = SUMS[at][t][k][1];
            if (left >= S8) {
                for (int i = 0; i < terms; i++)
                    *sum += (uint32_t)(int32_t)(x[i] * b[i][column]);
                continue;
            }
            float total = float_of(*sum);
            for (int i = 0; i < terms; i++)
                total = towards_zero(total + x[i] * b[i][column]);
            *sum = bits_of(total);
        }
}

/* registers: up to four of a, from 4 on of b, from 6 on of the sums. types: of a, of b times 16, and
 * times 256 the number of the shape in fragments.h. */
void emulator_mma(uint32_t *registers, unsigned types, unsigned site)
{
    meet("mma", registers, site, types, multiply, WARP_THREADS);
}

/* ---- ldmatrix --------------------------------------------------------------------------------- */
static void load(fiber *warp, unsigned how)
{
    const int count = (int)(how & 7), transposed = how >> 3;
    for (int t = 0; t < WARP_THREADS; t++)
        for (int k = 0; k < 2 * count; k++) {
            const unsigned char *at = MATRIX[transposed][t][k];
            uint16_t x;
            memcpy(&x, warp[at[0]].row + 2 * at[1], sizeof x);
            uint32_t *r = &warp[t].registers[k / 2];
            *r = k % 2 ? (*r & 0xffff) | (uint32_t)x << 16 : x;
        }
}

/* row: of 16 bytes, of threads 0 to 8 * count - 1. how: count, and 8 if it is transposed. */
void emulator_ldmatrix(uint32_t *registers, char *row, unsigned how, unsigned site)
{
    fiber *f = &fibers[running];
    if ((unsigned)running % WARP_THREADS < 8 * (how & 7)) {
        if (row < shared - GUARD || row >= shared + MOST_SHARED + GUARD)
            FAIL(SHARED_BOUNDS, "%s loads a matrix from %p, which is not shared memory",
                 thread_name(own_number()), (void *)row);
        emulator_load(row, 16, 16, site);
    }
    f->row = row;
    meet("ldmatrix", registers, site, how, load, WARP_THREADS);
}

/* ---- shfl.sync.bfly --------------------------------------------------------------------------- */
static void exchange(fiber *warp, unsigned apart)
{
    uint32_t given[WARP_THREADS];
    for (int t = 0; t < WARP_THREADS; t++)
        given[t] = warp[t].registers[0];
    for (int t = 0; t < WARP_THREADS; t++)
        warp[t].registers[0] = given[(unsigned)t ^ apart];
}

/* registers: the value, instead of which comes that of the thread whose number differs in the bits
 * `apart`. Kernels name all threads of a warp, and exchange among all of them. */
void emulator_exchange(uint32_t *registers, unsigned members, unsigned apart, unsigned last,
                       unsigned site)
{
    if (members != ~0u || last != WARP_THREADS - 1 || apart >= WARP_THREADS)
        FAIL(OPERAND, "%s exchanges values with threads %#x, bits %u, of %u",
             thread_name(own_number()), members, apart, last + 1);
    meet("shfl", registers, site, apart, exchange, WARP_THREADS);
}

/* ---- a thread by itself ------------------------------------------------------------------------ */
unsigned nvvm_f2tf32_rna(float x)
{
    uint32_t bits = bits_of(x);
    if (isnan(x) || isinf(x))
        return bits & ~0x1fffu;
    return (bits + 0x1000) & ~0x1fffu;
}

/* The bits of the nearest bfloat16, ties to even. */
unsigned emulator_bfloat(float x)
{
    const uint32_t bits = bits_of(x);
    return isnan(x) ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

float nvvm_fmax_f(float x, float y)
{
    return fmaxf(x, y);
}

float nvvm_ex2_approx_ftz_f(float x)
{
    const float y = (float)exp2((double)x);
    return y < FLT_MIN ? 0 : y;
}

/* ---- the scheduler's part ---------------------------------------------------------------------- */
static const char *place_of(const fiber *f)
{
    return f->state == DONE      ? "has ended"
           : f->state == IN_WARP ? "is at another instruction of a warp"
           : f->state == IN_BARRIER ? "waits for a turn of a barrier"
                                    : "is at a barrier";
}

/* What is wrong with the instruction that thread `one` waits at, whose group begins at `first`, since
 * not all of its threads are there; 0: nothing. */
static int incomplete(int one, int first, int tell)
{
    const fiber *f = &fibers[one];
    const char *group = f->threads > WARP_THREADS ? "warpgroup" : "warp";
    for (int t = first; t < first + (int)f->threads; t++) {
        if (t >= n_threads) {
            if (tell)
                say(WARP, "%s executes %s in a %s of %d threads",
                    thread_name(block_first + (uint32_t)one), f->instruction, group,
                    n_threads - first);
            return 1;
        }
        if (fibers[t].state != IN_WARP || fibers[t].where != f->where) {
            if (tell)
                say(WARP, "%s executes %s with the threads of its %s, of which %s %s",
                    thread_name(block_first + (uint32_t)one), f->instruction, group,
                    thread_name(block_first + (uint32_t)t), place_of(&fibers[t]));
            return 1;
        }
    }
    return 0;
}

/* Do what groups of threads wait for that have all come; whether any did. If none have, and nothing
 * else will happen (`last`), those that wait for each other wait for ever. */
static int run_warps(int last)
{
    int found = 0, stuck = -1;
    for (int first = 0; first < n_threads; first += WARP_THREADS) {
        int one = -1;
        for (int t = first; t < n_threads && t < first + WARP_THREADS; t++)
            if (fibers[t].state == IN_WARP)
                one = t;
        if (one < 0)
            continue;
        const int begin = first - first % (int)fibers[one].threads;
        if (incomplete(one, begin, 0)) {
            stuck = one;
            continue;
        }
        const int end = begin + (int)fibers[one].threads;
        fibers[one].together(&fibers[begin], fibers[one].how);
        for (int t = begin; t < end; t++)
            fibers[t].state = READY;
        found = 1;
    }
    if (last && !found && stuck >= 0) {
        incomplete(stuck, stuck - stuck % (int)fibers[stuck].threads, 1);
        return 1;
    }
    return found;
}
