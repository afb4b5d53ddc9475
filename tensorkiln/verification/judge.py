"""Compare a function's values with its model's, find the first that diverges, and what is at fault.

The compiled function gives some values of the model: its outputs and, with `debug`, what each
kernel returned. The reference evaluates the model in float64 and compares each such value
(`reference.walk`). At the first one that differs by more than rounding may explain, the fault is
located:

- If the error is only that from ONNX Runtime, while the imported operators agree: `import`.
- If a step between kernels computed the value: `host`. So too if the compiled function took another
  branch, or another number of iterations.
- Else the value's fused group is evaluated in float64 on the operands that the kernel had. If the
  kernel's result differs, `kernel`. If it agrees, the group is not what the model says: `passes`.
  Running the passes one by one, and evaluating the model after each, then tells which one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorkiln.artifact.metadata import KeptInfo, KernelInfo
from tensorkiln.base.errors import TensorkilnError
from tensorkiln.executable import Debug
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import (
    Binding,
    Bound,
    Call,
    Function,
    If,
    RVar,
    TensorType,
)
from tensorkiln.ir.visit_graph import bindings_in
from tensorkiln.measure.inputs import numpy_type
from tensorkiln.ops.evaluate import Steps, evaluate
from tensorkiln.passes import pass_name
from tensorkiln.schedule.lower import LowerGroups
from tensorkiln.transform.relax.keep_values import keep_values
from tensorkiln.verification.compiled import (
    Compiled,
    FusedGroup,
    Ran,
    group_of,
)
from tensorkiln.verification.onnx_runtime import onnx_values
from tensorkiln.verification.reference import (
    NO_DIFFERENCE,
    NOT_COMPUTED,
    OTHER_SHAPE,
    Compared,
    Difference,
    Key,
    ReferenceWalk,
    difference,
    walk,
)
from tensorkiln.verification.repeat import SCRIPT, repeat_files
from tensorkiln.verification.result import NodeReport, OutputReport, Verification
from tensorkiln.verification.run import Run, fields, leaves, target_text

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class _Row:
    """A compiled value that the model has, too: number `position` among the values of event number
    `event`."""

    event: int
    position: int
    info: KeptInfo
    array: Array


@dataclass(slots=True)
class Judge:
    """One comparison. `values` are the results of the function to verify. `compiled` is a function
    that gives the values between kernels, the same one or one compiled again with `debug`, and
    `inner` are its results for the same inputs. `f` is the model's function, whose values have
    distinct names. With `is_outer`, it has control flow, and may compute a value any number of
    times; otherwise each value is computed once."""

    run: Run
    compiled: Compiled
    mod: IRModule
    f: Function
    inner: Ran
    values: Ran
    is_outer: bool

    def result(self, notes: list[str]) -> Verification:
        """The result of the comparison."""
        run, rule = self.run, self.run.tolerance
        inputs = run.params(self.f)
        output_names = {} if self.is_outer else self._own()
        rows = self._rows()
        names = {b.var.name for b in self._bindings()}
        have: dict[str, list[Array]] = {
            name: [] for k in self.compiled.info.kept for name in k.names if name in names
        }
        for (name, _), row in rows.items():
            have.setdefault(name, []).append(row.array)
        outputs = (self.inner if rows else self.values).outputs
        have = {**{n: [outputs[i]] for i, n in output_names.items()}, **have}
        # Tolerances of accumulated errors take time: only where these errors decide.
        theirs_decide = run.reference == "onnxruntime"
        decide = not rows or self.compiled is not run.source or theirs_decide
        whole = walk(
            self.mod, self.f, inputs, have, rule, local=False, bounds=decide, arrays=theirs_decide
        )
        onnx_differences = self._onnxruntime(whole, have)
        accumulated = {c.key: onnx_differences.get(c.key, c.difference) for c in whole.compared}
        judged = walk(self.mod, self.f, inputs, have, rule) if rows else whole
        compared = [c for c in judged.compared if c.key in rows]
        decides = onnx_differences if theirs_decide else {c.key: c.difference for c in compared}
        bad = [c for c in compared if c.key in decides and decides[c.key].is_too_much]
        first = worst = None
        files: dict[str, bytes | str | Path] = {}
        if compared:
            top = max(compared, key=lambda c: c.difference.times or 0)
            worst = self._node(top, rows[top.key], accumulated.get(top.key, NOT_COMPUTED))
        if bad:
            row = rows[bad[0].key]
            # Once more, to get the arrays at this value.
            prefix = walk(self.mod, self.f, inputs, have, rule, arrays=True, until=bad[0].key)
            first = self._first(prefix, row, accumulated.get(bad[0].key, NOT_COMPUTED))
            again = self.inner.events[: row.event]
            time = sum(e.rows[0] == self.inner.events[row.event].rows[0] for e in again)
            place = (row.info.output - row.position, row.position, time) if self.is_outer else None
            if run.saves:
                dtype = row.array.dtype.name
                files = repeat_files(
                    self.compiled, self.mod, self.f, inputs, prefix, row.info, dtype, rule, place
                )
                if SCRIPT not in files:
                    notes.append("code of this target cannot be exported: no script repeats it")
        elif self.is_outer:
            first = self._other_way(judged, rows)
        if self.is_outer:
            reports = self._outer_outputs(judged, whole)
            if first is None and whole.surplus:
                notes.append(
                    "in float64 from the inputs on, the model takes another branch or number of "
                    "iterations: a condition is nearer to its limit than what rounding adds up to"
                )
        else:
            reports = self._outputs(
                output_names, {n: accumulated[n, 0] for n in output_names.values()}, rows
            )
        outputs_fit = not any(r.difference.is_too_much for r in reports)
        if first is None and rows and not outputs_fit:
            again_text = " of what was compiled again" if self.compiled is not run.source else ""
            notes.append(f"no node{again_text} diverges")
        return Verification(
            first is None and outputs_fit,
            run.f.name,
            target_text(run.source),
            run.reference,
            rule.rule(),
            len(compared),
            tuple(reports),
            first,
            worst,
            tuple(notes),
            files=files,
        )

    def _rows(self) -> dict[Key, _Row]:
        """The compiled values that the model has, too, in the order of time."""
        names = {b.var.name for b in self._bindings()}
        times: Counter[str] = Counter()
        rows: dict[Key, _Row] = {}
        for number, event in enumerate(self.inner.events):
            for position, (k, array) in enumerate(zip(event.rows, event.values, strict=True)):
                for name in names.intersection(k.names):
                    rows[name, times[name]] = _Row(number, position, k, array)
                    times[name] += 1
        return rows

    def _bindings(self) -> Iterator[Binding]:
        """All bindings that a run may evaluate."""
        functions = self.mod.functions if self.is_outer else (self.f,)
        for f in (g for g in functions if isinstance(g, Function)):
            yield from bindings_in(f.bindings)

    def _other_way(self, judged: ReferenceWalk, rows: Mapping[Key, _Row]) -> NodeReport | None:
        """The report for a branch or number of iterations that differs: the first value that only
        one of the compiled function and the model computed, when all values that both computed
        agree. None if there is no such value."""
        named = {b.var.name: b for b in self._bindings()}
        if judged.results is None:
            c = judged.compared[-1]
            kept_info = next(k for k in self.compiled.info.kept if c.key[0] in k.names)
            nothing = _Row(0, 0, kept_info, np.zeros(0, "float32"))
            t = c.binding.var.type
            if isinstance(t, TensorType):
                shape = [n or 0 for n in t.static_shape() or ()]
                nothing = replace(nothing, array=np.zeros(shape, numpy_type(t.dtype.name)))
            return replace(self._node(c, nothing, NO_DIFFERENCE), fault="host")
        judged_keys = {c.key for c in judged.compared}
        for key, row in rows.items():
            if key not in judged_keys:
                c = Compared(key, named[key[0]], (), (named[key[0]],), NOT_COMPUTED)
                return replace(self._node(c, row, NOT_COMPUTED), fault="host")
        return None

    def _outer_outputs(self, judged: ReferenceWalk, whole: ReferenceWalk) -> list[OutputReport]:
        """The reports on outputs of a function with control flow. An output has to agree with the
        steps that were compared. Its difference from the reference of the whole model is reported
        but does not decide, since accumulated errors may have changed the branches that were
        taken."""
        outputs = self.values.outputs
        want = leaves(whole.results or (), self.f)
        if self.compiled is not self.run.source and not whole.surplus:
            return self.run.output_reports(outputs, want)
        reports = []
        names = self.run.output_names(len(outputs))
        ran = leaves(judged.results or (), self.f)
        for i, (name, a) in enumerate(zip(names, outputs, strict=True)):
            output_difference = NOT_COMPUTED
            if i < len(want) and want[i].shape == a.shape:
                output_difference = difference(a, want[i], None)
            if i < len(ran):
                may = self.run.tolerance.of(ran[i], None, a.dtype.name)
                host = difference(a, ran[i], may) if ran[i].shape == a.shape else OTHER_SHAPE
                output_difference = host if host.is_too_much else output_difference
            reports.append(OutputReport(name, a.dtype.name, a.shape, output_difference))
        return reports

    def _own(self) -> dict[int, str]:
        """The names of bindings whose values are outputs, by the number of the output."""
        binding_vars = {b.var for b in self.f.bindings}
        results = enumerate(fields(self.f.result))
        return {i: v.name for i, v in results if isinstance(v, RVar) and v in binding_vars}

    def _outputs(
        self,
        output_names: Mapping[int, str],
        accumulated: Mapping[str, Difference],
        rows: Mapping[Key, Any],
    ) -> list[OutputReport]:
        """The reports on outputs of a function without control flow."""
        whole = {i: accumulated[n] for i, n in output_names.items()}
        if rows and self.compiled is not self.run.source:
            inputs, rule = self.run.params(self.f), self.run.tolerance
            have = {n: [self.values.outputs[i]] for i, n in output_names.items()}
            again = walk(self.mod, self.f, inputs, have, rule, local=False)
            differences = {c.key[0]: c.difference for c in again.compared}
            whole = {i: differences[n] for i, n in output_names.items()}
        params = dict(zip(self.f.params, self.run.arrays, strict=True))
        reports = []
        for i, v in enumerate(fields(self.f.result)):
            have_i, info = self.values.outputs[i], self.run.source.info.outputs[i]
            if i not in whole:  # an input or a constant
                want = params[v] if isinstance(v, RVar) else v.array  # type: ignore[union-attr]
                may = self.run.tolerance.of(want, None, have_i.dtype.name)
                whole[i] = difference(have_i, want, may)
            reports.append(OutputReport(info.name, info.dtype, have_i.shape, whole[i]))
        return reports

    def _onnxruntime(
        self, whole: ReferenceWalk, have: Mapping[str, Sequence[Array]]
    ) -> dict[Key, Difference]:
        """For each value that ONNX Runtime computes, too, the difference from its result."""
        if self.run.reference != "onnxruntime":
            return {}
        run = self.run
        onnx_arrays = onnx_values(run.model, run.options, self.f, run.arrays)
        rule = replace(run.tolerance, times=2 * run.tolerance.times)
        allowed = {c.key[0]: c.may for c in whole.compared}
        differences: dict[Key, Difference] = {}
        for name, want in onnx_arrays.items():
            if name in have and want.size == have[name][0].size:
                array = have[name][0].reshape(want.shape)
                may = allowed[name]
                may = may.reshape(want.shape) if may is not None else None
                differences[name, 0] = difference(array, want, rule.of(want, may, array.dtype.name))
        return differences

    # ---- one node --------------------------------------------------------------------------

    def _node(self, c: Compared, row: _Row, accumulated: Difference) -> NodeReport:
        """The report on one value, which a kernel or a step of the host computes."""
        kernel = self.compiled.kernels.get(row.info.kernel, KernelInfo(row.info.kernel))
        call = c.binding.value
        return NodeReport(
            call.span if isinstance(call, Call) else "",
            _operator(call),
            c.binding.var.name,
            row.array.dtype.name,
            row.array.shape,
            row.info.kernel,
            kernel.kernel_class,
            kernel.target_key,
            tuple(_spans(c.since)),
            c.difference,
            accumulated,
            c.path,
        )

    def _first(self, prefix: ReferenceWalk, row: _Row, accumulated: Difference) -> NodeReport:
        """The report on the first value that diverges, at which the walk `prefix` ended, with what
        is at fault. Graph passes may have hidden model values between several kernels: of the
        kernels since the last value that is known, the first that computes its group wrongly is
        reported."""
        c = prefix.compared[-1]
        report = self._node(c, row, accumulated)
        if not c.difference.is_too_much:
            return replace(report, fault="import")
        if not row.info.kernel:
            return replace(report, fault="host")
        debug = self.compiled.debug(self.run.mod)
        if debug is None:
            return report
        event = self.inner.events[row.event]
        values = {v.name: a for v, a in prefix.values.items() if isinstance(a, np.ndarray)}
        values |= {k.names[0]: a for k, a in zip(event.rows, event.values, strict=True)}
        names = {b.var.name for b in self._bindings()}
        between = (
            (k, a)
            for k, a in zip(event.rows[: row.position], event.values, strict=False)
            if not names.intersection(k.names)
        )
        for k, array in (*between, (row.info, row.array)):
            group = next(filter(None, (group_of(debug.fused, n) for n in k.names)), None)
            if group is None:
                continue
            fault = self._fault(group, array, values)
            if fault == "kernel" or k is row.info:
                kernel = self.compiled.kernels.get(k.kernel, KernelInfo(k.kernel))
                report = replace(
                    report,
                    kernel=k.kernel,
                    kernel_class=kernel.kernel_class,
                    device=kernel.target_key,
                    schedule=self.compiled.schedule(group),
                    fault=fault,
                )
                break
        if report.fault == "passes":
            report = replace(report, passed=self._passed(debug, c))
        return report

    def _fault(self, group: FusedGroup, have: Array, values: Mapping[str, Array]) -> str:
        """What is at fault: "kernel" if its result `have` is not what its group computes of its
        operands, "passes" if it is, "" if the operands cannot be determined."""
        try:
            operands = self._operands(group, values)
            if operands is None:
                return ""
            last = group.function.bindings[-1].var.name
            rule = self.run.tolerance
            group_walk = walk(group.module, group.function, operands, {last: [have]}, rule)
        except (TensorkilnError, ValueError):
            return ""
        return "kernel" if group_walk.compared[-1].difference.is_too_much else "passes"

    def _operands(self, group: FusedGroup, values: Mapping[str, Array]) -> dict[str, Array] | None:
        """The operands that the kernel of a group had, by the names of the group's parameters. None
        if an input is not known."""
        caller = group.caller
        inputs = {}
        for p in caller.params:
            if p.name not in values:
                return None
            inputs[p.name] = values[p.name]
        steps = Steps(group.module, caller, inputs, "float64")
        for b in caller.bindings:
            if b is group.binding:
                break
            if b.var.name in values:
                steps.values[b.var] = steps.promote(values[b.var.name])
            elif not isinstance(b.value, Call) or b.value.op:
                try:
                    steps.values[b.var] = steps.value(b.value, b.var.type)
                except KeyError:  # it reads a value that is not known
                    continue
        call = group.binding.value
        assert isinstance(call, Call)
        params = group.function.params
        return {
            p.name: np.asarray(steps.operand(a)) for p, a in zip(params, call.args, strict=True)
        }

    def _passed(self, debug: Debug, c: Compared) -> str:
        """The name of the pass after which the module computes another value: the first whose
        result differs by a considerable part of the error. Empty if none is found."""
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
                array = self._value(mod, c.key)
            except TensorkilnError:
                return ""
            if array is None:
                continue
            if array.shape != want.shape:
                return pass_name(p)
            with np.errstate(all="ignore"):
                apart = np.abs(array.astype(np.float64) - want.astype(np.float64))
            if np.isnan(apart).any() and not np.isnan(want.astype(np.float64)).any():
                return pass_name(p)
            if float(np.nanmax(apart, initial=0.0)) > 0.3 * error:
                return pass_name(p)
        return ""

    def _value(self, mod: IRModule, key: Key) -> Array | None:
        """The value with this key in an evaluation of a module in float64; None if it is not
        computed there."""
        arrays: list[Array] = []
        name, time = key

        def watch(b: Binding, value: Any) -> None:
            # A function's result has its name in the function and again at the call.
            if b.var.name != name or not isinstance(value, np.ndarray):
                return
            if not arrays or arrays[-1] is not value:
                arrays.append(value)
            if len(arrays) > time:
                raise _FoundError

        f = mod[self.f.name]
        assert isinstance(f, Function)
        with suppress(_FoundError):
            evaluate(mod, self.run.params(f), dtype="float64", function=self.f.name, watch=watch)
        return arrays[time] if len(arrays) > time else None


class _FoundError(Exception):
    """Ends an evaluation once it has computed the value in question."""


def _operator(value: Bound) -> str:
    if isinstance(value, Call):
        return value.op or str(getattr(value.callee, "name", ""))
    return "branch" if isinstance(value, If) else ""


def _spans(bindings: Sequence[Binding]) -> Iterator[str]:
    """The nodes of the model that bindings come from, each once."""
    spans = set()
    for b in bindings:
        span = (b.value.span if isinstance(b.value, Call) else "") or b.var.name
        if span not in spans:
            spans.add(span)
            yield span
