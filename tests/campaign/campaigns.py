"""The campaigns, and how one is run on an executor: see `python -m tests.campaign --help`."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from itertools import count, groupby, pairwise
from pathlib import Path
from typing import Any, cast

from tensorkiln.base.errors import UserError, nearest
from tensorkiln.base.files import atomic_write, made_folder
from tensorkiln.base.progress import Progress
from tensorkiln.base.schema import Reader
from tensorkiln.scale import Job, Outcome, run_jobs
from tests.campaign.checkout import checkout, require_outside
from tests.campaign.child import Settings, collect
from tests.campaign.findings import Failure, Finding, deduplicated, table
from tests.campaign.rows import LISTS, random_graphs
from tests.campaign.shards import DAMAGED, VERSION, Report, Shard, read_report, run_shard

SHARDS = 32
TELLING = 5.0  # seconds after which findings.json is written anew
COUNT = 3000
MOST_REFUSED = 0.04  # of random graphs, as tests/frontend/test_random_graphs.py allows
_ALL_STOP = ("other-checkout", "no-checkout")


@dataclass(frozen=True, slots=True)
class Campaign:
    """What is run: tests of pytest below `paths` that `mark` chooses, or rows of another `runner`.
    `seeded`: another seed makes other cases."""

    name: str
    paths: tuple[str, ...] = ()
    mark: str = ""
    runner: str = "pytest"
    seeded: bool = False

    def items(self, graphs: int = COUNT) -> list[str]:
        """All of it, in order."""
        if self.runner == "pytest":
            return collect(self.paths, Settings(self.mark))
        return random_graphs(graphs) if self.runner == "random-graphs" else LISTS[self.runner]()


# The first three are what the targets of make run, by the same paths and marks.
CAMPAIGNS = {
    c.name: c
    for c in (
        Campaign(
            "fuzz",
            ("tests/schedule", "tests/codegen", "tests/transform", "tests/runtime"),
            "fuzz",
            seeded=True,
        ),
        Campaign(
            "conformance",
            ("tests/models", "tests/cuda/test_networks.py", "tests/frontend/test_onnx_zoo.py"),
            "conformance or not conformance",
        ),
        Campaign("roundtrip", ("tests/script",), "roundtrip"),
        Campaign("random-graphs", runner="random-graphs", seeded=True),
        Campaign("extents", runner="extents"),
        Campaign("zoo", runner="zoo"),
    )
}


@dataclass(frozen=True, slots=True)
class Plan:
    """How a campaign is run: parts that its items are divided into for each seed, the first seed
    and how many, seconds that a test may say nothing, and when, in seconds since 1970, nothing more
    begins; with such an end, seeds are taken as long as there is time."""

    shards: int = SHARDS
    seed: int = 1
    seeds: int = 1
    seconds: float = 1800.0
    until: float = 0.0


@dataclass(slots=True)
class Result:
    """What a folder of a campaign holds: how many items had each outcome, in all finished shards,
    the findings, and how many shards have no report."""

    counts: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    finished: int = 0
    unfinished: int = 0

    def text(self) -> str:
        """The table, and what was run."""
        counts_text = (
            ", ".join(f"{n} {outcome}" for outcome, n in sorted(self.counts.items()))
            or "nothing ran"
        )
        unfinished_text = f"; {self.unfinished} without a report" if self.unfinished else ""
        return f"{table(self.findings)}\n\n{counts_text}; {self.finished} shards{unfinished_text}"


def campaign_of(name: str) -> Campaign:
    """The campaign of a name. Raises UserError for another."""
    if name not in CAMPAIGNS:
        campaign_names = ", ".join(CAMPAIGNS)
        hint = nearest(name, CAMPAIGNS)
        raise UserError(f"no campaign {name!r}, expected one of {campaign_names}", hint=hint)
    return CAMPAIGNS[name]


def chosen(items: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """Items that a pattern matches, wholly or up to a `[` or a space; all without patterns. Raises
    UserError for a pattern that matches none."""
    if not patterns:
        return list(items)
    names = {item: (item, item.partition("[")[0], item.partition(" ")[0]) for item in items}

    def means(p: str, forms: Sequence[str]) -> bool:
        return any(name == p or fnmatch(name, p) for name in forms)

    for p in patterns:
        if not any(means(p, forms) for forms in names.values()):
            hint = nearest(p, [forms[1] for forms in names.values()])
            raise UserError(f"nothing of the campaign is named {p!r}", hint=hint)
    return [i for i, forms in names.items() if any(means(p, forms) for p in patterns)]


def run_campaign(
    campaign: Campaign,
    items: Sequence[str],
    executor: Executor | None,
    out: Path,
    plan: Plan,
    *,
    progress: Progress | None = None,
    watch: Callable[[Shard], None] = lambda shard: None,
) -> Result:
    """Run the shards of a campaign that `out` has no reports of, and write what was found there:
    findings.json, findings.txt, and a report of each shard as it comes; `watch` is called after
    each. The result is of all that the folder holds.

    Raises UserError where `out` is of another campaign or checkout or would be a change of this
    one, or a worker's checkout is another.
    """
    current_checkout = checkout()
    require_outside(out)
    folder = _opened(out, campaign, current_checkout)
    reports = {path.stem: _read(path) for path in sorted(folder.glob("*.json"))}
    lost_shards: dict[str, Failure] = {}
    shards_by_key: dict[str, Shard] = {}

    def jobs() -> Iterator[Job]:
        for shard in _shards(campaign, items, plan, current_checkout):
            shards_by_key[shard.key] = shard
            if shard.key not in reports:
                description = f"seed {shard.seed}, from {shard.items[0]}"
                yield Job(shard.key, run_shard, (shard, plan.until), description)

    def told() -> Result:
        missing = (
            len(lost_shards) if plan.until else sum(key not in reports for key in shards_by_key)
        )
        result = _result(campaign, reports, lost_shards, missing)
        _write_findings(out, campaign, current_checkout, result)
        return result

    todo: Any = jobs() if plan.until else list(jobs())
    written = 0.0
    running = run_jobs(todo, executor, progress=progress, title=campaign.name)
    with closing(cast("Generator[Outcome, None, None]", running)) as outcomes:
        for outcome in outcomes:
            shard: Shard = outcome.job.arguments[0]
            if outcome.failure is not None:
                lost_shards[shard.key] = _unfinished(outcome, shard)
            elif outcome.result.begun:
                reports[shard.key] = outcome.result
                _write(folder / f"{shard.key}.json", outcome.result.to_json())
            if time.monotonic() - written > TELLING:
                told()
                written = time.monotonic()
            watch(shard)
    return told()


def _shards(
    campaign: Campaign, items: Sequence[str], plan: Plan, current_checkout: str
) -> Iterator[Shard]:
    parts = divided(campaign, items, plan.shards)
    endless = campaign.seeded and plan.until
    for seed in count(plan.seed) if endless else range(plan.seed, plan.seed + plan.seeds):
        if endless and time.time() > plan.until:
            return
        for part in parts:
            yield Shard(
                campaign=campaign.name,
                runner=campaign.runner,
                items=tuple(part),
                seed=seed,
                mark=campaign.mark,
                seconds=plan.seconds,
                checkout=current_checkout,
            )


def divided(campaign: Campaign, items: Sequence[str], parts: int) -> list[list[str]]:
    """Items in at most so many parts. Tests of one file are in as many pieces as it has tests, or
    as there are parts, so that those that take long are spread, and neighbours stay together, which
    share what they set up. Numbers of graphs follow each other; networks share nothing."""
    if campaign.runner == "pytest":
        by_file = groupby(items, key=lambda item: item.partition("::")[0])
        pieces = [piece for _, group in by_file for piece in _pieces(list(group), parts)]
    else:
        at_once = parts if campaign.runner == "random-graphs" else len(items)
        pieces = _pieces(items, at_once)
    dealt: list[list[str]] = [[] for _ in range(min(parts, len(pieces)))]
    for k, piece in enumerate(pieces):
        dealt[k % len(dealt)] += piece
    return dealt


def _pieces(items: Sequence[str], count: int) -> list[list[str]]:
    """Neighbours together, in at most `count` pieces of nearly the same size."""
    count = min(count, len(items))
    bounds = [len(items) * k // count for k in range(count + 1)] if count else [0]
    return [list(items[a:b]) for a, b in pairwise(bounds)]


def _unfinished(outcome: Outcome, shard: Shard) -> Failure:
    """A shard without a report: every worker that had it was gone, or could not run it."""
    failure = outcome.failure
    assert failure is not None
    if failure.code in _ALL_STOP:
        raise UserError(failure.message, code=failure.code)
    if "No module named 'tests" in failure.message:
        raise UserError(
            f"a worker cannot import tests.campaign: {failure.message}",
            code="no-checkout",
            hint="workers have this checkout, with its root in PYTHONPATH",
        )
    return Failure(
        kind="WorkerLost" if failure.lost else failure.kind,
        message=f"{failure.message} (tried {outcome.tries} times)",
        test=shard.items[0],
        seed=shard.seed,
        command=shard.command(),
        printed=failure.trace[-2000:],
    )


def _result(
    campaign: Campaign, reports: dict[str, Report], lost_shards: dict[str, Failure], missing: int
) -> Result:
    counts = sum((Counter(r.counts) for r in reports.values()), Counter[str]())
    failures = [f for _, r in sorted(reports.items()) for f in r.failures] + list(
        lost_shards.values()
    )
    if campaign.runner == "random-graphs" and counts["refused"] > MOST_REFUSED * counts.total():
        message = f"{counts['refused']} of {counts.total()} graphs are refused, more than 4 %"
        failures.append(Failure(kind="TooManyRefused", message=message, test="random-graphs"))
    return Result(counts, deduplicated(failures), len(reports), missing)


def _opened(out: Path, campaign: Campaign, current_checkout: str) -> Path:
    """The folder of reports, in a folder that is of this campaign and checkout."""
    about = {"version": VERSION, "campaign": campaign.name, "checkout": current_checkout}
    path = out / "campaign.json"
    if path.exists():
        reader = Reader(_json(path), str(path), DAMAGED)
        for name, want in about.items():
            if (folder_value := reader.get(name, type(want))) != want:
                raise UserError(
                    f"the folder is of {name} {folder_value}, this is {want}",
                    code="other-campaign",
                    where=str(out),
                    hint="name another folder, or remove this one",
                )
    folder = made_folder(out / "shards")
    _write(path, about)
    return folder


def _read(path: Path) -> Report:
    return read_report(_json(path), str(path))


def _json(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot be read: {error}", code=DAMAGED, where=str(path)) from None


def _write(path: Path, value: object) -> None:
    atomic_write(path, (json.dumps(value, indent=1) + "\n").encode())


def _write_findings(out: Path, campaign: Campaign, current_checkout: str, result: Result) -> None:
    _write(
        out / "findings.json",
        {
            "version": VERSION,
            "campaign": campaign.name,
            "checkout": current_checkout,
            "finished": result.finished,
            "unfinished": result.unfinished,
            "counts": dict(sorted(result.counts.items())),
            "findings": [f.to_json() for f in result.findings],
        },
    )
    atomic_write(out / "findings.txt", (result.text() + "\n").encode())


def with_end(plan: Plan, minutes: float | None) -> Plan:
    """The plan with an end in some minutes."""
    return plan if minutes is None else replace(plan, until=time.time() + 60 * minutes)
