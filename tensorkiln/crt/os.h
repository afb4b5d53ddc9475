/* os.h - what the runtime asks of the operating system. A library has one file that implements it:
 * os_posix.c. Only such a file includes headers of a system; all others are C99 with the builtins
 * and attributes of GCC and clang.
 *
 * None of these functions sets a sentence (error.c); their callers do. Numbers of threads, keys and
 * files are as wide as those of any system, so that structs with them (pool.h) look the same. */
#ifndef KILN_OS_H
#define KILN_OS_H

#include <stddef.h>
#include <stdint.h>

/* ---- memory ---------------------------------------------------------------------------------- */
/* `bytes` at a multiple of `alignment`, a power of 2; NULL if there are not that many. They end with
 * what kiln_os_deleter() returns: a function of the C library, which may outlive this library, and
 * which ignores NULL. */
void *kiln_os_allocate(size_t bytes, size_t alignment);
typedef void (*kiln_os_free)(void *memory);
kiln_os_free kiln_os_deleter(void);
/* Bytes of a page. */
int64_t kiln_os_page_size(void);
/* `bytes` zeros, or NULL. Pages that are never touched take no memory. */
void *kiln_os_map(size_t bytes);
/* The same at a multiple of KILN_OS_HUGE_PAGE, in huge pages where the system has them; the rest
 * beyond the last whole one is in small pages. `bytes` is a multiple of the page size. */
#define KILN_OS_HUGE_PAGE ((size_t)2 << 20)
void *kiln_os_map_huge(size_t bytes);
#if defined(KILN_DEVICES)
/* Addresses without memory, at which any access traps; NULL if there are not that many. */
void *kiln_os_reserve(size_t bytes);
#endif
/* The end of what any of these three returned. */
void kiln_os_unmap(void *address, size_t bytes);

/* ---- files ----------------------------------------------------------------------------------- */
/* Room for a path and the suffix that kiln_os_path_beside() appends. */
#define KILN_OS_PATH 4160
/* The path of the library in which `address` lies, without symbolic links and with another suffix:
 * net.safetensors for net.so. 0 if the path is unknown; `path` is then empty. */
int kiln_os_path_beside(const void *address, const char *suffix, char path[KILN_OS_PATH]);
/* Open for reading; -1: kiln_os_failure() says why. Does not wait for the other end of a pipe. */
int kiln_os_open_file(const char *path);
void kiln_os_close_file(int file);
/* The size of a file; -1 of what has none. */
int64_t kiln_os_file_bytes(int file);
/* Read the first bytes of a file; return how many there are, -1 if they cannot be read. */
int64_t kiln_os_read_head(int file, void *to, size_t bytes);
/* Put part of a file, which begins at a multiple of the page size, in place of the pages at
 * `address`, for reading; 0: kiln_os_failure() says why not. */
int kiln_os_map_file(void *address, size_t bytes, int file, uint64_t start);
/* The system's words for the failure of the last function of this paragraph. */
const char *kiln_os_failure(void);

/* ---- threads --------------------------------------------------------------------------------- */
/* The number of this thread: no other one that has not been joined yet has the same. */
uintptr_t kiln_os_this_thread(void);
/* Start a thread, which handles no signals; 0 if the system starts none. */
int kiln_os_start_thread(void *(*run)(void *), void *argument);
/* Wait until a thread has ended. */
void kiln_os_join_thread(uintptr_t thread);
/* The lowest address of this thread's stack, and its size. */
char *kiln_os_stack(size_t *size);
/* A value of each thread, NULL at first. New: 1, or 0 if there are too many keys. */
int kiln_os_new_key(uintptr_t *key);
void kiln_os_delete_key(uintptr_t key);
void *kiln_os_value(uintptr_t key);
void kiln_os_set_value(uintptr_t key, void *value);
/* Defined where libraries cannot have variables of threads: Android has them from API 29 on. Values of
 * keys are then ended with what kiln_os_deleter() returns when their thread ends. */
#if defined(__ANDROID__)
#define KILN_OS_NO_THREAD_VARIABLES 1
#endif
/* Let another thread that is ready run on this processor; return at once if there is none. */
void kiln_os_yield(void);
/* Sleep while *word == value; may wake up spuriously. */
void kiln_os_wait(uint32_t *word, uint32_t value);
/* Wake all threads that sleep on word. Only its address is used. */
void kiln_os_wake(uint32_t *word);

/* ---- time ------------------------------------------------------------------------------------ */
/* Nanoseconds since some moment; never goes back. */
int64_t kiln_os_nanoseconds(void);

/* ---- libraries ------------------------------------------------------------------------------- */
#if defined(KILN_DEVICES)
/* Open a library by the name that the system finds it by; NULL if it cannot. It stays in memory when
 * it is closed. */
void *kiln_os_open_library(const char *name);
void kiln_os_close_library(void *library);
#endif
/* The address of a symbol of a library; NULL for `library`: of any that the process exports. */
void *kiln_os_symbol(void *library, const char *name);
/* Call run(context) while no library of the process is loaded or unloaded, and no other thread is in
 * this function; the lock that it takes is recursive. 0 if the system has no such lock: then nothing
 * is called. */
int kiln_os_under_loaders_lock(void (*run)(void *context), void *context);
/* Publish a pointer that is a global variable, under a number from 0 on; no semicolon follows.
 * kiln_os_published() returns the value of the first one in the process that is published under that
 * number and is not NULL; NULL if there is none. Only where KILN_OS_CAN_SHARE is defined. */
void *kiln_os_published(int64_t number);
#if defined(__linux__) &&                                                                         \
    (defined(__x86_64__) || defined(__aarch64__) || (defined(__riscv) && __riscv_xlen == 64))
#define KILN_OS_CAN_SHARE 1
#define KILN_OS_NOTE_TYPE 2
#define KILN_OS_TEXT(x) #x
#define KILN_OS_NUMBER(x) KILN_OS_TEXT(x)
/* A note of ELF that contains the number and the offset of the variable. */
#define KILN_OS_PUBLISH(number, variable)                                                          \
    __asm__(".pushsection .note.kiln.pool,\"a\",%note\n"                                           \
            ".balign 4\n"                                                                          \
            ".long 11, 16, " KILN_OS_NUMBER(KILN_OS_NOTE_TYPE) "\n"                                \
            ".asciz \"tensorkiln\"\n"                                                              \
            ".balign 4\n"                                                                          \
            ".quad " KILN_OS_NUMBER(number) "\n"                                                   \
            ".quad " #variable " - .\n"                                                            \
            ".popsection\n");
#else
#define KILN_OS_PUBLISH(number, variable)
#endif

/* ---- the process ----------------------------------------------------------------------------- */
int32_t kiln_os_process_id(void);
/* Call in_child() in every child of fork(), and at_exit(NULL) when the process exits, until `owner`,
 * an address in this library, is no longer watched. */
void kiln_os_watch(void (*in_child)(void), void (*at_exit)(void *), void *owner);
void kiln_os_unwatch(void *owner);
/* End the process with a sentence on its standard error. */
void kiln_os_abort(const char *sentence);

/* ---- processors ------------------------------------------------------------------------------ */
/* The processors that this process can really use, at least 1: affinity, and the quota of the
 * container that it is in. */
int kiln_os_processors(void);
/* Ask for leave to use tiles (AMX), for this process and what it forks; 1 if it has it. */
int kiln_os_permit_tiles(void);
/* What the system says of the processor's features, where no instruction does: Linux's words
 * AT_HWCAP (0) and AT_HWCAP2 (1) of Arm; AT_HWCAP (0) of RISC-V, and what riscv_hwprobe() says of
 * its extensions (1). 0 if it says nothing. */
int kiln_os_feature_word(int number, uint64_t *word);

#endif
