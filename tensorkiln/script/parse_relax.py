"""Graphs from Python syntax trees: functions, bindings, branches, loops and closures.

In straight-line code every name is bound once. Only an `if` or `while` may rebind names that were
bound before it.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from tensorkiln import ops
from tensorkiln.base.errors import nearest
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.dtype import INT64
from tensorkiln.ir.expr import Var
from tensorkiln.ir.known_attrs import GRAPH_ATTRS
from tensorkiln.ir.relax import (
    Binding,
    Bound,
    Call,
    Function,
    Lambda,
    ObjectType,
    RVar,
    TensorType,
    TupleType,
    Type,
    Value,
)
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.subtype import accepts
from tensorkiln.ir.type_text import show
from tensorkiln.ops.rules import same_extent
from tensorkiln.script.parse_expr import ExprParser
from tensorkiln.script.parse_flow import FlowParser
from tensorkiln.script.parse_tir import plain_arguments
from tensorkiln.script.parse_types import TypeParser
from tensorkiln.script.parse_values import Infer, ModuleContext, Parsed
from tensorkiln.script.scope import Scope
from tensorkiln.script.source import Source

_STATEMENTS = "there are bindings `y = ...`, `with R.dataflow():`, if, while, def, and return"


class RelaxParser(FlowParser):
    """Parses one `@R.function`, and the functions nested in it."""

    def function(self, node: ast.FunctionDef, options: list[ast.keyword]) -> Function:
        """Parse a decorated function; `options` are the keywords of its decorator."""
        self.whole = node
        return self._function_of(node, options)

    def _function_of(self, node: ast.FunctionDef, options: list[ast.keyword]) -> Function:
        params = []
        for arg in plain_arguments(self.scope, node):
            params.append(RVar(arg.arg, self.types.type(annotation(self.exprs, arg))))
            self.name(arg, arg.arg, params[-1])
        nodes, given = self.exprs.func_attr(node.body, "R.func_attr")
        name, attrs = self._options(node.name, options, given)
        self.declared = self._header_result(node)
        result = self.sequence(nodes)
        if result is None:
            raise self.fail(node, f"{node.name!r} has no return")
        if node.returns is not None:
            result = self._checked_result(node.returns, result)
        return Function(name, tuple(params), tuple(self.bindings), result, attrs)

    def _options(
        self, name: str, options: list[ast.keyword], given: ast.expr | None
    ) -> tuple[str, Attrs]:
        """Return the function's name and attributes, from the decorator's `options` and `given`,
        the argument of R.func_attr. Raise UserError if they differ on an attribute."""
        attrs: dict[str, object] = {}
        nodes = [given] if given is not None else []
        for k in options:
            if k.arg == "name":
                name = self.exprs.string(k.value)
            elif k.arg == "attrs":
                nodes.append(k.value)
            elif k.arg == "private":
                private = self.exprs.literal(k.value)
                if not isinstance(private, bool):
                    raise self.fail(k.value, f"private is True or False, not {private!r}")
                attrs |= {"private": True} if private else {}
            elif k.arg != "infer":
                hint = nearest(k.arg or "", ["name", "attrs", "private"])
                raise self.fail(k.value, f"unknown option {k.arg!r} of R.function", hint)
        for node in nodes:
            for key, value in self.exprs.known_attrs(node, GRAPH_ATTRS, name).items_:
                if attrs.setdefault(key, value) != value:
                    raise self.fail(node, f"attribute {key!r} is given twice")
        return name, Attrs(tuple(sorted(attrs.items(), key=lambda p: p[0])))  # type: ignore[arg-type]

    def _header_result(self, node: ast.FunctionDef) -> Type | None:
        """Return the type after `->`, for `return` inside branches. Symbols that it introduces are
        not kept: `_checked_result` parses it again, when those of the body are bound."""
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
            raise self.fail(node, "the result is not of the declared type", message)
        if accepts(result.type, declared):
            return result
        return self.widened(result, declared)

    # ---- statements --------------------------------------------------------------------------

    def stmt(self, s: ast.stmt) -> None:
        """Parse one statement and append its bindings."""
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
                    self.stmt(inner)
            case ast.Expr(value=ast.Call() as call):
                self._effect(call)
            case ast.If():
                self.branch(s)
            case ast.While():
                self.loop(s)
            case ast.FunctionDef():
                self._closure(s)
            case ast.Return():
                hint = "let both branches end with return, or assign and return after them"
                raise self.fail(s, "return may only end a function or a branch", hint)
            case _:
                raise self.fail(s, "not a statement of graphs", _STATEMENTS)

    def _alias(self, name: ast.Name, value: ast.expr) -> bool:
        """Parse `cls = MyModule`, another name for the module, or `n = T.int64()`, a symbolic
        dimension; return whether the statement is either."""
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
        """Parse a call as a statement: it is bound to `_`, which nothing reads."""
        if self.scope.dialect(call.func) == "R.output":
            for a in call.args:
                self.value(a)
            return
        bound, found = self._in_place(call) or self.bound(call)
        self.bindings.append(Binding(RVar("_", found or self.inferred(call, bound)), bound))

    def _in_place(self, node: ast.Call) -> Parsed | None:
        """Parse `cls.f(x, y)` as a `call_tir_inplace` if it passes all buffers of a tensor program,
        outputs included; else return None."""
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

    def _bind(self, name: ast.Name, node: ast.expr, annotation: ast.expr | None) -> None:
        # First, because it may introduce symbolic dimensions that the value uses.
        declared = None if annotation is None else self.types.type(annotation)
        value, found = self.bound(node)
        if annotation is not None and declared is not None:
            self._check_annotation(annotation, declared, value, found, node)
            found = declared
        elif found is None:
            found = self.inferred(node, value)
        var = RVar(name.id, found)
        self.name(name, name.id, var)
        self.bindings.append(Binding(var, value))

    def _check_annotation(
        self, node: ast.expr, declared: Type, value: Bound, found: Type | None, call: ast.expr
    ) -> None:
        """Raise UserError unless the annotation is the value's own type or a wider one; a value of
        unknown type takes any annotation."""
        if isinstance(value, Call) and ops.declared(value.op) is not None:
            found, declared = _logical(self.derived(call, value)), _logical(declared)
        if found is None or declared == found or isinstance(found, ObjectType):
            return
        if not accepts(declared, found, same_extent):
            hint = "R.match_cast(x, type) checks a type when it runs"
            if isinstance(value, Call):
                hint = f"write the type of what the call gives, {show(found)}, or none"
            message = f"the variable is {show(declared)}, its value {show(found)}"
            raise self.fail(node, message, hint)

    def _closure(self, s: ast.FunctionDef) -> None:
        """Parse `@R.function def inner(...)`, a closure over names bound before it."""
        calls = [d.func if isinstance(d, ast.Call) else d for d in s.decorator_list]
        if [self.scope.dialect(d) for d in calls] != ["R.function"]:
            raise self.fail(
                s, f"{s.name!r} needs one known decorator", "decorate it with @R.function"
            )
        options = s.decorator_list[0]
        declared = self.declared
        with self.inside():
            keywords = options.keywords if isinstance(options, ast.Call) else []
            function = self._function_of(s, keywords)
        self.declared = declared
        value = Lambda(function)
        var = RVar(s.name, value.type)
        self.name(s, s.name, var)
        self.bindings.append(Binding(var, value))


def _logical(t: Type) -> Type:
    """Return a type without its layouts, which type rules ignore."""
    if isinstance(t, TensorType):
        return t.with_layout(None)
    return TupleType(tuple(map(_logical, t.fields))) if isinstance(t, TupleType) else t


def annotation(exprs: ExprParser, arg: ast.arg) -> ast.expr:
    """Return the annotation of a parameter; raise UserError if it has none."""
    if arg.annotation is None:
        hint = 'as x: R.Tensor((1, "n"), "float32")'
        raise exprs.fail(arg, f"parameter {arg.arg!r} needs a type", hint)
    return arg.annotation


def header(
    node: ast.FunctionDef, source: Source, captured: Mapping[str, object]
) -> tuple[tuple[Type, ...], Type | None]:
    """Return the types of the parameters, and that of the result or None if it is not written."""
    scope = Scope(source, captured)
    types = TypeParser(ExprParser(scope))
    params = tuple(types.type(annotation(types.exprs, a)) for a in plain_arguments(scope, node))
    return params, None if node.returns is None else types.type(node.returns)


__all__ = ["Infer", "ModuleContext", "RelaxParser", "header"]
