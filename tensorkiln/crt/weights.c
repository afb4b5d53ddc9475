/* Maps weights from a file beside the library to the address where its code expects them; verifies
 * all weights against their hash if KILN_VERIFY_WEIGHTS is set. */
#include "loader.h"
#include "os.h"
#include <stdlib.h>
#include <string.h>

#define SUFFIX ".safetensors"
#define WEIGHTS_HEAD "{\"__metadata__\":{\"sha256\":\"" /* HEAD in artifact/weights_file.py */
#define PIECE ((uint64_t)2 << 20)
#define BEFORE_HASH (8 + sizeof WEIGHTS_HEAD - 1)

/* What link/elf/weights_segment.py writes at kiln_this_library.weights; the pointer is the first
 * member. */
typedef struct weights_place {
    char *data;
    uint64_t is_beside;
    unsigned char sha256[32];
} weights_place;

static int is_there; /* the weights beside the library are mapped */
static char beside[KILN_OS_PATH]; /* path of the file; empty if unknown */

/* Determine the path of the weights file, net.safetensors for net.so, while the library is loaded:
 * later the process may have changed its working directory. Symbolic links are resolved, because
 * the weights are beside the library itself. */
__attribute__((constructor)) static void find_file(void)
{
    const weights_place *place = (const weights_place *)(const void *)kiln_this_library.weights;
    if (place != NULL && place->is_beside)
        kiln_os_path_beside(&kiln_this_library, SUFFIX, beside);
}

static int is_hash(const char *text, const unsigned char *hash)
{
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < 32; i++)
        if (text[2 * i] != digits[hash[i] >> 4] || text[2 * i + 1] != digits[hash[i] & 15])
            return 0;
    return 1;
}

/* Check the file's header; return the offset of its data, or 0 with a sentence. */
static uint64_t data_start(int file, const char *name, const weights_place *place)
{
    char head[BEFORE_HASH + 64] = {0};
    uint64_t start = 8;
    const int64_t count = kiln_os_read_head(file, head, sizeof head);
    for (int i = 0; i < 8; i++)
        start += (uint64_t)(unsigned char)head[i] << 8 * i;
    if (count != (int64_t)sizeof head ||
        memcmp(head + 8, WEIGHTS_HEAD, sizeof WEIGHTS_HEAD - 1) != 0)
        kiln_fail(KILN_ERROR_WEIGHTS, "%s is not an exported file of weights", name);
    else if (!is_hash(head + BEFORE_HASH, place->sha256))
        kiln_fail(KILN_ERROR_WEIGHTS, "the weights in %s are not those that library %s was exported "
                  "with", name, kiln_this_library.name);
    else if (start % (uint64_t)kiln_os_page_size() != 0 ||
             kiln_os_file_bytes(file) - kiln_this_library.weights_bytes != (int64_t)start)
        kiln_fail(KILN_ERROR_WEIGHTS, "%s is cut off, or was changed", name);
    else
        return start;
    return 0;
}

static int map_file(const weights_place *place, int file, const char *name)
{
    const uint64_t start = data_start(file, name, place);
    int code = start == 0 ? KILN_ERROR_WEIGHTS : KILN_OK;
    if (code == KILN_OK &&
        !kiln_os_map_file(place->data, (size_t)kiln_this_library.weights_bytes, file, start))
        code = kiln_fail(KILN_ERROR_WEIGHTS, "%s cannot be mapped: %s", name, kiln_os_failure());
    is_there = code == KILN_OK;
    return code;
}

static int map_weights(const weights_place *place)
{
    if (*beside == 0)
        return kiln_fail(KILN_ERROR_WEIGHTS, "library %s has its weights beside it, and cannot "
                         "tell where it is itself", kiln_this_library.name);
    const int file = kiln_os_open_file(beside);
    if (file < 0)
        return kiln_fail(KILN_ERROR_WEIGHTS, "library %s has its weights in %s, which cannot be "
                         "opened: %s", kiln_this_library.name, beside, kiln_os_failure());
    const int code = map_file(place, file, beside);
    kiln_os_close_file(file);
    return code;
}

/* Hash weights that are inside the library: the SHA-256 of the SHA-256 digests of their 2 MiB
 * pieces (artifact/weights_check.py). Return 0 if memory is short. */
static int hash_pieces(const unsigned char *data, uint64_t size, unsigned char digest[32])
{
    const uint64_t count = size / PIECE + (size % PIECE != 0);
    unsigned char *all = malloc((size_t)count * 32);
    for (uint64_t i = 0; all != NULL && i < count; i++)
        kiln_sha256(data + i * PIECE, i + 1 < count ? PIECE : size - i * PIECE, all + i * 32);
    if (all != NULL)
        kiln_sha256(all, count * 32, digest);
    free(all);
    return all != NULL;
}

int kiln_wished_check(void)
{
    static const char *const words[] = {"0", "off", "1", "on"};
    const char *text = getenv("KILN_VERIFY_WEIGHTS");
    if (text == NULL || *text == 0)
        return 0;
    for (int i = 0; i < 4; i++) {
        int at = 0;
        while (words[i][at] != 0 &&
               (text[at] == words[i][at] || (text[at] >= 'A' && (text[at] | 0x20) == words[i][at])))
            at++;
        if (words[i][at] == 0 && text[at] == 0)
            return i / 2;
    }
    return -1;
}

/* Compare the weights that are mapped with their hash. A library that was compiled in memory, or
 * before weights had hashes, has zeros in place of a hash and is not verified. */
static int verify(const weights_place *place)
{
    static const unsigned char none[32];
    const unsigned char *data = (const unsigned char *)place->data;
    const uint64_t size = (uint64_t)kiln_this_library.weights_bytes;
    unsigned char digest[32];
    if (memcmp(place->sha256, none, sizeof none) == 0)
        return KILN_OK;
    if (place->is_beside)
        kiln_sha256(data, size, digest);
    else if (!hash_pieces(data, size, digest))
        return kiln_fail(KILN_ERROR_MEMORY, "out of memory");
    if (memcmp(digest, place->sha256, sizeof digest) == 0)
        return KILN_OK;
    return kiln_fail(KILN_ERROR_WEIGHTS, "the weights of library %s are damaged: their hash does "
                     "not match", kiln_this_library.name);
}

/* Map weights from an open file. If they are mapped already, as for a host that has loaded the
 * library before, those are what runs, and are verified. */
static int use_file(const weights_place *place, int file)
{
    if (place == NULL || !place->is_beside)
        return kiln_fail(KILN_ERROR_WEIGHTS, "library %s has no weights beside it",
                         kiln_this_library.name);
    return is_there ? verify(place) : map_file(place, file, "the file of weights");
}

KILN_API int kiln_use_weights(int file)
{
    kiln_take_lock(&kiln_weights_lock);
    const int code = use_file((const weights_place *)(const void *)kiln_this_library.weights, file);
    kiln_give_lock(&kiln_weights_lock);
    return code;
}

int kiln_map_weights(void)
{
    static int mapped;
    const weights_place *place = (const weights_place *)(const void *)kiln_this_library.weights;
    if (place == NULL)
        return KILN_OK;
    kiln_take_lock(&kiln_weights_lock);
    int code = is_there || !place->is_beside ? KILN_OK : map_weights(place);
    if (!mapped && code == KILN_OK && kiln_wished_check() == 1)
        code = verify(place);
    if (code == KILN_OK)
        __atomic_store_n(&mapped, 1, __ATOMIC_RELEASE);
    kiln_give_lock(&kiln_weights_lock);
    return code;
}
