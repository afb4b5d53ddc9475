"""Functions: those that code generators made, and those that can be called from outside."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from tensorkiln.artifact import Artifact
from tensorkiln.artifact.elf import elf_of
from tensorkiln.artifact.metadata import (
    FunctionInfo,
    KernelInfo,
    Metadata,
    TensorInfo,
    functions_from,
)
from tensorkiln.artifact.sections import METADATA
from tensorkiln.base.errors import UserError
from tensorkiln.inspectors.llvm import show_functions
from tensorkiln.inspectors.objects import LinkedCode, functions_in
from tensorkiln.inspectors.table import table_lines

_TEXT = re.compile(r"static const char metadata\[\] =\n((?: *\"(?:[^\"\\\n]|\\.)*\"\n?)+);")
_HOST = ("native", "llvmjit")  # loaders of the library's own code
_LITERAL = re.compile(r"\"((?:[^\"\\\n]|\\.)*)\"")


def list_functions(artifacts: Sequence[Artifact]) -> Iterator[str]:
    """All functions of the object code and the bitcode among the artifacts, the largest first;
    how large those of bitcode will be is not known."""
    rows: list[tuple[int, str, str]] = []
    for artifact in artifacts:
        rows += [(size, name, artifact.name) for name, size in _code_of(artifact)]
    rows.sort(key=lambda row: (-row[0], row[1]))
    texts = [("-" if size < 0 else str(size), name, where) for size, name, where in rows]
    yield from table_lines(("bytes", "function", "artifact"), texts, "r")


def _code_of(artifact: Artifact) -> list[tuple[str, int]]:
    """The functions of object code or bitcode, with their bytes, -1 for unknown."""
    if isinstance(artifact.content, LinkedCode) or artifact.file_name.endswith(".o"):
        return [(f.name, f.size) for f in functions_in(artifact)]
    if not artifact.file_name.endswith(".bc"):
        return []
    lines = map(str.split, show_functions(artifact).splitlines())
    return [(line[-1], -1) for line in lines if line[0] == "defined"]


def print_signatures(artifacts: Sequence[Artifact], loader: str) -> Iterator[str]:
    """Each function that `loader` loads, with its inputs and outputs.

    Of `native`, or `llvmjit`, those that can be called, as metadata or the entry file says, then
    the kernels, which have C names and addresses for parameters. Of another loader what metadata
    says of the kernels it provides, and what its own `.json` files list under `functions`. Raises
    UserError (code `no-signatures`), naming the loaders whose functions are known.
    """
    lines = _signatures(artifacts, loader)
    if not lines:
        others = dict.fromkeys(a.loader for a in artifacts)
        known = [x for x in others if x != loader and _signatures(artifacts, x)]
        raise UserError(
            f"nothing here says what functions loader {loader!r} has",
            code="no-signatures",
            hint=f"known: those of {', '.join(known) or 'no loader'}; a .json artifact of loader "
            f"{loader!r} with `functions`, as metadata lists them, would say it",
        )
    yield from lines


def _signatures(artifacts: Sequence[Artifact], loader: str) -> list[str]:
    own = [a for a in artifacts if a.loader == loader]
    said = list(filter(None, map(metadata_in, artifacts)))
    host = loader in _HOST
    lines = [_kernel_line(k) for m in said for k in m.kernels if k.loader == (loader, "")[host]]
    if host:
        lines = [*(signature(f) for m in said for f in m.functions), *lines]
        if not said:
            lines = [f"kernel {name}" for a in own for name, _ in _code_of(a)]
        return [f"{line}\n" for line in lines]
    for a in own:
        if a.file_name.endswith(".json"):
            lines += [signature(f) for f in functions_from(a.view, a.name) or ()]
    return [f"{line}\n" for line in dict.fromkeys(lines)]


def _kernel_line(k: KernelInfo) -> str:
    if not k.loader:
        return f"kernel {k.symbol}  ({k.kernel_class or '-'})"
    f = FunctionInfo(k.symbol, "kernel", k.inputs, k.outputs)
    where = f" on {k.target_key}" if k.target_key else ""
    return f"{signature(f)}{where}  ({k.kernel_class or '-'})"


def metadata_in(artifact: Artifact) -> Metadata | None:
    """What a metadata file, or an entry file in C or compiled, says of its functions; None for
    other files."""
    if artifact.file_name == "metadata.json":
        return Metadata.from_bytes(artifact.view, artifact.name)
    if artifact.file_name.endswith(".o"):
        elf = elf_of(artifact.view, artifact.name)
        section = elf.section(METADATA)
        return None if section is None else Metadata.from_bytes(elf.content(section), elf.where)
    if not artifact.file_name.endswith("entry.c"):
        return None
    text = _TEXT.search(artifact.text())
    if text is None:
        return None
    try:
        # What C and JSON write alike: the entry file quotes ASCII only.
        body = "".join(json.loads(f'"{part}"') for part in _LITERAL.findall(text[1]))
    except ValueError as error:
        message = f"its metadata cannot be read: {error}"
        raise UserError(message, code="bad-metadata", where=artifact.name) from None
    return Metadata.from_bytes(body.encode(), artifact.name)


def signature(f: FunctionInfo) -> str:
    """`main(image: float32[batch, 784]) -> logits: float32[batch, 10]`, with its conditions."""
    inputs, outputs = (", ".join(map(_tensor, side)) for side in (f.inputs, f.outputs))
    sizes = [f"{name} >= {least}" for name, least in f.symbols.items()]
    tail = f"  where {', '.join([*sizes, *f.requires])}" if sizes or f.requires else ""
    return f"{f.kind} {f.name}({inputs})" + (f" -> {outputs}" if outputs else "") + tail


def _tensor(t: TensorInfo) -> str:
    dims = "" if t.dims is None else f"[{', '.join(map(str, t.dims))}]"
    return f"{t.name}: {t.dtype}{dims}" + (f" ({t.role})" if t.role else "")
