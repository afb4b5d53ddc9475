"""Tensor programs -> object files, in worker processes, through the content-addressed cache."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from tensorkiln.artifact import TextContent
from tensorkiln.base.cache import Cache, key_of
from tensorkiln.base.debug import SOURCES, say
from tensorkiln.base.errors import InternalError
from tensorkiln.base.sources import source_digest
from tensorkiln.base.version import VERSION
from tensorkiln.codegen.llvm.worker import read_frame, write_frame
from tensorkiln.ir.derived import Derived, head_key
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.text.printer import print_function
from tensorkiln.target import Target


@dataclass(frozen=True, slots=True)
class Kernel:
    """One compiled tensor program: its symbol and relocatable object."""

    name: str
    object: bytes  # or bitcode, where that was asked for
    cached: bool


def _options(target: Target, emit: str) -> dict[str, object]:
    return {
        "triple": target.mtriple, "cpu": target.mcpu, "features": target.llvm_features, "opt": 3,
        "emit": emit,
    }  # fmt: skip


def _reproducer(name: str, text: str, options: dict[str, object]) -> str:
    """Leave the failing module on disk; how to run it again."""
    folder = Path(tempfile.mkdtemp(prefix="kiln-failure-"))
    (folder / f"{name}.ll").write_text(text)
    (folder / "options.json").write_text(json.dumps(options))
    files = f"{folder / name}.ll {folder / 'options.json'}"
    return f"python -m tensorkiln.codegen.llvm.worker {files} fails the same way"


class _Worker:
    """One compiler process; started when first used, replaced when it dies."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    def compile(self, name: str, text: str, options: dict[str, object]) -> bytes:
        """Object code. Raises InternalError naming the kernel when LLVM refuses or aborts."""
        if self.process is None:
            root = str(Path(__file__).parents[3])
            code = f"import sys; sys.path.insert(0, {root!r}); " \
                   "from tensorkiln.codegen.llvm.worker import main; main()"  # fmt: skip
            self.process = subprocess.Popen(
                [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )  # fmt: skip
        process = self.process
        assert process.stdin is not None and process.stdout is not None
        try:
            write_frame(process.stdin, json.dumps(options).encode())
            write_frame(process.stdin, text.encode())
            status, result = read_frame(process.stdout), read_frame(process.stdout)
        except BrokenPipeError:
            status = result = None
        if status is None or result is None:
            raise InternalError(self._last_words(name), code="llvm-abort",
                                hint=_reproducer(name, text, options))  # fmt: skip
        if status != b"ok":
            raise InternalError(f"kernel {name}: {result.decode()}", code="llvm-error",
                                hint=_reproducer(name, text, options))  # fmt: skip
        return result

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


def _platform(target: Target) -> str:
    """What of a target decides about the code of a tensor program."""
    return target.llvm_features + target.mtriple + target.mcpu


def _object_key(f: PrimFunc, target: Target, emit: str) -> dict[str, str]:
    """Objects are known by the program they were compiled from, and by nothing before it."""
    return {
        **({} if emit == "object" else {"emit": emit}),
        "tir": print_function(f, canonical=True), "symbol": f.name, "target": _platform(target),
        "generator": source_digest("codegen/llvm"), "compiler": VERSION,
    }  # fmt: skip


def _alias_key(f: Derived, target: Target) -> dict[str, str]:
    """Under this the cache keeps the key of the object of what follows from an origin."""
    return {**f.origin.body_key, "symbol": f.name, "target": _platform(target)}


def known_objects(
    funcs: Sequence[PrimFunc], target: Target, cache: Cache | None
) -> dict[str, bytes]:
    """By name, the objects of functions whose bodies still wait, where the cache has them. The
    bodies of the others are made here: checks that pass over what is pending see them."""
    known: dict[str, bytes] = {}
    for f in funcs:
        if isinstance(f, Derived) and f.pending:
            key = cache.get(key_of(_alias_key(f, target))) if cache is not None else None
            found = cache.get(key.decode()) if cache is not None and key is not None else None
            if found is None:
                f.settle()
            else:
                known[f.name] = found
    return known


def _remember(f: PrimFunc, target: Target, key: str, cache: Cache) -> None:
    """Let the next compile know `f` before its body is made."""
    if isinstance(f, Derived):
        cache.put(key_of(_alias_key(f, target)), key.encode(), _alias_key(f, target))
        head = head_key(f.origin.source)
        cache.put(key_of(head), f.origin.head.to_bytes(), head)


def compile_kernels(
    funcs: Sequence[PrimFunc],
    target: Target,
    *,
    jobs: int = 1,
    cache: Cache | None = None,
    known: Mapping[str, bytes] = MappingProxyType({}),
    on_done: Callable[[str], None] = lambda name: None,
    emit: Literal["object", "bitcode"] = "object",
) -> list[Kernel]:
    """Code of every function, in order. The first failure is raised after all stopped."""
    made = {f.name: _from_cache(f, known[f.name], on_done) for f in funcs if f.name in known}
    todo = [f for f in funcs if f.name not in made]
    if todo:
        made |= {k.name: k for k in _compiled(todo, target, jobs, cache, on_done, emit)}
    return [made[f.name] for f in funcs]


def _from_cache(f: PrimFunc, code: bytes, on_done: Callable[[str], None]) -> Kernel:
    say(SOURCES, f"{f.name}.ll: object from the cache; KILN_CACHE=0 emits it again")
    on_done(f.name)
    return Kernel(f.name, code, True)


def _compiled(
    funcs: Sequence[PrimFunc],
    target: Target,
    jobs: int,
    cache: Cache | None,
    on_done: Callable[[str], None],
    emit: str,
) -> list[Kernel]:
    # A compile that finds all it needs loads neither.
    from concurrent.futures import ThreadPoolExecutor

    from tensorkiln.codegen.llvm.emit import emit_llvm

    local = threading.local()
    workers: list[_Worker] = []
    lock = threading.Lock()

    def one(f: PrimFunc) -> Kernel:
        components = _object_key(f, target, emit)
        key = key_of(components)
        found = cache.get(key) if cache is not None else None
        if found is None:
            if not hasattr(local, "worker"):
                local.worker = _Worker()
                with lock:
                    workers.append(local.worker)
            text = emit_llvm(f, target)
            say(SOURCES, f"{f.name}.ll\n{text}")
            made = local.worker.compile(f.name, text, _options(target, emit))
            if cache is not None:
                cache.put(key, made, components)
        if cache is not None and emit == "object":
            _remember(f, target, key, cache)
        if found is not None:
            return _from_cache(f, found, on_done)
        on_done(f.name)
        return Kernel(f.name, made, False)

    try:
        with ThreadPoolExecutor(max(1, jobs)) as pool:
            return list(pool.map(one, funcs))
    finally:
        for w in workers:
            w.close()


class KernelFiles:
    """LLVM IR and assembly of kernels as the files `<kernel>.ll` and `<kernel>.s`, to be read. They
    are made, all at once, when the first of them is looked at."""

    def __init__(self, funcs: Sequence[PrimFunc], target: Target):
        self._funcs, self._target = tuple(funcs), target

    def contents(self) -> Iterator[tuple[str, TextContent]]:
        """File names with what they hold."""
        for i, f in enumerate(self._funcs):
            yield f"{f.name}.ll", TextContent(partial(self._ll, i))
            yield f"{f.name}.s", TextContent(partial(self._assembly, i))

    @cached_property
    def _irs(self) -> list[str]:
        return kernel_texts(self._funcs, self._target, "llvm")

    @cached_property
    def _assemblies(self) -> list[str]:
        return _assembled(self._funcs, self._irs, self._target, "assembly")

    def _ll(self, i: int) -> str:
        """With what a reader needs to make the same object of it."""
        t = self._target
        cpu = f'"target-cpu"="{t.mcpu}" "target-features"="{t.llvm_features}"'
        head, tail = f'target triple = "{t.mtriple}"\n\n', f"\nattributes #0 = {{ {cpu} }}\n"
        return head + self._irs[i] + tail

    def _assembly(self, i: int) -> str:
        return self._assemblies[i]


def kernel_text(f: PrimFunc, target: Target, emit: str = "assembly") -> str:
    """LLVM IR (`emit="llvm"`), assembly, or `"annotated"` assembly of one kernel, to be read."""
    return kernel_texts([f], target, emit)[0]


def kernel_texts(funcs: Sequence[PrimFunc], target: Target, emit: str = "assembly") -> list[str]:
    """The same of several, by one worker."""
    from tensorkiln.codegen.llvm.emit import emit_llvm

    texts = [emit_llvm(f, target) for f in funcs]
    return texts if emit == "llvm" else _assembled(funcs, texts, target, emit)


def _assembled(
    funcs: Sequence[PrimFunc], texts: Sequence[str], target: Target, emit: str
) -> list[str]:
    worker, options = _Worker(), _options(target, emit)
    try:
        named = zip(funcs, texts, strict=True)
        return [worker.compile(f.name, text, options).decode() for f, text in named]
    finally:
        worker.close()
