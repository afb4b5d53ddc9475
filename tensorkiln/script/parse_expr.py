"""Expressions from Python syntax trees. Nothing is executed: every form is matched by name."""

from __future__ import annotations

import ast
from collections.abc import Callable

from tensorkiln.base.errors import UserError, nearest
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.dtype import BOOL, DTYPES, FLOAT32, HANDLE, INT64, DType
from tensorkiln.ir.expr import (
    BINARY,
    INTRINSICS,
    UNARY,
    Binary,
    Broadcast,
    Cast,
    Expr,
    FloatImm,
    IntImm,
    Intrin,
    Load,
    Ramp,
    Reduce,
    Select,
    Shuffle,
    Unary,
    Var,
    VectorReduce,
    binary,
)
from tensorkiln.script.scope import Number, Scope, plain

BINARY_NODES: dict[type[ast.AST], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.FloorDiv: "floordiv",
    ast.Mod: "floormod",
    ast.BitOr: "bitor",
    ast.BitXor: "bitxor",
    ast.BitAnd: "bitand",
    ast.LShift: "shl",
    ast.RShift: "shr",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.And: "and",
    ast.Or: "or",
}


class ExprParser:
    """Expressions in one scope. In `define` mode unknown names become symbolic dimensions."""

    def __init__(self, scope: Scope):
        self.scope = scope
        self._define = False

    def fail(self, node: ast.AST, message: str, hint: str = "") -> UserError:
        """An error that underlines `node`."""
        return self.scope.source.error(node, message, hint)

    # ---- values ------------------------------------------------------------------------------

    def expr(self, node: ast.expr, like: DType | None = None) -> Expr:
        """The expression; a bare number gets dtype `like` (or int64, float32)."""
        value = self.raw(node)
        return self.number(node, value, like) if isinstance(value, Number) else value

    def number(self, node: ast.expr, n: Number, like: DType | None) -> Expr:
        """A literal of dtype `like` (its element)."""
        if isinstance(n.value, float):
            like = FLOAT32 if like is None else like.element
            if not like.is_float:
                raise self.fail(node, f"a float where {like} is expected", f'T.Cast("{like}", …)')
            return FloatImm(n.value, like)
        like = INT64 if like is None else like.element
        if like.is_float:
            return FloatImm(float(n.value), like)
        low = 0 if like.is_unsigned else -(1 << (like.bits - 1))
        if not low <= n.value < low + (1 << like.bits):
            raise self.fail(node, f"{n.value} does not fit {like}")
        return IntImm(n.value, like)

    def raw(self, node: ast.expr) -> Expr | Number:
        """The expression, numbers still without dtype."""
        parse = _NODES.get(type(node))
        if parse is None:
            raise self.fail(node, f"{type(node).__name__} is not an expression of this language")
        return parse(self, node)

    def same(self, nodes: list[ast.expr]) -> list[Expr]:
        """Expressions of one dtype: numbers follow the others, scalars take the others' lanes."""
        return self._unify(nodes, [self.raw(n) for n in nodes])

    def _unify(self, nodes: list[ast.expr], values: list[Expr | Number]) -> list[Expr]:
        first = values[0]
        if isinstance(first, Expr) and first.dtype == HANDLE:
            return [first, *map(self._bytes, nodes[1:], values[1:])]
        typed = [v for v in values if not isinstance(v, Number)]
        like: DType | None = typed[0].dtype if typed else None
        numbers = [v.value for v in values if isinstance(v, Number)]
        if like is None and any(isinstance(v, float) for v in numbers):
            like = FLOAT32
        out = [
            self.number(n, v, like) if isinstance(v, Number) else v
            for n, v in zip(nodes, values, strict=True)
        ]
        lanes = max(e.dtype.lanes for e in out)
        for i, (n, e) in enumerate(zip(nodes, out, strict=True)):
            if e.dtype.element != out[0].dtype.element:
                message = f"{e.dtype} against {out[0].dtype}"
                raise self.fail(n, message, "convert one of them with T.Cast")
            if e.dtype.lanes != lanes:
                if e.dtype.lanes != 1:
                    raise self.fail(n, f"{e.dtype.lanes} lanes against {lanes}")
                out[i] = Broadcast(e, lanes)
        return out

    def _bytes(self, node: ast.expr, value: Expr | Number) -> Expr:
        """What is added to an address."""
        return self.number(node, value, INT64) if isinstance(value, Number) else value

    def literal(self, node: ast.expr) -> object:
        """A plain Python value: number, string, None, tuple of them, or a captured one."""
        match node:
            case ast.Constant(value=value) if not isinstance(value, (bytes, complex)):
                return value
            case ast.Tuple(elts=elts) | ast.List(elts=elts):
                return tuple(map(self.literal, elts))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                number = self.literal(operand)
                if isinstance(number, (int, float)):
                    return -number
            case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=str(text))]):
                if text in ("inf", "-inf", "nan"):
                    return float(text)
            case ast.Name(id=name) if name not in self.scope.bound:
                known = plain(self.scope.captured.get(name))
                if known is not None:
                    return known
        raise self.fail(node, "expected a literal value")

    def integer(self, node: ast.expr) -> int:
        """A plain Python integer."""
        value = self.literal(node)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.fail(node, "expected an integer literal")
        return value

    def dtype(self, node: ast.expr) -> DType:
        """`"float32x16"` or `T.float32x16`."""
        path = self.scope.dialect(node)
        text = path[2:] if path else self.literal(node)
        found = _parse_dtype(text) if isinstance(text, str) else None
        if found is None:
            raise self.fail(node, f"not a dtype: {text!r}", nearest(str(text), DTYPES))
        return found

    def shape(self, node: ast.expr) -> tuple[Expr, ...]:
        """Extents; a string is an expression that may bring in new symbolic dimensions."""
        items = node.elts if isinstance(node, (ast.Tuple, ast.List)) else None
        if items is None and isinstance(node, ast.Name):
            value = plain(self.scope.captured.get(node.id))
            if isinstance(value, tuple):
                return tuple(IntImm(v) for v in value if isinstance(v, int))
        if items is None:
            raise self.fail(node, "expected a shape", "a tuple, as (1, 16) or (4,)")
        return tuple(map(self.extent, items))

    def extent(self, node: ast.expr) -> Expr:
        """One extent of a shape."""
        before, target = self._define, node
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            target = self.quoted(node, node.value)
            self._define = True
        try:
            value = self.expr(target)
        finally:
            self._define = before
        if not value.dtype.is_int or value.dtype.lanes != 1:
            raise self.fail(node, f"an extent is an integer, not {value.dtype}")
        return value

    def quoted(self, node: ast.Constant, text: str) -> ast.expr:
        """The expression inside a string."""
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError):
            raise self.fail(node, "not an expression") from None
        for inner in ast.walk(tree):
            # Errors inside the string point at the string.
            ast.copy_location(inner, node)
        return tree

    # ---- one method per kind of node ---------------------------------------------------------

    def _constant(self, node: ast.Constant) -> Expr | Number:
        if isinstance(node.value, bool):
            return IntImm(int(node.value), BOOL)
        if isinstance(node.value, (int, float)):
            return Number(node.value)
        raise self.fail(node, f"{node.value!r} is not a number")

    def _name(self, node: ast.Name) -> Expr | Number:
        found = self.scope.bound.get(node.id)
        if isinstance(found, Var):
            return found
        if found is not None:
            what = "a buffer" if isinstance(found, Buffer) else "a graph value"
            raise self.fail(node, f"{node.id!r} is {what}, not a number", "index it, as A[i, j]")
        if not self._define and node.id in self.scope.captured:
            value = plain(self.scope.captured[node.id])
            if isinstance(value, bool):
                return IntImm(int(value), BOOL)
            if isinstance(value, (int, float)):
                return Number(value, captured=True)
        if self._define:
            var = Var(node.id)
            self.scope.bind(node, node.id, var)
            return var
        raise self.scope.unknown(node)

    def _binary(self, node: ast.BinOp) -> Expr | Number:
        op = BINARY_NODES.get(type(node.op))
        if op is None:
            raise self.fail(node, f"operator {type(node.op).__name__} is not in this language")
        return self._two(node, op, node.left, node.right)

    def _two(self, node: ast.expr, op: str, a: ast.expr, b: ast.expr) -> Expr | Number:
        x, y = self.raw(a), self.raw(b)
        folded = _fold(op, x, y)
        if folded is not None:
            return folded
        x, y = self._unify([a, b], [x, y])
        return Binary(op, x, y)

    def _compare(self, node: ast.Compare) -> Expr | Number:
        op = BINARY_NODES.get(type(node.ops[0]))
        if len(node.ops) != 1:
            raise self.fail(node, "chained comparison", "write `a < b and b < c`")
        if op is None:
            raise self.fail(node, f"operator {type(node.ops[0]).__name__} is not in this language")
        return self._two(node, op, node.left, node.comparators[0])

    def _bool(self, node: ast.BoolOp) -> Expr:
        op = BINARY_NODES[type(node.op)]
        result, *others = self.same(node.values)
        for other in others:
            result = Binary(op, result, other)
        return result

    def _unary(self, node: ast.UnaryOp) -> Expr | Number:
        if isinstance(node.op, ast.Not):
            return Unary("not", self.expr(node.operand, BOOL))
        if not isinstance(node.op, ast.USub):
            raise self.fail(node, f"operator {type(node.op).__name__} is not in this language")
        value = self.raw(node.operand)
        if isinstance(value, Number):
            return Number(-value.value, value.captured)
        return Unary("neg", value)

    def _choice(self, node: ast.IfExp) -> Expr:
        a, b = self.same([node.body, node.orelse])
        return Select(self.expr(node.test, BOOL), a, b)

    def _load(self, node: ast.Subscript) -> Expr | Number:
        if isinstance(node.value, ast.Name) and node.value.id not in self.scope.bound:
            values = plain(self.scope.captured.get(node.value.id))
            if isinstance(values, tuple):
                return self._item(node, values)
        buf = self.buffer(node.value)
        return Load(buf, self.indices(node.slice, buf))

    def _item(self, node: ast.Subscript, values: tuple[object, ...]) -> Number:
        """An item of a captured tuple."""
        index = self.integer(node.slice)
        value = values[index] if -len(values) <= index < len(values) else None
        if not isinstance(value, (int, float)):
            raise self.fail(node, f"no number at {index} of {values!r}")
        return Number(value, captured=True)

    def buffer(self, node: ast.expr) -> Buffer:
        """The buffer a name stands for."""
        if not isinstance(node, ast.Name):
            raise self.fail(node, "expected the name of a buffer")
        found = self.scope.bound.get(node.id)
        if found is None:
            raise self.scope.unknown(node)
        if not isinstance(found, Buffer):
            raise self.fail(node, f"{node.id!r} is not a buffer")
        return found

    def indices(self, node: ast.expr, buf: Buffer) -> tuple[Expr, ...]:
        """One integer expression per dimension of `buf`."""
        items = node.elts if isinstance(node, (ast.Tuple, ast.List)) else [node]
        if len(items) != len(buf.shape):
            message = f"{buf.name} has {len(buf.shape)} dimensions, but {len(items)} indices came"
            raise self.fail(node, message)
        out = tuple(self.expr(i) for i in items)
        for item, e in zip(items, out, strict=True):
            if not e.dtype.is_int:
                raise self.fail(item, f"an index is an integer, not {e.dtype}")
        return out

    # ---- calls: T.name(...) ------------------------------------------------------------------

    def _call(self, node: ast.Call) -> Expr:
        path = self.scope.dialect(node.func)
        if not path.startswith("T."):
            raise self.fail(node.func, "not a function of this language", "they begin with T.")
        word = _ALIASES.get(path[2:], path[2:])
        if node.keywords:
            raise self.fail(node.keywords[0].value, f"{path} takes no keyword arguments")
        special, arity = _CALLS.get(word), _arity(word)
        if arity is None:
            known = [*_CALLS, *INTRINSICS, *UNARY, "min", "max", *DTYPES]
            raise self.fail(node.func, f"unknown function {path}", nearest(word, known))
        if len(node.args) not in arity:
            expected = " or ".join(map(str, arity))
            raise self.fail(node, f"{path} takes {expected} arguments, got {len(node.args)}")
        if special is not None:
            return special(self, node)
        if word in INTRINSICS:
            return Intrin(word, tuple(self.same(node.args)))
        if word in UNARY:
            return Unary(word, self.expr(node.args[0], BOOL if word == "not" else None))
        if word in BINARY:
            a, b = self.same(node.args)
            return Binary(word, a, b)
        return self._typed(node, self.dtype(node.func))

    def _typed(self, node: ast.Call, dtype: DType) -> Expr:
        """`T.float32(1.5)`: a literal; of an expression, its conversion."""
        argument = node.args[0]
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            if argument.value not in ("inf", "-inf", "nan", "-nan") or not dtype.is_float:
                raise self.fail(argument, f"not a {dtype}", 'a float may be "inf", "-inf", "nan"')
            value: Expr | Number = Number(float(argument.value))
        else:
            value = self.raw(argument)
        if not isinstance(value, Number):
            if value.dtype == BOOL and isinstance(value, IntImm) and dtype == BOOL:
                return value
            return Cast(value, dtype.with_lanes(value.dtype.lanes))
        imm = self.number(argument, value, dtype)
        return imm if dtype.lanes == 1 else Broadcast(imm, dtype.lanes)

    def _select(self, node: ast.Call) -> Expr:
        a, b = self.same(node.args[1:])
        return Select(self.expr(node.args[0], BOOL), a, b)

    def _cast(self, node: ast.Call) -> Expr:
        return Cast(self.expr(node.args[1]), self.dtype(node.args[0]))

    def _ramp(self, node: ast.Call) -> Expr:
        base, stride = self.same(node.args[:2])
        return Ramp(base, stride, self.integer(node.args[2]))

    def _broadcast(self, node: ast.Call) -> Expr:
        return Broadcast(self.expr(node.args[0]), self.integer(node.args[1]))

    def _shuffle(self, node: ast.Call) -> Expr:
        a, b = self.same(node.args[:2])
        lanes = self.literal(node.args[2])
        if not isinstance(lanes, tuple) or not all(isinstance(x, int) for x in lanes):
            raise self.fail(node.args[2], "lanes are a tuple of integers")
        return Shuffle(a, b, lanes)

    def _vector_reduce(self, node: ast.Call) -> Expr:
        return VectorReduce(self._word(node.args[0]), self.expr(node.args[1]))

    def _word(self, node: ast.expr) -> str:
        value = self.literal(node)
        if not isinstance(value, str):
            raise self.fail(node, "expected a string")
        return value

    def _reduce(self, node: ast.Call) -> Expr:
        op, axes_node, body = node.args
        if not isinstance(axes_node, (ast.List, ast.Tuple)):
            raise self.fail(axes_node, "expected axes", "as [(k, 16)]")
        with self.scope.inner():
            axes = tuple(map(self._axis, axes_node.elts))
            return Reduce(self._word(op), axes, self.expr(body))

    def _axis(self, node: ast.expr) -> tuple[Var, Expr]:
        if not isinstance(node, ast.Tuple) or len(node.elts) not in (2, 3):
            raise self.fail(node, "expected an axis", "as (k, 16)")
        name, extent = node.elts[0], self.expr(node.elts[1])
        if not isinstance(name, ast.Name):
            raise self.fail(name, "expected a new name")
        var = Var(name.id, self.dtype(node.elts[2]) if len(node.elts) == 3 else INT64)
        self.scope.bind(name, name.id, var)
        return var, extent

    def _variable(self, node: ast.Call) -> Expr:
        """`T.var("n", "int32")`: a symbolic dimension that is not int64."""
        name = self._word(node.args[0])
        found = self.scope.bound.get(name)
        if isinstance(found, Var):
            return found
        var = Var(name, self.dtype(node.args[1]))
        self.scope.bind(node, name, var)
        return var


def _fold(op: str, a: Expr | Number, b: Expr | Number) -> Number | None:
    """Arithmetic on integers of which one is captured stays a Python number."""
    if not (isinstance(a, Number) and isinstance(b, Number) and (a.captured or b.captured)):
        return None
    if not (isinstance(a.value, int) and isinstance(b.value, int)) or BINARY[op][1]:
        return None
    result = binary(op, IntImm(a.value), IntImm(b.value))
    return Number(result.value, captured=True) if isinstance(result, IntImm) else None


def _parse_dtype(text: str) -> DType | None:
    try:
        return DType.parse(text)
    except ValueError:
        return None


def _arity(word: str) -> tuple[int, ...] | None:
    """How many arguments T.word takes; None when there is no such word."""
    if word in _ARITY:
        return _ARITY[word]
    if word in INTRINSICS:
        return (INTRINSICS[word],)
    if word in BINARY:
        return (2,)
    return (1,) if word in UNARY or _parse_dtype(word) is not None else None


_ALIASES = {
    "if_then_else": "select",
    "where": "select",
    "cast": "Cast",
    "broadcast": "Broadcast",
    "ramp": "Ramp",
}
_NODES: dict[type[ast.AST], Callable[..., Expr | Number]] = {
    ast.Constant: ExprParser._constant,
    ast.Name: ExprParser._name,
    ast.BinOp: ExprParser._binary,
    ast.Compare: ExprParser._compare,
    ast.BoolOp: ExprParser._bool,
    ast.UnaryOp: ExprParser._unary,
    ast.IfExp: ExprParser._choice,
    ast.Subscript: ExprParser._load,
    ast.Call: ExprParser._call,
}
_CALLS: dict[str, Callable[[ExprParser, ast.Call], Expr]] = {
    "select": ExprParser._select,
    "Cast": ExprParser._cast,
    "Ramp": ExprParser._ramp,
    "Broadcast": ExprParser._broadcast,
    "shuffle": ExprParser._shuffle,
    "vector_reduce": ExprParser._vector_reduce,
    "reduce": ExprParser._reduce,
    "var": ExprParser._variable,
}
_ARITY = {
    "select": (3,),
    "Cast": (2,),
    "Ramp": (3,),
    "Broadcast": (2,),
    "shuffle": (3,),
    "vector_reduce": (2,),
    "reduce": (3,),
    "var": (2,),
}
