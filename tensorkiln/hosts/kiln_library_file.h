/* kiln_library_file.h - what a library made by Tensorkiln says of itself, read from the file.
 *
 * A part of kiln_host.h, which includes it. Everything is checked against the file's size before it
 * is looked at, and no code of the file runs. Format: docs/formats/library.md, "Metadata".
 */
#ifndef KILN_LIBRARY_FILE_H
#define KILN_LIBRARY_FILE_H

#if defined(__SIZEOF_POINTER__) && __SIZEOF_POINTER__ != 8
#error "Tensorkiln makes libraries for 64-bit systems only; this program is compiled for another one"
#endif

#include "kiln.h"
#include "kiln_json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KILN_HOST_METADATA_VERSION 1
#define KILN_HOST_NOT_PLAIN (-1) /* no errno says it */

/* Programs that this one starts do not inherit the file; strict compilers hide the name. */
#if defined(O_CLOEXEC)
#define KILN_HOST_CLOEXEC O_CLOEXEC
#elif defined(__O_CLOEXEC)
#define KILN_HOST_CLOEXEC __O_CLOEXEC
#else
#define KILN_HOST_CLOEXEC 0
#endif

/* What can go wrong before there is a library to ask; follows enum kiln_code. */
enum kiln_host_code {
    KILN_HOST_ERROR_FILE = 100,    /* no such file, or it cannot be read */
    KILN_HOST_ERROR_LIBRARY = 101, /* the file is no library of ours, or damaged */
    KILN_HOST_ERROR_VERSION = 102, /* a library of ours, of another version */
    KILN_HOST_ERROR_MACHINE = 103, /* it is compiled for another machine */
    KILN_HOST_ERROR_LOAD = 104     /* the system's loader refuses it */
};

typedef struct kiln_host_error {
    int code;
    char sentence[1024];
} kiln_host_error;

/* A dimension as the library describes it. */
typedef struct kiln_host_dim {
    int64_t size;     /* -1 where the inputs decide */
    const char *text; /* "8", "n", "n * 4" */
} kiln_host_dim;

typedef struct kiln_host_param {
    const char *name;
    const char *dtype; /* "float32"; for what is no tensor or number its type in words */
    const char *role;  /* "in", "out", "inout", "scalar" */
    kiln_dtype type;   /* bits 0: no element type */
    int ndim;          /* -1: a scalar, or no tensor of known rank */
    const kiln_host_dim *dims;
} kiln_host_param;

/* A size that the inputs decide, by the name that dimensions use, and the least it may be. */
typedef struct kiln_host_size {
    const char *name;
    int64_t least;
} kiln_host_size;

typedef struct kiln_host_function {
    const char *name;
    const char *kind; /* "graph"; "tensor": inputs are all parameters; "outer": takes values */
    int index;        /* the number that kiln.h calls it by */
    int n_inputs, n_outputs, n_sizes;
    const kiln_host_param *inputs, *outputs;
    const kiln_host_size *sizes;
} kiln_host_function;

/* The functions that a file describes. */
typedef struct kiln_host_description {
    const char *path; /* as it was given */
    int n_functions;
    kiln_host_function *functions;
    uint64_t identity[4]; /* which file was read: device, number, size, seconds of the last change */
    void *memory; /* everything above, as a list of blocks */
    int no_memory; /* an allocation failed */
} kiln_host_description;

/* ---- errors and memory ------------------------------------------------------------------ */

#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
static inline int kiln_host_fail(kiln_host_error *error, int code, const char *format, ...)
{
    va_list arguments;
    if (error != NULL) {
        error->code = code;
        va_start(arguments, format);
        vsnprintf(error->sentence, sizeof error->sentence, format, arguments);
        va_end(arguments);
    }
    return code;
}

static inline int kiln_host_no_library(const char *path, const char *what, kiln_host_error *error)
{
    return kiln_host_fail(error, KILN_HOST_ERROR_LIBRARY, "'%s' is no library of ours: %s", path,
                          what);
}

/* Zeros that live as long as the description; NULL without memory. */
static inline void *kiln_host_allocate(kiln_host_description *file, size_t count, size_t size)
{
    void **block = NULL;
    if (count <= ((size_t)-1 - 16) / size)
        block = (void **)calloc(1, 16 + count * size);
    file->no_memory |= block == NULL;
    if (block == NULL)
        return NULL;
    block[0] = file->memory;
    file->memory = block;
    return (char *)block + 16;
}

/* Frees all that was allocated. */
static inline void kiln_host_forget(kiln_host_description *file)
{
    while (file->memory != NULL) {
        void **const block = (void **)file->memory;
        file->memory = block[0];
        free(block);
    }
}

/* A value as text, NULL for NULL or without memory. */
static inline const char *kiln_host_text(kiln_host_description *file, const char *at)
{
    if (at == NULL)
        return NULL;
    const char *const end = kiln_host_json_skip(at, KILN_HOST_JSON_DEPTH);
    char *made = (char *)kiln_host_allocate(file, (size_t)(end - at) + 1, 1);
    if (made != NULL)
        kiln_host_json_decode(at, made);
    return made;
}

/* ---- the description of a library ------------------------------------------------------------- */

static inline kiln_dtype kiln_host_dtype(uint8_t code, uint8_t bits)
{
    kiln_dtype made;
    made.code = code;
    made.bits = bits;
    made.lanes = 1;
    return made;
}

/* An element type by name; bits 0 when there is none. */
static inline kiln_dtype kiln_host_dtype_named(const char *name)
{
    static const struct {
        const char *name;
        uint8_t code, bits;
    } known[] = {{"float32", 2, 32}, {"float64", 2, 64}, {"float16", 2, 16}, {"bfloat16", 4, 16},
                 {"int8", 0, 8},     {"int16", 0, 16},   {"int32", 0, 32},   {"int64", 0, 64},
                 {"uint8", 1, 8},    {"uint16", 1, 16},  {"uint32", 1, 32},  {"uint64", 1, 64},
                 {"bool", 6, 8}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].name, name) == 0)
            return kiln_host_dtype(known[i].code, known[i].bits);
    return kiln_host_dtype(0, 0);
}

static inline int kiln_host_read_dims(kiln_host_description *file, const char *shape,
                                      kiln_host_param *param)
{
    param->ndim = shape == NULL ? -1 : kiln_host_json_count(shape);
    if (param->ndim < 0)
        return 1;
    kiln_host_dim *dims =
        (kiln_host_dim *)kiln_host_allocate(file, (size_t)param->ndim, sizeof *dims);
    param->dims = dims;
    const char *at = kiln_host_json_first(shape, '[');
    for (int d = 0; dims != NULL && d < param->ndim && at != NULL; d++) {
        dims[d].size = *at == '"' ? -1 : strtoll(at, NULL, 10);
        if ((dims[d].text = kiln_host_text(file, at)) == NULL)
            return 0;
        at = kiln_host_json_next(at);
    }
    return dims != NULL;
}

static inline const kiln_host_param *kiln_host_read_params(kiln_host_description *file,
                                                           const char *array, const char *role,
                                                           int *count)
{
    *count = kiln_host_json_count(array);
    if (*count < 0 || *array != '[')
        return NULL;
    kiln_host_param *made =
        (kiln_host_param *)kiln_host_allocate(file, (size_t)*count, sizeof *made);
    const char *at = kiln_host_json_first(array, '[');
    for (int p = 0; made != NULL && p < *count; p++, at = kiln_host_json_next(at)) {
        const char *given = kiln_host_json_member(at, "role");
        made[p].name = kiln_host_text(file, kiln_host_json_member(at, "name"));
        made[p].dtype = kiln_host_text(file, kiln_host_json_member(at, "dtype"));
        made[p].role = given == NULL ? role : kiln_host_text(file, given);
        if (made[p].name == NULL || made[p].dtype == NULL || made[p].role == NULL ||
            !kiln_host_read_dims(file, kiln_host_json_member(at, "shape"), &made[p]))
            return NULL;
        made[p].type = kiln_host_dtype_named(made[p].dtype);
    }
    return made;
}

static inline int kiln_host_read_function(kiln_host_description *file, const char *at,
                                          kiln_host_function *f)
{
    f->name = kiln_host_text(file, kiln_host_json_member(at, "name"));
    f->kind = kiln_host_text(file, kiln_host_json_member(at, "kind"));
    f->inputs = kiln_host_read_params(file, kiln_host_json_member(at, "inputs"), "in",
                                      &f->n_inputs);
    f->outputs = kiln_host_read_params(file, kiln_host_json_member(at, "outputs"), "out",
                                       &f->n_outputs);
    const char *symbols = kiln_host_json_member(at, "symbols");
    const int count = symbols == NULL ? 0 : kiln_host_json_count(symbols);
    kiln_host_size *sizes = NULL;
    if (count >= 0)
        sizes = (kiln_host_size *)kiln_host_allocate(file, (size_t)count, sizeof *sizes);
    if (f->name == NULL || f->kind == NULL || f->inputs == NULL || f->outputs == NULL ||
        sizes == NULL)
        return 0;
    const char *key = count == 0 ? NULL : kiln_host_json_first(symbols, '{');
    for (int s = 0; key != NULL; s++) {
        const char *value = kiln_host_json_value(key);
        sizes[s].least = strtoll(value, NULL, 10);
        if ((sizes[s].name = kiln_host_text(file, key)) == NULL)
            return 0;
        key = kiln_host_json_next(value);
        f->n_sizes++;
    }
    f->sizes = sizes;
    return 1;
}

/* Functions of a metadata text, NUL at its end. Runs nothing of the library. */
static inline int kiln_host_read_metadata(kiln_host_description *file, const char *text,
                                          kiln_host_error *error)
{
    if (!kiln_host_json_check(text))
        return kiln_host_no_library(file->path, "its metadata is not JSON", error);
    const char *rows = kiln_host_json_member(text, "functions");
    const char *format = kiln_host_json_member(text, "format");
    if (rows == NULL || *rows != '[')
        return kiln_host_no_library(file->path, "its metadata lists no functions", error);
    if (format == NULL || *format == '"' || strtoll(format, NULL, 10) != KILN_HOST_METADATA_VERSION)
        return kiln_host_fail(error, KILN_HOST_ERROR_VERSION,
                              "'%s' has metadata version %s, this Tensorkiln reads version %d",
                              file->path,
                              format == NULL ? "None" : kiln_host_text(file, format),
                              KILN_HOST_METADATA_VERSION);
    file->n_functions = kiln_host_json_count(rows);
    kiln_host_function *functions = (kiln_host_function *)kiln_host_allocate(
        file, (size_t)file->n_functions, sizeof *functions);
    if ((file->functions = functions) == NULL)
        return kiln_host_fail(error, KILN_ERROR_MEMORY, "out of memory");
    const char *at = kiln_host_json_first(rows, '[');
    for (int i = 0; i < file->n_functions; i++, at = kiln_host_json_next(at))
        if (!kiln_host_read_function(file, at, &functions[i]))
            return file->no_memory
                       ? kiln_host_fail(error, KILN_ERROR_MEMORY, "out of memory")
                       : kiln_host_no_library(file->path, "its metadata is damaged", error);
    return KILN_OK;
}

/* ---- the file: what it is, before any code of it runs ------------------------------------------ */

static inline uint64_t kiln_host_number(const unsigned char *at, int bytes)
{
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--)
        value = value << 8 | at[i];
    return value;
}

/* Bytes to be read: of an open file, or in memory where `bytes` is not NULL. */
typedef struct kiln_host_source {
    const unsigned char *bytes;
    int file;
    uint64_t size;
    int reason; /* errno of a read that failed */
} kiln_host_source;

/* Copies a part; 0 where the source does not reach, or cannot be read. The file is not mapped:
 * reading what somebody has cut off meanwhile would end the program. */
static inline int kiln_host_fetch(kiln_host_source *source, uint64_t at, uint64_t count, void *to)
{
    unsigned char *next = (unsigned char *)to;
    if (at > source->size || count > source->size - at)
        return 0;
    if (source->bytes != NULL) {
        memcpy(to, source->bytes + at, (size_t)count);
        return 1;
    }
    if (lseek(source->file, (off_t)at, SEEK_SET) < 0)
        source->reason = errno;
    while (count > 0 && source->reason == 0) {
        const ssize_t got = read(source->file, next, (size_t)count);
        if (got > 0) {
            next += got;
            count -= (uint64_t)got;
        } else if (got == 0 || errno != EINTR) {
            source->reason = got == 0 ? EIO : errno;
        }
    }
    return source->reason == 0;
}

/* What is needed of a file's header and section table. */
typedef struct kiln_host_place {
    int machine;
    uint64_t offset, size; /* of section .kiln.meta */
} kiln_host_place;

/* Whether a section has this name; `at` is where its name begins. */
static inline int kiln_host_is_named(kiln_host_source *source, uint64_t at, const char *wanted)
{
    char name[24];
    const size_t size = strlen(wanted) + 1;
    return kiln_host_fetch(source, at, size, name) && memcmp(name, wanted, size) == 0;
}

/* Finds section .kiln.meta; what is wrong with the file, or NULL. */
static inline const char *kiln_host_find_metadata(kiln_host_source *source, kiln_host_place *place)
{
    unsigned char head[64], row[64];
    int found = 0;
    if (!kiln_host_fetch(source, 0, sizeof head, head) || memcmp(head, "\177ELF", 4) != 0)
        return "not an ELF shared library";
    if (head[4] != 2 || head[5] != 1)
        return "not a 64-bit little-endian ELF file";
    const uint64_t table = kiln_host_number(head + 40, 8), count = kiln_host_number(head + 60, 2);
    const uint64_t names = kiln_host_number(head + 62, 2);
    if (kiln_host_number(head + 58, 2) != 64 || count == 0 || count > 4096 ||
        table > source->size || 64 * count > source->size - table)
        return "its section table is damaged or cut off";
    if (names >= count || !kiln_host_fetch(source, table + 64 * names, sizeof row, row))
        return "its section names are damaged";
    const uint64_t start = kiln_host_number(row + 24, 8);
    place->machine = (int)kiln_host_number(head + 18, 2);
    for (uint64_t i = 0; i < count && start <= source->size; i++) {
        if (!kiln_host_fetch(source, table + 64 * i, sizeof row, row) ||
            kiln_host_number(row + 4, 4) == 8)
            continue;
        const uint64_t name = start + kiln_host_number(row, 4);
        const uint64_t offset = kiln_host_number(row + 24, 8), size = kiln_host_number(row + 32, 8);
        const int is_whole = offset <= source->size && size <= source->size - offset;
        if (!is_whole && kiln_host_is_named(source, name, ".kiln.artifacts"))
            return "its section .kiln.artifacts is cut off";
        if (found || !kiln_host_is_named(source, name, ".kiln.meta"))
            continue;
        if (!is_whole)
            return "its section .kiln.meta is cut off";
        if (size > KILN_HOST_JSON_BYTES)
            return "its metadata is not JSON"; /* as for whatever is too large to be read */
        place->offset = offset;
        place->size = size;
        found = 1;
    }
    return found ? NULL : "it has no section .kiln.meta";
}

static inline const char *kiln_host_machine_name(int machine, char *room, size_t size)
{
    switch (machine) {
    case 3: return "i386";
    case 40: return "arm";
    case 62: return "x86_64";
    case 183: return "aarch64";
    case 243: return "riscv64";
    }
    snprintf(room, size, "ELF machine %d", machine);
    return room;
}

static inline int kiln_host_check_machine(const kiln_host_description *file, int machine,
                                          kiln_host_error *error)
{
#if defined(__x86_64__)
    const int here = 62;
#elif defined(__aarch64__)
    const int here = 183;
#elif defined(__riscv)
    const int here = 243;
#else
    const int here = machine; /* dlopen() will know */
#endif
    char one[24], other[24];
    if (machine == here)
        return KILN_OK;
    return kiln_host_fail(error, KILN_HOST_ERROR_MACHINE,
                          "'%s' is compiled for %s, this machine is %s", file->path,
                          kiln_host_machine_name(machine, one, sizeof one),
                          kiln_host_machine_name(here, other, sizeof other));
}

static inline int kiln_host_unreadable(const char *path, int reason, kiln_host_error *error)
{
    if (reason == KILN_HOST_NOT_PLAIN)
        return kiln_host_fail(error, KILN_HOST_ERROR_FILE, "cannot read '%s': it is no plain file",
                              path);
    if (reason == ENOENT)
        return kiln_host_fail(error, KILN_HOST_ERROR_FILE, "no such file: '%s'", path);
    return kiln_host_fail(error, KILN_HOST_ERROR_FILE, "cannot read '%s': %s", path,
                          strerror(reason));
}

/* The metadata of a source, NUL at its end; NULL and an error without it. */
static inline char *kiln_host_read_text(kiln_host_description *file, kiln_host_source *source,
                                        kiln_host_place *place, kiln_host_error *error)
{
    const char *const fault = kiln_host_find_metadata(source, place);
    char *text = NULL;
    if (source->reason == 0 && fault != NULL)
        kiln_host_no_library(file->path, fault, error);
    else if (source->reason == 0) {
        text = (char *)kiln_host_allocate(file, (size_t)place->size + 1, 1);
        if (text == NULL)
            kiln_host_fail(error, KILN_ERROR_MEMORY, "out of memory");
        else if (!kiln_host_fetch(source, place->offset, place->size, text))
            text = NULL;
    }
    if (source->reason != 0)
        kiln_host_unreadable(file->path, source->reason, error);
    return text;
}

/* The functions of a library for this machine. */
static inline int kiln_host_read_source(kiln_host_description *file, kiln_host_source *source,
                                        kiln_host_error *error)
{
    kiln_host_error first = {KILN_OK, ""};
    kiln_host_place place = {0, 0, 0};
    const char *const text = kiln_host_read_text(file, source, &place, &first);
    if (text == NULL)
        return kiln_host_fail(error, first.code, "%s", first.sentence);
    while (place.size > 0 && text[place.size - 1] == 0)
        place.size--;
    if (strlen(text) != place.size)
        return kiln_host_no_library(file->path, "its metadata is not JSON", error);
    const int code = kiln_host_read_metadata(file, text, error);
    return code != KILN_OK ? code : kiln_host_check_machine(file, place.machine, error);
}

static inline void kiln_host_identify(const struct stat *status, uint64_t identity[4])
{
    identity[0] = (uint64_t)status->st_dev;
    identity[1] = (uint64_t)status->st_ino;
    identity[2] = (uint64_t)status->st_size;
    identity[3] = (uint64_t)status->st_mtime;
}

/* Whether something else lies at a path than the file that was read. */
static inline int kiln_host_is_replaced(const kiln_host_description *file, const char *path)
{
    struct stat status;
    uint64_t now[4];
    if (stat(path, &status) != 0)
        return 1;
    kiln_host_identify(&status, now);
    return memcmp(now, file->identity, sizeof now) != 0;
}

/* 0, or why it is not read: a pipe or a device may block for ever, or never end. */
static inline int kiln_host_check_plain(const struct stat *status)
{
    return S_ISREG(status->st_mode) ? 0 : S_ISDIR(status->st_mode) ? EISDIR : KILN_HOST_NOT_PLAIN;
}

/* Opens a plain file; -1 and the reason for anything else. To open a device may do something
 * already, and a pipe that takes the file's place in between is not waited for. */
static inline int kiln_host_open_plain(const char *path, struct stat *status, int *reason)
{
    *reason = stat(path, status) != 0 ? errno : kiln_host_check_plain(status);
    const int file = *reason != 0 ? -1 : open(path, O_RDONLY | O_NONBLOCK | KILN_HOST_CLOEXEC);
    if (*reason == 0 && file < 0)
        *reason = errno;
    if (file >= 0)
        *reason = fstat(file, status) != 0 ? errno : kiln_host_check_plain(status);
    if (file >= 0 && *reason != 0)
        close(file);
    return *reason == 0 ? file : -1;
}

/* Reads the file at file->path: its functions, but for their numbers. kiln_host_forget() frees them,
 * after a failure too. */
static inline int kiln_host_read_file(kiln_host_description *file, kiln_host_error *error)
{
    struct stat status;
    kiln_host_source source = {NULL, -1, 0, 0};
    source.file = kiln_host_open_plain(file->path, &status, &source.reason);
    if (source.reason != 0)
        return kiln_host_unreadable(file->path, source.reason, error);
    source.size = (uint64_t)status.st_size;
    kiln_host_identify(&status, file->identity);
    const int code = kiln_host_read_source(file, &source, error);
    close(source.file);
    return code;
}

#ifdef __cplusplus
}
#endif
#endif
