"""Which convolutions Winograd's algorithm gets."""

from __future__ import annotations

import pytest

from tensorkiln.base.errors import UserError
from tensorkiln.ir.expr import Var
from tensorkiln.ir.module import IRModule
from tensorkiln.target import Target
from tensorkiln.transform.relax.select_winograd import SelectWinograd, fastest_tile
from tests.transform.graphs import assert_same_values, graph, main, ops_of, rand

SAME = (1, 1, 1, 1)
AVX512 = Target({"kind": "llvm", "mcpu": "x86-64-v4", "winograd": 4})


def _conv(o: int, c: int, size: int, kernel: int = 3, **attrs: object) -> IRModule:
    attrs = {"padding": SAME, **attrs}
    return graph(
        lambda g, x: g.conv2d(x, rand(o, c, kernel, kernel), rand(o), **attrs),
        x=(1, c * attrs.get("groups", 1), size, size),  # type: ignore[operator]
    )


@pytest.mark.parametrize(
    ("channels", "size", "tile"),
    [(64, 56, (4, 4)), (128, 28, (4, 4)), (256, 14, (2, 2)), (512, 14, (2, 2)), (32, 32, (4, 4))],
)
def test_layers_of_residual_networks(channels: int, size: int, tile: tuple[int, int]) -> None:
    assert fastest_tile(channels, channels, size, size, [2, 4], 16) == tile


def test_direct_sums_stay() -> None:
    assert fastest_tile(512, 512, 7, 7, [2, 4], 16) is None  # no whole tiles
    assert fastest_tile(512, 512, 4, 4, [2, 4], 16) is None  # the weights are what takes time
    assert fastest_tile(3, 64, 56, 56, [2, 4], 16) is None
    assert fastest_tile(64, 3, 56, 56, [2, 4], 16) is None


def test_values_are_kept() -> None:
    mod = _conv(32, 24, 8)
    after = SelectWinograd(AVX512)(mod)
    assert ops_of(after) == ["winograd_conv2d"]
    call = main(after).bindings[0].value
    assert call.attrs.padding == SAME and call.span == "node conv2d"  # type: ignore[union-attr]
    assert_same_values(mod, after, rtol=1e-5)


@pytest.mark.parametrize(
    "mod",
    [
        _conv(32, 32, 8, strides=(2, 2)),
        _conv(32, 32, 10, dilation=(2, 2)),
        _conv(32, 16, 8, groups=2),
        _conv(32, 32, 8, kernel=1, padding=(0, 0, 0, 0)),
        graph(lambda g, x, w: g.conv2d(x, w, padding=SAME), x=(1, 32, 8, 8), w=(32, 32, 3, 3)),
        graph(lambda g, x: g.conv2d(x, rand(32, 32, 3, 3), padding=SAME), x=(1, 32, Var("H"), 8)),
    ],
)
def test_what_it_cannot_do_stays_the_same_object(mod: IRModule) -> None:
    assert SelectWinograd(AVX512)(mod) is mod


def test_weights_that_are_shared_stay_shared() -> None:
    w = rand(32, 32, 3, 3)
    mod = graph(lambda g, x: g.conv2d(g.conv2d(x, w, padding=SAME), w, padding=SAME),
                x=(1, 32, 8, 8))  # fmt: skip
    first, second = (b.value for b in main(SelectWinograd(AVX512)(mod)).bindings)
    assert first.args[1] is second.args[1]  # type: ignore[union-attr]


@pytest.mark.parametrize(("largest", "tile"), [(4, (4, 4)), (3, (2, 2)), (2, (2, 2)), (0, None)])
def test_the_target_says_how_large(largest: int, tile: tuple[int, int] | None) -> None:
    call = main(SelectWinograd(AVX512.replace(winograd=largest))(_conv(32, 32, 16))).bindings[0]
    assert call.value.attrs.get("tile", None) == tile  # type: ignore[union-attr]


def test_a_larger_tile_is_refused() -> None:
    with pytest.raises(UserError) as e:
        AVX512.replace(winograd=6)
    assert e.value.code == "out-of-range"
