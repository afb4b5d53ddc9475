"""Values of types that are only stored (`narrow.py`) in branches and loops: their bytes move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx.graph_values import GraphValue
from tensorkiln.frontend.onnx.narrow import Format, Narrow

Formats = Sequence[Format | None]


def stored(values: Sequence[object]) -> tuple[list[Val], Formats]:
    """Tensors, those that are only stored as their bytes, and the formats of these, None of others;
    NodeProblem if a value is no tensor."""
    tensors = [v.stored if isinstance(v, Narrow) else v for v in values]
    if not all(isinstance(v, Val) for v in tensors):
        raise unsupported("data decides a result that is no tensor")
    formats = tuple(v.format if isinstance(v, Narrow) else None for v in values)
    return [v for v in tensors if isinstance(v, Val)], formats


def with_formats(tensors: Sequence[Val], formats: Formats) -> list[Val | Narrow]:
    """The values whose bytes and formats `stored` gave; without formats, the tensors."""
    pairs = zip(tensors, formats or (None,) * len(tensors), strict=True)
    return [v if f is None else Narrow(v, f) for v, f in pairs]


@dataclass
class BodyFormats:
    """The formats of a body's operands and of its results, of which the first are `carried` to the
    next step; those of results are noted when it is imported, in all branches the same."""

    operands: Formats = ()
    carried: Formats = ()
    results: Formats = field(default=(), init=False)

    def over(
        self, step: Callable[[int, Sequence[GraphValue]], Sequence[object]]
    ) -> Callable[[int, Sequence[Val]], list[Val]]:
        """The step as one from tensors to tensors; NodeProblem for results of other formats."""

        def step_of_tensors(number: int, args: Sequence[Val]) -> list[Val]:
            tensors, formats = stored(step(number, with_formats(args, self.operands)))
            expected = self.results or self.carried
            if formats[: len(expected)] != tuple(expected):
                names = [sorted({f.name for f in fs if f}) for fs in (expected, formats)]
                listed = ["; ".join(n) or "other types" for n in names]
                raise malformed(f"results are of {listed[1]}, expected {listed[0]}")
            self.results = formats
            return tensors

        return step_of_tensors
