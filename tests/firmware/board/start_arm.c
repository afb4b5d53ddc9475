/* Reset and faults of Cortex-M. */
#include "board.h"
#include <string.h>

extern uint32_t board_data_from[], board_data_start[], board_data_end[];
extern uint32_t board_bss_start[], board_bss_end[], board_stack_top[];

#define REGISTER(address) (*(volatile uint32_t *)(address))
#define CCR REGISTER(0xe000ed14)
#define CPACR REGISTER(0xe000ed88)
#define UNALIGN_TRP (1u << 3)

static void reset(void)
{
    memcpy(board_data_start, board_data_from,
           (size_t)((char *)board_data_end - (char *)board_data_start));
    memset(board_bss_start, 0, (size_t)((char *)board_bss_end - (char *)board_bss_start));
#if defined(__ARM_FP)
    CPACR |= 0xfu << 20; /* coprocessors 10 and 11: floating point */
    __asm__ volatile("dsb\nisb" ::: "memory");
#endif
#if defined(__ARM_ARCH_6M__)
    /* The machine is a Cortex-M3, which would allow what an M0+ does not. QEMU looks at this bit
     * when it translates, and remembers it until CONTROL is written. */
    CCR |= UNALIGN_TRP;
    __asm__ volatile("mrs r0, control\nmsr control, r0\nisb" ::: "r0", "memory");
#endif
    board_exit(main());
}

static void fault(void)
{
    board_fail("a fault: an illegal instruction, address or alignment");
}

typedef void (*vector)(void);
__attribute__((section(".vectors"), used)) static const struct {
    uint32_t *stack;
    vector handlers[15];
} vectors = {board_stack_top,
             {reset, fault, fault, fault, fault, fault, fault, fault, fault, fault, fault, fault,
              fault, fault, fault}};
