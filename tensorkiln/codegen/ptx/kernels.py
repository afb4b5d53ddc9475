"""Device functions as artifacts for CUDA: PTX for each architecture, and what launches need."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tensorkiln.artifact import Artifact
from tensorkiln.codegen.c_like.c99 import NO_COMMENTS
from tensorkiln.codegen.c_like.kernels import about
from tensorkiln.codegen.device_functions import described
from tensorkiln.codegen.host.devices import DeviceFunction
from tensorkiln.codegen.ptx.compile import TRIPLE, ptx_of
from tensorkiln.codegen.ptx.emit import emit_ptx_ir, tensor_maps_of
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.kernel_cache import KernelCache
from tensorkiln.target import Target
from tensorkiln.target.capability import archs_of

CODEGEN, LOADER = "cuda", "cuda"
_SHARED = "max_shared_memory_per_block_optin"


@dataclass(frozen=True, slots=True)
class CudaKernels:
    """`artifacts` of loader `cuda`, `texts` for people (LLVM IR), and what each function is."""

    artifacts: tuple[Artifact, ...] = ()
    texts: tuple[Artifact, ...] = ()
    functions: tuple[DeviceFunction, ...] = ()


def cuda_kernels(
    functions: Sequence[PrimFunc],
    target: Target,
    nodes: Mapping[str, Sequence[str]] = NO_COMMENTS,
    has_tensors: bool = False,
    *,
    jobs: int = 1,
    cache: KernelCache | None = None,
    on_done: Callable[[str], None] = lambda name: None,
) -> CudaKernels:
    """The artifacts of device functions for CUDA: `kernels.<arch>.ptx` for `arch` of the target and
    each of `also`, the table `kernels.fmap.json`, and `<function>.ll` for people. No artifacts
    without functions, unless the device `has_tensors` of callers. `nodes` are the model's nodes
    that each function computes, for a comment in its LLVM IR.

    The table has for each function its parameters ("buffer", or the dtype of a number), the threads
    of a block along x, y and z, for which its code was compiled, and the bytes of shared memory of
    a block. A function that takes tensor maps after its parameters has a row for each;
    `copied_by_threads` says which tensors have no map although TMA was allowed, and why. Raises
    UnsupportedError as `emit_ptx_ir` and `described`.
    """
    if not functions and not has_tensors:
        return CudaKernels()
    maps_of_name = {f.name: tensor_maps_of(f) for f in functions}
    device_functions = tuple(
        replace(described(f, target, shared=_SHARED), maps=maps_of_name[f.name][0])
        for f in functions
    )
    irs = {f.name: emit_ptx_ir(f, target) for f in functions}
    archs = archs_of(target)
    ptx_of_arch = ptx_of(irs, archs, jobs=jobs, cache=cache, on_done=on_done)
    table = {
        "format": 1,
        "archs": archs,
        "functions": {f.name: _entry(f, maps_of_name[f.name][1]) for f in device_functions},
    }
    texts = [(f, _readable(f, irs[f.name], archs[0], nodes.get(f.name, ()))) for f in functions]
    return CudaKernels(
        (
            *(_artifact(f"kernels.{arch}.ptx", ptx_of_arch[arch]) for arch in archs),
            _artifact("kernels.fmap.json", json.dumps(table, indent=1) + "\n"),
        ),
        tuple(Artifact(CODEGEN, "text", f"{f.name}.ll", text.encode()) for f, text in texts),
        device_functions,
    )


def _artifact(name: str, text: str) -> Artifact:
    return Artifact(CODEGEN, LOADER, name, text.encode())


def _entry(f: DeviceFunction, by_threads: Mapping[str, str]) -> dict[str, object]:
    x, y, z = f.block
    maps = {"tensor_maps": [m.entry() for m in f.maps]} if f.maps else {}
    reasons = {"copied_by_threads": dict(by_threads)} if by_threads else {}
    return {
        "params": list(f.params),
        "block": list(f.block),
        "max_threads": x * y * z,
        "shared_bytes": f.shared_bytes,
        **maps,
        **reasons,
    }


def _readable(f: PrimFunc, ir: str, arch: str, nodes: Sequence[str]) -> str:
    """The IR after a comment about it, with the triple and the processor that it is compiled
    for."""
    lines = "".join(f"; {line}\n" for line in about(f, nodes))
    text = ir.replace("attributes #0 = { ", f'attributes #0 = {{ "target-cpu"="{arch}" ')
    return f'{lines}target triple = "{TRIPLE}"\n\n{text}'
