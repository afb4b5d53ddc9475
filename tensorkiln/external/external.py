"""`External`: a user's code generator, which compiles a part of the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tensorkiln.artifact import Artifact, ArtifactSet, InMemoryArtifact
from tensorkiln.artifact.dependency import ExternalDependency, checked_libraries
from tensorkiln.base.errors import UserError
from tensorkiln.base.plugin import bad_answer, plugin
from tensorkiln.ir.relax import Call, Function
from tensorkiln.target import Target

Supports = Callable[[Call, Target], bool]
Emit = Callable[[Function, str], ArtifactSet | Sequence[Artifact | InMemoryArtifact]]


@dataclass(frozen=True, slots=True)
class External:
    """An external code generator.

    `supports(call, target)` returns whether it compiles this call of an operator.
    `emit(function, symbol)` returns artifacts. Those of loader `native`, C sources or relocatable
    objects, define

        void symbol(const T *param0, ..., T *result, int64_t dimension0, ...);

    where the parameters and the result are those of `function`, and the dimensions its symbolic
    sizes (`tensorkiln.external.symbols(function)`), in that order. Tensors are row-major and
    aligned to their element size; the caller owns their memory. `symbol` must be safe to call from
    several threads. If there are no native artifacts, the module that a loader makes of the others
    must have a function `symbol` that takes the parameters and the result as tensors.

    `libraries` are further arguments of the linker (`"/path/libx.so"`, `"-L/path"`, `"-lx"`,
    `"-Wl,-rpath,/path"`), and `dependencies` say where they come from. With `merge`, a call whose
    result only one other supported call reads is compiled in that call's function; without it each
    call gets a function of its own.

    Raises UserError: code `bad-external` if `name` is not an ASCII identifier, `bad-library` for an
    invalid linker argument.
    """

    name: str
    supports: Supports
    emit: Emit
    dependencies: tuple[ExternalDependency, ...] = ()
    libraries: tuple[str, ...] = ()
    merge: bool = True

    def takes(self, call: Call, target: Target) -> bool:
        """Return the answer of `supports`. Raises UserError: code `bad-external` if that is not a
        bool, `plugin-failed` if it raises."""
        what = f"external {self.name!r}: supports({call.op})"
        with plugin(what):
            answer: object = self.supports(call, target)
        if not isinstance(answer, bool | np.bool_):
            raise bad_answer(what, answer, "True or False", "bad-external")
        return bool(answer)

    def __post_init__(self) -> None:
        """Check the name, which becomes part of C symbols and file names, and the libraries, which
        become part of a command."""
        if not self.name.isidentifier() or not self.name.isascii():
            raise UserError(
                f"an external's name is an identifier, not {self.name!r}", code="bad-external"
            )
        checked_libraries(self.libraries, f"external {self.name!r}")


def named(externals: Sequence[External]) -> dict[str, External]:
    """Return the externals by name. Raises UserError (code `bad-external`) if an element is not an
    External or two share a name."""
    by_name: dict[str, External] = {}
    for e in externals:
        given: object = e
        if not isinstance(given, External):
            raise UserError(
                f"externals: expected External, received {type(given).__name__}",
                code="bad-external",
            )
        if by_name.setdefault(e.name, e) is not e:
            raise UserError(f"two externals are named {e.name!r}", code="bad-external")
    return by_name
