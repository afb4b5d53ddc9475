"""Expressions from Python syntax trees.

Each kind of node has a method; other kinds are errors. Subexpressions made of Python values are
evaluated while parsing: see `parse_plain`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from tensorkiln.ir.attrs import Attrs, AttrValue
from tensorkiln.ir.buffer import Buffer, Load
from tensorkiln.ir.dtype import BOOL
from tensorkiln.ir.equal import structural_equal
from tensorkiln.ir.expr import (
    Binary,
    Expr,
    IntImm,
    Ramp,
    Select,
    Unary,
    Var,
    binary,
    int_value,
)
from tensorkiln.ir.known_attrs import Table, problem_of
from tensorkiln.script.parse_functions import call_word
from tensorkiln.script.parse_plain import NAMES, PlainParser
from tensorkiln.script.python_values import (
    Value,
    fold,
    is_python,
    unwrap,
    wrap,
)
from tensorkiln.script.scope import Number, Python, plain

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

Range = tuple[Expr, Expr | None]


class ExprParser(PlainParser):
    """Parses expressions in one scope. Inside a quoted extent, as in `R.Tensor(("n", 4), ...)`, a
    name that is not bound becomes a new symbolic dimension."""

    # ---- shapes ------------------------------------------------------------------------------

    def shape(self, node: ast.expr) -> tuple[Expr, ...]:
        """Parse a shape, a tuple of extents or a captured sequence of them. An extent in quotes is
        an expression that may introduce symbolic dimensions."""
        if isinstance(node, (ast.Tuple, ast.List)):
            out: list[Expr] = []
            for item in node.elts:
                if isinstance(item, ast.Starred):
                    out += self._extents(item.value)
                else:
                    out.append(self.extent(item))
            return tuple(out)
        return tuple(self._extents(node))

    def _extents(self, node: ast.expr) -> list[Expr]:
        """Return the extents in a captured Python sequence."""
        items = unwrap(self.any(node)) if isinstance(node, (*NAMES, ast.BinOp)) else None
        if not isinstance(items, tuple | list):
            raise self.fail(node, "expected a shape", "a tuple, as (1, 16) or (4,)")
        out = []
        for item in items:
            if isinstance(item, str):
                quoted = ast.copy_location(ast.Constant(item), node)
                out.append(self.extent(quoted))
                continue
            value = wrap(item)
            if isinstance(value, Python):
                raise self.fail(node, f"an extent is an integer, not {item!r}")
            out.append(self._is_extent(node, self._typed(node, value)))
        return out

    def _typed(self, node: ast.expr, value: Expr | Number) -> Expr:
        return self.number(node, value, None) if isinstance(value, Number) else value

    def extent(self, node: ast.expr) -> Expr:
        """Parse one extent of a shape, an integer expression; see `shape`."""
        before, target = self._define, node
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            target = self.quoted(node, node.value)
            self._define = True
        try:
            value = self.expr(target)
        finally:
            self._define = before
        return self._is_extent(node, value)

    def _is_extent(self, node: ast.expr, value: Expr) -> Expr:
        if not value.dtype.is_int or value.dtype.lanes != 1:
            raise self.fail(node, f"an extent is an integer, not {value.dtype}")
        return value

    def quoted(self, node: ast.Constant, text: str) -> ast.expr:
        """Return the syntax tree of an expression inside a string; its nodes lie at the string."""
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError):
            raise self.fail(node, "not an expression") from None
        for inner in ast.walk(tree):
            ast.copy_location(inner, node)
        return tree

    def any(self, node: ast.expr) -> Value:
        """Parse an expression, or evaluate it if it is made of Python values."""
        parse = _NODES.get(type(node))
        if parse is None:
            raise self.fail(node, "this Python expression is not allowed in a script")
        return parse(self, node)

    # ---- attributes --------------------------------------------------------------------------

    def attr(self, node: ast.expr) -> AttrValue:
        """Parse the value of an attribute: a literal, a captured Python value, or an expression
        over symbolic dimensions."""
        match node:
            case ast.Constant(value=(None | bool() | int() | float() | str()) as value):
                return value
            case ast.Tuple(elts=elts) | ast.List(elts=elts):
                return tuple(map(self.attr, elts))
            case ast.Call(func=ast.Name(id="float")):
                return self.literal(node)  # type: ignore[return-value]
        found = self.any(node)
        if isinstance(found, Expr):
            return found
        known = plain(unwrap(found))
        if known is None and unwrap(found) is not None:
            raise self.fail(node, f"a Python {type(unwrap(found)).__name__} as an attribute")
        return known  # type: ignore[return-value]

    def string(self, node: ast.expr) -> str:
        """Return a string that is known while parsing."""
        found = self.literal(node)
        if not isinstance(found, str):
            raise self.fail(node, "expected a string")
        return found

    def attrs(self, node: ast.expr) -> Attrs:
        """Parse attributes: `{"name": value}`, or a captured dict."""
        if isinstance(node, ast.Dict):
            out: dict[str, AttrValue] = {}
            for k, v in zip(node.keys, node.values, strict=True):
                if not isinstance(k, ast.Constant) or not isinstance(k.value, str):
                    raise self.fail(k or v, "attribute names are strings")
                out[k.value] = self.attr(v)
            return Attrs.of(**out)
        found = unwrap(self.any(node))
        if not isinstance(found, dict) or not all(isinstance(k, str) for k in found):
            raise self.fail(node, "expected attributes as a dict", 'as {"mine.depth": 4}')
        return Attrs.of(**{k: plain(v) for k, v in found.items()})  # type: ignore[arg-type]

    def func_attr(self, nodes: list[ast.stmt], word: str) -> tuple[list[ast.stmt], ast.expr | None]:
        """Return (other statements, argument) if the first statement of a function, apart from a
        docstring, is a call of `word`, e.g. `T.func_attr({...})`; else (nodes, None)."""
        start = 1 if ast.get_docstring(ast.Module(nodes, [])) is not None else 0
        match nodes[start : start + 1]:
            case [ast.Expr(value=ast.Call(args=[given], keywords=[]) as call)]:
                if self.scope.dialect(call.func) == word:
                    return nodes[:start] + nodes[start + 1 :], given
        return nodes, None

    def known_attrs(self, node: ast.expr, table: Table, name: str) -> Attrs:
        """Parse the attributes of `name`. Raise UserError unless each is in the table with a valid
        value, or has a dot in its name."""
        attrs, places = self.attrs(node), {}
        if isinstance(node, ast.Dict):
            keys = zip(node.keys, node.values, strict=True)
            places = {k.value: v for k, v in keys if isinstance(k, ast.Constant)}
        for key, value in attrs.items_:
            problem = problem_of(table, name, key, value)
            if problem is not None:
                raise self.fail(places.get(key, node), *problem)
        return attrs

    # ---- one method per kind of node ---------------------------------------------------------

    def _constant(self, node: ast.Constant) -> Value:
        if isinstance(node.value, bool):
            return IntImm(int(node.value), BOOL)
        if isinstance(node.value, (int, float)):
            return Number(node.value)
        if node.value is None or isinstance(node.value, str):
            return Python(node.value, captured=False)
        raise self.fail(node, f"{node.value!r} is not a number")

    def _name(self, node: ast.Name) -> Value:
        found = self.scope.bound.get(node.id)
        if isinstance(found, Expr | Number | Python):
            return found
        if isinstance(found, Buffer):
            return Python(found)
        if found is not None:
            raise self.fail(node, f"{node.id!r} is a graph value, not a number")
        if not self._define and node.id in self.scope.captured:
            return wrap(self.scope.captured[node.id])
        if self._define:
            var = Var(node.id)
            self.scope.bind(node, node.id, var)
            return var
        raise self.scope.unknown(node)

    def _binary(self, node: ast.BinOp) -> Value:
        return self._two(node, node.op, node.left, node.right)

    def _two(self, node: ast.expr, op: ast.AST, a: ast.expr, b: ast.expr) -> Value:
        x, y = self.any(a), self.any(b)
        with self.in_python(node):
            folded = fold(op, x, y)
        if folded is not None:
            return folded
        word = BINARY_NODES.get(type(op))
        if word is None:
            raise self.fail(node, f"operator {type(op).__name__} is not in the script language")
        one, two = self._unify([a, b], [self._no_python(a, x), self._no_python(b, y)])
        if word == "div" and not one.dtype.is_float:
            hint = "`//` rounds down, T.truncdiv to zero; T.Cast makes floats of them"
            raise self.fail(node, f"`/` of {one.dtype}: a quotient is not an integer", hint)
        return Binary(word, one, two)

    def _no_python(self, node: ast.expr, value: Value) -> Expr | Number:
        return self.raw(node) if isinstance(value, Python) else value

    def _compare(self, node: ast.Compare) -> Value:
        if len(node.ops) != 1:
            raise self.fail(node, "chained comparison", "write `a < b and b < c`")
        return self._two(node, node.ops[0], node.left, node.comparators[0])

    def _bool(self, node: ast.BoolOp) -> Value:
        """Evaluate Python operands from the left as Python does: once one decides the result, the
        rest is not parsed. The first operand that is not a Python value and all after it form an
        expression."""
        stops = isinstance(node.op, ast.Or)
        for i, item in enumerate(node.values):
            value = self.any(item)
            if not is_python(value):
                return self._logic(node.op, node.values[i:])
            if bool(unwrap(value)) is stops or i + 1 == len(node.values):
                return value
        raise AssertionError("a BoolOp has values")

    def _logic(self, op: ast.boolop, nodes: list[ast.expr]) -> Expr:
        result, *others = self.same(nodes)
        for other in others:
            result = Binary(BINARY_NODES[type(op)], result, other)
        return result

    def _unary(self, node: ast.UnaryOp) -> Value:
        value = self.any(node.operand)
        if isinstance(node.op, ast.Not):
            if is_python(value):
                return Number(not unwrap(value), captured=True)
            return Unary("not", self.expr(node.operand, BOOL))
        if not isinstance(node.op, ast.USub):
            raise self.fail(
                node, f"operator {type(node.op).__name__} is not in the script language"
            )
        value = self._no_python(node.operand, value)
        if isinstance(value, Number):
            return Number(-value.value, value.captured)
        return Unary("neg", value)

    def _choice(self, node: ast.IfExp) -> Value:
        test = self.any(node.test)
        if is_python(test):
            return self.any(node.body if unwrap(test) else node.orelse)
        a, b = self.same([node.body, node.orelse])
        return Select(self.expr(node.test, BOOL), a, b)

    def _load(self, node: ast.Subscript) -> Value:
        name = node.value
        base = self.any(name) if isinstance(name, NAMES) else None
        if isinstance(base, Python) and base.captured and not isinstance(base.value, Buffer):
            index = unwrap(self.any(node.slice))
            with self.in_python(node):
                return wrap(base.value[index])  # type: ignore[index]
        buf = self.buffer(name)
        return Load(buf, self.indices(node.slice, buf))

    def buffer(self, node: ast.expr) -> Buffer:
        """Return the buffer that a node denotes; raise UserError if it denotes anything else."""
        found = self.any(node) if isinstance(node, NAMES) else None
        if isinstance(found, Python) and isinstance(found.value, Buffer):
            return found.value
        if isinstance(node, ast.Name):
            raise self.fail(node, f"{node.id!r} is not a buffer")
        raise self.fail(node, "expected the name of a buffer")

    def indices(self, node: ast.expr, buf: Buffer) -> tuple[Expr, ...]:
        """Parse one integer index per dimension of `buf`. A slice of constant width is a vector
        index: `A[i, j : j + 8]` has a `Ramp` of 8 lanes."""
        items = node.elts if isinstance(node, (ast.Tuple, ast.List)) else [node]
        if len(items) != len(buf.shape):
            message = f"{buf.name} has {len(buf.shape)} dimensions, received {len(items)} indices"
            raise self.fail(node, message)
        out = []
        for item, extent in zip(items, buf.shape, strict=True):
            e = self._lanes(item, extent) if isinstance(item, ast.Slice) else self.expr(item)
            if not e.dtype.is_int:
                raise self.fail(item, f"an index is an integer, not {e.dtype}")
            out.append(e)
        return tuple(out)

    def ranges(self, node: ast.expr, buf: Buffer) -> list[Range]:
        """Parse a region of `buf`: (first, extent) per dimension; the extent is None for a single
        index, which is no slice."""
        items = node.elts if isinstance(node, (ast.Tuple, ast.List)) else [node]
        if len(items) != len(buf.shape):
            message = f"{buf.name} has {len(buf.shape)} dimensions, received {len(items)} ranges"
            raise self.fail(node, message)
        out: list[Range] = []
        for item, whole in zip(items, buf.shape, strict=True):
            lo: Expr
            extent: Expr | None = None
            if not isinstance(item, ast.Slice):
                lo = self.expr(item)
            elif item.step is None:
                lo, extent = self.range(item, whole)
            else:
                raise self.fail(item, "a part of a buffer has no step")
            if not lo.dtype.is_int or lo.dtype.lanes != 1:
                raise self.fail(item, f"an index is an integer, not {lo.dtype}")
            out.append((lo, extent))
        return out

    def _lanes(self, node: ast.Slice, whole: Expr) -> Expr:
        lo, extent = self.range(node, whole)
        step = 1 if node.step is None else self.integer(node.step)
        width = int_value(extent)
        if width is None or width < 1 or step < 1:
            hint = "as A[i, j : j + 8]; a loop runs over any number"
            raise self.fail(node, "a slice that is read or stored has a constant width", hint)
        lanes = -(-width // step)
        return lo if lanes == 1 else Ramp(lo, IntImm(step, lo.dtype), lanes)

    def range(self, node: ast.Slice, whole: Expr) -> tuple[Expr, Expr]:
        """Return first element and number of elements of `lo:hi` in a dimension of `whole`."""
        if node.upper is None:
            lo = self.expr(node.lower) if node.lower is not None else IntImm(0, whole.dtype)
            return lo, whole if lo == IntImm(0, whole.dtype) else binary("sub", whole, lo)
        if node.lower is None:
            hi = self.expr(node.upper)
            return IntImm(0, hi.dtype), hi
        lo, hi = self.same([node.lower, node.upper])
        if lo == IntImm(0, lo.dtype):
            return lo, hi
        if isinstance(hi, Binary) and hi.op == "add" and structural_equal(hi.a, lo):
            return lo, hi.b
        return lo, binary("sub", hi, lo)

    def _call(self, node: ast.Call) -> Value:
        path = self.scope.dialect(node.func)
        return call_word(self, node, path) if path.startswith("T.") else self.call(node)


_NODES: dict[type[ast.AST], Callable[..., Value]] = {
    ast.Constant: ExprParser._constant,
    ast.Name: ExprParser._name,
    ast.BinOp: ExprParser._binary,
    ast.Compare: ExprParser._compare,
    ast.BoolOp: ExprParser._bool,
    ast.UnaryOp: ExprParser._unary,
    ast.IfExp: ExprParser._choice,
    ast.Subscript: ExprParser._load,
    ast.Call: ExprParser._call,
    ast.Attribute: ExprParser.attribute,
    ast.Tuple: ExprParser.sequence,
    ast.List: ExprParser.sequence,
    ast.JoinedStr: ExprParser.text,
    ast.Slice: ExprParser.slice,
}
