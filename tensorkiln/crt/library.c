/* Information about the library for hosts, and its destructor. */
#include "outer.h"
#include <stdio.h>
#include <string.h>

/* The destructor, for dlclose() and exit(). Priority 101 makes it the last of the library's
 * destructors, because the others may still call functions of the library. Exported for hosts that
 * load the library without dlopen(), as a JIT does, and unload it themselves. */
#if defined(__GNUC__)
__attribute__((destructor(101)))
#endif
KILN_API void kiln_unload(void)
{
#if defined(KILN_DEVICES)
    if (kiln_is_exiting())
        kiln_forget_devices(); /* their drivers may have ended before this library */
#endif
    kiln_unload_modules();
    kiln_forget_names();
#if defined(KILN_DEVICES)
    kiln_release_idle(kiln_session_free);
    kiln_close_devices();
#else
    kiln_release_idle(NULL);
#endif
    kiln_leave_pool(kiln_is_exiting());
    kiln_unwatch_process();
#if defined(KILN_OS_NO_THREAD_VARIABLES)
    if (kiln_is_exiting()) /* calls of other threads go on, with what error.c keeps of them */
        return;
#endif
    kiln_forget_threads();
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

/* The failure for a description that says something else than the code. */
static int differs(int code, const char *name, const char *what, long long described, long long has)
{
    return kiln_fail(code, "%s: %s %lld in the description, %lld in the code", name, what, described,
                     has);
}

static int check_parameters(const kiln_function *f, const char *const *names, int count)
{
    for (int i = 0; i < count; i++)
        if (names[i] == NULL || strcmp(names[i], f->params[i].name) != 0)
            return kiln_fail(KILN_ERROR_ARGUMENT, "%s: parameter %d is '%s' in the description, '%s' "
                             "in the code", f->name, i, names[i] == NULL ? "" : names[i],
                             f->params[i].name);
    return KILN_OK;
}

KILN_API int kiln_check_function(const char *name, int kind, const char *const *parameters,
                                 int inputs, int outputs)
{
    KILN_GIVEN(name);
    KILN_GIVEN(parameters);
    const int index = kiln_function_index(name), outer = index - kiln_this_library.n_functions;
    if (index < 0)
        return KILN_ERROR_NAME;
    const kiln_function *f = outer < 0 ? kiln_this_library.functions[index] : NULL;
    const int has = f == NULL ? KILN_OUTER_FUNCTION : f->kind;
    if (kind != has)
        return differs(KILN_ERROR_ARGUMENT, name, "its kind is", kind, has);
    const int n_inputs = f == NULL ? kiln_this_library.outers[outer]->n_params : f->n_inputs;
    if (inputs != n_inputs)
        return differs(KILN_ERROR_COUNT, name, "the number of inputs is", inputs, n_inputs);
    if (f == NULL)
        return KILN_OK;
    if (outputs != f->n_params - f->n_inputs)
        return differs(KILN_ERROR_COUNT, name, "the number of outputs is", outputs,
                       f->n_params - f->n_inputs);
    return check_parameters(f, parameters, f->n_params);
}
