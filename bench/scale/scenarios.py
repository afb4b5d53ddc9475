"""The clusters and the jobs that docs/scale.md is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from bench.scale.measured import Compiled, Measured, Scored
from bench.scale.simulator import Outcome, Work, World, limits, simulate
from tensorkiln.scale.jobs import IN_FLIGHT

# Dollars an hour of a machine of 16 CPUs, and of one that may be taken away: round figures of 2025
# for general-purpose machines of large providers.
PRICE, SPOT_PRICE = 0.70, 0.28
CPUS = 16
HOUR = 3600.0
# 10,000 tasks on 2,500 CPUs: release/perf_metrics/benchmarks/many_tasks.json of ray-project/ray.
RAY_TASKS = 569.0
# Calls of one process to many actors, on one machine: 1_n_actor_calls_async of
# release/perf_metrics/microbenchmark.json there.
RAY_ACTOR_CALLS = 8038.0
JOBS, ROWS = 10_000, 10**9
MACHINES = (10, 30, 100, 300, 1000)

# Machines that may be taken away: each is lost every 20 hours on average, replaced in 5 minutes.
CLUSTER = World(
    machines=100,
    slots=CPUS,
    tasks_per_second=RAY_TASKS,
    in_flight=IN_FLIGHT,
    latency=0.1,
    node=12.5e9 / 8,
    store=100e9 / 8,
    lifetime=20 * HOUR,
    repair=300.0,
    slow=0.02,
    slowness=3.0,
)


@dataclass(frozen=True, slots=True)
class Line:
    """A row of a table: what it is, and what came of it on so many machines at a price an hour."""

    title: str
    machines: int
    price: float
    out: Outcome
    limits: dict[str, float]

    @property
    def bound_by(self) -> str:
        """The limit that is nearest, and how near it is; what machines that are slow or lost add
        to the last jobs, where they add as much."""
        name = max(self.limits, key=lambda n: self.limits[n])
        near = self.limits[name] / self.out.makespan
        return f"{name}, {near:.0%}" if near > 0.5 else f"last jobs ({name}, {near:.0%})"

    @property
    def machine_hours(self) -> float:
        """Hours of all machines until the last job is done."""
        return self.machines * self.out.makespan / HOUR

    @property
    def dollars(self) -> float:
        """What these hours cost."""
        return self.machine_hours * self.price


def compile_jobs(
    measured: Measured,
    *,
    hits: float = 0.0,
    weights: bool = True,
    together: int = 1,
    seed: int = 1,
) -> list[Work]:
    """10,000 compiles of the measured models in turn drawn by chance. `hits` of them have all
    kernels in the shared cache; without `weights`, models and libraries are moved without theirs;
    `together` jobs are one task."""
    draw = Random(f"compile {seed}")
    works = []
    for _ in range(JOBS):
        c = draw.choice(measured.compiled)
        hit = draw.random() < hits
        moved = 0 if weights else min(c.model_bytes, c.library_bytes)
        cache = c.cache_bytes
        works.append(
            Work(
                seconds=c.cached if hit else c.cold,
                read=c.model_bytes - moved + (cache if hit else 0),
                write=c.library_bytes - moved + (0 if hit else cache),
            )
        )
    return [_joined(works[k : k + together]) for k in range(0, JOBS, together)]


def _joined(jobs: Sequence[Work]) -> Work:
    return Work(sum(j.seconds for j in jobs), sum(j.read for j in jobs), sum(j.write for j in jobs))


def scoring_jobs(scored: Scored, rows: int, *, stored: float = 1.0) -> list[Work]:
    """A billion rows, so many in a task; a row has `stored` of its bytes in the store."""
    work = Work(rows / scored.rows, rows * scored.row_bytes * stored, rows * scored.result_bytes)
    return [work] * (ROWS // rows)


def scoring_world(scored: Scored, world: World) -> World:
    """Actors keep their library: each slot loads it once. Calls of actors are what is scheduled,
    and no `run_jobs` bounds them."""
    startup = scored.load + scored.library_bytes / (world.node / world.slots)
    return replace(world, startup=startup, tasks_per_second=RAY_ACTOR_CALLS, in_flight=float("inf"))


def on(world: World, machines: int) -> World:
    """The same with so many machines."""
    return replace(world, machines=machines)


def line(title: str, jobs: Sequence[Work], world: World, price: float = SPOT_PRICE) -> Line:
    """Simulate one row of a table."""
    return Line(title, world.machines, price, simulate(jobs, world), limits(jobs, world))


def kept(world: World) -> World:
    """Machines that are not taken away: each lasts a year on average."""
    return replace(world, lifetime=365 * 24 * HOUR)


def scored_of(measured: Measured, model: str) -> Scored:
    """A model at the batch size at which it is fastest."""
    return max((s for s in measured.scored if s.model == model), key=lambda s: s.rows)


def mean(compiled: Sequence[Compiled], name: str) -> float:
    """The mean of a figure of the measured models."""
    return sum(float(getattr(c, name)) for c in compiled) / len(compiled)
