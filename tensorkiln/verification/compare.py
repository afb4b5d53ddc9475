"""`verify`: where does what was compiled begin to differ from the model?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorkiln import frontend
from tensorkiln.artifact.metadata import KeptInfo, KernelInfo, ParamInfo
from tensorkiln.base.errors import TensorkilnError, UserError, nearest, require
from tensorkiln.executable import Debug, Executable
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import (
    Binding,
    Bound,
    Call,
    Function,
    If,
    ObjectType,
    RVar,
    ShapeType,
    TensorType,
    Tuple,
    TupleType,
    Type,
    Value,
)
from tensorkiln.ir.visit_graph import bindings_in
from tensorkiln.measure.inputs import numpy_type, random_inputs
from tensorkiln.ops.evaluate import Steps, evaluate
from tensorkiln.passes import pass_name
from tensorkiln.pipeline import compile
from tensorkiln.runtime.device import Devices
from tensorkiln.schedule.lower import LowerGroups
from tensorkiln.target import devices_of
from tensorkiln.target.kinds import KINDS
from tensorkiln.transform.relax.keep_values import keep_values
from tensorkiln.transform.relax.name_values import name_values
from tensorkiln.verification.bounds import epsilon
from tensorkiln.verification.compiled import (
    Compiled,
    FusedGroup,
    Ran,
    group_of,
    opened,
    with_debug,
)
from tensorkiln.verification.onnx_runtime import onnx_values
from tensorkiln.verification.reference import (
    NO_DIFFERENCE,
    NOT_COMPUTED,
    OTHER_SHAPE,
    Compared,
    Difference,
    Key,
    Tolerance,
    Walk,
    difference,
    walk,
)
from tensorkiln.verification.repeat import SCRIPT, repeat_files, save
from tensorkiln.verification.result import NodeReport, OutputReport, Verification

Array = npt.NDArray[Any]
Inputs = Sequence[Any] | Mapping[str, Any] | Array | None
REFERENCES = ("float64", "onnxruntime")
# Of functions with control flow of which inner values are not known: relative, and to the output's
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
    run = _Run(source, mod, f, arrays, tolerance, reference, model, freeze, output is not None)
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
    if frontend.is_of(model, "torch"):
        if not hasattr(model, "graph_signature"):  # a module, which has no example inputs
            raise UserError(
                f"a torch module such as {type(model).__name__} has no inputs to be exported with",
                code="bad-model",
                hint="pass torch.export.export(module, example_inputs), or what from_torch gave",
            )
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
    want = [p for p in f.params if hasattr(p.type, "dtype")]
    outputs, results = len(source.info.outputs), len(_fields(f.result))
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
    """Whether a library's parameter can be a model's: of its type, rank and known sizes."""
    if p.dtype != var.tensor.dtype.name:
        return False
    if p.shape is None or not isinstance(var.type, TensorType):
        return True
    sizes = [int_value(d) for d in var.type.shape]
    return len(sizes) == len(p.shape) and all(
        size is None or not isinstance(d, int) or size == d
        for size, d in zip(sizes, p.shape, strict=True)
    )


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
    saves: bool

    def result(self) -> Verification:
        """The result, with the files of `output`."""
        is_outer = self.f.is_outer or self.source.info.kind == "outer"
        if is_outer and self.reference != "float64":
            raise UserError(
                f"{self.f.name} has control flow, of which {self.reference} is no reference",
                code="unsupported",
                hint='reference="float64"',
            )
        count = len(_fields(self.f.result))
        values = self.source.run(self.arrays)
        notes: list[str] = []
        kept = self.source
        inner = values
        if not kept.info.kept:
            again = self._compiled_again(notes)
            if again is not None:
                kept, inner = again, again.run(self.arrays)
                outputs = values.outputs if is_outer else values.outputs[:count]
                pairs = enumerate(zip(outputs, inner.outputs, strict=False))
                apart = [i for i, (a, b) in pairs if a.tobytes() != b.tobytes()]
                if apart:
                    names = ", ".join(self._output_names(len(outputs))[i] for i in apart)
                    notes.append(
                        f"compiled again, it computes another {names}: it was compiled otherwise "
                        "or changed since"
                    )
        if is_outer and not kept.info.kept:
            return self._whole(values.outputs, notes)
        numbered = name_values(self.mod)
        f = numbered[self.f.name]
        assert isinstance(f, Function)
        return _Compared(self, kept, numbered, f, inner, values, is_outer).result(notes)

    def _output_names(self, count: int) -> list[str]:
        """The names of outputs; those of the fields of an outer function's tuple are numbered."""
        names = [o.name for o in self.source.info.outputs]
        return names if len(names) >= count else [f"{names[0]}{i}" for i in range(count)]

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

    def _whole(self, values: Sequence[Array], notes: Sequence[str]) -> Verification:
        """The result for a function with control flow of which only outputs are known."""
        want = evaluate(self.mod, self.params(self.f), dtype="float64", function=self.f.name)
        reports = self.output_reports(values, _leaves(want, self.f))
        relative, absolute = _WHOLE[self.source.target.precision]
        rule = self.tolerance
        text = f"{absolute:g} x the largest + {relative:g} x |reference|"
        return Verification(
            not any(r.difference.is_too_much for r in reports),
            self.f.name,
            _target_text(self.source),
            self.reference,
            rule.rule() if rule.is_given else text,
            tuple(reports),
            0,
            notes=(
                f"{self.f.name} has control flow: without debug only its outputs are compared",
                *notes,
            ),
        )

    def output_reports(self, values: Sequence[Array], want: Sequence[Array]) -> list[OutputReport]:
        """The outputs of a function with control flow, beside a reference of which errors add up
        from the inputs on."""
        relative, absolute = _WHOLE[self.source.target.precision]
        if len(values) != len(want):
            raise UserError(
                f"the library returns {len(values)} output(s), the model {len(want)}",
                code="other-model",
                hint="model is what the library was compiled from",
            )
        reports = []
        for name, a, b in zip(self._output_names(len(want)), values, want, strict=True):
            size = np.abs(b.astype(np.float64))
            top = float(size[np.isfinite(size)].max(initial=0.0))
            may = absolute * top + relative * size
            if self.tolerance.is_given:
                may = self.tolerance.of(b, None, a.dtype.name)
            found = difference(a, b, may) if a.shape == b.shape else OTHER_SHAPE
            reports.append(OutputReport(name, a.dtype.name, a.shape, found))
        return reports


@dataclass(frozen=True, slots=True)
class _Row:
    """A value of the model that is known: item `at` of event number `event`."""

    event: int
    at: int
    kept: KeptInfo
    array: Array


@dataclass(slots=True)
class _Compared:
    """The values of a function, compared. `kept` is what has inner values, `inner` what it gave for
    the inputs; `values` what is verified gave; `f` has numbered values. A straight-line function
    computes each value once; an outer one as often as its branches and loops ask for it."""

    run: _Run
    kept: Compiled
    mod: IRModule
    f: Function
    inner: Ran
    values: Ran
    is_outer: bool

    def result(self, notes: list[str]) -> Verification:
        """The result of the comparison."""
        run, rule = self.run, self.run.tolerance
        inputs = run.params(self.f)
        own = {} if self.is_outer else self._own()
        rows = self._rows()
        names = {b.var.name for b in self._bindings()}
        have: dict[str, list[Array]] = {
            name: [] for k in self.kept.info.kept for name in k.names if name in names
        }
        for (name, _), row in rows.items():
            have.setdefault(name, []).append(row.array)
        outputs = (self.inner if rows else self.values).outputs
        have = {**{n: [outputs[i]] for i, n in own.items()}, **have}
        # Whether errors that added up are too large matters where they decide.
        theirs_decide = run.reference == "onnxruntime"
        decide = not rows or self.kept is not run.source or theirs_decide
        whole = walk(
            self.mod, self.f, inputs, have, rule, local=False, bounds=decide, arrays=theirs_decide
        )
        theirs = self._onnxruntime(whole, have)
        accumulated = {c.key: theirs.get(c.key, c.difference) for c in whole.compared}
        judged = walk(self.mod, self.f, inputs, have, rule) if rows else whole
        compared = [c for c in judged.compared if c.key in rows]
        decides = theirs if theirs_decide else {c.key: c.difference for c in compared}
        bad = [c for c in compared if c.key in decides and decides[c.key].is_too_much]
        first = worst = None
        files: dict[str, bytes | str | Path] = {}
        if compared:
            top = max(compared, key=lambda c: c.difference.times or 0)
            worst = self._node(top, rows[top.key], accumulated.get(top.key, NOT_COMPUTED))
        if bad:
            row = rows[bad[0].key]
            # Once more, for the arrays of this place.
            at = walk(self.mod, self.f, inputs, have, rule, arrays=True, until=bad[0].key)
            first = self._first(at, row, accumulated.get(bad[0].key, NOT_COMPUTED))
            again = self.inner.events[: row.event]
            time = sum(e.rows[0] == self.inner.events[row.event].rows[0] for e in again)
            place = (row.kept.output - row.at, row.at, time) if self.is_outer else None
            if run.saves:
                dtype = row.array.dtype.name
                files = repeat_files(
                    self.kept, self.mod, self.f, inputs, at, row.kept, dtype, rule, place
                )
                if SCRIPT not in files:
                    notes.append("code of this target cannot be exported: no script repeats it")
        elif self.is_outer:
            first = self._other_way(judged, rows)
        if self.is_outer:
            reports = self._outer_outputs(judged, whole)
            if first is None and whole.more:
                notes.append(
                    "in float64 from the inputs on, the model takes another branch or number of "
                    "iterations: a condition is nearer to its limit than what rounding adds up to"
                )
        else:
            reports = self._outputs(own, {n: accumulated[n, 0] for n in own.values()}, rows)
        outputs_fit = not any(r.difference.is_too_much for r in reports)
        if first is None and rows and not outputs_fit:
            again_text = " of what was compiled again" if self.kept is not run.source else ""
            notes.append(f"no node{again_text} diverges")
        return Verification(
            first is None and outputs_fit,
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

    def _rows(self) -> dict[Key, _Row]:
        """What is known of the model's values, in order of time."""
        names = {b.var.name for b in self._bindings()}
        times: Counter[str] = Counter()
        rows: dict[Key, _Row] = {}
        for number, event in enumerate(self.inner.events):
            for at, (k, array) in enumerate(zip(event.rows, event.values, strict=True)):
                for name in names.intersection(k.names):
                    rows[name, times[name]] = _Row(number, at, k, array)
                    times[name] += 1
        return rows

    def _bindings(self) -> Iterator[Binding]:
        """All bindings that a run may come to."""
        others = self.mod.functions if self.is_outer else (self.f,)
        for f in (g for g in others if isinstance(g, Function)):
            yield from bindings_in(f.bindings)

    def _other_way(self, judged: Walk, rows: Mapping[Key, _Row]) -> NodeReport | None:
        """The first value that one of both has computed and the other has not, where all that both
        have computed agrees: the host took another branch, or another number of iterations."""
        named = {b.var.name: b for b in self._bindings()}
        if judged.results is None:
            c = judged.compared[-1]
            kept = next(k for k in self.kept.info.kept if c.key[0] in k.names)
            nothing = _Row(0, 0, kept, np.zeros(0, "float32"))
            t = c.binding.var.type
            if isinstance(t, TensorType):
                shape = [n or 0 for n in t.static_shape() or ()]
                nothing = replace(nothing, array=np.zeros(shape, numpy_type(t.dtype.name)))
            return replace(self._node(c, nothing, NO_DIFFERENCE), fault="host")
        done = {c.key for c in judged.compared}
        for key, row in rows.items():
            if key not in done:
                c = Compared(key, named[key[0]], (), (named[key[0]],), NOT_COMPUTED)
                return replace(self._node(c, row, NOT_COMPUTED), fault="host")
        return None

    def _outer_outputs(self, judged: Walk, whole: Walk) -> list[OutputReport]:
        """The outputs beside the reference. They must be those of the steps that were compared;
        what errors have added up to is not judged, since it may have changed what was run."""
        given = self.values.outputs
        want = _leaves(whole.results or (), self.f)
        if self.kept is not self.run.source and not whole.more:
            return self.run.output_reports(given, want)
        reports = []
        names = self.run._output_names(len(given))
        ran = _leaves(judged.results or (), self.f)
        for i, (name, a) in enumerate(zip(names, given, strict=True)):
            found = NOT_COMPUTED
            if i < len(want) and want[i].shape == a.shape:
                found = difference(a, want[i], None)
            if i < len(ran):
                may = self.run.tolerance.of(ran[i], None, a.dtype.name)
                host = difference(a, ran[i], may) if ran[i].shape == a.shape else OTHER_SHAPE
                found = host if host.is_too_much else found
            reports.append(OutputReport(name, a.dtype.name, a.shape, found))
        return reports

    def _own(self) -> dict[int, str]:
        """Of each output of the model that a binding computes, the binding's name."""
        bound = {b.var for b in self.f.bindings}
        fields = enumerate(_fields(self.f.result))
        return {i: v.name for i, v in fields if isinstance(v, RVar) and v in bound}

    def _outputs(
        self, own: Mapping[int, str], accumulated: Mapping[str, Difference], rows: Mapping[Key, Any]
    ) -> list[OutputReport]:
        """Each output of what is verified, beside the reference."""
        whole = {i: accumulated[n] for i, n in own.items()}
        if rows and self.kept is not self.run.source:
            inputs, rule = self.run.params(self.f), self.run.tolerance
            have = {n: [self.values.outputs[i]] for i, n in own.items()}
            again = walk(self.mod, self.f, inputs, have, rule, local=False)
            found = {c.key[0]: c.difference for c in again.compared}
            whole = {i: found[n] for i, n in own.items()}
        params = dict(zip(self.f.params, self.run.arrays, strict=True))
        reports = []
        for i, v in enumerate(_fields(self.f.result)):
            have_i, info = self.values.outputs[i], self.run.source.info.outputs[i]
            if i not in whole:  # an input or a constant
                want = params[v] if isinstance(v, RVar) else v.array  # type: ignore[union-attr]
                may = self.run.tolerance.of(want, None, have_i.dtype.name)
                whole[i] = difference(have_i, want, may)
            reports.append(OutputReport(info.name, info.dtype, have_i.shape, whole[i]))
        return reports

    def _onnxruntime(
        self, whole: Walk, have: Mapping[str, Sequence[Array]]
    ) -> dict[Key, Difference]:
        """Of each value that ONNX Runtime computes too, the difference from that."""
        if self.run.reference != "onnxruntime":
            return {}
        run = self.run
        theirs = onnx_values(run.model, run.freeze, self.f, run.arrays)
        rule = replace(run.tolerance, times=2 * run.tolerance.times)
        allowed = {c.key[0]: c.may for c in whole.compared}
        found: dict[Key, Difference] = {}
        for name, want in theirs.items():
            if name in have and want.size == have[name][0].size:
                given = have[name][0].reshape(want.shape)
                may = allowed[name]
                may = may.reshape(want.shape) if may is not None else None
                found[name, 0] = difference(given, want, rule.of(want, may, given.dtype.name))
        return found

    # ---- one node --------------------------------------------------------------------------

    def _node(self, c: Compared, row: _Row, accumulated: Difference) -> NodeReport:
        """The report of a value that a kernel, or a step of the host, computes."""
        kernel = self.kept.kernels.get(row.kept.kernel, KernelInfo(row.kept.kernel))
        call = c.binding.value
        return NodeReport(
            call.span if isinstance(call, Call) else "",
            _operator(call),
            c.binding.var.name,
            row.array.dtype.name,
            row.array.shape,
            row.kept.kernel,
            kernel.kernel_class,
            kernel.target_key,
            tuple(_spans(c.since)),
            c.difference,
            accumulated,
            c.path,
        )

    def _first(self, at: Walk, row: _Row, accumulated: Difference) -> NodeReport:
        """The report of the first value that diverges, at which `at` ends, with who is at fault: of
        kernels between the values of the model that are known, the first that does not compute its
        group."""
        c = at.compared[-1]
        found = self._node(c, row, accumulated)
        if not c.difference.is_too_much:
            return replace(found, fault="import")
        if not row.kept.kernel:
            return replace(found, fault="host")
        debug = self.kept.debug(self.run.mod)
        if debug is None:
            return found
        event = self.inner.events[row.event]
        known = {v.name: a for v, a in at.values.items() if isinstance(a, np.ndarray)}
        known |= {k.names[0]: a for k, a in zip(event.rows, event.values, strict=True)}
        names = {b.var.name for b in self._bindings()}
        between = (
            (k, a)
            for k, a in zip(event.rows[: row.at], event.values, strict=False)
            if not names.intersection(k.names)
        )
        for k, array in (*between, (row.kept, row.array)):
            group = next(filter(None, (group_of(debug.fused, n) for n in k.names)), None)
            if group is None:
                continue
            fault = self._fault(group, array, known)
            if fault == "kernel" or k is row.kept:
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

    def _fault(self, group: FusedGroup, have: Array, known: Mapping[str, Array]) -> str:
        """Whether the kernel computes its group, of the values that it was given."""
        try:
            operands = self._operands(group, known)
            if operands is None:
                return ""
            last = group.function.bindings[-1].var.name
            rule = self.run.tolerance
            found = walk(group.module, group.function, operands, {last: [have]}, rule)
        except (TensorkilnError, ValueError):
            return ""
        return "kernel" if found.compared[-1].difference.is_too_much else "passes"

    def _operands(self, group: FusedGroup, known: Mapping[str, Array]) -> dict[str, Array] | None:
        """What the kernel of a group was given, by the names of the group's parameters."""
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
        """The pass after which the module's value is another."""
        want = self._value(self.mod, c.key)
        if want is None:
            return ""
        error = c.difference.absolute
        mod = self.run.mod
        for p in debug.passes:
            if isinstance(p, LowerGroups) or p is keep_values:
                break
            try:
                new = p(mod)
                if new is mod:
                    continue
                mod = new
                found = self._value(mod, c.key)
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

    def _value(self, mod: IRModule, key: Key) -> Array | None:
        """A value in a run of a module in float64, where the same way is taken."""
        found: list[Array] = []
        name, time = key

        def watch(b: Binding, value: Any) -> None:
            # What a function returns has the same name where it is called.
            if b.var.name != name or not isinstance(value, np.ndarray):
                return
            if not found or found[-1] is not value:
                found.append(value)
            if len(found) > time:
                raise _FoundError

        f = mod[self.f.name]
        assert isinstance(f, Function)
        with suppress(_FoundError):
            evaluate(mod, self.run.params(f), dtype="float64", function=self.f.name, watch=watch)
        return found[time] if len(found) > time else None


class _FoundError(Exception):
    """Ends an evaluation that has reached the value that it was for."""


def _operator(value: Bound) -> str:
    if isinstance(value, Call):
        return value.op or str(getattr(value.callee, "name", ""))
    return "branch" if isinstance(value, If) else ""


def _spans(bindings: Sequence[Binding]) -> Iterator[str]:
    """The nodes of bindings, each once."""
    seen = set()
    for b in bindings:
        span = (b.value.span if isinstance(b.value, Call) else "") or b.var.name
        if span not in seen:
            seen.add(span)
            yield span


def _leaves(values: Sequence[Any], f: Function) -> list[Array]:
    """The tensors and numbers of a flat result of `f`, as `arrays_of` gives those of a library."""
    types = list(_flat_types(f.result.type))
    if len(types) != len(values):
        types = [ObjectType()] * len(values)
    out: list[Array] = []
    for v, t in zip(values, types, strict=True):
        if isinstance(t, ShapeType):
            out += [np.asarray(int(n)) for n in v]
        elif isinstance(v, np.ndarray | bool | int | float):
            out.append(np.asarray(v))
    return out


def _flat_types(t: Type) -> Iterator[Type]:
    if isinstance(t, TupleType):
        for x in t.fields:
            yield from _flat_types(x)
    else:
        yield t


def _target_text(source: Compiled) -> str:
    target = source.target
    if target.tag:
        return target.tag
    if devices := devices_of(target):
        return " and ".join(devices)
    return f"{target.kind} {target.mcpu}" if KINDS[target.kind].is_cpu else target.kind


__all__ = ["REFERENCES", "verify"]
