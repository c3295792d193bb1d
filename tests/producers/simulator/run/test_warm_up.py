from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from irregulars.producers.simulator.job.settings import SimulatorSettings
from irregulars.producers.simulator.run.engine import Engine

Tidy = Callable[..., SimulatorSettings]


def times_ms(settings: SimulatorSettings) -> np.ndarray:
    engine = Engine(settings)
    return np.array([engine.advance().elapsed_ns for _ in range(settings.iterations)]) / 1e6


def test_the_first_iteration_compiles_and_the_second_once_more_for_a_fifth(tidy: Tidy) -> None:
    base = {"dp": 4, "pp": 1, "tp": 2, "iterations": 5}
    added = times_ms(tidy(**base, compile_ms=1000.0)) - times_ms(tidy(**base))
    assert 1000 < added[0] < 1600  # of eight ranks the slowest
    assert added[1] == pytest.approx(added[0] / 5, rel=0.4)
    assert np.abs(added[2:]).max() < 0.1


def test_stages_compile_one_after_the_other(tidy: Tidy) -> None:
    base = {"dp": 1, "pp": 4, "tp": 1, "iterations": 2}
    added = times_ms(tidy(**base, compile_ms=1000.0)) - times_ms(tidy(**base))
    assert 3000 < added[0] < 5500


def test_each_communicator_connects_once(tidy: Tidy) -> None:
    base = {"dp": 4, "pp": 1, "tp": 2, "iterations": 3, "gradient_sync": "all_reduce"}
    added = times_ms(tidy(**base, connect_ms=10.0)) - times_ms(tidy(**base))
    assert added == pytest.approx([30, 0, 0], abs=0.5)  # tp, dp and world


def test_work_gets_shorter_evenly_while_the_job_warms_up(tidy: Tidy) -> None:
    base = {"dp": 1, "pp": 1, "tp": 2, "iterations": 7, "tp_operators": 0, "gradient_bytes": 1}
    ratio = times_ms(tidy(**base, warmup_iterations=4, warmup_ratio=0.4)) / times_ms(tidy(**base))
    assert ratio == pytest.approx([1.4, 1.3, 1.2, 1.1, 1.0, 1.0, 1.0], abs=0.01)
