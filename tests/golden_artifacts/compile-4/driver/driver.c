
#include "loader.h"
#include <stdlib.h>
#include <string.h>

/* The driver of a device that runs command streams: pairs of an operation and a number. */
typedef struct device { char *program; uint64_t bytes; } device;

static int load(void *context, const char *key, const kiln_artifact *files, int count, void **made)
{
    device *d = malloc(sizeof *d);
    (void)context, (void)key;
    if (count != 1 || files[0].bytes % 8 != 0) {
        free(d);
        kiln_set_last_error("ValueError: a command stream has whole commands");
        return KILN_ERROR_CALLBACK;
    }
    *d = (device){malloc(files[0].bytes), files[0].bytes};
    memcpy(d->program, files[0].content, files[0].bytes);
    *made = d;
    return KILN_OK;
}

static int call(void *module, const char *function, const kiln_value *args, int32_t count,
                kiln_value *result)
{
    (void)module, (void)function, (void)args, (void)count, (void)result;
    return KILN_ERROR_NAME; /* all work goes through launchers */
}

static void unload(void *module)
{
    free(((device *)module)->program);
    free(module);
}

__attribute__((constructor)) static void announce(void)
{
    const kiln_loader loader = {sizeof loader, NULL, load, call, unload};
    kiln_register_loader("teststream", &loader);
}

void teststream_launch(void *module, const float *x, float *out, int64_t n);
void teststream_launch(void *module, const float *x, float *out, int64_t n)
{
    const device *d = module;
    for (int64_t i = 0; i < n; i++) {
        float value = x[i];
        for (uint64_t at = 0; at < d->bytes; at += 8) {
            int32_t op;
            float number;
            memcpy(&op, d->program + at, 4);
            memcpy(&number, d->program + at + 4, 4);
            value = op == 1 ? value * number : value + number;
        }
        out[i] = value;
    }
}
