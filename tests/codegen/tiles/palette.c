/* Which configuration of AMX the calling thread has: its palette, 0 if its tiles are released. */
#include <stdint.h>

int tile_palette(void)
{
    uint8_t configuration[64] = {0xff};
    __asm__ volatile("sttilecfg %0" : "=m"(configuration));
    return configuration[0];
}
