/* values LIBRARY: calls `main` of an outer library with every kind of value, and prints what came. */
#include "kiln_host.h"

#include <pthread.h>

#include "check.h"

static const kiln_host_library *library;
static int is_failing, destroyed;

static int hook(void *context, const kiln_value *arguments, int32_t count, kiln_value *result)
{
    (void)context;
    if (count != 1 || is_failing) {
        library->api.set_last_error("the host said no");
        return KILN_ERROR_CALLBACK;
    }
    library->api.retain(&arguments[0]);
    *result = arguments[0];
    return KILN_OK;
}

static void destroy(void *context)
{
    (void)context;
    destroyed++;
}

static void print_error(int code, const kiln_host_error *error)
{
    printf("%d %s\n", code, code == KILN_OK ? "" : error->sentence);
}

static float number(const kiln_value *value)
{
    float made;
    memcpy(&made, library->api.tensor_of(value)->data, sizeof made);
    return made;
}

static void print_result(const kiln_value *result, const kiln_value *row)
{
    kiln_host_error error = {0, ""};
    int count = 0, sizes = 0, three = 0;
    int64_t bytes = 0;
    kiln_value again;
    const kiln_value *const items = library->api.items_of(result, &count);
    CHECK(count == 4);
    const char *const text = library->api.string_of(&items[0], &bytes);
    const int64_t *const shape = library->api.shape_of(&items[1], &sizes);
    const kiln_value *const tensors = library->api.items_of(&items[2], &three);
    CHECK(sizes == 2 && three == 3 && library->api.tensor_of(&items[0]) == NULL);
    const kiln_tensor *const kept = library->api.tensor_of(&tensors[2]);
    CHECK(kept->dtype.code == 0 && kept->dtype.bits == 64);
    printf("%.*s [%lld, %lld] %g %g ", (int)bytes, text, (long long)shape[0], (long long)shape[1],
           (double)number(&tensors[0]), (double)number(&tensors[1]));
    printf("[%lld, %lld] %lld %lld\n", (long long)kept->shape[0], (long long)kept->shape[1],
           (long long)((const int64_t *)kept->data)[0], (long long)((const int64_t *)kept->data)[1]);
    CHECK(library->api.call_value(&items[3], row, 1, &again) == KILN_OK);
    printf("%lld of %g\n", (long long)library->api.tensor_of(&again)->shape[0],
           (double)number(&again));
    library->api.release(&again);
    error.code = library->api.call_value(&items[3], row, 0, &again);
    print_error(error.code, (kiln_host_report(library, error.code, &error), &error));
}

static kiln_value arguments[4];
static const kiln_host_function *f;

static int run(const kiln_host_executor *executor, const kiln_value *label, int count,
               kiln_value *result, kiln_host_error *error)
{
    const kiln_value given[4] = {arguments[0], *label, arguments[2], arguments[3]};
    return kiln_host_invoke(executor, f, given, count, result, error);
}

static void *thread(void *executor)
{
    kiln_host_error error = {0, ""};
    for (int i = 0; i < 25; i++) {
        kiln_value result;
        CHECK(run((const kiln_host_executor *)executor, &arguments[1], 4, &result, &error) == KILN_OK);
        library->api.release(&result);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    kiln_host_error error = {0, ""};
    kiln_host_library *opened;
    kiln_host_executor *executor;
    kiln_value result;
    const float row[] = {1, 0, 2};
    const int64_t three = 3, sizes[] = {4, 5};
    pthread_t threads[8];
    CHECK(kiln_host_open(argv[argc - 1], &opened, &error) == KILN_OK);
    library = opened;
    CHECK(kiln_host_executor_create(library, &executor, &error) == KILN_OK);
    CHECK(kiln_host_find(library, "main", &f, &error) == KILN_OK);
    const kiln_host_api *const api = &library->api;
    CHECK(kiln_host_address(library, "kiln_open") != NULL);
    CHECK(kiln_host_address(library, "kiln_opem") == NULL);
    api->set_num_threads(2);
    CHECK(api->get_num_threads() == 2);
    CHECK(api->make_tensor(&three, 1, kiln_host_dtype(2, 32), &arguments[0]) == KILN_OK);
    memcpy(api->tensor_of(&arguments[0])->data, row, sizeof row);
    CHECK(api->make_string("a string of some length", 23, &arguments[1]) == KILN_OK);
    CHECK(api->make_shape(sizes, 2, &arguments[2]) == KILN_OK);
    CHECK(api->make_function(hook, NULL, destroy, &arguments[3]) == KILN_OK);

    print_error(run(executor, &arguments[1], 4, &result, &error), &error);
    CHECK(kiln_host_register_function(library, "hook", hook, NULL, destroy, &error) == KILN_OK);
    CHECK(run(executor, &arguments[1], 4, &result, &error) == KILN_OK);
    print_result(&result, arguments);
    api->release(&result);

    is_failing = 1;
    print_error(run(executor, &arguments[1], 4, &result, &error), &error);
    is_failing = 0;
    const kiln_value numbers[] = {kiln_host_int(3), kiln_host_float(0.5), kiln_host_bool(1),
                                  arguments[0]};
    for (int i = 0; i < 4; i++)
        print_error(run(executor, &numbers[i], 4, &result, &error), &error);
    print_error(run(executor, &arguments[1], 3, &result, &error), &error);

    for (int i = 0; i < 8; i++)
        CHECK(pthread_create(&threads[i], NULL, thread, executor) == 0);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);

    for (int i = 0; i < 4; i++)
        api->release(&arguments[i]);
    CHECK(kiln_host_register_function(library, "hook", NULL, NULL, NULL, &error) == KILN_OK);
    printf("%lld live, %d gone\n", (long long)api->live_objects(), destroyed);
    kiln_host_executor_destroy(executor);
    kiln_host_close(opened);
    return 0;
}
