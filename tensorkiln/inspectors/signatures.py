"""Lists of functions: those in object code and bitcode, and the signatures of callable ones."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from tensorkiln.artifact import Artifact
from tensorkiln.artifact.device_functions import DeviceFunctionInfo, device_functions_from
from tensorkiln.artifact.metadata import (
    FunctionInfo,
    KernelInfo,
    Metadata,
    ParamInfo,
    functions_from,
    states_role,
)
from tensorkiln.artifact.read_binary import binary_of
from tensorkiln.artifact.sections import METADATA
from tensorkiln.base.errors import UserError
from tensorkiln.inspectors.llvm import show_functions
from tensorkiln.inspectors.objects import LinkedCode, functions_in
from tensorkiln.inspectors.table import table_lines

_TEXT = re.compile(r"static const char metadata\[\] =\n((?: *\"(?:[^\"\\\n]|\\.)*\"\n?)+);")
_HOST = ("native", "llvmjit")  # loaders of the library's own code
_LITERAL = re.compile(r"\"((?:[^\"\\\n]|\\.)*)\"")


def list_functions(artifacts: Sequence[Artifact]) -> Iterator[str]:
    """A table of all functions in the object code and bitcode among the artifacts, the largest
    first. The size of a function in bitcode is unknown, and shown as `-`."""
    rows: list[tuple[int, str, str]] = []
    for artifact in artifacts:
        rows += [(size, name, artifact.name) for name, size in _code_of(artifact)]
    rows.sort(key=lambda row: (-row[0], row[1]))
    texts = [("-" if size < 0 else str(size), name, place) for size, name, place in rows]
    yield from table_lines(("bytes", "function", "artifact"), texts, "r")


def _code_of(artifact: Artifact) -> list[tuple[str, int]]:
    """(name, bytes) of the functions of object code, (name, -1) of those of bitcode; empty for
    other artifacts."""
    if isinstance(artifact.content, LinkedCode) or artifact.file_name.endswith(".o"):
        return [(f.name, f.size) for f in functions_in(artifact)]
    if not artifact.file_name.endswith(".bc"):
        return []
    lines = map(str.split, show_functions(artifact).splitlines())
    return [(line[-1], -1) for line in lines if line[0] == "defined"]


def print_signatures(artifacts: Sequence[Artifact], loader: str) -> Iterator[str]:
    """Yield a line for each function that `loader` loads, with its inputs and outputs.

    For `native` and `llvmjit`: the callable functions, as the metadata or the entry file lists
    them, then the kernels, by symbol. For another loader: the kernels that the metadata says it
    provides, and the functions that its own `.json` artifacts list under `functions`, device
    functions among them. Raises UserError (code `no-signatures`) if there are none; it names the
    loaders whose functions are known.
    """
    lines = _signatures(artifacts, loader)
    if not lines:
        loaders = dict.fromkeys(a.loader for a in artifacts)
        listed_loaders = [x for x in loaders if x != loader and _signatures(artifacts, x)]
        raise UserError(
            f"nothing here says what functions loader {loader!r} has",
            code="no-signatures",
            hint=f"known: those of {', '.join(listed_loaders) or 'no loader'}; a .json artifact of "
            f"loader {loader!r} with `functions`, as metadata lists them, would say it",
        )
    yield from lines


def _signatures(artifacts: Sequence[Artifact], loader: str) -> list[str]:
    loader_artifacts = [a for a in artifacts if a.loader == loader]
    tables = list(filter(None, map(metadata_in, artifacts)))
    host = loader in _HOST
    lines = [_kernel_line(k) for m in tables for k in m.kernels if k.loader == (loader, "")[host]]
    if host:
        lines = [*(signature(f) for m in tables for f in m.functions), *lines]
        if not tables:
            lines = [f"kernel {name}" for a in loader_artifacts for name, _ in _code_of(a)]
        return [f"{line}\n" for line in lines]
    for a in loader_artifacts:
        if a.file_name.endswith(".json"):
            devices = device_functions_from(a.view, a.name)
            if devices is not None:
                lines += map(_device_line, devices)
            else:
                lines += [signature(f) for f in functions_from(a.view, a.name) or ()]
    return [f"{line}\n" for line in dict.fromkeys(lines)]


def _kernel_line(k: KernelInfo) -> str:
    if not k.loader:
        return f"kernel {k.symbol}  ({k.kernel_class or '-'})"
    f = FunctionInfo(k.symbol, "kernel", k.inputs, k.outputs)
    device_text = f" on {k.target_key}" if k.target_key else ""
    return f"{signature(f)}{device_text}  ({k.kernel_class or '-'})"


def _device_line(f: DeviceFunctionInfo) -> str:
    threads = " x ".join(map(str, f.block))
    shared = f", {f.shared_bytes} bytes shared" if f.shared_bytes else ""
    by_threads = f"; copied by threads: {', '.join(f.notes)}" if f.notes else ""
    return f"device {f.name}({', '.join(f.params)})  {threads} threads{shared}{by_threads}"


def metadata_in(artifact: Artifact) -> Metadata | None:
    """The metadata in a metadata file, or in an entry file as C or as an object; None for other
    files. UserError (code `bad-metadata`) if it cannot be parsed."""
    if artifact.file_name == "metadata.json":
        return Metadata.from_bytes(artifact.view, artifact.name)
    if artifact.file_name.endswith(".o"):
        binary = binary_of(artifact.view, artifact.name)
        section = binary.section(METADATA)
        return (
            None if section is None else Metadata.from_bytes(binary.content(section), binary.place)
        )
    if not artifact.file_name.endswith("entry.c"):
        return None
    text = _TEXT.search(artifact.text())
    if text is None:
        return None
    try:
        # The escapes in the entry file's string literals, which are ASCII, mean the same in JSON.
        body = "".join(json.loads(f'"{part}"') for part in _LITERAL.findall(text[1]))
    except ValueError as error:
        message = f"its metadata cannot be read: {error}"
        raise UserError(message, code="bad-metadata", where=artifact.name) from None
    return Metadata.from_bytes(body.encode(), artifact.name)


def signature(f: FunctionInfo) -> str:
    """`graph main(image: float32[batch, 784]) -> logits: float32[batch, 10]  where batch <= 8`."""
    inputs, outputs = (", ".join(_param(p, f.kind) for p in side) for side in (f.inputs, f.outputs))
    sizes = [f"{name} >= {lower}" for name, lower in f.symbols.items() if lower]
    tail = f"  where {', '.join([*sizes, *f.requires])}" if sizes or f.requires else ""
    return f"{f.kind} {f.name}({inputs})" + (f" -> {outputs}" if outputs else "") + tail


def _param(p: ParamInfo, kind: str) -> str:
    return f"{p.name}: {p.dtype}{p.shape_text}" + (
        f" ({p.role})" if states_role(kind, p.role) else ""
    )
