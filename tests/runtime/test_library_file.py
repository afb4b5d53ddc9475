from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorkiln.base.errors import UserError
from tensorkiln.link.shared import link_shared
from tensorkiln.runtime import load_module, read_metadata
from tests.artifact.damage_files import without_digest
from tests.link import sample


def test_metadata_is_read_without_loading(library: Path, tmp_path: Path) -> None:
    metadata = read_metadata(library)
    assert metadata["library"] == "mlp" and metadata["weights_bytes"] == sample.WEIGHT_BYTES
    assert [f["name"] for f in metadata["functions"]][:2] == ["main", "fixed"]
    assert metadata["functions"][0]["inputs"] == [
        {"name": "x", "dtype": "float32", "shape": ["n", 8]}
    ]
    arm = link_shared(
        [],
        {"entry.c": sample.entry(), "kernels.c": sample.KERNELS},
        sample.DATA,
        tmp_path / "arm.so",
        triple="aarch64-linux-gnu",
    )
    assert read_metadata(arm) == metadata
    with pytest.raises(UserError, match="is compiled for aarch64, this machine is x86_64"):
        load_module(arm)


def test_text_that_needs_escapes_survives(tmp_path: Path) -> None:
    odd = 'é "quoted" back\\slash ??/ %s */ \n tab\t'
    path = link_shared(
        [],
        {"entry.c": sample.entry(compiler=odd), "kernels.c": sample.KERNELS},
        sample.DATA,
        tmp_path / "q.so",
        triple=sample.TRIPLE,
    )
    assert read_metadata(path)["compiler"]["version"] == odd


def test_files_that_are_no_libraries(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        load_module(tmp_path / "nothing.so")
    for content, words in (
        (b"", "not an ELF"),
        (b"MZ" * 100, "not an ELF"),
        (b"\x7fELF\x01\x01" + bytes(100), "not a 64-bit"),
    ):
        (tmp_path / "x.so").write_bytes(content)
        with pytest.raises(UserError, match=words):
            load_module(tmp_path / "x.so")
    python = Path(sys.executable).resolve()
    with pytest.raises(UserError, match="no section .kiln.meta"):
        load_module(python)


@given(st.data())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_files_never_crash_the_reader(
    library: Path, tmp_path: Path, data: st.DataObject
) -> None:
    raw = bytearray(library.read_bytes())
    end = data.draw(st.integers(0, len(raw)))
    table = int.from_bytes(raw[40:48], "little")
    for _ in range(data.draw(st.integers(0, 6))):
        byte_position = data.draw(st.one_of(st.integers(0, 63), st.integers(table, len(raw) - 1)))
        raw[byte_position] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged.so"
    path.write_bytes(raw[:end] if data.draw(st.booleans()) else raw)
    try:
        assert "functions" in read_metadata(path)
    except UserError as error:
        assert str(path) in str(error)


def test_a_newer_library_says_so(library: Path, tmp_path: Path) -> None:
    raw = without_digest(library.read_bytes()).replace(b'"format": 2,', b'"format": 9,')
    (tmp_path / "new.so").write_bytes(raw)
    with pytest.raises(
        UserError, match="has metadata version 9, this Tensorkiln reads versions 1 to 6"
    ):
        load_module(tmp_path / "new.so")


def test_objcopy_shows_the_same_text(library: Path, tmp_path: Path) -> None:
    import json
    import shutil

    if shutil.which("objcopy") is None:
        pytest.skip("objcopy is not installed")
    command = ["objcopy", "-O", "binary", "--only-section=.kiln.meta", str(library), "meta.json"]
    subprocess.run(command, check=True, cwd=tmp_path)
    text = (tmp_path / "meta.json").read_bytes().rstrip(b"\0")
    assert json.loads(text) == read_metadata(library)
