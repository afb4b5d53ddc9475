"""Pages in headless Chromium: what they are after a script acted on them, and how they look."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
DARK = "--blink-settings=preferredColorScheme=0"
LIGHT = "--blink-settings=preferredColorScheme=1"

# What a script runs in: what it leaves in `told` is what `act` returns. Errors, and what the page's
# policy refuses, are told, too.
_PROBE = """
const told = {}, errors = [];
addEventListener("error", (event) => errors.push(event.message));
addEventListener("securitypolicyviolation", (event) => errors.push(event.violatedDirective));
const all = (query, of = document) => [...of.querySelectorAll(query)];
const one = (query, of = document) => of.querySelector(query);
const send = (to, Kind, type, options) =>
  to.dispatchEvent(new Kind(type, { bubbles: true, cancelable: true, ...options }));
const later = () => new Promise((done) => setTimeout(done, 20)); // events of what was done
addEventListener("load", async () => {
  try {
    %s
  } catch (error) {
    errors.push(String(error.stack));
  }
  await later();
  document.body.dataset.told = JSON.stringify({ ...told, errors });
});
"""


def need_chromium() -> None:
    """Skip where there is no Chromium; fail where REQUIRE_CHROMIUM is set."""
    if CHROMIUM is None:
        missing = f"no {', '.join(NAMES)} on the PATH: apt-get install chromium"
        if os.environ.get("REQUIRE_CHROMIUM"):
            pytest.fail(missing)
        pytest.skip(missing)


def chromium(page: Path, options: Sequence[str], fragment: str = "") -> str:
    """What Chromium writes to its output."""
    need_chromium()
    command = [
        str(CHROMIUM),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--user-data-dir={page.parent / 'profile'}",
        *options,
        f"{page.as_uri()}{fragment}",
    ]
    process = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr[-2000:]
    return process.stdout


def probed(page: Path, script: str) -> Path:
    """A copy of a page, beside it, whose policy permits one more script, which is in it."""
    script = _PROBE % script
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    text = page.read_text(encoding="utf-8")
    assert text.count("script-src ") == 1
    text = text.replace("script-src ", f"script-src 'sha256-{digest}' ")
    copy = page.with_name("probed.html")
    copy.write_text(f"{text}<script>{script}</script>", encoding="utf-8")
    return copy


def act(
    page: Path, script: str, *options: str, size: tuple[int, int] = (1500, 1200), fragment: str = ""
) -> Any:
    """What a script told that ran when the page was loaded. Errors of the page fail."""
    window = f"--window-size={size[0]},{size[1]}"
    # In virtual time: the page is written when its timers and events are done.
    dumped = ["--dump-dom", "--virtual-time-budget=5000", window, LIGHT, *options]
    dom = chromium(probed(page, script), dumped, fragment)
    match = re.search(r'data-told="([^"]*)"', dom)
    assert match is not None, "the page's scripts did not run to their end"
    answer = json.loads(html.unescape(match[1]))
    assert answer.pop("errors") == []
    return answer


def screenshot(
    page: Path, script: str, image: Path, *options: str, size: tuple[int, int], fragment: str = ""
) -> None:
    """A picture of the page after a script acted on it."""
    window = f"--window-size={size[0]},{size[1]}"
    shot = f"--screenshot={image}"
    chromium(probed(page, script), [shot, window, LIGHT, *options], fragment)
