/* Sets of storages (workspace buffers) that an executor caches, and sets as arrays of addresses,
 * which kernels take. */
#include "outer.h"
#include <stdlib.h>
#include <string.h>

struct kiln_storage_set {
    kiln_storage_set *next;
    kiln_value tuple;  /* of tensors of bytes */
    kiln_value sizes;  /* the shape that it was made for; KILN_NONE: no shape */
    int64_t length;
    char key[];
};

void kiln_release_sets(kiln_storage_set *sets)
{
    while (sets != NULL) {
        kiln_storage_set *next = sets->next;
        kiln_release(&sets->tuple);
        kiln_release(&sets->sizes);
        free(sets);
        sets = next;
    }
}

static int same_sizes(const kiln_value *a, const kiln_value *b)
{
    int n = 0, m = 0;
    const int64_t *x = kiln_shape_of(a, &n), *y = kiln_shape_of(b, &m);
    if (x == NULL || y == NULL)
        return x == y;
    for (int i = 0; i < n && n == m; i++)
        if (x[i] != y[i])
            return 0;
    return n == m;
}

/* Whether only the cache refers to a set and its storages, so that no call is using them. */
static int is_idle(const kiln_value *tuple)
{
    int count = 0, idle = 1;
    const kiln_value *items = kiln_items_of(tuple, &count);
    for (int i = -1; i < count; i++) {
        const kiln_object *object = (i < 0 ? tuple : &items[i])->as.pointer;
        idle &= (uint32_t)__atomic_load_n(&object->counts, __ATOMIC_ACQUIRE) == 1;
    }
    return idle;
}

/* Return the link to the set of a key, or to the end of the list. */
static kiln_storage_set **find_set(kiln_storage_set **sets, const char *key, int64_t length)
{
    while (*sets != NULL &&
           ((*sets)->length != length || memcmp((*sets)->key, key, (size_t)length) != 0))
        sets = &(*sets)->next;
    return sets;
}

void kiln_take_set(kiln_storage_set **sets, const char *key, int64_t length,
                   const kiln_value *sizes, kiln_value *found)
{
    kiln_take_lock(&kiln_sets_lock);
    const kiln_storage_set *const set = *find_set(sets, key, length);
    if (set != NULL && same_sizes(&set->sizes, sizes) && is_idle(&set->tuple)) {
        kiln_retain(&set->tuple);
        *found = set->tuple;
    }
    kiln_give_lock(&kiln_sets_lock);
}

int kiln_keep_set(kiln_storage_set **sets, const char *key, int64_t length,
                  const kiln_value *sizes, const kiln_value *made)
{
    kiln_storage_set *const set = malloc(sizeof *set + (size_t)length), *left = set;
    if (set == NULL)
        return kiln_fail(KILN_ERROR_MEMORY, "out of memory");
    *set = (kiln_storage_set){NULL, *made, *sizes, length};
    memcpy(set->key, key, (size_t)length);
    kiln_retain(made);
    kiln_retain(sizes);
    kiln_take_lock(&kiln_sets_lock);
    kiln_storage_set **const at = find_set(sets, key, length), *const old = *at;
    if (old == NULL || is_idle(&old->tuple)) {
        set->next = old == NULL ? NULL : old->next;
        __atomic_store_n(at, set, __ATOMIC_RELEASE);
        left = old;
    }
    kiln_give_lock(&kiln_sets_lock);
    if (left != NULL)
        left->next = NULL;
    kiln_release_sets(left);
    return KILN_OK;
}

int kiln_make_set(const kiln_value *tuple, kiln_value *set)
{
    int count = 0;
    const kiln_value *items = kiln_items_of(tuple, &count);
    if (items == NULL)
        return kiln_fail(KILN_ERROR_ARGUMENT, "expected a tuple of storages, received %s",
                         kiln_kind_name(tuple));
    const int64_t shape[] = {count};
    const kiln_dtype handle = {3, 64, 1};
    int code = kiln_make_tensor(shape, 1, handle, set);
    for (int i = 0; i < count && code == KILN_OK; i++) {
        const kiln_tensor *item = kiln_tensor_of(&items[i]);
        if (item != NULL && (code = kiln_check_tensor(item)) != KILN_OK)
            return code;
        if (item == NULL || item->device_type != 1 || !kiln_is_contiguous(item))
            return kiln_fail(KILN_ERROR_ARGUMENT,
                             "item %d of a set must be a storage or a tensor without gaps, "
                             "received %s", i, kiln_kind_name(&items[i]));
        ((void **)kiln_tensor_of(set)->data)[i] = kiln_data(item);
    }
    return code;
}
