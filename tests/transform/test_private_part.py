"""Memory of single threads that lasts for a whole block, through `split_device`."""

from __future__ import annotations

import pytest

from tensorkiln.base.errors import UnsupportedError
from tensorkiln.script import from_source
from tensorkiln.transform.tir.split_device import split_device

PROGRAM = """
@T.prim_func
def f(X: T.Buffer((4, 8), "int32"), Y: T.Buffer((4, 8), "int32")):
    for b in T.thread_binding(4, thread="blockIdx.x"):
        s = T.alloc_buffer({shape}, "int32", scope="{scope}")
        {first}
        for k in range(3):
            {step}
        {last}
"""
THREADS = 'for {var} in T.thread_binding(8, thread="threadIdx.{axis}"): {body}'


def split(shape: str, first: str, step: str, last: str, scope: str = "register") -> str:
    nests = {"first": first, "step": step, "last": last}
    source = PROGRAM.format(shape=shape, scope=scope, **nests)
    return split_device(from_source(source)).script()


def nest(body: str, axis: str = "x", var: str = "t") -> str:
    return THREADS.format(body=body, axis=axis, var=var)


@pytest.mark.parametrize("scope", ["register", "local"])
def test_each_thread_keeps_its_own(scope: str) -> None:
    text = split(
        "(8, 2)",
        nest("s[t, 0] = X[b, t]"),
        nest("s[t, 1] = s[t, 0] + T.int32(2)"),
        nest("Y[b, t] = s[t, 1]"),
        scope,
    )
    assert f's = T.alloc_buffer((2,), "int32", scope="{scope}")' in text
    assert "s[1] = s[0] + T.int32(2)" in text and "Y[b, t] = s[1]" in text


REFUSED = {
    "another thread's": ("(8,)", "s[t] = X[b, t]", "s[t] = 2", "Y[b, t] = s[7 - t]"),
    "all threads' one": ("(1,)", "s[0] = X[b, t]", "s[0] = 2", "Y[b, t] = s[0]"),
    "different places": ("(8, 8)", "s[t, 0] = X[b, t]", "s[0, t] = 1", "Y[b, t] = s[t, 0]"),
}


@pytest.mark.parametrize("case_name", REFUSED)
def test_what_threads_share_is_refused(case_name: str) -> None:
    shape, *bodies = REFUSED[case_name]
    with pytest.raises(UnsupportedError, match="register buffer s is allocated for a whole block"):
        split(shape, *map(nest, bodies))


def test_a_loop_from_elsewhere_runs_in_other_threads() -> None:
    later = 'for t in T.thread_binding(4, extent=4, thread="threadIdx.x"): Y[b, t] = s[t]'
    with pytest.raises(UnsupportedError, match="allocated for a whole block"):
        split("(8,)", nest("s[t] = X[b, t]"), nest("s[t] = 2"), later)


def test_threads_along_an_axis_that_it_does_not_have_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="allocated for a whole block"):
        split(
            "(8,)",
            nest("s[t] = X[b, t]"),
            nest("s[t] = s[t] + T.int32(2)"),
            nest("Y[b, t] = s[t]", "y"),
        )
