/* Runs a model that is statically linked into the program: no file is opened, no symbol looked up.
 *
 *   kiln compile mlp.onnx -o mlp.a --headers include
 *   gcc -std=c99 -Iinclude -o static_c main.c mlp.a -lpthread -ldl -lm
 *
 * MLP_LINK in mlp.h lists the libraries to link after mlp.a. */
#include "mlp.h"

#include <stdio.h>

enum { ROWS = 2, INPUTS = 784, OUTPUTS = 10 };

int main(void)
{
    static float image[ROWS * INPUTS], logits[ROWS * OUTPUTS];
    for (int i = 0; i < ROWS * INPUTS; i++)
        image[i] = (float)(i % 7) / 4;
    mlp_set_num_threads(1); /* no thread is ever created */
    if (mlp_main(ROWS, image, logits) != 0)
        return fprintf(stderr, "%s\n", mlp_last_error()), 1;
    for (int i = 0; i < ROWS * OUTPUTS; i++)
        printf("%.5f ", (double)logits[i]);
    const int code = mlp_main(-1, image, logits); /* rows: an error, as an example */
    printf("\nerror %d: %s\n", code, mlp_last_error());
    return 0;
}
