"""select_algorithms: which calls are rewritten; tests/kernels has the rules of each algorithm."""

from __future__ import annotations

import numpy as np

from tensorkiln.target import Target
from tensorkiln.transform.relax.select_algorithms import SelectAlgorithms
from tests.transform.graphs import check_text, check_unchanged, graph

TARGET = Target({"kind": "llvm", "mcpu": "haswell"})


def test_pixels_are_compacted() -> None:
    check_text(
        SelectAlgorithms(TARGET),
        """
        @R.function
        def main(x: R.Tensor((1, 64, 189, 177), "float32")):
            y = R.conv2d(x, R.const("w", "float32", (256, 64, 1, 1)), strides=(2, 2))
            return y
        """,
        """
        @R.function
        def main(x: R.Tensor((1, 64, 189, 177), "float32")):
            y_pixels = R.slice(
                x, begin=(0, 0, 0, 0), shape=(1, 64, 95, 89), strides=(1, 1, 2, 2)
            )
            y = R.conv2d(
                y_pixels,
                R.const("w", "float32", (256, 64, 1, 1)),
                dilation=(1, 1),
                groups=1,
                padding=(0, 0, 0, 0),
                strides=(1, 1),
            )
            return y
        """,
        w=np.ones((256, 64, 1, 1), np.float32),
    )


def test_weights_that_are_computed_stay() -> None:
    mod = graph(
        lambda g, x, w: g.conv2d(x, w, strides=(2, 2)), x=(1, 64, 189, 177), w=(256, 64, 1, 1)
    )
    check_unchanged(SelectAlgorithms(TARGET), mod)
