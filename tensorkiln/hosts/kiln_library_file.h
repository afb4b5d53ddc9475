/* kiln_library_file.h - reads the description of a library, its functions and their parameters,
 * from the ELF file, without running any of its code.
 *
 * Included by kiln_host.h. Programs use the types; the functions are internal. The file is not
 * trusted: every offset is checked against its size. Format: docs/formats/library.md, "Metadata".
 *
 * Functions that return int return KILN_OK or a code with *error, as kiln_host.h says, unless their
 * comment says otherwise. One description must not be used by two threads at once while it is read.
 */
#ifndef KILN_LIBRARY_FILE_H
#define KILN_LIBRARY_FILE_H

#if defined(__SIZEOF_POINTER__) && __SIZEOF_POINTER__ != 8
#error "Tensorkiln makes libraries for 64-bit systems only; this program is compiled for another one"
#endif

#include "kiln.h"
#include "kiln_digest.h"
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

#define KILN_HOST_METADATA_VERSION 6
#define KILN_HOST_NOT_PLAIN (-1) /* an error besides those of errno: not a regular file */

/* O_CLOEXEC, so that child processes do not inherit the descriptor; headers hide it in strict
 * C99. */
#if defined(O_CLOEXEC)
#define KILN_HOST_CLOEXEC O_CLOEXEC
#elif defined(__O_CLOEXEC)
#define KILN_HOST_CLOEXEC __O_CLOEXEC
#else
#define KILN_HOST_CLOEXEC 0
#endif

/* Codes of errors while a library is opened; they continue enum kiln_code. */
enum kiln_host_code {
    KILN_HOST_ERROR_FILE = 100,    /* the file does not exist, cannot be read, or was replaced */
    KILN_HOST_ERROR_LIBRARY = 101, /* the file is not a Tensorkiln library, or is damaged */
    KILN_HOST_ERROR_VERSION = 102, /* a Tensorkiln library with another version of the interface */
    KILN_HOST_ERROR_MACHINE = 103, /* it is compiled for another architecture */
    KILN_HOST_ERROR_LOAD = 104     /* dlopen() failed */
};

/* A failure: its code, and one sentence with its NUL. */
typedef struct kiln_host_error {
    int code;
    char sentence[1024];
} kiln_host_error;

/* A dimension of a parameter. */
typedef struct kiln_host_dim {
    int64_t size;     /* -1: depends on the inputs */
    const char *text; /* "8", "n", "n * 4" */
} kiln_host_dim;

/* A parameter of a function. */
typedef struct kiln_host_param {
    const char *name;
    const char *dtype; /* "float32"; a type that is not a tensor's or number's in words */
    const char *role;  /* "in", "out", "inout", "scalar" */
    kiln_dtype type;   /* the same as `dtype`; bits 0: not an element type */
    int ndim;          /* -1: not a tensor, or a tensor of unknown rank */
    const kiln_host_dim *dims; /* ndim of them */
} kiln_host_param;

/* A symbolic size such as `n`, which the inputs determine, and its minimum. */
typedef struct kiln_host_size {
    const char *name;
    int64_t least;
} kiln_host_size;

/* A function of a library. */
typedef struct kiln_host_function {
    const char *name;
    const char *kind; /* "graph"; "tensor": `inputs` are all parameters; "outer": takes values */
    int index;        /* its number for the functions of kiln.h */
    int n_inputs, n_outputs, n_sizes;
    const kiln_host_param *inputs, *outputs;
    const kiln_host_size *sizes;
} kiln_host_function;

/* What a library file says about itself. It owns everything that it points to. */
typedef struct kiln_host_description {
    const char *path; /* as the program gave it */
    int n_functions;
    kiln_host_function *functions;
    uint64_t identity[4]; /* of the file: device, inode, size, modification time in seconds */
    const char *metadata; /* its text, JSON, once it was checked; NULL before */
    void *memory; /* linked list of all allocated blocks */
    int no_memory; /* an allocation failed */
    int opened; /* the descriptor that was read, plus 1; 0: none is open */
    int needs_name; /* it needs libraries beside it, by $ORIGIN */
} kiln_host_description;

/* ---- errors and memory ------------------------------------------------------------------ */

/* Fill *error, unless it is NULL, and return `code`. The sentence is truncated to fit. */
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

/* The error for a file that is not a Tensorkiln library, or is damaged. */
static inline int kiln_host_no_library(const char *path, const char *what, kiln_host_error *error)
{
    return kiln_host_fail(error, KILN_HOST_ERROR_LIBRARY,
                          "'%s' is not a Tensorkiln library: %s", path, what);
}

/* Allocate count * size zeroed bytes that the description owns; NULL, and file->no_memory set, if
 * memory is short. `size` is not 0. */
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

/* Free all blocks of a description, and close its file. */
static inline void kiln_host_forget(kiln_host_description *file)
{
    if (file->opened != 0)
        close(file->opened - 1);
    file->opened = 0;
    while (file->memory != NULL) {
        void **const block = (void **)file->memory;
        file->memory = block[0];
        free(block);
    }
}

/* Copy a JSON value as text that the description owns; NULL if `at` is NULL or memory is short. */
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

/* ---- the description of a library ------------------------------------------------------------ */

/* A scalar element type, e.g. kiln_host_dtype(2, 32) for float32; codes as in kiln.h. */
static inline kiln_dtype kiln_host_dtype(uint8_t code, uint8_t bits)
{
    kiln_dtype made;
    made.code = code;
    made.bits = bits;
    made.lanes = 1;
    return made;
}

/* The element type of a name such as "float32"; bits 0 for an unknown name. Types of fewer than 8
 * bits, which DLPack packs, have a byte for each element. */
static inline kiln_dtype kiln_host_dtype_named(const char *name)
{
    static const struct {
        const char *name;
        uint8_t code, bits;
    } known[] = {{"bool", 6, 8}, {"int8", 0, 8}, {"int16", 0, 16}, {"int32", 0, 32},
                 {"int64", 0, 64}, {"uint8", 1, 8}, {"uint16", 1, 16}, {"uint32", 1, 32},
                 {"uint64", 1, 64}, {"float16", 2, 16}, {"bfloat16", 4, 16}, {"float32", 2, 32},
                 {"float64", 2, 64}, {"float8_e4m3fn", 10, 8}, {"float8_e4m3fnuz", 11, 8},
                 {"float8_e5m2", 12, 8}, {"float8_e5m2fnuz", 13, 8}, {"float8_e8m0fnu", 14, 8},
                 {"float6_e2m3fn", 1, 8}, {"float6_e3m2fn", 1, 8}, {"float4_e2m1fn", 1, 8},
                 {"int4", 0, 8}, {"uint4", 1, 8}, {"int2", 0, 8}, {"uint2", 1, 8}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].name, name) == 0)
            return kiln_host_dtype(known[i].code, known[i].bits);
    return kiln_host_dtype(0, 0);
}

/* Read a parameter's shape; 0 if it is malformed or memory is short. */
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

/* Read an array of parameters, whose role is `role` unless they say another one. Write their
 * number; return NULL if the array is malformed or memory is short. */
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

/* Read one function; 0 if its description is malformed or memory is short. */
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

/* Read the functions of a NUL-terminated metadata text. Codes: KILN_HOST_ERROR_LIBRARY,
 * KILN_HOST_ERROR_VERSION, KILN_ERROR_MEMORY. */
static inline int kiln_host_read_metadata(kiln_host_description *file, const char *text,
                                          kiln_host_error *error)
{
    const int is_json = kiln_host_json_check(text);
    if (is_json < 0)
        return kiln_host_fail(error, KILN_ERROR_MEMORY, "out of memory");
    if (!is_json)
        return kiln_host_no_library(file->path, "its metadata is not JSON", error);
    const char *rows = kiln_host_json_member(text, "functions");
    const char *format = kiln_host_json_member(text, "format");
    if (rows == NULL || *rows != '[')
        return kiln_host_no_library(file->path, "its metadata lists no functions", error);
    const long long version = format == NULL || *format == '"' ? 0 : strtoll(format, NULL, 10);
    if (version < 1 || version > KILN_HOST_METADATA_VERSION)
        return kiln_host_fail(error, KILN_HOST_ERROR_VERSION,
                              "'%s' has metadata version %s, this Tensorkiln reads versions 1 to %d",
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

/* ---- the file: what it is, before any code of it runs ---------------------------------------- */

/* Read a little-endian number of 1 to 8 bytes. */
static inline uint64_t kiln_host_number(const unsigned char *at, int bytes)
{
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--)
        value = value << 8 | at[i];
    return value;
}

/* Bytes to read: the first `held` of them are in memory, all others in an open file. */
typedef struct kiln_host_source {
    const unsigned char *bytes;
    int file;
    uint64_t size;
    int reason; /* errno of a read that failed */
    uint64_t held;
} kiln_host_source;

/* Copy `count` bytes from offset `at`; return 0 if the source is shorter, or with source->reason if
 * it cannot be read. The file is read, not mapped: if it were truncated meanwhile, reading a
 * mapping would raise SIGBUS. */
static inline int kiln_host_fetch(kiln_host_source *source, uint64_t at, uint64_t count, void *to)
{
    unsigned char *next = (unsigned char *)to;
    if (at > source->size || count > source->size - at)
        return 0;
    if (at <= source->held && count <= source->held - at) {
        if (count > 0)
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

/* What is read from the ELF header and section table. */
typedef struct kiln_host_place {
    int machine;
    int needs_name; /* kiln_host_description */
    uint64_t offset, size; /* of section .kiln.meta */
} kiln_host_place;

/* Whether the section name at offset `at` is `wanted`, of at most 23 characters. */
static inline int kiln_host_is_named(kiln_host_source *source, uint64_t at, const char *wanted)
{
    char name[24];
    const size_t size = strlen(wanted) + 1;
    return kiln_host_fetch(source, at, size, name) && memcmp(name, wanted, size) == 0;
}

/* Whether `count` bytes from offset `at` have the word ORIGIN, by which the dynamic loader is told of
 * the folder of the file. */
static inline int kiln_host_has_origin(kiln_host_source *source, uint64_t at, uint64_t count)
{
    char part[512];
    while (count >= 6) {
        const size_t size = count < sizeof part ? (size_t)count : sizeof part;
        if (!kiln_host_fetch(source, at, size, part))
            return 0;
        for (size_t i = 0; i + 6 <= size; i++)
            if (memcmp(part + i, "ORIGIN", 6) == 0)
                return 1;
        at += size - 5;
        count -= size - 5;
    }
    return 0;
}

/* Find the section .kiln.meta; return NULL, or what is wrong with the file. */
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
    place->needs_name = 0;
    for (uint64_t i = 0; i < count && start <= source->size; i++) {
        if (!kiln_host_fetch(source, table + 64 * i, sizeof row, row) ||
            kiln_host_number(row + 4, 4) == 8)
            continue;
        const uint64_t name = start + kiln_host_number(row, 4);
        const uint64_t offset = kiln_host_number(row + 24, 8), size = kiln_host_number(row + 32, 8);
        if (kiln_host_number(row + 4, 4) == 3 && (row[8] & 2) != 0) /* names for the dynamic loader */
            place->needs_name |= kiln_host_has_origin(source, offset, size);
        const int is_whole = offset <= source->size && size <= source->size - offset;
        if (!is_whole && kiln_host_is_named(source, name, ".kiln.artifacts"))
            return "its section .kiln.artifacts is cut off";
        if (!is_whole && kiln_host_is_named(source, name, ".kiln.weights"))
            return "its section .kiln.weights is cut off";
        if (found || !kiln_host_is_named(source, name, ".kiln.meta"))
            continue;
        if (!is_whole)
            return "its section .kiln.meta is cut off";
        if (size > KILN_HOST_JSON_BYTES)
            return "its metadata is not JSON"; /* as kiln_host_json_check() rejects such a size */
        place->offset = offset;
        place->size = size;
        found = 1;
    }
    return found ? NULL : "it has no section .kiln.meta";
}

/* The error for a file that cannot be read; `reason` is an errno or KILN_HOST_NOT_PLAIN. */
static inline int kiln_host_unreadable(const char *path, int reason, kiln_host_error *error)
{
    if (reason == KILN_HOST_NOT_PLAIN)
        return kiln_host_fail(error, KILN_HOST_ERROR_FILE,
                              "cannot read '%s': it is not a plain file", path);
    if (reason == ENOENT)
        return kiln_host_fail(error, KILN_HOST_ERROR_FILE, "no such file: '%s'", path);
    return kiln_host_fail(error, KILN_HOST_ERROR_FILE, "cannot read '%s': %s", path,
                          strerror(reason));
}

/* Where the digest of a library is if it has one (kiln_digest.h), or 0. */
static inline uint64_t kiln_host_digest_place(kiln_host_source *source)
{
    unsigned char head[64], name[32];
    if (!kiln_host_fetch(source, 0, sizeof head, head) || memcmp(head, "\177ELF\2\1", 6) != 0)
        return 0;
    const uint64_t entry = kiln_host_number(head + 58, 2), count = kiln_host_number(head + 60, 2);
    const uint64_t place = (kiln_host_number(head + 40, 8) + entry * count + 7) / 8 * 8;
    return count != 0 && place <= source->size && source->size - place >= KILN_HOST_DIGEST_BYTES &&
                   kiln_host_fetch(source, place, sizeof name, name) && kiln_host_is_digest(name)
               ? place
               : 0;
}

/* Read all that the digest covers into memory, which the caller frees: *head, and source->bytes.
 * KILN_HOST_ERROR_LIBRARY if the file is damaged. Without a digest nothing is read. */
static inline int kiln_host_check_digest(const char *path, kiln_host_source *source,
                                         uint64_t **head, kiln_host_error *error)
{
    const uint64_t place = kiln_host_digest_place(source);
    const size_t size = place == 0 ? 0 : (size_t)place + KILN_HOST_DIGEST_BYTES;
    *head = size == 0 ? NULL : (uint64_t *)malloc(size);
    if (size == 0)
        return KILN_OK; /* a file that cannot be read is reported by what is read next */
    if (*head == NULL)
        return kiln_host_fail(error, KILN_ERROR_MEMORY, "out of memory");
    if (!kiln_host_fetch(source, 0, size, *head))
        return kiln_host_unreadable(path, source->reason, error);
    const uint64_t *const digest = *head + place / 8 + 4;
    if (kiln_host_digest_sum(*head, size / 8 - 1) != digest[1])
        return kiln_host_fail(error, KILN_HOST_ERROR_LIBRARY,
                              "'%s' is damaged: its bytes are not those that were written", path);
    if (digest[0] != source->size)
        return kiln_host_fail(error, KILN_HOST_ERROR_LIBRARY,
                              "'%s' is damaged: it has %llu bytes, and was written with %llu", path,
                              (unsigned long long)source->size, (unsigned long long)digest[0]);
    source->bytes = (const unsigned char *)*head;
    source->held = size;
    return KILN_OK;
}

/* The name of an ELF machine number (e_machine), in `room` if it is not a known one. */
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

/* KILN_HOST_ERROR_MACHINE if the file is for another architecture than this program. */
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
    const int here = machine; /* unknown here: dlopen() checks it */
#endif
    char one[24], other[24];
    if (machine == here)
        return KILN_OK;
    return kiln_host_fail(error, KILN_HOST_ERROR_MACHINE,
                          "'%s' is compiled for %s, this machine is %s", file->path,
                          kiln_host_machine_name(machine, one, sizeof one),
                          kiln_host_machine_name(here, other, sizeof other));
}

/* Read the metadata as NUL-terminated text that the description owns; NULL with *error on
 * failure. */
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

/* Read the functions of a library, and check that it is for this machine. */
static inline int kiln_host_read_source(kiln_host_description *file, kiln_host_source *source,
                                        kiln_host_error *error)
{
    kiln_host_error first = {KILN_OK, ""};
    kiln_host_place place = {0, 0, 0, 0};
    const char *const text = kiln_host_read_text(file, source, &place, &first);
    if (text == NULL)
        return kiln_host_fail(error, first.code, "%s", first.sentence);
    file->needs_name = place.needs_name;
    while (place.size > 0 && text[place.size - 1] == 0)
        place.size--;
    if (strlen(text) != place.size)
        return kiln_host_no_library(file->path, "its metadata is not JSON", error);
    const int code = kiln_host_read_metadata(file, text, error);
    file->metadata = code != KILN_OK ? NULL : text;
    return code != KILN_OK ? code : kiln_host_check_machine(file, place.machine, error);
}

/* Identify a file, so that a replacement at the same path is noticed. */
static inline void kiln_host_identify(const struct stat *status, uint64_t identity[4])
{
    identity[0] = (uint64_t)status->st_dev;
    identity[1] = (uint64_t)status->st_ino;
    identity[2] = (uint64_t)status->st_size;
#if defined(__APPLE__) && defined(st_mtime)
    const uint64_t fraction = (uint64_t)status->st_mtimespec.tv_nsec;
#elif defined(st_mtime) /* a macro for a member of st_mtim since POSIX 2008 */
    const uint64_t fraction = (uint64_t)status->st_mtim.tv_nsec;
#else
    const uint64_t fraction = 0;
#endif
    identity[3] = (uint64_t)status->st_mtime * 1000000000u + fraction;
}

/* Whether the file at `path` is not the one that was read, or does not exist any more. */
static inline int kiln_host_is_replaced(const kiln_host_description *file, const char *path)
{
    struct stat status;
    uint64_t now[4];
    if (stat(path, &status) != 0)
        return 1;
    kiln_host_identify(&status, now);
    return memcmp(now, file->identity, sizeof now) != 0;
}

/* Return 0 for a regular file, otherwise a reason for kiln_host_unreadable(): reading a FIFO or a
 * device might block or never end. */
static inline int kiln_host_check_plain(const struct stat *status)
{
    return S_ISREG(status->st_mode) ? 0 : S_ISDIR(status->st_mode) ? EISDIR : KILN_HOST_NOT_PLAIN;
}

/* Open a regular file; return its descriptor, or -1 with *reason. The type is checked before,
 * because opening a device may have side effects, and again after; O_NONBLOCK prevents blocking on
 * a FIFO that replaces the file in between. */
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

/* Whether the file that was read, and is open, was written into since. */
static inline int kiln_host_is_changed(const kiln_host_description *file)
{
    struct stat status;
    uint64_t now[4];
    if (fstat(file->opened - 1, &status) != 0)
        return 1;
    kiln_host_identify(&status, now);
    return memcmp(now, file->identity, sizeof now) != 0;
}

/* Read the description of the library at file->path, except for kiln_host_function.index; the file
 * stays open. Call kiln_host_forget() later, also after a failure. Codes: KILN_ERROR_MEMORY and those
 * of enum kiln_host_code but KILN_HOST_ERROR_LOAD. */
static inline int kiln_host_read_file(kiln_host_description *file, kiln_host_error *error)
{
    struct stat status;
    uint64_t *head;
    kiln_host_source source = {NULL, -1, 0, 0, 0};
    source.file = kiln_host_open_plain(file->path, &status, &source.reason);
    if (source.reason != 0)
        return kiln_host_unreadable(file->path, source.reason, error);
    if (file->opened != 0)
        close(file->opened - 1); /* of a former attempt */
    file->opened = source.file + 1;
    source.size = (uint64_t)status.st_size;
    kiln_host_identify(&status, file->identity);
    int code = kiln_host_check_digest(file->path, &source, &head, error);
    if (code == KILN_OK)
        code = kiln_host_read_source(file, &source, error);
    free(head);
    return code;
}

#ifdef __cplusplus
}
#endif
#endif
