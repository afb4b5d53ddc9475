"""Control flow of graphs: Python's `if` and `while`, which may rebind names from before them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tensorkiln.base.errors import UserError
from tensorkiln.ir.relax import (
    Binding,
    Body,
    Bound,
    Call,
    Function,
    If,
    Lambda,
    RVar,
    Tuple,
    TupleItem,
    TupleType,
    Type,
    Value,
)
from tensorkiln.ir.subtype import accepts
from tensorkiln.ir.type_text import show
from tensorkiln.script.graph_state import GraphState
from tensorkiln.script.parse_graph_values import COMPUTED, parse_condition, parse_value, type_of

_STATEMENTS = "there are bindings `y = ...`, `with R.dataflow():`, if, while, def, and return"


@dataclass(slots=True)
class _Block:
    """One branch: its bindings, the variables of the names it assigned, and its last statement, for
    errors."""

    bindings: list[Binding]
    assigned: dict[str, RVar]
    end: ast.AST


def parse_statement(g: GraphState, s: ast.stmt) -> None:
    """Parse one statement and append its bindings."""
    parse = g.scope.grammar.graph_statements.get(type(s))
    if parse is None:
        raise not_a_statement(g, s)
    parse(g, s)


def not_a_statement(g: GraphState, s: ast.stmt) -> UserError:
    """Return the UserError for a node that is not a statement of graphs."""
    return g.fail(s, "not a statement of graphs", _STATEMENTS)


def widened(g: GraphState, value: Value, target: Type) -> Value:
    """Bind `value` to a new variable of the wider type `target` and return the variable."""
    var = RVar(value.name if isinstance(value, RVar) else "result", target)
    g.bindings.append(Binding(var, value))
    return var


def parse_sequence(g: GraphState, body: list[ast.stmt]) -> Value | None:
    """Parse statements and return the value of the `return` that ends them; None if there is no
    `return`."""
    for i, s in enumerate(body):
        tail = body[i + 1 :]
        if isinstance(s, ast.Return):
            if tail:
                raise g.fail(tail[0], "nothing may follow return")
            if s.value is None:
                raise g.fail(s, "a graph function returns a value")
            return parse_value(g, s.value)
        if isinstance(s, ast.If) and (_returns(s.body) or _returns(s.orelse)):
            return _return_if(g, s, tail)
        parse_statement(g, s)
    return None


# ---- branches ----------------------------------------------------------------------------


def _block(g: GraphState, body: list[ast.stmt], node: ast.AST) -> _Block:
    before = dict(g.scope.meanings)
    with g.inside():
        for s in body:
            parse_statement(g, s)
        assigned = {
            name: v
            for name, v in g.scope.meanings.items()
            if isinstance(v, RVar) and before.get(name) is not v and name != "_"
        }
        return _Block(g.bindings, assigned, body[-1] if body else node)


def branch(g: GraphState, s: ast.If) -> None:
    """Bind an `If`. Its results are the names that are read later, assigned in a branch, and
    defined in both: assigned there, or bound before. If no such name is read later, they are
    the names that both branches assign."""
    cond = parse_condition(g, s.test)
    blocks = _block(g, s.body, s), _block(g, s.orelse, s)
    before = {n: v for n, v in g.scope.meanings.items() if isinstance(v, RVar)}
    names = [
        n
        for n in dict.fromkeys([*blocks[0].assigned, *blocks[1].assigned])
        if all(n in b.assigned or n in before for b in blocks)
    ]
    names = [n for n in names if n in _read_after(g, s)] or [
        n for n in names if all(n in b.assigned for b in blocks)
    ]
    then_values, else_values = ([b.assigned.get(n) or before[n] for n in names] for b in blocks)
    for n, a, b in zip(names, then_values, else_values, strict=True):
        if a.type != b.type:
            message = f"{n!r} is {show(a.type)} in one branch, {show(b.type)} in the other"
            raise g.fail(blocks[1].end, message, _widen_hint(n, a.type, b.type))
    bodies = (_body(b.bindings, v) for b, v in zip(blocks, (then_values, else_values), strict=True))
    _results(g, s, If(cond, *bodies), names, then_values)


def _results(
    g: GraphState, s: ast.stmt, value: Bound, names: list[str], like: list[RVar] | tuple[RVar, ...]
) -> None:
    """Bind `value`, a branch or loop, and rebind `names` to its results: one name to the value
    itself, several to the items of a tuple. `like` has variables of their types."""
    types = tuple(v.type for v in like)
    if len(names) == 1:
        var = RVar(names[0], types[0])
        g.bindings.append(Binding(var, value))
        _rename(g, s, names[0], var)
        return
    whole = RVar("results", TupleType(types))
    g.bindings.append(Binding(whole, value))
    for i, (name, t) in enumerate(zip(names, types, strict=True)):
        var = RVar(name, t)
        g.bindings.append(Binding(var, TupleItem(whole, i)))
        _rename(g, s, name, var)


def _rename(g: GraphState, s: ast.stmt, name: str, var: RVar) -> None:
    if isinstance(g.scope.meanings.get(name), RVar):
        g.scope.meanings.pop(name)
    g.scope.bind(s, name, var)


def _read_after(g: GraphState, s: ast.stmt) -> set[str]:
    """Return names that are read on lines after `s`, or in the next iteration of an enclosing
    loop."""
    end = s.end_lineno or s.lineno
    return g.carried | {
        n.id
        for n in ast.walk(g.whole)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n.lineno > end
    }


def _return_if(g: GraphState, s: ast.If, tail: list[ast.stmt]) -> Value:
    """Parse an `if` with a branch that returns. The other branch returns as well, or the
    statements `tail` after the `if` belong to it and do."""
    if tail and _returns(s.body) and _returns(s.orelse):
        raise g.fail(tail[0], "nothing may follow return")
    cond = parse_condition(g, s.test)
    bodies = []
    for body in (s.body, s.orelse):
        with g.inside():
            whole = body if _returns(body) else [*body, *tail]
            result = parse_sequence(g, whole)
            if result is None:
                raise g.fail(s, "one branch returns and the other does not")
            if g.declared is not None and result.type != g.declared:
                result = _as_declared(g, result, g.declared)
            bodies.append(Body(tuple(g.bindings), result))
    then_type, else_type = (b.result.type for b in bodies)
    if then_type != else_type:
        message = f"one branch returns {show(then_type)}, the other {show(else_type)}"
        raise g.fail(s, message, "write the result's type after ->, as -> R.Object")
    var = RVar("result", then_type)
    g.bindings.append(Binding(var, If(cond, bodies[0], bodies[1])))
    return var


def _as_declared(g: GraphState, result: Value, declared: Type) -> Value:
    """Return a variable of the type after `->` that holds `result`, or `result` itself if that
    type does not accept it."""
    fits = accepts(declared, type_of(g, result))
    return widened(g, result, declared) if fits else result


# ---- functions inside, loops -------------------------------------------------------------


def loop(g: GraphState, s: ast.While) -> None:
    """Parse a `while` as a call of `while_loop`. Its state is the values of those names that
    were bound before the loop and that the body assigns; condition and body become functions
    of the state."""
    if s.orelse:
        raise g.fail(s.orelse[0], "a loop has no else")
    stored = [n.id for b in s.body for n in _stored(b)]
    before = g.scope.meanings
    names = [n for n in dict.fromkeys(stored) if isinstance(before.get(n), RVar)]
    state = tuple(before[n] for n in names)
    if not state:
        raise g.fail(s, "the loop assigns nothing that was bound before it", "x = f(x)")
    carried, g.carried = g.carried, g.carried | {*names, *_loaded(s)}
    functions = [
        _loop_function(g, "cond", names, state, lambda: parse_condition(g, s.test)),  # type: ignore[arg-type]
        _loop_function(g, "body", names, state, lambda: _round(g, s, names, state)),  # type: ignore[arg-type]
    ]
    g.carried = carried
    lambdas = []
    for f in functions:
        lambdas.append(RVar(f.name, Lambda(f).type))
        g.bindings.append(Binding(lambdas[-1], Lambda(f)))
    call = Call("while_loop", (*lambdas, *state))  # type: ignore[arg-type]
    _results(g, s, call, names, state)  # type: ignore[arg-type]


def _loop_function(
    g: GraphState, name: str, names: list[str], state: tuple[RVar, ...], result: Callable[[], Value]
) -> Function:
    with g.inside():
        params = tuple(RVar(v.name, v.type) for v in state)
        g.scope.meanings |= dict(zip(names, params, strict=True))
        value = result()
        return Function(name, params, tuple(g.bindings), value)


def _round(g: GraphState, s: ast.While, names: list[str], state: tuple[RVar, ...]) -> Value:
    """Parse the body of a loop once and return the new state, in the types of the old one."""
    for b in s.body:
        parse_statement(g, b)
    out: list[Value] = []
    for name, old in zip(names, state, strict=True):
        new = g.scope.meanings[name]
        assert isinstance(new, RVar)
        if new.type != old.type and not accepts(old.type, new.type):
            message = f"{name!r} is {show(old.type)} before the loop, {show(new.type)} after it"
            raise g.fail(s.body[-1], message, _widen_hint(name, old.type, new.type))
        out.append(new if new.type == old.type else widened(g, new, old.type))
    return out[0] if len(out) == 1 else Tuple(tuple(out))


def _body(bindings: list[Binding], results: list[RVar]) -> Body:
    """Return the body of a branch. If it ends in an alias `y = x` of its only result `y`, the
    result is `x` and the binding is dropped."""
    if len(results) != 1:
        return Body(tuple(bindings), Tuple(tuple(results)))
    last = bindings[-1] if bindings else None
    if last is None or last.var is not results[0] or isinstance(last.value, COMPUTED):
        return Body(tuple(bindings), results[0])
    if last.value.type == last.var.type:
        return Body(tuple(bindings[:-1]), last.value)
    return Body(tuple(bindings), results[0])


def _returns(body: list[ast.stmt]) -> bool:
    """Whether every path through a block ends in `return`."""
    last = body[-1] if body else None
    if isinstance(last, ast.If):
        return _returns(last.body) and _returns(last.orelse)
    return isinstance(last, ast.Return)


def _stored(s: ast.stmt) -> Iterator[ast.Name]:
    """Yield the names that a statement assigns, without those in functions inside it."""
    if isinstance(s, ast.FunctionDef):
        return
    for child in ast.iter_child_nodes(s):
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield child
        elif isinstance(child, ast.stmt):
            yield from _stored(child)


def _loaded(s: ast.stmt) -> set[str]:
    """Return the names that a statement reads."""
    nodes = (n for n in ast.walk(s) if isinstance(n, ast.Name))
    return {n.id for n in nodes if isinstance(n.ctx, ast.Load)}


def _widen_hint(name: str, a: Type, b: Type) -> str:
    wide = "R.Object"
    if all(hasattr(t, "ndim") and hasattr(t, "dtype") for t in (a, b)):
        wide = "R.Tensor(ndim=..., dtype=...)"
    return f"give both a wider type, as {name}: {wide} = ..."
