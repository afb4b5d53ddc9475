/* Modules, which registered loaders make of the artifacts in the container, when one of their
 * functions is first called. */
#include "loader.h"
#include "outer.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct registered_loader {
    struct registered_loader *next;
    kiln_loader loader;
    char name[];
} registered_loader;

typedef struct loaded {
    kiln_loader loader; /* a copy, because another loader may be registered under the name later */
    void *module;
} loaded;

typedef struct module_row {
    loaded *made;   /* NULL: not loaded yet */
    int is_loading; /* load() is running: it must not ask for this module */
} module_row;

static registered_loader *loaders;
static module_row *modules; /* one per group; allocated before `container` is set */
static kiln_container *container; /* NULL: not read yet */
static int users; /* running calls that read `modules` or `container` without the lock */

/* In a child of fork(): forget what other threads were loading. A thread inside a loader still holds
 * the lock in the child. */
static const kiln_lock *forget_loading(void)
{
    const kiln_thread *const t = kiln_this_thread();
    const int depth = t == NULL ? 0 : t->modules_depth;
    users = t == NULL ? 0 : t->module_users; /* the child has no other threads */
    for (int g = 0; depth == 0 && container != NULL && g < container->n_groups; g++)
        modules[g].is_loading = 0; /* the thread that was loading it does not exist here */
    return depth != 0 ? &kiln_modules_lock : NULL;
}

/* The lock is recursive, because load() may ask for other modules. */
static void lock_modules(void)
{
    kiln_thread *const t = kiln_this_thread();
    kiln_at_fork(KILN_FORK_LOADING, forget_loading);
    if (t == NULL || t->modules_depth++ == 0)
        kiln_take_lock(&kiln_modules_lock);
}

static void unlock_modules(void)
{
    kiln_thread *const t = kiln_this_thread(); /* may have got its memory since */
    if (t == NULL || t->modules_depth == 0 || --t->modules_depth == 0)
        kiln_give_lock(&kiln_modules_lock);
}

/* Count calls in `users`. The lock must be held. */
static void count_use(int difference)
{
    kiln_thread *const t = kiln_this_thread();
    users += difference;
    if (t != NULL)
        t->module_users += difference;
}

/* ---- look-up and loading; the caller holds the lock ---------------------------------------- */

/* Return the container, read on first use; NULL and *code if it cannot be read. */
static const kiln_container *open_container(int *code)
{
    kiln_container *read = container;
    *code = KILN_OK;
    if (read != NULL)
        return read;
    if (kiln_container_data == NULL) {
        *code = kiln_fail(KILN_ERROR_NAME, "library %s carries no artifacts for loaders",
                          kiln_this_library.name);
        return NULL;
    }
    *code = kiln_read_container(kiln_container_data + 8, kiln_container_data[0], &read);
    if (*code != KILN_OK)
        return NULL;
    free(modules); /* not NULL in a child if the parent forked before it set `container` */
    modules = calloc((size_t)read->n_groups, sizeof *modules);
    if (modules == NULL) {
        free(read);
        *code = kiln_fail(KILN_ERROR_MEMORY, "out of memory for modules");
        return NULL;
    }
    __atomic_store_n(&container, read, __ATOMIC_RELEASE);
    return read;
}

/* Return the number of the group of a loader and target key, or -1 with a sentence. */
static int find_group(const kiln_container *in, const char *loader, const char *target_key)
{
    for (int g = 1; g < in->n_groups; g++)
        if (strcmp(in->groups[g].loader, loader) == 0 &&
            strcmp(in->groups[g].target_key, target_key) == 0)
            return g;
    kiln_fail(KILN_ERROR_NAME, "library %s has no artifacts for loader '%s'%s%s",
              kiln_this_library.name, loader, *target_key == 0 ? "" : " and target key ",
              target_key);
    return -1;
}

#if defined(KILN_DEVICES)
const kiln_group *kiln_find_group(const char *loader, const char *target_key, int *code)
{
    lock_modules();
    const kiln_container *const in = open_container(code);
    const int g = in != NULL ? find_group(in, loader, target_key) : -1;
    unlock_modules();
    if (in != NULL && g < 0)
        *code = KILN_ERROR_CONTAINER;
    return g < 0 ? NULL : &in->groups[g];
}
#endif

static registered_loader **find_loader(const char *name)
{
    registered_loader **at = &loaders;
    while (*at != NULL && strcmp((*at)->name, name) != 0)
        at = &(*at)->next;
    return at;
}

/* Append to a comma-separated list of names, truncated to the buffer. */
static void append_name(char *text, size_t size, const char *name)
{
    const size_t used = strlen(text);
    snprintf(text + used, size - used, "%s%s", used == 0 ? "" : ", ", name);
}

#if defined(KILN_DEVICES)
/* Whether a group is code of one of the library's devices, which device.c loads. */
static int is_of_device(const kiln_group *group)
{
    for (int d = 0; d < kiln_this_library.n_devices; d++)
        if (strcmp(group->loader, kiln_this_library.devices[d].kind->name) == 0 &&
            strcmp(group->target_key, kiln_this_library.devices[d].target_key) == 0)
            return 1;
    return 0;
}
#endif

static int no_loader(const kiln_group *group)
{
#if defined(KILN_DEVICES)
    if (is_of_device(group))
        return kiln_fail(KILN_ERROR_LOADER, "functions of loader '%s' run on a device, within "
                         "functions of library %s; they cannot be called by themselves",
                         group->loader, kiln_this_library.name);
#endif
    char artifacts[300] = "", known[300] = "";
    for (int i = 0; i < group->n_artifacts; i++)
        append_name(artifacts, sizeof artifacts, group->artifacts[i].file_name);
    for (const registered_loader *r = loaders; r != NULL; r = r->next)
        append_name(known, sizeof known, r->name);
    return kiln_fail(KILN_ERROR_LOADER,
                     "loader '%s' is not registered, so nothing can be made of %s; known: %s; "
                     "register it first: tk.runtime.register_loader(\"%s\", f) in Python, "
                     "kiln_register_loader() in C",
                     group->loader, artifacts, loaders == NULL ? "none" : known, group->loader);
}

static void put_module(int g, loaded *made)
{
    loaded *const old = modules[g].made;
    __atomic_store_n(&modules[g].made, made, __ATOMIC_RELEASE);
    free(old);
}

static int load_group(const kiln_container *in, int g)
{
    const kiln_group *group = &in->groups[g];
    if (modules[g].made != NULL)
        return KILN_OK;
    const registered_loader *found = *find_loader(group->loader);
    if (found == NULL)
        return no_loader(group);
    if (modules[g].is_loading)
        return kiln_fail(KILN_ERROR_LOADER, "loader '%s' asks for the module that it is loading",
                         group->loader);
    loaded *const made = malloc(sizeof *made);
    if (made == NULL)
        return kiln_fail(KILN_ERROR_MEMORY, "out of memory for modules");
    *made = (loaded){found->loader, NULL};
    modules[g].is_loading = 1;
    kiln_fail(KILN_ERROR_CALLBACK, "loader '%s' failed without a message", group->loader);
    const int code = made->loader.load(made->loader.context, group->target_key, group->artifacts,
                                       group->n_artifacts, &made->module);
    modules[g].is_loading = 0;
    if (code == KILN_OK)
        put_module(g, made);
    else
        free(made);
    return code;
}

/* ---- for hosts ----------------------------------------------------------------------------- */

KILN_API int kiln_register_loader(const char *name, const kiln_loader *loader)
{
    registered_loader *entry = NULL;
    KILN_GIVEN(name);
    if (loader != NULL && (loader->size < sizeof *loader || !loader->load || !loader->call))
        return kiln_fail(KILN_ERROR_ARGUMENT, "loader '%s' lacks functions, or is of an older "
                         "version", name);
    if (loader != NULL) {
        const size_t size = strlen(name) + 1;
        entry = malloc(sizeof *entry + size);
        if (entry == NULL)
            return kiln_fail(KILN_ERROR_MEMORY, "out of memory");
        memcpy(entry->name, name, size);
        entry->loader = *loader;
    }
    lock_modules();
    registered_loader **at = find_loader(name), *old = *at;
    registered_loader *const next = old == NULL ? NULL : old->next;
    if (entry != NULL)
        entry->next = next;
    __atomic_store_n(at, entry != NULL ? entry : next, __ATOMIC_RELEASE);
    unlock_modules();
    free(old);
    return KILN_OK;
}

KILN_API int kiln_has_loader(const char *name)
{
    if (name == NULL)
        return 0;
    lock_modules();
    const int has = *find_loader(name) != NULL;
    unlock_modules();
    return has;
}

KILN_API int kiln_set_module(const char *loader, const char *target_key,
                             const kiln_loader *functions, void *module)
{
    KILN_GIVEN(loader);
    KILN_GIVEN(target_key);
    KILN_GIVEN(functions);
    if (functions->size < sizeof *functions || !functions->call)
        return kiln_fail(KILN_ERROR_ARGUMENT, "the kiln_loader of '%s' has no `call`, "
                                              "or is of an older version", loader);
    loaded *made = malloc(sizeof *made);
    if (made == NULL)
        return kiln_fail(KILN_ERROR_MEMORY, "out of memory for modules");
    *made = (loaded){*functions, module};
    lock_modules();
    int code;
    const kiln_container *const in = open_container(&code);
    const int g = in != NULL ? find_group(in, loader, target_key) : -1;
    if (in != NULL && g < 0)
        code = KILN_ERROR_NAME;
    if (g >= 0) {
        put_module(g, made);
        made = NULL;
    }
    unlock_modules();
    free(made);
    return code;
}

/* Find and load a group: return the container and write the group's number, or return NULL and
 * write the code. The lock must be held. */
static const kiln_container *loaded_group(const char *loader, const char *target_key, int *g,
                                          int *code)
{
    const kiln_container *const in = open_container(code);
    *g = in != NULL ? find_group(in, loader, target_key) : -1;
    if (in != NULL)
        *code = *g < 0 ? KILN_ERROR_NAME : load_group(in, *g);
    return *code == KILN_OK ? in : NULL;
}

KILN_API void *kiln_module(const char *loader, const char *target_key)
{
    int code, g;
    if (loader == NULL || target_key == NULL) {
        kiln_fail(KILN_ERROR_NULL, "kiln_module: %s is a null pointer",
                  loader == NULL ? "loader" : "target_key");
        return NULL;
    }
    lock_modules();
    const int there = loaded_group(loader, target_key, &g, &code) != NULL;
    void *const module = there ? modules[g].made->module : NULL;
    unlock_modules();
    return module;
}

/* Call a function of a group, or of the groups that it imports, searched breadth-first. The caller
 * is counted in `users`. */
static int call_below(const kiln_container *in, int start, const char *function,
                      const kiln_value *args, int32_t count, kiln_value *result)
{
    if (kiln_stack_is_used_up())
        return kiln_fail(KILN_ERROR_DEPTH, "%s: calls of it are too deep, the stack is used up",
                         function);
    int *queue = kiln_room(in->n_groups, 2 * sizeof *queue, "groups of artifacts");
    int n = 1, code = KILN_ERROR_NAME, without_loader = -1;
    if (queue == NULL)
        return KILN_ERROR_MEMORY;
    int *seen = queue + in->n_groups;
    memset(seen, 0, (size_t)in->n_groups * sizeof *seen);
    queue[0] = start;
    for (int i = 0; i < n && code == KILN_ERROR_NAME; i++) {
        const kiln_group *group = &in->groups[queue[i]];
        lock_modules();
        /* Group 0 is the library itself; keys with `_` are node kinds of later format versions. */
        code = queue[i] == 0 || group->loader[0] == '_' ? KILN_ERROR_NAME
                                                                : load_group(in, queue[i]);
#if defined(KILN_DEVICES)
        if (code == KILN_ERROR_LOADER && is_of_device(group))
            code = KILN_ERROR_NAME; /* it has no functions of its own to call */
#endif
        loaded module = {{0}, NULL};
        if (code == KILN_OK)
            module = *modules[queue[i]].made; /* another thread may set a new one */
        unlock_modules();
        if (code == KILN_ERROR_LOADER) { /* another group may have the function */
            without_loader = without_loader < 0 ? queue[i] : without_loader;
            code = KILN_ERROR_NAME;
        } else if (code == KILN_OK) {
            kiln_fail(KILN_ERROR_CALLBACK, "%s: failed without a message", function);
            code = module.loader.call(module.module, function, args, count, result);
        }
        for (int c = 0; c < group->n_children && code == KILN_ERROR_NAME; c++)
            if (!seen[group->children[c]]) {
                seen[group->children[c]] = 1;
                queue[n++] = group->children[c];
            }
    }
    free(queue);
    if (code != KILN_ERROR_NAME)
        return code;
    if (without_loader < 0)
        return kiln_fail(KILN_ERROR_NAME, "no function '%s' in what library %s imports", function,
                         kiln_this_library.name);
    lock_modules();
    code = no_loader(&in->groups[without_loader]);
    unlock_modules();
    return code;
}

/* Call a function of a group that was looked up under the lock, which this releases; without a
 * container return `code`. */
static int call_found(const kiln_container *in, int g, int code, const char *function,
                      const kiln_value *args, int32_t count, kiln_value *result)
{
    count_use(in != NULL);
    unlock_modules();
    if (in == NULL)
        return code;
    code = call_below(in, g, function, args, count, result);
    lock_modules();
    count_use(-1);
    unlock_modules();
    return code;
}

KILN_API int kiln_call_import(const char *loader, const char *target_key, const char *function,
                              const kiln_value *args, int32_t count, kiln_value *result)
{
    int code, g;
    KILN_GIVEN(result);
    *result = (kiln_value){KILN_NONE, 0, {0}};
    KILN_GIVEN(loader);
    KILN_GIVEN(target_key);
    KILN_GIVEN(function);
    if (count > 0)
        KILN_GIVEN(args);
    lock_modules();
    const kiln_container *const in = loaded_group(loader, target_key, &g, &code);
    return call_found(in, g, code, function, args, count, result);
}

int kiln_call_any_import(const char *function, const kiln_value *args, int32_t count,
                         kiln_value *result)
{
    lock_modules();
    int code;
    const kiln_container *const in = open_container(&code);
    return call_found(in, 0, code, function, args, count, result);
}

void kiln_import_kernel(const char *loader, const char *target_key, const char *function,
                        const kiln_value *args, int count)
{
    kiln_value result;
    const int code = kiln_call_import(loader, target_key, function, args, count, &result);
    kiln_release(&result);
    if (code != KILN_OK)
        kiln_kernel_failed(code);
}

static void free_modules(module_row *rows, kiln_container *read, registered_loader *known)
{
    for (int g = 0; rows != NULL && g < read->n_groups; g++) {
        loaded *const made = rows[g].made;
        if (made != NULL && made->loader.unload != NULL)
            made->loader.unload(made->module);
        free(made);
    }
    free(rows);
    free(read);
    while (known != NULL) {
        registered_loader *const next = known->next;
        free(known);
        known = next;
    }
}

/* At exit() other threads may be calling modules or loading one; then nothing is unloaded. The lock
 * is only tried, because the thread that holds it may be waiting for the dynamic linker's lock,
 * which dlclose() holds around this call. */
void kiln_unload_modules(void)
{
    if (!kiln_try_lock(&kiln_modules_lock))
        return;
    if (users != 0) {
        kiln_give_lock(&kiln_modules_lock);
        return;
    }
    module_row *const rows = modules;
    kiln_container *const read = container;
    registered_loader *const known = loaders;
    modules = NULL; /* later calls find no loaders */
    container = NULL;
    loaders = NULL;
    kiln_give_lock(&kiln_modules_lock);
    free_modules(read == NULL ? NULL : rows, read, known);
}
