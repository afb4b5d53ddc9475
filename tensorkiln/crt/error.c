/* The last failure of each thread, as one sentence, the words in it for types and shapes, and the
 * failure of its current kernel run. */
#include "crt.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define MOST_DIMS 64

static __thread char sentence[1024];
static __thread int located;

int kiln_fail(int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    located = 0;
    return code;
}

int kiln_too_large(int code, const char *function, const char *what)
{
    return kiln_fail(code, "%s: the sizes are too large: %s does not fit into 64 bits", function, what);
}

void kiln_locate(const char *function, const char *step)
{
    if (located)
        return;
    located = 1;
    if (function == NULL)
        return;
    const size_t used = strlen(sentence);
    snprintf(sentence + used, sizeof sentence - used, " [in %s%s%s]", function,
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
    const char *name = t.code == 0 ? "int" : t.code == 1 ? "uint" : t.code == 2 ? "float"
                     : t.code == 4 ? "bfloat" : t.code == 6 ? "bool" : NULL;
    if (t.code == 3 && t.bits == 64)
        snprintf(text, size, "a set of addresses");
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

static __thread const char *assertion;
static __thread int assertion_code;
static __thread char kept[sizeof sentence];

void kiln_assertion_failed(const char *message)
{
    if (assertion != NULL)
        return;
    assertion = message;
    assertion_code = KILN_ERROR_ASSERTION;
}

void kiln_kernel_failed(int code)
{
    if (assertion != NULL)
        return;
    memcpy(kept, sentence, sizeof kept);
    assertion = kept;
    assertion_code = code;
}

const char *kiln_assertion(void)
{
    return assertion;
}

int kiln_end_assertions(const char *function)
{
    const char *message = assertion;
    assertion = NULL;
    if (message == NULL)
        return KILN_OK;
    if (assertion_code == KILN_ERROR_ASSERTION)
        return kiln_fail(KILN_ERROR_ASSERTION, "%s: %s", function, message);
    return kiln_fail(assertion_code, "%s", message); /* the sentence of kiln_kernel_failed() */
}

KILN_API const char *kiln_last_error(void)
{
    return sentence;
}

KILN_API void kiln_set_last_error(const char *words)
{
    kiln_fail(0, "%s", words == NULL ? "" : words);
}
