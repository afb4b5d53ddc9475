"""Readable forms of kernels: LLVM IR and assembly, and the text of a lowered module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, partial

from tensorkiln.artifact import TextContent
from tensorkiln.base.cache import key_of
from tensorkiln.base.config import read_config
from tensorkiln.codegen.llvm.compile import CompiledKernel, KernelTexts, Workers, options_of
from tensorkiln.codegen.llvm.features import features_of
from tensorkiln.ir.known_kernel import KnownKernel
from tensorkiln.ir.module import AnyKernel, IRModule
from tensorkiln.ir.text.printer import print_module
from tensorkiln.kernel_cache import KernelCache
from tensorkiln.target import Target


class KernelFiles:
    """LLVM IR and assembly of kernels as the files `<kernel>.ll` and `<kernel>.s`, to be read.

    They come from this compile or, for cached objects, from the cache. Texts that are in neither
    are made lazily, all of one form (IR or assembly) when the first of that form is read.
    """

    def __init__(
        self,
        funcs: Sequence[AnyKernel],
        kernels: Sequence[CompiledKernel],
        target: Target,
        cache: KernelCache | None,
    ):
        self._funcs, self._kernels = tuple(funcs), tuple(kernels)
        self._target, self._cache = target, cache

    def contents(self) -> Iterator[tuple[str, TextContent]]:
        """Yield the files: their names, and their contents, which are made lazily."""
        for i, f in enumerate(self._funcs):
            yield f"{f.name}.ll", TextContent(partial(self._ll, i))
            yield f"{f.name}.s", TextContent(partial(self._assembly, i))

    @cached_property
    def _found(self) -> list[KernelTexts | None]:
        return [k.texts or self._cached(k.key) for k in self._kernels]

    def _cached(self, key: str) -> KernelTexts | None:
        if self._cache is None:
            return None
        data = self._cache.store.get(key_of(KernelTexts.components(key)))
        return KernelTexts.from_bytes(data) if data is not None else None

    @cached_property
    def _irs(self) -> list[str]:
        named = zip(self._funcs, self._found, strict=True)
        return [entry.ir if entry else kernel_text(f, self._target, "llvm") for f, entry in named]

    @cached_property
    def _assemblies(self) -> list[str]:
        out = [entry.assembly if entry else "" for entry in self._found]
        lacking = [i for i, text in enumerate(out) if not text]
        irs = [self._irs[i] for i in lacking]
        assemblies = _assembled([self._funcs[i] for i in lacking], irs, self._target, "assembly")
        for i, assembly in zip(lacking, assemblies, strict=True):
            out[i] = assembly
            if self._cache is not None:
                components = KernelTexts.components(self._kernels[i].key)
                texts = KernelTexts(self._irs[i], assembly)
                self._cache.store.put(key_of(components), texts.to_bytes(), components)
        return out

    def _ll(self, i: int) -> str:
        """The IR, with the target triple and attributes that are needed to compile it to the same
        object."""
        t = self._target
        flags = t.llvm_flags(features_of(self._funcs[i], t))
        cpu = f'"target-cpu"="{t.llvm_cpu}" "target-features"="{flags}"'
        head, tail = f'target triple = "{t.mtriple}"\n\n', f"\nattributes #0 = {{ {cpu} }}\n"
        return head + self._irs[i] + tail

    def _assembly(self, i: int) -> str:
        return self._assemblies[i]


def kernel_text(f: AnyKernel, target: Target, emit: str = "assembly") -> str:
    """LLVM IR (`emit="llvm"`), assembly, or `"annotated"` assembly of one kernel, to be read."""
    return kernel_texts([f], target, emit)[0]


def kernel_texts(funcs: Sequence[AnyKernel], target: Target, emit: str = "assembly") -> list[str]:
    """As `kernel_text`, for several kernels, compiled in parallel."""
    from tensorkiln.codegen.llvm.emit import emit_llvm

    programs = [f.program() if isinstance(f, KnownKernel) else f for f in funcs]
    texts = [emit_llvm(f, target) for f in programs]
    return texts if emit == "llvm" else _assembled(funcs, texts, target, emit)


def _assembled(
    funcs: Sequence[AnyKernel], texts: Sequence[str], target: Target, emit: str
) -> list[str]:
    from concurrent.futures import ThreadPoolExecutor

    if not funcs:
        return []
    options = [options_of(target, features_of(f, target), emit) for f in funcs]
    jobs = min(read_config().compile_jobs or 2, len(funcs))
    with Workers() as workers, ThreadPoolExecutor(jobs) as pool:
        names = [f.name for f in funcs]
        codes = pool.map(workers.compile, names, texts, options)
        return [code.decode() for code, _ in codes]


def module_text(mod: IRModule, cache: KernelCache | None) -> str:
    """As `print_module`, but the text of a known kernel comes from the cache if it is there: making
    a program takes a hundred times as long as printing it."""

    def known(f: KnownKernel) -> str | None:
        key = mod.kernel_keys.get(f.name)
        return cache.text(f.name, key) if cache is not None and key is not None else None

    return print_module(mod, known)


__all__ = ["KernelFiles", "kernel_text", "kernel_texts", "module_text"]
