"""Where host code computes sizes: each in a local variable, all checked before one is used."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from tensorkiln.codegen.c_text.sizes import Formula, Size
from tensorkiln.codegen.c_text.text import quote

_NUMBER = re.compile(r"-?(0x[0-9a-f]+|[0-9]+)u?\Z")
# Least and greatest value of the C types of kernel parameters that are narrower than int64_t.
_RANGES = {
    f"{u}int{bits}_t": (f"{'0' if u else f'INT{bits}_MIN'}", f"{u.upper()}INT{bits}_MAX")
    for u in ("", "u")
    for bits in (8, 16, 32)
}


DECLARATION = "    kiln_large large = {0, 0};"


def checked(size: Size) -> str:
    """C text of a size or condition that records in `large` if an intermediate result overflows."""
    return size.checked if isinstance(size, Formula) else str(size)


def measured(target: str, value: str, words: str) -> str:
    """The C statement that assigns a checked size to `target`; if it overflows, the error calls it
    `words`."""
    name = quote(words)
    line = f"    {target} = kiln_named({value}, {name}, &large);"
    if len(line) <= 100:
        return line
    return f"    {target} =\n        kiln_named({value},\n                   {name}, &large);"


class SizeLocals:
    """Local variables for the sizes of one C function that need arithmetic. Each size is computed
    once, and all are checked for overflow before any is used. `words` gives the text of a size for
    error messages."""

    def __init__(self, words: Callable[[Size], str]):
        self._words = words
        self._names: dict[tuple[Size, str], str] = {}

    def name(self, size: Size, ctype: str = "int64_t", *, is_size: bool = True) -> str:
        """C text of a size: a number, a symbol, or the local variable that holds it. A size that is
        passed as a `ctype` narrower than int64_t is also checked for that type's range. With
        `is_size` false it is a scalar that already has that type and needs no check."""
        narrow = ctype in _RANGES and is_size and not _NUMBER.match(str(size))
        if not isinstance(size, Formula) and not narrow:
            return str(size)
        key = (size, ctype if narrow else "int64_t")
        return self._names.setdefault(key, f"size_{len(self._names)}")

    def lines(self, failure: Sequence[str], *, declare: bool = True) -> Iterator[str]:
        """Yield the declarations of the local variables, after that of `large` (if `declare`), then
        the lines `failure`, which must test `large`."""
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
