"""Per-function state of an executor: inputs set once, outputs bound to the caller's memory."""

from __future__ import annotations

from typing import Any

from tensorkiln.base.errors import UserError
from tensorkiln.runtime.actual_types import is_a, shown
from tensorkiln.runtime.arguments import in_order
from tensorkiln.runtime.failures import ArgumentTypeError
from tensorkiln.runtime.graph import GraphFunction
from tensorkiln.runtime.outer import fill_outputs


class FunctionState:
    """`set_input`, `set_output`, `invoke` and `get_outputs` of one function."""

    def __init__(self, function: Any):
        self.function = function
        self._inputs: tuple[Any, ...] | None = None
        self._bound: dict[int, Any] = {}
        # What `_out_of` returns when all outputs are bound: made once, so that `invoke` costs no
        # more than a call.
        self._all_bound: tuple[Any, Any] | None = None
        self._result: Any = None
        self._invoked = False

    def set_input(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Keep references to all inputs; their memory is read when the function is invoked."""
        self._inputs = in_order(self.function.info, inputs, named)

    def set_output(self, index: int, place: Any) -> None:
        """Bind an output to a tensor of the caller's; None unbinds it.

        Raises ArgumentTypeError (code `no-output`) for an output that does not exist; for outer
        functions `invoke` does, as only the result shows how many there are.
        """
        function = self.function
        is_graph = isinstance(function, GraphFunction)  # outer: its result says how many
        if not is_a(index, int) or index < 0 or (is_graph and index >= len(function.info.outputs)):
            raise ArgumentTypeError(
                f"{function.name} has {len(function.info.outputs)} outputs, "
                f"there is no output {shown(index)}",
                code="no-output",
            )
        if place is None:
            self._bound.pop(index, None)
        else:
            self._bound[index] = place
        all_bound = is_graph and len(self._bound) == len(function.info.outputs)
        self._all_bound = _out_of(self._bound) if all_bound else None

    def invoke(self) -> None:
        """Run the function. If this raises, there are no outputs until a later call succeeds.

        Raises UserError (code `no-inputs`) before `set_input`, and what the function raises.
        """
        function = self.function
        if self._inputs is None:
            raise UserError(
                f"{function.name} has no inputs yet",
                code="no-inputs",
                hint=f'executor.set_input("{function.name}", ...)',
            )
        self._invoked, self._result = False, None
        if not self._bound:
            self._result = function(*self._inputs)
        elif self._all_bound is not None or isinstance(function, GraphFunction):
            out = self._new_places() if self._all_bound is None else self._all_bound
            function(*self._inputs, out=out[0])
            self._result = out[1]
        else:
            self._result = fill_outputs(function(*self._inputs), self._bound, function.name)
        self._invoked = True

    def _new_places(self) -> tuple[Any, Any]:
        """Bound tensors, and new ones for the other outputs."""
        tensors = dict(enumerate(self.function.new_outputs(self._inputs)))
        return _out_of(tensors | self._bound)

    def outputs(self) -> Any:
        """The result of the last `invoke`; UserError (code `no-outputs`) if it has none."""
        if not self._invoked:
            raise UserError(
                f"{self.function.name} has no outputs: it was not invoked, or failed",
                code="no-outputs",
                hint=f'executor.invoke("{self.function.name}")',
            )
        return self._result


def _out_of(places: dict[int, Any]) -> tuple[Any, Any]:
    """The argument `out` of a call, and the result of `get_outputs`, for tensors by output
    number."""
    row = tuple(places[i] for i in sorted(places))
    if len(row) > 1:
        return row, row
    # A single tensor takes the fast path in C; a list or tuple here would mean all outputs.
    return (row if is_a(row[0], tuple, list) else row[0]), row[0]
