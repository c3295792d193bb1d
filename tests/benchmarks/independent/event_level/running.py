"""Runs a drawn job and its healthy twin, and writes what a log of it would hold, with the truth about it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.benchmarks.independent.event_level.engine import Engine
from tests.benchmarks.independent.event_level.faults import Fault
from tests.benchmarks.independent.event_level.labels import Label, Labeller, healthy_label
from tests.benchmarks.independent.event_level.noise import Noise
from tests.benchmarks.independent.event_level.output import write
from tests.benchmarks.independent.event_level.placing import make_fault
from tests.benchmarks.independent.event_level.scenario import Draw
from tests.benchmarks.independent.event_level.validation import validate


def run(draw: Draw, folder: Path) -> tuple[Label, int]:
    """Write the trace directory of a job, and return its label and how many rows the run had."""
    label, engine, noise = _run_healthy(draw) if draw.kind is None else _run_broken(draw)
    validate(engine, draw.job, draw.cluster, is_complete=draw.kind != "hang")
    write(folder, np.random.default_rng([*draw.seed, 4]), draw.job, engine, noise, draw.style, label)
    return label, len(engine.rows)


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
