"""Which printer makes the kernels of a target kind: `opencl` or `webgpu`. No library links WGSL:
`parts_of` in `link/artifacts.py` refuses it, and the caller dispatches the modules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensorkiln.artifact import Artifact
from tensorkiln.codegen.c_like.c99 import NO_COMMENTS
from tensorkiln.codegen.c_like.opencl import emit_opencl
from tensorkiln.codegen.c_like.opencl_kernels import opencl_kernels
from tensorkiln.codegen.c_like.wgsl import emit_wgsl
from tensorkiln.codegen.c_like.wgsl_kernels import wgsl_kernels
from tensorkiln.codegen.host.devices import DeviceFunction
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.target import Target

_KERNELS = {"opencl": opencl_kernels, "webgpu": wgsl_kernels}


def device_kernels(
    functions: Sequence[PrimFunc],
    target: Target,
    nodes: Mapping[str, Sequence[str]] = NO_COMMENTS,
    has_tensors: bool = False,
) -> tuple[list[Artifact], tuple[DeviceFunction, ...]]:
    """The artifacts of device functions for the kind of `target`, and what each function is; the
    arguments are those of `opencl_kernels` and `wgsl_kernels`."""
    return _KERNELS[target.kind](functions, target, nodes=nodes, has_tensors=has_tensors)


def device_text(functions: Sequence[PrimFunc], target: Target) -> str:
    """Device functions as text, for people."""
    if target.kind == "webgpu":
        return "\n".join(f.text for f in emit_wgsl(functions, target))
    return emit_opencl(functions, target).text
