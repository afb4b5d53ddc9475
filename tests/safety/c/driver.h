/* driver.h - the C side of the harness: one case per number, drawn from a seed, over every function
 * that libraries show. A case prints what it is before it begins; `! ` begins a finding. */
#ifndef SAFETY_DRIVER_H
#define SAFETY_DRIVER_H

#include "kiln_host.h"

enum { MOST_DIMS = 64, MOST_ARGUMENTS = 16, N_LIBRARIES = 3 };

/* ---- main.c -------------------------------------------------------------------------------- */
typedef struct draws {
    uint64_t state;
} draws;

uint64_t draw(draws *d, uint64_t below);
/* One time in `times`. */
int seldom(draws *d, uint64_t times);
/* Adds to the text that describes the case, and prints a finding with it. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
void found(const char *format, ...) __attribute__((format(printf, 1, 2)));

extern kiln_host_library *libraries[N_LIBRARIES]; /* graphs, outers, loaders */
extern const char *paths[N_LIBRARIES];
/* A code that is not documented, or a failure without a sentence, is a finding. */
void check_code(const kiln_host_library *library, int code, const char *what);

/* ---- faults.c ------------------------------------------------------------------------------ */
enum { ALLOCATION = 1, MAPPING, THREAD, SHORT_READ, INTERRUPTED, READ_ERROR, OPENING, N_FAULTS };
/* The `at`-th of these calls in this thread from now on fails, once; kind 0: none does. */
void plan_fault(int kind, long at);
/* Whether it has happened. */
int fault_happened(void);
/* Bytes that this thread has asked for so far. */
size_t asked_bytes(void);

/* ---- tensors.c ----------------------------------------------------------------------------- */
typedef struct made_tensor {
    kiln_tensor tensor; /* first: this is a DLManagedTensor too */
    void *context;
    void (*deleter)(void *self);
    int64_t shape[MOST_DIMS], strides[MOST_DIMS];
    void *block;
    size_t bytes;  /* of `block` */
    size_t mapped; /* bytes of a mapping that nobody may touch; 0: `block` is from the heap */
    int is_wrong;  /* no function may take it */
} made_tensor;

/* A legal tensor in any layout; those too large for memory have strides of 0, or lie in memory that
 * must not be touched where `untouched` is set. */
made_tensor *make_tensor(draws *d, kiln_dtype dtype, int ndim, const int64_t *shape, int untouched);
/* One of any rank and type. */
made_tensor *any_tensor(draws *d);
/* Makes it one that a function refuses. */
void spoil_tensor(draws *d, made_tensor *made);
void free_tensor(void *made);
/* Address of the element with that number in row-major order. */
char *element(const kiln_tensor *tensor, int64_t number);
int64_t elements(const kiln_tensor *tensor);

/* ---- calls.c, values.c, loaders.c, opening.c, threads.c, processes.c: kinds of cases --------- */
void one_call(draws *d);
void call_function(draws *d, const kiln_host_library *library, const kiln_host_function *f,
                   kiln_executor *executor);
void failing_call(draws *d);
void some_values(draws *d);
void nested_values(draws *d);
void registered_functions(draws *d);
void loader_calls(draws *d);
void opening(draws *d);
void several_threads(draws *d);
void a_fork(draws *d);
void lives(draws *d);
void elsewhere(draws *d);
void large_metadata(draws *d);
void newer_container(draws *d);
void environment(draws *d);
void ending(draws *d);
/* A program of this one: its status. */
int alone(const char *what, const char *how);
/* A value of any kind, which the caller gives back; `depth` limits nesting. */
kiln_value any_value(draws *d, const kiln_host_library *library, int depth);

/* ---- plain.c: generated; the C entries of a library's header by address ---------------------- */
typedef int (*plain_entry)(void *entry, const int64_t *integers, void *const *data,
                           const double *reals);
typedef struct plain_function {
    const char *library, *name;
    int integers, tensors, reals;
    plain_entry call;
} plain_function;
extern const plain_function plain_functions[];
extern const int n_plain_functions;

#endif
