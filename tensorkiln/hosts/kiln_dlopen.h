/* kiln_dlopen.h - loads the library that lies at a path now, whatever was loaded from there before.
 *
 * A part of kiln_host.h, which includes it.
 */
#ifndef KILN_DLOPEN_H
#define KILN_DLOPEN_H

#include "kiln_library_file.h"

#include <dlfcn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* dlopen() of the file that was read. glibc takes a name for the library that was loaded by it,
 * whatever lies there by now; only by a name that it has not met does it compare files. So a second
 * name, with / and ./ in it, says which file it is: device and number, a bit each. */
static inline void *kiln_host_dlopen(kiln_host_description *file, const char *name)
{
    const size_t folder = (size_t)(strrchr(name, '/') - name) + 1;
    char *const other = (char *)kiln_host_allocate(file, strlen(name) + 129, 1);
    if (other == NULL)
        return NULL;
    char *at = other + folder;
    memcpy(other, name, folder);
    uint64_t bits = file->identity[1] + file->identity[0] * 0x9E3779B97F4A7C15u;
    for (; bits != 0; bits >>= 1) {
        if (bits & 1)
            *at++ = '.';
        *at++ = '/';
    }
    strcpy(at, name + folder);
    void *const first = dlopen(name, RTLD_NOW | RTLD_LOCAL); /* debuggers show this name */
    void *const found = first == NULL ? NULL : dlopen(other, RTLD_NOW | RTLD_LOCAL);
    if (found != NULL)
        dlclose(first); /* of one file it is the same, and stays */
    return found;
}

/* Reads and loads a file: another one may have come to lie there in between. */
static inline int kiln_host_try_file(kiln_host_description *file, const char *name, void **handle,
                                     kiln_host_error *error)
{
    const int code = kiln_host_read_file(file, error);
    if (code != KILN_OK)
        return code;
    *handle = kiln_host_dlopen(file, name);
    if (*handle == NULL && file->no_memory)
        return kiln_host_fail(error, KILN_ERROR_MEMORY, "cannot load '%s': out of memory",
                              file->path);
    if (*handle == NULL)
        return kiln_host_fail(error, KILN_HOST_ERROR_LOAD, "cannot load '%s': %s", file->path,
                              dlerror());
    if (!kiln_host_is_replaced(file, name))
        return KILN_OK;
    dlclose(*handle);
    *handle = NULL;
    return kiln_host_fail(error, KILN_HOST_ERROR_FILE, "'%s' was replaced while it was loaded",
                          file->path);
}

/* Loads the library `name`, which has a '/', for a description with its path. */
static inline int kiln_host_load_file(kiln_host_description *file, const char *name, void **handle,
                                      kiln_host_error *error)
{
    int code = kiln_host_try_file(file, name, handle, error);
    for (int i = 0; i < 8 && code != KILN_OK && kiln_host_is_replaced(file, name); i++)
        code = kiln_host_try_file(file, name, handle, error);
    return code;
}

#ifdef __cplusplus
}
#endif
#endif
