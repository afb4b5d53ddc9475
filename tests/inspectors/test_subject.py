"""What is in a library, a container, a folder, an archive: the same bytes, and no way out."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import onnx
import pytest

import tensorkiln as tk
from examples.make_mlp import make_mlp
from tensorkiln.artifact import Artifact, ArtifactSet, InMemoryArtifact
from tensorkiln.base.errors import UserError
from tensorkiln.inspectors import Inspectors, Subject, known_inspectors, open_subject
from tensorkiln.inspectors.builtin import builtin_inspectors
from tensorkiln.inspectors.library import inspect_library
from tensorkiln.inspectors.objects import functions_in
from tensorkiln.inspectors.registry import make_inspector
from tensorkiln.inspectors.weights import Weights
from tests.inspectors.conftest import Forms, ResNet

CODES = {
    "bad-library",
    "bad-container",
    "bad-archive",
    "bad-metadata",
    "bad-artifact",
    "name-clash",
    "bad-json",
    "not-text",
    "unknown-machine",
    "no-weights",
    "truncated",
    "container-version",
    "bad-imports",
}


def names(subject: Subject) -> list[str]:
    return [a.name for a in subject.artifacts]


def test_a_library(forms: Forms) -> None:
    subject, artifacts = open_subject(forms.library), forms.executable.artifacts
    assert subject.kind == "library"
    shown_artifacts = subject.artifacts
    assert shown_artifacts["host/weights.bin"].view == artifacts["host/weights.bin"].view
    assert shown_artifacts["host/weights.json"] == artifacts["host/weights.json"]
    metadata = inspect_library(forms.library)
    assert json.loads(shown_artifacts["host/metadata.json"].text()) == metadata.metadata.to_json()
    sizes = {k.symbol: k.code_bytes for k in metadata.kernels}
    code = {
        a.file_name.removesuffix(".code"): a.size for a in shown_artifacts if a.codegen_id == "llvm"
    }
    assert code == sizes and len(code) == 3
    assert all(a.view.nbytes == a.size for a in shown_artifacts)
    # What the compile linked is named, with where to find what became of it.
    objects = [a.name for a in artifacts if a.file_name.endswith(".o")]
    assert [a.name for a in subject.absent] == objects
    assert all("its code is llvm/" in a.reason for a in subject.absent)
    whole = b"".join(subject.itself.chunks()) if subject.itself else b""
    assert whole == forms.library.read_bytes()


def test_forms_of_one_set(forms: Forms) -> None:
    for path, kind in ((forms.folder, "folder"), (forms.container, "container")):
        subject = open_subject(path)
        assert subject.kind == kind
        assert subject.artifacts == forms.executable.artifacts


def test_the_folder_is_readable(forms: Forms) -> None:
    """Kernel source, assembly, weights and plan by name."""
    files = {p.relative_to(forms.folder).as_posix() for p in forms.folder.rglob("*.*")}
    for kernel in ("linear_relu", "linear_relu_2", "linear"):
        assert {f"llvm/{kernel}{s}" for s in (".ll", ".s", ".o")} <= files
        ir = (forms.folder / "llvm" / f"{kernel}.ll").read_text()
        assert f"define void @{kernel}(" in ir and "target triple" in ir
        assert f"\n{kernel}:" in (forms.folder / "llvm" / f"{kernel}.s").read_text()
        assert f"def {kernel}(" in (forms.folder / "ir" / "module.py").read_text()
    assert {"host/weights.bin", "host/weights.json"} <= files
    plan = (forms.folder / "host" / "entry.c").read_text()
    assert plan.index("    linear_relu(") < plan.index("    linear_relu_2(")


@pytest.mark.parametrize("packed", [False, True])
def test_an_archive_in_model_library_format(packed: bool, forms: Forms) -> None:
    subject = open_subject(forms.model_tar if packed else forms.model_folder)
    assert subject.kind == "model" and (subject.itself is not None) == packed
    artifacts = forms.executable.artifacts
    other_names = {a.name for a in subject.files} - {a.name for a in artifacts.plain}
    assert other_names == {
        "model/metadata.json",
        "model/codegen/host/src/kiln_mlp.c",
        "model/codegen/host/include/kiln_mlp.h",
        "model/codegen/host/lib/kiln_mlp_weights.o",
        "model/codegen/host/lib/kiln_mlp_linear.o",
        "model/codegen/host/lib/kiln_mlp_linear_relu.o",
        "model/codegen/host/lib/kiln_mlp_linear_relu_2.o",
        "model/runtime/kiln_sizes.h",
        "model/templates/CMakeLists.txt",
        "model/templates/platform.c",
        "model/templates/platform.h",
    }
    for artifact in subject.files:
        assert known_inspectors().text(artifact)
    assert all(subject.artifacts[a.name] == a for a in artifacts.plain)


def test_a_stripped_library_says_less_and_nothing_wrong(forms: Forms, tmp_path: Path) -> None:
    if shutil.which("strip") is None:
        pytest.skip("no strip")
    subprocess.run(["strip", "-o", tmp_path / "s.so", forms.library], check=True)
    subject = open_subject(tmp_path / "s.so")
    assert names(subject) == ["host/metadata.json", "host/weights.bin", "host/weights.json"]
    assert subject.artifacts["weights.bin"].view == forms.executable.artifacts["weights.bin"].view
    assert {a.reason for a in subject.absent} == {"linked in"}


@pytest.fixture(scope="module")
def archive(forms: Forms, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archive")
    objects = sorted((forms.folder / "llvm").glob("*.o"))
    long = folder / "a-name-that-is-longer-than-sixteen-letters.o"
    long.write_bytes(objects[0].read_bytes())
    command = [sys.executable, "-m", "ziglang", "ar", "rcs", str(folder / "all.a")]
    subprocess.run([*command, *map(str, objects), str(long)], check=True)
    return folder / "all.a"


def test_a_static_library(forms: Forms, archive: Path) -> None:
    subject = open_subject(archive)
    assert subject.kind == "archive"
    expected = {p.name: p.read_bytes() for p in (forms.folder / "llvm").glob("*.o")}
    long = "a-name-that-is-longer-than-sixteen-letters.o"
    expected[long] = (archive.parent / long).read_bytes()
    assert {a.file_name: bytes(a.view) for a in subject.artifacts} == expected
    listed = subprocess.run(
        [sys.executable, "-m", "ziglang", "ar", "t", str(archive)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert [a.file_name for a in subject.artifacts] == listed.split()


def test_members_of_one_name_are_told_apart(tmp_path: Path) -> None:
    def member(name: str, content: bytes) -> bytes:
        head = f"{name:<16}{0:<12}{0:<6}{0:<6}{644:<8}{len(content):<10}`\n".encode()
        return head + content + b"\n" * (len(content) % 2)

    bsd = b"long name.o\0" + b"four"
    data = b"!<arch>\n" + member("a.o/", b"one") + member("a.o/", b"two") + member("A.o/", b"3")
    (tmp_path / "x.a").write_bytes(data + member("#1/12", bsd) + member("__.SYMDEF", b"table"))
    contents = {a.file_name: bytes(a.view) for a in open_subject(tmp_path / "x.a").artifacts}
    assert contents == {"a.o": b"one", "a.2.o": b"two", "A.3.o": b"3", "long name.o": b"four"}


def tar(path: Path, members: dict[str, bytes], **kinds: bytes) -> Path:
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as out:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            out.addfile(info, io.BytesIO(content))
        for name, kind in kinds.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            out.addfile(info)
    return path


def test_a_tar_file(tmp_path: Path) -> None:
    members = {
        "lib0.o": b"\x7fELF",
        "./codegen/host/src/lib.c": b"int x;\n",
        "metadata.json": b"{}",
    }
    path = tar(
        tmp_path / "m.tar",
        members,
        link=tarfile.SYMTYPE,
        hard=tarfile.LNKTYPE,
        pipe=tarfile.FIFOTYPE,
    )
    subject = open_subject(path)
    assert subject.kind == "tar"
    contents = {a.file_name: bytes(a.view) for a in subject.artifacts}
    assert contents == {name.removeprefix("./"): content for name, content in members.items()}


def test_a_tar_file_of_a_folder(forms: Forms, tmp_path: Path) -> None:
    """Artifacts keep their makers and loaders, and are checked."""
    with tarfile.open(tmp_path / "set.tar", "w") as out:
        out.add(forms.folder, ".")
    assert open_subject(tmp_path / "set.tar").artifacts.artifacts == (
        forms.executable.artifacts.artifacts
    )
    data = (tmp_path / "set.tar").read_bytes()
    plan = forms.executable.artifacts["entry.c"].view
    offset = data.index(bytes(plan[:512]))
    (tmp_path / "set.tar").write_bytes(data[:offset] + b"?" + data[offset + 1 :])
    with pytest.raises(UserError, match="'host/entry.c' is not what was saved"):
        open_subject(tmp_path / "set.tar")
    for manifest in (
        b"",
        b"[]",
        b'{"artifacts": [{}]}',
        b"[" * 100_000,
        b'{"artifacts": [{"codegen_id": "a", "loader": "a", "file_name": "none.o",'
        b' "target_key": "", "sha256": 3}]}',
    ):
        with pytest.raises(UserError) as caught:
            open_subject(tar(tmp_path / "bad.tar", {"manifest.json": manifest}))
        assert caught.value.code == "bad-archive" and "manifest.json" in caught.value.where


def test_exports_of_every_suffix(forms: Forms, tmp_path: Path) -> None:
    exe = forms.executable
    assert open_subject(exe.export_library(tmp_path / "mlp.tar")).artifacts == exe.artifacts
    static = open_subject(exe.export_library(tmp_path / "mlp.a"))
    assert static.kind == "archive" and len(static.files) > 0
    object_subject = open_subject(exe.export_library(tmp_path / "mlp.o"))
    assert object_subject.kind == "file" and object_subject.itself is not None
    for subject in (static, object_subject):
        names = {f.name for a in subject.files for f in functions_in(a)}
        assert {"linear_relu.body0", "mlp_main"} <= names


def test_bitcode_that_is_linked_in_memory() -> None:
    exe = tk.compile(tk.frontend.from_onnx(make_mlp()), "llvmjit")
    table = known_inspectors()
    kernels = [a for a in exe.artifacts.plain if a.file_name.endswith(".bc")]
    assert {a.file_name for a in kernels} == {"linear_relu.bc", "linear_relu_2.bc", "linear.bc"}
    llvm_text = table.text(kernels[0])
    assert "define void @" in llvm_text and table.choose(kernels[0]).name == "ll"
    groups = {
        row.name: "".join(row.pieces(group)) for row, group in table.groups(exe.artifacts.plain)
    }
    assert "linear_relu.body0 " in groups["list-functions"]


def test_what_is_in_memory_only_has_inspectors_of_its_own() -> None:
    def function() -> None:
        raise AssertionError("nothing is loaded to be looked at")

    artifact = InMemoryArtifact("pytorch", "exp.py", function)
    table = Inspectors(builtin_inspectors())
    assert [row.full_name for row in table.of(artifact)] == ["artifact.inspect_any_repr"]
    assert table.text(artifact).startswith("pytorch/exp.py: <function ")
    table.add([make_inspector("repr", repr, suffix=".py", codegen_id="pytorch", in_memory=True)])
    assert table.choose(artifact).full_name == "artifact.inspect_pytorch_py_repr"
    assert table.text(artifact) == repr(artifact)
    assert "repr" not in {row.name for row in table.of(Artifact("pytorch", "x", "exp.py", b""))}


def library_with(sections: dict[str, bytes], folder: Path) -> Path:
    """A shared library that holds these sections."""
    lines = [
        f'__attribute__((section("{name}"), used)) static const unsigned char s{i}[] = '
        f"{{{','.join(map(str, content))}}};\n"
        for i, (name, content) in enumerate(sections.items())
    ]
    (folder / "x.c").write_text("".join(lines) + "int work(int x) { return x; }\n")
    command = [
        sys.executable,
        "-m",
        "ziglang",
        "cc",
        "-shared",
        "-fPIC",
        str(folder / "x.c"),
        "-o",
        str(folder / "x.so"),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "x.so"


def test_artifacts_for_loaders_ride_in_a_library(tmp_path: Path) -> None:
    meta = {
        "format": 1,
        "library": "x",
        "prefix": "x",
        "cpu_features": [],
        "weights_bytes": 0,
        "functions": [],
    }
    carried = ArtifactSet(
        (
            Artifact("npu", "npu", "stream.bin", b"1234", "fpga0"),
            Artifact("npu", "npu", "t.json", b"[]"),
        )
    ).importing("npu", ("npu", "fpga0"))
    data = carried.to_bytes()
    section = len(data).to_bytes(8, "little") + bytes(56) + data
    sections = {".kiln.meta": json.dumps(meta).encode(), ".kiln.artifacts": section}
    subject = open_subject(library_with(sections, tmp_path))
    assert subject.kind == "library"
    assert names(subject) == ["host/metadata.json", "npu/fpga0/stream.bin", "npu/t.json"]
    assert subject.artifacts["stream.bin"] == carried["stream.bin"]
    assert subject.artifacts.imports == carried.imports != ()
    for bad, code in (
        (section[:-1] + b"?", "bad-container"),
        (b"\xff" * 80, "bad-container"),
        (b"", "bad-container"),
    ):
        path = library_with(sections | {".kiln.artifacts": bad or b"1"}, tmp_path)
        with pytest.raises(UserError) as caught:
            open_subject(path)
        assert caught.value.code == code and "x.so" in caught.value.where


@pytest.mark.parametrize("name", ["../out.o", "/etc/out.o", "a/../../out.o", "a\\..\\b.o", "c:x"])
def test_names_that_lead_out_are_refused(name: str, tmp_path: Path) -> None:
    path = tar(tmp_path / "m.tar", {name: b"x"})
    with pytest.raises(UserError) as caught:
        open_subject(path)
    assert caught.value.code == "bad-artifact" and "plain" in caught.value.message


def test_links_in_folders_are_not_followed_out(forms: Forms, tmp_path: Path) -> None:
    secret = tmp_path / "secret.o"
    secret.write_bytes(b"secret")
    folder = forms.executable.export_model_library_format(tmp_path / "mlp")
    (folder / "codegen" / "evil.o").symlink_to(secret)
    with pytest.raises(UserError) as caught:
        open_subject(folder)
    assert caught.value.code == "unsafe-path"


def test_what_cannot_be_inspected(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for place, code in (
        ("sub", "not-inspectable"),
        ("none", "missing-file"),
        ("pipe", "missing-file"),
    ):
        with pytest.raises(UserError) as caught:
            open_subject(tmp_path / place)
        assert caught.value.code == code and place in str(caught.value)


@pytest.mark.parametrize("name", ["a:b.o", "x .o. ", "noend", "ü.o", ".hidden", "x.so.6"])
def test_files_of_any_name(name: str, forms: Forms, tmp_path: Path) -> None:
    source = forms.folder / "llvm" / "linear.o"
    (tmp_path / name).write_bytes(source.read_bytes())
    subject = open_subject(tmp_path / name)
    assert subject.kind == "file" and subject.itself is not None
    assert subject.itself.view == source.read_bytes()
    # What it holds decides how it is shown.
    assert known_inspectors().choose(subject.itself).name == "disassemble"


def test_a_large_file_stays_on_disk(tmp_path: Path) -> None:
    """A hexdump of 3 GiB of zeros, and of its end, in little memory."""
    path = tmp_path / "large.bin"
    with path.open("wb") as stream:
        stream.truncate(3 << 30)
        stream.seek((3 << 30) - 5)
        stream.write(b"ends!")
    script = (
        "import sys, resource\n"
        "from tensorkiln.inspectors import open_subject, known_inspectors\n"
        "s = open_subject(sys.argv[1])\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "it = known_inspectors().choose(s.itself).show(s.itself)\n"
        "n = 0\n"
        "for piece in it:\n"
        "    n += 1\n"
        "    if n == 3: break\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, len(s.artifacts))\n"
    )
    path_small = tmp_path / "small.bin"
    rng = random.Random(1)
    path_small.write_bytes(rng.randbytes(1 << 20))
    with path.open("r+b") as stream:
        stream.write(path_small.read_bytes())
    process = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True
    )
    grown, count = map(int, process.stdout.split())
    assert grown < 40_000 and count == 1  # KiB


def test_the_folder_of_resnet18_is_readable(resnet: ResNet) -> None:
    """A person finds kernel source, assembly, weights and plan by name."""
    folder, executable = resnet.folder, resnet.executable
    files = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    program = (folder / "ir/module.py").read_text()
    plan = (folder / "host/entry.c").read_text()
    nodes = set()
    for kernel in executable.kernels:
        assert {f"llvm/{kernel.symbol}{s}" for s in (".o", ".ll", ".s")} <= files
        assert f"    def {kernel.symbol}(" in program
        assert f"\n    {kernel.symbol}(" in plan
        nodes |= set(kernel.nodes)
    assert all(node in plan for node in nodes) and len(nodes) > 20
    other_files = {f for f in files if not f.startswith("llvm/")}
    assert {
        "manifest.json",
        "ir/module.py",
        "host/entry.c",
        "host/weights.bin",
        "host/weights.json",
    } <= other_files and len(other_files) <= 9
    # Every convolution of the model, by its name, with the shape and type of its weights.
    subject = open_subject(folder)
    weights = Weights([a for a in subject.artifacts if a.codegen_id == "host"])
    model_weights = {
        i.name for i in onnx.load(resnet.model).graph.initializer if "weight" in i.name
    }
    named = {row.name.removesuffix(".transpose") for row in weights.rows}
    assert len(named & model_weights) >= 20
    assert all(np.isfinite(weights.statistics(row).std) for row in weights.rows)


# -- damage ------------------------------------------------------------------------------------


def look_at_all(path: Path) -> None:
    """Everything that the inspectors that start no process say of it."""
    table = known_inspectors()
    subject = open_subject(path)
    calls = [(r, a) for a in subject.artifacts for r in table.of(a)]
    calls += [(r, group) for r, group in table.groups(subject.artifacts)]
    if subject.itself is not None and subject.kind == "library":
        calls += [(r, subject.itself) for r in table.of(subject.itself)]
    for row, artifacts in calls:
        if row.show.__module__.endswith((".llvm", ".text")) or row.name == "disassemble":
            continue
        with contextlib.suppress(UserError):
            for _ in row.show(artifacts):
                pass


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Small files of each kind: damage in them hits what matters."""
    artifacts = ArtifactSet(
        (
            Artifact("host", "native", "weights.bin", bytes(64)),
            Artifact("host", "text", "weights.json", b"[]"),
            Artifact("a", "b", "c.json", b"{}", "k"),
        )
    )
    folder = tmp_path_factory.mktemp("small")
    tarred = tar(folder / "m.tar", {"a.json": b"{}", "b/c.bin": b"12345"}).read_bytes()
    archived = b"!<arch>\n" + b"".join(
        f"{name:<48}{len(content):<10}`\n".encode() + content
        for name, content in (("//", b"a-long-name.o/\n!"), ("/0", b"1234"), ("b.json/", b"{}"))
    )
    return {"set": artifacts.to_bytes(), "tar": tarred, "a": archived}


@pytest.mark.parametrize("kind", ["set", "tar", "a", "so"])
def test_damage_is_a_typed_error(
    kind: str, small: dict[str, bytes], forms: Forms, tmp_path: Path
) -> None:
    rng = random.Random(kind)
    source = forms.library.read_bytes() if kind == "so" else small[kind]
    table = int.from_bytes(source[0x28:0x30], "little")
    meta = source.index(b'"format"') if kind == "so" else 0
    limit = resource.getrlimit(resource.RLIMIT_AS)
    good = tmp_path / f"good.{kind}"
    good.write_bytes(source)
    look_at_all(good)
    for round_ in range(60 if kind == "so" else 250):
        damaged = bytearray(source)
        if round_ % 4 == 0:
            del damaged[rng.randrange(len(damaged)) :]
        for _ in range(rng.choice((1, 2, 8))):
            place = rng.randrange(max(1, len(damaged)))
            if kind == "so":  # headers, metadata and the tables at the end decide everything
                place = rng.choice(
                    (
                        rng.randrange(64),
                        meta + rng.randrange(2500),
                        rng.randrange(table, len(source)),
                    )
                )
            if place < len(damaged):
                damaged[place] = rng.choice((0, 255, ord("9"), rng.randrange(256)))
        path = tmp_path / f"bad.{kind}"
        path.write_bytes(damaged)
        try:
            look_at_all(path)
        except UserError as error:
            assert error.code in CODES, error
    assert resource.getrlimit(resource.RLIMIT_AS) == limit
