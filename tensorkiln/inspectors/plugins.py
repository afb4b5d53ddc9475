"""The inspectors that are there: built in, and those of installed packages.

A package adds its own by an entry point of group `tensorkiln.inspectors`, a function that is given
`register`:

    [project.entry-points."tensorkiln.inspectors"]
    npu = "npu_tools.inspect:add_inspectors"

    def add_inspectors(register):
        register("commands", show_commands, codegen_id="npu", suffix=".bin")
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from tensorkiln.inspectors.builtin import builtin_inspectors
from tensorkiln.inspectors.registry import Inspector, Inspectors, Shown, make_inspector

GROUP = "tensorkiln.inspectors"
_known: Inspectors | None = None


def known_inspectors(warn: Callable[[str], object] = warnings.warn) -> Inspectors:
    """The process's table, filled when it is first asked for. `warn` is told of packages whose
    inspectors cannot be had; everything else goes on without them."""
    global _known
    if _known is None:
        _known = Inspectors(builtin_inspectors())
        add_plugins(_known, warn)
    return _known


def register_inspector(
    name: str,
    show: Callable[..., Shown],
    *,
    suffix: str = "",
    codegen_id: str = "",
    loader: str = "",
    language: str = "",
    writes: str = "",
    owner: str = "",
    in_memory: bool = False,
) -> None:
    """Add one to the process's table.

    `show` is given the artifact, or without a `suffix` the sequence of all artifacts that it is
    keyed to, and gives text or pieces of it. `language` colours it (`json`, `c`, `python`, `llvm`,
    `gas`, `diff`: names of Pygments); with `writes=".txt"`, `--extract` keeps it as a file.
    With `in_memory` it is for artifacts that have no bytes.
    Raises UserError as `Inspectors.add` does.
    """
    row = make_inspector(
        name, show, suffix=suffix, codegen_id=codegen_id, loader=loader, language=language,
        writes=writes, owner=owner, in_memory=in_memory,
    )  # fmt: skip
    known_inspectors().add([row])


def add_plugins(inspectors: Inspectors, warn: Callable[[str], object]) -> None:
    """Add those of installed packages: of each entry point all or none."""
    found = entry_points(group=GROUP)
    for point in sorted(found, key=lambda point: (_package(point), point.name)):
        rows: list[Inspector] = []
        try:
            add = point.load()
            add(partial(_stage, rows, f"package {_package(point)}"))
            inspectors.add(rows)
        # Whatever somebody else's package does must not stop ours from reading a file.
        except (Exception, SystemExit) as error:
            reason = f"{type(error).__name__}: {error}".replace("\n", " ")
            warn(f"inspectors {point.name!r} of package {_package(point)} are left out: {reason}")


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "?"


def _stage(
    rows: list[Inspector], owner: str, name: str, show: Callable[..., Shown], **keys: Any
) -> None:
    rows.append(make_inspector(name, show, **{**keys, "owner": owner}))
