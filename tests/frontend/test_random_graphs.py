"""Random graphs of ONNX, compiled, against ONNX Runtime or the standard's own evaluator.

`make random-graphs` runs thousands: `python -m tests.frontend.test_random_graphs --count 3000`.
"""

from __future__ import annotations

import argparse
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx.reference import ReferenceEvaluator

import tensorkiln as tk
from tensorkiln.base.errors import TensorkilnError, UnsupportedError
from tests.frontend.random_graphs import Drawn, draw

# A part of the largest element: results of float32 arithmetic in another order.
NEAR = 1e-3
# Of all graphs, at most so many may be refused, each by a typed error.
MOST_REFUSED = 0.04
Arrays = list[np.ndarray]


class Found(NamedTuple):
    """What a graph led to: right, refused (`details` is the reason), or a fault."""

    kind: str
    details: str = ""


def check(seed: str) -> Found:
    """Compile the graph of a seed, and compare the results of its runs."""
    drawn = draw(seed)
    wants = [expected(drawn, k) for k in range(len(drawn.runs))]
    if not any(wants):
        return Found("no reference", wants_why(drawn))
    try:
        call = tk.runtime.Executor(tk.compile(tk.frontend.from_onnx(drawn.model)))["main"]
    except UnsupportedError as error:
        return Found("refused", " ".join(str(error).split()))
    except Exception as error:
        return Found("error", f"{type(error).__name__}: {error}")
    for k, (feeds, want) in enumerate(zip(drawn.runs, wants, strict=True)):
        if not want:
            continue
        try:
            out = call(*feeds.values())
        except TensorkilnError as error:
            # Extents such as N - 1 are told for sizes from 1.
            if "N is 0; expected N >= 1" in str(error):
                return Found("refused", "a size of 0")
            return Found("error", f"run {k}: {type(error).__name__}: {error}")
        outputs = [np.from_dlpack(v) for v in (out if isinstance(out, tuple | list) else [out])]
        differences = [differs(outputs, w) for w in want]
        if all(differences):
            return Found("wrong", f"run {k}: {differences[0]}")
    return Found("right")


def quiet() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    return options


def expected(drawn: Drawn, run: int) -> list[Arrays]:
    """The results of ONNX Runtime and, where it has none, of the standard's evaluator; both where
    they differ, since then one of them is wrong."""
    feeds = drawn.runs[run]
    references: list[Arrays] = []
    with suppress(Exception):
        references.append(
            in_child(drawn, feeds) if run in drawn.deadly else by_runtime(drawn, feeds)
        )
    if misjudged(drawn.model.graph):
        return references
    try:
        with np.errstate(all="ignore"):
            evaluator_outputs = ReferenceEvaluator(drawn.model).run(None, dict(feeds))
        evaluated_arrays = [np.asarray(v) for v in evaluator_outputs]
        if not references or differs(evaluated_arrays, references[0]):
            references.append(evaluated_arrays)
    except Exception:
        pass
    return references


def misjudged(graph: onnx.GraphProto) -> bool:
    """Whether the standard's evaluator gives results other shapes than the standard does: stacks
    of a loop, of scalars and of nothing, and elements of optionals."""
    for node in graph.node:
        stacks = node.op_type == "Loop" and len(node.output) > len(node.input) - 2
        if stacks or node.op_type == "OptionalGetElement":
            return True
        if any(misjudged(a.g) for a in node.attribute if a.HasField("g")):
            return True
    return False


def by_runtime(drawn: Drawn, feeds: dict[str, np.ndarray]) -> Arrays:
    session = ort.InferenceSession(drawn.model.SerializeToString(), quiet())
    input_names = {i.name for i in session.get_inputs()}
    results: Arrays = session.run(None, {k: v for k, v in feeds.items() if k in input_names})
    return results


def in_child(drawn: Drawn, feeds: dict[str, np.ndarray]) -> Arrays:
    """`by_runtime` in a process of its own; raises EOFError where that ends without results."""
    end, begin = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with os.fdopen(begin, "wb") as file:
                pickle.dump(by_runtime(drawn, feeds), file)
        finally:
            os._exit(0)
    os.close(begin)
    try:
        with os.fdopen(end, "rb") as file:
            results: Arrays = pickle.load(file)
            return results
    finally:
        os.waitpid(child, 0)


def wants_why(drawn: Drawn) -> str:
    try:
        ort.InferenceSession(drawn.model.SerializeToString(), quiet())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "it runs nowhere"


def differs(outputs: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> str:
    """Why results are not those wanted; nothing if they are."""
    for i, (a, b) in enumerate(zip(outputs, want, strict=True)):
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            return f"result {i} is {a.dtype}{a.shape}, not {b.dtype}{b.shape}"
        if a.dtype.kind != "f":
            if not np.array_equal(a, b):
                return f"result {i}: {a.ravel()[:12]} is not {b.ravel()[:12]}"
            continue
        x, y = a.astype(np.float64), b.astype(np.float64)
        finite = np.isfinite(y)
        scale = max(1.0, float(np.abs(y[finite]).max(initial=0)))
        if not np.allclose(x, y, rtol=0, atol=NEAR * scale, equal_nan=True):
            return f"result {i}: {x.ravel()[:12]} is not {y.ravel()[:12]}"
    return ""


SEED = os.environ.get("FUZZ_SEED", "1")


@pytest.mark.in_turn()
@pytest.mark.parametrize("k", range(40))
def test_random_graphs(k: int) -> None:
    result = check(f"{SEED} {k}")
    assert result.kind in ("right", "refused", "no reference"), (
        f"seed {SEED} {k}: {result.details}\n{onnx.printer.to_text(draw(f'{SEED} {k}').model)}"
    )


# ---- thousands ---------------------------------------------------------------------------------

PART = 50  # graphs of a process: one that crashes loses no more
MARK = "found: "


def part(seed: str, first: int, count: int) -> dict[int, Found]:
    """Check graphs in a process of its own, each for at most two minutes or so."""
    results: dict[int, Found] = {}
    while first + len(results) < first + count:
        start = first + len(results)
        command = [sys.executable, "-m", "tests.frontend.test_random_graphs", "--here"]
        command += ["--seed", seed, "--first", str(start), "--count", str(first + count - start)]
        with tempfile.TemporaryFile("w+") as out:
            code: int | str
            try:
                code = subprocess.run(command, stdout=out, timeout=3600).returncode
            except subprocess.TimeoutExpired:
                code = "it hangs"
            out.seek(0)
            for line in out.read().split(MARK)[1:]:
                k, kind, details = line.split("\t", 2)
                results[int(k)] = Found(kind, details.rstrip("\n"))
        if first + len(results) < first + count and code != 0:
            results[first + len(results)] = Found("crash", f"exit code {code}")
    return results


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.frontend.test_random_graphs")
    parser.add_argument("--seed", default=SEED)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--show", type=int, help="print the graph of a number, and what it led to")
    parser.add_argument("--here", action="store_true", help="in this process")
    args = parser.parse_args(argv)
    if args.show is not None:
        print(onnx.printer.to_text(draw(f"{args.seed} {args.show}").model))
        print(*check(f"{args.seed} {args.show}"))
        return 0
    if args.here:
        for k in range(args.first, args.first + args.count):
            result = check(f"{args.seed} {k}")
            print(f"{MARK}{k}\t{result.kind}\t{result.details}", flush=True)
        return 0
    start, kinds, reasons = time.time(), Counter[str](), Counter[str]()
    parts = range(args.first, args.first + args.count, PART)
    with ThreadPoolExecutor(args.jobs) as pool:
        jobs = [
            pool.submit(part, args.seed, k, min(PART, args.first + args.count - k)) for k in parts
        ]
        for job in jobs:
            for k, result in job.result().items():
                kinds[result.kind] += 1
                if result.kind == "refused":
                    reasons[result.details[:120]] += 1
                elif result.kind not in ("right", "no reference"):
                    print(
                        f"seed {args.seed} {k}: {result.kind}: {result.details[:600]}", flush=True
                    )
    print(*(f"{n} {explanation}" for explanation, n in reasons.most_common()), sep="\n")
    counts_text = ", ".join(f"{n} {kind}" for kind, n in kinds.most_common())
    print(f"seed {args.seed}: {args.count} graphs: {counts_text}; {time.time() - start:.0f} s")
    good = kinds["right"] + kinds["refused"] + kinds["no reference"]
    return int(good < args.count or kinds["refused"] > MOST_REFUSED * args.count)


if __name__ == "__main__":
    sys.exit(main())
