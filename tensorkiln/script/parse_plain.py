"""Values while parsing: dtypes of numbers, literals, and Python values, which are evaluated."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tensorkiln.base.errors import TensorkilnError, UserError, nearest
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.dtype import BOOL, DTYPES, FLOAT32, HANDLE, INT64, VOID, DType
from tensorkiln.ir.expr import (
    Broadcast,
    Expr,
    FloatImm,
    IntImm,
)
from tensorkiln.script.macro import Macro
from tensorkiln.script.python_values import (
    BUILTINS,
    OWN_BUILTINS,
    Value,
    attribute,
    unwrap,
    wrap,
)
from tensorkiln.script.scope import Number, Python, Scope, plain

# Nodes that may denote a buffer or a Python value.
NAMES = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)


class PlainParser(ABC):
    """The parts of the expression parser for numbers, literals and Python values."""

    def __init__(self, scope: Scope):
        self.scope = scope
        self._define = False

    def fail(self, node: ast.AST, message: str, hint: str = "") -> UserError:
        """Return a UserError that underlines `node`."""
        return self.scope.source.error(node, message, hint)

    # ---- values ------------------------------------------------------------------------------

    def expr(self, node: ast.expr, like: DType | None = None) -> Expr:
        """Parse an expression. A number without a dtype gets `like`; without `like`, int64 or
        float32."""
        value = self.raw(node)
        return self.number(node, value, like) if isinstance(value, Number) else value

    def number(self, node: ast.expr, n: Number, like: DType | None) -> Expr:
        """Return a literal of the element type of `like` (None: int64 or float32; a bool is always
        bool). Raise UserError if the number does not fit."""
        if isinstance(n.value, bool):
            return IntImm(int(n.value), BOOL)
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
        """Parse an expression. A number without a dtype is returned as a `Number`; other Python
        values are a UserError."""
        value = self.any(node)
        if not isinstance(value, Python):
            return value
        if isinstance(node, ast.Name) and not isinstance(value.value, Buffer):
            raise self.scope.unknown(node)
        hint = ""
        what = f"a Python {type(value.value).__name__}"
        if isinstance(value.value, Buffer):
            what, hint = "a buffer", "index it, as A[i, j]"
        raise self.fail(node, f"{self._shown(node)} is {what}, not a number", hint)

    @abstractmethod
    def any(self, node: ast.expr) -> Value:
        """Parse an expression, or evaluate it if it is made of Python values."""

    def argument(self, node: ast.expr) -> Value:
        """Parse an argument of a Python function or a macro: as `any`, but a list or tuple counts
        as captured, even one of literals, so that a macro may loop over it."""
        if isinstance(node, ast.List | ast.Tuple):
            return Python(tuple(unwrap(self.argument(x)) for x in node.elts))
        return self.any(node)

    def _shown(self, node: ast.expr) -> str:
        return repr(node.id) if isinstance(node, ast.Name) else ast.unparse(node)

    def same(self, nodes: list[ast.expr]) -> list[Expr]:
        """Parse expressions of one dtype: numbers without a dtype get that of the others, and
        scalars are broadcast to the lanes of the others."""
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
        """Return an offset in bytes, to be added to an address; numbers are int64."""
        return self.number(node, value, INT64) if isinstance(value, Number) else value

    def literal(self, node: ast.expr) -> object:
        """Return a number, string, None or tuple of these: a literal, or made of Python values."""
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
            case ast.Name() | ast.Attribute() | ast.Subscript() | ast.Call() | ast.JoinedStr():
                return self._known(node)
            case ast.BinOp() | ast.IfExp() | ast.UnaryOp():
                return self._known(node)
        raise self.fail(node, "expected a literal value")

    def _known(self, node: ast.expr) -> object:
        found = self.any(node)
        known = plain(unwrap(found)) if isinstance(found, Number | Python) else None
        if known is None:
            raise self.fail(node, "expected a literal value")
        return known

    def integer(self, node: ast.expr) -> int:
        """Return an integer that is known while parsing."""
        value = self.literal(node)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.fail(node, "expected an integer literal")
        return value

    def dtype(self, node: ast.expr) -> DType:
        """Parse a dtype: `"float32x16"`, `T.float32x16` or a captured one."""
        path = self.scope.dialect(node)
        text = path[2:] if path else self._dtype_name(node)
        found = parse_dtype(text) if isinstance(text, str) else None
        if found is None or found == VOID:
            raise self.fail(node, f"not a dtype: {text!r}", nearest(str(text), DTYPES))
        return found

    def _dtype_name(self, node: ast.expr) -> object:
        """Return the name given by a string, or by a captured DType, NumPy dtype or NumPy scalar
        type."""
        if isinstance(node, ast.Name | ast.Attribute):
            value = unwrap(self.any(node))
            if isinstance(value, DType | np.dtype):
                return str(value)
            if isinstance(value, type) and issubclass(value, np.generic):
                return np.dtype(value).name
        return self.literal(node)

    # ---- Python values -----------------------------------------------------------------------

    @contextmanager
    def in_python(self, node: ast.expr) -> Iterator[None]:
        """Turn exceptions of Python code into a UserError at `node`; those of this package pass."""
        try:
            yield
        except TensorkilnError:
            raise
        except Exception as e:
            raise self.fail(node, f"in Python: {type(e).__name__}: {e}") from e

    def sequence(self, node: ast.Tuple | ast.List) -> Value:
        """Evaluate a list or a tuple to a tuple of Python values and expressions."""
        items = [self.any(x) for x in node.elts]
        captured = any(isinstance(v, Expr) or v.captured for v in items)
        return Python(tuple(map(unwrap, items)), captured)

    def text(self, node: ast.JoinedStr) -> Value:
        """Evaluate an f-string of Python values; conversions and formats are refused."""
        parts = []
        for part in node.values:
            if isinstance(part, ast.Constant):
                parts.append(str(part.value))
                continue
            assert isinstance(part, ast.FormattedValue)
            value = self.any(part.value)
            if isinstance(value, Expr) or part.conversion != -1 or part.format_spec is not None:
                raise self.fail(part.value, "an f-string takes only Python values without a format")
            parts.append(str(unwrap(value)))
        return Python("".join(parts))

    def slice(self, node: ast.Slice) -> Value:
        """Evaluate a slice, the index of a Python sequence."""
        ends = (node.lower, node.upper, node.step)
        known = [None if x is None else unwrap(self.any(x)) for x in ends]
        return Python(slice(*known), captured=False)

    def attribute(self, node: ast.Attribute) -> Value:
        """Evaluate `x.name` for a Python value, a buffer or an expression; raise UserError if the
        script may not read that attribute."""
        if self.scope.dialect(node):
            raise self.fail(node, f"{self.scope.dialect(node)} cannot be used as a value")
        base = self.any(node.value)
        with self.in_python(node):
            found = attribute(unwrap(base), node.attr, self.scope.trusted)
        if found is None:
            what = type(unwrap(base)).__name__
            raise self.fail(node, f"a {what} has no attribute {node.attr!r} that a script may use")
        return found

    # ---- calls -------------------------------------------------------------------------------

    def call(self, node: ast.Call) -> Value:
        """Call a captured Python function, or a builtin that scripts may use, while parsing."""
        f = self.function(node.func)
        if not callable(f) or isinstance(f, Macro):
            macro = isinstance(f, Macro)
            message = "a macro is a statement" if macro else "not a function of the script language"
            raise self.fail(
                node.func, message, "functions begin with T., or are captured from Python"
            )
        args: list[Any] = []
        for a in node.args:
            if isinstance(a, ast.Starred):
                args += unwrap(self.any(a.value))
            else:
                args.append(unwrap(self.argument(a)))
        options = {k.arg: unwrap(self.argument(k.value)) for k in node.keywords if k.arg}
        if len(options) != len(node.keywords):
            raise self.fail(node, "a script cannot use ** in a call")
        with self.in_python(node):
            return wrap(f(*args, **options))

    def function(self, node: ast.expr) -> object:
        """Return the Python object that a call names, for instance a function or macro; None if it
        is a name after `T.` or `R.`, an expression, or unknown."""
        if isinstance(node, ast.Name) and node.id not in self.scope.bound:
            table = OWN_BUILTINS if self.scope.trusted else BUILTINS
            return self.scope.captured.get(node.id, table.get(node.id))
        if self.scope.dialect(node) or not isinstance(node, ast.Name | ast.Attribute):
            return None
        found = self.any(node)
        return None if isinstance(found, Expr) else unwrap(found)


def parse_dtype(text: str) -> DType | None:
    """Return the dtype called `text`; None if there is no such dtype."""
    try:
        return DType.parse(text)
    except ValueError:
        return None
