"""Tags: the data that comes with the compiler, versions, hashes, files of one's own."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorkiln.base.errors import UserError
from tensorkiln.target import Target
from tensorkiln.target.kinds import KINDS
from tensorkiln.target.tags import TAGS, read_file

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "tensorkiln" / "target" / "tag_data").glob("*.toml"))


@pytest.fixture(autouse=True)
def forget_loaded() -> Iterator[None]:
    yield
    TAGS.loaded = {}


# -- what is shipped ---------------------------------------------------------------------------


def test_shipped_tags_are_many_and_sound() -> None:
    tags = TAGS.all()
    assert len({tag.name for tag in tags}) >= 120
    for tag in tags:
        target = Target(tag.reference)
        assert target.tag == tag.reference
        assert target.content_hash == tag.hash, tag.reference
        assert Target(str(target)) == target
        assert tag.source.startswith("https://"), tag.reference
        assert tag.about
        assert set(KINDS[target.kind].keys) <= set(target.keys), tag.reference


def test_every_alias_leads_to_its_tag() -> None:
    for tag in TAGS.all():
        for alias in tag.aliases:
            assert Target(f"{alias}:{tag.version}").tag == tag.reference


def test_hash_is_written_in_every_shipped_file() -> None:
    for file in FILES:
        assert all(tag.hash.startswith("sha256:") for tag in read_file(file)), file.name


def test_kinds_of_machines_there_are() -> None:
    keys = {key for tag in TAGS.all() for key in Target(tag.name).keys}
    assert {"cuda", "rocm", "metal", "mali", "jetson", "riscv", "cortex-m", "zen5"} <= keys
    vendors = {tag.name.partition("/")[0] for tag in TAGS.all()}
    assert {"aws", "gcp", "azure", "intel", "amd", "apple", "nvidia", "raspberrypi"} <= vendors


def test_keys_are_a_hierarchy() -> None:
    mali = [tag.name for tag in TAGS.all() if "mali" in Target(tag.name).keys]
    assert "rockchip/rk3399-gpu" in mali
    assert "mali-t860" in Target("rockchip/rk3399-gpu").keys


@pytest.mark.parametrize(
    "name",
    [
        "nvidia/gtx2080ti",
        "nvidia/tx2",
        "nvidia/tx2-cudnn",
        "apple/iphone8-cpu",
        "aws/c4.xlarge",
        "rockchip/rk3399-gpu",
        "broadcom/rpi4b",
    ],
)
def test_names_the_proposal_uses(name: str) -> None:
    assert Target(str(Target(name))) == Target(name)


def test_data_is_not_read_on_import() -> None:
    script = (
        "import tensorkiln.target as t\n"
        "from tensorkiln.target.tags import TAGS\n"
        "t.Target('llvm')\n"
        "assert 'shipped' not in vars(TAGS)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


# -- overriding --------------------------------------------------------------------------------


def test_override_clears_the_tag_and_remembers_it() -> None:
    tagged = Target("raspberrypi/4b")
    changed = Target({"tag": "raspberrypi/4b", "l2_bytes": 1 << 21})
    assert (changed.tag, changed.base_tag) == ("", "raspberrypi/4b:1")
    assert changed.l2_bytes == 1 << 21
    assert changed.mcpu == tagged.mcpu
    assert Target(str(changed)) == changed
    assert tagged.replace(l2_bytes=1 << 21) == changed
    assert changed.replace(mcpu="cortex-a53").base_tag == "raspberrypi/4b:1"
    assert tagged.replace(l2_bytes=tagged.l2_bytes) == tagged
    assert Target({"tag": "raspberrypi/4b", "l2_bytes": tagged.l2_bytes}) == tagged
    assert Target("llvm").replace(mcpu="haswell") == Target({"mcpu": "haswell"})


def test_override_of_another_kind_is_refused() -> None:
    with pytest.raises(UserError, match="is of kind 'llvm', not 'cuda'"):
        Target({"tag": "raspberrypi/4b", "kind": "cuda"})


def test_same_content_same_hash_with_or_without_tag() -> None:
    tagged = Target("nvidia/tx2-cudnn")
    content = {k: v for k, v in tagged.to_json().items() if not k.startswith("tag")}
    plain = Target(content)
    assert plain.content_hash == tagged.content_hash
    assert plain != tagged


# -- files of one's own ------------------------------------------------------------------------

BOARD = """
[[tag]]
name = "acme/board"
version = "{version}"
aliases = ["acme/b"]
hash = "{hash}"
target = {{ kind = "llvm", mcpu = "{cpu}" }}
"""


def write(path: Path, cpu: str = "haswell", version: str = "1", hash: str = "") -> Path:
    path.write_text(BOARD.format(cpu=cpu, version=version, hash=hash))
    return path


def test_versions_side_by_side(tmp_path: Path) -> None:
    assert Target.load_tags(write(tmp_path / "a.toml")) == ("acme/board:1",)
    assert Target.load_tags(write(tmp_path / "b.toml", "znver4", "1.10")) == ("acme/board:1.10",)
    Target.load_tags(write(tmp_path / "c.toml", "znver3", "1.9"))
    assert Target("acme/board:1").mcpu == "haswell"
    assert Target("acme/b:1.9").mcpu == "znver3"
    assert Target("acme/board").mcpu == "znver4"
    assert Target("acme/b").tag == "acme/board:1.10"
    with pytest.raises(UserError, match="versions of 'acme/board': 1, 1.9, 1.10"):
        Target("acme/board:2")


def test_same_file_twice_is_nothing_new(tmp_path: Path) -> None:
    file = write(tmp_path / "a.toml")
    assert Target.load_tags(file) == Target.load_tags(file)


def test_edited_file_with_the_old_hash(tmp_path: Path) -> None:
    Target.load_tags(write(tmp_path / "a.toml"))
    old = Target("acme/board").content_hash
    TAGS.loaded = {}
    new = Target({"mcpu": "znver4"}).content_hash
    with pytest.raises(UserError) as caught:
        Target.load_tags(write(tmp_path / "a.toml", cpu="znver4", hash=old))
    assert caught.value.code == "tag-hash"
    assert old in str(caught.value)
    assert new in str(caught.value)
    assert "new version" in caught.value.hint
    assert TAGS.loaded == {}


def test_other_contents_under_a_known_version(tmp_path: Path) -> None:
    Target.load_tags(write(tmp_path / "a.toml"))
    with pytest.raises(UserError, match="contents are") as caught:
        Target.load_tags(write(tmp_path / "b.toml", cpu="znver4"))
    assert caught.value.code == "tag-hash"
    assert Target("acme/board").mcpu == "haswell"


def test_text_is_read_where_the_tag_is_not_known(tmp_path: Path) -> None:
    Target.load_tags(write(tmp_path / "a.toml"))
    target = Target("acme/board")
    data = pickle.dumps(target)
    TAGS.loaded = {}
    assert Target(str(target)) == target
    assert pickle.loads(data) == target
    assert target.replace(mcpu="znver4").base_tag == "acme/board:1"
    with pytest.raises(UserError, match="contents are"):
        Target({**target.to_json(), "mcpu": "znver4"})
    with pytest.raises(UserError, match="unknown tag"):
        Target("acme/board")


def test_text_of_another_hash_than_the_known_tag() -> None:
    with pytest.raises(UserError) as caught:
        Target({**Target("raspberrypi/4b").to_json(), "tag_hash": "sha256:00"})
    assert caught.value.code == "tag-hash"
    assert "sha256:00" in str(caught.value)


ENTRY = '[[tag]]\nname = "acme/x"\n'
BAD: list[tuple[str, str, str]] = [
    ("[[tag]", "bad-tag", "not valid TOML"),
    ("[other]\nx = 1", "bad-tag", r"\[\[tag\]\] entries"),
    (ENTRY, "bad-tag", "a target"),
    ('[[tag]]\nname = "Acme"\ntarget = {}', "bad-tag", "not a tag name"),
    (ENTRY + 'nmae = "y"\ntarget = {}', "bad-tag", "'name'"),
    (ENTRY + 'version = "x"\ntarget = {}', "bad-tag", "with a version"),
    (ENTRY + 'aliases = "x"\ntarget = {}', "bad-tag", "list of aliases"),
    (ENTRY + 'target = { mcpu = "not-a-cpu" }', "unknown-cpu", "not-a-cpu"),
    (ENTRY + 'target = { tag = "aws/c4.xlarge" }', "bad-tag", "cannot name another tag"),
    (ENTRY + "target = { num_cores = -4 }", "unknown-key", "num_cores"),
    (ENTRY + 'aliases = ["aws/c4.xlarge"]\ntarget = {}', "bad-tag", "names both"),
    (ENTRY + "target = {}\n" + ENTRY + "target = {}", "bad-tag", "occurs twice"),
]


@pytest.mark.parametrize(("text", "code", "says"), BAD)
def test_bad_file_leaves_everything_as_it_was(
    text: str, code: str, says: str, tmp_path: Path
) -> None:
    """Also when a good tag comes before the bad one."""
    before = TAGS.all()
    good = '[[tag]]\nname = "acme/good"\ntarget = {}\n'
    for number, content in enumerate((text, good + text)):
        file = tmp_path / f"{number}.toml"
        file.write_text(content)
        with pytest.raises(UserError, match=says) as caught:
            Target.load_tags(file)
        assert caught.value.code == code
    assert TAGS.all() == before


def test_no_such_file() -> None:
    with pytest.raises(UserError, match="cannot read tags"):
        Target.load_tags("none.toml")
