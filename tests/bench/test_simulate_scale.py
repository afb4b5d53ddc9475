"""The simulation of many machines against closed forms, and the page against the simulation."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.scale import measured as measured_module
from bench.scale.large import LLAMA_70B, Decoder, Hardware, pipeline, tensor
from bench.scale.measured import load
from bench.scale.simulator import Work, World, limits, simulate
from bench.scale.tables import TABLES
from bench.simulate_scale import PAGE, main, rendered
from tensorkiln.base.errors import UserError

SECONDS = st.floats(0, 50).map(lambda x: round(x, 3))
SIZES = st.floats(0, 1e9).map(round)
WORKS = st.lists(st.builds(Work, SECONDS, SIZES, SIZES), min_size=1, max_size=40)
COMPUTED = st.lists(st.builds(Work, SECONDS), min_size=1, max_size=40)
MOVED = st.lists(st.builds(Work, st.just(0.0), SIZES, SIZES), min_size=1, max_size=40)
FINITE = {
    "tasks_per_second": st.floats(0.5, 1000),
    "latency": st.floats(0, 2),
    "node": st.floats(1e7, 1e9),
    "store": st.floats(1e7, 1e9),
    "startup": st.floats(0, 5),
    "in_flight": st.integers(1, 50),
    "slow": st.floats(0, 1),
    "slowness": st.floats(1, 5),
    "lifetime": st.floats(200, 10_000),
    "repair": st.floats(1, 100),
    "copies": st.booleans(),
    "seed": st.integers(0, 99),
}
WORLDS = st.builds(World, st.integers(1, 8), st.integers(1, 4), **FINITE)
SURE = st.builds(
    World,
    st.integers(1, 8),
    st.integers(1, 4),
    **{k: v for k, v in FINITE.items() if k not in ("lifetime", "repair", "copies")},
)
FAST = settings(max_examples=60)


def bytes_of(jobs: list[Work]) -> float:
    return sum(j.read + j.write for j in jobs)


# ---- closed forms ------------------------------------------------------------------------------


@FAST
@given(COMPUTED, st.integers(1, 6), st.integers(1, 4))
def test_without_limits_it_is_the_work_within_one_job(
    jobs: list[Work], machines: int, slots: int
) -> None:
    """Graham's bound for lists: at most the mean of the slots and one job."""
    total, longest = sum(j.seconds for j in jobs), max(j.seconds for j in jobs)
    out = simulate(jobs, World(machines, slots))
    count = machines * slots
    assert out.computing == pytest.approx(total)
    assert max(longest, total / count) <= out.makespan + 1e-9
    assert out.makespan <= total / count + longest * (1 - 1 / count) + 1e-9


@FAST
@given(COMPUTED)
def test_one_slot_takes_the_sum_and_many_take_the_longest(jobs: list[Work]) -> None:
    assert simulate(jobs, World(1)).makespan == pytest.approx(sum(j.seconds for j in jobs))
    assert simulate(jobs, World(len(jobs))).makespan == max(j.seconds for j in jobs)


@FAST
@given(MOVED, st.integers(1, 8), st.floats(1e6, 1e9))
def test_a_store_takes_the_bytes_through_its_bandwidth(
    jobs: list[Work], machines: int, store: float
) -> None:
    out = simulate(jobs, World(machines, store=store))
    assert out.makespan == pytest.approx(bytes_of(jobs) / store, rel=1e-6, abs=1e-9)


@FAST
@given(MOVED, st.floats(1e6, 1e9))
def test_a_machine_takes_the_bytes_through_its_network(jobs: list[Work], node: float) -> None:
    out = simulate(jobs, World(1, node=node))
    assert out.makespan == pytest.approx(bytes_of(jobs) / node, rel=1e-6, abs=1e-9)
    job_seconds = [(j.read + j.write) * 4 / node for j in jobs]  # a slot has a fourth of it
    out = simulate(jobs, World(len(jobs), 4, node=node))
    assert out.makespan == pytest.approx(max(job_seconds), rel=1e-6, abs=1e-9)


@FAST
@given(st.integers(1, 200), st.floats(1, 1000), st.floats(0, 3))
def test_a_scheduler_takes_its_time_for_each(count: int, rate: float, latency: float) -> None:
    world = World(count, tasks_per_second=rate, latency=latency)
    out = simulate([Work(0)] * count, world)
    assert out.makespan == pytest.approx(count / rate + latency)


@FAST
@given(st.integers(1, 60), st.integers(1, 20), st.floats(0.1, 9))
def test_a_bound_on_jobs_in_flight_is_so_many_slots(count: int, limit: int, seconds: float) -> None:
    jobs = [Work(seconds)] * count
    out = simulate(jobs, World(30, 2, in_flight=limit))
    assert out.makespan == pytest.approx(simulate(jobs, World(limit)).makespan)
    assert out.makespan == pytest.approx(math.ceil(count / limit) * seconds)


def test_a_job_that_is_lost_begins_anew() -> None:
    """Without checkpoints, work of T seconds under losses of rate r, each of which costs R, takes
    (exp(r T) - 1) (1 / r + R) on average."""
    rate, work, repair, count = 1 / 100, 120.0, 30.0, 4000
    worlds = (World(1, lifetime=1 / rate, repair=repair, seed=k) for k in range(count))
    outs = [simulate([Work(work)], w) for w in worlds]
    mean = sum(o.makespan for o in outs) / count
    assert mean == pytest.approx((math.exp(rate * work) - 1) * (1 / rate + repair), rel=0.05)
    losses = sum(o.losses for o in outs) / count
    assert losses == pytest.approx(math.exp(rate * work) - 1, rel=0.05)
    assert all(o.down == pytest.approx(o.losses * repair) for o in outs)


def test_a_copy_overtakes_a_slow_machine() -> None:
    seed = next(k for k in range(99) if _is_second_slow(k))
    world = World(2, slow=0.5, slowness=10, seed=seed)
    jobs = [Work(10), Work(10)]
    assert simulate(jobs, world).makespan == 100
    out = simulate(jobs, replace(world, copies=True, late=1.5))
    assert (out.makespan, out.copies, out.lost) == (25, 1, 25)


def _is_second_slow(seed: int) -> bool:
    world = World(2, slow=0.5, slowness=10, seed=seed)
    single = simulate([Work(1)], world).makespan
    return single == 1 and simulate([Work(1)] * 2, world).makespan == 10


# ---- properties --------------------------------------------------------------------------------


@settings(max_examples=150)
@given(WORKS, WORLDS)
def test_all_time_of_all_slots_is_accounted_for(jobs: list[Work], world: World) -> None:
    out = simulate(jobs, world)
    parts = (out.computing, out.moving, out.starting, out.waiting, out.lost, out.down, out.idle)
    whole = out.slots * out.makespan
    assert sum(parts) == pytest.approx(whole)
    assert min(parts) >= -1e-6 * (1 + whole)
    assert out.computing >= sum(j.seconds for j in jobs) - 1e-6
    assert out.computing <= world.slowness * sum(j.seconds for j in jobs) + 1e-6
    assert out == simulate(jobs, world), "the same arguments, the same result"


@FAST
@given(WORKS, SURE)
def test_no_bound_is_beaten(jobs: list[Work], world: World) -> None:
    bounds = limits(jobs, world)
    assert simulate(jobs, world).makespan >= max(bounds.values()) * (1 - 1e-9)
    assert bounds["longest job"] >= max(j.seconds for j in jobs) + world.latency


@FAST
@given(COMPUTED, st.integers(1, 8), st.data())
def test_more_is_never_worse(jobs: list[Work], machines: int, data: st.DataObject) -> None:
    world = World(machines, in_flight=data.draw(st.integers(1, 20)))
    before = simulate(jobs, world).makespan
    better = (replace(world, machines=machines + 1), replace(world, in_flight=world.in_flight + 1))
    for larger_world in better:
        assert simulate(jobs, larger_world).makespan <= before + 1e-9
    k = data.draw(st.integers(0, len(jobs) - 1))
    longer = [*jobs[:k], replace(jobs[k], seconds=jobs[k].seconds + 1), *jobs[k + 1 :]]
    assert simulate(longer, world).makespan >= before - 1e-9
    assert simulate([*jobs, Work(1)], world).makespan >= before - 1e-9


@FAST
@given(MOVED, st.integers(1, 8), st.floats(1e6, 1e9), st.floats(1, 10))
def test_more_bandwidth_is_never_worse(
    jobs: list[Work], machines: int, store: float, factor: float
) -> None:
    slow = simulate(jobs, World(machines, store=store, node=store)).makespan
    fast = simulate(jobs, World(machines, store=factor * store, node=store)).makespan
    faster = simulate(jobs, World(machines, store=factor * store, node=factor * store)).makespan
    assert faster <= fast * (1 + 1e-9) <= slow * (1 + 1e-9) ** 2


# ---- models larger than a machine --------------------------------------------------------------


def test_parameters_are_those_that_are_published() -> None:
    assert LLAMA_70B.parameters == 70_553_706_496  # Llama 3 70B
    assert Decoder(32, 4096, 11008, 32, 32, 32000).parameters == 6_738_415_616  # Llama 2 7B
    assert Decoder(32, 4096, 14336, 32, 8, 128256).parameters == 8_030_261_248  # Llama 3 8B


@pytest.mark.parametrize("machines", [1, 2, 3, 4, 8, 16])
def test_cuts_hold_the_whole_model(machines: int) -> None:
    d, h = LLAMA_70B, Hardware()
    for partition in (pipeline(d, machines, h), tensor(d, machines, h)):
        assert partition.weights * machines >= 2 * d.parameters
        assert partition.cache * machines >= 2 * 2 * d.layers * d.kv
        assert partition.token >= 2 * d.parameters / machines / h.memory
        assert (partition.message_bytes == 0) == (machines == 1) == (partition.messages == 0)
    assert pipeline(d, machines, h).token >= 2 * d.parameters / h.memory


# ---- what was measured, and the page -----------------------------------------------------------


def test_the_page_is_what_the_tool_writes() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert set(re.findall(r"<!-- table: ([a-z ]+) -->", text)) == set(TABLES)
    new = rendered(text, load())
    assert new == text, "python -m bench.simulate_scale --write"


def test_the_command_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--table", "large models"]) == 0
    assert TABLES["large models"](load()) in capsys.readouterr().out


def test_tables_follow_the_measurements() -> None:
    m = load()
    slow = replace(m, compiled=tuple(replace(c, cold=10 * c.cold) for c in m.compiled))
    for name in ("facts", "compiles"):
        assert TABLES[name](slow) != TABLES[name](m)
    assert rendered("a\n<!-- table: facts -->\nold\n<!-- end -->\nb", m) == (
        f"a\n<!-- table: facts -->\n{TABLES['facts'](m)}\n<!-- end -->\nb"
    )


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("date",), 1),
        (("compiled", 0, "cold"), "1"),
        (("compiled", 0, "cold"), -1.0),
        (("compiled", 0, "model_bytes"), 1.5),
        (("scored", 0, "rows"), 0.0),
        (("checked", 0, "jobs"), []),
        (("checked", 1, "jobs"), ["1"]),
        (("checked", 0, "workers"), None),
    ],
)
def test_damaged_measurements_are_named(
    place: tuple[str | int, ...], value: Any, tmp_path: Path
) -> None:
    top = json.loads(measured_module.FILE.read_text())
    inner = top
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    path = tmp_path / "m.json"
    path.write_text(json.dumps(top))
    with pytest.raises(UserError, match=str(place[-1])):
        load(path)
