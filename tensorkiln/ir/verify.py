"""Whether a module is well formed: what every pass may rely on, and must leave true."""

from __future__ import annotations

from tensorkiln.base.errors import InternalError, nearest
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Expr, Var, int_value
from tensorkiln.ir.module import AnyFunction, IRModule
from tensorkiln.ir.relax import (
    Binding,
    Call,
    Constant,
    Function,
    GlobalRef,
    If,
    Lambda,
    MatchCast,
    RVar,
    ShapeType,
    ShapeValue,
    TensorType,
    Tuple,
    TupleItem,
    TupleType,
    Type,
    Value,
)
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.verify_expr import Malformed, step
from tensorkiln.ir.verify_tir import TirVerifier
from tensorkiln.ir.visit import walk


def verify(mod: IRModule) -> None:
    """Raise InternalError with the path of the first thing that is wrong.

    Checked: names are bound before use and once (a loop variable may be bound again beside its
    scope); indices match ranks; dtypes and lanes agree; register buffers are indexed by numbers
    and unrolled loops; called functions exist and take what they are given; types of bindings
    match their values. Types of operator calls are the operators' own business.
    """
    seen: set[str] = set()
    for f in mod.functions:
        try:
            with step(f.name):
                if f.name in seen:
                    raise Malformed("two functions of this name")
                seen.add(f.name)
                verify_function(f, mod)
        except Malformed as e:
            where = "".join(reversed(e.path))
            raise InternalError(e.message, code="malformed-ir", where=where) from None


def verify_function(f: AnyFunction, mod: IRModule) -> None:
    """Raise Malformed where one function is not well formed."""
    if isinstance(f, PrimFunc):
        TirVerifier().function(f)
    else:
        _GraphVerifier(mod).function(f)


class _GraphVerifier:
    """Walks one graph function with the values and symbolic dimensions known so far."""

    def __init__(self, mod: IRModule):
        self._mod = mod
        self._values: set[RVar] = set()
        self._dims: set[Var] = set()

    def function(self, f: Function) -> None:
        for p in f.params:
            with step(f".{p.name}"):
                self._define(p)
        if f.is_primitive:
            # A kernel receives every dimension its operators mention, whether or not a parameter
            # has it in its shape.
            for b in f.bindings:
                self._type(b.var.type)
        for i, b in enumerate(f.bindings):
            with step(f".bindings[{i}]({b.var.name})"):
                self._binding(b)
        with step(".result"):
            self._value(f.result)

    def _define(self, var: RVar) -> None:
        if var in self._values:
            raise Malformed("bound twice")
        self._type(var.type)
        self._values.add(var)

    # ---- types -------------------------------------------------------------------------------

    def _type(self, t: Type) -> None:
        if isinstance(t, TupleType):
            for x in t.fields:
                self._type(x)
        elif isinstance(t, TensorType):
            self._tensor(t)
        elif not isinstance(t, ShapeType):
            raise Malformed(f"{t!r} is not a type")

    def _tensor(self, t: TensorType) -> None:
        """A dimension's variable may be new: the type brings it in."""
        for d in t.shape:
            self._dims.update(x for x in walk(d) if isinstance(x, Var))
            self._number(d)
            extent = int_value(d)
            if not d.dtype.is_int or (extent is not None and extent < 0):
                raise Malformed(f"extent {d!r}")
        if t.dtype.lanes != 1:
            raise Malformed(f"a tensor of {t.dtype}")
        if t.layout is not None and {a.dim for a in t.layout.axes} != set(range(t.ndim)):
            raise Malformed(f"layout {t.layout} for {t.ndim} dimensions")

    def _number(self, e: Expr) -> None:
        """A symbolic number: scalar, over known dimensions."""
        for x in walk(e):
            if isinstance(x, Var) and x not in self._dims:
                raise Malformed(f"dimension {x.name} is not known here")
            if x.dtype.lanes != 1:
                raise Malformed(f"{x.dtype} in a shape")

    # ---- values ------------------------------------------------------------------------------

    def _value(self, v: Value) -> None:
        if isinstance(v, RVar):
            if v not in self._values:
                raise Malformed(f"{v.name} is not bound here")
        elif isinstance(v, Tuple):
            for x in v.fields:
                self._value(x)
        elif isinstance(v, ShapeValue):
            for e in v.values:
                self._number(e)
        elif isinstance(v, Constant):
            self._constant(v)
        else:
            raise Malformed(f"{type(v).__name__} is not a value")

    def _constant(self, c: Constant) -> None:
        self._type(c.type)
        expected = tuple(int_value(d) for d in c.type.physical_shape)
        if c.array.shape != expected:
            raise Malformed(f"constant {c.name}: array {c.array.shape}, type {expected}")
        if c.array.dtype.itemsize != c.type.dtype.bytes:
            raise Malformed(f"constant {c.name}: array {c.array.dtype}, type {c.type.dtype}")

    # ---- bindings ----------------------------------------------------------------------------

    def _binding(self, b: Binding) -> None:
        value = b.value
        if isinstance(value, Call):
            self._call(value, b.var.type)
        elif isinstance(value, TupleItem):
            self._value(value.value)
            self._equal(b.var.type, _field(value))
        elif not isinstance(value, If | Lambda | MatchCast):
            self._value(value)
            self._equal(b.var.type, value.type)
        self._define(b.var)

    def _equal(self, declared: Type, found: Type) -> None:
        if declared != found:
            raise Malformed(f"the variable is {show(declared)}, its value {show(found)}")

    def _call(self, c: Call, result: Type) -> None:
        for i, a in enumerate(c.args):
            with step(f".args[{i}]"):
                self._value(a)
        self._attrs(c.attrs)
        if not isinstance(c.callee, GlobalRef):
            if not c.callee:
                raise Malformed("a call of nothing")
            return
        name = c.callee.name
        if name not in self._mod:
            raise Malformed(f"no function {name!r}; {nearest(name, self._mod)}")
        callee = self._mod[name]
        if isinstance(callee, PrimFunc):
            _check_kernel(callee, c, result)
        else:
            _check_graph(callee, c, result)

    def _attrs(self, attrs: Attrs) -> None:
        for key, value in attrs.items_:
            with step(f".attrs.{key}"):
                self._attr(value)

    def _attr(self, value: object) -> None:
        if isinstance(value, tuple):
            for x in value:
                self._attr(x)
        elif isinstance(value, Expr):
            self._number(value)


def _field(item: TupleItem) -> Type:
    t = item.value.type
    if not isinstance(t, TupleType) or not 0 <= item.index < len(t.fields):
        raise Malformed(f"item {item.index} of {show(t)}")
    return t.fields[item.index]


def _check_kernel(f: PrimFunc, c: Call, result: Type) -> None:
    """Operands are the buffers that are read; results those that are written. Shapes that the
    scalar parameters need may come as further operands of shape type."""
    tensors = [a.type for a in c.args if not isinstance(a.type, ShapeType)]
    reads = f.buffers[: len(f.buffers) - f.outputs]
    if len(tensors) != len(reads):
        raise Malformed(f"{f.name} reads {len(reads)} buffers, the call gives {len(tensors)}")
    for i, (b, t) in enumerate(zip(reads, tensors, strict=True)):
        with step(f".args[{i}]"):
            _fits(b.dtype, b.shape, t)
    results: tuple[Type, ...] = result.fields if isinstance(result, TupleType) else (result,)
    if len(results) != f.outputs:
        raise Malformed(f"{f.name} writes {f.outputs} buffers, the call has {len(results)} results")
    for b, out in zip(f.buffers[len(reads) :], results, strict=True):
        _fits(b.dtype, b.shape, out)


def _fits(dtype: DType, shape: tuple[Expr, ...], t: Type) -> None:
    """A tensor in its memory form has the buffer's dtype and count of elements."""
    if not isinstance(t, TensorType) or t.dtype != dtype:
        raise Malformed(f"{show(t)} for a buffer of {dtype}")
    have, need = _count(t.physical_shape), _count(shape)
    if have is not None and need is not None and have != need:
        raise Malformed(f"{show(t)} holds {have} elements, the buffer {need}")


def _count(shape: tuple[Expr, ...]) -> int | None:
    total = 1
    for d in shape:
        extent = int_value(d)
        if extent is None:
            return None
        total *= extent
    return total


def _check_graph(f: Function, c: Call, result: Type) -> None:
    # The function of an external is called as kernels are: dimensions come as a further operand.
    args = [a for a in c.args if not (f.external and isinstance(a, ShapeValue))]
    if len(args) != len(f.params):
        raise Malformed(f"{f.name} takes {len(f.params)} operands, the call gives {len(args)}")
    for i, (p, a) in enumerate(zip(f.params, args, strict=True)):
        with step(f".args[{i}]"):
            _alike(p.type, a.type)
    _alike(f.result.type, result)


def _alike(a: Type, b: Type) -> None:
    """Equal as far as constant extents tell: symbolic ones have other names in the callee."""
    if isinstance(a, TupleType) and isinstance(b, TupleType) and len(a.fields) == len(b.fields):
        for x, y in zip(a.fields, b.fields, strict=True):
            _alike(x, y)
        return
    if isinstance(a, TensorType) and isinstance(b, TensorType):
        pairs = [(int_value(x), int_value(y)) for x, y in zip(a.shape, b.shape, strict=False)]
        same = a.ndim == b.ndim and all(x == y or x is None or y is None for x, y in pairs)
        if same and a.dtype == b.dtype and a.memory == b.memory:
            return
    elif isinstance(a, ShapeType) and a == b:
        return
    raise Malformed(f"{show(a)} expected, {show(b)} given")


def show(t: object) -> str:
    """A type in a few words."""
    if isinstance(t, TensorType):
        dims = ", ".join(str(x if (x := int_value(d)) is not None else _symbol(d)) for d in t.shape)
        return f"{t.dtype}[{dims}]" + (f" in {t.layout}" if t.layout is not None else "")
    if isinstance(t, TupleType):
        return f"({', '.join(map(show, t.fields))})"
    return f"shape of {t.ndim}" if isinstance(t, ShapeType) else repr(t)


def _symbol(d: Expr) -> str:
    return d.name if isinstance(d, Var) else "?"


__all__ = ["verify", "verify_function"]
