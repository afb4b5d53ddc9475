"""Products in tiles, run in a process whose processor has them or that emulates them:
`python -m tests.codegen.tiles.battery case ...` prints what went wrong, by case, as JSON.

Either emulator.c or palette.c is preloaded: the first where the processor has no tiles."""

from __future__ import annotations

import ctypes
import json
import re
import sys
import traceback
from collections.abc import Callable, Iterator

import ml_dtypes
import numpy as np

import tensorkiln as tk
from tensorkiln.executable import Executable
from tensorkiln.ir.expr import ExprLike, Var
from tensorkiln.ir.relax import Constant, RVar, Value, constant
from tensorkiln.kernels.case import Graph, rand
from tensorkiln.runtime import Executor
from tensorkiln.target import Target
from tests.schedule.battery import Battery, random_array, typed
from tests.schedule.test_attention_of_halves import Case as Attention
from tests.schedule.test_attention_of_halves import S, T
from tests.schedule.test_integer_products import bias, bytes_, q, requantized

TARGET = Target(
    {
        "kind": "llvm",
        "mcpu": "x86-64-v4",
        "mattr": ["+avx512bf16", "+avx512vnni", "+amx-bf16", "+amx-int8"],
    }
)
PRODUCT_NAMES = ("linear", "matmul", "conv2d", "attention")
INSTRUCTIONS = ("ldtilecfg", "tilerelease", "tilezero", "tileloadd", "tilestored")
PRODUCTS = ("tdpbf16ps", "tdpbusd")
N = Var("N")
# Every size of a last group of rows, and none; every way in which terms and columns end.
ROWS: tuple[ExprLike, ...] = (4, 15, 16, 17, 31, 32, 33, 50, 64, 101, N)
COUNTS = ({"N": 1}, {"N": 3}, {"N": 21}, {"N": 64}, {"N": 63}, {"N": 105})
TERMS = (16, 17, 31, 32, 33, 48)  # in groups of those that lie adjacent
COLUMNS = (1, 15, 16, 17, 31, 32, 33, 47, 64, 100)
Build = Callable[[Graph, RVar], Value]


def half(*shape: int, seed: int = 0) -> Constant:
    return constant(rand(*shape, seed=seed).array.astype(ml_dtypes.bfloat16))


def _shapes() -> Iterator[tuple[ExprLike, int, int]]:
    """Each number of rows, of terms and of columns, several times."""
    for n in range(2 * len(ROWS)):
        rows = ROWS[n % len(ROWS)]
        yield rows, TERMS[n % len(TERMS)], COLUMNS[(n + n // len(COLUMNS)) % len(COLUMNS)]


def _of_halves(b: Battery) -> None:
    def layer(k: int, n: int, wide: bool) -> Build:
        return lambda g, x: g.relu(
            g.linear(x, half(k, n), half(n) if not wide else rand(n), wide=wide)
        )

    for rows, groups, n in _shapes():
        sizes, k = COUNTS if rows is N else ({},), 2 * groups
        x = typed("bfloat16", rows, k)
        b.add(f"half_{rows}_{k}_{n}".lower(), layer(k, n, False), x, sizes=sizes, tolerance=1e-2)
        b.add(f"wide_{rows}_{k}_{n}".lower(), layer(k, n, True), x, sizes=sizes, tolerance=3e-6)
    x, y = typed("bfloat16", 3, 40, 66), typed("bfloat16", 3, 66, 50)
    b.add("batched", lambda g, x, y: g.matmul(x, y), x, y, tolerance=1e-2)
    x = typed("bfloat16", N, 7, 64)
    b.add("rows_of_rows", layer(64, 48, False), x, sizes=COUNTS, tolerance=1e-2)
    residual = lambda g, x, y: g.add(g.linear(x, half(64, 64)), y)  # noqa: E731
    b.add(
        "residual", residual, typed("bfloat16", 37, 64), typed("bfloat16", 37, 64), tolerance=1e-2
    )
    b.add("many", layer(4096, 96, True), typed("bfloat16", 70, 4096), tolerance=3e-6)


def _of_bytes(b: Battery) -> None:
    def layer(k: int, n: int) -> Build:
        return lambda g, x: g.linear(x, q("int8", k, n), bias(n))

    for rows, groups, n in _shapes():
        sizes, k = COUNTS if rows is N else ({},), 4 * groups
        x = typed("uint8", rows, k)
        b.add(f"bytes_{rows}_{k}_{n}".lower(), layer(k, n), x, sizes=sizes, make=bytes_)
    quantized = lambda g, x: requantized(g, g.linear(x, q("int8", 72, 50), bias(50)), (50,))  # noqa: E731
    b.add("quantized", quantized, typed("uint8", N, 72), sizes=COUNTS, make=bytes_)


# A filter (outputs, inputs, rows, columns), the attributes of its convolution, the image: rows that
# are cut evenly and that are not, short ones that follow each other with and without halos, an odd
# number of rows; strides, dilation; channels that make blocks of every width; pictures.
Image = tuple[tuple[int, ...], dict[str, object], tuple[int, ...]]
PADDED, STRIDED = {"padding": (1, 1, 1, 1)}, {"strides": (2, 2)}
IMAGES: dict[str, Image] = {
    "1x1": ((48, 24, 1, 1), {}, (2, 24, 7, 5)),
    "1x1_strided": ((64, 128, 1, 1), STRIDED, (1, 128, 28, 28)),
    "3x3": ((40, 64, 3, 3), PADDED, (1, 64, 7, 7)),
    "3x3_wide": ((64, 40, 3, 3), PADDED, (1, 40, 5, 28)),
    "3x3_strided": ((32, 70, 3, 3), {**PADDED, **STRIDED}, (1, 70, 13, 33)),
    "3x3_dilated": ((16, 33, 3, 3), {"padding": (2, 2, 2, 2), "dilation": (2, 2)}, (1, 33, 17, 17)),
    "7x7_of_3": ((40, 3, 7, 7), {"padding": (3, 3, 3, 3), **STRIDED}, (2, 3, 30, 38)),
    "3x3_of_4": ((16, 4, 3, 3), {}, (1, 4, 9, 20)),
    "5x5": ((16, 16, 5, 5), {"padding": (2, 2, 2, 2)}, (1, 16, 11, 40)),
}


def layer_of_halves(outputs: int, *size: int, **attrs: object) -> Build:
    """A convolution of images of 16 bits, whose result is rounded behind its epilogue."""
    w, bias_vector = half(outputs, *size), rand(outputs)
    return lambda g, x: g.cast(
        g.relu(g.conv2d(x, w, bias_vector, wide=True, **attrs)), dtype="bfloat16"
    )


def layer_of_bytes(outputs: int, *size: int, **attrs: object) -> Build:
    """A convolution of images of bytes, whose result is bytes again."""
    w, bias_vector = q("int8", outputs, *size), bias(outputs)
    return lambda g, x: requantized(g, g.conv2d(x, w, bias_vector, **attrs), (outputs, 1, 1))


def _of_images(b: Battery) -> None:
    for name, (size, attrs, image) in IMAGES.items():
        x, y = typed("bfloat16", *image), typed("uint8", *image)
        b.add(f"conv_half_{name}", layer_of_halves(*size, **attrs), x, tolerance=1e-2)
        b.add(f"conv_bytes_{name}", layer_of_bytes(*size, **attrs), y, make=bytes_)
    size, attrs, image = IMAGES["3x3"]
    deep = layer_of_halves(64, *size[:1], 1, 1)

    def block(g: Graph, x: RVar) -> Value:
        """Layers whose images have halos, in memory that the last epilogue overwrites."""
        y = layer_of_halves(*size, **attrs)(g, x)
        assert isinstance(y, RVar)
        wide = [g.cast(v, dtype="float32") for v in (deep(g, y), x)]
        return g.cast(g.relu(g.add(*wide)), dtype="bfloat16")

    b.add("residual_block", block, typed("bfloat16", *image), tolerance=2e-2)
    batch, sizes = typed("bfloat16", N, *image[1:]), ({"N": 1}, {"N": 3})
    b.add("batch", layer_of_halves(*size, **attrs), batch, sizes=sizes, tolerance=1e-2)

    def branches(layer: Callable[..., Build]) -> Build:
        """Images whose blocks are narrower than those of their concatenation, which is pooled."""

        def build(g: Graph, x: RVar) -> Value:
            parts = layer(48, 64, 1, 1)(g, x), layer(80, 64, 3, 3, **PADDED)(g, x)
            joined = g.concat(*parts, axis=1)
            pooled = g.emit("max_pool2d", joined, kernel=(3, 3), **STRIDED, **PADDED)
            return layer(32, 128, 3, 3, **PADDED)(g, pooled)

        return build

    images = (typed(dtype, 1, 64, 14, 14) for dtype in ("bfloat16", "uint8"))
    b.add("branches_of_halves", branches(layer_of_halves), next(images), tolerance=2e-2)
    b.add("branches_of_bytes", branches(layer_of_bytes), next(images), make=bytes_)


# Head sizes with and without features behind whole tiles, an odd number of tiles of columns; the
# last tile of queries and of keys of every kind, one block of keys and several.
WIDTHS, QUERIES, KEYS = (16, 32, 48, 64, 80, 128), (4, 15, 16, 17, 33, 64), (1, 15, 16, 17, 49, 128)
LENGTHS = ((1, 1), (15, 31), (16, 32), (17, 49), (33, 33), (5, 128), (2, 129), (20, 300))
MASKS = (("", "", "", "T"), ("", "H", "S", "T"), ("B", "", "S", ""))
KINDS = ("", "float32", "", "bool", "")
FORMS = ("wide", "moved", "direct")


def _attentions() -> Iterator[Attention]:
    """Each head size with each number of queries; of keys, and masks, in turn."""
    sizes = [(w, r) for r in QUERIES for w in WIDTHS]
    for n, (width, rows) in enumerate(sizes):
        name, heads = f"attention_{width}_{rows}_{n}", ((1, 1), (1, 3), (2, 5))[n % 3]
        keys = KEYS[(n + n // 6) % 6] if n % 12 else 197
        kind, mask, causal = KINDS[n % 5], MASKS[n % 3], n % 2 > 0
        unseen = ("zero", "nan")[n % 7 > 4]
        form = FORMS[n % len(FORMS)]
        yield Attention(name, form, heads, width, rows, keys, kind, mask, causal, unseen)
    for causal in (False, True):
        name = f"attention_{['all', 'causal'][causal]}"
        yield Attention(f"{name}_blocks_64", "wide", (1, 2), 64, 33, 530, causal=causal)
        yield Attention(f"{name}_blocks_80", "moved", (1, 1), 80, 70, 640, "bool", causal=causal)
        yield Attention(f"{name}_unknown_64", "wide", (1, 2), 64, causal=causal)
        yield Attention(f"{name}_unknown_48", "moved", (2, 3), 48, kind="float32", causal=causal)
        yield Attention(f"{name}_queries_32", "wide", (1, 2), 32, S, 40, causal=causal)
        yield Attention(f"{name}_keys_16", "wide", (2, 1), 16, 21, T, "bool", causal=causal)


ATTENTIONS = {case.name: case for case in _attentions()}


def _check_attention(b: Battery, case: Attention, run: Executor) -> None:
    for rows, keys in LENGTHS:
        if case.rows is S or case.keys is T or (rows, keys) == LENGTHS[0]:
            case.check(b, run, rows, keys)


def cases() -> Battery:
    b = Battery()
    _of_halves(b)
    _of_bytes(b)
    _of_images(b)
    for case in ATTENTIONS.values():
        case.add(b)
    return b


def without_check(exe: Executable) -> tk.runtime.Module:
    """The library, loaded although the processor lacks tiles."""
    text = bytes(exe.artifacts["host/entry.c"].view).decode()
    text_without_check = re.sub(r'"amx-[a-z0-9]+",\s*', "", text)
    assert text_without_check != text
    return tk.load_artifacts(exe.artifacts.replace("host/entry.c", text_without_check.encode()))


def _alone(b: Battery, run: Executor) -> Iterator[tuple[str, str]]:
    """Each row must be what it is without the others, to the bit."""
    for name, case in b.cases.items():
        if name == "attention_all_unknown_64":
            yield from _queries_alone(name, run)
        if case.sizes != COUNTS or len(case.function.params) > 1:
            continue
        (x,) = case.function.params
        shape = (105, *(int(d.value) for d in x.tensor.shape[1:]))
        rows = (case.make or random_array)(1, np.dtype(x.tensor.dtype.name), shape)
        whole = np.asarray(run[name](rows))
        for n in (0, 31, 32, 63, 96, 100, 104):
            alone = np.asarray(run[name](rows[n : n + 1]))
            if alone[0].tobytes() != whole[n].tobytes():
                yield name, f"row {n} is another one alone"


def _queries_alone(name: str, run: Executor) -> Iterator[tuple[str, str]]:
    bf16 = np.dtype("bfloat16")
    q, k, v = (random_array(n, bf16, (1, 2, 49, 64)) for n in range(3))
    together = np.asarray(run[name](q, k, v))
    for n in (0, 15, 16, 31, 48):
        alone = np.asarray(run[name](q[:, :, n : n + 1], k, v))
        if alone.tobytes() != together[:, :, n : n + 1].tobytes():
            yield name, f"query {n} is another one alone"


def main(names: list[str]) -> None:
    table = cases().cases
    b, failures = Battery({name: table[name] for name in names}), {}
    exe = b.compile(TARGET)
    preloaded = ctypes.CDLL(None)
    emulated = hasattr(preloaded, "tile_count")
    run = Executor(without_check(exe) if emulated else exe.jit())
    for name in b.cases:
        try:
            if name in ATTENTIONS:
                _check_attention(b, ATTENTIONS[name], run)
            else:
                b.check(name, run)
        except Exception:
            failures[name] = traceback.format_exc()
    failures |= dict(_alone(b, run))
    code = {a.file_name: bytes(a.view) for a in exe.artifacts if a.file_name.endswith(".s")}
    products = {name: text for name, text in code.items() if name.startswith(PRODUCT_NAMES)}
    vectors = sorted(name for name, text in products.items() if b"ldtilecfg" not in text)
    report: dict[str, object] = {
        "cases": len(b.cases),
        "kernels": len(products),
        "without tiles": vectors,
        "failures": failures,
        "counts": None,
        "palette": None,
        "instructions": sorted(
            name
            for name in (*INSTRUCTIONS, *PRODUCTS)
            if any(name in t.decode() for t in code.values())
        ),
    }
    if emulated:
        count = preloaded.tile_count
        count.restype = ctypes.c_long
        report["counts"] = {name: count(n) for n, name in enumerate((*INSTRUCTIONS, *PRODUCTS))}
    else:
        report["palette"] = preloaded.tile_palette()
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
