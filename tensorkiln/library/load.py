"""`load_artifacts`: artifacts linked into a temporary library, or in memory, and loaded here."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tensorkiln.artifact import Artifact, ArtifactSet
from tensorkiln.artifact.sections import WEIGHTS_PAD, WEIGHTS_SYMBOL
from tensorkiln.base.errors import UnsupportedError
from tensorkiln.base.packages import require_package
from tensorkiln.link.artifacts import (
    LOADER_EXPORTS,
    WEIGHTS,
    LinkPlan,
    addon_objects,
    container_object,
    is_embedded,
    link_artifacts,
)
from tensorkiln.link.audit import require_weights
from tensorkiln.link.libraries import found_libraries
from tensorkiln.link.object_format import driver_format
from tensorkiln.link.shared import RUNTIME_EXPORTS, Fcompile
from tensorkiln.runtime import load
from tensorkiln.runtime.device import Devices
from tensorkiln.runtime.library_file import LibraryFile
from tensorkiln.runtime.module import Module
from tensorkiln.runtime.native import Image

# Not in RUNTIME_EXPORTS: dlclose() runs it as a destructor, which needs no exported symbol.
_UNLOAD = "kiln_unload"


def load_artifacts(
    artifacts: ArtifactSet,
    devices: Devices = None,
    library: Module | None = None,
) -> Module:
    """Load the artifacts of a compile in this process, the way an exported library is loaded.

    Artifacts without native code, such as a new program for a device, are attached to `library`,
    a loaded Module, and replace its modules of the same loader and target key; `library` is then
    returned. Raises the UserErrors of `export_library` and `load_module`, and `no-library` when
    there is neither native code nor `library`, or both. The steps are in `runtime/load.py`.
    """
    return load.load_artifacts(artifacts, devices, link=_link_here, library=library)


def load_linked(
    artifacts: ArtifactSet,
    devices: Devices,
    fcompile: Fcompile | str | None,
    addons: Sequence[str | Path | bytes],
) -> Module:
    """`load_artifacts` of a whole compile, linked by a compiler of the caller's and with further
    object files, as for `export_library`."""
    return load.load_artifacts(
        artifacts, devices, link=lambda a, folder: _link_here(a, folder, fcompile, addons)
    )


def _link_here(
    artifacts: ArtifactSet,
    folder: Path,
    fcompile: Fcompile | str | None = None,
    addons: Sequence[str | Path | bytes] = (),
) -> Path | Image:
    plan = LinkPlan.of(artifacts)
    if any(a.loader == "llvmjit" for a in artifacts):
        return _linked_in_memory(artifacts, plan, addons)
    path = folder / f"{plan.name}{driver_format(plan.triple).shared_suffix}"
    return link_artifacts(artifacts, path, fcompile=fcompile, addons=addons, in_memory=True)


def _linked_in_memory(
    artifacts: ArtifactSet, plan: LinkPlan, addons: Sequence[str | Path | bytes]
) -> Image:
    """Link bitcode, objects and weights of target `llvmjit` into this process, without a file."""
    # Imported here, since the other targets link without LLVM.
    require_package("llvmlite", "target llvmjit")
    from tensorkiln.codegen.llvm.jit import link_in_memory

    own = [a for a in artifacts if isinstance(a, Artifact) and a.loader == "llvmjit"]
    libraries = found_libraries(plan.libraries, driver_format(plan.triple))
    if libraries:
        raise UnsupportedError(
            f"llvmjit links no libraries: {', '.join(libraries)}", hint="target llvm"
        )
    carries = any(is_embedded(group) for group in artifacts.groups())
    objects = [bytes(a.view) for a in own if a.file_name.endswith(".o")]
    objects += [bytes(data) for _, data in addon_objects(addons, plan.triple)]
    objects.append(b"".join(container_object(artifacts, plan.triple)))  # at least its root
    weights = next((a.view for a in own if a.file_name == WEIGHTS), memoryview(b""))
    memory = np.zeros(len(weights) + WEIGHTS_PAD + 64, np.uint8)
    start = -memory.ctypes.data % 64
    memory[start : start + len(weights)] = np.frombuffer(weights, np.uint8)
    code = link_in_memory(
        [(a.name, bytes(a.view)) for a in own if a.file_name.endswith(".bc")],
        objects,
        [*RUNTIME_EXPORTS, _UNLOAD, *plan.exports, *(LOADER_EXPORTS if carries else ())],
        {WEIGHTS_SYMBOL: memory.ctypes.data + start} if len(weights) else {},
    )
    read_metadata = ctypes.CFUNCTYPE(ctypes.c_char_p)(code.addresses["kiln_metadata"])
    text = read_metadata() or b"{}"
    require_weights(text, len(weights))
    metadata = json.loads(text)
    file = LibraryFile(
        Path(f"<{plan.name} in memory>"),
        plan.triple.partition("-")[0],
        metadata,
        (0, 0) if carries else None,
    )

    def unload(kept: object = memory) -> None:
        """Do what dlclose() would. The default argument keeps the weights alive until then."""
        ctypes.CFUNCTYPE(None)(code.addresses[_UNLOAD])()
        code.unload()

    return Image(file, code.addresses, unload)
