/* Calls from CPython without ctypes, through the stable ABI, without CPython's headers or library.
 *
 * ctypes needs longer to convert the arguments of a call than a small model needs to run, and so do
 * a few lines of Python. kiln_python_call() has CPython's fast calling convention: it exports the
 * arguments through DLPack, allocates the results, and runs the function. Anything unusual (an
 * export that fails, wrong counts or names of arguments, lists of outputs) is passed unchanged to
 * the Python implementation, so that error messages are in one place. */
#include "crt.h"
#include "os.h"

/* One result is allocated with make(shape, dtype). `shape` is NULL if it depends on the inputs;
 * results of at least kiln_python.large bytes are then allocated with make_large. */
typedef struct kiln_python_result {
    py_object *make, *make_large, *shape, *dtype;
} kiln_python_result;

/* What a function object is bound to. The Python side keeps all objects alive. */
typedef struct kiln_python_target {
    kiln_executor *const *executor; /* NULL: a tensor function, called in borrowed memory */
    py_object *const *names; /* of the inputs, then "out"; interned. NULL: positional only */
    const kiln_python_result *results;
    py_object *failed; /* failed(code) raises the exception */
    int function;
    int n_inputs;
    int n_results; /* results that are allocated and returned */
    int library; /* the number that kiln_python_calls() counts by; 0 from older Python packages */
} kiln_python_target;

typedef struct call {
    const kiln_python_target *target;
    struct call *next; /* in the list of running calls */
    uintptr_t thread;
    int n_tensors, n_made;
    kiln_value tensor[KILN_MAX_PARAMS];
    py_object *capsule[KILN_MAX_PARAMS];
    py_object *made[KILN_MAX_PARAMS];
} call;

enum { RAISED = -1, UNUSUAL = 0, READY = 1 };

static kiln_python python;
static call *calls; /* the running calls; guarded by the GIL */

/* In a child of fork(): forget the calls of threads that the child does not have. */
static const kiln_lock *forget_calls(void)
{
    call **link = &calls;
    while (*link != NULL)
        if ((*link)->thread == kiln_os_this_thread())
            link = &(*link)->next;
        else
            *link = (*link)->next;
    return NULL;
}

KILN_API void kiln_python_open(const kiln_python *api)
{
    kiln_at_fork(KILN_FORK_CALLS, forget_calls);
    if (api != NULL)
        python = *api;
}

/* Call function(argument), and release the argument; NULL if it is NULL or an exception was
 * raised. */
static py_object *call_one(py_object *function, py_object *argument)
{
    py_object *result = NULL;
    if (argument != NULL) {
        result = python.vectorcall(function, &argument, 1, NULL);
        python.decref(argument);
    }
    return result;
}

/* Sort positional and keyword arguments into the order of the parameters; 0 if they do not match,
 * or a parameter has no argument. */
static int put_in_order(const kiln_python_target *t, py_object *const *args, ptrdiff_t count,
                        py_object *names, py_object **inputs, py_object **out)
{
    const ptrdiff_t named = names != NULL ? python.tuple_size(names) : 0;
    if (count > t->n_inputs || (named > 0 && t->names == NULL))
        return 0;
    *out = NULL;
    for (int p = 0; p < t->n_inputs; p++)
        inputs[p] = p < count ? args[p] : NULL;
    for (ptrdiff_t i = 0; i < named; i++) {
        const py_object *name = python.tuple_item(names, i);
        int p = 0;
        while (p <= t->n_inputs && t->names[p] != name)
            p++;
        py_object **place = p < t->n_inputs ? &inputs[p] : out;
        if (p > t->n_inputs || *place != NULL)
            return 0;
        /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): NULL only without arguments */
        *place = args[count + i];
    }
    for (int p = 0; p < t->n_inputs; p++)
        if (inputs[p] == NULL)
            return 0;
    return *out == NULL || t->n_results == 1;
}

/* After an export or an allocation raised: clear the exception and return UNUSUAL if the Python
 * path handles it, otherwise leave it raised. */
static int refused(void)
{
    if (!python.matches(python.no_export))
        return RAISED;
    python.clear();
    return UNUSUAL;
}

/* The DLPack capsule of a value. For a tensorkiln Tensor, that of its array: this saves a call of
 * Tensor.__dlpack__(), which is written in Python. */
static py_object *capsule_of(py_object *value)
{
    py_object *type = python.type_of(value), *capsule = NULL;
    python.decref(type); /* `value` keeps it alive */
    if (type != python.tensor)
        return python.call_method(python.dlpack, &value, 1, NULL);
    py_object *array = python.attribute(value, python.array);
    if (array != NULL) {
        capsule = python.call_method(python.dlpack, &array, 1, NULL);
        python.decref(array);
    }
    return capsule;
}

static int export_tensor(call *c, py_object *value)
{
    py_object *capsule = capsule_of(value);
    if (capsule == NULL)
        return refused();
    kiln_value *tensor = &c->tensor[c->n_tensors];
    c->capsule[c->n_tensors++] = capsule;
    tensor->kind = KILN_TENSOR;
    tensor->as.pointer = python.capsule_pointer(capsule, "dltensor");
    return tensor->as.pointer != NULL ? READY : refused();
}

/* A tuple with the shape of result r, for a shape that depends on the inputs. */
static py_object *shape_of(const kiln_binding *b, int r)
{
    const int p = b->function->n_inputs + r, ndim = b->function->params[p].ndim;
    py_object *shape = python.new_tuple(ndim);
    for (int d = 0; shape != NULL && d < ndim; d++) {
        py_object *size = python.new_long(kiln_param_dim(b, p, d));
        if (size == NULL || python.set_item(shape, d, size) != 0) { /* takes `size` in any case */
            python.decref(shape);
            return NULL;
        }
    }
    return shape;
}

static int make_results(call *c)
{
    const kiln_python_target *t = c->target;
    kiln_binding b;
    b.function = NULL;
    for (int r = 0; r < t->n_results; r++) {
        const kiln_python_result *result = &t->results[r];
        py_object *shape = result->shape, *make = result->make;
        if (shape == NULL) {
            if (b.function == NULL && kiln_bind(&b, kiln_this_library.functions[t->function],
                                                c->tensor, t->n_inputs) != KILN_OK)
                return UNUSUAL; /* the Python path fails again, and raises */
            if ((shape = shape_of(&b, r)) == NULL)
                return RAISED;
            if (b.bytes[b.function->n_inputs + r] >= python.large)
                make = result->make_large;
        }
        py_object *arguments[] = {shape, result->dtype};
        py_object *made = python.vectorcall(make, arguments, 2, NULL);
        if (shape != result->shape)
            python.decref(shape);
        if (made == NULL)
            return refused();
        c->made[c->n_made++] = made;
        const int state = export_tensor(c, made);
        if (state != READY)
            return state;
    }
    return READY;
}

static int prepare(call *c, py_object *const *inputs, py_object *out)
{
    for (int p = 0; p < c->target->n_inputs; p++) {
        /* NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): put_in_order() sets all */
        const int state = export_tensor(c, inputs[p]);
        if (state != READY)
            return state;
    }
    return out != NULL ? export_tensor(c, out) : make_results(c);
}

static int run(const kiln_python_target *target, const kiln_value *tensors, int count)
{
    const kiln_tensor *pointers[KILN_MAX_PARAMS];
    if (target->executor == NULL)
        return kiln_call(target->function, tensors, count);
    for (int i = 0; i < count; i++)
        pointers[i] = tensors[i].as.pointer;
    return kiln_executor_run(*target->executor, target->function, pointers, count);
}

/* The results as one Tensor, or as a tuple of them. */
static py_object *tensors_of(call *c)
{
    if (c->n_made == 1) {
        c->n_made = 0;
        return call_one(python.tensor, c->made[0]);
    }
    py_object *all = python.new_tuple(c->n_made);
    for (int r = 0; all != NULL && r < c->target->n_results; r++) {
        py_object *tensor = python.vectorcall(python.tensor, &c->made[r], 1, NULL);
        if (tensor == NULL || python.set_item(all, r, tensor) != 0) {
            python.decref(all);
            return NULL;
        }
    }
    return all;
}

static void give_back(call *c)
{
    while (c->n_tensors > 0)
        python.decref(c->capsule[--c->n_tensors]);
    while (c->n_made > 0)
        python.decref(c->made[--c->n_made]);
}

static py_object *finish(call *c, py_object *out)
{
    void *thread = python.save_thread();
    const int code = run(c->target, c->tensor, c->n_tensors);
    python.restore_thread(thread);
    if (code != KILN_OK)
        return call_one(c->target->failed, python.new_long(code));
    if (out == NULL && c->target->results != NULL)
        return tensors_of(c);
    out = out != NULL ? out : python.none;
    python.incref(out);
    return out;
}

KILN_API int kiln_python_calls(int library, int here)
{
    const uintptr_t thread = kiln_os_this_thread();
    int count = 0;
    for (const call *c = calls; c != NULL; c = c->next)
        count += c->target->library == library && (!here || c->thread == thread);
    return count;
}

static void end_call(const call *c)
{
    call **at = &calls;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
}

KILN_API py_object *kiln_python_call(py_object *self, py_object *const *args, ptrdiff_t count,
                                     py_object *names)
{
    py_object *inputs[KILN_MAX_PARAMS], *out, *result = NULL;
    call c;
    /* Before kiln_python_open(), or not called by CPython: no exception can be raised. */
    if (python.address == NULL || self == NULL || (args == NULL && count > 0)) {
        kiln_fail(KILN_ERROR_NULL, "kiln_python_call: an argument is a null pointer");
        return NULL;
    }
    c.target = python.address(self);
    if (c.target == NULL)
        return NULL;
    c.n_tensors = c.n_made = 0;
    c.thread = kiln_os_this_thread();
    c.next = calls;
    calls = &c;
    int state = UNUSUAL;
    if (put_in_order(c.target, args, count, names, inputs, &out)) {
        state = prepare(&c, inputs, out);
        if (state == READY)
            result = finish(&c, out);
        give_back(&c);
    }
    if (state == UNUSUAL)
        result = python.vectorcall(self, args, (size_t)count, names);
    end_call(&c); /* the GIL is held until we return, so nothing closes the library before */
    return result;
}
