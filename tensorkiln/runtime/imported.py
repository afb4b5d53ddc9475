"""Modules that loaders make: functions by name, and the modules that these import."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorkiln.artifact import LoaderGroup
from tensorkiln.artifact.dependency import merge_dependencies
from tensorkiln.base.dependency import ExternalDependency, checked_dependencies
from tensorkiln.base.errors import UserError, nearest
from tensorkiln.base.plugin import bad_answer, plugin
from tensorkiln.runtime.actual_types import name_bytes
from tensorkiln.runtime.failures import FunctionLookupError
from tensorkiln.runtime.module import Module
from tensorkiln.runtime.native import NativeLibrary, Value
from tensorkiln.runtime.numbers import TENSOR, UINT, out_of_range, put_number
from tensorkiln.runtime.tensor import view_of

_ASKED = "get_external_dependencies"


class ImportedModule(ABC):
    """A module that a loader made from a group of artifacts: functions by name."""

    def __init__(self, group: LoaderGroup):
        self.group = group
        self.imports: list[ImportedModule] = []
        # The root library; weak, so that a module does not keep it loaded.
        self.root: Callable[[], Module | None] = lambda: None

    @property
    def kind(self) -> str:
        """The loader's name."""
        return self.group.loader

    @property
    def type_key(self) -> str:
        """The same as `kind`."""
        return self.group.loader

    @property
    def imported_modules(self) -> list[ImportedModule]:
        """The same as `imports`."""
        return self.imports

    @abstractmethod
    def own(self, name: str) -> Callable[..., Any] | None:
        """This module's function of that name, if it has it; imports are not searched."""

    def names(self) -> tuple[str, ...]:
        """Names of its own functions; empty if they are unknown."""
        return ()

    def own_dependencies(self) -> tuple[ExternalDependency, ...]:
        """The software that this module itself needs, if it can tell."""
        return ()

    def get_external_dependencies(self) -> tuple[ExternalDependency, ...]:
        """The software that this module and its imports need, each once, sorted by name. Raises
        UserError (code `dependency-clash`) if two of one name differ."""
        return merge_dependencies(
            [(repr(m), d) for m in self.below() for d in m.own_dependencies()]
        )

    def below(self) -> Iterator[ImportedModule]:
        """This module and its direct and indirect imports, breadth-first, each once."""
        queue, visited_ids = [self], {id(self)}
        for module in queue:
            yield module
            new = [m for m in module.imports if id(m) not in visited_ids]
            visited_ids.update(map(id, new))
            queue.extend(new)

    def __getitem__(self, name: str) -> Callable[..., Any]:
        """A function of this module, else of its imports; FunctionLookupError if there is none."""
        name_bytes(name, "the name of a function")
        for module in self.below():
            function = module.own(name)
            if function is not None:
                return function
        names = [n for module in self.below() for n in module.names()]
        raise FunctionLookupError(
            f"no function {name!r} in the module of loader {self.group}",
            code="no-function",
            hint=nearest(name, names) or ", ".join(names[:8]),
        )

    def __repr__(self) -> str:
        """The loader and target key."""
        return f"<module of loader {self.group}>"


class PythonModule(ImportedModule):
    """A module made by a Python loader."""

    def __init__(self, group: LoaderGroup, answer: Any, file_name: str):
        super().__init__(group)
        self._answer = answer
        if callable(answer) and not hasattr(answer, "__getitem__"):
            self._answer = {Path(file_name).stem: answer}
        no_names = isinstance(answer, str | bytes | list | tuple)
        if no_names or not hasattr(self._answer, "__getitem__"):
            expected = "functions by name, as a dict, or one function"
            raise bad_answer(f"loader {group}", answer, expected, "bad-loader")

    def own(self, name: str) -> Callable[..., Any] | None:
        """The function of that name, or None; UserError if it is not callable."""
        with plugin(f"module of loader {self.group}: looking for {name!r}"):
            try:
                function = self._answer[name]
            except LookupError:
                return None
        if not callable(function):
            raise UserError(f"{name!r} of loader {self.group} is not callable", code="bad-loader")
        return function  # type: ignore[no-any-return]

    def own_dependencies(self) -> tuple[ExternalDependency, ...]:
        """What a function `get_external_dependencies` of the module returns, be it an attribute or
        found by that name; none without it. UserError (code `bad-loader`) for anything else."""
        ask = getattr(self._answer, _ASKED, None) or self.own(_ASKED)
        if ask is None:
            return ()
        label = f"{_ASKED} of loader {self.group}"
        with plugin(label):
            answer: object = ask()
        return checked_dependencies(answer, label, "bad-loader")

    def names(self) -> tuple[str, ...]:
        """The keys of a mapping; empty for other objects."""
        return tuple(map(str, self._answer)) if isinstance(self._answer, Mapping) else ()


class NativeModule(ImportedModule):
    """A module of a loader in C. Functions are looked up when they are called, so `own` returns one
    for any name, and a call may raise FunctionLookupError."""

    def __init__(self, group: LoaderGroup, library: NativeLibrary):
        super().__init__(group)
        self._library = library

    def own(self, name: str) -> Callable[..., Any]:
        """A function that looks up and calls the loader's function `name`."""
        return lambda *arguments: self._call(name, arguments)

    def _call(self, name: str, arguments: Sequence[object]) -> None:
        values, owners = (Value * max(1, len(arguments)))(), []
        for i, argument in enumerate(arguments):
            label = f"{name}: argument {i}"
            if put_number(values[i], argument, label):
                if values[i].kind == UINT:
                    raise out_of_range(label, "int64", argument)
            else:
                address, owner = view_of(argument, label, writable=False)
                values[i].kind, values[i].payload.pointer = TENSOR, address
                owners.append(owner)
        result, library = Value(), self._library
        loader, key = self.group.loader.encode(), self.group.target_key.encode()
        with library.using:
            call = library.dll.kiln_call_import
            library.check(
                call(loader, key, name.encode(), values, len(arguments), ctypes.byref(result))
            )
