"""Code for one architecture from PTX, which a driver need not compile, through the cache."""

from __future__ import annotations

from tensorkiln.base.cache import Cache, key_of
from tensorkiln.base.errors import UserError
from tensorkiln.base.packages import install_line
from tensorkiln.target.cuda_tools import assembled, ptxas_path, tool_identity


def cubin_of(ptx: str, arch: str, cache: Cache | None = None) -> bytes:
    """The code of a PTX module for `arch`. Raises UserError (code `no-tool`) where there is no
    assembler, and what `assembled` raises."""
    path = ptxas_path()
    if path is None:
        raise UserError(
            "ptxas, which makes cubins, is not installed",
            code="no-tool",
            where="target.cubin",
            hint=f"{install_line('nvidia')}; without it the driver compiles the PTX",
        )
    components = {"kind": "cubin", "ptx": ptx, "arch": arch, "tool": tool_identity(path)}
    key = key_of(components)
    cubin = cache.get(key) if cache is not None else None
    if cubin is None:
        cubin = assembled(ptx, arch).cubin
        if cache is not None:
            cache.put(key, cubin, components)
    return cubin
