/* float_state.h - how a thread computes: its rounding, the exceptions that it traps, and whether
 * numbers below the smallest normal one count as 0. On x86-64 that is MXCSR, on AArch64 FPCR, on
 * RISC-V fcsr, which knows nothing of the latter. */
#ifndef KILN_FLOAT_STATE_H
#define KILN_FLOAT_STATE_H

#include <stdint.h>

#if defined(__x86_64__)
typedef uint32_t kiln_float_state;
#define KILN_FLOAT_FLUSH 0x8040u  /* operands and results: DAZ, FTZ */
#define KILN_FLOAT_RAISED 0x003fu /* what has happened, which says nothing of what will */
#define KILN_FLOAT_USUAL 0x1f80u
static inline kiln_float_state kiln_get_float_state(void)
{
    return __builtin_ia32_stmxcsr();
}
static inline void kiln_set_float_state(kiln_float_state state)
{
    __builtin_ia32_ldmxcsr(state);
}
#elif defined(__aarch64__)
typedef uint64_t kiln_float_state;
#define KILN_FLOAT_FLUSH ((uint64_t)1 << 24) /* FZ: float16 has FZ16, and x86-64 nothing like it */
#define KILN_FLOAT_RAISED 0
#define KILN_FLOAT_USUAL 0
static inline kiln_float_state kiln_get_float_state(void)
{
    kiln_float_state state;
    __asm__ volatile("mrs %0, fpcr" : "=r"(state));
    return state;
}
static inline void kiln_set_float_state(kiln_float_state state)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(state) : "memory");
}
#elif defined(__riscv_flen)
typedef uint32_t kiln_float_state;
#define KILN_FLOAT_FLUSH 0
#define KILN_FLOAT_RAISED 0x1fu
#define KILN_FLOAT_USUAL 0
static inline kiln_float_state kiln_get_float_state(void)
{
    kiln_float_state state;
    __asm__ volatile("frcsr %0" : "=r"(state));
    return state;
}
static inline void kiln_set_float_state(kiln_float_state state)
{
    __asm__ volatile("fscsr %0" : : "r"(state) : "memory");
}
#else /* unknown: threads have the one that they start with, and targets refuse `denormals` */
typedef int kiln_float_state;
#define KILN_FLOAT_FLUSH 0
#define KILN_FLOAT_RAISED 0
#define KILN_FLOAT_USUAL 0
static inline kiln_float_state kiln_get_float_state(void)
{
    return 0;
}
static inline void kiln_set_float_state(kiln_float_state state)
{
    (void)state;
}
#endif

#endif
