"""Where host code computes sizes: each into a variable, all of them checked before any is used."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from tensorkiln.codegen.host_function import Formula, Size
from tensorkiln.codegen.host_header import quote

_NUMBER = re.compile(r"-?(0x[0-9a-f]+|[0-9]+)u?\Z")
# What a kernel's parameter of a C type holds, where that is less than int64_t.
_RANGES = {
    f"{u}int{bits}_t": (f"{'0' if u else f'INT{bits}_MIN'}", f"{u.upper()}INT{bits}_MAX")
    for u in ("", "u")
    for bits in (8, 16, 32)
}


DECLARATION = "    kiln_large large = {0, 0};"


def checked(size: Size) -> str:
    """C text of a size or condition, which notes in `large` whatever is too large in between."""
    return size.checked if isinstance(size, Formula) else str(size)


def measured(target: str, value: str, words: str) -> str:
    """The statement that gives `target` a checked size; `words` are what people know it by."""
    name = quote(_without_parentheses(words))
    line = f"    {target} = kiln_named({value}, {name}, &large);"
    if len(line) <= 100:
        return line
    return f"    {target} =\n        kiln_named({value},\n                   {name}, &large);"


def _without_parentheses(words: str) -> str:
    """Without those around all of it."""
    depth = 0
    for i, c in enumerate(words):
        depth += (c == "(") - (c == ")")
        if depth == 0 and i < len(words) - 1:
            return words
    return words[1:-1] if words[:1] == "(" else words


class SizeLocals:
    """Sizes of one C function that take arithmetic: each is computed once, into a local variable,
    and all are looked at before any is used. `words` says for people what a size is."""

    def __init__(self, words: Callable[[Size], str]):
        self._words = words
        self._names: dict[tuple[Size, str], str] = {}

    def name(self, size: Size, ctype: str = "int64_t", *, is_size: bool = True) -> str:
        """C text of a size that needs no arithmetic any more. One for a narrower `ctype` must be in
        its range, unless it is no size but a number of that type already."""
        narrow = ctype in _RANGES and is_size and not _NUMBER.match(str(size))
        if not isinstance(size, Formula) and not narrow:
            return str(size)
        key = (size, ctype if narrow else "int64_t")
        return self._names.setdefault(key, f"size_{len(self._names)}")

    def lines(self, failure: Sequence[str], *, declare: bool = True) -> Iterator[str]:
        """Their declarations, after that of `large`; what `failure` says happens when one is too
        large."""
        if not self._names:
            return
        if declare:
            yield DECLARATION
        for (size, ctype), name in self._names.items():
            value = checked(size)
            if ctype in _RANGES:
                value = f"kiln_within({value}, {', '.join(_RANGES[ctype])}, &large)"
            yield measured(f"const int64_t {name}", value, self._words(size))
        yield from failure


__all__ = ["DECLARATION", "SizeLocals", "checked", "measured"]
