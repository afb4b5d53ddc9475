/* The checks before the first kernel of the library runs. */
#include "pool.h"
#include <stdlib.h>

#define PAGE 4096

#if defined(KILN_LEVELS)
static int has_all_features(const kiln_library *level)
{
    for (const char *const *name = level->cpu_features; *name != NULL; name++)
        if (kiln_has_feature(*name) != 1)
            return 0;
    return 1;
}

/* The last level whose code this processor can run. Where it can run none, that is the least one, for
 * which check_cpu() says what is missing. Threads that race choose the same. */
const kiln_library *kiln_choose_level(void)
{
    int i = KILN_LEVELS - 1;
    while (i > 0 && !has_all_features(kiln_levels[i]))
        i--;
    __atomic_store_n(&kiln_level, kiln_levels[i], __ATOMIC_RELAXED);
    return kiln_levels[i];
}

KILN_API const char *kiln_processor_level(void)
{
    return kiln_this_library.level;
}
#endif

static int check_cpu(void)
{
    for (const char *const *name = kiln_this_library.cpu_features; *name != NULL; name++) {
        const int has = kiln_has_feature(*name);
        if (has == 0)
            return kiln_fail(KILN_ERROR_CPU,
                             "this processor lacks '%s', which library %s was compiled for; "
                             "compile it again for this processor or for a lower level",
                             *name, kiln_this_library.name);
        if (has < 0)
            return kiln_fail(KILN_ERROR_CPU,
                             "library %s needs CPU feature '%s', which its runtime cannot check "
                             "on this processor",
                             kiln_this_library.name, *name);
    }
    return KILN_OK;
}

/* Reject invalid environment variables, with the messages of base/config.py, rather than ignore
 * them. */
static int check_environment(void)
{
    if (kiln_wished_threads() < 0)
        return kiln_fail(KILN_ERROR_ENVIRONMENT,
                         "KILN_NUM_THREADS='%.80s': expected a whole number from 0 to %d",
                         getenv("KILN_NUM_THREADS"), KILN_MOST_THREADS);
    if (kiln_wished_check() < 0)
        return kiln_fail(KILN_ERROR_ENVIRONMENT, "KILN_VERIFY_WEIGHTS='%.80s': expected 0 or 1",
                         getenv("KILN_VERIFY_WEIGHTS"));
    return KILN_OK;
}

/* Read each page of the padding behind the weights once: a prefetch of an unmapped page walks the
 * page tables every time it is issued. */
static void touch_pad(void)
{
    if (kiln_this_library.weights == NULL)
        return;
    const volatile char *pad = *kiln_this_library.weights + kiln_this_library.weights_bytes;
    for (int at = 0; at < KILN_WEIGHTS_PAD; at += PAGE)
        (void)pad[at];
}

int kiln_prepare(void)
{
    static int prepared; /* threads that race do the checks twice, with the same result */
    if (kiln_this_thread() == NULL)
        return KILN_ERROR_MEMORY;
    if (__atomic_load_n(&prepared, __ATOMIC_RELAXED))
        return KILN_OK;
    int code = check_cpu();
    if (code == KILN_OK)
        code = check_environment();
    if (code == KILN_OK)
        code = kiln_map_weights();
    if (code == KILN_OK) {
        touch_pad();
        /* Find the pool before any fork(): in a child, dl_iterate_phdr() may deadlock (share.c). */
        kiln_shared_pool();
        __atomic_store_n(&prepared, 1, __ATOMIC_RELAXED);
    }
    return code;
}
