"""Places of farms: a folder, and what fsspec knows, do the same; caches of results share them."""

from __future__ import annotations

import hashlib
import shutil
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tensorkiln.base.cache import Cache
from tensorkiln.base.errors import UserError
from tensorkiln.scale import farm
from tensorkiln.scale.results import BuiltFile, Results
from tensorkiln.scale.storage import Folder, Storage, UrlStorage, local_path, matches_of, storage_of
from tests.scale.networks import hashes, states, write_networks

pytestmark = pytest.mark.filterwarnings("ignore:.* is the baseline")


@pytest.fixture
def fsspec() -> Any:
    return pytest.importorskip("fsspec", reason="fsspec is not installed")


@pytest.fixture
def memory(fsspec: Any) -> Iterator[str]:
    """The URL of a place of its own."""
    place = f"memory://{uuid.uuid4().hex}"
    yield place
    fs = fsspec.filesystem("memory")
    if fs.exists(place):
        fs.rm(place, recursive=True)


KINDS = ["folder", "file", "memory", "moving"]


@pytest.fixture(params=KINDS)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """A place: by path, by file://, an object store, and one where files are written elsewhere
    first and moved."""
    if request.param == "folder":
        return storage_of(tmp_path / "a b" / "ü")
    if request.param == "file":
        return storage_of((tmp_path / "a b" / "ü").as_uri())
    if request.param == "memory":
        return storage_of(request.getfixturevalue("memory"))
    request.getfixturevalue("fsspec")
    return UrlStorage(f"local://{tmp_path}/moving")


def test_files(storage: Storage, tmp_path: Path) -> None:
    content = bytes(range(256)) * 5000
    source = tmp_path / "source"
    source.write_bytes(content)
    assert storage.read("a.json") is None and storage.sha256("a.json") is None
    assert storage.stamp("a.json") is None and not storage.fetch("a.json", tmp_path / "none")
    storage.put("deep/er/net.so", source)
    storage.put("a.json", b"{}")
    assert storage.read("a.json") == b"{}"
    assert storage.sha256("deep/er/net.so") == hashlib.sha256(content).hexdigest()
    assert storage.fetch("deep/er/net.so", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == content
    assert storage.stamp("a.json") is not None
    before = storage.stamp("deep/er/net.so")
    storage.put("deep/er/net.so", b"another")
    assert storage.read("deep/er/net.so") == b"another"
    assert not before or storage.stamp("deep/er/net.so") != before
    if not storage.url.startswith("memory"):  # which has no folders
        with pytest.raises(UserError) as caught:
            storage.read("deep/er")
        assert caught.value.code == "storage"


def test_nothing_is_left_beside(storage: Storage, tmp_path: Path) -> None:
    storage.put("x/net.so", b"1")
    with pytest.raises((UserError, FileNotFoundError)):
        storage.put("x/net.so", tmp_path / "no such source")
    assert storage.read("x/net.so") == b"1"
    if isinstance(storage, Folder) or "moving" in storage.url:
        folder = Path(local_path(storage.url)) / "x"
        assert [p.name for p in folder.iterdir()] == ["net.so"]


PLACES = {
    "s4://bucket": ("bad-url", "did you mean"),
    "nonsense://x": ("bad-url", "no protocol of fsspec"),
    "": ("bad-path", "it is empty"),
    "a\0b": ("bad-path", "zero byte"),
}


@pytest.mark.parametrize("place", PLACES)
def test_wrong_places(fsspec: Any, place: str) -> None:
    with pytest.raises(UserError) as caught:
        storage_of(place)
    code, text = PLACES[place]
    assert caught.value.code == code and text in str(caught.value)


def test_a_protocol_whose_package_is_missing(fsspec: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*args: Any, **options: Any) -> Any:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec, "filesystem", missing)
    with pytest.raises(UserError, match="Install s3fs to access S3") as caught:
        storage_of("s3://bucket/nets")
    assert caught.value.code == "missing-package"


def test_a_store_that_fails(memory: str, fsspec: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a store raises becomes an error that says which file of which place."""

    def broken(*args: Any, **options: Any) -> Any:
        raise ConnectionResetError("the connection was reset")

    kind = type(fsspec.filesystem("memory"))
    for name in ("open", "pipe_file", "put_file", "get_file", "ukey"):
        monkeypatch.setattr(kind, name, broken)
    place = storage_of(memory)
    calls: list[Callable[[], Any]] = [
        lambda: place.read("a/b"),
        lambda: place.put("a/b", b"x"),
        lambda: place.put("a/b", Path(__file__)),
        lambda: place.fetch("a/b", Path("/dev/null")),
        lambda: place.sha256("a/b"),
        lambda: place.stamp("a/b"),
    ]
    for call in calls:
        with pytest.raises(UserError, match="the connection was reset") as caught:
            call()
        assert caught.value.code == "storage" and caught.value.where == f"{memory}/a/b"


def test_patterns(memory: str, fsspec: Any, tmp_path: Path) -> None:
    for name in ("b.onnx", "a.onnx", "x/c.onnx", "x/y/d.onnx", "a.txt", ".hidden.onnx"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).touch()
        fsspec.filesystem("memory").pipe_file(f"{memory}/{name}", b"")
    for top in (str(tmp_path), tmp_path.as_uri()):
        assert matches_of(f"{top}/*.onnx") == [str(tmp_path / n) for n in ("a.onnx", "b.onnx")]
        assert len(matches_of(f"{top}/**/*.onnx")) == 4
        assert matches_of(f"{top}/*") == [str(tmp_path / n) for n in ("a.onnx", "a.txt", "b.onnx")]
    matches = matches_of(f"{memory}/[ab].onnx")
    assert [name.rpartition("/")[2] for name in matches] == ["a.onnx", "b.onnx"]
    assert all(fsspec.filesystem("memory").exists(name) for name in matches)
    assert matches_of(f"{memory}/none/*") == [] == matches_of(f"{tmp_path}/none/*")


# -- caches ----------------------------------------------------------------------------------------


@pytest.fixture(
    params=[(True, True), (True, False), (False, True)], ids=["both", "shared", "local"]
)
def results(request: pytest.FixtureRequest, tmp_path: Path) -> Results:
    shared, local = request.param
    return Results(
        storage_of(tmp_path / "shared") if shared else None,
        Cache(tmp_path / "local", 1 << 20) if local else None,
    )


KEY = "ab" * 32


def kept(results: Results, tmp_path: Path, size: int = 100) -> tuple[BuiltFile, BuiltFile]:
    paths = {"here/net.so": tmp_path / "net.so", "here/net.safetensors": tmp_path / "w"}
    for i, path in enumerate(paths.values()):
        path.write_bytes(bytes([i]) * size)
    first, two = (BuiltFile.of(name, path) for name, path in paths.items())
    results.keep(KEY, (first, two), paths)
    return first, two


def test_what_is_kept_is_found(results: Results, tmp_path: Path) -> None:
    assert results.find(KEY) is None
    first, two = kept(results, tmp_path)
    assert results.find(KEY) == (first, two)
    assert results.fetch(two, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == b"\1" * 100
    assert results.find("cd" * 32) is None
    assert not results.fetch(BuiltFile("x", "cd" * 32, 1), tmp_path / "back2")
    assert results.notes == []


def test_large_files_stay_out_of_the_local_cache(tmp_path: Path) -> None:
    local = Cache(tmp_path / "local", 1 << 20)
    results = Results(storage_of(tmp_path / "shared"), local)
    large_file, _ = kept(results, tmp_path, size=1 << 16)
    assert local.size() < 1 << 16
    assert results.fetch(large_file, tmp_path / "back"), "the shared one has it"


def test_damaged_content_is_never_taken(tmp_path: Path) -> None:
    results = Results(storage_of(tmp_path / "shared"), None)
    first, two = kept(results, tmp_path)
    for blob in (tmp_path / "shared" / "blobs").glob("*/*"):
        blob.write_bytes(b"hostile")
    assert not results.fetch(first, tmp_path / "back") and not results.fetch(two, tmp_path / "back")
    kept(results, tmp_path)
    assert results.fetch(first, tmp_path / "back"), "mended by who makes it again"


RECORDS = [
    b"",
    b"[]",
    b"{}",
    b'{"version": 2, "files": []}',
    b'{"version": 1, "files": []}',
    b'{"version": 1, "files": [1]}',
    b'{"version": 1, "files": [{"name": "a", "sha256": "x", "bytes": 1}]}',
    b'{"version": 1, "files": [{"name": "a", "sha256": "%s", "bytes": -1}]}' % (b"a" * 64),
    b'{"version": 1, "files": [{"name": "../a", "sha256": "%s", "bytes": 1}]}' % (b"a" * 64),
    b'{"version": 1, "files": [{"name": "/a", "sha256": "%s", "bytes": 1}]}' % (b"a" * 64),
    b'{"version": 1, "version": 1, "files": []}',
    b"\xff\xfe",
    b"[" * 10_000,
]


@pytest.mark.parametrize("text", RECORDS, ids=lambda text: ascii(text[:50]))
def test_damaged_records_are_none(tmp_path: Path, text: bytes) -> None:
    results = Results(storage_of(tmp_path / "shared"), None)
    kept(results, tmp_path)
    storage_of(tmp_path / "shared").put(f"results/{KEY[:2]}/{KEY}.json", text)
    assert results.find(KEY) is None


def test_a_cache_that_fails_costs_nothing(tmp_path: Path) -> None:
    """What cannot be written or read there is a note, and the row is made."""
    (tmp_path / "shared").mkdir()
    for name in ("blobs", "results"):
        (tmp_path / "shared" / name).touch()  # in the place of folders
    results = Results(storage_of(tmp_path / "shared"), None)
    results.require()
    kept(results, tmp_path)
    (note,) = results.notes
    assert "not kept in the cache" in note
    assert results.find(KEY) is None


@pytest.mark.parametrize("mark", [b"", b"{}", b'{"version": 7}'])
def test_a_cache_of_another_version(tmp_path: Path, mark: bytes) -> None:
    place = storage_of(tmp_path / "shared")
    place.put("kiln-cache.json", mark)
    with pytest.raises(UserError) as caught:
        Results(place).require()
    assert caught.value.code == "bad-cache"


# -- farms -----------------------------------------------------------------------------------------

MANIFEST = 'models.conv = "nets/conv.onnx"\ntargets = { old = "llvm", arm = "raspberrypi/4b" }\n'


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return write_networks(tmp_path / "models", MANIFEST)


@pytest.fixture
def cold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_cache: Callable[[Path], Path]
) -> Callable[[], None]:
    """Another user, who has compiled nothing."""

    def begin() -> None:
        monkeypatch.setenv("KILN_CACHE_DIR", str(fresh_cache(tmp_path / uuid.uuid4().hex)))

    begin()
    return begin


def test_a_shared_cache(manifest: Path, tmp_path: Path, memory: str, cold: Any) -> None:
    """One makes it, and others take it: in folders and in stores, from what is beside or not."""
    for place in (str(tmp_path / "shared"), memory):
        cold()
        with ThreadPoolExecutor(1) as pool:
            mine = farm(manifest, tmp_path / "mine", cache=place, executor=pool, only=["old/*"])
            cold()
            their_report = farm(
                manifest, tmp_path / "theirs", cache=place, executor=pool, only=["old/*"]
            )
        assert states(their_report) == {"old/conv.so": "cached"} and their_report.rows[0].tries == 1
        assert mine.rows[0].files == their_report.rows[0].files
        assert hashes(tmp_path / "mine") == hashes(tmp_path / "theirs")
        for out in ("mine", "theirs"):
            shutil.rmtree(tmp_path / out)


def test_an_output_in_a_store(manifest: Path, tmp_path: Path, memory: str, fsspec: Any) -> None:
    """The same files, found again by their stamps, and made again where they were changed."""
    fs = fsspec.filesystem("memory")
    only = ["old/*"]
    with ThreadPoolExecutor(1) as pool:
        first = farm(manifest, f"{memory}/out/", executor=pool, only=only)
        assert not first.failed
        farm(manifest, tmp_path / "out", executor=pool, only=only)
        stored = fs.cat_file(f"{memory}/out/old/conv.so")
        assert stored == (tmp_path / "out/old/conv.so").read_bytes()
        again = farm(manifest, f"{memory}/out", executor=pool, only=only)
        assert [row.tries for row in again.rows] == [0]
        fs.pipe_file(f"{memory}/out/old/conv.so", stored)  # another stamp, the same content
        assert [
            r.tries for r in farm(manifest, f"{memory}/out", executor=pool, only=only).rows
        ] == [0]
        fs.pipe_file(f"{memory}/out/old/conv.so", stored[:-1] + b"?")
        assert [
            r.tries for r in farm(manifest, f"{memory}/out", executor=pool, only=only).rows
        ] == [1]
    assert fs.cat_file(f"{memory}/out/old/conv.so") == stored


def test_models_in_a_store(manifest: Path, tmp_path: Path, memory: str, fsspec: Any) -> None:
    """With their weights beside them; the library is that of the same model in a folder."""
    fs = fsspec.filesystem("memory")
    for name in ("outside.onnx", "outside.bin"):
        fs.pipe_file(f"{memory}/m/{name}", (manifest.parent / name).read_bytes())
    store_manifest = {"models": {"nets": f"{memory}/m/*.onnx"}, "targets": {"old": "llvm"}}
    folder_manifest = {
        "models": {"o": str(manifest.parent / "out*.onnx")},
        "targets": {"old": "llvm"},
    }
    with ThreadPoolExecutor(1) as pool:
        store_report = farm(store_manifest, tmp_path / "one", executor=pool)
        folder_report = farm(folder_manifest, tmp_path / "other", executor=pool)
        assert not store_report.failed and not folder_report.failed, store_report
        assert hashes(tmp_path / "one") == hashes(tmp_path / "other")
        fs.rm(f"{memory}/m/outside.bin")
        lacking = farm(store_manifest, tmp_path / "one", executor=pool)
    failure = lacking.rows[0].failure
    assert failure is not None and failure.code == "missing-file"
    assert f"{memory.partition('//')[2]}/m/outside.bin" in failure.message


def test_models_reach_workers_elsewhere(
    manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cold: Any
) -> None:
    """A worker on another machine, where no path of this one leads anywhere: it takes the model
    from the cache, weights and all, or from the job if it is small, else says what to do."""
    from tensorkiln.scale import build

    monkeypatch.setattr(build, "MOST_INLINE", 0)
    folder = manifest.parent

    class Elsewhere(ThreadPoolExecutor):
        def submit(self, *args: Any, **kwargs: Any) -> Any:
            if folder.exists():
                folder.rename(folder.with_name("moved"))
            return super().submit(*args, **kwargs)

    models = {"big": str(folder / "outside.onnx"), "net": str(folder / "nets/conv.onnx")}
    manifest_data = {"models": models, "targets": {"old": "llvm"}}
    with Elsewhere(1) as pool:
        report = farm(manifest_data, tmp_path / "out", executor=pool)
        failure_codes = {row.model: row.failure.code if row.failure else "" for row in report.rows}
        assert failure_codes == {"big": "missing-file", "net": "missing-file"}
        folder.with_name("moved").rename(folder)
        report = farm(manifest_data, tmp_path / "out", cache=tmp_path / "shared", executor=pool)
        assert not report.failed, report
        folder.with_name("moved").rename(folder)
        monkeypatch.setattr(build, "MOST_INLINE", 1 << 16)
        cold()
        report = farm(manifest_data, tmp_path / "out2", executor=pool, only=["old/net.so"])
        assert states(report) == {"old/net.so": "made"}
    assert hashes(tmp_path / "out2").items() <= hashes(tmp_path / "out").items()


def test_places_that_workers_do_not_see(manifest: Path, tmp_path: Path, memory: str) -> None:
    """`memory://` is a process's own: said of the output as a failure, of the cache as a note."""
    report = farm(manifest, f"{memory}/out", executor="local:1", only=["old/*"])
    (row,) = report.rows
    assert row.failure is not None and "does not see it" in row.failure.message
    report = farm(manifest, tmp_path / "out", cache=memory, executor="local:1", only=["old/*"])
    (row,) = report.rows
    assert row.failure is None and any("is another one" in note for note in row.notes)
