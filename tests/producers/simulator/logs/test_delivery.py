from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from irregulars.producers.publishing.sources import check_source
from irregulars.producers.simulator.job.settings import SimulatorSettings
from irregulars.producers.simulator.logs.source import SimulatorSource
from tests.producers.simulator.conftest import record

BASE = SimulatorSettings(iterations=20)
KEYS = ("rank", "communicator", "operator", "sequence", "peer")


def keys(job_columns: dict[str, np.ndarray]) -> list[tuple[object, ...]]:
    return list(zip(*(job_columns[name].tolist() for name in KEYS), strict=True))


def test_rows_are_lost_in_bursts_of_one_rank() -> None:
    whole, lossy = (record(job).commops for job in (BASE, replace(BASE, loss_ratio=0.05, loss_burst_rows=10.0)))
    left = set(keys(lossy))
    assert left < set(keys(whole))
    is_lost = np.array([key not in left for key in keys(whole)])
    assert is_lost.mean() == pytest.approx(0.05, rel=0.3)
    begins = np.count_nonzero(is_lost[1:] & ~is_lost[:-1])
    assert 6 < is_lost.sum() / begins < 14


def test_what_comes_is_what_was_sent() -> None:
    whole, lossy = (record(job).commops for job in (BASE, replace(BASE, loss_ratio=0.05, repeat_ratio=0.02)))
    elapsed = dict(zip(keys(whole), whole["elapsed_ns"], strict=True))
    assert all(elapsed[key] == value for key, value in zip(keys(lossy), lossy["elapsed_ns"], strict=True))


def test_some_rows_come_twice() -> None:
    found = keys(record(replace(BASE, repeat_ratio=0.02)).commops)
    assert len(found) - len(set(found)) == pytest.approx(0.02 * len(set(found)), rel=0.2)


def test_who_loses_rows_does_not_say_that_it_lost_none() -> None:
    assert {a.lost_rows for a in record(replace(BASE, loss_ratio=0.01, iterations=1)).announcements} == {None}
    assert {a.lost_rows for a in record(replace(BASE, iterations=1)).announcements} == {0}


def test_a_lossy_source_keeps_the_protocol() -> None:
    settings = replace(BASE, dp=2, pp=2, tp=2, loss_ratio=0.1, repeat_ratio=0.1, evaluate_every=5)
    check_source(lambda position: SimulatorSource(settings, position=position))
