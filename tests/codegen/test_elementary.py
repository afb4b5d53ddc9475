"""Elementary functions: error in units of the last place, and special values, on every level."""

from __future__ import annotations

import math
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from tensorkiln.ir.expr import intrin
from tests.codegen.kernels import EVERY_FORM, FORMS, compiled, elementwise
from tests.emulated.machine import Library

N = 1 << 15
Fn = Callable[..., np.ndarray]
_ERF, _ERFC = (np.vectorize(f, otypes=[np.float64]) for f in (math.erf, math.erfc))
INVERSE = ("asin", "acos", "atan", "asinh", "acosh", "atanh")
ONE = (
    *("exp", "log", "erf", "tanh", "sigmoid", "gelu", "sin", "cos", "tan", "sinh", "cosh"),
    *INVERSE,
)


def _normal_tail(x: np.ndarray) -> np.ndarray:
    """erfc(-x / sqrt 2), with what the rounding of its argument takes away put back."""
    exact = -x.astype(np.longdouble) / np.sqrt(np.longdouble(2))
    z = exact.astype(np.float64)
    rounding_error = np.where(np.isfinite(z), exact - z, 0).astype(np.float64)
    return np.asarray(_ERFC(z) - 2 / math.sqrt(math.pi) * np.exp(-z * z) * rounding_error)


FUNCTIONS: dict[str, Fn] = {
    "exp": np.exp,
    "log": np.log,
    "erf": _ERF,
    "tanh": np.tanh,
    "sigmoid": lambda x: np.where(x >= 0, 1 / (1 + np.exp(-x)), np.exp(x) / (1 + np.exp(x))),
    "gelu": lambda x: 0.5 * x * _normal_tail(x),
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    **{name: getattr(np, f"arc{name[1:]}") for name in INVERSE},
}
# name -> (range of a linear sweep, units in the last place allowed at x)
LIMITS32: dict[str, tuple[float, float, Callable[[np.ndarray], object]]] = {
    "exp": (-87.33654, 89, lambda x: 1.0),
    "log": (1e-30, 200, lambda x: 2.0),
    "erf": (-5, 5, lambda x: 3.0),
    "tanh": (-12, 12, lambda x: 3.0),
    "sigmoid": (-87, 30, lambda x: 3.0),
    "gelu": (-12.5, 12, lambda x: np.where(x > -1, 8.0, 8 + x * x / 2)),
    "sin": (-8192, 8192, lambda x: 2.0),
    "cos": (-8192, 8192, lambda x: 2.0),
    "tan": (-8192, 8192, lambda x: 3.0),
    "sinh": (-89.4, 89.4, lambda x: 3.0),
    "cosh": (-89.4, 89.4, lambda x: 3.0),
    "asin": (-1, 1, lambda x: 3.0),
    "acos": (-1, 1, lambda x: 3.0),
    "atan": (-20, 20, lambda x: 3.0),
    "asinh": (-1e5, 1e5, lambda x: 3.0),
    "acosh": (1, 1e5, lambda x: 3.0),
    "atanh": (-1, 1, lambda x: 3.0),
}
# The reference is a float64 itself: half a unit of it comes on top.
LIMITS64: dict[str, tuple[float, float, Callable[[np.ndarray], object]]] = {
    "exp": (-708.3964, 709.7, lambda x: 1.5),
    "log": (1e-200, 200, lambda x: 2.5),
    "erf": (-6, 6, lambda x: 3.0),
    "tanh": (-22, 22, lambda x: 4.0),
    "sigmoid": (-700, 40, lambda x: 4.0),
    "gelu": (-37.5, 12, lambda x: np.where(x > -1, 8.0, 8 + x * x / 2)),
    "sin": (-1e5, 1e5, lambda x: 3.0),
    "cos": (-1e5, 1e5, lambda x: 3.0),
    "tan": (-1e5, 1e5, lambda x: 4.0),
    "sinh": (-710.4, 710.4, lambda x: 4.0),
    "cosh": (-710.4, 710.4, lambda x: 4.0),
    "asin": (-1, 1, lambda x: 3.0),
    "acos": (-1, 1, lambda x: 3.0),
    "atan": (-20, 20, lambda x: 3.0),
    "asinh": (-1e10, 1e10, lambda x: 4.0),
    "acosh": (1, 1e10, lambda x: 4.0),
    "atanh": (-1, 1, lambda x: 4.0),
}


@pytest.fixture(scope="module", params=EVERY_FORM)
def library(request: pytest.FixtureRequest) -> Library:
    kernels = []
    for d, lanes in (("float32", 16), ("float64", 8), ("float16", 8)):
        for name in (*ONE, "exp_nonpositive"):
            kernels.append(
                elementwise(f"{name}_{d}", lambda x, n=name: intrin(n, x), (d,), d, lanes, N)
            )
        for name in ("pow", "fmod"):
            kernels.append(
                elementwise(
                    f"{name}_{d}",
                    lambda x, y, n=name: intrin(n, x, y),
                    (d, d),
                    d,
                    lanes,
                    N,
                )
            )
    d = "bfloat16"
    kernels.append(elementwise(f"gelu_{d}", lambda x: intrin("gelu", x), (d,), d, 8, N))
    for name in ONE:  # scalars take another road through the emitter
        kernels.append(
            elementwise(
                f"{name}_one", lambda x, n=name: intrin(n, x), ("float64",), "float64", 1, N
            )
        )
    return compiled(kernels, FORMS[request.param])


def samples(name: str, low: float, high: float, dtype: str) -> np.ndarray:
    """Half a linear sweep, half spread over all magnitudes within the range."""
    generator = np.random.default_rng(7)
    sweep = generator.uniform(low, high, N // 2)
    small = -140 if dtype == "float32" else -1000
    exponents = generator.uniform(small, math.log2(max(abs(low), abs(high))), N // 2)
    spread = np.exp2(exponents) * generator.choice([-1, 1], N // 2)
    if name in ("log", "acosh"):
        spread = np.abs(spread) + (name == "acosh")
    else:
        spread = np.clip(spread, low, high)
    return np.concatenate([sweep, spread]).astype(dtype)


def run(library: Library, name: str, *xs: np.ndarray) -> np.ndarray:
    n = len(xs[0])
    out = np.zeros(N, xs[0].dtype)
    library[name](*(np.resize(x, N) for x in xs), out)
    return out[:n]


def units(output: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Error in units of the last place of the result's type."""
    with np.errstate(all="ignore"):
        spacing = np.spacing(np.abs(want).astype(output.dtype)).astype(np.float64)
        return np.abs(output.astype(np.float64) - want) / spacing


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ONE)
def test_accuracy(name: str, dtype: str, library: Library) -> None:
    low, high, limit = (LIMITS32 if dtype == "float32" else LIMITS64)[name]
    x = samples(name, low, high, dtype)
    with np.errstate(all="ignore"):
        want = FUNCTIONS[name](x.astype(np.float64))
    names = [f"{name}_{dtype}"] + ([f"{name}_one"] if dtype == "float64" else [])
    for kernel in names:
        error = units(run(library, kernel, x), want)
        over = error / np.broadcast_to(np.asarray(limit(x.astype(np.float64))), x.shape)
        worst = int(np.nanargmax(over))
        assert over[worst] <= 1, (kernel, x[worst], error[worst])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_exp_of_what_is_not_positive_is_exp(dtype: str, library: Library) -> None:
    low = {"float16": -20.0, "float32": -110.0, "float64": -760.0}[dtype]
    generator = np.random.default_rng(3)
    tiny = -float(np.finfo(dtype).smallest_subnormal)
    special = np.array([-0.0, 0.0, tiny, -1.0, -np.inf, np.nan], dtype)
    x = np.concatenate([special, generator.uniform(low, 0, N - len(special)).astype(dtype)])
    names = (f"exp_nonpositive_{dtype}", f"exp_{dtype}")
    np.testing.assert_array_equal(*(run(library, name, x) for name in names))


# type -> (bits of a significand, exponent of the least normal number, least magnitude of results)
NARROW = {np.float16: (11, -14, 0.0), ml_dtypes.bfloat16: (8, -126, 1e-36)}


@pytest.mark.parametrize("dtype", NARROW, ids=["float16", "bfloat16"])
@pytest.mark.parametrize("sign", [0, 1 << 15])
def test_gelu_of_all_narrow_numbers(dtype: type, sign: int, library: Library) -> None:
    """All but the rounding of the result to its type is a fortieth of a unit of its last place."""
    x = (np.arange(N, dtype=np.uint16) | np.uint16(sign)).view(dtype)
    wide = x.astype(np.float64)
    digits, lowest, tail = NARROW[dtype]
    output = run(library, f"gelu_{np.dtype(dtype).name}", x).astype(np.float64)
    np.testing.assert_array_equal(np.isnan(output), np.isnan(wide))
    finite = np.isfinite(wide)
    want = FUNCTIONS["gelu"](wide[finite])
    exponents = np.maximum(np.frexp(want)[1] - 1, lowest)
    error = np.abs(output[finite] - want) / np.exp2(exponents - (digits - 1))
    assert error[np.abs(want) >= tail].max() <= 0.525
    assert np.abs(output[finite][np.abs(want) < tail]).max(initial=0) < 2 * tail or not tail
    ends = output[np.isinf(wide)]
    assert ends == math.inf if sign == 0 else abs(float(ends[0])) < 1e-30


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", ONE)
def test_special_values(name: str, dtype: str, library: Library) -> None:
    tiny = float(np.finfo(dtype).smallest_subnormal)
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, tiny, -tiny, 1.0, -1.0], dtype)
    if name in ("sin", "cos", "tan"):
        x[1:3] = 1.0
    output = run(library, f"{name}_{dtype}", x)
    with np.errstate(all="ignore"):
        want = FUNCTIONS[name](x.astype(np.float64))
        if name == "gelu":
            assert abs(float(output[2])) < 1e-30  # the limit, where the formula has -inf times 0
            want[2] = output[2]
    finite = np.isfinite(want)
    np.testing.assert_array_equal(np.isnan(output), np.isnan(want))
    np.testing.assert_array_equal(output[~finite], want[~finite].astype(dtype))
    assert (units(output[finite], want[finite]) <= 2).all(), (output, want)
    if name in ("erf", "sinh", "asin", "atan", "asinh", "atanh"):
        assert np.signbit(output[4]) and not np.signbit(output[3])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_pow(dtype: str, library: Library) -> None:
    generator = np.random.default_rng(3)
    x = np.exp2(generator.uniform(-20, 20, N)).astype(dtype)
    y = generator.uniform(-5, 5, N).astype(dtype)
    y[::3] = np.round(y[::3])
    x[::6] *= -1
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.float64), y.astype(np.float64))
    output = run(library, f"pow_{dtype}", x, y)
    np.testing.assert_array_equal(np.isnan(output), np.isnan(want))
    ok = np.isfinite(want)
    limit = 4 + 2 * np.abs(y * np.log(np.abs(x)))
    assert (units(output[ok], want[ok]) <= limit[ok]).all()
    corners = np.array(
        [
            (0, 0),
            (-2, 3),
            (-2, 2),
            (2, -1),
            (0, 2),
            (5, 0),
            (np.nan, 0),
            (-1, 0.5),
            (np.inf, 2),
            (np.inf, -1),
            (2, np.inf),
            (0.5, np.inf),
        ],
        dtype,
    )
    with np.errstate(all="ignore"):
        want = np.power(*corners.T)
    np.testing.assert_allclose(run(library, f"pow_{dtype}", *corners.T), want, rtol=1e-6)


def test_whole_powers_are_exact(library: Library) -> None:
    """Integer pow goes through float64 and cuts off: it may not fall short of the integer."""
    x, y = (v.ravel().astype(np.float64) for v in np.meshgrid(np.arange(-30, 31), np.arange(0, 60)))
    keep = np.abs(x) ** y < 2.0**53
    x, y = x[keep], y[keep]
    np.testing.assert_array_equal(run(library, "pow_float64", x, y), np.power(x, y))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_fmod_is_exact(dtype: str, library: Library) -> None:
    """Of any bits: numbers of all exponents, subnormal ones, infinities and NaN."""
    generator = np.random.default_rng(3)
    bits = np.dtype(dtype).itemsize * 8
    x, y = generator.integers(0, 1 << bits, (2, N), f"uint{bits}").view(dtype)
    x[:100] = y[:100] * 7
    x[100:104], y[100:104] = [1, -2, 3, 0], [np.inf, -np.inf, 0, 2]
    x[104:200] = np.abs(x[104:200])
    y[104:200] = [3, 7, 0.1] * 32
    tiny = np.finfo(dtype).smallest_subnormal
    x[200:206], y[200:206] = (
        [tiny * 7, -tiny * 7, 1, tiny, 65504, -0.0],
        [tiny * 3] * 4 + [tiny] * 2,
    )
    with np.errstate(all="ignore"):
        want = np.fmod(x, y)
    np.testing.assert_array_equal(run(library, f"fmod_{dtype}", x, y), want)
