"""What the importer of an ONNX node works with."""

from __future__ import annotations

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.dimensions import Dims


class OnnxContext(Context):
    """The first argument, `g`, of every importer of an ONNX node.

    `outputs` are the names of the node's outputs, with the empty string for one that no node uses,
    and `opset` is the version of ONNX that the model declares.
    """

    def __init__(self, dims: Dims) -> None:
        super().__init__(dims)
        self.outputs: tuple[str, ...] = ()
        self.opset = 0
