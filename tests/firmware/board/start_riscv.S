/* Reset of a RISC-V machine in machine mode: floats on, stack, then start_riscv.c. */
    .option arch, +zicsr
    .section .vectors, "ax"
    .globl board_start
board_start:
    .option push
    .option norelax
    la gp, __global_pointer$
    .option pop
    li t0, 0x2000 /* mstatus.FS: the floating point unit is on */
    csrs mstatus, t0
    la t0, board_trap
    csrw mtvec, t0
    la sp, board_stack_top
    call board_reset
    .balign 4
board_trap:
    call board_fault
