/* The library's devices: which device of the system runs the code of each row of its table, opened
 * when it is first needed, and kept until the library is unloaded. Also the addresses that stand
 * for memory without any. */
#include "device.h"
#include "os.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

kiln_devices kiln_default_devices;

static kiln_opened *opened_devices; /* one for each row, device and context that was chosen */
static int touched;      /* a driver was called */
static int lost;         /* in a child of fork(), or at exit(): no driver may be called any more */

void kiln_device_name(char *text, const kiln_opened *opened)
{
    snprintf(text, KILN_DEVICE_NAME, "%.20s:%d", opened->target->kind->name, opened->index);
}

int kiln_devices_are_lost(void)
{
    return __atomic_load_n(&lost, __ATOMIC_ACQUIRE);
}

/* ---- opening ------------------------------------------------------------------------------- */

/* Copy the parts of the weights that a device needs. */
static int copy_weights(kiln_opened *opened)
{
    const kiln_device_target *target = opened->target;
    const kiln_device_kind *kind = target->kind;
    void *queue = NULL;
    if (target->weights_bytes == 0)
        return KILN_OK;
    int code = kind->allocate(opened->device, target->weights_bytes, &opened->weights);
    if (code == KILN_OK)
        code = kind->start(opened->module, &queue);
    for (int i = 0; i < target->n_weights && code == KILN_OK; i++) {
        const kiln_device_weights *part = &target->weights[i];
        const kiln_device_at to = {opened->weights.handle, part->device};
        code = kind->write(queue, to, *kiln_this_library.weights + part->host, part->bytes);
    }
    if (queue != NULL)
        kind->stop(queue);
    return code;
}

static void close_opened(kiln_opened *opened)
{
    const kiln_device_kind *kind = opened->target->kind;
    kind->free(opened->device, &opened->weights);
    if (opened->module != NULL)
        kind->unload(opened->module);
    if (opened->device != NULL)
        kind->close(opened->device);
    free(opened);
}

static const kiln_lock *forget_devices(void)
{
    kiln_forget_devices();
    return NULL;
}

static int fill(kiln_opened *opened)
{
    const kiln_device_target *target = opened->target;
    int code = KILN_OK;
    const kiln_group *const group = kiln_find_group(target->kind->name, target->target_key, &code);
    if (group == NULL)
        return code;
    kiln_at_fork(KILN_FORK_DEVICES, forget_devices);
    __atomic_store_n(&touched, 1, __ATOMIC_RELEASE);
    code = target->kind->open(opened->index, opened->context, &opened->device);
    if (code == KILN_OK)
        code = target->kind->load(opened->device, target, group->artifacts, group->n_artifacts,
                                  &opened->module);
    return code == KILN_OK ? copy_weights(opened) : code;
}

/* Return the device, opened before or now; NULL with a sentence. The lock must be held. */
static kiln_opened *find_or_open(int number, int index, void *context, int *code)
{
    for (kiln_opened *at = opened_devices; at != NULL; at = at->next)
        if (at->number == number && at->index == index && at->context == context)
            return at;
    kiln_opened *const made = calloc(1, sizeof *made);
    if (made == NULL) {
        *code = kiln_fail(KILN_ERROR_MEMORY, "out of memory for a device");
        return NULL;
    }
    made->target = &kiln_this_library.devices[number - 1];
    made->number = number;
    made->index = index;
    made->context = context;
    *code = fill(made);
    if (*code != KILN_OK) {
        close_opened(made);
        return NULL;
    }
    made->next = opened_devices;
    __atomic_store_n(&opened_devices, made, __ATOMIC_RELEASE);
    return made;
}

static int check_lost(int number)
{
    if (!kiln_devices_are_lost())
        return KILN_OK;
    const char *const name = kiln_this_library.devices[number - 1].kind->name;
    return kiln_fail(KILN_ERROR_DRIVER, "%s was in use before this process was forked, or the "
                     "process is exiting: its driver cannot be used; fork first, then use devices",
                     name);
}

int kiln_choose_device(kiln_devices *chosen, int number, int index, void *context)
{
    const int count = kiln_this_library.n_devices;
    if (number < 1 || number > count)
        return kiln_fail(KILN_ERROR_ARGUMENT, "library %s has %d device%s, there is no number %d",
                         kiln_this_library.name, count, count == 1 ? "" : "s", number);
    if (index < 0)
        return kiln_fail(KILN_ERROR_ARGUMENT, "the index of a device must not be negative, "
                         "received %d", index);
    int code = kiln_prepare();
    if (code != KILN_OK || (code = check_lost(number)) != KILN_OK)
        return code;
    kiln_take_lock(&kiln_devices_lock);
    kiln_opened *const found = find_or_open(number, index, context, &code);
    if (found != NULL)
        __atomic_store_n(&chosen->opened[number], found, __ATOMIC_RELEASE);
    kiln_give_lock(&kiln_devices_lock);
    return code;
}

int kiln_choose_stream(kiln_devices *chosen, int number, void *stream)
{
    const int count = kiln_this_library.n_devices;
    if (number < 1 || number > count)
        return kiln_fail(KILN_ERROR_ARGUMENT, "library %s has %d device%s, there is no number %d",
                         kiln_this_library.name, count, count == 1 ? "" : "s", number);
    const kiln_device_kind *const kind = kiln_this_library.devices[number - 1].kind;
    if (kind->follow == NULL)
        return kiln_fail(KILN_ERROR_ARGUMENT, "devices of %s take no streams of the host",
                         kind->name);
    __atomic_store_n(&chosen->stream[number], stream, __ATOMIC_RELEASE);
    return KILN_OK;
}

int kiln_check_takes_stream(const kiln_function *function)
{
    for (int number = 1; number <= kiln_this_library.n_devices; number++)
        if ((function->devices >> number & 1) &&
            kiln_this_library.devices[number - 1].kind->follow != NULL)
            return KILN_OK;
    return kiln_fail(KILN_ERROR_ARGUMENT, "%s runs on no device that has streams of the host",
                     function->name);
}

/* Words for the kinds of all devices: "opencl, opencl". */
static const char *kinds_of_devices(char *text, size_t room)
{
    size_t used = 0;
    *text = 0;
    for (int d = 0; d < kiln_this_library.n_devices && used < room; d++)
        used += (size_t)snprintf(text + used, room - used, "%s%s", d == 0 ? "" : ", ",
                                 kiln_this_library.devices[d].kind->name);
    return text;
}

int kiln_choose_graphs(kiln_devices *chosen, int64_t *counts)
{
    char kinds[200];
    int found = 0;
    for (int number = 1; counts != NULL && number <= kiln_this_library.n_devices; number++) {
        const kiln_device_kind *const kind = kiln_this_library.devices[number - 1].kind;
        int code = KILN_OK;
        if (kind->find_graphs == NULL)
            continue;
        const kiln_opened *const opened = kiln_open_device(chosen, number, &code);
        if (opened == NULL || (code = kind->find_graphs(opened->device)) != KILN_OK)
            return code;
        found = 1;
    }
    if (counts != NULL && !found)
        return kiln_fail(KILN_ERROR_ARGUMENT, "library %s has no device whose runs can be graphs: "
                         "graphs are of cuda, its devices are %s", kiln_this_library.name,
                         kinds_of_devices(kinds, sizeof kinds));
    __atomic_store_n(&chosen->graphs, counts, __ATOMIC_RELEASE);
    return KILN_OK;
}

static kiln_opened *choice(const kiln_devices *chosen, int number)
{
    return chosen == NULL ? NULL : __atomic_load_n(&chosen->opened[number], __ATOMIC_ACQUIRE);
}

kiln_opened *kiln_open_device(const kiln_devices *chosen, int number, int *code)
{
    if ((*code = check_lost(number)) != KILN_OK)
        return NULL;
    kiln_opened *found = choice(chosen, number);
    if (found == NULL)
        found = choice(&kiln_default_devices, number);
    if (found == NULL)
        *code = kiln_choose_device(&kiln_default_devices, number, 0, NULL);
    return found == NULL && *code == KILN_OK ? choice(&kiln_default_devices, number) : found;
}

/* ---- the end ------------------------------------------------------------------------------- */

void kiln_forget_devices(void)
{
    if (__atomic_load_n(&touched, __ATOMIC_ACQUIRE))
        __atomic_store_n(&lost, 1, __ATOMIC_RELEASE);
}

void kiln_close_devices(void)
{
    if (kiln_devices_are_lost())
        return;
    while (opened_devices != NULL) {
        kiln_opened *const next = opened_devices->next;
        close_opened(opened_devices);
        opened_devices = next;
    }
}

/* ---- addresses ----------------------------------------------------------------------------- */

/* A page more than the memory has, so that the address behind its last byte is of nothing else. */
int kiln_reserve_addresses(kiln_device_memory *memory)
{
    const int64_t page = kiln_os_page_size();
    if (memory->bytes > KILN_MOST_BYTES)
        return kiln_fail(KILN_ERROR_MEMORY, "memory of %lld bytes on a device is more than any "
                         "address space", (long long)memory->bytes);
    const int64_t wanted = memory->bytes - memory->bytes % page + page + page;
    if (memory->reserved >= wanted)
        return KILN_OK;
    kiln_give_addresses(memory);
    void *const place = kiln_os_reserve((size_t)wanted);
    if (place == NULL)
        return kiln_fail(KILN_ERROR_MEMORY, "out of memory: could not reserve %lld addresses for "
                         "memory of a device", (long long)wanted);
    memory->address = place;
    memory->reserved = wanted;
    return KILN_OK;
}

void kiln_give_addresses(kiln_device_memory *memory)
{
    if (memory->reserved != 0)
        kiln_os_unmap(memory->address, (size_t)memory->reserved);
    memory->address = NULL;
    memory->reserved = 0;
}
