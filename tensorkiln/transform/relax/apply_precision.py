"""Multiply in 16 bits where the target asks for it (option `precision`).

    y = linear(x, w, b)  ->  h = cast(x, bfloat16)                              b stays float32
    z = add(x, y)            y = linear(h, cast(w), b, wide=True)
                             u = cast(h, float32); z = add(u, y)

The operators in `OPERATORS` take operands of 16 bits and return float32 sums; all others,
normalisations, softmax and sums among them, compute in float32, and so does attention between its
two products. A value that one of them reads is
stored in 16 bits for all of its readers, so that kernels write and read half of the bytes; of the
result of a normalisation there is a copy in float32. Casts move before operators that only move
elements, to where the value is computed. A parameter or result of the function keeps its type.

A target without an instruction for products of 16 bits (`target/dots.py`), or with one that is
slower than float32's (`target/rates.py`), gets weights of 16 bits, and multiplies in float32: then
nothing else is rounded. With a slower one, convolutions, whose weights are few, stay as they are.
So does a call if its weights would overflow, or if another algorithm, such as Winograd's, computes
it faster in float32; the attribute `decomposed` of the function says why, for
`Executable.placement()`.

Needs: canonical operators with constant weights; run before `decompose_operators`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tensorkiln import ops
from tensorkiln.families.conv2d.row import is_depthwise
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.dtype import FLOAT32, DType
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Binding, Call, Constant, Function, RVar, TensorType, Value
from tensorkiln.ir.visit_graph import substitute, variables
from tensorkiln.kernels import algorithm_of, families
from tensorkiln.kernels.halves import OF_WEIGHTS, half_constant, halves_of
from tensorkiln.kernels.layouts import takes_pairs
from tensorkiln.ops import call as op_call
from tensorkiln.ops import infer
from tensorkiln.target import Target, target_in
from tensorkiln.target.dots import multiplies_pairs
from tensorkiln.target.rates import has_fast_pairs
from tensorkiln.transform.rewriting.graph import live

# The operators that take 16 bits. One that is left out computes in float32.
OPERATORS = ("linear", "matmul", "conv2d", "attention")

# Operators of windows that only select elements: rounding before and after them is the same.
_CHOICES = ("max_pool2d",)


@dataclass(frozen=True, slots=True)
class ApplyPrecision:
    """Lower the precision of `operators`, which are some of `OPERATORS`, as the target asks."""

    target: Target
    operators: tuple[str, ...] = OPERATORS

    def __call__(self, mod: IRModule) -> IRModule:
        """Return the rewritten module; `mod` itself if nothing is rewritten."""
        return mod.map_graphs(self._function)

    def _function(self, f: Function) -> Function:
        target = target_in(self.target, f.attrs)
        if not target.has_narrow_operands or f.is_primitive:
            return f
        narrowed = _Narrowed(f, target, self.operators)
        return narrowed.function() if narrowed.calls or narrowed.reasons else f


class _Narrowed:
    """Decides which calls of a function take 16 bits and which values are stored so, and rewrites
    the function."""

    def __init__(self, f: Function, target: Target, operators: tuple[str, ...]):
        self.f, self.target, self.half = f, target, target.precision
        self.calls: dict[RVar, Call] = {}  # wide calls with weights of 16 bits, data of float32
        self.pairs: set[RVar] = set()  # those of them whose data is of 16 bits, too
        self.reasons: list[tuple[str, str]] = []
        for b in f.bindings:
            if isinstance(b.value, Call) and b.value.op in operators:
                self._decide(b.var, b.value)
        self.results = set(variables(f.result))
        self.moves: dict[RVar, Call] = {}  # calls that move elements of 16 bits
        self.stored = self._stored()
        self.narrow: dict[RVar, RVar] = {}  # a float32 value -> the same in 16 bits
        self.wide: dict[RVar, RVar] = {}  # a float32 value -> what others read in its place
        self.bindings: list[Binding] = []

    def _decide(self, var: RVar, call: Call) -> None:
        """Note how a call takes 16 bits, or why it does not."""
        operands = call.args[: halves_of(call.op)]
        if not all(map(_is_single, operands)) or _is_depthwise(call, var.tensor):
            return
        narrow = [half_constant(a, self.half) if isinstance(a, Constant) else a for a in operands]
        narrow_operands = [a for a in narrow if a is not None]
        if len(narrow_operands) < len(narrow):
            self._note(call, f"its weights overflow {self.half}")
            return
        wide = replace(call, attrs=Attrs.of(**{**call.attrs, "wide": True}))
        typed = (RVar("x", _in(a, self.half)) for a in narrow_operands)
        halves = replace(wide, args=(*typed, *call.args[len(narrow_operands) :]))
        pairs = takes_pairs(halves, self.target)
        if call.op in OF_WEIGHTS:
            if not isinstance(operands[1], Constant):
                return
            if call.op == "conv2d" and not pairs and _has_slow_pairs(self.target):
                self._note(call, f"products of pairs of {self.half} take longer on this processor")
                return
            narrow_operands = narrow_operands if pairs else [operands[0], *narrow_operands[1:]]
        elif not pairs or families(self.target).layouts(halves, var.tensor, self.target) is None:
            return  # only a kernel of pairs takes two computed operands
        narrow_call = replace(wide, args=(*narrow_operands, *call.args[len(narrow_operands) :]))
        before, after = (self._computed(c, var.tensor) for c in (call, narrow_call))
        if call.op in OF_WEIGHTS and before != after:
            self._note(call, "another algorithm is faster than products of 16 bits")
            return
        self.calls[var] = narrow_call
        if pairs:
            self.pairs.add(var)

    def _computed(self, call: Call, out: TensorType) -> tuple[object, object]:
        """The algorithm that a call is rewritten for, and the row that computes it without one."""
        row = families(self.target).wanted(call, out, self.target)
        return algorithm_of(call, out, self.target), row

    def _note(self, call: Call, reason: str) -> None:
        if call.span:
            self.reasons.append((call.span, f"float32: {reason}"))

    def _stored(self) -> set[RVar]:
        """The values that are stored in 16 bits: those that calls of pairs read, and, before
        operators that only move elements, what these read."""
        narrow_values = {
            a
            for var in self.pairs
            for a in self.calls[var].args[: halves_of(self.calls[var].op)]
            if isinstance(a, RVar)
        }
        for b in reversed(self.f.bindings):
            if b.var not in narrow_values or b.var in self.results or not isinstance(b.value, Call):
                continue
            moved = self._moved(b.value)
            if moved is not None:
                self.moves[b.var] = moved
                narrow_values |= {a for a in moved.args if isinstance(a, RVar) and _is_single(a)}
        return narrow_values

    def _moved(self, call: Call) -> Call | None:
        """A call that only moves elements, with constants of 16 bits; None if it does more."""
        op = ops.OPS.get(call.op)
        if op is None or not (op.pattern == "injective" or call.op in _CHOICES):
            return None
        args: list[Value] = []
        for a in call.args:
            narrow = half_constant(a, self.half) if isinstance(a, Constant) and _is_single(a) else a
            if narrow is None:
                return None
            args.append(narrow)
        return replace(call, args=tuple(args))

    def function(self) -> Function:
        """The function with calls of 16 bits, casts, and the reasons."""
        for p in self.f.params:
            if p in self.stored:
                self._store(p)
        for b in self.f.bindings:
            self._binding(b)
        rows = (*self.f.attrs.get("decomposed", ()), *self.reasons)
        attrs = Attrs.of(**{**self.f.attrs, "decomposed": rows}) if self.reasons else self.f.attrs
        return live(replace(self.f, bindings=tuple(self.bindings), attrs=attrs))

    def _binding(self, b: Binding) -> None:
        if b.var in self.moves:
            self._bind_narrow(b.var, self._in_halves(self.moves[b.var]))
        else:
            call = self.calls.get(b.var)
            if call is None:
                # Operands of products that stay float32 have to lie in memory as such.
                is_product = isinstance(b.value, Call) and b.value.op in OPERATORS
                value = b.value if is_product else substitute(b.value, self.wide)
                self.bindings.append(replace(b, value=value))
            else:
                call = self._in_halves(call) if b.var in self.pairs else call
                wide_call = substitute(call, self.wide)
                self.bindings.append(replace(b, value=wide_call))
            if b.var in self.stored:
                self._store(b.var)
        if b.var in self.stored and b.var not in self.results and not _is_exact(b):
            back = op_call("cast", self.narrow[b.var], dtype="float32")
            self.wide[b.var] = self._bind(back, f"{b.var.name}_float32")

    def _store(self, v: RVar) -> None:
        self._bind_narrow(v, op_call("cast", v, dtype=self.half))

    def _bind_narrow(self, v: RVar, call: Call) -> None:
        self.narrow[v] = self._bind(call, f"{v.name}_{self.half}")

    def _bind(self, call: Call, name: str) -> RVar:
        var = RVar(name, infer(call))
        self.bindings.append(Binding(var, call))
        return var

    def _in_halves(self, call: Call) -> Call:
        """The call on those of its operands in 16 bits that are stored so."""
        count = halves_of(call.op) if call.op in OPERATORS else len(call.args)
        args = [
            self.narrow.get(a, a) if isinstance(a, RVar) and k < count else a
            for k, a in enumerate(call.args)
        ]
        return replace(call, args=tuple(args))


def _has_slow_pairs(target: Target) -> bool:
    """Whether a target multiplies pairs of 16 bits, but float32 faster."""
    return multiplies_pairs(target, target.precision) and not has_fast_pairs(target)


def _is_single(v: Value) -> bool:
    return isinstance(v.type, TensorType) and v.type.dtype == FLOAT32


def _in(v: Value, dtype: str) -> TensorType:
    """The type of a value with another element type."""
    assert isinstance(v.type, TensorType)
    return replace(v.type, dtype=DType(dtype))


def _is_exact(b: Binding) -> bool:
    """Whether readers of a value other than products read it in float32, although products read it
    in 16 bits: so for normalisations, on which the sums of residual blocks build. Rounded there,
    BERT's results have 1.4 times the error; a second copy of a few rows costs 1% of its time."""
    return (
        isinstance(b.value, Call)
        and b.value.op in ops.OPS
        and (ops.get(b.value.op).pattern == "opaque")
    )


def _is_depthwise(call: Call, out: TensorType) -> bool:
    """Whether a convolution has a filter of its own for each channel: too little work for what
    conversions cost."""
    return call.op == "conv2d" and is_depthwise(call, out)
