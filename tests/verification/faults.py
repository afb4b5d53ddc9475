"""Faults that tests plant: in what a pass leaves, and in the programs of kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tensorkiln.ir.expr import FloatImm, IntImm, binary
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Binding, Bound, Call, Constant, Function, If, Lambda
from tensorkiln.ir.stmt import PrimFunc, Stmt, Store
from tensorkiln.ir.visit import map_stmt
from tensorkiln.passes import Pass, pass_name
from tensorkiln.pipeline import relax_passes, tir_passes
from tensorkiln.target import Target

FACTOR = 1.25


@dataclass
class SpoiledConstant:
    """A pass that scales a constant of floats of the call in the middle of those that have one;
    `name` and `span` are then those of the call."""

    name: str = field(default="", compare=False)
    span: str = field(default="", compare=False)

    def __call__(self, mod: IRModule) -> IRModule:
        candidates = [
            (f, k, b)
            for f in mod.functions
            if isinstance(f, Function) and not f.is_primitive
            for k, b in enumerate(f.bindings)
            if isinstance(b.value, Call) and _weights(b.value) is not None
        ]
        f, k, b = candidates[len(candidates) // 2]
        assert isinstance(b.value, Call)
        weight_index = _weights(b.value)
        assert weight_index is not None
        c = b.value.args[weight_index]
        assert isinstance(c, Constant)
        scaled = Constant((np.asarray(c.data) * FACTOR).astype(c.array.dtype), c.type, c.name)
        args = (*b.value.args[:weight_index], scaled, *b.value.args[weight_index + 1 :])
        bindings = list(f.bindings)
        bindings[k] = Binding(b.var, replace(b.value, args=args))
        self.name, self.span = b.var.name, b.value.span
        new = replace(f, bindings=tuple(bindings))
        return mod.with_functions(tuple(new if g is f else g for g in mod.functions))


def _weights(call: Call) -> int | None:
    """The operand that is a constant of floats of two dimensions or more."""
    return next(
        (
            i
            for i, a in enumerate(call.args)
            if isinstance(a, Constant) and a.type.dtype.name == "float32" and a.type.ndim > 1
        ),
        None,
    )


@dataclass
class SpoiledOperator:
    """A pass that puts another operator in the place of number `at` of those called `op`."""

    op: str
    other: str
    at: int
    name: str = field(default="", compare=False)
    span: str = field(default="", compare=False)
    _count: int = field(default=-1, compare=False, repr=False)

    def __call__(self, mod: IRModule) -> IRModule:
        self._count = -1
        new = tuple(
            replace(f, bindings=self._changed(f.bindings))
            if isinstance(f, Function) and not f.is_primitive
            else f
            for f in mod.functions
        )
        return mod.with_functions(new)

    def _changed(self, bindings: Sequence[Binding]) -> tuple[Binding, ...]:
        return tuple(Binding(b.var, self._bound(b)) for b in bindings)

    def _bound(self, b: Binding) -> Bound:
        value = b.value
        if isinstance(value, If):
            then_body = replace(value.then, bindings=self._changed(value.then.bindings))
            orelse = replace(value.orelse, bindings=self._changed(value.orelse.bindings))
            return If(value.cond, then_body, orelse)
        if isinstance(value, Lambda):
            f = value.function
            return Lambda(replace(f, bindings=self._changed(f.bindings)))
        if isinstance(value, Call) and value.op == self.op:
            self._count += 1
            if self._count == self.at:
                self.name, self.span = b.var.name, value.span
                return replace(value, callee=self.other)
        return value


def passes_with(spoil: Pass, after: str, target: Target) -> list[Pass]:
    """The passes of a target on graphs, with one more after the last that is called `after`."""
    passes = relax_passes(target)
    position = max(i for i, p in enumerate(passes) if pass_name(p) == after)
    return [*passes[: position + 1], spoil, *passes[position + 1 :]]


@dataclass
class SpoiledKernel:
    """A pass over tensor programs that scales, by `FACTOR`, what the first kernel that `which`
    chooses stores in its result; `name` is then the kernel's."""

    which: Callable[[PrimFunc], bool]
    name: str = field(default="", compare=False)

    def __call__(self, mod: IRModule) -> IRModule:
        chosen = next(
            (
                f
                for f in mod.prim_funcs
                if not (f.is_host or f.is_device) and f.copies is None and self.which(f)
            ),
            None,
        )
        if chosen is None:
            return mod
        self.name = chosen.name
        outputs = set(chosen.buffers[-chosen.outputs :])

        def spoiled(s: Stmt) -> Stmt:
            s = map_stmt(s, lambda e: e, spoiled)
            if isinstance(s, Store) and s.buffer in outputs:
                return replace(s, value=_scaled(s))
            return s

        new = replace(chosen, body=spoiled(chosen.body))
        return mod.with_functions(tuple(new if g is chosen else g for g in mod.functions))


def _scaled(s: Store) -> object:
    if s.buffer.dtype.is_float:
        return binary("mul", s.value, FloatImm(FACTOR, s.buffer.dtype))
    return binary("add", s.value, IntImm(1, s.buffer.dtype))


def tir_with(spoil: Pass, target: Target) -> list[Pass]:
    """The passes of a target over tensor programs, after a spoiling one."""
    return [spoil, *tir_passes(target)]


__all__ = [
    "SpoiledConstant",
    "SpoiledKernel",
    "SpoiledOperator",
    "passes_with",
    "tir_with",
]
