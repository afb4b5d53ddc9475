"""`explain`: what the compiler did with a model, as one static page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorkiln.base.errors import require
from tensorkiln.base.folders import write_files
from tensorkiln.executable import Executable
from tensorkiln.external import External
from tensorkiln.frontend import import_model
from tensorkiln.passes import Pipeline
from tensorkiln.report.page import page
from tensorkiln.report.story import Story, record
from tensorkiln.target import Target


@dataclass(frozen=True, slots=True)
class Report:
    """The result of `explain`: the data of the page, and the executable that was compiled."""

    story: Story
    executable: Executable

    def html(self) -> str:
        """The page as one HTML text; deterministic if `explain` was given seconds=0."""
        return page(self.story)

    def save(self, folder: str | Path) -> Path:
        """Write the page as `index.html` into a folder, which is created if missing; the file's
        path.

        Only the page of a former report is replaced. Raises UserError (code `cannot-write`), which
        names the obstacle, if anything else is in the way.
        """
        (path,) = write_files(folder, {"index.html": self.html()})
        return path


def explain(
    model: Any,
    target: Target | str | dict[str, object] | None = None,
    *,
    example_inputs: Any = None,
    freeze: Mapping[str, int] | None = None,
    name: str | None = None,
    relax_pipeline: Pipeline = "auto",
    tir_pipeline: Pipeline = "auto",
    externals: Sequence[External] = (),
    sizes: Mapping[str, int] | None = None,
    seconds: float = 0.02,
) -> Report:
    """Compile a model and report what every pass changed, what each kernel computes and costs, and
    how memory is used.

    `model`, `example_inputs` and `freeze`: as for `compile`. `target`: as for `compile`, this
    machine's CPU by default. `name`: the heading of the page, any text; by default the module's
    name, which is that of the ONNX file or of the torch module's class. `sizes`: values of symbolic
    dimensions for times and memory, 1 by default. `seconds`: time spent on measuring each kernel;
    with 0, kernels are not timed. Raises what `compile` raises.
    """
    mod = import_model(model, example_inputs=example_inputs, freeze=freeze)
    full_target = Target("native") if target is None else Target(target)
    heading = mod.name if name is None else name
    require(heading, str, "name")
    story, executable = record(
        mod, heading, full_target, sizes or {}, relax_pipeline, tir_pipeline, externals, seconds
    )
    return Report(story, executable)


__all__ = ["Report", "Story", "explain"]
