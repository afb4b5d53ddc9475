"""What the inputs, constants and outputs of an ExportedProgram are called, and what it changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensorkiln.base.errors import Issue, UnsupportedError, UserError
from tensorkiln.frontend.torch.arguments import check_count
from tensorkiln.frontend.torch.dispatch import operator_name
from tensorkiln.frontend.torch.importer import GraphInterface, import_graph
from tensorkiln.frontend.torch.sizes import symbolic
from tensorkiln.frontend.torch.table import IMPORTERS
from tensorkiln.ir.module import IRModule

_CONSTANTS = ("PARAMETER", "BUFFER", "CONSTANT_TENSOR")
_MUTATIONS = ("BUFFER_MUTATION", "PARAMETER_MUTATION", "USER_INPUT_MUTATION")


def kept_whole(operators: Any) -> list[Any]:
    """Those of torch's operators with a decomposition that have an importer, so that they stay.

    torch can only keep operators whose results are no views of their operands.
    """
    return [
        op
        for op in operators
        if hasattr(op, "_schema")
        and operator_name(op) in IMPORTERS
        and not any(a.alias_info for a in (*op._schema.arguments, *op._schema.returns))
    ]


def decomposed(program: Any) -> Any:
    """The program in operators of core ATen and those that have importers."""
    import torch

    if hasattr(torch.export, "default_decompositions"):
        table = torch.export.default_decompositions()
    else:  # before torch 2.6
        from torch._decomp import core_aten_decompositions

        table = core_aten_decompositions()
    for op in kept_whole(list(table.keys())):
        table.pop(op)
    return program.run_decompositions(table)


def import_program(
    program: Any,
    *,
    name: str,
    dims: Mapping[Any, str],
    freeze: Mapping[str, int] | None,
    input_names: list[str] | None,
    output_names: list[str] | None,
    state: str,
    seed: int | None,
) -> IRModule:
    """A decomposed ExportedProgram as a module; see `from_torch` for the options."""
    signature = program.graph_signature
    results = _results(program)
    changed = [(k, row) for k, row in enumerate(signature.output_specs) if _kind(row) in _MUTATIONS]
    if changed and state == "refuse":
        raise UnsupportedError(
            [
                Issue(
                    "state",
                    row.target,
                    "",
                    "the model changes it, and a call of a compiled function changes nothing",
                    'state="arguments" makes it a parameter and its new value a result',
                )
                for _, row in changed
            ],
            where=name,
        )
    state_of = {row.target for _, row in changed}
    constants, buffers = {}, {}
    for row in signature.input_specs:
        if _kind(row) not in _CONSTANTS:
            continue
        if row.target in state_of:
            buffers[row.arg.name] = row.target
        else:
            constants[row.arg.name] = _tensor(program, row.target)
    inputs = _inputs(program)
    _rename("input_names", inputs, input_names)
    _rename("output_names", results, output_names)
    outputs = {**results, **{k: f"new_{row.target}" for k, row in changed}}
    interface = GraphInterface(
        constants, {**inputs, **buffers}, outputs, dims, dict(program.range_constraints)
    )
    return import_graph(program.graph_module, interface, freeze=freeze, name=name, seed=seed)


def _kind(row: Any) -> str:
    kind: str = row.kind.name
    return kind


def _tensor(program: Any, target: str) -> Any:
    """A parameter, buffer or constant; buffers that are not stored are among the constants."""
    tensor = program.state_dict.get(target)
    return program.constants[target] if tensor is None else tensor


def _inputs(program: Any) -> dict[str, str]:
    """Names of inputs that are tensors, by placeholder: those of the signature of `forward`."""
    tensors = {
        node.name
        for node in program.graph.nodes
        if node.op == "placeholder" and hasattr(node.meta.get("val"), "shape")
    }
    rows = [row for row in program.graph_signature.input_specs if _kind(row) == "USER_INPUT"]
    return {row.arg.name: row.arg.name for row in rows if row.arg.name in tensors}


def _results(program: Any) -> dict[int, str]:
    """Names of results by their place among those of the graph: the key of a dict, the field of a
    dataclass, the number in a tuple. None among the results has no name."""
    rows = program.graph_signature.output_specs
    places = [k for k, row in enumerate(rows) if _kind(row) not in _MUTATIONS]
    names = leaf_names(program.call_spec.out_spec, len(places))
    node = next(n for n in program.graph.nodes if n.op == "output")
    values = node.args[0]
    return {k: name for k, name in zip(places, names, strict=True) if values[k] is not None}


def leaf_names(spec: Any, count: int) -> list[str]:
    """A name for each leaf of a tree of results; by number where the tree has no keys."""
    from torch.utils import _pytree as pytree

    try:
        tree = pytree.tree_unflatten(list(range(count)), spec)
        paths = [path for path, _ in pytree.tree_flatten_with_path(tree)[0]]
    except (ValueError, AttributeError, TypeError):  # a class that torch takes apart without keys
        paths = []
    if len(paths) != count:
        return [f"output_{k}" for k in range(count)]
    return [_joined(path) for path in paths]


def _joined(path: Sequence[Any]) -> str:
    parts = [str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in path]
    if not parts:
        return "output"
    if parts[0].isdigit():
        parts[0] = f"output_{parts[0]}"
    return ".".join(parts)


def _rename(option: str, names: dict[Any, str], new_names: list[str] | None) -> None:
    check_count(option, new_names, list(names))
    for key, name in zip(list(names), new_names or (), strict=False):
        names[key] = name
    many = [n for n in names.values() if list(names.values()).count(n) > 1]
    if many:
        raise UserError(f"{option}: {many[0]!r} is the name of two", code="bad-names")


def dimension_names(
    program: Any, argument_names: Sequence[str], arguments: Sequence[Any], dynamic_shapes: Any
) -> dict[Any, str]:
    """The names that `dynamic_shapes` gives to sizes, by their SymPy expressions."""
    if dynamic_shapes is None:
        return {}
    if isinstance(dynamic_shapes, Mapping):
        parts = [dynamic_shapes.get(name) for name in argument_names]
    else:
        parts = list(dynamic_shapes) + [None] * (len(arguments) - len(dynamic_shapes))
    entries = [e for a, part in zip(arguments, parts, strict=False) for e in _spread(a, part)]
    rows = [r for r in program.graph_signature.input_specs if _kind(r) == "USER_INPUT"]
    nodes = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    names: dict[Any, str] = {}
    if len(rows) != len(entries):
        return names
    for row, entry in zip(rows, entries, strict=True):
        value = nodes[row.arg.name].meta.get("val") if row.arg.name in nodes else None
        table = dict(enumerate(entry)) if isinstance(entry, tuple | list) else entry or {}
        for axis, dim in table.items() if isinstance(table, Mapping) else ():
            word = dim if isinstance(dim, str) else getattr(dim, "__name__", None)
            if word is not None and value is not None and hasattr(value, "shape"):
                e = symbolic(value.shape[axis])
                if e is not None:
                    names.setdefault(e, word)
    return names


def _spread(arg: Any, entry: Any) -> list[Any]:
    """The entries of the leaves of an argument, in torch's order."""
    from torch.utils import _pytree as pytree

    if isinstance(arg, tuple | list):
        parts = entry if isinstance(entry, tuple | list) else [None] * len(arg)
        return [e for a, part in zip(arg, parts, strict=False) for e in _spread(a, part)]
    if isinstance(arg, Mapping):
        table = entry if isinstance(entry, Mapping) else {}
        return [e for key, a in arg.items() for e in _spread(a, table.get(key))]
    leaves = pytree.tree_leaves(arg)
    return [entry] if len(leaves) == 1 else [None] * len(leaves)
