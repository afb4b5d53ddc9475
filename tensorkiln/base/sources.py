"""A digest of this package's own sources, which identifies the compiler in cache keys."""

from __future__ import annotations

import ast
import functools
import hashlib
import os
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from io import FileIO
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)


@functools.cache
def source_digest(*rooms: str) -> str:
    """Return the SHA-256 (hex) over the names and texts of all Python files below folders of the
    package, such as `codegen/llvm`; of the whole package if none is given. Memoised."""
    digest = hashlib.sha256()
    for name in sorted(name for room in rooms or ("",) for name in _sources(room)):
        with FileIO(f"{_PACKAGE}/{name}") as stream:  # half the time of Path.read_bytes
            text = stream.readall()
        digest.update(f"{name} {len(text)}\n".encode())
        digest.update(text)
    return digest.hexdigest()


@functools.cache
def package_digest() -> str:
    """Return the SHA-256 (hex) over the names and bytes of all files of the package, the C runtime,
    headers, templates and tables included: what decides the bytes of everything made. Memoised."""
    digest = hashlib.sha256()
    for path in sorted(p for p in _PACKAGE.rglob("*") if p.is_file()):
        if "__pycache__" not in path.parts:
            content = path.read_bytes()
            digest.update(f"{path.relative_to(_PACKAGE).as_posix()} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()


def modules_digest(*modules: str, rooms: Sequence[str] = ()) -> str:
    """Return the SHA-256 (hex) over the names and texts of Python modules and of what these import,
    directly or not: of this package from `rooms`, of another one from all of it."""
    texts: dict[str, bytes] = {}
    for module in modules:
        top = module.partition(".")[0]
        below = [f"{top}.{room}." for room in rooms] if top == _PACKAGE.name else [f"{top}."]
        _collect(module, tuple(below), texts)
    digest = hashlib.sha256()
    for name in sorted(texts):
        digest.update(f"{name} {len(texts[name])}\n".encode())
        digest.update(texts[name])
    return digest.hexdigest()


def _collect(module: str, below: tuple[str, ...], texts: dict[str, bytes]) -> None:
    """Add the text of a module, if its name begins with one of `below`, and those of what it
    imports from there."""
    path = _file_of(module) if f"{module}.".startswith(below) else None
    if module in texts or path is None:
        return
    texts[module] = text = path.read_bytes()
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    _collect(module.rpartition(".")[0], below, texts)  # which runs before
    for name in _imported(text, package):
        _collect(name, below, texts)


@functools.cache
def _imported(text: bytes, package: str) -> tuple[str, ...]:
    """The names that a module of `package` imports, of modules or of what they define."""
    names: list[str] = []
    statements: list[ast.AST] = [ast.parse(text)]
    for node in statements:  # which grows; expressions, most of a tree, import nothing
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            source = ".".join([*(above if node.level else ()), *filter(None, [node.module])])
            names += (source, *(f"{source}.{alias.name}" for alias in node.names))
        else:
            below = ast.iter_child_nodes(node)
            statements += (n for n in below if isinstance(n, _STATEMENTS))
    return tuple(names)


def _file_of(module: str) -> Path | None:
    """The Python file of a module, which is not imported; None if there is none of its name."""
    top, *parts = module.split(".")
    spec = find_spec(top)
    if spec is None or spec.origin is None:
        return None
    if not parts and not spec.submodule_search_locations:
        return Path(spec.origin)
    place = Path(spec.origin).parent.joinpath(*parts)
    files = (place.with_name(f"{place.name}.py"), place / "__init__.py")
    return next((file for file in files if file.is_file()), None)


def _sources(folder: str) -> Iterator[str]:
    """Yield the Python files below a folder of the package, as `folder/file.py`."""
    for entry in os.scandir(_PACKAGE / folder):
        name = f"{folder}/{entry.name}" if folder else entry.name
        if entry.name.endswith(".py"):
            yield name
        elif entry.name != "__pycache__" and entry.is_dir():
            yield from _sources(name)
