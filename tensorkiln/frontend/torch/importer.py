"""Import a graph of ATen operators (torch.fx) node by node, and collect every issue."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensorkiln.base.errors import (
    InternalError,
    Issue,
    TensorkilnError,
    UnsupportedError,
    UserError,
)
from tensorkiln.frontend.graph.data_extents import extent_of
from tensorkiln.frontend.graph.dimensions import Dims
from tensorkiln.frontend.graph.issues import BodyRefused, NodeProblem, malformed, unsupported
from tensorkiln.frontend.graph.names import identifier
from tensorkiln.frontend.graph.results import main_function, with_interface
from tensorkiln.frontend.graph.values import SymbolicTensor, Val
from tensorkiln.frontend.torch import dispatch
from tensorkiln.frontend.torch.aten_complex import complex_importer
from tensorkiln.frontend.torch.bodies import HIGHER
from tensorkiln.frontend.torch.complex_values import (
    Complex,
    has_complex_result,
    is_complex,
    tensors,
)
from tensorkiln.frontend.torch.context import AtenContext
from tensorkiln.frontend.torch.sizes import Sizes, symbolic
from tensorkiln.frontend.torch.table import IMPORTERS, NOTHING, REASONS
from tensorkiln.frontend.torch.values import as_constant, dtype_name, part_name
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Expr, as_expr
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Constant, RVar, TensorType

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


# What torch asserts of the classes `x < num_classes` where it decomposes `one_hot`.
_CLASSES_INSIDE = "one_hot: Class values must be smaller than num_classes."
# The type of a number of Python.
NUMBER = TensorType((), DType("int64"))


@dataclass(frozen=True, slots=True)
class GraphInterface:
    """What the placeholders and results of a graph are to its user.

    `constants` are tensors by placeholder. `inputs` are names by placeholder, of those that become
    parameters, in order; one that is a number of Python, a SymInt, becomes a scalar. `outputs` are
    names by the place among the graph's results. `dims` are names of extents by their SymPy
    expressions, `ranges` torch's ranges of symbols.
    """

    constants: Mapping[str, Any]
    inputs: Mapping[str, str]
    outputs: Mapping[int, str]
    dims: Mapping[Any, str] = field(default_factory=dict)
    ranges: Mapping[Any, Any] = field(default_factory=dict)


def import_graph(
    module: Any,
    interface: GraphInterface,
    *,
    freeze: Mapping[str, int] | None = None,
    name: str,
    seed: int | None = None,
) -> IRModule:
    """The graph of a `torch.fx.GraphModule` as a module with one function, `main`.

    Every node needs torch's fake result, `node.meta["val"]`. `seed` is that of random numbers.
    Raises UnsupportedError with all issues; UserError for a wrong `freeze`.
    """
    importer = TorchImporter(module, interface, freeze, seed)
    ir_module = importer.run(name)
    if ir_module is None:
        raise UnsupportedError(importer.issues, where=name)
    return ir_module


class TorchImporter:
    """One import of one graph; call `run` once. `issues` lists what cannot be imported."""

    def __init__(
        self,
        module: Any,
        interface: GraphInterface,
        freeze: Mapping[str, int] | None = None,
        seed: int | None = None,
    ) -> None:
        self.module, self.interface = module, interface
        self.dims = Dims(freeze)
        self.sizes = Sizes(self.dims, interface.dims, interface.ranges)
        self.g = AtenContext(self.dims, self.sizes, seed)
        self.issues: list[Issue] = []
        # By node: a value, several of an operator with several results, or None if unknown.
        self.values: dict[Any, Any] = {}

    def run(self, name: str) -> IRModule | None:
        """The module, or None if there are `issues`."""
        self._params([n for n in self.module.graph.nodes if n.op == "placeholder"])
        self.dims.check_freeze()
        results = self._nodes()
        outs = [self._result(results[k], out) for k, out in self.interface.outputs.items()]
        if self.issues:
            return None
        variables = [o for o in outs if o is not None]
        if len(variables) != len(outs):
            raise InternalError("a result has no value, and no node says why", code="import-failed")
        return self._module(variables, name)

    def _nodes(self) -> Sequence[Any]:
        """Import the nodes of `self.module`, and return those that are its results."""
        results: Sequence[Any] = ()
        for node in self.module.graph.nodes:
            if node.op == "call_function":
                self._node(node)
            elif node.op == "get_attr":
                self._attribute(node)
            elif node.op == "output":
                (results,) = node.args
        return results if isinstance(results, list | tuple) else [results]

    def body(self, module: Any, operands: Sequence[Any]) -> list[Any]:
        """The results of a graph for these operands; BodyRefused if it has issues."""
        before, outer, span = len(self.issues), self.module, self.g.span
        symbols = dict(self.sizes.symbols)
        places = [n for n in module.graph.nodes if n.op == "placeholder"]
        if len(places) != len(operands):
            raise malformed(f"a body of {len(places)} operands for {len(operands)}")
        self.values.update(zip(places, operands, strict=True))
        try:
            self.module = module
            results = self._nodes()
            values = [self.argument(r) for r in results]
        finally:
            self.module, self.g.span = outer, span
            self.sizes.symbols = symbols  # a size that is bound in a body is not known outside
        if len(self.issues) != before or any(v is None for v in values):
            raise BodyRefused
        return values

    def submodule(self, node: Any) -> Any:
        """The module that a `get_attr` node names."""
        member = self.module
        for part in node.target.split("."):
            member = getattr(member, part)
        return member

    def _module(self, results: Sequence[RVar], name: str) -> IRModule:
        f = main_function(self.g.builder, results)
        attrs: dict[str, object] = {
            "input_names": tuple(self.interface.inputs.values()),
            "output_names": tuple(self.interface.outputs.values()),
        }
        return IRModule((with_interface(f, self.dims, attrs),), name)

    # -- inputs, constants and outputs --------------------------------------------------------

    def _params(self, placeholders: Sequence[Any]) -> None:
        by_name = {n.name: n for n in placeholders}
        inputs = [(by_name[n], name) for n, name in self.interface.inputs.items()]
        fakes = {name: node.meta["val"] for node, name in inputs}
        shapes = {name: fake.shape for name, fake in fakes.items() if hasattr(fake, "shape")}
        try:
            self.sizes.bind(shapes)
        except NodeProblem as problem:
            self._issue(problem, "inputs")
            return
        names: list[str] = []
        for node, name in inputs:
            try:
                type_ = NUMBER if name not in shapes else self._type(node.meta["val"])
            except NodeProblem as problem:
                self._issue(problem, name)
                continue
            word = identifier(name, names)
            names.append(word)
            self.values[node] = self.g.builder.param(word, type_)
            if name not in shapes:
                self.g.numbers[symbolic(fakes[name])] = self.values[node]
        for name, tensor in self.interface.constants.items():
            self._constant(by_name[name], tensor, name)

    def _constant(self, node: Any, tensor: Any, name: str) -> None:
        try:
            self.values[node] = as_constant(tensor, name)
        except NodeProblem as problem:
            if node.users:
                self._issue(problem, name)

    def _attribute(self, node: Any) -> None:
        """A tensor that the graph's module holds, such as a constant of the model's code."""
        attribute = self.submodule(node)
        if hasattr(attribute, "detach"):
            self._constant(node, attribute, node.target)

    def _type(self, fake: Any, name: Callable[[Any], str] = dtype_name) -> TensorType:
        if fake.device.type != "cpu":
            hint = "module.cpu(), and example inputs on the host"
            raise NodeProblem("device", f"a tensor on device {fake.device}", hint)
        shape = tuple(self.sizes.expr(d) for d in fake.shape)
        return TensorType(shape, DType(name(fake.dtype)))

    def _result(self, node: Any, name: str) -> RVar | None:
        """A result as a variable bound in the function; None if it depends on a refused node."""
        try:
            value = self.argument(node)
            if value is None:
                return None
            if isinstance(value, Complex):
                dtype_name(node.meta["val"].dtype)  # which refuses complex numbers, as of inputs
            if isinstance(value, Expr | bool | int | float):
                kind = "bool" if isinstance(value, bool) else "float32"
                whole = not isinstance(value, bool | float)
                value = self.g.number(value, "int64" if whole else kind)
            out = self.g.value(value)
        except NodeProblem as problem:
            self._issue(problem, name)
            return None
        if isinstance(out, Constant) or out in self.g.builder.params:
            out = self.g.builder.emit("identity", out, span=name)
        assert isinstance(out, RVar)
        return out

    # -- nodes --------------------------------------------------------------------------------

    def _node(self, node: Any) -> None:
        value = node.meta.get("val")
        if _name_of(node) in ("_local_scalar_dense", "item"):
            self._number(node, value)
        if symbolic(value) is not None or isinstance(value, bool | int | float):
            return  # a size, which `argument` reads from torch's own expression
        if node.target is operator.getitem:
            source = self.values.get(node.args[0])
            self.values[node] = None if source is None else source[node.args[1]]
            return
        label = f"{node.name}"
        try:
            self.values[node] = self._import(node)
        except NodeProblem as problem:
            self._issue(problem, label, node)
        except UserError as error:
            # Raised by an operator's type rule: the operands do not fit each other.
            kind = "dtype" if error.code.startswith("dtype") else "malformed"
            self._issue(NodeProblem(kind, error.message, error.hint), label, node)
        except (TensorkilnError, MemoryError):
            raise
        except Exception as error:
            raise InternalError(
                f"importing node {label!r} ({node.target}) failed: {type(error).__name__}: {error}",
                code="import-failed",
                where=_place(node),
            ) from error

    def _number(self, node: Any, value: Any) -> None:
        """Have the size that a tensor's element becomes bound where a shape needs it first."""
        x, e = self.values.get(node.args[0]), symbolic(value)
        if isinstance(x, Val) and x.tensor.dtype.is_int and e is not None and e.is_Symbol:
            self.sizes.later[e] = lambda: extent_of(self.g, x, f"the size {e}")

    def _import(self, node: Any) -> Any:
        """The node's value or values; None if an operand is unknown, and for checks."""
        higher = HIGHER.get(getattr(node.target, "__name__", ""))
        if higher is not None and not hasattr(node.target, "_schema"):
            if any(self.values.get(n) is None and _is_value(n) for n in node.all_input_nodes):
                return None
            self.g.span = node.name
            try:
                return self._with_sizes(node, higher(self, node))
            except BodyRefused:
                return None
        if not hasattr(node.target, "_schema"):
            raise unsupported(
                f"{getattr(node.target, '__name__', node.target)} is no operator of ATen",
                "torch.cond and torch.while_loop are imported: see docs/howto/torch.md",
                "operator",
            )
        name = dispatch.operator_name(node.target)
        if name in NOTHING:
            self._checked(name, node)
            return None
        importer = _importer(name, node)
        if any(self.values.get(n) is None and _is_tensor(n) for n in node.all_input_nodes):
            return None
        args = [self.argument(a) for a in node.args]
        named = {k: self.argument(v) for k, v in node.kwargs.items()}
        positional, options = dispatch.arguments(importer, node.target._schema, args, named)
        self._enter(node)
        out = importer(self.g, *positional, **options)
        return self._with_sizes(node, self._agreed(node, out))

    def _with_sizes(self, node: Any, outputs: Any) -> Any:
        """`outputs`, whose extents are what torch's symbols of sizes from data stand for."""
        fakes = node.meta.get("val")
        pairs = (
            zip(fakes, outputs, strict=False)
            if isinstance(fakes, tuple | list)
            else [(fakes, outputs)]
        )
        for fake, value in pairs:
            for part in tensors(value) if hasattr(fake, "shape") else ():
                for d, extent in zip(fake.shape, part.tensor.shape, strict=False):
                    self.sizes.decide(d, extent)
        return outputs

    def _checked(self, name: str, node: Any) -> None:
        """Assertions on sizes become assumptions; those on data are refused with what makes it.
        Classes that torch.compile asserts to be inside are checked as indices are."""
        if name == "_assert_async.msg" and node.args[1] == _CLASSES_INSIDE:
            classes, count = node.args[0].all_input_nodes[0].args
            self.g.span = node.name
            inside = self.g.inside(self.values[classes], as_expr(count), negative=False)
            self.values[classes] = inside
        if name == "_assert_scalar":
            condition = node.args[0]
            value = condition.meta["val"] if hasattr(condition, "meta") else condition
            try:
                cond = self.sizes.condition(value)
            except NodeProblem:
                return  # of a size that data decides, and the node that makes it is refused
            # What torch says of a size that data decides is checked where it is bound.
            if not self.dims.holds(cond) and not self.dims.is_computed(cond):
                self.dims.assume(cond)

    def _enter(self, node: Any) -> None:
        value = node.meta.get("val")
        many = isinstance(value, tuple | list)
        fakes = list(value) if many else [value]
        self.g.span = node.name
        self.g.fakes = tuple(n.meta.get("val") for n in node.all_input_nodes)
        self.g.results = tuple(
            self._type(v, part_name)
            if hasattr(v, "shape") and hasattr(v, "dtype") and not self.sizes.are_open(v.shape)
            else None
            for v in fakes
        )
        self.g.used = frozenset(
            {n.args[1] for n in node.users if n.target is operator.getitem} if many else {0}
        )

    def _agreed(self, node: Any, out: Any) -> Any:
        """`out`, if its types are those that torch finds; InternalError otherwise."""
        values = [out] if isinstance(out, RVar | Constant | SymbolicTensor | Complex) else list(out)
        for k, (value, want) in enumerate(zip(values, self.g.results, strict=False)):
            if value is None or want is None or k not in self.g.used:
                continue
            for tensor_type in (part.tensor for part in tensors(value)):
                if not _agree(tensor_type, want):
                    raise InternalError(
                        f"importing {node.target} gives {tensor_type}, torch says {want}",
                        code="import-failed",
                        where=_place(node),
                    )
        missing = [k for k in self.g.used if k >= len(values) or values[k] is None]
        if missing:
            raise unsupported(f"result {missing[0]} of it is used")
        return values if isinstance(node.meta.get("val"), tuple | list) else values[0]

    def argument(self, value: Any) -> Any:
        """An argument of a node: tensors as values, sizes as expressions, the rest as it is."""
        if isinstance(value, list | tuple):
            return [self.argument(v) for v in value]
        if not hasattr(value, "meta") or not hasattr(value, "op"):
            return value
        if _is_tensor(value):
            return self.values.get(value)
        size = value.meta.get("val")
        if isinstance(size, bool | float):
            return size
        if _name_of(value) in ("_local_scalar_dense", "item"):
            return self.values.get(value.args[0])  # a scalar tensor instead of Python's number
        if type(size).__name__ == "SymFloat":
            return self.g.computed(symbolic(size), "float64")
        if type(size).__name__ == "SymBool":
            return self.sizes.condition(size)
        e = symbolic(size)
        if e is not None and e.free_symbols & set(self.g.numbers):
            return self.g.computed(e, "int64")
        return self.sizes.expr(size)

    def _issue(self, problem: NodeProblem, label: str, node: Any = None) -> None:
        op = "" if node is None else str(node.target)
        place = "" if node is None else _place(node)
        message = f"{problem.message} (in {place})" if place else problem.message
        issue = Issue(problem.kind, label, op, message, problem.hint)
        if issue not in self.issues:
            self.issues.append(issue)


def _agree(a: TensorType, b: TensorType) -> bool:
    """Whether types are the same as far as they have numbers."""
    numbers = (a.static_shape(), b.static_shape())
    equal_numbers = None in numbers or numbers[0] == numbers[1]
    return a.dtype == b.dtype and a.ndim == b.ndim and equal_numbers


def _importer(name: str, node: Any) -> dispatch.AtenImporter:
    """The importer of a node's operator, for complex numbers if it has some."""
    fakes = [n.meta.get("val") for n in (node, *node.all_input_nodes)]
    if has_complex_result(fakes) or is_complex(node.args):
        return complex_importer(name, IMPORTERS)
    return dispatch.find(IMPORTERS, REASONS, name)


def _name_of(node: Any) -> str:
    is_operator = node.op == "call_function" and hasattr(node.target, "_schema")
    return dispatch.operator_name(node.target) if is_operator else ""


def _is_tensor(node: Any) -> bool:
    value = node.meta.get("val")
    if isinstance(value, tuple | list):
        return True
    return node.op == "get_attr" or hasattr(value, "shape")


def _is_value(node: Any) -> bool:
    return node.op != "get_attr" and _is_tensor(node)


def _place(node: Any) -> str:
    """Where in the model's code a node comes from: `layers.0 (Block), model.py:12`."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    parts = []
    if stack:
        path, kind = stack[-1][:2]
        # Before `forward` has a name, torch calls the module itself `L['self']` or `L__self__`.
        path = re.sub(r"^L(?:\['\w+'\]|__self__)\.?", "", str(path))
        kind = kind if isinstance(kind, str) else getattr(kind, "__name__", str(kind))
        kind = kind.rsplit(".", 1)[-1]
        parts.append(f"{path} ({kind})" if path else kind)
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    model_frames = [f for f in frames if not _of_torch(f[0])] or frames
    if model_frames:
        parts.append(f"{Path(model_frames[-1][0]).name}:{model_frames[-1][1]}")
    return ", ".join(parts)


def _of_torch(file: str) -> bool:
    """Whether a file of a stack belongs to torch itself."""
    import torch

    return file.startswith(("torch/", str(Path(torch.__file__).parent)))
