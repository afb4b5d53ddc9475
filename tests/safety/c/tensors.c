/* Makes valid tensors of every layout and size, and invalid ones. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MOST_ELEMENTS ((int64_t)1 << 16)
static const char *const dtypes[] = {"float32", "float64", "float16", "bfloat16", "bool",
                                     "int8",    "int16",   "int32",   "int64",    "uint8",
                                     "uint16",  "uint32",  "uint64"};

int64_t elements(const kiln_tensor *tensor)
{
    int64_t count = 1;
    for (int d = 0; d < tensor->ndim; d++)
        if (__builtin_mul_overflow(count, tensor->shape[d], &count))
            count = INT64_MAX;
    for (int d = 0; d < tensor->ndim; d++)
        count = tensor->shape[d] == 0 ? 0 : count;
    return count;
}

char *element(const kiln_tensor *tensor, int64_t number)
{
    int64_t at = 0, step = 1;
    for (int d = tensor->ndim - 1; d >= 0; d--) {
        at += number % tensor->shape[d] * (tensor->strides == NULL ? step : tensor->strides[d]);
        step *= tensor->shape[d];
        number /= tensor->shape[d];
    }
    return (char *)tensor->data + tensor->byte_offset + at * (tensor->dtype.bits / 8);
}

/* Choose strides for a layout: 1 every other element, 2 column-major, 3 negative strides, 4 all
 * strides 1, 5 some strides 0, 6 arbitrary strides of dimensions of size 1, others row-major.
 * Dimensions too large for memory get stride 0. */
static void choose_strides(draws *d, made_tensor *made, int layout)
{
    int64_t step = layout == 1 ? 2 : 1;
    const int ndim = made->tensor.ndim;
    for (int i = 0; i < ndim; i++) {
        const int k = layout == 2 ? i : ndim - 1 - i;
        const int64_t size = made->shape[k];
        made->strides[k] = layout == 3 ? -step : layout == 4 ? 1 : step;
        if (size > MOST_ELEMENTS || step * (size < 1 ? 1 : size) > MOST_ELEMENTS ||
            (layout == 5 && seldom(d, 2)))
            made->strides[k] = 0;
        else if (size > 1)
            step *= size;
        if (size <= 1 && layout == 6) /* such a stride is never used */
            made->strides[k] = (int64_t)(draw(d, 2) ? INT64_MIN : INT64_MAX);
    }
}

/* Allocate memory that ends with the last element, so that a sanitizer finds reads beyond it,
 * sometimes misaligned, and fill it with small numbers. */
static void give_memory(draws *d, made_tensor *made)
{
    const size_t size = (size_t)made->tensor.dtype.bits / 8;
    int64_t below = 0, above = 0;
    for (int k = 0; k < made->tensor.ndim; k++) {
        if (made->shape[k] <= 1)
            continue;
        const int64_t span = made->strides[k] * (made->shape[k] - 1);
        *(span < 0 ? &below : &above) += span;
    }
    const int is_empty = elements(&made->tensor) == 0;
    const size_t shift = draw(d, 3) ? 0 : 1 + draw(d, 2 * size), offset = seldom(d, 3) ? 64 : 0;
    const size_t bytes = is_empty ? 0 : (size_t)(above - below + 1) * size;
    made->bytes = bytes + shift + offset;
    made->block = malloc(bytes + shift + offset + (bytes + shift + offset == 0));
    for (size_t i = 0; i < bytes + shift + offset; i++)
        ((char *)made->block)[i] = (char)(made->tensor.dtype.code == 6 ? draw(d, 2) : draw(d, 64));
    made->tensor.data = (char *)made->block + shift + (is_empty ? 0 : (size_t)-below * size);
    made->tensor.byte_offset = offset;
    if (is_empty && seldom(d, 2))
        made->tensor.data = NULL, made->tensor.byte_offset = 0;
}

static void give_untouchable_memory(made_tensor *made)
{
    made->mapped = (size_t)1 << 34;
    made->block = mmap(NULL, made->mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                       -1, 0);
    made->tensor.data = made->block;
    if (made->block == MAP_FAILED)
        abort();
}

made_tensor *make_tensor(draws *d, kiln_dtype dtype, int ndim, const int64_t *shape, int untouched)
{
    made_tensor *made = calloc(1, sizeof *made);
    if (made == NULL)
        abort();
    made->deleter = free_tensor;
    made->tensor = (kiln_tensor){NULL, 1, (int32_t)draw(d, 2), ndim, dtype, made->shape,
                                 made->strides, 0};
    memcpy(made->shape, shape, (size_t)ndim * sizeof *shape);
    const int layout = (int)draw(d, 9); /* 7 and 8: contiguous, 8 with strides NULL */
    choose_strides(d, made, layout);
    int is_packed = layout >= 7;
    for (int k = 0; k < ndim; k++)
        is_packed &= made->shape[k] <= 1 || made->strides[k] != 0 || elements(&made->tensor) == 0;
    if (is_packed && layout == 8)
        made->tensor.strides = NULL;
    if (ndim == 0 && seldom(d, 2))
        made->tensor.shape = made->tensor.strides = NULL;
    if (untouched)
        give_untouchable_memory(made);
    else
        give_memory(d, made);
    say(" %s%d[", (const char *[]){"i", "u", "f", "?", "bf", "?", "b"}[dtype.code], dtype.bits);
    for (int k = 0; k < ndim; k++)
        say(k == 0 ? "%lld" : ",%lld", (long long)shape[k]);
    say("]/%d%s", layout, untouched ? "!" : "");
    return made;
}

static int64_t any_size(draws *d, int huge)
{
    static const int64_t small[] = {0, 1, 1, 2, 2, 3, 5}, large[] = {(int64_t)1 << 31,
        ((int64_t)1 << 31) + 1, (int64_t)1 << 32, (int64_t)1 << 60, (int64_t)1 << 62, INT64_MAX};
    return huge && seldom(d, 3) ? large[draw(d, 6)] : small[draw(d, 7)];
}

made_tensor *any_tensor(draws *d)
{
    static const int ranks[] = {0, 1, 1, 2, 2, 3, 3, 4, 8, 15, 16, 17, 32, 63, 64};
    int64_t shape[MOST_DIMS];
    const int ndim = ranks[draw(d, 15)], huge = seldom(d, 3);
    int64_t count = 1;
    for (int k = 0; k < ndim; k++) {
        shape[k] = ndim > 4 && draw(d, 5) ? 1 : any_size(d, huge);
        if (shape[k] > 1 && shape[k] < 100 && (count *= shape[k]) > 5000)
            shape[k] = 1;
    }
    return make_tensor(d, kiln_host_dtype_named(dtypes[draw(d, 13)]), ndim, shape, 0);
}

/* Give the elements `lanes` lanes, and the tensor four times its memory. */
static void widen(made_tensor *made, uint16_t lanes)
{
    char *const wide = made->mapped != 0 ? NULL : calloc(4, made->bytes + 1);
    made->tensor.dtype.lanes = lanes;
    if (wide == NULL)
        return;
    if (made->tensor.data != NULL)
        made->tensor.data = wide + 4 * ((char *)made->tensor.data - (char *)made->block);
    free(made->block);
    made->block = wide;
}

void spoil_tensor(draws *d, made_tensor *made)
{
    kiln_tensor *t = &made->tensor;
    const int way = (int)draw(d, 8);
    say("~%d", way);
    made->is_wrong = 1;
    switch (way) {
    case 0: t->device_type = (int32_t)(draw(d, 2) ? 2 : draw(d, 1 << 20) + 3); break;
    case 1: widen(made, draw(d, 2) ? 4 : 0); break;
    case 2: t->ndim = (int32_t)(draw(d, 2) ? -1 : INT32_MIN); break;
    case 3: t->dtype.bits = (uint8_t)(draw(d, 2) ? 4 : 0); break;
    case 4: t->dtype.code = (uint8_t)(draw(d, 2) ? 5 : 255); break;
    case 5:
        if (elements(t) != 0)
            t->data = NULL, t->byte_offset = 0;
        else
            made->is_wrong = 0;
        break;
    case 6:
        if (t->ndim > 0)
            t->shape = NULL;
        else
            t->device_type = 0;
        break;
    case 7:
        if (t->ndim > 0)
            made->shape[draw(d, (uint64_t)t->ndim)] = draw(d, 2) ? -1 : INT64_MIN;
        else
            t->device_type = 10;
    }
}

void free_tensor(void *self)
{
    made_tensor *made = self;
    if (made->mapped != 0)
        munmap(made->block, made->mapped);
    else
        free(made->block);
    free(made);
}
