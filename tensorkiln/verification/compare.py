"""`tk.verify`: where does a compiled function begin to differ from its model?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorkiln import frontend
from tensorkiln.artifact.metadata import ParamInfo
from tensorkiln.base.element_types import ELEMENT_TYPES, program_type
from tensorkiln.base.errors import UserError, nearest, require
from tensorkiln.executable import Executable
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import (
    Function,
    RVar,
    TensorType,
)
from tensorkiln.measure.inputs import in_bytes, numpy_type, random_inputs
from tensorkiln.runtime.device import Devices
from tensorkiln.transform.relax.name_values import name_values
from tensorkiln.verification.compiled import (
    Compiled,
    opened,
)
from tensorkiln.verification.judge import Judge
from tensorkiln.verification.reference import (
    Tolerance,
)
from tensorkiln.verification.repeat import save
from tensorkiln.verification.result import Verification
from tensorkiln.verification.run import Run, fields

Array = npt.NDArray[Any]
Inputs = Sequence[Any] | Mapping[str, Any] | Array | None
REFERENCES = ("float64", "onnxruntime")


def verify(
    compiled: Executable | str | Path,
    model: Any,
    inputs: Inputs = None,
    *,
    reference: str = "float64",
    rtol: float | None = None,
    atol: float | None = None,
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
    freeze: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int | str | None]] | None = None,
    function: str = "main",
    devices: Devices = None,
    output: str | Path | None = None,
) -> Verification:
    """Compare a compiled function with its model, node by node, and find the first node that
    differs.

    `compiled` is an Executable, or the path of a library. If it was compiled with `debug=True`, the
    result of every kernel is compared. Otherwise an Executable is compiled again from the model
    with `debug`, and of a library only the outputs are compared. `model` is what it was compiled
    from: the path or bytes of an ONNX model, an `onnx.ModelProto` (`freeze` and `shapes` as for
    `from_onnx`), an IRModule, or a `torch.export.ExportedProgram`. `inputs` are arrays, in order or
    by name; None: random arrays from `seed`, with `dims` for the sizes of symbolic dimensions.

    The reference evaluates the model's operators in float64, twice. For the error `local` of a
    node, its operators read the values that the compiled function computed, so that earlier errors
    do not count; for `accumulated`, they read the reference's own values. The local error decides.
    Its tolerance is 8 times the estimated effect of rounding on these operators, which depends on
    their types, the number of terms of sums, and the precision of products
    (docs/howto/it-is-wrong.md); or `atol + rtol * |reference|` if one of these is given. With
    `reference="onnxruntime"`, accumulated errors are the differences from what ONNX Runtime
    computes; they decide, with twice the tolerance that accumulates from the inputs.

    `output` is a folder for a report, the inputs of the first node that diverges, and a script that
    reproduces the fault. Raises UserError for inputs that do not fit the model, `missing-package`
    without ONNX Runtime, `other-model` if the model has no such function.
    """
    _require_arguments(reference, rtol, atol, function)
    require(seed, int, "seed")
    if seed < 0:
        raise UserError(f"seed is {seed}, expected a number from 0", code="bad-value")
    for name, argument in (("dims", dims), ("freeze", freeze), ("shapes", shapes)):
        require(argument, (Mapping, type(None)), name)
    require(output, (str, Path, type(None)), "output")
    options = {"freeze": freeze, "shapes": shapes}
    mod = _module(model, options)
    source = opened(compiled, function, devices)
    f = _function(mod, source)
    arrays = _inputs(source, inputs, dims or {}, seed)
    rounds = source.target.has_narrow_operands
    product = ELEMENT_TYPES[source.target.precision].epsilon if rounds else 0.0
    tolerance = Tolerance(rtol, atol, product)
    run = Run(source, mod, f, arrays, tolerance, reference, model, options, output is not None)
    verification = _result(run)
    return verification if output is None else save(verification, output)


def _require_arguments(reference: object, rtol: object, atol: object, function: object) -> None:
    require(reference, str, "reference")
    if reference not in REFERENCES:
        raise UserError(
            f"no reference {reference!r}",
            code="bad-value",
            hint=nearest(str(reference), REFERENCES) or f"one of {', '.join(REFERENCES)}",
        )
    for name, value in (("rtol", rtol), ("atol", atol)):
        if value is None:
            continue
        require(value, (int, float), name)
        if isinstance(value, bool) or not 0 <= value < float("inf"):  # type: ignore[operator]
            raise UserError(f"{name} is {value!r}, expected a number from 0", code="bad-value")
    require(function, str, "function")


def _module(model: Any, options: Mapping[str, Any]) -> IRModule:
    """The module of a model in any of the forms that `verify` accepts; `options` are those of the
    ONNX import."""
    if isinstance(model, IRModule | Function):
        _refuse_options(options)
        return model if isinstance(model, IRModule) else IRModule((model,))
    if frontend.is_of(model, "torch"):
        if not hasattr(model, "graph_signature"):  # a module, which has no example inputs
            raise UserError(
                f"a torch module such as {type(model).__name__} has no inputs to be exported with",
                code="bad-model",
                hint="pass torch.export.export(module, example_inputs), or what from_torch gave",
            )
        _refuse_options(options)
        return frontend.from_torch(model)
    return frontend.from_onnx(model, **options)


def _refuse_options(options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if value:
            raise UserError(f"{name} is for ONNX models", code="conflict")


def _function(mod: IRModule, source: Compiled) -> Function:
    """The model's function that was compiled. UserError (code `other-model`) if the module has none
    of this name, or one of other inputs."""
    f = mod.get(source.info.name)
    if not isinstance(f, Function):
        names = [g.name for g in (*mod.graphs, *mod.outers)]
        raise UserError(
            f"the model has no function {source.info.name!r}",
            code="other-model",
            hint=f"it has: {', '.join(names) or 'none'}",
        )
    want = [p for p in f.params if hasattr(p.type, "dtype")]
    outputs, results = len(source.info.outputs), len(fields(f.result))
    fits = len(want) == len(source.info.inputs) and all(map(_is_like, source.info.inputs, want))
    fits = fits and (outputs >= results or source.info.kind != "graph")
    if not fits or (not source.info.kept and source.info.kind == "graph" and outputs != results):
        have = ", ".join(f"{p.dtype}{p.shape_text}" for p in source.info.inputs)
        takes = ", ".join(str(p.type) for p in want)
        raise UserError(
            f"the library takes {have or 'nothing'} and returns {outputs} output(s), "
            f"the model takes {takes or 'nothing'} and returns {results}",
            code="other-model",
            hint="model is what the library was compiled from",
        )
    return f


def _is_like(p: ParamInfo, var: RVar) -> bool:
    """Whether a library's parameter may be the model's: it has the same type and rank, and the same
    sizes where both are known."""
    if program_type(p.dtype) != var.tensor.dtype.name:
        return False
    if p.shape is None or not isinstance(var.type, TensorType):
        return True
    sizes = [int_value(d) for d in var.type.shape]
    return len(sizes) == len(p.shape) and all(
        size is None or not isinstance(d, int) or size == d
        for size, d in zip(sizes, p.shape, strict=True)
    )


def _inputs(source: Compiled, inputs: Inputs, dims: Mapping[str, int], seed: int) -> list[Array]:
    """An array for each input, in the types of the compiled function. UserError for unknown,
    missing or too many inputs."""
    if inputs is None:
        return list(map(in_bytes, random_inputs(source.info, dims, seed)))
    names = [p.name for p in source.info.inputs]
    if dims:
        raise UserError("dims is only for random inputs", code="conflict")
    if isinstance(inputs, Mapping):
        for name in inputs:
            if name not in names:
                hint = nearest(str(name), names) or f"inputs: {', '.join(names)}"
                raise UserError(f"no input {name!r}", code="unknown-input", hint=hint)
        missing = [name for name in names if name not in inputs]
        if missing:
            raise UserError(f"no value for input(s) {', '.join(missing)}", code="missing-input")
        inputs = [inputs[name] for name in names]
    elif isinstance(inputs, np.ndarray) and len(names) == 1:
        inputs = [inputs]
    require(inputs, Sequence, "inputs")
    if len(inputs) != len(names):
        raise UserError(
            f"expected {len(names)} input(s) ({', '.join(names)}), received {len(inputs)}",
            code="operand-count",
        )
    arrays = []
    for p, value in zip(source.info.inputs, inputs, strict=True):
        array = np.asarray(value)
        if array.dtype != numpy_type(p.dtype):
            raise UserError(
                f"input {p.name!r} is {array.dtype}, expected {p.dtype}", code="dtype-mismatch"
            )
        arrays.append(in_bytes(array))
    return arrays


def _result(run: Run) -> Verification:
    """The comparison, with the files for `output`."""
    is_outer = run.f.is_outer or run.source.info.kind == "outer"
    if is_outer and run.reference != "float64":
        raise UserError(
            f"{run.f.name} has control flow, of which {run.reference} is no reference",
            code="unsupported",
            hint='reference="float64"',
        )
    count = len(fields(run.f.result))
    values = run.source.run(run.arrays)
    notes: list[str] = []
    compiled = run.source
    inner = values
    if not compiled.info.kept:
        again = run.compiled_again(notes)
        if again is not None:
            compiled, inner = again, again.run(run.arrays)
            outputs = values.outputs if is_outer else values.outputs[:count]
            pairs = enumerate(zip(outputs, inner.outputs, strict=False))
            apart = [i for i, (a, b) in pairs if a.tobytes() != b.tobytes()]
            if apart:
                names = ", ".join(run.output_names(len(outputs))[i] for i in apart)
                notes.append(
                    f"compiled again, it computes another {names}: it was compiled otherwise "
                    "or changed since"
                )
    if is_outer and not compiled.info.kept:
        return run.whole(values.outputs, notes)
    numbered = name_values(run.mod)
    f = numbered[run.f.name]
    assert isinstance(f, Function)
    return Judge(run, compiled, numbered, f, inner, values, is_outer).result(notes)


__all__ = ["REFERENCES", "verify"]
