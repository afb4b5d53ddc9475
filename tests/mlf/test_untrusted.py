"""Archives that somebody made or damaged: a typed error that says where, or no harm."""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

import tensorkiln as tk
from release.archives import unpack
from tensorkiln.artifact.mlf.earlier import earlier_metadata
from tensorkiln.artifact.mlf.load import open_model_library
from tensorkiln.artifact.mlf.metadata import LibraryMetadata, parsed_metadata
from tensorkiln.base.dependency import ExternalDependency
from tensorkiln.base.errors import TensorkilnError, UnsupportedError, UserError
from tensorkiln.inspectors.subject import open_subject
from tensorkiln.kernels.case import rand
from tests.artifact.test_untrusted_json import fields, harmless, twice, values, with_value
from tests.mlf.earlier import ARCHIVES
from tests.transform.graphs import graph

CODES = ("bad-archive", "bad-metadata", "bad-container", "bad-artifact", "missing-file")


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    exe = tk.compile(graph(lambda g, x: g.relu(g.linear(x, rand(8, 8))), x=(1, 8)))
    return exe.export_model_library_format(tmp_path_factory.mktemp("mlf") / "net.tar")


def members(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as tar:
        return {m.name: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]


def written(path: Path, files: dict[str, bytes], *entries: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
        for entry in entries:
            tar.addfile(entry, io.BytesIO(bytes(entry.size)))
    return path


def refused(path: Path, words: str, code: str = "bad-archive") -> None:
    for read in (open_model_library, tk.load_model_library_format, open_subject):
        with pytest.raises(UserError) as caught:
            read(path)
        assert caught.value.code == code, caught.value
        assert words in str(caught.value) and str(path.name) in str(caught.value), caught.value


def entry(
    name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, link: str = ""
) -> tarfile.TarInfo:
    tar_info = tarfile.TarInfo(name)
    tar_info.type, tar_info.size, tar_info.linkname = kind, size, link
    return tar_info


OUTSIDE = [
    "../evil.c",
    "/etc/evil.c",
    "a/../../evil.c",
    "a\\..\\evil.c",
    "c:evil.c",
    "a//b.c",
    "a/./b",
]


@pytest.mark.parametrize("name", OUTSIDE)
def test_names_that_lead_out(name: str, archive: Path, tmp_path: Path) -> None:
    path = written(tmp_path / "m.tar", members(archive), entry(name, size=1))
    refused(path, "evil.c" if "evil" in name else "empty part")
    assert [p.name for p in tmp_path.iterdir()] == ["m.tar"]


KINDS = {
    "symlink": tarfile.SYMTYPE,
    "hard link": tarfile.LNKTYPE,
    "pipe": tarfile.FIFOTYPE,
    "device": tarfile.CHRTYPE,
}


@pytest.mark.parametrize("kind", KINDS)
def test_members_that_are_no_files(kind: str, archive: Path, tmp_path: Path) -> None:
    odd = entry("codegen/odd.c", KINDS[kind], link="/etc/passwd")
    refused(
        written(tmp_path / "m.tar", members(archive), odd), "'codegen/odd.c' is not a plain file"
    )


@pytest.mark.parametrize(
    "name", ["metadata.json", "./metadata.json", "METADATA.json", "src/net.py"]
)
def test_members_that_are_there_twice(name: str, archive: Path, tmp_path: Path) -> None:
    path = written(tmp_path / "m.tar", members(archive), entry(name, size=3))
    refused(path, "is there twice")


def test_members_that_nobody_lists(archive: Path, tmp_path: Path) -> None:
    path = written(tmp_path / "m.tar", members(archive), entry("codegen/host/src/more.c"))
    refused(path, "'codegen/host/src/more.c' is in no list")
    for name in members(archive):
        if name != "metadata.json":
            fewer = {n: data for n, data in members(archive).items() if n != name}
            refused(written(tmp_path / "m.tar", fewer), f"{name!r} is not in it")
            longer = {**members(archive), name: members(archive)[name] + b"x"}
            refused(written(tmp_path / "m.tar", longer), f"{name!r} has another size")


def test_a_changed_byte_of_any_file(archive: Path, tmp_path: Path) -> None:
    """Of what is loaded. The rest is what `kiln inspect --verify` reads."""
    for name, data in members(archive).items():
        if name == "metadata.json" or not data:
            continue
        changed = data[:-1] + bytes([data[-1] ^ 1])
        path = written(tmp_path / "m.tar", {**members(archive), name: changed})
        with pytest.raises(UserError, match="size or hash differ"):
            open_model_library(path).content(name)
        if name.startswith(("artifacts/", "src/", "parameters/")):
            with pytest.raises(UserError) as caught:
                tk.load_model_library_format(path)
            assert caught.value.code in CODES


def test_a_compressed_archive(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "m.tar").write_bytes(gzip.compress(archive.read_bytes()))
    for read in (open_model_library, tk.load_model_library_format):
        with pytest.raises(UserError, match="compressed by gzip") as caught:
            read(tmp_path / "m.tar")
        assert caught.value.code == "bad-archive" and "decompress" in caught.value.hint


def test_truncated_at_every_block(archive: Path, tmp_path: Path) -> None:
    data, path = archive.read_bytes(), tmp_path / "m.tar"
    end = len(data.rstrip(b"\0"))
    for size in [*range(0, end, 512), end - 1]:
        path.write_bytes(data[:size])
        with pytest.raises(UserError) as caught:
            open_model_library(path)
        assert caught.value.code in ("bad-archive", "bad-metadata"), (size, caught.value)


def test_more_files_than_there_may_be(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tensorkiln.artifact.mlf.archive._MOST", 10)
    refused(archive, "more than 10 files")


def test_what_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "text.tar").write_text("not a tar file" * 100)
    (tmp_path / "empty.tar").write_bytes(b"")
    written(tmp_path / "other.tar", {"a.txt": b"a"})
    (tmp_path / "folder").mkdir()
    for name in ("text.tar", "empty.tar", "other.tar", "folder"):
        with pytest.raises(UserError) as caught:
            tk.load_model_library_format(tmp_path / name)
        assert caught.value.code == "bad-archive" and name in str(caught.value)
    with pytest.raises(UserError) as caught:
        tk.load_model_library_format(tmp_path / "none.tar")
    assert caught.value.code == "missing-file"


def test_links_in_an_unpacked_folder(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("dear")
    with tarfile.open(archive) as tar:
        unpack(tar, tmp_path / "net")
    (tmp_path / "net/src/net.py").unlink()
    (tmp_path / "net/src/net.py").symlink_to(tmp_path / "secret")
    with pytest.raises(UserError) as caught:
        tk.load_model_library_format(tmp_path / "net")
    assert caught.value.code == "unsafe-path"


# -- each field -------------------------------------------------------------------------------


def test_each_field_of_metadata(archive: Path, tmp_path: Path) -> None:
    """What is read is the schema's; no key may be missing, and none may be added."""
    data = members(archive)["metadata.json"]
    parsed = json.loads(data)
    dependency = ExternalDependency("a", "b", libraries=("liba.so",))
    parsed["modules"]["net"]["external_dependencies"] = [dependency.to_json()]
    parsed["modules"]["net"]["bundled"] = {"a": {"path": "a", "sha256": "0" * 64}}
    parsed["licenses"] = [{"spdx": "MIT", "component": "c", "copyright": "", "paths": ["src"]}]
    LibraryMetadata.from_bytes(json.dumps(parsed).encode(), "m")
    accepted = []
    for path in fields(parsed):
        for name, value in values(tmp_path).items():
            changed = with_value(parsed, path, value)
            read: Callable[[], object] = lambda: LibraryMetadata.from_bytes(changed, "m")  # noqa: B023, E731
            if harmless(read, tmp_path, (path, name)):
                accepted.append((path, name))
                assert name != "missing" or path[-1] in arbitrary(path), path
        if isinstance(inner(parsed, path), dict) and path[-1] not in ("files", "modules", "target"):
            extended = {**inner(parsed, path), "extra": {}}  # type: ignore[dict-item]
            harmless(
                lambda: LibraryMetadata.from_bytes(with_value(parsed, path, extended), "m"),  # noqa: B023
                tmp_path,
                path,
            )
    assert not harmless(lambda: LibraryMetadata.from_bytes(twice(parsed), "m"), tmp_path, "twice")
    numbers = {
        path for path, name in accepted if name in ("negative", "huge", "real", "true", "null")
    }
    unknown = {p for p in numbers if p[-1] not in ("stack_buffers_bytes", "shape")}
    assert not {p for p in unknown if "target" not in p}, unknown


def inner(parsed: object, path: tuple[object, ...]) -> object:
    for step in path:
        parsed = parsed[step]  # type: ignore[index]
    return parsed


def arbitrary(path: tuple[object, ...]) -> tuple[object, ...]:
    """The last step, if it is a name that is not a key's, or the place of one among several."""
    tables = ("modules", "files", "functions", "placed", "bundled", "symbols", "target")
    free = isinstance(path[-1], int) or (len(path) > 1 and path[-2] in tables) or "target" in path
    return (path[-1],) if free else ()


@pytest.mark.parametrize("name", ARCHIVES)
def test_each_field_of_earlier_metadata(name: str, tmp_path: Path) -> None:
    parsed, _ = ARCHIVES[name]
    for path in fields(parsed):
        for label, value in values(tmp_path).items():
            data = with_value(parsed, path, value)
            read = lambda: earlier_metadata(parsed_metadata(data, "m"), "m")  # noqa: B023, E731
            harmless(read, tmp_path, (path, label))


def test_metadata_that_names_other_files(archive: Path, tmp_path: Path) -> None:
    """The paths in it are those of listed files, whatever a build does with them."""
    files = members(archive)
    parsed = json.loads(files["metadata.json"])
    places = [
        p for p in fields(parsed["modules"]) if p[-1] in ("header", "path", "ir", "parameters")
    ]
    places += [("net", "sources", 0), ("net", "objects", 0)]
    assert len(places) > 6
    for place in places:
        for value in ("../../evil", "/etc/passwd", "metadata.json", "codegen"):
            data = with_value(parsed, ("modules", *place), value)
            path = written(tmp_path / "m.tar", {**files, "metadata.json": data})
            refused(path, "is not listed", "bad-metadata")


def test_a_place_behind_a_files_end(archive: Path, tmp_path: Path) -> None:
    files = members(archive)
    parsed = json.loads(files["metadata.json"])
    for key in ("offset", "size_bytes"):
        data = with_value(parsed, ("modules", "net", "placed", "host/weights.bin", key), 1 << 40)
        path = written(tmp_path / "m.tar", {**files, "metadata.json": data})
        with pytest.raises(UserError, match="ends behind"):
            tk.load_model_library_format(path)


# -- damage -----------------------------------------------------------------------------------


def test_damage(archive: Path, tmp_path: Path) -> None:
    """Bytes and blocks of it changed, moved and cut: what is read is what was written."""
    rng, data, path = random.Random(7), archive.read_bytes(), tmp_path / "m.tar"
    whole = tk.load_model_library_format(archive)
    read = 0
    tracemalloc.start()
    for _ in range(400):
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            offset = rng.randrange(len(damaged) // 512) * 512
            kind = rng.randrange(4)
            if kind == 0:
                damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
            elif kind == 1:
                damaged[offset + rng.randrange(512)] = rng.randrange(256)
            elif kind == 2:
                del damaged[offset : offset + 512 * rng.randint(1, 4)]
            else:
                damaged[offset:offset] = damaged[offset : offset + 512 * rng.randint(1, 4)]
        path.write_bytes(damaged)
        try:
            artifacts = tk.load_model_library_format(path)
        except (UserError, UnsupportedError) as error:
            assert error.message and len(str(error)) < 5000
            continue
        except TensorkilnError as error:  # an InternalError is a fault of ours
            raise AssertionError(str(error)) from error
        read += 1
        assert artifacts == whole
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 << 20 and read < 400
