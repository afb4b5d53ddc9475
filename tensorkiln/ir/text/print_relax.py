"""Graphs as text: types, values, bindings and `Function`."""

from __future__ import annotations

import hashlib
import keyword
import weakref

import numpy as np

from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.relax import (
    Binding,
    Bound,
    Call,
    Constant,
    Function,
    GlobalRef,
    RVar,
    ShapeType,
    ShapeValue,
    TensorType,
    Tuple,
    TupleItem,
    TupleType,
    Type,
)
from tensorkiln.ir.text.names import Names, identifier, string
from tensorkiln.ir.text.print_tir import TirPrinter
from tensorkiln.ir.text.syntax import GRAPH_WORDS, INLINE_ELEMENTS

# id of an array -> (the array, its digest): hashing a model's weights once is slow enough.
_DIGESTS: dict[int, tuple[weakref.ref[np.ndarray], str]] = {}


def digest(array: np.ndarray) -> str:
    """SHA-256 of the array's bytes in row-major order, remembered while the array lives."""
    known = _DIGESTS.get(id(array))
    if known is not None and known[0]() is array:
        return known[1]
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    text = hashlib.sha256(data).hexdigest()  # type: ignore[arg-type]
    key = id(array)
    _DIGESTS[key] = (weakref.ref(array, lambda _: _DIGESTS.pop(key, None)), text)
    return text


class Constants:
    """Keys of a module's constants: their names, told apart by a number where they clash."""

    def __init__(self) -> None:
        self.table: dict[str, np.ndarray] = {}
        self._keys: dict[Constant, str] = {}
        self._next: dict[str, int] = {}

    def key(self, c: Constant) -> str:
        """The name a constant goes by in the text."""
        if c in self._keys:
            return self._keys[c]
        base = c.name or "const"
        count = self._next.get(base, 0)
        key = f"{base}#{count}" if count else base
        while key in self.table:
            count += 1
            key = f"{base}#{count}"
        self._next[base] = count + 1
        self._keys[c], self.table[key] = key, c.array
        return key


class RelaxPrinter:
    """One graph function's text. `module` is the word calls of other functions start with."""

    def __init__(self, constants: Constants, module: str, *, canonical: bool = False):
        self.names = Names(canonical=canonical)
        self.names.reserve(module)
        self.lines: list[str] = []
        self._tir = TirPrinter(self.names)
        self._constants, self._module, self._canonical = constants, module, canonical

    def function(self, f: Function, pad: str = "") -> None:
        """Append the whole function, decorator first."""
        for p in f.params:
            self.names.bind(p, p.name)
        params = [f"{self.names.of[p]}: {self.type(p.type, quoted=True)}" for p in f.params]
        name = "f" if self._canonical else identifier(f.name, "f")
        self.lines.append(f"{pad}@R.function{self._options(f, name)}")
        head = len(self.lines)
        self.lines.append("")
        for b in f.bindings:
            self.lines.append(f"{pad}    {self.binding(b)}")
        self.lines.append(f"{pad}    return {self.value(f.result)}")
        # Quoted: the result's extents may use names that the body brings in.
        result = self.type(f.result.type, quoted=True)
        self.lines[head] = f"{pad}def {name}({', '.join(params)}) -> {result}:"

    def _options(self, f: Function, name: str) -> str:
        items = []
        if not self._canonical and name != f.name:
            items.append(f"name={string(f.name)}")
        if f.attrs:
            pairs = [f"{string(k)}: {self.attr(v)}" for k, v in f.attrs.items_]
            items.append(f"attrs={{{', '.join(pairs)}}}")
        return f"({', '.join(items)})" if items else ""

    def type(self, t: Type, quoted: bool = False) -> str:
        """A type as an annotation."""
        if isinstance(t, TensorType):
            text = f'{self._tir.dims(t.shape, quoted)}, "{t.dtype}"'
            return (
                f"R.Tensor({text})"
                if t.layout is None
                else (f'R.Tensor({text}, layout="{t.layout}")')
            )
        if isinstance(t, TupleType):
            return f"R.Tuple({', '.join(self.type(x, quoted) for x in t.fields)})"
        assert isinstance(t, ShapeType), t
        return f"R.Shape({t.ndim})"

    def binding(self, b: Binding) -> str:
        """One line `name: type = value`."""
        value = self.value(b.value)
        kind = self.type(b.var.type)
        return f"{self.names.bind(b.var, b.var.name)}: {kind} = {value}"

    def value(self, v: Bound) -> str:
        """A value or the right side of a binding."""
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
            case TupleItem(value, index):
                return f"{self.value(value)}[{index}]"
            case Call():
                return self._call(v)
        raise TypeError(f"not a graph value: {v!r}")

    def _call(self, c: Call) -> str:
        args = [self.value(a) for a in c.args]
        args += self._keywords(c.attrs)
        if c.span and not self._canonical:
            args.append(f"span={string(c.span)}")
        if isinstance(c.callee, GlobalRef):
            name = c.callee.name
            plain = name.isidentifier() and not keyword.iskeyword(name)
            head = f"{self._module}.{name}" if plain else f"{self._module}[{string(name)}]"
        elif isinstance(c.callee, RVar):
            head = self.value(c.callee)
        elif all(map(_is_word, c.callee.split("."))) and c.callee not in GRAPH_WORDS:
            head = f"R.{c.callee}"
        else:
            head, args = "R.op", [string(c.callee), *args]
        return f"{head}({', '.join(args)})"

    def _keywords(self, attrs: Attrs) -> list[str]:
        """Attributes as keyword arguments, through ** where a name is no keyword."""
        plain = [(k, v) for k, v in attrs.items_ if _is_word(k) and k != "span"]
        other = [(k, v) for k, v in attrs.items_ if not _is_word(k) or k == "span"]
        out = [f"{k}={self.attr(v)}" for k, v in plain]
        if other:
            out.append(f"**{{{', '.join(f'{string(k)}: {self.attr(v)}' for k, v in other)}}}")
        return out

    def attr(self, v: object) -> str:
        """An attribute's value."""
        return self._tir.attr(v)

    def _constant(self, c: Constant) -> str:
        values = _inline(c)
        shape = self._tir.dims(c.type.shape, quoted=False)
        tail = "" if c.type.layout is None else f', layout="{c.type.layout}"'
        if values is not None:
            name = "" if self._canonical or not c.name else f", name={string(c.name)}"
            if c.array.ndim == 0 and not c.type.shape:
                return f'R.const({values[0]}, "{c.type.dtype}"{tail}{name})'
            return f'R.const([{", ".join(values)}], "{c.type.dtype}", {shape}{tail}{name})'
        key = "" if self._canonical else f"{string(self._constants.key(c))}, "
        tail += f', sha256="{digest(c.array)}"'
        return f'R.const({key}"{c.type.dtype}", {shape}{tail})'


def _is_word(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)


def _inline(c: Constant) -> list[str] | None:
    """The elements as literals, or None when they are many or would not come back exactly."""
    a = c.array
    if a.size > INLINE_ELEMENTS or a.dtype.kind not in "biuf" or str(a.dtype) != c.type.dtype.name:
        return None
    # NaN has one spelling: one with a sign or a payload of its own does not come back.
    values = [float("nan") if v != v else v for v in a.reshape(-1).tolist()]
    if np.array(values, a.dtype).tobytes() != np.ascontiguousarray(a).tobytes():
        return None
    return [repr(v) if repr(v) not in ("inf", "-inf", "nan") else f'float("{v!r}")' for v in values]


__all__ = ["Constants", "RelaxPrinter", "digest"]
