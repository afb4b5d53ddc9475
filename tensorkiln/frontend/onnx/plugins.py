"""Importers of operators of domains that are not ONNX's, of installed packages.

A package adds those of a domain with an entry point of group `tensorkiln.onnx_importers`, which has
the domain's name and is a table as in `dispatch.py`, operator -> {first version: importer}:

    [project.entry-points."tensorkiln.onnx_importers"]
    "com.acme" = "acme_onnx:IMPORTERS"

The package is loaded when a model has a node of the domain.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any

from tensorkiln.base.entry_points import entry_points_of, package_of
from tensorkiln.base.errors import UserError, nearest
from tensorkiln.base.plugin import bad_answer, plugin
from tensorkiln.frontend.graph.issues import NodeProblem, unsupported
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx.context import OnnxContext
from tensorkiln.frontend.onnx.dispatch import KINDS_OF_ATTRIBUTES, Importer, Table, kind_of
from tensorkiln.frontend.onnx.graph_values import EmptyOptional, GraphValue, TensorList
from tensorkiln.frontend.onnx.narrow import Narrow
from tensorkiln.frontend.onnx.standard import TRAINING, is_onnx
from tensorkiln.ir.relax import RVar, TensorType

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "tensorkiln.onnx_importers"
_CODE = "bad-importer"
# Codes of errors that end an import, rather than being an issue of the model's node.
FAULTS = frozenset({_CODE, "plugin-failed", "name-clash"})
# Codes of errors of `Context.emit` that no operand or attribute of a model can cause.
_MISTAKES = frozenset({"unknown-operator", "unknown-attribute", "missing-attribute"})
_DOMAIN = re.compile(r"[!-~]+")
_OPERATOR = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Importers:
    """The importers of a domain that a package has; without any, `package` is empty."""

    domain: str
    package: str = ""
    table: Table = field(default_factory=dict)

    def having(self, op: str) -> Table:
        """The table, if it has the operator; NodeProblem if not, which says how to add it."""
        if op in self.table:
            return self.table
        if self.package:
            has = f"package {self.package} imports {', '.join(self.table)} of {self.domain!r}"
            hint = nearest(op, self.table) or has
            raise unsupported("the operator is not supported", hint, "operator")
        message = f"the operator's domain {self.domain!r} is not supported"
        raise unsupported(message, _hint(self.domain), "operator")


def installed_importers(domain: str) -> Importers:
    """The importers of a domain that an installed package has.

    Raises UserError, naming package and entry point, for a package that is wrong: code
    `bad-importer` for what its entry point names or is, also for one of another domain that is
    ONNX's own; `plugin-failed` for an exception; `name-clash` for two packages of one domain.
    """
    points = entry_points_of(GROUP)
    for point in points:
        _check_domain(point)
    matches = [p for p in points if p.name == domain]
    if len(matches) > 1:
        packages = " and ".join(map(package_of, matches))
        raise UserError(
            f"ONNX importers {domain!r} are of packages {packages}",
            code="name-clash",
            hint="uninstall one of them",
        )
    return _loaded(matches[0]) if matches else Importers(domain)


def _hint(domain: str) -> str:
    """What helps with a domain of which nobody has importers."""
    if domain == TRAINING:
        return "a model for inference has no optimizer"
    if is_onnx(domain):
        return ""
    near = nearest(domain, ["ai.onnx", "ai.onnx.ml", *(p.name for p in entry_points_of(GROUP))])
    advice = f"a package adds importers with an entry point {domain!r} of group {GROUP!r}"
    return f"{near} {advice}".strip()


def _what(point: EntryPoint) -> str:
    return f"ONNX importers {point.name!r} of package {package_of(point)}"


def _check_domain(point: EntryPoint) -> None:
    if is_onnx(point.name):
        message = f"{_what(point)}: the domain is ONNX's own"
        hint = "the operators of ONNX's domains are those of the standard"
        raise UserError(message, code=_CODE, hint=hint)
    if not _DOMAIN.fullmatch(point.name):
        raise UserError(f"{_what(point)}: expected a domain such as 'com.acme'", code=_CODE)


def _loaded(point: EntryPoint) -> Importers:
    label = _what(point)
    with plugin(label):
        table: object = point.load()

    def error(message: str) -> UserError:
        return UserError(f"{label}: {message}", code=_CODE)

    importers: dict[str, dict[int, Importer]] = {}
    expected = "expected {operator: {first version: function}}"
    if not isinstance(table, Mapping) or not table:
        raise error(f"it is {_show(table)}, {expected}")
    for op, versions in table.items():
        if not isinstance(op, str) or not _OPERATOR.fullmatch(op):
            raise error(f"an operator is named {op!r}, expected a name such as 'FusedGelu'")
        if not isinstance(versions, Mapping) or not versions:
            raise error(f"{op} is {_show(versions)}, {expected}")
        for version, function in versions.items():
            if type(version) is not int or version < 1:
                raise error(f"{op} has the version {version!r}, expected a number from 1")
            if problem := _no_importer(function):
                raise error(f"{op} of version {version} {problem}")
        importers[op] = {v: _guarded(f, f"{label}: {op}") for v, f in versions.items()}
    return Importers(point.name, package_of(point), importers)


def _show(value: object) -> str:
    return "empty" if isinstance(value, Mapping) else type(value).__name__


def _no_importer(function: object) -> str:
    """What keeps an object from being an importer; empty if nothing does."""
    if not callable(function):
        return f"is {type(function).__name__}, expected a function"
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return "has no signature, which says what operands and attributes there are"
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        return "takes no context, expected a first parameter g"
    for p in parameters[1:]:
        kind = kind_of(p.annotation)
        if p.kind is p.VAR_KEYWORD:
            return f"takes any attribute (**{p.name}), expected a parameter for each"
        if p.kind is not p.KEYWORD_ONLY and kind in KINDS_OF_ATTRIBUTES:
            return f"takes {p.name!r} as an operand, expected an attribute ({kind}) after *"
        if p.kind is p.KEYWORD_ONLY and kind not in KINDS_OF_ATTRIBUTES:
            choices = ", ".join(sorted(KINDS_OF_ATTRIBUTES))
            return f"annotates attribute {p.name!r} with {kind!r}, expected one of {choices}"
    return ""


def _guarded(function: Callable[..., Any], label: str) -> Importer:
    """The importer, whose exceptions and wrong results are UserErrors that name it.

    What it refuses of a node itself (NodeProblem) stays as it is, and operands that do not fit an
    operator stay an issue of the node, whose message names the importer.
    """

    @wraps(function)
    def importer(
        g: OnnxContext, *operands: GraphValue | None, **attrs: object
    ) -> Sequence[GraphValue]:
        answer = _answer(function, label, g, operands, attrs)
        outputs = answer if isinstance(answer, list | tuple) else [answer]
        values = [_checked(v, label, g, operands) for v in outputs]
        if any(g.outputs[len(values) :]):
            message = f"{label} returned {len(values)} value(s) for {len(g.outputs)} outputs"
            raise UserError(message, code=_CODE, where=g.span)
        return values

    return importer


def _answer(
    function: Callable[..., Any],
    label: str,
    g: OnnxContext,
    operands: Sequence[GraphValue | None],
    attrs: Mapping[str, object],
) -> object:
    with plugin(label):
        try:
            return function(g, *operands, **attrs)
        except NodeProblem as error:
            problem: Exception = error
        except UserError as error:
            code = _CODE if error.code in _MISTAKES else error.code
            problem = UserError(
                f"{label}: {error.message}", code=code, where=g.span, hint=error.hint
            )
            problem.__cause__ = error
    raise problem


def _checked(value: object, label: str, g: OnnxContext, operands: Sequence[object]) -> GraphValue:
    """The value of an output; UserError if an importer may not return it."""
    if not isinstance(value, Val | Narrow | TensorList | EmptyOptional):
        raise bad_answer(label, value, "the value of each output", _CODE)
    if not isinstance(value, RVar) or any(value is o for o in operands):
        return value
    if not isinstance(value.type, TensorType):
        raise bad_answer(label, value.type, "a tensor for each output", _CODE)
    # Made last, most probably.
    if not any(b.var is value for b in reversed(g.builder.bindings)):
        raise UserError(f"{label} returned a value of another graph", code=_CODE, where=g.span)
    return value
