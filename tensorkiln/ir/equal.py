"""Structural equality up to renaming of variables, buffers and graph values.

`first_difference(a, b)` describes where two modules, functions, statements or expressions first
differ, such as `main.bindings[3].value.attrs.strides: (1, 1) != (2, 2)`. Ignored are spans, names
of bound variables, names of constants and the module's name; constants compare by type and bytes.
A free variable of an expression equals only itself; a symbolic dimension of a function is bound at
its first appearance in a type.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from itertools import chain
from typing import Any

import numpy as np

from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Expr, FloatImm, IntImm, Var
from tensorkiln.ir.module import AnyFunction, IRModule
from tensorkiln.ir.relax import (
    Binding,
    Call,
    Constant,
    Function,
    FuncType,
    Lambda,
    PrimType,
    RVar,
    ShapeType,
    TensorType,
    Tuple,
    TupleType,
    Type,
    size_symbols,
)
from tensorkiln.ir.stmt import Param, PrimFunc, Stmt

Node = IRModule | AnyFunction | Stmt | Expr | Type | Constant | Tuple | Call


def structural_equal(a: Node, b: Node) -> bool:
    """Whether two nodes are equal up to renaming of bound variables."""
    return first_difference(a, b) is None


def first_difference(a: Node, b: Node) -> str | None:
    """Path and values of the first difference in traversal order; None when equal."""
    try:
        _Comparison().compare(a, b)
    except _Differs as e:
        path = "".join(reversed(e.path)).removeprefix(".")
        return f"{path}: {e.message}" if path else e.message
    return None


class _Differs(Exception):
    """Raised at a difference; callers append their step to the path, so it is innermost first."""

    def __init__(self, message: str):
        self.message = message
        self.path: list[str] = []
        super().__init__(message)


def _unequal(a: object, b: object) -> _Differs:
    return _Differs(f"{a!r} != {b!r}")


@functools.cache
def _order(kind: type) -> tuple[tuple[str, bool], ...]:
    """The fields to compare, each with whether it binds names: first the fields outside the scope
    of these names, then those that bind them, then those inside. Empty for FloatImm and DType,
    which compare by `==`, as plain values do."""
    if kind in (FloatImm, DType) or not is_dataclass(kind):
        return ()
    scopes = {f.name: f.metadata["scope"] for f in fields(kind) if "scope" in f.metadata}
    inside = set(chain.from_iterable(scopes.values()))
    names = [f.name for f in fields(kind) if f.compare]
    names.sort(key=lambda name: 2 if name in inside else name in scopes)
    return tuple((name, name in scopes) for name in names)


class _Comparison:
    """A parallel traversal of two trees; `_to` and `_from` map bound names of a to b and back."""

    def __init__(self) -> None:
        self._to: dict[object, object] = {}
        self._from: dict[object, object] = {}

    def compare(self, a: object, b: object) -> None:
        """Raise `_Differs` unless equal. Bound names must have been paired before."""
        kind = type(a)
        if kind is not type(b):
            raise _Differs(f"{_shown(a)} != {_shown(b)}")
        special = _SPECIAL.get(kind)
        if special is not None:
            special(self, a, b)
        elif kind is tuple:
            self.tuples(a, b)  # type: ignore[arg-type]
        elif order := _order(kind):  # type: ignore[arg-type]
            for name, binds in order:
                comparator = self.bind if binds else self.compare
                self.at(f".{name}", getattr(a, name), getattr(b, name), comparator)
        elif repr(a) != repr(b) if kind is float else a != b:
            raise _unequal(a, b)

    def at(
        self, step: str, a: Any, b: Any, comparator: Callable[[Any, Any], None] | None = None
    ) -> None:
        """Compare two parts, by `compare` unless `comparator` is given."""
        try:
            (comparator or self.compare)(a, b)
        except _Differs as e:
            e.path.append(step)
            raise

    def tuples(self, a: tuple[object, ...], b: tuple[object, ...]) -> None:
        for i, (x, y) in enumerate(zip(a, b, strict=False)):
            self.at(f"[{i}]", x, y)
        if len(a) != len(b):
            raise _Differs(f"{len(a)} items != {len(b)} items")

    # ---- names -------------------------------------------------------------------------------

    def pair(self, a: object, b: object) -> None:
        """Record that `a` and `b` are bound at the same place; drop earlier pairs of either."""
        self._from.pop(self._to.pop(a, None), None)
        self._to.pop(self._from.pop(b, None), None)
        self._to[a], self._from[b] = b, a

    def name(self, a: Var | Buffer | RVar, b: Var | Buffer | RVar) -> None:
        if a not in self._to and b not in self._from:
            if a is b:
                return
            raise _Differs(f"{a.name} != {b.name}, neither is bound")
        if self._to.get(a) is not b:
            raise _Differs(f"{a.name} != {b.name}")

    def define(self, a: Expr, b: Expr) -> None:
        """Compare two extents of types, after pairing variables that appear here first."""
        if isinstance(a, Var) and isinstance(b, Var):
            if a not in self._to and b not in self._from and a.dtype == b.dtype:
                self.pair(a, b)
        elif type(a) is type(b):
            for f in getattr(type(a), "__dataclass_fields__", {}):
                x, y = getattr(a, f), getattr(b, f)
                if isinstance(x, Expr) and isinstance(y, Expr):
                    self.define(x, y)
        self.compare(a, b)

    def shape(self, a: tuple[Expr, ...], b: tuple[Expr, ...], field: str = ".shape") -> None:
        for i, (x, y) in enumerate(zip(a, b, strict=False)):
            self.at(f"{field}[{i}]", x, y, self.define)
        if len(a) != len(b):
            raise _Differs(f"rank {len(a)} != rank {len(b)}")

    def buffers(self, a: Buffer, b: Buffer) -> None:
        """Compare two buffers where they are bound, as parameters or allocations; pair them."""
        self.at(".dtype", a.dtype, b.dtype)
        self.shape(a.shape, b.shape)
        if a.strides_given is None or b.strides_given is None:
            self.at(".strides", a.strides_given, b.strides_given)
        else:
            self.shape(a.strides_given, b.strides_given, ".strides")
        self.at(".scope", a.scope, b.scope)
        self.at(".align", a.align, b.align)
        self.pair(a, b)

    def bind(self, a: Any, b: Any) -> None:
        """Compare what binds names, and pair the names."""
        if isinstance(a, Var):
            self.at(".dtype", a.dtype, b.dtype)
            self.pair(a, b)
        elif isinstance(a, Buffer):
            self.buffers(a, b)
        elif a and isinstance(a[0], tuple):  # (variable, extent), which may use earlier variables
            for (v, extent), (w, other_extent) in zip(a, b, strict=False):
                self.compare(extent, other_extent)
                self.bind(v, w)
            if len(a) != len(b):
                raise _Differs(f"{len(a)} items != {len(b)} items")
        else:
            self.compare(a, b)

    # ---- nodes that compare in their own way -------------------------------------------------

    def tensor_type(self, a: TensorType, b: TensorType) -> None:
        self.shape(a.shape, b.shape)
        self.at(".dtype", a.dtype, b.dtype)
        if a.layout != b.layout:
            raise _Differs(f"layout {a.layout} != {b.layout}")
        if a.device != b.device:
            raise _Differs(f"device {a.device!r} != {b.device!r}")

    def shape_type(self, a: ShapeType, b: ShapeType) -> None:
        self.at(".ndim", a.ndim, b.ndim)
        if a.values is None or b.values is None:
            self.at(".values", a.values, b.values)
        else:
            self.shape(a.values, b.values)

    def prim_type(self, a: PrimType, b: PrimType) -> None:
        self.at(".dtype", a.dtype, b.dtype)
        if a.value is None or b.value is None:
            self.at(".value", a.value, b.value)
        else:
            self.shape((a.value,), (b.value,))

    def constants(self, a: Constant, b: Constant) -> None:
        self.at(".type", a.type, b.type)
        if a.data is b.data:
            return
        if a.data.shape != b.data.shape or a.data.dtype != b.data.dtype:
            raise _Differs(
                f"{a.data.dtype}{list(a.data.shape)} != {b.data.dtype}{list(b.data.shape)}"
            )
        if not _same_bytes(a.array, b.array):
            raise _Differs(f"bytes of {a.name or 'constant'} != bytes of {b.name or 'constant'}")

    def attrs(self, a: Attrs, b: Attrs) -> None:
        for key in sorted({*a, *b}):
            if key not in a or key not in b:
                raise _Differs(
                    f"{key} is {'missing' if key not in a else 'there'} != "
                    f"{'missing' if key not in b else 'there'}"
                )
            x, y = a[key], b[key]
            if _plain(x) and _plain(y):
                if repr(x) != repr(y):
                    error = _unequal(x, y)
                    error.path.append(f".{key}")
                    raise error
            else:
                self.at(f".{key}", x, y)

    def binding(self, a: Binding, b: Binding) -> None:
        self._brought(a.var.type, b.var.type)
        self.at(".value", a.value, b.value)
        self.at(".var.type", a.var.type, b.var.type)
        self.pair(a.var, b.var)

    def _brought(self, a: Type, b: Type) -> None:
        """Pair new dimensions in the types of two bindings, since their values may use them."""
        if isinstance(a, TupleType) and isinstance(b, TupleType):
            for x, y in zip(a.fields, b.fields, strict=False):
                self._brought(x, y)
        elif isinstance(a, TensorType) and isinstance(b, TensorType):
            for d, e in zip(a.shape, b.shape, strict=False):
                fresh = d not in self._to and e not in self._from
                if isinstance(d, Var) and isinstance(e, Var) and fresh and d.dtype == e.dtype:
                    self.pair(d, e)

    def function_type(self, a: FuncType, b: FuncType) -> None:
        """Compare in a scope of its own: symbols that appear here first are bound by the type."""
        with self._scope():
            self.at(".params", a.params, b.params)
            self.at(".result", a.result, b.result)

    def closure(self, a: Lambda, b: Lambda) -> None:
        with self._scope():
            self.at(".function", a.function, b.function)

    @contextmanager
    def _scope(self) -> Iterator[None]:
        """Discard the pairs made inside at its end."""
        before = dict(self._to), dict(self._from)
        yield
        self._to, self._from = before

    def graph(self, a: Function, b: Function) -> None:
        self.at(".name", a.name, b.name)
        self._params(a.params, b.params)
        if a.is_primitive and b.is_primitive:  # their kernels get the symbols in this order
            for v, w in zip(size_symbols(a), size_symbols(b), strict=False):
                if v not in self._to and w not in self._from and v.dtype == w.dtype:
                    self.pair(v, w)
        for i, (x, y) in enumerate(zip(a.bindings, b.bindings, strict=False)):
            self.at(f".bindings[{i}]", x, y)
        if len(a.bindings) != len(b.bindings):
            raise _Differs(f"{len(a.bindings)} bindings != {len(b.bindings)} bindings")
        self.at(".result", a.result, b.result)
        self.at(".attrs", a.attrs, b.attrs)

    def _params(self, a: tuple[RVar, ...], b: tuple[RVar, ...]) -> None:
        for i, (p, q) in enumerate(zip(a, b, strict=False)):
            self.at(f".params[{i}].type", p.type, q.type)
            self.pair(p, q)
        if len(a) != len(b):
            raise _Differs(f"{len(a)} params != {len(b)} params")

    def prim_func(self, a: PrimFunc, b: PrimFunc) -> None:
        self.at(".name", a.name, b.name)
        if len(a.params) != len(b.params):
            raise _Differs(f"{len(a.params)} params != {len(b.params)} params")
        # Scalars first: shapes of buffers may use them, also of buffers listed before them.
        order = sorted(range(len(a.params)), key=lambda i: isinstance(a.params[i], Buffer))
        for i in order:
            self.at(f".params[{i}]", a.params[i], b.params[i], self._param)
        self.at(".attrs", a.attrs, b.attrs)
        self.at(".body", a.body, b.body)
        for name in ("outputs", "inplace", "op_class", "public"):
            self.at(f".{name}", getattr(a, name), getattr(b, name))

    def _param(self, a: Param, b: Param) -> None:
        if type(a) is not type(b):
            raise _Differs(f"{_shown(a)} != {_shown(b)}")
        self.bind(a, b)

    def module(self, a: IRModule, b: IRModule) -> None:
        a, b = a.with_programs(), b.with_programs()
        if tuple(a) != tuple(b):
            error = _unequal(tuple(a), tuple(b))
            error.path.append(".functions")
            raise error
        for f, g in zip(a.functions, b.functions, strict=True):
            self._to.clear()
            self._from.clear()
            self.at(f".{f.name}", f, g)


def _shown(a: object) -> str:
    """The class of a node, with the value of a literal."""
    if isinstance(a, (IntImm, FloatImm)):
        return f"{type(a).__name__}({a.value})"
    if hasattr(type(a), "__dataclass_fields__"):
        return type(a).__name__
    return repr(a)


def _plain(v: object) -> bool:
    return all(map(_plain, v)) if isinstance(v, tuple) else not isinstance(v, Expr)


def _same_bytes(a: np.ndarray, b: np.ndarray) -> bool:
    x, y = (np.ascontiguousarray(v).reshape(-1).view(np.uint8) for v in (a, b))
    return bool(np.array_equal(x, y))


_SPECIAL: dict[type, Callable[[_Comparison, Any, Any], None]] = {
    Var: _Comparison.name,
    Buffer: _Comparison.name,
    RVar: _Comparison.name,
    TensorType: _Comparison.tensor_type,
    ShapeType: _Comparison.shape_type,
    PrimType: _Comparison.prim_type,
    Constant: _Comparison.constants,
    Attrs: _Comparison.attrs,
    Binding: _Comparison.binding,
    FuncType: _Comparison.function_type,
    Lambda: _Comparison.closure,
    Function: _Comparison.graph,
    PrimFunc: _Comparison.prim_func,
    IRModule: _Comparison.module,
}
