/* driver.h - the C part of the fuzzing harness. A case is derived from a seed and its number, and
 * uses any exported function of the libraries. It prints its description before it runs; a line
 * that begins with `! ` reports a finding. */
#ifndef SAFETY_DRIVER_H
#define SAFETY_DRIVER_H

#include "kiln_host.h"

enum { MOST_DIMS = 64, MOST_ARGUMENTS = 16, N_LIBRARIES = 3 };

/* ---- main.c -------------------------------------------------------------------------------- */
typedef struct draws {
    uint64_t state;
} draws;

/* A random number less than `below`; any uint64_t for 0. */
uint64_t draw(draws *d, uint64_t below);
/* True with probability 1 / times. */
int seldom(draws *d, uint64_t times);
/* say() prints a part of the description of the case, found() a finding. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
void found(const char *format, ...) __attribute__((format(printf, 1, 2)));

extern kiln_host_library *libraries[N_LIBRARIES]; /* graphs, outers, loaders */
extern const char *paths[N_LIBRARIES];
/* Report a code that is not in enum kiln_code, and a failure without a sentence. */
void check_code(const kiln_host_library *library, int code, const char *what);

/* ---- faults.c ------------------------------------------------------------------------------ */
enum { ALLOCATION = 1, MAPPING, THREAD, SHORT_READ, INTERRUPTED, READ_ERROR, OPENING, N_FAULTS };
/* Make the at-th call of this kind (from 0) in this thread from now on fail, once; kind 0: none. */
void plan_fault(int kind, long at);
/* Whether the planned fault has happened. */
int fault_happened(void);
/* Total bytes of all allocations that libraries requested in this thread so far. */
size_t asked_bytes(void);

/* ---- tensors.c ----------------------------------------------------------------------------- */
typedef struct made_tensor {
    kiln_tensor tensor; /* the first three members are a DLManagedTensor */
    void *context;
    void (*deleter)(void *self);
    int64_t shape[MOST_DIMS], strides[MOST_DIMS];
    void *block;
    size_t bytes;  /* of `block` */
    size_t mapped; /* size of an inaccessible (PROT_NONE) mapping; 0: `block` is from malloc() */
    int is_wrong;  /* every function must reject it */
} made_tensor;

/* Make a valid tensor with a random layout. Dimensions too large for memory get stride 0; with
 * `untouched`, its memory is inaccessible, so that reading it crashes. Free it with
 * free_tensor(). */
made_tensor *make_tensor(draws *d, kiln_dtype dtype, int ndim, const int64_t *shape, int untouched);
/* Make a valid tensor of random rank, sizes and type. */
made_tensor *any_tensor(draws *d);
/* Make the tensor invalid in a random way, and set is_wrong. */
void spoil_tensor(draws *d, made_tensor *made);
void free_tensor(void *made);
/* The address of an element by its number in row-major order. */
char *element(const kiln_tensor *tensor, int64_t number);
/* The number of elements; INT64_MAX if it overflows. */
int64_t elements(const kiln_tensor *tensor);

/* ---- calls.c, values.c, loaders.c, opening.c, threads.c, processes.c: kinds of cases --------- */
/* Each function runs one case; call_function() calls one function of a library once. */
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
/* The main function of a child process, `driver alone WHAT HOW`: return its exit status. */
int alone(const char *what, const char *how);
/* Make a value of a random kind, for the caller to release; `depth` limits the nesting of
 * tuples. */
kiln_value any_value(draws *d, const kiln_host_library *library, int depth);

/* ---- plain.c, generated: calls plain C entries by address ------------------------------------ */
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
