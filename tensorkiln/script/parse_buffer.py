"""Buffers: elements and parts of them, and their declarations."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace

from tensorkiln.ir.buffer import SCOPES, Buffer, Load
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.equal import structural_equal
from tensorkiln.ir.expr import Binary, Expr, IntImm, Ramp, binary, int_value
from tensorkiln.ir.stmt import Alloc, MatchBuffer, Stmt
from tensorkiln.script.arguments import options
from tensorkiln.script.parse_literals import (
    NAMES,
    in_python,
    parse_any,
    parse_dtype,
    parse_expr,
    parse_integer,
    parse_same,
    parse_string,
)
from tensorkiln.script.parse_shape import parse_shape
from tensorkiln.script.python_values import Value, unwrap, wrap
from tensorkiln.script.scope import NameScope, Python

Range = tuple[Expr, Expr | None]


# Calls that declare a buffer which a statement binds.
BUFFER_WORDS = ("T.alloc_buffer", "T.match_buffer", "T.allocate", "T.decl_buffer", "T.Buffer")
# A function that makes a statement from the rest of its block: `x = ...` binds x in that rest.
Wrap = Callable[[Stmt], Stmt]


def _load(scope: NameScope, node: ast.Subscript) -> Value:
    name = node.value
    base = parse_any(scope, name) if isinstance(name, NAMES) else None
    if isinstance(base, Python) and base.captured and not isinstance(base.value, Buffer):
        index = unwrap(parse_any(scope, node.slice))
        with in_python(scope, node):
            return wrap(base.value[index])  # type: ignore[index]
    buf = parse_buffer(scope, name)
    return Load(buf, parse_indices(scope, node.slice, buf))


def parse_buffer(scope: NameScope, node: ast.expr) -> Buffer:
    """Return the buffer that a node denotes; raise UserError if it denotes anything else."""
    meaning = parse_any(scope, node) if isinstance(node, NAMES) else None
    if isinstance(meaning, Python) and isinstance(meaning.value, Buffer):
        return meaning.value
    if isinstance(node, ast.Name):
        raise scope.fail(node, f"{node.id!r} is not a buffer")
    raise scope.fail(node, "expected the name of a buffer")


def parse_indices(scope: NameScope, node: ast.expr, buf: Buffer) -> tuple[Expr, ...]:
    """Parse one integer index per dimension of `buf`. A slice of constant width is a vector
    index: `A[i, j : j + 8]` has a `Ramp` of 8 lanes."""
    items = node.elts if isinstance(node, (ast.Tuple, ast.List)) else [node]
    if len(items) != len(buf.shape):
        message = f"{buf.name} has {len(buf.shape)} dimensions, received {len(items)} indices"
        raise scope.fail(node, message)
    out = []
    for item, extent in zip(items, buf.shape, strict=True):
        e = _lanes(scope, item, extent) if isinstance(item, ast.Slice) else parse_expr(scope, item)
        if not e.dtype.is_int:
            raise scope.fail(item, f"an index is an integer, not {e.dtype}")
        out.append(e)
    return tuple(out)


def parse_ranges(scope: NameScope, node: ast.expr, buf: Buffer) -> list[Range]:
    """Parse a region of `buf`: (first, extent) per dimension; the extent is None for a single
    index, which is not a slice."""
    items = node.elts if isinstance(node, (ast.Tuple, ast.List)) else [node]
    if len(items) != len(buf.shape):
        message = f"{buf.name} has {len(buf.shape)} dimensions, received {len(items)} ranges"
        raise scope.fail(node, message)
    out: list[Range] = []
    for item, whole in zip(items, buf.shape, strict=True):
        lo: Expr
        extent: Expr | None = None
        if not isinstance(item, ast.Slice):
            lo = parse_expr(scope, item)
        elif item.step is None:
            lo, extent = _range(scope, item, whole)
        else:
            raise scope.fail(item, "a part of a buffer has no step")
        if not lo.dtype.is_int or lo.dtype.lanes != 1:
            raise scope.fail(item, f"an index is an integer, not {lo.dtype}")
        out.append((lo, extent))
    return out


def _lanes(scope: NameScope, node: ast.Slice, whole: Expr) -> Expr:
    lo, extent = _range(scope, node, whole)
    step = 1 if node.step is None else parse_integer(scope, node.step)
    width = int_value(extent)
    if width is None or width < 1 or step < 1:
        hint = "as A[i, j : j + 8]; a loop runs over any number"
        raise scope.fail(node, "a slice that is read or stored has a constant width", hint)
    lanes = -(-width // step)
    return lo if lanes == 1 else Ramp(lo, IntImm(step, lo.dtype), lanes)


def _range(scope: NameScope, node: ast.Slice, whole: Expr) -> tuple[Expr, Expr]:
    """Return first element and number of elements of `lo:hi` in a dimension of `whole`."""
    if node.upper is None:
        lo = parse_expr(scope, node.lower) if node.lower is not None else IntImm(0, whole.dtype)
        return lo, whole if lo == IntImm(0, whole.dtype) else binary("sub", whole, lo)
    if node.lower is None:
        hi = parse_expr(scope, node.upper)
        return IntImm(0, hi.dtype), hi
    lo, hi = parse_same(scope, [node.lower, node.upper])
    if lo == IntImm(0, lo.dtype):
        return lo, hi
    if isinstance(hi, Binary) and hi.op == "add" and structural_equal(hi.a, lo):
        return lo, hi.b
    return lo, binary("sub", hi, lo)


# ---- declarations ------------------------------------------------------------------------------


def parse_buffer_type(scope: NameScope, call: ast.Call, name: str) -> Buffer:
    """Parse `T.Buffer(shape, dtype, scope=, align=, strides=)` or `T.alloc_buffer(...)`; the
    default dtype is float32."""
    if not 1 <= len(call.args) <= 2:
        raise scope.fail(call, "expected a shape and a dtype", 'as T.Buffer((4,), "float32")')
    shape = parse_shape(scope, call.args[0])
    dtype = parse_dtype(scope, call.args[1]) if len(call.args) == 2 else DType("float32")
    return _buffer_of(scope, name, shape, dtype, "global", call.keywords)


def _buffer_of(
    scope: NameScope,
    name: str,
    shape: tuple[Expr, ...],
    dtype: DType,
    memory: str,
    keywords: list[ast.keyword],
    align: int = 64,
) -> Buffer:
    nodes = options(scope, keywords, ("scope", "align", "strides", "dtype"), "a buffer")
    if "scope" in nodes:
        memory = parse_string(scope, nodes["scope"])
        if memory not in SCOPES:
            raise scope.fail(nodes["scope"], f"unknown scope {memory!r}", f"one of {SCOPES}")
    align = parse_integer(scope, nodes["align"]) if "align" in nodes else align
    strides = parse_shape(scope, nodes["strides"]) if "strides" in nodes else None
    if strides is not None and len(strides) != len(shape):
        message = f"{len(strides)} strides for {len(shape)} dimensions"
        raise scope.fail(nodes["strides"], message, "one per dimension, in elements")
    dtype = parse_dtype(scope, nodes["dtype"]) if "dtype" in nodes else dtype
    return Buffer(name, dtype, shape, memory, align, strides)


def declare_buffer(scope: NameScope, target: ast.Name, call: ast.Call) -> Wrap:
    """`b = T.alloc_buffer(...)` or `v = T.match_buffer(...)`: bind the name. `T.allocate(shape,
    dtype, scope)` and `T.decl_buffer(shape, dtype)` allocate too; with `data=`, the latter and
    `T.Buffer(...)` are views of a whole buffer."""
    call = _view_of_data(scope, call)
    if scope.is_call(call, "T.match_buffer"):
        return _view(scope, target, call)
    if scope.is_call(call, "T.allocate") and len(call.args) == 3:
        memory = ast.keyword("scope", call.args[2])
        call = ast.copy_location(ast.Call(call.func, call.args[:2], [*call.keywords, memory]), call)
    buf = parse_buffer_type(scope, call, target.id)
    scope.bind(target, target.id, buf)
    return lambda body: Alloc(buf, body)


def _view_of_data(scope: NameScope, call: ast.Call) -> ast.Call:
    """`T.match_buffer(a[:, :], shape, dtype)` for `T.decl_buffer(shape, dtype, data=a)`, also with
    `data=a.data`; other calls as they are."""
    data = next((k.value for k in call.keywords if k.arg == "data"), None)
    if data is None:
        return call
    if isinstance(data, ast.Attribute) and data.attr == "data":
        data = data.value
    source = parse_buffer(scope, data)
    whole: list[ast.expr] = [ast.copy_location(ast.Slice(), call) for _ in source.shape]
    index = ast.copy_location(ast.Tuple(whole, ast.Load()), call)
    place = ast.copy_location(ast.Subscript(data, index, ast.Load()), call)
    func = ast.copy_location(ast.Attribute(ast.Name("T", ast.Load()), "match_buffer"), call)
    skipped = ("data", "scope", "elem_offset")
    keywords = [k for k in call.keywords if k.arg not in skipped]
    return ast.copy_location(ast.Call(func, [place, *call.args], keywords), call)


def _view(scope: NameScope, target: ast.Name, call: ast.Call) -> Wrap:
    """`V = T.match_buffer(A[i, 0:8], shape, dtype, strides=, align=)`."""
    if not 2 <= len(call.args) <= 3 or not isinstance(call.args[0], ast.Subscript):
        hint = 'as T.match_buffer(A[i, 0:8], (8,), "float32")'
        raise scope.fail(call, "expected a part of a buffer, a shape and a dtype", hint)
    place = call.args[0]
    source = parse_buffer(scope, place.value)
    ranges = parse_ranges(scope, place.slice, source)
    shape = parse_shape(scope, call.args[1])
    dtype = parse_dtype(scope, call.args[2]) if len(call.args) == 3 else source.dtype
    buf = _buffer_of(scope, target.id, shape, dtype, source.scope, call.keywords, dtype.bytes)
    if buf.dtype != source.dtype:
        raise scope.fail(call, f"a view of {source.dtype} as {buf.dtype}")
    if buf.strides_given is None:
        buf = replace(buf, strides_given=_inherited(scope, place, ranges, buf, source))
    scope.bind(target, target.id, buf)
    starts = tuple(lo for lo, _ in ranges)
    return lambda body: MatchBuffer(buf, source, starts, body)


def _inherited(
    scope: NameScope, node: ast.Subscript, ranges: list[Range], view: Buffer, source: Buffer
) -> tuple[Expr, ...] | None:
    """Return the strides of a view: those of the sliced dimensions, or None for a row-major
    view. Raise UserError if the view has another shape than the slices, unless it reshapes the
    whole buffer."""
    sliced = [(k, n) for k, (_, n) in enumerate(ranges) if n is not None]
    if not sliced:
        return None
    if [n for _, n in sliced] != list(view.shape):
        if all(n is not None and n == d for (_, n), d in zip(ranges, source.shape, strict=True)):
            return None  # the whole buffer in another shape
        raise scope.fail(node, "the slices and the shape differ", "give strides=(...)")
    strides = tuple(source.strides[k] for k, _ in sliced)
    return None if strides == view.strides else strides


EXPRESSIONS: dict[type[ast.expr], Callable[..., Value]] = {ast.Subscript: _load}
