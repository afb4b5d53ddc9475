"""The backend `tensorkiln` of `torch.compile`.

Dynamo gives a graph of torch's operators and the arguments of its first call. AOTAutograd makes it
a graph of ATen operators without mutation. That graph is imported and compiled at the first call,
since then the weights are there: they become constants, which kernels want packed. Weights that
have changed at a later call make it compile again; those that change twice stay arguments.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensorkiln.base.errors import Issue, UnsupportedError, UserError, nearest

Boxed = Callable[[list[Any]], Any]

_OPTIONS = ("target", "strict")


class FallbackWarning(UserWarning):
    """A graph of `torch.compile` is run by torch, since it holds what cannot be imported."""


@dataclass(frozen=True, slots=True)
class Fallback:
    """A graph that torch runs, and why: an issue for each node that cannot be imported."""

    graph: int
    nodes: int
    issues: tuple[Issue, ...]


@dataclass(slots=True)
class Report:
    """What became of the graphs that `torch.compile` has given to the backend in this process.

    `graphs` counts them, `compiled` how often one was compiled (again, if weights changed), and
    `fallbacks` are those that torch runs.
    """

    graphs: int = 0
    compiled: int = 0
    fallbacks: list[Fallback] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{self.graphs} graphs, compiled {self.compiled} times; torch runs:"]
        for fallback in self.fallbacks:
            why = "; ".join(f"{i.op or i.node}: {i.message}" for i in fallback.issues)
            lines.append(f"  graph {fallback.graph} of {fallback.nodes} nodes: {why}")
        return "\n".join(lines) if self.fallbacks else lines[0].removesuffix("; torch runs:")


_report = Report()
_lock = threading.Lock()


def report(*, reset: bool = False) -> Report:
    """What became of the graphs so far; with `reset`, counting starts again after it."""
    global _report
    with _lock:
        found = Report(_report.graphs, _report.compiled, list(_report.fallbacks))
        if reset:
            _report = Report()
    return found


def backend(
    module: Any, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Compile a graph of dynamo: `torch.compile(model, backend="tensorkiln")`.

    `options={"target": ...}` is the target, as `tk.compile` takes it; with `"strict": True` a
    graph that cannot be imported is an UnsupportedError instead of being run by torch with a
    FallbackWarning. A call for which torch would record gradients raises UserError (code
    `training`).
    """
    import torch
    from torch._dynamo.backends.common import aot_autograd

    known = _checked(options)
    if torch.is_grad_enabled() and any(_has_gradient(x) for x in example_inputs):
        return _refuse_training
    weights = [_is_weight(x) for x in example_inputs]
    own = len(_own_weights(module))

    def compiler(graph: Any, fakes: Sequence[Any]) -> Boxed:
        # Weights that the module keeps become the first arguments. Where AOTAutograd has removed
        # arguments that are given twice, places do not fit.
        static = [True] * own + weights
        if len(static) != len(fakes):
            static = [False] * len(fakes)
        return _boxed(_Graph(graph, static, known))

    made: Callable[..., Any] = aot_autograd(
        fw_compiler=compiler, inference_compiler=compiler, decompositions=_decompositions()
    )(module, example_inputs)
    return made


def _checked(options: Mapping[str, Any] | None) -> dict[str, Any]:
    known = dict(options or {})
    for name in known:
        if name not in _OPTIONS:
            raise UserError(
                f"options: there is no {name!r}, expected {' or '.join(map(repr, _OPTIONS))}",
                code="bad-option",
                hint=nearest(str(name), _OPTIONS),
            )
    return known


def _decompositions() -> dict[Any, Any]:
    from torch._decomp import core_aten_decompositions

    from tensorkiln.frontend.torch.program import kept_whole

    table = dict(core_aten_decompositions())
    for op in kept_whole(list(table)):
        del table[op]
    return table


def _has_gradient(x: Any) -> bool:
    return bool(getattr(x, "requires_grad", False))


def _is_weight(x: Any) -> bool:
    """Whether an argument of a graph is a parameter or buffer of a module."""
    import torch

    return isinstance(x, torch.nn.Parameter) or (
        isinstance(x, torch.Tensor) and getattr(x, "_dynamo_static_input_type", None) is not None
    )


def _own_weights(module: Any) -> list[Any]:
    """Parameters and buffers that dynamo has left in its module, as inductor's option `freezing`
    has it do, in the order in which AOTAutograd lifts them."""
    kinds = (module.named_parameters, module.named_buffers)
    return [x for named in kinds for _, x in named(remove_duplicate=False)]


def _refuse_training(*args: Any) -> Any:
    raise UserError(
        "the backend compiles for inference, and torch would record gradients of this call",
        code="training",
        hint="call the model under torch.no_grad() or torch.inference_mode(), or use "
        "model.requires_grad_(False)",
    )


def _boxed(graph: _Graph) -> Boxed:
    """The graph as AOTAutograd calls it: with a list, which it may empty to free memory early."""

    def run(args: list[Any]) -> Any:
        return graph(args)

    vars(run)["_boxed_call"] = True  # how torch knows it
    return run


class _Graph:
    """One graph of ATen operators, compiled when it is called."""

    def __init__(self, graph: Any, static: Sequence[bool], options: Mapping[str, Any]) -> None:
        self.graph, self.options = graph, options
        self.places = [n for n in graph.graph.nodes if n.op == "placeholder"]
        self.static = [k for k, is_static in enumerate(static) if is_static]
        self.function: Callable[..., Any] | None = None
        self.inputs: list[int] = []
        self.weights: dict[int, tuple[Any, int]] = {}
        self.changes: dict[int, int] = {}
        self.lock = threading.Lock()
        output = next(n for n in graph.graph.nodes if n.op == "output")
        self.results = list(output.args[0])
        self.computes = any(hasattr(r, "meta") for r in self.results) and any(
            n.op == "call_function" for n in graph.graph.nodes
        )
        with _lock:
            _report.graphs += 1
            self.number = _report.graphs

    def __call__(self, args: list[Any]) -> Any:
        if not self.computes:
            return self.graph(*args)
        with self.lock:
            if self.function is None or self._changed(args):
                self.function = self._compiled(args)
            function = self.function
        return tuple(function(args))

    # -- weights --------------------------------------------------------------------------

    def _changed(self, args: Sequence[Any]) -> bool:
        """Whether weights are others than those that were compiled; those that change for the
        second time are arguments from then on."""
        found = [
            k
            for k, (x, version) in self.weights.items()
            if (args[k] is not x and args[k].data_ptr() != x.data_ptr())
            or _version(args[k]) != version
        ]
        for k in found:
            self.changes[k] = self.changes.get(k, 0) + 1
            if self.changes[k] > 1:
                self.static.remove(k)
        return bool(found)

    # -- compiling ------------------------------------------------------------------------

    def _compiled(self, args: Sequence[Any]) -> Callable[[list[Any]], list[Any]]:
        try:
            module, places = self._imported(args)
            return self._linked(module, places)
        except UnsupportedError as error:
            if self.options.get("strict"):
                raise
            return self._fallback(error)

    def _imported(self, args: Sequence[Any]) -> tuple[Any, list[int]]:
        from tensorkiln.frontend.torch.importer import Interface, import_graph
        from tensorkiln.frontend.torch.sizes import symbolic

        self.weights = {k: (args[k], _version(args[k])) for k in self.static}
        fakes = [node.meta["val"] for node in self.places]
        shapes = [getattr(fake, "shape", ()) for fake in fakes]
        told = {symbolic(size) for shape in shapes for size in shape}
        self.inputs = [
            k
            for k, fake in enumerate(fakes)
            if k not in self.weights
            # Numbers of Python are inputs unless they are the size of a tensor.
            and (
                hasattr(fake, "shape")
                or (symbolic(fake) is not None and symbolic(fake) not in told)
            )
        ]
        named = {self.places[k].name: f"x{k}" for k in self.inputs}
        places = [k for k, r in enumerate(self.results) if hasattr(r, "meta")]
        interface = Interface(
            {self.places[k].name: x for k, (x, _) in self.weights.items()},
            named,
            {k: f"y{k}" for k in places},
        )
        return import_graph(self.graph, interface, name=f"graph_{self.number}"), places

    def _linked(self, module: Any, places: Sequence[int]) -> Callable[[list[Any]], list[Any]]:
        from tensorkiln.pipeline import compile as compile_module
        from tensorkiln.runtime.module import Executor

        target = self.options.get("target")
        compiled = compile_module(module) if target is None else compile_module(module, target)
        function = Executor(compiled)["main"]
        with _lock:
            _report.compiled += 1
        orders = [_memory_order(self.results[k].meta["val"]) for k in places]
        single = len(places) == 1
        constants = [None if hasattr(r, "meta") else r for r in self.results]

        inputs = list(self.inputs)  # another thread may compile again with others

        def run(args: list[Any]) -> list[Any]:
            found = function(*(_given(args[k]) for k in inputs))
            outs = list(constants)
            several = [found] if single else found
            for k, made, order in zip(places, several, orders, strict=True):
                outs[k] = _returned(made, order)
            return outs

        return run

    def _fallback(self, error: UnsupportedError) -> Callable[[list[Any]], list[Any]]:
        nodes = sum(n.op == "call_function" for n in self.graph.graph.nodes)
        with _lock:
            _report.fallbacks.append(Fallback(self.number, nodes, error.issues))
        warnings.warn(
            f"torch runs graph {self.number} of {nodes} nodes: {error.message}",
            FallbackWarning,
            stacklevel=2,
        )
        self.static, self.weights = [], {}
        return lambda args: list(self.graph(*args))


def _version(x: Any) -> int:
    """How often torch has seen the tensor changed in place; inference tensors do not count."""
    return -1 if x.is_inference() else int(x._version)


def _given(x: Any) -> Any:
    """A tensor of torch as an argument: dense, row-major and without gradient; or a number."""
    if isinstance(x, int):
        return np.asarray(x, np.int64)
    return x.detach().resolve_conj().resolve_neg().contiguous()


def _returned(made: Any, order: Sequence[int] | None) -> Any:
    """A result as a tensor of torch that shares its memory, or, where torch's own result is not
    row-major, a copy whose dimensions lie in memory in `order`. None is for a size: a number."""
    import torch

    if made.dtype == "bfloat16":  # which NumPy's DLPack does not know
        tensor = torch.from_numpy(made.numpy().view("int16")).view(torch.bfloat16)
    else:
        tensor = torch.from_dlpack(made)
    if order is None:
        return tensor.item()
    if list(order) == list(range(tensor.ndim)):
        return tensor
    back = [order.index(d) for d in range(tensor.ndim)]
    return tensor.permute(list(order)).contiguous().permute(back)


def _memory_order(fake: Any) -> list[int] | None:
    """The dimensions of torch's result, the one with the largest stride first; None for a size.

    torch promises the strides of results to what comes after, views and other graphs.
    """
    if not hasattr(fake, "stride"):
        return None

    def known(size: Any) -> int:
        return size if isinstance(size, int) else int(size.node.hint)

    sizes, strides = [known(d) for d in fake.shape], [known(d) for d in fake.stride()]
    wide = [d for d in range(len(sizes)) if sizes[d] != 1]
    ordered = iter(sorted(wide, key=lambda d: (-strides[d], d)))
    # Dimensions of extent 1 may have any stride, and stay where they are.
    return [next(ordered) if sizes[d] != 1 else d for d in range(len(sizes))]
