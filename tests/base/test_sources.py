"""What identifies code in keys and records."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorkiln.base.sources import _collect, modules_digest

FILES = {
    "__init__.py": "",
    "start.py": "import pack.absolute\nfrom pack import name\nfrom .relative import x\nimport os\n",
    "absolute.py": "def f():\n    from pack.inner.deep import y\n    return y\n",
    "name.py": "",
    "relative.py": "from . import sibling as x\n",
    "sibling.py": "",
    "inner/__init__.py": "from .above import z\n",
    "inner/above.py": "from ..circle import z\n",
    "inner/deep.py": "y = 1\n",
    "circle.py": "import pack.start\n",
    "unrelated.py": "",
}
REACHED = set(FILES) - {"unrelated.py"}


@pytest.fixture
def pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / "pack" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pack" / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "pack"


@pytest.mark.parametrize("name", FILES)
def test_every_module_that_is_imported_counts(name: str, pack: Path) -> None:
    before = modules_digest("pack.start")
    assert before == modules_digest("pack.start")
    (pack / name).write_text(FILES[name] + "# changed\n")
    assert (modules_digest("pack.start") != before) == (name in REACHED)


def test_a_module_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "alone.py").write_text("import json\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = modules_digest("alone")
    assert before != modules_digest("pack_that_is_not_here") == modules_digest()
    (tmp_path / "alone.py").write_text("import ast\n")
    assert modules_digest("alone") != before


def test_of_this_package_the_rooms_that_are_named() -> None:
    texts: dict[str, bytes] = {}
    rooms = ("tensorkiln.families.", "tensorkiln.schedule.")
    _collect("tensorkiln.families.linear.schedule", rooms, texts)
    assert {name.split(".")[1] for name in texts} == {"families", "schedule"}
    assert {"tensorkiln.families.linear.program", "tensorkiln.schedule.primitives.loops"} <= set(
        texts
    )
    assert not any(name.startswith("tensorkiln.families.conv2d") for name in texts)
