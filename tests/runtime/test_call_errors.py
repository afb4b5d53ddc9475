"""Every refusal: its Python type, its code, and the whole sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorkiln.base.errors import UserError
from tensorkiln.runtime import Executor, load_module
from tensorkiln.runtime.tensor import DLTensor, capsule_pointer
from tests.link import sample

F = np.float32


def f32(*shape: int) -> np.ndarray:
    return np.zeros(shape, F)


class OnDevice:
    """A tensor that says it is in CUDA memory; its DLPack header is patched, never its data."""

    def __init__(self, array: np.ndarray):
        self.array, self.shape = array, array.shape

    def __dlpack__(self, **_: object) -> object:
        capsule = self.array.__dlpack__()
        DLTensor.from_address(capsule_pointer(capsule, b"dltensor")).device_type = 2
        return capsule


GRAPH: list[tuple[str, Callable[[Any], object], type, str, str]] = [
    (
        "rank",
        lambda e: e["main"](f32(8)),
        ValueError,
        "rank-mismatch",
        "main: input 'x' must have 2 dimensions, [n, 8], received 1: [8]",
    ),
    (
        "rank of output",
        lambda e: e["main"](f32(2, 8), out=f32(2)),
        ValueError,
        "rank-mismatch",
        "main: output 'out' must have 2 dimensions, [n, 4], received 1: [2]",
    ),
    (
        "scalar",
        lambda e: e["main"](np.array(1, F)),
        ValueError,
        "rank-mismatch",
        "main: input 'x' must have 2 dimensions, [n, 8], received 0: []",
    ),
    (
        "fixed size",
        lambda e: e["main"](f32(5, 7)),
        ValueError,
        "shape-mismatch",
        "main: input 'x' must have shape [n, 8], received [5, 7]: dimension 1 is 7, expected 8",
    ),
    (
        "symbol",
        lambda e: e["pair"](f32(3), f32(4)),
        ValueError,
        "shape-mismatch",
        "pair: input 'b' must have shape [n], received [4]: dimension 0 is 4, expected 3",
    ),
    (
        "computed",
        lambda e: e["split"](f32(2, 8), out=(f32(2, 4), f32(9))),
        ValueError,
        "shape-mismatch",
        "split: output 'right' must have shape [n * 4], received [9]: dimension 0 is 9, expected 8",
    ),
    (
        "dtype",
        lambda e: e["main"](np.zeros((2, 8))),
        TypeError,
        "dtype-mismatch",
        "main: input 'x' must be float32, received float64",
    ),
    (
        "int dtype",
        lambda e: e["main"](np.zeros((2, 8), np.uint8)),
        TypeError,
        "dtype-mismatch",
        "main: input 'x' must be float32, received uint8",
    ),
    (
        "bool",
        lambda e: e["main"](np.zeros((2, 8), bool)),
        TypeError,
        "dtype-mismatch",
        "main: input 'x' must be float32, received bool",
    ),
    (
        "byte order",
        lambda e: e["main"](np.zeros((2, 8), ">f4")),
        TypeError,
        "dtype-mismatch",
        "arrays of >f4 cannot be passed",
    ),
    (
        "object",
        lambda e: e["main"](np.zeros((2, 8), object)),
        TypeError,
        "dtype-mismatch",
        "arrays of object cannot be passed",
    ),
    (
        "device",
        lambda e: e["main"](OnDevice(f32(2, 8))),
        ValueError,
        "device-mismatch",
        "main: input 'x' must be in CPU memory (device type 1), received a tensor in cuda:0 "
        "(device type 2); copy it to the host first: x.numpy() in Python",
    ),
    (
        "too few",
        lambda e: e["pair"](f32(2)),
        TypeError,
        "argument-count",
        "pair: expected 2 inputs (a: float32 [n], b: float32 [n]), received 1",
    ),
    (
        "too many",
        lambda e: e["fixed"](f32(1, 8), f32(1, 4)),
        TypeError,
        "argument-count",
        "fixed: expected 1 input (x: float32 [1, 8]), received 2",
    ),
    (
        "missing name",
        lambda e: e["pair"](b=f32(2)),
        TypeError,
        "argument-count",
        "pair: expected 2 inputs (a: float32 [n], b: float32 [n]), received 1; missing a",
    ),
    (
        "unknown name",
        lambda e: e["pair"](a=f32(2), bb=f32(2)),
        TypeError,
        "unknown-input",
        "pair has no input 'bb'; it has a, b\n  hint: did you mean 'b'?",
    ),
    (
        "twice",
        lambda e: e["pair"](f32(2), a=f32(2)),
        TypeError,
        "argument-count",
        "pair: input 'a' is given twice",
    ),
    (
        "outputs",
        lambda e: e["split"](f32(2, 8), out=f32(2, 4)),
        TypeError,
        "argument-count",
        "split: expected 2 outputs (left: float32 [n, 4], right: float32 [n * 4]), received 1",
    ),
    (
        "no tensor",
        lambda e: e["main"]([[1.0] * 8]),
        TypeError,
        "argument-kind",
        "main: input 'x' must be a tensor (NumPy, torch, or anything with DLPack), received list\n"
        '  hint: np.array(..., "float32")',
    ),
    (
        "none",
        lambda e: e["main"](None),
        TypeError,
        "argument-kind",
        "must be a tensor (NumPy, torch, or anything with DLPack), received NoneType",
    ),
    ("function", lambda e: e["mian"], LookupError, "no-function", "did you mean 'main'?"),
    (
        "no executor",
        lambda e: e.module["main"],
        LookupError,
        "needs-executor",
        "'main' is a graph function: it runs in an Executor, which owns its memory\n"
        '  hint: Executor(lib, tk.cpu())["main"]',
    ),
    (
        "tensor count",
        lambda e: e["add_one"](f32(1)),
        TypeError,
        "argument-count",
        "add_one: expected 2 arguments, received 1",
    ),
    (
        "tensor shape",
        lambda e: e["add_one"](f32(1), f32(2)),
        ValueError,
        "shape-mismatch",
        "add_one: argument 'y' must have shape [n], received [2]: dimension 0 is 2, expected 1",
    ),
    (
        "number for tensor",
        lambda e: e["add_one"](1, f32(2)),
        TypeError,
        "argument-kind",
        "'x' must be a tensor of shape [n], received a value that is not a tensor\n"
        "  hint: np.float32(1), or another of NumPy's numbers: they have an element type",
    ),
    (
        "tensor for number",
        lambda e: e["scale"](f32(1), f32(1), 1),
        TypeError,
        "argument-kind",
        "scale: argument 'factor' must be a number, received a tensor\n"
        "  hint: .item() of a tensor of one element is a number",
    ),
    (
        "fraction for integer",
        lambda e: e["scale"](f32(1), 1.0, 0.5),
        TypeError,
        "argument-kind",
        "scale: argument 'shift' must be an integer, received a number with a fraction",
    ),
]


@pytest.fixture(scope="module")
def executor(library: Path) -> Executor:
    return Executor(load_module(library))


@pytest.mark.parametrize(
    ("call", "kind", "code", "sentence"), [row[1:] for row in GRAPH], ids=[row[0] for row in GRAPH]
)
def test_refusal(
    executor: Executor, call: Callable[[Any], object], kind: type, code: str, sentence: str
) -> None:
    with pytest.raises(UserError) as caught:
        call(executor)
    assert isinstance(caught.value, kind)
    assert caught.value.code == code
    assert str(caught.value).endswith(sentence)
    good = np.ones((2, 8), F)  # and the library still works
    np.testing.assert_allclose(executor["main"](good).numpy(), sample.expected(good), rtol=1e-4)


def test_a_missing_cpu_feature_is_named(tmp_path: Path) -> None:
    path = sample.build(tmp_path / "a.so", cpu_features=("sse2", "sse4a", "avx512fp16", "amx-bf16"))
    with pytest.raises(
        RuntimeError,
        match=r"this processor lacks '(amx-bf16|avx512fp16|sse4a)', "
        "which library mlp was compiled for",
    ):
        load_module(path)


def test_an_unknown_cpu_feature_is_refused(tmp_path: Path) -> None:
    path = sample.build(tmp_path / "b.so", cpu_features=("sse2", "warp-drive"))
    with pytest.raises(RuntimeError, match="needs CPU feature 'warp-drive', which its runtime"):
        load_module(path)


def test_features_of_this_processor_are_found(tmp_path: Path) -> None:
    """What the kernel lists for this CPU, by LLVM's names, loads."""
    text = Path("/proc/cpuinfo").read_text()
    flags = next(line for line in text.splitlines() if line.startswith("flags")).split()
    names = {
        "avx": "avx",
        "avx2": "avx2",
        "fma": "fma",
        "avx512f": "avx512f",
        "bmi2": "bmi2",
        "avx512vl": "avx512vl",
        "avx512_vnni": "avx512vnni",
        "f16c": "f16c",
        "sse2": "sse2",
        "sse4_2": "sse4.2",
        "abm": "lzcnt",
        "popcnt": "popcnt",
        "avx512dq": "avx512dq",
    }
    present = tuple(llvm for flag, llvm in names.items() if flag in flags)
    load_module(sample.build(tmp_path / "c.so", cpu_features=present))
    absent = [llvm for flag, llvm in names.items() if flag not in flags]
    for name in absent:
        with pytest.raises(RuntimeError, match=name):
            load_module(sample.build(tmp_path / f"{name}.so", cpu_features=(name,)))
