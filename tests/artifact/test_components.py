"""What a library says that it embeds and needs is what its file embeds and needs, in every form."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tensorkiln as tk
from tensorkiln.artifact.components import DRIVERS, Component
from tensorkiln.artifact.read_binary import read_binary
from tensorkiln.artifact.spdx import spdx_document
from tensorkiln.base.dependency import ExternalDependency
from tensorkiln.base.errors import UserError
from tensorkiln.base.licenses import checked_license
from tensorkiln.base.origin import ModelSource
from tensorkiln.external import External
from tensorkiln.inspectors import open_subject
from tensorkiln.inspectors.components import Contents, contents_of
from tensorkiln.kernels.case import rand
from tensorkiln.link.shared import ALL_KINDS, CRT, crt_sources
from tensorkiln.script import from_source
from tests.external.halve import HALVE, build_halve, halver
from tests.golden_artifacts.test_golden_artifacts import HERE as GOLDEN
from tests.transform.graphs import graph

pytestmark = pytest.mark.filterwarnings("ignore:.*is the baseline")
OWN = ExternalDependency("own-c", "https://example.org/own.tar", license="MIT")
TOOL = ExternalDependency("tool", "/opt/tool", "path", license="ISC", build_time=True)
HOSTED = ExternalDependency("hosted", "https://example.org/h.tar", license="Zlib")


def _emit(f: Any, symbol: str) -> list[tk.Artifact]:
    head = f"void {symbol}(const float *x, float *y)"
    text = f"{head};\n{head} {{ for (int i = 0; i < 4; i++) y[i] = x[i]; }}\n"
    return [tk.Artifact("mine", "native", f"{symbol}.c", text.encode())]


MINE = External("mine", lambda call, target: call.op == "relu", _emit, (OWN, TOOL))
PACKED = """
@R.function
def main(x: R.Tensor((4,), "float32")):
    y: R.Tensor((4,), "float32") = R.call_packed("h.run", x, kExternalDependency=[
        T.ExternalDependency("hosted", "https://example.org/h.tar", license="Zlib")])
    return y
"""
COSINE = """
@T.prim_func
def f(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")):
    for i in range(4):
        Y[i] = T.call_extern("float32", "cosf", X[i])
"""


def relu() -> Any:
    return graph(lambda g, x: g.relu(x), x=(4,))


def linear() -> Any:
    return graph(lambda g, x: g.softmax(g.linear(x, rand(8, 8), rand(8)), axis=1), x=(4, 8))


# name -> (a compile, what it has besides the runtime and the C library)
CASES: dict[str, tuple[Callable[[Path], tk.Executable], dict[str, str]]] = {
    "cpu": (lambda _: tk.compile(linear()), {}),
    "c": (lambda _: tk.compile(linear(), "c"), {}),
    "libm": (lambda _: tk.compile(from_source(COSINE)), {}),
    "opencl": (lambda _: tk.compile(linear(), "opencl"), {"opencl-loader": "opened"}),
    "cuda": (
        lambda _: tk.compile(linear(), {"kind": "cuda", "arch": "sm_80"}),
        {"nvidia-driver": "opened"},
    ),
    "stand-in": (
        lambda folder: tk.compile(relu(), externals=[halver(build_halve(folder))]),
        {"halve": "linked"},
    ),
    "embedded": (
        lambda _: tk.compile(relu(), externals=[MINE]),
        {"own-c": "embedded", "tool": "build"},
    ),
    "host": (lambda _: tk.compile(from_source(PACKED)), {"hosted": "host"}),
}


def contents(path: Path) -> Contents:
    return contents_of(open_subject(path))


def hows(components: tuple[Component, ...]) -> dict[str, str]:
    return {c.name: c.how for c in components}


def crt_functions() -> dict[str, set[str]]:
    """The functions that each file of the runtime defines."""
    functions = {}
    for path in CRT.glob("*.c"):
        text = path.read_text()
        functions[path.name] = set(
            re.findall(r"^[A-Za-z][\w \*]*?\b(\w+)\([^;]*?\)\s*\{", text, re.M)
        )
    return functions


def check_file(path: Path, components: tuple[Component, ...], static: bool) -> None:
    """Hold a list against the bytes of the file."""
    data, binary = path.read_bytes(), None if path.suffix == ".a" else read_binary(path)
    if not static:
        assert binary is not None
        listed = {f for c in components if c.how == "linked" for f in c.files}
        assert listed == set(binary.needed())
    opened = {f for c in components if c.how == "opened" for f in c.files}
    for _, file, _ in DRIVERS.values():
        assert (file.encode() in data) == (file in opened)
    (runtime,) = [c for c in components if c.name == "tensorkiln-runtime"]
    kinds = [k for k in ALL_KINDS if f"crt/{k}" in runtime.files]
    symbols = set(re.findall(rb"[A-Za-z_]\w{5,}", data))
    listed_files = {p.name for p in crt_sources(devices=kinds)}
    functions = crt_functions()
    linked_functions = set[str]()
    for name in listed_files:
        linked_functions |= functions[name]
    for name, own_functions in functions.items():
        apart = (
            {f.encode() for f in own_functions - linked_functions}
            if name not in listed_files
            else set()
        )
        assert not any(f in symbols for f in apart if f.startswith(b"kiln_")), name
    parts = {"crt": "dispatch.c", "crt/device": "device.c"} | {
        f"crt/{k}": f"{k}.c" for k in ALL_KINDS
    }
    for part in runtime.files:
        assert any(f.encode() in data for f in functions[parts[part]]), part


@pytest.mark.parametrize("form", [".so", ".o", ".a"])
@pytest.mark.parametrize("name", CASES)
def test_libraries(name: str, form: str, tmp_path: Path) -> None:
    make, further_components = CASES[name]
    path = make(tmp_path).export_library(tmp_path / f"net{form}")
    components = contents(path).components
    assert hows(components) == {
        "tensorkiln-runtime": "embedded",
        "glibc": "linked",
        **further_components,
    }
    check_file(path, components, form != ".so")
    (glibc,) = [c for c in components if c.name == "glibc"]
    if name == "libm" and form == ".so":
        assert "libm.so.6" in glibc.files
    assert (
        contents(path).sha256
        == contents(path).spdx()["packages"][0]["checksums"][0][  # type: ignore[index]
            "checksumValue"
        ]
    )


@pytest.mark.parametrize("name", CASES)
def test_artifacts_that_nobody_linked(name: str, tmp_path: Path) -> None:
    make, further_components = CASES[name]
    exe = make(tmp_path)
    expected = {"tensorkiln-runtime": "embedded", "glibc": "linked", **further_components}
    assert hows(exe.components()) == expected
    exe.artifacts.save(tmp_path / "set")
    (tmp_path / "set.kilnset").write_bytes(exe.artifacts.to_bytes())
    for path in (
        tmp_path / "set",
        tmp_path / "set.kilnset",
        exe.export_library(tmp_path / "set.tar"),
    ):
        assert hows(contents(path).components) == expected
        assert contents(path).model == contents(exe.export_library(tmp_path / "n.so")).model


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", [".so", ".a"])
def test_libraries_for_musl(form: str, tmp_path: Path) -> None:
    exe = tk.compile(from_source(COSINE), {"mtriple": "x86_64-linux-musl"})
    path = exe.export_library(tmp_path / f"net{form}")
    for components in (exe.components(), contents(path).components):
        assert hows(components) == {"tensorkiln-runtime": "embedded", "musl": "linked"}
        (musl,) = [c for c in components if c.name == "musl"]
        assert (musl.version, musl.license) == (">=1.1", "MIT")
    check_file(path, components, form != ".so")


@pytest.mark.filterwarnings("ignore")
def test_code_in_memory() -> None:
    exe = tk.compile(linear(), "llvmjit")
    assert hows(exe.components()) == {"tensorkiln-runtime": "embedded", "glibc": "linked"}


def test_archives(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "own.c").write_text("int own;\n")
    exe = tk.compile(relu(), externals=[MINE])
    path = exe.export_model_library_format(tmp_path / "m.tar", bundle={"own-c": source})
    components = contents(path).components
    assert hows(components)["own-c"] == "embedded" and hows(components)["tool"] == "build"
    with tarfile.open(path) as tar:
        names = tar.getnames()
        metadata = json.load(tar.extractfile("metadata.json"))  # type: ignore[arg-type]
    for c in components:
        if c.how == "embedded":
            for folder in c.files:
                assert any(n.startswith(folder.rstrip("/")) for n in names), folder
    # One list: the licenses in the archive are those of the components that have files there.
    assert [(row["spdx"], row["component"]) for row in metadata["licenses"]] == [
        (c.license, c.name) for c in components if c.how == "embedded"
    ]
    plain = exe.export_model_library_format(tmp_path / "p.tar")
    assert hows(contents(plain).components)["own-c"] == "linked"
    check_spdx(contents(plain).spdx())


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_what_a_compiler_adds(tmp_path: Path) -> None:
    path = tk.compile(linear()).export_library(tmp_path / "net.so", fcompile="gcc")
    components = contents(path).components
    assert hows(components).get("gcc-start-files") == "embedded"
    assert "GCC-exception-3.1" in next(c.license for c in components if c.name == "gcc-start-files")
    check_file(path, components, False)


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.so")), ids=lambda p: p.name)
def test_libraries_of_earlier_versions(path: Path) -> None:
    description = contents(path)
    assert hows(description.components)["tensorkiln-runtime"] == "embedded"
    check_spdx(description.spdx())


def test_nothing_says_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(UserError) as caught:
        contents(tmp_path / "a.txt")
    assert caught.value.code == "no-components"


# -- policies -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "policy",
    [{"allow_licenses": ["MIT"]}, {"deny_licenses": ["Apache-2.0"]}],
    ids=["allow", "deny"],
)
def test_a_policy_holds_for_the_runtime(policy: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="'tensorkiln-runtime' has the license 'Apache-2.0'") as e:
        tk.compile(relu(), **policy)
    assert e.value.code == "license-refused"
    tk.compile(relu(), allow_licenses=["Apache-2.0"], deny_licenses=["MIT"])


def test_what_a_policy_permits_is_all_that_is_embedded(tmp_path: Path) -> None:
    exe = tk.compile(relu(), externals=[MINE], allow_licenses=["Apache-2.0", "MIT", "ISC"])
    embedded = {c.license for c in exe.components() if c.how in ("embedded", "build")}
    assert embedded == {"Apache-2.0", "MIT", "ISC"}
    for license_ in embedded:
        with pytest.raises(UserError, match="denied"):
            tk.compile(relu(), externals=[MINE], deny_licenses=[license_])


# -- SPDX 2.3 -------------------------------------------------------------------------------------

_TYPES = {
    "DESCRIBES", "CONTAINS", "DYNAMIC_LINK", "RUNTIME_DEPENDENCY_OF", "PROVIDED_DEPENDENCY_OF",
    "BUILD_DEPENDENCY_OF", "GENERATED_FROM",
}  # fmt: off
_ID = re.compile(r"SPDXRef-[A-Za-z0-9.-]+")


def check_spdx(document: dict[str, Any]) -> None:
    """The fields that SPDX 2.3 requires, their forms, and that references lead somewhere."""
    assert document["spdxVersion"] == "SPDX-2.3" and document["dataLicense"] == "CC0-1.0"
    assert document["SPDXID"] == "SPDXRef-DOCUMENT" and document["name"]
    assert re.fullmatch(r"[a-z][a-z0-9+.-]*:[^\s#]+", document["documentNamespace"])
    creation_info = document["creationInfo"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", creation_info["created"])
    assert creation_info["creators"] and all(
        re.fullmatch(r"(Tool|Person|Organization): .+", c) for c in creation_info["creators"]
    )
    ids = ["SPDXRef-DOCUMENT"]
    texts = {row["licenseId"] for row in document.get("hasExtractedLicensingInfos", ())}
    for row in document.get("hasExtractedLicensingInfos", ()):
        assert row["licenseId"].startswith("LicenseRef-") and row["extractedText"] and row["name"]
    for package in document["packages"]:
        assert _ID.fullmatch(package["SPDXID"]) and package["name"]
        ids.append(package["SPDXID"])
        place = package["downloadLocation"]
        assert place in ("NOASSERTION", "NONE") or re.match(r"(https?|git|ftp|ssh)\b.*://", place)
        assert package["filesAnalyzed"] is False and "packageVerificationCode" not in package
        for key in ("licenseConcluded", "licenseDeclared"):
            checked_license(package[key], key)
            assert set(re.findall(r"LicenseRef-[\w.-]+", package[key])) <= texts
        assert package["copyrightText"]
        for digest in package.get("checksums", ()):
            assert digest["algorithm"] == "SHA256"
            assert re.fullmatch("[0-9a-f]{64}", digest["checksumValue"])
    assert len(set(ids)) == len(ids)
    described = False
    for row in document["relationships"]:
        assert row["relationshipType"] in _TYPES
        assert {row["spdxElementId"], row["relatedSpdxElement"]} <= set(ids)
        described = described or row["relationshipType"] == "DESCRIBES"
    assert described
    json.dumps(document).encode("ascii")


@pytest.mark.parametrize("name", CASES)
def test_documents(name: str, tmp_path: Path) -> None:
    make, _ = CASES[name]
    path = make(tmp_path).export_library(tmp_path / "net.so")
    document = contents(path).spdx()
    check_spdx(document)
    assert document == contents(path).spdx()
    assert document["creationInfo"]["created"] == "1970-01-01T00:00:00Z"  # type: ignore[index]
    later = contents(path).spdx(1700000000)
    check_spdx(later)
    assert later["creationInfo"]["created"] == "2023-11-14T22:13:20Z"  # type: ignore[index]
    assert later["documentNamespace"] != document["documentNamespace"]


def test_odd_names_and_licenses() -> None:
    odd = Component("a b/ü", '1 "2"', "MIT OR LicenseRef-mine", "linked", "why", ("x",), "/opt/x")
    model = ModelSource("onnx", "ab" * 32, (("w ü.bin", "cd" * 32),))
    document = spdx_document("net ü.so", [odd, odd], model=model)
    check_spdx(document)
    assert document["packages"][1]["downloadLocation"] == "NOASSERTION"  # type: ignore[index]


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    from tensorkiln.cli.entry import main

    path = tk.compile(relu(), externals=[halver(build_halve(tmp_path))]).export_library(
        tmp_path / "net.so"
    )
    assert main(["inspect", str(path)]) == 0
    output = capsys.readouterr().out
    assert "linked" in output and HALVE.license in output and "options     externals" in output
    assert main(["inspect", str(path), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["components"]
    assert [r["name"] for r in rows] == ["tensorkiln-runtime", "glibc", "halve"]
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert main(["inspect", str(path), "--spdx"]) == 0
    document = json.loads(capsys.readouterr().out)
    check_spdx(document)
    assert document["creationInfo"]["created"].startswith("2023")
    assert main(["inspect", str(path), "--spdx", "--json"]) != 0
