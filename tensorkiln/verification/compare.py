"""`verify`: where does what was compiled begin to differ from the model?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorkiln import frontend
from tensorkiln.artifact.metadata import KeptInfo, KernelInfo
from tensorkiln.base.errors import TensorkilnError, UserError, nearest, require
from tensorkiln.executable import Debug, Executable
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Binding, Call, Function, RVar, Tuple, Value
from tensorkiln.measure.inputs import numpy_type, random_inputs
from tensorkiln.ops.evaluate import Steps, evaluate
from tensorkiln.passes import pass_name
from tensorkiln.pipeline import compile
from tensorkiln.runtime.device import Devices
from tensorkiln.schedule.lower import LowerGroups
from tensorkiln.target import devices_of
from tensorkiln.target.kinds import KINDS
from tensorkiln.transform.relax.name_values import name_values
from tensorkiln.verification.bounds import epsilon
from tensorkiln.verification.compiled import (
    Compiled,
    FusedGroup,
    group_of,
    opened,
    with_debug,
)
from tensorkiln.verification.onnx_runtime import onnx_values
from tensorkiln.verification.reference import (
    NO_DIFFERENCE,
    OTHER_SHAPE,
    Compared,
    Difference,
    Tolerance,
    difference,
    walk,
)
from tensorkiln.verification.repeat import repeat_files, save
from tensorkiln.verification.result import NodeReport, OutputReport, Verification

Array = npt.NDArray[Any]
Inputs = Sequence[Any] | Mapping[str, Any] | Array | None
REFERENCES = ("float64", "onnxruntime")
# Where a function has control flow, its operators are not followed: relative, and to the output's
# largest magnitude.
_WHOLE = {"float32": (1e-3, 1e-4), "float16": (0.0, 1e-2), "bfloat16": (0.0, 5e-2)}


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
    function: str = "main",
    devices: Devices = None,
    output: str | Path | None = None,
) -> Verification:
    """Compare what was compiled with the model, node by node, and find where it begins to differ.

    `compiled` is an Executable, or the path of a library. If it was compiled with `debug=True`, the
    result of every kernel is compared; an Executable that was not is compiled again from the model
    with `debug`, and of a library without it only outputs are compared. `model` is what it was
    compiled from: the path or bytes of an ONNX model, an `onnx.ModelProto` (`freeze` as for
    `from_onnx`), an IRModule, or a `torch.export.ExportedProgram`. `inputs` are arrays, in order or
    by name; None: random ones, by `seed`, with `dims` for the sizes of symbolic dimensions.

    The reference is the model's operators in float64, each of which reads what was compiled
    (`Difference` `local`) and, once more, what the reference itself computed (`accumulated`). The
    local error decides. Its tolerance is 8 times what rounding may do to these operators, by their
    types, the number of terms of sums, and the precision of products
    (docs/howto/it-is-wrong.md), or `atol + rtol * |reference|` if one of both is given. With
    `reference="onnxruntime"` accumulated errors are those from what ONNX Runtime computes of the
    ONNX model, with twice the tolerance of the whole way from the inputs, and they decide.

    `output` is a folder for a report, the inputs of the first node that diverges, and a script that
    repeats the fault. Raises UserError for inputs that do not fit, `missing-package` without ONNX
    Runtime, `other-model` if the library's function is not the model's.
    """
    _require_arguments(reference, rtol, atol, function)
    require(seed, int, "seed")
    if seed < 0:
        raise UserError(f"seed is {seed}, expected a number from 0", code="bad-value")
    for name, given in (("dims", dims), ("freeze", freeze)):
        require(given, (Mapping, type(None)), name)
    require(output, (str, Path, type(None)), "output")
    mod = _module(model, freeze)
    source = opened(compiled, function, devices)
    f = _function(mod, source)
    arrays = _inputs(source, inputs, dims or {}, seed)
    product = 0.0 if source.target.precision == "float32" else epsilon(source.target.precision)
    tolerance = Tolerance(rtol, atol, product)
    run = _Run(source, mod, f, arrays, tolerance, reference, model, freeze)
    found = run.result()
    return found if output is None else save(found, output)


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


def _module(model: Any, freeze: Mapping[str, int] | None) -> IRModule:
    """The module of a model in any of the forms that `verify` takes."""
    if isinstance(model, IRModule | Function):
        if freeze:
            raise UserError("freeze is for ONNX models", code="conflict")
        return model if isinstance(model, IRModule) else IRModule((model,))
    if type(model).__module__.partition(".")[0] == "torch":
        if freeze:
            raise UserError("freeze is for ONNX models", code="conflict")
        return frontend.from_torch(model)
    return frontend.from_onnx(model, freeze=freeze)


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
    have = [p.dtype for p in source.info.inputs]
    want = [p.tensor.dtype.name for p in f.params if hasattr(p.type, "dtype")]
    outputs, results = len(source.info.outputs), len(_fields(f.result))
    fits = have == want and (outputs >= results or source.info.kind != "graph")
    if not fits or (not source.info.kept and source.info.kind == "graph" and outputs != results):
        raise UserError(
            f"the library takes {', '.join(have) or 'nothing'} and returns {outputs} output(s), "
            f"the model takes {', '.join(want) or 'nothing'} and returns {results}",
            code="other-model",
            hint="model is what the library was compiled from",
        )
    return f


def _inputs(source: Compiled, given: Inputs, dims: Mapping[str, int], seed: int) -> list[Array]:
    """An array for each input. UserError for unknown, missing or too many ones."""
    if given is None:
        return random_inputs(source.info, dims, seed)
    names = [p.name for p in source.info.inputs]
    if dims:
        raise UserError("dims is only for random inputs", code="conflict")
    if isinstance(given, Mapping):
        for name in given:
            if name not in names:
                hint = nearest(str(name), names) or f"inputs: {', '.join(names)}"
                raise UserError(f"no input {name!r}", code="unknown-input", hint=hint)
        missing = [name for name in names if name not in given]
        if missing:
            raise UserError(f"no value for input(s) {', '.join(missing)}", code="missing-input")
        given = [given[name] for name in names]
    elif isinstance(given, np.ndarray) and len(names) == 1:
        given = [given]
    require(given, Sequence, "inputs")
    if len(given) != len(names):
        raise UserError(
            f"expected {len(names)} input(s) ({', '.join(names)}), received {len(given)}",
            code="operand-count",
        )
    arrays = []
    for p, value in zip(source.info.inputs, given, strict=True):
        array = np.asarray(value)
        if array.dtype != numpy_type(p.dtype):
            raise UserError(
                f"input {p.name!r} is {array.dtype}, expected {p.dtype}", code="dtype-mismatch"
            )
        arrays.append(array)
    return arrays


def _fields(v: Value) -> tuple[Value, ...]:
    return v.fields if isinstance(v, Tuple) else (v,)


@dataclass(slots=True)
class _Run:
    """One call of `verify`: the function's model, `arrays` for its inputs, in order."""

    source: Compiled
    mod: IRModule
    f: Function
    arrays: list[Array]
    tolerance: Tolerance
    reference: str
    model: Any
    freeze: Mapping[str, int] | None

    def result(self) -> Verification:
        """The result, with the files of `output`."""
        count = len(_fields(self.f.result))
        values = self.source.run(self.arrays)
        if self.f.is_outer or self.source.info.kind == "outer":
            return self._whole(values)
        notes: list[str] = []
        kept = self.source
        inner = values
        if not kept.info.kept:
            again = self._compiled_again(notes)
            if again is not None:
                kept, inner = again, again.run(self.arrays)
                apart = [i for i in range(count) if values[i].tobytes() != inner[i].tobytes()]
                if apart:
                    names = ", ".join(kept.info.outputs[i].name for i in apart)
                    notes.append(
                        f"compiled again, it computes another {names}: it was compiled otherwise "
                        "or changed since"
                    )
        numbered = name_values(self.mod)
        f = numbered[self.f.name]
        assert isinstance(f, Function)
        compared = _Compared(self, kept, numbered, f, inner, values)
        return compared.result(notes)

    def params(self, f: Function) -> dict[str, Array]:
        """The inputs by the names of parameters."""
        return {p.name: a for p, a in zip(f.params, self.arrays, strict=True)}

    def _compiled_again(self, notes: list[str]) -> Compiled | None:
        """The Executable compiled with `debug`, of the same module and target; None if there is
        none, or its kernels are others."""
        executable = self.source.executable
        if executable is None:
            notes.append(
                "inner values are not known: compile(debug=True), or kiln compile --debug, makes a "
                "library that returns them"
            )
            return None
        name = executable.name if executable.is_named else None
        made = compile(self.mod, executable.target, name=name, debug=True)
        kinds = {(k.symbol, k.kernel_class) for k in made.kernels}
        if any((k.symbol, k.kernel_class) not in kinds for k in executable.kernels):
            notes.append(
                "inner values are not known: it was compiled with other passes or externals than "
                "the target's; pass debug=True to that compile"
            )
            return None
        notes.append("inner values are those of the same module compiled again, with debug=True")
        return with_debug(self.source, made)

    def _whole(self, values: Sequence[Array]) -> Verification:
        """The result for a function with control flow: of its outputs alone."""
        if self.reference != "float64":
            raise UserError(
                f"{self.f.name} has control flow, of which {self.reference} is no reference",
                code="unsupported",
                hint='reference="float64"',
            )
        want = evaluate(self.mod, self.params(self.f), dtype="float64", function=self.f.name)
        relative, absolute = _WHOLE[self.source.target.precision]
        rule = self.tolerance
        text = f"{absolute:g} x the largest + {relative:g} x |reference|"
        reports = []
        names = [o.name for o in self.source.info.outputs]
        if len(names) != len(want):  # one output that is a tuple
            names = [f"{names[0]}{i}" for i in range(len(want))]
        for name, a, b in zip(names, values, map(np.asarray, want), strict=True):
            size = np.abs(b.astype(np.float64))
            top = float(size[np.isfinite(size)].max(initial=0.0))
            may = absolute * top + relative * size
            if rule.is_given:
                may = rule.of(b, None, a.dtype.name)
            found = difference(a, b, may) if a.shape == b.shape else OTHER_SHAPE
            reports.append(OutputReport(name, a.dtype.name, a.shape, found))
        return Verification(
            not any(r.difference.is_too_much for r in reports),
            self.f.name,
            _target_text(self.source),
            self.reference,
            rule.rule() if rule.is_given else text,
            tuple(reports),
            0,
            notes=(f"{self.f.name} has control flow: only its outputs are compared",),
        )


@dataclass(slots=True)
class _Compared:
    """The values of a straight-line function, compared. `kept` is what has inner values, `inner`
    its outputs for the inputs; `values` those of what is verified; `f` has numbered values."""

    run: _Run
    kept: Compiled
    mod: IRModule
    f: Function
    inner: Sequence[Array]
    values: Sequence[Array]

    def result(self, notes: list[str]) -> Verification:
        """The result of the comparison."""
        run, rule = self.run, self.run.tolerance
        inputs = run.params(self.f)
        own = self._own()
        number = {b.var.name: i for i, b in enumerate(self.f.bindings)}
        rows = {number[n]: k for k in self.kept.info.kept for n in k.names if n in number}
        have = {n: self.inner[k.output] for n, k in rows.items()}
        if rows:
            have = {**{n: self.inner[i] for i, n in own.items()}, **have}
        else:
            have = {n: self.values[i] for i, n in own.items()}
        # Whether errors that added up are too large matters where they decide.
        decide = not rows or self.kept is not run.source or run.reference == "onnxruntime"
        found = walk(self.mod, self.f, inputs, have, rule, local=False, bounds=decide)
        whole = {c.number: c for c in found if c.number in have}
        theirs = self._onnxruntime(whole, have)
        accumulated = {n: theirs.get(n, c.difference or NO_DIFFERENCE) for n, c in whole.items()}
        judged: dict[int, Compared] = whole
        if rows:
            steps = walk(self.mod, self.f, inputs, have, rule)
            judged = {c.number: c for c in steps if c.number in have}
        compared = [n for n in judged if n in rows]
        decides = (
            theirs
            if run.reference == "onnxruntime"
            else {n: judged[n].difference or NO_DIFFERENCE for n in compared}
        )
        bad = [n for n in sorted(decides) if decides[n].is_too_much and n in rows]
        reports = self._outputs(own, accumulated, rows)
        first = worst = None
        files: dict[str, bytes | str | Path] = {}
        if compared:
            top = max(compared, key=lambda n: (judged[n].difference or NO_DIFFERENCE).times or 0)
            worst = self._node(judged[top], rows[top], accumulated[top])
        if bad:
            n = bad[0]
            first = self._first(judged[n], rows[n], accumulated[n])
            files = repeat_files(
                self.kept, self.mod, self.f, inputs, have, judged[n], rows[n], rule
            )
        outputs_fit = not any(r.difference.is_too_much for r in reports)
        ok = not bad and outputs_fit
        if not bad and rows and not outputs_fit:
            notes.append("no node of what was compiled again diverges")
        return Verification(
            ok,
            run.f.name,
            _target_text(run.source),
            run.reference,
            rule.rule(),
            tuple(reports),
            len(compared),
            first,
            worst,
            tuple(notes),
            files=files,
        )

    def _own(self) -> dict[int, int]:
        """Of each output of the model that a binding computes, the binding's number."""
        number = {b.var: i for i, b in enumerate(self.f.bindings)}
        fields = enumerate(_fields(self.f.result))
        return {i: number[v] for i, v in fields if isinstance(v, RVar) and v in number}

    def _outputs(
        self, own: Mapping[int, int], accumulated: Mapping[int, Difference], rows: Mapping[int, Any]
    ) -> list[OutputReport]:
        """Each output of what is verified, beside the reference."""
        whole: dict[int, Difference] = {}
        for i, n in own.items():
            whole[i] = accumulated[n]
        if rows and self.kept is not self.run.source:
            inputs, rule = self.run.params(self.f), self.run.tolerance
            have = {n: self.values[i] for i, n in own.items()}
            found = {
                c.number: c.difference
                for c in walk(self.mod, self.f, inputs, have, rule, local=False)
                if c.difference
            }
            whole = {i: found.get(n) or NO_DIFFERENCE for i, n in own.items()}
        params = dict(zip(self.f.params, self.run.arrays, strict=True))
        reports = []
        for i, v in enumerate(_fields(self.f.result)):
            have_i, info = self.values[i], self.run.source.info.outputs[i]
            if i not in whole:  # an input or a constant
                want = params[v] if isinstance(v, RVar) else v.array  # type: ignore[union-attr]
                may = self.run.tolerance.of(want, None, have_i.dtype.name)
                whole[i] = difference(have_i, want, may)
            reports.append(OutputReport(info.name, info.dtype, have_i.shape, whole[i]))
        return reports

    def _onnxruntime(
        self, whole: Mapping[int, Compared], have: Mapping[int, Array]
    ) -> dict[int, Difference]:
        """Of each value that ONNX Runtime computes too, the difference from that."""
        if self.run.reference != "onnxruntime":
            return {}
        run = self.run
        theirs = onnx_values(run.model, run.freeze, self.f, run.arrays)
        rule = replace(run.tolerance, times=2 * run.tolerance.times)
        found = {}
        for n, want in theirs.items():
            if n in have and want.size == have[n].size:
                given = have[n].reshape(want.shape)
                may = whole[n].may
                may = may.reshape(want.shape) if may is not None else None
                found[n] = difference(given, want, rule.of(want, may, given.dtype.name))
        return found

    # ---- one node --------------------------------------------------------------------------

    def _node(self, c: Compared, row: KeptInfo, accumulated: Difference) -> NodeReport:
        """The report of a value that a kernel computes."""
        kernel = self.kept.kernels.get(row.kernel, KernelInfo(row.kernel))
        call = c.binding.value
        array = self.inner[row.output]
        return NodeReport(
            call.span if isinstance(call, Call) else "",
            call.op if isinstance(call, Call) else "",
            c.binding.var.name,
            array.dtype.name,
            array.shape,
            row.kernel,
            kernel.kernel_class,
            kernel.target_key,
            tuple(_spans(self.f, c.since)),
            c.difference or NO_DIFFERENCE,
            accumulated,
        )

    def _first(self, c: Compared, row: KeptInfo, accumulated: Difference) -> NodeReport:
        """The report of the first value that diverges, with who is at fault: of kernels between
        the values of the model that are known, the first that does not compute its group."""
        found = self._node(c, row, accumulated)
        if not (c.difference and c.difference.is_too_much):
            return replace(found, fault="import")
        debug = self.kept.debug(self.run.mod)
        if debug is None:
            return found
        numbers = {b.var.name for b in self.f.bindings}
        kept = self.kept.info.kept
        before = kept[: kept.index(row)]
        between = [k for k in before if not numbers.intersection(k.names)]
        for k in (*between, row):
            group = group_of(debug.fused, k.names[0])
            if group is None:
                continue
            fault = self._fault(group, self.inner[k.output])
            if fault == "kernel" or k is row:
                kernel = self.kept.kernels.get(k.kernel, KernelInfo(k.kernel))
                found = replace(
                    found,
                    kernel=k.kernel,
                    kernel_class=kernel.kernel_class,
                    device=kernel.target_key,
                    schedule=self.kept.schedule(group),
                    fault=fault,
                )
                break
        if found.fault == "passes":
            found = replace(found, passed=self._passed(debug, c))
        return found

    def _fault(self, group: FusedGroup, have: Array) -> str:
        """Whether the kernel computes its group, of the values that it was given."""
        try:
            operands = self._operands(group)
            if operands is None:
                return ""
            last = len(group.function.bindings) - 1
            rule = self.run.tolerance
            *_, end = walk(group.module, group.function, operands, {last: have}, rule)
        except (TensorkilnError, ValueError):
            return ""
        return "kernel" if end.difference and end.difference.is_too_much else "passes"

    def _operands(self, group: FusedGroup) -> dict[str, Array] | None:
        """What the kernel of a group was given, by the names of the group's parameters."""
        known = {k.names[0]: self.inner[k.output] for k in self.kept.info.kept}
        known |= self.run.params(self.f)
        caller = group.caller
        inputs = {}
        for p in caller.params:
            if p.name not in known:
                return None
            inputs[p.name] = known[p.name]
        steps = Steps(group.module, caller, inputs, "float64")
        for b in caller.bindings:
            if b is group.binding:
                break
            if b.var.name in known:
                steps.values[b.var] = steps.promote(known[b.var.name])
            elif not isinstance(b.value, Call) or b.value.op:
                try:
                    steps.values[b.var] = steps.value(b.value, b.var.type)
                except KeyError:  # reads what is not known
                    continue
        call = group.binding.value
        assert isinstance(call, Call)
        params = group.function.params
        return {
            p.name: np.asarray(steps.operand(a)) for p, a in zip(params, call.args, strict=True)
        }

    def _passed(self, debug: Debug, c: Compared) -> str:
        """The pass after which the module's value of that name is another."""
        want = self._value(self.mod, c.binding.var.name)
        if want is None:
            return ""
        error = c.difference.absolute if c.difference else 0.0
        mod = self.run.mod
        for p in debug.passes:
            if isinstance(p, LowerGroups):
                break
            try:
                new = p(mod)
                if new is mod:
                    continue
                mod = new
                found = self._value(mod, c.binding.var.name)
            except TensorkilnError:
                return ""
            if found is None:
                continue
            if found.shape != want.shape:
                return pass_name(p)
            with np.errstate(all="ignore"):
                apart = np.abs(found.astype(np.float64) - want.astype(np.float64))
            if np.isnan(apart).any() and not np.isnan(want.astype(np.float64)).any():
                return pass_name(p)
            if float(np.nanmax(apart, initial=0.0)) > 0.3 * error:
                return pass_name(p)
        return ""

    def _value(self, mod: IRModule, name: str) -> Array | None:
        """The value called `name` in a run of a module in float64."""
        found: list[Array] = []

        def watch(b: Binding, value: Any) -> None:
            if b.var.name == name and isinstance(value, np.ndarray):
                found.append(value)
                raise _FoundError

        f = mod[self.f.name]
        assert isinstance(f, Function)
        with suppress(_FoundError):
            evaluate(mod, self.run.params(f), dtype="float64", function=self.f.name, watch=watch)
        return found[0] if found else None


class _FoundError(Exception):
    """Ends an evaluation that has reached the value that it was for."""


def _spans(f: Function, numbers: Sequence[int]) -> Iterator[str]:
    """The nodes of bindings, each once."""
    seen = set()
    for n in numbers:
        value = f.bindings[n].value
        span = (value.span if isinstance(value, Call) else "") or f.bindings[n].var.name
        if span not in seen:
            seen.add(span)
            yield span


def _target_text(source: Compiled) -> str:
    target = source.target
    if target.tag:
        return target.tag
    if devices := devices_of(target):
        return " and ".join(devices)
    return f"{target.kind} {target.mcpu}" if KINDS[target.kind].is_cpu else target.kind


__all__ = ["REFERENCES", "verify"]
