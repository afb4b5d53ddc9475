"""`write_stripped`: objects, C and a header, for programs that manage memory themselves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tensorkiln.artifact.artifact import Content, content_size
from tensorkiln.base.files import plain_path
from tensorkiln.base.folders import atomic_dir, write_list
from tensorkiln.link.rename import rename_symbols
from tensorkiln.link.toolchain import linux_arch
from tensorkiln.link.weights_object import write_weights_object

_KERNELS = "kernels"  # the folder of the objects


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

    `texts` are written as they are. `objects` and C `sources` go to `kernels/`, with symbols
    renamed as `symbols` (old -> new) says. An existing folder is replaced only if it holds nothing
    but files of a former export; otherwise a UserError names another file in it.
    """
    target = plain_path(folder)
    arch = linux_arch(triple)
    with atomic_dir(target) as temporary:
        kernels = temporary / _KERNELS
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
        write_list(temporary)
    return target
