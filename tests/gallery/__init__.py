"""Architectures of public collections, with random weights: `make zoo`.

    python -m tests.gallery [NAME ...] [--route torch|dynamo|script] [--jobs N] [--list]

Each row of the tables (`timm_models.py`, `language.py`, ...) builds a network as its package does,
small, fills it with random weights and statistics, and is compiled by each of its routes: read from
PyTorch directly, or as ONNX by either of torch's exporters. Results are compared with torch's own
in float64. Each runs in a process of its own, so that one that crashes or hangs is a row that says
so.
"""
