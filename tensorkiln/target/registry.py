"""Registration of target kinds by users, and the check that code can be generated for a target."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.target.hooks import Hook, Hooks
from tensorkiln.target.host import host_triple
from tensorkiln.target.kinds import FIELDS, INSTEAD, KINDS, Canonicalizer, Kind
from tensorkiln.target.options import ELSEWHERE, FIELD_ALIASES, Option
from tensorkiln.target.target import Target
from tensorkiln.target.triple import require_library

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
        name,
        device_type,
        tuple(default_keys),
        tuple(options),
        doc,
        canonicalizer,
        hooks,
        composite,
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
    where = f"register_target_kind({kind.name!r})"
    if not isinstance(kind.name, str) or not _NAME.fullmatch(kind.name):
        raise _bad(
            f"{kind.name!r} is not a name: expected lower-case words joined by _ or .", where
        )
    if kind.name in KINDS or kind.name == "native" or kind.name in INSTEAD:
        raise _bad(f"kind {kind.name!r} is taken", where)
    if not isinstance(kind.device, str) or not (kind.device or kind.composite):
        raise _bad(f"device_type is {kind.device!r}, expected text", where)
    if not all(isinstance(key, str) and key for key in kind.keys):
        raise _bad(f"default_keys {kind.keys!r}: expected text", where)
    if kind.canonicalizer is not None and not callable(kind.canonicalizer):
        raise _bad(f"canonicalizer is {kind.canonicalizer!r}, expected a function", where)
    kind.hooks.check(where)
    seen: set[str] = set()
    for option in kind.options:
        _check_option(option, seen, where)
    try:
        values = kind.values({}, where)
        again = kind.values(dict(values), where)
    except UserError as error:
        raise _bad(f"the defaults are invalid: {error.message}", where) from error
    except Exception as error:
        raise _bad(f"the canonicalizer failed on the defaults: {error!r}", where) from error
    if again != values:
        raise _bad("the canonicalizer is not idempotent: it changes its own result", where)


def _check_option(option: object, seen: set[str], where: str) -> None:
    if not isinstance(option, Option):
        raise _bad(f"{option!r} is not an Option", where)
    taken = {*FIELDS, *FIELD_ALIASES, *ELSEWHERE}
    if not _NAME.fullmatch(option.name) or option.name in taken or option.name in seen:
        raise _bad(f"option {option.name!r}: the name is taken or invalid", where)
    if option.type not in (str, int, bool, list):
        message = f"option {option.name!r}: type {option.type!r} is not str, int, bool or list"
        raise _bad(message, where)
    if option.type is int and option.low >= option.high:
        raise _bad(f"option {option.name!r}: empty range {option.low}..{option.high}", where)
    if not option.doc:
        raise _bad(f"option {option.name!r} has no description", where)
    if option.default is not None:
        option.check(option.default, f"{where}: default of {option.name!r}")
    seen.add(option.name)


def _bad(message: str, where: str) -> UserError:
    return UserError(message, code="bad-kind", where=where)


def require_codegen(target: Target) -> None:
    """Raise UnsupportedError, naming what works, unless code can be generated for this target.

    That needs a code generator for its kind, and a host (the target itself, or its `host`) that is
    a CPU of an architecture in `triple.LIBRARIES`.
    """
    has = [k.name for k in KINDS.values() if k.has_codegen]
    here = KINDS[target.kind]
    if not here.has_codegen:
        raise UnsupportedError(
            f"no code generator for kind {here.name!r}",
            where="target.kind",
            hint=f"kinds that have one: {', '.join(has)}",
        )
    cpu = cpu_target(target)
    where = "target" if cpu is target else "target.host"
    if not KINDS[cpu.kind].is_cpu:
        raise UnsupportedError(
            f"kind {cpu.kind!r} cannot be the host: no code generator",
            where=where,
            hint=f"hosts that work: {', '.join(k.name for k in KINDS.values() if k.is_cpu)}",
        )
    if cpu.libs and not KINDS[cpu.kind].hooks.relax_codegen:
        raise UnsupportedError(
            f"no code generator of kind {cpu.kind!r} calls libraries, such as {cpu.libs[0]!r}",
            where=f"{where}.libs",
            hint="leave libs out; compile(externals=...) gives operators to a library",
        )
    arch = require_library(cpu.mtriple, f"{where}.mtriple")
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
            where=f"{where}.mtriple",
            hint="kind 'llvm' makes libraries for other machines",
        )


def _runs_here(triple: str) -> bool:
    """Whether libraries for `triple` run on this machine: it has the same architecture and a
    supported system."""
    try:
        return require_library(host_triple(), "this machine") == triple.split("-")[0]
    except (UserError, UnsupportedError):
        return False


def with_host(target: Target) -> Target:
    """Return this target with its host filled in: the machine for everything that the kind's own
    generators do not compile. It defaults to `native`; CPU targets need none."""
    if target.host is not None or KINDS[target.kind].is_cpu:
        return target
    return target.replace(host=Target("native").to_json())


def cpu_target(target: Target) -> Target:
    """Return the target of the entry functions, and of kernels that no other code generator takes:
    a CPU target itself, else its host, or `native` if it has none."""
    if KINDS[target.kind].is_cpu:
        return target
    return Target("native") if target.host is None else target.host


def hooks_of(target: Target) -> Hooks:
    """Return the hooks of the target's kind."""
    return KINDS[target.kind].hooks


_BUILTIN = frozenset(KINDS)
