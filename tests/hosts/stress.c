/* What a host of long standing does to a library; the first argument after it says which.
 *
 *   cycles N       opens, runs, closes; prints what of memory and files is in use before and after
 *   threads        eight threads at once, on one executor, on their own, and opening and closing
 *   memory         every allocation of the host fails once
 *   mutate N SEED  reads damaged copies of the library's bytes
 *   names          prints what a JSON text from the command line decodes to */
#include "kiln_host.h"

#include <dirent.h>
#include <pthread.h>

#include "check.h"

enum { ROWS = 33, IN = 8, OUT = 4 };

static const char *path;
static float input[ROWS * IN], expected[ROWS * OUT];

/* ---- allocations that fail: linked with --wrap ----------------------------------------- */

static long allocations, fail_at = -1;

#ifdef WRAP
void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size)
{
    return allocations++ == fail_at ? NULL : __real_calloc(count, size);
}
#endif

/* ---- one call ---------------------------------------------------------------------------- */

static int run(const kiln_host_executor *executor, float *out, kiln_host_error *error)
{
    int64_t in_shape[] = {ROWS, IN}, out_shape[] = {ROWS, OUT};
    const kiln_dtype f32 = kiln_host_dtype(2, 32);
    const kiln_tensor x = kiln_host_tensor(input, f32, in_shape, 2);
    const kiln_tensor y = kiln_host_tensor(out, f32, out_shape, 2);
    const kiln_host_function *f;
    const int code = kiln_host_find(executor->library, "main", &f, error);
    return code != KILN_OK ? code : kiln_host_run(executor, f, &x, 1, &y, 1, error);
}

static int whole_life(kiln_host_error *error)
{
    float out[ROWS * OUT] = {0};
    kiln_host_library *library;
    kiln_host_executor *executor = NULL;
    int code = kiln_host_open(path, &library, error);
    if (code == KILN_OK)
        code = kiln_host_executor_create(library, &executor, error);
    if (code == KILN_OK)
        code = run(executor, out, error);
    kiln_host_executor_destroy(executor);
    kiln_host_close(library);
    if (code == KILN_OK && memcmp(out, expected, sizeof out) != 0)
        return kiln_host_fail(error, -1, "another result");
    return code;
}

/* ---- cycles ------------------------------------------------------------------------------ */

static void print_use(void)
{
    char line[1024], resident[256] = "";
    int files = 0, mapped = 0;
    FILE *maps = fopen("/proc/self/maps", "r"), *status = fopen("/proc/self/status", "r");
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL)
        mapped += strstr(line, path) != NULL;
    while (status != NULL && fgets(line, sizeof line, status) != NULL)
        if (strncmp(line, "VmRSS:", 6) == 0)
            strcpy(resident, line + 6);
    if (maps != NULL)
        fclose(maps);
    if (status != NULL)
        fclose(status);
    DIR *folder = opendir("/proc/self/fd");
    while (folder != NULL && readdir(folder) != NULL)
        files++;
    if (folder != NULL)
        closedir(folder);
    printf("%ld %d %d\n", strtol(resident, NULL, 10), files, mapped);
}

static void cycles(long count)
{
    kiln_host_error error = {0, ""};
    for (long i = 0; i < count; i++) {
        if (i == count / 10)
            print_use();
        CHECK(whole_life(&error) == KILN_OK);
    }
    print_use();
}

/* ---- threads ------------------------------------------------------------------------------ */

static void *thread(void *shared)
{
    kiln_host_error error = {0, ""};
    const kiln_host_executor *common = (const kiln_host_executor *)shared;
    const kiln_host_function *none;
    kiln_host_executor *own;
    float out[ROWS * OUT];
    CHECK(kiln_host_executor_create(common->library, &own, &error) == KILN_OK);
    for (int i = 0; i < 100; i++) {
        memset(out, 0, sizeof out);
        CHECK(run(i % 2 ? own : common, out, &error) == KILN_OK);
        CHECK(memcmp(out, expected, sizeof out) == 0);
        CHECK(kiln_host_find(common->library, "none", &none, &error) == KILN_ERROR_NAME);
        if (i % 20 == 0)
            CHECK(whole_life(&error) == KILN_OK);
    }
    kiln_host_executor_destroy(own);
    return NULL;
}

static void threads(void)
{
    kiln_host_error error = {0, ""};
    kiln_host_library *library;
    kiln_host_executor *executor;
    pthread_t all[8];
    CHECK(kiln_host_open(path, &library, &error) == KILN_OK);
    CHECK(kiln_host_executor_create(library, &executor, &error) == KILN_OK);
    for (int i = 0; i < 8; i++)
        CHECK(pthread_create(&all[i], NULL, thread, executor) == 0);
    for (int i = 0; i < 8; i++)
        pthread_join(all[i], NULL);
    kiln_host_executor_destroy(executor);
    kiln_host_close(library);
}

/* ---- memory -------------------------------------------------------------------------------- */

static void memory(void)
{
    kiln_host_error error = {0, ""};
    int code = KILN_ERROR_MEMORY, failures = 0;
    for (fail_at = 0; code == KILN_ERROR_MEMORY; fail_at++, failures++) {
        allocations = 0;
        code = whole_life(&error);
        CHECK(code == KILN_OK || code == KILN_ERROR_MEMORY);
    }
    CHECK(code == KILN_OK && failures > 50);
    printf("%d failures\n", failures - 1);
}

/* ---- mutate -------------------------------------------------------------------------------- */

static uint64_t state;

static uint64_t draw(uint64_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return below == 0 ? 0 : state % below;
}

/* Somewhere in the header, the section table, the metadata, or anywhere. */
static uint64_t place(const unsigned char *raw, uint64_t size)
{
    const uint64_t table = kiln_host_number(raw + 40, 8), rows = kiln_host_number(raw + 60, 2);
    kiln_host_source source = {raw, -1, size, 0, size};
    kiln_host_place found;
    switch (draw(4)) {
    case 0: return draw(64);
    case 1: return table + draw(64 * rows);
    case 2:
        if (kiln_host_find_metadata(&source, &found) == NULL)
            return found.offset + draw(found.size);
    }
    return draw(size);
}

static void mutate(long count)
{
    kiln_host_error error = {0, ""};
    FILE *file = fopen(path, "rb");
    static unsigned char original[1 << 22];
    const uint64_t size = fread(original, 1, sizeof original, file);
    long refused = 0, read = 0;
    fclose(file);
    for (long i = 0; i < count; i++) {
        kiln_host_description description = {.path = path};
        const uint64_t cut = draw(3) == 0 ? draw(size + 1) : size;
        unsigned char *copy = (unsigned char *)malloc(cut + 1) + 1; /* ends where the heap does */
        memcpy(copy, original, cut);
        for (uint64_t m = draw(6); m > 0; m--) {
            const uint64_t at = place(original, size), bytes = draw(4) == 0 ? 8 : 1;
            const unsigned char with = draw(2) == 0 ? 0xff : (unsigned char)draw(256);
            if (at + bytes <= cut)
                memset(copy + at, with, bytes);
        }
        error.sentence[0] = 0;
        kiln_host_source source = {copy, -1, cut, 0, cut};
        const int code = kiln_host_read_source(&description, &source, &error);
        CHECK(code == KILN_OK || (code >= KILN_HOST_ERROR_LIBRARY && error.sentence[0] != 0));
        refused += code != KILN_OK;
        read += code == KILN_OK;
        kiln_host_forget(&description);
        free(copy - 1);
    }
    printf("%ld refused, %ld read\n", refused, read);
}

/* ---- names --------------------------------------------------------------------------------- */

static void names(const char *text)
{
    char decoded[1024];
    const char *const end = kiln_host_json_skip(text, KILN_HOST_JSON_DEPTH);
    if (end == NULL || *end != 0 || strlen(text) >= sizeof decoded) {
        puts("no JSON");
        return;
    }
    kiln_host_json_decode(kiln_host_json_space(text), decoded);
    puts(decoded);
}

int main(int argc, char **argv)
{
    kiln_host_error error = {0, ""};
    const char *const what = argv[2];
    const long count = argc > 3 ? strtol(argv[3], NULL, 10) : 0;
    kiln_host_library *library;
    kiln_host_executor *executor;
    path = argv[1];
    if (strcmp(what, "names") == 0)
        return names(argv[3]), 0;
    for (int i = 0; i < ROWS * IN; i++)
        input[i] = (float)(i % 7) - 3;
    CHECK(kiln_host_open(path, &library, &error) == KILN_OK);
    CHECK(kiln_host_executor_create(library, &executor, &error) == KILN_OK);
    CHECK(run(executor, expected, &error) == KILN_OK);
    kiln_host_executor_destroy(executor);
    kiln_host_close(library);
    state = argc > 4 ? strtoull(argv[4], NULL, 10) : 1;
    if (strcmp(what, "cycles") == 0)
        cycles(count);
    else if (strcmp(what, "threads") == 0)
        threads();
    else if (strcmp(what, "memory") == 0)
        memory();
    else
        mutate(count);
    return 0;
}
