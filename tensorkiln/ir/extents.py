"""How large an expression of sizes may be.

Expressions are trees: `s + s // 2` holds s twice, so 14 such steps make a size of 16,000 sizes. An
operator whose result has a size beyond `LARGEST` is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorkiln.ir.expr import Expr, IntImm, Var
from tensorkiln.ir.visit import children


@dataclass(frozen=True, slots=True)
class SizeLimit:
    """Limits on the operations of an expression, and on their nesting."""

    operations: int
    depth: int

    def __str__(self) -> str:
        return f"{self.operations} operations, {self.depth} of them one in another"

    def is_exceeded(self, e: Expr) -> bool:
        """Whether an expression exceeds a limit. Takes no longer for a much larger one."""
        pending, count = [(e, 0)], 0
        while pending:
            x, depth = pending.pop()
            if isinstance(x, IntImm | Var):
                continue
            count += 1
            if count > self.operations or depth >= self.depth:
                return True
            pending += ((y, depth + 1) for y in children(x))
        return False


# Passes visit expressions by recursion, and Python's stack has 1000 frames.
LARGEST = SizeLimit(2000, 120)
