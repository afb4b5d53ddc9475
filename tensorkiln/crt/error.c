/* One error value per thread: a code and a sentence. */
#include "crt.h"
#include <stdarg.h>
#include <stdio.h>

static __thread char sentence[1024];

int kiln_fail(int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    return code;
}

void kiln_clear_error(void)
{
    sentence[0] = 0;
}

KILN_API const char *kiln_last_error(void)
{
    return sentence;
}
