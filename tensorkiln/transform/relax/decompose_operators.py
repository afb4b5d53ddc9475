"""Replace operators that no kernel fits by others, where their family says how.

    a = attention(q, k, v)  ->  s = matmul(q, k^T); w = softmax(s); a = matmul(w, v)

Needs: run after the passes that match operators, and before `assign_layouts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tensorkiln.ir.attrs import Attrs
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
        reasons: list[tuple[str, str]] = []
        target = target_in(self.target, f.attrs)
        for b in f.bindings:
            decomposition = _decomposed(b, target)
            bindings += [b] if decomposition is None else decomposition.bindings
            reasons += [] if decomposition is None else decomposition.reasons
        if all(a is b for a, b in zip(bindings, f.bindings, strict=False)):
            return f
        rows = (*f.attrs.get("decomposed", ()), *reasons)
        attrs = Attrs.of(**{**f.attrs, "decomposed": rows}) if reasons else f.attrs
        return replace(f, bindings=tuple(bindings), attrs=attrs)


@dataclass(frozen=True, slots=True)
class _Decomposed:
    """What takes the place of a call, and of which node why."""

    bindings: Sequence[Binding]
    reasons: Sequence[tuple[str, str]]


def _decomposed(b: Binding, target: Target) -> _Decomposed | None:
    call, out = b.value, b.var.type
    if not isinstance(call, Call) or not isinstance(out, TensorType):
        return None
    kernel_families = families(target)
    rows = [row for row in kernel_families.of(call.op) if row.decompose is not None]
    if not rows or kernel_families.layouts(call, out, target) is not None:
        return None
    row = rows[0]
    assert row.decompose is not None
    lacks = row.lacks(call, out, target) if row.lacks is not None else ""
    reason = f"no {row.op_class}: {lacks}" if lacks else f"no {row.op_class}"
    return _Decomposed(row.decompose(b), [(call.span, reason)] if call.span else [])
