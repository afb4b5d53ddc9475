"""The list that docs/howto/customise-the-pipeline.md copies is the compiler's, but for its changes.

The page's code itself is run, with its assertions, by tests/test_docs.py.
"""

from __future__ import annotations

import re
from pathlib import Path

from tensorkiln.passes import pass_name
from tensorkiln.pipeline import relax_passes
from tensorkiln.target import Target

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "howto" / "customise-the-pipeline.md"


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def test_the_copied_list_is_the_compilers_with_three_changes() -> None:
    text = PAGE.read_text(encoding="utf-8")
    body = re.search(r"def my_passes\(target\):\n    return \[\n(.*?)\n    \]", text, re.S)
    assert body is not None
    copied = [snake(name) for name in re.findall(r"^        (\w+)", body[1], re.M)]
    ours = [pass_name(p) for p in relax_passes(Target("llvm"))]
    ours.remove("match_attention")  # dropped
    externals, devices = ("patterns", "externals"), ("pin", "assign", "join")
    for name in (*(f"partition_{x}" for x in externals), *(f"{x}_devices" for x in devices)):
        ours.remove(name)  # the page says so
    assert copied.count("lower_silu") == 1  # added
    assert [name for name in copied if name != "lower_silu"] == ours
    assert "FuseOps(target, rules=(FuseRule(" in body[1]  # changed
