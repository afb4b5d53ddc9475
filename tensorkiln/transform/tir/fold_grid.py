"""Launch blocks along x that may be too many along y or z.

    for z in T.thread_binding(n, thread="blockIdx.z"):   for block in T.thread_binding(n * 4,
        for x in T.thread_binding(4,                ->           thread="blockIdx.x"):
            thread="blockIdx.x"): ...                        x = block % 4; z = block // 4; ...

A grid of CUDA has at most 65,535 blocks along y and along z, and 2^31 - 1 along x. Blocks keep
their order, x fastest, and find their indices by division, in 32 bits, since more than 2^31 - 1
blocks are not launched. Device functions of which it is known that both extents are small enough
stay as they are.

Needs: split_device; narrow_indices and check_races come before, as they cannot see through products
and quotients of sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tensorkiln.arith import Bounds, bound, simplify
from tensorkiln.base.errors import UnsupportedError
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.dtype import INT64, DType
from tensorkiln.ir.expr import Expr, IntImm, Var, binary, cast, int_value
from tensorkiln.ir.launch import launch_of
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import BLOCK_INDICES, CallKernel, For, Let, PrimFunc, Stmt
from tensorkiln.ir.visit import map_stmt
from tensorkiln.target import Target, target_in

# The blocks that a grid of CUDA has at most along x, and along y and along z (CUDA C++ Programming
# Guide, "Technical Specifications per Compute Capability": the same for all).
MOST_ALONG_X, MOST_ALONG_Y = 2**31 - 1, 65535
_NUMBER = DType("uint32")  # of a block: there is an instruction for its division by a constant


@dataclass(frozen=True, slots=True)
class FoldGrid:
    """`target`: the target whose device functions are folded, or whose devices of kind `cuda` have
    them."""

    target: Target

    def __call__(self, mod: IRModule) -> IRModule:
        """Fold the grids of device functions, and of what launches them. Raises UnsupportedError
        for more blocks than a grid has in all."""
        folded = {
            f.name: folded_grid(f)
            for f in mod.prim_funcs
            if f.is_device and target_in(self.target, f.attrs).kind == "cuda" and _may_exceed(f)
        }
        if not folded:
            return mod

        def launch(s: Stmt) -> Stmt:
            if isinstance(s, CallKernel) and s.name in folded and s.grid:
                return replace(s, grid=(_total(s.grid), IntImm(1), IntImm(1)))
            return map_stmt(s, lambda e: e, launch)

        def rewritten(f: PrimFunc) -> PrimFunc:
            if f.name in folded:
                return folded[f.name]
            body = launch(f.body)
            return f if body is f.body else replace(f, body=body)

        return mod.with_functions(
            tuple(rewritten(f) if isinstance(f, PrimFunc) else f for f in mod.functions)
        )


def _may_exceed(f: PrimFunc) -> bool:
    """Whether there may be more blocks along y or z than a grid has."""
    upper_bounds = [bound(extent, Bounds())[1] for extent in launch_of(f).grid[1:]]
    return any(m is None or m > MOST_ALONG_Y for m in upper_bounds)


def folded_grid(f: PrimFunc) -> PrimFunc:
    """A device function all of whose blocks are along x."""
    launch = launch_of(f)
    total = _total(launch.grid)
    block_count = int_value(total)
    if block_count is not None and block_count > MOST_ALONG_X:
        raise UnsupportedError(
            f"a grid of {block_count} blocks, and a device of CUDA has at most {MOST_ALONG_X}",
            where=f.name,
            hint="more elements for each thread, or a loop around the threads",
        )
    block = Var("block", INT64)
    number = cast(block, _NUMBER)
    loops = sorted(launch.loops, key=lambda s: BLOCK_INDICES.index(str(s.attrs["thread"])))
    body, quotient = launch.body, number
    values: list[tuple[For, Expr]] = []
    for s in loops[:-1]:
        extent = cast(s.extent, _NUMBER)
        values.append((s, binary("floormod", quotient, extent)))
        quotient = binary("floordiv", quotient, extent)
    values.append((loops[-1], quotient))
    for s, value in reversed(values):
        body = Let(s.var, binary("add", s.lo, cast(value, s.var.dtype)), body)
    attrs = Attrs.of(thread=BLOCK_INDICES[0])
    return replace(f, body=For(block, IntImm(0), total, "thread", body, attrs))


def _total(grid: tuple[Expr, ...]) -> Expr:
    """The number of blocks of a grid."""
    x, y, z = (cast(extent, INT64) for extent in grid)
    return simplify(x * y * z)


__all__ = ["MOST_ALONG_X", "MOST_ALONG_Y", "FoldGrid", "folded_grid"]
