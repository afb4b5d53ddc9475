"""Compute statistics of 16-bit floats in float32, whatever operators they are written with.

    s = mul(x, x)                  w = cast(x, float32); s = mul(w, w)
    t = sum(s, axes=(1,))    ->    t = sum(s, axes=(1,)); n = sqrt(t)
    n = sqrt(t)                    y = cast(div(w, n), float16)
    y = div(x, n)

The largest float16 is 65504: a sum of squares of ordinary elements exceeds it, although the norm,
the variance or the mean that it leads to is ordinary. A statistic is a sum, a mean, a product or an
average over windows, or a matrix product of which a root is taken, with the arithmetic before it
and after it:

- before: arithmetic whose value only statistics read, and products, powers and exponentials, which
  grow most, whoever else reads them;
- after: elementwise operators on statistics alone, also behind a conversion to 16 bits, and the
  first operator that combines one with other data, such as the division of a row by its norm.

Other readers get the value rounded to 16 bits once, as results of the function and operators that
are not elementwise do. What only chooses or moves elements stays narrow before a statistic.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tensorkiln import ops
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Binding, Call, Constant, Function, RVar, TensorType, Value, constant
from tensorkiln.ir.visit_graph import variables
from tensorkiln.ops.wide import GROWING, sums_elements
from tensorkiln.transform.rewriting.graph import forward_aliases, live

# Exact: their results lose nothing in 16 bits, so computing them in float32 gains nothing.
EXACT = frozenset(
    {"abs", "neg", "sign", "relu", "where", "maximum", "minimum", "max", "min", "identity"}
)
ARITHMETIC = (
    GROWING | EXACT | {"add", "sub", "div", "sqrt", "rsqrt", "reciprocal", "log", "clip", "isnan"}
)
MOVEMENT = frozenset({"reshape", "transpose", "broadcast_to", "slice", "tile", "concat", "pad"})
# Elementwise operators that keep the type of their operands.
OTHER_TYPES = frozenset({"bitcast", "quantize", "dequantize"})
# Products of these are sums of squares where a root is taken of them.
PRODUCTS = frozenset({"matmul", "linear"})
ROOTS = frozenset({"sqrt", "rsqrt"})
# Larger constants are converted where they are read, so that weights keep their bytes.
_FEW = 1024


@dataclass(frozen=True, slots=True)
class WidenStatistics:
    """Widen the statistics of every graph function; with `of_constants` only those of constants,
    as `fold_constants` needs before it evaluates them.

    Needs: types inferred; run after the passes that recognise operators and fold into weights.
    """

    of_constants: bool = False

    def __call__(self, mod: IRModule) -> IRModule:
        """Return the rewritten module; `mod` itself if it has no statistic of 16 bits."""
        return mod.map_graphs(self._function)

    def _function(self, f: Function) -> Function:
        if f.is_primitive or not any(_is_half(b.var) for b in f.bindings):
            return f
        calls = [b for b in f.bindings if _is_computed(b)]
        if self.of_constants:
            calls = _constant_only(calls)
        return _Widened(f, _wide_values(f, calls)).function()


def _call(b: Binding) -> Call:
    assert isinstance(b.value, Call)
    return b.value


def _dtype(v: Value) -> DType | None:
    """The element type of a row-major tensor."""
    return v.type.dtype if isinstance(v.type, TensorType) and v.type.layout is None else None


def _is_half(v: Value) -> bool:
    dtype = _dtype(v)
    return dtype is not None and dtype.is_float and dtype.sums != dtype


def _is_number(v: Value) -> bool:
    """Whether a value is of floats of 16 or 32 bits."""
    dtype = _dtype(v)
    return dtype is not None and dtype.is_float and dtype.bits <= 32


def _is_computed(b: Binding) -> bool:
    call = b.value
    if not isinstance(call, Call) or call.op not in ops.OPS or _dtype(b.var) is None:
        return False
    if call.op == "cast":
        return _is_number(b.var) and _dtype(call.args[0]) != _dtype(b.var)
    if not any(map(_is_number, call.args)) or call.op in OTHER_TYPES:
        return False
    elementwise = ops.get(call.op).pattern in ("elementwise", "broadcast")
    return elementwise or sums_elements(call) or call.op in MOVEMENT | PRODUCTS


def _constant_only(calls: list[Binding]) -> list[Binding]:
    """The calls that depend on constants and on no parameter."""
    computed: set[RVar] = set()
    for b in calls:
        if all(a in computed for a in variables(b.value)):
            computed.add(b.var)
    return [b for b in calls if b.var in computed]


# A value -> the variables whose values read it; None stands for the caller.
Readers = dict[RVar, set[RVar | None]]


def _wide_values(f: Function, calls: list[Binding]) -> set[RVar]:
    """The variables that are computed in float32, or, for comparisons, from float32."""
    readers: Readers = {}
    for b in f.bindings:
        for v in variables(b.value):
            readers.setdefault(v, set()).add(b.var)
    for v in variables(f.result):
        readers.setdefault(v, set()).add(None)
    wide, statistics = _forward(calls, _rooted(calls, readers))
    _backward(calls, readers, wide)
    for b in calls:
        call = _call(b)
        exact = call.op in EXACT or call.op in MOVEMENT
        if exact and b.var not in statistics and not any(a in wide for a in call.args):
            wide.discard(b.var)
    return wide


def _rooted(calls: list[Binding], readers: Readers) -> set[RVar]:
    """The values of which roots are taken, maybe after operators that choose or move elements."""
    rooted: set[RVar] = set()
    by = {b.var: _call(b).op for b in calls}
    for b in reversed(calls):
        for v in readers.get(b.var, ()):
            op = by.get(v, "") if v is not None else ""
            if op in ROOTS or (v in rooted and (op in EXACT or op in MOVEMENT)):
                rooted.add(b.var)
    return rooted


def _forward(calls: list[Binding], rooted: set[RVar]) -> tuple[set[RVar], set[RVar]]:
    """(values computed from sums, statistics): a statistic is a sum, or is computed from statistics
    and constants alone."""
    wide: set[RVar] = set()
    statistics: set[RVar] = set()
    for b in calls:
        call = _call(b)
        read = [a for a in call.args if isinstance(a, RVar)]
        if sums_elements(call) or (call.op in PRODUCTS and b.var in rooted):
            wide.add(b.var)
            statistics.add(b.var)
        elif call.op not in PRODUCTS and any(a in statistics for a in read):
            wide.add(b.var)
            if all(a in statistics for a in read):
                statistics.add(b.var)
    return wide, statistics


def _backward(calls: list[Binding], readers: Readers, wide: set[RVar]) -> None:
    """Add to `wide` the arithmetic before statistics."""
    for b in reversed(calls):
        call, mine = _call(b), readers.get(b.var, set())
        if call.op == "cast":
            # Of a counter, or to float32. A conversion to 16 bits rounds as the model says.
            backward = not _is_half(b.var) or not _is_number(call.args[0])
        else:
            backward = call.op in ARITHMETIC or call.op in MOVEMENT
        free = call.op in GROWING or not _is_half(b.var)
        if backward and mine & wide and (free or mine <= wide):
            wide.add(b.var)


class _Widened:
    """A function whose values `wide` are computed in float32."""

    def __init__(self, f: Function, wide: set[RVar]):
        self.f, self.wide = f, wide
        self.float32_of: dict[Value, Value] = {}  # a narrow value -> the same in float32
        self.bindings: list[Binding] = []

    def function(self) -> Function:
        """The function, with casts where narrow and wide values meet; `f` itself if none do."""
        for b in self.f.bindings:
            if b.var in self.wide:
                self._compute(b)
            else:
                self.bindings.append(b)
        if all(a is b for a, b in zip(self.bindings, self.f.bindings, strict=False)):
            return self.f
        return live(forward_aliases(replace(self.f, bindings=tuple(self.bindings))))

    def _compute(self, b: Binding) -> None:
        call = _call(b)
        if call.op == "cast" and _is_half(b.var) and _is_number(call.args[0]):
            self.float32_of[b.var] = call.args[0]
            self.bindings.append(b)
        elif _is_half(b.var):
            self._bind_both(b, self._widened(call))
        elif any(a in self.float32_of or (_is_half(a) and call.op != "cast") for a in call.args):
            value = self._widened(call)
            is_redundant = value.op == "cast" and value.args[0].type == b.var.type
            self.bindings.append(Binding(b.var, value.args[0] if is_redundant else value))
        else:
            self.bindings.append(b)

    def _widened(self, call: Call) -> Call:
        """The call with a float32 result, or on float32 operands."""
        if call.op in PRODUCTS:
            return replace(call, attrs=Attrs.of(**{**call.attrs, "wide": True}))
        args = tuple(self._in_wide(a, call.span) if _is_half(a) else a for a in call.args)
        attrs = Attrs.of(dtype="float32") if call.op == "cast" else call.attrs
        return replace(call, args=args, attrs=attrs)

    def _bind_both(self, b: Binding, value: Call) -> None:
        """Bind a float32 value, and the variable of 16 bits to the same rounded."""
        assert isinstance(b.var.type, TensorType)
        var = RVar(f"{b.var.name}_wide", replace(b.var.type, dtype=b.var.type.dtype.sums))
        self.float32_of[b.var] = var
        rounded = ops.call("cast", var, span=value.span, dtype=b.var.type.dtype.name)
        self.bindings += [Binding(var, value), Binding(b.var, rounded)]

    def _in_wide(self, v: Value, span: str) -> Value:
        """`v` in float32: as it was computed, else by a cast."""
        if v not in self.float32_of:
            self.float32_of[v] = self._cast(v, span)
        return self.float32_of[v]

    def _cast(self, v: Value, span: str) -> Value:
        if isinstance(v, Constant) and v.array.size <= _FEW:
            return constant(v.array.astype("float32"), v.name)
        call = ops.call("cast", v, span=span, dtype="float32")
        var = RVar(f"{v.name or 'constant'}_wide", ops.infer(call))  # type: ignore[union-attr]
        self.bindings.append(Binding(var, call))
        return var
