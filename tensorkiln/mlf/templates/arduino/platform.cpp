// The platform of Arduino: inputs are zeros until a sensor is read here, outputs are printed.
#include <Arduino.h>
#include <string.h>

#include "platform.h"

void platform_start(void)
{
    Serial.begin(115200);
}

void platform_read(const char *tensor, void *data, size_t size)
{
    (void)tensor;
    memset(data, 0, size);
}

void platform_write(const char *tensor, const void *data, size_t size)
{
    const uint8_t *bytes = static_cast<const uint8_t *>(data);
    Serial.print(tensor);
    Serial.print(":");
    for (size_t i = 0; i < size; i++) {
        Serial.print(bytes[i] < 16 ? " 0" : " ");
        Serial.print(bytes[i], HEX);
    }
    Serial.println();
}

uint32_t platform_ticks(void)
{
    return micros();
}

int platform_stop(int32_t code, uint32_t ticks)
{
    Serial.print("returned ");
    Serial.print(code);
    Serial.print(" after ");
    Serial.print(ticks);
    Serial.println(" us");
    return 0;
}
