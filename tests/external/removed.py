"""A library of the system is removed after a model was linked with it: with a copy under a name of
its own, since the system's must stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.external import External
from tensorkiln.external.host_library import HostLibrary
from tensorkiln.ir.module import IRModule


def check_removed(
    make: Callable[[Sequence[Path]], External],
    host_library: HostLibrary,
    mod: IRModule,
    shape: tuple[int, ...],
    folder: Path,
) -> None:
    """Link with the copy, run, remove it, and read what is said."""
    file = host_library.path.name
    other_name = f"libq{file[4:]}"
    content = host_library.path.read_bytes()
    assert content.count(file.encode() + b"\0") >= 1
    (folder / "lib").mkdir()
    copy = folder / "lib" / file
    copy.write_bytes(content.replace(file.encode() + b"\0", other_name.encode() + b"\0"))
    (copy.parent / other_name).symlink_to(copy)
    original = make([copy.parent])
    assert isinstance(original.dependencies, tuple)
    (needs,) = original.dependencies
    external = replace(original, dependencies=(replace(needs, libraries=(other_name,)),))
    path = tk.compile(mod, externals=[external]).export_library(folder / "net.so")
    library = tk.runtime.load_module(path)
    tk.runtime.Executor(library, tk.cpu())["main"](np.ones(shape, np.float32))
    library.close()
    (copy.parent / other_name).unlink()
    reloaded = folder / "again.so"
    reloaded.write_bytes(path.read_bytes())
    with pytest.raises(UserError) as caught:
        tk.runtime.load_module(reloaded)
    assert caught.value.message == (
        f"cannot load '{reloaded}': it needs '{other_name}', which is not there: dependency {needs}"
    )
