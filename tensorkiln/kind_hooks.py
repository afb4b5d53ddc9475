"""Ask the hooks of a target's kind: code generators, passes and a linker that a kind brings to a
compile. In a composite the hooks of its devices' kinds are asked, too; their passes see only the
functions of their device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.base.plugin import bad_answer, plugin
from tensorkiln.external import External
from tensorkiln.external.argument import Externals, named_externals
from tensorkiln.link.shared import Fcompile
from tensorkiln.passes import Pass, Pipeline, resolve
from tensorkiln.passes.of_device import OfDevice, OfOthers
from tensorkiln.target import Target, cpu_target, devices_of, hooks_of, runs_kernels, with_host
from tensorkiln.transform.relax.assign_devices import AssignDevices
from tensorkiln.transform.relax.partial_graph_aot import partial_graph_aot
from tensorkiln.transform.relax.pass_sizes import pass_sizes
from tensorkiln.transform.relax.plan_memory import PlanMemory

Linker = Fcompile | str | None
Named = Mapping[str, Callable[..., Pipeline]]

_ANSWERS = {
    "relax_codegen": "a list of External",
    "relax_pipeline": "a pass, a list of passes or a pipeline's name",
    "tir_pipeline": "a pass, a list of passes or a pipeline's name",
    "pre_codegen": "a pass or a list of passes",
    "linker": "a command or a function",
}


def hook(target: Target, name: str, expected: Any, *arguments: object) -> Any:
    """The result of hook `name` of the target's kind; None if the kind does not define the hook.

    Raises UserError (code `bad-kind`) if the result is not an instance of `expected`, and
    `plugin-failed` if the hook raises.
    """
    function = getattr(hooks_of(target), name)
    if function is None:
        return None
    label = f"{name} of kind {target.kind!r}"
    with plugin(label):
        answer = function(*arguments)
    if answer is None or not isinstance(answer, expected):
        raise bad_answer(label, answer, _ANSWERS[name], "bad-kind")
    return answer


def _hooked(target: Target, name: str) -> dict[str, Target]:
    """The devices of a composite whose kinds define a hook, each with the composite's host."""
    devices = {k: d for k, d in devices_of(target).items() if getattr(hooks_of(d), name)}
    return {key: with_host(d, cpu_target(target)) for key, d in devices.items()}


def all_externals(target: Target, externals: Externals = ()) -> tuple[External, ...]:
    """The given externals, text being the name of an installed one, then those of the target's
    kind, then those of the kinds of a composite's devices, in their order, each of its device.
    UserError (`bad-kind`) if a hook `relax_codegen` returns anything but Externals."""
    externals_of_kinds = (*named_externals(externals), *_externals_of(target))
    for key, device in _hooked(target, "relax_codegen").items():
        externals_of_kinds += tuple(e.of_device(key, device) for e in _externals_of(device))
    return externals_of_kinds


def _externals_of(target: Target) -> tuple[External, ...]:
    answer = hook(target, "relax_codegen", list | tuple, target) or ()
    wrong = next((e for e in answer if not isinstance(e, External)), None)
    if wrong is not None:
        label = f"relax_codegen of kind {target.kind!r}"
        raise bad_answer(label, wrong, "External in its list", "bad-kind")
    return tuple(answer)


def kind_relax_pipeline(
    target: Target, externals: Externals, passes: Callable[..., Sequence[Pass]], named: Named
) -> Pipeline:
    """The relax pipeline of the target's kind, else `passes` with those of the kinds of a
    composite's devices."""
    pipeline = hook(target, "relax_pipeline", object, target, externals)
    if pipeline is not None:
        return cast(Pipeline, pipeline)
    return _with_device_pipelines(passes(target, externals), with_host(target), externals, named)


def kind_tir_pipeline(
    target: Target, passes: Callable[..., Sequence[Pass]], named: Named
) -> Pipeline:
    """The TIR pipeline of the target's kind, else `passes` with those of the kinds of a composite's
    devices."""
    pipeline = hook(target, "tir_pipeline", object, target)
    if pipeline is not None:
        return cast(Pipeline, pipeline)
    return _with_device_programs(passes(target), with_host(target), named)


def _with_device_pipelines(
    passes: Sequence[Pass], target: Target, externals: Externals, named: Named
) -> list[Pass]:
    """The graph passes of a composite, extended by those of the kinds of its devices. These follow
    the pass that turns each device's part of a graph into a function. Memory is planned once for
    all devices: a device's own memory planning is left out. Raises UnsupportedError for a device
    with a pipeline whose operators are all compiled by externals, so that there is no function for
    its passes."""
    device_passes: list[Pass] = []
    for key, device in _hooked(target, "relax_pipeline").items():
        if not runs_kernels(device):
            raise UnsupportedError(
                f"relax_pipeline of kind {device.kind!r}: device {key!r} has no kernels, but takes "
                "operators one by one, so there is no graph of its own to run passes on",
                where="target.devices",
                hint="relax_pipeline of a composite kind of your own, or of compile",
            )
        answer = hook(device, "relax_pipeline", object, device, externals)
        kind_passes = resolve("relax_pipeline", answer, named, device, externals)
        renamed = _renamed(device, key)
        device_passes += [OfDevice(key, p, renamed) for p in kind_passes if not _plans(p)]
    place = next((i for i, p in enumerate(passes) if isinstance(p, AssignDevices)), len(passes)) + 1
    return [*passes[:place], *device_passes, *passes[place:]]


def _plans(p: Pass) -> bool:
    return isinstance(p, PlanMemory) or p is partial_graph_aot


def _renamed(device: Target, key: str) -> dict[str, str]:
    """The names that a device's externals have in modules of this device alone, mapped to their
    names in the composite."""
    return {e.name: e.of_device(key, device).name for e in _externals_of(device)}


def _with_device_programs(passes: Sequence[Pass], target: Target, named: Named) -> list[Pass]:
    """The passes on tensor programs of a composite. Programs of devices whose kinds have passes of
    their own are left to these, which follow."""
    devices = _hooked(target, "tir_pipeline")
    if not devices:
        return list(passes)
    keys = tuple(devices)
    program_passes: list[Pass] = [p if p is pass_sizes else OfOthers(keys, p) for p in passes]
    for key, device in devices.items():
        answer = hook(device, "tir_pipeline", object, device)
        kind_passes = resolve("tir_pipeline", answer, named, device, ())
        program_passes += [OfDevice(key, p, _renamed(device, key)) for p in kind_passes]
    return program_passes


def last_passes(target: Target) -> tuple[Pass, ...]:
    """The passes that hooks `pre_codegen` return: those of the devices, then those of the whole
    target."""
    passes: list[Pass] = []
    for key, device in _hooked(target, "pre_codegen").items():
        kind_passes = resolve("pre_codegen", hook(device, "pre_codegen", object, device), {})
        passes += [OfDevice(key, p, _renamed(device, key)) for p in kind_passes]
    return (*passes, *resolve("pre_codegen", hook(target, "pre_codegen", object, target), {}))


def linker_of(target: Target) -> Linker:
    """What links libraries for the target if its user does not say: the `linker` of its kind, else
    that of the one kind among its devices that has one. UserError (code `contradiction`) if several
    have: a library is linked once."""
    devices = _hooked(target, "linker")
    kinds = {d.kind: d for d in devices.values()}
    if hooks_of(target).linker is not None or not kinds:
        return cast(Linker, hook(target, "linker", Callable | str, target))
    if len(kinds) > 1:
        raise UserError(
            f"kinds {', '.join(kinds)} of devices all link libraries, and a library is linked once",
            code="contradiction",
            where="target.devices",
            hint="a composite kind of your own: register_target_kind(composite=True, linker=...)",
        )
    (device,) = kinds.values()
    return cast(Linker, hook(device, "linker", Callable | str, device))


__all__ = [
    "all_externals",
    "hook",
    "kind_relax_pipeline",
    "kind_tir_pipeline",
    "last_passes",
    "linker_of",
]
