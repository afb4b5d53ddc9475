"""The page of ResNet-18 in headless Chromium: its parts are there and drawn, in light and dark."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import onnx
import pytest

from tensorkiln.cli.demo_model import resnet18
from tensorkiln.cli.entry import main
from tests.report.browser import DARK, LIGHT, act, need_chromium, screenshot
from tests.report.pixels import Picture, read_png

SIZE = (1500, 6000)
PARTS = {
    "graph": "#graph svg",
    "node": "#graph g.op rect",
    "diff": ".diff",
    "kernel": "#kernel-0-detail .sides",
    "texts": "#kernel-0-detail pre",
    "memory": "#memory svg",
    "block": "#memory rect.block",
    "table": "table",
}

# Opens a difference and a kernel, and tells where the parts lie.
SCRIPT = (
    f"const parts = {json.dumps(PARTS)};"
    + """
tables.passes.open(tables.passes.rows.find((r) => r.cells[1] === "fuse_ops"), true);
tables.kernels.open(tables.kernels.rows[0], true);
told.parts = {};
for (const [name, query] of Object.entries(parts)) {
  told.parts[name] = all(query).map((e) => {
    const r = e.getBoundingClientRect();
    return [r.x + scrollX, r.y + scrollY, r.width, r.height];
  });
}
told.nodes = data.graph.kinds.filter((kind) => kind === "op").length;
"""
)

ADDED_AND_REMOVED = {
    LIGHT: {(0xE2, 0xF6, 0xE6), (0xFD, 0xE7, 0xE7)},
    DARK: {(0x16, 0x38, 0x1F), (0x45, 0x20, 0x1F)},
}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_chromium()
    folder = tmp_path_factory.mktemp("resnet18")
    onnx.save(resnet18(), folder / "resnet18.onnx")
    assert main(["explain", str(folder / "resnet18.onnx"), "-o", str(folder / "report")]) == 0
    page = folder / "report" / "index.html"
    assert page.stat().st_size < 15e6
    return page


@pytest.fixture(scope="module", params=[LIGHT, DARK], ids=["light", "dark"])
def capture(page: Path, request: Any) -> tuple[Picture, dict[str, Any], str]:
    """The screenshot, what the script told, and the mode."""
    mode = request.param
    answer = act(page, SCRIPT, mode, size=SIZE)
    image = page.parent / f"{'dark' if mode == DARK else 'light'}.png"
    image = Path(os.environ.get("REPORT_PNG", page.parent)) / image.name
    screenshot(page, SCRIPT, image, mode, size=SIZE)
    return read_png(image.read_bytes()), answer, mode


def test_every_part_is_visible(capture: Any) -> None:
    picture, answer, _ = capture
    parts = answer["parts"]
    assert (picture.width, picture.height) == SIZE
    assert answer["nodes"] == 69 and len(parts["block"]) > 5
    # Three sides, and what is folded: the schedule, and the program that code is made from.
    assert len(parts["texts"]) == 5
    for name in ("graph", "diff", "kernel", "memory"):
        ((x, y, w, h),) = parts[name]
        assert w > 300 and h > 150, name
        assert y + h <= SIZE[1], f"{name} is below the screenshot: make it taller"
        assert len(picture.colours(x, y, w, h)) > 30, f"{name} is blank"
    assert len(parts["table"]) == 2  # those of nodes and of memory are made when they are opened


def test_operators_and_memory_are_in_colour(capture: Any) -> None:
    """The middle of a box has a colour of its kernel: many kernels, many colours."""
    picture, answer, _ = capture
    ((_gx, gy, _gw, gh),) = answer["parts"]["graph"]
    visible_boxes = [b for b in answer["parts"]["node"] if gy <= b[1] and b[1] + b[3] <= gy + gh]
    assert len(visible_boxes) >= 6
    fills = {picture.at(x + 6, y + h / 2) for x, y, w, h in visible_boxes}
    assert len(fills) >= 4 and any(max(c) - min(c) > 30 for c in fills)
    blocks = {picture.at(x + w / 2 + 3, y + h / 2) for x, y, w, h in answer["parts"]["block"]}
    assert len(blocks) >= 5


def test_the_diff_is_in_red_and_green(capture: Any) -> None:
    picture, answer, mode = capture
    ((x, y, w, h),) = answer["parts"]["diff"]
    assert picture.colours(x, y, w, h) >= ADDED_AND_REMOVED[mode]


def test_the_page_is_as_light_or_dark_as_it_says(capture: Any) -> None:
    picture, _, mode = capture
    mean = picture.pixels[:, :, :3].astype(float).mean()
    assert mean < 70 if mode == DARK else mean > 200


def test_a_drag_moves_the_graph_and_is_no_click(page: Path) -> None:
    script = """
    const svg = one("#graph svg"), at = svg.getBoundingClientRect();
    const box = () => svg.getAttribute("viewBox").split(" ").map(Number);
    const move = (type, x, y) =>
      send(svg, PointerEvent, type, { clientX: at.x + x, clientY: at.y + y, buttons: 1 });
    const click = (to) => send(to, MouseEvent, "click");
    told.boxes = [box()];
    move("pointerdown", 100, 300); move("pointermove", 160, 200); move("pointerup", 160, 200);
    told.boxes.push(box());
    told.followed = [click(one("#graph .node a"))];
    move("pointerdown", 100, 300); move("pointerup", 100, 300);
    told.followed.push(click(one("#graph .node a")));
    """
    answer = act(page, script)
    first, dragged = answer["boxes"]
    assert dragged[2:] == first[2:] and dragged[0] < first[0] and dragged[1] > first[1]
    assert answer["followed"] == [False, True]
