"""What the importer of an ATen operator works with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorkiln.base.element_types import PROGRAM_TYPES
from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.dimensions import Dims
from tensorkiln.frontend.graph.issues import unsupported
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.torch.sizes import Sizes
from tensorkiln.frontend.torch.values import dtype_name
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Expr, as_expr
from tensorkiln.ir.relax import TensorType

# A tensor, a number of Python, or an expression of sizes.
Operand = Any


def _is_held(number: float, dtype: str) -> bool:
    """Whether floats of 16 bits have a number to their precision: it is neither too small nor too
    large for them. Numbers of other types count as held."""
    if DType(dtype).sums.name == dtype or not math.isfinite(number):
        return True
    import torch

    limits = torch.finfo(getattr(torch, dtype))
    return number == 0 or limits.tiny <= abs(number) <= limits.max


class AtenContext(Context):
    """The first argument, `g`, of every importer of an ATen operator.

    `results` are the types that torch finds for the node's results, None for one that is not a
    tensor, and `used` tells which of them are read. `fakes` are the node's operands as torch
    describes them, with strides. Sizes among arguments are expressions. `numbers` are parameters
    that are numbers of Python, by their SymPy symbols. `random_state` has the random numbers of an
    import with a seed; `repeated` tells that the node is in the body of a loop.
    """

    def __init__(self, dims: Dims, sizes: Sizes, seed: int | None = None) -> None:
        super().__init__(dims)
        self.random_state = None if seed is None else np.random.RandomState(seed)
        self.repeated = False
        self.sizes = sizes
        self.results: tuple[TensorType | None, ...] = ()
        self.used: frozenset[int] = frozenset()
        self.fakes: tuple[Any, ...] = ()
        self.numbers: dict[Any, Val] = {}

    @property
    def out(self) -> TensorType:
        """The type of the first result."""
        first = self.results[0]
        assert first is not None
        return first

    def number(self, value: Operand, dtype: str) -> Val:
        """A tensor, or a number or size as a scalar, of the given element type."""
        if isinstance(value, Expr):
            return self.cast(self.reshape(self.shape_value([value]), ()), dtype)
        if isinstance(value, bool | int | float):
            return self.const(value, dtype)
        return self.cast(value, dtype)

    def computed(self, e: Any, dtype: str) -> Val:
        """A number that is computed from sizes and `numbers`, a SymPy expression, as a scalar."""
        kind = type(e).__name__
        if e in self.numbers:
            return self.cast(self.numbers[e], dtype)
        if e.is_number:
            return self.const(float(e) if PROGRAM_TYPES[dtype].is_float else int(e), dtype)
        if e.is_integer and kind not in ("Add", "Mul"):
            return self.number(self.sizes.convert(e), dtype)
        binary = {"FloatTrueDiv": "div", "IntTrueDiv": "div", "FloatPow": "pow", "Pow": "pow"}
        folded = {"Add": "add", "Mul": "mul"}
        if kind in binary | folded:
            first, *terms = (self.computed(part, dtype) for part in e.args)
            for part in terms:
                first = self.emit((binary | folded)[kind], first, part)
            return first
        if kind == "OpaqueUnaryFn_sqrt":
            return self.emit("sqrt", self.computed(e.args[0], dtype))
        if kind in ("ToFloat", "Identity"):
            return self.computed(e.args[0], dtype)
        raise unsupported(
            f"the number {e} is computed from sizes or data",
            "a tensor instead of a number of Python can hold it",
        )

    def promoted(self, *operands: Operand) -> list[Val]:
        """Operands in the element type to which torch promotes them: tensors count before scalar
        tensors, and these before numbers."""
        dtype = self.common(*operands)
        return [self.number(x, dtype) for x in operands]

    def in_precision(self, *operands: Operand) -> list[Val]:
        """Operands in the element type that torch computes arithmetic in: `promoted`, but float32
        for floats of 16 bits and a number that these do not have, such as an epsilon of 1e-8; the
        result is to be `rounded`."""
        dtype = self.common(*operands)
        numbers = [x for x in operands if isinstance(x, int | float)]
        if not all(_is_held(x, dtype) for x in numbers):
            dtype = DType(dtype).sums.name
        return [self.number(x, dtype) for x in operands]

    def rounded(self, x: Val) -> Val:
        """`x` in the element type of the result if it was computed in a more precise one."""
        return self.cast(x, self.out.dtype.name)

    def common(self, *operands: Operand) -> str:
        """The element type to which torch promotes the operands."""
        import torch

        def stand(x: Operand) -> Any:
            if isinstance(x, Expr):
                return 1
            if isinstance(x, bool | int | float):
                return x
            dtype = getattr(torch, self.dtype(x))
            return torch.empty((1,) * self.rank(x), dtype=dtype, device="meta")

        stands = [stand(x) for x in operands]
        total = stands[0]
        for stand_in in stands[1:]:
            dtype = torch.result_type(total, stand_in)
            ranks = [getattr(x, "ndim", -1) for x in (total, stand_in)]
            total = torch.empty((1,) * max(*ranks, 0), dtype=dtype, device="meta")
        if isinstance(total, torch.Tensor):
            return dtype_name(total.dtype)
        return dtype_name(torch.result_type(total, total))

    def floating(self, x: Val) -> Val:
        """`x` in the element type of the result, which is float32 for integers."""
        return self.cast(x, self.out.dtype.name)

    def extents_of(self, sizes: Sequence[Operand]) -> tuple[Expr, ...]:
        """Sizes among arguments as expressions."""
        return tuple(as_expr(s) for s in sizes)

    def spread(self, x: Val, shape: Sequence[Expr]) -> Val:
        """`x` broadcast to exactly `shape`."""
        target = tuple(self.dims.simplify(d) for d in shape)
        if target == self.shape(x):
            return x
        return self.emit("broadcast_to", x, shape=target)
