from __future__ import annotations

from pathlib import Path

import pytest

from irregulars.producers.simulator.truth import calibrated
from tests.benchmarks.metamorphic.jobs import JOBS
from tests.benchmarks.metamorphic.running import check


@pytest.mark.parametrize("name", JOBS)
def test_every_job_is_possible(name: str) -> None:
    settings = JOBS[name].settings(0)
    assert calibrated(settings).world_size <= 32


def test_a_trace_directory_is_checked_by_its_path(recordings: Path) -> None:
    found = check(str(recordings / "gloo-clean"), ["shift"], seed=0, is_streamed=False)
    assert (found.charges, [outcome.is_changed for outcome in found.outcomes]) == ([], [False])
