"""`python -m bench.levels`: what networks take by the instructions of older processors.

A library for this processor and those for the levels of x86-64 take turns: v4 has vectors of 512
bits, v3 of 256, v2 of 128 and no fused multiply-add. ONNX Runtime, which uses all that this
processor has, stands beside. What kernels reach of a level's own peak is told by
`python -m bench.roofline --cpu LEVEL`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from bench.beside import Model, main
from bench.contenders import OURS, Contender, ours
from bench.families import near
from bench.models import MODELS
from bench.peers import PEERS

LEVELS = ("x86-64-v4", "x86-64-v3", "x86-64-v2")
CONTENDERS = (
    OURS,
    *(Contender(x, x, "tensorkiln", "tensorkiln", partial(ours, cpu=x)) for x in LEVELS),
    PEERS["ort"],
)


def models(only: str) -> Iterator[Model]:
    """The models that are measured whose names contain a text."""
    from tests.zoo.export import model_path
    from tests.zoo.registry import EXPORTS, NETWORKS, inputs

    for name in (m for m in MODELS if only in m):
        feeds = inputs(NETWORKS[EXPORTS[name].network], seed=0)
        yield Model("levels", name, model_path(name).read_bytes(), feeds, near)


if __name__ == "__main__":
    main("bench.levels", models, CONTENDERS)
