"""Graph functions as text: types, values, bindings and `Function`."""

from __future__ import annotations

import hashlib
import math
import weakref
from collections.abc import Callable

import numpy as np

from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.dtype import FLOAT64
from tensorkiln.ir.expr import Expr, FloatImm, Var
from tensorkiln.ir.padded import Padded, parts_between
from tensorkiln.ir.relax import (
    AnyTensorType,
    Binding,
    Bound,
    Call,
    Constant,
    Function,
    FuncType,
    GlobalRef,
    If,
    Lambda,
    MatchCast,
    PrimType,
    PrimValue,
    RVar,
    ShapeType,
    ShapeValue,
    StringType,
    StringValue,
    TensorType,
    Tuple,
    TupleItem,
    TupleType,
    Type,
)
from tensorkiln.ir.text.names import VariableNames, identifier, is_word, reference, string
from tensorkiln.ir.text.print_tir import TirPrinter
from tensorkiln.ir.text.syntax import GRAPH_WORDS, INLINE_ELEMENTS
from tensorkiln.ir.visit import free_vars

# id of an array -> (the array, its digest). Memoised: hashing all weights of a model is slow.
_DIGESTS: dict[int, tuple[weakref.ref[np.ndarray | Padded], str]] = {}
_PIECE = 1 << 20  # bytes to hash at a time, since a piece may be a copy


def digest(array: np.ndarray | Padded) -> str:
    """SHA-256 (hexadecimal) of the bytes in row-major order, memoised while the array lives."""
    memo = _DIGESTS.get(id(array))
    if memo is not None and memo[0]() is array:
        return memo[1]
    hashed = hashlib.sha256()
    for start in range(0, array.nbytes, _PIECE):
        for part in parts_between(array, start, min(start + _PIECE, array.nbytes)):
            hashed.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8))  # type: ignore[arg-type]
    text = hashed.hexdigest()
    key = id(array)
    _DIGESTS[key] = (weakref.ref(array, lambda _: _DIGESTS.pop(key, None)), text)
    return text


class ConstantKeys:
    """The keys of a module's constants in its text: their names; a second "w" becomes "w#1"."""

    def __init__(self) -> None:
        self.table: dict[str, np.ndarray | Padded] = {}
        self._keys: dict[Constant, str] = {}
        self._next: dict[str, int] = {}

    def digest(self, array: np.ndarray | Padded) -> str:
        """The digest that is printed for the bytes of an array."""
        return digest(array)

    def key(self, c: Constant) -> str:
        """The key of a constant in the text."""
        if c in self._keys:
            return self._keys[c]
        base = c.name or "const"
        count = self._next.get(base, 0)
        key = f"{base}#{count}" if count else base
        while key in self.table:
            count += 1
            key = f"{base}#{count}"
        self._next[base] = count + 1
        self._keys[c], self.table[key] = key, c.data
        return key


class RelaxPrinter:
    """Prints one graph function. Other functions are referred to as `<module>.<name>`."""

    def __init__(self, constants: ConstantKeys, module: str, *, canonical: bool = False):
        self.names = VariableNames(canonical=canonical)
        self.names.reserve(module)
        self.names.reserve("_")  # in scripts, a value that is not used
        self.lines: list[str] = []
        self._tir = TirPrinter(self.names)
        self._constants, self._module, self._canonical = constants, module, canonical

    def function(self, f: Function, pad: str = "") -> None:
        """Append the whole function, decorator first."""
        self._function(f, "f" if self._canonical else identifier(f.name, "f"), pad)

    def _function(self, f: Function, name: str, pad: str) -> None:
        for p in f.params:
            self.names.bind(p, p.name)
        params = [f"{self.names.of[p]}: {self.type(p.type, quoted=True)}" for p in f.params]
        self.lines.append(f"{pad}@R.function{self._options(f, name)}")
        head = len(self.lines)
        self.lines.append("")
        self.bindings(f.bindings, f"{pad}    ")
        self.lines.append(f"{pad}    return {self.value(f.result)}")
        # Quoted: extents of the result may use names that are bound in the body.
        result = self.type(f.result.type, quoted=True)
        self.lines[head] = f"{pad}def {name}({', '.join(params)}) -> {result}:"

    def _options(self, f: Function, name: str) -> str:
        items = []
        if not self._canonical and name != f.name:
            items.append(f"name={string(f.name)}")
        if f.attrs:
            items.append(f"attrs={self._tir.attrs(f.attrs.items_)}")
        return f"({', '.join(items)})" if items else ""

    def type(self, t: Type, quoted: bool = False) -> str:
        """A type as an annotation."""
        match t:
            case TensorType(shape, dtype, layout, device):
                text = f'{self._tir.dims(shape, quoted)}, "{dtype}"'
                text += f', layout="{layout}"' if layout is not None else ""
                text += f", device={string(device)}" if device else ""
                return f"R.Tensor({text})"
            case AnyTensorType(ndim, dtype):
                options = [] if ndim is None else [f"ndim={ndim}"]
                options += [] if dtype is None else [f'dtype="{dtype}"']
                return f"R.Tensor({', '.join(options)})" if options else "R.Tensor"
            case TupleType(fields):
                return f"R.Tuple({', '.join(self.type(x, quoted) for x in fields)})"
            case ShapeType(ndim, values):
                names = None if values is None else self._tir.dims(values, quoted)
                return f"R.Shape({ndim if names is None else names})"
            case PrimType(dtype, value):
                name = "" if value is None else f", value={self._tir.dims((value,), quoted)[1:-2]}"
                return f'R.Prim("{dtype}"{name})'
            case FuncType(params, result):
                return self._function_type(params, result)
        return "R.String" if isinstance(t, StringType) else "R.Object"

    def _function_type(self, params: tuple[Type, ...] | None, result: Type) -> str:
        """A function type. Its extents are quoted, since the type itself binds new symbols."""
        with self.names.scope(Var):
            params_text = "None"
            if params is not None:
                inner = ", ".join(self.type(p, quoted=True) for p in params)
                params_text = f"({inner},)" if len(params) == 1 else f"({inner})"
            return f"R.Callable({params_text}, {self.type(result, quoted=True)})"

    # ---- bindings ----------------------------------------------------------------------------

    def bindings(self, bindings: tuple[Binding, ...], pad: str) -> None:
        """Append one statement per binding."""
        for b in bindings:
            match b.value:
                case If():
                    self._if(b.var, b.value, pad)
                case Lambda(function):
                    name = self._new(b.var)
                    with self.names.scope(Var):
                        self._function(function, name, pad)
                case MatchCast(value, kind):
                    text = f"R.match_cast({self.value(value)}, {self.type(kind, quoted=True)})"
                    self.lines.append(f"{pad}{self._new(b.var)} = {text}")
                case _:
                    self._plain(b, pad)

    def _if(self, var: RVar, value: If, pad: str) -> None:
        """An `if` statement; each branch ends by assigning the result to `var`."""
        cond = self.value(value.cond)
        name = self._new(var)
        kind = self.type(var.type)
        for head, body in ((f"if {cond}:", value.then), ("else:", value.orelse)):
            self.lines.append(pad + head)
            with self.names.scope(Var):
                self.bindings(body.bindings, f"{pad}    ")
                self.lines.append(f"{pad}    {name}: {kind} = {self.value(body.result)}")

    def _new(self, var: RVar) -> str:
        return self.names.bind(var, var.name)

    def _plain(self, b: Binding, pad: str) -> None:
        """`name: type = value`, after definitions of symbols that appear only in attributes."""
        kind = self.type(b.var.type)  # first: it may bind symbols that the value uses
        for e in b.value.attrs.exprs() if isinstance(b.value, Call) else ():
            for v in free_vars(e):
                if v not in self.names.of:
                    self.lines.append(f"{pad}{self.names.bind(v, v.name)} = T.{v.dtype}()")
        value = self.value(b.value)
        self.lines.append(f"{pad}{self._new(b.var)}: {kind} = {value}")

    def value(self, v: Bound) -> str:
        """The text of a value, or of the right side of a binding."""
        match v:
            case RVar():
                return self.names.get(v, v.name)
            case Constant():
                return self._constant(v)
            case Tuple(fields):
                inner = ", ".join(map(self.value, fields))
                return f"({inner},)" if len(fields) == 1 else f"({inner})"
            case ShapeValue(values):
                return f"R.shape({self._tir.exprs(values)})"
            case PrimValue(value):
                return f"R.prim_value({self._number(value)})"
            case StringValue(value):
                return f"R.str({string(value)})"
            case GlobalRef(name):
                return reference(self._module, name)
            case TupleItem(value, index):
                return f"{self.value(value)}[{index}]"
            case Call():
                return self._call(v)
        raise TypeError(f"not a graph value: {v!r}")

    def _number(self, e: Expr) -> str:
        """A number; a float64 literal prints as a Python float, which has that type."""
        if isinstance(e, FloatImm) and e.dtype == FLOAT64 and math.isfinite(e.value):
            return repr(e.value)
        return self._tir.expr(e)

    def _call(self, c: Call) -> str:
        args = [self.value(a) for a in c.args]
        options = self._keywords(c.attrs)
        if c.span and not self._canonical:
            options.append(f"span={string(c.span)}")
        if isinstance(c.callee, GlobalRef):
            head = reference(self._module, c.callee.name)
        elif isinstance(c.callee, RVar):
            head = self.value(c.callee)
        elif c.callee in _NAMED and isinstance(c.attrs.get("name"), str):
            head, args = f"R.{c.callee}", [string(c.attrs["name"]), *_NAMED[c.callee](args)]
            options.remove(f"name={string(c.attrs['name'])}")
        elif c.callee == "call_tir_inplace" and _is_inplace(c):
            head, args = f"R.{c.callee}", [args[0], f"[{', '.join(args[1:])}]"]
        elif all(map(is_word, c.callee.split("."))) and c.callee not in GRAPH_WORDS:
            head = f"R.{c.callee}"
        else:
            head, args = "R.op", [string(c.callee), *args]
        return f"{head}({', '.join([*args, *options])})"

    def _keywords(self, attrs: Attrs) -> list[str]:
        """Attributes as keyword arguments; inside `**{...}` where the name is not an identifier, or
        is that of the option "span"."""
        dict_items = [(k, v) for k, v in attrs.items_ if not is_word(k) or k == "span"]
        words = [f"{k}={self._tir.attr(v)}" for k, v in attrs.items_ if is_word(k) and k != "span"]
        return [*words, *([f"**{self._tir.attrs(dict_items)}"] if dict_items else [])]

    def _constant(self, c: Constant) -> str:
        values = _inline(c)
        shape = self._tir.dims(c.type.shape, quoted=False)
        tail = "" if c.type.layout is None else f', layout="{c.type.layout}"'
        if values is not None:
            name = "" if self._canonical or not c.name else f", name={string(c.name)}"
            if c.data.ndim == 0 and not c.type.shape:
                return f'R.const({values[0]}, "{c.type.dtype}"{tail}{name})'
            return f'R.const([{", ".join(values)}], "{c.type.dtype}", {shape}{tail}{name})'
        key = "" if self._canonical else f"{string(self._constants.key(c))}, "
        tail += f', sha256="{self._constants.digest(c.data)}"'
        return f'R.const({key}"{c.type.dtype}", {shape}{tail})'


def _is_inplace(c: Call) -> bool:
    """Whether a call can be written as R.call_tir_inplace(f, [operands], ...)."""
    indices = c.attrs.get("inplace")
    if not isinstance(indices, tuple) or not c.args or not isinstance(c.args[0], GlobalRef):
        return False
    return all(type(i) is int and -1 <= i < len(c.args) - 1 for i in indices)


# Operators that print the name of the called function first; how their operands are printed.
_NAMED: dict[str, Callable[[list[str]], list[str]]] = {
    "call_packed": lambda args: args,
    "call_dps_packed": lambda args: [f"[{', '.join(args)}]"],
}


def _inline(c: Constant) -> list[str] | None:
    """The elements as literals, or None if they are many or would not parse to the same bytes."""
    if c.data.size > INLINE_ELEMENTS:
        return None
    a = c.array
    if a.dtype.kind not in "biuf" or str(a.dtype) != c.type.dtype.name:
        return None
    # Every NaN prints alike, so one with a sign or payload cannot be printed by value.
    values = [float("nan") if v != v else v for v in a.reshape(-1).tolist()]
    if np.array(values, a.dtype).tobytes() != np.ascontiguousarray(a).tobytes():
        return None
    return [repr(v) if repr(v) not in ("inf", "-inf", "nan") else f'float("{v!r}")' for v in values]


__all__ = ["ConstantKeys", "RelaxPrinter", "digest"]
