"""`Family`: everything that passes and the scheduler need to know about one kind of kernel."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

import numpy as np

from tensorkiln.ir.layout import Layout
from tensorkiln.ir.relax import Binding, Call, RVar, TensorType
from tensorkiln.ops import infer
from tensorkiln.target import Target

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Packed:
    """The layout that a kernel asks for of a constant operand, with a function on its elements that
    comes before (`prepare` must be hashable: equal ones share the packed constant)."""

    layout: Layout
    prepare: Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, slots=True)
class Layouts:
    """The layouts that a kernel asks for; None is row-major. The halo of an operand may become
    larger than asked for, and that of the result as large as its readers ask for."""

    operands: tuple[Layout | Packed | None, ...]
    result: Layout | None = None


class Rewriter:
    """What `Algorithm.rewrite` may use while a function is rewritten."""

    def __init__(self) -> None:
        self.bindings: list[Binding] = []
        self._made: dict[Hashable, Any] = {}

    def bind(self, call: Call, name: str) -> RVar:
        """A new value, computed by `call` before the call that is being rewritten."""
        var = RVar(name, infer(call))
        self.bindings.append(Binding(var, call))
        return var

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """`make()`; what it returned before if the key is the same."""
        if key not in self._made:
            self._made[key] = make()
        found: T = self._made[key]
        return found


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
    """A kind of kernel. A row of the table; docs/howto/add-a-kernel-family.md adds one.

    `op_class` names it to people (`Executable.placement`). `operators` are those that it computes:
    the anchor of a group or, in a group without one, the last operator; empty: all.
    `fits(call, out, target)`: whether it can compute a call with these operands (with their
    layouts) in a group whose result is of type `out`. `schedule` is a function
    `(group, target, check) -> Schedule | None` as `"module:name"`, imported when it is needed;
    None means that it does not fit after all, because of how the group computes the operands.

    `layouts(call, out, target)`: what it asks for, or None where it cannot compute the call.
    `in_blocks(call, out, target)`: whether it also computes in channel blocks, if its operands are
    in them. `decompose(binding)`: bindings of other operators, for a target on which no row has
    layouts for the call.

    `epilogue(anchor, last, reader)`: whether `reader`, which reads the value of `last`, can be
    computed from each element as soon as it is finished; `last` is the anchor or the latest
    operator of its epilogue. `prologue(call, operand, before)`: whether the kernel can compute an
    operand by `before`, operators without an anchor, each time it reads an element. The functions
    are asked before layouts and rules decide which row computes a call, so what one row of an
    operator takes, the plain loops take too. `inplace`: the kernel reads the epilogue's operands at
    the element that it writes next, so the result may take their memory. `any_form`: groups that
    only a FuseRule has formed are not too much for it.

    `algorithm` leads calls of another operator, or of another form, to this kernel. `devices` are
    the devices of target kinds. `owner`: the package the row comes from, empty for this one.
    """

    op_class: str
    operators: tuple[str, ...]
    schedule: str
    fits: Callable[[Call, TensorType, Target], bool] = lambda call, out, target: True
    layouts: Callable[[Call, TensorType, Target], Layouts | None] | None = None
    in_blocks: Callable[[Call, TensorType, Target], bool] | None = None
    decompose: Callable[[Binding], Sequence[Binding]] | None = None
    epilogue: Callable[[Binding, TensorType, Binding], bool] | None = None
    prologue: Callable[[Call, int, Sequence[Binding]], bool] | None = None
    inplace: bool = False
    any_form: bool = False
    algorithm: Algorithm | None = None
    devices: tuple[str, ...] = ("cpu",)
    owner: str = ""

    def load_schedule(self) -> Callable[..., Any]:
        """The schedule. ImportError or AttributeError if there is none of its name."""
        module, _, name = self.schedule.partition(":")
        found: Callable[..., Any] = getattr(import_module(module), name)
        return found
