"""Products in tiles of a processor. Where it has none, the instructions are emulated as they trap
(emulator.c), so what runs is the code that a processor with tiles would run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorkiln.base.errors import TensorkilnError, UnsupportedError
from tensorkiln.ir.expr import TILE_DOTS, Intrin, Var, int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import RVar, TensorType, Value
from tensorkiln.ir.stmt import For, PrimFunc, Stmt, Store
from tensorkiln.ir.verify import verify
from tensorkiln.ir.visit import substmts
from tensorkiln.kernels.case import Build, Graph, rand
from tensorkiln.kernels.layouts import channel_blocks
from tensorkiln.pipeline import compile as compile_module
from tensorkiln.schedule.choose import schedule_group
from tensorkiln.schedule.intrin import instruction
from tensorkiln.script import from_source
from tensorkiln.target import Target
from tests.codegen.tiles.battery import (
    IMAGES,
    INSTRUCTIONS,
    PRODUCTS,
    TARGET,
    N,
    cases,
    half,
    layer_of_bytes,
    layer_of_halves,
)
from tests.ir.evaluate import run
from tests.schedule.battery import typed
from tests.schedule.groups import groups_of
from tests.schedule.test_integer_products import bytes_, q
from tests.transform.graphs import graph

SPR = Target({"kind": "llvm", "mcpu": "sapphirerapids"})
NEEDED = ("avx512bf16", "avx512vnni", "avx512vl", "avx512bw")
FOLDER = Path(__file__).parent
TILES = all(Target("native").has(f) for f in ("amx-tile", "amx-bf16", "amx-int8"))
CASES = list(cases().in_turn().cases)


# ---- values ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `battery.py` says in a process whose processor has tiles, or in which they are
    emulated."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    lacking = [f for f in NEEDED if not Target("native").has(f)]
    if lacking:
        pytest.skip(f"this machine lacks {', '.join(lacking)}")
    source = FOLDER / ("palette.c" if TILES else "emulator.c")
    library = tmp_path_factory.mktemp("tiles") / "preloaded.so"
    strict = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off"]
    command = ["gcc", "-O2", "-mfma", *strict, "-shared", "-fPIC", str(source)]
    subprocess.run([*command, "-o", str(library), "-lm", "-ldl"], check=True)
    process = subprocess.run(
        [sys.executable, "-m", "tests.codegen.tiles.battery", *CASES],
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    outcome_data: dict[str, Any] = json.loads(process.stdout)
    return outcome_data


def test_products_are_those_of_numpy_and_rows_are_independent(outcome: dict[str, Any]) -> None:
    assert outcome["failures"] == {}
    assert outcome["cases"] == len(CASES) > 20
    assert outcome["kernels"] >= len(CASES) and outcome["without tiles"] == []


def test_every_instruction_ran_and_tiles_are_released(outcome: dict[str, Any]) -> None:
    assert outcome["instructions"] == sorted((*INSTRUCTIONS, *PRODUCTS))
    if TILES:
        assert outcome["palette"] == 0
        return
    counts = outcome["counts"]
    assert all(counts.values()) and counts["ldtilecfg"] == counts["tilerelease"]
    # Sums start at zero, but those of attention's later blocks of keys.
    assert counts["tilezero"] < counts["tilestored"] < counts["tdpbf16ps"] + counts["tdpbusd"]


# ---- code --------------------------------------------------------------------------------------


@cache
def assembly(kind: str, rows: int | Var, k: int, n: int) -> str:
    """The code of one product for a processor with tiles."""
    x = typed("bfloat16" if kind == "tdpbf16ps" else "uint8", rows, k)
    w = half(k, n) if kind == "tdpbf16ps" else q("int8", k, n)
    mod = graph(lambda g, x: g.linear(x, w, wide=kind == "tdpbf16ps"), x=x)
    artifacts = compile_module(mod, SPR).artifacts
    return "".join(bytes(a.view).decode() for a in artifacts if a.file_name.endswith(".s"))


def blocks(text: str) -> list[list[str]]:
    """The instructions of each basic block."""
    basic_blocks: list[list[str]] = [[]]
    for line in text.splitlines():
        if re.match(r"[.\w]+:", line):
            basic_blocks.append([])
        elif line.startswith("\t") and not line.startswith("\t."):
            basic_blocks[-1].append(line.strip())
            if line.startswith("\tj"):
                basic_blocks.append([])
    return basic_blocks


@pytest.mark.parametrize("kind", ["tdpbf16ps", "tdpbusd"])
def test_the_main_loop_loads_and_multiplies_only(kind: str) -> None:
    text = assembly(kind, 64, 512, 64)
    loops = [b for b in blocks(text) if any(kind in i for i in b)]
    assert len(loops) == 1
    words = [i.split()[0] for i in loops[0]]
    assert words.count(kind) == words.count("tileloadd") == 4
    # Of the 512 or 256 lines of the next panel, in two groups of rows of 16 or 8 steps.
    assert words.count("prefetcht1") == 16
    counting = {"leaq", "incq", "addq", "subq", "cmpq", "jl", "jne"}
    assert set(words) - {kind, "tileloadd", "prefetcht1"} <= counting
    assert text.count("tilestored") == text.count("tilezero") == 4
    positions = [
        text.index(x) for x in ("ldtilecfg", "tilezero", kind, "tilestored", "tilerelease")
    ]
    assert positions == sorted(positions)
    # Tiles are of four sums, two of rows and two of weights.
    pairs = {re.search(rf"{kind}\s+(.*)", i)[1] for i in loops[0] if kind in i}  # type: ignore[index]
    assert pairs == {f"%tmm{6 + j}, %tmm{4 + i}, %tmm{2 * i + j}" for i in (0, 1) for j in (0, 1)}


@pytest.mark.parametrize("kind", ["tdpbf16ps", "tdpbusd"])
def test_configurations_are_loaded_once_where_terms_fill_the_tiles(kind: str) -> None:
    assert assembly(kind, 64, 512, 64).count("ldtilecfg") == 1
    assert assembly(kind, 64, 520, 64).count("ldtilecfg") == 2
    assert assembly(kind, N, 512, 64).count("ldtilecfg") == 4  # 32, 16, 4 and 1 rows


def attention_graph(rows: int, keys: int, width: int, **attrs: bool) -> IRModule:
    """An attention of two heads."""
    q, kv = (typed("bfloat16", 1, 2, n, width) for n in (rows, keys))
    return graph(
        lambda g, q, k, v: g.attention(q, k, v, scale=0.1, wide=True, **attrs), q=q, k=kv, v=kv
    )


def attention_of(mod: IRModule, check: bool = False) -> PrimFunc:
    """The kernel of the attention of a module."""
    (group,) = [g for g in groups_of(mod, SPR) if g.anchor is not None]
    return schedule_group(group, SPR, check)


def products_of(s: Stmt) -> int:
    """How many products of tiles a statement computes, whose loops are constant."""
    match s:
        case For(extent=extent, body=body):
            return (int_value(extent) or 0) * products_of(body)
        case Store(value=Intrin(name=name)) if name in TILE_DOTS:
            return 1
    return sum(products_of(t) for t in substmts(s))


@pytest.mark.parametrize(
    ("rows", "keys", "width"), [(128, 64, 64), (17, 49, 80), (196, 197, 16), (33, 512, 48)]
)
def test_attention_multiplies_whole_tiles_once(rows: int, keys: int, width: int) -> None:
    f = attention_of(attention_graph(rows, keys, width))
    tiles, features = -(-rows // 16), -(-width // 32)
    of_keys = tiles * -(-keys // 16) * features
    of_values = tiles * -(-keys // 32) * (width // 16)
    assert products_of(f.body) == 2 * (of_keys + of_values)


def test_products_of_attention_load_and_multiply_only() -> None:
    artifacts = compile_module(attention_graph(64, 128, 128), SPR).artifacts
    text = bytes(artifacts["llvm/attention.s"].view).decode()
    loops = [b for b in blocks(text) if any("tdpbf16ps" in i for i in b)]
    words = [i.split()[0] for b in loops for i in b]
    assert words.count("tileloadd") * 2 == words.count("tdpbf16ps") * 3
    assert not [w for w in words if w.startswith("v")]
    assert text.count("ldtilecfg") == text.count("tilerelease") == 1


def test_attention_of_few_queries_has_no_tiles() -> None:
    assert 'scope="tile"' not in attention_of(attention_graph(3, 40, 32)).script()


@pytest.mark.parametrize("sizes", [(17, 49, 48), (37, 37, 64), (5, 530, 16)], ids=str)
def test_every_step_of_attention_is_proved(sizes: tuple[int, int, int]) -> None:
    mod = attention_graph(*sizes, causal=sizes[0] == sizes[1])
    f = attention_of(mod, check=True)
    assert f.op_class == "attention_fused" and 'scope="tile"' in f.script()
    assert f.script() == attention_of(mod).script()


@pytest.mark.parametrize(
    "target",
    [
        Target({"kind": "llvm", "mcpu": "x86-64-v4", "mattr": ["+avx512bf16"]}),
        Target({"kind": "c", "mcpu": "sapphirerapids"}),
        Target({"kind": "llvm", "mcpu": "sapphirerapids", "mattr": ["-amx-bf16", "-amx-int8"]}),
    ],
    ids=["no tiles", "kind c", "no products"],
)
def test_targets_without_products_of_tiles_have_vectors(target: Target) -> None:
    for x, w in (
        (typed("bfloat16", 64, 64), half(64, 64)),
        (typed("uint8", 64, 64), q("int8", 64, 64)),
    ):
        mod = graph(lambda g, x, w=w: g.linear(x, w, wide=w.array.dtype != np.int8), x=x)
        (product_group,) = [g for g in groups_of(mod, target) if g.anchor is not None]
        assert "tile" not in schedule_group(product_group, target).script()


def test_a_library_needs_the_features_of_tiles() -> None:
    needed = {"amx-bf16", "amx-int8", "amx-tile"}
    assert needed <= set(SPR.required_features)
    assert not needed & set(Target({"mcpu": "cooperlake"}).required_features)


# ---- schedules ---------------------------------------------------------------------------------

SHAPES = [(37, 80, 40), (N, 64, 33), (5, 34, 16)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["half", "bytes"])
def test_every_step_is_proved_and_means_the_product(
    kind: str, shape: tuple[int | Var, int, int]
) -> None:
    rows, k, n = shape
    if kind == "half":
        x, w = typed("bfloat16", rows, k), half(k, n)
    else:
        x, w = typed("uint8", rows, 2 * k), q("int8", 2 * k, n)
    mod = graph(lambda g, x: g.linear(x, w, wide=kind == "half"), x=x)
    (group,) = [g for g in groups_of(mod, TARGET) if g.anchor is not None]
    scheduled_func = schedule_group(group, TARGET, check=True)
    assert scheduled_func.script() == schedule_group(group, TARGET).script()
    assert 'scope="tile"' in scheduled_func.script()


def scheduled(build: Build, x: TensorType, check: bool) -> PrimFunc:
    (group,) = [g for g in groups_of(graph(build, x=x), TARGET) if g.anchor is not None]
    return schedule_group(group, TARGET, check)


@pytest.mark.in_turn()
@pytest.mark.parametrize("name", IMAGES)
def test_every_step_of_a_convolution_is_proved(name: str) -> None:
    size, attrs, image = IMAGES[name]
    for build, dtype in ((layer_of_halves, "bfloat16"), (layer_of_bytes, "uint8")):
        layer, x = build(*size, **attrs), typed(dtype, *image)
        scheduled_func = scheduled(layer, x, check=True)
        assert scheduled_func.op_class == "conv2d_tiles"
        assert scheduled_func.script() == scheduled(layer, x, check=False).script()


def test_images_have_blocks_as_wide_as_rows_of_tiles() -> None:
    widths = {
        (t, n): channel_blocks(TARGET, typed(t, 1, n, 8, 8)).block(1)
        for t in ("float32", "bfloat16", "uint8", "int16")
        for n in (5, 24, 48, 64, 96, 130)
    }
    assert [widths["float32", n] for n in (5, 24, 48, 64, 96, 130)] == [16] * 6
    assert [widths["int16", n] for n in (5, 24, 48, 64, 96, 130)] == [16] * 6
    assert [widths["bfloat16", n] for n in (5, 24, 48, 64, 96, 130)] == [16, 32, 16, 32, 32, 16]
    assert [widths["uint8", n] for n in (5, 24, 48, 64, 96, 130)] == [16, 32, 16, 64, 32, 16]
    smaller_target = Target({"kind": "llvm", "mcpu": "cooperlake"})
    assert channel_blocks(smaller_target, typed("bfloat16", 1, 64, 8, 8)).block(1) == 16


def test_sums_that_an_epilogue_reads_the_image_beside_are_of_vectors() -> None:
    def layers(g: Graph, x: RVar) -> Value:
        y = layer_of_halves(64, 64, 1, 1)(g, x)
        z = g.conv2d(y, half(64, 64, 1, 1), wide=True)
        return g.add(z, g.cast(y, dtype="float32"))

    mod = graph(layers, x=typed("bfloat16", 1, 64, 7, 7))
    scheduled_funcs = [
        schedule_group(g, TARGET) for g in groups_of(mod, TARGET) if g.anchor is not None
    ]
    assert [f.op_class for f in scheduled_funcs] == ["conv2d_tiles", "conv2d_direct"]


def test_winograd_gives_way_to_tiles() -> None:
    w, x = rand(64, 64, 3, 3), typed("float32", 1, 64, 28, 28)
    mod = graph(lambda g, x: g.conv2d(x, w, padding=(1, 1, 1, 1)), x=x)
    for precision, name in (("float32", "conv2d_winograd"), ("bfloat16", "conv2d_tiles")):
        kernels = compile_module(mod, TARGET, precision=precision).kernels
        assert name in {k.kernel_class for k in kernels}


@pytest.mark.parametrize(
    "name",
    [
        *("tile_copy_16x32_bfloat16_2", "tile_copy_7x16_uint8_3"),
        *("tile_windows_16x28_bfloat16_8", "tile_windows_5x12_uint8_1"),
        *("tile_zero_3x5_int32", "tile_zero_16x16_float32"),
        *("tile_copy_16x64_uint8", "tile_copy_1x32_bfloat16", "tile_copy_5x2_bfloat16"),
        *("tile_dot4_16x16x16", "tile_dot4_3x16x1", "tile_dot4_1x5x2"),
        *("tile_dot2_bf16_16x16x16", "tile_dot2_bf16_3x16x1", "tile_dot2_bf16_1x5x2"),
    ],
)
def test_instructions_are_what_their_loops_say(name: str) -> None:
    tile_instruction = instruction(name)
    assert tile_instruction is not None and tile_instruction.name == name
    rng, arrays = np.random.default_rng(0), {}
    for b in tile_instruction.template.buffers:
        shape = tuple(int_value(d) or 0 for d in b.shape)
        arrays[b.name] = rng.integers(0, 9, shape).astype(b.dtype.name)
    results = []
    for body in (tile_instruction.template, tile_instruction.implementation):
        mine = {name: x.copy() for name, x in arrays.items()}
        run(body, mine)
        results.append(mine)
    for b in tile_instruction.template.buffers:
        np.testing.assert_array_equal(results[0][b.name], results[1][b.name])
    written = tile_instruction.template.buffers[-1 if "dot" in name else 0].name
    assert not np.array_equal(results[0][written], arrays[written])


def test_other_names_are_no_instructions() -> None:
    for name in (
        "tile_copy_16x32_bfloat16_1",
        "tile_windows_16x28_bfloat16_0",
        "tile_zero_16x16",
        "tile_copy_16_uint8",
        "tile_dot2_16x16x16",
        "tile_dot4_16x16",
    ):
        assert instruction(name) is None


# ---- programs ----------------------------------------------------------------------------------


def at(rows: int, columns: int, first: str = "") -> str:
    """The indices of a whole matrix, from row and column `first` on."""
    count = rows * columns
    start = f" + T.Broadcast({first}, {count})" if first else ""
    lanes, size = f"T.Ramp(0, 1, {count})", f"T.Broadcast({columns}, {count})"
    return f"{lanes} // {size}{start}, {lanes} % {size}{start}"


def program(*lines: str, tiles: str = "") -> str:
    """A product of one tile of bytes, with other lines in place of its product or allocations."""
    tiles = (
        tiles
        or """
c = T.alloc_buffer((16, 16), "int32", scope="tile")
a = T.alloc_buffer((16, 64), "uint8", scope="tile")
b = T.alloc_buffer((2, 16, 64), "int8", scope="tile")
"""
    )
    product = f"T.tile_dot4(c[{at(16, 16)}], a[{at(16, 64)}], b[1, {at(16, 64)}])"
    whole = (
        f"c[{at(16, 16)}] = 0",
        f"a[{at(16, 64)}] = x[{at(16, 64, 'n')}]",
        f"b[1, {at(16, 64)}] = w[{at(16, 64)}]",
        f"c[{at(16, 16)}] = {product}",
        f"y[{at(16, 16)}] = c[{at(16, 16)}]",
    )
    body = "\n".join([*tiles.strip().splitlines(), *(lines or whole)])
    params = 'x: T.Buffer((32, 80), "uint8"), w: T.Buffer((16, 64), "int8")'
    indented = "".join(f"    {line}\n" for line in body.splitlines())
    return f"""@T.prim_func
def f({params}, y: T.Buffer((16, 16), "int32"), n: T.int64):
{indented}"""


def test_a_program_may_be_written_by_hand() -> None:
    mod = from_source(program())
    verify(mod)
    assert from_source(mod.script()).script() == mod.script()
    f = mod["f"]
    assert isinstance(f, PrimFunc)
    x, w = bytes_(0, np.dtype("uint8"), (32, 80)), bytes_(1, np.dtype("int8"), (16, 64))
    y = np.zeros((16, 16), np.int32)
    run(f, {"x": x, "w": w, "y": y, "n": 7})
    factors = w.reshape(16, 16, 4).transpose(0, 2, 1).reshape(64, 16).astype(np.int32)
    np.testing.assert_array_equal(y, x[7:23, 7:71].astype(np.int32) @ factors)
    artifacts = compile_module(mod, SPR).artifacts
    assert b"tdpbusd\t%tmm3, %tmm1, %tmm0" in bytes(artifacts["llvm/f.s"].view)


ZERO = f"c[{at(16, 16)}] = 0"
MOVE = f"a[{at(16, 64)}] = x[{at(16, 64)}]"
ONE = "y[0, 0] = 1"
FLAT = 'z = T.alloc_buffer((256,), "int32", scope="local")'


def _dot(c: str, a: str, b: str) -> str:
    return f"c[{at(16, 16)}] = T.tile_dot4({c}, {a}, {b})"


C, A, B = f"c[{at(16, 16)}]", f"a[{at(16, 64)}]", f"b[0, {at(16, 64)}]"
WRONG = [
    (program("c[0, 0] = 0"), "part of a tile of c is stored to"),
    (program(f"c[{at(8, 16)}] = 0"), "part of a tile of c is stored to"),
    (program(f"c[{at(16, 16)}] = 1"), "neither zero, loaded from memory, nor"),
    (program("y[0, 0] = c[0, 0]"), "part of a tile of c is loaded"),
    (program("y[0, 0] = c[0, 0] + 1"), "elements of c, which is in tiles"),
    (program(f"y[{at(16, 16)}] = {C} + T.Broadcast(T.int32(1), 256)"), "indices of"),
    (program(f"a[{at(16, 64)}] = x[{at(32, 32)}]"), "is no matrix of a tile's size"),
    (program(f"y[{at(8, 32)}] = {C}"), "is no matrix of the tile's size"),
    (program(f"a[{at(16, 64)}] = w[{at(16, 64)}]"), "a takes uint8x1024 here"),
    (program(f"b[n, {at(16, 64)}] = w[{at(16, 64)}]"), "register buffer b indexed by n"),
    (program(f"b[2, {at(16, 64)}] = w[{at(16, 64)}]"), "elements 2..2"),
    (program(_dot(C, B, A)), "tile_dot4 of int32, int8, uint8"),
    (program(_dot(C, A, f"w[{at(16, 64)}]")), "takes three whole tiles"),
    (
        program(FLAT, f"z[T.Ramp(0, 1, 256)] = T.tile_dot4({C}, {A}, {B})"),
        "within another expression",
    ),
    (program(ZERO, "assert n > 0, 'n'"), "not kept over parallel loops, calls and assertions"),
    (program("for i in T.parallel(2):", f"    {ZERO}"), "not kept over parallel loops"),
    (program("T.call_extern('void', 'g')"), "not kept over parallel loops, calls"),
    (
        program(ONE, tiles='c = T.alloc_buffer((9, 16, 16), "int32", scope="tile")'),
        "9 tiles at once",
    ),
    (
        program(ONE, tiles='c = T.alloc_buffer((17, 16), "int32", scope="tile")'),
        "is no tile: at most",
    ),
    (
        program(ONE, tiles='c = T.alloc_buffer((16, 17), "int32", scope="tile")'),
        "is no tile: at most",
    ),
    (
        program(ONE, tiles='c = T.alloc_buffer((16, 5), "int8", scope="tile")'),
        "is no tile: at most",
    ),
    (program(ONE, tiles='c = T.alloc_buffer((16,), "int8", scope="tile")'), "is no tile: at most"),
]


@pytest.mark.parametrize(("text", "fault"), WRONG)
def test_programs_that_no_processor_runs_are_refused(text: str, fault: str) -> None:
    with pytest.raises(TensorkilnError) as error:
        verify(from_source(text))
    assert fault in str(error.value)


OF_SHAPES = """
c = T.alloc_buffer((8, 16), "int32", scope="tile")
a = T.alloc_buffer((8, 32), "uint8", scope="tile")
b = T.alloc_buffer((16, 64), "int8", scope="tile")
"""


def test_factors_of_other_shapes_are_refused() -> None:
    c = f"c[{at(8, 16)}]"
    line = f"{c} = T.tile_dot4({c}, a[{at(8, 32)}], b[{at(16, 64)}])"
    with pytest.raises(TensorkilnError) as error:
        verify(from_source(program(line, tiles=OF_SHAPES)))
    assert "into 8 x 16 sums takes matrices of 8 x 64 and 16 x 64" in str(error.value)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"mcpu": "cooperlake"}, "buffer c is in tiles, which the target lacks"),
        ({"mcpu": "sapphirerapids", "kind": "c"}, "buffer c is in tiles, which the target lacks"),
        (
            {"mcpu": "sapphirerapids", "mattr": ["-amx-int8"]},
            "T.tile_dot4 multiplies tiles of int8, which the target cannot",
        ),
    ],
)
def test_targets_without_tiles_refuse_a_program_by_name(
    options: dict[str, Any], fault: str
) -> None:
    with pytest.raises(UnsupportedError) as error:
        compile_module(from_source(program()), Target({"kind": "llvm", **options}))
    assert fault in str(error.value) and "f" in str(error.value)
