/* Cases with loaders: modules are loaded, looked up, replaced and called, from several threads. */
#include "driver.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static const kiln_host_library *carrier(void)
{
    return libraries[2];
}

static int load(void *context, const char *key, const kiln_artifact *artifacts, int count, void **module)
{
    volatile unsigned sum = 0;
    (void)key;
    for (int i = 0; i < count; i++)
        for (uint64_t b = 0; b < artifacts[i].bytes; b++)
            sum += ((const unsigned char *)artifacts[i].content)[b];
    *module = context;
    return context == NULL ? KILN_ERROR_CALLBACK : KILN_OK;
}

static int answer(void *module, const char *function, const kiln_value *arguments, int32_t count,
                  kiln_value *result)
{
    (void)result;
    if (strcmp(function, "streamer_mul") != 0)
        return KILN_ERROR_NAME;
    if (count < 2 || arguments[0].kind != KILN_TENSOR || arguments[1].kind != KILN_TENSOR)
        return *(int *)module == 1 ? KILN_OK : KILN_ERROR_CALLBACK;
    const kiln_tensor *x = arguments[0].as.pointer, *y = arguments[1].as.pointer;
    for (int64_t i = 0; i < elements(x); i++)
        *(float *)(void *)element(y, i) = 2 * *(const float *)(const void *)element(x, i);
    return KILN_OK;
}

static int numbers[] = {1, 2};

static kiln_loader loader(int which)
{
    const kiln_loader made = {sizeof made, which < 2 ? &numbers[which] : NULL, load, answer, NULL};
    return made;
}

static void one_step(draws *d)
{
    const kiln_host_api *api = &carrier()->api;
    const kiln_loader made = loader((int)draw(d, 3));
    kiln_value result = kiln_host_value(KILN_NONE);
    kiln_executor *executor = NULL;
    switch (draw(d, 6)) {
    case 0: check_code(carrier(), api->register_loader("stream", &made), "kiln_register_loader"); break;
    case 1: check_code(carrier(), api->register_loader("stream", NULL), "kiln_register_loader"); break;
    case 2: api->has_loader("stream"); break;
    case 3:
        check_code(carrier(), api->set_module("stream", "", &made, &numbers[draw(d, 2)]),
                   "kiln_set_module");
        break;
    case 4: api->module("stream", seldom(d, 3) ? "other" : ""); break;
    default:
        check_code(carrier(), api->call_import("stream", "", seldom(d, 3) ? "none" : "streamer_mul",
                                               NULL, 0, &result), "kiln_call_import");
        check_code(carrier(), api->executor_create(&executor), "kiln_executor_create");
        call_function(d, carrier(), &carrier()->file.functions[0], executor);
        api->executor_destroy(executor);
    }
}

static void *steps(void *state)
{
    for (int i = 0; i < 12; i++)
        one_step(state);
    return NULL;
}

void loader_calls(draws *d)
{
    draws own[3];
    pthread_t threads[3];
    const int count = seldom(d, 2) ? 3 : 1;
    say("\n: loaders in %d threads:", count);
    for (int i = 0; i < count; i++)
        own[i].state = draw(d, 0) | 1;
    for (int i = 1; i < count; i++)
        if (pthread_create(&threads[i], NULL, steps, &own[i]) != 0)
            abort();
    steps(&own[0]);
    for (int i = 1; i < count; i++)
        pthread_join(threads[i], NULL);
}

/* The same for a library whose container has a later minor version, with a node of an unknown
 * kind. */
void newer_container(draws *d)
{
    kiln_host_error error = {0, ""};
    kiln_host_library *const before = libraries[2];
    const kiln_loader made = loader(0);
    say("\n: a newer container:");
    if (kiln_host_open("./newer.so", &libraries[2], &error) != KILN_OK) {
        found("%s", error.sentence);
        libraries[2] = before;
        return;
    }
    check_code(carrier(), carrier()->api.register_loader("stream", &made), "kiln_register_loader");
    if (carrier()->api.module("stream", "") != &numbers[0])
        found("no module of a newer container: %s", carrier()->api.last_error());
    loader_calls(d);
    kiln_host_close(libraries[2]);
    libraries[2] = before;
}
