/* Information about the library, the checks before its first kernel runs, and its destructor. */
#include "pool.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE 4096

int kiln_flag(const char *text)
{
    static const char *const words[] = {"0", "off", "1", "on"};
    for (int i = 0; text != NULL && i < 4; i++) {
        int at = 0;
        while (words[i][at] != 0 &&
               (text[at] == words[i][at] || (text[at] >= 'A' && (text[at] | 0x20) == words[i][at])))
            at++;
        if (words[i][at] == 0 && text[at] == 0)
            return i / 2;
    }
    return -1;
}

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
    const char *verify = getenv("KILN_VERIFY_WEIGHTS");
    if (kiln_wished_threads() < 0)
        return kiln_fail(KILN_ERROR_ENVIRONMENT,
                         "KILN_NUM_THREADS='%.80s': expected a whole number from 0 to %d",
                         getenv("KILN_NUM_THREADS"), KILN_MOST_THREADS);
    if (verify != NULL && *verify != 0 && kiln_flag(verify) < 0)
        return kiln_fail(KILN_ERROR_ENVIRONMENT, "KILN_VERIFY_WEIGHTS='%.80s': expected 0 or 1",
                         verify);
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

/* The destructor, for dlclose() and exit(). Priority 101 makes it the last of the library's
 * destructors, because the others may still call functions of the library. Exported for hosts that
 * load the library without dlopen(), as a JIT does, and unload it themselves. */
#if defined(__GNUC__)
__attribute__((destructor(101)))
#endif
KILN_API void kiln_unload(void)
{
    kiln_unload_modules();
    kiln_forget_names();
    kiln_release_idle();
    kiln_leave_pool();
    kiln_unwatch_process();
}

KILN_API int kiln_abi_version(void)
{
    return KILN_ABI_VERSION;
}

KILN_API int kiln_open(void)
{
    return kiln_prepare();
}

KILN_API const char *kiln_metadata(void)
{
    return kiln_this_library.metadata;
}

const char *kiln_function_name(int index)
{
    const int outer = index - kiln_this_library.n_functions;
    if (outer < 0)
        return kiln_this_library.functions[index]->name;
    return *(const char *const *)kiln_this_library.outers[outer]; /* name is the first member */
}

static void unknown_function(const char *name, int count)
{
    char names[700] = "nothing";
    for (int i = 0, used = 0; i < count && used < (int)sizeof names; i++)
        used += snprintf(names + used, sizeof names - (size_t)used, "%s%s", i == 0 ? "" : ", ",
                         kiln_function_name(i));
    kiln_fail(KILN_ERROR_NAME, "library %s has no function '%s'; it has %s",
              kiln_this_library.name, name, names);
}

KILN_API int kiln_function_index(const char *name)
{
    const int count = kiln_this_library.n_functions + kiln_this_library.n_outers;
    if (name == NULL)
        return kiln_fail(-1, "%s: name is a null pointer", __func__);
    for (int i = 0; i < count; i++)
        if (strcmp(kiln_function_name(i), name) == 0)
            return i;
    unknown_function(name, count);
    return -1;
}
