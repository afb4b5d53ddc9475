/* scalars LIBRARY: calls what stdin says, a line each (tests/runtime/scalars.py); prints the code, and
 * what is then in 8 bytes of each tensor, or the sentence. */
#include "kiln_host.h"

#define MOST 64

static kiln_value number_of(const char *word)
{
    union {
        uint64_t bits;
        double real;
    } both;
    both.bits = strtoull(word + 2, NULL, word[0] == 'f' ? 16 : 10);
    return word[0] == 'i'   ? kiln_host_int(strtoll(word + 2, NULL, 10))
           : word[0] == 'u' ? kiln_host_uint(both.bits)
           : word[0] == 'b' ? kiln_host_bool(word[2] != '0')
                            : kiln_host_float(both.real);
}

static void call(const kiln_host_library *library, const char *name)
{
    static int64_t one[] = {1};
    uint64_t room[MOST] = {0};
    kiln_tensor tensors[MOST];
    kiln_value arguments[MOST];
    kiln_host_error error = {0, ""};
    const kiln_host_function *f;
    int count = 0, tensor = 0;
    for (const char *word; (word = strtok(NULL, " \n")) != NULL; count++)
        if (word[0] == 't') {
            tensors[tensor] = kiln_host_tensor(&room[tensor], kiln_host_dtype_named(word + 2), one, 1);
            arguments[count] = kiln_host_lend(&tensors[tensor++]);
        } else {
            arguments[count] = number_of(word);
        }
    if (kiln_host_find(library, name, &f, &error) == KILN_OK &&
        kiln_host_call(library, f, arguments, count, &error) == KILN_OK)
        printf("0");
    else
        printf("%d %s", error.code, error.sentence);
    for (int i = 0; i < tensor && error.code == KILN_OK; i++)
        printf(" %016llx", (unsigned long long)room[i]);
    puts("");
}

int main(int argc, char **argv)
{
    static char line[4096];
    kiln_host_error error = {0, ""};
    kiln_host_library *library;
    if (kiln_host_open(argv[argc - 1], &library, &error) != KILN_OK)
        return puts(error.sentence), 1;
    while (fgets(line, sizeof line, stdin) != NULL)
        call(library, strtok(line, " \n"));
    kiln_host_close(library);
    return 0;
}
