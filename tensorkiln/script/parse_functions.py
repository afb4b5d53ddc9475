"""The functions of T in expressions: `T.exp(x)`, `T.select(c, a, b)`, `T.call_extern(...)`."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import TypeGuard

import ml_dtypes

from tensorkiln.base.element_types import PROGRAM_TYPES
from tensorkiln.base.errors import nearest
from tensorkiln.ir.buffer import AddressOf
from tensorkiln.ir.dtype import BOOL, HANDLE, INT64, DType
from tensorkiln.ir.expr import (
    BINARY,
    BITCASTS,
    CALLED,
    INTRINSIC_ROWS,
    UNARY,
    Binary,
    Broadcast,
    CallExtern,
    Cast,
    Expr,
    IntImm,
    Intrin,
    Intrinsic,
    Reduce,
    Unary,
    Var,
    const,
    reduce_identity,
)
from tensorkiln.ir.form import ARGUMENTS
from tensorkiln.script.arguments import options
from tensorkiln.script.parse_attrs import parse_dependencies
from tensorkiln.script.parse_buffer import parse_buffer, parse_indices
from tensorkiln.script.parse_form import parse_fields
from tensorkiln.script.parse_literals import (
    dtype_called,
    parse_any,
    parse_argument,
    parse_dtype,
    parse_expr,
    parse_raw,
    parse_same,
    parse_string,
    typed_number,
)
from tensorkiln.script.parse_python import call_python
from tensorkiln.script.python_values import Value, unwrap
from tensorkiln.script.scope import NameScope, Number, Python
from tensorkiln.script.spellings import ALIASES, expression_of, instead_of


def _call(scope: NameScope, node: ast.Call) -> Value:
    path = scope.dialect(node.func)
    return _call_word(scope, node, path) if path.startswith("T.") else call_python(scope, node)


def _call_word(scope: NameScope, node: ast.Call, path: str) -> Value:
    """Parse a call `T.word(...)`, where `path` is "T.word". Raise UserError if there is no such
    word, or if it takes another number of arguments."""
    word = ALIASES.get(path[2:], path[2:])
    if node.keywords and word != "call_extern":
        raise scope.fail(node.keywords[0].value, f"{path} takes no keyword arguments")
    special, arity = _CALLS.get(word, (None, _arity(word)))
    expression = expression_of(path, node) if arity is None else None
    if expression is not None:
        return parse_any(scope, expression)
    if arity is None:
        words = [*CALLED, *_CALLS, *INTRINSIC_ROWS, *UNARY, *_NAMED, *PROGRAM_TYPES]
        hint = instead_of(path) or nearest(word, words)
        raise scope.fail(node.func, f"unknown function {path}", hint)
    if len(node.args) not in arity:
        expected = "at least 2" if arity is _AT_LEAST_2 else " or ".join(map(str, arity))
        raise scope.fail(node, f"{path} takes {expected} arguments, got {len(node.args)}")
    return special(scope, node) if special is not None else _operation(scope, node, word)


def _operation(scope: NameScope, node: ast.Call, word: str) -> Expr:
    """Parse a call of an operation of expressions, which has as many operands as it takes."""
    operands = node.args
    if word == "Cast" and _is_text(operands[1]):  # scripts of others give the type second
        operands = operands[::-1]
    if word in CALLED:
        return CALLED[word](**parse_fields(scope, node, CALLED[word], operands))
    if word in INTRINSIC_ROWS:
        if isinstance(INTRINSIC_ROWS[word], Intrinsic):
            return Intrin(word, tuple(parse_same(scope, operands)))
        return Intrin(word, tuple(parse_expr(scope, a) for a in operands))
    if word in UNARY:
        return Unary(word, parse_expr(scope, node.args[0], BOOL if word == "not" else None))
    if word in BINARY:
        return Binary(word, *parse_same(scope, node.args))
    return _typed(scope, node)


def _is_text(node: ast.expr) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _typed(scope: NameScope, node: ast.Call) -> Expr:
    """Parse `T.float32(x)`: a literal if x is a number, else a cast with the lanes of x."""
    dtype, argument = parse_dtype(scope, node.func), node.args[0]
    if _is_text(argument):
        if argument.value not in ("inf", "-inf", "nan", "-nan") or not dtype.is_float:
            raise scope.fail(argument, f"not a {dtype}", 'a float may be "inf", "-inf", "nan"')
        value: Expr | Number = Number(float(argument.value))
    else:
        value = parse_raw(scope, argument)
    if not isinstance(value, Number):
        if value.dtype == BOOL and isinstance(value, IntImm) and dtype == BOOL:
            return value
        return Cast(value, dtype.with_lanes(value.dtype.lanes))
    imm = typed_number(scope, argument, value, dtype)
    return imm if dtype.lanes == 1 else Broadcast(imm, dtype.lanes)


def _reinterpret(scope: NameScope, node: ast.Call) -> Expr:
    """`T.reinterpret("int32", x)`: the same bits as another type."""
    dtype, value = parse_dtype(scope, node.args[0]), parse_expr(scope, node.args[1])
    source = value.dtype.element.name
    if source == dtype.element.name:
        return value
    pairs = {pair: name for name, pair in BITCASTS.items()}
    name = pairs.get((source, dtype.element.name))
    if name is None:
        hint = f"there are {', '.join(f'{a} to {b}' for a, b in pairs)}"
        raise scope.fail(node, f"the bits of {source} as {dtype}", hint)
    return Intrin(name, (value,))


def _extreme(scope: NameScope, node: ast.Call) -> Expr:
    """`T.max_value("int32")`, `T.min_value(...)`, `T.infinity(...)`: a literal."""
    dtype, word = parse_dtype(scope, node.args[0]), scope.dialect(node.func)
    if word == "T.infinity" and not dtype.is_float:
        raise scope.fail(node, f"{dtype} has no infinity", "T.max_value")
    if word == "T.infinity":
        return const(float("inf"), dtype)
    low = word == "T.min_value"
    if dtype.is_float:
        largest = float(ml_dtypes.finfo(dtype.element.name).max)
        return const(-largest if low else largest, dtype)
    if dtype.is_bool:
        return const(not low, dtype)
    return reduce_identity("max" if low else "min", dtype)


def _reduce(scope: NameScope, node: ast.Call) -> Expr:
    op, axes_node, body = node.args
    if not isinstance(axes_node, (ast.List, ast.Tuple)):
        raise scope.fail(axes_node, "expected axes", "as [(k, 16)]")
    with scope.inner():
        axes = tuple(_axis(scope, a) for a in axes_node.elts)
        return Reduce(parse_string(scope, op), axes, parse_expr(scope, body))


def _axis(scope: NameScope, node: ast.expr) -> tuple[Var, Expr]:
    if not isinstance(node, ast.Tuple) or len(node.elts) not in (2, 3):
        raise scope.fail(node, "expected an axis", "as (k, 16)")
    name, extent = node.elts[0], parse_expr(scope, node.elts[1])
    if not isinstance(name, ast.Name):
        raise scope.fail(name, "expected a new name")
    var = Var(name.id, parse_dtype(scope, node.elts[2]) if len(node.elts) == 3 else INT64)
    scope.bind(name, name.id, var)
    return var, extent


def _variable(scope: NameScope, node: ast.Call) -> Expr:
    """`T.var("n", "int32")`: a symbolic dimension that is not int64."""
    name = parse_string(scope, node.args[0])
    meaning = scope.meanings.get(name)
    if isinstance(meaning, Var):
        return meaning
    var = Var(name, parse_dtype(scope, node.args[1]))
    scope.bind(node, name, var)
    return var


def _address_of(scope: NameScope, node: ast.Call) -> Expr:
    place = node.args[0]
    if not isinstance(place, ast.Subscript):
        raise scope.fail(place, "expected an element of a buffer", "as T.address_of(A[i, j])")
    buf = parse_buffer(scope, place.value)
    return AddressOf(buf, parse_indices(scope, place.slice, buf))


def _call_extern(scope: NameScope, node: ast.Call) -> Expr:
    """`T.call_extern("float64", "hypot", x, y)`, and perhaps `dependencies=[...]`; a call of type
    "void" must be a statement."""
    dtype, name = _result_type(scope, node.args[0]), parse_string(scope, node.args[1])
    if not (name.isidentifier() and name.isascii()):
        raise scope.fail(node.args[1], f"{name!r} is not the name of a C function")
    args = tuple(parse_expr(scope, a) for a in node.args[2:])
    nodes = options(scope, node.keywords, ("dependencies",), node.func)
    needs = [parse_dependencies(scope, value) for value in nodes.values()]
    return CallExtern(name, args, dtype, *needs)


def _result_type(scope: NameScope, node: ast.expr) -> DType:
    void = isinstance(node, ast.Constant) and node.value == "void"
    dtype = DType("void") if void else parse_dtype(scope, node)
    if dtype == HANDLE or dtype.lanes != 1:
        hint = '"void" where a pointer is returned and not used'
        raise scope.fail(node, f"a C function that returns {dtype}", hint)
    return dtype


def _unrolled(scope: NameScope, node: ast.Call) -> Python:
    """`T.meta.unroll(items)`: the items, for a loop that is unrolled while parsing."""
    return Python(unwrap(parse_argument(scope, node.args[0])))


def _arity(word: str) -> Sequence[int] | None:
    """Return the numbers of arguments that the operator or dtype `T.word` accepts; None if there is
    no such word."""
    if word in CALLED:
        return (len(ARGUMENTS[CALLED[word]]),)
    if word in INTRINSIC_ROWS:
        return (INTRINSIC_ROWS[word].arity,)
    if word in BINARY:
        return (2,)
    return (1,) if word in UNARY or dtype_called(word) is not None else None


_NAMED = ("min", "max", "truncdiv")  # binary operators that are written by name
_AT_LEAST_2 = range(2, 256)
# Functions with a grammar of their own, and how many arguments they take.
_CALLS: dict[str, tuple[Callable[[NameScope, ast.Call], Value], Sequence[int]]] = {
    "reinterpret": (_reinterpret, (2,)),
    "max_value": (_extreme, (1,)),
    "min_value": (_extreme, (1,)),
    "infinity": (_extreme, (1,)),
    "reduce": (_reduce, (3,)),
    "var": (_variable, (2,)),
    "address_of": (_address_of, (1,)),
    "call_extern": (_call_extern, _AT_LEAST_2),
    "meta.unroll": (_unrolled, (1,)),
}
EXPRESSIONS: dict[type[ast.expr], Callable[..., Value]] = {ast.Call: _call}
