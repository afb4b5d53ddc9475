"""The backend `tensorkiln` of `torch.compile`.

Dynamo traces a model to a graph of torch's operators, and AOTAutograd turns that into a graph of
ATen operators without mutation. The graph is imported and compiled at its first call, when the
weights are known: they become constants, which kernels need packed. A later call with other weights
compiles the graph again, and weights that change a second time become arguments. A graph that
cannot be imported is run by torch, with a warning.
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
    """Torch runs a graph of `torch.compile` itself, since the graph cannot be imported."""


@dataclass(frozen=True, slots=True)
class Fallback:
    """A graph that torch runs itself, with an issue for each node that cannot be imported."""

    graph: int
    nodes: int
    issues: tuple[Issue, ...]


@dataclass(slots=True)
class DynamoReport:
    """The graphs that `torch.compile` has given to the backend in this process. `graphs` is their
    number, `compiled` the number of compiles (more than one of a graph if its weights changed), and
    `fallbacks` are the graphs that torch runs."""

    graphs: int = 0
    compiled: int = 0
    fallbacks: list[Fallback] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{self.graphs} graphs, compiled {self.compiled} times; torch runs:"]
        for fallback in self.fallbacks:
            reasons = "; ".join(f"{i.op or i.node}: {i.message}" for i in fallback.issues)
            lines.append(f"  graph {fallback.graph} of {fallback.nodes} nodes: {reasons}")
        return "\n".join(lines) if self.fallbacks else lines[0].removesuffix("; torch runs:")


_report = DynamoReport()
_lock = threading.Lock()


def report(*, reset: bool = False) -> DynamoReport:
    """The report so far; with `reset`, counting starts again."""
    global _report
    with _lock:
        snapshot = DynamoReport(_report.graphs, _report.compiled, list(_report.fallbacks))
        if reset:
            _report = DynamoReport()
    return snapshot


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

    settings = _checked(options)
    if torch.is_grad_enabled() and any(_has_gradient(x) for x in example_inputs):
        return _refuse_training
    weights = [_is_weight(x) for x in example_inputs]
    weight_count = len(_own_weights(module))

    def compiler(graph: Any, fakes: Sequence[Any]) -> Boxed:
        # Weights that the module keeps become the first arguments. Where AOTAutograd has removed
        # arguments that are given twice, places do not fit.
        static = [True] * weight_count + weights
        if len(static) != len(fakes):
            static = [False] * len(fakes)
        return _boxed(_Graph(graph, static, settings))

    executable: Callable[..., Any] = aot_autograd(
        fw_compiler=compiler, inference_compiler=compiler, decompositions=_decompositions()
    )(module, example_inputs)
    return executable


def _checked(options: Mapping[str, Any] | None) -> dict[str, Any]:
    settings = dict(options or {})
    for name in settings:
        if name not in _OPTIONS:
            raise UserError(
                f"options: there is no {name!r}, expected {' or '.join(map(repr, _OPTIONS))}",
                code="bad-option",
                hint=nearest(str(name), _OPTIONS),
            )
    return settings


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
    """Parameters and buffers that dynamo has left in the module, as with inductor's option
    `freezing`, in the order in which AOTAutograd turns them into arguments."""
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
    """The graph in AOTAutograd's "boxed" calling convention: the arguments are one list, which the
    callee may empty to free memory early."""

    def run(args: list[Any]) -> Any:
        return graph(args)

    vars(run)["_boxed_call"] = True  # how torch knows it
    return run


class _Graph:
    """One graph of ATen operators, which is compiled when it is called."""

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
        """Whether weights have changed since the graph was compiled. Those that change a second
        time are arguments from then on."""
        changes = [
            k
            for k, (x, version) in self.weights.items()
            if (args[k] is not x and args[k].data_ptr() != x.data_ptr())
            or _version(args[k]) != version
        ]
        for k in changes:
            self.changes[k] = self.changes.get(k, 0) + 1
            if self.changes[k] > 1:
                self.static.remove(k)
        return bool(changes)

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
        from tensorkiln.frontend.torch.importer import GraphInterface, import_graph
        from tensorkiln.frontend.torch.sizes import symbolic

        self.weights = {k: (args[k], _version(args[k])) for k in self.static}
        fakes = [node.meta["val"] for node in self.places]
        shapes = [getattr(fake, "shape", ()) for fake in fakes]
        symbols = {symbolic(size) for shape in shapes for size in shape}
        self.inputs = [
            k
            for k, fake in enumerate(fakes)
            if k not in self.weights
            # Numbers of Python are inputs unless they are the size of a tensor.
            and (
                hasattr(fake, "shape")
                or (symbolic(fake) is not None and symbolic(fake) not in symbols)
            )
        ]
        named = {self.places[k].name: f"x{k}" for k in self.inputs}
        places = [k for k, r in enumerate(self.results) if hasattr(r, "meta")]
        interface = GraphInterface(
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
            outputs = function(*(_given(args[k]) for k in inputs))
            outs = list(constants)
            several = [outputs] if single else outputs
            for k, output, order in zip(places, several, orders, strict=True):
                outs[k] = _returned(output, order)
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
    """Torch's count of in-place changes of a tensor; -1 for inference tensors, which have none."""
    return -1 if x.is_inference() else int(x._version)


def _given(x: Any) -> Any:
    """A torch argument as the library takes it: dense, row-major and without gradient; or a
    number."""
    if isinstance(x, int):
        return np.asarray(x, np.int64)
    return x.detach().resolve_conj().resolve_neg().contiguous()


def _returned(array: Any, order: Sequence[int] | None) -> Any:
    """A result as a torch tensor that shares its memory or, if torch's own result would not be
    row-major, a copy with its dimensions in memory in `order`. If `order` is None, the result is a
    size, and returned as a number."""
    import torch

    if array.dtype == "bfloat16":  # which NumPy's DLPack does not know
        tensor = torch.from_numpy(array.numpy().view("int16")).view(torch.bfloat16)
    else:
        tensor = torch.from_dlpack(array)
    if order is None:
        return tensor.item()
    if list(order) == list(range(tensor.ndim)):
        return tensor
    back = [order.index(d) for d in range(tensor.ndim)]
    return tensor.permute(list(order)).contiguous().permute(back)


def _memory_order(fake: Any) -> list[int] | None:
    """The dimensions of torch's own result by descending stride; None if the result is a size.

    Torch guarantees the strides of results to whatever reads them, such as views and other graphs.
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
