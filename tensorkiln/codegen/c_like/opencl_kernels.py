"""Device functions as artifacts for OpenCL: their text, and what is needed to launch them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from tensorkiln.artifact import Artifact
from tensorkiln.codegen.c_like.c99 import NO_COMMENTS
from tensorkiln.codegen.c_like.kernels import about
from tensorkiln.codegen.c_like.opencl import DeviceText, emit_opencl
from tensorkiln.codegen.host.devices import DeviceFunction
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.target import Target

CODEGEN, LOADER = "opencl", "opencl"
_NOTHING = DeviceText("/* No kernels: tensors of callers are here. */\ntypedef int nothing;\n", ())


def opencl_kernels(
    functions: Sequence[PrimFunc],
    target: Target,
    target_key: str = "",
    nodes: Mapping[str, Sequence[str]] = NO_COMMENTS,
    has_tensors: bool = False,
) -> tuple[list[Artifact], tuple[DeviceFunction, ...]]:
    """`kernels.cl`, the OpenCL C of all device functions, and `kernels.fmap.json`, none for no
    functions unless the device `has_tensors` of callers; and what each function is. `nodes` are the
    model's nodes that each computes, for its comment.

    The second has for each function what it takes ("buffer", or the dtype of a number), the threads
    of a block along x, y and z, the bytes that a block shares, and OpenCL extensions. Raises
    UnsupportedError as `emit_opencl`.
    """
    if not functions and not has_tensors:
        return [], ()
    comments = {f.name: about(f, nodes.get(f.name, ())) for f in functions}
    device_text = emit_opencl(functions, target, comments) if functions else _NOTHING
    content = {"format": 1, "functions": {f.name: _entry(f) for f in device_text.functions}}
    text = json.dumps(content, indent=1) + "\n"
    artifacts = [
        Artifact(CODEGEN, LOADER, "kernels.cl", device_text.text.encode(), target_key),
        Artifact(CODEGEN, LOADER, "kernels.fmap.json", text.encode(), target_key),
    ]
    return artifacts, device_text.functions


def _entry(f: DeviceFunction) -> dict[str, object]:
    return {
        "params": list(f.params),
        "block": list(f.block),
        "shared_bytes": f.shared_bytes,
        "extensions": list(f.extensions),
    }
