"""Tensor programs from Python syntax trees: statements and `PrimFunc`."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tensorkiln.base.errors import nearest
from tensorkiln.ir.attrs import NO_ATTRS
from tensorkiln.ir.buffer import SCOPES, Buffer
from tensorkiln.ir.dtype import BOOL, VOID, DType
from tensorkiln.ir.expr import Broadcast, CallExtern, Expr, Var
from tensorkiln.ir.known_attrs import PROGRAM_ATTRS
from tensorkiln.ir.outputs import inferred_outputs
from tensorkiln.ir.stmt import (
    Alloc,
    Assert,
    Evaluate,
    If,
    Let,
    MatchBuffer,
    Param,
    Prefetch,
    PrimFunc,
    Seq,
    Stmt,
    Store,
    While,
)
from tensorkiln.script.macro import Macro
from tensorkiln.script.parse_block import BLOCK_WORDS, parse_block
from tensorkiln.script.parse_call import parse_call
from tensorkiln.script.parse_expr import ExprParser, Range
from tensorkiln.script.parse_loops import parse_for
from tensorkiln.script.parse_macro import inline_macro
from tensorkiln.script.python_values import is_python, steps, unwrap, wrap
from tensorkiln.script.scope import Number, Python, Scope

STATEMENTS = "there are loops, if, while, assert, stores A[i] = v, x = v, T.block, T.alloc_buffer"
OPTIONS: dict[str, tuple[type, str]] = {
    "name": (str, "a text"),
    "outputs": (int, "a number of buffers"),
    "inplace": (tuple, "a tuple of positions of parameters"),
    "op_class": (str, "a text"),
    "private": (bool, "True or False"),
}
Wrap = Callable[[Stmt], Stmt]


class TirParser:
    """Parses one `@T.prim_func`."""

    def __init__(self, scope: Scope, ends: dict[Var, Expr] | None = None):
        self.scope = scope
        # loop variable -> lo + extent: the extents that `T.axis.remap` uses
        self.ends: dict[Var, Expr] = {} if ends is None else ends
        self.exprs = ExprParser(scope)
        self.fail = self.exprs.fail

    # ---- functions ---------------------------------------------------------------------------

    def function(self, node: ast.FunctionDef, options: list[ast.keyword]) -> PrimFunc:
        """Parse a decorated function; `options` are the keywords of its decorator."""
        params = self._params(node)
        values = self._options(options)
        nodes, given = self.exprs.func_attr(node.body, "T.func_attr")
        name, attrs = values.get("name", node.name), NO_ATTRS
        if given is not None:
            attrs = self.exprs.known_attrs(given, PROGRAM_ATTRS, name)
        body = self.block(nodes)
        outputs = values.get("outputs", inferred_outputs(params, body))
        return PrimFunc(
            name=name,
            params=params,
            body=body,
            outputs=outputs,
            inplace=values.get("inplace", ()),
            op_class=values.get("op_class", "loops"),
            public=not values.get("private", False),
            attrs=attrs,
        )

    def _options(self, options: list[ast.keyword]) -> dict[str, Any]:
        values = {}
        for k in options:
            if k.arg not in OPTIONS:
                hint = nearest(k.arg or "", OPTIONS)
                raise self.fail(k.value, f"unknown option {k.arg!r} of T.prim_func", hint)
            value, (kind, form) = self.exprs.literal(k.value), OPTIONS[k.arg]
            value = (value,) if kind is tuple and type(value) is int else value
            if type(value) is not kind:
                raise self.fail(k.value, f"option {k.arg!r} is {form}, not {value!r}")
            values[k.arg] = value
        return values

    def _params(self, node: ast.FunctionDef) -> tuple[Param, ...]:
        """Bind scalars before buffers, because the shape of a buffer may use a scalar that comes
        after it; return the parameters in their written order."""
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
        """Parse `T.Buffer(shape, dtype, scope=, align=, strides=)` or `T.alloc_buffer(...)`; the
        default dtype is float32."""
        if not 1 <= len(call.args) <= 2:
            raise self.fail(call, "expected a shape and a dtype", 'as T.Buffer((4,), "float32")')
        shape = self.exprs.shape(call.args[0])
        dtype = self.exprs.dtype(call.args[1]) if len(call.args) == 2 else DType("float32")
        return self._buffer_of(name, shape, dtype, "global", call.keywords)

    def _buffer_of(
        self,
        name: str,
        shape: tuple[Expr, ...],
        dtype: DType,
        scope: str,
        options: list[ast.keyword],
        align: int = 64,
    ) -> Buffer:
        strides = None
        for k in options:
            if k.arg == "scope":
                scope = self.exprs.string(k.value)
                if scope not in SCOPES:
                    raise self.fail(k.value, f"unknown scope {scope!r}", f"one of {SCOPES}")
            elif k.arg == "align":
                align = self.exprs.integer(k.value)
            elif k.arg == "strides":
                strides = self.exprs.shape(k.value)
                if len(strides) != len(shape):
                    message = f"{len(strides)} strides for {len(shape)} dimensions"
                    raise self.fail(k.value, message, "one per dimension, in elements")
            elif k.arg == "dtype":
                dtype = self.exprs.dtype(k.value)
            else:
                hint = nearest(k.arg or "", ["scope", "align", "strides", "dtype"])
                raise self.fail(k.value, f"unknown option {k.arg!r} of a buffer", hint)
        return Buffer(name, dtype, shape, scope, align, strides)

    # ---- blocks ------------------------------------------------------------------------------

    def block(self, nodes: list[ast.stmt]) -> Stmt:
        """Parse a block to a single statement, a `Seq` unless it has exactly one."""
        items = self.items(nodes)
        return items[0] if len(items) == 1 else Seq(tuple(items))

    def items(self, nodes: list[ast.stmt]) -> list[Stmt]:
        """Parse a block to its statements. One that binds a name, such as `x = ...` (`Let`) or
        `T.alloc_buffer`, takes all statements after it as its body."""
        groups: list[list[Stmt]] = [[]]
        wraps: list[Wrap] = []
        todo = nodes[::-1]
        with self.scope.inner():
            while todo:
                node = todo.pop()
                if isinstance(node, ast.If):
                    branch = self._decided(node)
                    if branch is not None:
                        todo += branch[::-1]
                        continue
                found = self._binder(node)
                if isinstance(found, list):
                    groups[-1] += found
                else:
                    wraps.append(found)
                    groups.append([])
        while wraps:
            rest = groups.pop()
            body = rest[0] if len(rest) == 1 else Seq(tuple(rest))
            groups[-1].append(wraps.pop()(body))
        return groups[0]

    def _decided(self, node: ast.If) -> list[ast.stmt] | None:
        """Return the statements of the branch taken if the condition is a Python value, else
        None."""
        test = self.exprs.any(node.test)
        if not is_python(test):
            return None
        return node.body if unwrap(test) else node.orelse

    def _binder(self, node: ast.stmt) -> Wrap | list[Stmt]:
        """Parse one statement of a block. For `x = ...`, `x: T.int64 = ...`,
        `b = T.alloc_buffer(...)` and `v = T.match_buffer(...)`, bind the name and return a function
        that makes the statement from the rest of the block. Otherwise return the statements that it
        is: none for an assignment of a Python value, which is bound while parsing.
        """
        match node:
            case ast.Assign(targets=[ast.Name() as target], value=ast.Call() as call) if (
                self.is_word(call, "T.alloc_buffer") or self.is_word(call, "T.match_buffer")
            ):
                return self._made(target, call)
            case ast.Assign(targets=[ast.Name() | ast.Tuple() as target], value=value):
                found = self.exprs.any(value)
                if isinstance(found, Python) or is_python(found):
                    self.unpack(target, unwrap(found), value)
                    return []
                if not isinstance(target, ast.Name):
                    raise self.fail(target, "one value for several names")
                if isinstance(found, Number):
                    found = self.exprs.number(value, found, None)
                return self._let(target, value, found)
            case ast.AnnAssign(target=ast.Name() as target, value=ast.expr() as value):
                dtype = self.exprs.dtype(node.annotation)
                return self._let(target, value, self.exprs.expr(value, dtype), dtype)
        return self._stmts(node)

    def unpack(self, target: ast.expr, value: object, node: ast.expr) -> None:
        """Bind a name to a Python value, or a tuple of names to its items."""
        if isinstance(target, ast.Name):
            found = wrap(value)
            self.scope.bind(target, target.id, found)
            return
        if not isinstance(target, ast.Tuple | ast.List):
            raise self.fail(target, "expected a name")
        with self.exprs.in_python(node):
            items = steps(value)
        if len(items) != len(target.elts):
            raise self.fail(node, f"{len(target.elts)} names for {len(items)} values")
        for name, item in zip(target.elts, items, strict=True):
            self.unpack(name, item, node)

    def is_word(self, node: ast.AST, path: str) -> bool:
        """Whether a node is a call of `path`, e.g. "T.block"."""
        if not isinstance(node, ast.Call):
            return False
        return self.scope.dialect(node.func) == path

    def _made(self, target: ast.Name, call: ast.Call) -> Wrap:
        if self.is_word(call, "T.match_buffer"):
            return self._match(target, call)
        buf = self._buffer(call, target.id)
        self.scope.bind(target, target.id, buf)
        return lambda body: Alloc(buf, body)

    def _match(self, target: ast.Name, call: ast.Call) -> Wrap:
        """`V = T.match_buffer(A[i, 0:8], shape, dtype, strides=, align=)`."""
        if not 2 <= len(call.args) <= 3 or not isinstance(call.args[0], ast.Subscript):
            hint = 'as T.match_buffer(A[i, 0:8], (8,), "float32")'
            raise self.fail(call, "expected a part of a buffer, a shape and a dtype", hint)
        place = call.args[0]
        source = self.exprs.buffer(place.value)
        ranges = self.exprs.ranges(place.slice, source)
        shape = self.exprs.shape(call.args[1])
        dtype = self.exprs.dtype(call.args[2]) if len(call.args) == 3 else source.dtype
        buf = self._buffer_of(target.id, shape, dtype, source.scope, call.keywords, dtype.bytes)
        if buf.dtype != source.dtype:
            raise self.fail(call, f"a view of {source.dtype} as {buf.dtype}")
        if buf.strides_given is None:
            buf = replace(buf, strides_given=self._inherited(place, ranges, buf, source))
        self.scope.bind(target, target.id, buf)
        starts = tuple(lo for lo, _ in ranges)
        return lambda body: MatchBuffer(buf, source, starts, body)

    def _inherited(
        self, node: ast.Subscript, ranges: list[Range], view: Buffer, source: Buffer
    ) -> tuple[Expr, ...] | None:
        """Return the strides of a view: those of the sliced dimensions, or None for a row-major
        view. Raise UserError if the view has another shape than the slices, unless it reshapes the
        whole buffer."""
        sliced = [(k, n) for k, (_, n) in enumerate(ranges) if n is not None]
        if not sliced:
            return None
        if [n for _, n in sliced] != list(view.shape):
            if all(
                n is not None and n == d for (_, n), d in zip(ranges, source.shape, strict=True)
            ):
                return None  # the whole buffer in another shape
            raise self.fail(node, "the slices and the shape differ", "give strides=(...)")
        strides = tuple(source.strides[k] for k, _ in sliced)
        return None if strides == view.strides else strides

    def _let(
        self, target: ast.Name, node: ast.expr, value: Expr, dtype: DType | None = None
    ) -> Wrap:
        if dtype is not None and value.dtype != dtype:
            raise self.fail(node, f"{target.id!r} is {dtype}, but the value is {value.dtype}")
        if value.dtype == VOID:
            raise self.fail(node, "the call returns nothing", "write it as a statement")
        var = Var(target.id, value.dtype)
        self.scope.bind(target, target.id, var)
        return lambda body: Let(var, value, body)

    # ---- statements --------------------------------------------------------------------------

    def _stmts(self, node: ast.stmt) -> list[Stmt]:
        """Parse a node that binds no name: several statements for an unrolled loop or a macro."""
        match node:
            case ast.Pass() | ast.Expr(value=ast.Constant(value=str())):
                return []
            case ast.For():
                return parse_for(self, node)
            case ast.If():
                orelse = self.block(node.orelse) if node.orelse else None
                return [If(self.exprs.expr(node.test, BOOL), self.block(node.body), orelse)]
            case ast.While(orelse=[]):
                return [self._while(node)]
            case ast.Assert():
                return self._assert(node)
            case ast.Assign(targets=[ast.Subscript(value=name, slice=index)], value=value):
                return [self._store(name, index, value, False)]
            case ast.AugAssign(target=ast.Subscript() as target):
                return [self._update(node, target)]
            case ast.With(items=[item]) if isinstance(item.context_expr, ast.Call):
                return [self._with(node, item, item.context_expr)]
            case ast.Expr(value=ast.Call() as call):
                return self._call(call)
        raise self.fail(node, "not a statement of tensor programs", STATEMENTS)

    def _call(self, call: ast.Call) -> list[Stmt]:
        path = self.scope.dialect(call.func)
        match path:
            case "T.store":
                return [self._store_call(call)]
            case "T.call":
                return [parse_call(self.exprs, call)]
            case "T.prefetch":
                return [self._prefetch(call)]
            case "T.evaluate" | "T.call_extern":
                return [self._evaluate(call, path)]
        if path in BLOCK_WORDS:
            raise self.fail(call, f"{path} stands at the beginning of a block")
        found = None if path else self.exprs.function(call.func)
        if isinstance(found, Macro):
            return inline_macro(self, found, call)
        if not path and callable(found):
            raise self.fail(call, "a call of a Python function is a value, not a statement",
                            "decorate it with @T.macro to write statements in it")  # fmt: skip
        known = ["store", "prefetch", "call", "evaluate", "call_extern", "func_attr"]
        hint = nearest(path.removeprefix("T."), known) or STATEMENTS
        raise self.fail(call, "not a statement of tensor programs", hint)

    def _evaluate(self, call: ast.Call, path: str) -> Stmt:
        if path == "T.evaluate" and len(call.args) == 1 and not call.keywords:
            value = self.exprs.expr(call.args[0])
        else:
            value = self.exprs.expr(call)
        if not isinstance(value, CallExtern):
            raise self.fail(call, "only a call of a C function has an effect", "T.call_extern")
        return Evaluate(value)

    def _while(self, node: ast.While) -> Stmt:
        test = self.exprs.any(node.test)
        if is_python(test):
            raise self.fail(
                node.test,
                "the condition is a Python value, which never changes",
                "load it from a buffer",
            )
        return While(self.exprs.expr(node.test, BOOL), self.block(node.body))

    def _assert(self, node: ast.Assert) -> list[Stmt]:
        """Parse an assertion. If its condition is a Python value, check it now and return no
        statement."""
        message = f"assertion failed: {ast.unparse(node.test)}"
        if node.msg is not None:
            message = self.exprs.string(node.msg)
        test = self.exprs.any(node.test)
        if not is_python(test):
            return [Assert(self.exprs.expr(node.test, BOOL), message)]
        if not unwrap(test):
            raise self.fail(node.test, message)
        return []

    def _store(self, name: ast.expr, index: ast.expr, value: ast.expr, nontemporal: bool) -> Stmt:
        buf = self.exprs.buffer(name)
        indices = self.exprs.indices(index, buf)
        stored = self.exprs.expr(value, buf.dtype)
        return self._checked(Store(buf, indices, stored, nontemporal), value)

    def _checked(self, s: Store, node: ast.expr) -> Store:
        """Return the store, with a scalar value broadcast to the lanes of the indices; raise
        UserError if the types do not match."""
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
        """`T.block`, `T.seq()`, `T.let(v) as x`, `T.alloc_buffer(...) as b`, `T.match_buffer`."""
        if self.is_word(call, "T.seq"):
            return Seq(tuple(self.items(node.body)))
        if self.is_word(call, "T.block"):
            return parse_block(self, node, call)
        if self.is_word(call, "T.init"):
            raise self.fail(call, "T.init stands in a block, before its other statements")
        name = item.optional_vars
        if not isinstance(name, ast.Name):
            raise self.fail(call, "expected `with ... as name:`")
        with self.scope.inner():
            if self.is_word(call, "T.let") and len(call.args) in (1, 2):
                dtype = self.exprs.dtype(call.args[1]) if len(call.args) == 2 else None
                wrapped = self._let(name, call.args[0], self.exprs.expr(call.args[0], dtype), dtype)
            elif self.is_word(call, "T.alloc_buffer") or self.is_word(call, "T.match_buffer"):
                wrapped = self._made(name, call)
            else:
                raise self.fail(call, "expected T.block, T.seq, T.let or T.alloc_buffer")
            return wrapped(self.block(node.body))


def plain_arguments(scope: Scope, node: ast.FunctionDef) -> list[ast.arg]:
    """Return the parameters; raise UserError if there are defaults, `*args`, `**kwargs`, or
    positional-only or keyword-only parameters."""
    a = node.args
    if a.posonlyargs or a.kwonlyargs or a.vararg or a.kwarg or a.defaults:
        raise scope.source.error(node, "parameters are plain names with a type")
    return a.args


def _annotation(scope: Scope, arg: ast.arg) -> ast.expr:
    if arg.annotation is None:
        hint = 'as A: T.Buffer((4,), "float32") or n: T.int64'
        raise scope.source.error(arg, f"parameter {arg.arg!r} needs a type", hint)
    return arg.annotation
