"""Frames of deep calls take no memory from the system anew for each call."""

from __future__ import annotations

import inspect
import resource

import pytest

from tensorkiln.base.frames import with_frame_room
from tensorkiln.pipeline import compile as compile_model

CALLS = 40


def _callee_with_a_large_frame(number: int) -> int:
    a = b = c = d = e = f = g = h = i = j = k = l = m = n = o = p = number  # noqa: E741
    return max((a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p))


def _calls_below(depth: int) -> int:
    if depth:
        return _calls_below(depth - 1)
    return sum(_callee_with_a_large_frame(i) for i in range(CALLS))


def _page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@with_frame_room
def _faults_at_all_depths() -> int:
    _calls_below(400)  # touches the pages that the loop below needs
    before = _page_faults()
    for depth in range(400):
        _calls_below(depth)
    return _page_faults() - before


def test_no_depth_takes_memory_for_each_call() -> None:
    assert _faults_at_all_depths() < CALLS


def test_it_is_the_function_for_all_who_look_at_it() -> None:
    assert inspect.signature(compile_model).parameters["precision"].default is None
    with pytest.raises(TypeError, match="unexpected keyword argument 'precison'"):
        compile_model("net.onnx", precison="bfloat16")  # type: ignore[call-arg]


@with_frame_room
def _sum(a: int, *rows: int, b: int = 1) -> int:
    return a + sum(rows) + b


def test_arguments_and_results() -> None:
    assert (_sum(1), _sum(1, 2, 3), _sum(1, 2, b=5)) == (2, 7, 8)
