"""`torch.cond` and `torch.while_loop`: branches and loops of host code, whose bodies are graphs of
their own in the module of the program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from tensorkiln.frontend.graph.control_flow import branches, loop
from tensorkiln.frontend.graph.issues import unsupported
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.torch.context import AtenContext
from tensorkiln.ir.expr import Expr, int_value
from tensorkiln.ir.relax import Constant


class ProgramHost(Protocol):
    """The import of a program, as bodies need it: `importer.Importer`."""

    g: AtenContext

    def argument(self, value: Any) -> Any:
        """An argument of a node: tensors as values, sizes as expressions, the rest as it is."""

    def body(self, module: Any, operands: Sequence[Any]) -> list[Any]:
        """The results of a graph for these operands; BodyRefused if it has issues."""

    def submodule(self, node: Any) -> Any:
        """The module that a `get_attr` node names."""


def cond(host: ProgramHost, node: Any) -> list[Any]:
    """One of two bodies, by a condition of data or of sizes."""
    pred, yes, no, operands = _arguments(node, ("pred", "true_fn", "false_fn", "operands"))
    arguments = [host.argument(v) for v in operands]
    truth = host.argument(pred)
    bodies = [host.submodule(s) for s in (yes, no)]
    if isinstance(truth, Expr) and int_value(truth) is not None:
        truth = bool(int_value(truth))
    if isinstance(truth, Constant) and truth.array.size == 1:
        truth = bool(truth.array.item())
    if isinstance(truth, bool):
        return host.body(bodies[0 if truth else 1], arguments)
    x = host.g.number(truth, "bool")
    return branches(host.g, x, [_tensors(host, body, arguments) for body in bodies])


def _arguments(node: Any, names: Sequence[str]) -> list[Any]:
    """The arguments of a node in the order of their names; empty tuples for those left out."""
    arguments: dict[str, Any] = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    return [arguments.get(name, ()) for name in names]


def _tensors(host: ProgramHost, body: Any, operands: Sequence[Any]) -> Callable[[], list[Val]]:
    def run() -> list[Val]:
        return _only_tensors(host.body(body, operands))

    return run


def _only_tensors(values: Sequence[Any]) -> list[Val]:
    if not all(isinstance(v, Val) for v in values):
        raise unsupported("a body gives something other than tensors")
    return list(values)


def while_loop(host: ProgramHost, node: Any) -> list[Any]:
    """The states after the last iteration."""
    names = ("cond_fn", "body_fn", "carried_inputs", "additional_inputs")
    test, body, states, extra_operands = _arguments(node, names)
    extra_values = [host.argument(v) for v in extra_operands]
    first = _only_tensors([host.argument(v) for v in states])
    run, again = (partial(_called, host, host.submodule(m), extra_values) for m in (body, test))

    def step(args: Sequence[Val]) -> list[Val]:
        new_states = run(args[2:])
        return [*again(new_states), *new_states]

    outer = host.g.repeated
    host.g.repeated = True
    try:
        (begins,) = again(first)
        return loop(host.g, step, None, begins, first, 0)
    finally:
        host.g.repeated = outer


def _called(
    host: ProgramHost, body: Any, extra_values: Sequence[Any], states: Sequence[Val]
) -> list[Val]:
    return _only_tensors(host.body(body, [*states, *extra_values]))


HIGHER: Mapping[str, Callable[[ProgramHost, Any], list[Any]]] = {
    "cond": cond,
    "while_loop": while_loop,
}

__all__ = ["HIGHER", "ProgramHost"]
