"""The Python examples run as printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.audit.process import ROOT, python

RUN = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "packages", "says"),
    [
        ("first_compile.py", ("onnx",), "output (1, 1000) float32"),
        ("from_torch.py", ("torch",), "batch 64: largest difference"),
    ],
)
def test_example(name: str, packages: tuple[str, ...], says: str, tmp_path: Path) -> None:
    for package in packages:
        pytest.importorskip(package, reason=f"{package} is not installed: {name} needs it")
    environment = {"TMPDIR": str(tmp_path)}
    output = python(RUN, (ROOT / "examples" / name,), folder=tmp_path, environment=environment)
    assert says in output
