"""Builds the networks in torch and writes them as ONNX, once, into a cache folder."""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.zoo.initialise import randomise
from tests.zoo.registry import EXPORTS, NETWORKS, Export, Network, inputs

Dynamic = Mapping[str, Mapping[int, str]]


def build(name: str) -> nn.Module:
    """The torch module of a network in eval mode; its random weights are always the same."""
    network = NETWORKS[name]
    module = importlib.import_module(f"tests.zoo.{network.module}")
    return randomise(getattr(module, network.factory)(**network.arguments), network.seed)


def export(
    name: str,
    path: Path,
    *,
    dynamo: bool,
    opset: int | None = None,
    dynamic: Dynamic | None = None,
) -> None:
    """Writes network `name` to `path` by torch's dynamo or its legacy exporter."""
    network = NETWORKS[name]
    sizes = _example_sizes(network, dynamic)
    example = {k: torch.from_numpy(v) for k, v in inputs(network, 0, **sizes).items()}
    options: dict[str, Any] = {
        "input_names": [entry.name for entry in network.inputs],
        "output_names": list(network.outputs),
        "opset_version": opset,
    }
    if dynamo:
        options |= {"dynamo": True, "verbose": False, "external_data": False}
        options["dynamic_shapes"] = _dynamic_shapes(network, dynamic)
    else:
        options |= {"dynamo": False, "do_constant_folding": True}
        options["dynamic_axes"] = {k: dict(v) for k, v in dynamic.items()} if dynamic else None
    with _quiet(), torch.no_grad():
        torch.onnx.export(build(name), tuple(example.values()), str(path), **options)


def model_path(name: str) -> Path:
    """The cached ONNX file of an export named in the registry; exports it on first use."""
    entry: Export = EXPORTS[name]
    folder = cache_folder()
    path = folder / f"{name}-{source_key(entry)}.onnx"
    if not path.exists():
        partial = folder / f".{path.stem}.{os.getpid()}.onnx"
        export(
            entry.network,
            partial,
            dynamo=entry.dynamo,
            opset=entry.opset,
            dynamic=entry.dynamic,
        )
        partial.replace(path)
    return path


def cache_folder() -> Path:
    """$MODEL_ZOO_DIR, by default ~/.cache/tensorkiln-zoo; made when missing."""
    root = os.environ.get("MODEL_ZOO_DIR", "")
    folder = Path(root) if root else Path.home() / ".cache" / "tensorkiln-zoo"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def source_key(entry: Export) -> str:
    """Hash over everything that decides an export's bytes: sources, table rows, torch version."""
    network = NETWORKS[entry.network]
    digest = hashlib.sha256(f"{torch.__version__} {entry} {network}".encode())
    for name in ("export", "initialise", network.module):
        digest.update((Path(__file__).parent / f"{name}.py").read_bytes())
    return digest.hexdigest()[:12]


def _example_sizes(network: Network, dynamic: Dynamic | None) -> dict[str, int]:
    """Symbolic axes need an example above 1: torch.export specialises sizes 0 and 1."""
    if dynamic is None:
        return {}
    symbols = {symbol for axes in dynamic.values() for symbol in axes.values()}
    return {symbol: max(2, network.sizes[symbol]) for symbol in symbols}


def _dynamic_shapes(network: Network, dynamic: Dynamic | None) -> tuple[Any, ...] | None:
    if dynamic is None:
        return None
    symbols = {symbol for axes in dynamic.values() for symbol in axes.values()}
    dims = {symbol: torch.export.Dim(symbol, min=1, max=512) for symbol in sorted(symbols)}
    return tuple(
        {axis: dims[symbol] for axis, symbol in dynamic.get(entry.name, {}).items()} or None
        for entry in network.inputs
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporters talk a lot; what they say about tracing is known and harmless here."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    logging.getLogger("onnxscript").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
