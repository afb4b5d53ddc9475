"""A discrete-event simulation of jobs on machines that fail, behind a scheduler and a store.

One queue of jobs, in order. A scheduler gives them to free slots, one after the other. A job waits
for the latency, reads, computes, writes, and answers. Transfers share the store's bandwidth evenly,
and none is faster than its slot's share of its machine's network. A machine that is gone takes the
jobs of all of its slots with it; they are begun again before all others. It comes back, or another
in its place, and loads what jobs need before its slots take the next.

All times are in seconds, sizes in bytes. Equal arguments give equal results.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

INFINITE = math.inf


@dataclass(frozen=True, slots=True)
class Work:
    """One job: seconds of one slot of a usual machine, and what it moves."""

    seconds: float
    read: float = 0.0
    write: float = 0.0


@dataclass(frozen=True, slots=True)
class World:
    """What jobs run on.

    `tasks_per_second` is what the scheduler begins; `in_flight` the most jobs that are given out
    at a time; `latency` what a job waits for others; `node` and `store` are bandwidths of a machine
    and of the store as a whole. A machine is lost every `lifetime` seconds on average, and replaced
    after `repair`; `startup` is what a slot does before its first job. A share `slow` of machines
    takes `slowness` times as long. With `copies`, a job that takes `late` times as long as it
    should is begun once more where a slot is free; the first answer counts.
    """

    machines: int
    slots: int = 1
    tasks_per_second: float = INFINITE
    in_flight: float = INFINITE
    latency: float = 0.0
    node: float = INFINITE
    store: float = INFINITE
    lifetime: float = INFINITE
    repair: float = 300.0
    startup: float = 0.0
    slow: float = 0.0
    slowness: float = 1.0
    copies: bool = False
    late: float = 1.5
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """Seconds of slots, by what they were for: all of them are `slots * makespan`. `lost` was done
    in vain, by machines that were lost and by copies that came second; `waiting` is for the
    scheduler, `idle` for leave to give out more jobs, or for the end of the last."""

    makespan: float
    slots: int
    computing: float
    moving: float
    starting: float
    waiting: float
    lost: float
    down: float
    idle: float
    losses: int
    copies: int

    @property
    def used(self) -> float:
        """The part of all slots' time that was computing."""
        return self.computing / (self.slots * self.makespan) if self.makespan else 1.0


@dataclass(slots=True, eq=False)
class _Attempt:
    """A job on a slot, from its `assignment` on: `begun` is when the scheduler had time for it, the
    rest what it did since."""

    job: int
    slot: int
    assignment: float
    begun: float = -1.0
    starting: float = 0.0
    moving: float = 0.0
    computing: float = 0.0
    alive: bool = True


_Step = Callable[[_Attempt], None]


class _Link:
    """Transfers that share a bandwidth evenly. `served` is what one that was always there would
    have had; a transfer ends when that has grown by its size."""

    def __init__(self, store: float, share: float):
        self.store, self.share = store, share
        self.unlimited = min(store, share) == INFINITE
        self.served = self.since = 0.0
        self.due = INFINITE  # when the next transfer ends
        self.active: dict[_Attempt, float] = {}  # when each began
        self.promised: list[tuple[float, int, _Attempt, _Step]] = []

    def rate(self) -> float:
        part = self.store / (len(self.active) or 1)
        return part if part < self.share else self.share

    def advance(self, now: float) -> None:
        if self.active:
            self.served += self.rate() * (now - self.since)
        self.since = now


class _Simulation:
    def __init__(self, jobs: Sequence[Work], world: World):
        self.jobs, self.world = jobs, world
        self.now = self.ready = 0.0  # `ready`: when the scheduler can begin the next
        self.events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self.count = 0
        self.waiting = (deque[int](), deque(range(len(jobs))), deque[int]())  # lost, new, late
        self.running: dict[int, list[_Attempt]] = {}
        self.done = [False] * len(jobs)
        self.left = len(jobs)
        self.held: dict[int, _Attempt] = {}  # by slot
        # Slots of one number on all machines, then of the next: few jobs spread over machines.
        m, s = world.machines, world.slots
        self.free = deque(k * s + n for n in range(s) for k in range(m))
        self.is_free = [True] * (m * s)
        self.cold = set(range(m * s)) if world.startup else set()
        self.down_since = [-1.0] * m
        self.link = _Link(world.store, world.node / s)
        self.draws = [Random(f"{world.seed} machine {k}") for k in range(m)]
        self.speed = [world.slowness if d.random() < world.slow else 1.0 for d in self.draws]
        self.spent = dict.fromkeys(("computing", "moving", "starting", "waiting", "lost"), 0.0)
        self.down = 0.0
        self.losses = self.copies = 0
        for k in range(m):
            self._live(k)

    def _at(self, time: float, step: Callable[[Any], None], subject: Any) -> None:
        self.count += 1
        heapq.heappush(self.events, (time, self.count, step, subject))

    def run(self) -> Outcome:
        self._give()
        while self.left:
            if self.link.due <= (self.events[0][0] if self.events else INFINITE):
                self.now = self.link.due
                self._arrive()
                continue
            self.now, _, step, subject = heapq.heappop(self.events)
            if not isinstance(subject, _Attempt) or subject.alive:
                step(subject)
        for attempts in self.running.values():
            for a in attempts:
                self._stop(a)
        down = self.down + sum(self.now - t for t in self.down_since if t >= 0) * self.world.slots
        slots = len(self.is_free)
        idle = slots * self.now - sum(self.spent.values()) - down
        return Outcome(
            makespan=self.now,
            slots=slots,
            **self.spent,
            down=down,
            idle=idle,
            losses=self.losses,
            copies=self.copies,
        )

    # ---- giving jobs to slots -----------------------------------------------------------------

    def _give(self) -> None:
        while self.free and len(self.held) < self.world.in_flight:
            slot = self.free[0]
            if not self.is_free[slot]:  # its machine is gone
                self.free.popleft()
                continue
            job = self._next_job()
            if job is None:
                return
            self.free.popleft()
            self.is_free[slot] = False
            a = self.held[slot] = _Attempt(job, slot, self.now)
            self.running.setdefault(job, []).append(a)
            self.ready = max(self.now, self.ready) + 1 / self.world.tasks_per_second
            self._at(self.ready, self._begin, a)

    def _next_job(self) -> int | None:
        for queue in self.waiting:
            while queue:
                job = queue.popleft()
                if not self.done[job]:
                    return job
        return None

    def _release(self, slot: int) -> None:
        del self.held[slot]
        self.is_free[slot] = True
        self.free.append(slot)

    # ---- the life of an attempt ---------------------------------------------------------------

    def _begin(self, a: _Attempt) -> None:
        a.begun = self.now
        if a.slot in self.cold:
            self.cold.discard(a.slot)
            a.starting = self.world.startup
        a.moving = self.world.latency
        if self.world.copies:
            job = self.jobs[a.job]
            usual = self.world.latency + job.seconds + (job.read + job.write) / self.link.share
            self._at(self.now + a.starting + self.world.late * usual, self._late, a)
        self._at(self.now + a.starting + a.moving, self._read, a)

    def _read(self, a: _Attempt) -> None:
        self._transfer(a, self.jobs[a.job].read, self._compute)

    def _compute(self, a: _Attempt) -> None:
        a.computing = self.jobs[a.job].seconds * self.speed[a.slot // self.world.slots]
        self._at(self.now + a.computing, self._write, a)

    def _write(self, a: _Attempt) -> None:
        self._transfer(a, self.jobs[a.job].write, self._answer)

    def _answer(self, a: _Attempt) -> None:
        a.alive = False
        self.spent["waiting"] += a.begun - a.assignment
        for name in ("starting", "moving", "computing"):
            self.spent[name] += getattr(a, name)
        self.done[a.job] = True
        self.left -= 1
        self._release(a.slot)
        for attempt in self.running.pop(a.job):
            if attempt.alive:
                self._stop(attempt)
                self._release(attempt.slot)
        self._give()

    def _late(self, a: _Attempt) -> None:
        """It takes longer than it should: its job is begun once more, after all others."""
        late = self.waiting[2]
        if len(self.running[a.job]) == 1 and a.job not in late:
            self.copies += 1
            late.append(a.job)
            self._give()

    def _stop(self, a: _Attempt) -> None:
        """Its machine is gone, or another was first: what it did was in vain."""
        a.alive = False
        begun = a.begun if a.begun >= 0 else self.now
        self.spent["waiting"] += begun - a.assignment
        self.spent["lost"] += self.now - begun
        if a in self.link.active:
            self.link.advance(self.now)
            del self.link.active[a]
            self._foresee()

    # ---- transfers ----------------------------------------------------------------------------

    def _transfer(self, a: _Attempt, size: float, step: _Step) -> None:
        link = self.link
        if size <= 0 or link.unlimited:
            step(a)
            return
        link.advance(self.now)
        link.active[a] = self.now
        self.count += 1
        heapq.heappush(link.promised, (link.served + size, self.count, a, step))
        self._foresee()

    def _foresee(self) -> None:
        """The end of the next transfer, as things are now."""
        link = self.link
        while link.promised and not link.promised[0][2].alive:
            heapq.heappop(link.promised)
        link.due = INFINITE
        if link.promised:
            link.due = self.now + max(0.0, link.promised[0][0] - link.served) / link.rate()

    def _arrive(self) -> None:
        link = self.link
        link.advance(self.now)
        link.served = max(link.served, link.promised[0][0])
        ended: list[tuple[_Attempt, _Step]] = []
        while link.promised and link.promised[0][0] <= link.served:
            _, _, a, step = heapq.heappop(link.promised)
            if a.alive:
                a.moving += self.now - link.active.pop(a)
                ended.append((a, step))
        self._foresee()
        for a, step in ended:
            if a.alive:
                step(a)

    # ---- machines -----------------------------------------------------------------------------

    def _live(self, machine: int) -> None:
        if self.world.lifetime < INFINITE:
            life = self.draws[machine].expovariate(1 / self.world.lifetime)
            self._at(self.now + life, self._lose, machine)

    def _slots_of(self, machine: int) -> range:
        return range(machine * self.world.slots, (machine + 1) * self.world.slots)

    def _lose(self, machine: int) -> None:
        self.losses += 1
        self.down_since[machine] = self.now
        for slot in self._slots_of(machine):
            self.is_free[slot] = False
            a = self.held.pop(slot, None)
            if a is not None:
                self._stop(a)
                self.running[a.job].remove(a)
                if not self.running[a.job]:
                    self.waiting[0].append(a.job)
        self._at(self.now + self.world.repair, self._replace, machine)
        self._give()

    def _replace(self, machine: int) -> None:
        self.down += (self.now - self.down_since[machine]) * self.world.slots
        self.down_since[machine] = -1.0
        for slot in self._slots_of(machine):
            self.is_free[slot] = True
            self.free.append(slot)
            if self.world.startup:
                self.cold.add(slot)
        self._live(machine)
        self._give()


def simulate(jobs: Sequence[Work], world: World) -> Outcome:
    """Run all jobs to their ends."""
    return _Simulation(jobs, world).run()


def limits(jobs: Sequence[Work], world: World) -> dict[str, float]:
    """Seconds below which no run of the jobs can be, by what would be at its limit, on machines
    that are neither slow nor lost."""
    share = world.node / world.slots
    times = [j.seconds + world.latency + (j.read + j.write) / share for j in jobs]
    return {
        "machines": sum(times) / (world.machines * world.slots),
        "jobs in flight": sum(times) / world.in_flight,
        "store": sum(j.read + j.write for j in jobs) / world.store,
        "scheduler": len(jobs) / world.tasks_per_second,
        "longest job": max(times),
    }
