/* What the runtime, which is compiled for Android with musl's headers, takes from them, as bionic's
 * headers have it on 64-bit machines: sizes, offsets and values, written down from those of the Android Open
 * Source Project at commit 731631f30. This file compiles with either. Structs may be larger here where
 * bionic only fills the beginning, and functions' types are equal where these are. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SAME(value, number) _Static_assert((value) == (number), #value)
#define TYPE(expression, type) _Static_assert(__builtin_types_compatible_p(__typeof__(expression), type), #expression)

SAME(sizeof(pthread_t), 8);
SAME(sizeof(pthread_key_t), 4);
SAME(sizeof(pthread_attr_t), 56);
SAME(sizeof(pthread_mutex_t), 40);
_Static_assert(sizeof(sigset_t) >= 8, "bionic writes the kernel's 64 bits");
SAME(sizeof(off_t), 8);
SAME(sizeof(ssize_t), 8);
SAME(sizeof(pid_t), 4);
SAME(sizeof(time_t), 8);
SAME(sizeof(clock_t), 8);
SAME(CLOCKS_PER_SEC, 1000000);
SAME(sizeof(struct timespec), 16);
SAME(offsetof(struct timespec, tv_nsec), 8);
SAME(sizeof(struct rlimit), 16);
SAME(offsetof(struct rlimit, rlim_cur), 0);
SAME(sizeof(cpu_set_t), 128);
SAME(CPU_SETSIZE, 1024);
SAME(sizeof(Dl_info), 32);
SAME(offsetof(Dl_info, dli_fname), 0);
SAME(offsetof(struct dl_phdr_info, dlpi_addr), 0);
SAME(offsetof(struct dl_phdr_info, dlpi_name), 8);
SAME(offsetof(struct dl_phdr_info, dlpi_phdr), 16);
SAME(offsetof(struct dl_phdr_info, dlpi_phnum), 24);
SAME(sizeof(((struct dl_phdr_info *)0)->dlpi_phnum), 2);
SAME(sizeof(ElfW(Phdr)), 56);
SAME(PT_LOAD, 1);
SAME(PT_NOTE, 4);
SAME(PF_R, 4);

SAME(CLOCK_MONOTONIC, 1);
SAME(RLIMIT_STACK, 3);
SAME(SIG_BLOCK, 0);
SAME(SIG_SETMASK, 2);
SAME(PATH_MAX, 4096);
SAME(O_RDONLY, 0);
SAME(O_CLOEXEC, 02000000);
SAME(O_NONBLOCK, 04000);
SAME(SEEK_SET, 0);
SAME(SEEK_END, 2);
SAME(PROT_NONE, 0);
SAME(PROT_READ, 1);
SAME(PROT_WRITE, 2);
SAME(MAP_PRIVATE, 2);
SAME(MAP_FIXED, 0x10);
SAME(MAP_ANONYMOUS, 0x20);
SAME(MAP_NORESERVE, 0x4000);
SAME(MADV_HUGEPAGE, 14);
SAME(RTLD_LOCAL, 0);
SAME(RTLD_NOW, 2);
SAME(RTLD_NODELETE, 0x1000);
SAME(AT_PAGESZ, 6);
SAME(AT_HWCAP, 16);
SAME(AT_HWCAP2, 26);
SAME(FUTEX_WAIT_PRIVATE, 128);
SAME(FUTEX_WAKE_PRIVATE, 129);
#if defined(__x86_64__)
SAME(SYS_futex, 202);
SAME(SYS_sched_yield, 24);
SAME(SYS_arch_prctl, 158);
#else
SAME(SYS_futex, 98);
SAME(SYS_sched_yield, 124);
#endif

/* Functions whose types are the system's own. */
TYPE(&getauxval, unsigned long (*)(unsigned long));
TYPE(&sched_getaffinity, int (*)(pid_t, size_t, cpu_set_t *));
TYPE(&pthread_key_create, int (*)(pthread_key_t *, void (*)(void *)));
TYPE(&dl_iterate_phdr, int (*)(int (*)(struct dl_phdr_info *, size_t, void *), void *));
TYPE(&dladdr, int (*)(const void *, Dl_info *));
TYPE(&syscall, long (*)(long, ...));
TYPE(&lseek, off_t (*)(int, off_t, int));
TYPE(&mmap, void *(*)(void *, size_t, int, int, int, off_t));
TYPE(&madvise, int (*)(void *, size_t, int));
TYPE(&getrlimit, int (*)(int, struct rlimit *));
