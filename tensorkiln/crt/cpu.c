/* Which processor features can be used. The library lists those that its kernels need; without this
 * check, a missing one would end the process with SIGILL. */
#include "crt.h"
#include "os.h"
#include <string.h>

#if defined(__x86_64__) || defined(__i386__)
enum { LEAF1_ECX, LEAF1_EDX, LEAF7_EBX, LEAF7_ECX, LEAF7_EDX, LEAF7_1_EAX, LEAF7_1_EDX, AVX10, APX,
       EXT1_ECX, REGISTERS };
/* State that the operating system must save: XCR0 bits. */
#define NONE 0x0u
#define YMM 0x6u
#define ZMM 0xe6u
#define TILE 0x60000u
#define EGPR 0x80000u

typedef struct feature {
    const char *name; /* LLVM's */
    uint8_t where, bit;
    uint32_t state;
} feature;

#include "cpu_features.h"

#ifndef CPUID /* tests define it to emulate other processors */
#define CPUID(leaf, sub, r)                                                                       \
    __asm__ volatile("cpuid" : "=a"((r)[0]), "=b"((r)[1]), "=c"((r)[2]), "=d"((r)[3])             \
                     : "a"((uint32_t)(leaf)), "c"((uint32_t)(sub)))
#define XGETBV(low, high) __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0))
#endif

/* Read leaf 7 and the leaves whose presence it reports. */
static void read_newer(uint32_t last, uint32_t found[REGISTERS])
{
    uint32_t r[4];
    CPUID(7, 0, r);
    found[LEAF7_EBX] = r[1];
    found[LEAF7_ECX] = r[2];
    found[LEAF7_EDX] = r[3];
    if (r[0] < 1)
        return;
    CPUID(7, 1, r);
    found[LEAF7_1_EAX] = r[0];
    found[LEAF7_1_EDX] = r[3];
    if (last >= 0x24 && (found[LEAF7_1_EDX] >> 19 & 1)) {
        CPUID(0x24, 0, r);
        const uint32_t version = r[1] & 0xff;
        found[AVX10] = version < 32 ? (1u << version) - 1 : ~0u;
    }
    if (last >= 0x29 && (found[LEAF7_1_EDX] >> 21 & 1)) {
        CPUID(0x29, 0, r);
        found[APX] = r[1];
    }
}

/* Read the feature registers; return XCR0, the register state that the operating system saves. */
static uint32_t read_cpu(uint32_t found[REGISTERS])
{
    uint32_t r[4], low = 0, high = 0;
    memset(found, 0, REGISTERS * sizeof *found);
    CPUID(0, 0, r);
    const uint32_t last = r[0];
    CPUID(1, 0, r);
    found[LEAF1_ECX] = r[2];
    found[LEAF1_EDX] = r[3];
    if (last >= 7)
        read_newer(last, found);
    CPUID(0x80000000u, 0, r);
    if (r[0] >= 0x80000001u) {
        CPUID(0x80000001u, 0, r);
        found[EXT1_ECX] = r[2];
    }
    if (found[LEAF1_ECX] >> 27 & 1) /* OSXSAVE: xgetbv exists */
        XGETBV(low, high);
    (void)high;
    return low;
}

/* Return one feature register, or XCR0 for REGISTERS. They are read once: in a virtual machine
 * every cpuid traps to the hypervisor, and six of them for each of thirty features took most of the
 * time to open a library. Threads that race write the same values. */
static uint32_t register_of_cpu(int which)
{
    static uint32_t kept[REGISTERS + 1];
    static int known;
    if (!__atomic_load_n(&known, __ATOMIC_ACQUIRE)) {
        uint32_t found[REGISTERS + 1];
        found[REGISTERS] = read_cpu(found);
        for (int i = 0; i <= REGISTERS; i++)
            __atomic_store_n(&kept[i], found[i], __ATOMIC_RELAXED);
        __atomic_store_n(&known, 1, __ATOMIC_RELEASE);
    }
    return __atomic_load_n(&kept[which], __ATOMIC_RELAXED);
}

int kiln_has_feature(const char *name)
{
    for (size_t i = 0; i < sizeof features / sizeof *features; i++)
        if (strcmp(features[i].name, name) == 0)
            return (register_of_cpu(features[i].where) >> features[i].bit & 1) != 0 &&
                   (register_of_cpu(REGISTERS) & features[i].state) == features[i].state &&
                   (features[i].state != TILE || kiln_os_permit_tiles());
    return -1;
}
#elif defined(__aarch64__)
enum { HWCAP, HWCAP2 }; /* words of kiln_os_feature_word() */

typedef struct feature {
    const char *name; /* LLVM's */
    uint8_t where, bit;
} feature;

#include "cpu_features.h"

int kiln_has_feature(const char *name)
{
    uint64_t word;
    for (size_t i = 0; i < sizeof features / sizeof *features; i++)
        if (strcmp(features[i].name, name) == 0)
            return kiln_os_feature_word(features[i].where, &word) ? (int)(word >> features[i].bit & 1)
                                                                  : -1;
    return -1;
}
#elif defined(__riscv) && __riscv_xlen == 64
enum { HWCAP, HWPROBE, VECTOR_BITS }; /* the first ones are words of kiln_os_feature_word() */

typedef struct feature {
    const char *name; /* LLVM's */
    uint8_t where, bit;
} feature;

#include "cpu_features.h"

/* Tests define another processor. */
#if !defined(VECTOR_BYTES)
#define VECTOR_BYTES vector_bytes()
static uint64_t vector_bytes(void)
{
    uint64_t bytes;
    __asm__ volatile("csrr %0, 0xc22" : "=r"(bytes)); /* vlenb */
    return bytes;
}
#endif

/* A bit for each power of two up to the bits of a vector register. */
static uint64_t vector_bits(uint64_t letters)
{
    if (!(letters >> ('v' - 'a') & 1))
        return 0;
    return 16 * VECTOR_BYTES - 1;
}

int kiln_has_feature(const char *name)
{
    uint64_t word;
    for (size_t i = 0; i < sizeof features / sizeof *features; i++) {
        const int where = features[i].where;
        if (strcmp(features[i].name, name) != 0)
            continue;
        if (!kiln_os_feature_word(where == VECTOR_BITS ? HWCAP : where, &word))
            return -1;
        return (int)((where == VECTOR_BITS ? vector_bits(word) : word) >> features[i].bit & 1);
    }
    return -1;
}
#else
int kiln_has_feature(const char *name)
{
    (void)name;
    return -1;
}
#endif
