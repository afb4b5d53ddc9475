"""Generate code for the kernels of a lowered module: those of the host and then, in a composite,
those of one device after the other.

The artifacts of a device have its target key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tensorkiln.artifact import Artifact, ArtifactSet, TextContent
from tensorkiln.artifact.c_library import RUNTIME_CALLS, SYSTEM_SYMBOLS
from tensorkiln.base.errors import UnsupportedError
from tensorkiln.base.progress import Progress
from tensorkiln.codegen.host.devices import DeviceFunction, HostDevices
from tensorkiln.codegen.kernel_names import header_issues
from tensorkiln.codegen.llvm.compile import CompiledKernel, compile_kernels
from tensorkiln.codegen.llvm.features import features_of
from tensorkiln.codegen.llvm.texts import KernelFiles, module_text
from tensorkiln.codegen.lowered import require_cpu_programs
from tensorkiln.external import Emitted, checked, with_key
from tensorkiln.ir.module import AnyKernel, IRModule
from tensorkiln.ir.stmt import CallKernel, PrimFunc
from tensorkiln.ir.visit import walk_stmt
from tensorkiln.kernel_cache import KernelCache
from tensorkiln.target import Target, cpu_target, hooks_of, required_features
from tensorkiln.target.capability import archs_of
from tensorkiln.target.kinds import KINDS

_HOMES = ("param_devices", "result_devices")  # attributes of graph functions


@dataclass(frozen=True, slots=True)
class KernelCode:
    """The generated code, texts for people (the module; of LLVM kernels, LLVM IR and assembly), and
    what host code has to know of device functions. `cpu_features` are what a processor must have to
    run it, sorted."""

    emitted: Emitted
    texts: Sequence[Artifact]
    devices: HostDevices
    cpu_features: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Generator:
    """The arguments of `kernel_code`."""

    mod: IRModule
    cache: KernelCache | None
    known: Mapping[str, CompiledKernel]
    jobs: int
    progress: Progress

    def done(self, name: str) -> None:
        """Report that a kernel is ready."""
        self.progress.advance(item=name)


def kernel_code(
    mod: IRModule,
    targets: Mapping[str, Target],
    cache: KernelCache | None,
    stored_kernels: Mapping[str, CompiledKernel],
    jobs: int,
    progress: Progress,
) -> KernelCode:
    """Generate code for every kernel of a module.

    `targets` are the targets of kernels by the key of their device, empty for the host's. The
    kernels in `stored_kernels` are skipped, since their objects were in the cache. LLVM makes
    objects or, for linking in memory, bitcode, `jobs` kernels at a time. Raises UnsupportedError
    for programs that their target cannot run, UserError of a hook.
    """
    g = _Generator(mod, cache, stored_kernels, jobs, progress)
    text = TextContent(partial(module_text, mod, cache))
    texts = [Artifact("ir", "text", "module.py", text)]
    emitted = Emitted()
    functions: dict[str, Sequence[DeviceFunction]] = {}
    features: set[str] = set()
    homes = {key for f in mod.graphs for name in _HOMES for key in f.attrs.get(name, ())}
    for key, target in targets.items():
        kernels = [f for f in mod.kernels if _key(f, targets) == key]
        if KINDS[target.kind].is_accelerator and key:
            code, device_texts, functions[key] = _device_functions(g, kernels, target, key in homes)
            texts += [replace(a, target_key=key) for a in device_texts]
        elif kernels or not key:
            code, device_texts = _kernels(g, kernels, target)
            texts += [replace(a, target_key=key) for a in device_texts]
        else:
            continue
        emitted = emitted.add(with_key(code, key))
        features |= _required_features(kernels, target)
    kinds = {key: targets[key].kind for key, group in functions.items() if group or key in homes}
    devices = HostDevices(kinds, functions)
    return KernelCode(emitted, texts, devices, tuple(sorted(features)))


def _required_features(kernels: Sequence[AnyKernel], target: Target) -> set[str]:
    """What a processor must have to run these kernels. LLVM may use what each is compiled with; of
    code that a C compiler or a hook makes, the target alone is known."""
    cpu = cpu_target(target)
    if not kernels or KINDS[target.kind].is_accelerator:
        return set()
    if cpu.kind == "llvm" and hooks_of(target).tir_codegen is None:
        return {x for f in kernels for x in cpu.required(features_of(f, cpu))}
    return set(required_features(target))


def _key(f: AnyKernel, targets: Mapping[str, Target]) -> str:
    key = str(f.attrs.get("target", ""))
    return key if key in targets else ""


def _kernels(
    g: _Generator, kernels: Sequence[AnyKernel], target: Target
) -> tuple[Emitted, list[Artifact]]:
    """Generate code for the kernels of a target without a memory of its own: by the hook
    `tir_codegen` of its kind or, without one, by LLVM or as C."""
    codegen = hooks_of(target).tir_codegen
    if codegen is not None and kernels:
        place = f"tir_codegen of kind {target.kind!r}"
        names = [f.name for f in kernels]
        return checked(partial(codegen, target, _programs(kernels)), names, place), []
    cpu = cpu_target(target)
    require_cpu_programs(g.mod, kernels, RUNTIME_CALLS, cpu)
    if cpu.kind == "c":
        # Imported here, since the other kinds do not need it.
        from tensorkiln.codegen.c_like.kernels import c_kernels

        issues = [*header_issues(_programs(kernels), SYSTEM_SYMBOLS)]
        if issues:
            raise UnsupportedError(issues)
        return Emitted(ArtifactSet(tuple(c_kernels(g.mod, _programs(kernels), cpu, g.done)))), []
    objects = cpu.kind != "llvmjit"
    llvm_kernels = compile_kernels(
        kernels,
        cpu,
        jobs=g.jobs,
        cache=g.cache,
        known_kernels=g.known,
        keys=g.mod.kernel_keys,
        emit="object" if objects else "bitcode",
        on_done=g.done,
    )
    loader, suffix = ("native", "o") if objects else ("llvmjit", "bc")
    code = (Artifact("llvm", loader, f"{k.name}.{suffix}", k.object) for k in llvm_kernels)
    files = KernelFiles(kernels, llvm_kernels, cpu, g.cache)
    texts = [Artifact("llvm", "text", name, text) for name, text in files.contents()]
    return Emitted(ArtifactSet(tuple(code))), texts


def _device_functions(
    g: _Generator, kernels: Sequence[AnyKernel], target: Target, has_tensors: bool
) -> tuple[Emitted, Sequence[Artifact], Sequence[DeviceFunction]]:
    """Generate code for the device functions among the kernels of an accelerator, and texts for
    people. The other kernels launch device functions, from the entry file. With `has_tensors`,
    parameters or results are in the device's memory."""
    nodes = {name: list(dict.fromkeys(spans)) for name, spans in g.mod.nodes().items()}
    for launcher in _programs(kernels):
        launched = (s.name for s in walk_stmt(launcher.body) if isinstance(s, CallKernel))
        nodes |= {name: nodes.get(launcher.name, []) for name in launched}
    functions = [f for f in _programs(kernels) if f.is_device]
    generate = _DEVICE_CODE[target.kind]
    artifacts, texts, described = generate(g, functions, target, nodes, has_tensors)
    for f in kernels:
        g.done(f.name)
    return Emitted(ArtifactSet(tuple(artifacts))), texts, described


_DeviceCode = tuple[Sequence[Artifact], Sequence[Artifact], Sequence[DeviceFunction]]
_Nodes = Mapping[str, Sequence[str]]


def _printed(
    g: _Generator,
    functions: Sequence[PrimFunc],
    target: Target,
    nodes: _Nodes,
    has_tensors: bool,
) -> _DeviceCode:
    from tensorkiln.codegen.c_like.devices import device_kernels

    artifacts, described = device_kernels(functions, target, nodes=nodes, has_tensors=has_tensors)
    return artifacts, (), described


def _cuda(
    g: _Generator,
    functions: Sequence[PrimFunc],
    target: Target,
    nodes: _Nodes,
    has_tensors: bool,
) -> _DeviceCode:
    from tensorkiln.codegen.ptx.kernels import CODEGEN, LOADER, cuda_kernels
    from tensorkiln.link.ptxas import cubin_of

    device_code = cuda_kernels(functions, target, nodes, has_tensors, jobs=g.jobs, cache=g.cache)
    artifacts = list(device_code.artifacts)
    if target["cubin"]:
        store = g.cache.store if g.cache is not None else None
        for arch, ptx in zip(archs_of(target), device_code.artifacts, strict=False):
            code = cubin_of(ptx.text(), arch, store)
            artifacts.append(Artifact(CODEGEN, LOADER, f"kernels.{arch}.cubin", code))
    return artifacts, device_code.texts, device_code.functions


# By kind of accelerator: artifacts, texts for people, and what each device function is.
_DEVICE_CODE = {"opencl": _printed, "webgpu": _printed, "cuda": _cuda}


def _programs(kernels: Sequence[AnyKernel]) -> tuple[PrimFunc, ...]:
    return tuple(f for f in kernels if isinstance(f, PrimFunc))


__all__ = ["KernelCode", "kernel_code"]
