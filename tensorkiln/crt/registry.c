/* Functions by name, for call_packed: the runtime's own one, which gives cached storages, and those of
 * the host, tvm-ffi, this library and loaded modules. */
#include "outer.h"
#include <stdlib.h>
#include <string.h>

typedef struct registered {
    struct registered *next;
    kiln_value function;
    char name[];
} registered;

static registered *registry;

/* Replace the entry of a name, or remove it if `entry` is NULL; return the old entry, or NULL. The
 * lock must be held. */
static registered *replace_name(const char *name, registered *entry)
{
    registered **at = &registry;
    while (*at != NULL && strcmp((*at)->name, name) != 0)
        at = &(*at)->next;
    registered *const old = *at, *const next = old == NULL ? NULL : old->next;
    if (entry != NULL)
        entry->next = next;
    __atomic_store_n(at, entry != NULL ? entry : next, __ATOMIC_RELEASE);
    return old;
}

static registered *new_entry(const char *name, const kiln_value *function)
{
    const size_t size = strlen(name) + 1;
    registered *entry = malloc(sizeof *entry + size);
    if (entry != NULL) {
        memcpy(entry->name, name, size);
        entry->function = *function;
        kiln_retain(function);
    }
    return entry;
}

KILN_API int kiln_register_function(const char *name, const kiln_value *function)
{
    registered *entry = NULL;
    KILN_GIVEN(name);
    if (function != NULL && function->kind != KILN_FUNCTION)
        return kiln_fail(KILN_ERROR_ARGUMENT, "'%s' is registered with %s, expected a function",
                         name, kiln_kind_name(function));
    if (function != NULL && function->as.pointer == NULL)
        return kiln_fail(KILN_ERROR_NULL, "'%s' is registered with a function that is a null pointer",
                         name);
    if (function != NULL && (entry = new_entry(name, function)) == NULL)
        return kiln_fail(KILN_ERROR_MEMORY, "out of memory");
    kiln_take_lock(&kiln_names_lock);
    registered *const old = replace_name(name, entry);
    kiln_give_lock(&kiln_names_lock);
    if (old != NULL) { /* outside the lock, because `destroy` of the host may run */
        kiln_release(&old->function);
        free(old);
    }
    return KILN_OK;
}

static void find_registered(const char *name, kiln_value *found)
{
    kiln_take_lock(&kiln_names_lock);
    for (registered *entry = registry; entry != NULL; entry = entry->next)
        if (strcmp(entry->name, name) == 0) {
            kiln_retain(&entry->function);
            *found = entry->function;
            break;
        }
    kiln_give_lock(&kiln_names_lock);
}

/* Make a value of this library's function of that name; *found is unchanged if it has none. */
static int find_own(const char *name, kiln_value *found)
{
    for (int i = 0; i < kiln_this_library.n_outers; i++)
        if (strcmp(kiln_this_library.outers[i]->name, name) == 0)
            return kiln_make_closure(kiln_this_library.outers[i], NULL, 0, found);
    for (int i = 0; i < kiln_this_library.n_functions; i++)
        if (strcmp(kiln_this_library.functions[i]->name, name) == 0)
            return kiln_make_native(kiln_this_library.functions[i], 0, found);
    return KILN_OK;
}

static int require_storages(const kiln_value *tuple)
{
    int count = 0;
    const kiln_value *items = kiln_items_of(tuple, &count);
    if (tuple->kind != KILN_TUPLE)
        return kiln_fail(KILN_ERROR_ARGUMENT,
                         "alloc_cached_storage_set: the function gave %s, expected a tuple of storages",
                         kiln_kind_name(tuple));
    for (int i = 0; i < count; i++)
        if (items[i].kind != KILN_TENSOR_OBJECT)
            return kiln_fail(KILN_ERROR_ARGUMENT,
                             "alloc_cached_storage_set: item %d of the tuple is %s, expected a storage",
                             i, kiln_kind_name(&items[i]));
    return KILN_OK;
}

/* "alloc_cached_storage_set": args are a function that makes a tuple of storages, the shape to call
 * it with if it takes one, and a key. Return the current executor's set for that key and shape if no
 * call uses it; otherwise make a new set. */
static int cached_storage_set(const kiln_value *args, int count, kiln_value *result)
{
    int64_t length = 0;
    const char *key = count > 1 ? kiln_string_of(&args[count - 1], &length) : NULL;
    if (key == NULL || count > 3 || args[0].kind != KILN_FUNCTION ||
        (count == 3 && args[1].kind != KILN_SHAPE))
        return kiln_fail(KILN_ERROR_ARGUMENT,
                         "alloc_cached_storage_set takes a function that makes storages, its shape "
                         "if it needs one, and key=");
    const kiln_value *sizes = count == 3 ? &args[1] : &kiln_nothing;
    kiln_storage_set **sets = kiln_current_sets();
    if (sets != NULL) {
        kiln_take_set(sets, key, length, sizes, result);
        if (result->kind != KILN_NONE)
            return KILN_OK;
    }
    int code = kiln_call_value(&args[0], &args[1], count - 2, result);
    if (code == KILN_OK)
        code = require_storages(result);
    if (code != KILN_OK)
        return code;
    return sets == NULL ? KILN_OK : kiln_keep_set(sets, key, length, sizes, result);
}

int kiln_call_packed(const char *name, const kiln_value *args, int count, kiln_value *result)
{
    kiln_value function = {KILN_NONE, 0, {0}};
    int code = KILN_OK;
    if (strcmp(name, "alloc_cached_storage_set") == 0)
        return cached_storage_set(args, count, result);
    find_registered(name, &function);
    if (function.kind == KILN_NONE)
        kiln_find_foreign(name, &function);
    if (function.kind == KILN_NONE)
        code = find_own(name, &function);
    if (code == KILN_OK && function.kind == KILN_NONE && kiln_this_library.call_import != NULL)
        code = kiln_this_library.call_import(name, args, count, result);
    else if (code == KILN_OK && function.kind == KILN_NONE)
        return kiln_fail(KILN_ERROR_NAME,
                         "call_packed: no function '%s'; register it before the call: "
                         "tk.runtime.register_function(\"%s\", f) in Python, "
                         "kiln_register_function() in C",
                         name, name);
    else if (code == KILN_OK)
        code = kiln_call_value(&function, args, count, result);
    kiln_release(&function);
    return code;
}

/* Functions of the host are not released: their code may be unloaded already. */
void kiln_forget_names(void)
{
    kiln_take_lock(&kiln_names_lock);
    registered *entry = registry;
    registry = NULL;
    kiln_give_lock(&kiln_names_lock);
    while (entry != NULL) {
        registered *const next = entry->next;
        free(entry);
        entry = next;
    }
}
