/* Errors and functions of tvm-ffi, if the process has loaded it. */
#include "outer.h"
#include <stdio.h>

typedef struct foreign_bytes {
    const char *data;
    size_t size;
} foreign_bytes;

typedef struct error_object { /* the first fields of tvm-ffi's error object */
    kiln_object head;
    foreign_bytes kind;
    foreign_bytes message;
} error_object;

typedef void (*move_error_fn)(void **);
typedef void (*put_error_fn)(void *);
typedef int (*find_global_fn)(const foreign_bytes *, void **);

static __thread int raised; /* the current failure is already raised in tvm-ffi */

static void describe(const error_object *error)
{
    kiln_fail(KILN_ERROR_CALLBACK, "%.*s: %.*s", (int)error->kind.size, error->kind.data,
              (int)error->message.size, error->message.data);
}

int kiln_foreign_failure(void)
{
    const move_error_fn move_error = (move_error_fn)kiln_host_symbol("TVMFFIErrorMoveFromRaised");
    const put_error_fn put_error = (put_error_fn)kiln_host_symbol("TVMFFIErrorSetRaised");
    void *error = NULL;
    kiln_fail(KILN_ERROR_CALLBACK, "a function from outside this library failed");
    if (move_error != NULL && put_error != NULL)
        move_error(&error);
    if (error != NULL) {
        kiln_value owned = kiln_object_value(error);
        describe(error);
        put_error(error);
        kiln_release(&owned);
        raised = 1;
    }
    return KILN_ERROR_CALLBACK;
}

int kiln_ffi_result(int code)
{
    const int there = raised;
    raised = 0;
    if (code == KILN_OK)
        return 0;
    return code == KILN_ERROR_CALLBACK && there ? -1 : kiln_raise(code);
}

void kiln_find_foreign(const char *name, kiln_value *found)
{
    const find_global_fn get_global = (find_global_fn)kiln_host_symbol("TVMFFIFunctionGetGlobal");
    void *function = NULL;
    foreign_bytes text = {name, 0};
    while (name[text.size] != 0)
        text.size++;
    if (get_global != NULL && get_global(&text, &function) == 0 && function != NULL)
        *found = kiln_object_value(function);
}
