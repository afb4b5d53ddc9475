"""What a compile was made from: the model by its hashes, the options, and the use of dependencies.

Both the IR, which keeps the hashes of an imported file, and metadata hold these. No path is in
them: equal inputs give equal bytes in every folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from tensorkiln.base.record import JsonKind, JsonRecord, json_key, one_of
from tensorkiln.base.schema import Reader

USES = {
    "embedded": "its code, or declarations of it, is compiled or linked in",
    "linked": "a shared library, which the system's loader or the program's linker must find",
    "opened": "opened when it is first needed (dlopen)",
    "host": "the program that calls provides it",
    "build": "needed to build, and not to run",
}


def _hashes(reader: Reader, key: str) -> tuple[tuple[str, str], ...]:
    return tuple((row.get("name", str), row.get("sha256", str)) for row in reader.rows(key))


@dataclass(frozen=True, slots=True)
class ModelSource(JsonRecord):
    """A model's hash. `kind` is `onnx`, whose `sha256` is that of the file's bytes, and `weights`
    those of the files of its external data that were read, by the names that the model has for
    them; `script`, that of a script's file; or `torch`, that of the text of the imported module
    (`mod.script()`), which has the hashes of large constants in it. A module that a caller made has
    none: what passes leave of it is a module, too, and both compile to equal bytes. `freeze` are
    the sizes that the import gave to symbolic dimensions; in metadata they are an option."""

    kind: str
    sha256: str
    weights: Annotated[tuple[tuple[str, str], ...], JsonKind(_hashes, {})] = ()
    freeze: tuple[tuple[str, int], ...] = field(default=(), metadata=json_key(hidden=True))

    _omits_defaults = True

    def to_json(self) -> dict[str, Any]:
        """The kind and the hashes."""
        rows = [{"name": name, "sha256": digest} for name, digest in self.weights]
        return JsonRecord.to_json(self) | ({"weights": rows} if rows else {})


@dataclass(frozen=True, slots=True)
class Use(JsonRecord):
    """How a dependency is used, by its `short_name`: one of USES, and `why`, the function, call or
    artifact that declares it."""

    short_name: str
    how: Annotated[str, one_of(USES)]
    why: str


@dataclass(frozen=True, slots=True)
class Origin(JsonRecord):
    """All that metadata says of where a library is from. `options` are those of `compile` that
    differ from their defaults, can change its bytes, and are not in the target, as JSON values."""

    model: ModelSource | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    uses: tuple[Use, ...] = ()

    _omits_defaults = True


NO_ORIGIN = Origin()


def sha256_of(data: bytes | memoryview) -> str:
    """The SHA-256 of bytes in hexadecimal."""
    return hashlib.sha256(data).hexdigest()
