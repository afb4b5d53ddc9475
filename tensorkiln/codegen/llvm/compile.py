"""Tensor programs -> object files, in worker processes, through the content-addressed cache."""

from __future__ import annotations

import functools
import hashlib
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tensorkiln.base.cache import Cache, key_of
from tensorkiln.base.debug import SOURCES, say
from tensorkiln.base.errors import InternalError
from tensorkiln.base.version import VERSION
from tensorkiln.codegen.llvm.emit import emit_llvm
from tensorkiln.codegen.llvm.worker import read_frame, write_frame
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.text.printer import print_function
from tensorkiln.target import Target


@functools.cache
def _generator() -> str:
    """A hash of this room's sources: objects of another code generator are never reused."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Kernel:
    """One compiled tensor program: its symbol and relocatable object."""

    name: str
    object: bytes
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


def compile_kernels(
    funcs: Sequence[PrimFunc],
    target: Target,
    *,
    jobs: int = 1,
    cache: Cache | None = None,
    on_done: Callable[[str], None] = lambda name: None,
) -> list[Kernel]:
    """Object code of every function, in order. The first failure is raised after all stopped."""
    local = threading.local()
    workers: list[_Worker] = []
    lock = threading.Lock()

    def one(f: PrimFunc) -> Kernel:
        components = {
            "tir": print_function(f, canonical=True), "symbol": f.name,
            "target": target.llvm_features + target.mtriple + target.mcpu,
            "generator": _generator(), "compiler": VERSION,
        }  # fmt: skip
        key = key_of(components)
        found = cache.get(key) if cache is not None else None
        if found is None:
            if not hasattr(local, "worker"):
                local.worker = _Worker()
                with lock:
                    workers.append(local.worker)
            text = emit_llvm(f, target)
            say(SOURCES, f"{f.name}.ll\n{text}")
            made = local.worker.compile(f.name, text, _options(target, "object"))
            if cache is not None:
                cache.put(key, made, components)
            on_done(f.name)
            return Kernel(f.name, made, False)
        say(SOURCES, f"{f.name}.ll: object from the cache; KILN_CACHE=0 emits it again")
        on_done(f.name)
        return Kernel(f.name, found, True)

    try:
        with ThreadPoolExecutor(max(1, jobs)) as pool:
            return list(pool.map(one, funcs))
    finally:
        for w in workers:
            w.close()


def kernel_text(f: PrimFunc, target: Target, emit: str = "assembly") -> str:
    """LLVM IR (`emit="llvm"`), assembly, or `"annotated"` assembly of one kernel, to be read."""
    return kernel_texts([f], target, emit)[0]


def kernel_texts(funcs: Sequence[PrimFunc], target: Target, emit: str = "assembly") -> list[str]:
    """The same of several, by one worker."""
    texts = [emit_llvm(f, target) for f in funcs]
    if emit == "llvm":
        return texts
    worker, options = _Worker(), _options(target, emit)
    try:
        named = zip(funcs, texts, strict=True)
        return [worker.compile(f.name, text, options).decode() for f, text in named]
    finally:
        worker.close()
