"""Draws the jobs of the suites, runs them with and without their fault, and labels them.

By an author who never read the product. Suites are tidy, untidy, ddp, dims (many dimensions) and large; job N of a
suite and seed is the same whatever else is drawn.

Model: compute is work × permanent factor of the rank × noise; a collective ends for all members at the last arrival
plus latency plus bytes over the rate of its slowest NIC (NVLink inside a host); a message at the later post plus its
transfer; gradient buckets and FSDP gathers are in order on a second stream. Every iteration's randomness depends on
the seed and the iteration alone: the twin without the fault differs by the fault only. A fault's strength is searched
for the effect that was drawn.

Label: kind, device, ranks, iterations [first, past), effect (over the iterations on, training only, the first 5 left
out where others are; null for a hang; 1 if healthy), noise (of the twin's training iterations from the sixth on,
steps and waves of work included), hard and why_hard, what, onset (lasting, while, fluctuating, start, hang), mode
(clock, loader, cpu, network, stage, replica, hang), on (iterations, if fluctuating), direction and strength;
inflation (each iteration's duration over the twin's).
`size_bytes` is the whole buffer, also for all_gather and reduce_scatter.

Simplified: no contention between kinds of groups on one NIC; rings as slow as their slowest NIC; world operators are
latency only; stalls of the network hit collectives, not messages; no gather beside the next iteration.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.benchmarks.independent.closed_form.engine import Engine, Fault, Job, Rows, Run, Scenario
from tests.benchmarks.independent.closed_form.faults import FAULTS, Measurement, draw_fault, draw_measurement
from tests.benchmarks.independent.closed_form.program import Program, Shape
from tests.benchmarks.independent.closed_form.schedules import build
from tests.benchmarks.independent.closed_form.shapes import draw_layout, draw_shape
from tests.benchmarks.independent.closed_form.topology import (
    Fabric,
    Flags,
    Floats,
    autoregressive,
    choose,
    log_uniform,
)
from tests.benchmarks.independent.closed_form.writer import write

SETTLED = 5  # iterations of warm-up, which others are not measured by

Label = dict[str, object]


@dataclass
class _Drawn:
    """A job before anything is at fault, and how it ran."""

    suite: str
    fabric: Fabric
    shape: Shape
    job: Job
    nuisances: list[str]
    before: list[Rows]
    twin: Run

    @property
    def phase(self) -> list[str]:
        """What every iteration is: train, eval or checkpoint."""
        return self.job.engine.scenario.phase

    @property
    def training(self) -> Flags:
        return np.array([phase == "train" for phase in self.phase])

    @property
    def settled(self) -> Flags:
        """The iterations that train, without those of the warm-up."""
        return self.training & (np.arange(self.job.iterations) >= SETTLED)

    @property
    def usual(self) -> Floats:
        """Durations of the settled training iterations."""
        return self.twin.times()[self.settled]

    @property
    def pace(self) -> float:
        """Seconds that an iteration usually takes."""
        return float(np.median(self.usual))

    @property
    def noise(self) -> float:
        """Standard deviation of an iteration's duration, as a share of the mean."""
        return float(self.usual.std() / self.usual.mean())


def make(suite: str, seed: int, number: int, folder: Path) -> None:
    """Draw and run one job, and write its trace directory."""
    rng = np.random.default_rng([sum(map(ord, suite)), seed, number])
    faulty = rng.random() < 0.7
    kinds = [k for k in FAULTS if not (suite == "ddp" and k in ("link", "stage"))]
    what = choose(rng, kinds) if faulty else None
    healthy = None if faulty else choose(rng, HEALTHY)
    # A job, in which such a fault is possible, and how it runs without.
    layout, fabric = draw_layout(rng, suite, what)
    most = 60 if suite in ("dims", "large") else 120
    iterations = 40 if layout.size >= 4096 else int(rng.integers(40, most + 1))
    shape = draw_shape(rng, suite, layout, fabric, iterations)
    pace = shape.forward * 3 * (shape.micros + (layout.pp - 1) / shape.chunks) + shape.optimizer  # about
    train = build(layout, shape)
    scenario, nuisances = draw_scenario(rng, suite, fabric, iterations, pace, healthy)
    programs: dict[str, Program] = {"train": train}
    if "eval" in scenario.phase:
        programs["eval"] = build(layout, shape, forward_only=True)
    if "checkpoint" in scenario.phase:
        checkpoint = (pace * rng.uniform(0.4, 2.5), bool(rng.random() < 0.5))
        programs["checkpoint"] = build(layout, shape, checkpoint)
    engine = Engine(layout, fabric, scenario, int(rng.integers(2**31)))
    clock = rng.uniform(0, 0.002, (layout.pp, layout.lanes)) + 1.0
    job = Job(engine, programs, iterations, clock)
    before = [job.set_up(pace)] if suite != "tidy" and rng.random() < 0.3 else []
    drawn = _Drawn(suite, fabric, shape, job, nuisances, before, job.run())
    run = drawn.twin if what is None else _run_faulty(rng, drawn, what)
    run.history[:0] = drawn.before
    elapsed = drawn.pace * drawn.job.iterations
    measurement = draw_measurement(rng, suite, drawn.fabric, run.fault, elapsed)
    if run.fault is not None and run.fault.mode == "hang":
        measurement.recorded_until = _draw_end(rng, run)
    label = _label(drawn, run, healthy, measurement)
    write(folder, f"{suite}-{seed}-{number}", run, drawn.fabric, measurement, label, rng)


def _run_faulty(rng: np.random.Generator, drawn: _Drawn, what: str) -> Run:
    job = drawn.job
    fault = draw_fault(rng, what, drawn.fabric, job.programs["train"], job.iterations)
    if fault.mode == "hang":
        while drawn.phase[fault.iterations[0]] != "train":
            i = fault.iterations[0] - 1
            fault.iterations, fault.active = (i, i + 1), np.arange(job.iterations) == i
        fault.apply(0.0, drawn.fabric, drawn.pace, 1)
    else:
        job.calibrate(fault, drawn.twin, drawn.pace)
    return job.run(fault, drawn.twin)


def _draw_end(rng: np.random.Generator, run: Run) -> float | None:
    """When the recording of a hang ended, if that is known."""
    if rng.random() >= 0.7:
        return None
    start = run.history[-1].start
    return float(np.nanmax(np.where(np.isfinite(start), start, np.nan))) + float(rng.uniform(20, 600))


def _label(drawn: _Drawn, run: Run, healthy: str | None, measurement: Measurement) -> Label:
    """Everything that is to be found, or isn't; in the order in which it is written."""
    fault = run.fault
    label: Label = {
        "kind": fault.kind if fault else None,
        "device": fault.device if fault else None,
        "ranks": fault.ranks.tolist() if fault else [],
        "iterations": [0, 0],
        "effect": 1.0,
        "noise": drawn.noise,
        "hard": False,
    }
    why = _label_fault(label, drawn, run, fault, measurement) if fault else []
    what = fault.words if fault else healthy
    nuisances = "with " + ", ".join(drawn.nuisances) if drawn.nuisances else None
    label["hard"], label["why_hard"] = bool(why), "; ".join(why) or None
    label["what"] = "; ".join(filter(None, [what, nuisances]))
    return label


def _label_fault(label: Label, drawn: _Drawn, run: Run, fault: Fault, measurement: Measurement) -> list[str]:
    """Add what there is to say of a fault, and tell why it is hard."""
    why: list[str] = []
    first = measurement.first_iteration
    label["iterations"] = [i + first for i in fault.iterations]
    if fault.mode == "hang":
        label["effect"] = None
    else:
        # Duration over the twin's while the fault is on: settled iterations if there are, else those there are.
        over = fault.active & drawn.settled
        if not over.any():
            over = fault.active & drawn.training
        if not over.any():
            over = fault.active
        label["effect"] = effect = float(run.times()[over].mean() / drawn.twin.times()[over].mean())
        label["inflation"] = np.round(run.times() / drawn.twin.times(), 4).tolist()
        on = [i + first for i in np.flatnonzero(fault.active).tolist()]
        label["on"] = on if fault.onset == "fluctuating" else None
        if effect - 1 < 0.08:
            why.append("effect below 8 %")
        if effect - 1 < 2 * drawn.noise:
            why.append("effect below twice the noise")
        why += _untellable(drawn, fault, measurement)
    label["onset"], label["mode"] = fault.onset, fault.mode
    label["direction"] = fault.direction if fault.network else None
    label["strength"] = round(fault.strength, 4)
    return why


def _untellable(drawn: _Drawn, fault: Fault, measurement: Measurement) -> list[str]:
    """Why the log can't tell the device from another one."""
    why: list[str] = []
    if fault.network:
        pairs = {(m.source, m.target) for m in drawn.job.programs["train"].messages.values()}
        others = rivals(drawn.fabric, fault, measurement.logged, pairs)
        interval = measurement.bandwidth_interval
        is_fine = interval is not None and interval <= drawn.pace / 10  # then a sampled cap tells
        if others is None:
            why.append("no logged transfer goes over the device")
        elif others and not (is_fine and fault.device != "link" and "link" not in others):
            more = f" and {len(others) - 4} more" if len(others) > 4 else ""
            why.append(f"the slowed transfers are the same for {', '.join(others[:4])}{more}")
    if fault.device == "host":
        if measurement.logged[fault.ranks].sum() < 2:
            why.append("only one rank of the host is logged")
        if "host" not in measurement.device_keys:
            why.append("hosts are not known")
    return why


HEALTHY = (
    "clean", "stalls", "checkpoints", "evaluation", "warm-up", "new workload", "host phases", "sequence lengths",
)  # fmt: skip
MESSY = {"tidy": 0.1, "untidy": 0.5, "ddp": 0.3, "dims": 0.3, "large": 0.25}


def draw_scenario(
    rng: np.random.Generator, suite: str, fabric: Fabric, iterations: int, pace: float, healthy: str | None
) -> tuple[Scenario, list[str]]:
    """Nuisances and their names; `healthy` is what a healthy job is about, None for a job with a fault."""
    scenario = _draw_usual(rng, suite, fabric, iterations, pace)
    if suite != "tidy":
        shrink = min(1, 256 / fabric.layout.size)  # more ranks must not make an iteration's worst moment worse
        scenario.data_sigma = choose(rng, (0, 0, 0.01, 0.03, 0.06))
        scenario.op_sigma = rng.uniform(0.005, 0.03)
        scenario.op_tail = choose(rng, (0, 0, 2e-5, 1e-4)) * shrink
        scenario.tail_share = choose(rng, (0, 0, 1e-4, 1e-3)) * shrink
    chance = MESSY[suite] * 0.5
    about = {h: healthy == h or (healthy != "clean" and rng.random() < chance) for h in HEALTHY}
    if suite == "tidy" and healthy is None:
        about = dict.fromkeys(HEALTHY, False) | {"warm-up": rng.random() < 0.3}
    if about["stalls"]:
        _add_stalls(rng, scenario, iterations, pace)
    if about["host phases"]:
        scenario.host_phase = _host_phases(rng, iterations, fabric.hosts, rng.uniform(0.05, 0.25))
    if about["warm-up"]:
        for i in range(int(rng.integers(1, 5))):
            scenario.warm[i] = pace * rng.uniform(0.3, 3.0) / (1 + i)
    if about["new workload"]:
        first = int(iterations * rng.uniform(0.25, 0.75))
        scenario.common[first:] *= choose(rng, (0.75, 0.85, 1.15, 1.25, 1.4))
    if about["sequence lengths"]:
        wave = autoregressive(rng, iterations, choose(rng, (0, 0.5, 0.9)), rng.uniform(0.06, 0.12))
        scenario.common *= np.exp(np.clip(wave, -0.2, 0.2))
    for what, phase in (("evaluation", "eval"), ("checkpoints", "checkpoint")):
        if about[what]:
            every = int(rng.integers(12, 26))
            for i in range(int(rng.integers(5, every)), iterations, every):
                scenario.phase[i] = phase
    return scenario, [h for h in HEALTHY[1:] if about[h]]


def _draw_usual(rng: np.random.Generator, suite: str, fabric: Fabric, iterations: int, pace: float) -> Scenario:
    """The differences and the jitter that every job has."""
    layout, tidy = fabric.layout, suite == "tidy"
    host = rng.normal(0, 0.004, fabric.hosts)[fabric.host]
    rank_factor = np.clip(1 + host + rng.normal(0, rng.uniform(0.004, 0.012), layout.size), 0.96, 1.04)
    stages: Floats = rng.normal(0, 0.006 if tidy else 0.015, layout.pp)
    stage_factor: Floats = 1 + (stages if tidy else np.clip(stages, -0.05, 0.05))
    if layout.pp > 1 and rng.random() < 0.5:
        stage_factor[-1] *= 1 + rng.uniform(0, 0.05)  # the head of the model
    sigma = rng.uniform(0.009, 0.018) if tidy else log_uniform(rng, 0.005, 0.03)
    scenario = Scenario(
        layout=layout,
        fabric=fabric,
        phase=["train"] * iterations,
        common=1 + autoregressive(rng, iterations, 0.3, sigma),
        rank_factor=rank_factor,
        stage_factor=stage_factor,
        host_phase=np.ones((iterations, fabric.hosts)),
        warm=np.zeros(iterations),
        gap=pace * rng.uniform(0.002, 0.02),
    )
    scenario.rank_sigma, scenario.op_sigma = rng.uniform(0.001, 0.004), rng.uniform(0.003, 0.012)
    scenario.transfer_sigma = rng.uniform(0.01, 0.04) if tidy else rng.uniform(0.02, 0.12)
    return scenario


def _add_stalls(rng: np.random.Generator, scenario: Scenario, iterations: int, pace: float) -> None:
    size = scenario.layout.size
    for i in np.flatnonzero(rng.random(iterations) < rng.uniform(0.04, 0.15)).tolist():
        if rng.random() < 0.3:
            scenario.network_stalls[i] = (rng.random() * 0.999, pace * log_uniform(rng, 0.05, 0.5))
        else:
            scenario.stalls[i] = [
                (int(rng.integers(size)), rng.random() * 0.999, pace * log_uniform(rng, 0.05, 0.6))
                for _ in range(int(rng.integers(1, 3)))
            ]


def _host_phases(rng: np.random.Generator, iterations: int, hosts: int, share: float) -> Floats:
    """Hosts that are a few per cent slower for 5 to 25 iterations; `share` of the time in mean."""
    factor = np.ones((iterations, hosts))
    for h in range(hosts):
        for _ in range(rng.poisson(share * iterations / 14)):
            first = int(rng.integers(-10, iterations))
            length = int(rng.integers(5, 25))
            factor[max(first, 0) : max(first + length, 0), h] = 1 + rng.uniform(0.03, 0.06)
    return factor


Pairs = set[tuple[int, int]]  # stages that send to one another
Entity = tuple[str, int, int]  # a group (kind, stage, number) or a path ("p", rank, rank)


def _signature(fabric: Fabric, nics: Iterable[int], direction: str, logged: Flags, pairs: Pairs) -> frozenset[Entity]:
    """Transfers that slow NICs slow and the log can show: groups, and directed pairs of stages' lanes."""
    layout = fabric.layout
    lanes = layout.lanes
    found: set[Entity] = set()
    for rank in np.flatnonzero(np.isin(fabric.nic, list(nics))).tolist():
        stage, lane = divmod(rank, lanes)
        for kind in layout.groups:
            if fabric.plan[kind].crosses:
                group = int(layout.lane_group[kind][lane])
                members = layout.groups[kind][group] + stage * lanes
                if logged[members].any():
                    found.add((kind, stage, group))
        for x, y in pairs:
            for mine, way in ((x, "tx"), (y, "rx")):
                if mine == stage and direction in ("both", way):
                    a, b = lane + x * lanes, lane + y * lanes
                    if fabric.host[a] != fabric.host[b] and (logged[a] or logged[b]):
                        found.add(("p", a, b))
    return frozenset(found)


def _touched(fabric: Fabric, entities: Iterable[Entity]) -> set[int]:
    """Ranks that take part in the transfers."""
    touched: set[int] = set()
    for kind, first, second in entities:
        if kind == "p":
            touched.update((first, second))
        else:
            members = fabric.layout.groups[kind][second] + first * fabric.layout.lanes
            touched.update(members.tolist())
    return touched


def rivals(fabric: Fabric, fault: Fault, logged: Flags, pairs: Pairs) -> list[str] | None:
    """Other devices that slow just the same transfers, which no log can tell apart; None: no transfer shows it."""
    own: set[int] = set()
    is_link = fault.kind == "slow_link"
    if is_link:
        lanes = fabric.layout.lanes
        a, b = fault.ranks_in_order
        ways = [(a, b), (b, a)] if fault.direction == "both" else [(a, b)]
        mine = frozenset(("p", x, y) for x, y in ways if (x // lanes, y // lanes) in pairs)
    else:
        assert fault.nics is not None
        own = {int(n) for n in fault.nics}
        mine = _signature(fabric, own, fault.direction, logged, pairs)
    if not mine:
        return None
    # A rival shares every transfer, hence any few show all devices that can be one.
    touched = _touched(fabric, list(mine)[:3])
    found = []
    for nic in sorted({int(fabric.nic[r]) for r in touched}):
        directions = () if own == {nic} else ("both", "tx", "rx")
        if any(_signature(fabric, [nic], direction, logged, pairs) == mine for direction in directions):
            found.append(f"nic {nic}")
    for switch in sorted({int(fabric.switch[r]) for r in touched}):
        nics = set(np.unique(fabric.nic[fabric.switch == switch]).tolist())
        if nics != own and _signature(fabric, nics, "both", logged, pairs) == mine:
            found.append(f"switch {switch}")
    if not is_link and all(e[0] == "p" for e in mine) and len({tuple(sorted(e[1:])) for e in mine}) == 1:
        found.append("link")
    return found
