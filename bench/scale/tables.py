"""The tables of docs/scale.md, as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from bench.scale.large import LLAMA_70B, Cut, Hardware, pipeline, tensor
from bench.scale.measured import Measured
from bench.scale.scenarios import (
    CLUSTER,
    HOUR,
    JOBS,
    MACHINES,
    PRICE,
    RAY_ACTOR_CALLS,
    ROWS,
    Line,
    compile_jobs,
    kept,
    line,
    mean,
    on,
    scored_of,
    scoring_jobs,
    scoring_world,
)
from bench.scale.simulator import Work, World, simulate

INFINITE = float("inf")
IMAGES = 40_000  # of a task
STORED = 0.25  # of the bytes of a row of images: they are kept as bytes, computed as float32


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def duration(seconds: float) -> str:
    """Seconds in the unit that fits, to two or three digits."""
    for unit, size in (("days", 24 * HOUR), ("h", HOUR), ("min", 60.0), ("s", 1.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.{1 if seconds / size < 10 else 0}f} {unit}"
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{1000 * seconds:.1f} ms"


def size(count: float) -> str:
    """Bytes in the unit that fits."""
    for unit, power in (("TB", 12), ("GB", 9), ("MB", 6), ("kB", 3)):
        if count >= 10**power:
            scaled = count / 10**power
            return f"{scaled:.{1 if scaled < 10 else 0}f} {unit}"
    return f"{count:.0f} B"


HEAD = (
    "takes",
    "machine-hours",
    "cost",
    "computing",
    "moving",
    "scheduler",
    "lost or down",
    "idle",
    "nearest limit",
)


def _cells(x: Line) -> list[str]:
    o = x.out
    whole = o.slots * o.makespan
    parts = (o.computing, o.moving + o.starting, o.waiting, o.lost + o.down, o.idle)
    return [
        duration(o.makespan),
        f"{x.machine_hours:.1f}" if x.machine_hours < 100 else f"{x.machine_hours:,.0f}",
        f"${x.dollars:.2f}" if x.dollars < 100 else f"${x.dollars:,.0f}",
        *(f"{100 * part / whole:.0f} %" for part in parts),
        x.bound_by,
    ]


def _lines(first: str, rows: Sequence[Line]) -> str:
    return _table((first, *HEAD), [[x.title, *_cells(x)] for x in rows])


def measured_compiles(m: Measured) -> str:
    """What compile jobs take."""
    rows = [
        [c.model, f"{c.cold:.1f} s", f"{c.cached:.1f} s"]
        + [size(b) for b in (c.model_bytes, c.library_bytes, c.cache_bytes)]
        for c in m.compiled
    ]
    mb = [size(mean(m.compiled, k)) for k in ("model_bytes", "library_bytes", "cache_bytes")]
    times = [f"{mean(m.compiled, k):.1f} s" for k in ("cold", "cached")]
    rows.append(["mean", *times, *mb])
    return _table(
        ("model", "cold", "cached", "model file", "library", "kernels in the cache"), rows
    )


def measured_scoring(m: Measured) -> str:
    """What scoring takes."""
    rows = [
        [
            s.model,
            f"{s.batch:,}",
            f"{s.rows:,.0f}" if s.rows > 100 else f"{s.rows:.1f}",
            size(s.row_bytes),
            size(s.result_bytes),
            f"{1000 * s.load:.0f} ms",
        ]
        for s in m.scored
    ]
    head = ("model", "batch", "rows/s of a CPU", "row", "result", "loading the library")
    return _table(head, rows)


def checked(m: Measured) -> str:
    """The small runs beside their simulation."""
    rows = []
    for c in m.checked:
        world = World(machines=1, slots=c.workers, startup=c.start)
        row = [f"{len(c.jobs)} {c.what}", str(c.workers), duration(c.seconds)]
        for times in (c.jobs, c.during):
            simulated = simulate([Work(t) for t in times], world).makespan
            row += [duration(simulated), f"{c.seconds / simulated:.2f}"]
        rows.append(row)
    head = ("jobs", "processes", "measured", "simulated from times alone", "ratio")
    return _table((*head, "simulated from times in the run", "ratio"), rows)


def compiling(m: Measured) -> str:
    """10,000 compiles on more and more machines."""
    jobs = compile_jobs(m)
    return _lines("machines", [line(f"{n:,}", jobs, on(CLUSTER, n)) for n in MACHINES])


def compiling_otherwise(m: Measured) -> str:
    """What changes the compiles, on 300 machines."""
    base, free = on(CLUSTER, 300), on(replace(CLUSTER, in_flight=INFINITE), 300)
    light = compile_jobs(m, weights=False)
    rows = [
        line("as above", compile_jobs(m), base),
        line("no bound on jobs in flight", compile_jobs(m), free),
        *(
            line(f"{h:.0%} of jobs in the shared cache", compile_jobs(m, hits=h), base)
            for h in (0.5, 0.9, 1.0)
        ),
        line("a store of ten times the bandwidth", compile_jobs(m), replace(base, store=125e9)),
        line("weights are not moved", light, base),
        line("and no bound on jobs in flight", light, free),
        line("and all in the shared cache", compile_jobs(m, weights=False, hits=1), free),
        line(
            "and ten jobs a task",
            compile_jobs(m, weights=False, hits=1, together=10),
            free,
        ),
        line("weights not moved, no bound, copies of late jobs", light, replace(free, copies=True)),
        line("the first row, on machines that are kept", compile_jobs(m), kept(base), PRICE),
    ]
    return _lines("300 machines", rows)


def _scoring(m: Measured, model: str, rows: int, stored: float) -> str:
    s = scored_of(m, model)
    world, jobs = scoring_world(s, CLUSTER), scoring_jobs(s, rows, stored=stored)
    return _lines("machines", [line(f"{n:,}", jobs, on(world, n)) for n in MACHINES])


def scoring_images(m: Measured) -> str:
    """A billion images."""
    return _scoring(m, "resnet18", IMAGES, STORED)


def scoring_rows(m: Measured) -> str:
    """A billion rows of a table."""
    return _scoring(m, "mlp", 100_000, 1.0)


def scoring_otherwise(m: Measured) -> str:
    """What changes scoring, on 300 machines."""
    s = scored_of(m, "resnet18")
    world = on(scoring_world(s, CLUSTER), 300)
    usual = scoring_jobs(s, IMAGES, stored=STORED)
    rows = [
        line(f"{IMAGES:,} rows a task", usual, world),
        *(
            line(f"{n:,} rows a task", scoring_jobs(s, n, stored=STORED), world)
            for n in (200_000, 1_000_000)
        ),
        line("rows stored as float32", scoring_jobs(s, IMAGES), world),
        line("copies of late tasks", usual, replace(world, copies=True)),
        line("a machine is lost every 2 h", usual, replace(world, lifetime=2 * HOUR)),
        line(
            "that, and 1,000,000 rows a task",
            scoring_jobs(s, 1_000_000, stored=STORED),
            replace(world, lifetime=2 * HOUR),
        ),
        line("machines that are kept", usual, kept(world), PRICE),
    ]
    return _lines("300 machines, images", rows)


def large_models(m: Measured) -> str:
    """A decoder of 70 billion parameters on several machines."""
    h = Hardware()
    ways: tuple[tuple[str, Callable[..., Cut]], ...] = (("pipeline", pipeline), ("tensor", tensor))
    rows = []
    for n in (1, 2, 4, 8, 16):
        for name, division in ways if n > 1 else ways[:1]:
            figures = division(LLAMA_70B, n, h)
            rows.append(
                [
                    str(n),
                    name if n > 1 else "whole",
                    size(figures.weights),
                    size(4096 * figures.cache),
                    size(figures.message_bytes),
                    f"{figures.messages:,}",
                    size(2048 * figures.message_bytes),
                    duration(figures.token),
                ]
            )
    head = (
        "machines",
        "cut",
        "weights of one",
        "cache of 4,096 tokens",
        "sent for a token",
        "messages",
        "sent for a prompt of 2,048",
        "a token takes at least",
    )
    return _table(head, rows)


def facts(m: Measured) -> str:
    """The day and the machine of the measurements, and sums that the text speaks of."""
    cold = JOBS * mean(m.compiled, "cold")
    moved = JOBS * sum(mean(m.compiled, k) for k in ("model_bytes", "library_bytes", "cache_bytes"))
    images = scored_of(m, "resnet18")
    rows = [
        ["measured", f"{m.date}, {m.machine}"],
        [f"{JOBS:,} cold compiles", f"{duration(cold)} of one CPU, {size(moved)} moved"],
        [
            f"{ROWS:,} images",
            f"{duration(ROWS / images.rows)} of one CPU, "
            f"{size(ROWS * images.row_bytes * STORED)} read",
        ],
        ["calls of actors a second", f"{RAY_ACTOR_CALLS:,.0f}"],
        ["tasks a second", f"{CLUSTER.tasks_per_second:,.0f}"],
        ["jobs that `run_jobs` gives out at a time", f"{CLUSTER.in_flight:,.0f}"],
    ]
    return _table(("what", "how much"), rows)


TABLES: dict[str, Callable[[Measured], str]] = {
    "facts": facts,
    "compiles": measured_compiles,
    "scoring": measured_scoring,
    "checked": checked,
    "compiling": compiling,
    "compiling otherwise": compiling_otherwise,
    "scoring images": scoring_images,
    "scoring rows": scoring_rows,
    "scoring otherwise": scoring_otherwise,
    "large models": large_models,
}
