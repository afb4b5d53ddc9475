"""The arguments of `compile`: what they are checked for, and the module and target that they stand
for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

from tensorkiln import frontend
from tensorkiln.base.config import MOST_JOBS
from tensorkiln.base.errors import InternalError, UserError, require
from tensorkiln.base.nesting import nesting_checked
from tensorkiln.base.origin import ModelSource, Origin
from tensorkiln.codegen.host.system_lib_c import check_prefix
from tensorkiln.executable import tuned_kernels
from tensorkiln.external.argument import require_externals
from tensorkiln.ir.module import IRModule
from tensorkiln.ops.verify import verify
from tensorkiln.passes import Pipeline
from tensorkiln.passes.depth import deepest_place
from tensorkiln.target import Target, annotated_target, require_codegen

TargetArgument = Target | str | dict[str, object] | None


def require_arguments(
    externals: object, instruments: object, system_lib_prefix: object, jobs: object, debug: object
) -> None:
    """Raise UserError for arguments of `compile` that are not what they should be."""
    require_externals(externals)
    require(instruments, Iterable, "instruments")
    require(debug, bool, "debug")
    if system_lib_prefix is not None:
        require(system_lib_prefix, str, "system_lib_prefix")
        check_prefix(system_lib_prefix)
    if jobs is not None:
        require(jobs, int, "jobs")
        if not 1 <= cast(int, jobs) <= MOST_JOBS:
            raise UserError(f"jobs={jobs}: expected 1 to {MOST_JOBS}", code="bad-argument")


def named_module(
    model: Any, name: object, example_inputs: Any, freeze: Mapping[str, int] | None
) -> IRModule:
    """The module of a model, under the `name` that the caller of `compile` chose for it."""
    mod = frontend.import_model(model, example_inputs=example_inputs, freeze=freeze)
    if name is None:
        return mod
    require(name, str, "name")
    return replace(mod, name=check_prefix(name, "name"))


def module_target(mod: IRModule, target: TargetArgument) -> Target:
    """The Target that an argument `target=` stands for; None: those that functions of the module
    name by their attribute `target`, else this machine's CPU. Raises as `target_of`."""
    if target is None:
        texts = ((f.name, f.attrs.get("target")) for f in mod.functions)
        annotated = annotated_target((name, t) for name, t in texts if isinstance(t, str) and t)
        target = annotated if annotated is not None else "native"
    return target_of(target)


def target_of(target: TargetArgument) -> Target:
    """The Target that an argument `target=` stands for, None being this machine's CPU.

    Raises UnsupportedError if no code generator exists for its kind.
    """
    named_target = Target("native") if target is None else Target(target)
    require_codegen(named_target)
    if named_target.kind != "llvmjit" or not named_target.is_baseline:
        return named_target
    # llvmjit code runs on this machine only, so it may use every feature of this CPU: begin with
    # "native" and override the options that the caller gave.
    plain = Target("llvmjit").to_json()
    options = {k: v for k, v in named_target.to_json().items() if v != plain.get(k)}
    return Target({**Target("native").to_json(), "kind": "llvmjit", **options})


def with_options(target: Target, **values: str | None) -> Target:
    """The target with the options that arguments of `compile` of the same names stand for, None
    being none.

    Raises UserError for an unknown value, a kind of target without the option, and one that says
    another value itself (code `contradiction`).
    """
    for name, value in values.items():
        if value is None:
            continue
        require(value, str, name)
        option = target[name]
        if option not in (None, value):
            raise UserError(
                f"{name}={value!r}, but the target says {option!r}",
                code="contradiction",
                where=name,
                hint="give it once",
            )
        target = target.replace(**{name: value})
    return target


def origin_of(
    mod: IRModule,
    source: ModelSource | None,
    freeze: Mapping[str, int] | None,
    relax_pipeline: Pipeline,
    tir_pipeline: Pipeline,
    system_lib_prefix: str | None,
    debug: bool,
) -> Origin:
    """What metadata says of where a library is from, without the use of dependencies: the source of
    its model, and the options of its compile that are not their defaults, as JSON values. None of
    them is a path. Those that the target says, such as precision and denormals, are not among them.

    `mod` is the lowered module; `freeze` counts if its importer read no sizes.
    """
    options: dict[str, object] = {
        "freeze": dict((source.freeze if source else ()) or freeze or {}),
        "relax_pipeline": _pipeline_name(relax_pipeline),
        "tir_pipeline": _pipeline_name(tir_pipeline),
        "system_lib_prefix": system_lib_prefix,
        "externals": list(dict.fromkeys(f.external for f in mod.externals)),
        "debug": debug,
        "records": tuned_kernels(mod),
    }
    unusual = {name: value for name, value in options.items() if value not in (None, False, [], {})}
    return Origin(replace(source, freeze=()) if source else None, unusual)


def _pipeline_name(pipeline: Pipeline) -> str | None:
    """The name of a pipeline other than "auto". Passes of the caller's have none; without any, the
    module is what it was before."""
    return pipeline if isinstance(pipeline, str) and pipeline != "auto" else None


def require_well_formed(mod: IRModule, verified: dict[int, object]) -> None:
    """Verify the caller's module before any pass runs: here a malformed module is a UserError,
    later it is the fault of a pass."""
    try:
        with nesting_checked(partial(deepest_place, mod)):
            verify(mod, verified, places=True)
    except InternalError as error:
        raise UserError(
            error.message, code=error.code, where=error.where, hint=error.hint
        ) from None
