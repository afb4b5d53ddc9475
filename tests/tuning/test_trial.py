"""What a trial draws, packs and refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tensorkiln.base.errors import UserError
from tensorkiln.ir.layout import Layout
from tensorkiln.runtime.trial import (
    GUARD,
    PLACES,
    Operand,
    Trial,
    TrialMemory,
    WrongResult,
    trial_of,
)

LAYOUTS = {
    "A B": (5, 7),
    "B A": (5, 7),
    "A B/4 B%4": (3, 10),
    "A B/4 C+1 D+1 B%4": (2, 6, 3, 5),
    "A/8 B/4 C D B%4 A%8": (19, 6, 3, 2),
    "B/12 A B%12": (7, 30),
    "A+2 B": (4, 3),
    "A": (9,),
}


def operand(layout: str, dtype: str = "float32") -> Operand:
    axes = Layout.parse(layout).axes
    return Operand(
        dtype, LAYOUTS[layout], tuple((a.dim, a.divisor, a.modulus, a.halo) for a in axes)
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_operands_lie_as_layouts_say(layout: str) -> None:
    o, reference = operand(layout), Layout.parse(layout)
    x = np.random.default_rng(0).standard_normal(o.shape).astype(np.float32)
    packed = o.packed(x)
    np.testing.assert_array_equal(packed, reference.pack(x))
    assert o.physical == packed.shape
    packed_ones = reference.pack(np.ones(o.shape, np.float32))
    np.testing.assert_array_equal(o.inside(), packed_ones != 0)
    places = np.arange(x.size)
    np.testing.assert_array_equal(o.at(packed, places), x.reshape(-1))


def trial(layout: str = "A B/4 C+1 D+1 B%4", dtype: str = "float32") -> tuple[Trial, Any]:
    """A trial whose result is known, and the right result as it lies in memory."""
    out = operand(layout, dtype)
    drawn_trial = Trial("f", (operand("A B"), out))
    want = np.random.default_rng(1).uniform(-3, 3, out.shape).astype(dtype)
    flat = want.reshape(-1)[drawn_trial.places()].astype(np.float64)
    may = np.full(flat.shape, 1e-5)
    return replace(drawn_trial, want=flat.tobytes(), may=may.tobytes()), out.packed(want)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("value", [np.nan, np.inf, 100.0, 1e-3])
def test_one_wrong_element_is_found_anywhere(layout: str, value: float) -> None:
    t, right = trial(layout)
    t.check(right)
    inside = np.argwhere(t.operands[-1].inside())
    for place in (inside[0], inside[-1], inside[len(inside) // 2]):
        wrong = right.copy()
        wrong[tuple(place)] = wrong[tuple(place)] + value if np.isfinite(value) else value
        with pytest.raises(WrongResult, match="1 of .* elements are wrong"):
            t.check(wrong)


def test_padding_has_to_be_zero() -> None:
    t, right = trial()
    for place in np.argwhere(~t.operands[-1].inside())[[0, -1]]:
        wrong = right.copy()
        wrong[tuple(place)] = 1e-30
        with pytest.raises(WrongResult, match="padding"):
            t.check(wrong)


def test_elements_at_no_place_are_held_against_the_other_kernel() -> None:
    out = Operand("float32", (PLACES * 2,), ((0, 1, 0, 0),))
    t = Trial("f", (out,))
    places = t.places()
    assert len(places) == len(set(places.tolist())) == PLACES
    right = np.ones(out.shape, np.float32)
    known_values = np.ones(PLACES)
    t = replace(t, want=known_values.tobytes(), may=(known_values * 1e-6).tobytes())
    wrong = right.copy()
    wrong[next(i for i in range(right.size) if i not in set(places.tolist()))] = 2
    t.check(wrong)
    with pytest.raises(WrongResult, match="1 of 8192 elements"):
        t.check(wrong, right)


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool"]
)
def test_other_types(dtype: str) -> None:
    o = Operand(dtype, (64, 64), ((0, 1, 0, 0), (1, 1, 0, 0)))
    t = Trial("f", (o, o))
    (x,) = t.drawn()
    assert x.dtype.name == dtype and len(np.unique(x.astype(np.float64))) > 1
    (again,) = t.drawn()
    np.testing.assert_array_equal(x, again)
    (other_values,) = replace(t, seed=1).drawn()
    assert (x != other_values).any()
    (positive,) = replace(t, positive=True).drawn()
    assert (positive.astype(np.float64) >= 0).all()
    flat = x.reshape(-1)[t.places()].astype(np.float64)
    t = replace(t, want=flat.tobytes(), may=np.zeros_like(flat).tobytes())
    t.check(x)
    wrong = x.copy()
    wrong[0, 0] = x[0, 0] == 0
    with pytest.raises(WrongResult):
        t.check(wrong)


def test_what_is_written_beside_is_found() -> None:
    t, _ = trial()
    for spoil, words in (
        (lambda m, r: None, ""),
        (lambda m, r: _raw(m, 1).__setitem__(GUARD - 1, 0), "outside of its result"),
        (lambda m, r: _raw(m, 1).__setitem__(-GUARD, 0), "outside of its result"),
        (lambda m, r: _raw(m, 0).__setitem__(0, 0), "operand 0"),
        (lambda m, r: m.inputs[0].__setitem__((0, 0), 9), "operand 0"),
    ):
        memory = TrialMemory(t)
        spoil(memory, memory.result())  # type: ignore[no-untyped-call]
        if not words:
            memory.require_guards()
            continue
        with pytest.raises(WrongResult, match=words):
            memory.require_guards()


def _raw(memory: TrialMemory, i: int) -> Any:
    return memory._raw[i][0]


def test_as_text_and_back() -> None:
    t, _ = trial()
    assert trial_of(json.dumps(t.to_json()).encode(), t.want, t.may) == t


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("symbol", 3),
        ("operands", []),
        ("operands", [{"dtype": "float32", "shape": [-1], "axes": []}]),
        ("operands", [{"dtype": "float32", "shape": [2], "axes": [[1, 1, 0, 0]]}]),
        ("operands", [{"dtype": "float32", "shape": [2], "axes": [[0, 0, 0, 0]]}]),
        ("operands", [{"dtype": "float32", "shape": [2], "axes": [[0, 1, 0]]}]),
        ("sizes", ["n"]),
        ("seed", -1),
        ("seconds", "long"),
        ("threads", True),
        ("positive", 0),
    ],
)
def test_damaged_text_is_refused_by_name(key: str, value: object) -> None:
    t, _ = trial()
    row = {**t.to_json(), key: value}
    with pytest.raises(UserError) as caught:
        trial_of(json.dumps(row).encode(), t.want, t.may)
    assert caught.value.code == "bad-trial" and "trial" in caught.value.where
    with pytest.raises(UserError):
        trial_of(b"{", t.want, t.may)
