"""`kiln cache`, and why kernels are not in the cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from examples.make_mlp import make_mlp
from tensorkiln.base.cache import Cache, key_of
from tensorkiln.cli import main

CPUS = ("x86-64", "x86-64-v2")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    monkeypatch.setenv("KILN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("KILN_CACHE_LIMIT", "1M")
    filled_cache = Cache(tmp_path / "cache", 1 << 20)
    for n in range(8):
        filled_cache.put(key_of({"n": str(n)}), b"x" * 1000, {"n": str(n)})
    return filled_cache


def report(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, object]:
    assert main(["cache", "--json", *args]) == 0
    answer = json.loads(capsys.readouterr().out)
    return {name: answer[name] for name in answer if name not in ("command", "version")}


def test_usage(cache: Cache, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(capsys) == {
        "folder": str(cache.root),
        "entries": 8,
        "bytes": cache.size(),
        "limit": 1 << 20,
        "removed": 0,
        "freed": 0,
    }
    assert main(["cache"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "entries  8",
        f"size     {cache.size() / 1000:.2f} kB of at most 1.05 MB",
    ]


def test_prune_and_clear(cache: Cache, capsys: pytest.CaptureFixture[str]) -> None:
    full = cache.size()
    pruned = report(capsys, "--prune", "5K")
    assert pruned["bytes"] == full - int(str(pruned["freed"])) <= 5 << 10
    assert int(str(pruned["entries"])) == 8 - int(str(pruned["removed"])) > 0
    assert main(["cache", "--clear"]) == 0
    assert f"removed  {pruned['entries']} entries" in capsys.readouterr().out
    assert report(capsys)["entries"] == cache.size() == 0


@pytest.mark.parametrize(
    ("variable", "value", "args", "message"),
    [
        ("KILN_CACHE", "0", [], "there is no cache: KILN_CACHE=0"),
        ("KILN_CACHE", "", ["--prune", "1", "--clear"], "--prune and --clear"),
        ("KILN_CACHE", "", ["--prune", "many"], "expected a number of bytes"),
        ("KILN_CACHE", "", ["--prune", "-1"], "expected"),
    ],
)
def test_refusals(
    variable: str,
    value: str,
    args: list[str],
    message: str,
    cache: Cache,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(variable, value)
    try:
        code = main(["cache", *args])
    except SystemExit as exit_error:
        code = exit_error.code  # type: ignore[assignment]
    assert code == 2 and message in capsys.readouterr().err
    assert cache.usage()[0] == 8


def test_why_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KILN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("KILN_DEBUG", "1")
    model = tmp_path / "net.onnx"
    model.write_bytes(make_mlp().SerializeToString())

    def missed(*args: str) -> list[str]:
        assert main(["compile", str(model), "-o", str(tmp_path / "n.so"), "-q", *args]) == 0
        lines = capsys.readouterr().err.splitlines()
        return [line.partition(": ")[2] for line in lines if "is not in the cache" in line]

    v1, v2 = (
        ["--target", json.dumps({"kind": "llvm", "mcpu": f"x86-64{level}"})]
        for level in ("", "-v2")
    )
    first = missed(*v1)
    assert first and set(first) == {"the cache holds nothing of this kind"}
    assert missed(*v1) == []
    other_reasons = missed(*v2)
    assert other_reasons and all(
        "nearest entry" in reason and "target" in reason for reason in other_reasons
    )
