"""Serve a compiled library by HTTP with Ray Serve: `python examples/serve_model.py model.so`.

    pip install tensorkiln-runtime 'ray[serve]'
    curl 127.0.0.1:8000 -d '{"x": [[0.5, 1.0, 2.0]]}'

A request is a JSON object that has one row of each input. Requests that arrive together are one
call of the library, whose first dimension is symbolic: up to `MOST` rows, which wait up to `WAIT`
seconds for each other. A row that the library fails on costs its request and no other.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

import numpy as np
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse

import tensorkiln as tk

MOST, WAIT = 32, 0.005
HOST = "127.0.0.1"  # for this machine alone


@serve.deployment(max_ongoing_requests=4 * MOST)
class Model:
    def __init__(self, library: str, threads: int = 1):
        self.f = tk.load(library, num_threads=threads)

    @serve.batch(max_batch_size=MOST, batch_wait_timeout_s=WAIT)
    async def rows(self, requests: list[list[np.ndarray]]) -> list[Any]:
        """Results of each request, or the error that its row ends with. Those of one shape are
        called together."""
        shapes: dict[Any, list[int]] = {}
        for k, arrays in enumerate(requests):
            shapes.setdefault(tuple(a.shape for a in arrays), []).append(k)
        found: list[Any] = [None] * len(requests)
        for numbers in shapes.values():
            await asyncio.to_thread(self.call, requests, numbers, found)
        return found

    def call(self, requests: list[list[np.ndarray]], numbers: list[int], found: list[Any]) -> None:
        try:
            made = self.f(*map(np.concatenate, zip(*(requests[k] for k in numbers), strict=True)))
        except tk.TensorkilnError as error:
            if len(numbers) == 1:
                found[numbers[0]] = error
                return
            middle = len(numbers) // 2
            self.call(requests, numbers[:middle], found)
            self.call(requests, numbers[middle:], found)
            return
        results = made if isinstance(made, tuple) else (made,)
        for row, k in enumerate(numbers):
            found[k] = {p.name: r[row] for p, r in zip(self.f.outputs, results, strict=True)}

    async def __call__(self, request: Request) -> JSONResponse:
        try:
            given = await request.json()
            arrays = [np.asarray(given[p.name], p.dtype) for p in self.f.inputs]
            for array, p in zip(arrays, self.f.inputs, strict=True):
                if array.ndim != len(p.shape or ()) or len(array) != 1:
                    raise ValueError(f"{p.name}: expected one row, {p.dtype}{p.shape_text}")
        except (ValueError, TypeError, KeyError) as error:
            return JSONResponse({"error": f"{type(error).__name__}: {error}"}, 400)
        found = await self.rows(arrays)
        if isinstance(found, tk.TensorkilnError):
            return JSONResponse({"error": found.message}, 422)
        return JSONResponse({name: result.tolist() for name, result in found.items()})


def deploy(library: str, port: int, replicas: int) -> None:
    """Serve the library at http://127.0.0.1:port/, in so many processes of one thread."""
    serve.start(http_options={"host": HOST, "port": port})
    serve.run(Model.options(num_replicas=replicas).bind(library))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", help="its first dimensions are one symbolic size")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--replicas", type=int, default=1)
    options = parser.parse_args()
    deploy(options.library, options.port, options.replicas)
    print(f"http://{HOST}:{options.port}/ until Ctrl-C")
    asyncio.run(asyncio.Event().wait())  # type: ignore[arg-type]
