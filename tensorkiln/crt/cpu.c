/* Which features of the processor may be used. The library lists what its kernels need; without
 * this check a lacking one would show as an illegal instruction. */
#include "crt.h"
#include <string.h>

#if defined(__x86_64__) || defined(__i386__)
enum { LEAF1_ECX, LEAF1_EDX, LEAF7_EBX, LEAF7_ECX, LEAF7_EDX, LEAF7_1_EAX, EXT1_ECX, EXT1_EDX,
       LEAFD_1_EAX, REGISTERS };
/* State that the operating system must save: XCR0 bits. */
#define NONE 0x0u
#define YMM 0x6u
#define ZMM 0xe6u
#define TILE 0x60000u

typedef struct feature {
    const char *name; /* LLVM's */
    uint8_t where, bit;
    uint32_t state;
} feature;

static const feature features[] = {
    {"adx", LEAF7_EBX, 19, NONE},        {"aes", LEAF1_ECX, 25, NONE},
    {"amx-bf16", LEAF7_EDX, 22, TILE},   {"amx-int8", LEAF7_EDX, 25, TILE},
    {"amx-tile", LEAF7_EDX, 24, TILE},   {"avx", LEAF1_ECX, 28, YMM},
    {"avx2", LEAF7_EBX, 5, YMM},         {"avx512bf16", LEAF7_1_EAX, 5, ZMM},
    {"avx512bitalg", LEAF7_ECX, 12, ZMM}, {"avx512bw", LEAF7_EBX, 30, ZMM},
    {"avx512cd", LEAF7_EBX, 28, ZMM},    {"avx512dq", LEAF7_EBX, 17, ZMM},
    {"avx512f", LEAF7_EBX, 16, ZMM},     {"avx512fp16", LEAF7_EDX, 23, ZMM},
    {"avx512ifma", LEAF7_EBX, 21, ZMM},  {"avx512vbmi", LEAF7_ECX, 1, ZMM},
    {"avx512vbmi2", LEAF7_ECX, 6, ZMM},  {"avx512vl", LEAF7_EBX, 31, ZMM},
    {"avx512vnni", LEAF7_ECX, 11, ZMM},  {"avx512vp2intersect", LEAF7_EDX, 8, ZMM},
    {"avx512vpopcntdq", LEAF7_ECX, 14, ZMM}, {"avxifma", LEAF7_1_EAX, 23, YMM},
    {"avxvnni", LEAF7_1_EAX, 4, YMM},    {"bmi", LEAF7_EBX, 3, NONE},
    {"bmi2", LEAF7_EBX, 8, NONE},        {"cldemote", LEAF7_ECX, 25, NONE},
    {"clflushopt", LEAF7_EBX, 23, NONE}, {"clwb", LEAF7_EBX, 24, NONE},
    {"cmov", LEAF1_EDX, 15, NONE},       {"crc32", LEAF1_ECX, 20, NONE},
    {"cx16", LEAF1_ECX, 13, NONE},       {"cx8", LEAF1_EDX, 8, NONE},
    {"f16c", LEAF1_ECX, 29, YMM},        {"fma", LEAF1_ECX, 12, YMM},
    {"fsgsbase", LEAF7_EBX, 0, NONE},    {"fxsr", LEAF1_EDX, 24, NONE},
    {"gfni", LEAF7_ECX, 8, NONE},        {"lzcnt", EXT1_ECX, 5, NONE},
    {"mmx", LEAF1_EDX, 23, NONE},        {"movbe", LEAF1_ECX, 22, NONE},
    {"movdir64b", LEAF7_ECX, 28, NONE},  {"movdiri", LEAF7_ECX, 27, NONE},
    {"pclmul", LEAF1_ECX, 1, NONE},      {"popcnt", LEAF1_ECX, 23, NONE},
    {"prfchw", EXT1_ECX, 8, NONE},       {"rdrnd", LEAF1_ECX, 30, NONE},
    {"rdseed", LEAF7_EBX, 18, NONE},     {"sahf", EXT1_ECX, 0, NONE},
    {"sha", LEAF7_EBX, 29, NONE},        {"sse", LEAF1_EDX, 25, NONE},
    {"sse2", LEAF1_EDX, 26, NONE},       {"sse3", LEAF1_ECX, 0, NONE},
    {"sse4.1", LEAF1_ECX, 19, NONE},     {"sse4.2", LEAF1_ECX, 20, NONE},
    {"sse4a", EXT1_ECX, 6, NONE},        {"ssse3", LEAF1_ECX, 9, NONE},
    {"vaes", LEAF7_ECX, 9, YMM},         {"vpclmulqdq", LEAF7_ECX, 10, YMM},
    {"xsave", LEAF1_ECX, 26, NONE},      {"xsavec", LEAFD_1_EAX, 1, NONE},
    {"xsaveopt", LEAFD_1_EAX, 0, NONE},  {"xsaves", LEAFD_1_EAX, 3, NONE},
};

static void cpuid(uint32_t leaf, uint32_t sub, uint32_t out[4])
{
    __asm__ volatile("cpuid" : "=a"(out[0]), "=b"(out[1]), "=c"(out[2]), "=d"(out[3])
                     : "a"(leaf), "c"(sub));
}

/* Feature registers; returns the state the operating system saves. */
static uint32_t read_cpu(uint32_t found[REGISTERS])
{
    uint32_t r[4], low = 0, high = 0;
    memset(found, 0, REGISTERS * sizeof *found);
    cpuid(0, 0, r);
    const uint32_t last = r[0];
    cpuid(1, 0, r);
    found[LEAF1_ECX] = r[2];
    found[LEAF1_EDX] = r[3];
    if (last >= 7) {
        cpuid(7, 0, r);
        const uint32_t last_sub = r[0];
        found[LEAF7_EBX] = r[1];
        found[LEAF7_ECX] = r[2];
        found[LEAF7_EDX] = r[3];
        if (last_sub >= 1) {
            cpuid(7, 1, r);
            found[LEAF7_1_EAX] = r[0];
        }
    }
    if (last >= 13) {
        cpuid(13, 1, r);
        found[LEAFD_1_EAX] = r[0];
    }
    cpuid(0x80000000u, 0, r);
    if (r[0] >= 0x80000001u) {
        cpuid(0x80000001u, 0, r);
        found[EXT1_ECX] = r[2];
        found[EXT1_EDX] = r[3];
    }
    if (found[LEAF1_ECX] >> 27 & 1) /* OSXSAVE: xgetbv exists */
        __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

/* One of them, or with REGISTERS the state. They are read once: in a virtual machine each cpuid is
 * answered outside of it, and seven for each of thirty features took most of the time to open a
 * library. Threads that do it at once write the same. */
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
                   (register_of_cpu(REGISTERS) & features[i].state) == features[i].state;
    return -1;
}
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>

static const struct {
    const char *name;
    uint8_t second, bit; /* of AT_HWCAP, or of AT_HWCAP2 */
} features[] = {
    {"fp-armv8", 0, 0}, {"neon", 0, 1}, {"aes", 0, 3}, {"sha2", 0, 6}, {"crc", 0, 7},
    {"lse", 0, 8}, {"fullfp16", 0, 10}, {"rdm", 0, 12}, {"jsconv", 0, 13}, {"complxnum", 0, 14},
    {"rcpc", 0, 15}, {"ccpp", 0, 16}, {"sha3", 0, 17}, {"sm4", 0, 19}, {"dotprod", 0, 20},
    {"sve", 0, 22}, {"fp16fml", 0, 23}, {"dit", 0, 24}, {"lse2", 0, 25}, {"rcpc-immo", 0, 26},
    {"flagm", 0, 27}, {"ssbs", 0, 28}, {"sb", 0, 29}, {"ccdp", 1, 0}, {"sve2", 1, 1},
    {"sve-aes", 1, 2}, {"sve2-aes", 1, 2}, {"sve-bitperm", 1, 4}, {"sve2-bitperm", 1, 4},
    {"sve-sha3", 1, 5}, {"sve2-sha3", 1, 5}, {"sve-sm4", 1, 6}, {"sve2-sm4", 1, 6},
    {"altnzcv", 1, 7}, {"fptoint", 1, 8}, {"f32mm", 1, 10}, {"f64mm", 1, 11}, {"i8mm", 1, 13},
    {"bf16", 1, 14}, {"rand", 1, 16}, {"bti", 1, 17}, {"mte", 1, 18}, {"sme", 1, 23},
};

int kiln_has_feature(const char *name)
{
    for (size_t i = 0; i < sizeof features / sizeof *features; i++)
        if (strcmp(features[i].name, name) == 0)
            return getauxval(features[i].second ? AT_HWCAP2 : AT_HWCAP) >> features[i].bit & 1;
    return -1;
}
#else
int kiln_has_feature(const char *name)
{
    (void)name;
    return -1;
}
#endif
