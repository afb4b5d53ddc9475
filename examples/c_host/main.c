/* Runs a compiled model from C, without Python or headers; it needs only the C library.
 *
 *   gcc -std=c99 -Wall -Wextra -o c_host main.c -ldl
 *   ./c_host ./mlp.so mlp_main 784 10 input.f32 output.f32
 *
 * Calls a plain C entry with one float input and one float output of fixed sizes; the arguments 784
 * and 10 are their numbers of elements. The generated mlp.h declares it as
 * int mlp_main(const float *x, float *out). A program for one model would include that header and
 * link mlp.so. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

typedef int (*entry_function)(const float *input, float *output);
typedef const char *(*text_function)(void);

/* Read (mode "rb") or write ("wb") a file of floats; 0 on failure. */
static int transfer(const char *path, const char *mode, float *data, size_t count)
{
    FILE *file = fopen(path, mode);
    if (file == NULL)
        return perror(path), 0;
    const size_t done =
        mode[0] == 'r' ? fread(data, sizeof *data, count, file) : fwrite(data, sizeof *data, count, file);
    if (done != count)
        fprintf(stderr, "%s: %zu of %zu elements\n", path, done, count);
    return (fclose(file) == 0) & (done == count);
}

int main(int argc, char **argv)
{
    if (argc != 7)
        return fprintf(stderr, "usage: c_host LIBRARY ENTRY INPUTS OUTPUTS INFILE OUTFILE\n"), 2;
    void *library = dlopen(argv[1], RTLD_NOW);
    if (library == NULL)
        return fprintf(stderr, "%s\n", dlerror()), 1;
    /* C99 does not convert dlsym()'s object pointer to a function pointer, hence the unions. */
    union { void *symbol; entry_function call; } entry = {dlsym(library, argv[2])};
    union { void *symbol; text_function call; } last_error = {dlsym(library, "kiln_last_error")};
    const size_t inputs = strtoul(argv[3], NULL, 10), outputs = strtoul(argv[4], NULL, 10);
    float *x = malloc(inputs * sizeof *x), *y = malloc(outputs * sizeof *y);
    if (entry.symbol == NULL || last_error.symbol == NULL || x == NULL || y == NULL)
        return fprintf(stderr, "no entry %s in %s, or no memory\n", argv[2], argv[1]), 1;
    if (!transfer(argv[5], "rb", x, inputs))
        return 1;
    if (entry.call(x, y) != 0)
        return fprintf(stderr, "%s\n", last_error.call()), 1;
    return transfer(argv[6], "wb", y, outputs) ? 0 : 1;
}
