"""Which convolutions Winograd's algorithm gets."""

from __future__ import annotations

import pytest

from tensorkiln.base.errors import UserError
from tensorkiln.families.winograd.costs import WinogradCosts, WinogradLayer, fastest_tile
from tensorkiln.ir.expr import Var
from tensorkiln.ir.module import IRModule
from tensorkiln.kernels.case import rand
from tensorkiln.target import Target
from tensorkiln.transform.relax.select_algorithms import SelectAlgorithms
from tests.transform.graphs import assert_same_values, graph, main, ops_of

SAME = (1, 1, 1, 1)
AVX512 = Target({"kind": "llvm", "mcpu": "x86-64-v4"})
ZEN = Target({"kind": "llvm", "mcpu": "znver4"})


def _conv(o: int, c: int, size: int, kernel: int = 3, **attrs: object) -> IRModule:
    attrs = {"padding": SAME, **attrs}
    return graph(
        lambda g, x: g.conv2d(x, rand(o, c, kernel, kernel), rand(o), **attrs),
        x=(1, c * attrs.get("groups", 1), size, size),  # type: ignore[operator]
    )


# Each choice is the measured best, or within 6% of it, of direct sums and four tiles.
@pytest.mark.parametrize(
    ("inputs", "outputs", "size", "slow_memory", "fast_memory"),
    [
        (64, 64, 56, (4, 4), (4, 4)),
        (128, 128, 28, (4, 4), (4, 4)),
        (256, 256, 14, (2, 2), (4, 4)),
        (512, 512, 7, None, (2, 4)),
        (128, 32, 28, (4, 4), (4, 4)),
        (32, 128, 27, (4, 4), (4, 4)),
        (160, 320, 6, None, (2, 2)),
        (512, 512, 2, None, None),  # the weights are what takes time
        (3, 64, 56, None, None),
        (64, 3, 56, None, None),
    ],
)
def test_layers_of_networks(
    inputs: int,
    outputs: int,
    size: int,
    slow_memory: tuple[int, int] | None,
    fast_memory: tuple[int, int] | None,
) -> None:
    for target, tile in ((AVX512, slow_memory), (ZEN, fast_memory)):
        layer = WinogradLayer(WinogradCosts.of(target))
        assert fastest_tile(inputs, outputs, [(size, size)], [2, 4], layer) == tile


@pytest.mark.parametrize(
    ("dilation", "tile"),
    [(1, (4, 4)), (2, (4, 4)), (4, (4, 4)), (12, None), (24, None), (36, None)],
)
def test_dilated_layers_of_28_pixels(dilation: int, tile: tuple[int, int] | None) -> None:
    """Of a large dilation most taps lie outside of the image, which direct sums leave out."""
    layer = WinogradLayer(WinogradCosts.of(ZEN), dilation=(dilation, dilation))
    assert fastest_tile(512, 512, [(28, 28)], [2, 4], layer) == tile


@pytest.mark.parametrize(
    ("channels", "size", "tile"), [(64, 56, (4, 4)), (256, 14, (4, 4)), (512, 7, (2, 2))]
)
def test_of_open_sizes_small_pictures_count_too(
    channels: int, size: int, tile: tuple[int, int]
) -> None:
    images = [(size, size), (-(-size // 2), -(-size // 2))]
    assert (
        fastest_tile(channels, channels, images, [2, 4], WinogradLayer(WinogradCosts.of(ZEN)))
        == tile
    )


@pytest.mark.parametrize("dilation", [(2, 2), (1, 3), (5, 2)])
def test_values_of_dilated_layers_are_kept(dilation: tuple[int, int]) -> None:
    mod = _conv(32, 24, 30, padding=(3, 1, 2, 4), dilation=dilation)
    after = SelectAlgorithms(AVX512)(mod)
    assert ops_of(after) == ["winograd_conv2d"]
    assert_same_values(mod, after, rtol=1e-6)


def test_values_are_kept() -> None:
    mod = _conv(32, 24, 30)
    after = SelectAlgorithms(AVX512)(mod)
    assert ops_of(after) == ["winograd_conv2d"]
    call = main(after).bindings[0].value
    assert call.attrs.padding == SAME and call.span == "node conv2d"  # type: ignore[union-attr]
    assert_same_values(mod, after, rtol=1e-5)


def test_rows_of_unknown_number_are_taken_for_those_of_pictures() -> None:
    sizes = (1, 32, Var("H"), 32)
    mod = graph(lambda g, x: g.conv2d(x, rand(32, 32, 3, 3), padding=SAME), x=sizes)
    after = SelectAlgorithms(AVX512)(mod)
    assert ops_of(after) == ["winograd_conv2d"]
    assert_same_values(mod, after, rtol=1e-5, H=5)


@pytest.mark.parametrize(
    "mod",
    [
        _conv(32, 32, 64, strides=(2, 2)),
        _conv(32, 16, 32, groups=2),
        _conv(32, 32, 32, kernel=1, padding=(0, 0, 0, 0)),
        graph(lambda g, x, w: g.conv2d(x, w, padding=SAME), x=(1, 32, 32, 32), w=(32, 32, 3, 3)),
    ],
)
def test_what_it_cannot_do_stays_the_same_object(mod: IRModule) -> None:
    assert SelectAlgorithms(AVX512)(mod) is mod


def test_weights_that_are_shared_stay_shared() -> None:
    w = rand(32, 32, 3, 3)
    mod = graph(
        lambda g, x: g.conv2d(g.conv2d(x, w, padding=SAME), w, padding=SAME), x=(1, 32, 32, 32)
    )
    first, second = (b.value for b in main(SelectAlgorithms(AVX512)(mod)).bindings)
    assert first.args[1] is second.args[1]  # type: ignore[union-attr]


@pytest.mark.parametrize(("largest", "tile"), [(4, (4, 4)), (2, (2, 2)), (0, None)])
def test_the_target_says_how_large(largest: int, tile: tuple[int, int] | None) -> None:
    call = main(SelectAlgorithms(AVX512.replace(winograd=largest))(_conv(32, 32, 32))).bindings[0]
    assert call.value.attrs.get("tile", None) == tile  # type: ignore[union-attr]


def test_a_larger_tile_is_refused() -> None:
    with pytest.raises(UserError) as e:
        AVX512.replace(winograd=6)
    assert e.value.code == "out-of-range"
