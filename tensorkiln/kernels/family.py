"""`Family`: everything that passes and the scheduler need to know about one kind of kernel."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

import numpy as np

from tensorkiln.ir.attrs import NO_ATTRS, Attrs
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.relax import Binding, Call, RVar, TensorType
from tensorkiln.kernels.knobs import Knob
from tensorkiln.ops import OPS, infer
from tensorkiln.target import Target

T = TypeVar("T")

# The devices whose threads run in blocks.
GPUS = ("opencl", "cuda", "webgpu")


def operators_of(*patterns: str) -> tuple[str, ...]:
    """The operators of these patterns, such as "reduction"."""
    return tuple(name for name, op in OPS.items() if op.pattern in patterns)


@dataclass(frozen=True, slots=True)
class Packed:
    """The layout in which a kernel wants a constant operand, and a function that is applied to its
    elements before (`prepare` must be hashable: equal functions share the packed constant). If that
    changes what the operator has to compute, `attrs` are added to the call and say so."""

    layout: Layout
    prepare: Callable[[np.ndarray], np.ndarray]
    attrs: Attrs = NO_ATTRS


@dataclass(frozen=True, slots=True)
class AsItIs:
    """An operand that a kernel reads row-major, and in the blocks of channels in which images are
    handed on (`image_layout`): it stays in the one that it is in."""


AS_IT_IS = AsItIs()


@dataclass(frozen=True, slots=True)
class Layouts:
    """The layouts that a kernel asks for; None is row-major. An operand may get a larger halo than
    asked for, and the result the largest halo that its readers ask for."""

    operands: tuple[Layout | Packed | AsItIs | None, ...]
    result: Layout | None = None


class Rewriter:
    """Adds bindings for `Algorithm.rewrite`."""

    def __init__(self) -> None:
        self.bindings: list[Binding] = []
        self._made: dict[Hashable, Any] = {}

    def bind(self, call: Call, name: str) -> RVar:
        """A new value, computed by `call`, bound before the call that is being rewritten."""
        var = RVar(name, infer(call))
        self.bindings.append(Binding(var, call))
        return var

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """`make()`, or what it returned before for the same key."""
        if key not in self._made:
            self._made[key] = make()
        answer: T = self._made[key]
        return answer


@dataclass(frozen=True, slots=True)
class Algorithm:
    """Another way to compute an operator, with other operators: Winograd's for `conv2d`.

    `choose(call, out, target)` is the rule of cost: what to rewrite the call with (such as the size
    of tiles), or None where the algorithm cannot compute the call or is not worth it.
    `rewrite(binding, choice, rewriter)` returns the call that takes its place. With
    `finite_weights`, calls whose second operand, a constant, holds an infinity or NaN are kept.
    """

    operator: str
    choose: Callable[[Call, TensorType, Target], Any]
    rewrite: Callable[[Binding, Any, Rewriter], Call]
    finite_weights: bool = False


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of kernel: a row of the table. docs/howto/add-a-kernel-family.md adds one."""

    # The name that `Executable.placement()` shows.
    op_class: str
    # The operators that it computes, as the anchor of a group or, without an anchor, as its last
    # operator. Empty: every operator.
    operators: tuple[str, ...]
    # A function (group, target, check) -> Schedule | None as "module:name", imported when it is
    # needed. None: it does not fit after all, because of how the group computes the operands. Rows
    # of this package leave it out: it is `schedule` in their folder (`folders.py`).
    schedule: str = ""
    # (call, type of the group's result, target): whether it can compute a call whose operands have
    # these layouts.
    fits: Callable[[Call, TensorType, Target], bool] = lambda call, out, target: True
    # (call, type of its result, target): the layouts it asks for; None: it cannot compute the call.
    # It must fit every call that it gives layouts.
    layouts: Callable[[Call, TensorType, Target], Layouts | None] | None = None
    # The same: why `layouts` gives None, for `Executable.placement()`; empty if it gives some.
    lacks: Callable[[Call, TensorType, Target], str] | None = None
    # The same: whether it computes in channel blocks if its operands are in them.
    in_blocks: Callable[[Call, TensorType, Target], bool] | None = None
    # (binding): other operators in place of a call for which no row has layouts.
    decompose: Callable[[Binding], Sequence[Binding]] | None = None
    # (anchor, type of the value read, reader): whether a reader of the anchor, or of the epilogue
    # so far, can be computed from each element as soon as it is finished. If one row of an operator
    # takes it, it is fused (`Families`); where that row does not fit then, plain loops compute it.
    epilogue: Callable[[Binding, TensorType, Binding], bool] | None = None
    # (call, number of an operand, operators that compute it): whether the kernel can compute the
    # operand itself, each time that it reads an element.
    prologue: Callable[[Call, int, Sequence[Binding]], bool] | None = None
    # The same, and the target: whether an operand should be computed by a kernel of its own,
    # although this one could.
    apart: Callable[[Call, int, Sequence[Binding], Target], bool] | None = None
    # (call, number of an operand that is constant, target): whether the kernel should read it in
    # the layout in which another kernel has it, so that it is stored once.
    shares: Callable[[Call, int, Target], bool] | None = None
    # (call in its layouts, type of the group's result, target): the choices that its schedule
    # leaves to measurements, and asks `Group.knob` for.
    knobs: Callable[[Call, TensorType, Target], tuple[Knob, ...]] | None = None
    # Whether it reads the epilogue's operands at the element that it writes next, so that the
    # result may take their memory.
    inplace: bool = False
    # What its weights are, if they take more memory than the model's: for the memory report.
    weights: str = ""
    # Whether it computes groups that only a FuseRule forms.
    any_form: bool = False
    # The rewrite by which calls of another operator, or of another form, get to this kernel.
    algorithm: Algorithm | None = None
    # The devices of target kinds that it is for.
    devices: tuple[str, ...] = ("cpu",)
    # Folders of `tensorkiln/families` whose rows it comes before: those that would compute some of
    # its calls, too. (A row for every operator comes last, one of another package first.)
    before: tuple[str, ...] = ()
    # The package that it comes from, set when it is loaded; empty for this one.
    owner: str = ""

    def load_schedule(self) -> Callable[..., Any]:
        """The schedule. ImportError or AttributeError if there is none of its name."""
        module, _, name = self.schedule.partition(":")
        schedule: Callable[..., Any] = getattr(import_module(module), name)
        return schedule
