"""Healthy jobs of each shape, as untidy as each preset: nothing above a note, so that nobody is told of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from irregulars.infra.runs.analysis import analyze
from irregulars.producers.simulator.settings import PRESETS, SHAPES, SimulatorSettings, with_preset, with_shape
from irregulars.producers.simulator.source import simulate_trace
from irregulars.producers.trace.directory import read_trace

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("shape", SHAPES)
def test_nobody_is_told_of_a_healthy_job(shape: str, tmp_path: Path) -> None:
    told = []
    for number, preset in enumerate(PRESETS):
        seed = number % 3
        job = replace(with_preset(with_shape(SimulatorSettings(), shape), preset), seed=seed)
        simulate_trace(tmp_path / preset, job)
        verdicts = analyze(read_trace(tmp_path / preset)).verdicts
        told += [(preset, seed, one.severity, one.evidence) for one in verdicts if one.severity != "note"]
    assert told == []
