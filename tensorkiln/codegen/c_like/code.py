"""Pieces of text that know how tightly their outermost operator binds."""

from __future__ import annotations

# Levels of C's operators, from loose to tight.
TERNARY, OR, AND, BITS, COMPARISON, SHIFT, SUM, PRODUCT, PREFIX, ATOM = range(10)


class Code(str):
    """The text of an expression, and the `level` of its outermost operator."""

    level: int

    def __new__(cls, text: str, level: int = ATOM) -> Code:
        """Text with the level of its outermost operator."""
        code = super().__new__(cls, text)
        code.level = level
        return code


def level_of(text: str) -> int:
    """The level of an expression; of plain text, which is a name or a call, ATOM."""
    return text.level if isinstance(text, Code) else ATOM


def at_least(text: str, level: int) -> str:
    """The expression, in parentheses if it binds less tightly than `level`."""
    return text if level_of(text) >= level else f"({text})"


def infix(operator: str, a: str, b: str, level: int) -> Code:
    """`a operator b`. Only sums and products show their operands without parentheses, since
    compilers warn of other mixtures that rely on precedence."""
    plain = level in (SUM, PRODUCT)
    lhs = at_least(a, level if plain else PREFIX)
    return Code(f"{lhs} {operator} {at_least(b, level + 1 if plain else PREFIX)}", level)


def prefix(operator: str, a: str) -> Code:
    """`operator a`, such as `-a` or a cast; a space keeps `- -a` apart."""
    inner = at_least(a, PREFIX)
    gap = " " if inner.startswith(operator) else ""
    return Code(f"{operator}{gap}{inner}", PREFIX)


def ternary(condition: str, a: str, b: str) -> Code:
    """`condition ? a : b`."""
    parts = (at_least(x, OR if x is condition else TERNARY + 1) for x in (condition, a, b))
    return Code("{} ? {} : {}".format(*parts), TERNARY)


def call(function: str, *arguments: str) -> Code:
    """`function(arguments)`."""
    return Code(f"{function}({', '.join(arguments)})")
