"""The colours of the page can be read, in light and in dark: contrasts as WCAG 2 defines them."""

from __future__ import annotations

import colorsys
import re
from importlib.resources import files

import pytest

from tensorkiln.report.svg import COLOURS, colours_css

CSS = (files("tensorkiln.report") / "page.css").read_text(encoding="utf-8")
MODES = ("light", "dark")

# What is written on what, by the names of the palette.
TEXT = {
    "ink": ("back", "card", "open", "plain", "added", "removed"),
    "soft": ("back", "card", "open"),
    "link": ("back", "card", "open"),
    "head-ink": ("head",),
    "head-soft": ("head",),
    "hunk": ("card",),
}
# Lines and marks, of which WCAG asks less.
SHAPES = {"mark": ("back", "card", "open"), "edge": ("card",)}
GROUNDS = {"back", "card", "open", "plain", "added", "removed", "head", "line"}


def palette(text: str) -> dict[str, tuple[str, str]]:
    """The light and the dark value of each variable."""
    value = r"(#\w+|hsl\([^)]*\))"
    variables = re.findall(rf"--([\w-]+): light-dark\({value}, {value}\)", text)
    return {name: (light, dark) for name, light, dark in variables}


def rgb(colour: str) -> tuple[float, float, float]:
    if colour.startswith("#"):
        assert len(colour) == 7
        return tuple(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))  # type: ignore[return-value]
    h, s, lightness = (float(n) for n in re.findall(r"[\d.]+", colour))
    return colorsys.hls_to_rgb(h / 360, lightness / 100, s / 100)


def contrast(first_colour: str, second_colour: str) -> float:
    def luminance(colour: str) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb(colour)]
        return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    dark, light = sorted((luminance(first_colour), luminance(second_colour)))
    return (light + 0.05) / (dark + 0.05)


PALETTE = palette(CSS)


def test_contrast_as_it_is_defined() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
    assert contrast("hsl(0 0% 0%)", "#ffffff") == pytest.approx(21)


@pytest.mark.parametrize("mode", MODES)
def test_texts_can_be_read(mode: str) -> None:
    side = MODES.index(mode)
    for minimum, pairs in ((4.5, TEXT), (3.0, SHAPES)):
        for name, grounds in pairs.items():
            for ground in grounds:
                ratio = contrast(PALETTE[name][side], PALETTE[ground][side])
                assert ratio >= minimum, f"{name} on {ground} in {mode}: {ratio:.2f}"


@pytest.mark.parametrize("mode", MODES)
def test_labels_can_be_read_on_every_kernel_s_colour(mode: str) -> None:
    side = MODES.index(mode)
    rules = re.findall(r"\.c(\d+) \{ (.*) \}\n", colours_css())
    assert [int(n) for n, _ in rules] == list(range(COLOURS))
    fills = [palette(body)["kernel"][side] for _, body in rules]
    assert len(set(fills)) == COLOURS
    for fill in fills:
        assert contrast(PALETTE["ink"][side], fill) >= 4.5, fill


def test_every_colour_is_of_the_palette_and_is_measured() -> None:
    rules = re.sub(r"--[\w-]+: light-dark\(.*\);", "", CSS)
    assert re.findall(r"#[0-9a-f]{3,8}\b|\brgba?\(|\bhsla?\(", rules) == []
    assert set(PALETTE) == {*TEXT, *SHAPES, *GROUNDS}
    variables = set(re.findall(r"var\(--([\w-]+)", CSS)) - {"kernel"}
    assert variables == set(PALETTE)
    inks = re.findall(r"(?<![\w-])(?:color|fill): var\(--([\w-]+)", CSS)
    assert set(inks) - {"kernel", *GROUNDS} == set(TEXT)
