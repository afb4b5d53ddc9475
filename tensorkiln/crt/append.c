/* The operator append: a stack with more rows.
 *
 * A stack that append() has made lies in a block with room for more rows. The block counts the rows
 * that are used: to the stack that has all of them, rows are added in place, and the new stack is
 * another view of the block; older ones keep their rows. Any other stack is copied to a new block of
 * twice its rows. So a loop that stacks its results moves each row a constant number of times. */
#include "os.h"
#include "outer.h"
#include <stdlib.h>
#include <string.h>

#define DATA_ALIGN ((size_t)64)
#define LEAST_BYTES 4096

typedef struct rows_block {
    int64_t owners, used, room; /* `used` and `room` in rows */
} rows_block;

/* What a view of a block has as its DLManagedTensor. */
typedef struct rows_view {
    kiln_managed_tensor head;
    rows_block *block;
} rows_view;

static char *data_of(rows_block *block)
{
    return (char *)block + DATA_ALIGN;
}

static void leave_block(rows_block *block)
{
    if (__atomic_sub_fetch(&block->owners, 1, __ATOMIC_ACQ_REL) == 0)
        kiln_os_deleter()(block);
}

static void delete_view(void *self)
{
    rows_view *view = self;
    leave_block(view->block);
    free(view);
}

/* The block in which `value` is a stack from the first row on; NULL for other values. */
static rows_block *block_of(const kiln_value *value)
{
    const kiln_tensor_object *object = value->as.pointer;
    if (value->kind != KILN_TENSOR_OBJECT || object->managed == NULL)
        return NULL;
    const kiln_managed_tensor *managed = object->managed;
    return managed->deleter == delete_view ? ((const rows_view *)object->managed)->block : NULL;
}

/* Take the places of `more` rows after the last of `count`, if they are there and nobody has them. */
static int claim(rows_block *block, int64_t count, int64_t more)
{
    int64_t found = count;
    return count <= block->room && more <= block->room - count &&
           __atomic_compare_exchange_n(&block->used, &found, count + more, 0, __ATOMIC_ACQ_REL,
                                       __ATOMIC_RELAXED);
}

/* A block that begins with the rows of `stack` and has `more`, owned by the caller. */
static rows_block *new_block(const kiln_tensor *stack, int64_t more, int64_t row_bytes)
{
    const int64_t count = stack->shape[0], few = row_bytes == 0 ? 1 : LEAST_BYTES / row_bytes;
    int64_t used, room, bytes;
    rows_block *block = NULL;
    if (__builtin_add_overflow(count, more, &used) ||
        __builtin_add_overflow(used, count > few ? count : few, &room) ||
        __builtin_mul_overflow(room, row_bytes, &bytes) ||
        __builtin_add_overflow(bytes, (int64_t)DATA_ALIGN, &bytes) ||
        (block = kiln_os_allocate((size_t)bytes, DATA_ALIGN)) == NULL) {
        kiln_fail(KILN_ERROR_MEMORY, "out of memory for a stack of %lld rows and %lld more",
                  (long long)count, (long long)more);
        return NULL;
    }
    *block = (rows_block){1, used, room};
    if (count * row_bytes != 0)
        memcpy(data_of(block), kiln_data(stack), (size_t)(count * row_bytes));
    return block;
}

/* The first `count` rows of a block as a tensor, to which the caller's share of the block goes. */
static int view_block(rows_block *block, int64_t count, const kiln_tensor *stack, kiln_value *result)
{
    int64_t shape[KILN_MAX_RANK];
    rows_view *const view = malloc(sizeof *view);
    if (view == NULL) {
        leave_block(block);
        return kiln_fail(KILN_ERROR_MEMORY, "out of memory for a view of a stack");
    }
    for (int d = 0; d < stack->ndim; d++)
        shape[d] = d == 0 ? count : stack->shape[d];
    *view = (rows_view){{{data_of(block), 1, 0, stack->ndim, stack->dtype, shape, NULL, 0}, NULL,
                         delete_view}, block};
    const int code = kiln_take_dlpack(&view->head, result);
    view->head.tensor.shape = NULL; /* the object has its own */
    if (code != KILN_OK)
        delete_view(view);
    return code;
}

static int check_rows(const kiln_tensor *stack, const kiln_tensor *rows)
{
    int fits = stack->ndim > 0 && stack->ndim == rows->ndim &&
               stack->dtype.code == rows->dtype.code && stack->dtype.bits == rows->dtype.bits &&
               stack->dtype.lanes == rows->dtype.lanes;
    for (int d = 1; fits && d < stack->ndim; d++)
        fits = stack->shape[d] == rows->shape[d];
    if (fits)
        return KILN_OK;
    char wide[KILN_SHAPE_TEXT], more[KILN_SHAPE_TEXT];
    kiln_shape_text(wide, stack->shape, stack->ndim);
    kiln_shape_text(more, rows->shape, rows->ndim);
    return kiln_fail(KILN_ERROR_SHAPE, "append: rows of shape %s do not fit a stack of shape %s, or have "
                     "another type", more, wide);
}

int kiln_append(const kiln_value *value, const kiln_value *rows, kiln_value *result)
{
    const kiln_tensor *stack, *added;
    kiln_value a, b = kiln_nothing;
    int code = kiln_packed(value, &stack, &a);
    if (code == KILN_OK && (code = kiln_packed(rows, &added, &b)) == KILN_OK &&
        (code = check_rows(stack, added)) == KILN_OK) {
        const int64_t count = stack->shape[0], more = added->shape[0];
        const int64_t bytes = kiln_element_count(added) * kiln_element_bytes(added->dtype);
        const int64_t row_bytes = more == 0 ? 0 : bytes / more;
        rows_block *block = block_of(value);
        if (more == 0)
            code = kiln_take(value, result);
        else if (block != NULL && kiln_data(stack) == data_of(block) && claim(block, count, more))
            __atomic_fetch_add(&block->owners, 1, __ATOMIC_RELAXED);
        else if ((block = new_block(stack, more, row_bytes)) == NULL)
            code = KILN_ERROR_MEMORY;
        if (code == KILN_OK && more != 0) {
            if (bytes != 0)
                memcpy(data_of(block) + count * row_bytes, kiln_data(added), (size_t)bytes);
            code = view_block(block, count + more, stack, result);
        }
    }
    kiln_release(&a);
    kiln_release(&b);
    return code;
}
