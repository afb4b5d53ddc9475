/* kiln_dlopen.h - loads the library that was read, whatever its path leads to by now, and even if
 * another file was loaded from that path before and is still in memory.
 *
 * Internal to kiln_host.h, which includes it.
 */
#ifndef KILN_DLOPEN_H
#define KILN_DLOPEN_H

#include "kiln_library_file.h"

#include <dlfcn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The name of the descriptor that was read; NULL if memory is short, or it leads elsewhere, as in a
 * container with another one's /proc. By it the file is opened that was compared with its digest: at
 * its path, another process could put another one in between, whose constructors would run. */
static inline const char *kiln_host_descriptor_name(kiln_host_description *file)
{
    char *const name = (char *)kiln_host_allocate(file, 64, 1);
    if (name != NULL)
        sprintf(name, "/proc/%ld/fd/%d", (long)getpid(), file->opened - 1);
    return name == NULL || kiln_host_is_replaced(file, name) ? NULL : name;
}

/* A spelling of `name`, which contains a '/', that is unique to the file; NULL if memory is short.
 *
 * glibc returns a loaded library for a name that it has seen before, without looking at the file;
 * only for a new name does it compare device and inode. So the name is spelled with a number made of
 * device and inode, whose bits from the lowest on are written as "./" for 1 and "/" for 0. With 6,
 * dir/net.so becomes dir//././net.so. */
static inline const char *kiln_host_respelled(kiln_host_description *file, const char *name)
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
    return other;
}

/* dlopen() the file that was read; `name`, its path, contains a '/'. Return its handle, or NULL with
 * *why, the words of dlerror() without the name of a descriptor, or file->no_memory.
 *
 * If it needs libraries beside it, it is opened by its path, of which the dynamic loader takes the
 * folder; first by the path itself, which debuggers show. *by_name then says so. */
static inline void *kiln_host_dlopen(kiln_host_description *file, const char *name, int *by_name,
                                     const char **why)
{
    const char *const opened = file->needs_name ? NULL : kiln_host_descriptor_name(file);
    const char *const other = kiln_host_respelled(file, opened != NULL ? opened : name);
    *by_name = opened == NULL;
    if (file->no_memory)
        return NULL;
    void *const first = *by_name ? dlopen(name, RTLD_NOW | RTLD_LOCAL) : NULL;
    void *const found =
        *by_name && first == NULL ? NULL : dlopen(other, RTLD_NOW | RTLD_LOCAL);
    if (found == NULL)
        *why = dlerror();
    if (found == NULL && !*by_name && strncmp(*why, other, strlen(other)) == 0) {
        const char *const rest = *why + strlen(other);
        const size_t size = strlen(file->path) + strlen(rest) + 1;
        char *const words = (char *)kiln_host_allocate(file, size, 1);
        *why = words == NULL ? rest : strcat(strcpy(words, file->path), rest);
    }
    if (found != NULL && first != NULL)
        dlclose(first); /* the same library, which `found` keeps loaded */
    return found;
}

/* The library that the dynamic loader did not find, if `why`, the words of dlerror(), say that, or
 * NULL. `name` is the file that was to be loaded. */
static inline const char *kiln_host_missing(kiln_host_description *file, const char *name,
                                            const char *why)
{
    const char *const end = strstr(why, ": cannot open shared object file: No such file");
    if (end == NULL || (strncmp(why, name, (size_t)(end - why)) == 0 && name[end - why] == 0))
        return NULL;
    char *const missing = (char *)kiln_host_allocate(file, (size_t)(end - why) + 1, 1);
    if (missing != NULL)
        memcpy(missing, why, (size_t)(end - why));
    return missing;
}

/* The dependency in the metadata that library `missing` comes with, or NULL: its row. */
static inline const char *kiln_host_dependency_of(kiln_host_description *file, const char *missing)
{
    const char *const last = strrchr(missing, '/');
    const char *const wanted = last == NULL ? missing : last + 1;
    const char *rows = file->metadata == NULL
                           ? NULL
                           : kiln_host_json_member(file->metadata, "dependencies");
    for (rows = kiln_host_json_first(rows, '['); rows != NULL; rows = kiln_host_json_next(rows)) {
        const char *at = *rows != '{' ? NULL : kiln_host_json_member(rows, "libraries");
        for (at = kiln_host_json_first(at, '['); at != NULL; at = kiln_host_json_next(at)) {
            const char *const one = *at == '"' ? kiln_host_text(file, at) : NULL;
            if (one != NULL && strcmp(one, wanted) == 0)
                return rows;
        }
    }
    return NULL;
}

/* A text of a dependency, "" if it has none. */
static inline const char *kiln_host_word_of(kiln_host_description *file, const char *row,
                                            const char *key)
{
    const char *const at = kiln_host_json_member(row, key);
    const char *const found = at == NULL || *at != '"' ? NULL : kiln_host_text(file, at);
    return found == NULL ? "" : found;
}

/* The error for a file that dlopen() refused with the words `why`. */
static inline int kiln_host_not_loaded(kiln_host_description *file, const char *name,
                                       const char *why, kiln_host_error *error)
{
    const char *const missing = kiln_host_missing(file, name, why);
    if (missing == NULL)
        return kiln_host_fail(error, KILN_HOST_ERROR_LOAD, "cannot load '%s': %s", file->path, why);
    const char *const row = kiln_host_dependency_of(file, missing);
    if (row == NULL)
        return kiln_host_fail(error, KILN_HOST_ERROR_LOAD,
                              "cannot load '%s': it needs '%s', which is not there", file->path,
                              missing);
    const char *const version = kiln_host_word_of(file, row, "version_spec");
    const char *license = kiln_host_word_of(file, row, "license");
    if (strcmp(license, "NOASSERTION") == 0)
        license = "";
    return kiln_host_fail(error, KILN_HOST_ERROR_LOAD,
                          "cannot load '%s': it needs '%s', which is not there: dependency "
                          "'%s'%s%s%s%s%s from %s",
                          file->path, missing, kiln_host_word_of(file, row, "short_name"),
                          *version == 0 ? "" : " ", version, *license == 0 ? "" : " (", license,
                          *license == 0 ? "" : ")", kiln_host_word_of(file, row, "url"));
}

/* Read the description of a file and load it; KILN_HOST_ERROR_FILE if it was changed in
 * between. */
static inline int kiln_host_try_file(kiln_host_description *file, const char *name, void **handle,
                                     kiln_host_error *error)
{
    const int code = kiln_host_read_file(file, error);
    if (code != KILN_OK)
        return code;
    int by_name = 0;
    const char *why = "";
    *handle = kiln_host_dlopen(file, name, &by_name, &why);
    if (*handle == NULL && file->no_memory)
        return kiln_host_fail(error, KILN_ERROR_MEMORY, "cannot load '%s': out of memory",
                              file->path);
    if (*handle == NULL)
        return kiln_host_not_loaded(file, name, why, error);
    if (!(by_name ? kiln_host_is_replaced(file, name) : kiln_host_is_changed(file)))
        return KILN_OK;
    dlclose(*handle);
    *handle = NULL;
    return kiln_host_fail(error, KILN_HOST_ERROR_FILE, "'%s' was replaced while it was loaded",
                          file->path);
}

/* Read and load the library `name`, which contains a '/'; file->path is its path for messages.
 * Retry up to 8 times while the file is being replaced. On success the caller closes *handle with
 * dlclose(). */
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
