"""Host code and the runtime as objects that can be loaded without a linker (target `llvmjit`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tensorkiln.artifact import Artifact, InMemoryArtifact
from tensorkiln.base.cache import key_of, user_cache
from tensorkiln.base.errors import UserError
from tensorkiln.base.tools import ToolFailure
from tensorkiln.base.trust import private_temporary
from tensorkiln.link.artifacts import source_name
from tensorkiln.link.isolate import RUNTIME, isolate
from tensorkiln.link.object_format import library_arch
from tensorkiln.link.shared import (
    CRT,
    device_kinds,
    runtime_defines,
    runtime_source,
    runtime_sources_key,
)
from tensorkiln.link.toolchain import (
    Toolchain,
    blamed,
    choose_toolchain,
    tool_error,
)

# Native thread-local variables need a linker to lay them out; emulated ones are found by a call.
# References have 64 bits, since sections may lie anywhere (`_compiler` in codegen/llvm/jit.py).
FLAGS: dict[str, tuple[str, ...]] = {
    "x86_64": ("-femulated-tls", "-mcmodel=large"),
    "aarch64": ("-femulated-tls",),
    "riscv64": ("-femulated-tls",),
}


def jit_objects(
    sources: Mapping[str, str], triple: str, authors: Mapping[str, str] | None = None
) -> dict[str, bytes]:
    """Compile each C source and the runtime; return objects by file name (`entry.o`, `runtime.o`).
    Sources that were compiled before come from the cache. Raises UserError with the compiler's
    output, which names the external code generator that emitted
    the source (`authors` maps file names to artifacts), if one did."""
    tools = choose_toolchain(triple)
    devices, defines = device_kinds(sources), runtime_defines(sources)
    runtime = runtime_source(devices=devices, defines=defines, row=tools.format)
    texts = {**sources, "runtime.c": runtime}
    author_of_file, flags = authors or {}, FLAGS[library_arch(triple)]
    return {
        f"{Path(name).stem}.o": _object(tools, name, text, flags, author_of_file)
        for name, text in texts.items()
    }


def _object(
    tools: Toolchain, name: str, text: str, flags: tuple[str, ...], authors: Mapping[str, str]
) -> bytes:
    key = {**runtime_sources_key(tools), "kind": "jit", "source": text, "flags": " ".join(flags)}
    cache = user_cache()
    entry = cache.get(key_of(key)) if cache is not None else None
    if entry is not None:
        return entry
    with private_temporary("kiln-objects-") as place:
        folder = Path(place).resolve()
        (folder / name).write_text(text)
        try:
            (object_name,) = tools.compile([name], CRT, folder, flags)
        except ToolFailure as failure:
            raise (
                _no_emulated_tls(failure, flags)
                or blamed(failure, authors)
                or tool_error(failure, tools)
            ) from failure
        data = (folder / object_name).read_bytes()
    if cache is not None:
        cache.put(key_of(key), data, key)
    return data


def _no_emulated_tls(failure: ToolFailure, flags: Sequence[str]) -> UserError | None:
    """The error for a compiler without the flag of emulated thread-local variables, as gcc."""
    flag = flags[0]
    if not any(flag in line and "error" in line for line in failure.stderr.splitlines()):
        return None
    return UserError(
        f"{failure.command[0]!r} has no option {flag}, which code in memory needs",
        code="wrong-compiler",
        hint="CC=clang has it, and so have the tools of package ziglang, without CC; "
        "a library in a file needs none",
    )


def for_jit(
    artifacts: Sequence[Artifact | InMemoryArtifact], triple: str
) -> list[Artifact | InMemoryArtifact]:
    """Turn native artifacts into a form that loads without a linker: C sources are compiled, and
    all objects, the runtime's included, come last. All of these have loader `llvmjit`; symbols of
    different origins are kept apart as in a normal link (link/isolate.py)."""
    outputs: list[Artifact | InMemoryArtifact] = []
    objects: list[Artifact] = []
    sources: dict[str, Artifact] = {}
    for a in artifacts:
        if not isinstance(a, Artifact) or a.loader != "native":
            outputs.append(a)
        elif a.file_name.endswith(".c"):
            sources[source_name(a)] = a
        elif a.file_name.endswith(".o"):
            objects.append(replace(a, loader="llvmjit"))
        else:
            outputs.append(replace(a, loader="llvmjit"))
    owners = {f"{Path(name).stem}.o": a.name for name, a in sources.items()}
    texts = {name: a.text() for name, a in sources.items()}
    authors = {name: a.name for name, a in sources.items()}
    for name, data in jit_objects(texts, triple, authors).items():
        objects.append(Artifact("host", "llvmjit", name, data))
    named = [(_owner(a, owners), a.view) for a in objects]
    bitcode = [Path(a.file_name).stem for a in artifacts if a.file_name.endswith(".bc")]
    settled = isolate(named, bitcode=bitcode, unseen=True)
    for a, (_, view), content in zip(objects, named, settled, strict=True):
        outputs.append(a if content is view else replace(a, content=content))
    return outputs


def _owner(a: Artifact, owners: Mapping[str, str]) -> str:
    """The owner of an object: its own artifact if an external made it, else the artifact of the C
    source it was compiled from, else the runtime."""
    if a.codegen_id != "host":
        return a.name
    return owners.get(a.file_name, RUNTIME)
