/* Calls from CPython without ctypes, by its stable interface and with no header or library of it.
 *
 * ctypes takes longer for the arguments of a call than a small model runs. This function has Python's
 * fast calling convention: it gets DLPack capsules and returns a code. The functions of Python that
 * it needs are given to it. */
#include "crt.h"

typedef void *(*capsule_pointer_fn)(py_object *, const char *);
typedef void *(*save_thread_fn)(void);
typedef void (*restore_thread_fn)(void *);
typedef py_object *(*long_fn)(long);

/* What a function object is bound to; without an executor it is called in borrowed memory. */
typedef struct kiln_python_target {
    kiln_executor *const *executor;
    int function;
} kiln_python_target;

static struct {
    capsule_pointer_fn capsule_pointer;
    save_thread_fn save_thread;
    restore_thread_fn restore_thread;
    long_fn new_long;
} python;

KILN_API void kiln_python_open(const kiln_any_function functions[4])
{
    python.capsule_pointer = (capsule_pointer_fn)functions[0];
    python.save_thread = (save_thread_fn)functions[1];
    python.restore_thread = (restore_thread_fn)functions[2];
    python.new_long = (long_fn)functions[3];
}

static int run(const kiln_python_target *target, kiln_value *tensors, int count)
{
    const kiln_tensor *pointers[KILN_MAX_PARAMS];
    if (target->executor == NULL)
        return kiln_call(target->function, tensors, count);
    for (int i = 0; i < count; i++)
        pointers[i] = tensors[i].as.pointer;
    return kiln_executor_run(*target->executor, target->function, pointers, count);
}

KILN_API py_object *kiln_python_call(py_object *self, py_object *const *args, ptrdiff_t count)
{
    const kiln_python_target *target = python.capsule_pointer(self, NULL);
    kiln_value tensors[KILN_MAX_PARAMS];
    if (target == NULL)
        return NULL;
    if (count > KILN_MAX_PARAMS)
        return python.new_long(kiln_fail(KILN_ERROR_COUNT, "%td arguments are too many", count));
    for (ptrdiff_t i = 0; i < count; i++) {
        tensors[i].kind = KILN_TENSOR;
        tensors[i].as.pointer = python.capsule_pointer(args[i], "dltensor");
        if (tensors[i].as.pointer == NULL)
            return NULL; /* Python knows why */
    }
    void *thread = python.save_thread();
    const int code = run(target, tensors, (int)count);
    python.restore_thread(thread);
    return python.new_long(code);
}
