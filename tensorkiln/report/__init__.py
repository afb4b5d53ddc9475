"""`explain`: what the compiler did with a model, as one static page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tensorkiln.base.folders import write_files
from tensorkiln.executable import Executable
from tensorkiln.external import External
from tensorkiln.ir.module import IRModule
from tensorkiln.passes import Pipeline
from tensorkiln.report.page import page
from tensorkiln.report.story import Story, tell
from tensorkiln.target import Target


@dataclass(frozen=True, slots=True)
class Report:
    """What `explain` found: its data, and the executable that it is about."""

    story: Story
    executable: Executable

    def html(self) -> str:
        """The page; the same text for the same compile when nothing was timed."""
        return page(self.story)

    def save(self, folder: str | Path) -> Path:
        """Write `index.html` into a folder, which is made when missing; its path.

        UserError (code `cannot-write`) that names what is in the way: the page of a former report
        is replaced, and nothing else.
        """
        (path,) = write_files(folder, {"index.html": self.html()})
        return path


def explain(
    mod: IRModule,
    target: Target | str | dict[str, object] | None = None,
    *,
    relax_pipeline: Pipeline = "auto",
    tir_pipeline: Pipeline = "auto",
    externals: Sequence[External] = (),
    sizes: Mapping[str, int] | None = None,
    seconds: float = 0.02,
) -> Report:
    """Compile a module and tell what every pass did, what each kernel is and costs, where memory
    goes. `sizes` are those of symbolic dimensions, for times and memory (1 when not said);
    `seconds` is spent on timing each kernel, 0 times nothing. Raises what `compile` raises.
    """
    asked = Target("native") if target is None else Target(target)
    story, executable = tell(
        mod, asked, sizes or {}, relax_pipeline, tir_pipeline, externals, seconds
    )
    return Report(story, executable)


__all__ = ["Report", "Story", "explain"]
