"""assign_layouts: which layout every value gets, what is converted, what is packed, and how often.

Eight lanes, so blocked channels are `A B/8 C D B%8`. Every case also keeps its float64 meaning
through this pass and through `fuse_ops` after it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorkiln.ir.expr import Var
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Call, Constant, RVar, TensorType, Tuple, Value, constant, tensor
from tensorkiln.kernels.case import Build, Graph, c, rand
from tensorkiln.ops.channel_window import ChannelWindow
from tensorkiln.ops.verify import verify
from tensorkiln.passes.instruments import require_round_trip
from tensorkiln.target import Target
from tensorkiln.transform.relax.assign_layouts import AssignLayouts
from tensorkiln.transform.relax.fuse_ops import FuseOps
from tests.schedule.test_grouped_conv import CASES as GROUPED
from tests.transform.graphs import assert_same_values, check_text, graph, main, ops_of

TARGET = Target({"kind": "llvm", "mcpu": "haswell"})
WIDE = Target({"kind": "llvm", "mcpu": "skylake-avx512"})
BLOCKED, HALO = "A B/8 C D B%8", "A B/8 C+1 D+1 B%8"
PLAIN4 = "A B C D"
PAD = {"padding": (1, 1, 1, 1)}
N = Var("N")


def assigned(
    build: Build, target: Target = TARGET, sizes: dict[str, int] | None = None, **params: object
) -> IRModule:
    """The graph with layouts: well-formed, and as good as the one before, fused or not."""
    mod = graph(build, **params)
    out = AssignLayouts(target)(mod)
    fused = FuseOps(target)(out)
    for after in (out, fused):
        verify(after)
        before = {p.name: p.type for p in main(mod).params}
        assert {p.name: p.type for p in after.graphs[0].params} == before
        assert_same_values(mod, after, **(sizes or {}))
    for t in result_types(out):
        assert t.layout is None
    return out


def result_types(mod: IRModule) -> list[TensorType]:
    """Types of the results, as a flat list."""
    result = main(mod).result
    values = result.fields if isinstance(result, Tuple) else (result,)
    return [v.type for v in values if isinstance(v.type, TensorType)]


def layouts(mod: IRModule) -> list[tuple[str, str]]:
    """Operator and layout of every value, in order."""
    return [(b.value.op, str(b.var.tensor.memory)) for b in main(mod).bindings]


def call_of(mod: IRModule, op: str, index: int = 0) -> Call:
    """One call of an operator."""
    calls = [b.value for b in main(mod).bindings if isinstance(b.value, Call)]
    return [v for v in calls if v.op == op][index]


def packed(mod: IRModule, op: str, arg: int = 1, index: int = 0) -> Constant:
    """A constant operand."""
    value = call_of(mod, op, index).args[arg]
    assert isinstance(value, Constant)
    return value


def conv(g: Graph, x: Value, filters: int, k: int = 3, **attrs: object) -> RVar:
    """A convolution that keeps the size of the image."""
    channels = x.type.shape[1].value  # type: ignore[union-attr]
    attrs = {"padding": (k // 2,) * 4} | attrs
    return g.conv2d(x, rand(filters, channels, k, k), **attrs)


# --- channel blocks and halos --------------------------------------------------------------------


def test_convolution_in_blocks_and_back() -> None:
    out = assigned(lambda g, x: conv(g, x, 8), x=(1, 16, 5, 5))
    assert layouts(out) == [("relayout", HALO), ("conv2d", BLOCKED), ("relayout", PLAIN4)]


def test_blocks_are_as_wide_as_the_vectors() -> None:
    out = assigned(lambda g, x: conv(g, x, 8, 1), WIDE, x=(1, 16, 5, 5))
    wide = "A B/16 C D B%16"
    assert layouts(out) == [("relayout", wide), ("conv2d", wide), ("relayout", PLAIN4)]


def test_spans_name_the_value_that_is_converted() -> None:
    out = assigned(lambda g, x: conv(g, g.relu(x), 8), x=(1, 16, 5, 5))
    assert [b.value.span for b in main(out).bindings if b.value.op == "relayout"] == [
        "node relu",
        "node conv2d",
    ]


def test_no_convolution_no_change() -> None:
    mod = graph(lambda g, x: g.max_pool2d(g.relu(x), kernel=(2, 2)), x=(1, 16, 6, 6))
    assert AssignLayouts(TARGET)(mod) is mod


@pytest.mark.parametrize(
    ("padding", "halo"),
    [
        ((1, 0, 0, 0), "A B/8 C+1 D B%8"),
        ((0, 0, 0, 2), "A B/8 C D+2 B%8"),
        ((1, 2, 2, 0), "A B/8 C+2 D+2 B%8"),
        ((0, 0, 0, 0), BLOCKED),
    ],
)
def test_halo_is_the_larger_side(padding: tuple[int, ...], halo: str) -> None:
    out = assigned(lambda g, x: conv(g, x, 8, padding=padding), x=(1, 16, 5, 5))
    assert layouts(out)[0] == ("relayout", halo)


def test_halo_is_the_largest_padding_of_the_readers() -> None:
    def build(g: Graph, x: RVar) -> Value:
        y = conv(g, x, 16, 1)
        return g.add(g.add(conv(g, y, 8, 3), conv(g, y, 8, 5)), conv(g, y, 8, 1))

    out = assigned(build, x=(1, 16, 6, 6))
    assert layouts(out)[:2] == [("relayout", BLOCKED), ("conv2d", "A B/8 C+2 D+2 B%8")]
    assert ops_of(out).count("relayout") == 2, "in and out: one halo serves all three"


def test_a_halo_wider_one_way_serves_too() -> None:
    def build(g: Graph, x: RVar) -> Value:
        y = conv(g, x, 16, 1)
        return g.add(
            conv(g, y, 8, padding=(1, 1, 1, 1)),
            g.conv2d(y, rand(8, 16, 5, 3), padding=(2, 1, 2, 1)),
        )

    out = assigned(build, x=(1, 16, 6, 6))
    assert layouts(out)[1] == ("conv2d", "A B/8 C+2 D+1 B%8")
    assert ops_of(out).count("relayout") == 2


def test_halo_is_owned_by_what_the_convolution_reads() -> None:
    """The elementwise value has it, not the convolution before it."""
    out = assigned(lambda g, x: conv(g, g.relu(conv(g, x, 16, 1)), 8), x=(1, 16, 6, 6))
    assert layouts(out) == [
        ("relayout", BLOCKED),
        ("conv2d", BLOCKED),
        ("relu", HALO),
        ("conv2d", BLOCKED),
        ("relayout", PLAIN4),
    ]


def test_one_conversion_for_two_readers() -> None:
    out = assigned(lambda g, x: g.add(conv(g, x, 8), g.relu(conv(g, x, 8))), x=(1, 16, 5, 5))
    assert layouts(out) == [
        ("relayout", HALO),
        ("conv2d", BLOCKED),
        ("conv2d", BLOCKED),
        ("relu", BLOCKED),
        ("add", BLOCKED),
        ("relayout", PLAIN4),
    ]
    assert call_of(out, "conv2d").args[0] is call_of(out, "conv2d", 1).args[0]


def test_one_conversion_back_for_two_readers() -> None:
    def build(g: Graph, x: RVar) -> Value:
        y = conv(g, x, 8)
        return Tuple((g.transpose(y, axes=(0, 2, 3, 1)), g.reshape(y, shape=(8, 25)), y))

    out = assigned(build, x=(1, 16, 5, 5))
    assert ops_of(out) == ["relayout", "conv2d", "relayout", "transpose", "reshape"]


def test_symbolic_batch_in_blocks() -> None:
    out = assigned(lambda g, x: conv(g, x, 8), sizes={"N": 3}, x=(N, 16, 5, 5))
    assert layouts(out)[:2] == [("relayout", HALO), ("conv2d", BLOCKED)]


def test_image_of_unknown_size_in_blocks() -> None:
    sizes = (1, 16, Var("H"), Var("W"))
    out = assigned(lambda g, x: conv(g, x, 8), sizes={"H": 4, "W": 3}, x=sizes)
    assert layouts(out)[:2] == [("relayout", HALO), ("conv2d", BLOCKED)]


# float32 [1, 16, 5, 5] and float32 [8, 16, 3, 3]
ROW_MAJOR: dict[str, tuple[Build, dict[str, object]]] = {
    "weights given": (
        lambda g, x, w: g.conv2d(x, w, **PAD),
        {"x": (1, 16, 5, 5), "w": (8, 16, 3, 3)},
    ),
    "double": (
        lambda g, x: g.conv2d(x, constant(np.ones((8, 16, 3, 3))), **PAD),
        {"x": tensor((1, 16, 5, 5), "float64")},
    ),
}


@pytest.mark.parametrize("name", ROW_MAJOR)
def test_convolution_without_direct_schedule_stays(name: str) -> None:
    build, params = ROW_MAJOR[name]
    mod = graph(build, **params)
    assert AssignLayouts(TARGET)(mod) is mod
    assert_same_values(mod, FuseOps(TARGET)(mod))


# --- the stem ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("channels", "want"), [(1, "A B C+1 D+1"), (3, "A B C+1 D+1"), (4, HALO)])
def test_stem_is_planar_below_half_a_block(channels: int, want: str) -> None:
    out = assigned(lambda g, x: conv(g, x, 16), x=(1, channels, 5, 5))
    assert layouts(out)[:2] == [("relayout", want), ("conv2d", BLOCKED)]


def test_stem_without_padding_reads_the_input() -> None:
    out = assigned(lambda g, x: conv(g, x, 16, 3, padding=(0, 0, 0, 0)), x=(1, 3, 5, 5))
    assert layouts(out) == [("conv2d", BLOCKED), ("relayout", PLAIN4)]
    assert call_of(out, "conv2d").args[0] is main(out).params[0]


# --- weights -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("filters", "channels", "layout"),
    [
        (8, 16, "A/8 B/8 C D B%8 A%8"),
        (16, 16, "A/16 B/8 C D B%8 A%16"),
        (24, 16, "A/24 B/8 C D B%8 A%24"),
        (40, 16, "A/8 B/8 C D B%8 A%8"),
        (10, 19, "A/16 B/4 C D B%4 A%16"),  # one zero, of 8 five
        (16, 3, "A/16 B C D A%16"),
    ],
)
def test_filters_lie_in_panels(filters: int, channels: int, layout: str) -> None:
    w, b = rand(filters, channels, 3, 3), rand(filters)
    out = assigned(lambda g, x: g.conv2d(x, w, b), x=(1, channels, 5, 5))
    weight = packed(out, "conv2d")
    assert str(weight.type.layout) == layout
    np.testing.assert_array_equal(weight.type.layout.unpack(weight.array, w.array.shape), w.array)
    bias = packed(out, "conv2d", 2)
    assert str(bias.type.layout) == "A/8 A%8"
    assert bias.array.ravel()[:filters].tolist() == b.array.tolist()
    assert not bias.array.ravel()[filters:].any()


def test_depthwise_filters_lie_by_channel_blocks() -> None:
    out = assigned(lambda g, x: g.conv2d(x, rand(19, 1, 3, 3), groups=19, **PAD), x=(1, 19, 5, 5))
    assert layouts(out)[:2] == [("relayout", HALO), ("conv2d", BLOCKED)]
    assert str(packed(out, "conv2d").type.layout) == "A/8 C D B A%8"


def test_few_channels_in_groups_are_blocked() -> None:
    """The planar stem is for one group only."""
    out = assigned(lambda g, x: g.conv2d(x, rand(2, 1, 3, 3), groups=2, **PAD), x=(1, 2, 5, 5))
    assert layouts(out)[0] == ("relayout", HALO)


def test_grouped_filters_lie_over_the_window_of_their_panel() -> None:
    w = rand(16, 4, 1, 1)
    build = lambda g, x: Tuple(tuple(g.conv2d(x, w, groups=4) for _ in "ab"))  # noqa: E731
    out = assigned(build, x=(1, 16, 5, 5))
    weight = packed(out, "conv2d")
    assert str(weight.type.layout) == "A/8 B/4 C D B%4 A%8"
    assert call_of(out, "conv2d").attrs.channel_window == (8, 4)
    assert weight.type.static_shape() == (16, 8, 1, 1), "a panel of 8 outputs reads two groups"
    wide = ChannelWindow(4, 16, 4, 8, 4).spread(w.array)
    np.testing.assert_array_equal(weight.type.layout.unpack(weight.array, wide.shape), wide)
    assert packed(out, "conv2d", index=1) is weight


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("mcpu", ["x86-64", "haswell", "x86-64-v4"])
@pytest.mark.parametrize(("groups", "inputs", "outputs"), [c[:3] for c in GROUPED])
def test_calls_say_how_their_weights_are_stored(
    groups: int, inputs: int, outputs: int, mcpu: str, dtype: str
) -> None:
    """So the types follow from the operands, in the text too, and values stay."""
    low = np.arange(outputs * inputs // groups).reshape(outputs, inputs // groups, 1, 1) % 11 - 5
    x = tensor((1, inputs, 2, 3), "uint8" if dtype == "int8" else dtype)
    before = graph(lambda g, x: g.conv2d(x, constant(low.astype(dtype)), groups=groups), x=x)
    after = AssignLayouts(Target({"kind": "llvm", "mcpu": mcpu}))(before)
    verify(after)
    require_round_trip(after, "assigned")
    assert call_of(after, "conv2d").attrs.channel_window[0] % 4 == 0
    assert_same_values(before, after)


def test_shared_weights_are_packed_once() -> None:
    w, b = rand(16, 16, 3, 3), rand(16)
    out = assigned(lambda g, x: g.conv2d(g.conv2d(x, w, b, **PAD), w, b, **PAD), x=(1, 16, 5, 5))
    for arg in (1, 2):
        assert packed(out, "conv2d", arg, 0) is packed(out, "conv2d", arg, 1)


def test_names_of_weights_stay() -> None:
    w = constant(rand(8, 16, 1, 1).array, "stem.weight")
    out = assigned(lambda g, x: g.conv2d(x, w), x=(1, 16, 5, 5))
    assert packed(out, "conv2d").name == "stem.weight"


def test_a_computed_bias_is_converted() -> None:
    """It may be a parameter, and need not fill its last vector."""
    out = assigned(
        lambda g, x, b: g.conv2d(x, rand(10, 16, 1, 1), g.exp(b)), x=(1, 16, 5, 5), b=(10,)
    )
    assert ("relayout", "A/8 A%8") in layouts(out)
    assert str(call_of(out, "conv2d").args[2].tensor.memory) == "A/8 A%8"


# --- constants that several kernels read ---------------------------------------------------------


def _short(target: Target) -> str:
    return f"{target.kind} {target.mcpu}"


def _tied(table: Constant, weights: Constant, axis: int = 0) -> Build:
    """Rows (or columns) of a table, and a product with other weights."""

    def build(g: Graph, x: RVar, i: RVar) -> Value:
        return Tuple((g.take(table, i, axis=axis), g.linear(x, weights)))

    return build


def _bits(dtype: str, *shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape).astype(dtype)


WORDS = _bits("float32", 100, 16)
ZEROS = np.where(WORDS > 1, np.float32(0), WORDS)
ALMOST = WORDS.copy()
ALMOST[99, 15] = np.nextafter(ALMOST[99, 15], np.float32(9))


@pytest.mark.parametrize("target", [TARGET, WIDE, Target("llvm"), Target("c")], ids=_short)
@pytest.mark.parametrize(
    ("table", "weights", "axis", "shared"),
    [
        (WORDS, WORDS.T, 0, True),  # a language model's tied embedding
        (WORDS, WORDS, 0, True),
        (WORDS, WORDS.T.copy(), 0, True),  # as exporters write it, which transpose it
        (WORDS, WORDS.copy(), -2, True),
        (ZEROS, np.where(ZEROS == 0, np.float32(-0.0), ZEROS).T, 0, False),  # other bits
        (WORDS, ALMOST.T, 0, False),
        (WORDS, -WORDS.T, 0, False),
        (WORDS, WORDS.T, 1, False),  # columns
        (WORDS, WORDS[:50].T, 0, False),
        (WORDS[:, None], WORDS.T, 0, False),
    ],
)
def test_a_table_is_stored_once(
    table: np.ndarray, weights: np.ndarray, axis: int, shared: bool, target: Target, tmp_path: Path
) -> None:
    build = _tied(constant(table, "table"), constant(weights, "w"), axis=axis)
    x = tensor((2, weights.shape[0]), "float32")
    out = assigned(build, target, x=x, i=tensor((3,), "int64"))
    a, b = packed(out, "take", 0), packed(out, "linear", 1)
    assert (a.data is b.data) == shared == (a.type.layout is not None)
    assert (a.name, b.name) == ("table", "w")
    require_round_trip(out, tmp_path / "module.py")


@pytest.mark.parametrize(
    ("rows", "optimize", "shared"),
    [
        (6, None, True),
        (7, None, False),
        (7, "size", True),
        (500, "size", True),
        (N, None, False),
        (N, "size", True),
    ],
)
def test_many_rows_are_read_as_they_are(rows: object, optimize: str | None, shared: bool) -> None:
    """Where speed matters, which an unknown number of rows may cost, too."""
    target = TARGET if optimize is None else TARGET.replace(optimize=optimize)
    build = _tied(constant(WORDS, "table"), constant(WORDS.T, "w"))
    out = AssignLayouts(target)(graph(build, x=(2, 16), i=tensor((rows,), "int64")))
    assert (packed(out, "take", 0).data is packed(out, "linear", 1).data) == shared


# --- weights that are to be small ----------------------------------------------------------------

SMALL = WIDE.replace(optimize="size")


@pytest.mark.parametrize("rows", [1, 64])
@pytest.mark.parametrize("columns", [16, 48, 80, 100, 1000, 50257])
@pytest.mark.parametrize("target", [SMALL, TARGET.replace(optimize="size")], ids=_short)
def test_small_panels_have_no_zeros_but_of_vectors(rows: int, columns: int, target: Target) -> None:
    lanes = target.vector_lanes("float32")
    out = AssignLayouts(target)(graph(lambda g, x: g.linear(x, rand(4, columns)), x=(rows, 4)))
    w = packed(out, "linear")
    whole = -(-columns // lanes) * lanes
    assert w.data.size <= 4 * max(whole, columns * 1.02)


@pytest.mark.parametrize("channels", [16, 20, 24, 36, 40, 100])
@pytest.mark.parametrize("target", [WIDE, SMALL], ids=_short)
def test_blocks_of_channels_without_zeros(channels: int, target: Target) -> None:
    """For speed too: zeros are multiplied."""
    out = assigned(lambda g, x: conv(g, x, 32), target, x=(1, channels, 6, 6))
    assert packed(out, "conv2d").data.size == 32 * channels * 9


@pytest.mark.parametrize("groups", [2, 4, 8, 16])
def test_small_windows_of_groups(groups: int) -> None:
    """No wider than needed, where a wider panel would be as fast."""

    def build(g: Graph, x: RVar) -> Value:
        return g.conv2d(x, rand(64, 64 // groups, 3, 3), groups=groups, **PAD)

    large, small = (assigned(build, t, x=(1, 64, 6, 6)) for t in (WIDE, SMALL))
    assert packed(small, "conv2d").data.size <= packed(large, "conv2d").data.size


# --- linear and attention ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "columns", "vectors"),
    [
        (64, 48, 3),
        (64, 16, 2),
        (64, 40, 2),
        (64, 24, 3),
        (4, 40, 2),
        (4, 10, 2),
        (3, 8, 1),
        (1, 40, 5),
        (1, 800, 8),
        (N, 48, 3),
    ],
)
def test_linear_weights_lie_in_panels(rows: object, columns: int, vectors: int) -> None:
    """Few rows want wide panels, many rows want three vectors or two that divide evenly."""
    w, b = rand(20, columns), rand(columns)
    out = assigned(lambda g, x: g.linear(x, w, b), sizes={"N": 5}, x=(rows, 20))
    nr = 8 * vectors
    assert layouts(out) == [("linear", "A B")]
    weight = packed(out, "linear")
    assert str(weight.type.layout) == f"B/{nr} A B%{nr}"
    np.testing.assert_array_equal(weight.type.layout.unpack(weight.array, w.array.shape), w.array)
    assert str(packed(out, "linear", 2).type.layout) == "A/8 A%8"


@pytest.mark.parametrize(
    ("target", "terms", "columns", "vectors"),
    [
        (WIDE, 1024, 256, 4),
        (WIDE, 1024, 96, 3),
        (WIDE, 1024, 32, 2),
        (WIDE, 1000, 256, 2),
        (TARGET, 1024, 256, 2),
    ],
)
def test_low_tiles_where_rows_fall_on_the_same_lines(
    target: Target, terms: int, columns: int, vectors: int
) -> None:
    w = rand(terms, columns)
    out = assigned(lambda g, x: g.linear(x, w), target, x=(20, terms))
    nr = target.vector_lanes("float32") * vectors
    assert str(packed(out, "linear").type.layout) == f"B/{nr} A B%{nr}"


@pytest.mark.parametrize(
    ("left_shape", "right", "layout"),
    [
        ((16, 64), (64, 48), "B/24 A B%24"),
        ((2, 3, 16, 64), (64, 40), "B/16 A B%16"),
        ((3, 16, 64), (3, 64, 48), "A C/24 B C%24"),
        ((N, 64), (64, 48), "B/24 A B%24"),
    ],
)
def test_the_right_side_of_a_large_product_is_packed(
    left_shape: tuple[object, ...], right: tuple[int, ...], layout: str
) -> None:
    plain = " ".join("ABCD"[: len(left_shape)])
    out = assigned(lambda g, x, y: g.matmul(x, y), sizes={"N": 9}, x=left_shape, y=right)
    assert layouts(out) == [("relayout", layout), ("matmul", plain)]


@pytest.mark.parametrize(
    ("left_shape", "right"),
    [((16, 64), (64, N)), ((16, 8), (8, 48)), ((7, 640), (640, 48)), ((1, 64, 64), (2, 64, 64))],
)
def test_the_right_side_of_others_stays(
    left_shape: tuple[object, ...], right: tuple[object, ...]
) -> None:
    mod = graph(lambda g, x, y: g.matmul(x, y), x=left_shape, y=right)
    assert AssignLayouts(TARGET)(mod) is mod


def test_linear_with_a_given_bias() -> None:
    out = assigned(lambda g, x, b: g.linear(x, rand(20, 10), b), x=(5, 20), b=(10,))
    assert layouts(out) == [("relayout", "A/8 A%8"), ("linear", "A B")]


def test_linear_with_shared_weights() -> None:
    w = rand(16, 16)
    out = assigned(lambda g, x: g.linear(g.linear(x, w), w), x=(5, 16))
    assert packed(out, "linear") is packed(out, "linear", index=1)


LINEAR_STAYS: dict[str, tuple[Build, dict[str, object]]] = {
    "weights given": (lambda g, x, w: g.linear(x, w), {"x": (5, 16), "w": (16, 8)}),
    "double": (
        lambda g, x: g.linear(x, constant(np.ones((16, 8)))),
        {"x": tensor((5, 16), "float64")},
    ),
}


@pytest.mark.parametrize("name", LINEAR_STAYS)
def test_linear_stays(name: str) -> None:
    build, params = LINEAR_STAYS[name]
    mod = graph(build, **params)
    assert AssignLayouts(TARGET)(mod) is mod
    assert_same_values(mod, FuseOps(TARGET)(mod))


def test_attention_wants_keys_by_lanes() -> None:
    out = assigned(
        lambda g, q, k, v: g.attention(q, k, v, scale=0.3),
        q=(1, 2, 5, 16),
        k=(1, 2, 9, 16),
        v=(1, 2, 9, 16),
    )
    assert layouts(out) == [("relayout", "A B C/8 D C%8"), ("attention", PLAIN4)]
    q, k, v = main(out).params
    assert call_of(out, "relayout").args == (k,)
    assert (call_of(out, "attention").args[0], call_of(out, "attention").args[2]) == (q, v)


def test_attention_layers_share_converted_keys() -> None:
    out = assigned(
        lambda g, x, k: g.attention(g.attention(x, k, x, scale=1.0), k, k, scale=1.0),
        x=(1, 2, 9, 16),
        k=(1, 2, 9, 16),
    )
    assert ops_of(out) == ["relayout", "attention", "attention"]


# --- what follows a convolution ------------------------------------------------------------------

# x is float32 [1, 16, 6, 6]; the layouts of the values from the first convolution to the last one
KEEPS: dict[str, Build] = {
    "chain": lambda g, y: g.clip(g.mul(g.sigmoid(y), y), min=0.0, max=0.5),
    "max pool": lambda g, y: g.max_pool2d(y, kernel=(2, 2)),
    "average pool": lambda g, y: g.avg_pool2d(y, kernel=(3, 3), padding=(1, 1, 1, 1)),
    "number": lambda g, y: g.add(y, 1.5),
    "channel constant": lambda g, y: g.mul(y, rand(1, 16, 1, 1)),
    "one channel": lambda g, y: g.add(rand(1, 1, 6, 6), y),
    "whole constant": lambda g, y: g.maximum(rand(1, 16, 6, 6), y),
    "row": lambda g, y: g.add(y, g.param("v", tensor((6,), "float32"))),
    "taken rows": lambda g, y: g.take(y, constant(np.array([2, 2, 0, 1, 5, 5])), axis=2),
    "taken columns": lambda g, y: g.take(y, g.param("v", tensor((6,), "int64")), axis=-1),
    "concat": lambda g, y: g.concat(y, g.relu(y), axis=1),
    "concat from behind": lambda g, y: g.concat(y, g.relu(y), axis=-3),
}


@pytest.mark.parametrize("name", KEEPS)
def test_blocks_are_kept(name: str) -> None:
    out = assigned(lambda g, x: conv(g, KEEPS[name](g, conv(g, x, 16, 1)), 8), x=(1, 16, 6, 6))
    assert ops_of(out).count("relayout") == 2, "in and out, none between"
    assert {text for _, text in layouts(out)[:-1]} == {BLOCKED, HALO}
    assert layouts(out)[-3][1] == HALO


def test_constants_follow_the_blocks() -> None:
    k = rand(1, 16, 1, 1)
    out = assigned(lambda g, x: g.mul(conv(g, x, 16, 1), k), x=(1, 16, 6, 6))
    assert str(packed(out, "mul").type.layout) == BLOCKED
    assert packed(out, "mul").array.shape == (1, 2, 1, 1, 8)


def test_given_operands_follow_the_blocks() -> None:
    out = assigned(
        lambda g, x, s, t: g.add(g.mul(conv(g, x, 16, 1), s), t),
        x=(1, 16, 6, 6),
        s=(1, 16, 1, 1),
        t=(1, 1, 6, 6),
    )
    assert layouts(out) == [
        ("relayout", BLOCKED),
        ("conv2d", BLOCKED),
        ("relayout", BLOCKED),
        ("mul", BLOCKED),
        ("add", BLOCKED),
        ("relayout", PLAIN4),
    ]
    assert call_of(out, "add").args[1] is main(out).params[2], "one channel is read as it lies"


LEAVES: dict[str, tuple[Build, str]] = {
    "transpose": (lambda g, y: g.transpose(y, axes=(0, 2, 3, 1)), "transpose"),
    "global mean": (lambda g, y: g.relu(g.mean(y, axes=(2, 3))), "relu"),
    "concat of uneven channels": (lambda g, y: g.concat(y, conv(g, y, 12, 1), axis=1), "concat"),
    "concat of rows": (lambda g, y: g.concat(y, y, axis=2), "concat"),
    "channels of rank 3": (
        lambda g, y: g.add(y, g.param("v", tensor((16, 1, 1), "float32"))),
        "add",
    ),
    "taken channels": (lambda g, y: g.take(y, constant(np.array([1, 0, 3])), axis=1), "take"),
    "softmax": (lambda g, y: g.softmax(y), "softmax"),
}


@pytest.mark.parametrize("name", LEAVES)
def test_blocks_end(name: str) -> None:
    build, op = LEAVES[name]
    out = assigned(lambda g, x: build(g, conv(g, x, 16, 1)), x=(1, 16, 6, 6))
    assert layouts(out)[-1][0] == op
    last = main(out).bindings[-1]
    assert last.var.tensor.layout is None
    assert all(a.type.layout is None for a in last.value.args)  # type: ignore[union-attr]


def test_row_major_operands_alone_stay_row_major() -> None:
    """Elementwise operators before the first convolution are not pulled into blocks."""
    out = assigned(lambda g, x: conv(g, g.relu(x), 8), x=(1, 16, 5, 5))
    assert layouts(out)[:2] == [("relu", PLAIN4), ("relayout", HALO)]


def test_results_are_row_major_again() -> None:
    def build(g: Graph, x: RVar) -> Value:
        y = conv(g, x, 16)
        return Tuple((y, g.relu(y), x, g.linear(g.mean(y, axes=(2, 3)), rand(16, 4))))

    out = assigned(build, x=(1, 16, 5, 5))
    values = main(out).result.fields  # type: ignore[union-attr]
    assert all(v.type.layout is None for v in values)
    assert [b.value.op for b in main(out).bindings if b.var in values] == [
        "relayout",
        "linear",
        "relayout",
    ]


def test_the_pass_is_deterministic() -> None:
    mod = graph(lambda g, x: g.relu(conv(g, conv(g, x, 16), 16, 5)), x=(1, 16, 5, 5))
    first, second = (AssignLayouts(TARGET)(mod) for _ in range(2))
    assert layouts(first) == layouts(second)


# --- any small network ---------------------------------------------------------------------------


@st.composite
def networks(draw: st.DrawFn) -> IRModule:
    """Convolutions, pools, elementwise operators and concats over [1, C, 5, 5] images."""
    g = Graph()
    values: list[RVar] = [
        g.param("x", tensor((1, draw(st.sampled_from((3, 8, 12))), 5, 5), "float32"))
    ]
    for _ in range(draw(st.integers(1, 7))):
        values.append(_layer(draw, g, values))
    results = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
    return IRModule((g.finish(Tuple((*results, values[-1]))),))


def _layer(draw: st.DrawFn, g: Graph, values: list[RVar]) -> RVar:
    x = draw(st.sampled_from(values))
    channels = x.tensor.static_shape()[1]  # type: ignore[index]
    operand = draw(st.sampled_from([v for v in values if v.tensor.shape == x.tensor.shape]))
    kind = draw(st.sampled_from(("conv", "depthwise", "binary", "unary", "pool", "gate", "concat")))
    match kind:
        case "conv":
            k = draw(st.sampled_from((1, 3, 5)))
            return conv(g, x, draw(st.sampled_from((4, 8, 16))), k)
        case "depthwise":
            return g.conv2d(x, rand(channels, 1, 3, 3), rand(channels), groups=channels, **PAD)
        case "binary":
            return g.emit(draw(st.sampled_from(("add", "mul", "maximum"))), x, operand)
        case "unary":
            return g.emit(draw(st.sampled_from(("relu", "tanh"))), x)
        case "pool":
            return g.max_pool2d(x, kernel=(3, 3), **PAD)
        case "gate":
            return g.mul(x, g.sigmoid(g.mean(x, axes=(2, 3), keepdims=True)))
    return g.concat(x, operand, axis=1) if channels <= 32 else g.mul(x, c(0.5))


@settings(max_examples=100)
@given(networks())
def test_any_network_keeps_its_meaning(mod: IRModule) -> None:
    out = AssignLayouts(TARGET)(mod)
    fused = FuseOps(TARGET)(out)
    for after in (out, fused):
        verify(after)
        assert_same_values(mod, after)
    conversions: set[tuple[RVar, str]] = set()
    for b in main(out).bindings:
        call = b.value
        assert isinstance(call, Call)
        if call.op == "relayout":
            key = call.args[0], call.attrs.layout
            assert key not in conversions, "converted twice"
            conversions.add(key)  # type: ignore[arg-type]
        if call.op == "conv2d":
            memory: Layout = call.args[0].type.memory  # type: ignore[union-attr]
            need = call.attrs.padding
            assert memory.halo(2) >= need[0] and memory.halo(3) >= need[1]


def test_layouts_as_text() -> None:
    check_text(
        AssignLayouts(TARGET),
        """
        @R.function
        def main(x: R.Tensor((64, 64), "float32"), y: R.Tensor((64, 64), "float32")):
            z = R.matmul(x, y)
            return z
        """,
        """
        @R.function
        def main(x: R.Tensor((64, 64), "float32"), y: R.Tensor((64, 64), "float32")):
            y_layout1 = R.relayout(y, layout="B/16 A B%16")
            z = R.matmul(x, y_layout1, transpose_a=False, transpose_b=False, wide=False)
            return z
        """,
    )
