"""Passes of one device of a composite, which run on its functions alone: what hooks return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import cast

from tensorkiln.base.errors import UserError
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.module import AnyFunction, IRModule
from tensorkiln.ir.relax import Function
from tensorkiln.passes.step import Pass, pass_name

# What a function has as a part of another; the pass sees a module of functions of their own.
_OF_PART = ("part", "private", "target")


@dataclass(frozen=True, slots=True)
class OfDevice:
    """A pass that sees only the functions of the device `key`: its parts of graph functions, its
    fused groups and tensor programs, and the functions of its externals. `externals` are the names
    of these in a module of this device alone, with those in the composite's. What the pass adds is
    the device's, too.

        conv (a), softmax (b), main   ->   step(conv), softmax (b), main      OfDevice("a", step)

    Raises UserError (code `bad-pass`) for a pass that removes a function that others call, or adds
    one whose name the module has already.
    """

    key: str
    step: Pass
    externals: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def __name__(self) -> str:
        return f"{pass_name(self.step)}[{self.key}]"

    @property
    def __wrapped__(self) -> Pass:
        """The pass itself, whose author decides whose fault an error is."""
        return self.step

    def __call__(self, mod: IRModule) -> IRModule:
        """The module with what the pass makes of the device's functions in their place."""
        named = {new: old for old, new in self.externals.items()}
        device_functions = {f.name: f for f in mod.functions if self._is_own(f, named)}
        alone = {name: _alone(f, named) for name, f in device_functions.items()}
        before = mod.with_functions(tuple(alone.values()))
        after: object = self.step(before)
        if not isinstance(after, IRModule):
            return cast(IRModule, after)  # the runner refuses it
        if after is before:
            return mod
        new_functions = {
            f.name: self._back(f, device_functions.get(f.name), alone.get(f.name))
            for f in after.functions
        }
        self._require_names(mod, device_functions, new_functions)
        functions = [new_functions.pop(f.name, f) for f in mod.functions]
        return mod.with_functions((*functions, *new_functions.values()))

    def _is_own(self, f: AnyFunction, named: Mapping[str, str]) -> bool:
        if isinstance(f, Function):
            if f.external:
                return f.external in named
            if not f.attrs.get("part", False) and not f.is_primitive:
                return False
        return f.attrs.get("target") == self.key

    def _back(
        self, f: AnyFunction, was: AnyFunction | None, before: AnyFunction | None
    ) -> AnyFunction:
        """A function of the device as it is in the whole module."""
        if was is not None and f is before:
            return was
        part_attrs = (
            {k: was.attrs[k] for k in _OF_PART if k in was.attrs} if was is not None else {}
        )
        attrs = {**f.attrs, "target": self.key, **part_attrs}
        if isinstance(f, Function) and f.external:
            attrs = {**f.attrs, "external": self.externals.get(f.external, f.external)}
        return replace(f, attrs=Attrs.of(**attrs))

    def _require_names(
        self,
        mod: IRModule,
        device_functions: Mapping[str, AnyFunction],
        new_functions: Mapping[str, AnyFunction],
    ) -> None:
        clash = next(
            (name for name in new_functions if name in mod and name not in device_functions), None
        )
        if clash is not None:
            raise UserError(
                f"it adds {clash!r}, a name that a function outside of device {self.key!r} has",
                code="bad-pass",
                where=self.__name__,
                hint=f"such as '{clash}_{self.key}'",
            )
        absentee = next((name for name in device_functions if name not in new_functions), None)
        if absentee is not None:
            raise UserError(
                f"it removes {absentee!r}, which functions outside of device {self.key!r} call",
                code="bad-pass",
                where=self.__name__,
                hint="return it, changed or not",
            )


def _alone(f: AnyFunction, named: Mapping[str, str]) -> AnyFunction:
    """A function of the device as one of a module for the device alone."""
    if isinstance(f, Function) and f.external:
        return replace(f, attrs=Attrs.of(**{**f.attrs, "external": named[f.external]}))
    return replace(f, attrs=Attrs.of(**{k: v for k, v in f.attrs.items() if k not in _OF_PART}))


@dataclass(frozen=True, slots=True)
class OfOthers:
    """A pass that changes one tensor program at a time, and does not see those of the devices
    `keys`, whose kinds bring passes of their own."""

    keys: tuple[str, ...]
    step: Pass

    @property
    def __name__(self) -> str:
        return pass_name(self.step)

    def __call__(self, mod: IRModule) -> IRModule:
        """The module with what the pass makes of all other functions."""
        hidden = {f.name for f in mod.functions if self._is_hidden(f)}
        if not hidden:
            return self.step(mod)
        before = mod.with_functions(tuple(f for f in mod.functions if f.name not in hidden))
        after = self.step(before)
        if after is before:
            return mod
        new_functions = dict(after.items())
        members = [
            new_functions.pop(f.name, f)
            for f in mod.functions
            if f.name in hidden or f.name in new_functions
        ]
        whole = mod.with_functions((*members, *new_functions.values()))
        return replace(whole, kernel_keys={**whole.kernel_keys, **after.kernel_keys})

    def _is_hidden(self, f: AnyFunction) -> bool:
        return not isinstance(f, Function) and f.attrs.get("target") in self.keys


__all__ = ["OfDevice", "OfOthers"]
