"""Imports may only run downwards, and never in a circle: walks every module's AST, function-local
imports and those for types only included."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

PACKAGE = "tensorkiln"
ROOT = Path(__file__).resolve().parents[1] / PACKAGE

FLOORS: tuple[frozenset[str], ...] = (
    frozenset({"base"}),
    frozenset({"ir"}),
    frozenset({"target", "artifact", "arith", "kernel_cache"}),
    frozenset({"ops"}),
    frozenset({"kernels"}),
    frozenset({"family_rows"}),
    frozenset({"script"}),
    frozenset(
        {"passes", "frontend", "transform", "schedule", "codegen", "external", "link", "runtime"}
        | {"inspectors"}
    ),
    frozenset({"family_schedules"}),
    frozenset({"library", "mlf"}),
    frozenset({"executable"}),
    frozenset({"assemble", "compile_plan", "kernel_code", "kind_hooks", "notes", "options"}),
    frozenset({"stages"}),
    frozenset({"pipeline"}),
    frozenset({"checks", "measure", "dynamo"}),
    frozenset({"verification"}),
    frozenset({"report"}),
    frozenset({"scale"}),
    frozenset({"tuning"}),
    frozenset({"cli"}),
)
# The files of a family that say what it computes, and when, and its examples; the others make its
# kernels.
ROWS = frozenset({"row", "gpu_row", "knobs", "costs", "decomposition", "case"})
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}

# Rooms that must be installable with less than everything below their floor.
ONLY = {
    "runtime": frozenset({"runtime", "base", "artifact"}),
    "link": frozenset({"link", "base", "artifact", "target"}),
}

# Packages and files of a room that are on floors of their own, below the files beside them.
WITHIN: dict[str, tuple[frozenset[str], ...]] = {
    "codegen": (
        frozenset({"expand"}),
        frozenset({"c_text", "stack"}),
        frozenset({"host", "kernel_names"}),
        frozenset({"device_functions"}),
        frozenset({"c_like", "llvm", "memory", "outer"}),
        frozenset({"ptx"}),
    ),
    "frontend": (frozenset({"graph"}), frozenset({"onnx", "torch"})),
}

# The command line is written like a user's program, over the public names.
TOP = "cli"

# Package data that holds no Python to be checked.
DATA_ROOMS = frozenset({"crt", "hosts"})


def room_of(module: str) -> str | None:
    """Room of a dotted module name: None for the package root or for a third party. A file of a
    family has one by its kind."""
    parts = module.split(".")
    if parts[0] != PACKAGE or len(parts) < 2:
        return None
    if parts[1] == "families" and len(parts) > 3:
        return "family_rows" if parts[3] in ROWS else "family_schedules"
    return parts[1]


def resolve(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    """Absolute dotted name that a `from ... import` statement in `module` names."""
    if node.level == 0:
        return node.module or ""
    base = module.split(".")
    drop = node.level - 1 if is_package else node.level
    base = base[: len(base) - drop]
    return ".".join([*base, node.module] if node.module else base)


def imported(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import in the file; `from p import a` yields `p.a` for rooms."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            source = resolve(node, module, is_package)
            if source == PACKAGE:
                for alias in node.names:
                    yield node.lineno, f"{PACKAGE}.{alias.name}"
            else:
                yield node.lineno, source


def violations(module: str, is_package: bool, source: str) -> list[str]:
    """Sentences for every import in `source` that runs up, sideways, or to the package root."""
    here = room_of(module)
    if here == "__main__":  # `python -m tensorkiln` is the command line
        here = TOP
    if here is None or here in DATA_ROOMS:
        return []
    sentences: list[str] = []
    for line, name in imported(ast.parse(source), module, is_package):
        if name.split(".")[0] != PACKAGE:
            continue
        there = room_of(name)
        where = f"{module}:{line}: {here} imports {name}"
        if there is None:
            if here != TOP:
                sentences.append(f"{where}: the package root is above every room but {TOP}")
        elif there == here:
            if not runs_down_within(here, module, name):
                sentences.append(f"{where}: an import must run to a lower floor of the room")
        elif there not in FLOOR_OF:
            sentences.append(f"{where}: {there!r} is not a room of the house plan")
        elif here in ONLY and there not in ONLY[here]:
            sentences.append(f"{where}: {here} may use only {sorted(ONLY[here])}")
        elif FLOOR_OF[there] >= FLOOR_OF[here]:
            sentences.append(f"{where}: an import must run to a lower floor")
    return sentences


def runs_down_within(room: str, module: str, name: str) -> bool:
    """Whether an import of a file of the same room stays in its package or runs to a lower one."""
    floors = WITHIN.get(room, ())
    floor_of = {package: floor for floor, packages in enumerate(floors) for package in packages}
    here, there = (".".join(full.split(".")[2:3]) for full in (module, name))
    if here == there or here not in floor_of:
        return True
    return floor_of.get(there, len(floors)) < floor_of[here]


def modules() -> list[tuple[str, bool, Path]]:
    """(dotted name, is package, path) of every Python file of the package, sorted."""
    files = []
    for path in sorted(ROOT.rglob("*.py")):
        parts = [PACKAGE, *path.relative_to(ROOT).with_suffix("").parts]
        is_package = parts[-1] == "__init__"
        files.append((".".join(parts[:-1] if is_package else parts), is_package, path))
    return files


def test_every_room_has_a_floor() -> None:
    """A new top-level room must be put on a floor before it may hold code."""
    rooms = {room_of(name) for name, _, _ in modules() if "." in name}
    unknown = rooms - set(FLOOR_OF) - DATA_ROOMS - {"__main__", "families"}
    assert not unknown, f"rooms without a floor: {sorted(unknown)}"


def test_imports_run_down() -> None:
    """No file of the package imports a higher floor, a neighbour, or the package root."""
    assert modules(), f"no Python files below {ROOT}"
    found = [
        sentence
        for name, is_package, path in modules()
        for sentence in violations(name, is_package, path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n" + "\n".join(found)


def file_imports(files: Mapping[str, tuple[bool, str]]) -> dict[str, set[str]]:
    """Of each file, the files that it imports; `files`: whether it is a package, and its text."""
    found: dict[str, set[str]] = {}
    for name, (is_package, text) in files.items():
        found[name] = set()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                found[name] |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                source = resolve(node, name, is_package)
                whole = {f"{source}.{alias.name}" for alias in node.names}
                found[name] |= whole & files.keys() or {source}
        found[name] = found[name] & files.keys() - {name}
    return found


def circles(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """Files that import each other: every strongly connected component of more than one."""
    above = {name: reachable(edges, name) for name in edges}
    rings = {frozenset(other for other in above[name] if name in above[other]) for name in edges}
    return sorted(sorted(ring) for ring in rings if len(ring) > 1)


def reachable(edges: Mapping[str, set[str]], start: str) -> set[str]:
    """`start` and everything that it imports, directly or not."""
    found, left = {start}, [start]
    while left:
        new = edges[left.pop()] - found
        found |= new
        left += new
    return found


def test_no_file_imports_itself_through_others() -> None:
    files = {
        name: (is_package, path.read_text(encoding="utf-8")) for name, is_package, path in modules()
    }
    assert circles(file_imports(files)) == []


def test_a_circle_is_found() -> None:
    files = {
        "tensorkiln.ir": (True, ""),
        "tensorkiln.ir.a": (False, "def f():\n    from tensorkiln.ir import b\n"),
        "tensorkiln.ir.b": (False, "if TYPE_CHECKING:\n    from tensorkiln.ir.c import C\n"),
        "tensorkiln.ir.c": (False, "import tensorkiln.ir.a\nfrom tensorkiln.ir.d import d\n"),
        "tensorkiln.ir.d": (False, "from . import nothing\n"),
    }
    ring = ["tensorkiln.ir.a", "tensorkiln.ir.b", "tensorkiln.ir.c"]
    assert circles(file_imports(files)) == [ring]


@pytest.mark.parametrize(
    ("module", "source", "bad"),
    [
        ("tensorkiln.ir.node", "import tensorkiln.base.errors", False),
        ("tensorkiln.ir.node", "from tensorkiln.transform import relax", True),
        ("tensorkiln.ir.node", "def f():\n    from ..ops import conv\n", True),
        ("tensorkiln.ir.node", "from . import types", False),
        ("tensorkiln.ir.node", "from .. import pipeline", True),
        ("tensorkiln.ir.node", "import tensorkiln", True),
        ("tensorkiln.codegen.llvm", "from tensorkiln.schedule import cpu", True),
        ("tensorkiln.families.a.row", "from tensorkiln.kernels.family import Family", False),
        ("tensorkiln.families.a.row", "from tensorkiln.families.b.knobs import x", False),
        ("tensorkiln.families.a.row", "from tensorkiln.families.a.program import x", True),
        ("tensorkiln.families.a.gpu", "from tensorkiln.families.a.row import x", False),
        ("tensorkiln.families.a.gpu", "from tensorkiln.schedule.build import nest", False),
        ("tensorkiln.schedule.build", "from tensorkiln.families.a.program import x", True),
        ("tensorkiln.runtime.load", "from tensorkiln.ir import types", True),
        ("tensorkiln.runtime.load", "from tensorkiln.artifact import manifest", False),
        ("tensorkiln.link.shared", "from tensorkiln.target import Target", False),
        ("tensorkiln.link.shared", "from tensorkiln.ops import conv", True),
        ("tensorkiln.codegen.c_text.text", "from tensorkiln.codegen.host import header", True),
        ("tensorkiln.codegen.outer.code", "from tensorkiln.codegen.c_text import names", False),
        ("tensorkiln.frontend.onnx.importer", "from tensorkiln.frontend.graph import scan", False),
        ("tensorkiln.frontend.onnx.importer", "from tensorkiln.frontend.onnx import load", False),
        ("tensorkiln.frontend.torch.importer", "from tensorkiln.frontend.onnx import load", True),
        ("tensorkiln.frontend.onnx.load", "from tensorkiln.frontend import torch", True),
        ("tensorkiln.frontend.graph.scan", "import tensorkiln.frontend.onnx.scan", True),
        ("tensorkiln.frontend.any", "from tensorkiln.frontend.torch import program", False),
        ("tensorkiln.cli.main", "from tensorkiln import pipeline, measure", False),
        ("tensorkiln.cli.main", "import numpy, onnx", False),
        ("tensorkiln.cli.main", "def f():\n    import tensorkiln as tk\n", False),
        ("tensorkiln.cli.main", "from tensorkiln.utils import x", True),
    ],
)
def test_the_check_can_fail(module: str, source: str, bad: bool) -> None:
    """The walker itself: known-good and known-bad imports, relative and function-local ones."""
    assert bool(violations(module, False, source)) is bad
