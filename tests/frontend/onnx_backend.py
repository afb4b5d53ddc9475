"""The node tests of the ONNX standard, of the package `onnx`: run one, or all as a command.

    python -m tests.frontend.onnx_backend [--evaluate] [--run-time] [--only TEXT] [--jobs N]

compiles every case for this machine and compares its results with the standard's; `--evaluate`
computes the imported graph by NumPy instead, which takes seconds. A case that needs to know some of
its inputs at import, such as axes, gets them as initializers; with `--run-time` none does. Prints
how many cases agree, and the reasons of the others by count. Exit code 1 if a case differs, fails
otherwise than by a typed error or takes too long, or if fewer agree than `AT_LEAST`, with
`--run-time` than `AT_LEAST_AT_RUN_TIME`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper

import tensorkiln as tk
from tensorkiln.base.errors import UnsupportedError
from tensorkiln.frontend import from_onnx
from tensorkiln.ir.module import IRModule
from tests.frontend.onnx_models import main as main_of
from tests.frontend.onnx_models import ours

# Of float16: rounded after every step in the standard's case, and not here.
ROUNDING = {
    "test_causal_conv_with_state_silu_fp16",
    "test_causal_conv_with_state_silu_fp16_expanded",
}
# Drawn by a generator that the standard does not name: only shapes and types can agree.
RANDOM = {"test_bernoulli_seed", "test_bernoulli_seed_expanded"}
SIZED_BY_THE_FIRST = (
    "BlackmanWindow",
    "ConstantOfShape",
    "HammingWindow",
    "HannWindow",
    "If",
    "Loop",
    "MelWeightMatrix",
    "Range",
)
# How many of the standard's cases agree; may only grow.
AT_LEAST = 1811
AT_LEAST_AT_RUN_TIME = 1780
# Those of them that NumPy cannot evaluate.
OF_BFLOAT16 = 18
# Seconds that one case may take.
PATIENCE = 120

Compute = Callable[[IRModule, Mapping[str, np.ndarray]], list[np.ndarray]]


# Element types that are only stored, of package ml_dtypes -> that of the bytes in our graphs.
STORED = {
    **{np.dtype(getattr(ml_dtypes, name)): "int8" for name in ("int2", "int4")},
    **{
        np.dtype(getattr(ml_dtypes, name)): "uint8"
        for name in dir(ml_dtypes)
        if name.startswith(("uint2", "uint4", "float4", "float6", "float8"))
    },
}


def arrays(values: Any) -> list[Any]:
    return [numpy_helper.to_array(v) if isinstance(v, onnx.TensorProto) else v for v in values]


def in_bytes(array: Any) -> Any:
    """Elements of narrow types as the bytes of graphs; others as they are."""
    stored = STORED.get(array.dtype) if isinstance(array, np.ndarray | np.generic) else None
    if stored is None:
        return array
    whole = array.dtype.name.startswith(("int", "uint"))
    return array.astype(stored) if whole else array.view(stored)


def with_constants(case: Any, operands: list[Any]) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """The model, with small operands behind the first as initializers: axes, pads, shapes."""
    model_proto = onnx.ModelProto.FromString(case.model.SerializeToString())
    sized = any(n.op_type in SIZED_BY_THE_FIRST for n in model_proto.graph.node)
    first = 0 if sized or case.name.startswith("test_range") else 1
    names = [v.name for v in model_proto.graph.input]
    feeds = dict(zip(names, operands, strict=False))
    for name in names[first:]:
        if not isinstance(feeds.get(name), np.ndarray | np.generic):
            continue
        array = np.asarray(feeds[name])
        if array.ndim <= 1 and array.size <= 16:
            del feeds[name]
            model_proto.graph.initializer.append(numpy_helper.from_array(array, name))
    return model_proto, feeds


def run(
    case: Any, operands: list[Any], compute: Compute, run_time: bool = False
) -> list[np.ndarray]:
    """The results of a case for its operands, which with `run_time` are all given when it runs."""
    names = [v.name for v in case.model.graph.input]
    feeds = dict(zip(names, operands, strict=False))
    try:
        module = from_onnx(case.model)
    except UnsupportedError as error:
        if run_time or not any(
            "data" in i.message or "constant" in i.message for i in error.issues
        ):
            raise
        model_proto, feeds = with_constants(case, operands)
        module = from_onnx(model_proto)
    input_names = main_of(module).attrs["input_names"]
    return compute(module, {k: v for k, v in feeds.items() if k in input_names})


def flat(values: Any) -> list[Any]:
    """The tensors of results, of which some may be sequences."""
    return [t for v in values for t in (v if isinstance(v, list) else [v])]


def compare(case: Any, outputs: list[np.ndarray], want: list[Any]) -> str:
    """How the results differ from what is wanted; empty if they agree."""
    for a, b in zip(outputs, flat(want), strict=True):
        if b.dtype in STORED and a.dtype == b.dtype:
            a, b = (v.astype(np.float32) for v in (a, b))
        if b.dtype == ml_dtypes.bfloat16:
            # Evaluated by NumPy in float32, which has no bfloat16 arithmetic.
            a, b = (v.astype(np.float32) for v in (a, b))
            if not np.allclose(a, b, rtol=2e-2, atol=2e-2, equal_nan=True):
                return "the values differ"
            continue
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            return f"{a.dtype}{a.shape}, expected {b.dtype}{b.shape}"
        if case.name in RANDOM:
            continue
        half = b.dtype == np.float16
        atol = 1e-2 if case.name in ROUNDING else 2e-3 if half else 1e-6
        rtol = 5e-3 if half else max(case.rtol, 1e-4)
        if not np.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True):
            return "the values differ"
    return ""


def evaluated(module: IRModule, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The results by NumPy; inputs by their names in the model."""
    outputs, attrs = ours(module, {k: in_bytes(v) for k, v in feeds.items()}), main_of(module).attrs
    types = dict(attrs.get("array_types", ()))
    return [
        a.view(getattr(ml_dtypes, types[name])) if name in types else a
        for name, a in zip(attrs["output_names"], outputs, strict=True)
    ]


def compiled(module: IRModule, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The results of the compiled module; inputs by their names in the model."""
    names = main_of(module).attrs["input_names"]
    out = tk.compile(module)(*(feeds[n] for n in names))
    return [np.asarray(v) for v in (out if isinstance(out, tuple | list) else [out])]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a case: `kind` is agrees, differs, refused, or failed with `reason`."""

    name: str
    kind: str
    reason: str = ""
    operators: tuple[tuple[str, str, int], ...] = ()  # of a case of one node: domain, name, opset
    types: tuple[tuple[str, str], ...] = ()  # its element types: type variable, type


@cache
def cases() -> list[Any]:
    """All cases."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        standard_cases: list[Any] = collect_testcases(None)
    return standard_cases


def is_bfloat16(case: Any) -> bool:
    """Whether NumPy cannot evaluate the case, as it has no bfloat16."""
    return "bfloat16" in case.name or "_bf16" in case.name


def outcome(case: Any, compute: Compute, run_time: bool = False) -> Outcome:
    """Run a case."""
    schema = schema_of(case)
    about = operators_of(schema), types_of(case, schema)
    operands, want = (arrays(v) for v in case.data_sets[0])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            difference = compare(case, run(case, operands, compute, run_time), want)
    except UnsupportedError as error:
        return Outcome(case.name, "refused", reason_of(error), *about)
    except Exception as error:
        return Outcome(case.name, "failed", f"{type(error).__name__}: {error}", *about)
    return Outcome(case.name, "differs" if difference else "agrees", difference, *about)


def schema_of(case: Any) -> Any | None:
    """The definition of the one operator of a case; None of several nodes."""
    nodes = case.model.graph.node
    if len(nodes) != 1:
        return None
    domain = "" if nodes[0].domain == "ai.onnx" else nodes[0].domain
    opsets = {o.domain: o.version for o in case.model.opset_import}
    try:
        return onnx.defs.get_schema(nodes[0].op_type, opsets.get(domain, 1), domain)
    except onnx.defs.SchemaError:
        return None


def operators_of(schema: Any | None) -> tuple[tuple[str, str, int], ...]:
    """An operator with the first opset of its definition; none without a schema."""
    return () if schema is None else ((schema.domain, schema.name, schema.since_version),)


def types_of(case: Any, schema: Any | None) -> tuple[tuple[str, str], ...]:
    """The element types that a case of one node has for the type variables of its schema, by the
    names that ONNX has for both."""
    if schema is None:
        return ()
    node, graph = case.model.graph.node[0], case.model.graph
    declared = {v.name: type_text(v.type) for v in [*graph.input, *graph.output]}
    types_by_variable: dict[tuple[str, str], None] = {}
    for names, formals in ((node.input, schema.inputs), (node.output, schema.outputs)):
        for k, name in enumerate(names):
            variable = formals[min(k, len(formals) - 1)].type_str
            if name and variable in variables_of(schema):
                types_by_variable[variable, declared[name]] = None
    return tuple(types_by_variable)


def variables_of(schema: Any) -> dict[str, tuple[str, ...]]:
    """The type variables of a schema, in order, and the types that each may be."""
    constraints = {
        c.type_param_str: tuple(
            sorted(re.sub(r"tensor\((\w+)\)", r"\1", t) for t in c.allowed_type_strs)
        )
        for c in schema.type_constraints
    }
    variables = dict.fromkeys(f.type_str for f in [*schema.inputs, *schema.outputs])
    return {v: constraints[v] for v in variables if v in constraints}


def type_text(t: onnx.TypeProto) -> str:
    """A type as schemas write it, a tensor's as its element type: `float`, `seq(float)`."""
    match t.WhichOneof("value"):
        case "tensor_type":
            return str(onnx.TensorProto.DataType.Name(t.tensor_type.elem_type)).lower()
        case "sequence_type":
            return f"seq({type_text(t.sequence_type.elem_type)})"
        case "optional_type":
            return f"optional({type_text(t.optional_type.elem_type)})"
        case unknown:
            raise AssertionError(unknown)


def reason_of(error: UnsupportedError) -> str:
    """The reason that a refusal gives, without names of values."""
    issues = [i for i in error.issues if i.op] or list(error.issues)
    first = issues[0]
    message = first.message.split("'")[-1] if first.message.startswith("input ") else first.message
    return f"{first.op or 'input'}: {message.strip()}"


def _limited(job: tuple[int, bool, bool]) -> Outcome:
    """`outcome` of case number `job[0]`, ended after `PATIENCE` seconds."""
    case = cases()[job[0]]

    def late(*_: object) -> None:
        raise TimeoutError(f"it takes more than {PATIENCE} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(PATIENCE)
    try:
        return outcome(case, compiled if job[1] else evaluated, job[2])
    finally:
        signal.alarm(0)


def table(outcomes: Sequence[Outcome]) -> str:
    """How many cases agree, and the reasons of the others, most first."""
    kinds = Counter(o.kind for o in outcomes)
    lines = [f"{kinds['agrees']} of {len(outcomes)} cases agree"]
    for kind in ("differs", "failed", "refused"):
        rows = Counter(o.reason for o in outcomes if o.kind == kind)
        lines += [f"{count:5} {kind}: {reason}" for reason, count in rows.most_common()]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--evaluate", action="store_true", help="by NumPy, without compiling")
    parser.add_argument("--run-time", action="store_true", help="no input is known at import")
    parser.add_argument("--only", default="", help="cases whose name has this text")
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args(argv)
    chosen = [
        (k, not args.evaluate, args.run_time)
        for k, c in enumerate(cases())
        if args.only in c.name and not (args.evaluate and is_bfloat16(c))
    ]
    outcomes = []
    with multiprocessing.Pool(args.jobs) as pool:
        for k, case_outcome in enumerate(pool.imap(_limited, chosen), 1):
            outcomes.append(case_outcome)
            if case_outcome.kind in ("differs", "failed"):
                print(
                    f"{case_outcome.name}: {case_outcome.kind}: {case_outcome.reason[:300]}",
                    flush=True,
                )
            if k % 200 == 0:
                print(f"{k} of {len(chosen)} cases", file=sys.stderr, flush=True)
    print(table(outcomes))
    agree = sum(o.kind == "agrees" for o in outcomes)
    wrong = any(o.kind in ("differs", "failed") for o in outcomes)
    minimum = AT_LEAST_AT_RUN_TIME if args.run_time else AT_LEAST
    floor = 0 if args.only else minimum - (OF_BFLOAT16 if args.evaluate else 0)
    return 1 if wrong or agree < floor else 0


if __name__ == "__main__":
    sys.exit(main())
