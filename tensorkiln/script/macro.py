"""`@T.macro`: statements with parameters, put where the macro is called."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from tensorkiln.script.source import Source


@dataclass(frozen=True, slots=True)
class Macro:
    """A macro as it was defined. Names in it mean what they meant there, never what they mean
    where it is called."""

    name: str
    node: ast.FunctionDef
    source: Source
    captured: Mapping[str, object]
    trusted: bool
