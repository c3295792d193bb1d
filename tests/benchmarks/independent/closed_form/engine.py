"""Runs jobs: start and end of every operator of an iteration, from nuisances, the fault and what it depends on.

A collective ends for all its members at the last arrival plus its transfer; a message at the later post plus its
transfer. Infinity stands for "never": a rank that hangs makes infinite whatever waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tests.benchmarks.independent.closed_form.program import (
    Collective,
    Compute,
    Exchange,
    MessageKey,
    Operation,
    Pause,
    Program,
    Step,
    Wait,
    World,
)
from tests.benchmarks.independent.closed_form.topology import (
    Fabric,
    Flags,
    Floats,
    Health,
    Ints,
    Layout,
    ring_traffic,
)


@dataclass
class Fault:
    """A culprit and what it does, as hard as `apply` makes it.

    mode: clock (all compute slower), loader (late at the start of an iteration), cpu (late at every launch),
    network, stage, replica (imbalance), hang.
    """

    kind: str
    device: str | None
    ranks: Ints
    mode: str
    onset: str
    iterations: tuple[int, int]  # absolute indices [first, past)
    active: Flags  # over all iterations
    words: str
    target: float = 1.3  # effect that was drawn
    seed: int = 0
    strength: float = 0.0
    direction: str = "both"
    nics: Ints | None = None
    peer: int | None = None
    network: bool = False
    health: Health | None = None
    factor: Floats | None = None  # by rank
    late: float = 0.0  # seconds, loader or cpu
    hang_at: int = -1  # compute index on the culprits' stage

    def on(self, iteration: int) -> bool:
        return bool(self.active[iteration])

    def apply(self, strength: float, fabric: Fabric, iteration_time: float, compute_ops: float) -> None:
        """Give the fault a strength (about: the share of an iteration, or of a rate, that it takes)."""
        self.strength = strength
        self.factor, self.late = np.ones(fabric.layout.size), 0.0
        if self.mode in ("clock", "stage"):
            self.factor[self.ranks] = 1 + strength
        elif self.mode == "loader":
            self.late = strength * iteration_time
        elif self.mode == "cpu":
            self.late = strength * iteration_time / max(compute_ops, 1)
        elif self.mode == "network":
            self.health = self._slowed(fabric.health.copy(), 1 / (1 + strength))

    def _slowed(self, health: Health, left: float) -> Health:
        if self.kind == "slow_link":
            a, b = self.ranks_in_order
            health.link[a, b] = left
            if self.direction == "both":
                health.link[b, a] = left
            return health
        if self.direction in ("both", "tx"):
            health.tx[self.nics] *= left
        if self.direction in ("both", "rx"):
            health.rx[self.nics] *= left
        return health

    @property
    def ranks_in_order(self) -> tuple[int, int]:
        a, b = self.ranks
        return (int(b), int(a)) if self.peer == a else (int(a), int(b))


@dataclass
class Scenario:
    """Nuisances by iteration, all drawn before: they are the same with and without the fault."""

    layout: Layout
    fabric: Fabric
    phase: list[str]  # train, eval or checkpoint
    common: Floats  # factor of everybody's work
    rank_factor: Floats  # permanent
    stage_factor: Floats  # permanent differences of stages
    host_phase: Floats  # (iteration, host) factor
    warm: Floats  # seconds added at the start, everybody
    gap: float
    rank_sigma: float = 0.004  # of a rank in an iteration
    op_sigma: float = 0.01  # of one piece of compute
    op_tail: float = 0.0  # share of pieces with a heavy tail
    data_sigma: float = 0.0  # of a micro-batch of a replica
    transfer_sigma: float = 0.04
    tail_share: float = 0.0
    # By iteration: (rank, share of its computes done, seconds) of every stall.
    stalls: dict[int, list[tuple[int, float, float]]] = field(default_factory=dict)
    # By iteration: share of collectives done, and seconds.
    network_stalls: dict[int, tuple[float, float]] = field(default_factory=dict)

    def compute(
        self, program: Program, iteration: int, rng: np.random.Generator, fault: Fault | None
    ) -> list[Floats]:
        """Durations of all pieces of compute: a list by stage of (piece, lane)."""
        layout, lanes = self.layout, self.layout.lanes
        acting = fault if fault is not None and fault.on(iteration) else None
        rank_noise = 1 + self.rank_sigma * rng.standard_normal(layout.size, dtype=np.float32)
        data = self._data(program, iteration, rng, acting)
        result = []
        for s in range(layout.pp):
            ranks = slice(s * lanes, (s + 1) * lanes)
            work = program.compute_work[s]
            hosts = self.fabric.host[ranks]
            by_rank = self.rank_factor[ranks] * rank_noise[ranks] * self.host_phase[iteration][hosts]
            by_rank = by_rank * self.common[iteration] * self.stage_factor[s]
            if acting is not None and acting.mode in ("clock", "stage"):
                assert acting.factor is not None
                by_rank = by_rank * acting.factor[ranks]
            noise = self._piece_noise((len(work), lanes), rng)
            took = work[:, None] * by_rank[None, :] * noise * data[program.compute_micro[s]][:, layout.replica]
            if self.warm[iteration]:
                took[0] += self.warm[iteration] * np.exp(0.15 * rng.standard_normal(lanes))
            for rank, share, seconds in self.stalls.get(iteration, ()):
                if ranks.start <= rank < ranks.stop:
                    took[int(share * len(work)), rank - ranks.start] += seconds
            if acting is not None:
                _delay(took, acting, iteration, s, lanes)
            result.append(took)
        return result

    def _data(self, program: Program, iteration: int, rng: np.random.Generator, acting: Fault | None) -> Floats:
        """Factor of the work of every micro-batch (row) of every replica; the last row is work without data."""
        replicas = int(self.layout.replica[-1]) + 1
        micros = max((int(m.max()) for m in program.compute_micro if len(m)), default=0) + 1
        data: Floats = np.exp(self.data_sigma * rng.standard_normal((micros + 1, replicas), dtype=np.float32))
        data[-1] = 1.0
        if acting is not None and acting.mode == "replica":
            who = np.random.default_rng([acting.seed, 5, iteration])
            late = who.choice(replicas, size=who.integers(1, max(1, replicas // 6) + 1), replace=False)
            data[:-1, late] *= 1 + acting.strength * who.uniform(0.6, 1.0, len(late)).astype(np.float32)
        return data

    def _piece_noise(self, shape: tuple[int, int], rng: np.random.Generator) -> Floats:
        noise: Floats = 1 + self.op_sigma * rng.standard_normal(shape, dtype=np.float32)
        np.maximum(noise, 0.5, out=noise)
        if self.op_tail:
            is_long = rng.random(shape, dtype=np.float32) < self.op_tail
            noise[is_long] += (0.3 * rng.pareto(1.8, int(is_long.sum()))).clip(0, 6)
        return noise


def _delay(took: Floats, fault: Fault, iteration: int, stage: int, lanes: int) -> None:
    """Let the culprits of a stage be late by a constant, or for ever."""
    first = stage * lanes
    mine = fault.ranks[(fault.ranks >= first) & (fault.ranks < first + lanes)] - first
    if not len(mine):
        return
    wobble = np.random.default_rng([fault.seed, 6, iteration, stage])
    if fault.mode == "loader":
        took[0, mine] += fault.late * wobble.uniform(0.85, 1.15)
    elif fault.mode == "cpu":
        took[:, mine] += fault.late * wobble.uniform(0.7, 1.3, (len(took), 1))
    elif fault.mode == "hang":
        took[fault.hang_at, mine] = np.inf


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
        self._rates: dict[tuple[str | int, int, bool], Floats] = {}

    def inverse_rate(self, one: str | int, stage: int, fault: Fault | None) -> Floats:
        """Seconds a byte takes on the ring of every group of a kind, or from every lane of a stage to another's."""
        key = (one, stage, fault is not None)
        if key not in self._rates:
            of, health = self.fabric, _health(self.fabric, fault)
            rate = of.group_rate(one, stage, health) if isinstance(one, str) else of.pair_rate(one, stage, health)
            self._rates[key] = 1 / rate
        return self._rates[key]

    def inverse_world_rate(self, fault: Fault | None) -> float:
        """Seconds a byte takes on the ring of all ranks."""
        return 1 / self.fabric.world_rate(_health(self.fabric, fault))

    def forget_fault(self) -> None:
        """Drop remembered rates of the faulty network (its strength changed)."""
        self._rates = {k: v for k, v in self._rates.items() if not k[-1]}

    def run(self, program: Program, iteration: int, clock: Floats, fault: Fault | None = None) -> Outcome:
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
        inverse = self.engine.inverse_rate(op.kind, s, self.fault)
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
        inverse = self.engine.inverse_rate(*direction, self.fault)
        noise = self.noise[self.program.collectives + message.index, : self.layout.lanes]
        moved = (self.latency + message.size * inverse) * noise
        finish = np.maximum(ready, received) + moved
        self.free[direction] = finish
        if not batched:
            self.rows.write(message.send_rows, ready, finish, moved)
            self.rows.write(message.recv_rows, received, finish, moved)
        return finish, moved

    def outcome(self) -> Outcome:
        finish = np.stack([np.maximum(a, b) for a, b in zip(self.t, self.comm, strict=True)])
        with np.errstate(invalid="ignore"):
            took = finish - self.clock
            wobble = self.rng.standard_normal((self.layout.pp, self.layout.lanes))
            after = finish + self.scenario.gap * np.exp(0.2 * wobble)
        return Outcome(self.rows, after, took)


MOST = {"network": 60.0, "replica": 4.0}  # strength; 5 in other modes
FIRST_GUESS = {"clock": 1.2, "stage": 1.2, "loader": 1, "cpu": 1, "replica": 1, "network": 8}


class Iteration(NamedTuple):
    """When an iteration began and how long it took, by (stage, lane), and whether it trained."""

    begin: Floats
    took: Floats
    phase: str


@dataclass
class Run:
    """All iterations of a job; its rows may have some of before the first."""

    fault: Fault | None
    history: list[Rows] = field(default_factory=list)
    iterations: list[Iteration] = field(default_factory=list)

    def times(self) -> Floats:
        return np.array([iteration.took.max() for iteration in self.iterations])


@dataclass
class Job:
    """What is run: an engine, a program for each phase, and when ranks begin."""

    engine: Engine
    programs: dict[str, Program]
    iterations: int
    clock: Floats

    def set_up(self, pace: float) -> Rows:
        """Broadcast of the parameters and a barrier before the first iteration; rows without iteration."""
        stages: list[list[Operation]] = [
            [Compute(0.3 * pace), World("broadcast", 1 << 20), World("barrier", 0)]
            for _ in range(self.engine.layout.pp)
        ]
        rows, self.clock, _ = self.engine.run(Program(self.engine.layout, stages, {}), 0, self.clock)
        rows.iteration = None
        return rows

    def run(self, fault: Fault | None = None, twin: Run | None = None) -> Run:
        run, clock, first = Run(fault), self.clock, 0
        if fault is not None and twin is not None and fault.iterations[0]:
            first = fault.iterations[0]
            run.history, run.iterations = twin.history[:first], twin.iterations[:first]
            clock = twin.iterations[first].begin
        for i in range(first, self.iterations):
            phase = self.engine.scenario.phase[i]
            rows, after, took = self.engine.run(self.programs[phase], i, clock, fault)
            run.history.append(rows)
            run.iterations.append(Iteration(clock, took, phase))
            clock = after
            if not np.isfinite(took).all():
                break
        return run

    def calibrate(self, fault: Fault, twin: Run, pace: float) -> None:
        """Give the fault the strength at which its effect is what was drawn, or as near as it gets."""
        # A few training iterations that the fault is on in.
        on = np.flatnonzero(fault.active).tolist()
        training = [i for i in on if self.engine.scenario.phase[i] == "train"]
        count = 10 if fault.mode == "replica" else 4
        some = training[:: max(1, len(training) // count)][:count] or on[:1]
        usual = float(sum(twin.times()[i] for i in some))
        computes = float(np.mean([len(work) for work in self.programs["train"].compute_work]))

        def effect(strength: float) -> float:
            """Duration of these iterations with a fault of that strength, over the twin's."""
            self.engine.forget_fault()
            fault.apply(strength, self.engine.fabric, pace, computes)
            runs = (self.engine.run(self.programs["train"], i, twin.iterations[i].begin, fault) for i in some)
            return sum(float(outcome.took.max()) for outcome in runs) / usual

        most = MOST.get(fault.mode, 5.0)
        low, high = 0.0, np.inf
        strength = min(max(FIRST_GUESS[fault.mode] * (fault.target - 1), 0.02), most)
        best = (np.inf, strength)
        for _ in range(9):
            reached = effect(strength)
            best = min(best, (abs(reached - fault.target), strength))
            if best[0] < 0.1 * (fault.target - 1) or (reached < fault.target and strength >= most):
                break
            if reached < fault.target:
                low = strength
            else:
                high = strength
            guess = strength * float(np.clip((fault.target - 1) / max(reached - 1, 0.01), 0.2, 6))
            if np.isfinite(high):  # between the bounds, not too near to either
                guess = float(np.clip(guess, low + 0.1 * (high - low), high - 0.1 * (high - low)))
            strength = min(guess, most)
        self.engine.forget_fault()
        fault.apply(best[1], self.engine.fabric, pace, computes)
