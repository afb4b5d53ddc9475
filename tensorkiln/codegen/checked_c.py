"""Size expressions as C with overflow checks: all arithmetic of generated host code is made here.

    s_n * 4 + 1    ->    kiln_add(kiln_mul(s_n, 4, &large), 1, &large)

The functions of crt/sizes.h record in `large` that a result did not fit into 64 bits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from tensorkiln.base.errors import InternalError
from tensorkiln.codegen.host_function import Size
from tensorkiln.codegen.host_header import quote

_TOKEN = re.compile(r"\s*(\w+|&&|\|\||[<>=!]=|[-+*/%<>!?:(),])")
_SIMPLE = re.compile(r"-?\w+\Z")  # a number or a name: nothing to check
_NUMBER = re.compile(r"-?(0x[0-9a-f]+|[0-9]+)u?\Z")
_LEVELS: tuple[tuple[str, ...], ...] = (
    ("||",), ("&&",), ("==", "!="), ("<", "<=", ">", ">="), ("+", "-"), ("*", "/", "%"),
)  # fmt: skip
_CHECKED = {"+": "kiln_add", "-": "kiln_sub", "*": "kiln_mul"}
_DIVISIONS = {"/": "kiln_floordiv", "%": "kiln_floormod"}
_NOTING = {"kiln_floordiv": "kiln_divide"}  # function without overflow check -> the one with it
# Least and greatest value of the C types of kernel parameters that are narrower than int64_t.
_RANGES = {
    f"{u}int{bits}_t": (f"{'0' if u else f'INT{bits}_MIN'}", f"{u.upper()}INT{bits}_MAX")
    for u in ("", "u")
    for bits in (8, 16, 32)
}


DECLARATION = "    kiln_large large = {0, 0};"


def checked(size: Size) -> str:
    """C text of a size or condition that records in `large` if an intermediate result overflows."""
    text = str(size)
    if _SIMPLE.match(text):
        return text
    return _Parser(text).whole()


class _Parser:
    """Recursive-descent parser of C expressions over `s_<name>`, numbers and functions of
    crt/sizes.h; each method returns the checked form of what it parsed."""

    def __init__(self, text: str):
        self._text, at = text, 0
        self._tokens = list[str]()
        while at < len(text.rstrip()):
            found = _TOKEN.match(text, at)
            if found is None:
                raise InternalError(f"no C form for the size {text!r}")
            self._tokens.append(found[1])
            at = found.end()
        self._tokens.reverse()

    def whole(self) -> str:
        made = self._choice()
        if self._tokens:
            raise InternalError(f"{self._tokens[-1]!r} is left of the size {self._text!r}")
        return made

    def _next(self, *wanted: str) -> str:
        """Consume and return the next token if it is one of `wanted` (any, if that is empty); else
        return an empty text."""
        if self._tokens and (not wanted or self._tokens[-1] in wanted):
            return self._tokens.pop()
        return ""

    def _require(self, token: str) -> None:
        if not self._next(token):
            raise InternalError(f"{token!r} is missing in the size {self._text!r}")

    def _choice(self) -> str:
        condition = self._level(0)
        if not self._next("?"):
            return condition
        then = self._choice()
        self._require(":")
        return f"({condition} ? {then} : {self._choice()})"

    def _level(self, level: int) -> str:
        if level == len(_LEVELS):
            return self._unary()
        made = self._level(level + 1)
        while op := self._next(*_LEVELS[level]):
            made = self._binary(op, made, self._level(level + 1))
        return made

    def _binary(self, op: str, a: str, b: str) -> str:
        if op in _CHECKED:
            return f"{_CHECKED[op]}({a}, {b}, &large)"
        if op in _DIVISIONS and not (b.isdigit() and int(b) > 0):
            return self._call(_DIVISIONS[op], [a, b])
        return f"({a} {op} {b})"  # a comparison, or C's own division, which cannot overflow

    def _unary(self) -> str:
        if self._next("!"):
            return f"!({self._unary()})"
        if not self._next("-"):
            return self._primary()
        inner = self._unary()
        return f"-{inner}" if inner.isdigit() else f"kiln_sub(0, {inner}, &large)"

    def _primary(self) -> str:
        if self._next("("):
            inner = self._choice()
            self._require(")")
            return inner
        word = self._next()
        if not re.match(r"\w", word):
            raise InternalError(f"no C form for the size {self._text!r}")
        if not self._next("("):
            return word
        arguments = [self._choice()]
        while self._next(","):
            arguments.append(self._choice())
        self._require(")")
        return self._call(word, arguments)

    def _call(self, name: str, arguments: Sequence[str]) -> str:
        tail = ["&large"] if name in _NOTING else []
        return f"{_NOTING.get(name, name)}({', '.join([*arguments, *tail])})"


def measured(target: str, value: str, words: str) -> str:
    """The C statement that assigns a checked size to `target`; if it overflows, the error calls it
    `words`."""
    name = quote(_without_parentheses(words))
    line = f"    {target} = kiln_named({value}, {name}, &large);"
    if len(line) <= 100:
        return line
    return f"    {target} =\n        kiln_named({value},\n                   {name}, &large);"


def _without_parentheses(words: str) -> str:
    """`words` without parentheses around the whole: `(n + 1)` becomes `n + 1`, while `(a) * (b)`
    stays."""
    depth = 0
    for i, c in enumerate(words):
        depth += (c == "(") - (c == ")")
        if depth == 0 and i < len(words) - 1:
            return words
    return words[1:-1] if words[:1] == "(" else words


class SizeLocals:
    """Local variables for the sizes of one C function that need arithmetic. Each size is computed
    once, and all are checked for overflow before any is used. `words` gives the text of a size for
    error messages."""

    def __init__(self, words: Callable[[Size], str]):
        self._words = words
        self._names: dict[tuple[str, str], str] = {}

    def name(self, size: Size, ctype: str = "int64_t", *, is_size: bool = True) -> str:
        """C text of a size: a number, a symbol, or the local variable that holds it. A size that is
        passed as a `ctype` narrower than int64_t is also checked for that type's range. With
        `is_size` false it is a scalar that already has that type and needs no check."""
        text = str(size)
        narrow = ctype in _RANGES and is_size and not _NUMBER.match(text)
        if _SIMPLE.match(text) and not narrow:
            return text
        key = (text, ctype if narrow else "int64_t")
        return self._names.setdefault(key, f"size_{len(self._names)}")

    def lines(self, failure: Sequence[str], *, declare: bool = True) -> Iterator[str]:
        """Yield the declarations of the local variables, after that of `large` (if `declare`), then
        the lines `failure`, which must test `large`."""
        if not self._names:
            return
        if declare:
            yield DECLARATION
        for (text, ctype), name in self._names.items():
            value = checked(text)
            if ctype in _RANGES:
                value = f"kiln_within({value}, {', '.join(_RANGES[ctype])}, &large)"
            yield measured(f"const int64_t {name}", value, self._words(text))
        yield from failure


__all__ = ["DECLARATION", "SizeLocals", "checked", "measured"]
