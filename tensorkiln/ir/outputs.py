"""Which parameters a tensor program writes: among the last `outputs` of its buffers.

Where a script does not give `outputs=`, they begin at the first buffer that the body may write. The
analysis is conservative: a C function counts as writing every buffer whose address it gets, unless
`outputs=` says otherwise. Buffers before the outputs are read only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tensorkiln.ir.buffer import AddressOf, Buffer
from tensorkiln.ir.dtype import HANDLE
from tensorkiln.ir.expr import CallExtern
from tensorkiln.ir.stmt import CallKernel, MatchBuffer, Param, PrimFunc, Stmt, Store, TensorProgram
from tensorkiln.ir.visit import stmt_exprs, walk, walk_stmt

Writes = Callable[[str, int], bool]


def inferred_outputs(params: tuple[Param, ...], body: Stmt) -> int:
    """The number of buffers from the first one that `body` may write to the last parameter.

    With parameters A, B, C and a body that writes only B, that is 2: B and C.
    """
    written = _written(body, lambda callee, argument: True)
    buffers = [p for p in params if isinstance(p, Buffer)]
    first = next((i for i, b in enumerate(buffers) if b in written), len(buffers))
    return len(buffers) - first


def written_parameters(f: TensorProgram, mod: Mapping[str, object]) -> set[Buffer]:
    """The outputs of `f` that `f` itself may write, or a function of `mod` that it calls; all
    outputs of a known kernel."""
    return _written_by(f, mod, {f.name})


def _written_by(f: TensorProgram, mod: Mapping[str, object], around: set[str]) -> set[Buffer]:
    """`written_parameters` of `f`; `around` names `f` and its callers, to end recursion."""

    def writes(name: str, argument: int) -> bool:
        callee = mod[name]
        if not isinstance(callee, TensorProgram):
            return True
        p = callee.params[argument]
        if name in around:
            return p in outputs_of(callee)
        return p in _written_by(callee, mod, {*around, name})

    outputs = outputs_of(f)
    return outputs & _written(f.body, writes) if outputs and isinstance(f, PrimFunc) else outputs


def outputs_of(f: TensorProgram) -> set[Buffer]:
    """The last `f.outputs` buffers, which `f` is allowed to write."""
    return set(f.buffers[len(f.buffers) - f.outputs :])


def _written(s: Stmt, writes: Writes) -> set[Buffer]:
    """Buffers that `s` may write: by stores, by C functions that get their address, by called
    programs where `writes(callee, argument index)` is true, and through views of a buffer."""
    written: set[Buffer] = set()
    views: list[MatchBuffer] = []
    for t in walk_stmt(s):
        if isinstance(t, Store):
            written.add(t.buffer)
        elif isinstance(t, MatchBuffer):
            views.append(t)
        elif isinstance(t, CallKernel):
            written_args = [a for i, a in enumerate(t.args) if writes(t.name, i)]
            written |= {x.buffer for a in written_args for x in walk(a) if isinstance(x, AddressOf)}
        calls = (x for e in stmt_exprs(t) for x in walk(e) if isinstance(x, CallExtern))
        written |= {a.buffer for call in calls for a in call.args if isinstance(a, AddressOf)}
    for view in reversed(views):  # inner views first
        if view.buffer in written:
            written.add(view.source)
    # A set of handles is itself only read; the memory its handles point to is not part of it.
    return {b for b in written if b.dtype != HANDLE}
