/* Weights in a file beside the library, mapped to where its code expects them. */
#define _GNU_SOURCE
#include "crt.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SUFFIX ".safetensors"
#define WEIGHTS_HEAD "{\"__metadata__\":{\"sha256\":\"" /* HEAD in artifact/weights_file.py */
#define BEFORE_HASH (8 + sizeof WEIGHTS_HEAD - 1)

/* What the linker's caller leaves at the pointer to the weights (link/weights_segment.py). */
typedef struct weights_place {
    char *data;
    uint64_t is_beside;
    unsigned char sha256[32];
} weights_place;

/* Name of the file, to be freed; NULL where the library cannot tell where it is. Links are followed:
 * both files lie where the library really is. */
static char *file_name(void)
{
    Dl_info here;
    if (dladdr((const void *)&kiln_this_library, &here) == 0 || here.dli_fname == NULL)
        return NULL;
    char *path = realpath(here.dli_fname, NULL);
    if (path == NULL)
        return NULL;
    char *dot = (strrchr)(path, '.');
    const size_t stem = dot == NULL || (strchr)(dot, '/') ? strlen(path) : (size_t)(dot - path);
    char *name = malloc(stem + sizeof SUFFIX);
    if (name != NULL) {
        memcpy(name, path, stem);
        memcpy(name + stem, SUFFIX, sizeof SUFFIX);
    }
    free(path);
    return name;
}

static int is_hash(const char *text, const unsigned char *hash)
{
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < 32; i++)
        if (text[2 * i] != digits[hash[i] >> 4] || text[2 * i + 1] != digits[hash[i] & 15])
            return 0;
    return 1;
}

/* Where the data begins, or 0 with a sentence. */
static uint64_t data_start(int file, const char *name, const weights_place *place)
{
    char head[BEFORE_HASH + 64];
    uint64_t start = 8;
    const ssize_t got = read(file, head, sizeof head);
    for (int i = 0; i < 8; i++)
        start += (uint64_t)(unsigned char)head[i] << 8 * i;
    if (got != (ssize_t)sizeof head ||
        memcmp(head + 8, WEIGHTS_HEAD, sizeof WEIGHTS_HEAD - 1) != 0)
        kiln_fail(KILN_ERROR_WEIGHTS, "%s is no file of weights that was exported", name);
    else if (!is_hash(head + BEFORE_HASH, place->sha256))
        kiln_fail(KILN_ERROR_WEIGHTS, "the weights in %s are not those that library %s was exported "
                  "with", name, kiln_this_library.name);
    else if (start % (uint64_t)sysconf(_SC_PAGESIZE) != 0 ||
             lseek(file, 0, SEEK_END) - kiln_this_library.weights_bytes != (int64_t)start)
        kiln_fail(KILN_ERROR_WEIGHTS, "%s is cut off, or was changed", name);
    else
        return start;
    return 0;
}

static int map_file(const weights_place *place, const char *name)
{
    const int file = open(name, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return kiln_fail(KILN_ERROR_WEIGHTS, "library %s has its weights in %s, which cannot be "
                         "opened: %s", kiln_this_library.name, name, strerror(errno));
    const uint64_t start = data_start(file, name, place);
    int code = start == 0 ? KILN_ERROR_WEIGHTS : KILN_OK;
    if (code == KILN_OK && mmap(place->data, (size_t)kiln_this_library.weights_bytes, PROT_READ,
                                MAP_PRIVATE | MAP_FIXED, file, (off_t)start) == MAP_FAILED)
        code = kiln_fail(KILN_ERROR_WEIGHTS, "%s cannot be mapped: %s", name, strerror(errno));
    close(file);
    return code;
}

static int map_weights(const weights_place *place)
{
    char *name = file_name();
    if (name == NULL)
        return kiln_fail(KILN_ERROR_WEIGHTS, "library %s has its weights beside it, and cannot "
                         "tell where it is itself", kiln_this_library.name);
    const int code = map_file(place, name);
    free(name);
    return code;
}

int kiln_map_weights(void)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static int mapped;
    /* The pointer is the first member. */
    const weights_place *place = (const weights_place *)(const void *)kiln_this_library.weights;
    if (place == NULL || !place->is_beside)
        return KILN_OK;
    pthread_mutex_lock(&mutex);
    const int code = mapped ? KILN_OK : map_weights(place);
    mapped |= code == KILN_OK;
    pthread_mutex_unlock(&mutex);
    return code;
}
