/* A stand-in for the public functions of CMSIS-NN 7.0.0 that generated code calls: same names, types
 * and results, in plain C. It is for tests on a host; firmware is linked with the library itself. */
#ifndef STAND_IN_ARM_NNFUNCTIONS_H
#define STAND_IN_ARM_NNFUNCTIONS_H

#include <stdint.h>

typedef enum {
    ARM_CMSIS_NN_SUCCESS = 0,
    ARM_CMSIS_NN_ARG_ERROR = -1,
    ARM_CMSIS_NN_NO_IMPL_ERROR = -2,
    ARM_CMSIS_NN_FAILURE = -3
} arm_cmsis_nn_status;

typedef struct {
    int32_t w, h;
} cmsis_nn_tile;

typedef struct {
    void *buf;
    int32_t size;
} cmsis_nn_context;

typedef struct {
    int32_t n, h, w, c;
} cmsis_nn_dims;

typedef struct {
    int32_t *multiplier, *shift;
} cmsis_nn_per_channel_quant_params;

typedef struct {
    int32_t multiplier, shift;
} cmsis_nn_per_tensor_quant_params;

typedef struct {
    int32_t min, max;
} cmsis_nn_activation;

typedef struct {
    int32_t input_offset, output_offset;
    cmsis_nn_tile stride, padding, dilation;
    cmsis_nn_activation activation;
} cmsis_nn_conv_params;

typedef struct {
    int32_t input_offset, output_offset, ch_mult;
    cmsis_nn_tile stride, padding, dilation;
    cmsis_nn_activation activation;
} cmsis_nn_dw_conv_params;

typedef struct {
    cmsis_nn_tile stride, padding;
    cmsis_nn_activation activation;
} cmsis_nn_pool_params;

typedef struct {
    int32_t input_offset, filter_offset, output_offset;
    cmsis_nn_activation activation;
} cmsis_nn_fc_params;

#define CONVOLUTION(name, params_type)                                                             \
    arm_cmsis_nn_status name(                                                                      \
        const cmsis_nn_context *ctx, const params_type *params,                                    \
        const cmsis_nn_per_channel_quant_params *scales, const cmsis_nn_dims *input_dims,          \
        const int8_t *input, const cmsis_nn_dims *filter_dims, const int8_t *filter,               \
        const cmsis_nn_dims *bias_dims, const int32_t *bias, const cmsis_nn_dims *output_dims,     \
        int8_t *output)
#define CONVOLUTION_SIZE(name, params_type)                                                        \
    int32_t name(const params_type *params, const cmsis_nn_dims *input_dims,                       \
                 const cmsis_nn_dims *filter_dims, const cmsis_nn_dims *output_dims)
#define POOL(name)                                                                                 \
    arm_cmsis_nn_status name(const cmsis_nn_context *ctx, const cmsis_nn_pool_params *params,      \
                             const cmsis_nn_dims *input_dims, const int8_t *input,                 \
                             const cmsis_nn_dims *filter_dims, const cmsis_nn_dims *output_dims,   \
                             int8_t *output)
#define FULLY_CONNECTED(name, scales_type)                                                         \
    arm_cmsis_nn_status name(                                                                      \
        const cmsis_nn_context *ctx, const cmsis_nn_fc_params *params, const scales_type *scales,  \
        const cmsis_nn_dims *input_dims, const int8_t *input, const cmsis_nn_dims *filter_dims,    \
        const int8_t *filter, const cmsis_nn_dims *bias_dims, const int32_t *bias,                 \
        const cmsis_nn_dims *output_dims, int8_t *output)

CONVOLUTION(arm_convolve_wrapper_s8, cmsis_nn_conv_params);
CONVOLUTION_SIZE(arm_convolve_wrapper_s8_get_buffer_size, cmsis_nn_conv_params);
CONVOLUTION(arm_depthwise_conv_wrapper_s8, cmsis_nn_dw_conv_params);
CONVOLUTION_SIZE(arm_depthwise_conv_wrapper_s8_get_buffer_size, cmsis_nn_dw_conv_params);
FULLY_CONNECTED(arm_fully_connected_s8, cmsis_nn_per_tensor_quant_params);
FULLY_CONNECTED(arm_fully_connected_per_channel_s8, cmsis_nn_per_channel_quant_params);
int32_t arm_fully_connected_s8_get_buffer_size(const cmsis_nn_dims *filter_dims);
arm_cmsis_nn_status arm_vector_sum_s8(int32_t *sums, int32_t columns, int32_t rows,
                                      const int8_t *data, int32_t lhs_offset, int32_t rhs_offset,
                                      const int32_t *bias);
POOL(arm_max_pool_s8);
POOL(arm_avgpool_s8);
int32_t arm_avgpool_s8_get_buffer_size(int output_x, int channels);
void arm_softmax_s8(const int8_t *input, int32_t rows, int32_t columns, int32_t multiplier,
                    int32_t shift, int32_t least_difference, int8_t *output);
arm_cmsis_nn_status arm_elementwise_add_s8(
    const int8_t *left, const int8_t *right, int32_t left_offset, int32_t left_multiplier,
    int32_t left_shift, int32_t right_offset, int32_t right_multiplier, int32_t right_shift,
    int32_t common_shift, int8_t *output, int32_t output_offset, int32_t output_multiplier,
    int32_t output_shift, int32_t least, int32_t most, int32_t count);

#endif
