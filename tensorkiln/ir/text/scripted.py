"""`script()` and `show()` of modules and functions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import ClassVar, TextIO

from tensorkiln.ir.text.colour import coloured_for


class Scripted:
    """Base class of nodes that can be printed as Python text.

    `printer` prints them. It is set in `ir/__init__.py`, as printers import the classes of nodes.
    """

    __slots__ = ()
    printer: ClassVar[Callable[[object], str]]

    def script(self) -> str:
        """The Python text that `tk.script.from_source` reads back."""
        return Scripted.printer(self)

    def show(self, file: TextIO | None = None) -> None:
        """Print the script to `file` (None: standard output), in colour on a terminal."""
        out = sys.stdout if file is None else file
        out.write(coloured_for(out, self.script()))
