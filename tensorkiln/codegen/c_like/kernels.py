"""Kernels of a module as artifacts: a C file each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tensorkiln.artifact import Artifact
from tensorkiln.codegen.c_like.c99 import emit_c
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.text.printer import print_expr
from tensorkiln.target import Target

_MOST = 256  # kernels in one file


def c_kernels(
    mod: IRModule,
    funcs: Sequence[PrimFunc],
    target: Target,
    on_done: Callable[[str], None] = lambda name: None,
) -> list[Artifact]:
    """The C of kernels of a lowered module: `kernels.c`, and where that would be long
    `kernels_1.c` and so on."""
    nodes = mod.nodes()
    artifacts: list[Artifact] = []
    for group in _groups(funcs):
        comments = {f.name: about(f, list(dict.fromkeys(nodes.get(f.name, ())))) for f in group}
        text = emit_c(group, target, comments)
        name = f"kernels_{len(artifacts)}.c" if artifacts else "kernels.c"
        artifacts.append(Artifact("c", "native", name, text.encode()))
        for f in group:
            on_done(f.name)
    return artifacts


def _groups(funcs: Sequence[PrimFunc]) -> Iterator[list[PrimFunc]]:
    """Kernels that share a file, in order."""
    for start in range(0, len(funcs), _MOST):
        yield list(funcs[start : start + _MOST])


def about(f: PrimFunc, nodes: Sequence[str]) -> list[str]:
    """What the comment of a kernel says: the model's nodes that it computes, its parameters, and
    the schedule that its loops are of."""
    lines = [f"computes: {node}" for node in nodes]
    first = len(f.buffers) - f.outputs
    for i, b in enumerate(f.buffers):
        shape = ", ".join(print_expr(d) for d in b.shape)
        lines.append(f"{'reads' if i < first else 'writes'} {b.name}: {b.dtype}[{shape}]")
    lines += [f"takes {v.name}: {v.dtype}" for v in f.params if not isinstance(v, Buffer)]
    return [*lines, f"schedule: {f.op_class}"]
