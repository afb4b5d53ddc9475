// Runs every function of the models once; returns what platform_stop() does.
#ifndef PROGRAM_H
#define PROGRAM_H

#ifdef __cplusplus
extern "C" {
#endif

int program_main(void);

#ifdef __cplusplus
}
#endif
#endif
