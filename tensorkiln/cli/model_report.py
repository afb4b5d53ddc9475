"""The report of `kiln inspect` on an ONNX model: what is in the file, which is not imported."""

from __future__ import annotations

from pathlib import Path

from tensorkiln.base.text import listed, size_text
from tensorkiln.cli.library_report import some
from tensorkiln.cli.tables import columns, dims_text
from tensorkiln.frontend.onnx.summary import ModelSummary, TensorSummary


def model_text(model: ModelSummary, everything: bool) -> str:
    """The report as text."""
    sets = (f"{domain} {version}" for domain, version in model.opsets.items())
    kinds = len(model.operators)
    facts = [
        ("model", model.path),
        ("graph", model.graph or "without a name"),
        ("opsets", ", ".join(sets) or "none declared"),
        ("nodes", f"{model.nodes:,} of {kinds} operator(s)"),
        ("weights", f"{size_text(model.weights_bytes)} in {len(model.weights):,} tensor(s)"),
        ("size of file", size_text(Path(model.path).stat().st_size)),
    ]
    if model.functions:
        facts.append(("functions", listed(model.functions, 8)))
    if model.files:
        facts.append(("weights in", ", ".join(model.files)))
    if model.absent:
        facts.append(("not there", ", ".join(model.absent)))
    counts = [(name, f"{count:,}") for name, count in model.operators.items()]
    weights = [_row(t, size_text(t.bytes)) for t in model.weights]
    parts = [columns(facts), "inputs", columns([_row(t) for t in model.inputs]) or "  none"]
    parts += ["outputs", columns([_row(t) for t in model.outputs]) or "  none"]
    parts += ["operators", some(counts, everything) or "  none"]
    parts += ["largest weights", some(weights, everything) or "  none"]
    return "\n".join([*parts, f"whether it can be compiled: kiln check {model.path}"])


def _row(t: TensorSummary, *cells: str) -> tuple[str, ...]:
    shape = "rank unknown" if t.shape is None else dims_text(t.shape)
    return (t.name, t.dtype, shape, *cells)
