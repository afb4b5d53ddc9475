"""`External`: a user's code generator, which compiles a part of the graph."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tensorkiln.artifact import Artifact, ArtifactSet, InMemoryArtifact
from tensorkiln.artifact.dependency import checked_libraries, merge_dependencies
from tensorkiln.base.dependency import ExternalDependency, checked_dependencies
from tensorkiln.base.errors import UserError
from tensorkiln.base.plugin import bad_answer, plugin
from tensorkiln.external.match import Match, Refused
from tensorkiln.ir.relax import Call, Function
from tensorkiln.target import HOST, Target, device_named

Supports = Callable[[Call, Target], bool | Refused]
Dependencies = Callable[[Function], Sequence[ExternalDependency]]
Emit = Callable[[Function, str], ArtifactSet | Sequence[Artifact | InMemoryArtifact]]


# C keeps names that begin with an underscore, and a kernel's name is a part of names of files.
_NAME = re.compile("[A-Za-z][A-Za-z0-9_]{0,63}")


def _shown(name: str) -> str:
    return repr(name) if len(name) <= 80 else f"{name[:77]!r}... ({len(name)} characters)"


@dataclass(frozen=True, slots=True)
class External:
    """An external code generator.

    `supports(call, target)` returns whether it compiles this call of an operator, or, for one that
    it has code for and does not compile, `Refused` with the reason.
    `emit(function, symbol)` returns artifacts. Those of loader `native`, C sources or relocatable
    objects, define

        void symbol(const T *param0, ..., T *result, int64_t dimension0, ...);

    where the parameters and the result are those of `function`, and the dimensions its symbolic
    sizes (`tensorkiln.external.symbols(function)`), in that order. Tensors are row-major and
    aligned to their element size; the caller owns their memory. `symbol` must be safe to call from
    several threads. If there are no native artifacts, the module that a loader makes of the others
    must have a function `symbol` that takes the parameters and the result as tensors.

    `libraries` are further arguments of the linker (`"/path/libx.so"`, `"-L/path"`, `"-lx"`,
    `"-Wl,-rpath,/path"`), and `dependencies` say where they come from: a tuple, or a function of
    the compiled Function that returns one. With `merge`, a call whose
    result only one other supported call reads is compiled in that call's function; without it each
    call gets a function of its own. With `fallible` the code may pass a reason to
    `kiln_assertion_failed(const char *)` and return; the run then ends with that message.

    `match` takes several operators of the model as one, before they are canonicalised
    (`external/match.py`), or says why it refuses one. `device` and `target` are set by `of_device`.

    Raises UserError: code `bad-external` if `name` is not an ASCII identifier, `bad-library` for an
    invalid linker argument.
    """

    name: str
    supports: Supports
    emit: Emit
    dependencies: tuple[ExternalDependency, ...] | Dependencies = ()
    libraries: tuple[str, ...] = ()
    merge: bool = True
    fallible: bool = False
    match: Match | None = None
    device: str = ""
    target: Target | None = None

    def of_device(self, key: str, target: Target) -> External:
        """A copy bound to the device of a composite with this target key: `supports` is asked about
        that device, and artifacts get the key."""
        return replace(self, name=f"{self.name}_{key}", device=key, target=target)

    def takes(self, call: Call, target: Target) -> bool | Refused:
        """Return the answer of `supports`; False for an operator that its device does not name.
        Raises UserError: code `bad-external` if that is not a bool or `Refused`, `plugin-failed` if
        it raises."""
        if not self.may_take(call):
            return False
        label = f"external {self.name!r}: supports({call.op})"
        with plugin(label):
            answer: object = self.supports(call, self.target or target)
        if not isinstance(answer, bool | np.bool_ | Refused):
            raise bad_answer(label, answer, "True, False or Refused", "bad-external")
        return answer if isinstance(answer, Refused) else bool(answer)

    def may_take(self, call: Call) -> bool:
        """Whether its device may compute the operator: a device can list the operators that it
        computes. True for an external without a device."""
        operators = self.target.operators if self.target is not None else ()
        return not operators or call.op in operators

    def may_take_of(self, f: Function, target: Target) -> bool:
        """Whether it may compile operators of this function. A function's attribute `target` may
        name a device; then only externals of that device may, or, if it names the host, externals
        without a device."""
        named = device_named(f.attrs.get("target"), target, f.name)
        return not named or self.device == ("" if named == HOST else named)

    def dependencies_of(self, f: Function) -> tuple[ExternalDependency, ...]:
        """The dependencies of the code for one function. Raises UserError: code `bad-external` if a
        function `dependencies` returns anything but a list of them, `plugin-failed` if it
        raises."""
        if isinstance(self.dependencies, tuple):
            return self.dependencies
        label = f"external {self.name!r}: dependencies({f.name})"
        with plugin(label):
            answer: object = self.dependencies(f)
        return checked_dependencies(answer, label, "bad-external")

    def get_external_dependencies(self, *functions: Function) -> tuple[ExternalDependency, ...]:
        """The dependencies of the code for these functions, each once, sorted by name. Raises
        UserError as `dependencies_of`, and `dependency-clash` if two of one name differ."""
        declared = [(f"function {f.name!r}", d) for f in functions for d in self.dependencies_of(f)]
        if isinstance(self.dependencies, tuple):
            declared = [(f"external {self.name!r}", d) for d in self.dependencies]
        return merge_dependencies(declared)

    def __post_init__(self) -> None:
        """Check the name, which becomes part of C symbols and file names, the libraries, which
        become part of a command, and the dependencies."""
        if not _NAME.fullmatch(self.name) or self.name.partition("_")[0] == "kiln":
            raise UserError(
                f"an external's name is not {_shown(self.name)}, but a letter and at most 63 "
                "letters, digits and underscores",
                code="bad-external",
                hint="'kiln' and 'kiln_...' are the library's own",
            )
        checked_libraries(self.libraries, f"external {self.name!r}")
        if not callable(self.dependencies):
            dependencies = checked_dependencies(self.dependencies, f"external {self.name!r}")
            object.__setattr__(self, "dependencies", dependencies)


def named(externals: Sequence[External]) -> dict[str, External]:
    """Return the externals by name. Raises UserError (code `bad-external`) if an element is not an
    External or two share a name."""
    by_name: dict[str, External] = {}
    for e in externals:
        element: object = e
        if not isinstance(element, External):
            raise UserError(
                f"externals: expected External, received {type(element).__name__}",
                code="bad-external",
            )
        if by_name.setdefault(e.name, e) is not e:
            raise UserError(f"two externals are named {e.name!r}", code="bad-external")
    return by_name
