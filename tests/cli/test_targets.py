"""kiln targets: lists, searches, explains."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.cli import main
from tensorkiln.target import Target
from tensorkiln.target.isa import ISAS
from tensorkiln.target.kinds import KINDS
from tensorkiln.target.tags import TAGS
from tests.cli.test_options import commands


@pytest.fixture(autouse=True)
def forget_loaded() -> Iterator[None]:
    yield
    TAGS.loaded = {}


@cache
def _compiles(reference: str) -> bool:
    """Whether a compile gets beyond the target."""
    try:
        tk.compile(tk.IRModule(()), target=reference)
    except UnsupportedError:
        return False
    except UserError:  # of the empty module
        return True
    raise AssertionError("an empty module was compiled")


def test_list_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets"]) == 0
    short = capsys.readouterr().out
    assert main(["targets", "--all"]) == 0
    whole = capsys.readouterr().out
    for text in (short, whole):
        # A kind that another test has registered may say nothing of itself.
        lines = [line.strip() for line in text.splitlines() if line.startswith("  ")]
        rows = {name: about.strip() for name, _, about in (s.partition(" ") for s in lines)}
        for kind in KINDS.values():
            assert rows[kind.name].startswith(kind.doc)
        for tag in TAGS.all():
            assert rows[tag.reference] == tag.about + (
                "" if _compiles(tag.reference) else " (cannot be compiled yet)"
            )
    assert set(short.splitlines()) < set(whole.splitlines())
    words = set(whole.split())
    assert words >= {cpu for isa in ISAS.values() for cpu in isa.cpus}
    assert words >= {option.name for kind in KINDS.values() for option in kind.options}
    assert main(["targets", "--all", "llvm"]) == 2
    assert main(["targets", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["tags"]["aws/c4.xlarge:1"]["source"].startswith("https://docs.aws.amazon.com")
    assert data["kinds"]["cuda"]["arch"]
    for reference, row in data["tags"].items():
        assert row["code_generator"] is (row["unsupported"] is None) is _compiles(reference)
    assert "macos" in data["tags"]["apple/m1:1"]["unsupported"]
    assert set(data["kinds"]) == set(KINDS)


@pytest.mark.parametrize(
    "command",
    [c for c, p in commands().items() if any(a.dest == "target" for a in p._actions)],
)
def test_target_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It lists the targets, whatever else is missing."""
    word = ["help"] if command == "targets" else ["--target", "help"]
    assert main([command, *word]) == 0
    listed = capsys.readouterr().out
    assert main(["targets"]) == 0
    assert capsys.readouterr().out == listed
    assert main([command, "--json", *word]) == 0
    assert set(TAGS.names()) & {
        t.partition(":")[0] for t in json.loads(capsys.readouterr().out)["tags"]
    }


def test_search(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets", "Graviton", "--json"]) == 0
    tags = json.loads(capsys.readouterr().out)["tags"]
    assert {"aws/c7g.xlarge:1", "aws/r8g.xlarge:1"} <= set(tags)
    assert main(["targets", "mali"]) == 0
    assert "rockchip/rk3399-gpu:1  RK3399, Mali-T860 MP4" in capsys.readouterr().out


@pytest.mark.parametrize("word", ["cortex-a72", "generic"])
def test_a_name_of_several(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The tags with it are listed, and the targets with this name in full."""
    assert main(["targets", word]) == 0
    text = capsys.readouterr().out
    assert main(["targets", word, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert len(data["choices"]) > 1
    for choice in data["choices"]:
        assert str(Target(choice)) in text and choice["mcpu"] == word
    assert set(data["tags"]) <= set(text.split())


@pytest.mark.parametrize(
    ("name", "tags"),
    [
        ("skylake", "intel/core-i7-6700k:1"),
        ("cortex-m4", "st/nucleo-f401re:1"),
        ("x86-64-v3", ""),
        ("avx2", ""),
    ],
)
def test_explain_processor(name: str, tags: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets", name]) == 0
    text = capsys.readouterr().out
    assert str(Target(name)) in text and "compiles  yes" in text and tags in text
    assert main(["targets", name, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert Target(data["target"]) == Target(name)
    assert data["tags"] == [
        t.reference for t in TAGS.all() if t.target.get("mcpu") == Target(name).mcpu
    ]
    assert (tags in data["tags"]) is bool(tags) and data["unsupported"] is None


def test_explain_what_a_name_means(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets", "apple-m1"]) == 0
    text = capsys.readouterr().out
    assert "apple/m1:1" in text and "no: no library is made for macos" in text
    assert main(["targets", "apple-m1", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert Target(data["target"]) == Target("apple/m1")
    assert data["code_generator"] is False and "macos" in data["unsupported"]


@pytest.mark.parametrize(
    "argv", [["--tag", "broadcom/rpi4b"], ["raspberrypi/4b:1"], ["rpi4"], ["--tag", "rpi4"]]
)
def test_explain_tag(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets", *argv]) == 0
    text = capsys.readouterr().out
    for part in (str(Target("raspberrypi/4b")), "raspberrypi/4b:1", "broadcom/rpi4b", "https://"):
        assert part in text
    assert "32 of 16 bytes" in text
    assert main(["targets", *argv, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert Target(data["target"]) == Target("raspberrypi/4b")
    assert data["tag"]["hash"] == data["content_hash"] == Target("raspberrypi/4b").content_hash
    assert "crc" in data["features"]
    assert data["code_generator"] is True


def test_explain_what_would_differ(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets", "intel/xeon-platinum-8280"]) == 0
    text = capsys.readouterr().out
    assert "32 of 64 bytes" in text
    assert "vectors of 16 bytes in its place" in text
    assert "avx512vnni" in text


def test_explain_says_what_does_not_compile(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets", "nvidia/t4"]) == 0
    assert "compiles  yes" in capsys.readouterr().out
    assert main(["targets", "rocm"]) == 0
    assert "no: no code generator for kind 'rocm'" in capsys.readouterr().out
    assert main(["targets", "--tag", "apple/m1"]) == 0
    assert "no library is made for macos13.0.0 yet" in capsys.readouterr().out


def test_tags_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[[tag]]\nname = "acme/board"\ntarget = { mcpu = "haswell" }\n')
    assert main(["targets", "--tags-file", str(file), "--tag", "acme/board"]) == 0
    assert "acme/board:1" in capsys.readouterr().out
    assert main(["targets", "--tags-file", str(tmp_path / "no.toml")]) == 2


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--tag", "nvidia/tx22"], "did you mean 'nvidia/tx2'"),
        (["--tag", "llvm"], "unknown tag 'llvm'"),
        (["nvidia/tsela-v100"], "'nvidia/tesla-v100'"),
        (["qwertyuiop"], "unknown kind"),
        (["qwertyuiop"], "`kiln targets WORD` searches tags"),
    ],
)
def test_unknown(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets", *argv]) == 2
    assert says in capsys.readouterr().err
