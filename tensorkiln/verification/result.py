"""The result of `tk.verify`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tensorkiln.base.record import JsonRecord, json_key
from tensorkiln.verification.reference import Difference

_MOST = 8  # names in a line


@dataclass(frozen=True, slots=True)
class OutputReport:
    """An output of the model: the difference of the compiled result from the reference for the same
    inputs."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    difference: Difference


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A node of the model, with the kernel that computes its value.

    `nodes` are all nodes that were computed since the last compiled values that are known: those of
    the kernel, unless graph passes hid the values between several kernels. `local` is the
    difference from these nodes, evaluated on the compiled values that they read, so that earlier
    errors do not count; `accumulated` is that from the reference of the whole model. `path` says
    where in a function with control flow the value was computed: the branches taken, iterations
    (from 0), calls. `schedule` is the trace of the kernel's schedule, if there is one.

    `fault` says what is wrong if the node diverges: `kernel`: its code does not compute its
    operators; `passes`: graph passes changed what the model computes (`passed` names the pass, if
    it is known); `import`: only ONNX Runtime disagrees; `host`: a step between kernels of a
    function with control flow is wrong; empty if that is not known.
    """

    node: str
    operator: str
    value: str
    dtype: str
    shape: tuple[int, ...]
    kernel: str
    kernel_class: str
    device: str
    nodes: tuple[str, ...]
    local: Difference
    accumulated: Difference
    path: tuple[str, ...] = ()
    schedule: str = field(default="", repr=False)
    fault: str = ""
    passed: str = ""

    def lines(self) -> Iterator[str]:
        """The report as lines of text."""
        device_text = f" on {self.device}" if self.device else ""
        yield f"  node         {self.node or self.value} ({self.operator})"
        yield f"  value        {self.dtype} {list(self.shape)}, {self.value} in graph passes"
        if self.kernel:
            yield f"  kernel       {self.kernel}, class {self.kernel_class or '-'}{device_text}"
        else:
            yield "  kernel       none: a step of the host"
        if self.path:
            yield f"  in           {', '.join(self.path)}"
        if len(self.nodes) > 1:
            hidden = len(self.nodes) - _MOST
            node_text = ", ".join(self.nodes[:_MOST]) + (
                f" and {hidden} more" if hidden > 0 else ""
            )
            yield f"  computes     {node_text}"
        yield f"  local        {self.local}"
        yield f"  accumulated  {self.accumulated}"
        if self.fault == "kernel":
            yield "  at fault     the kernel: its operators, evaluated on its operands, differ"
        elif self.fault == "host" and self.local.is_missing:
            yield "  at fault     the steps between kernels: they take another branch, or another"
            yield "               number of iterations, than the conditions that they computed say"
        elif self.fault == "host":
            yield "  at fault     a step between kernels, which the host runs"
        elif self.fault == "import":
            yield "  at fault     the model's import, or the reference: the operators that were"
            yield "               imported agree with the kernel"
        elif self.fault:
            named = f": {self.passed} changes what the model computes" if self.passed else ""
            yield f"  at fault     a graph pass{named}; the kernel computes what passes left"


@dataclass(frozen=True, slots=True)
class Verification(JsonRecord):
    """Whether a compiled function computes what its model says.

    `ok` is the answer. `first` is the first node, in the model's order, that diverges beyond the
    tolerance. It is None if none does, or if the values between kernels are not known; `notes` then
    say so. `worst` is the node whose local error is the largest part of its tolerance, `compared`
    the number of values that were compared. `outputs` are those of the model.
    """

    ok: bool
    function: str
    target: str
    reference: str
    tolerance: str
    compared: int
    outputs: tuple[OutputReport, ...]
    first: NodeReport | None = None
    worst: NodeReport | None = None
    notes: tuple[str, ...] = ()
    saved: str = ""
    repeats: bool = field(default=False, repr=False, metadata=json_key(hidden=True))
    files: Mapping[str, bytes | str | Path] = field(
        default_factory=dict, repr=False, compare=False, metadata=json_key(hidden=True)
    )

    @property
    def exit_code(self) -> int:
        """The exit status of `kiln verify`: 0 if `ok`, else 1."""
        return 0 if self.ok else 1

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        lines = list(self._lines())
        return "\n".join(lines)

    def _lines(self) -> Iterator[str]:
        answer = "agrees with" if self.ok else "diverges from"
        yield f"{self.function} for {self.target} {answer} the model ({self.reference})"
        yield f"tolerance: {self.tolerance}"
        for o in self.outputs:
            yield f"  output {o.name} {o.dtype} {list(o.shape)}: {o.difference}"
        if self.first is not None:
            yield f"first node that diverges, of {self.compared} values compared:"
            yield from self.first.lines()
            yield from _to_do(self.first, bool(self.saved))
        elif self.worst is not None:
            yield f"nearest to its limit, of {self.compared} values compared:"
            yield from self.worst.lines()
        yield from (f"note: {note}" for note in self.notes)
        if self.saved:
            again = f"; python {self.saved}/repeat.py shows it again" if self.repeats else ""
            yield f"saved: {self.saved}{again}"


def _to_do(first: NodeReport, is_saved: bool) -> Iterator[str]:
    """Advice on what to do next, depending on what is at fault."""
    if first.fault == "passes":
        name = first.passed or "every pass"
        yield f"  next         KILN_DUMP=folder writes the model before and after {name}"
    elif first.fault == "import":
        yield "  next         compare the node's attributes with what its importer makes of them"
    if not is_saved:
        yield "  next         output=folder (--output folder) writes a script that repeats it"
