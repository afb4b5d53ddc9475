/* Runs a model on every input of input.bin. Writes its results one after the other to output.bin,
 * and for each a line to figures.txt: instructions, bytes of stack, bytes of memory touched. */
#include "board.h"
#include "model.h"
#include <string.h>

#define PAINT 0xa5a5a5a5u
#define BORDER 0x5a

extern uint32_t board_stack_limit[];

struct figures {
    uint64_t instructions, stack, memory;
};

static uint32_t *stack_pointer(void)
{
    uint32_t *sp;
    __asm__ volatile(BOARD_MOVE " %0, sp" : "=r"(sp));
    return sp;
}

/* A call of `model_run`, and how far below this function's frame it wrote on the stack. */
static __attribute__((noinline)) int run(struct figures *figures)
{
    /* Volatile, so that no call of memset has a frame where it paints. */
    volatile uint32_t *const frame = stack_pointer();
    volatile uint32_t *const limit = board_stack_limit, *word;
    for (word = limit; word < frame; word++)
        *word = PAINT;
    const uint64_t start = board_instructions();
    const int status = model_run();
    figures->instructions = board_instructions() - start;
    for (word = limit; word < frame && *word == PAINT; word++)
        ;
    if (word == limit)
        board_fail("the stack overflowed");
    figures->stack = (uint64_t)((const volatile char *)frame - (const volatile char *)word);
    return status;
}

static size_t touched(unsigned char fill)
{
    size_t last = model_memory_bytes;
    while (last > 0 && model_memory[last - 1] == fill)
        last--;
    return last;
}

static void check_border(const unsigned char *bytes)
{
    for (int i = 0; i < MODEL_BORDER; i++)
        if (bytes[i] != BORDER)
            board_fail("the model wrote beside its memory");
}

static void write_number(int file, uint64_t value, char end)
{
    char text[22], *p = text + sizeof text;
    *--p = end;
    do
        *--p = (char)('0' + value % 10);
    while ((value /= 10) != 0);
    board_write(file, p, (size_t)(text + sizeof text - p));
}

int main(void)
{
    const int in = board_open_to_read("input.bin"), out = board_open_to_write("output.bin");
    const int log = board_open_to_write("figures.txt");
    const size_t runs = board_size(in) / model_input_bytes;
    memset(model_memory - MODEL_BORDER, BORDER, MODEL_BORDER);
    memset(model_memory + model_memory_bytes, BORDER, MODEL_BORDER);
    for (size_t i = 0; i < runs; i++) {
        struct figures figures;
        /* What memory held before must not matter; all ones are NaN, and -1. */
        const unsigned char fill = i % 2 == 0 ? 0xff : 0x55;
        memset(model_memory, fill, model_memory_bytes);
        memset(model_output, fill, model_output_bytes);
        board_read(in, model_input, model_input_bytes);
        if (run(&figures) != 0)
            board_fail("the model returned an error");
        figures.memory = touched(fill);
        check_border(model_memory - MODEL_BORDER);
        check_border(model_memory + model_memory_bytes);
        board_write(out, model_output, model_output_bytes);
        write_number(log, figures.instructions, ' ');
        write_number(log, figures.stack, ' ');
        write_number(log, figures.memory, '\n');
    }
    board_close(in);
    board_close(out);
    board_close(log);
    return 0;
}
