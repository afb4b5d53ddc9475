/* Modules, whose kernels an emulator has compiled for the host, and launches. */
#include "lookalike.h"
#include <dlfcn.h>
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void kiln_sha256(const unsigned char *data, uint64_t size, unsigned char digest[32]);

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* PTX ends with a zero byte, a cubin, which is an ELF file, with its last table or section. */
static size_t length_of(const char *image)
{
    Elf64_Ehdr head;
    if (memcmp(image, ELFMAG, SELFMAG) != 0)
        return strlen(image);
    memcpy(&head, image, sizeof head);
    size_t end = larger(head.e_shoff + (size_t)head.e_shnum * head.e_shentsize,
                        head.e_phoff + (size_t)head.e_phnum * head.e_phentsize);
    for (size_t i = 0; i < head.e_shnum; i++) {
        Elf64_Shdr section;
        memcpy(&section, image + head.e_shoff + i * head.e_shentsize, sizeof section);
        if (section.sh_type != SHT_NOBITS)
            end = larger(end, section.sh_offset + section.sh_size);
    }
    return end;
}

/* The emulator of a module's code, by its hash. */
static void *open_emulator(const char *image, char *path, size_t room)
{
    static const char digits[] = "0123456789abcdef";
    unsigned char digest[32];
    char hex[65] = "";
    const char *folder = getenv("LOOKALIKE_DIR");
    kiln_sha256((const unsigned char *)image, length_of(image), digest);
    for (int i = 0; i < 32; i++) {
        hex[2 * i] = digits[digest[i] >> 4];
        hex[2 * i + 1] = digits[digest[i] & 15];
    }
    snprintf(path, room, "%s/%s.so", folder != NULL ? folder : ".", hex);
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

/* Let the emulator of a module know that there is memory, or is no longer. */
void tell_memory(object *module, CUdeviceptr start, size_t bytes, int is_there)
{
    int (*buffer)(const void *, size_t) = NULL;
    void (*forget)(const void *) = NULL;
    void *const found = dlsym(module->library, is_there ? "emulator_buffer" : "emulator_forget");
    memcpy(is_there ? (void *)&buffer : (void *)&forget, &found, sizeof found);
    if (buffer != NULL)
        buffer((const void *)start, bytes);
    if (forget != NULL)
        forget((const void *)start);
}

static void write_log(unsigned count, const int *options, void **values, const char *text)
{
    char *log = NULL;
    size_t room = 0;
    for (unsigned i = 0; i < count; i++) {
        if (options[i] == 5)
            log = values[i];
        if (options[i] == 6)
            room = (size_t)(uintptr_t)values[i];
    }
    if (log != NULL && room > 0)
        snprintf(log, room, "%s", text);
}

/* Whether the device can run the code: its ".target". */
static int fits(const char *image)
{
    const char *at = memcmp(image, ELFMAG, SELFMAG) != 0 ? strstr(image, ".target sm_") : NULL;
    if (at == NULL)
        return 1;
    char *end;
    const int number = (int)strtol(at + 11, &end, 10);
    return *end == 'a' ? number == capability() : number <= capability();
}

CUresult cuModuleLoadDataEx(object **module, const char *image, unsigned count, int *options,
                            void **values)
{
    char path[1200];
    BEGIN("cuModuleLoadDataEx")
    NEED_CONTEXT()
    NEED(!breaks_captures(), CAPTURE_UNSUPPORTED)
    if (error != SUCCESS)
        write_log(count, options, values,
                  getenv("LOOKALIKE_LOG") != NULL ? getenv("LOOKALIKE_LOG") : "");
    if (error == SUCCESS && !fits(image)) {
        write_log(count, options, values, "the code's .target is not of this device");
        error = NO_BINARY_FOR_GPU;
    }
    if (error == SUCCESS) {
        void *const library = open_emulator(image, path, sizeof path);
        if (library == NULL) {
            char text[1400];
            snprintf(text, sizeof text, "this driver has no emulator %s", path);
            write_log(count, options, values, text);
            error = INVALID_PTX;
        } else {
            *module = make(MODULE, current_context());
            (*module)->library = library;
            tell_memory(*module, 0, 0, 1); /* nothing else, if there is none */
            tell_all_memory(*module, 1);
            (*module)->text = memcmp(image, ELFMAG, SELFMAG) != 0 ? strdup(image) : NULL;
        }
    }
    END()
}

CUresult cuModuleUnload(object *module)
{
    BEGIN("cuModuleUnload")
    NEED_CONTEXT()
    NEED(is_a(module, MODULE), INVALID_HANDLE)
    if (error == SUCCESS) {
        catch_up_all(0);
        drop_owned(module);
        tell_all_memory(module, 0);
        tell_memory(module, 0, 0, 0);
        dlclose(module->library);
        drop(module);
    }
    END()
}

/* The bytes of a parameter, as the PTX declares it: ".u64 .ptr name", ".align 64 .b8 name[128]". */
static int bytes_of_param(const char *at)
{
    const char *const end = at + strcspn(at, ",)"), *const many = strchr(at, '[');
    int count = 1, bits = 64;
    if (many != NULL && many < end)
        sscanf(many, "[%d]", &count);
    if (strncmp(at, ".align", 6) == 0 && strchr(at + 1, '.') != NULL)
        at = strchr(at + 1, '.');
    sscanf(at, ".%*c%d", &bits);
    return count * bits / 8;
}

/* The sizes of a kernel's parameters. */
static void read_params(object *function, const char *text)
{
    char head[160];
    snprintf(head, sizeof head, ".entry %s(", function->name);
    const char *at = text != NULL ? strstr(text, head) : NULL;
    const char *const end = at != NULL ? strchr(at + strlen(head), ')') : NULL;
    while (at != NULL && (at = strstr(at, ".param ")) != NULL && at < end &&
           function->n_params < MOST_VALUES) {
        at += 7;
        function->sizes[function->n_params++] = bytes_of_param(at);
    }
}

CUresult cuModuleGetFunction(object **function, object *module, const char *name)
{
    char symbol[200];
    BEGIN("cuModuleGetFunction")
    NEED_CONTEXT()
    NEED(is_a(module, MODULE), INVALID_HANDLE)
    if (error == SUCCESS) {
        snprintf(symbol, sizeof symbol, "emulate_%s", name);
        void *const found = dlsym(module->library, symbol);
        if (found == NULL) {
            error = NOT_FOUND;
        } else {
            *function = make(FUNCTION, current_context());
            (*function)->owner = module;
            snprintf((*function)->name, sizeof (*function)->name, "%s", name);
            memcpy(&(*function)->run, &found, sizeof found);
            read_params(*function, module->text);
        }
    }
    END()
}

CUresult cuFuncGetAttribute(int *value, int what, object *function)
{
    BEGIN("cuFuncGetAttribute")
    NEED_CONTEXT()
    NEED(is_a(function, FUNCTION), INVALID_HANDLE)
    if (error == SUCCESS && what == 0)
        *value = (int)setting("LOOKALIKE_THREADS", 1024);
    else if (error == SUCCESS && what == 1)
        *value = (int)setting("LOOKALIKE_SHARED", 0);
    else if (error == SUCCESS && what == 4)
        *value = 32;
    else if (error == SUCCESS)
        error = INVALID_VALUE;
    END()
}

CUresult cuFuncSetAttribute(object *function, int what, int value)
{
    BEGIN("cuFuncSetAttribute")
    NEED_CONTEXT()
    NEED(is_a(function, FUNCTION), INVALID_HANDLE)
    NEED(what == 8 && value >= 0 && value <= 232448, INVALID_VALUE)
    if (error == SUCCESS)
        function->shared = value;
    END()
}

CUresult run_kernel(object *function, const unsigned *grid, const unsigned *block, unsigned shared,
                    void **values)
{
    if (function->run(grid, block, shared, values) == 0)
        return SUCCESS;
    const char *(*message)(void) = NULL;
    void *const found = dlsym(function->owner->library, "emulator_message");
    memcpy(&message, &found, sizeof found);
    const char *text = message != NULL ? message() : "";
    note("failed %s: %s\n", function->name, text);
    fprintf(stderr, "%s: %s\n", function->name, text);
    lose(LAUNCH_FAILED);
    return SUCCESS;
}

int is_launch(const unsigned *grid, const unsigned *block, unsigned shared, const object *function)
{
    const uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
    return grid[0] > 0 && grid[1] > 0 && grid[2] > 0 && threads > 0 && threads <= 1024 &&
           block[2] <= 64 && grid[0] <= 0x7FFFFFFF && grid[1] <= 65535 && grid[2] <= 65535 &&
           (int)shared <= (function->shared > 49152 ? function->shared : 49152);
}

CUresult cuLaunchKernel(object *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                        object *stream, void **values, void **extra)
{
    const unsigned grid[3] = {grid_x, grid_y, grid_z}, block[3] = {block_x, block_y, block_z};
    BEGIN("cuLaunchKernel")
    NEED_CONTEXT()
    NEED(is_a(function, FUNCTION) && is_stream(stream), INVALID_HANDLE)
    NEED(extra == NULL && is_launch(grid, block, shared, function), INVALID_VALUE)
    operation op = {.function = function, .shared = shared, .n_before = 1};
    if (error == SUCCESS) {
        memcpy(op.grid, grid, sizeof grid);
        memcpy(op.block, block, sizeof block);
        set_values(&op, values);
    }
    if (error == SUCCESS && is_captured(stream)) {
        record(stream, &op);
    } else if (error == SUCCESS) {
        run_in(stream, &op);
    }
    END()
}
