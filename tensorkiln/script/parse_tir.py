"""Tensor programs from Python syntax trees: statements and `PrimFunc`."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from tensorkiln.base.errors import nearest
from tensorkiln.ir.attrs import NO_ATTRS, Attrs
from tensorkiln.ir.buffer import SCOPES, Buffer
from tensorkiln.ir.dtype import BOOL, DType
from tensorkiln.ir.expr import Broadcast, Expr, IntImm, Var, binary
from tensorkiln.ir.stmt import (
    Alloc,
    For,
    If,
    Let,
    Param,
    Prefetch,
    PrimFunc,
    Seq,
    Stmt,
    Store,
)
from tensorkiln.ir.text.syntax import KIND_WORDS, inferred_outputs
from tensorkiln.script.parse_call import parse_call
from tensorkiln.script.parse_expr import ExprParser
from tensorkiln.script.scope import Scope

LOOPS = {
    **{word: kind for kind, word in KIND_WORDS.items()},
    **{kind: kind for kind in KIND_WORDS},
}
OPTIONS = ("name", "outputs", "inplace", "op_class", "private")
Wrap = Callable[[Stmt], Stmt]


class TirParser:
    """One `@T.prim_func`."""

    def __init__(self, scope: Scope):
        self.scope = scope
        self.exprs = ExprParser(scope)
        self.fail = self.exprs.fail

    # ---- functions ---------------------------------------------------------------------------

    def function(self, node: ast.FunctionDef, options: list[ast.keyword]) -> PrimFunc:
        """The tensor program of a decorated function."""
        params = self._params(node)
        body = self.block(node.body)
        values = self._options(options)
        outputs = values.get("outputs", inferred_outputs(params, body))
        return PrimFunc(
            name=values.get("name", node.name),
            params=params,
            body=body,
            outputs=outputs,
            inplace=values.get("inplace", ()),
            op_class=values.get("op_class", "loops"),
            public=not values.get("private", False),
            attrs=getattr(self, "attrs", NO_ATTRS),
        )

    def _options(self, options: list[ast.keyword]) -> dict[str, Any]:
        values = {}
        for k in options:
            if k.arg not in OPTIONS:
                hint = nearest(k.arg or "", OPTIONS)
                raise self.fail(k.value, f"unknown option {k.arg!r} of T.prim_func", hint)
            values[k.arg] = self.exprs.literal(k.value)
        return values

    def _params(self, node: ast.FunctionDef) -> tuple[Param, ...]:
        """Scalars first: the shapes of buffers before them may use them."""
        out: dict[str, Param] = {}
        for arg in plain_arguments(self.scope, node):
            if self._buffer_call(arg) is None:
                out[arg.arg] = Var(arg.arg, self.exprs.dtype(_annotation(self.scope, arg)))
                self.scope.bind(arg, arg.arg, out[arg.arg])
        for arg in node.args.args:
            call = self._buffer_call(arg)
            if call is not None:
                out[arg.arg] = self._buffer(call, arg.arg)
                self.scope.bind(arg, arg.arg, out[arg.arg])
        return tuple(out[arg.arg] for arg in node.args.args)

    def _buffer_call(self, arg: ast.arg) -> ast.Call | None:
        a = _annotation(self.scope, arg)
        is_buffer = isinstance(a, ast.Call) and self.scope.dialect(a.func) == "T.Buffer"
        return a if is_buffer and isinstance(a, ast.Call) else None

    def _buffer(self, call: ast.Call, name: str) -> Buffer:
        """From `T.Buffer(shape, dtype, scope=, align=)` or `T.alloc_buffer(...)`."""
        if not 1 <= len(call.args) <= 2:
            raise self.fail(call, "expected a shape and a dtype", 'as T.Buffer((4,), "float32")')
        shape = self.exprs.shape(call.args[0])
        dtype = self.exprs.dtype(call.args[1]) if len(call.args) == 2 else DType("float32")
        scope, align = "global", 64
        for k in call.keywords:
            if k.arg == "scope":
                scope = str(self.exprs.literal(k.value))
                if scope not in SCOPES:
                    raise self.fail(k.value, f"unknown scope {scope!r}", f"one of {SCOPES}")
            elif k.arg == "align":
                align = self.exprs.integer(k.value)
            elif k.arg == "dtype":
                dtype = self.exprs.dtype(k.value)
            else:
                hint = nearest(k.arg or "", ["scope", "align", "dtype"])
                raise self.fail(k.value, f"unknown option {k.arg!r} of a buffer", hint)
        return Buffer(name, dtype, shape, scope, align)

    # ---- blocks ------------------------------------------------------------------------------

    def block(self, nodes: list[ast.stmt]) -> Stmt:
        """One statement of a whole block."""
        items = self.items(nodes)
        return items[0] if len(items) == 1 else Seq(tuple(items))

    def items(self, nodes: list[ast.stmt]) -> list[Stmt]:
        """The block's statements; a binder takes everything after it as its body."""
        groups: list[list[Stmt]] = [[]]
        wraps: list[Wrap] = []
        with self.scope.inner():
            for node in nodes:
                wrap = self._binder(node)
                if wrap is not None:
                    wraps.append(wrap)
                    groups.append([])
                    continue
                s = self._stmt(node)
                if s is not None:
                    groups[-1].append(s)
        while wraps:
            rest = groups.pop()
            body = rest[0] if len(rest) == 1 else Seq(tuple(rest))
            groups[-1].append(wraps.pop()(body))
        return groups[0]

    def _binder(self, node: ast.stmt) -> Wrap | None:
        """`x = ...`, `x: T.int64 = ...` or `b = T.alloc_buffer(...)`, and the name bound."""
        match node:
            case ast.Assign(targets=[ast.Name() as target], value=value):
                if isinstance(value, ast.Call) and self._is(value, "T.alloc_buffer"):
                    return self._alloc(target, value)
                return self._let(target, value, None)
            case ast.AnnAssign(target=ast.Name() as target, value=ast.expr() as value):
                return self._let(target, value, self.exprs.dtype(node.annotation))
        return None

    def _is(self, call: ast.Call, path: str) -> bool:
        return self.scope.dialect(call.func) == path

    def _alloc(self, target: ast.Name, call: ast.Call) -> Wrap:
        buf = self._buffer(call, target.id)
        self.scope.bind(target, target.id, buf)
        return lambda body: Alloc(buf, body)

    def _let(self, target: ast.Name, node: ast.expr, dtype: DType | None) -> Wrap:
        value = self.exprs.expr(node, dtype)
        if dtype is not None and value.dtype != dtype:
            raise self.fail(node, f"{target.id!r} is {dtype}, but the value is {value.dtype}")
        var = Var(target.id, value.dtype)
        self.scope.bind(target, target.id, var)
        return lambda body: Let(var, value, body)

    # ---- statements --------------------------------------------------------------------------

    def _stmt(self, node: ast.stmt) -> Stmt | None:
        match node:
            case ast.Pass() | ast.Expr(value=ast.Constant(value=str())):
                return None
            case ast.Expr(value=ast.Call() as call) if self._is(call, "T.func_attr"):
                self.attrs = Attrs.of(**ast.literal_eval(call.args[0]))
                return None
            case ast.For():
                return self._for(node)
            case ast.If():
                orelse = self.block(node.orelse) if node.orelse else None
                return If(self.exprs.expr(node.test, BOOL), self.block(node.body), orelse)
            case ast.Assign(targets=[ast.Subscript(value=name, slice=index)], value=value):
                return self._store(name, index, value, False)
            case ast.AugAssign(target=ast.Subscript() as target):
                return self._update(node, target)
            case ast.With(items=[item]) if isinstance(item.context_expr, ast.Call):
                return self._with(node, item, item.context_expr)
            case ast.Expr(value=ast.Call() as call) if self._is(call, "T.store"):
                return self._store_call(call)
            case ast.Expr(value=ast.Call() as call) if self._is(call, "T.call"):
                return parse_call(self.exprs, call)
            case ast.Expr(value=ast.Call() as call) if self._is(call, "T.prefetch"):
                return self._prefetch(call)
        raise self.fail(
            node,
            "not a statement of tensor programs",
            "there are loops, if, stores A[i] = v, x = v, T.alloc_buffer, T.store, T.prefetch",
        )

    def _for(self, node: ast.For) -> Stmt:
        call = node.iter
        if not isinstance(call, ast.Call) or node.orelse:
            raise self.fail(node.iter, "expected a range", "as `for i in T.serial(n):`")
        path = self.scope.dialect(call.func)
        if path == "T.grid":
            return self._grid(node, call)
        plain = isinstance(call.func, ast.Name) and call.func.id == "range"
        kind = "serial" if plain else LOOPS.get(path.removeprefix("T."))
        if kind is None:
            hint = nearest(path.removeprefix("T."), [*LOOPS, "grid"])
            raise self.fail(call.func, "unknown kind of loop", hint or "T.serial, T.parallel, ...")
        lo, extent, dtype = self._bounds(call)
        return self._loop(node, lo, extent, kind, dtype)

    def _bounds(self, call: ast.Call) -> tuple[Expr, Expr, DType | None]:
        """`(extent)`, `(lo, hi)` or `(lo, extent=)`, and the loop variable's own dtype."""
        options = {k.arg: k.value for k in call.keywords}
        unknown = options.keys() - {"extent", "dtype"}
        count = len(call.args) + ("extent" in options)
        if unknown or count not in (1, 2) or not call.args:
            raise self.fail(call, "expected (extent), (lo, hi) or (lo, extent=n)")
        dtype = self.exprs.dtype(options["dtype"]) if "dtype" in options else None
        if count == 1:
            extent = self.exprs.expr(call.args[0])
            return IntImm(0, extent.dtype), extent, dtype
        second = options.get("extent")
        if second is not None:
            lo, extent = self.exprs.expr(call.args[0]), self.exprs.expr(second)
        else:
            lo, hi = self.exprs.same(call.args)
            extent = binary("sub", hi, lo)
        return lo, extent, dtype

    def _loop(self, node: ast.For, lo: Expr, extent: Expr, kind: str, dtype: DType | None) -> Stmt:
        target = node.target
        if not isinstance(target, ast.Name):
            raise self.fail(target, "expected one name")
        var = Var(target.id, dtype or extent.dtype)
        with self.scope.inner():
            self.scope.bind(target, target.id, var)
            return For(var, lo, extent, kind, self.block(node.body))

    def _grid(self, node: ast.For, call: ast.Call) -> Stmt:
        """`for i, j in T.grid(m, n)`: serial loops, outermost first."""
        names = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
        if len(names) != len(call.args):
            raise self.fail(call, f"{len(names)} names for {len(call.args)} extents")
        loops: list[tuple[Var, Expr]] = []
        with self.scope.inner():
            for name, argument in zip(names, call.args, strict=True):
                extent = self.exprs.expr(argument)
                if not isinstance(name, ast.Name):
                    raise self.fail(name, "expected a name")
                var = Var(name.id, extent.dtype)
                self.scope.bind(name, name.id, var)
                loops.append((var, extent))
            body = self.block(node.body)
        for var, extent in reversed(loops):
            body = For(var, IntImm(0, extent.dtype), extent, "serial", body)
        return body

    def _store(self, name: ast.expr, index: ast.expr, value: ast.expr, nontemporal: bool) -> Stmt:
        buf = self.exprs.buffer(name)
        indices = self.exprs.indices(index, buf)
        stored = self.exprs.expr(value, buf.dtype)
        return self._checked(Store(buf, indices, stored, nontemporal), value)

    def _checked(self, s: Store, node: ast.expr) -> Store:
        """The store with its value broadcast to the lanes of the place."""
        lanes = max((i.dtype.lanes for i in s.indices), default=1)
        place = s.buffer.dtype.with_lanes(lanes)
        value = s.value
        if value.dtype.lanes == 1 and place.lanes > 1:
            value = Broadcast(value, place.lanes)
        if value.dtype != place:
            message = f"{s.buffer.name} takes {place} here, but the value is {value.dtype}"
            raise self.fail(node, message, f'convert it: T.Cast("{place}", ...)')
        return Store(s.buffer, s.indices, value, s.nontemporal)

    def _update(self, node: ast.AugAssign, target: ast.Subscript) -> Stmt:
        """`A[i] += v`."""
        load = ast.copy_location(ast.Subscript(target.value, target.slice, ast.Load()), target)
        value = ast.copy_location(ast.BinOp(load, node.op, node.value), node)
        return self._store(target.value, target.slice, value, False)

    def _store_call(self, call: ast.Call) -> Stmt:
        options = self._flags(call, {"nontemporal": False})
        if len(call.args) != 3:
            raise self.fail(call, "expected T.store(buffer, (i, j), value, nontemporal=False)")
        name, index, value = call.args
        return self._store(name, index, value, bool(options["nontemporal"]))

    def _prefetch(self, call: ast.Call) -> Stmt:
        options = self._flags(call, {"locality": 3, "write": False})
        args = call.args
        if len(args) == 1 and isinstance(args[0], ast.Subscript):
            args = [args[0].value, args[0].slice]
        if len(args) != 2:
            raise self.fail(call, "expected T.prefetch(buffer, (i, j), locality=3, write=False)")
        buf = self.exprs.buffer(args[0])
        indices = self.exprs.indices(args[1], buf)
        return Prefetch(buf, indices, int(options["locality"]), bool(options["write"]))

    def _flags(self, call: ast.Call, defaults: dict[str, int]) -> dict[str, int]:
        out = dict(defaults)
        for k in call.keywords:
            value = self.exprs.literal(k.value)
            if k.arg not in defaults or not isinstance(value, int):
                hint = nearest(k.arg or "", defaults)
                raise self.fail(k.value, f"unknown option {k.arg!r}, or not a number", hint)
            out[k.arg] = value
        return out

    def _with(self, node: ast.With, item: ast.withitem, call: ast.Call) -> Stmt:
        """`with T.seq():`, `with T.let(v) as x:`, `with T.alloc_buffer(...) as b:`."""
        if self._is(call, "T.seq"):
            return Seq(tuple(self.items(node.body)))
        name = item.optional_vars
        if not isinstance(name, ast.Name):
            raise self.fail(call, "expected `with ... as name:`")
        with self.scope.inner():
            if self._is(call, "T.let") and len(call.args) in (1, 2):
                dtype = self.exprs.dtype(call.args[1]) if len(call.args) == 2 else None
                wrap = self._let(name, call.args[0], dtype)
            elif self._is(call, "T.alloc_buffer"):
                wrap = self._alloc(name, call)
            else:
                raise self.fail(call, "expected T.seq(), T.let(value) or T.alloc_buffer(...)")
            return wrap(self.block(node.body))


def plain_arguments(scope: Scope, node: ast.FunctionDef) -> list[ast.arg]:
    """The parameters. Raises UserError for defaults, *args, and keyword-only ones."""
    a = node.args
    if a.posonlyargs or a.kwonlyargs or a.vararg or a.kwarg or a.defaults:
        raise scope.source.error(node, "parameters are plain names with a type")
    return a.args


def _annotation(scope: Scope, arg: ast.arg) -> ast.expr:
    if arg.annotation is None:
        hint = 'as A: T.Buffer((4,), "float32") or n: T.int64'
        raise scope.source.error(arg, f"parameter {arg.arg!r} needs a type", hint)
    return arg.annotation
