"""`write_stripped`: objects, C and a header, for programs that manage memory themselves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tensorkiln.artifact.artifact import Content, content_size
from tensorkiln.base.errors import UserError
from tensorkiln.base.files import atomic_dir
from tensorkiln.link.rename import rename_symbols
from tensorkiln.link.toolchain import linux_arch
from tensorkiln.link.weights_object import write_weights_object

MARK = "kernels"  # the folder of the objects: a former export is known by it


def write_stripped(
    folder: str | Path,
    *,
    texts: Mapping[str, str],
    objects: Mapping[str, bytes | memoryview],
    sources: Mapping[str, str],
    symbols: Mapping[str, str],
    weights: Content | None,
    weights_symbol: str,
    triple: str,
) -> Path:
    """Write the folder, whole or not at all, and return its path.

    `texts` are written as they are; in `objects` and C `sources`, which go to `kernels/`, each of
    `symbols` gets its other name. Raises UserError for a folder that holds something else.
    """
    target = Path(folder)
    arch = linux_arch(triple)
    if target.is_dir() and any(target.iterdir()) and not (target / MARK).is_dir():
        raise UserError(
            f"{str(target)!r} holds other files",
            code="cannot-write",
            hint="name a folder that is new, empty, or was written by export_stripped()",
        )
    with atomic_dir(target) as temporary:
        kernels = temporary / MARK
        kernels.mkdir()
        for name, text in texts.items():
            (temporary / name).write_text(text)
        for name, data in objects.items():
            (kernels / name).write_bytes(rename_symbols(data, symbols))
        defines = "".join(f"#define {old} {new}\n" for old, new in symbols.items())
        for name, text in sources.items():
            (kernels / name).write_text(f"{defines}\n{text}")
        if weights is not None and content_size(weights):
            write_weights_object(kernels / "weights.o", weights, arch, weights_symbol)
    return target
