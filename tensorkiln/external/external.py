"""`External`: a code generator of somebody else's that compiles a part of the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tensorkiln.artifact import Artifact, ArtifactSet, InMemoryArtifact
from tensorkiln.artifact.dependency import ExternalDependency, checked_libraries
from tensorkiln.base.errors import UserError
from tensorkiln.ir.relax import Call, Function
from tensorkiln.target import Target

Supports = Callable[[Call, Target], bool]
Emit = Callable[[Function, str], ArtifactSet | Sequence[Artifact | InMemoryArtifact]]


@dataclass(frozen=True, slots=True)
class External:
    """An external code generator.

    `supports(call, target)` says whether it takes a call of an operator. `emit(function, symbol)`
    gives artifacts. Those of loader `native`, C sources or relocatable objects, define

        void symbol(const T *param0, ..., T *result, int64_t dimension0, ...);

    for the parameters and the result of `function`, then its `symbols` in that order: row-major
    tensors aligned to their element, in memory the caller owns. It must be safe to call from
    several threads. Without any of them, the module that a loader makes of the others has a
    function `symbol` that takes the parameters and the result as tensors.

    `libraries` are further arguments of the linker (`"/path/libx.so"`, `"-L/path"`, `"-lx"`,
    `"-Wl,-rpath,/path"`), and `dependencies` where they come from. With `merge` neighbouring calls
    become one function; without it each call is one of its own.
    """

    name: str
    supports: Supports
    emit: Emit
    dependencies: tuple[ExternalDependency, ...] = ()
    libraries: tuple[str, ...] = ()
    merge: bool = True

    def __post_init__(self) -> None:
        """The name becomes part of C symbols and file names, libraries of a command."""
        if not self.name.isidentifier() or not self.name.isascii():
            raise UserError(
                f"an external's name is an identifier, not {self.name!r}", code="bad-external"
            )
        checked_libraries(self.libraries, f"external {self.name!r}")


def named(externals: Sequence[External]) -> dict[str, External]:
    """Externals by name; UserError when one is none, or two share a name."""
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
