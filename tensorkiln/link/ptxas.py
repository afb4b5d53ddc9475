"""NVIDIA's assembler: PTX -> code for one architecture, which its driver need not compile.

It comes with the package nvidia-cuda-nvcc (`pip install tensorkiln[cuda]`) and with CUDA's toolkit.
Only targets that ask for it (`"cubin": true`) need it: a library's bytes do not depend on whether
it is there.
"""

from __future__ import annotations

import functools
import importlib.util
import shutil
from pathlib import Path

from tensorkiln.base.cache import Cache, key_of
from tensorkiln.base.errors import InternalError, UserError
from tensorkiln.base.trust import private_temporary
from tensorkiln.link.toolchain import ToolFailure, run_tool

_PLACES = ("cu*/bin/ptxas", "cuda_nvcc/bin/ptxas")  # in package `nvidia`, of CUDA 13 and of 12


@functools.cache
def ptxas_path() -> Path | None:
    """The assembler of the installed package, the newest if there are several, else that on PATH,
    else None."""
    spec = importlib.util.find_spec("nvidia")
    folders = map(Path, spec.submodule_search_locations or ()) if spec else ()
    found = [p for folder in folders for place in _PLACES for p in sorted(folder.glob(place))]
    on_path = shutil.which("ptxas")
    return found[-1] if found else Path(on_path) if on_path else None


@functools.cache
def _identity(path: Path) -> str:
    """What the assembler says that it is."""
    return run_tool([str(path), "--version"], Path("/"))


def cubin_of(ptx: str, arch: str, cache: Cache | None = None) -> bytes:
    """The code of a PTX module for `arch`. Raises UserError (code `no-tool`) where there is no
    assembler, (code `tool-failed`) for an architecture that it does not have, and InternalError for
    PTX that it refuses."""
    path = ptxas_path()
    if path is None:
        raise UserError(
            "ptxas, which makes cubins, is not installed",
            code="no-tool",
            where="target.cubin",
            hint="pip install tensorkiln[cuda]; without it the driver compiles the PTX",
        )
    components = {"kind": "cubin", "ptx": ptx, "arch": arch, "tool": _identity(path)}
    key = key_of(components)
    found = cache.get(key) if cache is not None else None
    if found is not None:
        return found
    with private_temporary("kiln-ptxas-") as name:
        folder = Path(name)
        (folder / "kernels.ptx").write_text(ptx)
        command = [str(path), f"-arch={arch}", "kernels.ptx", "-o", "kernels.cubin"]
        try:
            run_tool(command, folder)
        except ToolFailure as failure:
            text = str(failure)
            if f"Value '{arch}' is not defined" in text:
                message = f"{path} has no code for {arch}: {_identity(path).splitlines()[-1]}"
                hint = "leave cubin out: the driver compiles the PTX"
                raise UserError(message, code="tool-failed", where="target", hint=hint) from None
            raise InternalError(f"ptxas refuses PTX: {text}", code="bad-ptx") from failure
        made = (folder / "kernels.cubin").read_bytes()
    if cache is not None:
        cache.put(key, made, components)
    return made
