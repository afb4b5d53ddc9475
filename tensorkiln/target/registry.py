"""Registration of target kinds by users, and the check that code can be generated for a target."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.target.hooks import Hook, Hooks
from tensorkiln.target.host import host_triple
from tensorkiln.target.isa import ISAS
from tensorkiln.target.kinds import FIELDS, HOST, INSTEAD, KINDS, Canonicalizer, Kind
from tensorkiln.target.options import ELSEWHERE, FIELD_ALIASES, Option
from tensorkiln.target.target import Target
from tensorkiln.target.triple import library_system, require_library

_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)*")


def register_target_kind(
    name: str,
    device_type: str,
    options: Sequence[Option] = (),
    default_keys: Sequence[str] = (),
    canonicalizer: Canonicalizer | None = None,
    *,
    doc: str = "",
    composite: bool = False,
    pre_codegen: Hook | None = None,
    relax_pipeline: Hook | None = None,
    tir_pipeline: Hook | None = None,
    relax_codegen: Hook | None = None,
    tir_codegen: Hook | None = None,
    linker: Hook | None = None,
) -> Kind:
    """Register a kind of target, for this process; see `target.kinds.Kind` for `canonicalizer` and
    `composite`, and `target.hooks.Hooks` for the hooks.

    `name` is lower-case words joined by `_` or `.`; `device_type` is the device that kernels run
    on, and `default_keys` are the `keys` of targets that give none. Raises UserError (code
    `bad-kind`), and registers nothing, if an argument is invalid or the name is taken.
    """
    hooks = Hooks(pre_codegen, relax_pipeline, tir_pipeline, relax_codegen, tir_codegen, linker)
    kind = Kind(
        name, device_type, tuple(default_keys), tuple(options), doc, canonicalizer, hooks, composite
    )
    _check_kind(kind)
    KINDS[name] = kind
    return kind


def unregister_target_kind(name: str) -> None:
    """Remove a registered kind. An unknown or built-in kind is ignored."""
    if name in KINDS and name not in _BUILTIN:
        del KINDS[name]


def _check_kind(kind: Kind) -> None:
    """Raise UserError (code `bad-kind`) unless names, options, hooks and defaults are valid, and
    the canonicalizer is idempotent on the defaults."""
    place = f"register_target_kind({kind.name!r})"
    if not isinstance(kind.name, str) or not _NAME.fullmatch(kind.name):
        raise _bad(
            f"{kind.name!r} is not a name: expected lower-case words joined by _ or .", place
        )
    if kind.name in KINDS or kind.name in ("native", HOST) or kind.name in INSTEAD:
        raise _bad(f"kind {kind.name!r} is taken", place)
    if not isinstance(kind.device, str) or not (kind.device or kind.composite):
        raise _bad(f"device_type is {kind.device!r}, expected text", place)
    if not all(isinstance(key, str) and key for key in kind.keys):
        raise _bad(f"default_keys {kind.keys!r}: expected text", place)
    if kind.canonicalizer is not None and not callable(kind.canonicalizer):
        raise _bad(f"canonicalizer is {kind.canonicalizer!r}, expected a function", place)
    kind.hooks.check(place)
    option_names: set[str] = set()
    for option in kind.options:
        _check_option(option, option_names, place)
    try:
        values = kind.values({}, place)
        again = kind.values(dict(values), place)
    except UserError as error:
        raise _bad(f"the defaults are invalid: {error.message}", place) from error
    except Exception as error:
        raise _bad(f"the canonicalizer failed on the defaults: {error!r}", place) from error
    if again != values:
        raise _bad("the canonicalizer is not idempotent: it changes its own result", place)


def _check_option(option: object, option_names: set[str], place: str) -> None:
    if not isinstance(option, Option):
        raise _bad(f"{option!r} is not an Option", place)
    reserved_names = {*FIELDS, *FIELD_ALIASES, *ELSEWHERE}
    if (
        not _NAME.fullmatch(option.name)
        or option.name in reserved_names
        or option.name in option_names
    ):
        raise _bad(f"option {option.name!r}: the name is taken or invalid", place)
    if option.type not in (str, int, bool, list):
        message = f"option {option.name!r}: type {option.type!r} is not str, int, bool or list"
        raise _bad(message, place)
    if option.type is int and option.low >= option.high:
        raise _bad(f"option {option.name!r}: empty range {option.low}..{option.high}", place)
    if not option.doc:
        raise _bad(f"option {option.name!r} has no description", place)
    if option.default is not None:
        option.check(option.default, f"{place}: default of {option.name!r}")
    option_names.add(option.name)


def _bad(message: str, place: str) -> UserError:
    return UserError(message, code="bad-kind", where=place)


def require_codegen(target: Target) -> None:
    """Raise UnsupportedError, naming what works, unless code can be generated for this target.

    That needs a code generator for its kind, and a host (the target itself, or its `host`) that is
    a CPU of an architecture in `triple.LIBRARIES`, or of any one for a kind that makes C.
    """
    has = [k.name for k in KINDS.values() if k.has_codegen]
    kind = KINDS[target.kind]
    if target.target_key or target.operators:
        name = "target_key" if target.target_key else "operators"
        raise UnsupportedError(
            f"{name} is a field of a composite's devices, and this target is not one of them",
            where=f"target.{name}",
            hint='{"devices": [...]}: several targets that share the work',
        )
    if kind.composite and not kind.has_codegen:
        _require_devices(target)
    elif not kind.has_codegen:
        raise UnsupportedError(
            f"no code generator for kind {kind.name!r}",
            where="target.kind",
            hint=f"kinds that have one: {', '.join(has)}",
        )
    cpu = cpu_target(target)
    place = "target" if cpu is target else "target.host"
    if not KINDS[cpu.kind].is_cpu:
        raise UnsupportedError(
            f"kind {cpu.kind!r} cannot be the host: no code generator",
            where=place,
            hint=f"hosts that work: {', '.join(k.name for k in KINDS.values() if k.is_cpu)}",
        )
    if cpu.libs and not KINDS[cpu.kind].hooks.relax_codegen:
        raise _no_libraries(cpu, place)
    if cpu.flushes_denormals:
        _require_flush(cpu, place, target)
    arch = cpu.arch
    if not KINDS[cpu.kind].any_machine:
        _require_library(cpu, place)
    if cpu is target and target.host is not None and target.host.arch != arch:
        raise UnsupportedError(
            f"the host is {target.host.kind} of {target.host.arch or 'no CPU'}, the target {arch}: "
            "a library has one machine",
            where="target.host",
            hint=f"leave the host out, for kind {target.kind!r} is its own",
        )
    if cpu.kind == "llvmjit" and not _runs_here(cpu.mtriple):
        raise UnsupportedError(
            f"kind 'llvmjit' makes code for this machine, {host_triple()}, not {cpu.mtriple}",
            where=f"{place}.mtriple",
            hint="kind 'llvm' makes libraries for other machines",
        )


def _require_library(cpu: Target, place: str) -> None:
    """Raise UnsupportedError unless libraries are made for a CPU's system, with its features."""
    arch = require_library(cpu.mtriple, f"{place}.mtriple")
    if lacking := ISAS[arch].lacking(cpu.features):
        raise UnsupportedError(
            f"libraries for {arch} pass numbers as systems do that have "
            f"{', '.join(ISAS[arch].library_features)}; the target lacks {', '.join(lacking)}",
            where=f"{place}.mattr",
            hint="kind 'c' makes C for processors without them",
        )


def _require_flush(cpu: Target, place: str, target: Target) -> None:
    """Raise UnsupportedError unless kernels of the target take denormal numbers for 0 where its CPU
    asks for it."""
    able = [arch for arch, isa in ISAS.items() if isa.can_flush]
    if cpu.arch not in able:
        raise UnsupportedError(
            f"denormals 'flush': the runtime knows no state of {cpu.arch} that takes them for 0",
            where=f"{place}.denormals",
            hint=f"architectures where it does: {', '.join(able)}",
        )
    accelerators = [d for d in (target, *flat_devices(target)) if KINDS[d.kind].is_accelerator]
    if accelerators:
        raise UnsupportedError(
            f"denormals 'flush': kernels of kind {accelerators[0].kind!r} compute on a device, "
            "which the state of a thread does not reach",
            where=f"{place}.denormals",
            hint="leave denormals out",
        )


def flat_devices(target: Target) -> Iterator[Target]:
    """The devices of a composite in order, in place of composites among them their devices."""
    for device in target.devices:
        yield from flat_devices(device) if KINDS[device.kind].composite else (device,)


def _require_devices(target: Target) -> None:
    """Raise UnsupportedError unless code can be generated for each device of a composite, and those
    that are CPUs can be beside the host, since one library has the code of all."""
    has = [k.name for k in KINDS.values() if k.has_codegen]
    cpu = cpu_target(target)
    for i, device in enumerate(flat_devices(target)):
        kind, place = KINDS[device.kind], f"target.devices[{i}]"
        if not kind.has_codegen:
            raise UnsupportedError(
                f"no code generator for kind {kind.name!r}",
                where=f"{place}.kind",
                hint=f"kinds that have one: {', '.join(has)}",
            )
        if kind.is_cpu:
            _require_beside(cpu, device, place)


def _require_beside(cpu: Target, device: Target, place: str) -> None:
    """Raise UnsupportedError unless a CPU can be a device beside the host: the host calls the
    device's kernels as functions of its own program."""
    if device.mtriple != cpu.mtriple:
        raise UnsupportedError(
            f"the host is of {cpu.mtriple}, the device of {device.mtriple}: the host calls a CPU's "
            "kernels as functions of its own program, and a program has one machine",
            where=place,
            hint="compile a model for each; an archive has several (docs/devices.md)",
        )
    if device.kind != cpu.kind and "llvmjit" in (device.kind, cpu.kind):
        raise UnsupportedError(
            f"the host is {cpu.kind}, the device {device.kind}: code of llvmjit stays in memory, "
            "where no linker joins it with other code",
            where=place,
            hint="CPUs of kinds 'llvm' and 'c' go together",
        )
    if not KINDS[device.kind].any_machine:
        _require_library(device, place)
    if device.libs and not KINDS[device.kind].hooks.relax_codegen:
        raise _no_libraries(device, place)
    if device.flushes_denormals and not cpu.flushes_denormals:
        raise UnsupportedError(
            "CPUs share the threads of the host, which keep denormal numbers",
            where=f"{place}.denormals",
            hint="denormals of the host's target",
        )
    if device.memory and device.memory != cpu.memory:
        raise UnsupportedError(
            "CPUs share the memory of the host, whose pools are divided",
            where=f"{place}.memory",
            hint="memory of the host's target",
        )


def _no_libraries(cpu: Target, place: str) -> UnsupportedError:
    return UnsupportedError(
        f"no code generator of kind {cpu.kind!r} calls libraries, such as {cpu.libs[0]!r}",
        where=f"{place}.libs",
        hint="leave libs out; compile(externals=...) gives operators to a library",
    )


def _runs_here(triple: str) -> bool:
    """Whether libraries for `triple` run on this machine: it has the same architecture, and the
    same supported system."""
    try:
        arch = require_library(host_triple(), "this machine")
        same_system = library_system(host_triple()) == library_system(triple)
        return same_system and arch == triple.split("-")[0]
    except (UserError, UnsupportedError):
        return False


def with_host(target: Target, host: Target | None = None) -> Target:
    """Return this target with its host filled in: the machine for everything that the kind's own
    generators do not compile (`cpu_target`), or, for a device of a composite, the composite's
    `host`. CPU targets need none.

    Raises UnsupportedError for one whose CPU, its own or another's in it, is several processors:
    passes and code generators work for one (`Target.levels`).
    """
    _require_one_level(target, "target")
    if target.host is not None or KINDS[target.kind].is_cpu:
        return target
    return target.replace(host=(host or cpu_target(target)).to_json())


def runnable_level(features: Sequence[Collection[str]], arch: str) -> int | None:
    """Of code for several processors of architecture `arch`, which needs these features, the number
    of what runs on this machine: the last that needs none it lacks, as in crt/prepare.c. None if it
    can run none."""
    machine = Target("native")
    runnable = [i for i, needed in enumerate(features) if machine.features.issuperset(needed)]
    return runnable[-1] if runnable and machine.arch == arch else None


def _require_one_level(target: Target, place: str) -> None:
    if target.levels:
        raise UnsupportedError(
            f"expected one processor, received {', '.join(t.mcpu for t in target.levels)}",
            where=f"{place}.mcpu",
            hint="compile(target=) takes several, for kind 'llvm' without devices",
        )
    if target.host is not None:
        _require_one_level(target.host, f"{place}.host")
    for i, device in enumerate(target.devices):
        _require_one_level(device, f"{place}.devices[{i}]")


def cpu_target(target: Target) -> Target:
    """Return the target of the entry functions, and of kernels that no other code generator takes:
    a CPU target itself, else its host. Without one that is the first CPU among the devices of a
    composite, as it is without its key, or `native`."""
    if KINDS[target.kind].is_cpu:
        return target
    if target.host is not None:
        return target.host
    first = next((d for d in flat_devices(target) if KINDS[d.kind].is_cpu), None)
    return Target("native") if first is None else first.replace(target_key=None, operators=None)


def required_features(target: Target) -> tuple[str, ...]:
    """Return what a processor must have to run code that somebody else makes for this target: what
    its CPU requires (`cpu_target`), and what CPUs among its devices do, since the code may be for
    any of them."""
    cpus = (cpu_target(target), *(d for d in flat_devices(target) if KINDS[d.kind].is_cpu))
    return tuple(sorted({feature for cpu in cpus for feature in cpu.required_features}))


def target_of_kernels(target: Target) -> Target:
    """Return the target without the options that do not affect the code of kernels: pools of
    memory, and how host code treats indices out of range and denormal numbers."""
    if not KINDS[target.kind].is_cpu:
        return target
    names = [name for name in ("memory", "indices", "denormals") if target[name] is not None]
    return target.replace(**dict.fromkeys(names)) if names else target


def runs_kernels(target: Target) -> bool:
    """Whether code is generated for the tensor programs that are scheduled for this target; a kind
    without it has only code generators for whole operators."""
    kind = KINDS[target.kind]
    return kind.is_cpu or kind.is_accelerator or kind.hooks.tir_codegen is not None


def hooks_of(target: Target) -> Hooks:
    """Return the hooks of the target's kind."""
    return KINDS[target.kind].hooks


_BUILTIN = frozenset(KINDS)
