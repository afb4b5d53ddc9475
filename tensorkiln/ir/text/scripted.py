"""`script()` and `show()` of modules and functions."""

from __future__ import annotations

import sys
from typing import TextIO

from tensorkiln.ir.text.colour import coloured_for


class Scripted:
    """Base class of nodes that can be printed as Python text."""

    __slots__ = ()

    def script(self) -> str:
        """The Python text that `tk.script.from_source` reads back."""
        from tensorkiln.ir.text.printer import print_any  # here, since it imports the subclasses

        return print_any(self)

    def show(self, file: TextIO | None = None) -> None:
        """Print the script to `file` (None: standard output), in colour on a terminal."""
        out = sys.stdout if file is None else file
        out.write(coloured_for(out, self.script()))
