"""Instruction sets: the features of each processor, and the features that a feature implies."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tensorkiln.base.errors import UserError, nearest
from tensorkiln.target import arm, arm32, riscv, wasm, x86
from tensorkiln.target.gpus import GPUS


@dataclass(frozen=True, slots=True)
class Isa:
    """One architecture: its processors, features and baseline.

    `cpus` maps a processor to the processor it includes and its further features
    (`"westmere +avx +xsave"`), `implied` a feature to the features it implies (`"avx f16c"`), and
    `not_generated` lists features that a library need not check.
    """

    arch: str
    cpus: dict[str, str]
    implied: dict[str, str]
    not_generated: str
    baseline_cpu: str
    tuning: tuple[str, ...] = ()  # accepted in mattr, but add no instructions
    fixed_baseline: bool = False  # the calling convention uses registers of the baseline features
    default_mattr: tuple[str, ...] = ()  # features if no processor is named
    detected: Mapping[str, str] = field(default_factory=dict)  # where the runtime finds features
    without_model: tuple[str, ...] = ()  # processors whose LLVM scheduling model is unusable
    abi: str = ""  # the calling convention of libraries, where LLVM's default is another one
    library_features: tuple[str, ...] = ()  # what code of every library may use
    can_flush: bool = False  # whether the runtime can have denormal numbers count as 0
    uses: Mapping[str, str] = field(default_factory=dict)  # what only certain programs use

    def check_cpu(self, name: str, place: str) -> None:
        """Raise UserError (code `unknown-cpu`) unless the architecture has a processor `name`."""
        if name not in self.cpus:
            hint = _elsewhere(name, "processor", {i.arch for i in ISAS.values() if name in i.cpus})
            raise UserError(
                f"unknown processor {name!r} for {self.arch}",
                code="unknown-cpu",
                where=place,
                hint=hint or nearest(name, self.cpus) or f"known: {', '.join(self.cpus)}",
            )

    def check_feature(self, name: str, place: str) -> None:
        """Raise UserError (code `unknown-feature`) unless the architecture has a feature or tuning
        flag `name`."""
        if name not in self.implied and name not in self.tuning:
            names = (*self.implied, *self.tuning)
            owners = {i.arch for i in ISAS.values() if name in (*i.implied, *i.tuning)}
            hint = _elsewhere(name, "feature", owners) or nearest(name, names)
            raise UserError(
                f"unknown feature {name!r} for {self.arch}",
                code="unknown-feature",
                where=place,
                hint=hint or f"known: {', '.join(self.implied)}",
            )

    def cpu_features(self, cpu: str) -> frozenset[str]:
        """Return all features of a processor, including those of the processors it includes."""
        features: set[str] = set()
        for word in self.cpus[cpu].split():
            features |= {word[1:]} if word.startswith("+") else self.cpu_features(word)
        return frozenset(features)

    def closure(self, features: Iterable[str]) -> frozenset[str]:
        """Return `features` and all features that they imply, transitively."""
        all_features: set[str] = set()
        todo = list(features)
        while todo:
            name = todo.pop()
            if name not in all_features:
                all_features.add(name)
                todo += self.implied[name].split()
        return frozenset(all_features)

    def without(self, features: frozenset[str], name: str) -> frozenset[str]:
        """Return `features` without `name` and without the features that imply it."""
        return frozenset(f for f in features if name not in _closure_of(self.arch, f))

    def apply(self, cpu: str, mattr: Iterable[str]) -> frozenset[str]:
        """Return the processor's features after `+name` and `-name` in order; tuning flags are
        ignored."""
        features = self.cpu_features(cpu)
        for flag in mattr:
            if flag[1:] in self.tuning:
                continue
            features = (
                features | self.closure([flag[1:]])
                if flag[0] == "+"
                else self.without(features, flag[1:])
            )
        return features

    def canonical_mattr(self, cpu: str, mattr: Iterable[str]) -> tuple[str, ...]:
        """Return the canonical list equivalent to `mattr`: the differences from the processor's own
        features, sorted by name. For x86-64 `+avx2` becomes `+avx`, `+avx2`, `+crc32`, ..."""
        flags = tuple(mattr)
        cpu_features, features = self.cpu_features(cpu), self.apply(cpu, flags)
        plus = [f"+{name}" for name in features - cpu_features]
        minus = [f"-{name}" for name in cpu_features - features]
        last = {flag[1:]: flag for flag in flags if flag[1:] in self.tuning}
        return tuple(sorted([*plus, *minus, *last.values()], key=lambda flag: flag[1:]))

    def used(self, features: frozenset[str], words: Collection[str]) -> frozenset[str]:
        """Return `features` without those that only programs with other `words` use, and without
        the features that imply them. `words` are types of values and scopes of buffers."""
        for name, users in self.uses.items():
            if name in features and not any(word in words for word in users.split()):
                features = self.without(features, name)
        return features

    def lacking(self, features: Collection[str]) -> tuple[str, ...]:
        """Return what a processor with `features` lacks of what code of every library may use."""
        return tuple(name for name in self.library_features if name not in features)

    def generated(self, features: Iterable[str]) -> frozenset[str]:
        """Return those of `features` that a library must check: without `not_generated`."""
        return frozenset(features) - set(self.not_generated.split())

    def places(self) -> dict[str, tuple[str, int]]:
        """Return where the runtime finds each feature that it can check, as (register, bit):
        `{"avx2": ("LEAF7_EBX", 5), ...}`."""
        bit_of_feature: dict[str, tuple[str, int]] = {}
        for register, bits in self.detected.items():
            for bit, name in (entry.split() for entry in bits.split(", ")):
                bit_of_feature[name] = (register, int(bit))
        return bit_of_feature

    def vector_bytes(self, features: frozenset[str], tuning: Iterable[str] = ()) -> int:
        """Return the size in bytes of the widest vector register that kernels should use; of a
        general-purpose register if there are no vectors."""
        if self.arch == "x86_64":
            if "avx512f" in features and "+prefer-256-bit" not in tuning:
                return 64
            return 32 if "avx2" in features else 16
        if self.arch.startswith("riscv"):
            sizes = [int(f[3:-1]) // 8 for f in features if f.startswith("zvl")]
            return max(sizes, default=int(self.arch[5:]) // 8)
        if self.arch == "aarch64" or features & {"neon", "mve", "simd128"}:
            return 16  # longer SVE vectors have no fixed size
        return 4

    def has_vectors(self, features: frozenset[str]) -> bool:
        """Return whether there are vector registers that kernels use. Those of MVE are not."""
        # From -O1 on, GCC 12 makes `m = x < y; (m & a) | (~m & b)` of floats, as in exp, a VPSEL
        # whose predicate has only the bits of lane 0 (a lone `bfi ..., #0, #4` before `vmsr p0`).
        # With masks made lane by lane results are right, but int8 keywords take 14.2 million
        # instructions instead of the 9.9 of scalars, and six times the code.
        if self.arch.startswith("riscv"):
            return any(f.startswith("zvl") for f in features)
        return self.fixed_baseline or bool(features & {"neon", "simd128"})

    def vector_registers(self, features: frozenset[str]) -> int:
        """Return the number of architectural vector registers; where there are none, of registers
        that hold a float."""
        if self.arch == "x86_64":
            return 32 if "avx512f" in features else 16
        if self.arch == "aarch64" or self.arch.startswith("riscv"):
            return 32
        if self.arch.startswith("thumb"):
            return 32 if "fpregs" in features else 8
        return 16

    @property
    def word_bits(self) -> int:
        """Return the size in bits of a general-purpose register."""
        if self.arch.startswith("riscv"):
            return int(self.arch[5:])
        return 64 if self.arch in ("x86_64", "aarch64", "wasm32") else 32

    def overwrites_operands(self, features: frozenset[str]) -> bool:
        """Whether vector arithmetic overwrites its first operand (SSE without AVX)."""
        return self.arch == "x86_64" and "avx" not in features

    @property
    def multiplies_by_lane(self) -> bool:
        """Whether a multiply-add can broadcast one lane of a register to all lanes of the other
        operand."""
        return self.arch == "aarch64"


def _elsewhere(name: str, noun: str, archs: Collection[str]) -> str:
    """Return a hint for a processor or feature name that belongs to another architecture or a GPU;
    empty if it belongs to none."""
    if name == "native":
        return "write the target 'native', which is this machine's processor"
    gpu = next((kind for kind, gpu_archs in GPUS.items() if name in gpu_archs), "")
    if gpu:
        return f'write {{"kind": "{gpu}", "arch": "{name}"}}'
    if not archs:
        return ""
    owners = [arch for arch in ISAS if arch in archs]
    return f"a {noun} of {', '.join(owners)}: write mtriple {example_triple(owners[0])!r}"


def example_triple(arch: str) -> str:
    """Return a typical triple of an architecture: `thumbv7em-none-eabi`, `aarch64-linux-gnu`."""
    if arch.startswith("thumb"):
        return f"{arch}-none-eabi"
    ends = {
        "armv6": "linux-gnueabihf",
        "armv7": "linux-gnueabihf",
        "riscv32": "unknown-none-elf",
        "wasm32": "unknown-unknown",
    }
    return f"{arch}-{ends.get(arch, 'linux-gnu')}"


def _each(rows: Mapping[str, str]) -> dict[str, str]:
    """Return a table with a row for each name, of one whose rows are for one or more names."""
    return {name: value for names, value in rows.items() for name in names.split()}


def _isa(
    arch: str,
    cpus: Mapping[str, str],
    implied: Mapping[str, str],
    *fields: Any,
    **named_fields: Any,
) -> Isa:
    return Isa(arch, _each(cpus), dict(sorted(_each(implied).items())), *fields, **named_fields)


def _arm32(arch: str) -> Isa:
    features = arm32.A_FEATURES if arch.startswith("arm") else arm32.M_FEATURES
    return _isa(arch, arm32.CPUS[arch], features, arm32.NOT_GENERATED, "generic")


def word_bits(arch: str) -> int:
    """Return the size in bits of a general-purpose register of an architecture; 64 for those of
    other devices, whose kernels no code generator of ours makes."""
    return ISAS[arch].word_bits if arch in ISAS else 64


ISAS: dict[str, Isa] = {
    "x86_64": _isa(
        "x86_64",
        x86.CPUS,
        x86.FEATURES,
        x86.NOT_GENERATED,
        "x86-64",
        tuning=("prefer-256-bit",),
        fixed_baseline=True,
        can_flush=True,
        detected=x86.DETECTED,
        uses=_each(x86.USES),
    ),
    "aarch64": _isa(
        "aarch64",
        arm.CPUS,
        arm.FEATURES,
        arm.NOT_GENERATED,
        "generic",
        fixed_baseline=True,
        can_flush=True,
        detected=arm.DETECTED,
        without_model=arm.WITHOUT_MODEL,
    ),
    **{arch: _arm32(arch) for arch in arm32.CPUS},
    "riscv64": _isa(
        "riscv64",
        riscv.CPUS_64,
        riscv.FEATURES,
        riscv.NOT_GENERATED,
        "generic-rv64",
        default_mattr=riscv.DEFAULT_64,
        detected=riscv.DETECTED,
        abi="lp64d",
        library_features=tuple(flag[1:] for flag in riscv.DEFAULT_64),
        uses=_each(riscv.USES),
    ),
    "riscv32": _isa("riscv32", riscv.CPUS_32, riscv.FEATURES, riscv.NOT_GENERATED, "generic-rv32"),
    "wasm32": _isa("wasm32", wasm.CPUS, wasm.FEATURES, wasm.NOT_GENERATED, "mvp"),
}


@cache
def _closure_of(arch: str, feature: str) -> frozenset[str]:
    return ISAS[arch].closure([feature])
