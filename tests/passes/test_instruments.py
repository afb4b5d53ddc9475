"""Instruments: what they are told, what they collect, write and print."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.ir.equal import first_difference
from tensorkiln.ir.module import IRModule
from tensorkiln.passes import (
    Dump,
    Instrument,
    PrintAfter,
    Step,
    Timing,
    Verify,
    module_diff,
    pass_name,
)
from tensorkiln.pipeline import relax_passes, tir_passes
from tensorkiln.script import constant_table, from_source
from tests.transform.graphs import graph

MODULE = graph(lambda g, x: g.tanh(g.mul(x, 2.0)), x=(4,))
TARGET = tk.Target("native")
NAMES = [pass_name(p) for p in (*relax_passes(TARGET), *tir_passes(TARGET))]


class Watch(Instrument):
    def __init__(self) -> None:
        self.seen: list[tuple[str, Step]] = []

    def before(self, step: Step) -> None:
        self.seen.append(("before", step))

    def after(self, step: Step) -> None:
        self.seen.append(("after", step))


def test_an_instrument_sees_every_pass_before_and_after() -> None:
    watch = Watch()
    exe = tk.compile(MODULE, instruments=[watch])
    assert [s.name for what, s in watch.seen if what == "before"] == NAMES
    assert [what for what, _ in watch.seen] == ["before", "after"] * len(NAMES)
    mod = MODULE
    for (_, asked), (_, done) in zip(watch.seen[::2], watch.seen[1::2], strict=True):
        assert asked.before is done.before is mod
        assert asked.after is None and not asked.changed and asked.seconds == 0
        assert done.after is not None and done.seconds > 0
        assert done.changed == (done.after is not mod)
        mod = done.after
    assert mod is exe.module
    assert [s.number for w, s in watch.seen if w == "after"] == list(range(1, len(NAMES) + 1))
    pipelines = [s.pipeline for w, s in watch.seen if w == "after"]
    assert pipelines == ["relax"] * len(relax_passes(TARGET)) + ["tir"] * len(tir_passes(TARGET))


def test_any_class_with_the_two_methods_will_do() -> None:
    class Mine:
        count = 0

        def before(self, step: Step) -> None:
            self.count += 1

        def after(self, step: Step) -> None:
            self.count += 1

    mine = Mine()
    tk.compile(MODULE, instruments=[mine])
    assert mine.count == 2 * len(NAMES)


def test_what_an_instrument_raises_ends_the_compile() -> None:
    class Stop(Instrument):
        def after(self, step: Step) -> None:
            if step.name == "fuse_ops":
                raise StopAsyncIteration("enough")

    with pytest.raises(UserError, match="instrument Stop: after") as caught:
        tk.compile(MODULE, instruments=[Stop()])
    assert isinstance(caught.value.__cause__, StopAsyncIteration)


@pytest.mark.parametrize("odd", [Timing, 3, print])
def test_what_is_no_instrument(odd: Any) -> None:
    with pytest.raises(UserError, match=r"instruments\[1\] is") as caught:
        tk.compile(MODULE, instruments=[Timing(), odd])
    assert caught.value.code == "bad-instrument"
    assert "tensorkiln.passes.Instrument" in caught.value.hint


def test_timing_is_a_table() -> None:
    timing = Timing()
    tk.compile(MODULE, instruments=[timing])
    lines = timing.table().splitlines()
    assert [line.split()[2] for line in lines[:-1]] == NAMES
    assert "(unchanged)" in lines[0] and "total" in lines[-1]
    total = sum(s.seconds for s in timing.steps)
    assert f"{total * 1e3:.1f} ms" in lines[-1]


def test_dump_writes_the_input_and_what_changed(tmp_path: Path) -> None:
    watch = Watch()
    tk.compile(MODULE, instruments=[watch, Dump(tmp_path / "deep" / "er")])
    changed = [s for what, s in watch.seen if what == "after" and s.changed]
    files = sorted((tmp_path / "deep" / "er").glob("*.py"))
    names = ["00-input.py", *(f"{s.number:02d}-{s.name}.py" for s in changed)]
    assert [f.name for f in files] == names
    assert 3 < len(files) < len(NAMES)
    for file, mod in zip(files, [MODULE, *(s.after for s in changed)], strict=True):
        assert isinstance(mod, IRModule)
        again = from_source(file.read_text(), constant_table(mod))
        assert first_difference(again, mod) is None


def test_the_knob_dumps_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tk.compile(MODULE, instruments=[Dump(tmp_path / "a")])
    monkeypatch.setenv("KILN_DUMP", str(tmp_path / "b"))
    tk.compile(MODULE)
    a, b = ({f.name: f.read_text() for f in (tmp_path / x).iterdir()} for x in "ab")
    assert a == b


def test_print_after_prints_the_named_passes(capsys: pytest.CaptureFixture[str]) -> None:
    out = io.StringIO()
    tk.compile(MODULE, instruments=[PrintAfter("fuse_ops", "canonicalize", stream=out)])
    heads = [line for line in out.getvalue().splitlines() if line.startswith("# after")]
    at = [i + 1 for i, name in enumerate(NAMES) if name in ("canonicalize", "fuse_ops")]
    assert heads == [f"# after {i} {NAMES[i - 1]}" for i in at]
    assert "R.tanh" in out.getvalue()
    tk.compile(MODULE, instruments=[PrintAfter()])
    assert capsys.readouterr().out.count("# after") == len(NAMES)


def test_print_after_an_unknown_pass() -> None:
    with pytest.raises(UserError, match="no pass of this compile") as caught:
        tk.compile(MODULE, instruments=[PrintAfter("fuse_op")])
    assert caught.value.code == "unknown-pass" and caught.value.where == "instruments"
    assert "'fuse_ops'" in caught.value.hint


def test_verify_reads_every_text_back() -> None:
    tk.compile(MODULE, instruments=[Verify(round_trip=True)])


def test_instruments_do_not_change_the_library(tmp_path: Path) -> None:
    plain = tk.compile(MODULE)
    seen = tk.compile(MODULE, instruments=[Timing(), Verify(), Dump(tmp_path), PrintAfter()])
    assert seen.artifacts == plain.artifacts


def test_a_diff_names_what_came_and_went() -> None:
    timing = Timing()
    tk.compile(MODULE, instruments=[timing])
    step = next(s for s in timing.steps if s.name == "fuse_ops")
    assert step.after is not None
    lines = module_diff(step.before, step.after)
    assert lines[:2] == ["--- main", "+++ main"]
    assert "--- (new)" in lines
    assert any(line.startswith("-") and "R.tanh" in line for line in lines)
    assert any(line.startswith("+") and "Module.mul_tanh" in line for line in lines)
    gone = module_diff(step.after, step.before)
    assert "+++ (gone)" in gone
    assert module_diff(step.after, step.after) == []


@pytest.mark.parametrize("size", [10, 5000])
def test_a_diff_can_be_applied(size: int) -> None:
    """Line by line, or as one replaced block where that would take too long."""
    from tensorkiln.passes.diff import text_diff

    old = [f"line {i}" for i in range(size)]
    new = [f"new {i}" if i % 3 == 1 and 2 < i < size - 3 else x for i, x in enumerate(old)]
    made, at = [], 0
    for line in text_diff(old, new):
        if line.startswith("@@"):
            start = int(line.split()[1].split(",")[0][1:]) - 1
            made += old[at:start]
            at = start
        elif line[0] == "+":
            made.append(line[1:])
        else:
            assert old[at] == line[1:]
            made += [line[1:]] * (line[0] == " ")
            at += 1
    assert made + old[at:] == new
    assert text_diff(old, old) == []
