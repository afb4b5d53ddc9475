"""Options of the CPU kinds, and the check that triple, processor and features fit together."""

from __future__ import annotations

from collections.abc import Mapping

from tensorkiln.base.element_types import PRECISIONS
from tensorkiln.base.errors import UserError, nearest
from tensorkiln.target.isa import ISAS, Isa
from tensorkiln.target.memory import MemoryPool
from tensorkiln.target.options import Option, Values, contradiction
from tensorkiln.target.tags import TAGS
from tensorkiln.target.triple import DEFAULT, canonical_triple

# Sizes of caches of processors that no tag has: what every application CPU of the last ten years
# has at least. `native` gives those of this machine instead.
_CACHES = {"l1d_bytes": 32 << 10, "l2_bytes": 256 << 10}

# What one word stands for: the processors that are worth having kernels for in a library for all
# of an architecture. Code for cascadelake needs AVX-512 alone where it does not multiply bytes:
# Skylake servers and Zen 4 run it.
LEVELS: Mapping[str, tuple[str, ...]] = {
    "x86-64": ("x86-64-v2", "x86-64-v3", "cascadelake", "sapphirerapids")
}

CPU_OPTIONS: tuple[Option, ...] = (
    Option("mtriple", str, "machine, as arch-vendor-os[-environment]", default=DEFAULT),
    Option(
        "mcpu",
        str,
        "processor, in LLVM's spelling; a list: one library with kernels for each, which runs "
        "those of the last one whose features the processor has",
        repeatable=True,
    ),
    Option("mattr", list, "features added (+name) to or taken (-name) from the processor's own"),
    Option(
        "l1d_bytes",
        int,
        "first-level data cache of one core; not given: the least of mcpu, 32768 if unknown",
        1 << 10,
        1 << 30,
    ),
    Option(
        "l2_bytes",
        int,
        "second-level cache of one core; not given: the least of mcpu, 262144 if unknown",
        1 << 12,
        1 << 32,
    ),
    Option(
        "winograd",
        int,
        "largest Winograd tile: 4 as when not given, 2, or 0 for none",
        0,
        4,
        choices=(0, 2, 4),
    ),
    Option(
        "memory",
        MemoryPool,
        "pools of memory, fastest first: dicts of name, size (bytes, or '256K'), align (8, 16, 32, "
        "64) and kind (ram, flash); not given: one of any size",
    ),
    Option("gflops", int, "10^9 operations of float32 a second; not given: 50", 1, 10**9),
    Option("bandwidth", int, "10^9 bytes a second of its memory; not given: 20", 1, 10**6),
    Option(
        "precision",
        str,
        "of products: weights and their operands are rounded to it, sums are float32; not given: "
        "float32",
        choices=PRECISIONS,
    ),
    Option(
        "optimize",
        str,
        "what matters where both cannot be had: size keeps weights as small as the model's; not "
        "given: speed",
        choices=("speed", "size"),
    ),
    Option(
        "indices",
        str,
        "what is done where data has an index outside of its dimension: clamp takes the nearest "
        "inside; not given: check, by which the call fails",
        choices=("check", "clamp"),
    ),
    Option(
        "denormals",
        str,
        "numbers below the smallest normal one: flush takes them for 0 while a function of the "
        "library runs; not given: keep",
        choices=("keep", "flush"),
    ),
    Option("strassen", bool, "Strassen's algorithm for large products; not given: false"),
)


def known_of_cpu(values: Values) -> Values:
    """Return the cost parameters of targets that do not set them, for placing operators on
    devices."""
    return {"gflops": 50, "bandwidth": 20}


def canonical_cpu(values: Values, place: str) -> Values:
    """Return the values with a canonical triple, a checked processor (the baseline if none is
    given), its caches, and `mattr` as sorted differences from the processor's features. Raises
    UserError, also for Winograd's weights where they are to be small."""
    triple = canonical_triple(str(values["mtriple"]), f"{place}.mtriple")
    isa = ISAS[triple.split("-")[0]]
    mattr = values.get("mattr", ())
    assert isinstance(mattr, tuple)
    flag_texts = tuple(flag for flag in mattr if isinstance(flag, str))
    flags = _flags(isa, flag_texts, f"{place}.mattr")
    if values.get("optimize") == "size" and values.get("winograd"):
        message = f"winograd {values['winograd']} and optimize 'size'"
        raise contradiction(message, f"{place}.winograd", "its weights are larger: leave one out")
    if isinstance(values.get("mcpu"), tuple):
        return {**values, "mtriple": triple, **_canonical_levels(isa, values, flags, place)}
    cpu = str(values.get("mcpu") or "")
    if not cpu:
        cpu, flags = isa.baseline_cpu, (*isa.default_mattr, *flags)
    isa.check_cpu(cpu, f"{place}.mcpu")
    options = {**_caches(isa, cpu, values), **values}
    return {**options, "mtriple": triple, "mcpu": cpu, "mattr": isa.canonical_mattr(cpu, flags)}


def _canonical_levels(
    isa: Isa, values: Values, flags: tuple[str, ...], place: str
) -> Mapping[str, tuple[str, ...]]:
    """The processors of several levels, the least one first, and `mattr`, which all have.

    Raises UserError (code `contradiction`) unless the code of all others can use all that the least
    one has, and each has something of its own: a library chooses by features alone.
    """
    cpus = values["mcpu"]
    assert isinstance(cpus, tuple)
    codes: dict[str, frozenset[str]] = {}
    for cpu in cpus:
        assert isinstance(cpu, str)
        isa.check_cpu(cpu, f"{place}.mcpu")
        codes[cpu] = isa.generated(isa.apply(cpu, flags))
    levels = sorted(codes, key=lambda cpu: len(codes[cpu]))
    lowest = levels[0]
    for above, below in zip(levels[1:], levels, strict=False):
        missing = sorted(codes[lowest] - codes[above])
        if missing:
            message = f"{above!r} lacks {missing[0]!r}, which {lowest!r} has"
            hint = "the least level is what every processor must have that runs the library"
            raise contradiction(message, f"{place}.mcpu", hint)
        if codes[above] == codes[below]:
            message = f"code for {above!r} and {below!r} needs the same features"
            raise contradiction(message, f"{place}.mcpu", "keep one of them")
    return {"mcpu": tuple(levels), "mattr": tuple(sorted(dict.fromkeys(flags)))}


def canonical_one_cpu(values: Values, place: str) -> Values:
    """`canonical_cpu` for a kind whose code is for one processor. Raises UserError for several."""
    if isinstance(values.get("mcpu"), tuple):
        message = "several processors, and a kind whose code is for one"
        raise contradiction(message, f"{place}.mcpu", "kind 'llvm' makes libraries for several")
    return canonical_cpu(values, place)


def _caches(isa: Isa, cpu: str, values: Values) -> Values:
    """The cache sizes that `values` do not give: the smallest among the tagged machines with this
    processor."""
    missing = [name for name in _CACHES if name not in values]
    if not missing or cpu == isa.baseline_cpu or cpu.startswith("x86-64-"):
        return {name: _CACHES[name] for name in missing}
    return {name: TAGS.least(cpu, name) or _CACHES[name] for name in missing}


def _flags(isa: Isa, flags: tuple[str, ...], place: str) -> tuple[str, ...]:
    """Check that each entry of `mattr` is `+name` or `-name` with a known name, and that no entries
    contradict each other."""
    flag_of_name: dict[str, str] = {}
    for flag in flags:
        if flag[:1] not in ("+", "-") or not flag[1:]:
            raise UserError(
                f"{flag!r}: expected '+feature' or '-feature'",
                code="wrong-type",
                where=place,
                hint=_signed(flag, isa) or "for example '+avx2'",
            )
        isa.check_feature(flag[1:], place)
        if flag_of_name.setdefault(flag[1:], flag) != flag:
            raise contradiction(f"'+{flag[1:]}' and '-{flag[1:]}'", place, "keep one of them")
    _check_implied(isa, flags, place)
    return flags


def _signed(name: str, isa: Isa) -> str:
    return (
        nearest(f"+{name}", [f"+{feature}" for feature in isa.implied]) if name.strip("+-") else ""
    )


def _check_implied(isa: Isa, flags: tuple[str, ...], place: str) -> None:
    """Raise UserError for contradictions such as `+avx2,-avx`, where the first implies what the
    second removes, and for removing a feature that the calling convention needs."""
    minus = {flag[1:] for flag in flags if flag[0] == "-"}
    fixed = sorted(minus & isa.cpu_features(isa.baseline_cpu)) if isa.fixed_baseline else []
    if fixed:
        raise UserError(
            f"'-{fixed[0]}': every {isa.arch} has it and its calls need it",
            code="contradiction",
            where=place,
            hint=f"leave '-{fixed[0]}' out",
        )
    for flag in flags:
        if flag[0] == "+" and flag[1:] in isa.implied:
            clash = sorted(isa.closure([flag[1:]]) & minus)
            if clash:
                message = f"{flag!r} needs {clash[0]!r}, which '-{clash[0]}' takes away"
                raise contradiction(message, place, "keep one of them")
