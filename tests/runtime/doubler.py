"""A code generator for products, and the loader that makes functions of its artifacts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorkiln as tk
from tensorkiln.external import External
from tensorkiln.script import from_source


def export(module: str, loader: str, path: Path) -> Path:
    """A library of the script `module`, whose products by 2 need the loader of that name."""

    def emit(function: Any, symbol: str) -> list[tk.Artifact]:
        return [tk.Artifact("doubler", loader, f"{symbol}.txt", b"2")]

    external = External("doubler", lambda call, target: call.op == "mul", emit)
    return Path(tk.compile(from_source(module), externals=[external]).export_library(path))


def doubling(before: Callable[[], object] = lambda: None) -> Callable[[Any, Any], Any]:
    """The loader; its function calls `before` first."""

    def load(artifacts: Any, devices: Any) -> Any:
        def double(x: Any, out: Any) -> None:
            before()
            out.numpy()[...] = 2 * x.numpy()

        return {artifacts[0].file_name.removesuffix(".txt"): double}

    return load
