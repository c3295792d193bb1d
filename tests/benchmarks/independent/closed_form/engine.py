"""Start and end of every operator of an iteration, from what it depends on.

A collective ends for all its members at the last arrival plus its transfer; a message at the later post plus its
transfer. Infinity stands for "never": a rank that hangs makes infinite whatever waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tests.benchmarks.independent.closed_form.arrays import Floats
from tests.benchmarks.independent.closed_form.operations import (
    Collective,
    Compute,
    Exchange,
    MessageKey,
    Pause,
    Wait,
    World,
)
from tests.benchmarks.independent.closed_form.program import Program, Step
from tests.benchmarks.independent.closed_form.scenario import Fault, Scenario
from tests.benchmarks.independent.closed_form.topology import Fabric, Health, Layout, ring_traffic

JITTERS = 61  # a prime, so that operators of one kind don't meet the same jitter again and again


@dataclass
class Rows:
    """One iteration's operators, in the program's row layout; nan: never executed, end inf: never ended."""

    program: Program
    iteration: int | None  # None: before the first
    start: Floats
    end: Floats
    transfer: Floats

    def write(self, rows: slice, start: Floats, end: Floats, transfer: Floats | float) -> None:
        """Fill in the rows of one operator."""
        self.start[rows], self.end[rows], self.transfer[rows] = start, end, transfer


class Outcome(NamedTuple):
    """An iteration that was run: its rows, the clock after it, and the duration on each (stage, lane)."""

    rows: Rows
    after: Floats
    took: Floats


class Engine:
    """Runs iterations of a job.

    All randomness of an iteration depends on seed and iteration alone, so that a twin without the fault differs by
    nothing else.
    """

    def __init__(self, layout: Layout, fabric: Fabric, scenario: Scenario, seed: int) -> None:
        self.layout, self.fabric, self.scenario, self.seed = layout, fabric, scenario, seed
        jitter: Floats = np.random.default_rng([seed, 99]).normal(0, 1.5e-6, (JITTERS, layout.lanes))
        self.jitter: Floats = np.abs(jitter)
        self._groups: dict[tuple[str, int, bool], Floats] = {}
        self._pairs: dict[tuple[int, int, bool], Floats] = {}

    def inverse_group_rate(self, kind: str, stage: int, fault: Fault | None) -> Floats:
        """Seconds a byte takes on the ring of every group of a kind, with a fault of the network or without."""
        key = (kind, stage, fault is not None)
        if key not in self._groups:
            health = _health(self.fabric, fault)
            self._groups[key] = 1 / self.fabric.group_rate(kind, stage, health)
        return self._groups[key]

    def inverse_pair_rate(self, source: int, target: int, fault: Fault | None) -> Floats:
        """Seconds a byte takes between every lane of two stages."""
        key = (source, target, fault is not None)
        if key not in self._pairs:
            health = _health(self.fabric, fault)
            self._pairs[key] = 1 / self.fabric.pair_rate(source, target, health)
        return self._pairs[key]

    def inverse_world_rate(self, fault: Fault | None) -> float:
        """Seconds a byte takes on the ring of all ranks."""
        return 1 / self.fabric.world_rate(_health(self.fabric, fault))

    def forget_fault(self) -> None:
        """Drop remembered rates of the faulty network (its strength changed)."""
        self._groups = {k: v for k, v in self._groups.items() if not k[-1]}
        self._pairs = {k: v for k, v in self._pairs.items() if not k[-1]}

    def run(self, program: Program, iteration: int, clock: Floats, fault: Fault | None = None) -> Outcome:
        """One iteration from `clock` (stage, lane)."""
        state = _Iteration(self, program, iteration, clock, fault)
        for number, step in enumerate(program.order):
            state.execute(number, step)
        return state.outcome()


def _health(fabric: Fabric, fault: Fault | None) -> Health:
    if fault is None:
        return fabric.health
    assert fault.health is not None, "the fault has no strength yet"
    return fault.health


class _Iteration:
    """One iteration on its way: the clocks of compute and communication of every stage, and what was posted."""

    def __init__(self, engine: Engine, program: Program, iteration: int, clock: Floats, fault: Fault | None) -> None:
        self.engine, self.program, self.iteration, self.clock = engine, program, iteration, clock
        self.layout, self.scenario, self.latency = engine.layout, engine.scenario, engine.fabric.latency
        self.rng = np.random.default_rng([engine.seed, 7, iteration])
        self.durations = self.scenario.compute(program, iteration, self.rng, fault)
        # Factor of the transfer of every collective and message, by group or lane.
        shape = (self.program.collectives + len(self.program.messages), self.layout.lanes)
        normal = self.rng.standard_normal(shape, dtype=np.float32)
        noise: Floats = np.exp(normal * self.scenario.transfer_sigma)
        tail = self.rng.random(shape, dtype=np.float32) < self.scenario.tail_share
        if tail.any():
            noise[tail] *= 1 + self.rng.pareto(2.0, int(tail.sum())).clip(0, 40)
        self.noise = noise
        is_slow = fault is not None and fault.network and fault.on(iteration)
        self.fault = fault if is_slow else None  # of the network
        self.t = [clock[s].copy() for s in range(self.layout.pp)]
        self.comm = [c.copy() for c in self.t]
        self.handles: list[dict[str, Floats]] = [{} for _ in self.t]
        self.sent: dict[MessageKey, Floats] = {}
        self.received: dict[MessageKey, Floats] = {}
        self.done: dict[MessageKey, tuple[Floats, Floats]] = {}  # end and transfer
        self.free: dict[tuple[int, int], Floats] = {}  # when a pair of stages can send again
        start, end, transfer = (np.full(program.rows, np.nan) for _ in range(3))
        self.rows = Rows(program, iteration, start, end, transfer)

    def _jitter(self, number: int) -> Floats:
        jitter: Floats = self.engine.jitter[number % JITTERS]
        return jitter

    def execute(self, number: int, step: Step) -> None:
        """The step of that number in the program's order."""
        s, op = step.stage, step.operation
        if isinstance(op, Compute):
            self.t[s] = self.t[s] + self.durations[s][op.index]
        elif isinstance(op, Collective):
            self._collective(number, s, op)
        elif isinstance(op, Wait):
            self.t[s] = np.maximum(self.t[s], self.handles[s][op.handle])
        elif isinstance(op, Exchange) and step.what == "post":
            self.sent.update(dict.fromkeys(op.sends, self.t[s]))
            self.received.update(dict.fromkeys(op.recvs, self.t[s]))
        elif isinstance(op, Exchange):
            self._exchange(number, s, op)
        elif isinstance(op, World):
            last = max(t.max() for t in self.t)
            n = self.layout.size
            inverse = self.engine.inverse_world_rate(self.fault)
            ideal = self.latency * (1 + 0.15 * np.log2(n)) + op.size * ring_traffic(op.operator, n) * inverse
            moved = float(ideal * float(self.noise[op.index, 0]))
            for q in range(self.layout.pp):
                finish = last + moved + self._jitter(self.iteration * 131 + number + q)
                if op.rows is not None:
                    self.rows.write(op.rows[q], self.t[q], finish, moved)
                self.t[q] = finish
        elif isinstance(op, Pause):
            extra = op.seconds * np.exp(self.rng.normal(0, 0.12, self.layout.lanes))
            if op.first_replica_only:
                extra = np.where(self.layout.replica == 0, extra, 0.02 * extra)
            self.t[s] = self.t[s] + extra

    def _collective(self, number: int, s: int, op: Collective) -> None:
        members = self.layout.groups[op.kind]
        arrive = np.maximum(self.t[s], self.comm[s]) if op.handle else self.t[s]
        n = members.shape[1]
        inverse = self.engine.inverse_group_rate(op.kind, s, self.fault)
        ideal = self.latency * (1 + 0.15 * np.log2(n)) + op.size * ring_traffic(op.operator, n) * inverse
        moved = ideal * self.noise[op.index, : len(members)]
        delay = self._stall(op.index)
        if delay:
            moved[int(delay * 1e6) % len(moved)] += delay
        group = self.layout.lane_group[op.kind]
        moved = moved[group]
        finish = arrive[members].max(1)[group] + moved + self._jitter(self.iteration * 131 + number)
        if op.rows is not None:
            self.rows.write(op.rows, arrive, finish, moved)
        if op.handle:
            self.comm[s] = finish
            self.handles[s][op.handle] = finish
        else:
            self.t[s] = finish

    def _stall(self, index: int) -> float:
        """Seconds by which the network holds up a group of this collective."""
        stall = self.scenario.network_stalls.get(self.iteration)
        if stall is None or index != int(stall[0] * self.program.collectives):
            return 0.0
        return stall[1]

    def _exchange(self, number: int, s: int, op: Exchange) -> None:
        finish = self.t[s]
        awaited = op.recvs + (op.sends if op.batched else [])
        for key in awaited:
            if key not in self.done:
                self.done[key] = self._message(key, op.batched)
            finish = np.maximum(finish, self.done[key][0])
        finish = finish + self._jitter(self.iteration * 17 + number)
        if op.batched:  # one kernel: all of the batch ends with its last
            for key in op.recvs:
                self.rows.write(self.program.messages[key].recv_rows, self.t[s], finish, self.done[key][1])
            for key in op.sends:
                self.rows.write(self.program.messages[key].send_rows, self.t[s], finish, self.done[key][1])
        if awaited:
            self.t[s] = finish

    def _message(self, key: MessageKey, batched: bool) -> tuple[Floats, Floats]:
        """End and transfer of a message by lane; writes its rows if it is on its own."""
        message, sent, received = self.program.messages[key], self.sent[key], self.received[key]
        direction = (message.source, message.target)
        ready = np.maximum(sent, self.free[direction]) if direction in self.free else sent
        inverse = self.engine.inverse_pair_rate(*direction, self.fault)
        noise = self.noise[self.program.collectives + message.index, : self.layout.lanes]
        moved = (self.latency + message.size * inverse) * noise
        finish = np.maximum(ready, received) + moved
        self.free[direction] = finish
        if not batched:
            self.rows.write(message.send_rows, ready, finish, moved)
            self.rows.write(message.recv_rows, received, finish, moved)
        return finish, moved

    def outcome(self) -> Outcome:
        """What came of all steps."""
        finish = np.stack([np.maximum(a, b) for a, b in zip(self.t, self.comm, strict=True)])
        with np.errstate(invalid="ignore"):
            took = finish - self.clock
            wobble = self.rng.standard_normal((self.layout.pp, self.layout.lanes))
            after = finish + self.scenario.gap * np.exp(0.2 * wobble)
        return Outcome(self.rows, after, took)
