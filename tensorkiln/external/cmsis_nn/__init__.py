"""Layers of int8 models by Arm's library CMSIS-NN (docs/howto/cmsis-nn.md).

    from tensorkiln.external.cmsis_nn import CMSIS_NN

    exe = tk.compile(model, externals=[CMSIS_NN])

Convolutions, fully connected layers, pooling, softmax and additions of models in QDQ form become
calls of the library's public functions. The library itself is not part of Tensorkiln: a program is
compiled and linked with the user's copy. Activations between such layers are stored as N, H, W, C.
"""

from __future__ import annotations

from tensorkiln.base.dependency import ExternalDependency
from tensorkiln.external.cmsis_nn.emit import emit
from tensorkiln.external.cmsis_nn.layers import Layer, layer
from tensorkiln.external.cmsis_nn.quantised import NotTaken
from tensorkiln.external.cmsis_nn.version import URL, VERSION
from tensorkiln.external.external import External
from tensorkiln.external.match import Definitions, Refused, Taken
from tensorkiln.ir.relax import Binding, Call, Constant, RVar
from tensorkiln.target import Target

_NHWC = (0, 2, 3, 1)
# The order of the dimensions of weights in memory: O, H, W, I and 1, H, W, O.
_WEIGHTS = {"conv2d": (0, 2, 3, 1), "depthwise_conv2d": (1, 2, 3, 0)}


def match(b: Binding, graph: Definitions, target: Target) -> Taken | Refused | None:
    """Take the layer whose operator is at `b`, or say why not."""
    try:
        found = layer(b, graph)
    except NotTaken as reason:
        return Refused(str(reason))
    if found is None:
        return None
    orders: dict[RVar | Constant, tuple[int, ...]] = {}
    if _by_channels_last(found):
        images = [a.value for a in (*found.inputs, found.output) if len(a.shape) == 4]
        orders.update((v, _NHWC) for v in images)
    weights: list[Constant] = []
    if found.weights is not None:
        assert isinstance(found.weights.value, Constant)
        weights.append(found.weights.value)
        if found.kind in _WEIGHTS:
            orders[found.weights.value] = _WEIGHTS[found.kind]
        elif not found.attrs["rows_first"]:
            orders[found.weights.value] = (1, 0)
    if isinstance(found.bias, Constant):
        weights.append(found.bias)
    return Taken(found.kind, found.bindings, tuple(weights), orders)


def _by_channels_last(found: Layer) -> bool:
    if found.kind == "softmax":
        return int(found.attrs["axis"]) == 1
    return found.kind != "fully_connected"


def _supports(call: Call, target: Target) -> bool:
    """No operator alone: all are matched with the conversions around them."""
    return False


DEPENDENCY = ExternalDependency("cmsis-nn", URL, "git", VERSION, license="Apache-2.0")
CMSIS_NN = External("cmsis_nn", _supports, emit, (DEPENDENCY,), match=match, fallible=True)

__all__ = ["CMSIS_NN", "DEPENDENCY", "match"]
