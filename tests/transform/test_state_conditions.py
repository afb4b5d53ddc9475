"""What operators require of symbolic extents, as conditions of the functions that hold them."""

from __future__ import annotations

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln import ops
from tensorkiln.ir.conditions import conditions_of
from tensorkiln.ir.relax import Function
from tensorkiln.ops.conditions import stated
from tensorkiln.script import from_source
from tensorkiln.transform.relax.infer_types import infer_types
from tensorkiln.transform.relax.state_conditions import state_conditions
from tests.transform.graphs import check_text


def test_text() -> None:
    check_text(
        state_conditions,
        """
        @R.function
        def main(x: R.Tensor(("n", 2), "float32")):
            y = R.slice(x, begin=(3, 0), strides=(1, 1), shape=(2, 2))
            z = R.require(y, condition=n <= 9, reason="at most 9 rows")
            return z
        """,
        """
        @R.function(attrs={"assumes": (
            (n >= 5, "slice: an extent that holds elements 3 to 4 in dimension 0"),
            (n <= 9, "require: at most 9 rows"),
        )})
        def main(x: R.Tensor(("n", 2), "float32")):
            y = R.slice(x, begin=(3, 0), strides=(1, 1), shape=(2, 2))
            z = R.identity(y)
            return z
        """,
    )


def test_what_is_proved_needs_no_condition() -> None:
    text = """
@R.function
def main(x: R.Tensor(("n", 2), "float32")):
    y = R.concat(x, R.full(shape=(5, 2), value=1.0), axis=0)
    z = R.slice(y, begin=(n, 0), strides=(1, 1), shape=(5, 2))
    w = R.pad(z, before=(2, 0), after=(0, 0), mode="reflect")
    return w
"""
    mod = infer_types(from_source(text, infer=ops.infer))
    assert state_conditions(mod) is mod


BRANCH = """
@R.function
def main(c: R.Tensor((), "bool"), x: R.Tensor(("n", 2), "float32")):
    if c:
        y = R.slice(x, begin=(3, 0), strides=(1, 1), shape=(1, 2))
        z = R.exp(y)
    else:
        y = R.slice(x, begin=(0, 0), strides=(1, 1), shape=(1, 2))
        z = R.neg(y)
    return z
"""


def test_a_condition_in_a_branch_is_checked_there() -> None:
    mod = from_source(BRANCH, infer=ops.infer)
    main = mod["main"]
    assert isinstance(main, Function) and conditions_of(stated(main)) == ()
    exe = tk.compile(mod)
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.testing.assert_array_equal(np.asarray(exe(np.array(False), x)), -x[:1])
    with pytest.raises(ValueError, match=r"n is 3; expected n >= 4 \(slice: an extent") as caught:
        exe(np.array(True), x)
    assert caught.value.code == "unmet-condition"
    four = np.ones((4, 2), np.float32)
    np.testing.assert_allclose(np.asarray(exe(np.array(True), four)), np.exp(four[3:]), rtol=1e-6)


INNER = """
@R.function
def rows(x: R.Tensor(("m", 2), "float32")):
    y = R.slice(x, begin=(2, 0), strides=(1, 1), shape=(1, 2))
    return y

@R.function
def main(x: R.Tensor(("n", 2), "float32"), keep: R.Tensor(("n",), "bool")):
    chosen = R.compress(x, keep, axis=0)
    some = R.match_cast(chosen, R.Tensor(("k", 2), "float32"))
    y = cls.rows(some)
    return y
"""


def test_a_condition_on_a_size_that_data_decides() -> None:
    text = "@ir_module\nclass Net:\n" + "".join(
        f"    {line}\n" if line else "\n" for line in INNER.strip().split("\n")
    )
    exe = tk.compile(from_source(text, infer=ops.infer))
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    result = np.asarray(exe(x, np.array([True, False, True, True])))
    np.testing.assert_array_equal(result, x[3:])
    for keep in ([True, False, False, True], [False] * 4):
        count = sum(keep)
        with pytest.raises(ValueError, match=f"m is {count}; expected m >= 3"):
            exe(x, np.array(keep))


def test_known_extents_are_refused_by_the_type_rule() -> None:
    with pytest.raises(tk.UserError, match="expected an extent that holds elements 3 to 4"):
        from_source(
            '@R.function\ndef main(x: R.Tensor((4, 2), "float32")):\n'
            "    y = R.slice(x, begin=(3, 0), strides=(1, 1), shape=(2, 2))\n    return y\n",
            infer=ops.infer,
        )
