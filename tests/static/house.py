"""How large each room is, which functions are complex, and which names say nothing:

    python -m tests.static.house [--write]

house.json holds the limits. A room is a folder of the package, or of the tests; a file beside the
rooms belongs to "files". A room's limit is its lines rounded up to a hundred, so that it grows by a
commit that changes the table and says why. A function of the package with more than LIMIT paths
(its cyclomatic complexity) is an exception by name; exceptions are never
added, and their numbers only fall. A name that is one of WORDS says how a value came to be or where
it stands, not what it is; how many a room has only falls. So do, for each room, the comparisons
with names of element types, and tables by such names: what depends on a type is a field of its row
(`base/element_types.py`) or follows from one. `--write` writes the limits of now.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from tensorkiln.base.element_types import ELEMENT_TYPES

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("house.json")
LIMIT, STEP = 15, 100
SUFFIXES = {".py", ".c", ".h", ".hpp"}
# Participles, particles and pronouns do not name what a value holds. The list only grows.
_WORDS = (
    "asked at both bound built cut done each every found given gone got had held here how it kept "
    "known least left less lost made meant met more most much none off one ones other others ours "
    "own put rest said same seen sent shown so such taken that theirs them then there these this "
    "those told took used what when where which whose why wanted way"
)
WORDS = frozenset(_WORDS.split())


def sources() -> Iterator[Path]:
    """The files of Python, C and C++ of the package and the tests."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", "tensorkiln", "tests"],
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.suffix in SUFFIXES and path.is_file():
            yield path


def lines_by_room() -> dict[str, int]:
    """Lines of Python, C and C++ of each room, "tensorkiln/schedule" and "tests/schedule"."""
    lines: Counter[str] = Counter()
    for path in sources():
        lines[room_of(path)] += len(path.read_bytes().splitlines())
    return dict(sorted(lines.items()))


def room_of(path: Path) -> str:
    """The room of a file: "tensorkiln/schedule", "tests/files"."""
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[:2]) if len(parts) > 2 else f"{parts[0]}/files"


def words_by_room() -> dict[str, int]:
    """How many assigned names of each room are among WORDS."""
    counts: Counter[str] = Counter()
    for path in sources():
        if path.suffix == ".py":
            names = assigned_names(ast.parse(path.read_text(encoding="utf-8")))
            counts[room_of(path)] += sum(name in WORDS for name in names)
    return {room: count for room, count in sorted(counts.items()) if count}


def assigned_names(tree: ast.AST) -> Iterator[str]:
    """Every name that is assigned, bound by a loop, a pattern or `with`, or a parameter."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name


def complex_functions() -> dict[str, int]:
    """Functions of the package with more than LIMIT paths, as "file:function", and their paths."""
    paths: dict[str, int] = {}
    for path in sorted((ROOT / "tensorkiln").rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        for function, count in paths_of(ast.parse(path.read_text(encoding="utf-8"))):
            if count > LIMIT:
                key = f"{file}:{function}"
                paths[key] = max(paths.get(key, 0), count)
    return paths


def paths_of(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Each function under `tree` by its qualified name, with its cyclomatic complexity: one and one
    for each branch, loop, handler, case, operand of `and` and `or` after the first, and each `for`
    and `if` of a comprehension. What is defined inside of a function counts as a part of it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, 1 + sum(map(_branches, ast.walk(node)))
        elif isinstance(node, ast.ClassDef):
            yield from paths_of(node, f"{prefix}{node.name}.")
        else:
            yield from paths_of(node, prefix)


def _branches(node: ast.AST) -> int:
    match node:
        case ast.If() | ast.IfExp() | ast.For() | ast.While() | ast.ExceptHandler():
            return 1
        case ast.match_case() | ast.Assert():
            return 1
        case ast.BoolOp():
            return len(node.values) - 1
        case ast.comprehension():
            return 1 + len(node.ifs)
    return 0


def type_names() -> dict[str, int]:
    """How often each room of the package compares with names of element types, or has a table by
    them; rooms that do not are left out."""
    counts: Counter[str] = Counter()
    for path in sorted((ROOT / "tensorkiln").rglob("*.py")):
        parts = path.relative_to(ROOT).parts
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if path.name != "element_types.py":
            room = "/".join(parts[:2]) if len(parts) > 2 else f"{parts[0]}/files"
            counts[room] += sum(map(_names_types, ast.walk(tree)))
    return {room: count for room, count in counts.items() if count}


def _names_types(node: ast.AST) -> bool:
    match node:
        case ast.Compare():
            sides = [node.left, *node.comparators]
            parts = [getattr(side, "elts", [side]) for side in sides]
            return any(_is_type_name(x) for part in parts for x in part)
        case ast.MatchValue():
            return _is_type_name(node.value)
        case ast.Dict():
            return any(map(_is_type_name, node.keys))
    return False


def _is_type_name(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value in ELEMENT_TYPES


def shared_class_names() -> dict[str, int]:
    """Names that several files of the package give to a class, and how many do."""
    owners: Counter[str] = Counter()
    for path in (ROOT / "tensorkiln").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        owners.update({node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)})
    return {name: count for name, count in sorted(owners.items()) if count > 1}


def rounded(lines: int) -> int:
    """The limit of a room of so many lines."""
    return -(-lines // STEP) * STEP


def grown(limits: Mapping[str, int], lines: Mapping[str, int]) -> Iterator[str]:
    """A sentence for each room above its limit, or without one."""
    for room, count in lines.items():
        if count > limits.get(room, 0):
            yield f"{room} has {count:,} lines, and its limit is {limits.get(room, 0):,}"


def too_complex(limits: Mapping[str, int], paths: Mapping[str, int]) -> Iterator[str]:
    """A sentence for each function above LIMIT that is no exception, or above its own number."""
    for function, count in paths.items():
        if count > limits.get(function, LIMIT):
            yield f"{function} has {count} paths, at most {limits.get(function, LIMIT)} are allowed"


def unnamed(limits: Mapping[str, int], counts: Mapping[str, int]) -> Iterator[str]:
    """A sentence for each room with more names of WORDS than it may have."""
    for room, count in counts.items():
        if count > limits.get(room, 0):
            yield (
                f"{room} has {count:,} names such as `found` and `made`, at most "
                f"{limits.get(room, 0):,} are allowed: a name says what a value is"
            )


def names_more_types(limits: Mapping[str, int], counts: Mapping[str, int]) -> Iterator[str]:
    """A sentence for each room above its limit of `type_names`."""
    for room, count in counts.items():
        if count > limits.get(room, 0):
            yield (
                f"{room} names element types in {count} comparisons and tables, at most "
                f"{limits.get(room, 0)} are allowed"
            )


def main() -> int:
    """Print what is above its limit; with `--write`, write the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.static.house", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the limits of now")
    options = parser.parse_args()
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    lines, paths = lines_by_room(), complex_functions()
    words, types = words_by_room(), type_names()
    worse = [
        *too_complex(table["complex"], paths),
        *unnamed(table["names"], words),
        *names_more_types(table["type_names"], types),
    ]
    if options.write and not worse:
        limits = {room: rounded(n) for room, n in lines.items()}
        table = {"lines": limits, "names": words, "complex": paths, "type_names": types}
        TABLE.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    sentences = [*grown(table["lines"], lines), *worse]
    figures = (
        f"{sum(lines.values()):,} lines, {len(paths)} complex functions, "
        f"{sum(words.values()):,} names that say nothing, {sum(types.values())} that say a type"
    )
    print("\n".join(sentences) or figures)
    return int(bool(sentences))


if __name__ == "__main__":
    raise SystemExit(main())
