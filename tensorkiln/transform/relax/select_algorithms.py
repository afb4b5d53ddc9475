"""Compute operators by other algorithms where their rule of cost says that it pays.

    y = conv2d(x, w, b)  ->  y = winograd_conv2d(x, u, b, tile=(4, 4))          3x3
                             s = slice(x, ...); y = conv2d(s, w, b)             1x1 with strides
    y = linear(x, w, b)  ->  p = strassen_parts(x); y = strassen_linear(p, w, b)

The algorithms and their rules are in the table of kernel families (`Family.algorithm`).

Needs: canonical operators with constant weights; run before `assign_layouts`, which packs them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tensorkiln.base.threads import in_threads
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Binding, Call, Constant, Function, RVar, TensorType
from tensorkiln.kernels import Algorithm, Rewriter, algorithm_of
from tensorkiln.target import Target, target_in


@dataclass(frozen=True, slots=True)
class SelectAlgorithms:
    """Rewrite each call for the first algorithm in the table that is worth it on a target."""

    target: Target

    def __call__(self, mod: IRModule) -> IRModule:
        """Return the rewritten module; `mod` itself if nothing is rewritten."""
        return mod.map_graphs(self._function)

    def _function(self, f: Function) -> Function:
        target = target_in(self.target, f.attrs)
        choices = ((b.var, _chosen(b, target)) for b in f.bindings)
        chosen = {var: choice for var, choice in choices if choice is not None}
        weight_checks = [
            b for b in f.bindings if b.var in chosen and chosen[b.var][0].finite_weights
        ]
        finite = _finite(weight_checks)
        rewriter = Rewriter()
        for b in f.bindings:
            if b.var in chosen and finite.get(b.var, True):
                algorithm, choice = chosen[b.var]
                b = replace(b, value=algorithm.rewrite(b, choice, rewriter))
            rewriter.bindings.append(b)
        bindings = tuple(rewriter.bindings)
        binding_ids = {id(b) for b in f.bindings}
        return f if all(id(b) in binding_ids for b in bindings) else replace(f, bindings=bindings)


def _chosen(b: Binding, target: Target) -> tuple[Algorithm, object] | None:
    call, out = b.value, b.var.type
    if not isinstance(call, Call) or not isinstance(out, TensorType):
        return None
    return algorithm_of(call, out, target)


def _finite(bindings: list[Binding]) -> dict[RVar, bool]:
    """For each value that a binding computes, whether all weights are finite."""
    is_finite: dict[RVar, bool] = {}

    # A finite sum implies finite elements, and the sum takes a fraction of the time of looking at
    # each; but it may overflow. This reads all weights from the file.
    def look(b: Binding) -> None:
        w = b.value.args[1] if isinstance(b.value, Call) else None
        if isinstance(w, Constant):
            with np.errstate(over="ignore", invalid="ignore"):
                is_finite[b.var] = bool(np.isfinite(w.array.sum()) or np.isfinite(w.array).all())

    in_threads(look, bindings)
    return is_finite
