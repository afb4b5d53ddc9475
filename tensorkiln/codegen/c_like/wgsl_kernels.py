"""Device functions as artifacts for WebGPU: a module each, and what is needed to dispatch it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from tensorkiln.artifact import Artifact
from tensorkiln.codegen.c_like.c99 import NO_COMMENTS
from tensorkiln.codegen.c_like.kernels import about
from tensorkiln.codegen.c_like.wgsl import WgslFunction, emit_wgsl
from tensorkiln.codegen.host.devices import DeviceFunction
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.target import Target

CODEGEN, LOADER = "webgpu", "webgpu"


def wgsl_kernels(
    functions: Sequence[PrimFunc],
    target: Target,
    target_key: str = "",
    nodes: Mapping[str, Sequence[str]] = NO_COMMENTS,
    has_tensors: bool = False,
) -> tuple[list[Artifact], tuple[DeviceFunction, ...]]:
    """`<function>.wgsl` for each device function, and `kernels.fmap.json`, none for no functions
    unless the device `has_tensors` of callers; and what each function is. `nodes` are the model's
    nodes that each computes, for its comment.

    The JSON has for each function its file, the buffers and numbers that it takes in the order of
    their bindings and members, the workgroups of a dispatch (integers, or expressions of the
    numbers) and the size of one, as `WgslFunction` has them. Raises UnsupportedError as
    `emit_wgsl`.
    """
    if not functions and not has_tensors:
        return [], ()
    comments = {f.name: about(f, nodes.get(f.name, ())) for f in functions}
    modules = emit_wgsl(functions, target, comments)
    content = {"format": 1, "functions": {f.name: _entry(f) for f in modules}}
    text = json.dumps(content, indent=1) + "\n"
    files = [(f"{f.name}.wgsl", f.text) for f in modules] + [("kernels.fmap.json", text)]
    artifacts = [Artifact(CODEGEN, LOADER, name, t.encode(), target_key) for name, t in files]
    return artifacts, tuple(_described(f, g) for f, g in zip(functions, modules, strict=True))


def _entry(f: WgslFunction) -> dict[str, object]:
    return {
        "file": f"{f.name}.wgsl",
        "buffers": [
            {"name": name, "dtype": dtype, "access": "read_write" if written else "read"}
            for name, dtype, written in f.bindings
        ],
        "numbers": [{"name": name, "dtype": dtype} for name, dtype in f.numbers],
        "grid": list(f.grid),
        "block": list(f.block),
        "shared_bytes": f.shared_bytes,
    }


def _described(f: PrimFunc, module: WgslFunction) -> DeviceFunction:
    params = tuple("buffer" if isinstance(p, Buffer) else p.dtype.name for p in f.params)
    return DeviceFunction(f.name, params, module.block, module.shared_bytes, ())
