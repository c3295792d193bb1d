"""Runs a drawn job and its healthy twin, and writes what a log of it would hold, with the truth about it."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np

from tests.benchmarks.independent.event_level.cluster import Cluster, Pair
from tests.benchmarks.independent.event_level.engine import Engine, Row
from tests.benchmarks.independent.event_level.faults import Fault, make_fault
from tests.benchmarks.independent.event_level.labels import Label, Labeller, healthy_label
from tests.benchmarks.independent.event_level.noise import Noise
from tests.benchmarks.independent.event_level.output import write
from tests.benchmarks.independent.event_level.programs import Job
from tests.benchmarks.independent.event_level.scenario import Draw


def make(draw: Draw, folder: Path) -> None:
    """Write the trace directory of a job."""
    label, engine, noise = _run_healthy(draw) if draw.kind is None else _run_broken(draw)
    validate(engine, draw.job, draw.cluster, is_complete=draw.kind != "hang")
    write(folder, np.random.default_rng([*draw.seed, 4]), draw.job, engine, noise, draw.style, label)


def _noise(draw: Draw) -> Noise:
    return Noise([*draw.seed, 2], draw.cluster, draw.job, draw.iterations, draw.seconds, draw.want)


def _simulate(draw: Draw, noise: Noise, fault: Fault, does_log_nics: bool) -> Engine:
    return Engine(draw.cluster, draw.job, noise, fault, draw.iterations, does_log_nics).run()


def _run_healthy(draw: Draw) -> tuple[Label, Engine, Noise]:
    noise = _noise(draw)
    engine = _simulate(draw, noise, Fault(), bool(draw.style.bandwidth))
    return healthy_label(draw, noise, engine), engine, noise


def _run_broken(draw: Draw) -> tuple[Label, Engine, Noise]:
    place = draw.place()
    strength = 1.0 if draw.kind == "hang" else draw.tune(place)
    fault = make_fault(place, draw.cluster, draw.job, strength, place.level)
    noise = _noise(draw)  # tuning may have changed the job
    twin = _simulate(draw, noise, Fault(), does_log_nics=False)
    engine = _simulate(draw, noise, fault, bool(draw.style.bandwidth))
    engine.leave_open()
    return Labeller(draw, place, fault, noise, engine, twin).label(strength), engine, noise


def validate(engine: Engine, job: Job, cluster: Cluster, is_complete: bool) -> None:
    """Raise AssertionError for a run whose rows contradict each other, or that stopped though it should not."""
    operators: defaultdict[tuple[int, Pair | None, int], dict[int, Row]] = defaultdict(dict)
    for row in engine.rows:
        assert row.rank in job.members[row.communicator]
        assert row.size >= 0
        assert row.end is None or row.end >= row.start
        pair = None
        if row.peer >= 0:
            pair = (row.rank, row.peer) if row.operator == "send" else (row.peer, row.rank)
        rows = operators[row.communicator, pair, row.sequence]
        assert row.rank not in rows
        rows[row.rank] = row
    if not is_complete:
        return
    assert not engine.transfers, "deadlock"
    assert not engine.running, "deadlock"
    assert len(engine.iteration_rows) == cluster.world * engine.iterations, "deadlock"
    for (communicator, pair, _), by_rank in operators.items():
        rows_of_one = list(by_rank.values())
        assert len(rows_of_one) == (2 if pair else len(job.members[communicator]))
        assert len({row.iteration for row in rows_of_one}) == 1
        if pair:
            assert {row.operator for row in rows_of_one} == {"send", "recv"}
        else:
            assert len({row.operator for row in rows_of_one}) == 1
            ends = [row.end for row in rows_of_one if row.end is not None]
            assert max(row.start for row in rows_of_one) <= min(ends) + 1e-9
