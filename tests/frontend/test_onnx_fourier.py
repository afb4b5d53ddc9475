"""DFT against NumPy's transforms in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensorkiln.frontend import check_onnx, from_onnx
from tests.frontend.onnx_models import node_model, ours

R = np.random.default_rng(2)


def f(*shape: int) -> np.ndarray:
    return R.standard_normal(shape).astype(np.float32)


def complex_of(x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    return wide[..., 0] + 1j * wide[..., 1] if x.shape[-1] == 2 else wide[..., 0] + 0j


def run(x: np.ndarray, length: int | None, axis: int, opset: int, **attrs: int) -> np.ndarray:
    length_operand = None if length is None else np.array(length)
    if opset < 20:
        model_proto, feeds = node_model(
            "DFT", [x, length_operand], opset=opset, fixed=(1,), axis=axis, **attrs
        )
    else:
        operands = [x, length_operand, np.array(axis)]
        model_proto, feeds = node_model("DFT", operands, opset=opset, fixed=(1, 2), **attrs)
    return ours(from_onnx(model_proto), feeds)[0]


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("length", [None, 1, 4, 7, 10])
@pytest.mark.parametrize("axis", [0, 1, -2])
@pytest.mark.parametrize("inverse", [0, 1])
@pytest.mark.parametrize("parts", [1, 2])
def test_whole(parts: int, inverse: int, axis: int, length: int | None, opset: int) -> None:
    x = f(3, 7, 6, parts)
    transform = np.fft.ifft if inverse else np.fft.fft
    want = transform(complex_of(x), length, axis=axis if axis >= 0 else 2)
    spectrum = run(x, length, axis, opset, inverse=inverse)
    assert spectrum.shape == (*want.shape, 2)
    np.testing.assert_allclose(spectrum[..., 0], want.real, atol=1e-5)
    np.testing.assert_allclose(spectrum[..., 1], want.imag, atol=1e-5)


@pytest.mark.parametrize("length", [None, 1, 2, 5, 6, 12])
@pytest.mark.parametrize("axis", [0, 1])
def test_half(axis: int, length: int | None) -> None:
    x = f(6, 5, 1)
    want = np.fft.rfft(x[..., 0].astype(np.float64), length, axis=axis)
    spectrum = run(x, length, axis, 20, onesided=1)
    assert spectrum.shape == (*want.shape, 2)
    np.testing.assert_allclose(spectrum[..., 0] + 1j * spectrum[..., 1], want, atol=1e-5)
    y = f(4, 5, 2)
    back = np.fft.irfft(complex_of(y), length, axis=axis)
    np.testing.assert_allclose(
        run(y, length, axis, 20, onesided=1, inverse=1), back[..., None], atol=1e-5
    )


@pytest.mark.parametrize(
    ("shape", "attrs", "says"),
    [
        ((4, 5, 3), {}, "must be 1 or 2"),
        ((4, 5, 2), {"axis": 2}, "real and imaginary parts"),
        ((4, 5, 2), {"onesided": 1}, "onesided takes 1 part"),
        ((4, 5, 1), {"onesided": 1, "inverse": 1}, "onesided takes 2 part"),
        ((4,), {}, "expected a signal"),
        ((4, 1, 2), {"onesided": 1, "inverse": 1}, "a transform of 0 elements"),
    ],
)
def test_refusals(shape: tuple[int, ...], attrs: dict[str, Any], says: str) -> None:
    model_proto, _ = node_model("DFT", [f(*shape)], opset=17, **attrs)
    (issue,) = check_onnx(model_proto)
    assert says in issue.message


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize(("size", "step", "window"), [(8, 4, True), (9, 3, True), (16, 16, False)])
def test_frames(size: int, step: int, window: bool, onesided: int) -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((2, 33, 1)).astype(np.float32)
    hann = np.hanning(size).astype(np.float32) if window else None
    operands = [x, np.array(step), hann, np.array(size)]
    model_proto, feeds = node_model("STFT", operands, opset=17, fixed=(1, 2, 3), onesided=onesided)
    (spectrum,) = ours(from_onnx(model_proto), feeds)
    starts = range(0, 33 - size + 1, step)
    frames = np.stack([x[:, a : a + size, 0].astype(float) for a in starts], 1)
    frames = frames if hann is None else frames * hann
    want = np.fft.rfft(frames) if onesided else np.fft.fft(frames)
    np.testing.assert_allclose(spectrum[..., 0] + 1j * spectrum[..., 1], want, rtol=1e-4, atol=1e-4)


def test_frames_of_complex_signals() -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((1, 20, 2)).astype(np.float32)
    operands = [x, np.array(5), None, np.array(10)]
    model_proto, feeds = node_model("STFT", operands, opset=17, fixed=(1, 3), onesided=0)
    (spectrum,) = ours(from_onnx(model_proto), feeds)
    signal = x[..., 0] + 1j * x[..., 1]
    want = np.fft.fft(np.stack([signal[:, a : a + 10] for a in (0, 5, 10)], 1))
    np.testing.assert_allclose(spectrum[..., 0] + 1j * spectrum[..., 1], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [1, 11])
@pytest.mark.parametrize(
    ("bins", "size", "rate", "low", "high"),
    [(8, 16, 8192, 0.0, 4096.0), (40, 512, 16000, 20.0, 7600.0), (3, 64, 8000, 300.0, 3400.0)],
)
def test_mel_weights(bins: int, size: int, rate: int, low: float, high: float, dtype: int) -> None:
    from onnx.reference import ReferenceEvaluator

    operands = [np.array(v) for v in (bins, size, rate)]
    operands += [np.array(v, np.float32) for v in (low, high)]
    model_proto, feeds = node_model(
        "MelWeightMatrix", operands, opset=17, fixed=(0, 1, 2, 3, 4), output_datatype=dtype
    )
    (weights,) = ours(from_onnx(model_proto), feeds)
    (want,) = ReferenceEvaluator(model_proto).run(None, feeds)
    assert weights.dtype == want.dtype
    np.testing.assert_allclose(weights, want, rtol=1e-6, atol=1e-7)
