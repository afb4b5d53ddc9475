"""Random tensor programs that a CPU can be given: any statement, sizes that are known."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.dtype import INT64, DType
from tensorkiln.ir.expr import Expr, IntImm, Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import Alloc, For, PrimFunc, Stmt

from .generate_tir import ELEMENTS, TirGen

PASSED = ("int32", "int64", "float32", "float64")  # what a C function takes here


class RunnableGen(TirGen):
    """Constant sizes, loops of a CPU, C functions of plain numbers."""

    def _reduce(self, d: DType, depth: int) -> Expr:
        return self.leaf(d)

    def call_extern(self, d: DType, depth: int) -> Expr:
        return super().call_extern(d, depth) if d.name in (*PASSED, "void") else self.leaf(d)

    def element(self) -> str:
        return self.pick(PASSED)

    def _for(self, depth: int) -> Stmt:
        kind = self.pick(("serial", "serial", "parallel", "vectorized", "unrolled"))
        var = Var(self.name(), INT64)
        self.vars.append(var)
        body = self._store(0) if kind == "vectorized" else self.stmt(depth)
        self.vars.pop()
        extent = IntImm(self.pick((2, 4)))
        return For(var, IntImm(self.pick((0, 3))), extent, kind, body, self.attrs())

    def _alloc(self, depth: int) -> Stmt:
        shape = tuple(IntImm(self.pick((1, 4))) for _ in range(self.draw(st.integers(0, 2))))
        b = Buffer(self.name(), DType(self.pick(ELEMENTS)), shape, "local", 64)
        self.buffers.append(b)
        self.outputs.append(b)
        body = self.stmt(depth)
        self.buffers.pop()
        self.outputs.pop()
        return Alloc(b, body)

    def function(self, name: str) -> PrimFunc:
        buffers = []
        for _ in range(self.draw(st.integers(1, 3))):
            shape = tuple(
                IntImm(self.pick((1, 4, 16))) for _ in range(self.draw(st.integers(0, 3)))
            )
            buffers.append(Buffer(self.name(), DType(self.pick(ELEMENTS)), shape))
        scalars = (Var(self.name(), DType(self.pick(PASSED))),)[: self.draw(st.integers(0, 1))]
        outputs = self.draw(st.integers(1, len(buffers)))
        self.vars += scalars
        self.buffers += buffers
        self.outputs += buffers[-outputs:]
        return PrimFunc(name, (*buffers, *scalars), self.stmt(3), outputs, public=True)


@st.composite
def runnable_programs(draw: Any) -> IRModule:
    """A module of one tensor program."""
    return IRModule((RunnableGen(draw).function("kernel"),))
