"""The text being parsed: where a node lies, and errors that underline it."""

from __future__ import annotations

import ast
import unicodedata
from dataclasses import dataclass

from tensorkiln.base.errors import UserError


@dataclass(frozen=True, slots=True)
class Source:
    """Text of a whole file; the line numbers of its syntax tree are those of the file."""

    text: str
    file: str = "<script>"

    def parse(self) -> ast.Module:
        """The syntax tree. Raises UserError where the text is not Python."""
        try:
            return ast.parse(self.text)
        except SyntaxError as e:
            column = (e.offset or 1) - 1
            raise self._error(e.lineno or 1, column, column + 1, f"not Python: {e.msg}") from None
        except (ValueError, RecursionError, MemoryError) as e:
            raise UserError(f"not Python: {e}", code="script", where=self.file) from None

    def error(self, node: ast.AST, message: str, hint: str = "") -> UserError:
        """`message`, with the node's first line and what of it is wrong underlined."""
        line = getattr(node, "lineno", 1)
        text = self._line(line).encode()
        start, end = getattr(node, "col_offset", 0), getattr(node, "end_col_offset", 0)
        if getattr(node, "end_lineno", line) != line:
            end = len(text)
        # The tree counts bytes, the reader columns.
        first, last = (len(text[:n].decode(errors="replace")) for n in (start, end))
        return self._error(line, first, last, message, hint)

    def _error(self, line: int, start: int, end: int, message: str, hint: str = "") -> UserError:
        text = self._line(line)
        before = "".join(c if c == "\t" else " " * _width(c) for c in text[:start])
        mark = "^" * max(1, sum(map(_width, text[start:end])))
        shown = f"{message}\n    {text}\n    {before}{mark}"
        return UserError(shown, code="script", where=f"{self.file}:{line}", hint=hint)

    def _line(self, line: int) -> str:
        lines = self.text.split("\n")
        return lines[line - 1] if 0 < line <= len(lines) else ""


def _width(char: str) -> int:
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
