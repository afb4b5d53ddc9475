"""Functions that copy numbers of every type from every place, and the bits that must come out.

`first_T(v, Y)`, `last_T(Y, v)`, `middle_T(Y, v, Z)`; `every` takes two of each type, so that
registers for integers and for floating point run out and the stack is used; `mixed` has types and
tensors by turns. A call is a list of words, which programs in other languages read: `t:float32` a
tensor of one element, `i:-3`, `u:18446744073709551615`, `b:1`, `f:3ff0000000000000` (the bits of a
double).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from tensorkiln.ir.module import IRModule
from tensorkiln.script import from_source

INTEGERS = {f"{u}int{b}": (u, b) for b in (8, 16, 32, 64) for u in ("", "u")}
FLOATS: dict[str, Any] = {
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float32": np.float32,
    "float64": np.float64,
}
DTYPES = ("bool", *INTEGERS, *FLOATS)
_MIXED = ("float32", "int8", "t", "float16", "bool", "t", "uint64", "bfloat16", "float64", "t")


def numpy_type(dtype: str) -> np.dtype[Any]:
    """NumPy's type, with bfloat16."""
    return np.dtype(FLOATS.get(dtype, dtype))


def signatures() -> dict[str, tuple[tuple[str, ...], tuple[int, ...]]]:
    """By function: a type per parameter (`t:` before it for a tensor), and which numbers the
    tensors get, by their place among all parameters."""
    out: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {}
    for d in DTYPES:
        out[f"first_{d}"] = ((d, f"t:{d}"), (0,))
        out[f"last_{d}"] = ((f"t:{d}", d), (1,))
        out[f"middle_{d}"] = ((f"t:{d}", d, f"t:{d}"), (1, 1))
    all_types = (*DTYPES, *reversed(DTYPES))
    out["every"] = ((*all_types, *(f"t:{d}" for d in all_types)), tuple(range(len(all_types))))
    numbers = [i for i, d in enumerate(_MIXED) if d != "t"]
    number_places = tuple(numbers[-3:])
    typed = iter(number_places)
    out["mixed"] = (
        tuple(f"t:{_MIXED[next(typed)]}" if d == "t" else d for d in _MIXED),
        number_places,
    )
    return out


SIGNATURES = signatures()


def module() -> IRModule:
    """All of them."""
    lines = ['@tk.script.ir_module(name="scalars")', "class Scalars:"]
    for name, (params, number_places) in SIGNATURES.items():
        declared = [
            f'p{i}: T.Buffer((1,), "{d[2:]}")' if d[:2] == "t:" else f"p{i}: T.{d}"
            for i, d in enumerate(params)
        ]
        tensors = [i for i, d in enumerate(params) if d[:2] == "t:"]
        lines += ["    @T.prim_func", f"    def {name}({', '.join(declared)}):"]
        lines += [f"        p{t}[0] = p{n}" for t, n in zip(tensors, number_places, strict=True)]
    return from_source("\n".join(lines))


def good_values(dtype: str) -> list[Any]:
    """Numbers that a parameter of this type takes: its limits, and what is rounded."""
    if dtype == "bool":
        return [True, False, 1, 0]
    if dtype in INTEGERS:
        unsigned, bits = INTEGERS[dtype]
        low, high = (0, 1 << bits) if unsigned else (-1 << bits - 1, 1 << bits - 1)
        return [low, low + 1, 0, 1, 90, True, high - 2, high - 1]
    info = ml_dtypes.finfo(FLOATS[dtype])
    tiny, top, eps = (float(x) for x in (info.smallest_subnormal, info.max, info.eps))
    normal = float(info.smallest_normal)
    exact = [0.0, -0.0, 1.0, -2.5, math.nan, math.inf, -math.inf, tiny, -tiny, normal, top, -top]
    # Between two neighbours: ties to even, up and down, and a little more than a tie.
    odd, even = 1 + eps, 1 + 2 * eps
    exact += [normal - tiny, odd, (1 + odd) / 2, (odd + even) / 2, (1 + odd) / 2 + eps / 8]
    large = 60001 if dtype == "float16" else 2**24 + 1
    return [*exact, tiny * 1.5, tiny / 2, tiny / 4, 0.1, 1 / 3, 3, -7, large]


def bad_values(dtype: str) -> list[tuple[Any, str]]:
    """Numbers that it does not take, and the code of the refusal."""
    kind, out = "argument-kind", "out-of-range"
    beyond = [1 << 63, -(1 << 63), (1 << 64) + 5, -(1 << 63) - 1]
    if dtype == "bool":
        return [(v, out) for v in (2, -1, 256, *beyond)] + [(v, kind) for v in (0.0, 1.0, 0.5)]
    if dtype in INTEGERS:
        unsigned, bits = INTEGERS[dtype]
        low, high = (0, 1 << bits) if unsigned else (-1 << bits - 1, 1 << bits - 1)
        wrong = [v for v in (low - 1, high, 1 << bits, *beyond) if not low <= v < high]
        return [(v, out) for v in wrong] + [(v, kind) for v in (0.5, 1.0, math.nan, math.inf)]
    top = float(ml_dtypes.finfo(FLOATS[dtype]).max)
    wrong = [10**400]
    if dtype != "float64":
        step = top - float(np.nextafter(FLOATS[dtype](top), FLOATS[dtype](0)))
        wrong += [top + step / 2, -top - step / 2, top * 2]
    if dtype == "float16":
        wrong += [70000, 1 << 63]
    return [(v, out) for v in wrong] + [(True, kind)]


def bits(dtype: str, value: Any) -> bytes:
    """What an element of that type holds for it."""
    if dtype in INTEGERS or dtype == "bool":
        return int(value).to_bytes(numpy_type(dtype).itemsize, "little", signed=value < 0)
    with np.errstate(all="ignore"):
        return np.array(float(value)).astype(FLOATS[dtype]).tobytes()


def same(dtype: str, data: bytes, value: Any) -> bool:
    """Whether the bits are right; any NaN is one."""
    if dtype in FLOATS and math.isnan(value):
        return bool(np.isnan(np.frombuffer(data, FLOATS[dtype])[0]))
    return data == bits(dtype, value)


def calls(values: dict[str, list[Any]]) -> Iterator[tuple[str, list[Any]]]:
    """Calls of all functions with the values of each type in turn: the numbers in order."""
    for name, (params, _) in SIGNATURES.items():
        numbers = [d for d in params if d[:2] != "t:"]
        for turn in range(max(len(values[d]) for d in numbers)):
            yield name, [values[d][(turn + k) % len(values[d])] for k, d in enumerate(numbers)]


def tensors_of(name: str) -> list[np.ndarray[Any, Any]]:
    """New tensors for a call."""
    return [np.zeros(1, numpy_type(d[2:])) for d in SIGNATURES[name][0] if d[:2] == "t:"]


def in_order(name: str, numbers: Sequence[Any], tensors: Sequence[Any]) -> list[Any]:
    """Arguments in the order of the parameters."""
    number, tensor = iter(numbers), iter(tensors)
    return [next(tensor if d[:2] == "t:" else number) for d in SIGNATURES[name][0]]


def wrong_bits(name: str, numbers: Sequence[Any], data_of_tensors: Sequence[bytes]) -> list[object]:
    """What the tensors got that they should not."""
    params, number_places = SIGNATURES[name]
    by_place = dict(zip([i for i, d in enumerate(params) if d[:2] != "t:"], numbers, strict=True))
    return [
        (name, i, by_place[i], data.hex())
        for i, data in zip(number_places, data_of_tensors, strict=True)
        if not same(params[i], data, by_place[i])
    ]


def word(value: Any) -> str:
    """A number as programs read it."""
    if isinstance(value, bool):
        return f"b:{int(value)}"
    if isinstance(value, int):
        return f"i:{value}" if value < 1 << 63 else f"u:{value}"
    return f"f:{struct.pack('>d', value).hex()}"


def line(name: str, numbers: Sequence[Any]) -> str:
    """A call as programs read it."""
    tensors = [d for d in SIGNATURES[name][0] if d[:2] == "t:"]
    return " ".join([name, *in_order(name, [word(v) for v in numbers], tensors)])


GOOD = {d: good_values(d) for d in DTYPES}
