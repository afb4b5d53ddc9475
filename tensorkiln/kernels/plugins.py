"""Kernel families of installed packages.

A package adds a family with an entry point of group `tensorkiln.kernel_families`, a `Family`:

    [project.entry-points."tensorkiln.kernel_families"]
    softmax_columns = "softmax_columns:FAMILY"
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import wraps
from types import NoneType
from typing import TYPE_CHECKING, Any

from tensorkiln import ops
from tensorkiln.base.entry_points import entry_points_of, package_of
from tensorkiln.base.errors import TensorkilnError, UserError
from tensorkiln.base.plugin import bad_answer, plugin
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.relax import Binding, Call, Constant, RVar, TensorType, tensor
from tensorkiln.ir.type_text import show
from tensorkiln.kernels.family import Algorithm, AsItIs, Family, Layouts, Packed
from tensorkiln.kernels.knobs import Knob
from tensorkiln.target import Target
from tensorkiln.target.kinds import KINDS

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "tensorkiln.kernel_families"
_CODE = "bad-family"
_REFERENCE = re.compile(r"\w+(\.\w+)*:\w+")
# The functions of a Family, and what each may return.
_ANSWERS: dict[str, tuple[type, ...]] = {
    "fits": (bool,),
    "layouts": (Layouts, NoneType),
    "lacks": (str,),
    "in_blocks": (bool,),
    "decompose": (list, tuple),
    "epilogue": (bool,),
    "prologue": (bool,),
    "apart": (bool,),
    "shares": (bool,),
    "knobs": (tuple,),
}


def installed_families() -> tuple[Family, ...]:
    """The families of installed packages, by the names of package and entry point. Raises UserError
    (code `bad-family` or `plugin-failed`), naming the package, for one that is wrong."""
    return tuple(map(_loaded, entry_points_of(GROUP)))


def _loaded(point: EntryPoint) -> Family:
    label = f"kernel family {point.name!r} of package {package_of(point)}"
    with plugin(label):
        row: object = point.load()
    if not isinstance(row, Family):
        raise UserError(f"{label} is {type(row).__name__}, expected a Family", code=_CODE)
    _check(row, label)
    return _guarded(row, label)


def _check(row: Family, label: str) -> None:
    """Raise UserError for a field that is wrong in itself."""

    def require(holds: bool, message: str) -> None:
        if not holds:
            raise UserError(message, code=_CODE, where=label)

    for name in ("op_class", "schedule"):
        value = getattr(row, name)
        require(isinstance(value, str) and bool(value), f"{name} is {value!r}, expected text")
    good = _REFERENCE.fullmatch(row.schedule) is not None
    require(good, f"schedule is {row.schedule!r}, expected 'module:function'")
    require(isinstance(row.weights, str), f"weights is {row.weights!r}, expected text")
    for name in ("operators", "devices"):
        value = getattr(row, name)
        texts = isinstance(value, tuple) and value and all(isinstance(v, str) for v in value)
        require(bool(texts), f"{name} is {value!r}, expected a tuple of names")
    for operator in row.operators:
        try:
            ops.get(operator)
        except TensorkilnError as error:
            raise UserError(error.message, code=_CODE, where=label, hint=error.hint) from None
    devices = {kind.device for kind in KINDS.values()} - {""}
    require(set(row.devices) <= devices, f"devices are {row.devices}, of {sorted(devices)}")
    for field in fields(row):
        value = getattr(row, field.name)
        if field.name in _ANSWERS and value is not None:
            require(callable(value), f"{field.name} is {value!r}, expected a function")
    require(row.fits is not None, "fits is None, expected a function")
    a = row.algorithm
    require(a is None or isinstance(a, Algorithm), f"algorithm is {a!r}, expected an Algorithm")


def _guarded(row: Family, label: str) -> Family:
    """The row with functions whose exceptions and wrong results are UserErrors naming `label`."""
    changed: dict[str, Any] = {
        name: _call(getattr(row, name), f"{label}: {name}", kinds)
        for name, kinds in _ANSWERS.items()
        if getattr(row, name) is not None
    }
    if row.algorithm is not None:
        a = row.algorithm
        choose = _call(a.choose, f"{label}: algorithm.choose", (object,))
        rewrite = _checked_rewrite(a.rewrite, f"{label}: algorithm.rewrite")
        changed["algorithm"] = replace(a, choose=choose, rewrite=rewrite)
    if row.decompose is not None:
        changed["decompose"] = _checked_decompose(changed["decompose"], f"{label}: decompose")
    if row.knobs is not None:
        changed["knobs"] = _checked_knobs(changed["knobs"], f"{label}: knobs")
    row = replace(row, owner=label, **changed)
    if row.layouts is None:
        return row
    return replace(row, layouts=_checked_layouts(row, f"{label}: layouts"))


def _call(function: Callable[..., Any], label: str, kinds: tuple[type, ...]) -> Callable[..., Any]:
    @wraps(function)
    def guarded(*args: object) -> object:
        with plugin(label):
            answer = function(*args)
        if not isinstance(answer, kinds):
            raise bad_answer(label, answer, " or ".join(k.__name__ for k in kinds), _CODE)
        return answer

    return guarded


def _require_type(b: Binding, label: str) -> None:
    """Raise UserError unless a binding computes a value of its variable's type."""
    value_type = b.var.type
    if isinstance(b.value, Call):
        with plugin(label):
            value_type = ops.infer(b.value)
    if show(value_type) != show(b.var.type):
        message = f"{label}: {b.var.name} is {show(value_type)}, expected {show(b.var.type)}"
        raise UserError(message, code=_CODE)


def _checked_rewrite(function: Callable[..., Any], label: str) -> Callable[..., Call]:
    """An algorithm's `rewrite` with a check that its call has the result that was asked for."""
    guarded = _call(function, label, (Call,))

    def checked(b: Binding, choice: object, rewriter: object) -> Call:
        call: Call = guarded(b, choice, rewriter)
        _require_type(replace(b, value=call), label)
        return call

    return checked


def _checked_decompose(
    guarded: Callable[..., Any], label: str
) -> Callable[[Binding], Sequence[Binding]]:
    """`decompose` with a check that it gives bindings, of their types, that define the value."""

    def checked(b: Binding) -> Sequence[Binding]:
        bindings: Sequence[Binding] = guarded(b)
        wrong = next((x for x in bindings if not isinstance(x, Binding)), None)
        if wrong is not None:
            raise bad_answer(label, wrong, "Binding in its list", _CODE)
        if not any(x.var is b.var for x in bindings):
            raise UserError(f"{label}: no binding defines {b.var.name}", code=_CODE)
        for x in bindings:
            _require_type(x, label)
        return bindings

    return checked


def _checked_knobs(guarded: Callable[..., Any], label: str) -> Callable[..., tuple[Knob, ...]]:
    """`knobs` with a check that it gives knobs of different names."""

    @wraps(guarded)
    def checked(call: Call, out: TensorType, target: Target) -> tuple[Knob, ...]:
        try:
            knobs: tuple[Knob, ...] = guarded(call, out, target)
        except UserError as error:  # of a Knob, which does not know whose it is
            if error.code != "bad-knob":
                raise
            raise UserError(f"{label}: {error.message}", code=_CODE) from None
        wrong = next((x for x in knobs if not isinstance(x, Knob)), None)
        if wrong is not None:
            raise bad_answer(label, wrong, "Knob in its tuple", _CODE)
        if len({k.name for k in knobs}) < len(knobs):
            names = ", ".join(k.name for k in knobs)
            raise UserError(f"{label}: two of the same name in {names}", code=_CODE)
        return knobs

    return checked


def _row_major_or(layout: Layout | Packed | AsItIs | None) -> Layout | None:
    """The layout that is asked for; None for row-major, in which an operand may stay as it is."""
    if isinstance(layout, Packed):
        return layout.layout
    return layout if isinstance(layout, Layout) else None


def _checked_layouts(row: Family, label: str) -> Callable[..., Any]:
    """`row.layouts` with a check that they suit the operands, and that the row then fits."""

    def checked(call: Call, out: TensorType, target: Target) -> Layouts | None:
        assert row.layouts is not None
        layouts = row.layouts(call, out, target)
        if layouts is None:
            return None

        def error(message: str) -> UserError:
            return UserError(f"{label}: {message}", code=_CODE, where=call.span)

        if len(layouts.operands) != len(call.args):
            raise error(f"{len(layouts.operands)} layouts for {len(call.args)} operands")
        laid: list[TensorType] = []
        attrs = dict(call.attrs)
        types = [*(a.type for a in call.args), out]
        for n, (layout, t) in enumerate(
            zip((*layouts.operands, layouts.result), types, strict=True)
        ):
            if isinstance(layout, Packed) and not isinstance(call.args[n], Constant):
                raise error(f"Packed for operand {n}, which is not constant")
            to = _row_major_or(layout)
            assert isinstance(t, TensorType)
            if isinstance(layout, Packed):
                with plugin(label):
                    t = tensor(layout.prepare(call.args[n].array).shape, t.dtype)  # type: ignore[union-attr]
                attrs |= layout.attrs
            if to is not None and {a.dim for a in to.axes} != set(range(t.ndim)):
                raise error(f"{to} for {t.ndim} dimensions")
            laid.append(t.with_layout(to))
        args = tuple(RVar(f"p{n}", t) for n, t in enumerate(laid[:-1]))
        new_call = replace(call, args=args, attrs=Attrs.of(**attrs))
        _require_type(Binding(RVar("its result", out), new_call), label)
        if not row.fits(new_call, laid[-1], target):
            raise error("it does not fit the call in the layouts that it asks for")
        return layouts

    return checked
