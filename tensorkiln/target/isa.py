"""Instruction sets: which features a processor has and which a feature implies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tensorkiln.base.errors import UserError, nearest
from tensorkiln.target import arm, x86


@dataclass(frozen=True, slots=True)
class Isa:
    """One architecture: its processors, features, baseline, and defaults for caches."""

    arch: str
    cpus: dict[str, str]
    implied: dict[str, str]
    not_generated: str
    baseline_cpu: str
    tuning: tuple[str, ...]  # accepted in mattr, no instructions of their own

    def check_cpu(self, name: str, where: str) -> None:
        """Raise UserError (code `unknown-cpu`) unless `name` is a processor here."""
        if name not in self.cpus:
            hint = nearest(name, self.cpus) or f"known: {', '.join(self.cpus)}"
            raise UserError(
                f"unknown processor {name!r} for {self.arch}",
                code="unknown-cpu",
                where=where,
                hint=hint,
            )

    def check_feature(self, name: str, where: str) -> None:
        """Raise UserError (code `unknown-feature`) unless `name` is a feature here."""
        if name not in self.implied and name not in self.tuning:
            hint = nearest(name, (*self.implied, *self.tuning))
            raise UserError(
                f"unknown feature {name!r} for {self.arch}",
                code="unknown-feature",
                where=where,
                hint=hint or f"known: {', '.join(self.implied)}",
            )

    def cpu_features(self, cpu: str) -> frozenset[str]:
        """Everything a processor has, following its row to the first one."""
        found: set[str] = set()
        for word in self.cpus[cpu].split():
            found |= {word[1:]} if word.startswith("+") else self.cpu_features(word)
        return frozenset(found)

    def closure(self, features: Iterable[str]) -> frozenset[str]:
        """`features` and all they imply."""
        found: set[str] = set()
        todo = list(features)
        while todo:
            name = todo.pop()
            if name not in found:
                found.add(name)
                todo += self.implied[name].split()
        return frozenset(found)

    def without(self, features: frozenset[str], name: str) -> frozenset[str]:
        """`features` less `name` and less what cannot be there without it."""
        return frozenset(f for f in features if name not in self.closure([f]))

    def apply(self, cpu: str, mattr: Iterable[str]) -> frozenset[str]:
        """The processor's features after `+name` and `-name` in order (tuning flags skipped)."""
        found = self.cpu_features(cpu)
        for flag in mattr:
            if flag[1:] in self.tuning:
                continue
            found = (
                found | self.closure([flag[1:]])
                if flag[0] == "+"
                else self.without(found, flag[1:])
            )
        return found

    def canonical_mattr(self, cpu: str, mattr: Iterable[str]) -> tuple[str, ...]:
        """The one list that says the same as `mattr`: sorted differences from the processor."""
        flags = tuple(mattr)
        own, wanted = self.cpu_features(cpu), self.apply(cpu, flags)
        plus = [f"+{name}" for name in wanted - own]
        minus = [f"-{name}" for name in own - wanted]
        last = {flag[1:]: flag for flag in flags if flag[1:] in self.tuning}
        return tuple(sorted([*plus, *minus, *last.values()], key=lambda flag: flag[1:]))

    def generated(self, features: Iterable[str]) -> frozenset[str]:
        """Those of `features` that generated code can come to depend on."""
        return frozenset(features) - set(self.not_generated.split())


ISAS: dict[str, Isa] = {
    "x86_64": Isa(
        "x86_64", x86.CPUS, x86.FEATURES, x86.NOT_GENERATED, "x86-64", ("prefer-256-bit",)
    ),
    "aarch64": Isa("aarch64", arm.CPUS, arm.FEATURES, arm.NOT_GENERATED, "generic", ()),
}
