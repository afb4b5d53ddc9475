/* kiln_system.h - finds libraries that are statically linked into the program, by their prefix.
 *
 * A library compiled with system_lib_prefix and exported as an archive or object registers itself
 * in a constructor, before main(). The linker takes a member of an archive only if the program
 * refers to one of its symbols; otherwise link an object, or use -Wl,--whole-archive. One program
 * may contain several such libraries: their symbols differ by the prefix.
 *
 * The list does not change after main() begins, so any thread may read it. Nothing here is to be
 * freed. */
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
    const char *name; /* as in kiln.h and the generated header, e.g. "kiln_call" */
    kiln_entry address;
} kiln_symbol;

typedef struct kiln_system_library {
    struct kiln_system_library *next;
    uint32_t version; /* of this struct: 1 */
    uint32_t count;
    const char *prefix;
    const kiln_symbol *symbols;
} kiln_system_library;

/* The libraries of this program as a linked list, the last registered first. In a program without
 * such a library the weak symbol is undefined: its address is NULL. */
extern kiln_system_library *kiln_system_libraries __attribute__((weak));

/* Return the library with this prefix, or NULL if the program has none. */
static inline const kiln_system_library *kiln_find_system_library(const char *prefix)
{
    const kiln_system_library *at = &kiln_system_libraries == NULL ? NULL : kiln_system_libraries;
    while (at != NULL && (at->version != 1 || strcmp(at->prefix, prefix) != 0))
        at = at->next;
    return at;
}

/* Return the address of a function such as "kiln_call", to be cast to the function's own type; NULL
 * if the library has no function of that name. `library` must not be NULL. */
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
