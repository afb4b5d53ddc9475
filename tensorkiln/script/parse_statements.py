"""Statements of tensor programs."""

from __future__ import annotations

import ast
from collections.abc import Callable

from tensorkiln.base.errors import nearest
from tensorkiln.ir.dtype import BOOL, VOID, DType
from tensorkiln.ir.expr import Broadcast, CallExtern, Expr, Var
from tensorkiln.ir.stmt import (
    SYNC_SCOPES,
    Assert,
    Evaluate,
    If,
    Let,
    Prefetch,
    Seq,
    Stmt,
    Store,
    Sync,
    While,
    seq,
)
from tensorkiln.script.arguments import options
from tensorkiln.script.macro import Macro
from tensorkiln.script.parse_block import BLOCK_WORDS, parse_block
from tensorkiln.script.parse_body import not_a_statement, parse_body, parse_items, unpack
from tensorkiln.script.parse_buffer import (
    BUFFER_WORDS,
    Wrap,
    declare_buffer,
    parse_buffer,
    parse_indices,
)
from tensorkiln.script.parse_call import parse_call
from tensorkiln.script.parse_form import parse_fields
from tensorkiln.script.parse_literals import (
    parse_any,
    parse_dtype,
    parse_expr,
    parse_flag,
    parse_string,
    typed_number,
)
from tensorkiln.script.parse_loops import parse_for
from tensorkiln.script.parse_macro import inline_macro
from tensorkiln.script.parse_python import python_function
from tensorkiln.script.python_values import is_python, unwrap
from tensorkiln.script.scope import NameScope, Number, Python
from tensorkiln.script.spellings import instead_of


def _pass(scope: NameScope, node: ast.Pass) -> list[Stmt]:
    return []


def _assign(scope: NameScope, node: ast.Assign) -> Wrap | list[Stmt]:
    """`x = v`, `x, y = v` of Python values, `b = T.alloc_buffer(...)`, `A[i] = v`."""
    match node:
        case ast.Assign(targets=[ast.Name() as target], value=ast.Call() as call) if (
            scope.dialect(call.func) in BUFFER_WORDS
        ):
            return declare_buffer(scope, target, call)
        case ast.Assign(targets=[ast.Name() | ast.Tuple() as target], value=value):
            right_side = parse_any(scope, value)
            if isinstance(right_side, Python) or is_python(right_side):
                unpack(scope, target, unwrap(right_side), value)
                return []
            if not isinstance(target, ast.Name):
                raise scope.fail(target, "one value for several names")
            if isinstance(right_side, Number):
                right_side = typed_number(scope, value, right_side, None)
            return _let(scope, target, value, right_side)
        case ast.Assign(targets=[ast.Subscript(value=name, slice=index)], value=value):
            return [_store(scope, name, index, value, False)]
    raise not_a_statement(scope, node)


def _annotated(scope: NameScope, node: ast.AnnAssign) -> Wrap:
    """`x: T.int32 = v`."""
    if not isinstance(node.target, ast.Name) or node.value is None:
        raise not_a_statement(scope, node)
    dtype = parse_dtype(scope, node.annotation)
    return _let(scope, node.target, node.value, parse_expr(scope, node.value, dtype), dtype)


def _if(scope: NameScope, node: ast.If) -> list[Stmt]:
    orelse = parse_body(scope, node.orelse) if node.orelse else None
    return [If(parse_expr(scope, node.test, BOOL), parse_body(scope, node.body), orelse)]


def _while(scope: NameScope, node: ast.While) -> list[Stmt]:
    if node.orelse:
        raise not_a_statement(scope, node)
    test = parse_any(scope, node.test)
    if is_python(test):
        raise scope.fail(
            node.test,
            "the condition is a Python value, which never changes",
            "load it from a buffer",
        )
    return [While(parse_expr(scope, node.test, BOOL), parse_body(scope, node.body))]


def _assert(scope: NameScope, node: ast.Assert) -> list[Stmt]:
    """Parse an assertion. If its condition is a Python value, check it now and return no
    statement."""
    message = f"assertion failed: {ast.unparse(node.test)}"
    if node.msg is not None:
        message = parse_string(scope, node.msg)
    test = parse_any(scope, node.test)
    if not is_python(test):
        return [Assert(parse_expr(scope, node.test, BOOL), message)]
    if not unwrap(test):
        raise scope.fail(node.test, message)
    return []


def _store(
    scope: NameScope, name: ast.expr, index: ast.expr, value: ast.expr, nontemporal: bool
) -> Stmt:
    buf = parse_buffer(scope, name)
    indices = parse_indices(scope, index, buf)
    stored = parse_expr(scope, value, buf.dtype)
    return _checked(scope, Store(buf, indices, stored, nontemporal), value)


def _checked(scope: NameScope, s: Store, node: ast.expr) -> Store:
    """Return the store, with a scalar value broadcast to the lanes of the indices; raise
    UserError if the types do not match."""
    lanes = max((i.dtype.lanes for i in s.indices), default=1)
    place = s.buffer.dtype.with_lanes(lanes)
    value = s.value
    if value.dtype.lanes == 1 and place.lanes > 1:
        value = Broadcast(value, place.lanes)
    if value.dtype != place:
        message = f"{s.buffer.name} takes {place} here, but the value is {value.dtype}"
        raise scope.fail(node, message, f'convert it: T.Cast("{place}", ...)')
    return Store(s.buffer, s.indices, value, s.nontemporal)


def _update(scope: NameScope, node: ast.AugAssign) -> list[Stmt]:
    """`A[i] += v`."""
    target = node.target
    if not isinstance(target, ast.Subscript):
        raise not_a_statement(scope, node)
    load = ast.copy_location(ast.Subscript(target.value, target.slice, ast.Load()), target)
    value = ast.copy_location(ast.BinOp(load, node.op, node.value), node)
    return [_store(scope, target.value, target.slice, value, False)]


def _store_call(scope: NameScope, call: ast.Call) -> Stmt:
    flag = options(scope, call.keywords, ("nontemporal",), call.func).get("nontemporal")
    if len(call.args) != 3:
        raise scope.fail(call, "expected T.store(buffer, (i, j), value, nontemporal=False)")
    name, index, value = call.args
    return _store(scope, name, index, value, flag is not None and parse_flag(scope, flag))


def _prefetch(scope: NameScope, call: ast.Call) -> Stmt:
    operands = call.args
    if len(operands) == 1 and isinstance(operands[0], ast.Subscript):
        operands = [operands[0].value, operands[0].slice]
    return Prefetch(**parse_fields(scope, call, Prefetch, operands))


def _sync(scope: NameScope, call: ast.Call) -> Stmt:
    sync = Sync(**parse_fields(scope, call, Sync, call.args))
    if sync.scope not in SYNC_SCOPES:
        hint = nearest(sync.scope, SYNC_SCOPES) or f"one of {', '.join(SYNC_SCOPES)}"
        raise scope.fail(call.args[0], f"no threads {sync.scope!r} that wait for each other", hint)
    return sync


def _let(
    scope: NameScope, target: ast.Name, node: ast.expr, value: Expr, dtype: DType | None = None
) -> Wrap:
    if dtype is not None and value.dtype != dtype:
        raise scope.fail(node, f"{target.id!r} is {dtype}, but the value is {value.dtype}")
    if value.dtype == VOID:
        raise scope.fail(node, "the call returns nothing", "write it as a statement")
    var = Var(target.id, value.dtype)
    scope.bind(target, target.id, var)
    return lambda body: Let(var, value, body)


# ---- calls, and statements that are `with` ... -----------------------------------------------


def _expression(scope: NameScope, node: ast.Expr) -> list[Stmt]:
    """A call with an effect, or of a macro; a string, which is a comment."""
    if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return []
    if not isinstance(node.value, ast.Call):
        raise not_a_statement(scope, node)
    call = node.value
    path = scope.dialect(call.func)
    if path in _CALLS:
        return [_CALLS[path](scope, call)]
    if path in BLOCK_WORDS:
        raise scope.fail(call, f"{path} stands at the beginning of a block")
    callee = None if path else python_function(scope, call.func)
    if isinstance(callee, Macro):
        return inline_macro(scope, callee, call)
    if not path and callable(callee):
        hint = "decorate it with @T.macro to write statements in it"
        raise scope.fail(call, "a call of a Python function is a value, not a statement", hint)
    hint = instead_of(path) or nearest(path.removeprefix("T."), _WORDS)
    raise not_a_statement(scope, call, hint)


def _evaluate(scope: NameScope, call: ast.Call) -> Stmt:
    if scope.is_call(call, "T.evaluate") and len(call.args) == 1 and not call.keywords:
        if isinstance(call.args[0], ast.Constant):
            return seq()  # other compilers print `T.evaluate(0)` where nothing is left
        value = parse_expr(scope, call.args[0])
    else:
        value = parse_expr(scope, call)
    if not isinstance(value, CallExtern):
        raise scope.fail(call, "only a call of a C function has an effect", "T.call_extern")
    return Evaluate(value)


def _with(scope: NameScope, node: ast.With) -> list[Stmt]:
    """`T.block`, `T.seq()`, `T.let(v) as x`, `T.alloc_buffer(...) as b`, `T.match_buffer`."""
    call = node.items[0].context_expr
    if len(node.items) != 1 or not isinstance(call, ast.Call):
        raise not_a_statement(scope, node)
    if scope.is_call(call, "T.seq"):
        return [Seq(tuple(parse_items(scope, node.body)))]
    if scope.is_call(call, "T.block"):
        return [parse_block(scope, node, call)]
    if scope.is_call(call, "T.init"):
        raise scope.fail(call, "T.init stands in a block, before its other statements")
    name = node.items[0].optional_vars
    if not isinstance(name, ast.Name):
        hint = instead_of(scope.dialect(call.func))
        raise scope.fail(call, "expected `with ... as name:`", hint)
    with scope.inner():
        if scope.is_call(call, "T.let") and len(call.args) in (1, 2):
            dtype = parse_dtype(scope, call.args[1]) if len(call.args) == 2 else None
            wrapped = _let(scope, name, call.args[0], parse_expr(scope, call.args[0], dtype), dtype)
        elif scope.dialect(call.func) in BUFFER_WORDS:
            wrapped = declare_buffer(scope, name, call)
        else:
            hint = instead_of(scope.dialect(call.func))
            raise scope.fail(call, "expected T.block, T.seq, T.let or T.alloc_buffer", hint)
        return [wrapped(parse_body(scope, node.body))]


_CALLS: dict[str, Callable[[NameScope, ast.Call], Stmt]] = {
    "T.store": _store_call,
    "T.call": parse_call,
    "T.prefetch": _prefetch,
    "T.sync": _sync,
    "T.evaluate": _evaluate,
    "T.call_extern": _evaluate,
}
_WORDS = [path.removeprefix("T.") for path in (*_CALLS, "T.func_attr")]
STATEMENTS: dict[type[ast.stmt], Callable[..., Wrap | list[Stmt]]] = {
    ast.Pass: _pass,
    ast.Assign: _assign,
    ast.AnnAssign: _annotated,
    ast.AugAssign: _update,
    ast.For: parse_for,
    ast.While: _while,
    ast.If: _if,
    ast.Assert: _assert,
    ast.With: _with,
    ast.Expr: _expression,
}
