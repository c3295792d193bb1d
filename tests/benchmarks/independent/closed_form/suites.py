"""Draws the jobs of the suites, runs them with and without their fault, and labels them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.benchmarks.independent.closed_form.arrays import Flags, Floats, choose
from tests.benchmarks.independent.closed_form.engine import Engine, Rows
from tests.benchmarks.independent.closed_form.faults import FAULTS, draw_fault
from tests.benchmarks.independent.closed_form.measurement import Measurement, draw_measurement
from tests.benchmarks.independent.closed_form.nuisances import HEALTHY, draw_scenario
from tests.benchmarks.independent.closed_form.operations import Shape
from tests.benchmarks.independent.closed_form.program import Program
from tests.benchmarks.independent.closed_form.rivals import rivals
from tests.benchmarks.independent.closed_form.running import Job, Run
from tests.benchmarks.independent.closed_form.scenario import Fault
from tests.benchmarks.independent.closed_form.schedules import build
from tests.benchmarks.independent.closed_form.shapes import ROWS, draw_layout, draw_shape
from tests.benchmarks.independent.closed_form.topology import Fabric
from tests.benchmarks.independent.closed_form.writer import write

SUITES = tuple(sorted(ROWS))
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
        """The iterations that train."""
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


def make(suite: str, seed: int, number: int, out: Path) -> tuple[str, Label]:
    """Draw, run and write one job; its name and label come back."""
    name = f"{suite}-{seed}-{number}"
    rng = np.random.default_rng([sum(map(ord, suite)), seed, number])
    faulty = rng.random() < 0.7
    kinds = [k for k in FAULTS if not (suite == "ddp" and k in ("link", "stage"))]
    what = choose(rng, kinds) if faulty else None
    healthy = None if faulty else choose(rng, HEALTHY)
    drawn = _draw(rng, suite, what, healthy)
    run = drawn.twin if what is None else _run_faulty(rng, drawn, what)
    run.history[:0] = drawn.before
    elapsed = drawn.pace * drawn.job.iterations
    measurement = draw_measurement(rng, suite, drawn.fabric, run.fault, elapsed)
    if run.fault is not None and run.fault.mode == "hang":
        measurement.recorded_until = _draw_end(rng, run)
    label = _label(drawn, run, healthy, measurement)
    label["rows"] = write(out / name, run, drawn.fabric, measurement, label, rng)
    return name, label


def _draw(rng: np.random.Generator, suite: str, what: str | None, healthy: str | None) -> _Drawn:
    """A job, in which such a fault is possible, and how it runs without."""
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
    return _Drawn(suite, fabric, shape, job, nuisances, before, job.run())


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
    label["healthy"] = fault is None
    label["what"] = "; ".join(filter(None, [what, nuisances]))
    label["logged"] = "all" if measurement.logged.all() else np.flatnonzero(measurement.logged).tolist()
    label["job"] = _label_job(drawn, measurement)
    return label


def _label_fault(label: Label, drawn: _Drawn, run: Run, fault: Fault, measurement: Measurement) -> list[str]:
    """Add what there is to say of a fault, and tell why it is hard."""
    why: list[str] = []
    fabric, first = drawn.fabric, measurement.first_iteration
    label["iterations"] = [i + first for i in fault.iterations]
    if fault.mode == "hang":
        label["effect"] = None
    else:
        label["effect"] = effect = _effect(drawn, run, fault)
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
    label["peer"] = fault.peer
    if fault.device == "link":
        label["sender"], label["receiver"] = fault.ranks_in_order
    if fault.device == "switch":
        label["switch"] = f"leaf-{fabric.switch[fault.ranks[0]]}"
    if fault.device in ("nic", "host"):
        label["host"] = f"node-{fabric.host[fault.ranks[0]]}"
        label["nic"] = f"mlx5_{fabric.nic_index[fault.ranks[0]]}"
    return why


def _effect(drawn: _Drawn, run: Run, fault: Fault) -> float:
    """Duration over the twin's while the fault is on: settled iterations if there are, else those there are."""
    over = fault.active & drawn.settled
    if not over.any():
        over = fault.active & drawn.training
    if not over.any():
        over = fault.active
    return float(run.times()[over].mean() / drawn.twin.times()[over].mean())


def _label_job(drawn: _Drawn, measurement: Measurement) -> Label:
    layout, fabric, shape = drawn.fabric.layout, drawn.fabric, drawn.shape
    return {
        "suite": drawn.suite,
        "dims": layout.dims,
        "size": layout.size,
        "style": shape.style,
        "micros": shape.micros,
        "chunks": shape.chunks,
        "batched": shape.batched,
        "overlap": shape.overlap,
        "gradient": shape.gradient,
        "gpus_per_host": fabric.gpus,
        "gpus_per_nic": fabric.gpus_per_nic,
        "rails": fabric.rails,
        "clock": measurement.clock,
        "iteration_values": measurement.iteration_values,
        "dropped": measurement.dropped,
        "round": [measurement.round_start, measurement.round_elapsed],
        "iteration_s": drawn.pace,
        "phases": {phase: drawn.phase.count(phase) for phase in sorted(set(drawn.phase))},
    }


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
