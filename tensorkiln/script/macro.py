"""`@T.macro`: statements with parameters, inlined where the macro is called."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from tensorkiln.script.source import Source


@dataclass(frozen=True, slots=True)
class Macro:
    """A macro definition. Names in `node` that are not parameters are looked up in `captured`,
    never where the macro is called. `trusted` is that of the script that defines it (see
    `NameScope`)."""

    name: str
    node: ast.FunctionDef
    source: Source
    captured: Mapping[str, object]
    trusted: bool
