"""`script()` and `show()` of modules and functions."""

# ruff: noqa: ANN201 - the types of scripts are not Python's
from __future__ import annotations

import io

import pytest

from tensorkiln.ir.equal import first_difference
from tensorkiln.ir.module import IRModule
from tensorkiln.script import R, T, from_source, ir_module


@ir_module
class Net:
    @T.prim_func
    def add_one(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")):
        for i in range(4):
            Y[i] = X[i] + 1

    @R.function
    def main(x: R.Tensor((4,), "float32")):
        y = R.call_tir(Net.add_one, [x], R.Tensor((4,), "float32"))
        return y


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_script_reads_back() -> None:
    assert isinstance(Net, IRModule)
    assert first_difference(from_source(Net.script()), Net) is None
    add_one = Net["add_one"]
    assert first_difference(from_source(add_one.script())["add_one"], add_one) is None


def test_show_prints_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert isinstance(Net, IRModule)
    Net.show()
    assert capsys.readouterr().out == Net.script()
    Net["main"].show()
    assert capsys.readouterr().out == Net["main"].script()


def test_show_in_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(Net, IRModule)
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = Terminal()
    Net.show(out)
    text = out.getvalue()
    assert "\x1b[35mdef\x1b[0m add_one" in text
    assert '\x1b[32m"float32"\x1b[0m' in text and "\x1b[34mT\x1b[0m.Buffer" in text
    plain = text
    for code in (0, 32, 34, 35, 36, 90):
        plain = plain.replace(f"\x1b[{code}m", "")
    assert plain == Net.script()
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    Net.show(out)
    assert out.getvalue() == Net.script()
