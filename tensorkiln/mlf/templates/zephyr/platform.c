/* The platform of Zephyr: inputs are zeros until a sensor is read here, outputs are printed. */
#include "platform.h"
#include <string.h>
#include <zephyr/kernel.h>
#include <zephyr/sys/printk.h>

void platform_start(void)
{
}

void platform_read(const char *tensor, void *data, size_t size)
{
    ARG_UNUSED(tensor);
    memset(data, 0, size);
}

void platform_write(const char *tensor, const void *data, size_t size)
{
    const uint8_t *bytes = data;
    printk("%s:", tensor);
    for (size_t i = 0; i < size; i++)
        printk(" %02x", bytes[i]);
    printk("\n");
}

uint32_t platform_ticks(void)
{
    return k_cycle_get_32();
}

int platform_stop(int32_t code, uint32_t ticks)
{
    printk("returned %d after %u cycles\n", (int)code, (unsigned int)ticks);
    return 0;
}
