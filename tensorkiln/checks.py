"""Whether a model can be compiled, without compiling it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensorkiln import frontend
from tensorkiln.base.errors import Issue, UnsupportedError
from tensorkiln.executable import Refusal, refusals_of
from tensorkiln.external import PartitionExternals
from tensorkiln.external.argument import Externals
from tensorkiln.ir.module import IRModule
from tensorkiln.options import TargetArgument, module_target, target_of
from tensorkiln.pipeline import relax_passes


def check(
    model: object,
    target: TargetArgument = None,
    *,
    shapes: Mapping[str, Sequence[int | str | None]] | None = None,
) -> tuple[Issue, ...]:
    """Every reason why an ONNX model cannot be compiled for the target (None: this machine's CPU);
    empty when it can. `shapes` are as for `from_onnx`.

    Issues of the target come first: that no code generator exists for it. Those of the model do not
    depend on it, since every target has a CPU that computes what its other devices do not.
    """
    try:
        target_of(target)
    except UnsupportedError as error:
        return (*error.issues, *frontend.check_onnx(model, shapes=shapes))
    return frontend.check_onnx(model, shapes=shapes)


def refusals(
    mod: IRModule,
    target: TargetArgument = None,
    externals: Externals = (),
) -> tuple[Refusal, ...]:
    """What externals refuse of a module and why, without compiling it: `Executable.refusals`."""
    for step in relax_passes(module_target(mod, target), externals):
        mod = step(mod)
        if isinstance(step, PartitionExternals):
            break
    return refusals_of(mod)
