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
from tensorkiln.external.cmsis_nn.layers import CmsisLayer, layer
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
        cmsis_layer = layer(b, graph)
    except NotTaken as reason:
        return Refused(str(reason))
    if cmsis_layer is None:
        return None
    orders: dict[RVar | Constant, tuple[int, ...]] = {}
    if _by_channels_last(cmsis_layer):
        images = [a.value for a in (*cmsis_layer.inputs, cmsis_layer.output) if len(a.shape) == 4]
        orders.update((v, _NHWC) for v in images)
    weights: list[Constant] = []
    if cmsis_layer.weights is not None:
        assert isinstance(cmsis_layer.weights.value, Constant)
        weights.append(cmsis_layer.weights.value)
        if cmsis_layer.kind in _WEIGHTS:
            orders[cmsis_layer.weights.value] = _WEIGHTS[cmsis_layer.kind]
        elif not cmsis_layer.attrs["rows_first"]:
            orders[cmsis_layer.weights.value] = (1, 0)
    if isinstance(cmsis_layer.bias, Constant):
        weights.append(cmsis_layer.bias)
    return Taken(cmsis_layer.kind, cmsis_layer.bindings, tuple(weights), orders)


def _by_channels_last(cmsis_layer: CmsisLayer) -> bool:
    if cmsis_layer.kind == "softmax":
        return int(cmsis_layer.attrs["axis"]) == 1
    return cmsis_layer.kind != "fully_connected"


def _supports(call: Call, target: Target) -> bool:
    """No operator alone: all are matched with the conversions around them."""
    return False


DEPENDENCY = ExternalDependency("cmsis-nn", URL, "git", VERSION, license="Apache-2.0")
CMSIS_NN = External("cmsis_nn", _supports, emit, (DEPENDENCY,), match=match, fallible=True)

__all__ = ["CMSIS_NN", "DEPENDENCY", "match"]
