"""`Target`: one validated description of what to compile for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from tensorkiln.target.isa import ISAS, Isa
from tensorkiln.target.parse import Fields, parse

_BITS = {"bool": 8, "bfloat16": 16}


@dataclass(frozen=True, slots=True, init=False)
class Target:
    """What to compile for. Frozen, hashable, equal by content.

    Made from canonical JSON text, a dict, the name of a kind (`"llvm"` is the baseline of x86-64),
    or `"native"` (this machine, with what was detected written in). `str(t)` is the canonical
    JSON and `Target(str(t)) == t`. Nothing in it depends on the machine unless `"native"` or
    `Target.host()` is asked for. Raises UserError for anything it does not know.
    """

    kind: str
    tag: str
    keys: tuple[str, ...]
    libs: tuple[str, ...]
    host: Target | None
    mtriple: str
    mcpu: str
    mattr: tuple[str, ...]
    l1d_bytes: int
    l2_bytes: int
    features: frozenset[str] = field(compare=False, repr=False)

    def __init__(self, spec: str | Mapping[str, object] | Target = "llvm"):
        fields = _fields_of(spec)
        host = None if fields.host is None else Target(fields.host)
        values: dict[str, object] = {
            name: getattr(fields, name) for name in _PLAIN if name != "host"
        }
        isa = ISAS[fields.mtriple.split("-")[0]]
        values["host"] = host
        values["features"] = isa.apply(fields.mcpu, fields.mattr)
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @classmethod
    def native(cls) -> Target:
        """This machine's CPU, with detected features and cache sizes written in."""
        return cls("native")

    # -- text ------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, object]:
        """The canonical fields as plain values, in canonical order."""
        out: dict[str, object] = {"kind": self.kind}
        if self.tag:
            out["tag"] = self.tag
        out["keys"] = list(self.keys)
        if self.libs:
            out["libs"] = list(self.libs)
        if self.host is not None:
            out["host"] = self.host.to_json()
        return out | self.attrs

    @property
    def attrs(self) -> dict[str, object]:
        """The kind's options, as plain values."""
        return {
            "l1d_bytes": self.l1d_bytes,
            "l2_bytes": self.l2_bytes,
            "mattr": list(self.mattr),
            "mcpu": self.mcpu,
            "mtriple": self.mtriple,
        }

    def __str__(self) -> str:
        return json.dumps(self.to_json(), separators=(",", ":"), ensure_ascii=True)

    def __reduce__(self) -> tuple[type[Target], tuple[str]]:
        return Target, (str(self),)

    # -- questions -------------------------------------------------------------------------------

    @property
    def arch(self) -> str:
        """`x86_64` or `aarch64`."""
        return self.mtriple.split("-")[0]

    @property
    def _isa(self) -> Isa:
        return ISAS[self.arch]

    def has(self, feature: str) -> bool:
        """Whether the CPU has `feature`; an unknown name is a UserError, not False."""
        self._isa.check_feature(feature, "Target.has")
        return feature in self.features

    @property
    def is_baseline(self) -> bool:
        """Whether this is the plain baseline of its architecture, which every such CPU runs."""
        return self.features == self._isa.cpu_features(self._isa.baseline_cpu)

    @property
    def required_features(self) -> tuple[str, ...]:
        """Features beyond the baseline that generated code may use; checked when it is loaded."""
        base = self._isa.cpu_features(self._isa.baseline_cpu)
        return tuple(sorted(self._isa.generated(self.features - base)))

    @property
    def llvm_features(self) -> str:
        """Every feature spelled out for LLVM, e.g. `+avx,+avx2,-avx512f,...`.

        Explicit in both directions, so that LLVM's own idea of the processor cannot add any.
        """
        known = sorted(self._isa.implied)
        flags = [f"{'+' if name in self.features else '-'}{name}" for name in known]
        flags += [flag for flag in self.mattr if flag[1:] in self._isa.tuning]
        return ",".join(flags)

    @property
    def vector_bytes(self) -> int:
        """Bytes of the widest vector register that kernels should use."""
        if self.arch != "x86_64":
            return 16
        if "avx512f" in self.features and "+prefer-256-bit" not in self.mattr:
            return 64
        return 32 if "avx2" in self.features else 16

    def vector_lanes(self, dtype: str) -> int:
        """Elements of `dtype` (`"float32"`, `"int8"`, ...) in one vector register."""
        digits = "".join(c for c in dtype.partition("_")[0] if c.isdigit())
        bits = _BITS.get(dtype) or int(digits or 0)
        if not bits:
            raise ValueError(f"no size known for dtype {dtype!r}")
        return self.vector_bytes * 8 // bits

    @property
    def num_vector_registers(self) -> int:
        """Architectural vector registers."""
        return 32 if self.arch == "aarch64" or "avx512f" in self.features else 16


_PLAIN = (
    "kind",
    "tag",
    "keys",
    "libs",
    "host",
    "mtriple",
    "mcpu",
    "mattr",
    "l1d_bytes",
    "l2_bytes",
)


def _fields_of(spec: str | Mapping[str, object] | Target) -> Fields:
    if isinstance(spec, Target):
        spec = spec.to_json()
    if spec == "native":
        from tensorkiln.target.host import describe_host  # needs llvmlite

        spec = describe_host()
    return parse(spec)
