"""Attention of bfloat16 in pairs: every mask, length and form, within what rounding allows.

Operands are exact in float64. Scores and sums are float32; exponentials are rounded to bfloat16,
each by a factor of at most 1 + 2**-8, and so are the weights of the sum, which they are divided by.
The bound is therefore 2**-8 of the weighted distances of the values from the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from operator import attrgetter
from typing import Any

import ml_dtypes  # noqa: F401 - registers bfloat16 with NumPy
import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.executable import Executable
from tensorkiln.ir.expr import ExprLike, Var, int_value
from tensorkiln.ir.relax import RVar
from tensorkiln.kernels.case import Graph
from tensorkiln.target import Target
from tests import processors
from tests.emulated.machine import Library, load
from tests.rotation import rows_in_turn
from tests.schedule.battery import Battery, extent_of, typed

S, T = Var("S"), Var("T")
SCALE = 0.25
ROUNDED = 2.0**-8
# Rows and keys: no key, one, odd, no multiple of a vector or a block, more than one block.
LENGTHS = ((3, 1), (5, 7), (17, 16), (2, 33), (30, 127), (4, 128), (33, 257))
ARM = {"mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a55", "mattr": ["+bf16"]}
TARGETS = {
    "avx512bf16": Target({"kind": "llvm", "mcpu": "cooperlake"}),
    "c": Target({"kind": "c", "mcpu": "cooperlake"}),
    "neon with bf16": Target({"kind": "llvm", **ARM}),
    "c of neon with bf16": Target({"kind": "c", **ARM}),
}
LEVELS = [pytest.param(x, marks=[pytest.mark.emulated] * ("neon" in x)) for x in TARGETS]


def direct(g: Graph, q: RVar, k: RVar, v: RVar, *mask: RVar, **attrs: Any) -> RVar:
    return g.attention(q, k, v, *mask, scale=SCALE, **attrs)


def wide(g: Graph, q: RVar, k: RVar, v: RVar, *mask: RVar, **attrs: Any) -> RVar:
    return g.attention(q, k, v, *mask, scale=SCALE, wide=True, **attrs)


def moved(g: Graph, q: RVar, k: RVar, v: RVar, *mask: RVar, **attrs: Any) -> RVar:
    """Positions before heads on both sides, the result rounded and heads merged."""
    q, k, v = (g.transpose(g.transpose(x, axes=(0, 2, 1, 3)), axes=(0, 2, 1, 3)) for x in (q, k, v))
    y = g.attention(q, k, v, *mask, scale=SCALE, wide=True, **attrs)
    return g.transpose(
        g.cast(g.transpose(y, axes=(0, 2, 1, 3)), dtype="bfloat16"), axes=(0, 2, 1, 3)
    )


FORMS = {"direct": direct, "wide": wide, "moved": moved}


@dataclass(frozen=True)
class Case:
    name: str
    form: str = "wide"
    heads: tuple[int, int] = (2, 3)
    width: int = 32
    rows: ExprLike = S
    keys: ExprLike = T
    kind: str = ""  # of the mask
    mask: tuple[str, ...] = ("", "", "S", "T")  # its dimensions; those that are empty are 1
    causal: bool = False
    unseen: str = "zero"

    def add(self, b: Battery) -> None:
        dims: dict[str, ExprLike] = {"": 1, "S": self.rows, "T": self.keys}
        dims |= {"B": self.heads[0], "H": self.heads[1]}
        q, kv = (*self.heads, self.rows, self.width), (*self.heads, self.keys, self.width)
        params = [typed("bfloat16", *s) for s in (q, kv, kv)]
        if self.kind:
            kind = "bfloat16" if self.form == "direct" and self.kind != "bool" else self.kind
            params.append(typed(kind, *(dims[d] for d in self.mask)))
        form, attrs = FORMS[self.form], {"causal": self.causal, "unseen": self.unseen}
        b.add(self.name, lambda g, *x: form(g, *x, **attrs), *params)

    def check(self, b: Battery, run: Library, rows: int, keys: int) -> None:
        """Compare results of random operands; hidden keys hold what must not be seen."""
        random = np.random.default_rng([rows, keys, self.width])
        params = b.cases[self.name].function.params
        sizes = {"S": rows, "T": keys}
        shapes = [tuple(extent_of(d, sizes) for d in p.tensor.shape) for p in params]
        q, k, v = (random.standard_normal(s).astype("bfloat16") for s in shapes[:3])
        inputs = [q, k, v]
        if self.kind == "bool":
            mask = random.random(shapes[3]) < 0.7
            mask[..., :1, :] &= self.unseen == "nan"  # a row that sees no key
            inputs.append(mask)
        elif self.kind:
            mask = random.choice([0.0, -2.0, -1e4, -np.inf], shapes[3], p=[0.4, 0.3, 0.1, 0.2])
            inputs.append(mask.astype(params[3].tensor.dtype.name))
        want, bound = self.reference(*inputs)
        runs = []
        for threads in (1, 2):
            run.set_num_threads(threads)
            runs.append(np.asarray(run[self.name](*inputs)))
        assert runs[0].tobytes() == runs[1].tobytes()
        got = runs[0].astype("float64")
        if runs[0].dtype.name == "bfloat16":
            bound = bound + ROUNDED * np.abs(want)
        what = f"{self.name} {rows} {keys}"
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want), err_msg=what)
        with np.errstate(invalid="ignore"):
            over = np.nan_to_num(np.abs(got - want) - bound, nan=-1.0)
        assert over.max(initial=-1.0) <= 0, f"{what}: {over.max()} beyond the bound"

    def reference(
        self, q: np.ndarray, k: np.ndarray, v: np.ndarray, *mask: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Results in float64, and how far rounded exponentials may be from them."""
        q, k, v = (x.astype("float64") for x in (q, k, v))
        x = q @ k.swapaxes(-1, -2) * SCALE
        for m in mask:
            x = np.where(m, x, -np.inf) if m.dtype == bool else x + m.astype("float64")
        s, t = x.shape[-2:]
        if self.causal:
            x = np.where(np.tri(s, t, t - s, dtype=bool), x, -np.inf)
        top = x.max(-1, keepdims=True)
        with np.errstate(invalid="ignore"):
            e = np.exp(x - np.where(np.isneginf(top), 0, top))
            w = e / e.sum(-1, keepdims=True)
        if self.unseen == "zero":
            w = np.nan_to_num(w)
        want = w @ v
        distance = np.abs(v[:, :, None] - want[:, :, :, None])  # [B, H, S, T, D]
        far = np.einsum("bhst,bhstd->bhsd", w, distance)
        return want, 1.02 * ROUNDED * far + 2e-5 * (1 + np.abs(want))


def cases() -> Iterator[Case]:
    for form in FORMS:
        yield Case(f"plain_{form}", form)
    for form, kind, causal, unseen in product(
        ("direct", "wide"), ("bool", "float32"), (False, True), ("zero", "nan")
    ):
        name = f"{form}_{kind}_{int(causal)}_{unseen}"
        yield Case(name, form, kind=kind, causal=causal, unseen=unseen)
    for k, mask in enumerate((("B", "", "", "T"), ("", "H", "S", ""), ("B", "H", "S", "T"))):
        yield Case(f"broadcast_{k}", kind="float32", mask=mask)
    for width in (16, 48, 64, 128):
        yield Case(f"width_{width}", "moved", (1, 2), width, causal=True)
    for rows, keys in ((1, 40), (30, 33), (6, 513), (70, 640)):
        name = f"static_{rows}_{keys}"
        yield Case(name, "moved", (1, 2), 32, rows, keys, "bool", causal=keys == 33)


CASES = {case.name: case for case in rows_in_turn(cases(), attrgetter("name"))}


@cache
def compiled(level: str) -> tuple[Battery, Executable]:
    b = Battery()
    for case in CASES.values():
        case.add(b)
    return b, b.compile(TARGETS[level])


@cache
def library(level: str) -> Library:
    return load(compiled(level)[1])


def require(level: str) -> None:
    """Skip where this machine has not the processor, and is not that of an emulator."""
    if TARGETS[level].arch != "aarch64":
        processors.require(TARGETS[level])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("level", LEVELS)
def test_within_the_rounding_of_exponentials(level: str, name: str) -> None:
    require(level)
    case = CASES[name]
    b, _ = compiled(level)
    static = int_value(case.keys), int_value(case.rows)
    for rows, keys in LENGTHS if None in static else ((static[1], static[0]),):
        assert rows is not None and keys is not None
        case.check(b, library(level), rows, keys)


@pytest.mark.parametrize("level", TARGETS)
def test_every_form_has_the_kernel(level: str) -> None:
    """Of bfloat16 itself, too."""
    kernels = compiled(level)[1].kernels
    assert "attention_fused" in {k.kernel_class for k in kernels}
    assert not [k.symbol for k in kernels if "softmax" in k.symbol or "matmul" in k.symbol]


@pytest.mark.parametrize("value", [np.inf, np.nan, -np.inf])
def test_what_follows_the_last_key_is_never_multiplied(value: float) -> None:
    """An odd number of keys whose buffers are reused after infinities and NaN: the other element of
    the last pair is zero."""
    require("avx512bf16")
    b = Battery()
    spec = typed("bfloat16", 1, 1, T, 32)
    b.add("f", lambda g, q, k, v: g.attention(q, k, v, scale=SCALE, wide=True), spec, spec, spec)
    run = load(b.compile(TARGETS["avx512bf16"]))
    for keys in (8, 7, 5, 1):
        bad = np.full((1, 1, 8, 32), value, "bfloat16")
        run["f"](bad, bad, bad)
        one = np.ones((1, 1, keys, 32), "bfloat16")
        np.testing.assert_array_equal(np.asarray(run["f"](one, one, one)), 1.0)


@pytest.mark.parametrize("level", ["avx512bf16", "neon with bf16"])
def test_precision_reaches_the_kernel(level: str) -> None:
    """Asked for by the target's option, of a model in float32 whose mask is bool."""
    g = Graph()
    shape = (1, 2, 24, 32)
    q, k, v = (g.param(n, typed("float32", *shape)) for n in "qkv")
    m = g.param("m", typed("bool", 24, 24))
    f = g.finish(g.attention(q, k, v, m, scale=SCALE), "main")
    exe = tk.compile(f, TARGETS[level], precision="bfloat16")
    (found,) = (x for x in exe.kernels if "attention" in x.symbol)
    assert found.kernel_class == "attention_fused"
    if level == "neon with bf16":
        return
    require(level)
    random = np.random.default_rng(0)
    x, y, z = (random.standard_normal(shape).astype("f4") for _ in "qkv")
    mask = random.random((24, 24)) < 0.7
    case = Case("", heads=(1, 2), kind="bool")
    want, bound = case.reference(*(a.astype("bfloat16") for a in (x, y, z)), mask)
    got = np.asarray(load(exe)["main"](x, y, z, mask))
    assert got.dtype == np.float32
    assert (np.abs(got - want) <= bound).all()
