"""What a target's text means that is no kind and no `vendor/name`: names that people have for
machines.

A product (`rpi4`, `apple-m1`) is a tag without its vendor's slash. A processor (`skylake`,
`cortex-m4`) is a target of its architecture, and a feature (`avx2`) the least level of x86-64 that
has it. `x86-64` is the processors of a library for all of that kind. A product with the name of its
own processor is the product, which says more: its system and its caches. Nothing else is preferred:
a name of several is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from json import dumps

from tensorkiln.base.errors import UserError
from tensorkiln.target.cpu import LEVELS
from tensorkiln.target.isa import ISAS, example_triple
from tensorkiln.target.tags import TAGS, Tag
from tensorkiln.target.triple import LIBRARIES

# Systems of processors that run no other one, by how their names begin.
_SYSTEMS = {"apple-a": "ios", "apple-m": "macos"}


def meaning(text: str, place: str = "target") -> Mapping[str, object] | None:
    """Return the target that `text` names, as a tag or in full; None if it names none.

    Raises UserError (code `ambiguous-name`) with the choices for a name of several targets.
    """
    choices = choices_of(text)
    if len(choices) < 2:
        return next(iter(choices), None)
    raise UserError(
        f"{text!r} names {len(choices)} targets",
        code="ambiguous-name",
        where=place,
        hint=f"write {_texts(choices)}",
    )


def choices_of(text: str) -> list[Mapping[str, object]]:
    """Return the targets that `text` names, as tags or in full."""
    if text in LEVELS:
        return [{"kind": "llvm", "mcpu": list(LEVELS[text])}]
    tags = TAGS.called(text)
    cpus = [] if any(_has_cpu(tag, text) for tag in tags) else _processors(text)
    level = _level_of_feature().get(text)
    levels = [{"kind": "llvm", "mcpu": level}] if level else []
    return [*({"tag": tag.reference} for tag in tags), *cpus, *levels]


def known_names() -> list[str]:
    """Return the names that have one meaning, each once: products, processors, features. Those with
    a hyphen for a tag's slash are left out."""
    cpus = (cpu for isa in ISAS.values() for cpu in isa.cpus)
    names = dict.fromkeys([*LEVELS, *TAGS.words(), *cpus, *sorted(_level_of_feature())])
    return [name for name in names if len(choices_of(name)) == 1]


def hint_for_kind(name: str) -> str:
    """Return what to write for a text that is no kind but means something: a target, or a feature
    that names none. Empty for other texts."""
    choices = choices_of(name)
    if choices:
        return f"that is a target, whose fields are {_texts(choices)}"
    arch = next((arch for arch, isa in ISAS.items() if name in isa.implied), "")
    if not arch:
        return ""
    isa = ISAS[arch]
    cpus = (c for c in isa.cpus if name in isa.cpu_features(c) and len(choices_of(c)) == 1)
    processor = next((f"a processor that has it, such as {c!r}, or " for c in cpus), "")
    flags = [*isa.default_mattr, f"+{name}"]
    features = isa.apply(isa.baseline_cpu, flags)
    spec = {"kind": _kind(arch, features), "mtriple": example_triple(arch), "mattr": flags}
    return f"a feature of {arch}: write {processor}{_texts([spec])}"


def _texts(specs: Iterable[Mapping[str, object]]) -> str:
    return " or ".join(dumps(spec, separators=(",", ":")) for spec in specs)


def _has_cpu(tag: Tag, cpu: str) -> bool:
    """Whether the tag's machine has this processor, as the target itself or as its host."""
    host = tag.target.get("host")
    host_cpu = host.get("mcpu") if isinstance(host, Mapping) else None
    return cpu in (tag.target.get("mcpu"), host_cpu)


def _processors(name: str) -> list[Mapping[str, object]]:
    """The processors with this name, one an architecture."""
    return [
        {"kind": _kind(arch, isa.cpu_features(name)), "mtriple": _triple(arch, name), "mcpu": name}
        for arch, isa in ISAS.items()
        if name in isa.cpus
    ]


def _kind(arch: str, features: frozenset[str]) -> str:
    """The kind for a processor: C where the compiler has no code generator of its own."""
    return "llvm" if arch in LIBRARIES and not ISAS[arch].lacking(features) else "c"


def _triple(arch: str, cpu: str) -> str:
    systems = (s for start, s in _SYSTEMS.items() if arch == "aarch64" and cpu.startswith(start))
    system = next(systems, "")
    return f"{arch}-{system}" if system else example_triple(arch)


@cache
def _level_of_feature() -> Mapping[str, str]:
    """The least level of x86-64 that has each feature; no entry for those that none has."""
    isa = ISAS["x86_64"]
    levels = [cpu for cpu in isa.cpus if cpu.startswith("x86-64")]  # the least first
    return {f: cpu for cpu in reversed(levels) for f in isa.cpu_features(cpu)}
