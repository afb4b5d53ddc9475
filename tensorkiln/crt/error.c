/* One error value per thread: a code and a sentence. */
#include "crt.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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

static __thread const char *assertion;

void kiln_assertion_failed(const char *message)
{
    if (assertion == NULL)
        assertion = message;
}

const char *kiln_assertion(void)
{
    return assertion;
}

int kiln_end_assertions(const char *function)
{
    const char *message = assertion;
    assertion = NULL;
    return message == NULL ? KILN_OK
                           : kiln_fail(KILN_ERROR_ASSERTION, "%s: %s", function, message);
}

void kiln_clear_error(void)
{
    sentence[0] = 0;
}

KILN_API const char *kiln_last_error(void)
{
    return sentence;
}
