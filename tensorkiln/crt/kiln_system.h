/* kiln_system.h - libraries that were linked into the program itself, by their prefix.
 *
 * A library compiled with system_lib_prefix and exported as an archive or object announces itself
 * before main(). Link the whole of it (an object, or -Wl,--whole-archive) unless the program names
 * one of its functions anyway. Several may be in one program: no symbol of theirs is the same. */
#ifndef KILN_SYSTEM_H
#define KILN_SYSTEM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef void (*kiln_entry)(void);

typedef struct kiln_symbol {
    const char *name; /* as in kiln.h and in the generated header */
    kiln_entry address;
} kiln_symbol;

typedef struct kiln_system_library {
    struct kiln_system_library *next;
    uint32_t version; /* of this struct: 1 */
    uint32_t count;
    const char *prefix;
    const kiln_symbol *symbols;
} kiln_system_library;

/* All of the program, the last one first; the address is NULL when there is none. */
extern kiln_system_library *kiln_system_libraries __attribute__((weak));

/* The library of a prefix, or NULL. */
static inline const kiln_system_library *kiln_find_system_library(const char *prefix)
{
    const kiln_system_library *at = &kiln_system_libraries == NULL ? NULL : kiln_system_libraries;
    while (at != NULL && (at->version != 1 || strcmp(at->prefix, prefix) != 0))
        at = at->next;
    return at;
}

/* A function of it, such as "kiln_call", to be cast to its type; NULL when it has none. */
static inline kiln_entry kiln_system_symbol(const kiln_system_library *library,
                                                   const char *name)
{
    for (uint32_t i = 0; i < library->count; i++)
        if (strcmp(library->symbols[i].name, name) == 0)
            return library->symbols[i].address;
    return NULL;
}

#ifdef __cplusplus
}
#endif
#endif
