"""Every operator x every attribute x every kind of value, by builder, script and verifier.

What is not accepted is a UserError that names operator and attribute, has a place and a hint; what
is accepted gives the same type by all roads, and the tensor program agrees with NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tensorkiln import ops
from tensorkiln.base.errors import UserError
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import (
    AnyTensorType,
    Binding,
    Call,
    Function,
    RVar,
    TensorType,
    Type,
    tensor,
)
from tensorkiln.ir.text.print_relax import ConstantKeys, RelaxPrinter
from tensorkiln.ops.builder import GraphBuilder
from tensorkiln.options import require_well_formed
from tensorkiln.script import from_source
from tensorkiln.transform.relax.infer_types import infer_types
from tests.ops.element import check
from tests.ops.test_programs import CASES

MISSING = object()
VALUES: list[Any] = [
    MISSING, "axis", "", "tanh", "float33", True, False, None, 0, 1, -1, 2, -3, 7, 300, 1 << 31,
    1 << 63, -(1 << 63) - 1, 10**400, 0.5, -1.0, float("nan"), float("-inf"), (), (0,), (1,), (-1,),
    (0, 1), (1, 0), (0, 0), (-1, 0), (1, -1), (2, 2), (0, 1, 2), (1, 1, 1, 1), (0, 0, 0, 0),
    (5,), (0.5,), (1.0, 1.0), ("a",), (True,), (True, False), ((0,),), (None,), (1 << 63,),
    (1 << 62, 4),
]  # fmt: skip
F32 = "float32"
# Operators that no sample of a tensor program covers: operands and required attributes.
OTHERS: dict[str, tuple[list[Type], dict[str, Any]]] = {
    "attention": ([tensor((1, 2, 3, 4), F32)] * 3, {"scale": 0.5}),
    "winograd_conv2d": (
        [tensor((1, 2, 8, 8), F32), tensor((3, 2, 6, 6), F32)],
        {"tile": (4, 4)},
    ),
    "strassen_linear": ([tensor((7, 2, 3), F32), tensor((6, 4), F32)], {"rows": (4,)}),
    "tree_leaves": (
        [
            tensor((4, 3), F32),
            *[tensor((2,), "int32")] * 2,
            tensor((5,), "int32"),
            tensor((5,), F32),
        ],
        {"bits": 2, "most": 1},
    ),
    "top_k": ([tensor((3, 8), F32)], {"k": 2}),
    "scatter": ([tensor((3, 4), F32), tensor((2,), "int64"), tensor((2, 4), F32)], {}),
    "coupled": ([tensor((4, 3), F32)], {"classes": 3}),
    "compress": ([tensor((3, 4), F32), tensor((3,), "bool")], {}),
    "unique": ([tensor((3, 4), F32)], {}),
    "sized": ([tensor((2,), "int64")], {}),
    "slice_dynamic": ([tensor((3, 4), F32), *[tensor((2,), "int64")] * 2], {}),
    "non_max_suppression": ([tensor((1, 4, 4), F32), tensor((1, 2, 4), F32)], {}),
}


def samples() -> Iterator[tuple[str, list[Type], dict[str, Any], list[np.ndarray] | None]]:
    seen = set()
    for name, arrays, attrs in CASES:
        if name not in seen and all(a.size for a in arrays):
            seen.add(name)
            types: list[Type] = [tensor(a.shape, str(a.dtype)) for a in arrays]
            yield name, types, dict(attrs), arrays
    for name, (types, attrs) in OTHERS.items():
        assert name not in seen
        yield name, types, attrs, None


SAMPLES = {name: (types, attrs, arrays) for name, types, attrs, arrays in samples()}


def test_every_operator_with_attributes_has_a_sample() -> None:
    table = {**ops.OPS, **ops.DYNAMIC}
    assert {name for name, op in table.items() if op.attrs} <= SAMPLES.keys()


def by_builder(op: str, types: list[Type], attrs: dict[str, Any]) -> Type:
    b = GraphBuilder()
    args = [b.param(f"x{i}", t) for i, t in enumerate(types)]
    return b.emit(op, *args, span="node7", **attrs).type


def by_verifier(op: str, types: list[Type], attrs: dict[str, Any], result: Type) -> Type:
    """As a pass or an importer makes calls: nothing checked before."""
    params = tuple(RVar(f"x{i}", t) for i, t in enumerate(types))
    y = RVar("y", result)
    call = Call(op, params, Attrs.of(**attrs))
    mod = IRModule((Function("main", params, (Binding(y, call),), y),))
    require_well_formed(mod, {})
    return infer_types(mod)["main"].bindings[0].var.type  # type: ignore[union-attr]


def by_script(op: str, types: list[Type], attrs: dict[str, Any], result: Type | None) -> Type:
    text = RelaxPrinter(ConstantKeys(), "cls")
    params = ", ".join(f"x{i}: {text.type(t)}" for i, t in enumerate(types))
    args = ", ".join(
        [*(f"x{i}" for i in range(len(types))), *(f"{k}={written(v)}" for k, v in attrs.items())]
    )
    note = f": {text.type(result)}" if result is not None else ""
    lines = ["@R.function", f"def main({params}):", f"    y{note} = R.{op}({args})", "    return y"]
    mod = from_source("\n".join(lines), file="net.py")
    return mod["main"].bindings[0].var.type  # type: ignore[union-attr]


def written(value: Any) -> str:
    if isinstance(value, float) and not np.isfinite(value):
        return f'float("{value!r}")'
    if isinstance(value, tuple):
        inner = ", ".join(map(written, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return hex(value) if isinstance(value, int) and value > 1 << 64 else repr(value)


def _require_refusal(error: UserError, op: str, place: str, words: list[str]) -> None:
    assert place in error.where, error
    assert op in error.message and all(w in error.message for w in words), error


def cases() -> list[Any]:
    return [
        pytest.param(op, attr, id=f"{op}.{attr}")
        for op in SAMPLES
        for attr in (*ops.signature(op).attrs, "axsi")
    ]


@pytest.mark.in_turn("op")
@pytest.mark.parametrize(("op", "attr"), cases())
def test_every_value(op: str, attr: str) -> None:
    types, given, arrays = SAMPLES[op]
    right = by_builder(op, types, given)
    known = attr in ops.signature(op).attrs
    for value in VALUES:
        if value is MISSING and not known:
            continue
        attrs = {k: v for k, v in given.items() if k != attr}
        if value is not MISSING:
            attrs[attr] = value
        try:
            wanted = by_builder(op, types, attrs)
        except UserError as error:
            _require_refusal(error, op, "node7", [])
            if error.code in ("unknown-attribute", "missing-attribute", "bad-attribute"):
                assert attr in error.message, (value, error)
            full = in_full(op, types, attrs)
            if full == attrs:
                _refused_by_script(op, types, attrs, right, error)
            else:
                _as_in_full(op, types, attrs, full, right)
            _refused_by_verifier(op, types, attrs, right, error)
            continue
        assert known, (op, attr, value)
        assert by_script(op, types, attrs, None) == wanted, value
        assert by_script(op, types, attrs, wanted) == wanted, value
        if not _has_addresses(wanted):
            with pytest.raises(UserError, match="more than can be addressed") as caught:
                by_verifier(op, types, attrs, wanted)
            assert caught.value.code == "too-large" and "main/bindings[0] y" in caught.value.where
            continue
        assert by_verifier(op, types, attrs, wanted) == wanted, value
        small = _is_small(wanted) and not (isinstance(value, int) and value > 1000)
        # Of another extent, the sample's indices may be outside.
        small = small and op != "bounds_check"
        if arrays is not None and ops.get(op).program is not None and small:
            check(op, *arrays, **attrs)


def in_full(op: str, types: list[Type], attrs: dict[str, Any]) -> dict[str, Any]:
    """The attributes that a script means where it may be shorter than the builder: one number for
    a tuple of it, a tuple of one for an axis, two paddings for four, no axes for all."""
    full = dict(attrs)
    for name, value in attrs.items():
        number = type(value) is int
        if name in ("axes", "repeats") and number:
            full[name] = (value,)
        elif name in ("kernel", "strides", "dilation") and number:
            full[name] = (value, value)
        elif name == "padding" and number:
            full[name] = (value,) * 4
        elif name == "padding" and isinstance(value, tuple) and len(value) == 2:
            full[name] = (*value, *value)
        elif name == "axis" and isinstance(value, tuple) and len(value) == 1:
            (full[name],) = value
    if op in ("sum", "mean", "max", "min", "prod", "transpose") and "axes" not in full:
        axes = range(types[0].ndim)  # type: ignore[union-attr]
        full["axes"] = tuple(reversed(axes) if op == "transpose" else axes)
    return full


def _as_in_full(
    op: str, types: list[Type], attrs: dict[str, Any], full: dict[str, Any], right: Type
) -> None:
    """What is shorter in a script is what it is in full, also where that is refused."""
    try:
        wanted = by_builder(op, types, full)
    except UserError as error:
        _refused_by_script(op, types, attrs, right, error)
    else:
        assert by_script(op, types, attrs, None) == wanted, (op, attrs)
        assert by_script(op, types, attrs, wanted) == wanted, (op, attrs)


def _refused_by_script(
    op: str, types: list[Type], attrs: dict[str, Any], right: Type, error: UserError
) -> None:
    for annotated in (right, None):
        with pytest.raises(UserError) as caught:
            by_script(op, types, attrs, annotated)
        assert error.message in caught.value.message or "not Python" in caught.value.message
        assert caught.value.where.startswith("net.py:3:"), caught.value
        assert caught.value.code == "script"


def _refused_by_verifier(
    op: str, types: list[Type], attrs: dict[str, Any], right: Type, error: UserError
) -> None:
    with pytest.raises(UserError) as caught:
        by_verifier(op, types, attrs, right)
    assert caught.value.message == error.message and "main" in caught.value.where
    assert "y" in caught.value.where.replace("main", "")
    table = ("unknown-attribute", "missing-attribute")
    assert error.hint or error.code not in table


def _has_addresses(t: Type) -> bool:
    """Whether a process can have a tensor: `infer_types` refuses others, builders do not."""
    shape = t.static_shape() if isinstance(t, TensorType) else None
    if not isinstance(t, TensorType) or shape is None:
        return True
    return int(np.prod(shape, dtype=object)) * t.dtype.bytes <= 1 << 47


def _is_small(t: Type) -> bool:
    if isinstance(t, AnyTensorType) or not isinstance(t, TensorType):
        return False
    shape = t.static_shape()
    return shape is not None and int(np.prod(shape, dtype=object)) <= 300
