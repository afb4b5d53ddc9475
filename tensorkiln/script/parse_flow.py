"""Control flow of graphs: Python's `if` and `while`, which may rebind names from before them."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

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
from tensorkiln.script.parse_values import COMPUTED, ModuleContext
from tensorkiln.script.parse_words import CallParser
from tensorkiln.script.scope import Scope


@dataclass(slots=True)
class _Block:
    """One branch: its bindings, the variables of the names it assigned, and its last statement, for
    errors."""

    bindings: list[Binding]
    assigned: dict[str, RVar]
    end: ast.AST


class FlowParser(CallParser):
    """Parses branches and loops; subclasses parse the other statements in `stmt`."""

    def __init__(self, scope: Scope, module: ModuleContext):
        super().__init__(scope, module)
        self.whole: ast.AST = ast.Module([], [])  # the outermost function's syntax tree
        self._again: set[str] = set()  # names bound before the block, which may rebind them
        self._carried: set[str] = set()  # names that the next iteration of an enclosing loop reads
        self.declared: Type | None = None  # the type after `->`, if there is one

    @abstractmethod
    def stmt(self, s: ast.stmt) -> None:
        """Parse one statement and append its bindings."""

    def name(self, node: ast.AST, name: str, value: RVar) -> None:
        """Bind a name to a value. Raise UserError if it is already bound in the current block;
        names from outside of the block, and `_`, may be rebound."""
        if name == "_" or name in self._again:
            self.scope.bound.pop(name, None)
        self.scope.bind(node, name, value)

    def widened(self, value: Value, wanted: Type) -> Value:
        """Bind `value` to a new variable of the wider type `wanted` and return the variable."""
        var = RVar(value.name if isinstance(value, RVar) else "result", wanted)
        self.bindings.append(Binding(var, value))
        return var

    def sequence(self, body: list[ast.stmt]) -> Value | None:
        """Parse statements and return the value of the `return` that ends them; None if there is no
        `return`."""
        for i, s in enumerate(body):
            rest = body[i + 1 :]
            if isinstance(s, ast.Return):
                if rest:
                    raise self.fail(rest[0], "nothing may follow return")
                if s.value is None:
                    raise self.fail(s, "a graph function returns a value")
                return self.value(s.value)
            if isinstance(s, ast.If) and (_returns(s.body) or _returns(s.orelse)):
                return self._return_if(s, rest)
            self.stmt(s)
        return None

    # ---- branches ----------------------------------------------------------------------------

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Collect bindings of a nested block in a new `self.bindings`; names that it binds are
        unbound afterwards."""
        bindings, again, words = self.bindings, self._again, set(self.words)
        self.bindings, self._again = [], _values(self.scope)
        try:
            with self.scope.inner():
                yield
        finally:
            self.bindings, self._again, self.words = bindings, again, words

    def _block(self, body: list[ast.stmt], node: ast.AST) -> _Block:
        before = dict(self.scope.bound)
        with self.inside():
            for s in body:
                self.stmt(s)
            assigned = {
                name: v
                for name, v in self.scope.bound.items()
                if isinstance(v, RVar) and before.get(name) is not v and name != "_"
            }
            return _Block(self.bindings, assigned, body[-1] if body else node)

    def branch(self, s: ast.If) -> None:
        """Bind an `If`. Its results are the names that are read later, assigned in a branch, and
        defined in both: assigned there, or bound before. If no such name is read later, they are
        the names that both branches assign."""
        cond = self.condition(s.test)
        blocks = self._block(s.body, s), self._block(s.orelse, s)
        before = {n: v for n, v in self.scope.bound.items() if isinstance(v, RVar)}
        names = [
            n
            for n in dict.fromkeys([*blocks[0].assigned, *blocks[1].assigned])
            if all(n in b.assigned or n in before for b in blocks)
        ]
        names = [n for n in names if n in self._read_after(s)] or [
            n for n in names if all(n in b.assigned for b in blocks)
        ]
        then, orelse = ([b.assigned.get(n) or before[n] for n in names] for b in blocks)
        for n, a, b in zip(names, then, orelse, strict=True):
            if a.type != b.type:
                message = f"{n!r} is {show(a.type)} in one branch, {show(b.type)} in the other"
                raise self.fail(blocks[1].end, message, _widen_hint(n, a.type, b.type))
        bodies = (_body(b.bindings, v) for b, v in zip(blocks, (then, orelse), strict=True))
        self._results(s, If(cond, *bodies), names, then)

    def _results(
        self, s: ast.stmt, value: Bound, names: list[str], like: list[RVar] | tuple[RVar, ...]
    ) -> None:
        """Bind `value`, a branch or loop, and rebind `names` to its results: one name to the value
        itself, several to the items of a tuple. `like` has variables of their types."""
        types = tuple(v.type for v in like)
        if len(names) == 1:
            var = RVar(names[0], types[0])
            self.bindings.append(Binding(var, value))
            self._rename(s, names[0], var)
            return
        whole = RVar("results", TupleType(types))
        self.bindings.append(Binding(whole, value))
        for i, (name, t) in enumerate(zip(names, types, strict=True)):
            var = RVar(name, t)
            self.bindings.append(Binding(var, TupleItem(whole, i)))
            self._rename(s, name, var)

    def _rename(self, s: ast.stmt, name: str, var: RVar) -> None:
        if isinstance(self.scope.bound.get(name), RVar):
            self.scope.bound.pop(name)
        self.scope.bind(s, name, var)

    def _read_after(self, s: ast.stmt) -> set[str]:
        """Return names that are read on lines after `s`, or in the next iteration of an enclosing
        loop."""
        end = s.end_lineno or s.lineno
        return self._carried | {
            n.id
            for n in ast.walk(self.whole)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n.lineno > end
        }

    def _return_if(self, s: ast.If, rest: list[ast.stmt]) -> Value:
        """Parse an `if` with a branch that returns. The other branch returns as well, or the
        statements `rest` after the `if` belong to it and do."""
        if rest and _returns(s.body) and _returns(s.orelse):
            raise self.fail(rest[0], "nothing may follow return")
        cond = self.condition(s.test)
        bodies = []
        for body in (s.body, s.orelse):
            with self.inside():
                whole = body if _returns(body) else [*body, *rest]
                result = self.sequence(whole)
                if result is None:
                    raise self.fail(s, "one branch returns and the other does not")
                if self.declared is not None and result.type != self.declared:
                    result = self._as_declared(result, self.declared)
                bodies.append(Body(tuple(self.bindings), result))
        then, orelse = (b.result.type for b in bodies)
        if then != orelse:
            message = f"one branch returns {show(then)}, the other {show(orelse)}"
            raise self.fail(s, message, "write the result's type after ->, as -> R.Object")
        var = RVar("result", then)
        self.bindings.append(Binding(var, If(cond, bodies[0], bodies[1])))
        return var

    def _as_declared(self, result: Value, declared: Type) -> Value:
        """Return a variable of the type after `->` that holds `result`, or `result` itself if that
        type does not accept it."""
        fits = accepts(declared, self.type_of(result))
        return self.widened(result, declared) if fits else result

    # ---- functions inside, loops -------------------------------------------------------------

    def loop(self, s: ast.While) -> None:
        """Parse a `while` as a call of `while_loop`. Its state is the values of those names that
        were bound before the loop and that the body assigns; condition and body become functions
        of the state."""
        if s.orelse:
            raise self.fail(s.orelse[0], "a loop has no else")
        stored = [n.id for b in s.body for n in _stored(b)]
        before = self.scope.bound
        names = [n for n in dict.fromkeys(stored) if isinstance(before.get(n), RVar)]
        state = tuple(before[n] for n in names)
        if not state:
            raise self.fail(s, "the loop assigns nothing that was bound before it", "x = f(x)")
        carried, self._carried = self._carried, self._carried | {*names, *_loaded(s)}
        functions = [
            self._loop_function("cond", names, state, lambda: self.condition(s.test)),  # type: ignore[arg-type]
            self._loop_function("body", names, state, lambda: self._round(s, names, state)),  # type: ignore[arg-type]
        ]
        self._carried = carried
        lambdas = []
        for f in functions:
            lambdas.append(RVar(f.name, Lambda(f).type))
            self.bindings.append(Binding(lambdas[-1], Lambda(f)))
        call = Call("while_loop", (*lambdas, *state))  # type: ignore[arg-type]
        self._results(s, call, names, state)  # type: ignore[arg-type]

    def _loop_function(
        self, name: str, names: list[str], state: tuple[RVar, ...], result: Callable[[], Value]
    ) -> Function:
        with self.inside():
            params = tuple(RVar(v.name, v.type) for v in state)
            self.scope.bound |= dict(zip(names, params, strict=True))
            value = result()
            return Function(name, params, tuple(self.bindings), value)

    def _round(self, s: ast.While, names: list[str], state: tuple[RVar, ...]) -> Value:
        """Parse the body of a loop once and return the new state, in the types of the old one."""
        for b in s.body:
            self.stmt(b)
        out: list[Value] = []
        for name, old in zip(names, state, strict=True):
            new = self.scope.bound[name]
            assert isinstance(new, RVar)
            if new.type != old.type and not accepts(old.type, new.type):
                message = f"{name!r} is {show(old.type)} before the loop, {show(new.type)} after it"
                raise self.fail(s.body[-1], message, _widen_hint(name, old.type, new.type))
            out.append(new if new.type == old.type else self.widened(new, old.type))
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


def _values(scope: Scope) -> set[str]:
    """Return the names in `scope` that are graph values."""
    return {name for name, v in scope.bound.items() if isinstance(v, RVar)}


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
