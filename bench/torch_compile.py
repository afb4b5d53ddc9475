"""`python -m bench.torch_compile`: our backend of torch.compile beside inductor, its own.

The networks are those of the model zoo, built by torch. Both get the same module and the same
tensors through `torch.compile`, so that guards and calls cost both the same. Inductor has its
default mode with frozen weights, since neither is tuned. Results are compared with each other; with
torch in float64 by `make conformance`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bench.beside import Model, main
from bench.contenders import Array, Case, Contender, Runner
from bench.measure import mismatch

# Those of one configuration in two sizes are left out but for one.
NETWORKS = (
    "mlp",
    "resnet18",
    "resnet50",
    "mobilenetv2",
    "convnext_t",
    "vit_b16",
    "bert",
    "gpt2",
    "squeezenet",
    "densenet121",
    "efficientnet_b0",
    "llama_1",
    "llama_128",
)


def _compiled(case: Case, threads: int, backend: str, options: dict[str, Any]) -> Runner:
    import torch

    from tests.zoo.export import build

    torch.set_num_threads(threads)
    compiled = torch.compile(build(case.network), backend=backend, options=options)
    tensors = [torch.from_numpy(values) for values in case.inputs.values()]

    def run() -> tuple[Array, ...]:
        with torch.no_grad():
            result: Any = compiled(*tensors)
        outputs = result if isinstance(result, tuple) else (result,)
        return tuple(output.numpy() for output in outputs)

    run()  # Compiles here, so that what it raises belongs to preparation.
    return run


def _ours(case: Case, threads: int) -> Runner:
    return _compiled(case, threads, "tensorkiln", {})


def _inductor(case: Case, threads: int) -> Runner:
    return _compiled(case, threads, "inductor", {"freezing": True})


PAIR = (
    Contender("ours", "backend tensorkiln", "torch", "tensorkiln", _ours),
    Contender("inductor", "inductor of torch", "torch", "torch", _inductor),
)


def _differ(outputs: Sequence[Array], peer_outputs: Sequence[Array]) -> str:
    return mismatch([np.asarray(a) for a in peer_outputs], [np.asarray(a) for a in outputs])


def _models(only: str) -> Iterator[Model]:
    import torch._dynamo

    from tests.zoo import registry

    for name in NETWORKS:
        if only in name:
            torch._dynamo.reset()  # which would make both compile again while they are timed
            feeds = registry.inputs(registry.NETWORKS[name], seed=0)
            yield Model("torch.compile", name, b"", feeds, _differ)


if __name__ == "__main__":
    main("bench.torch_compile", _models, PAIR)
