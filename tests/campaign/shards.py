"""A shard of a campaign: what is sent to a worker, what comes back, and the function between."""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from tensorkiln.base.record import JsonRecord
from tensorkiln.base.schema import Reader
from tests.campaign.checkout import require_checkout
from tests.campaign.child import Settings, command, run_tests
from tests.campaign.findings import Failure
from tests.campaign.rows import row_command, run_rows

VERSION = 1
DAMAGED = "bad-campaign"


@dataclass(frozen=True, slots=True)
class Shard:
    """Items of a campaign and a seed: node ids for the runner `pytest`, rows for the others
    (tests/campaign/rows.py). `checkout` is the one that must be where it runs."""

    campaign: str
    runner: str
    items: tuple[str, ...]
    seed: int
    mark: str
    seconds: float
    checkout: str

    @property
    def key(self) -> str:
        """Its name, by its content."""
        text = json.dumps({"version": VERSION, **asdict(self)}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def command(self) -> str:
        """The line that runs all of it."""
        if self.runner == "pytest":
            return command(self.items, Settings(self.mark, self.seed, self.seconds))
        return row_command(self.runner, self.items, self.seed)


@dataclass(frozen=True, slots=True)
class Report(JsonRecord):
    """What a shard found: how many items had each outcome, and the failures. `seconds` is what it
    took on `machine`. `begun` is false for one that came after the campaign's time was over."""

    counts: Mapping[str, int]
    failures: tuple[Failure, ...]
    seconds: float = 0.0
    machine: str = ""
    begun: bool = True

    def to_json(self) -> dict[str, Any]:
        """Plain data, for the file of a finished shard."""
        return {"version": VERSION, **JsonRecord.to_json(self)}


def run_shard(shard: Shard, until: float) -> Report:
    """What a worker does. After `until`, in seconds since 1970, nothing is begun; 0 is no limit.

    Raises UserError (code `other-checkout`) where the worker's checkout is another, and
    `no-checkout` where it has none.
    """
    if until and time.time() > until:
        return Report({}, (), begun=False)
    require_checkout(shard.checkout)
    start = time.perf_counter()
    counts: Counter[str]
    if shard.runner == "pytest":
        settings = Settings(shard.mark, shard.seed, shard.seconds)
        counts, failures = run_tests(shard.items, settings)
    else:
        counts, failures = run_rows(shard.runner, shard.items, shard.seed)
    failures = [replace(f, seed=shard.seed) for f in failures]
    seconds = time.perf_counter() - start
    return Report(dict(sorted(counts.items())), tuple(failures), seconds, platform.node())


def read_report(value: object, place: str) -> Report:
    """The report of a file that a campaign wrote. Raises UserError (code `bad-campaign`)."""
    reader = Reader(value, place, DAMAGED)
    if reader.number("version") != VERSION:
        raise reader.wrong(f"expected {VERSION}", "version")
    return Report.read(reader)
