"""What holds for every target, over thousands of them, and for every spelling mistake."""

from __future__ import annotations

import json
import random
import string
import subprocess
import sys
from collections.abc import Iterator
from operator import attrgetter

import pytest

from tensorkiln.base.errors import UserError
from tensorkiln.target import Target
from tensorkiln.target.kinds import FIELDS, KINDS
from tensorkiln.target.lookup import hint_for_kind
from tensorkiln.target.tags import TAGS
from tests.rotation import rows_in_turn
from tests.target import generated

COUNT = 2_500


def test_text_round_trip() -> None:
    rng = random.Random(7)
    counts = {"tag": 0, "base_tag": 0, "host": 0, "devices": 0}
    for _ in range(COUNT):
        spec = generated.target(rng)
        target = Target(spec)
        text = str(target)
        again = Target(text)
        assert again == target, spec
        assert hash(again) == hash(target), spec
        assert str(again) == text, spec
        assert again.content_hash == target.content_hash
        assert again.features == target.features
        assert text == json.dumps(target.to_json(), separators=(",", ":"))
        for name in counts:
            counts[name] += bool(getattr(target, name))
    assert min(counts.values()) > COUNT // 50, counts


def test_spelling_does_not_count() -> None:
    rng = random.Random(8)
    for _ in range(COUNT // 4):
        spec = generated.target(rng)
        assert str(Target(generated.shuffled(spec, rng))) == str(Target(spec)), spec


def test_same_text_whatever_the_machine() -> None:
    """Another process, another hash seed, another locale: the same bytes."""
    script = (
        "import random, sys, hashlib\n"
        "from tensorkiln.target import Target\n"
        "from tests.target import generated\n"
        "rng = random.Random(9)\n"
        "text = ''.join(str(Target(generated.target(rng))) for _ in range(500))\n"
        "print(hashlib.sha256(text.encode()).hexdigest())\n"
    )
    texts = set()
    for seed in ("1", "2"):
        environment = {"PYTHONHASHSEED": seed, "LC_ALL": "C", "PYTHONPATH": ":".join(sys.path)}
        command = [sys.executable, "-c", script]
        texts.add(subprocess.check_output(command, env=environment, text=True))
    assert len(texts) == 1


# -- one wrong letter --------------------------------------------------------------------------

LETTERS = string.ascii_lowercase + string.digits + "-_"


def typos(name: str, rng: random.Random, count_per_kind: int) -> Iterator[str]:
    """`name` with one letter left out, put in, replaced, or swapped with the next."""
    for _ in range(count_per_kind):
        i = rng.randrange(len(name))
        yield name[:i] + name[i + 1 :]
        yield name[:i] + rng.choice(LETTERS) + name[i:]
        yield name[:i] + rng.choice(LETTERS) + name[i + 1 :]
        yield name[:i] + name[i : i + 2][::-1] + name[i + 2 :]


def offered(spec: object) -> list[str]:
    """The names in quotes that the error's hint offers."""
    with pytest.raises(UserError) as caught:
        Target(spec)  # type: ignore[arg-type]
    return caught.value.hint.split("?")[0].split("'")[1::2]


def test_every_option() -> None:
    rng = random.Random(1)
    for kind in KINDS.values():
        names = {option.name for option in kind.options}
        for name in sorted(names):
            for typo in typos(name, rng, 8):
                if typo not in names | set(FIELDS) and typo not in ("id", "targets"):
                    assert name in offered({"kind": kind.name, typo: 1})[:3], typo


def test_every_kind() -> None:
    rng = random.Random(2)
    for name in KINDS:
        for typo in typos(name, rng, 25):
            # One letter for another is no slip: nothing of it is left. `gc` is a feature.
            is_slip = len(typo) > 1 and typo not in KINDS and not hint_for_kind(typo)
            if is_slip and "/" not in typo and " -" not in typo:
                assert name in offered({"kind": typo})[:3], typo


def test_every_tag() -> None:
    rng = random.Random(3)
    tag_names = set(TAGS.names())
    for tag in rows_in_turn(TAGS.all(), attrgetter("name")):
        vendor, _, model_name = tag.name.partition("/")
        for typo in typos(model_name, rng, 2):
            if f"{vendor}/{typo}" not in tag_names:
                assert tag.name in offered({"tag": f"{vendor}/{typo}"})[:3], typo
        for typo in typos(vendor, rng, 1):
            if f"{typo}/{model_name}" not in tag_names:
                assert tag.name in offered({"tag": f"{typo}/{model_name}"})[:3], typo
