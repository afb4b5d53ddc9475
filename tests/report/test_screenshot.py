"""The page of ResNet-18 in headless Chromium: its parts are there, drawn, and can be used."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import onnx
import pytest

from tensorkiln.cli.demo_model import resnet18
from tensorkiln.cli.entry import main
from tests.report.pixels import Picture, read_png

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
WIDTH, HEIGHT = 1500, 6400
PARTS = {
    "graph": "#graph svg",
    "node": "#graph g.op rect",
    "diff": "tr[data-pass=fuse_ops] pre",
    "small": "tr[data-pass=plan_memory] pre",
    "kernel": "#kernel-0 .sides",
    "texts": "#kernel-0 pre",
    "memory": "#memory svg",
    "block": "#memory rect.block",
}

# Appended to the page under test: opens a diff, and writes where the parts lie into the document.
PROBE = """
<script>
const errors = [];
addEventListener("error", (event) => errors.push(event.message));
for (const name of ["fuse_ops", "plan_memory"])
  document.querySelector(`tr[data-pass=${name}] details`).open = true;
addEventListener("load", () => {
  const told = {};
  for (const [name, query] of Object.entries(%s)) {
    told[name] = [...document.querySelectorAll(query)].map((e) => {
      const r = e.getBoundingClientRect();
      return [r.x + scrollX, r.y + scrollY, r.width, r.height];
    });
  }
  const svg = document.querySelector("#graph svg");
  const boxes = [svg.getAttribute("viewBox")];
  for (const name of ["in", "whole", "top"]) {
    document.querySelector(`#graph button[name=${name}]`).click();
    boxes.push(svg.getAttribute("viewBox"));
  }
  const at = svg.getBoundingClientRect();
  const move = (type, x, y) => svg.dispatchEvent(new PointerEvent(type, {
    clientX: at.x + x, clientY: at.y + y, buttons: 1, bubbles: true }));
  svg.dispatchEvent(new WheelEvent("wheel", {
    clientX: at.x + 400, clientY: at.y + 300, deltaY: -1, cancelable: true }));
  boxes.push(svg.getAttribute("viewBox"));
  move("pointerdown", 100, 100); move("pointermove", 160, 140); move("pointerup", 160, 140);
  boxes.push(svg.getAttribute("viewBox"));
  document.querySelector("#graph button[name=top]").click();
  document.body.dataset.told = JSON.stringify({ parts: told, boxes, errors });
});
</script>"""


def chromium(page: Path, *options: str) -> str:
    assert CHROMIUM is not None
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--user-data-dir={page.parent / 'profile'}",
        f"--window-size={WIDTH},{HEIGHT}",
        *options,
        f"{page.as_uri()}#kernel-0",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Picture, dict[str, Any], Path]:
    """The screenshot, what the probe told, and the page."""
    if CHROMIUM is None:
        missing = f"no {', '.join(NAMES)} on the PATH: apt-get install chromium"
        if os.environ.get("REQUIRE_CHROMIUM"):
            pytest.fail(missing)
        pytest.skip(missing)
    folder = tmp_path_factory.mktemp("resnet18")
    onnx.save(resnet18(), folder / "resnet18.onnx")
    assert main(["explain", str(folder / "resnet18.onnx"), "-o", str(folder / "report")]) == 0
    page = folder / "report" / "index.html"
    assert page.stat().st_size < 15e6
    probed = folder / "probed.html"
    text = page.read_text(encoding="utf-8")
    probed.write_text(text + PROBE % json.dumps(PARTS), encoding="utf-8")
    dom = chromium(probed, "--dump-dom")
    found = re.search(r'data-told="([^"]*)"', dom)
    assert found is not None, "the page's scripts did not run to their end"
    image = Path(os.environ.get("REPORT_PNG", folder / "report.png"))
    chromium(probed, f"--screenshot={image}")
    return read_png(image.read_bytes()), json.loads(html.unescape(found[1])), page


def test_no_script_failed(seen: Any) -> None:
    assert seen[1]["errors"] == []


def test_every_part_is_visible(seen: Any) -> None:
    picture, told, _ = seen
    parts = told["parts"]
    assert (picture.width, picture.height) == (WIDTH, HEIGHT)
    assert len(parts["node"]) == 69 and len(parts["block"]) > 5
    assert (
        len(parts["texts"]) == 5
    )  # three sides, and the folded ones: the schedule, the source nodes
    for name in ("graph", "diff", "kernel", "memory"):
        ((x, y, w, h),) = parts[name]
        assert w > 300 and h > 150, name
        assert y + h <= HEIGHT, f"{name} is below the screenshot: make it taller"
        assert len(picture.colours(x, y, w, h)) > 30, f"{name} is blank"


def test_operators_and_memory_are_in_colour(seen: Any) -> None:
    """The middle of a box has a colour of its kernel: many kernels, many colours."""
    picture, told, _ = seen
    ((_gx, gy, _gw, gh),) = told["parts"]["graph"]
    shown = [b for b in told["parts"]["node"] if gy <= b[1] and b[1] + b[3] <= gy + gh]
    assert len(shown) >= 8
    fills = {picture.at(x + 6, y + h / 2) for x, y, w, h in shown}
    assert len(fills) >= 4 and all(max(c) - min(c) > 4 or c[0] > 230 for c in fills)
    blocks = {picture.at(x + w / 2 + 3, y + h / 2) for x, y, w, h in told["parts"]["block"]}
    assert len(blocks) >= 5


def test_the_diff_is_in_red_and_green(seen: Any) -> None:
    picture, told, _ = seen
    ((x, y, w, h),) = told["parts"]["small"]
    colours = picture.colours(x, y, w, h)
    assert (0xE2, 0xF6, 0xE6) in colours and (0xFD, 0xE7, 0xE7) in colours


def test_zoom_and_drag_change_the_view(seen: Any) -> None:
    boxes = [[float(n) for n in box.split()] for box in seen[1]["boxes"]]
    first, closer, whole, top, wheel, dragged = boxes
    assert closer[2] < first[2] and whole[3] > first[3] and top == first
    assert wheel[2] < top[2] and wheel[1] > top[1]
    assert dragged[2] == wheel[2] and dragged[0] < wheel[0] and dragged[1] < wheel[1]
