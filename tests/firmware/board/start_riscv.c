/* Memory, faults and time of a RISC-V machine. */
#include "board.h"
#include <string.h>

extern uint32_t board_data_from[], board_data_start[], board_data_end[];
extern uint32_t board_bss_start[], board_bss_end[];
void board_reset(void);
void board_fault(void);

void board_reset(void)
{
    memcpy(board_data_start, board_data_from,
           (size_t)((char *)board_data_end - (char *)board_data_start));
    memset(board_bss_start, 0, (size_t)((char *)board_bss_end - (char *)board_bss_start));
    board_exit(main());
}

void board_fault(void)
{
    board_fail("a fault: an illegal instruction, address or alignment");
}
