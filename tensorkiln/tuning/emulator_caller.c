/* Loads a library and calls a kernel of it, some times: emulator_caller CALLS LIBRARY SYMBOL
 * [SIZE...] -- BYTES...
 *
 * BYTES are those of its tensors; all but the last are read from the files in0, in1, ... of the
 * current folder, and the last one, its result, is written to `out`. A result has a guard behind
 * it: what writes there is told by exit status 9.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 24
#define GUARD 4096

typedef int64_t word; /* an address or a size: both are passed in the same registers */
typedef void kernel(word, word, word, word, word, word, word, word, word, word, word, word, word,
                    word, word, word, word, word, word, word, word, word, word, word);

static unsigned char *memory(size_t bytes)
{
    unsigned char *data;
    if (posix_memalign((void **)&data, 64, bytes + GUARD) != 0)
        exit(5);
    return memset(data, 0xff, bytes + GUARD), data;
}

static void fill(unsigned char *data, size_t bytes, int number)
{
    char name[24];
    snprintf(name, sizeof name, "in%d", number);
    FILE *file = fopen(name, "rb");
    if (file == NULL || fread(data, 1, bytes, file) != bytes)
        exit(4);
    fclose(file);
}

int main(int argc, char **argv)
{
    word a[MOST] = {0};
    size_t bytes[MOST] = {0};
    unsigned char *out = NULL;
    int tensors = 0, sizes = 0, at = 4;
    word size[MOST] = {0};
    if (argc < 6)
        return 2;
    for (; at < argc && strcmp(argv[at], "--") != 0 && sizes < MOST; at++)
        size[sizes++] = strtoll(argv[at], NULL, 10);
    for (at++; at < argc && tensors + sizes < MOST; at++)
        bytes[tensors++] = (size_t)strtoull(argv[at], NULL, 10);
    if (at < argc || tensors == 0)
        return 6;
    for (int i = 0; i < tensors; i++) {
        out = memory(bytes[i]);
        a[i] = (word)(intptr_t)out;
        if (i + 1 < tensors)
            fill(out, bytes[i], i);
    }
    memcpy(a + tensors, size, (size_t)sizes * sizeof *size);
    void *library = dlopen(argv[2], RTLD_NOW);
    void *threads = library ? dlsym(library, "kiln_set_num_threads") : NULL;
    void *found = threads ? dlsym(library, argv[3]) : NULL;
    if (found == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 3;
    }
    ((void (*)(int))(intptr_t)threads)(1);
    kernel *const call = (kernel *)(intptr_t)found;
    for (int n = atoi(argv[1]); n > 0; n--)
        call(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13],
             a[14], a[15], a[16], a[17], a[18], a[19], a[20], a[21], a[22], a[23]);
    for (size_t i = 0; i < GUARD; i++)
        if (out[bytes[tensors - 1] + i] != 0xff) {
            fprintf(stderr, "it wrote behind its result\n");
            return 9;
        }
    FILE *file = fopen("out", "wb");
    if (file == NULL || fwrite(out, 1, bytes[tensors - 1], file) != bytes[tensors - 1])
        return 4;
    return fclose(file) != 0;
}
