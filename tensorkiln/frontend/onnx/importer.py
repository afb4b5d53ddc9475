"""Import a model's nodes in topological order, and collect every issue instead of the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tensorkiln.base.errors import InternalError, Issue, TensorkilnError, UserError
from tensorkiln.base.nesting import too_deep
from tensorkiln.frontend.graph.dimensions import Dims
from tensorkiln.frontend.graph.issues import NodeProblem, RanksDiffer
from tensorkiln.frontend.graph.names import identifier
from tensorkiln.frontend.graph.results import main_function, with_interface
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx import bodies, control, dispatch, narrow
from tensorkiln.frontend.onnx.choices import over_axes
from tensorkiln.frontend.onnx.context import OnnxContext
from tensorkiln.frontend.onnx.dim_params import parse_dim
from tensorkiln.frontend.onnx.forms import formed
from tensorkiln.frontend.onnx.graph_values import EmptyOptional, GraphValue, TensorList, apply
from tensorkiln.frontend.onnx.growth import shortened
from tensorkiln.frontend.onnx.inputs import declared, input_type, with_shapes
from tensorkiln.frontend.onnx.load import ParsedModel
from tensorkiln.frontend.onnx.narrow import Narrow
from tensorkiln.frontend.onnx.order import execution_order, made_twice, reads
from tensorkiln.frontend.onnx.places import place_of
from tensorkiln.frontend.onnx.plugins import FAULTS, Importers, installed_importers
from tensorkiln.frontend.onnx.proto import (
    AttributeProto,
    FunctionProto,
    NodeProto,
    OnnxGraph,
    OpsetId,
    TensorProto,
    ValueInfo,
)
from tensorkiln.frontend.onnx.results import array_types, distinct
from tensorkiln.frontend.onnx.scope import UNKNOWN, GraphScope, Unknown, resolved, without_optional
from tensorkiln.frontend.onnx.stand_ins import BY_NAME, declared_types, is_doubtful, stand_ins
from tensorkiln.frontend.onnx.table import DOMAINS
from tensorkiln.frontend.onnx.tensors import DTYPES, OTHER_DTYPES, to_constant
from tensorkiln.frontend.onnx.texts import Texts
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Constant, RVar

# The opsets whose operators the importers know. Of newer ones, as far as the package `onnx` has
# them, they import the operators whose definition is not newer, and others by their bodies.
OLDEST_OPSET, NEWEST_OPSET = 7, 28
ONNX_DOMAINS = ("", "ai.onnx")


class Importer:
    """One import of one model; call `run` once. `issues` lists what cannot be imported."""

    def __init__(
        self,
        source: ParsedModel,
        freeze: Mapping[str, int] | None,
        shapes: Mapping[str, Sequence[int | str | None]] | None = None,
    ) -> None:
        self.source = source
        self.shapes = {} if shapes is None else shapes  # of inputs that declare none
        self.dims = Dims(freeze)
        self.g = OnnxContext(self.dims)
        self.issues: list[Issue] = []
        self.named: dict[str, RVar] = {}  # the model's values that are tensors computed by bindings
        self.unrolled = 0  # steps of loops so far
        self.splits = 0  # branches of different ranks, one in another, that are being imported
        self.texts: dict[str, tuple[str, ...]] = {}  # by result: the strings that numbers stand for
        self.array_types: dict[RVar, str] = {}  # of inputs and results, if not the tensor's own
        self.installed: dict[str, Importers] = {}  # by domain, as far as nodes asked for them
        self.functions = {
            (_domain(f.domain), f.name, f.overload): f for f in source.model.functions
        }

    # -- the whole model --------------------------------------------------------------------

    def run(self) -> IRModule | None:
        """Return the module, or None if there are `issues`.

        Raises UserError for unreadable external data and for a wrong `freeze`, InternalError for
        an unexpected exception in an importer.
        """
        graph = self.source.model.graph
        assert graph is not None
        scope = GraphScope(self._opsets(self.source.model.opset_import), infos=graph.value_info)
        self._check_outputs(graph)
        for t in graph.initializer:
            if not t.name:
                self._issue("malformed", "initializer", "", "an initializer has no name")
            scope.values[t.name] = t
        if graph.sparse_initializer:
            self._issue("dtype", "graph", "", "sparse initializers are not supported")
        inputs = self._params(graph, scope)
        self.dims.check_freeze()
        self.nodes(graph.node, scope, [o.name for o in graph.output])
        results = distinct([r for o in graph.output for r in self._results(o.name, scope)])
        if self.issues:
            return None
        self.named = {n: v for n, v in scope.values.items() if isinstance(v, RVar)}
        return self._module(graph, inputs, results)

    def _opsets(self, imports: Sequence[OpsetId]) -> dict[str, int]:
        opsets = {_domain(o.domain): o.version for o in imports}
        version = opsets.get("")
        graph = self.source.model.graph
        uses_onnx = graph is None or any(_domain(n.domain) == "" for n in graph.node)
        if version is None and uses_onnx and not self.source.model.functions:
            self._issue("malformed", "model", "", "the model declares no opset of ONNX")
        elif version is not None and not OLDEST_OPSET <= version <= NEWEST_OPSET:
            newest = max(NEWEST_OPSET, bodies.newest_opset())
            if not OLDEST_OPSET <= version <= newest:
                self._issue(
                    "opset",
                    "model",
                    "",
                    f"opset {version} is not supported",
                    f"supported: {OLDEST_OPSET} to {newest}; "
                    "onnx.version_converter.convert_version converts models",
                )
        return {"": 0, **opsets}

    def _check_outputs(self, graph: OnnxGraph) -> None:
        names = [o.name for o in graph.output]
        if not names:
            self._issue("malformed", "graph", "", "the graph has no outputs")

    def _module(
        self, graph: OnnxGraph, inputs: Sequence[ValueInfo], named: Sequence[tuple[str, RVar]]
    ) -> IRModule:
        f = main_function(self.g.builder, [value for _, value in named])
        attrs: dict[str, object] = {
            "input_names": tuple(v.name for v in inputs),
            "output_names": tuple(name for name, _ in named),
        }
        if self.texts:
            attrs["texts"] = tuple((name, *table) for name, table in self.texts.items())
        ends = [*zip((v.name for v in inputs), f.params, strict=True), *named]
        attrs |= array_types(f, {n: self.array_types.get(v, "") for n, v in ends})
        f = with_interface(f, self.dims, attrs)
        # The file name comes first: exporters give every graph the same name.
        return IRModule((f,), self.source.file_name or graph.name or "model")

    # -- inputs and outputs -------------------------------------------------------------------

    def _params(self, graph: OnnxGraph, scope: GraphScope) -> list[ValueInfo]:
        """Make parameters of the graph inputs that have no initializer, and return these inputs."""
        shaped = with_shapes(graph, self.shapes, declared_types(scope))
        inputs = [v for v in shaped if v.name not in scope.values]
        plain = {d.param for v in inputs for d in declared(v) if parse_dim(d.param) is None}
        names: list[str] = []
        for v in inputs:
            if v.name in scope.values:
                self._issue("malformed", v.name, "", "an input is listed twice")
                continue
            try:
                type_, format = input_type(v, plain, self.dims)
            except NodeProblem as problem:
                self._issue(problem.kind, v.name, "", problem.message, problem.hint)
                scope.values[v.name] = UNKNOWN
                continue
            name = identifier(v.name, names)
            names.append(name)
            param = self.g.builder.param(name, type_)
            scope.values[v.name] = param
            if format is not None:
                self.g.span, self.array_types[param] = v.name, format.row.name
                scope.values[v.name] = narrow.taken(self.g, param, format)
        return inputs

    def _results(self, name: str, scope: GraphScope) -> list[tuple[str, RVar]]:
        """The output's name and variable; of a sequence, those of its tensors, `name/0` and so on.

        Empty if the output is undefined or unsupported, or depends on a node that is.
        """
        try:
            value = self._lookup(name, scope)
            if value is None:
                raise NodeProblem("malformed", f"output {name!r} is not made by any node")
            if isinstance(value, Unknown):
                return []
            self.g.span = name
            if isinstance(value, TensorList):
                if not value.items:
                    raise NodeProblem("attribute", f"output {name!r} is an empty sequence")
                return [(f"{name}/{k}", self._bound(v)) for k, v in enumerate(value.items)]
            if isinstance(value, EmptyOptional):
                raise NodeProblem("attribute", f"output {name!r} is an empty optional")
            if isinstance(value, Texts):
                self.texts[name] = value.table
            return [(name, self._bound(value))]
        except NodeProblem as problem:
            self._issue(problem.kind, "graph", "", problem.message, problem.hint)
            return []

    def _bound(self, value: Val | Narrow | Texts) -> RVar:
        """A tensor as a variable bound in the function; parameters and constants are copied."""
        plain = value.stored if isinstance(value, Narrow) else value
        out = self.g.value(plain.numbers if isinstance(plain, Texts) else plain)
        if isinstance(out, Constant) or out in self.g.builder.params:
            out = self.g.builder.emit("identity", out, span=self.g.span)
        assert isinstance(out, RVar)
        if isinstance(value, Narrow):
            self.array_types[out] = value.format.row.name
        return out

    # -- nodes --------------------------------------------------------------------------------

    def nodes(self, nodes: Sequence[NodeProto], scope: GraphScope, results: Sequence[str]) -> None:
        """Import nodes, whose values `results` are read, into the scope."""
        scope.used = {name for n in nodes for name in reads(n)} | set(results)
        ordered, cycle = execution_order(nodes)
        for node, out in made_twice(nodes, scope.values):
            label = scope.prefix + node.label
            self._issue("malformed", label, node.op_type, f"value {out!r} is made twice")
        self.in_order(ordered, scope, results)
        if cycle:
            names = ", ".join(repr(n.label) for n in cycle[:4])
            self._issue(
                "malformed",
                scope.prefix + cycle[0].label,
                cycle[0].op_type,
                f"the graph has a cycle through {names}",
            )
            for node in cycle:
                scope.values.update({o: UNKNOWN for o in node.output if o})

    def in_order(
        self, nodes: Sequence[NodeProto], scope: GraphScope, results: Sequence[str]
    ) -> None:
        """Import nodes that are in topological order."""
        for k, node in enumerate(nodes):
            try:
                self._node(node, scope)
            except RanksDiffer as problem:
                control.in_both(self, node, nodes[k + 1 :], scope, results, problem)
                return

    def _node(self, node: NodeProto, scope: GraphScope) -> None:
        label = scope.prefix + node.label
        doubtful, before = is_doubtful(reads(node), scope), len(self.issues)
        outputs: Sequence[GraphValue | Unknown] = ()
        try:
            outputs = [shortened(self.g, v) for v in self._import(node, scope)]
        except RanksDiffer:
            raise
        except NodeProblem as problem:
            self.node_issue(problem.kind, node, scope, problem.message, problem.hint)
        except UserError as error:
            if error.code in ("missing-file", "unsafe-path", "short-file", *FAULTS):
                raise
            # Raised by an operator's type rule: the operands do not fit each other.
            kind = "dtype" if error.code.startswith("dtype") else "malformed"
            self.node_issue(kind, node, scope, error.message, error.hint)
        except MemoryError:
            self.node_issue("malformed", node, scope, "not enough memory to import it")
        except TensorkilnError:
            raise
        except Exception as error:
            raise self._failed(label, node, error) from error
        if doubtful:
            scope.doubtful.update(node.output)
            self.issues[before:] = [i for i in self.issues[before:] if i.kind in BY_NAME]
        outputs = outputs or stand_ins(self.g, node, scope)
        for i, name in enumerate(node.output):
            if name:
                scope.values[name] = outputs[i] if i < len(outputs) else UNKNOWN

    def _failed(self, label: str, node: NodeProto, error: Exception) -> TensorkilnError:
        if isinstance(error, RecursionError):
            return too_deep(f"{label} ({node.op_type})")
        return InternalError(
            f"importing node {label!r} ({node.op_type}) failed: {type(error).__name__}: {error}",
            code="import-failed",
            where=self.source.where,
        )

    def _import(self, node: NodeProto, scope: GraphScope) -> Sequence[GraphValue | Unknown]:
        """Import a node and return its outputs, which are all UNKNOWN if an operand is.

        Raises NodeProblem if the node is malformed or not supported.
        """
        attrs = [resolved(a, scope) for a in node.attribute]
        attributes = [a for a in attrs if a is not None]
        domain = _domain(node.domain)
        function = self.functions.get((domain, node.op_type, node.overload))
        if function is not None:
            return self._inline(function, node, attributes, scope)
        if domain in ONNX_DOMAINS and node.op_type in control.OPERATORS:
            return control.OPERATORS[node.op_type](self, node, attributes, scope)
        assumed = len(self.dims.assumed)
        try:
            return self._by_importer(node, attributes, scope)
        except NodeProblem as problem:
            if problem.kind not in ("operator", "attribute", "opset"):
                raise
            del self.dims.assumed[assumed:]
            return self._by_body(node, attributes, scope, problem)

    def _by_importer(
        self, node: NodeProto, attributes: Sequence[AttributeProto], scope: GraphScope
    ) -> Sequence[GraphValue | Unknown]:
        """Import a node by the table of importers."""
        domain = _domain(node.domain)
        opset = scope.opsets.get(domain, 1)
        importer = dispatch.find(self._table(domain, node.op_type), node.op_type, opset)
        if not domain and opset > NEWEST_OPSET:
            bodies.check_known(node.op_type, opset, NEWEST_OPSET)
        values = dispatch.attributes(importer, attributes, self.source.files)
        dispatch.check_operands(importer, node.operands)
        operands = self.operands(node, scope)
        if any(isinstance(v, Unknown) for v in operands):
            return [UNKNOWN] * len(node.output)
        self.enter(node, scope)
        name = f"{domain}.{node.op_type}" if domain else node.op_type
        held_values = [v for v in operands if not isinstance(v, Unknown)]
        result = apply(
            name,
            over_axes(self.g, name, lambda *args: importer(self.g, *args, **values)),
            formed(self.g, name, held_values, attributes),
        )
        if any(self.g.outputs[len(result) :]):
            raise NodeProblem(
                "malformed", f"it has {len(node.output)} outputs, expected {len(result)}"
            )
        return result

    def _table(self, domain: str, op: str) -> dispatch.Table:
        """The importers of a domain: ours, or those of an installed package, which must have the
        operator. NodeProblem if nobody has any."""
        if domain in DOMAINS:
            return DOMAINS[domain]
        if domain not in self.installed:
            self.installed[domain] = installed_importers(domain)
        return self.installed[domain].having(op)

    def _by_body(
        self,
        node: NodeProto,
        attributes: Sequence[AttributeProto],
        scope: GraphScope,
        problem: NodeProblem,
    ) -> Sequence[GraphValue | Unknown]:
        """Import a node by the function body that the standard defines it by.

        `problem` is why no importer does; it is raised if there is no body, or if the body holds
        what cannot be imported either and the operator has an importer.
        """
        domain = _domain(node.domain)
        opset = scope.opsets.get(domain, 0)
        schema = bodies.schema_of(node.op_type, domain, opset)
        if schema is None:
            problem.hint = problem.hint or bodies.hint_for(node.op_type)
            raise problem
        operands = self.operands(node, scope)
        if any(isinstance(v, Unknown) for v in operands):
            if not bodies.has_body(schema):
                raise problem
            bodies.check_attributes(schema, attributes)
            return [UNKNOWN] * len(node.output)
        if any(isinstance(v, Narrow | TensorList | EmptyOptional | Texts) for v in operands):
            raise problem
        types = [v.tensor if isinstance(v, Val) else None for v in operands]
        called = replace(node, attribute=tuple(attributes))
        body = bodies.body_of(schema, called, types, opset)
        if body is None:
            raise problem
        before = len(self.issues)
        self.enter(node, scope)
        name = f"{domain}.{node.op_type}" if domain else node.op_type
        operands = formed(self.g, name, operands, attributes)
        outputs = self._inline(body, node, attributes, scope, operands)
        issues = self.issues[before:]
        if not issues:
            return outputs
        del self.issues[before:]
        if problem.kind == "attribute":
            raise problem
        inner = issues[0].node.removeprefix(f"{scope.prefix}{node.label}/")
        raise NodeProblem(
            issues[0].kind,
            f"the standard defines it by other operators, and of these {issues[0].op} ({inner}) "
            f"cannot be imported: {issues[0].message}",
            issues[0].hint,
        )

    def enter(self, node: NodeProto, scope: GraphScope) -> None:
        """Let the context describe the node."""
        self.g.span = scope.prefix + node.label
        # An importer need not compute outputs that are never used, such as masks and indices.
        self.g.outputs = tuple(o if o in scope.used else "" for o in node.output)
        self.g.opset = scope.opsets[""]

    def operands(self, node: NodeProto, scope: GraphScope) -> list[GraphValue | Unknown | None]:
        """The operands up to the last that is given; None for one that is left out."""
        return [self.operand(name, scope) for name in node.operands]

    def operand(self, name: str, scope: GraphScope) -> GraphValue | Unknown | None:
        """What an operand's name stands for, None for one that is left out; NodeProblem if nothing
        has the name."""
        if not name:
            return None
        value = self._lookup(name, scope)
        if value is None:
            raise NodeProblem(
                "malformed", f"operand {name!r} is neither an input nor made by a node"
            )
        return value

    def _lookup(self, name: str, scope: GraphScope) -> GraphValue | Unknown | None:
        value = scope.find(name)
        if isinstance(value, TensorProto):
            constant = to_constant(value, self.source.files, name)
            owner: GraphScope | None = scope
            while owner is not None and name not in owner.values:
                owner = owner.outer
            assert owner is not None
            owner.values[name] = constant
            return constant
        return value

    # -- functions and branches ---------------------------------------------------------------

    def _inline(
        self,
        f: FunctionProto,
        node: NodeProto,
        attributes: Sequence[AttributeProto],
        scope: GraphScope,
        arguments: Sequence[GraphValue | Unknown | None] | None = None,
    ) -> Sequence[GraphValue | Unknown]:
        """Import a call of a function as the nodes of its body, in a new scope: of a model's
        function all, of a standard's, whose operands are known, those that used outputs need."""
        if scope.depth >= control.MAX_DEPTH:
            raise NodeProblem("malformed", f"function {f.name!r} calls itself, or calls too deep")
        if len(node.input) > len(f.input) or len(node.output) > len(f.output):
            raise NodeProblem(
                "malformed", f"function {f.name!r} has fewer operands or outputs than its call"
            )
        attrs = {a.name: a for a in (*f.attribute_proto, *attributes)}
        opsets = {_domain(o.domain): o.version for o in f.opset_import}
        inner = GraphScope(
            {"": scope.opsets[""], **opsets},
            f"{scope.prefix}{node.label}/",
            scope.depth + 1,
            attrs=attrs,
        )
        unused = arguments is None
        operands = [self.operand(n, scope) for n in node.input] if arguments is None else arguments
        for name, value in zip(f.input, operands, strict=False):
            if value is not None:
                inner.values[name] = value
        missing = f.input[len(operands) :]
        read = [o in scope.used for o in node.output]
        results = [n for n, is_read in zip(f.output, read, strict=False) if is_read]
        body = f.node if unused else bodies.needed_nodes(f, results)
        nodes = without_optional(body, {*missing, *self._absent(f, operands)})
        self.nodes(nodes, inner, f.output if unused else results)
        return [
            self.inner_result(n, inner) if unused or is_read else UNKNOWN
            for n, is_read in zip(f.output, read, strict=False)
        ]

    @staticmethod
    def _absent(f: FunctionProto, operands: Sequence[object]) -> list[str]:
        return [n for n, v in zip(f.input, operands, strict=False) if v is None]

    def inner_result(self, name: str, scope: GraphScope) -> GraphValue | Unknown:
        """As `operand`, for a result of a body in the body's scope."""
        value = self._lookup(name, scope)
        if value is None:
            raise NodeProblem("malformed", f"output {name!r} of the body is not made by any node")
        return value

    def _issue(self, kind: str, node: str, op: str, message: str, hint: str = "") -> None:
        self.issues.append(Issue(kind, node, op, message, hint))

    def node_issue(
        self, kind: str, node: NodeProto, scope: GraphScope, message: str, hint: str = ""
    ) -> None:
        """Record why a node cannot be imported, with all that is known of the node."""
        domain = _domain(node.domain)
        version = scope.opsets.get(domain)
        opset = f"{domain} {version or '?'}" if domain else str(version or "?")
        values = (scope.find(name) for name in node.operands)
        self.issues.append(
            Issue(
                kind,
                scope.prefix + node.label,
                node.op_type,
                message,
                hint,
                opset,
                tuple(filter(None, map(_type_of, values))),
                place_of(node),
            )
        )


def _type_of(value: object) -> str:
    """The element type of what an operand stands for; empty if it is not known."""
    if isinstance(value, TensorProto):
        return DTYPES.get(value.data_type) or OTHER_DTYPES.get(value.data_type, "")
    if isinstance(value, Narrow):
        return value.format.name
    return value.tensor.dtype.name if isinstance(value, Val) else ""


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain
