/* loaders LIBRARY: runs `main` of a library with a stream of commands: without a loader for it, with
 * one that fails, with a module that fails, with both well; prints codes, sentences and results. */
#include "kiln_host.h"

typedef struct device {
    const kiln_host_library *library;
    char command[8]; /* "mul" */
    float number;
} device;

static int live, is_failing;

static int load(void *context, const char *target_key, const kiln_artifact *artifacts, int count,
                void **module)
{
    device *made = (device *)calloc(1, sizeof *made);
    char text[64] = "";
    (void)target_key;
    if (is_failing) {
        ((const kiln_host_library *)context)->api.set_last_error("the device is on fire");
        return free(made), KILN_ERROR_CALLBACK;
    }
    if (made == NULL || count != 1 || artifacts[0].bytes >= sizeof text)
        return free(made), KILN_ERROR_MEMORY;
    memcpy(text, artifacts[0].content, (size_t)artifacts[0].bytes);
    if (sscanf(text, "%7s %f", made->command, &made->number) != 2)
        return free(made), KILN_ERROR_CALLBACK;
    made->library = (const kiln_host_library *)context;
    live++;
    *module = made;
    return KILN_OK;
}

static int call(void *module, const char *function, const kiln_value *arguments, int32_t count,
                kiln_value *result)
{
    const kiln_tensor *const x = (const kiln_tensor *)arguments[0].as.pointer;
    const kiln_tensor *const y = (const kiln_tensor *)arguments[1].as.pointer;
    if (count < 2 || strcmp(function, "streamer_mul") != 0)
        return KILN_ERROR_NAME;
    if (is_failing) {
        ((const device *)module)->library->api.set_last_error("the device has stopped");
        return KILN_ERROR_CALLBACK;
    }
    for (int64_t i = 0; i < x->shape[0] * x->shape[1]; i++)
        ((float *)y->data)[i] = ((const float *)x->data)[i] * ((const device *)module)->number;
    result->kind = KILN_NONE;
    return KILN_OK;
}

static void unload(void *module)
{
    live--;
    free(module);
}

static int run(const kiln_host_executor *executor, kiln_host_error *error)
{
    float in[12], out[12];
    int64_t shape[] = {3, 4};
    const kiln_tensor x = kiln_host_tensor(in, kiln_host_dtype(2, 32), shape, 2);
    const kiln_tensor y = kiln_host_tensor(out, kiln_host_dtype(2, 32), shape, 2);
    const kiln_host_function *f;
    for (int i = 0; i < 12; i++)
        in[i] = (float)i / 4 - 1;
    int code = kiln_host_find(executor->library, "main", &f, error);
    if (code == KILN_OK)
        code = kiln_host_run(executor, f, &x, 1, &y, 1, error);
    if (code != KILN_OK)
        return printf("%d %s\n", code, error->sentence), code;
    for (int i = 0; i < 12; i++)
        printf("%.6f ", (double)out[i]);
    return putchar('\n'), code;
}

int main(int argc, char **argv)
{
    kiln_host_error error = {0, ""};
    kiln_host_library *library;
    kiln_host_executor *executor;
    if (kiln_host_open(argv[argc - 1], &library, &error) != KILN_OK ||
        kiln_host_executor_create(library, &executor, &error) != KILN_OK)
        return puts(error.sentence), 1;
    const kiln_loader loader = {sizeof loader, library, load, call, unload};
    const int before = run(executor, &error);
    const int registered = kiln_host_register_loader(library, "stream", &loader, &error);
    is_failing = 1;
    const int refused = run(executor, &error);
    is_failing = 0;
    const int after = run(executor, &error);
    is_failing = 1;
    const int stopped = run(executor, &error);
    kiln_host_executor_destroy(executor);
    kiln_host_close(library);
    printf("%d live\n", live);
    return before == KILN_ERROR_LOADER && registered == KILN_OK && after == KILN_OK &&
                   refused == KILN_ERROR_CALLBACK && stopped == KILN_ERROR_CALLBACK
               ? 0
               : 1;
}
