"""What `kiln inspect` says of the target a library was built for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tensorkiln.cli.library_report import report_text
from tensorkiln.target import Target
from tests.cli import fakes

PI = Target("raspberrypi/4b")


@pytest.mark.parametrize(
    ("target", "shown_words", "hidden"),
    [
        (PI, ["tag", "raspberrypi/4b:1"], "made from tag"),
        (PI.replace(l2_bytes=1 << 19), ["made from tag", "raspberrypi/4b:1", "cortex-a72"], "?"),
        (Target("llvm"), ["llvm x86_64"], "tag"),
        (Target({"kind": "opencl", "host": PI.to_json()}), ["opencl, host llvm aarch64"], "?"),
    ],
)
def test_tags(target: Target, shown_words: list[str], hidden: str) -> None:
    meta: Any = replace(fakes.METADATA, target=target.to_json())
    text = report_text(replace(fakes.REPORT, metadata=meta))
    head = text[: text.index("compiler")] + text[text.index("target") : text.index("needs CPU")]
    assert all(word in head for word in shown_words), head
    assert hidden not in head


def test_devices_of_a_composite() -> None:
    """A line for each, with its key, processor and operators."""
    dsp = {"kind": "llvm", "mcpu": "x86-64-v2", "target_key": "dsp", "operators": ["linear"]}
    target = Target({"kind": "composite", "host": "llvm", "devices": [dsp, "opencl"]})
    meta: Any = replace(fakes.METADATA, target=target.to_json())
    text = report_text(replace(fakes.REPORT, metadata=meta))
    rows = [line.split(maxsplit=1)[1] for line in text.splitlines() if line.startswith("  device ")]
    assert rows == ["dsp: llvm x86_64-unknown-linux-gnu x86-64-v2, for linear", "opencl"]
