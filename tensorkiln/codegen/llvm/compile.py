"""Tensor programs -> object files, in worker processes, through the content-addressed cache."""

from __future__ import annotations

import json
import subprocess
import tempfile
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from tensorkiln.base.cache import key_of
from tensorkiln.base.debug import PASSES, SOURCES, say, wants
from tensorkiln.base.errors import InternalError
from tensorkiln.base.frames import with_frame_room
from tensorkiln.base.packages import require_package
from tensorkiln.base.processes import python_command, read_frame, write_frame
from tensorkiln.base.sources import source_digest
from tensorkiln.base.version import VERSION
from tensorkiln.codegen.llvm.features import features_of
from tensorkiln.codegen.stack import local_bytes
from tensorkiln.ir.known_kernel import KernelKey, KnownKernel
from tensorkiln.ir.module import AnyKernel, IRModule
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.text.printer import print_function
from tensorkiln.kernel_cache import KernelCache
from tensorkiln.target import Target, target_in
from tensorkiln.target.isa import ISAS

# What decides the text of an object, and so is part of its key in the cache.
GENERATOR = ("codegen/llvm", "codegen/expand")


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """One compiled tensor program: its symbol and its relocatable object. `cached` says that the
    object came from the cache, where it has `key`; `texts` are there if it was compiled now."""

    name: str
    object: bytes  # or bitcode, where that was asked for
    cached: bool
    key: str
    texts: KernelTexts | None = None


@dataclass(frozen=True, slots=True)
class KernelTexts:
    """The readable forms of an object: LLVM IR, and assembly (empty if it is not known)."""

    ir: str
    assembly: str = ""

    def to_bytes(self) -> bytes:
        """Compressed for the cache, to about a tenth of the text."""
        return zlib.compress(json.dumps([self.ir, self.assembly]).encode(), 1)

    @staticmethod
    def from_bytes(data: bytes) -> KernelTexts:
        """Inverse of `to_bytes`."""
        return KernelTexts(*json.loads(zlib.decompress(data)))

    @staticmethod
    def components(key: str) -> dict[str, str]:
        """Components of the cache key of the texts of the object that has cache key `key`."""
        return {"kind": "texts", "object": key}


def options_of(target: Target, features: Collection[str], emit: str) -> dict[str, object]:
    """The options of `worker.compile_text` for this target, of which code may use `features`."""
    return {
        "triple": target.mtriple,
        **({"abi": abi} if (abi := ISAS[target.arch].abi) else {}),
        "cpu": target.llvm_cpu,
        "features": target.llvm_flags(features),
        "opt": 3,
        "emit": emit,
    }


def _reproducer(name: str, text: str, options: dict[str, object]) -> str:
    """Write a module that failed to compile to a new folder; return a hint with the command that
    compiles it again."""
    folder = Path(tempfile.mkdtemp(prefix="kiln-failure-"))
    (folder / f"{name}.ll").write_text(text)
    (folder / "options.json").write_text(json.dumps(options))
    files = f"{folder / name}.ll {folder / 'options.json'}"
    return f"python -m tensorkiln.codegen.llvm.worker {files} fails the same way"


class _Worker:
    """One compiler process; started when first used, replaced when it dies."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    def compile(self, name: str, text: str, options: dict[str, object]) -> tuple[bytes, bytes]:
        """As `worker.compile_text`. Raises InternalError naming the kernel when LLVM refuses or
        aborts."""
        if self.process is None:
            require_package("llvmlite", f"the code of kernel {name}", "compile for kind 'c'")
            self.process = subprocess.Popen(
                python_command("tensorkiln.codegen.llvm.worker"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        process = self.process
        assert process.stdin is not None and process.stdout is not None
        try:
            write_frame(process.stdin, json.dumps(options).encode())
            write_frame(process.stdin, text.encode())
            status, result, assembly = (read_frame(process.stdout) for _ in range(3))
        except BrokenPipeError:
            status = result = assembly = None
        if status is None or result is None or assembly is None:
            raise InternalError(
                self._last_words(name), code="llvm-abort", hint=_reproducer(name, text, options)
            )
        if status != b"ok":
            raise InternalError(
                f"kernel {name}: {result.decode()}",
                code="llvm-error",
                hint=_reproducer(name, text, options),
            )
        return result, assembly

    def _last_words(self, name: str) -> str:
        assert self.process is not None
        _, errors = self.process.communicate()
        code, self.process = self.process.returncode, None
        tail = errors.decode(errors="replace").strip()[-2000:]
        return f"kernel {name}: LLVM ended its process (status {code}): {tail}"

    def close(self) -> None:
        if self.process is not None:
            self.process.communicate()
            self.process = None


class Workers:
    """Compiler processes, one for each `compile` at a time; the `with` statement ends all."""

    def __init__(self) -> None:
        self._idle: list[_Worker] = []

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._idle:
            worker.close()

    def compile(self, name: str, text: str, options: dict[str, object]) -> tuple[bytes, bytes]:
        """As `_Worker.compile`, in an idle process or a new one."""
        try:
            worker = self._idle.pop()
        except IndexError:
            worker = _Worker()
        try:
            return worker.compile(name, text, options)
        finally:
            self._idle.append(worker)


def _platform(target: Target, features: Collection[str]) -> str:
    """The parts of a target on which the code of a tensor program depends that may use `features`
    of its processor."""
    return target.llvm_flags(features) + target.mtriple + target.mcpu


def _object_key(
    f: PrimFunc, target: Target, features: Collection[str], emit: str
) -> dict[str, str]:
    """Components of the cache key of an object: the tensor program, its symbol, the target and the
    code generator. What the program was made from is not part of it."""
    return {
        **({} if emit == "object" else {"emit": emit}),
        "tir": print_function(f, canonical=True),
        "symbol": f.name,
        "target": _platform(target, features),
        "generator": source_digest(*GENERATOR),
        "compiler": VERSION,
    }


def known_objects(
    mod: IRModule, target: Target, cache: KernelCache | None
) -> dict[str, CompiledKernel]:
    """The objects in the cache of known kernels, by name. In a composite target each kernel is of
    its device."""
    kernels: dict[str, CompiledKernel] = {}
    for f in mod.kernels:
        key, kernel_target = mod.kernel_keys.get(f.name), target_in(target, f.attrs)
        if isinstance(f, KnownKernel) and key is not None and cache is not None:
            platform = _platform(kernel_target, kernel_target.features)
            entry = cache.object(f.name, key, platform)
            if entry is not None:
                kernels[f.name] = CompiledKernel(f.name, entry[1], True, entry[0])
    return kernels


def compile_kernels(
    funcs: Sequence[AnyKernel],
    target: Target,
    *,
    jobs: int = 1,
    cache: KernelCache | None = None,
    known_kernels: Mapping[str, CompiledKernel] = MappingProxyType({}),
    keys: Mapping[str, KernelKey] = MappingProxyType({}),
    on_done: Callable[[str], None] = lambda name: None,
    emit: Literal["object", "bitcode"] = "object",
) -> list[CompiledKernel]:
    """Compile all functions, `jobs` at a time, and return their kernels in order. `known_kernels`
    are those that `known_objects` found; of others with a key in `keys`, later compiles find
    the objects; `on_done` is called with the name of each kernel that is ready, possibly in another
    thread. The first failure is raised after all threads have stopped."""
    kernels = {
        f.name: _from_cache(known_kernels[f.name], on_done)
        for f in funcs
        if f.name in known_kernels
    }
    todo = [f for f in funcs if isinstance(f, PrimFunc)]
    if todo:
        kernels |= {k.name: k for k in _compiled(todo, target, jobs, cache, keys, on_done, emit)}
    return [kernels[f.name] for f in funcs]


def _from_cache(kernel: CompiledKernel, on_done: Callable[[str], None]) -> CompiledKernel:
    say(SOURCES, f"{kernel.name}.ll: object from the cache; KILN_CACHE=0 emits it again")
    on_done(kernel.name)
    return kernel


@dataclass(frozen=True, slots=True)
class _Emission:
    """The LLVM IR of a kernel that is still to be compiled, by which options, and its key in the
    cache."""

    name: str
    ir: str
    options: dict[str, object]
    key: str
    components: dict[str, str]


def _compiled(
    funcs: Sequence[PrimFunc],
    target: Target,
    jobs: int,
    cache: KernelCache | None,
    keys: Mapping[str, KernelKey],
    on_done: Callable[[str], None],
    emit: str,
) -> list[CompiledKernel]:
    # Imported here, since a compile that finds all its objects in the cache needs neither.
    from concurrent.futures import ThreadPoolExecutor

    from tensorkiln.codegen.llvm.emit import emit_llvm

    @with_frame_room
    def emitted(f: PrimFunc) -> CompiledKernel | _Emission:
        features = features_of(f, target)
        components = _object_key(f, target, features, emit)
        key = key_of(components)
        cached_code = cache.store.get(key) if cache is not None else None
        if cache is not None and f.name in keys and emit == "object":
            platform = _platform(target, target.features)
            cache.remember(f, keys[f.name], platform, key, local_bytes(f), features)
        if cached_code is not None:
            return _from_cache(CompiledKernel(f.name, cached_code, True, key), on_done)
        ir = emit_llvm(f, target)
        say(SOURCES, f"{f.name}.ll\n{ir}")
        return _Emission(f.name, ir, options_of(target, features, emit), key, components)

    def one(emission: Callable[[], CompiledKernel | _Emission]) -> CompiledKernel:
        kernel = emission()
        if isinstance(kernel, CompiledKernel):
            return kernel
        name, ir, key = kernel.name, kernel.ir, kernel.key
        code, assembly = workers.compile(name, ir, kernel.options)
        texts = KernelTexts(ir, assembly.decode())
        if cache is not None:
            cache.store.put(key, code, kernel.components)
            cache.store.put(
                key_of(KernelTexts.components(key)), texts.to_bytes(), KernelTexts.components(key)
            )
        on_done(name)
        return CompiledKernel(name, code, False, key, texts)

    if cache is not None and wants(PASSES):
        _say_why_missed(funcs, target, cache, emit)
    # Python writes one text at a time: ahead of the processes, which would else wait for it.
    ahead = ThreadPoolExecutor(1)
    with Workers() as workers, ahead, ThreadPoolExecutor(max(1, jobs)) as pool:
        if jobs <= 1:
            return list(pool.map(one, [partial(emitted, f) for f in funcs]))
        emissions = [ahead.submit(emitted, f) for f in funcs]
        try:
            return list(pool.map(one, [e.result for e in emissions]))
        finally:
            for e in emissions:
                e.cancel()


def _say_why_missed(
    funcs: Sequence[PrimFunc], target: Target, cache: KernelCache, emit: str
) -> None:
    """Print for each object that is not in the cache what differs from the nearest entry there.
    Called before the first compile, so that no object of this compile is the nearest."""
    for f in funcs:
        components = _object_key(f, target, features_of(f, target), emit)
        if cache.store.get(key_of(components)) is None:
            say(PASSES, f"{f.name} is not in the cache: {cache.store.explain(components)}")
