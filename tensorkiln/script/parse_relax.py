"""Graphs from Python syntax trees: functions, bindings, branches, loops and closures.

Python's `if` and `while` may assign again what was bound before them; in straight code every
name is bound once.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from tensorkiln.base.errors import nearest
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.dtype import INT64
from tensorkiln.ir.expr import Var
from tensorkiln.ir.relax import (
    Binding,
    Body,
    Bound,
    Call,
    Function,
    If,
    Lambda,
    MatchCast,
    RVar,
    Tuple,
    TupleItem,
    TupleType,
    Type,
    Value,
)
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.subtype import accepts
from tensorkiln.ir.type_text import show
from tensorkiln.script.parse_calls import CallParser
from tensorkiln.script.parse_expr import ExprParser
from tensorkiln.script.parse_tir import plain_arguments
from tensorkiln.script.parse_types import TypeParser
from tensorkiln.script.parse_values import COMPUTED, Infer, ModuleContext, Parsed
from tensorkiln.script.scope import Scope
from tensorkiln.script.source import Source

_STATEMENTS = "there are bindings `y = ...`, `with R.dataflow():`, if, while, def, and return"


@dataclass(slots=True)
class _Block:
    """One branch, or the body of a loop: its bindings and the names it assigned."""

    bindings: list[Binding]
    assigned: dict[str, RVar]
    end: ast.AST


class RelaxParser(CallParser):
    """One `@R.function`, with the functions inside it."""

    def __init__(self, scope: Scope, module: ModuleContext):
        super().__init__(scope, module)
        self._node: ast.AST = ast.Module([], [])
        self._again: set[str] = set()  # names bound outside the block at hand: it may rebind them
        self._carried: set[str] = set()  # names that the next round of a loop reads
        self._declared: Type | None = None

    def function(self, node: ast.FunctionDef, options: list[ast.keyword]) -> Function:
        """The graph of a decorated function."""
        self._node = node
        return self._function_of(node, options)

    def _function_of(self, node: ast.FunctionDef, options: list[ast.keyword]) -> Function:
        params = []
        for arg in plain_arguments(self.scope, node):
            params.append(RVar(arg.arg, self.types.type(annotation(self.exprs, arg))))
            self._name(arg, arg.arg, params[-1])
        name, attrs = self._options(node.name, options)
        self._declared = self._header_result(node)
        result = self._sequence(node.body)
        if result is None:
            raise self.fail(node, f"{node.name!r} has no return")
        if node.returns is not None:
            result = self._checked_result(node.returns, result)
        return Function(name, tuple(params), tuple(self.bindings), result, attrs)

    def _options(self, name: str, options: list[ast.keyword]) -> tuple[str, Attrs]:
        attrs: dict[str, object] = {}
        for k in options:
            if k.arg == "name":
                name = str(self.exprs.literal(k.value))
            elif k.arg == "attrs" and isinstance(k.value, ast.Dict):
                attrs |= self.dict(k.value)
            elif k.arg == "private":
                if self.exprs.literal(k.value):
                    attrs["private"] = True
            elif k.arg != "infer":
                hint = nearest(k.arg or "", ["name", "attrs", "private"])
                raise self.fail(k.value, f"unknown option {k.arg!r} of R.function", hint)
        return name, Attrs(tuple(sorted(attrs.items(), key=lambda p: p[0])))  # type: ignore[arg-type]

    def _header_result(self, node: ast.FunctionDef) -> Type | None:
        """The type after `->`, for returns inside branches; the symbols it brings in are gone."""
        if node.returns is None:
            return None
        with self.scope.inner():
            return self.types.type(node.returns)

    def _checked_result(self, node: ast.expr, result: Value) -> Value:
        declared = self.types.type(node)
        if declared == result.type:
            return result
        if not accepts(declared, self.type_of(result)):
            message = f"it is {show(result.type)}, not {show(declared)}"
            raise self.fail(node, "the result has another type", message)
        if accepts(result.type, declared):
            return result
        return self._widened(result, declared)

    def _widened(self, value: Value, wanted: Type) -> Value:
        """A variable of a wider type that holds `value`."""
        var = RVar(value.name if isinstance(value, RVar) else "result", wanted)
        self.bindings.append(Binding(var, value))
        return var

    # ---- statements --------------------------------------------------------------------------

    def _sequence(self, body: list[ast.stmt]) -> Value | None:
        """Statements up to a return, and what it returns; None when there is no return."""
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
            self._stmt(s)
        return None

    def _stmt(self, s: ast.stmt) -> None:
        match s:
            case ast.Pass() | ast.Expr(value=ast.Constant(value=str())):
                return
            case ast.Assign(targets=[ast.Name() as name], value=value):
                if not self._alias(name, value):
                    self._bind(name, value, None)
            case ast.AnnAssign(target=ast.Name() as name, value=ast.expr() as value):
                self._bind(name, value, s.annotation)
            case ast.With(items=[ast.withitem(context_expr=ast.Call() as call)]) if (
                self.scope.dialect(call.func) == "R.dataflow"
            ):
                for inner in s.body:
                    self._stmt(inner)
            case ast.Expr(value=ast.Call() as call):
                self._effect(call)
            case ast.If():
                self._if(s)
            case ast.While():
                self._while(s)
            case ast.FunctionDef():
                self._closure(s)
            case ast.Return():
                hint = "let both branches end with return, or assign and return after them"
                raise self.fail(s, "return may only end a function or a branch", hint)
            case _:
                raise self.fail(s, "not a statement of graphs", _STATEMENTS)

    def _alias(self, name: ast.Name, value: ast.expr) -> bool:
        """`cls = MyModule`, and `n = T.int64()` for a symbolic dimension."""
        if isinstance(value, ast.Name) and value.id in self.words - set(self.scope.bound):
            self.words.add(name.id)
            return True
        if isinstance(value, ast.Call) and not value.args and not value.keywords:
            path = self.scope.dialect(value.func)
            if path == "T.int64":
                if not isinstance(self.scope.bound.get(name.id), Var):
                    self.scope.bind(name, name.id, Var(name.id, INT64))
                return True
        return False

    def _effect(self, call: ast.Call) -> None:
        """A call for what it does: nothing reads its result."""
        if self.scope.dialect(call.func) == "R.output":
            for a in call.args:
                self.value(a)
            return
        bound, found = self._in_place(call) or self.bound(call)
        self.bindings.append(Binding(RVar("_", found or self.inferred(call, bound)), bound))

    def _in_place(self, node: ast.Call) -> Parsed | None:
        """`cls.f(x, y)` with all buffers of a tensor program, which writes into the last."""
        callee = self.callee(node.func)
        f = self.module.functions.get(callee.name) if callee is not None else None
        if not isinstance(f, PrimFunc) or len(node.args) != len(f.buffers) or not f.outputs:
            return None
        assert callee is not None
        inplace = tuple(range(len(f.buffers) - f.outputs, len(f.buffers)))
        made = self.make(node, callee, node.args, inplace=inplace)
        call = Call("call_tir_inplace", (callee, *made.args), made.attrs, made.span)
        types = tuple(made.args[i].type for i in inplace)
        return call, types[0] if len(types) == 1 else TupleType(types)

    def _name(self, node: ast.AST, name: str, value: RVar) -> None:
        """Give a name to a value; blocks may do so again with names from outside."""
        if name == "_" or name in self._again:
            self.scope.bound.pop(name, None)
        self.scope.bind(node, name, value)

    def _bind(self, name: ast.Name, node: ast.expr, annotation: ast.expr | None) -> None:
        value, found = self.bound(node)
        if annotation is not None:
            found = self._annotated(annotation, value, found)
        elif found is None:
            found = self.inferred(node, value)
        var = RVar(name.id, found)
        self._name(name, name.id, var)
        self.bindings.append(Binding(var, value))

    def _annotated(self, node: ast.expr, value: Bound, found: Type | None) -> Type:
        """The type written beside a name; where the value's own is known, it may be wider."""
        declared = self.types.type(node)
        if isinstance(value, Call | MatchCast) or found is None:
            return declared
        if declared != found and not accepts(declared, found):
            hint = "R.match_cast(x, type) checks a type when it runs"
            message = f"the variable is {show(declared)}, its value {show(found)}"
            raise self.fail(node, message, hint)
        return declared

    # ---- branches ----------------------------------------------------------------------------

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """Bindings of a block of its own; what it binds is gone afterwards."""
        bindings, again, words = self.bindings, self._again, set(self.words)
        self.bindings, self._again = [], _values(self.scope)
        try:
            with self.scope.inner():
                yield
        finally:
            self.bindings, self._again, self.words = bindings, again, words

    def _block(self, body: list[ast.stmt], node: ast.AST) -> _Block:
        before = dict(self.scope.bound)
        with self._inside():
            for s in body:
                self._stmt(s)
            assigned = {
                name: v
                for name, v in self.scope.bound.items()
                if isinstance(v, RVar) and before.get(name) is not v and name != "_"
            }
            return _Block(self.bindings, assigned, body[-1] if body else node)

    def _if(self, s: ast.If) -> None:
        """What both branches assign, and is read later, are the results."""
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
        """Bind what a branch or a loop gives to the names it assigned."""
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
        """Names that the text after `s` reads, or the next round of the loop around it."""
        end = s.end_lineno or s.lineno
        return self._carried | {
            n.id
            for n in ast.walk(self._node)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n.lineno > end
        }

    def _return_if(self, s: ast.If, rest: list[ast.stmt]) -> Value:
        """`if c: return a` and `return b` after it, or in its else."""
        if rest and _returns(s.body) and _returns(s.orelse):
            raise self.fail(rest[0], "nothing may follow return")
        cond = self.condition(s.test)
        bodies = []
        for body in (s.body, s.orelse):
            with self._inside():
                whole = body if _returns(body) else [*body, *rest]
                result = self._sequence(whole)
                if result is None:
                    raise self.fail(s, "one branch returns and the other does not")
                if self._declared is not None and result.type != self._declared:
                    result = self._as_declared(result, self._declared)
                bodies.append(Body(tuple(self.bindings), result))
        then, orelse = (b.result.type for b in bodies)
        if then != orelse:
            message = f"one branch returns {show(then)}, the other {show(orelse)}"
            raise self.fail(s, message, "write the result's type after ->, as -> R.Object")
        var = RVar("result", then)
        self.bindings.append(Binding(var, If(cond, bodies[0], bodies[1])))
        return var

    def _as_declared(self, result: Value, declared: Type) -> Value:
        """A returned value in the wider type after `->`; itself where that does not take it."""
        fits = accepts(declared, self.type_of(result))
        return self._widened(result, declared) if fits else result

    # ---- functions inside, loops -------------------------------------------------------------

    def _closure(self, s: ast.FunctionDef) -> None:
        """`@R.function def inner(...)`: may use what is bound before it."""
        calls = [d.func if isinstance(d, ast.Call) else d for d in s.decorator_list]
        if [self.scope.dialect(d) for d in calls] != ["R.function"]:
            raise self.fail(s, f"{s.name!r} has no level", "decorate it with @R.function")
        options = s.decorator_list[0]
        declared = self._declared
        with self._inside():
            keywords = options.keywords if isinstance(options, ast.Call) else []
            function = self._function_of(s, keywords)
        self._declared = declared
        value = Lambda(function)
        var = RVar(s.name, value.type)
        self._name(s, s.name, var)
        self.bindings.append(Binding(var, value))

    def _while(self, s: ast.While) -> None:
        """The names that the body assigns again are the state of a `while_loop`."""
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
        with self._inside():
            params = tuple(RVar(v.name, v.type) for v in state)
            self.scope.bound |= dict(zip(names, params, strict=True))
            value = result()
            return Function(name, params, tuple(self.bindings), value)

    def _round(self, s: ast.While, names: list[str], state: tuple[RVar, ...]) -> Value:
        """The state after the body, in the types it had before."""
        for b in s.body:
            self._stmt(b)
        out: list[Value] = []
        for name, old in zip(names, state, strict=True):
            new = self.scope.bound[name]
            assert isinstance(new, RVar)
            if new.type != old.type and not accepts(old.type, new.type):
                message = f"{name!r} is {show(old.type)} before the loop, {show(new.type)} after it"
                raise self.fail(s.body[-1], message, _widen_hint(name, old.type, new.type))
            out.append(new if new.type == old.type else self._widened(new, old.type))
        return out[0] if len(out) == 1 else Tuple(tuple(out))


def _body(bindings: list[Binding], results: list[RVar]) -> Body:
    """A branch's body. A last `y = x` only names the result."""
    if len(results) != 1:
        return Body(tuple(bindings), Tuple(tuple(results)))
    last = bindings[-1] if bindings else None
    if last is None or last.var is not results[0] or isinstance(last.value, COMPUTED):
        return Body(tuple(bindings), results[0])
    if last.value.type == last.var.type:
        return Body(tuple(bindings[:-1]), last.value)
    return Body(tuple(bindings), results[0])


def _returns(body: list[ast.stmt]) -> bool:
    """Whether every way through a block ends in return."""
    last = body[-1] if body else None
    if isinstance(last, ast.If):
        return _returns(last.body) and _returns(last.orelse)
    return isinstance(last, ast.Return)


def _values(scope: Scope) -> set[str]:
    """Names of graph values."""
    return {name for name, v in scope.bound.items() if isinstance(v, RVar)}


def _stored(s: ast.stmt) -> Iterator[ast.Name]:
    """Names that a statement assigns, not counting functions inside it."""
    if isinstance(s, ast.FunctionDef):
        return
    for child in ast.iter_child_nodes(s):
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield child
        elif isinstance(child, ast.stmt):
            yield from _stored(child)


def _loaded(s: ast.stmt) -> set[str]:
    """Names that a statement reads."""
    nodes = (n for n in ast.walk(s) if isinstance(n, ast.Name))
    return {n.id for n in nodes if isinstance(n.ctx, ast.Load)}


def _widen_hint(name: str, a: Type, b: Type) -> str:
    wide = "R.Object"
    if all(hasattr(t, "ndim") and hasattr(t, "dtype") for t in (a, b)):
        wide = "R.Tensor(ndim=..., dtype=...)"
    return f"give both a wider type, as {name}: {wide} = ..."


def annotation(exprs: ExprParser, arg: ast.arg) -> ast.expr:
    """The type written beside a parameter."""
    if arg.annotation is None:
        hint = 'as x: R.Tensor((1, "n"), "float32")'
        raise exprs.fail(arg, f"parameter {arg.arg!r} needs a type", hint)
    return arg.annotation


def header(
    node: ast.FunctionDef, source: Source, captured: Mapping[str, object]
) -> tuple[tuple[Type, ...], Type | None]:
    """Types of the parameters and of the result, as far as they are written."""
    scope = Scope(source, captured)
    types = TypeParser(ExprParser(scope))
    params = tuple(types.type(annotation(types.exprs, a)) for a in plain_arguments(scope, node))
    return params, None if node.returns is None else types.type(node.returns)


__all__ = ["Infer", "ModuleContext", "RelaxParser", "header"]
