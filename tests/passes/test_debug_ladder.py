"""`KILN_DEBUG=1..5`: each level prints its own lines and those of the levels below, and none
changes what is compiled."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import tensorkiln as tk
from tensorkiln.base.debug import LADDER
from tests.transform.graphs import graph

ROOT = Path(__file__).resolve().parents[2]
MODULE = graph(lambda g, x: g.mul(x, g.sigmoid(x)), x=(24,))


@pytest.fixture(scope="module")
def printed(
    tmp_path_factory: pytest.TempPathFactory, fresh_cache: Callable[[Path], Path]
) -> dict[int, str]:
    """What a compile and a link write on standard error, by level."""
    texts = {}
    folder = tmp_path_factory.mktemp("ladder")
    library = None
    for level in range(6):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KILN_DEBUG", str(level))
            patch.setenv("KILN_CACHE_DIR", str(fresh_cache(folder / f"cache{level}")))
            from contextlib import redirect_stderr
            from io import StringIO

            with redirect_stderr(StringIO()) as stream:
                path = tk.compile(MODULE).export_library(folder / f"l{level}.so")
            texts[level] = stream.getvalue()
        data = path.read_bytes()
        library = library or data
        assert data == library, f"KILN_DEBUG={level} changes the library"
    return texts


def marks(text: str) -> set[int]:
    return {int(n) for n in re.findall(r"^kiln\[(\d)\]", text, re.M)}


@pytest.mark.parametrize("level", range(6))
def test_a_level_prints_those_below_it(printed: dict[int, str], level: int) -> None:
    assert marks(printed[level]) == set(range(1, level + 1))


def test_what_the_levels_print(printed: dict[int, str]) -> None:
    text = printed[5]
    assert re.search(r"^kiln\[1\] +\d+ relax fuse_ops +[\d.]+ ms", text, re.M)
    assert re.search(r"^kiln\[1\] .* infer_types .*\(unchanged\)", text, re.M)
    assert re.search(r"^kiln\[2\] -.*R\.sigmoid\(x", text, re.M)
    assert "kiln[3] silu.ll\n" in text and "define void @silu(" in text
    assert "kiln[3] entry.c\n" in text
    rules = [line for line in text.splitlines() if line.startswith("kiln[4]")]
    assert len(rules) == 1 and rules[0].startswith("kiln[4] main: node mul: mul(x, sigmoid(x))")
    assert rules[0].endswith("-> silu(x)")
    assert re.search(r"^kiln\[5\] \(in .*\) .*ld\.lld", text, re.M)


def test_a_cached_kernel_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KILN_CACHE_DIR", str(tmp_path))
    tk.compile(MODULE)
    monkeypatch.setenv("KILN_DEBUG", "3")
    tk.compile(MODULE)
    assert "kiln[3] silu.ll: object from the cache" in capsys.readouterr().err


def test_the_page_has_the_ladder() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for level, what in LADDER:
        assert f"| {level} | {what} |" in page
