/* The model that a program of these tests runs. A generated file defines it, as a user's program
 * would: with static buffers, and no other memory. */
#ifndef MODEL_H
#define MODEL_H

#include <stddef.h>

extern void *const model_input;
extern const size_t model_input_bytes;
extern void *const model_output;
extern const size_t model_output_bytes;
/* Memory that the model works in, with a border of MODEL_BORDER bytes on both sides that it must
 * leave alone. */
extern unsigned char *const model_memory;
extern const size_t model_memory_bytes;
#define MODEL_BORDER 64

/* 0 when it went well. */
int model_run(void);

#endif
