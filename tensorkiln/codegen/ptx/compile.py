"""LLVM IR of device functions -> PTX per architecture and, where ptxas is found, code for the chip.

Each function is compiled by itself, in LLVM's worker processes (`codegen/llvm/worker.py`) and
through the cache; then the texts are joined. No PTX version is asked for, because LLVM aborts for
one that is too low for the architecture: LLVM takes the lowest that has it, and a driver accepts
all PTX that is not newer than itself. `_PTX_VERSIONS` lists the exception. PTX for an architecture
whose name ends in `a` runs on that architecture alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from tensorkiln.base.cache import key_of
from tensorkiln.base.debug import SOURCES, say
from tensorkiln.base.errors import InternalError
from tensorkiln.base.sources import source_digest
from tensorkiln.base.version import VERSION
from tensorkiln.codegen.llvm.compile import Workers
from tensorkiln.kernel_cache import KernelCache

TRIPLE = "nvptx64-nvidia-cuda"
_GENERATOR = ("codegen/llvm", "codegen/ptx")
# Of 7.5, LLVM's lowest is 6.3, which has neither its ldmatrix nor all shapes of its tensor cores.
_PTX_VERSIONS = {"sm_75": "+ptx65"}
# What stands before the first function of every module: comments, version, target, address size.
_HEAD = re.compile(
    r"(//[^\n]*\n)*\n*(?P<head>\.version [^\n]+\n\.target [^\n]+\n\.address_size 64\n)"
)


def ptx_of(
    irs: Mapping[str, str],
    archs: Sequence[str],
    *,
    jobs: int = 1,
    cache: KernelCache | None = None,
    on_done: Callable[[str], None] = lambda name: None,
) -> dict[str, str]:
    """A PTX module for each architecture, of the functions whose LLVM IR `irs` has by name, `jobs`
    at a time; without functions it is a head alone. Raises InternalError with the function's name
    if LLVM fails."""
    # Imported here, since a compile that finds all its functions in the cache needs it not.
    from concurrent.futures import ThreadPoolExecutor

    irs = irs or {"nothing": ""}
    todo = [(name, arch) for name in irs for arch in archs]

    def one(item: tuple[str, str]) -> str:
        name, arch = item
        ptx = _function(workers, name, irs[name], arch, cache)
        if arch == archs[-1]:
            on_done(name)
        return ptx

    with Workers() as workers, ThreadPoolExecutor(max(1, jobs)) as pool:
        texts = dict(zip(todo, pool.map(one, todo), strict=True))
    return {arch: joined([texts[name, arch] for name in irs]) for arch in archs}


def _function(workers: Workers, name: str, ir: str, arch: str, cache: KernelCache | None) -> str:
    """PTX of one function, from the cache if it is there."""
    components = {
        "kind": "ptx",
        "ir": ir,
        "arch": arch,
        "generator": source_digest(*_GENERATOR),
        "compiler": VERSION,
    }
    key = key_of(components)
    entry = cache.store.get(key) if cache is not None else None
    if entry is not None:
        return entry.decode()
    say(SOURCES, f"{name}.ll\n{ir}")
    ptx, _ = workers.compile(name, ir, options_of(arch))
    if cache is not None:
        cache.store.put(key, ptx, components)
    return ptx.decode()


def options_of(arch: str) -> dict[str, object]:
    """The options of `codegen.llvm.worker` for an architecture: no PTX version, except where LLVM's
    choice is too low for instructions that the architecture has."""
    features = _PTX_VERSIONS.get(arch, "")
    return {"triple": TRIPLE, "cpu": arch, "features": features, "opt": 3, "emit": "assembly"}


def joined(texts: Sequence[str]) -> str:
    """Modules of one architecture as one; no two define the same name."""
    heads, bodies = [], []
    for text in texts:
        match = _HEAD.match(text)
        if match is None:
            raise InternalError("LLVM wrote PTX without a head", code="llvm-error")
        heads.append(match["head"])
        bodies.append(text[match.end() :].strip("\n"))
    if len(set(heads)) != 1:
        raise InternalError("functions of one architecture have several heads", code="llvm-error")
    return "\n\n".join([heads[0].strip("\n"), *filter(None, bodies)]) + "\n"
