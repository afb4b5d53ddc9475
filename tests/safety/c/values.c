/* Cases with values of every kind: made, nested, released; functions of the host, as values and by
 * name. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

static const kiln_host_library *outers(void)
{
    return libraries[1];
}

/* ---- a function of the host ------------------------------------------------------------------ */

typedef struct host_function {
    draws state;
    int depth;
} host_function;

static __thread int host_depth;

/* A callback that fails, returns a tuple of its arguments, calls the library, returns a string, or
 * returns its first argument. */
static int host(void *context, const kiln_value *arguments, int32_t count, kiln_value *result)
{
    host_function *h = context;
    draws d = h->state;
    const kiln_host_api *api = &outers()->api;
    switch (draw(&d, 5)) {
    case 0:
        if (seldom(&d, 2))
            api->set_last_error("the host said no");
        return (int)draw(&d, 3) == 0 ? -7 : KILN_ERROR_CALLBACK;
    case 1: {
        kiln_value whole = kiln_host_value(KILN_NONE);
        const int code = api->make_tuple(arguments, count, &whole);
        *result = whole;
        return code;
    }
    case 2:
        if (host_depth < 3) {
            kiln_executor *executor = NULL;
            const kiln_host_function *f = &outers()->file.functions[draw(&d, 4)];
            host_depth++;
            if (api->executor_create(&executor) == KILN_OK)
                call_function(&d, outers(), f, executor);
            api->executor_destroy(executor);
            host_depth--;
        }
        return KILN_OK;
    case 3: return api->make_string("made by the host", 16, result);
    default:
        if (count > 0 && arguments[0].kind != KILN_TENSOR) {
            api->retain(&arguments[0]);
            *result = arguments[0];
        }
        return KILN_OK;
    }
}

static kiln_value function_value(draws *d, const kiln_host_library *library)
{
    kiln_value made = kiln_host_value(KILN_NONE);
    host_function *context = calloc(1, sizeof *context);
    if (context == NULL)
        abort();
    context->state.state = draw(d, 0) | 1;
    const int code = library->api.make_function(host, context, free, &made);
    check_code(library, code, "kiln_make_function");
    if (code != KILN_OK)
        free(context);
    return made;
}

/* ---- values ---------------------------------------------------------------------------------- */

static kiln_value shape_value(draws *d, const kiln_host_library *library)
{
    static const int64_t sizes[] = {0, 1, -1, INT64_MAX, INT64_MIN, 7};
    static const int counts[] = {0, 1, 3, 6, 6, -1};
    kiln_value made = kiln_host_value(KILN_NONE);
    check_code(library, library->api.make_shape(sizes, counts[draw(d, 6)], &made), "kiln_make_shape");
    return made;
}

static kiln_value tensor_value(draws *d, const kiln_host_library *library)
{
    kiln_value made = kiln_host_value(KILN_NONE);
    made_tensor *tensor = any_tensor(d);
    if (seldom(d, 6))
        spoil_tensor(d, tensor);
    const int code = library->api.take_dlpack(tensor, &made);
    check_code(library, code, "kiln_take_dlpack");
    if (code != KILN_OK)
        free_tensor(tensor);
    return made;
}

static kiln_value own_tensor(draws *d, const kiln_host_library *library)
{
    static const int64_t sizes[] = {0, 1, 2, 3, (int64_t)1 << 31, (int64_t)1 << 61, INT64_MAX, -1};
    kiln_value made = kiln_host_value(KILN_NONE);
    int64_t shape[MOST_DIMS];
    const int ndim = (int)draw(d, 5) * (seldom(d, 4) ? 16 : 1);
    const kiln_dtype dtype = {(uint8_t)draw(d, 8), (uint8_t)(8 << draw(d, 4)), (uint16_t)(1 + draw(d, 2))};
    for (int k = 0; k < ndim; k++)
        shape[k] = sizes[draw(d, draw(d, 3) ? 4 : 8)];
    const int code = library->api.make_tensor(shape, ndim, dtype, &made);
    check_code(library, code, "kiln_make_tensor");
    if (code == KILN_OK) { /* all of its memory must be writable */
        const kiln_tensor *t = library->api.tensor_of(&made);
        const int64_t count = elements(t);
        if (count > 0 && count < 1 << 16)
            memset(t->data, 1, (size_t)count * (((size_t)dtype.bits * dtype.lanes + 7) / 8));
    }
    return made;
}

static kiln_value tuple_value(draws *d, const kiln_host_library *library, int depth)
{
    kiln_value items[4], made = kiln_host_value(KILN_NONE);
    const int count = (int)draw(d, 5);
    for (int i = 0; i < count; i++)
        items[i] = any_value(d, library, depth - 1);
    check_code(library, library->api.make_tuple(items, count, &made), "kiln_make_tuple");
    for (int i = 0; i < count; i++)
        library->api.release(&items[i]);
    return made;
}

kiln_value any_value(draws *d, const kiln_host_library *library, int depth)
{
    kiln_value made = kiln_host_value(KILN_NONE);
    static const int64_t integers[] = {0, 1, -1, INT64_MAX, INT64_MIN};
    switch (draw(d, depth > 0 ? 11 : 8)) {
    case 0: return made;
    case 1: return kiln_host_int(integers[draw(d, 5)]);
    case 2: return kiln_host_float(1e300);
    case 3: return kiln_host_bool((int)draw(d, 2));
    case 4: return shape_value(d, library);
    case 5: return function_value(d, library);
    case 6: return own_tensor(d, library);
    case 7: return tensor_value(d, library);
    case 8:
        check_code(library, library->api.make_string("a string with enough bytes", (int64_t)draw(d, 27),
                                                     &made), "kiln_make_string");
        return made;
    default: return tuple_value(d, library, depth);
    }
}

/* ---- cases ----------------------------------------------------------------------------------- */

/* Read a value through every view function, and all that the views contain. */
static void look_at(const kiln_host_library *library, const kiln_value *value)
{
    int count = 0;
    int64_t bytes = 0, sum = 0;
    const kiln_host_api *api = &library->api;
    const int64_t *sizes = api->shape_of(value, &count);
    for (int i = 0; sizes != NULL && i < count; i++)
        sum ^= sizes[i];
    const char *text = api->string_of(value, &bytes);
    for (int64_t i = 0; text != NULL && i < bytes; i++)
        sum ^= text[i];
    const kiln_tensor *t = api->tensor_of(value);
    for (int k = 0; t != NULL && t->shape != NULL && k < t->ndim; k++)
        sum ^= t->shape[k] ^ t->strides[k];
    const kiln_value *items = api->items_of(value, &count);
    for (int i = 0; items != NULL && i < count; i++)
        look_at(library, &items[i]);
    volatile int64_t used = sum;
    (void)used;
}

void some_values(draws *d)
{
    say("\n: values:");
    const int64_t before = outers()->api.live_objects();
    for (int i = 0; i < 8; i++) {
        kiln_value made = any_value(d, outers(), 4);
        look_at(outers(), &made);
        if (made.kind == KILN_FUNCTION) {
            kiln_value argument = any_value(d, outers(), 1), result;
            say(" called");
            check_code(outers(), outers()->api.call_value(&made, &argument, 1, &result),
                       "kiln_call_value");
            outers()->api.release(&result);
            outers()->api.release(&argument);
        }
        outers()->api.release(&made);
    }
    if (outers()->api.live_objects() != before)
        found("%lld values were not given back", (long long)(outers()->api.live_objects() - before));
}

/* Nest tuples up to a million deep; releasing them must not exhaust the stack. */
void nested_values(draws *d)
{
    static const int64_t depths[] = {10, 1000, 100000, 1000000};
    const int64_t depth = depths[draw(d, 4)];
    kiln_value whole = kiln_host_int(1);
    say("\n: %lld tuples in each other\n", (long long)depth);
    for (int64_t i = 0; i < depth; i++) {
        kiln_value inner = whole;
        if (outers()->api.make_tuple(&inner, 1, &whole) != KILN_OK)
            abort();
        outers()->api.release(&inner);
    }
    outers()->api.release(&whole);
    if (outers()->api.live_objects() != 0)
        found("%lld values are left", (long long)outers()->api.live_objects());
}

void registered_functions(draws *d)
{
    const kiln_host_function *f;
    kiln_executor *executor = NULL;
    kiln_host_error error;
    if (kiln_host_find(outers(), "ask", &f, &error) != KILN_OK)
        abort();
    check_code(outers(), outers()->api.executor_create(&executor), "kiln_executor_create");
    say("\n: call_packed:");
    for (int i = 0; i < 4; i++) {
        kiln_value function = function_value(d, outers());
        check_code(outers(), outers()->api.register_function("safety.host", seldom(d, 4) ? NULL
                                                                                        : &function),
                   "kiln_register_function");
        call_function(d, outers(), f, executor);
        outers()->api.release(&function);
    }
    outers()->api.register_function("safety.host", NULL);
    outers()->api.executor_destroy(executor);
}
