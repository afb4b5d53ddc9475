"""The text being parsed: locations of nodes, and errors that quote and underline them."""

from __future__ import annotations

import ast
import unicodedata
from dataclasses import dataclass

from tensorkiln.base.errors import UserError

_SHOWN = 5  # most lines of a node that an error quotes


@dataclass(frozen=True, slots=True)
class Source:
    """The text of a whole file, so that line numbers of the syntax tree are those of the file."""

    text: str
    file: str = "<script>"

    def parse(self) -> ast.Module:
        """Return the syntax tree; raise UserError if the text is not valid Python."""
        try:
            return ast.parse(self.text)
        except SyntaxError as e:
            line, column = e.lineno or 1, (e.offset or 1) - 1
            raise self._error([(line, column, column + 1)], f"not Python: {e.msg}") from None
        except (ValueError, RecursionError, MemoryError) as e:
            raise UserError(f"not Python: {e}", code="script", where=self.file) from None

    def place(self, node: ast.AST) -> str:
        """Return the start of a node as `file:line:column`; lines and columns count from 1."""
        line, first, _ = self._spans(node)[0]
        return f"{self.file}:{line}:{first + 1}"

    def error(self, node: ast.AST, message: str, hint: str = "") -> UserError:
        """Return a UserError of `message` and the node's text, underlined. Of a statement with a
        body, such as a loop, only the lines before the body are shown."""
        return self._error(self._spans(node), message, hint)

    def _spans(self, node: ast.AST) -> list[tuple[int, int, int]]:
        """Return (line, first column, end column) for each line of a node, in characters from 0."""
        line = getattr(node, "lineno", 1)
        last = getattr(node, "end_lineno", None) or line
        start, end = getattr(node, "col_offset", 0), getattr(node, "end_col_offset", None) or 0
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and last > line:
            last, end = max(line, body[0].lineno - 1), 1 << 30
        spans = []
        for n in range(line, last + 1):
            text = self._line(n)
            # Columns in the syntax tree count UTF-8 bytes.
            data = text.encode()
            first = len(data[:start].decode(errors="replace")) if n == line else 0
            stop = len(data[:end].decode(errors="replace")) if n == last else len(text)
            stop = max(first, len(text[:stop].rstrip()))
            first += len(text[first:stop]) - len(text[first:stop].lstrip())
            if n == line or text[first:stop]:
                spans.append((n, first, stop))
        return spans

    def _error(self, spans: list[tuple[int, int, int]], message: str, hint: str = "") -> UserError:
        lines = [message]
        for line, start, end in spans[:_SHOWN]:
            text = self._line(line)
            before = "".join(c if c == "\t" else " " * _width(c) for c in text[:start])
            mark = "^" * max(1, sum(map(_width, text[start:end])))
            lines += [f"    {text}", f"    {before}{mark}"]
        if len(spans) > _SHOWN:
            lines.append("    ...")
        line, start, _ = spans[0]
        location = f"{self.file}:{line}:{start + 1}"
        return UserError("\n".join(lines), code="script", where=location, hint=hint)

    def _line(self, line: int) -> str:
        lines = self.text.split("\n")
        return lines[line - 1] if 0 < line <= len(lines) else ""


def _width(char: str) -> int:
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
