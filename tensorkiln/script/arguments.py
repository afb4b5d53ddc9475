"""Arguments of a call in a script by name, and the function of the module that it names."""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence

from tensorkiln.base.errors import nearest
from tensorkiln.script.parse_literals import parse_literal
from tensorkiln.script.scope import NameScope

Nodes = dict[str, ast.expr]


def arguments(
    scope: NameScope,
    call: ast.Call,
    names: Sequence[str],
    keywords: Sequence[str] = (),
    owner: str = "",
) -> Nodes:
    """Return a call's arguments by name: those called `names` by position or as keywords, the
    others as keywords. UserError for too many of them, and as `options`."""
    if len(call.args) > len(names):
        message = f"{owner or scope.dialect(call.func)} takes at most {len(names)} arguments"
        raise scope.fail(call, message, f"in order: {', '.join(names)}" if names else "")
    by_position = dict(zip(names, call.args, strict=False))
    return options(scope, call.keywords, [*names, *keywords], owner or call.func, by_position)


def options(
    scope: NameScope,
    keywords: Sequence[ast.keyword],
    names: Sequence[str],
    owner: str | ast.expr,
    by_position: Nodes | None = None,
) -> Nodes:
    """Return keyword arguments by name. UserError for one that is not among `names`, or is given
    twice; `owner` is what it says has them: a text, or the word that is called."""
    nodes = dict(by_position or {})
    for k in keywords:
        if k.arg is None or k.arg not in names:
            owner = owner if isinstance(owner, str) else scope.dialect(owner)
            words = ", ".join(f"{name}=" for name in names) or "no options"
            hint = nearest(k.arg or "", names) or f"it takes {words}"
            raise scope.fail(k.value, f"unknown option {k.arg!r} of {owner}", hint)
        if k.arg in nodes:
            raise scope.fail(k.value, f"{k.arg!r} is given twice")
        nodes[k.arg] = k.value
    return nodes


def function_name(
    scope: NameScope, node: ast.expr, modules: Collection[str], names: Sequence[str] | None
) -> str | None:
    """Return the name of the function that `cls.f` or `cls["any name"]` refers to, for a name of
    the module in `modules`; None if the node is of another form. UserError if the function is not
    among the module's `names`."""
    if not isinstance(node, ast.Attribute | ast.Subscript) or not isinstance(node.value, ast.Name):
        return None
    if node.value.id not in modules or node.value.id in scope.meanings:
        return None
    name = node.attr if isinstance(node, ast.Attribute) else parse_literal(scope, node.slice)
    if not isinstance(name, str):
        return None
    if names is not None and name not in names:
        raise scope.fail(node, f"no function {name!r} in this module", nearest(name, names))
    return name
