/* A plugin of qemu's user mode for AArch64: prints how many instructions were executed, and how
 * many of them were loads and stores, when the program ends.
 *
 * It declares what it uses of qemu itself, whose header comes with its sources only. An instruction
 * is a load or a store if bit 27 of it is 1 and bit 25 is 0 (Arm ARM, C4.1). Version 4 of the
 * interface copies the bytes of an instruction; before, it points to them.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef uint64_t plugin_id;
struct block;
struct instruction;

extern void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct block *));
extern void qemu_plugin_register_vcpu_tb_exec_cb(struct block *, void (*)(unsigned int, void *), int,
                                                 void *);
extern void qemu_plugin_register_atexit_cb(plugin_id, void (*)(plugin_id, void *), void *);
extern size_t qemu_plugin_tb_n_insns(const struct block *);
extern struct instruction *qemu_plugin_tb_get_insn(const struct block *, size_t);
#if VERSION >= 3
extern size_t qemu_plugin_insn_data(const struct instruction *, void *, size_t);
#else
extern const void *qemu_plugin_insn_data(const struct instruction *);
#endif
extern void qemu_plugin_outs(const char *);

#define EXPORT __attribute__((visibility("default")))
EXPORT int qemu_plugin_version = VERSION;

struct counts {
    uint64_t instructions, accesses;
};
static struct counts total;

static uint32_t word_of(const struct instruction *i)
{
    uint32_t word = 0;
#if VERSION >= 3
    qemu_plugin_insn_data(i, &word, sizeof word);
#else
    __builtin_memcpy(&word, qemu_plugin_insn_data(i), sizeof word);
#endif
    return word;
}

static void executed(unsigned int cpu, void *of)
{
    const struct counts *c = of;
    (void)cpu;
    __atomic_fetch_add(&total.instructions, c->instructions, __ATOMIC_RELAXED);
    __atomic_fetch_add(&total.accesses, c->accesses, __ATOMIC_RELAXED);
}

static void translated(plugin_id id, struct block *b)
{
    struct counts *c = calloc(1, sizeof *c); /* lives as long as the translation, or longer */
    (void)id;
    if (c == NULL)
        abort();
    c->instructions = qemu_plugin_tb_n_insns(b);
    for (size_t i = 0; i < c->instructions; i++)
        c->accesses += (word_of(qemu_plugin_tb_get_insn(b, i)) >> 25 & 5) == 4;
    qemu_plugin_register_vcpu_tb_exec_cb(b, executed, 0, c);
}

static void ended(plugin_id id, void *nothing)
{
    char text[80];
    (void)id;
    (void)nothing;
    snprintf(text, sizeof text, "kiln-counts %llu %llu\n", (unsigned long long)total.instructions,
             (unsigned long long)total.accesses);
    qemu_plugin_outs(text);
}

EXPORT int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv)
{
    (void)info;
    (void)argc;
    (void)argv;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_atexit_cb(id, ended, NULL);
    return 0;
}
