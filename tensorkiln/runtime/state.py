"""Per-function state of an executor: inputs set once, outputs bound to the caller's memory."""

from __future__ import annotations

from typing import Any

from tensorkiln.base.errors import UserError
from tensorkiln.runtime.arguments import in_order
from tensorkiln.runtime.failures import ArgumentTypeError
from tensorkiln.runtime.given import is_a, shown
from tensorkiln.runtime.graph import GraphFunction
from tensorkiln.runtime.outer import fill_outputs


class FunctionState:
    """`set_input`, `set_output`, `invoke` and `get_outputs` of one function."""

    def __init__(self, function: Any):
        self.function = function
        self._inputs: tuple[Any, ...] | None = None
        self._bound: dict[int, Any] = {}
        self._places: tuple[Any, ...] | None = None  # for out=, when all are bound
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
        known = isinstance(function, GraphFunction)  # outer: known from the result
        if not is_a(index, int) or index < 0 or (known and index >= len(function.info.outputs)):
            raise ArgumentTypeError(
                f"{function.name} has {len(function.info.outputs)} outputs, "
                f"there is no output {shown(index)}",
                code="no-output",
            )
        if place is None:
            self._bound.pop(index, None)
        else:
            self._bound[index] = place
        all_bound = known and len(self._bound) == len(function.info.outputs)
        self._places = self._in_order(self._bound) if all_bound else None

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
        elif isinstance(function, GraphFunction):
            out = self._new_places() if self._places is None else self._places
            if len(out) > 1:
                function(*self._inputs, out=out)
                self._result = out
            else:  # a single tensor takes the fast path in C; a list here would mean all outputs
                row = is_a(out[0], tuple, list)
                function(*self._inputs, out=out if row else out[0])
                self._result = out[0]
        else:
            self._result = fill_outputs(function(*self._inputs), self._bound, function.name)
        self._invoked = True

    def _new_places(self) -> tuple[Any, ...]:
        """Bound tensors, and new ones for the other outputs, in order."""
        made = dict(enumerate(self.function.new_outputs(self._inputs)))
        return self._in_order(made | self._bound)

    @staticmethod
    def _in_order(places: dict[int, Any]) -> tuple[Any, ...]:
        return tuple(places[i] for i in sorted(places))

    def outputs(self) -> Any:
        """The result of the last `invoke`; UserError (code `no-outputs`) if it has none."""
        if not self._invoked:
            raise UserError(
                f"{self.function.name} has no outputs: it was not invoked, or failed",
                code="no-outputs",
                hint=f'executor.invoke("{self.function.name}")',
            )
        return self._result
