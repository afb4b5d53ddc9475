/* loader.h - artifacts other than host code: the container that holds them, and the modules that
 * loaders make of them. Linked only into libraries with a container. */
#ifndef KILN_LOADER_H
#define KILN_LOADER_H

#include "crt.h"

/* ---- loader.c ------------------------------------------------------------------------------ */

/* Section .kiln.artifacts: the size as uint64_t, padding to 64 bytes, then the container. NULL in a
 * library without one. */
extern const uint64_t kiln_container_data[] __attribute__((weak));

/* Call a function of the module nearest to the library that has it; for call_packed. */
int kiln_call_any_import(const char *function, const kiln_value *args, int32_t count,
                         kiln_value *result);
/* The body of a kernel that a module provides. A failure is recorded with kiln_kernel_failed(). */
void kiln_import_kernel(const char *loader, const char *target_key, const char *function,
                        const kiln_value *args, int count);

#if defined(KILN_DEVICES)
/* Return the group of a loader and target key; NULL with a sentence if there is none. */
const struct kiln_group *kiln_find_group(const char *loader, const char *target_key, int *code);
#endif

/* ---- container.c: docs/formats/container.md ------------------------------------------------ */

/* A node of the container: the artifacts of one loader and target key, and the numbers of the
 * groups it imports. The root, which is the library itself, has no artifacts. */
typedef struct kiln_group {
    const char *loader;
    const char *target_key;
    const kiln_artifact *artifacts;
    const int *children;
    int n_artifacts;
    int n_children;
} kiln_group;

typedef struct kiln_container {
    int n_groups; /* with the root, number 0 */
    kiln_group groups[];
} kiln_container;

/* Check and read a container into one block, which the caller frees with free(). Artifact contents
 * are not copied: they point into `data`. KILN_ERROR_CONTAINER, or KILN_ERROR_MEMORY. */
int kiln_read_container(const void *data, uint64_t size, kiln_container **container);

/* ---- sha256.c ------------------------------------------------------------------------------ */
void kiln_sha256(const unsigned char *data, uint64_t size, unsigned char digest[32]);

#endif
