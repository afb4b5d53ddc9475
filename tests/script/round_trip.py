"""The proof of the round trip for one module: text and back after each pass, then the bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import tensorkiln as tk
from tensorkiln.codegen.llvm.emit import emit_llvm
from tensorkiln.ir.module import IRModule
from tensorkiln.passes import Instrument, Pass, Step, Verify
from tensorkiln.passes.instruments import require_round_trip
from tensorkiln.script import constant_table, from_source


def reread(mod: IRModule, file: str = "final") -> IRModule:
    """The module that its text describes; weights go by their digests."""
    return from_source(mod.script(), constants=constant_table(mod), file=file)


@dataclass(slots=True)
class RoundTrip(Instrument):
    """Verifies the text of the input and of what each pass changed; `names` are those passes.

    A pass that changed nothing answers the very module that was checked before it.
    """

    names: list[str] = field(default_factory=list)
    _check: Verify = field(default_factory=Verify)

    def before(self, step: Step) -> None:
        if step.number == 1:
            require_round_trip(step.before, "input")

    def after(self, step: Step) -> None:
        if step.changed:
            self._check.after(step)
            self.names.append(step.name)


def check_round_trip(
    mod: IRModule,
    relax_pipeline: str | Sequence[Pass] | None = "auto",
    tir_pipeline: str | Sequence[Pass] | None = "auto",
) -> list[str]:
    """Each pass's module reads back equal, and the last one compiles to the same bytes from its
    text; answers the passes that changed it.

    Objects of kernels may come from the cache, whose key is the canonical text; so their LLVM
    text, from which the objects are made, is compared as well.
    """
    watch = RoundTrip()
    mod = replace(mod, source=None)  # a text does not say which file it is from
    made = tk.compile(
        mod, relax_pipeline=relax_pipeline, tir_pipeline=tir_pipeline, instruments=[watch]
    )
    again = reread(made.module)
    for f, g in zip(made.module.prim_funcs, again.prim_funcs, strict=True):
        assert emit_llvm(f, tk.Target("native")) == emit_llvm(g, tk.Target("native")), f.name
    other = tk.compile(again, relax_pipeline=None, tir_pipeline=None)
    assert [a.name for a in other.artifacts] == [a.name for a in made.artifacts]
    for a, b in zip(made.artifacts, other.artifacts, strict=True):
        assert a.sha256 == b.sha256, f"{a.name} differs when compiled from text"
    return watch.names
