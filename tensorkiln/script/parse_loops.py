"""Loops from Python syntax trees: loops over ranges, and unrolled loops over Python values."""

from __future__ import annotations

import ast

from tensorkiln.base.errors import nearest
from tensorkiln.ir.attrs import NO_ATTRS, Attrs
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Expr, IntImm, Var, binary
from tensorkiln.ir.known_attrs import LOOP_ATTRS
from tensorkiln.ir.stmt import For, Stmt
from tensorkiln.ir.text.syntax import KIND_WORDS
from tensorkiln.script.parse_attrs import parse_known_attrs
from tensorkiln.script.parse_body import parse_body, parse_items, unpack
from tensorkiln.script.parse_literals import (
    NAMES,
    in_python,
    parse_any,
    parse_dtype,
    parse_expr,
    parse_same,
    parse_string,
)
from tensorkiln.script.python_values import steps
from tensorkiln.script.scope import NameScope, Python

LOOPS = {**{word: kind for kind, word in KIND_WORDS.items()}, **{kind: kind for kind in KIND_WORDS}}


def parse_for(scope: NameScope, node: ast.For) -> list[Stmt]:
    """Parse a loop. A loop over Python values is unrolled: its body is parsed for each of them."""
    call = node.iter
    if node.orelse:
        raise scope.fail(node, "a loop has no else")
    path = scope.dialect(call.func) if isinstance(call, ast.Call) else ""
    if path == "T.meta.unroll" or not (path or _is_range(call)):
        return _unrolled(scope, node)
    assert isinstance(call, ast.Call)
    if path == "T.grid":
        return [_grid(scope, node, call)]
    kind = "serial" if not path else LOOPS.get(path.removeprefix("T."))
    if kind is None:
        hint = nearest(path.removeprefix("T."), [*LOOPS, "grid"])
        raise scope.fail(call.func, "unknown kind of loop", hint or "T.serial, T.parallel, ...")
    lo, extent, dtype = _bounds(scope, call)
    attrs, target = _hints(scope, call, kind), node.target
    if not isinstance(target, ast.Name):
        raise scope.fail(target, "expected one name")
    var = Var(target.id, dtype or extent.dtype)
    with scope.inner():
        scope.bind(target, target.id, var)
        scope.ends[var] = binary("add", lo, extent)
        return [For(var, lo, extent, kind, parse_body(scope, node.body), attrs)]


def _is_range(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range"
    )


def _unrolled(scope: NameScope, node: ast.For) -> list[Stmt]:
    """Unroll `for x in items:` over captured Python values, or over `T.meta.unroll(...)`."""
    may_be_python = isinstance(node.iter, (*NAMES, ast.BinOp))
    iterable = parse_any(scope, node.iter) if may_be_python else None
    if (
        not isinstance(iterable, Python)
        or not iterable.captured
        or isinstance(iterable.value, Buffer)
    ):
        hint = "as `for i in T.serial(n):`, or T.meta.unroll(items) over Python values"
        raise scope.fail(node.iter, "expected a range", hint)
    with in_python(scope, node.iter):
        items = steps(iterable.value)
    out: list[Stmt] = []
    for item in items:
        with scope.inner():
            unpack(scope, node.target, item, node.iter)
            out += parse_items(scope, node.body)
    return out


def _hints(scope: NameScope, call: ast.Call, kind: str) -> Attrs:
    """Parse the attributes of a loop: `annotations={...}` and, for a loop of kind thread,
    `thread="..."`."""
    attrs: Attrs = NO_ATTRS
    for k in call.keywords:
        if k.arg == "annotations":
            attrs = Attrs.of(**{**attrs, **parse_known_attrs(scope, k.value, LOOP_ATTRS, "")})
        elif k.arg == "thread":
            attrs = Attrs.of(**{**attrs, "thread": parse_string(scope, k.value)})
    if (kind == "thread") != ("thread" in attrs):
        hint = 'as T.thread_binding(n, thread="blockIdx.x")'
        raise scope.fail(call, "a thread loop, and no other, names its thread", hint)
    return attrs


def _bounds(scope: NameScope, call: ast.Call) -> tuple[Expr, Expr, DType | None]:
    """Parse `(extent)`, `(lo, hi)` or `(lo, extent=)`. Return lo, extent and the loop variable's
    dtype, None if `dtype=` is not given."""
    options = {k.arg: k.value for k in call.keywords}
    unknown = options.keys() - {"extent", "dtype", "annotations", "thread"}
    count = len(call.args) + ("extent" in options)
    if unknown or count not in (1, 2) or not call.args:
        steps_hint = "as `for i in range((hi - lo + step - 1) // step):` with `lo + i * step`"
        hint = steps_hint if "step" in options or count == 3 else ""
        raise scope.fail(call, "expected (extent), (lo, hi) or (lo, extent=n)", hint)
    dtype = parse_dtype(scope, options["dtype"]) if "dtype" in options else None
    if count == 1:
        extent = parse_expr(scope, call.args[0])
        return IntImm(0, extent.dtype), extent, dtype
    second = options.get("extent")
    if second is not None:
        lo, extent = parse_expr(scope, call.args[0]), parse_expr(scope, second)
    else:
        lo, hi = parse_same(scope, call.args)
        extent = binary("sub", hi, lo)
    return lo, extent, dtype


def _grid(scope: NameScope, node: ast.For, call: ast.Call) -> Stmt:
    """`for i, j in T.grid(m, n)`: serial loops, outermost first."""
    names = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
    if len(names) != len(call.args):
        raise scope.fail(call, f"{len(names)} names for {len(call.args)} extents")
    loops: list[tuple[Var, Expr]] = []
    with scope.inner():
        for name, argument in zip(names, call.args, strict=True):
            extent = parse_expr(scope, argument)
            if not isinstance(name, ast.Name):
                raise scope.fail(name, "expected a name")
            var = Var(name.id, extent.dtype)
            scope.bind(name, name.id, var)
            scope.ends[var] = extent
            loops.append((var, extent))
        body = parse_body(scope, node.body)
    for var, extent in reversed(loops):
        body = For(var, IntImm(0, extent.dtype), extent, "serial", body)
    return body
