"""Every operator of ONNX with every extent symbolic, from 0 to two more than the standard's example
has, beside ONNX Runtime.

    python -m tests.frontend.extents [CASE ...] [--every] [--jobs N]

takes an example of each operator from the standard's node tests (`--every`: all of them), makes one
extent of one operand symbolic, then all extents of one size, and calls what is compiled. Operands
end where a page begins that cannot be read; those without elements have a null pointer. What ONNX
Runtime computes must be computed, and what it refuses must be refused by a typed error, or have no
elements; `KNOWN` is where it may differ, with the reasons. Prints what else differs, and how often
each is so; exit code 1 if anything does.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import multiprocessing
import os
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

import tensorkiln as tk
from tests.frontend.onnx_backend import arrays, cases, with_constants
from tests.link.touched import Guarded
from tests.safety.loop import silence_limit

BEYOND = 2
REFERENCE_SECONDS = (
    20  # in which ONNX Runtime has computed an example of a node test, or never does
)
LARGEST = 6  # extents are symbolic from 0 to this much, and around the example's


# Cases, a text of the outcome, and why they differ there.
KNOWN = (
    ("test_attention_*", "must be greater than 0", "ORT refuses sequences of length 0"),
    ("test_attention_*", "inconsistent q_sequence_length", "one row of a mask broadcasts"),
    ("test_causal_conv_*", "Invalid input shape", "ORT refuses sequences of length 0"),
    (
        "test_causal_conv_*",
        "size 0: refused: main: n is 0; expected n ==",
        "ORT leaves out operands without elements",
    ),
    (
        "test_causal_conv_*",
        "expected n == 3 (CausalConvWithState",
        "ORT takes states longer than a kernel less one, which the standard has no meaning for",
    ),
    (
        "test_compress_*",
        "the condition must be a vector of at most",
        "the standard's condition is not longer than the dimension",
    ),
    (
        "test_constant_pad*",
        "size 0: refused: main: n is 0; expected n >= 1",
        "the kernel reads the first element",
    ),
    (
        "test_convtranspose",
        "size 0: refused: main: n is 0; expected n >= 1",
        "a window needs an element",
    ),
    (
        "test_einsum_*",
        "size 1: refused: main: n is 1; expected n ==",
        "equal letters are equal extents",
    ),
    ("test_gru_*", "size 0: values", "ORT leaves memory as it was for 0 steps"),
    (
        "test_hardmax_*",
        "size 0: refused: main: n is 0; expected n >= 1",
        "nothing is not the greatest",
    ),
    ("test_layer_normalization_*", "at least 1, got 0", "ORT refuses rows of length 0"),
    ("test_linear_attention_*", "cannot be reshaped", "ORT refuses sequences of length 0"),
    ("test_linear_attention_*", "; expected n ==", "its text knows extents that do not broadcast"),
    ("test_lstm_*", "size 0: values", "ORT leaves memory as it was for 0 steps"),
    ("test_matmulinteger", "size 0: values", "ORT leaves memory as it was for sums of 0 products"),
    ("test_mvn", "size 1: values [0.], ORT [nan]", "0 / (0 + 1e-9), as the standard's body has it"),
    (
        "test_qlinearmatmul_*",
        "size 0: values",
        "ORT leaves memory as it was for sums of 0 products",
    ),
    ("test_reduce_mean_*", "values [nan", "the mean of nothing is 0 / 0, as NumPy's"),
    ("test_resize_*", "only supports", "ORT's kernels have two or three dimensions"),
    (
        "test_rotary_embedding*",
        "size 9: refused: main: n is 9; expected n == 8",
        "an element would have no pair",
    ),
    ("test_scan*", "pre-allocated shapes", "ORT takes the shapes of its body for fixed"),
    ("test_scan*", "dim0_offset", "ORT refuses sequences of length 0"),
    ("test_scan_sum", "size 0: values", "ORT leaves memory as it was for 0 steps"),
    ("test_simple_rnn_*", "size 0: values", "ORT leaves memory as it was for 0 steps"),
    (
        "test_tfidfvectorizer_*",
        "size 0: refused: main: n is 0; expected n >= 1",
        "the kernel reads the first element",
    ),
)


@dataclass(frozen=True)
class Variant:
    """A model in which the extents (operand, axis) of `places` are all called `n`."""

    name: str
    model: onnx.ModelProto
    places: tuple[tuple[int, int], ...]
    size: int
    operands: tuple[np.ndarray, ...]

    def feeds(self, n: int) -> dict[str, np.ndarray]:
        """The example's operands with extents of n: elements repeat, or are left out."""
        out = dict(zip(self.names, self.operands, strict=True))
        for k, axis in self.places:
            name = self.names[k]
            out[name] = np.take(out[name], np.arange(n) % max(self.size, 1), axis=axis)
        return out

    @property
    def names(self) -> list[str]:
        """Names of the model's inputs."""
        return [v.name for v in self.model.graph.input]

    def sizes(self) -> list[int]:
        """The sizes to call it with."""
        return [*range(min(self.size, LARGEST) + 1), self.size + 1, self.size + BEYOND]


def variants(case: Any) -> Iterator[Variant]:
    """Each extent of an example by itself, then all of one size together."""
    base, arrays_by_name = with_constants(case, arrays(case.data_sets[0][0]))
    for v in list(base.graph.input)[1:]:  # indices: those that data gives are no matter of extents
        if v.name in arrays_by_name and np.asarray(arrays_by_name[v.name]).dtype.kind == "i":
            constant = numpy_helper.from_array(np.asarray(arrays_by_name.pop(v.name)), v.name)
            base.graph.initializer.append(constant)
    fixed = {t.name for t in base.graph.initializer}
    symbolic_inputs = [v for v in base.graph.input if v.name not in fixed]
    operands = tuple(np.asarray(arrays_by_name[v.name]) for v in symbolic_inputs)
    places = [(k, a) for k, x in enumerate(operands) for a in range(x.ndim)]
    groups = [(p,) for p in places]
    for size in sorted({operands[k].shape[a] for k, a in places}):
        together = tuple((k, a) for k, a in places if operands[k].shape[a] == size)
        groups += [together] if len(together) > 1 else []
    for group in groups:
        variant_model = onnx.ModelProto.FromString(base.SerializeToString())
        del variant_model.graph.input[:]
        variant_model.graph.input.extend(symbolic_inputs)
        for k, axis in group:
            variant_model.graph.input[k].type.tensor_type.shape.dim[axis].dim_param = "n"
        for out in variant_model.graph.output:
            out.type.tensor_type.ClearField("shape")
        size = operands[group[0][0]].shape[group[0][1]]
        yield Variant(case.name, variant_model, group, size, operands)


def guarded(x: np.ndarray) -> np.ndarray:
    """A copy that ends where a page begins that cannot be read; of no elements, at address 8."""
    if x.size == 0:
        start = (ctypes.c_uint8 * 0).from_address(8)
        return np.frombuffer(start, np.uint8).view(x.dtype).reshape(x.shape)
    memory = Guarded(x.nbytes, x.itemsize)
    raw = (ctypes.c_uint8 * x.nbytes).from_address(memory.address)
    copy = np.frombuffer(raw, np.uint8).view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


def expected(v: Variant, session: Any, n: int) -> list[np.ndarray] | str:
    """What ONNX Runtime computes, or why it does not."""
    try:
        return [np.asarray(y) for y in session.run(None, v.feeds(n))]
    except Exception as error:
        return str(error)


def computed(exe: Any, feeds: dict[str, np.ndarray]) -> list[np.ndarray] | str:
    """What we compute, or the typed error; anything else is raised."""
    try:
        outputs = exe(**{k: guarded(x) for k, x in feeds.items()})
    except tk.UserError as error:
        return str(error)
    return [np.asarray(y) for y in (outputs if isinstance(outputs, tuple | list) else (outputs,))]


def differs(want: list[np.ndarray] | str, outcome: list[np.ndarray] | str) -> str:
    """In what two outcomes differ; empty if in nothing that matters."""
    if isinstance(want, str):
        nothing = isinstance(outcome, str) or not any(y.size for y in outcome)
        return "" if nothing else f"computed, ORT: {want.splitlines()[0][-160:]}"
    if isinstance(outcome, str):
        return f"refused: {outcome[:200]}"
    for y, z in zip(want, outcome, strict=True):
        if y.shape != z.shape:
            return f"shape {z.shape}, ORT {y.shape}"
        if y.dtype.kind == "f":
            largest = np.abs(y, where=np.isfinite(y), out=np.ones_like(y)).max(initial=1)
            if not np.allclose(y, z, 1e-3, 1e-5 * largest, equal_nan=True):
                return f"values {z.ravel()[:4]}, ORT {y.ravel()[:4]}"
        elif not np.array_equal(y, z):
            return f"values {z.ravel()[:4]}, ORT {y.ravel()[:4]}"
    return ""


def compare(v: Variant, say: Any) -> None:
    """Compare all sizes of a variant, and `say` each before it is tried and what it gave."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    data = v.model.SerializeToString()
    try:
        session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception:
        return  # it has no kernel of this operator or type, or cannot take the extent
    say(("compile", 0))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exe = tk.compile(data)
    except (tk.UserError, tk.UnsupportedError) as error:
        say(("refused", str(error).splitlines()[-1][:200]))
        return
    say(("reference", v.size))
    if isinstance(expected(v, session, v.size), str):
        return  # it cannot compute the example either
    for n in v.sizes():
        say(("reference", n))
        want = expected(v, session, n)
        say(("run", n))
        difference = differs(want, computed(exe, v.feeds(n)))
        if difference:
            say(("differs", n, difference))


def _work(pipe: Connection, jobs: Sequence[tuple[int, Variant]]) -> None:
    with Path(os.devnull).open("w") as nothing:
        os.dup2(nothing.fileno(), 2)
    for number, v in jobs:
        pipe.send((number, "begin"))
        try:
            compare(v, lambda row, number=number: pipe.send((number, *row)))
        except Exception as error:
            pipe.send((number, "untyped", f"{type(error).__name__}: {str(error)[:200]}"))
        pipe.send((number, "end"))
    pipe.close()
    os._exit(0)  # forked from a thread, of which Python's own end knows nothing


def outcomes(variants_of_case: Sequence[Variant]) -> Iterator[tuple[Variant, tuple[Any, ...]]]:
    """What differs, of each variant; a process that ends is started again behind the variant."""
    first = 0
    while first < len(variants_of_case):
        parent_end, child_end = multiprocessing.Pipe(False)
        jobs = [*enumerate(variants_of_case)][first:]
        process = multiprocessing.get_context("fork").Process(target=_work, args=(child_end, jobs))
        process.start()
        child_end.close()
        number, last = first, ("begin",)
        with contextlib.suppress(EOFError):
            while parent_end.poll(REFERENCE_SECONDS if last[0] == "reference" else silence_limit()):
                number, *last = parent_end.recv()  # type: ignore[assignment]
                if last[0] in ("differs", "untyped", "refused"):
                    yield variants_of_case[number], tuple(last)
            process.kill()
        process.join()
        if process.exitcode:
            # ONNX Runtime ends the process at sequences of length 0, and never returns from a
            # causal convolution of length 0.
            if last[0] != "reference":
                yield variants_of_case[number], ("ended", process.exitcode, *last)
            first = number + 1
        else:
            return


def reason(v: Variant, row: tuple[Any, ...]) -> str:
    """Why an outcome is as it is; empty for one that nobody has explained."""
    if row[0] == "refused":
        return "refused when it is compiled"
    if row[0] != "differs":
        return ""
    fitting = (
        explanation
        for case, text, explanation in KNOWN
        if fnmatch(v.name, case) and text in f"size {row[1]}: {row[2]}"
    )
    return next(fitting, "")


def examples(all_examples: bool = False) -> list[Any]:
    """The first example of each operator with each mode and number of operands; or all."""
    keys_so_far: set[tuple[Any, ...]] = set()
    first_examples = []
    for case in cases():
        nodes = case.model.graph.node
        values = case.data_sets[0][0]
        if len(nodes) != 1 or not all(hasattr(v, "dtype") for v in values):
            continue
        texts = (f"{a.name}={a.s}" for a in nodes[0].attribute if a.s)
        key = (nodes[0].op_type, len(values), *texts)
        if all_examples or key not in keys_so_far:
            keys_so_far.add(key)
            first_examples.append(case)
    return first_examples


def chosen(names: Sequence[str] = (), all_examples: bool = False) -> list[Variant]:
    """Variants of the examples with these names, which may be patterns; of all without names."""
    variants_of_cases: list[Variant] = []
    for case in examples(all_examples):
        if not names or any(fnmatch(case.name, name) for name in names):
            with contextlib.suppress(Exception):
                variants_of_cases += variants(case)
    return variants_of_cases


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", nargs="*", help="names of cases, or patterns; default: all")
    parser.add_argument("--every", action="store_true", help="all examples of each operator")
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args(argv)
    variants_of_cases = chosen(args.case, args.every)
    if not variants_of_cases:
        parser.error(f"no case is named {' or '.join(args.case)}")
    print(len(variants_of_cases), "variants", flush=True)
    counts = Counter[str]()

    def part(first: int) -> None:
        for v, row in outcomes(variants_of_cases[first :: args.jobs]):
            explanation = reason(v, row)
            counts[explanation] += 1
            if not explanation:
                print(v.name, v.places, v.size, *row, flush=True)

    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(part, range(args.jobs)))
    for explanation, count in sorted(counts.items()):
        print(f"{count:5} {explanation or 'WRONG'}")
    return 1 if counts[""] else 0


if __name__ == "__main__":
    sys.exit(main())
