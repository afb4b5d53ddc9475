"""Detection of this machine's processor, as the fields of a Target."""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import json
import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from tensorkiln.base.cache import key_of, user_cache
from tensorkiln.base.errors import UserError
from tensorkiln.base.machine import architecture, c_library, system_name
from tensorkiln.base.packages import require_package
from tensorkiln.target.isa import ISAS, Isa
from tensorkiln.target.triple import canonical_triple

_SYSTEMS = {"Linux": "unknown-linux-gnu", "Darwin": "apple-macos", "Windows": "pc-windows-gnu"}
# arch_prctl(ARCH_GET_XCOMP_SUPP, &mask), and the state of tiles in the mask: 17 and 18.
_ARCH_PRCTL, _SUPPORTED, _TILES = 158, 0x1021, 3 << 17
_PASSING = re.compile(r"cpu mhz|bogomips", re.IGNORECASE)  # lines that change while it runs


def host_triple() -> str:
    """Return this machine's triple. Raises UserError if its architecture or system is unknown."""
    system = _SYSTEMS.get(system_name(), f"unknown-{system_name().lower()}")
    if (c_library() or ("",))[0] == "musl":
        system = system.replace("gnu", "musl")
    machine = architecture().lower()
    try:
        return canonical_triple(f"{machine}-{system}")
    except UserError as error:
        message = f"this machine ({machine}, {system}) is not a supported target"
        raise UserError(message, hint=error.hint) from None


def describe_host() -> dict[str, object]:
    """Return the fields of an `llvm` target for this CPU: triple, processor, features, cache sizes.

    Raises UserError if the machine's architecture or system is unknown.
    """
    triple = host_triple()
    isa = ISAS[triple.split("-")[0]]
    cpu, present = _processor()
    cpu = _model(isa, cpu, present)
    tiles = {name for name in present if name.startswith("amx")}
    if tiles and not system_has_tiles():
        present = [name for name in present if name not in tiles]
    fields: dict[str, object] = {
        "kind": "llvm",
        "mtriple": triple,
        **processor_fields(isa, cpu, present),
    }
    for level, name in ((1, "l1d_bytes"), (2, "l2_bytes")):
        size = cache_bytes(level)
        if size:
            fields[name] = size
    return fields


def system_has_tiles() -> bool:
    """Whether the system keeps the tiles of AMX for processes that ask for them (Linux 5.16 and
    newer): only asks whether, since asking for them is for good."""
    if system_name() != "Linux" or architecture().lower() not in ("x86_64", "amd64"):
        return False
    mask = ctypes.c_uint64(0)
    with suppress(AttributeError, OSError):  # no C library that has it
        answer = ctypes.CDLL(None).syscall(_ARCH_PRCTL, _SUPPORTED, ctypes.byref(mask))
        return bool(answer == 0 and mask.value & _TILES == _TILES)
    return False


def _processor() -> tuple[str, list[str]]:
    """Return LLVM's name of the processor, and the features that LLVM detects.

    Kept in the cache if the system describes the processor, since loading LLVM takes as long as a
    small compile.
    """
    key = _processor_key()
    cache = user_cache() if key is not None else None
    content = cache.get(key_of(key)) if cache is not None and key is not None else None
    if content is not None:
        name, features = json.loads(content)
        return name, features
    require_package("llvmlite", "target 'native'", "name a processor, as in docs/targets.md")
    import llvmlite.binding as llvm

    name = llvm.get_host_cpu_name()
    features = [name for name, on in llvm.get_host_cpu_features().items() if on]
    if cache is not None and key is not None:
        cache.put(key_of(key), json.dumps([name, features]).encode(), key)
    return name, features


def _processor_key(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, str] | None:
    """Return the components of the cache key: the entry of the first processor in /proc/cpuinfo
    without its changing lines, and size and modification time of llvmlite's `__init__.py`. None if
    either is missing."""
    spec = importlib.util.find_spec("llvmlite")
    try:
        llvm = Path(spec.origin).stat() if spec is not None and spec.origin else None
        with cpuinfo.open() as lines:
            first = list(itertools.takewhile(str.strip, lines))
    except OSError:
        return None
    if llvm is None or not first:
        return None
    words = "".join(line for line in first if not _PASSING.match(line))
    return {"kind": "processor", "cpuinfo": words, "llvm": f"{llvm.st_size} {llvm.st_mtime_ns}"}


def processor_fields(isa: Isa, cpu: str, present: Iterable[str]) -> dict[str, object]:
    """Return `mcpu` and `mattr` for processor `cpu` with the features `present`.

    Features of `cpu` that are not present are listed as `-name`: a virtual machine can hide
    features of its processor. An unknown processor becomes the baseline plus its features.
    """
    name = cpu if cpu in isa.cpus else isa.baseline_cpu
    cpu_features = isa.cpu_features(name)
    base = isa.cpu_features(isa.baseline_cpu)
    detected_features = set(present)
    isa_features = (detected_features & set(isa.implied)) | base
    closed_features = {
        feature for feature in isa_features if isa.closure([feature]) <= isa_features
    } - base
    plus = [f"+{feature}" for feature in sorted(closed_features)]
    # Some systems report no features at all; then those of the processor's model are assumed.
    minus = (
        [f"-{feature}" for feature in sorted(cpu_features - closed_features - base)]
        if detected_features
        else []
    )
    return {"mcpu": name, "mattr": [*plus, *minus]}


def _model(isa: Isa, cpu: str, present: Collection[str]) -> str:
    """Return `cpu`, or that processor of its maker which has all its features and fits the features
    `present` better.

    LLVM names a processor by its family and model, of which a virtual machine can show another
    number: one with AMX was a Rocket Lake. What generated code can use counts first.
    """
    isa_features = frozenset(present) & frozenset(isa.implied)
    if not isa_features or cpu not in isa.cpus:
        return cpu
    cpu_features = isa.cpu_features(cpu)

    def misfit(name: str) -> tuple[int, int]:
        differences = isa.cpu_features(name) ^ isa_features
        return len(isa.generated(differences)), len(differences)

    later = [
        name
        for name in isa.cpus
        if (features := isa.cpu_features(name)) > cpu_features
        and ("sse4a" in features) == ("sse4a" in cpu_features)  # only AMD's have it
    ]
    return min([cpu, *later], key=misfit)


def cache_bytes(level: int, root: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Return the size in bytes of the data or unified cache of `level`, or 0 if unknown."""
    for index in sorted(root.glob("index*")):
        with suppress(OSError, ValueError):
            kind = (index / "type").read_text().strip()
            if kind in ("Data", "Unified") and int((index / "level").read_text()) == level:
                text = (index / "size").read_text().strip()
                unit = {"K": 10, "M": 20}.get(text[-1])
                return int(text) if unit is None else int(text[:-1]) << unit
    return 0
