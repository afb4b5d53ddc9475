"""All importers of ATen operators, and why others have none."""

from __future__ import annotations

from tensorkiln.frontend.torch import (
    aten_complex,
    aten_dynamic,
    aten_fused,
    aten_index,
    aten_make,
    aten_math,
    aten_nn,
    aten_random,
    aten_reduce,
    aten_resize,
    aten_shape,
    aten_special,
    recurrent,
)
from tensorkiln.frontend.torch.dispatch import AtenTable

IMPORTERS: AtenTable = {
    **aten_math.TABLE,
    **aten_make.TABLE,
    **aten_shape.TABLE,
    **aten_index.TABLE,
    **aten_special.TABLE,
    **aten_dynamic.TABLE,
    **aten_random.TABLE,
    **aten_reduce.TABLE,
    **aten_nn.TABLE,
    **aten_resize.TABLE,
    **aten_fused.TABLE,
    **aten_complex.TABLE,
    **recurrent.TABLE,
}

# Operators without a result that is used: checks, and what only sizes depend on.
NOTHING = {
    "_assert_scalar",
    "_assert_async",
    "_assert_async.msg",
    "_assert_tensor_metadata",
    "sym_constrain_range",
    "sym_constrain_range_for_size",
    "sym_size.int",
    "sym_stride.int",
    "sym_numel",
    "sym_storage_offset",
    "sym_is_contiguous",
}

_TRAINING = "it changes running statistics, in training mode: module.eval()"
_GRADIENT = "it computes a gradient, and inference has none"
_RANDOM = "the data decides the distribution of its result; pass random numbers as an input"
_BAGS = "bags of rows have computed ends; embedding and sum do the same"
_DECIDED = "the data decides the shape of its result"

# Operators of core ATen that are not imported, by name or by name without the overload.
REASONS = {
    "_adaptive_avg_pool2d_backward": _GRADIENT,
    "avg_pool2d_backward": _GRADIENT,
    "convolution_backward": _GRADIENT,
    "embedding_dense_backward": _GRADIENT,
    "max_pool2d_with_indices_backward": _GRADIENT,
    "native_group_norm_backward": _GRADIENT,
    "native_layer_norm_backward": _GRADIENT,
    "_native_batch_norm_legit_functional": _TRAINING,
    "_batch_norm_with_update_functional": _TRAINING,
    "poisson": _RANDOM,
    "binomial": _RANDOM,
    "_standard_gamma": _RANDOM,
    "_sample_dirichlet": _RANDOM,
    "unique_dim": _DECIDED,
    "_local_scalar_dense": "no tensor: its number is imported where it is a size, or in arithmetic",
    "resize_": "it changes a tensor in place, which torch.export replaces",
    "atan2.out": "it writes into a tensor of the caller, which torch.export replaces",
    "_embedding_bag": _BAGS,
    "_embedding_bag_forward_only": _BAGS,
    "_pdist_forward": "the pairs of one tensor; torch.cdist has the distances of all",
    "col2im": "it adds up overlapping windows; conv_transpose with an identity does the same",
}
