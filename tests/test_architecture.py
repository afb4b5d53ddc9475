"""The page for the next engineer names files, rooms and passes that exist."""

from __future__ import annotations

import re
from pathlib import Path

from tensorkiln.passes import pass_name
from tensorkiln.pipeline import minimal_relax_passes, relax_passes, tir_passes
from tensorkiln.target import Target
from tests.test_import_floors import DATA_ROOMS, FLOORS

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
# Words in code marks that look like paths of the repository.
PATHS = sorted(
    {
        word
        for word in re.findall(r"`([\w./*]+)`", PAGE)
        if re.fullmatch(r"[\w./*]+\.(py|c|h|md)|[\w./]+/", word)
    }
    | set(re.findall(r"\bdocs/[\w/]+\.md\b", PAGE))
)
# Names of artifacts and headers, not files of the repository.
MADE = {"c/kernels.c", "host/entry.c", "host/plan.txt", "ir/module.py", "kiln.h", "emit.py"}


def test_it_can_be_read_at_one_sitting() -> None:
    assert len(PAGE.splitlines()) <= 300


def test_every_path_exists() -> None:
    assert len(PATHS) > 60
    missing = [
        path
        for path in PATHS
        if path not in MADE
        and not any(list(base.glob(path)) for base in (ROOT, ROOT / "tensorkiln"))
    ]
    assert missing == []


def test_every_room_is_in_the_table() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.M))
    files = {"kernel_cache", "kernel_code", "kind_hooks", "executable", "assemble", "pipeline"}
    files |= {"checks", "compile_plan", "notes", "options", "stages"}
    assert rows == {room for floor in FLOORS for room in floor} - files | DATA_ROOMS


def test_the_floors_are_those_the_test_enforces() -> None:
    text = re.search(r"^    (base < ir .*?)\n\n", PAGE, re.M | re.S)
    assert text is not None
    floors = [re.findall(r"\w+", floor) for floor in text[1].split("<")]
    assert [frozenset(floor) for floor in floors] == list(FLOORS)


def test_passes_that_the_page_names_are_in_the_pipeline() -> None:
    target = Target("llvm")
    names = [pass_name(p) for p in [*relax_passes(target), *tir_passes(target)]]
    order = ["partition_externals", "assign_layouts", "fuse_ops", "lower_groups", "plan_memory"]
    assert [n for n in names if n in order] == order
    text = PAGE[PAGE.index("Then, in this order:") :]
    places = [text.index(f"`{name}`") for name in order]
    assert places == sorted(places)


def test_each_pass_has_a_test_file_with_its_text_before_and_after() -> None:
    target = Target("llvm")
    passes = [*relax_passes(target), *minimal_relax_passes(target), *tir_passes(target)]
    modules = {p.__module__ for p in passes if p.__module__.startswith("tensorkiln.transform.")}
    assert len(modules) > 20
    for name in sorted(module.rpartition(".")[2] for module in modules):
        file = ROOT / "tests" / "transform" / f"test_{name}.py"
        assert file.is_file() and "    check_text(\n" in file.read_text(), file


def test_functions_that_the_page_names_are_defined() -> None:
    source = "\n".join(p.read_text() for p in (ROOT / "tensorkiln").rglob("*.py"))
    source += "\n".join(p.read_text() for p in (ROOT / "tensorkiln" / "crt").iterdir())
    for word in (
        "schedule_group",
        "zero_border",
        "built_in_families",
        "RUNTIME_EXPORTS",
        "DYNAMIC_OPS",
        "kernel_text",
        "kiln_parallel_for",
        "kiln_assertion_failed",
        "map_graphs",
        "map_prim_funcs",
        "map_bodies",
        "reaches",
    ):
        assert word in PAGE and re.search(rf"\b{word}\b", source), word


def test_few_tables_are_formatted_by_hand() -> None:
    """The formatter decides; a table of many short rows may be an exception."""
    mark = "# fmt" + ": skip"
    hand_formatted = [
        f"{path.relative_to(ROOT)}:{number}"
        for folder in ("tensorkiln", "tests", "bench", "examples")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if line.rstrip().endswith(mark)
    ]
    assert len(hand_formatted) <= 20, hand_formatted
