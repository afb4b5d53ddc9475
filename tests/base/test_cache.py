from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorkiln.base.cache import Cache, Miss, key_of
from tensorkiln.base.errors import UserError

A, B = key_of({"name": "a"}), key_of({"name": "b"})


def entry(cache: Cache, key: str) -> Path:
    return cache.root / "objects" / key[:2] / key[2:]


def test_key_depends_on_content_and_not_on_order() -> None:
    assert key_of({"a": "1", "b": "2"}) == key_of({"b": "2", "a": "1"})
    assert key_of({"a": "1", "b": "2"}) != key_of({"a": "2", "b": "1"})
    assert key_of({"a": "x,b"}) != key_of({"a": "x", "b": ""})


def test_get_put(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "new" / "folder")
    assert cache.get(A) is None
    assert cache.put(A, b"one")
    assert cache.put(B, b"")
    assert Cache(cache.root).get(A) == b"one"
    assert Cache(cache.root).get(B) == b""
    assert cache.size() == sum(f.stat().st_size for f in cache.root.rglob("*") if f.is_file())


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "append", "header"])
def test_damage_is_a_miss_and_goes(tmp_path: Path, damage: str) -> None:
    cache = Cache(tmp_path)
    cache.put(A, b"content", {"name": "a"})
    file = entry(cache, A)
    raw = file.read_bytes()
    changed = {
        "flip": raw[:-1] + bytes([raw[-1] ^ 1]),
        "truncate": raw[:-1],
        "empty": b"",
        "append": raw + b"x",
        "header": raw[:8] + b"\xff\xff\xff\xff" + raw[12:],
    }
    file.write_bytes(changed[damage])
    assert cache.get(A) is None
    assert not file.exists()
    assert cache.put(A, b"content")
    assert cache.get(A) == b"content"


def test_bad_key() -> None:
    with pytest.raises(UserError, match="64 lower-case hex digits"):
        Cache("/nowhere").get("../../etc/passwd")


def test_least_recently_used_goes_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit=10_000)
    keys = [key_of({"n": str(n)}) for n in range(9)]
    for age, key in enumerate(keys):
        cache.put(key, b"x" * 1000)
        os.utime(entry(cache, key), (age, age))
    assert cache.get(keys[0]) is not None  # used just now
    assert cache.put(A, b"x" * 1500)
    assert cache.size() <= 9000
    assert cache.get(keys[1]) is None
    assert cache.get(keys[0]) is not None
    assert cache.get(A) is not None


def test_content_beyond_the_limit_is_not_stored(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit=100)
    assert not cache.put(A, b"x" * 101)
    assert cache.size() == 0


def test_folder_that_cannot_be_written_fails_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = Cache(tmp_path / "file")
    assert not cache.put(A, b"x")
    assert cache.get(A) is None
    assert cache.prune() == 0


def test_explain_names_the_component_that_differs(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    assert cache.explain({"name": "conv"}) == Miss("", ())
    base = {"name": "conv", "target": "skylake", "compiler": "1", "tir": "x" * 5000}
    pool_components = {"name": "pool", "target": "haswell", "compiler": "1", "tir": "y"}
    cache.put(key_of(pool_components), b"", pool_components)
    cache.put(key_of(base), b"", base)
    miss = cache.explain({**base, "target": "znver4"})
    assert miss.nearest == key_of(base)
    assert miss.differs == (("target", "znver4", "skylake"),)
    assert "cached 'skylake', asked 'znver4'" in str(miss)
    changed = cache.explain({**base, "tir": "x" * 5000 + "!"})
    assert [name for name, _, _ in changed.differs] == ["tir"]
    assert str(changed).endswith("; tir differs")
    assert cache.explain({"name": "conv"}) == Miss("", ())  # no entry is of these components


def test_many_processes_at_once(tmp_path: Path) -> None:
    """Writers, readers and pruning on one folder: nobody sees half an entry."""
    script = textwrap.dedent("""
        import hashlib, sys
        from tensorkiln.base.cache import Cache, key_of
        cache = Cache(sys.argv[1], limit=60_000)
        for turn in range(150):
            key = key_of({"n": str(turn % 12)})
            want = hashlib.sha256(key.encode()).digest() * 200
            found = cache.get(key)
            assert found in (None, want), "half an entry"
            if found is None:
                assert cache.put(key, want)
    """)
    workers = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stderr=subprocess.PIPE)
        for _ in range(3)
    ]
    for worker in workers:
        _, errors = worker.communicate(timeout=60)
        assert worker.returncode == 0, errors.decode()
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that a cache lists, as patterns."""
    patterns: list[str] = []
    entries = Cache._entries

    def recorded(self: Cache, folders: str = "??") -> Iterator[tuple[float, int, Path]]:
        patterns.append(folders)
        return entries(self, folders)

    monkeypatch.setattr(Cache, "_entries", recorded)
    return patterns


def test_a_put_does_not_look_at_all_entries(tmp_path: Path, looked: list[str]) -> None:
    cache = Cache(tmp_path)
    keys = [key_of({"n": str(i)}) for i in range(20)]
    assert all(cache.put(key, b"content") for key in keys)
    assert looked == [keys[0][:2]]


def test_a_full_cache_is_not_listed_for_each_put(tmp_path: Path, looked: list[str]) -> None:
    """One that is always near its limit, with a folder that holds more than its share."""
    cache = Cache(tmp_path, limit=1_000_000)
    large = key_of({"n": "large"})
    for i in range(1000):
        assert cache.put(key_of({"n": str(i)}), bytes(2000))
        if i % 50 == 0:
            assert cache.put(large, bytes(100_000))
    assert looked.count("??") < 40
    assert 500_000 < cache.size() <= cache.limit


def test_the_limit_holds_for_many_entries(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit=400_000)
    for i in range(1500):
        cache.put(key_of({"n": str(i)}), bytes(500))
        assert i % 100 or cache.size() <= 2 * cache.limit
    assert 100_000 < cache.size() <= cache.limit * 5 // 4
