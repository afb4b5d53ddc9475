"""Compile a torch network with a symbolic batch size to one library, and call the library with
torch tensors.

python examples/from_torch.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import nn

import tensorkiln as tk


def main() -> None:
    network = nn.Sequential(nn.Linear(784, 256), nn.GELU(), nn.Linear(256, 10)).eval()
    library = Path(tempfile.mkdtemp(prefix="kiln-")) / "network.so"
    batch = torch.export.Dim("batch", max=1024)
    module = tk.frontend.from_torch(
        network, (torch.zeros(2, 784),), dynamic_shapes=({0: batch},), input_names=["x"]
    )

    tk.compile(module).export_library(str(library))
    loaded = tk.runtime.load_module(str(library))
    run = tk.runtime.Executor(loaded, tk.cpu())["main"]

    for size in (1, 5, 64):  # one library, any batch
        x = torch.randn(size, 784)
        with torch.no_grad():
            expected = network(x)
        difference = (torch.from_dlpack(run(x)) - expected).abs().max().item()
        print(f"batch {size}: largest difference from torch {difference:.2g}")
        assert difference < 1e-4
    print(library)


if __name__ == "__main__":
    main()
