"""Campaigns find each planted fault once, with a command that repeats it, whatever dies."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorkiln.base.errors import UserError
from tensorkiln.scale import local_executor
from tests.campaign import __main__ as command_line
from tests.campaign.campaigns import (
    CAMPAIGNS,
    Campaign,
    Plan,
    Result,
    chosen,
    divided,
    run_campaign,
)
from tests.campaign.checkout import checkout, require_checkout, require_outside
from tests.campaign.child import Settings, command, run_tests, shortened
from tests.campaign.findings import Failure, deduplicated, normalised, signature, table
from tests.campaign.rows import row_command
from tests.campaign.shards import Report, Shard, read_report, run_shard

ROOT = Path(__file__).resolve().parents[2]
PLANTED = Campaign("planted", ("tests/campaign/planted_faults.py",), seeded=True)
PLAN = Plan(shards=3, seed=1, seeds=2, seconds=5)


class Counting(Executor):
    """What an executor was given."""

    def __init__(self, inner: Executor):
        self.inner, self.keys = inner, list[str]()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.keys.append(args[1][0].key)
        return self.inner.submit(fn, *args, **kwargs)


@dataclass
class Ran:
    """The planted campaign, interrupted once and continued."""

    out: Path
    first: list[str]
    second: list[str]
    finished_at_first: set[str]
    killed: bool
    result: Result
    items: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    folder = tmp_path_factory.mktemp("campaign")
    out, killed = folder / "out", folder / "killed"
    items = PLANTED.items()

    def stop(shard: Shard) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLANTED_KILLED", str(killed))
        with pytest.raises(KeyboardInterrupt), local_executor(2) as executor:
            first = Counting(executor)
            run_campaign(PLANTED, items, first, out, PLAN, watch=stop)
        finished = {p.stem for p in (out / "shards").glob("*.json")}
        with local_executor(2) as executor:
            second = Counting(executor)
            result = run_campaign(PLANTED, items, second, out, PLAN)
    yield Ran(out, first.keys, second.keys, finished, killed.exists(), result, items)


# Exception, where, and how it repeats, of every planted fault.
FAULTS = {
    ("UserError", "tensorkiln/target/isa.py in check_cpu", "alone"),
    (
        "AssertionError",
        "tests/campaign/planted_faults.py in test_fails_after_another",
        "after others",
    ),
    ("AssertionError", "tests/campaign/planted_faults.py in test_a_property", "alone"),
    ("Crash", "tests/campaign/planted_faults.py in test_crashes", "alone"),
    ("Crash", "", "alone"),
    ("Hang", "tests/campaign/planted_faults.py in test_hangs", "alone"),
}


def test_each_fault_is_found_once(ran: Ran) -> None:
    findings = [(f.shortest.kind, f.where, f.shortest.repeats) for f in ran.result.findings]
    assert Counter(findings) == Counter(FAULTS), table(ran.result.findings)
    by_kind = {(f.shortest.kind, f.where): f for f in ran.result.findings}
    raised = by_kind["UserError", "tensorkiln/target/isa.py in check_cpu"]
    assert (raised.count, raised.seeds, len(raised.tests)) == (7, (1, 2), 4)
    property_ = by_kind["AssertionError", "tests/campaign/planted_faults.py in test_a_property"]
    assert "x=1000" in property_.shortest.example
    assert re.fullmatch(r"@reproduce_failure\('[\d.]+', b'.+'\)", property_.shortest.blob)
    after = by_kind[
        "AssertionError", "tests/campaign/planted_faults.py in test_fails_after_another"
    ]
    named = re.findall(r"::(\w+)", after.shortest.command)
    assert named == ["test_state_of_another_is_kept", "test_fails_after_another"]
    ended = by_kind["Crash", ""]
    assert ended.message == "exit status #" and ended.tests[0].endswith("::test_ends_the_process")
    assert by_kind["Crash", "tests/campaign/planted_faults.py in test_crashes"].message == "SIGSEGV"


def test_every_test_ran_for_every_seed(ran: Ran) -> None:
    counts = +ran.result.counts
    assert counts.total() == 2 * len(ran.items)
    assert counts == Counter(failed=9, crashed=2, hung=1, passed=2 * len(ran.items) - 12)


def test_commands_fail_again(ran: Ran) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for finding in ran.result.findings:
        line = finding.shortest.command.replace("python -m", f"{sys.executable} -m")
        line = line.replace("timeout -s ABRT 10 ", "timeout -s ABRT 6 ")  # time enough to hang
        process = subprocess.run(
            ["sh", "-c", line],
            cwd=ROOT,
            env=os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert process.returncode != 0, f"{line}\n{process.stdout}"
        if finding.shortest.kind.endswith("Error"):
            assert re.search(r"\b1 failed", process.stdout), f"{line}\n{process.stdout}"
            assert finding.shortest.message.partition("\n")[0] in process.stdout


def test_a_killed_worker_costs_its_shard_alone(ran: Ran) -> None:
    assert ran.killed
    shards = ran.first + ran.second
    twice = Counter(ran.second)
    assert len(set(shards)) == 6
    assert max(twice.values()) <= 2, "no shard but that of the killed worker is run again"
    assert not [f for f in ran.result.findings if f.shortest.kind == "WorkerLost"]


def test_finished_shards_are_not_run_again(ran: Ran) -> None:
    assert ran.finished_at_first
    assert not ran.finished_at_first & set(ran.second)
    assert (ran.result.finished, ran.result.unfinished) == (6, 0)
    again = Counting(_Refusing())
    result = run_campaign(PLANTED, ran.items, again, ran.out, PLAN)
    assert again.keys == []
    assert result == ran.result


class _Refusing(Executor):
    """One that must not be asked."""


def test_findings_are_written(ran: Ran) -> None:
    document = json.loads((ran.out / "findings.json").read_text())
    assert document["checkout"] == checkout() and document["finished"] == 6
    assert [f["signature"] for f in document["findings"]] == [
        f.signature for f in ran.result.findings
    ]
    assert (ran.out / "findings.txt").read_text() == ran.result.text() + "\n"
    assert not list(ran.out.rglob("*.tmp"))


def test_a_folder_is_of_one_campaign_and_checkout(ran: Ran, tmp_path: Path) -> None:
    other_campaign = replace(PLANTED, name="other")
    with pytest.raises(UserError, match="is of campaign planted, this is other"):
        run_campaign(other_campaign, ran.items, _Refusing(), ran.out, PLAN)
    shutil.copytree(ran.out, tmp_path / "out")
    about = tmp_path / "out" / "campaign.json"
    about.write_text(about.read_text().replace(checkout()[:12], "0" * 12))
    with pytest.raises(UserError, match="is of checkout 000000000000"):
        run_campaign(PLANTED, ran.items, _Refusing(), tmp_path / "out", PLAN)


@pytest.mark.parametrize("spoil", ["", "[]", "{", '{"version": 2}', '{"version": "1"}'])
def test_damaged_reports_are_named(ran: Ran, tmp_path: Path, spoil: str) -> None:
    shutil.copytree(ran.out, tmp_path / "out")
    path = min((tmp_path / "out" / "shards").iterdir())
    path.write_text(spoil)
    with pytest.raises(UserError, match=re.escape(path.name)):
        run_campaign(PLANTED, ran.items, _Refusing(), tmp_path / "out", PLAN)


# Seed of planted_broken.py: kinds and messages of the failures, and how many of two tests did what.
BROKEN: dict[int, tuple[list[tuple[str, str]], dict[str, int]]] = {
    0: ([], {"passed": 2}),
    1: ([("CollectError", "ImportError: planted: it cannot be imported")], {"not run": 2}),
    2: ([("Session", "exit status 9: .*2 passed")], {"passed": 2}),
    3: ([("ValueError", "planted: it cannot be torn down")], {"passed": 2, "failed": 1}),
    4: ([("Session", "exit status 1: .* a reason that nobody knows")], {"passed": 1, "skipped": 1}),
    5: ([("Crash", "SIGABRT")], {"passed": 1, "crashed": 1}),
}


@pytest.mark.parametrize("seed", BROKEN)
def test_what_no_test_tells_is_told(seed: int) -> None:
    file = "tests/campaign/planted_broken.py"
    counts, failures = run_tests([f"{file}::test_a", f"{file}::test_b"], Settings("", seed, 60))
    want, ran_tests = BROKEN[seed]
    assert [f.kind for f in failures] == [kind for kind, _ in want], failures
    for failure, (_, message) in zip(failures, want, strict=True):
        assert re.match(message, failure.message), failure
        assert f"FUZZ_SEED={seed} " in failure.command and file in failure.command
    assert +counts == Counter(ran_tests)


def test_a_test_that_is_not_there_is_told() -> None:
    present_test = "tests/campaign/planted_broken.py::test_b"
    counts, failures = run_tests(
        [present_test, present_test.replace("_b", "_c")], Settings("", 0, 60)
    )
    assert len(failures) == 1 and "test_c" in failures[0].printed + failures[0].test
    assert counts["not run"] >= 1


# ---- checkouts ---------------------------------------------------------------------------------


def _git(folder: Path, *words: str) -> None:
    options = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *options, *words], check=True, capture_output=True)


def test_a_checkout_is_its_commit_and_changes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no checkout of git"):
        checkout(tmp_path / "nowhere")
    _git(tmp_path, "init", "-q")
    (tmp_path / "a").write_text("1")
    (tmp_path / ".gitignore").write_text("ignored\n")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-qm", "one")
    checkouts = [checkout(tmp_path)]
    (tmp_path / "ignored").write_text("1")
    assert checkout(tmp_path) == checkouts[0] and "+" not in checkouts[0]
    for name, text in (("a", "2"), ("b", ""), ("b", "3"), ("c", "3")):
        (tmp_path / name).write_text(text)
        checkouts.append(checkout(tmp_path))
    _git(tmp_path, "add", ".")
    checkouts.append(checkout(tmp_path))
    _git(tmp_path, "commit", "-qm", "two")
    checkouts.append(checkout(tmp_path))
    assert (
        len(set(checkouts[:5])) == 5 and checkouts[-1] != checkouts[0] and "+" not in checkouts[-1]
    )
    require_checkout(checkouts[-1], tmp_path)
    message = re.escape(f"is {checkouts[-1]}, expected {checkouts[0]}")
    with pytest.raises(UserError, match=message) as raised:
        require_checkout(checkouts[0], tmp_path)
    assert raised.value.code == "other-checkout"


@pytest.mark.parametrize("name", ["findings", "tests/findings"])
def test_what_is_written_changes_no_checkout(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="git does not ignore it"):
        run_campaign(PLANTED, ["t"], _Refusing(), ROOT / name, PLAN)
    assert not (ROOT / name).exists()
    require_outside(ROOT / "build" / name)
    require_outside(tmp_path)


class _Here(Executor):
    """Runs jobs as they come."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def test_another_checkout_ends_the_campaign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.campaign.campaigns.checkout", lambda: "a" * 40)
    with pytest.raises(UserError, match=f"expected {'a' * 40}") as raised:
        run_campaign(PLANTED, ["tests/x.py::test"], _Here(), tmp_path, PLAN)
    assert raised.value.code == "other-checkout"


class _Losing(Executor):
    """Loses what it is given."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        from tensorkiln.scale import WorkerLost

        future: Future[Any] = Future()
        future.set_exception(WorkerLost("gone"))
        return future


def test_a_shard_that_is_lost_each_time_is_a_finding(tmp_path: Path) -> None:
    result = run_campaign(PLANTED, ["tests/x.py::test"], _Losing(), tmp_path, Plan(seeds=2))
    (finding,) = result.findings
    assert (finding.shortest.kind, finding.count) == ("WorkerLost", 2)
    assert "tests/x.py::test" in finding.shortest.command
    assert (result.finished, result.unfinished) == (0, 2)


def test_nothing_begins_after_the_end(tmp_path: Path) -> None:
    shard = Shard("planted", "pytest", ("tests/x.py::test",), 1, "", 5, "")
    assert run_shard(shard, until=1.0) == Report({}, (), begun=False)
    result = run_campaign(PLANTED, ["tests/x.py::t"], _Refusing(), tmp_path, Plan(until=1.0))
    assert (result.finished, result.findings) == (0, [])


# ---- findings ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first_message", "second_message"),
    [
        ("f32 (3, 4) is not (5, 6, 7)", "f32 (30, 4) is not (1, 2)"),
        ("at 0x7f12ab", "at 0x1"),
        ("in /tmp/a/b.so: 3", "in /var/x: 17"),
        ("off by 1e-3", "off by 2.5"),
        ("key abcdef0123456789", "key 0123456789abcdef"),
        ("first\nsecond", "first\nthird"),
        ("a  b", "a b"),
    ],
)
def test_what_varies_is_not_in_a_signature(first_message: str, second_message: str) -> None:
    assert normalised(first_message) == normalised(second_message)


def test_signatures_tell_faults_apart() -> None:
    base = Failure(kind="E", message="a 1", test="t[1]", frames=("tensorkiln/a.py:1 in f",))
    similar = replace(base, message="a 2", test="u", seed=9, frames=("tensorkiln/a.py:7 in f",))
    deeper = replace(base, frames=(*base.frames, "/usr/lib/x.py:3 in g", "tests/t.py:1 in h"))
    assert signature(base) == signature(similar) == signature(deeper)
    different = [
        replace(base, kind="F"),
        replace(base, message="b 1"),
        replace(base, frames=("tensorkiln/a.py:1 in g",)),
        replace(base, frames=("tests/a.py:1 in f",)),
        replace(base, frames=()),
        replace(base, frames=(), test="u[1]"),
    ]
    assert len({signature(f) for f in (base, *different)}) == 7


def test_the_shortest_that_repeats_is_kept_in_any_order() -> None:
    failures = [
        Failure(
            kind="E",
            message="m" * n,
            test=f"t{n}",
            frames=("tests/a.py:1 in f",),
            repeats=repeatability,
        )
        for n, repeatability in (
            (3, "no"),
            (9, "alone"),
            (7, "alone"),
            (1, "not tried"),
            (2, "after others"),
        )
    ]
    failures = [replace(f, message="m", example="e" * len(f.message)) for f in failures]
    want = deduplicated(failures)
    assert len(want) == 1 and want[0].shortest.test == "t7" and want[0].count == 5
    for seed in range(10):
        random.Random(seed).shuffle(failures)
        assert deduplicated(failures) == want


@given(st.integers(1, 40), st.sets(st.integers(0, 39), min_size=1, max_size=3), st.integers(0, 99))
def test_tests_that_are_not_needed_are_left_out(size: int, some: set[int], steps: int) -> None:
    tests = [str(k) for k in range(size)]
    needed = {str(k % size) for k in some}
    subsets: list[Sequence[str]] = []

    def fails(other_tests: Sequence[str]) -> bool:
        subsets.append(other_tests)
        return needed <= set(other_tests)

    remaining = shortened(tests, fails, lambda: len(subsets) < steps)
    assert needed <= set(remaining) and list(remaining) == [t for t in tests if t in set(remaining)]
    if len(needed) == 1 and steps == 99:
        assert set(remaining) == needed
    assert len(subsets) <= min(steps, 2 * size.bit_length())


def test_reports_are_read_as_they_were_written() -> None:
    failure = Failure(kind="E", message="é\n", test="t", seed=3, frames=("a:1 in b",), blob="@r")
    report = Report({"failed": 1}, (failure,), 1.5, "here")
    assert read_report(json.loads(json.dumps(report.to_json())), "x") == report


# ---- the command and the targets of make --------------------------------------------------------

REFUSED = {
    "fuz": "did you mean 'fuzz'?",
    "conformance --seed 2": "runs the same for every seed",
    "zoo --seeds 2": "runs the same for every seed",
    "fuzz --seed -1": "expected 0 or more",
    "fuzz --shards 0": "expected more than 0",
    "fuzz --minutes 0": "expected more than 0",
    "fuzz --seeds 2 --minutes 1": "one of the two",
    "fuzz --count 5": "only random-graphs has one",
    "random-graphs 7x": "nothing of the campaign is named '7x'",
    "random-graphs 7 --executor lokal": "expected local, local:N, ray",
}


@pytest.mark.parametrize("line", REFUSED)
def test_mistakes_are_refused(
    line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert command_line.main([*line.split(), "--out", str(tmp_path / "out")]) == 2
    assert REFUSED[line] in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_items_by_name() -> None:
    items = ["tests/a.py::t[1]", "tests/a.py::t[2]", "tests/b.py::u", "bert torch", "bert onnx"]
    assert chosen(items, []) == items
    assert chosen(items, ["tests/a.py::t[2]"]) == items[1:2]
    assert chosen(items, ["tests/a.py*", "bert"]) == [*items[:2], *items[3:]]
    with pytest.raises(UserError, match="did you mean 'tests/b.py::u'"):
        chosen(items, ["tests/b.py::v"])


@settings(max_examples=100)
@given(st.lists(st.integers(0, 70), max_size=5), st.integers(1, 40))
def test_parts_hold_every_item_once(sizes: list[int], parts: int) -> None:
    files = [[f"{k}.py::t[{n}]" for n in range(size)] for k, size in enumerate(sizes)]
    items = [item for file in files for item in file]
    shard_items = divided(PLANTED, items, parts)
    assert sorted(x for part in shard_items for x in part) == sorted(items)
    assert len(shard_items) <= parts and all(shard_items)
    for file in files:
        shares = [[x for x in part if x in file] for part in shard_items]
        nonempty_shares = [s for s in shares if s]
        assert len(nonempty_shares) == min(parts, len(file)), "a file is spread as far as it goes"
        assert (
            max(map(len, nonempty_shares), default=0) - min(map(len, nonempty_shares), default=0)
            <= 1
        )
        for share in nonempty_shares:
            assert share == file[file.index(share[0]) : file.index(share[0]) + len(share)]
    graphs = divided(CAMPAIGNS["random-graphs"], [str(k) for k in range(sum(sizes))], parts)
    assert [int(x) for part in graphs for x in part] == list(range(sum(sizes)))
    zoo = divided(CAMPAIGNS["zoo"], items, parts)
    assert sorted(x for part in zoo for x in part) == sorted(items)
    assert max(map(len, zoo), default=0) - min(map(len, zoo), default=0) <= 1


def _make(target: str, *variables: str) -> str:
    words = ["make", "-n", "-C", str(ROOT), target, *variables]
    environ = {k: v for k, v in os.environ.items() if "MAKE" not in k and k != "EXECUTOR"}
    output = subprocess.run(
        words, env=environ, capture_output=True, text=True, timeout=60, check=True
    ).stdout
    lines = [" ".join(line.split()) for line in output.replace("\\\n", " ").splitlines()]
    return "\n".join(x for x in lines if "-m tests." in x or "-m pytest" in x)


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize("name", CAMPAIGNS)
def test_targets_of_make_run_the_same_with_and_without_an_executor(name: str) -> None:
    alone, shared = _make(name), _make(name, "EXECUTOR=local:3", "SEED=7")
    campaign = CAMPAIGNS[name]
    assert "tests.campaign" not in alone
    if campaign.runner == "pytest":
        assert alone.endswith(f"{' '.join(campaign.paths)}")
        mark = campaign.mark if " " not in campaign.mark else f'"{campaign.mark}"'
        assert f"-m {mark} " in alone
    assert f"-m tests.campaign {name} --executor local:3" in shared
    assert ("--seed 7" in shared) == campaign.seeded
    assert "pytest" not in shared


def test_commands_are_for_a_shell() -> None:
    line = command(["a.py::t[x y]"], Settings("p or q", 3, 10), hangs=True)
    assert line == (
        "FUZZ_SEED=3 timeout -s ABRT 20 python -m pytest -q -p no:cacheprovider "
        "--hypothesis-seed=3 -m 'p or q' 'a.py::t[x y]'"
    )
    graphs = "python -m tests.frontend.test_random_graphs --seed 3 --first 5 --count 2 --jobs 1"
    assert row_command("random-graphs", ["5", "6"], 3) == graphs
    extents = row_command("extents", ["test_gru_defaults"], 1)
    assert extents == "python -m tests.frontend.extents test_gru_defaults"
    zoo = row_command("zoo", ["bert torch", "bert onnx"], 1)
    assert zoo == "python -m tests.gallery bert --route torch --route onnx"
