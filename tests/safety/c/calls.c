/* Calls every function of the libraries, through every entry point, with random tensors and
 * values. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

enum { RUN, CALL, INVOKE, FFI, PLAIN, SHAPE_ONLY, N_ENTRIES };
static const char *const entry_names[] = {"run", "call", "invoke", "ffi", "plain", "shape"};

typedef struct call {
    const kiln_host_library *library;
    const kiln_host_function *f;
    kiln_executor *executor;
    int entry, count, inputs, is_wrong;
    made_tensor *made[MOST_ARGUMENTS]; /* NULL: not a tensor, or owned by values[] */
    kiln_value values[MOST_ARGUMENTS];
} call;

/* ---- sizes --------------------------------------------------------------------------------- */

/* The symbolic sizes of a function that have been chosen so far. */
typedef struct sizes {
    const char *name[8];
    int64_t size[8];
    int count, has_huge;
    int64_t elements; /* the product of the others */
} sizes;

static int64_t draw_size(draws *d, int allow_huge, sizes *known)
{
    static const int64_t small[] = {1, 1, 2, 3, 5, 17, 64, 0};
    static const int64_t huge[] = {(int64_t)1 << 31, ((int64_t)1 << 31) + 1, (int64_t)1 << 32,
                                   (int64_t)1 << 60, (int64_t)1 << 61, INT64_MAX};
    if (!allow_huge || draw(d, 3)) {
        /* A call must end in seconds: eight dimensions of 64 would not. */
        const int is_much = known->elements > 1 << 14;
        const int64_t size = small[draw(d, is_much ? 3 : seldom(d, 4) ? 8 : 6)];
        known->elements *= size;
        return size;
    }
    known->has_huge = 1;
    return huge[draw(d, 6)];
}

static int64_t size_of(draws *d, const kiln_host_dim *dim, int allow_huge, sizes *known)
{
    if (dim->size >= 0)
        return dim->size;
    for (int i = 0; i < known->count; i++)
        if (strcmp(known->name[i], dim->text) == 0)
            return known->size[i];
    known->name[known->count] = dim->text;
    return known->size[known->count++] = draw_size(d, allow_huge, known);
}

/* ---- arguments ----------------------------------------------------------------------------- */

static kiln_value number(draws *d, const char *dtype)
{
    const int is_real = strstr(dtype, "float") != NULL;
    say(" number");
    if (seldom(d, 8))
        return seldom(d, 2) ? kiln_host_float(1e300) : kiln_host_uint(UINT64_MAX);
    return is_real ? kiln_host_float((double)draw(d, 9) - 4) : kiln_host_int((int64_t)draw(d, 2));
}

static void set_tensor(call *c, int at, made_tensor *made)
{
    c->made[at] = made;
    c->values[at] = kiln_host_lend(&made->tensor);
}

/* Set the indices of `take` to 0: its kernel does not check them. */
static void set_indices(made_tensor *made)
{
    for (int64_t i = 0; i < elements(&made->tensor) && i < 100; i++)
        memset(element(&made->tensor, i), 0, 8);
}

static void plain_arguments(draws *d, call *c)
{
    sizes known = {{0}, {0}, 0, 0, 1};
    const int allow_huge = seldom(d, 4);
    const int sized = strcmp(c->f->name, "total") == 0 || strcmp(c->f->name, "grow") == 0;
    for (int i = 0; i < c->f->n_inputs; i++) {
        const kiln_host_param *p = &c->f->inputs[i];
        int64_t shape[MOST_DIMS];
        if (p->ndim < 0) {
            c->values[c->count++] = number(d, p->dtype);
            continue;
        }
        for (int k = 0; k < p->ndim; k++)
            shape[k] = size_of(d, &p->dims[k], allow_huge, &known);
        /* The workspace for such a size must be refused, so the data must not be read. */
        const int untouched = sized && known.has_huge && seldom(d, 2);
        set_tensor(c, c->count++, make_tensor(d, p->type, p->ndim, shape, untouched));
        if (strcmp(p->dtype, "int64") == 0 && strcmp(c->f->name, "take") == 0)
            set_indices(c->made[i]);
    }
    c->inputs = c->count;
}

/* Make outputs of the shapes that kiln_output_shape() gives; of ones if it rejects the inputs. */
static void plain_outputs(draws *d, call *c)
{
    const kiln_tensor *inputs[MOST_ARGUMENTS];
    for (int i = 0; i < c->count; i++)
        inputs[i] = c->made[i] == NULL ? NULL : &c->made[i]->tensor;
    for (int i = 0; i < c->f->n_outputs; i++) {
        int64_t shape[MOST_DIMS];
        int ndim = 0;
        const int code = c->library->api.output_shape(c->f->index, inputs, c->inputs, i, shape, &ndim);
        check_code(c->library, code, "kiln_output_shape");
        if (code != KILN_OK) {
            ndim = c->f->outputs[i].ndim;
            for (int k = 0; k < ndim; k++)
                shape[k] = 1;
        }
        set_tensor(c, c->count++, make_tensor(d, c->f->outputs[i].type, ndim, shape, 0));
    }
}

static kiln_value text_value(draws *d, const kiln_host_library *library)
{
    kiln_value made = kiln_host_value(KILN_NONE);
    check_code(library, library->api.make_string("some text of a length", (int64_t)draw(d, 22), &made),
               "kiln_make_string");
    return made;
}

static made_tensor *typed(draws *d, const char *dtype, int ndim, int64_t a, int64_t b, int64_t c)
{
    const int64_t shape[] = {a, b, c};
    return make_tensor(d, kiln_host_dtype_named(dtype), ndim, shape, 0);
}

static void outer_argument(draws *d, call *c, const char *name, int64_t n)
{
    const int at = c->count++;
    if (strcmp(c->f->name, "same") == 0 || strcmp(c->f->name, "ask") == 0 || strcmp(name, "pair") == 0)
        c->values[at] = any_value(d, c->library, 3);
    else if (strcmp(name, "label") == 0)
        c->values[at] = text_value(d, c->library);
    else if (strcmp(name, "c") == 0)
        set_tensor(c, at, typed(d, "bool", 1, n, 0, 0));
    else if (strstr("starts ends axes steps", name) != NULL)
        set_tensor(c, at, typed(d, "int64", 1, draw(d, 8) ? n % 4 : 17, 0, 0));
    else if (strcmp(name, "boxes") == 0)
        set_tensor(c, at, typed(d, "float32", 3, 1 + n % 2, n, 4));
    else if (strcmp(name, "scores") == 0)
        set_tensor(c, at, typed(d, "float32", 3, 1 + n % 2, seldom(d, 9) ? INT64_MAX : 2, n));
    else if (strcmp(name, "most") == 0)
        set_tensor(c, at, typed(d, "int64", 0, 0, 0, 0));
    else if (strcmp(name, "which") == 0)
        set_tensor(c, at, typed(d, "bool", 0, 0, 0, 0));
    else if (strstr("overlap least limit", name) != NULL)
        set_tensor(c, at, typed(d, "float32", 0, 0, 0, 0));
    else if (strcmp(c->f->name, "halve") == 0)
        set_tensor(c, at, typed(d, "float32", 1, n, 0, 0));
    else if (strcmp(c->f->name, "pick") == 0)
        set_tensor(c, at, typed(d, "float32", 2, n, 3, 0));
    else
        set_tensor(c, at, any_tensor(d));
}

/* A tensor object that another library made, in the layout of tvm-ffi (outer.h of the runtime):
 * unlike those of kiln_take_dlpack(), it has not been checked. */
typedef struct foreign_object {
    uint64_t counts;
    int32_t kind;
    uint32_t padding;
    void (*release)(void *self, int what);
    kiln_tensor tensor;
    made_tensor *made;
} foreign_object;

static void release_foreign(void *self, int what)
{
    foreign_object *object = self;
    if (what & 1)
        free_tensor(object->made);
    if (what & 2)
        free(object);
}

static kiln_value foreign(made_tensor *made)
{
    kiln_value value = kiln_host_value(KILN_TENSOR_OBJECT);
    foreign_object *object = calloc(1, sizeof *object);
    if (object == NULL)
        abort();
    *object = (foreign_object){1 | (uint64_t)1 << 32, KILN_TENSOR_OBJECT, 0, release_foreign,
                               made->tensor, made};
    value.as.pointer = object;
    return value;
}

/* Turn some tensor arguments into objects that own the tensor and free it when released. */
static void hand_over(draws *d, call *c)
{
    for (int i = 0; i < c->count; i++) {
        if (c->made[i] == NULL || seldom(d, 2))
            continue;
        if (seldom(d, 3)) {
            say(" foreign%d", i);
            c->values[i] = foreign(c->made[i]);
            c->made[i] = NULL;
            continue;
        }
        kiln_value taken = kiln_host_value(KILN_NONE);
        const int code = c->library->api.take_dlpack(&c->made[i]->tensor, &taken);
        check_code(c->library, code, "kiln_take_dlpack");
        if (code != KILN_OK)
            continue;
        say(" taken%d", i);
        c->values[i] = taken;
        c->made[i] = NULL;
    }
}

static void make_arguments(draws *d, call *c)
{
    if (strcmp(c->f->kind, "outer") == 0) {
        const int64_t n = (int64_t)draw(d, 6);
        for (int i = 0; i < c->f->n_inputs; i++)
            outer_argument(d, c, c->f->inputs[i].name, n);
    } else {
        plain_arguments(d, c);
        if (strcmp(c->f->kind, "graph") == 0)
            plain_outputs(d, c);
    }
    if (seldom(d, 4)) {
        const int at = (int)draw(d, (uint64_t)c->count);
        if (c->made[at] != NULL) {
            spoil_tensor(d, c->made[at]);
            c->is_wrong |= c->made[at]->is_wrong && strcmp(c->f->kind, "outer") != 0;
        }
    }
}

/* ---- results ------------------------------------------------------------------------------- */

/* copy_<dtype>(x, y, z) copies x to y and fills x with z. The elements of x before the call are
 * what y must be after it. */
typedef struct expectation {
    char *bytes;
    int64_t count;
} expectation;

static expectation expect(const call *c)
{
    expectation e = {NULL, 0};
    if (c->is_wrong || strncmp(c->f->name, "copy_", 5) != 0)
        return e;
    const kiln_tensor *x = &c->made[0]->tensor;
    const size_t size = x->dtype.bits / 8;
    e.count = elements(x);
    if (e.count > 100)
        return e;
    e.bytes = malloc((size_t)e.count * size + 1);
    for (int64_t i = 0; i < e.count; i++)
        memcpy(e.bytes + (size_t)i * size, element(x, i), size);
    return e;
}

/* Whether all elements have addresses of their own; otherwise the result is undefined. */
static int is_injective(const made_tensor *made)
{
    for (int k = 0; k < made->tensor.ndim; k++)
        if (made->shape[k] > 1 && made->strides[k] == 0)
            return 0;
    return 1;
}

static void compare(const call *c, int code, expectation *e)
{
    const kiln_tensor *y = c->made[1] == NULL ? NULL : &c->made[1]->tensor;
    if (e->bytes != NULL && code == KILN_OK && y != NULL && is_injective(c->made[1]) &&
        is_injective(c->made[0]) && c->entry != PLAIN && c->entry != SHAPE_ONLY)
        for (int64_t i = 0; i < e->count; i++)
            if (memcmp(e->bytes + i * (y->dtype.bits / 8), element(y, i), y->dtype.bits / 8) != 0) {
                found("element %lld is not what was copied", (long long)i);
                break;
            }
    free(e->bytes);
}

/* ---- entries ------------------------------------------------------------------------------- */

typedef int (*ffi_entry)(void *self, const kiln_value *args, int32_t count, kiln_value *result);

static int call_ffi(const call *c, kiln_value *result)
{
    char symbol[80] = "__tvm_ffi_";
    ffi_entry entry;
    void *const address = kiln_host_address(c->library, strncat(symbol, c->f->name, 60));
    if (address == NULL) {
        found("no %s", symbol);
        return KILN_ERROR_NAME;
    }
    memcpy(&entry, &address, sizeof entry);
    const int code = entry(NULL, c->values, c->count, result);
    if (code != 0 && code != -1)
        found("%s gave %d", symbol, code);
    return code == 0 ? KILN_OK : KILN_ERROR_ARGUMENT;
}

/* Call the plain C entry, which takes contiguous tensors by address; a call with other tensors is
 * skipped. */
static int call_plain(const call *c)
{
    const plain_function *f = NULL;
    int64_t integers[16];
    double reals[16];
    void *data[16];
    char symbol[160];
    int n = 0, tensors = 0;
    for (int i = 0; i < n_plain_functions; i++)
        if (strcmp(plain_functions[i].name, c->f->name) == 0)
            f = &plain_functions[i];
    for (int i = 0; f != NULL && i < c->count; i++) {
        const kiln_host_param *p = i < c->f->n_inputs ? &c->f->inputs[i]
                                                      : &c->f->outputs[i - c->f->n_inputs];
        const made_tensor *made = c->made[i];
        if (p->ndim < 0)
            continue;
        if (made == NULL || made->is_wrong || made->tensor.byte_offset != 0)
            return KILN_OK;
        int64_t step = 1;
        for (int k = made->tensor.ndim - 1; k >= 0; k--) {
            if (made->shape[k] > 1 && made->strides[k] != step)
                return KILN_OK;
            step *= made->shape[k] > 100 ? 100 : made->shape[k];
        }
        data[tensors++] = made->tensor.data;
    }
    if (f == NULL)
        return KILN_OK;
    for (int s = 0; s < c->f->n_sizes; s++)
        for (int i = 0; i < c->f->n_inputs; i++)
            for (int k = 0; k < c->f->inputs[i].ndim; k++)
                if (strcmp(c->f->inputs[i].dims[k].text, c->f->sizes[s].name) == 0)
                    integers[n = s] = c->made[i]->shape[k];
    for (int i = n = c->f->n_sizes; i < 16; i++)
        integers[i] = 1, reals[i - n] = 2;
    snprintf(symbol, sizeof symbol, "%s_%s", f->library, f->name);
    void *const entry = kiln_host_address(c->library, symbol);
    return entry == NULL ? (found("no %s", symbol), KILN_OK) : f->call(entry, integers, data, reals);
}

static int make_call(draws *d, call *c, kiln_value *result)
{
    const kiln_tensor *tensors[MOST_ARGUMENTS];
    int64_t shape[MOST_DIMS];
    int ndim, code = KILN_OK;
    const kiln_host_api *api = &c->library->api;
    for (int i = 0; i < c->count; i++)
        tensors[i] = c->made[i] == NULL ? NULL : &c->made[i]->tensor;
    switch (c->entry) {
    case RUN: return api->executor_run(c->executor, c->f->index, tensors, c->count);
    case CALL: return api->call(c->f->index, c->values, c->count);
    case INVOKE:
        return api->executor_invoke(draw(d, 3) ? c->executor : NULL, c->f->index, c->values, c->count,
                                    result);
    case FFI: return call_ffi(c, result);
    case PLAIN: return call_plain(c);
    default:
        for (int i = 0; i < c->f->n_outputs && code == KILN_OK; i++)
            code = api->output_shape(c->f->index, tensors, c->inputs, i, shape, &ndim);
        return code;
    }
}

static int choose_entry(draws *d, const call *c)
{
    const int has_values = c->library->api.executor_invoke != NULL;
    if (strcmp(c->f->kind, "outer") == 0)
        return draw(d, 3) ? INVOKE : FFI;
    const int entry = (int)draw(d, N_ENTRIES);
    return entry == INVOKE && !has_values ? RUN : entry;
}

void call_function(draws *d, const kiln_host_library *library, const kiln_host_function *f,
                   kiln_executor *executor)
{
    call c = {library, f, executor, 0, 0, 0, 0, {NULL}, {{0, 0, {0}}}};
    kiln_value result = kiln_host_value(KILN_NONE);
    c.entry = choose_entry(d, &c);
    say("\n: %s.%s by %s:", library->file.path, f->name, entry_names[c.entry]);
    make_arguments(d, &c);
    const int is_outer = strcmp(f->kind, "outer") == 0;
    expectation e = expect(&c);
    if (c.entry == INVOKE || (is_outer && library->api.take_dlpack != NULL))
        if (e.bytes == NULL)
            hand_over(d, &c);
    say("\n");
    const int code = make_call(d, &c, &result);
    if (c.entry != FFI && (c.entry != PLAIN || code == KILN_OK))
        check_code(library, code, entry_names[c.entry]);
    if (code == KILN_OK && c.is_wrong && c.entry != PLAIN && c.entry != SHAPE_ONLY)
        found("a wrong tensor was taken");
    compare(&c, code, &e);
    if (library->api.release != NULL)
        library->api.release(&result);
    for (int i = 0; i < c.count; i++) {
        if (c.made[i] != NULL)
            free_tensor(c.made[i]);
        else if (library->api.release != NULL)
            library->api.release(&c.values[i]);
    }
}

void one_call(draws *d)
{
    const kiln_host_library *library = libraries[draw(d, N_LIBRARIES)];
    const kiln_host_function *f = &library->file.functions[draw(d, (uint64_t)library->file.n_functions)];
    kiln_executor *executor = NULL;
    check_code(library, library->api.executor_create(&executor), "kiln_executor_create");
    if (seldom(d, 3))
        library->api.executor_set_num_threads(executor, (int)draw(d, 3));
    for (int i = seldom(d, 3) ? 3 : 1; i > 0; i--)
        call_function(d, library, f, executor);
    library->api.executor_destroy(executor);
}

/* Repeat one call with an injected fault at its first, second, ... system call of a kind, until it
 * makes fewer calls than that. */
void failing_call(draws *d)
{
    const draws start = {draw(d, 0)};
    const int kind = 1 + (int)draw(d, 3);
    say("\n: fault %d", kind);
    for (long at = 0, done = 0; !done && at < 60; at++) {
        draws again = start;
        const kiln_host_library *library = libraries[draw(&again, N_LIBRARIES)];
        const uint64_t number_of = draw(&again, (uint64_t)library->file.n_functions);
        kiln_executor *executor = NULL;
        check_code(library, library->api.executor_create(&executor), "kiln_executor_create");
        library->api.executor_set_num_threads(executor, 2);
        plan_fault(kind, at);
        call_function(&again, library, &library->file.functions[number_of], executor);
        done = !fault_happened();
        plan_fault(0, 0);
        library->api.executor_destroy(executor);
    }
}
