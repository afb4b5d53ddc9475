"""Real architectures with random weights, exported from torch to ONNX and kept in a cache folder.

`registry` names every model and every export of it, `export` writes and caches them, `light` fills
the nine graphs that ship inside the `onnx` package, `inventory` lists what operators they need.
torch is imported only by the modules that define networks, so that `light` works without it.
"""
