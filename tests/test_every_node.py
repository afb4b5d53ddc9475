"""Every class of node of tensor programs can be printed, parsed and emitted: a class that was
forgotten is named by a failure here."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

from tensorkiln.codegen.c_like import c99
from tensorkiln.codegen.llvm.emit import EXPRESSIONS, STATEMENTS
from tensorkiln.ir import buffer, expr, stmt
from tensorkiln.ir.dtype import BOOL, FLOAT32
from tensorkiln.ir.equal import first_difference
from tensorkiln.ir.visit import stmt_exprs, walk, walk_stmt
from tensorkiln.script import from_source
from tests.ir.drawn import OF_EXPRESSIONS, operand_types

# Lowering turns these into loops.
LOWERED = {expr.Reduce, stmt.Block}
# Only code for a device with threads of its own has these.
DEVICE = {stmt.Sync}
EVERY_NODE = """
@ir_module
class Module:
    @T.prim_func
    def helper(A: T.Buffer((8,), "float32")):
        A[0] = 1.0

    @T.prim_func
    def every(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32"), n: T.int64):
        x: T.float32 = T.exp(-A[1])
        {of_expressions}
        v = T.alloc_buffer((4,), "float32")
        w = T.match_buffer(B[0:4], (4,), "float32")
        T.prefetch(A, (n,))
        assert n < 8, "n is small"
        while A[n] < x:
            A[n] = T.Cast("float32", n)
        for i in range(4):
            if i < n:
                v[i] = x
        with T.block("C"):
            vi = T.axis.spatial(8, n)
            B[vi] = x
        w[0:4] = T.shuffle(T.Broadcast(x, 4), A[0:4], (0, 1, 4, 5))
        A[1] = T.reduce("sum", [(k, 4)], v[k])
        A[0] = T.vector_reduce("sum", w[0:4])
        T.evaluate(T.call_extern("void", "log_it", T.address_of(A[0])))
        T.call(cls.helper, A)

    @T.prim_func
    def grid(A: T.Buffer((8,), "float32")):
        T.func_attr({"device_function": True})
        for b in T.thread_binding(2, thread="blockIdx.x"):
            tile = T.alloc_buffer((4,), "float32", scope="shared")
            for t in T.thread_binding(4, thread="threadIdx.x"):
                tile[t] = A[4 * b + t]
            T.sync("block")
            for t in T.thread_binding(4, thread="threadIdx.x"):
                A[4 * b + t] = tile[3 - t]
            T.sync("block")
            for t in T.thread_binding(
                4, thread="threadIdx.x", annotations={"asynchronous": True}
            ):
                tile[t] = A[4 * b + t]
            T.sync("copies")

    @T.prim_func
    def launches(A: T.Buffer((8,), "float32"), n: T.int64):
        T.func_attr({"host": True})
        T.call(cls.grid, A, grid=(n // 4, 1, 1), block=(4, 1, 1))
"""


def classes(module: ModuleType, base: type) -> set[type]:
    class_candidates = (
        c for c in vars(module).values() if isinstance(c, type) and issubclass(c, base)
    )
    return {c for c in class_candidates if c is not base}


NODES = classes(expr, expr.Expr) | classes(buffer, expr.Expr) | classes(stmt, stmt.Stmt)


def test_every_node_is_emitted() -> None:
    assert EXPRESSIONS.keys() | STATEMENTS.keys() == NODES - LOWERED - DEVICE
    assert c99.EXPRESSIONS.keys() | c99.STATEMENTS.keys() == NODES - LOWERED - DEVICE


def test_every_node_is_printed_and_parsed() -> None:
    lines = []
    for node in OF_EXPRESSIONS:
        assert node.form is not None
        types = operand_types(node, FLOAT32, lambda: True)
        operands = ", ".join("n < 4" if t == BOOL else "x" for t in types)
        lines.append(f"A[0] = T.{node.form.word}({operands})")
    mod = from_source(EVERY_NODE.replace("{of_expressions}", "\n        ".join(lines)))

    def used() -> Iterator[type]:
        for f in mod.prim_funcs:
            for s in walk_stmt(f.body):
                yield type(s)
                yield from (type(x) for e in stmt_exprs(s) for x in walk(e))

    assert NODES - set(used()) == set()
    assert first_difference(mod, from_source(mod.script())) is None
