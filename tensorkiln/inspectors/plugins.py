"""The process's table of inspectors: built-in ones and those of installed packages.

A package adds its own with an entry point of group `tensorkiln.inspectors`, a function that takes
`register`, which has the arguments of `register_inspector`:

    [project.entry-points."tensorkiln.inspectors"]
    npu = "npu_tools.inspect:add_inspectors"

    def add_inspectors(register):
        register("commands", show_commands, codegen_id="npu", suffix=".bin")
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from tensorkiln.base.entry_points import entry_points_of, package_of
from tensorkiln.inspectors.builtin import builtin_inspectors
from tensorkiln.inspectors.registry import Inspector, Inspectors, Shown, make_inspector

GROUP = "tensorkiln.inspectors"
_known: Inspectors | None = None


def known_inspectors(warn: Callable[[str], object] = warnings.warn) -> Inspectors:
    """The process's table, created on first use. A package whose inspectors cannot be loaded is
    reported to `warn` and left out."""
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
    """Add an inspector to the process's table.

    `show` takes an artifact, or without `suffix` the sequence of all artifacts of the given
    `codegen_id` or `loader`, and returns text or an iterable of pieces of text. `suffix="*"` is for
    all files. `language`, as Pygments calls it (`json`, `c`, `python`, `llvm`, `gas`, `diff`), is
    for the colours of the text; with `writes=".txt"`, `kiln inspect --extract` writes it to a file
    with that suffix. `owner` names the registrant in messages, by default the module of `show`.
    With `in_memory`, the inspector is for artifacts that have no bytes (`InMemoryArtifact`), and
    only these. Raises UserError as `Inspectors.add` does.
    """
    row = make_inspector(
        name,
        show,
        suffix=suffix,
        codegen_id=codegen_id,
        loader=loader,
        language=language,
        writes=writes,
        owner=owner,
        in_memory=in_memory,
    )
    known_inspectors().add([row])


def add_plugins(inspectors: Inspectors, warn: Callable[[str], object]) -> None:
    """Add the inspectors of installed packages, of each entry point all or none; a failing one is
    reported to `warn`."""
    for point in entry_points_of(GROUP):
        rows: list[Inspector] = []
        try:
            add = point.load()
            add(partial(_stage, rows, f"package {package_of(point)}"))
            inspectors.add(rows)
        # An error in another package must not prevent this one from reading a file.
        except (Exception, SystemExit) as error:
            reason = f"{type(error).__name__}: {error}".replace("\n", " ")
            warn(f"inspectors {point.name!r} of package {package_of(point)} are left out: {reason}")


def _stage(
    rows: list[Inspector], owner: str, name: str, show: Callable[..., Shown], **keys: Any
) -> None:
    rows.append(make_inspector(name, show, **{**keys, "owner": owner}))
