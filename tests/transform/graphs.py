"""Small modules for tests of passes: scripts, compared as text, and graphs of a builder, compared
by structure and by value."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import numpy as np

from tensorkiln.ir.equal import first_difference
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Function, TensorType, tensor
from tensorkiln.kernels.case import Build, Graph
from tensorkiln.ops.evaluate import evaluate
from tensorkiln.ops.verify import verify
from tensorkiln.script import from_source
from tensorkiln.transform.relax.infer_types import infer_types

Pass = Callable[[IRModule], IRModule]


def graph(build: Build, **params: object) -> IRModule:
    """A module of one function; `params` are shapes of float32 tensors, or types."""
    g = Graph()
    values = []
    for name, p in params.items():
        t = p if isinstance(p, TensorType) else tensor(p, "float32")  # type: ignore[arg-type]
        values.append(g.param(name, t))
    return IRModule((g.finish(build(g, *values)),))


def ops_of(mod: IRModule) -> list[str]:
    """Operators of the only function, in order."""
    return [b.value.op for b in main(mod).bindings]  # type: ignore[union-attr]


def main(mod: IRModule) -> Function:
    """The only function."""
    (f,) = mod.functions
    assert isinstance(f, Function)
    return f


def arguments(mod: IRModule, seed: int = 0, **sizes: int) -> dict[str, np.ndarray]:
    """Random inputs; symbols take their value from `sizes`."""
    generator = np.random.default_rng(seed)
    out = {}
    for p in main(mod).params:
        shape = [getattr(d, "value", None) or sizes[d.name] for d in p.tensor.shape]
        if p.tensor.dtype.is_bool:
            out[p.name] = generator.random(shape) < 0.7
        elif p.tensor.dtype.is_int:
            out[p.name] = generator.integers(0, 2, shape).astype(p.tensor.dtype.name)
        else:
            out[p.name] = generator.standard_normal(shape).astype(p.tensor.dtype.name)
    return out


def assert_same_values(
    before: IRModule, after: IRModule, rtol: float = 1e-12, seed: int = 0, **sizes: int
) -> None:
    """Both compute the same in float64, up to `rtol` of the largest element."""
    inputs = arguments(before, seed, **sizes)
    for a, b in zip(
        evaluate(before, inputs, dtype="float64"),
        evaluate(after, inputs, dtype="float64"),
        strict=True,
    ):
        assert a.shape == b.shape
        scale = max(float(np.abs(a).max(initial=0)), 1e-30) if a.dtype.kind == "f" else 1.0
        np.testing.assert_allclose(b, a, rtol=0, atol=rtol * scale)


def check(apply: Pass, before: IRModule, after: IRModule, rtol: float = 1e-12) -> None:
    """`apply` turns `before` into exactly `after`, keeps its meaning, and is then at rest."""
    result = apply(before)
    difference = first_difference(result, after)
    assert difference is None, (ops_of(result), difference)
    assert_same_values(before, result, rtol)
    assert apply(result) is result


def check_unchanged(apply: Pass, mod: IRModule) -> None:
    """`apply` answers the very same object."""
    assert apply(mod) is mod


def check_text(apply: Pass, before: str, after: str, **constants: np.ndarray) -> None:
    """`apply` turns one script into exactly the other, names included, and is then at rest. All
    passes but the first see what `infer_types` leaves."""
    mod = from_source(textwrap.dedent(before), constants)
    result = apply(mod if apply is infer_types else infer_types(mod))
    script_after, expected = (
        result.script(),
        from_source(textwrap.dedent(after), constants).script(),
    )
    assert script_after == expected, script_after
    verify(result)
    assert apply(result).script() == script_after
