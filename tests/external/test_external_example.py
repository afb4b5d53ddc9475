"""The example of an external runs as printed."""

from __future__ import annotations

from tests.audit.process import ROOT, python


def test_partly_in_c() -> None:
    run = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"
    output = python(run, (ROOT / "examples" / "external" / "partly_in_c.py",))
    assert "my_c_maximum: external:my_c" in output
    assert "out[i] = a[i] > b[i] ? a[i] : b[i];" in output
    assert float(output.rsplit(":", 1)[1]) < 1e-6
