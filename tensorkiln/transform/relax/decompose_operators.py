"""Replace operators that no kernel fits by others, where their family says how.

    a = attention(q, k, v)  ->  s = matmul(q, k^T); w = softmax(s); a = matmul(w, v)

Needs: run after the passes that match operators, and before `assign_layouts`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Binding, Call, Function, TensorType
from tensorkiln.kernels import families
from tensorkiln.target import Target, target_in


@dataclass(frozen=True, slots=True)
class DecomposeOperators:
    """Replace every call without a kernel on a target whose family can decompose it
    (`Family.decompose`)."""

    target: Target

    def __call__(self, mod: IRModule) -> IRModule:
        """Return the rewritten module; `mod` itself if nothing is replaced."""
        return mod.map_graphs(self._function)

    def _function(self, f: Function) -> Function:
        bindings: list[Binding] = []
        target = target_in(self.target, f.attrs)
        for b in f.bindings:
            bindings += _decomposed(b, target)
        kept = {id(b) for b in f.bindings}
        same = all(id(b) in kept for b in bindings)
        return f if same else replace(f, bindings=tuple(bindings))


def _decomposed(b: Binding, target: Target) -> list[Binding]:
    call, out = b.value, b.var.type
    if not isinstance(call, Call) or not isinstance(out, TensorType):
        return [b]
    known = families(target)
    forms = [row.decompose for row in known.of(call.op) if row.decompose is not None]
    if not forms or known.layouts(call, out, target) is not None:
        return [b]
    return list(forms[0](b))
