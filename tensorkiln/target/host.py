"""What this machine is, written down as a Target. The only place that looks at the machine."""

from __future__ import annotations

import importlib.util
import itertools
import json
import platform
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tensorkiln.base.cache import key_of, user_cache
from tensorkiln.base.errors import UserError
from tensorkiln.target.isa import ISAS, Isa
from tensorkiln.target.triple import canonical_triple

_SYSTEMS = {"Linux": "unknown-linux-gnu", "Darwin": "apple-macos", "Windows": "pc-windows-gnu"}
_PASSING = re.compile(r"cpu mhz|bogomips", re.IGNORECASE)


def host_triple() -> str:
    """This machine's triple. Raises UserError where it is none we know."""
    system = _SYSTEMS.get(platform.system(), f"unknown-{platform.system().lower()}")
    machine = platform.machine().lower()
    try:
        return canonical_triple(f"{machine}-{system}")
    except UserError as error:
        message = f"this machine ({machine}, {system}) is no target"
        raise UserError(message, hint=error.hint) from None


def describe_host() -> dict[str, object]:
    """The fields of a `llvm` target for this CPU: processor, features, cache sizes.

    Raises UserError when the machine's architecture is none we compile for.
    """
    triple = host_triple()
    isa = ISAS[triple.split("-")[0]]
    cpu, present = _processor()
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


def _processor() -> tuple[str, list[str]]:
    """LLVM's name of the processor, and the features that it finds. They are kept per processor
    and LLVM, as far as the system describes it: to load LLVM takes as long as a small compile."""
    known = _processor_key()
    cache = user_cache() if known is not None else None
    found = cache.get(key_of(known)) if cache is not None and known is not None else None
    if found is not None:
        name, features = json.loads(found)
        return name, features
    import llvmlite.binding as llvm

    name = llvm.get_host_cpu_name()
    features = [name for name, on in llvm.get_host_cpu_features().items() if on]
    if cache is not None and known is not None:
        cache.put(key_of(known), json.dumps([name, features]).encode(), known)
    return name, features


def _processor_key(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, str] | None:
    """What decides about the answer: the system's words on the first processor but for those that
    change while it runs, and which LLVM is asked. None where the system says nothing."""
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
    """`mcpu` and `mattr` for a processor that has the features `present`.

    A virtual machine can hide features of its processor, so what is not present is taken away.
    """
    name = cpu if cpu in isa.cpus else isa.baseline_cpu
    own = isa.cpu_features(name)
    base = isa.cpu_features(isa.baseline_cpu)
    seen = set(present)
    known = (seen & set(isa.implied)) | base
    found = {feature for feature in known if isa.closure([feature]) <= known} - base
    plus = [f"+{feature}" for feature in sorted(found)]
    # Some systems do not tell features; then the processor's own are all there is to go by.
    minus = [f"-{feature}" for feature in sorted(own - found - base)] if seen else []
    return {"mcpu": name, "mattr": [*plus, *minus]}


def cache_bytes(level: int, root: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Size of the data cache of `level`, or 0 when the system does not say."""
    for index in sorted(root.glob("index*")):
        with suppress(OSError, ValueError):
            kind = (index / "type").read_text().strip()
            if kind in ("Data", "Unified") and int((index / "level").read_text()) == level:
                text = (index / "size").read_text().strip()
                unit = {"K": 10, "M": 20}.get(text[-1])
                return int(text) if unit is None else int(text[:-1]) << unit
    return 0
