"""SECURITY.md: each promise names a test, and that test is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import tensorkiln
from tensorkiln.base.errors import TensorkilnError
from tensorkiln.script import from_source
from tests.named_tests import absent_tests, names_tests_alone

ROOT = Path(__file__).parents[1]
PACKAGE = Path(tensorkiln.__file__).parent
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def _rows() -> Iterator[tuple[str, str]]:
    for line in PAGE.splitlines():
        if line.startswith("| ") and not line.startswith("| promised"):
            promise, _, held = line.strip("| ").rpartition(" | ")
            yield promise, held


def test_every_promise_is_held_by_tests_that_are_there() -> None:
    rows = list(_rows())
    assert len(rows) > 20
    for promise, held in rows:
        assert names_tests_alone(held), promise
    assert list(absent_tests(PAGE)) == []


def test_readers_find_it() -> None:
    assert "(SECURITY.md)" in (ROOT / "README.md").read_text(encoding="utf-8")


HOSTILE = [
    "{}",
    "@R.function\ndef main(x: R.Tensor((4,), 'float32')) -> R.Object:\n    {}\n    return x",
    "@R.function\ndef main(x: {}) -> R.Object:\n    return x",
    "@R.function\ndef main(x: R.Tensor(({},), 'float32')) -> R.Object:\n    return x",
    "@R.function\ndef main(x: R.Tensor((4,), 'float32') = {}) -> R.Object:\n    return x",
    "@R.function\ndef main(x: R.Tensor((4,), 'float32')) -> R.Object:\n"
    "    y: R.Object = R.const({}, 'float32')\n    return y",
    "@R.function\ndef main(x: R.Tensor((4,), 'float32')) -> R.Object:\n"
    "    y: R.Object = {}\n    return y",
    "@R.function({})\ndef main(x: R.Tensor((4,), 'float32')) -> R.Object:\n    return x",
    "@{}\ndef main(x: R.Tensor((4,), 'float32')) -> R.Object:\n    return x",
    "@T.prim_func\ndef f(x: T.Buffer((4,), 'float32')):\n    for i in range({}):\n     x[i] = 1.0",
    "@T.prim_func\ndef f(x: T.Buffer((4,), 'float32')):\n    x[0] = {}",
    "@T.prim_func\ndef f(x: T.Buffer((4,), 'float32')):\n    T.attr({})\n    x[0] = 1.0",
    "X = {}\n@R.function\ndef main(x: R.Tensor((4,), 'float32')) -> R.Object:\n    return x",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_scripts_are_never_executed(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for code in (
        "__import__('os').mkdir('ran')",
        "open('ran', 'w')",
        "[c for c in ().__class__.__base__.__subclasses__()][0]('ran')",
        "(lambda: open('ran', 'w'))()",
        "f\"{open('ran', 'w')}\"",
        "R.const.__globals__['__builtins__']['open']('ran', 'w')",
        "T.__loader__.load_module('os').mkdir('ran')",
    ):
        with suppress(TensorkilnError):  # parts that nothing looks at may hold anything
            from_source(text.replace("{}", code))
    assert not list(tmp_path.iterdir())


def c_and_rust() -> list[Path]:
    """The sources of the runtime and the hosts, and what builds programs with them."""
    hosts = [p for p in PACKAGE.joinpath("hosts").rglob("*") if p.is_file()]
    return sorted([*PACKAGE.glob("crt/*.[ch]"), *hosts])


def test_variables_that_a_library_reads() -> None:
    texts = [p.read_text() for p in c_and_rust()]
    found = [name for text in texts for name in re.findall(r"\w*getenv\s*\(\s*([^)]*)\)", text)]
    assert sorted(set(found)) == ['"KILN_NUM_THREADS"', '"KILN_VERIFY_WEIGHTS"']
    assert not any(re.search(r"\benviron\b", text) for text in texts)
    # In Rust the build scripts of programs read some, and no program does.
    readers = [p.name for p in c_and_rust() if re.search(r"\benv::vars?\b|_os\(", p.read_text())]
    assert readers == ["linking.rs"]


_NETWORK = {
    "socket",
    "ssl",
    "urllib",
    "http",
    "ftplib",
    "smtplib",
    "asyncio",
    "socketserver",
    "xmlrpc",
    "requests",
    "webbrowser",
    "multiprocessing",
}


# Of these what reaches no network: how processes of a pool begin, and the text of a URL.
_ALLOWED = {"scale/local.py": {"multiprocessing"}, "scale/storage.py": {"urllib"}}


def test_there_is_no_network() -> None:
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found = {name.partition(".")[0] for name in names} & _NETWORK
            assert found <= _ALLOWED.get(file.relative_to(PACKAGE).as_posix(), set()), file
    for file in c_and_rust():
        assert not re.search(r"<sys/socket\.h>|\bstd::net\b", file.read_text()), file
