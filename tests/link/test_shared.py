from __future__ import annotations

import ctypes
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tensorkiln.artifact import FileContent
from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.codegen.host.entry_c import exported_symbols
from tensorkiln.link.shared import RUNTIME_EXPORTS, link_shared, runtime_ahead
from tensorkiln.link.toolchain import ZigToolchain
from tests.link import sample

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
needs_readelf = pytest.mark.skipif(
    shutil.which("readelf") is None, reason="readelf is not installed"
)
ROOT = Path(__file__).parents[2]


def readelf(*arguments: object) -> str:
    return subprocess.run(
        ["readelf", "-W", *map(str, arguments)], capture_output=True, text=True, check=True
    ).stdout


@needs_readelf
def test_needs_only_the_c_library_and_nothing_newer_than_glibc_2_17(library: Path) -> None:
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("-d", library)))
    assert needed <= {
        "libc.so.6",
        "libm.so.6",
        "libpthread.so.0",
        "libdl.so.2",
        "ld-linux-x86-64.so.2",
    }
    versions = re.findall(r"@+GLIBC_(\d+)\.(\d+)", readelf("--dyn-syms", library))
    assert versions, "undefined symbols must carry a version"
    assert max((int(a), int(b)) for a, b in versions) <= (2, 17)
    undefined = [
        line.split()[7]
        for line in readelf("--dyn-syms", library).splitlines()
        if " UND " in line and len(line.split()) > 7
    ]
    assert undefined and all("@GLIBC_" in name for name in undefined)


@needs_readelf
def test_exports_exactly_what_is_documented(library: Path) -> None:
    rows = [line.split() for line in readelf("--dyn-syms", library).splitlines()]
    shown = {r[7] for r in rows if len(r) > 7 and r[6] != "UND" and r[6].isdigit()}
    entries = exported_symbols(sample.FUNCTIONS, prefix="mlp")
    assert shown == {*RUNTIME_EXPORTS, *entries}
    page = (ROOT / "docs/formats/library.md").read_text()
    assert all(f"`{name}`" in page for name in RUNTIME_EXPORTS)


@needs_readelf
def test_runtime_code_is_small(library: Path) -> None:
    sizes = {
        m[1]: int(m[2], 16)
        for m in re.finditer(
            r"\] (\.text|\.rodata)\s+PROGBITS\s+\w+ \w+ (\w+)", readelf("-S", library)
        )
    }
    assert 0 < sizes[".text"] < 60_000


def test_bytes_do_not_depend_on_folder_or_hash_seed(library: Path, tmp_path: Path) -> None:
    script = (
        "from pathlib import Path; from tests.link import sample;"
        f"sample.build(Path({str(tmp_path)!r}) / 'elsewhere' / 'other.so')"
    )
    (tmp_path / "elsewhere").mkdir()
    environ = {
        **os.environ,
        "PYTHONHASHSEED": "4711",
        "PYTHONPATH": str(ROOT),
        "KILN_CACHE_DIR": str(tmp_path / "cache"),
    }
    subprocess.run([sys.executable, "-c", script], env=environ, check=True, cwd=tmp_path)
    assert (tmp_path / "elsewhere/other.so").read_bytes() == library.read_bytes()
    assert str(tmp_path).encode() not in library.read_bytes()


def test_nothing_is_left_beside_the_output(tmp_path: Path) -> None:
    out = sample.build(tmp_path / "mlp.so")
    assert [p.name for p in tmp_path.iterdir()] == ["mlp.so"]
    assert out.stat().st_mode & 0o111


def test_a_cache_folder_that_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("KILN_CACHE_DIR", str(tmp_path / "file" / "cache"))
    _answers(sample.build(tmp_path / "mlp.so"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "mlp.so"]


def test_the_runtime_is_compiled_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link finds it in the cache, and compiles the host's functions alone. What cannot be
    compiled ahead, or kept, is the link's."""
    monkeypatch.setenv("KILN_CACHE_DIR", str(tmp_path / "cache"))
    with runtime_ahead(sample.TRIPLE):
        pass
    sources, compile_ = list[str](), ZigToolchain.compile

    def recorded(tools: ZigToolchain, names: Sequence[str], *arguments: Path) -> list[str]:
        sources.extend(names)
        return compile_(tools, names, *arguments)

    monkeypatch.setattr(ZigToolchain, "compile", recorded)
    _answers(sample.build(tmp_path / "mlp.so"))
    assert "runtime.c" not in sources and sources
    sources.clear()
    monkeypatch.setenv("KILN_CACHE", "0")
    with runtime_ahead(sample.TRIPLE):
        pass
    monkeypatch.setenv("KILN_CACHE", "1")
    monkeypatch.setenv("CC", "false")
    with runtime_ahead(sample.TRIPLE):
        pass
    assert sources == []


def test_workspace_dir_keeps_the_readable_files(tmp_path: Path) -> None:
    sample.build(tmp_path / "mlp.so", workspace_dir=tmp_path / "work")
    assert (tmp_path / "work/entry.c").read_text() == sample.entry()
    assert (tmp_path / "work/exports.map").is_file()


def test_files_that_are_not_kept_after_an_error_are_said_so(tmp_path: Path) -> None:
    """The error is the first one; that its files could not be kept is a note."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "entry.c").write_text("mine\n")
    with pytest.raises(UserError, match="kernels.c:1") as caught:
        sample.build(tmp_path / "mlp.so", kernels="void dense( {", workspace_dir=work)
    (note,) = caught.value.__notes__
    assert note.startswith("intermediate files are not kept: ") and "entry.c" in note
    assert [(p.name, p.read_text()) for p in work.iterdir()] == [("entry.c", "mine\n")]


def test_a_missing_symbol_is_named(tmp_path: Path) -> None:
    kernels = sample.KERNELS.replace("sum < 0", "sum < exp_fast(sum)").replace(
        "#include <stdint.h>", "#include <stdint.h>\nfloat exp_fast(float);"
    )
    with pytest.raises(UserError, match="no linked object defines exp_fast") as caught:
        sample.build(tmp_path / "mlp.so", kernels=kernels)
    assert caught.value.code == "undefined-symbol"
    assert list(tmp_path.iterdir()) == []


def test_a_compiler_error_shows_command_and_words(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        sample.build(tmp_path / "mlp.so", kernels="void dense( {")
    assert "kernels.c:1" in str(caught.value) and "-O2" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the folder does not exist"):
        sample.build(tmp_path / "nowhere" / "mlp.so")


def test_a_read_only_folder(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    tmp_path.chmod(0o755)
    for parent in (tmp_path.parent, tmp_path.parent.parent):
        parent.chmod(parent.stat().st_mode | 0o055)
    folder.chmod(0o555)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        with pytest.raises(UserError, match="cannot write .*permission denied"):
            sample.build(folder / "mlp.so")
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o755)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("limit", [3_000, 60_000, 90_000])
def test_a_full_disk_leaves_nothing(library: Path, tmp_path: Path, limit: int) -> None:
    """A limit on file size, so that sources fit and then objects or the output do not."""
    assert library.stat().st_size > limit
    script = (
        "import resource, sys; from pathlib import Path\n"
        "from tests.link import sample; from tensorkiln.base.errors import UserError\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
        "try: sample.build(Path(sys.argv[1]) / 'mlp.so')\n"
        "except UserError as e: print(e)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert "cannot write" in done.stdout, done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


def _answers(path: Path) -> None:
    """The library computes the right thing, called through its plain C entry."""
    import numpy as np

    x = np.random.default_rng(1).standard_normal((3, 8)).astype(np.float32)
    out = np.empty((3, 4), np.float32)
    dll = ctypes.CDLL(str(path))
    pointer = ctypes.c_void_p
    code = dll.mlp_main(ctypes.c_int64(3), pointer(x.ctypes.data), pointer(out.ctypes.data))
    assert code == 0
    np.testing.assert_allclose(out, sample.expected(x), rtol=1e-5, atol=1e-5)


def test_packaged_tools(library: Path) -> None:
    _answers(library)


@needs_gcc
def test_gcc_by_command_and_by_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _answers(sample.build(tmp_path / "one.so", fcompile="gcc"))
    monkeypatch.setenv("CC", "gcc")
    sample.build(tmp_path / "two.so")
    assert (tmp_path / "one.so").read_bytes() == (tmp_path / "two.so").read_bytes()


@needs_gcc
def test_a_callable_links(tmp_path: Path) -> None:
    seen: list[list[str]] = []

    def fcompile(output: str, files: list[str], options: list[str]) -> None:
        seen.append(files)
        subprocess.run(["gcc", *options[:-3], "-o", output, *files, *options[-3:]], check=True)

    _answers(sample.build(tmp_path / "mlp.so", fcompile=fcompile))
    assert any(name.endswith("entry.c") for name in seen[0])


def test_a_callable_that_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="wrote no output"):
        sample.build(tmp_path / "mlp.so", fcompile=lambda *_: None)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_compiler(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such compiler or linker: 'no-such-cc'"):
        sample.build(tmp_path / "mlp.so", fcompile="no-such-cc")


def test_another_architecture(tmp_path: Path) -> None:
    path = link_shared(
        [],
        {"entry.c": sample.entry(), "kernels.c": sample.KERNELS},
        sample.DATA,
        tmp_path / "arm.so",
        triple="aarch64-unknown-linux-gnu",
    )
    assert struct.unpack_from("<H", path.read_bytes(), 18) == (183,)
    with pytest.raises(UnsupportedError, match="riscv32"):
        link_shared([], {}, None, tmp_path / "x.so", triple="riscv32-unknown-linux-gnu")


def test_kernels_from_llvm(tmp_path: Path) -> None:
    binding = pytest.importorskip("llvmlite.binding")
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    text = """
    declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
    define void @add_one(ptr %x, ptr %y, i64 %n) {
    entry:
      %bytes = shl i64 %n, 2
      call void @llvm.memcpy.p0.p0.i64(ptr %y, ptr %x, i64 %bytes, i1 false)
      br label %loop
    loop:
      %i = phi i64 [0, %entry], [%next, %loop]
      %p = getelementptr float, ptr %y, i64 %i
      %v = load float, ptr %p
      %w = fadd float %v, 1.0
      store float %w, ptr %p
      %next = add i64 %i, 1
      %more = icmp slt i64 %next, %n
      br i1 %more, label %loop, label %done
    done:
      ret void
    }
    """
    module = binding.parse_assembly(text)
    module.triple = sample.TRIPLE
    machine = binding.Target.from_triple(sample.TRIPLE).create_target_machine(reloc="pic")
    kernels = re.sub(r"void add_one\(.*?\n}\n", "", sample.KERNELS, flags=re.S)
    assert "add_one" not in kernels
    link_shared(
        [machine.emit_object(module)],
        {"entry.c": sample.entry(), "kernels.c": kernels},
        sample.DATA,
        tmp_path / "mlp.so",
        triple=sample.TRIPLE,
        exports=["mlp_add_one"],
    )
    dll = ctypes.CDLL(str(tmp_path / "mlp.so"))
    x = (ctypes.c_float * 3)(1, 2, 3)
    y = (ctypes.c_float * 3)()
    assert dll.mlp_add_one(ctypes.c_int64(3), x, y) == 0
    assert list(y) == [2, 3, 4]


def test_weights_from_a_file_are_the_same_library(library: Path, tmp_path: Path) -> None:
    weights = tmp_path / "w.bin"
    weights.write_bytes(sample.DATA)
    path = link_shared(
        [],
        {"entry.c": sample.entry(), "kernels.c": sample.KERNELS},
        FileContent(weights),
        tmp_path / "mlp.so",
        triple=sample.TRIPLE,
        exports=exported_symbols(sample.FUNCTIONS, prefix="mlp"),
    )
    assert path.read_bytes() == library.read_bytes()
