"""No change alters a verdict: each on one recording, as a file, and on one simulated job, as a stream.

A quick selection; `python -m tests.benchmarks.metamorphic` tries all on all.
"""

from __future__ import annotations

from functools import cache

import pytest

from irregulars.settings import JudgeSettings
from tests.benchmarks.metamorphic.changed import Delivery
from tests.benchmarks.metamorphic.changes import CHANGES
from tests.benchmarks.metamorphic.check import Check, Outcome
from tests.benchmarks.metamorphic.judged import Charge
from tests.benchmarks.metamorphic.small_jobs import JOBS, recorded, simulated
from tests.conftest import RECORDINGS

pytestmark = pytest.mark.slow

NAMES = sorted(path.name for path in RECORDINGS.iterdir() if (path / "job.json").exists())
SETTINGS = JudgeSettings()


@cache
def check_of(name: str) -> Check:
    if name in JOBS:
        return Check(simulated(name), SETTINGS, delivery=Delivery())
    return Check(recorded(name), SETTINGS)


def first_that_applies(change: str, names: list[str]) -> Outcome:
    """Begin at another name with each change, so that all have their turn."""
    first = list(CHANGES).index(change) % len(names)
    for name in names[first:] + names[:first]:
        (outcome,) = check_of(name).run([change])
        if outcome.does_apply:
            return outcome
    pytest.fail(f"{change} must apply to one of {', '.join(names)}; it does not")


@pytest.mark.parametrize("change", CHANGES)
def test_a_recording_keeps_its_verdicts(change: str) -> None:
    outcome = first_that_applies(change, NAMES)
    assert (outcome.gone, outcome.new) == ([], [])


@pytest.mark.parametrize("change", CHANGES)
def test_a_simulated_job_keeps_its_verdicts(change: str) -> None:
    outcome = first_that_applies(change, list(JOBS))
    assert (outcome.gone, outcome.new) == ([], [])


@pytest.mark.parametrize(
    ("name", "charge"),
    [
        ("three", Charge("slow_rank", (30, 45), "gpu", (5,))),
        ("data", Charge("slow_rank", (30, 45), "host", (4, 5, 6, 7))),
        ("stopped", Charge("hang", (30, 31), "gpu", (3,))),
    ],
)
def test_what_must_stay_the_same_is_right(name: str, charge: Charge) -> None:
    assert charge in check_of(name).charges
