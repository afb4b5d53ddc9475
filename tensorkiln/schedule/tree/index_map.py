"""Maps of indices, as Python functions or text: `"i, j -> j // 16, i, j % 16"`."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tensorkiln.arith import Bounds, bound, prove, simplify
from tensorkiln.arith.affine_text import AffineText, NotAffine
from tensorkiln.base.packages import missing_package
from tensorkiln.ir.expr import Expr, Var, as_expr, binary, const, int_value
from tensorkiln.ir.text.print_tir import TirPrinter
from tensorkiln.ir.visit import free_vars, substitute
from tensorkiln.schedule.tree.errors import ScheduleError

IndexMapLike = str | Callable[..., object]
_OPERATORS: dict[type, str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.FloorDiv: "floordiv",
    ast.Mod: "floormod",
    ast.BitAnd: "bitand",
    ast.BitXor: "bitxor",
}
_WRITTEN = "+ - * // % & ^"


@dataclass(frozen=True, slots=True)
class IndexMap:
    """A map from indices `inputs` to indices `outputs`, which are expressions over the inputs."""

    inputs: tuple[Var, ...]
    outputs: tuple[Expr, ...]

    def __str__(self) -> str:
        printer = TirPrinter()
        names = ", ".join(v.name for v in self.inputs)
        return f"{names} -> {', '.join(printer.expr(e) for e in self.outputs)}"

    def at(self, indices: Sequence[Expr], bounds: Bounds) -> tuple[Expr, ...]:
        """The new indices of the element at `indices`, simplified under `bounds`."""
        values = dict(zip(self.inputs, indices, strict=True))
        return tuple(simplify(substitute(e, values), bounds) for e in self.outputs)

    def bounds(self, shape: Sequence[Expr]) -> Bounds:
        """The ranges of the inputs for a buffer of this shape."""
        ranges = Bounds()
        for v, extent in zip(self.inputs, shape, strict=True):
            ranges = ranges.with_loop(v, 0, extent)
        return ranges

    def shape(self, shape: Sequence[Expr], context: str) -> tuple[Expr, ...]:
        """The shape that contains every new index of a buffer of this shape. ScheduleError if an
        index may be negative or cannot be bounded."""
        bounds = self.bounds(shape)
        return tuple(_extent(e, bounds, context) for e in self.outputs)


def index_map(source: IndexMapLike, rank: int, context: str) -> IndexMap:
    """The map of a function or text. ScheduleError if it is malformed, or does not take `rank`
    indices."""
    mapping = _parse(source, context) if isinstance(source, str) else _call(source, context)
    if len(mapping.inputs) != rank:
        raise ScheduleError(
            f"the map takes {len(mapping.inputs)} indices, the buffer has {rank}",
            where=context,
            hint="one name per dimension: 'i, j -> j, i'",
        )
    return mapping


def map_text(source: IndexMapLike) -> str:
    """The map as text, for traces: a text as given, a function as `i, j -> j, i`."""
    return source if isinstance(source, str) else str(_call(source, "index map"))


def _call(function: Callable[..., object], context: str) -> IndexMap:
    if not callable(function):
        raise _malformed(context, f"{type(function).__name__} is not a map of indices")
    names = list(inspect.signature(function).parameters)
    inputs = tuple(Var(n) for n in names)
    result = function(*inputs)
    items = result if isinstance(result, tuple | list) else (result,)
    for x in items:
        if not isinstance(x, Expr | int):
            raise _malformed(context, f"the map gives {type(x).__name__}, expected indices")
    return IndexMap(inputs, tuple(as_expr(x) for x in items))


def _parse(text: str, context: str) -> IndexMap:
    inputs_text, arrow, right = text.partition("->")
    names = [n.strip() for n in inputs_text.strip().strip("()").split(",") if n.strip()]
    if not arrow or not names or not all(n.isidentifier() for n in names):
        raise _malformed(context, f"{text!r} is not a map of indices")
    inputs = tuple(Var(n) for n in names)
    try:
        tree = ast.parse(right.strip(), mode="eval").body
    except SyntaxError:
        raise _malformed(context, f"{right.strip()!r} is not Python") from None
    items = tree.elts if isinstance(tree, ast.Tuple) else [tree]
    scope = {v.name: v for v in inputs}
    return IndexMap(inputs, tuple(_expr(x, scope, context) for x in items))


def _expr(node: ast.expr, scope: dict[str, Var], context: str) -> Expr:
    match node:
        case ast.Constant(int() as value) if not isinstance(value, bool):
            return const(value)
        case ast.Name(name) if name in scope:
            return scope[name]
        case ast.BinOp(a, op, b) if type(op) in _OPERATORS:
            return binary(_OPERATORS[type(op)], _expr(a, scope, context), _expr(b, scope, context))
    raise _malformed(context, f"{ast.unparse(node)!r} in a map of indices")


def _malformed(context: str, message: str) -> ScheduleError:
    hint = f"as 'i, j -> j // 16, i, j % 16', with {_WRITTEN} of names and numbers"
    return ScheduleError(message, where=context, hint=hint)


def _extent(e: Expr, bounds: Bounds, context: str) -> Expr:
    lo, hi = bound(e, bounds)
    if lo is not None and lo < 0:
        raise ScheduleError("an index may be negative", where=context, hint="add an offset")
    if lo is not None and hi is not None:
        return const(hi + 1)
    # symbolic extents: the index of the last element
    last = simplify(substitute(e, {v: bounds[v][1] for v in free_vars(e) if v in bounds}) + 1)  # type: ignore[misc]
    if lo is None or not prove(binary("lt", e, last), bounds):
        raise ScheduleError(
            "cannot bound an index of the new layout",
            where=context,
            hint="symbolic extents only as i // n and i % n",
        )
    return last


def is_injective(m: IndexMap, shape: Sequence[Expr]) -> bool:
    """Whether different elements get different indices, for all values of symbolic extents."""
    try:
        import islpy as isl
    except ImportError:
        raise missing_package("islpy", "transform_layout") from None
    names = {v: f"x{n}" for n, v in enumerate(m.inputs)}
    text = AffineText(())
    text.env.update(names)
    try:
        outputs = ", ".join(map(text.text, m.outputs))
    except NotAffine:
        raise ScheduleError(
            "not an affine index",
            where="transform_layout",
            hint=f"use {_WRITTEN} of names and numbers",
        ) from None
    limits = [f"0 <= {names[v]}" for v in m.inputs]
    for v, extent in zip(m.inputs, shape, strict=True):
        size = int_value(extent)
        if size is not None:
            limits.append(f"{names[v]} < {size}")
    head = ", ".join(names.values())
    return bool(isl.Map(f"{{ [{head}] -> [{outputs}] : {' and '.join(limits)} }}").is_injective())
