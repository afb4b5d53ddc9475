/* What kinds of devices have in common: opening a driver, limits, and the words of their errors. */
#include "device.h"
#include "os.h"
#include <string.h>

int kiln_open_driver(const char *library, const char *api, const char *hint, void **handle)
{
    /* It stays open: drivers have threads, which must not lose their code. */
    *handle = kiln_os_open_library(library);
    if (*handle != NULL)
        return KILN_OK;
    return kiln_fail(KILN_ERROR_DRIVER, "library %s runs on %s, and %s cannot be opened; %s",
                     kiln_this_library.name, api, library, hint);
}

int kiln_has_function(void *library, const char *name, void *place)
{
    void *const found = kiln_os_symbol(library, name);
    memcpy(place, &found, sizeof found);
    return found != NULL;
}

int kiln_no_device(const char *kind, int index, const char *api, int count)
{
    return kiln_fail(KILN_ERROR_NO_DEVICE, "there is no device %s:%d: this system has %d %s "
                     "device%s", kind, index, count, api, count == 1 ? "" : "s");
}

int64_t kiln_threads_of(const kiln_device_function *f)
{
    const int64_t block[3] = {f->block[0], f->block[1], f->block[2]};
    return kiln_bytes_of(block, 3, 1);
}

int kiln_device_lacks(const kiln_device_words *device, const kiln_device_function *f,
                      const char *what, int64_t needed, int64_t has)
{
    return kiln_fail(KILN_ERROR_CAPABILITY, "%s:%d (%s) cannot run %s: it needs %lld %s, the device "
                     "has %lld", device->kind, device->index, device->name, f->name,
                     (long long)needed, what, (long long)has);
}
