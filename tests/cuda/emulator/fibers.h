/* fibers.h - the threads of a block as fibers, each with a stack of its own: part of emulator.c. */
#if defined(__x86_64__)
void emulator_switch(void **save, void *load);
__asm__(".text\n.globl emulator_switch\n.hidden emulator_switch\n.type emulator_switch,@function\n"
        "emulator_switch:\n"
        "push %rbx\npush %rbp\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbp\npop %rbx\nret\n"
        ".size emulator_switch,.-emulator_switch\n");
#endif

static void leave(void)
{
#if defined(__x86_64__)
    emulator_switch(&fibers[running].sp, scheduler.sp);
#else
    swapcontext(&fibers[running].context, &scheduler.context);
#endif
}

static void enter(int thread)
{
    running = thread;
#if defined(__x86_64__)
    emulator_switch(&scheduler.sp, fibers[thread].sp);
#else
    swapcontext(&scheduler.context, &fibers[thread].context);
#endif
}

static void ends(void);

static void first(void)
{
    body(arguments);
    ends();
    fibers[running].state = DONE;
    leave();
}

static void prepare(int thread)
{
    fiber *f = &fibers[thread];
    char *stack = stacks + (size_t)thread * STACK;
    f->state = READY;
    f->x = (unsigned)thread % block_of[0];
    f->y = (unsigned)thread / block_of[0] % block_of[1];
    f->z = (unsigned)thread / block_of[0] / block_of[1];
#if defined(__x86_64__)
    void **top = (void **)(stack + STACK);
    *--top = NULL; /* first() never returns; its stack is aligned as after a call */
    *--top = (void *)first;
    f->sp = top - 6;
#else
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = stack;
    f->context.uc_stack.ss_size = STACK;
    f->context.uc_link = NULL;
    makecontext(&f->context, first, 0);
#endif
}
