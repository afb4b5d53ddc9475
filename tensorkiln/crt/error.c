/* The last failure of each thread, as one sentence, the words in it for types and shapes, and the
 * failure of its current kernel run. */
#include "crt.h"
#include "os.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_DIMS 64

/* ---- what is known of a thread -------------------------------------------------------------- */

/* glibc allocates a library's variables of a thread when the thread first asks for the address of
 * one, and ends the process if it cannot. So as much is asked for before, by malloc(), which may
 * fail, and the address is remembered as the thread's value of a key. The key has no destructor: that
 * would be code of this library, which may be unloaded before the thread ends. */
#define THREAD_ROOM ((size_t)64 << 10) /* more than kiln_thread, and a table of libraries */

/* Where there are no such variables, each thread has a block of memory instead, and ends it by a
 * function of the C library. At the end of this library the blocks of threads that go on are left. */

enum { NO_KEY, MAKING, MADE, REFUSED };
static uintptr_t key; /* atomic: calls go on after exit() has deleted it, and make another one */
static int key_state;

static int has_key(void)
{
    int expected = NO_KEY;
    if (__atomic_load_n(&key_state, __ATOMIC_ACQUIRE) == MADE)
        return 1;
    if (!__atomic_compare_exchange_n(&key_state, &expected, MAKING, 0, __ATOMIC_ACQUIRE,
                                     __ATOMIC_RELAXED))
        return 0;
    uintptr_t new_key = 0;
    const int state = kiln_os_new_key(&new_key) ? MADE : REFUSED;
    __atomic_store_n(&key, new_key, __ATOMIC_RELAXED);
    __atomic_store_n(&key_state, state, __ATOMIC_RELEASE);
    return state == MADE;
}

#if defined(KILN_OS_NO_THREAD_VARIABLES)
static kiln_thread *first_use(void)
{
    while (!has_key()) {
        if (__atomic_load_n(&key_state, __ATOMIC_ACQUIRE) == REFUSED)
            return NULL;
        kiln_os_yield(); /* another thread is making it */
    }
    kiln_thread *const thread = calloc(1, sizeof *thread);
    if (thread != NULL)
        kiln_os_set_value(__atomic_load_n(&key, __ATOMIC_RELAXED), thread);
    return thread;
}
#else
static __thread kiln_thread variables;

/* A function of its own: compilers ask for the address of `variables` at the beginning of the function that
 * uses it. */
__attribute__((noinline)) static kiln_thread *variables_address(void)
{
    return &variables;
}

__attribute__((noinline)) static kiln_thread *first_use(void)
{
    const int keyed = has_key();
    void *volatile room = malloc(THREAD_ROOM); /* or the compiler leaves out both calls */
    if (room == NULL)
        return NULL;
    free(room);
    kiln_thread *const thread = variables_address();
    if (keyed)
        kiln_os_set_value(__atomic_load_n(&key, __ATOMIC_RELAXED), thread);
    return thread;
}
#endif

kiln_thread *kiln_this_thread(void)
{
    kiln_thread *thread = NULL;
    if (__atomic_load_n(&key_state, __ATOMIC_ACQUIRE) == MADE)
        thread = kiln_os_value(__atomic_load_n(&key, __ATOMIC_RELAXED));
    return thread != NULL ? thread : first_use();
}

void kiln_forget_threads(void)
{
#if defined(KILN_OS_NO_THREAD_VARIABLES)
    if (__atomic_load_n(&key_state, __ATOMIC_ACQUIRE) == MADE)
        free(kiln_os_value(__atomic_load_n(&key, __ATOMIC_RELAXED)));
#endif
    if (__atomic_load_n(&key_state, __ATOMIC_ACQUIRE) == MADE)
        kiln_os_delete_key(__atomic_load_n(&key, __ATOMIC_RELAXED));
    __atomic_store_n(&key_state, NO_KEY, __ATOMIC_RELEASE);
}

/* ---- the last failure ----------------------------------------------------------------------- */

int kiln_fail(int code, const char *format, ...)
{
    va_list arguments;
    kiln_thread *const t = kiln_this_thread();
    if (t == NULL)
        return code;
    va_start(arguments, format);
    vsnprintf(t->sentence, sizeof t->sentence, format, arguments);
    va_end(arguments);
    t->located = 0;
    return code;
}

int kiln_too_large(int code, const char *function, const char *what)
{
    return kiln_fail(code, "%s: the sizes are too large: %s does not fit into 64 bits", function, what);
}

void kiln_locate(const char *function, const char *step)
{
    kiln_thread *const t = kiln_this_thread();
    if (t == NULL || t->located)
        return;
    t->located = 1;
    if (function == NULL)
        return;
    const size_t used = strlen(t->sentence);
    snprintf(t->sentence + used, sizeof t->sentence - used, " [in %s%s%s]", function,
             *step == 0 ? "" : ", at ", step);
}

/* ---- words -------------------------------------------------------------------------------- */

void kiln_shape_text(char *text, const int64_t *shape, int ndim)
{
    int used = snprintf(text, KILN_SHAPE_TEXT, "[");
    if (shape == NULL || ndim > MOST_DIMS) /* ndim is garbage: do not read that far */
        ndim = 0;
    for (int d = 0; d < ndim && used < KILN_SHAPE_TEXT - 24; d++)
        used += snprintf(text + used, KILN_SHAPE_TEXT - (size_t)used, d == 0 ? "%lld" : ", %lld",
                         (long long)shape[d]);
    snprintf(text + used, KILN_SHAPE_TEXT - (size_t)used, "]");
}

void kiln_dtype_text(char *text, size_t size, kiln_dtype t)
{
    static const char *const narrow[] = {"8_e4m3fn", "8_e4m3fnuz", "8_e5m2", "8_e5m2fnuz",
                                         "8_e8m0fnu"}; /* codes from 10 on */
    const char *name = t.code == 0 ? "int" : t.code == 1 ? "uint" : t.code == 2 ? "float"
                     : t.code == 4 ? "bfloat" : t.code == 6 ? "bool" : NULL;
    if (t.code == 3 && t.bits == 64)
        snprintf(text, size, "a set of addresses");
    else if (t.code >= 10 && t.code < 15 && t.bits == 8 && t.lanes == 1)
        snprintf(text, size, "float%s", narrow[t.code - 10]);
    else if (name == NULL)
        snprintf(text, size, "element type %d with %d bits", t.code, t.bits);
    else if (t.code == 6 && t.bits == 8)
        snprintf(text, size, "bool");
    else if (t.lanes == 1)
        snprintf(text, size, "%s%d", name, t.bits);
    else
        snprintf(text, size, "%s%dx%d", name, t.bits, t.lanes);
}

/* ---- kernels ------------------------------------------------------------------------------ */

void kiln_assertion_failed(const char *message)
{
    kiln_thread *const t = kiln_this_thread();
    if (t == NULL || t->assertion != NULL)
        return;
    t->assertion = message;
    t->assertion_code = KILN_ERROR_ASSERTION;
}

void kiln_kernel_failed(int code)
{
    kiln_thread *const t = kiln_this_thread();
    if (t == NULL || t->assertion != NULL)
        return;
    memcpy(t->assertion_text, t->sentence, sizeof t->assertion_text);
    t->assertion = t->assertion_text;
    t->assertion_code = code;
}

void kiln_index_failed(const char *function, const char *node, const kiln_outside *outside,
                       int64_t extent, int64_t negative, int rank, const int64_t *dims)
{
    int64_t place[MOST_DIMS], left = outside->place;
    for (int d = rank - 1; d >= 0; d--) {
        place[d] = left % dims[d];
        left /= dims[d];
    }
    char at[KILN_SHAPE_TEXT], index[24], legal[64];
    kiln_shape_text(at, place, rank);
    snprintf(index, sizeof index, outside->is_unsigned ? "%llu" : "%lld",
             (unsigned long long)outside->index);
    if (extent == 0)
        snprintf(legal, sizeof legal, "which has no elements");
    else
        snprintf(legal, sizeof legal, "expected %lld to %lld", (long long)(negative ? -extent : 0),
                 (long long)extent - 1);
    kiln_kernel_failed(kiln_fail(
        KILN_ERROR_INDEX, "%s: index %s at %s is outside of a dimension of %lld, %s%s%s%s", function,
        index, at, (long long)extent, legal, *node == 0 ? "" : " (", node, *node == 0 ? "" : ")"));
}

const char *kiln_assertion(void)
{
    const kiln_thread *const t = kiln_this_thread();
    return t == NULL ? NULL : t->assertion;
}

int kiln_end_assertions(const char *function)
{
    kiln_thread *const t = kiln_this_thread();
    const char *message = t == NULL ? NULL : t->assertion;
    if (message == NULL)
        return KILN_OK;
    t->assertion = NULL;
    if (t->assertion_code == KILN_ERROR_ASSERTION)
        return kiln_fail(KILN_ERROR_ASSERTION, "%s: %s", function, message);
    return kiln_fail(t->assertion_code, "%s", message); /* the sentence of kiln_kernel_failed() */
}

KILN_API const char *kiln_last_error(void)
{
    const kiln_thread *const t = kiln_this_thread();
    return t == NULL ? "out of memory for what the library knows of this thread" : t->sentence;
}

KILN_API void kiln_set_last_error(const char *words)
{
    kiln_fail(0, "%s", words == NULL ? "" : words);
}
