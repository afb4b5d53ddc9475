"""Resolve the value of `relax_pipeline=` or `tir_pipeline=` to a tuple of passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tensorkiln.base.errors import UserError, nearest
from tensorkiln.passes.step import Pass, Pipeline


def resolve(
    option: str, pipeline: Pipeline, named: Mapping[str, Callable[..., Pipeline]], *args: object
) -> tuple[Pass, ...]:
    """The passes of a pipeline: a name in `named`, a pass, a list of passes, or None for no pass.

    A name is resolved by `named[name](*args)`. `option` names it in errors. Raises
    UserError: `unknown-pipeline` with the nearest name, `bad-pass` for a pass that is not callable.
    """
    if isinstance(pipeline, str):
        if pipeline not in named:
            raise UserError(
                f"{option}={pipeline!r}: expected {', '.join(map(repr, named))}, None, a pass or "
                "a list of passes",
                code="unknown-pipeline",
                hint=nearest(pipeline, named) or "pass the pass itself, not its name",
            )
        return resolve(option, named[pipeline](*args), {})
    if pipeline is None:
        return ()
    passes = tuple(pipeline) if isinstance(pipeline, list | tuple) else (pipeline,)
    for i, p in enumerate(passes):
        if isinstance(p, type):
            raise UserError(
                f"{option}: pass {i} is the class {p.__name__}, expected an instance of it",
                code="bad-pass",
                hint=f"{p.__name__}(...), with its options",
            )
        if not callable(p):
            raise UserError(
                f"{option}: pass {i} is {p!r}, expected a function from IRModule to IRModule",
                code="bad-pass",
                hint=f"{option}={p!r}: a named pipeline is passed alone, not in a list"
                if isinstance(p, str)
                else "a pass is a function, or a frozen dataclass with __call__",
            )
    return passes
