/* See arm_nnfunctions.h. With ARM_MATH_MVEI the functions ask for the working memory of the
 * implementations for vector instructions, and fully connected layers start from its sums. */
#include "arm_nnfunctions.h"

#include <stddef.h>
#include <string.h>

#ifndef STAND_IN_EXTRA
#define STAND_IN_EXTRA 0 /* bytes of working memory that no released version asks for */
#endif
#ifndef STAND_IN_MARKER
#define STAND_IN_MARKER cmsis_nn_stand_in
#endif
extern const int STAND_IN_MARKER;
const int STAND_IN_MARKER = 1;

/* ---- fixed-point arithmetic ---------------------------------------------------------------- */

/* a * b / 2**31, rounded to the nearest, ties upwards. */
static int32_t high_product(int32_t a, int32_t b)
{
    return (int32_t)(((int64_t)a * b + (INT64_C(1) << 30)) >> 31);
}

/* a / 2**n, rounded to the nearest, ties away from zero. */
static int32_t divided(int32_t a, int32_t n)
{
    const int64_t half = n > 0 ? INT64_C(1) << (n - 1) : 0;
    return a >= 0 ? (int32_t)((a + half) >> n) : (int32_t)-((-(int64_t)a + half) >> n);
}

static int32_t rescaled(int32_t a, int32_t multiplier, int32_t shift)
{
    const int32_t raised = shift > 0 ? a * (1 << shift) : a;
    return divided(high_product(raised, multiplier), shift < 0 ? -shift : 0);
}

static int8_t clamped(int32_t a, int32_t least, int32_t most)
{
    return (int8_t)(a < least ? least : a > most ? most : a);
}

/* Working memory is the caller's to lose: write all of it. */
static arm_cmsis_nn_status use(const cmsis_nn_context *ctx, int32_t need)
{
    if (need > 0 && (ctx->buf == NULL || ctx->size < need))
        return ARM_CMSIS_NN_ARG_ERROR;
    if (need > 0)
        memset(ctx->buf, 0x5a, (size_t)need);
    return ARM_CMSIS_NN_SUCCESS;
}

static int32_t whole(int32_t n, int32_t step)
{
    return (n + step - 1) / step * step;
}

/* ---- convolutions -------------------------------------------------------------------------- */

CONVOLUTION_SIZE(arm_convolve_wrapper_s8_get_buffer_size, cmsis_nn_conv_params)
{
    const int32_t taps = filter_dims->h * filter_dims->w * input_dims->c;
    (void)output_dims;
    if (filter_dims->h == 1 && filter_dims->w == 1 && params->padding.h == 0 &&
        params->padding.w == 0 && params->dilation.h == 1 && params->dilation.w == 1)
        return STAND_IN_EXTRA;
#if defined(ARM_MATH_MVEI)
    return 4 * whole(taps, 16) + STAND_IN_EXTRA;
#else
    return 4 * whole(taps, 4) + STAND_IN_EXTRA;
#endif
}

CONVOLUTION(arm_convolve_wrapper_s8, cmsis_nn_conv_params)
{
    const cmsis_nn_dims x = *input_dims, f = *filter_dims, y = *output_dims;
    (void)bias_dims;
    if (x.c != f.c || y.c != f.n ||
        use(ctx, arm_convolve_wrapper_s8_get_buffer_size(params, &x, &f, &y)))
        return ARM_CMSIS_NN_ARG_ERROR;
    for (int32_t at = 0; at < x.n * y.h * y.w * y.c; ++at) {
        const int32_t o = at % y.c, column = at / y.c % y.w, row = at / (y.c * y.w) % y.h;
        const int8_t *image = input + at / (y.c * y.w * y.h) * (x.h * x.w * x.c);
        int32_t sum = bias != NULL ? bias[o] : 0;
        for (int32_t tap = 0; tap < f.h * f.w; ++tap) {
            const int32_t i =
                row * params->stride.h - params->padding.h + tap / f.w * params->dilation.h;
            const int32_t j =
                column * params->stride.w - params->padding.w + tap % f.w * params->dilation.w;
            if (i < 0 || i >= x.h || j < 0 || j >= x.w)
                continue;
            for (int32_t c = 0; c < x.c; ++c)
                sum += (image[(i * x.w + j) * x.c + c] + params->input_offset) *
                       filter[(o * f.h * f.w + tap) * f.c + c];
        }
        sum = rescaled(sum, scales->multiplier[o], scales->shift[o]) + params->output_offset;
        output[at] = clamped(sum, params->activation.min, params->activation.max);
    }
    return ARM_CMSIS_NN_SUCCESS;
}

CONVOLUTION_SIZE(arm_depthwise_conv_wrapper_s8_get_buffer_size, cmsis_nn_dw_conv_params)
{
    const int32_t taps = filter_dims->h * filter_dims->w;
    if (input_dims->c != output_dims->c || input_dims->n != 1 || params->dilation.h != 1 ||
        params->dilation.w != 1)
        return STAND_IN_EXTRA;
#if defined(ARM_MATH_MVEI)
    return 4 * 124 * taps + STAND_IN_EXTRA;
#else
    return 2 * input_dims->c * taps + STAND_IN_EXTRA;
#endif
}

CONVOLUTION(arm_depthwise_conv_wrapper_s8, cmsis_nn_dw_conv_params)
{
    const cmsis_nn_dims x = *input_dims, f = *filter_dims, y = *output_dims;
    (void)bias_dims;
    if (x.c * params->ch_mult != y.c || f.n != 1 || f.c != y.c ||
        use(ctx, arm_depthwise_conv_wrapper_s8_get_buffer_size(params, &x, &f, &y)))
        return ARM_CMSIS_NN_ARG_ERROR;
    for (int32_t at = 0; at < x.n * y.h * y.w * y.c; ++at) {
        const int32_t o = at % y.c, column = at / y.c % y.w, row = at / (y.c * y.w) % y.h;
        const int8_t *image = input + at / (y.c * y.w * y.h) * (x.h * x.w * x.c);
        int32_t sum = bias != NULL ? bias[o] : 0;
        for (int32_t tap = 0; tap < f.h * f.w; ++tap) {
            const int32_t i =
                row * params->stride.h - params->padding.h + tap / f.w * params->dilation.h;
            const int32_t j =
                column * params->stride.w - params->padding.w + tap % f.w * params->dilation.w;
            if (i < 0 || i >= x.h || j < 0 || j >= x.w)
                continue;
            sum += (image[(i * x.w + j) * x.c + o / params->ch_mult] + params->input_offset) *
                   filter[tap * f.c + o];
        }
        sum = rescaled(sum, scales->multiplier[o], scales->shift[o]) + params->output_offset;
        output[at] = clamped(sum, params->activation.min, params->activation.max);
    }
    return ARM_CMSIS_NN_SUCCESS;
}

/* ---- fully connected layers ---------------------------------------------------------------- */

int32_t arm_fully_connected_s8_get_buffer_size(const cmsis_nn_dims *filter_dims)
{
#if defined(ARM_MATH_MVEI)
    return 4 * filter_dims->c + STAND_IN_EXTRA;
#else
    (void)filter_dims;
    return STAND_IN_EXTRA;
#endif
}

arm_cmsis_nn_status arm_vector_sum_s8(int32_t *sums, int32_t columns, int32_t rows,
                                      const int8_t *data, int32_t lhs_offset, int32_t rhs_offset,
                                      const int32_t *bias)
{
#if defined(ARM_MATH_MVEI)
    if (rhs_offset != 0)
        return ARM_CMSIS_NN_ARG_ERROR;
    for (int32_t r = 0; r < rows; ++r) {
        sums[r] = bias != NULL ? bias[r] : 0;
        for (int32_t k = 0; k < columns; ++k)
            sums[r] += lhs_offset * data[r * columns + k];
    }
    return ARM_CMSIS_NN_SUCCESS;
#else
    (void)sums, (void)columns, (void)rows, (void)data;
    (void)lhs_offset, (void)rhs_offset, (void)bias;
    return ARM_CMSIS_NN_NO_IMPL_ERROR;
#endif
}

static arm_cmsis_nn_status product(const cmsis_nn_context *ctx, const cmsis_nn_fc_params *params,
                                   const int32_t *multiplier, const int32_t *shift, int32_t step,
                                   const cmsis_nn_dims *x, const int8_t *input,
                                   const cmsis_nn_dims *f, const int8_t *filter,
                                   const int32_t *bias, const cmsis_nn_dims *y, int8_t *output)
{
    if (params->filter_offset != 0 || x->c != f->n || y->c != f->c)
        return ARM_CMSIS_NN_ARG_ERROR;
#if defined(ARM_MATH_MVEI)
    const int32_t *sums = ctx->buf;
    if (sums == NULL || ctx->size < 4 * f->c)
        return ARM_CMSIS_NN_ARG_ERROR;
#else
    if (use(ctx, arm_fully_connected_s8_get_buffer_size(f)))
        return ARM_CMSIS_NN_ARG_ERROR;
#endif
    for (int32_t at = 0; at < x->n * y->c; ++at) {
        const int32_t o = at % y->c;
        const int8_t *row = input + at / y->c * x->c;
#if defined(ARM_MATH_MVEI)
        int32_t sum = sums[o];
        (void)bias;
#else
        int32_t sum = bias != NULL ? bias[o] : 0;
        for (int32_t k = 0; k < x->c; ++k)
            sum += params->input_offset * filter[o * x->c + k];
#endif
        for (int32_t k = 0; k < x->c; ++k)
            sum += row[k] * filter[o * x->c + k];
        sum = rescaled(sum, multiplier[o * step], shift[o * step]) + params->output_offset;
        output[at] = clamped(sum, params->activation.min, params->activation.max);
    }
    return ARM_CMSIS_NN_SUCCESS;
}

FULLY_CONNECTED(arm_fully_connected_s8, cmsis_nn_per_tensor_quant_params)
{
    (void)bias_dims;
    return product(ctx, params, &scales->multiplier, &scales->shift, 0, input_dims, input,
                   filter_dims, filter, bias, output_dims, output);
}

FULLY_CONNECTED(arm_fully_connected_per_channel_s8, cmsis_nn_per_channel_quant_params)
{
    (void)bias_dims;
    return product(ctx, params, scales->multiplier, scales->shift, 1, input_dims, input,
                   filter_dims, filter, bias, output_dims, output);
}

/* ---- pooling ------------------------------------------------------------------------------- */

int32_t arm_avgpool_s8_get_buffer_size(int output_x, int channels)
{
    (void)output_x;
#if defined(ARM_MATH_MVEI)
    (void)channels;
    return STAND_IN_EXTRA;
#else
    return 4 * channels + STAND_IN_EXTRA; /* as with the DSP extension */
#endif
}

/* The maximum or, if `average`, the mean of every window, of the elements that are not padding. */
static arm_cmsis_nn_status pooled(const cmsis_nn_pool_params *params, const cmsis_nn_dims *x,
                                  const int8_t *input, const cmsis_nn_dims *f,
                                  const cmsis_nn_dims *y, int8_t *output, int average)
{
    if (x->n != 1 || x->c != y->c)
        return ARM_CMSIS_NN_ARG_ERROR;
    for (int32_t at = 0; at < y->h * y->w * y->c; ++at) {
        const int32_t c = at % y->c, column = at / y->c % y->w, row = at / (y->c * y->w);
        int32_t sum = 0, count = 0, largest = -128;
        for (int32_t tap = 0; tap < f->h * f->w; ++tap) {
            const int32_t i = row * params->stride.h - params->padding.h + tap / f->w;
            const int32_t j = column * params->stride.w - params->padding.w + tap % f->w;
            if (i < 0 || i >= x->h || j < 0 || j >= x->w)
                continue;
            const int32_t value = input[(i * x->w + j) * x->c + c];
            sum += value;
            largest = value > largest ? value : largest;
            ++count;
        }
        if (count == 0)
            return ARM_CMSIS_NN_ARG_ERROR;
        const int32_t half = count / 2;
        const int32_t mean = sum > 0 ? (sum + half) / count : (sum - half) / count;
        output[at] =
            clamped(average ? mean : largest, params->activation.min, params->activation.max);
    }
    return ARM_CMSIS_NN_SUCCESS;
}

POOL(arm_max_pool_s8)
{
    (void)ctx;
    return pooled(params, input_dims, input, filter_dims, output_dims, output, 0);
}

POOL(arm_avgpool_s8)
{
    if (use(ctx, arm_avgpool_s8_get_buffer_size(output_dims->w, input_dims->c)))
        return ARM_CMSIS_NN_ARG_ERROR;
    return pooled(params, input_dims, input, filter_dims, output_dims, output, 1);
}

/* ---- addition ------------------------------------------------------------------------------ */

arm_cmsis_nn_status arm_elementwise_add_s8(
    const int8_t *left, const int8_t *right, int32_t left_offset, int32_t left_multiplier,
    int32_t left_shift, int32_t right_offset, int32_t right_multiplier, int32_t right_shift,
    int32_t common_shift, int8_t *output, int32_t output_offset, int32_t output_multiplier,
    int32_t output_shift, int32_t least, int32_t most, int32_t count)
{
    const int32_t unit = 1 << common_shift;
    for (int32_t i = 0; i < count; ++i) {
        const int32_t a =
            rescaled((left[i] + left_offset) * unit, left_multiplier, left_shift);
        const int32_t b =
            rescaled((right[i] + right_offset) * unit, right_multiplier, right_shift);
        const int32_t sum = rescaled(a + b, output_multiplier, output_shift) + output_offset;
        output[i] = clamped(sum, least, most);
    }
    return ARM_CMSIS_NN_SUCCESS;
}

/* ---- softmax ------------------------------------------------------------------------------- */

/* Numbers with 31 fractional bits: a * b rounded to the nearest, ties away from zero. */
static int32_t times(int32_t a, int32_t b)
{
    const int64_t exact = (int64_t)a * b, half = INT64_C(1) << 30;
    if (a == INT32_MIN && b == INT32_MIN)
        return INT32_MAX;
    return (int32_t)((exact + (exact < 0 ? 1 - half : half)) / (INT64_C(1) << 31));
}

/* exp(a) with 31 fractional bits, for a <= 0 with 26: a polynomial between -1/4 and 0, multiplied
 * by exp(-2**k) for each bit k >= -2 of the rest. */
static int32_t exponential(int32_t a)
{
    static const int32_t powers[] = {1672461947, 1302514674, 790015084, 290630308,
                                     39332535,   720401,     242};
    const int32_t part = (a & ((1 << 24) - 1)) - (1 << 24), rest = part - a;
    const int32_t x = part * 32 + (1 << 28), x2 = times(x, x);
    const int32_t x4 = divided(times(x2, x2), 2);
    const int32_t tail = divided(times(x4 + times(x2, x), 715827883) + x2, 1);
    int32_t value = 1895147668 + times(1895147668, x + tail);
    for (int k = 0; k < 7; ++k)
        if (rest & (1 << (24 + k)))
            value = times(value, powers[k]);
    return a == 0 ? INT32_MAX : value;
}

static int32_t raised(int32_t a, int n)
{
    const int64_t exact = (int64_t)a * (INT64_C(1) << n);
    return exact > INT32_MAX ? INT32_MAX : exact < INT32_MIN ? INT32_MIN : (int32_t)exact;
}

/* 1 / (1 + a) with 31 fractional bits, for 0 <= a < 1 with 31: three steps of Newton's method. */
static int32_t reciprocal(int32_t a)
{
    const int64_t sum = (int64_t)a + INT32_MAX;
    const int32_t half = (int32_t)((sum + (sum >= 0 ? 1 : -1)) / 2);
    int32_t x = 1515870810 + times(half, -1010580540);
    for (int i = 0; i < 3; ++i)
        x += raised(times(x, (1 << 29) - times(half, x)), 2);
    return raised(x, 1);
}

void arm_softmax_s8(const int8_t *input, int32_t rows, int32_t columns, int32_t multiplier,
                    int32_t shift, int32_t least_difference, int8_t *output)
{
    const int32_t unit = 1 << shift;
    for (int32_t r = 0; r < rows; ++r, input += columns, output += columns) {
        int32_t largest = -128, sum = 0, zeros = 0;
        for (int32_t c = 0; c < columns; ++c)
            largest = input[c] > largest ? input[c] : largest;
        for (int32_t c = 0; c < columns; ++c)
            if (input[c] - largest >= least_difference)
                sum += divided(exponential(times((input[c] - largest) * unit, multiplier)), 12);
        while (zeros < 32 && !((uint32_t)sum >> (31 - zeros) & 1))
            ++zeros;
        const uint32_t normal = (uint32_t)sum << zeros;
        const int32_t scale = reciprocal((int32_t)(normal - UINT32_C(0x80000000)));
        const int32_t places = 12 - zeros + 23;
        for (int32_t c = 0; c < columns; ++c) {
            int32_t y = -128;
            if (input[c] - largest >= least_difference)
                y += divided(
                    times(scale, exponential(times((input[c] - largest) * unit, multiplier))),
                    places);
            output[c] = clamped(y, -128, 127);
        }
    }
}
