"""One row of the gallery: how a network is built, and what running it by one route found."""

from __future__ import annotations

import copy
import logging
import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from tests.gallery.torchvision_alone import torchvision_alone

# Directly from torch; by its two exporters of ONNX; a graph that is ONNX from the start.
ROUTES = ("torch", "dynamo", "script", "onnx")
# Found, from the best to the worst: what a network counts as is the worst of its routes.
KINDS = ("right", "refused", "not made", "says nothing", "error", "wrong", "crashes", "hangs")
# How much further from float64 a result may be than torch's in float32 is, at least and at most, as
# a part of the largest element.
WORSE, LEAST, MOST = 16.0, 2e-5, 1e-2
# Where torch cannot compute in float64: as a part of the largest element, against float32.
OF_FLOAT32 = 2e-3

# A network and its arguments: positional or named ones. For the route `onnx`, a ModelProto and
# its inputs by name.
Made = tuple[Any, tuple[Any, ...] | dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Row:
    """A network. `sizes` makes the dynamic shapes of the arguments as torch.export takes them, for
    the route `torch` only; `other` makes arguments of other sizes to run it with. `refused` is
    part of the typed error that is expected instead of results, by route."""

    name: str
    package: str
    make: Callable[[], Made]
    routes: tuple[str, ...] = ("torch",)
    sizes: Callable[[], Any] | None = None
    other_inputs: Callable[[], tuple[Any, ...] | dict[str, Any]] | None = None
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one route found: `kind` is one of KINDS. "refused" is by the error that the row says,
    "not made" by torch or the package, before we are asked; results of torch that are constant or
    not finite say nothing. `compiled` is in seconds; `ratios` are our time of a run to ONNX
    Runtime's, of the least and the median times, where the route has a model for it."""

    name: str
    route: str
    kind: str
    details: str = ""
    error: float = 0.0
    compiled: float = 0.0
    ratios: tuple[float, float] | None = None


def run(row: Row, route: str, times: bool) -> Outcome:
    """Build, compile and compare; with `times`, run beside ONNX Runtime too."""
    import torch

    quiet()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    torchvision_alone()
    try:
        model, arguments = row.make()
        if route != "onnx":
            scatter(model)
            model.eval().requires_grad_(False)
    except Exception as error:
        return Outcome(row.name, route, "not made", said(error))
    original = copy.deepcopy(model)  # exporters may leave tensors without data in a module
    with TemporaryDirectory() as folder, torch.no_grad():
        try:
            sizes = row.sizes() if row.sizes else None
            module, onnx = imported(model, arguments, route, sizes, Path(folder))
        except Exception as error:
            return refusal(row, route, error)
        try:
            import tensorkiln as tk

            start = time.perf_counter()
            call = tk.runtime.Executor(tk.compile(module))["main"]
            compiled = time.perf_counter() - start
            inputs = row.other_inputs() if row.other_inputs and route == "torch" else arguments
            outputs = results(call, module, inputs)
        except Exception as error:
            return refusal(row, route, error)
        if route == "onnx":
            kind, details, far = compare_graph(onnx, inputs, outputs)
        else:
            kind, details, far = compare(original, inputs, outputs)
        timed = times and kind == "right" and onnx is not None
        ratios = beside(onnx, call, inputs) if timed else None
    return Outcome(row.name, route, kind, details, far, compiled, ratios)


def refusal(row: Row, route: str, error: Exception) -> Outcome:
    """An error as an outcome: one that the row expects, one of torch's exporters, or a fault."""
    from tensorkiln.base.errors import TensorkilnError

    text = said(error)
    if route in row.refused and row.refused[route] in text:
        return Outcome(row.name, route, "refused", row.refused[route])
    is_ours = any("tensorkiln" in f for f in frames(error))
    if isinstance(error, TensorkilnError):
        is_ours = error.code != "export-failed"
    return Outcome(row.name, route, "error" if is_ours else "not made", text)


def frames(error: BaseException) -> list[str]:
    """The files that an exception came through."""
    import traceback

    return [f.filename for f in traceback.extract_tb(error.__traceback__)]


def said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def quiet() -> None:
    """No warnings and logs of packages: rows are what is printed."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "YOLO_OFFLINE"):
        os.environ[name] = "1"


def scatter(model: Any) -> None:
    """Make what the usual initialisation hides visible: factors that are all 1 or 0 and statistics
    that nobody has collected become random; matrices are scaled until a sum over their rows has
    the size of an element, or attention weights are all but equal."""
    import torch

    source = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_(0.0, 0.2, generator=source)
            elif name.endswith("running_var"):
                buffer.uniform_(0.6, 1.6, generator=source)
        for module in model.modules():
            weight = getattr(module, "weight", None)
            if isinstance(module, torch.nn.Linear) and weight is not None and weight.numel() > 1:
                scale = float(weight.std()) * weight.shape[1] ** 0.5
                if 0 < scale < 0.5:
                    weight.mul_(0.7 / scale)
        for p in model.parameters():
            if p.is_floating_point() and p.numel() and bool((p == p.flatten()[0]).all()):
                p.add_(torch.empty_like(p).normal_(0.0, 0.1, generator=source))


# ---- routes ------------------------------------------------------------------------------------


def imported(
    model: Any, arguments: Any, route: str, sizes: Any, folder: Path
) -> tuple[Any, Path | None]:
    """The module, and the ONNX file that it was read from."""
    import tensorkiln as tk

    args, kwargs = split(arguments)
    if route == "torch":
        return tk.frontend.from_torch(model, args, kwargs, dynamic_shapes=sizes), None
    import onnx
    import torch

    path = folder / "model.onnx"
    if route == "onnx":
        onnx.save(model, path)
        return tk.frontend.from_onnx(path), path
    torch.onnx.export(model, args, path, kwargs=kwargs, dynamo=route == "dynamo", verbose=False)
    return tk.frontend.from_onnx(path), path


def split(arguments: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return ((), arguments) if isinstance(arguments, dict) else (arguments, {})


def tensors(value: Any) -> list[Any]:
    """The tensors of arguments or results, in the order of torch's own flattening."""
    import torch
    from torch.utils import _pytree as pytree

    tensors_of_value = [v for v in pytree.tree_leaves(value) if isinstance(v, torch.Tensor)]
    if not tensors_of_value and value is not None and hasattr(value, "__dict__"):
        tensors_of_value = [t for v in vars(value).values() for t in tensors(v)]
    return tensors_of_value


def results(call: Any, module: Any, arguments: Any) -> list[np.ndarray]:
    """What the compiled function returns."""
    out = call(*chosen(arguments, module["main"].attrs["input_names"]))
    return [np.from_dlpack(v) for v in (out if isinstance(out, tuple | list) else [out])]


def chosen(arguments: Any, names: Sequence[str]) -> list[Any]:
    """The tensors of arguments for inputs of these names: all of them in their order, or those that
    exporters left; they leave out what is not read and keep names of keywords."""
    args, kwargs = split(arguments)
    inputs = [t.contiguous() for t in tensors((args, kwargs))]
    if len(names) == len(inputs):
        return inputs
    by_name = {k: t.contiguous() for k, v in kwargs.items() for t in tensors(v)[:1]}
    return [by_name[n] for n in names]


# ---- comparison --------------------------------------------------------------------------------


def double(value: Any) -> Any:
    """Arguments or a model in float64."""
    import torch
    from torch.utils import _pytree as pytree

    return pytree.tree_map(
        lambda t: t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t, value
    )


def outputs(model: Any, arguments: Any) -> list[np.ndarray]:
    args, kwargs = split(arguments)
    return [t.numpy() for t in tensors(model(*args, **kwargs))]


def compare(model: Any, arguments: Any, results: Sequence[np.ndarray]) -> tuple[str, str, float]:
    """(kind, why, the largest error as a part of the largest element) against torch in float64, or
    in float32 where torch cannot compute the model in float64."""
    want = outputs(model, copy.deepcopy(arguments))
    try:
        exact = outputs(copy.deepcopy(model).double(), double(copy.deepcopy(arguments)))
    except Exception:
        exact = want
    return judged(results, want, exact)


def compare_graph(path: Path, inputs: Any, outputs: Sequence[np.ndarray]) -> tuple[str, str, float]:
    """The same against ONNX Runtime."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(path, options)
    want = session.run(None, {name: x.numpy() for name, x in inputs.items()})
    return judged(outputs, want, want)


def judged(
    outputs: Sequence[np.ndarray], want: Sequence[np.ndarray], exact: Sequence[np.ndarray]
) -> tuple[str, str, float]:
    """(kind, why, error) of results; `exact` is `want` where nothing is more exact."""
    if len(outputs) != len(want):
        return "wrong", f"{len(outputs)} results, torch has {len(want)}", 0.0
    worst, says = 0.0, False
    for k, (a, b, c) in enumerate(zip(outputs, want, exact, strict=True)):
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            return "wrong", f"result {k} is {a.dtype}{a.shape}, torch's {b.dtype}{b.shape}", 0.0
        says = says or bool((b != b.flat[0]).any() if b.size else False)
        if a.dtype.kind != "f":
            if not np.array_equal(a, b):
                return "wrong", f"result {k} differs in {np.mean(a != b):.1%} of its elements", 0.0
            continue
        if np.isnan(b).any() or not alike(b, c):
            return "says nothing", f"result {k} of torch is not finite", 0.0
        if not alike(a, c):
            return "wrong", f"result {k} is not finite where torch's is, or the reverse", 0.0
        finite = np.isfinite(c)
        largest = float(np.abs(c[finite]).max(initial=0)) or 1.0
        far, torch_error = (distance(x, c) / largest for x in (a, b))
        allowed = OF_FLOAT32 if c is b else min(MOST, max(LEAST, WORSE * torch_error))
        worst = max(worst, far)
        if far > allowed:
            return "wrong", f"result {k} is off by {far:.1e}, torch by {torch_error:.1e}", worst
    return ("right", "", worst) if says else ("says nothing", "all results are constant", worst)


def alike(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether NaN and the infinities are at the same places."""
    agrees: bool = np.array_equal(a[~np.isfinite(b)], b[~np.isfinite(b)], equal_nan=True)
    return agrees and bool(np.isfinite(a[np.isfinite(b)]).all())


def distance(a: np.ndarray, b: np.ndarray) -> float:
    finite = np.isfinite(b)
    return float(np.abs(a[finite].astype(np.float64) - b[finite]).max(initial=0))


def beside(path: Path, call: Any, arguments: Any) -> tuple[float, float] | None:
    """Our time of a run to ONNX Runtime's, in turn, with two threads: of the least and the median
    times. None where it cannot run the model."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(path, options)
    except Exception:
        return None
    inputs = chosen(arguments, [i.name for i in session.get_inputs()])
    feeds = {i.name: t.numpy() for i, t in zip(session.get_inputs(), inputs, strict=True)}
    own_times: list[float] = []
    ort_times: list[float] = []
    start = time.perf_counter()
    while time.perf_counter() - start < 1.0 or len(own_times) < 5:
        own_times.append(timed(lambda: call(*inputs)))
        ort_times.append(timed(lambda: session.run(None, feeds)))
    return min(own_times) / min(ort_times), float(np.median(own_times) / np.median(ort_times))


def timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def named(rows: Iterable[Row]) -> dict[str, Row]:
    """Rows by name, which no two have."""
    rows_by_name: dict[str, Row] = {}
    for row in rows:
        assert row.name not in rows_by_name, row.name
        rows_by_name[row.name] = row
    return rows_by_name
