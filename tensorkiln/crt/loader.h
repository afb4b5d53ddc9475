/* loader.h - artifacts that are no host code: the container, and the modules that loaders make of
 * it. Only libraries that carry a container have any of this. */
#ifndef KILN_LOADER_H
#define KILN_LOADER_H

#include "crt.h"

/* ---- container.c: docs/formats/container.md ------------------------------------------------ */

/* A node: what one loader gets, and the nodes it imports. The root has neither. */
typedef struct kiln_group {
    const char *loader;
    const char *target_key;
    const kiln_artifact *artifacts;
    const int *children;
    int n_artifacts;
    int n_children;
} kiln_group;

typedef struct kiln_container {
    int n_groups; /* the root, which is the library, is number 0 */
    kiln_group groups[];
} kiln_container;

/* Reads and checks a container; contents stay where they are. One block, for free(). */
int kiln_read_container(const void *data, uint64_t size, kiln_container **container);

/* ---- sha256.c ------------------------------------------------------------------------------ */
void kiln_sha256(const unsigned char *data, uint64_t size, unsigned char digest[32]);

/* ---- loader.c ------------------------------------------------------------------------------ */

/* What the linker places: a size in the first 64 bytes, then the container. Most have none. */
extern const uint64_t kiln_container_data[] __attribute__((weak));

/* Any module's function of that name, the nearest to the library; for call_packed. */
int kiln_call_any_import(const char *function, const kiln_value *args, int32_t count,
                         kiln_value *result);
/* The body of a kernel that a loaded module provides. A failure ends the run of its function. */
void kiln_import_kernel(const char *loader, const char *target_key, const char *function,
                        const kiln_value *args, int count);

#endif
