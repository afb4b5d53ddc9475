"""All importers: operator -> {first opset: importer}."""

from __future__ import annotations

from collections.abc import Mapping

from tensorkiln.frontend.onnx import (
    ops_attention,
    ops_col2im,
    ops_determinant,
    ops_dynamic,
    ops_einsum,
    ops_fourier,
    ops_grid,
    ops_index,
    ops_layer,
    ops_math,
    ops_ml,
    ops_ngram,
    ops_pad,
    ops_pool,
    ops_quantize,
    ops_random,
    ops_recurrent,
    ops_reduce,
    ops_region,
    ops_resize,
    ops_scatter,
    ops_sequence,
    ops_shape,
    ops_trees,
    ops_unpool,
    ops_window,
)
from tensorkiln.frontend.onnx.dispatch import Table

IMPORTERS: Table = {
    **ops_math.TABLE,
    **ops_shape.TABLE,
    **ops_index.TABLE,
    **ops_pad.TABLE,
    **ops_grid.TABLE,
    **ops_fourier.TABLE,
    **ops_scatter.TABLE,
    **ops_reduce.TABLE,
    **ops_window.TABLE,
    **ops_col2im.TABLE,
    **ops_ngram.TABLE,
    **ops_determinant.TABLE,
    **ops_random.TABLE,
    **ops_unpool.TABLE,
    **ops_region.TABLE,
    **ops_pool.TABLE,
    **ops_layer.TABLE,
    **ops_resize.TABLE,
    **ops_attention.TABLE,
    **ops_einsum.TABLE,
    **ops_quantize.TABLE,
    **ops_recurrent.TABLE,
    **ops_sequence.TABLE,
    **ops_dynamic.TABLE,
}

ML_IMPORTERS: Table = {**ops_ml.TABLE, **ops_trees.TABLE}
# By domain; the importers of ONNX's own know the opsets that importer.py names.
DOMAINS: Mapping[str, Table] = {"": IMPORTERS, "ai.onnx.ml": ML_IMPORTERS}
