"""Why an iteration was judged as it was, from the judge's own facts, on recorded jobs."""

from __future__ import annotations

import json

import pytest

from irregulars.errors import InputError
from irregulars.infra.runs.analysis import Explained, explain_iteration, explanation_lines
from irregulars.producers.trace.directory import read_trace
from irregulars.settings import JudgeSettings
from tests.sinks.recorded_jobs import RECORDINGS

pytestmark = pytest.mark.slow


def explained(name: str, iteration: int, rank: int | None = None, **settings: float) -> Explained:
    return explain_iteration(read_trace(RECORDINGS / name), iteration, rank, JudgeSettings(**settings))  # type: ignore[arg-type]


def test_an_iteration_of_a_verdict_shows_its_reasons_and_the_way_to_the_cause() -> None:
    found = explained("gloo-slow-nic", 70, rank=1)
    text = " ".join(explanation_lines(found))
    assert "6.98x the usual 15.9 ms (delta 1.1): irregular" in text
    assert "Part of slow NIC [gloo-slow-nic:0:60:0], iterations 60 to 80, 99% sure" in text
    assert "or is it own work? no: rank 1 worked" in text
    assert found.reasons is not None
    assert found.reasons.path[-1].communicator == "world"
    assert found.rank is not None
    assert [name for name, _, _ in found.rank.ways] == ["on world", "rank 1 to rank 3", "on tp0"]


def test_a_regular_iteration_says_that_nothing_stood_out() -> None:
    found = explained("gloo-slow-nic", 30)
    assert (found.judged.is_irregular, found.reasons, found.verdicts) == (False, None, ())
    text = " ".join(explanation_lines(found))
    assert "regular, as the window's own noise reaches so far" in text
    assert "Not looked into: nothing in it stood out." in text


def test_the_delta_is_the_one_in_force() -> None:
    found = explained("gloo-slow-rank", 70, delta=1.5)
    assert found.delta == 1.5
    assert found.reasons is not None
    assert found.reasons.delta == 1.5
    assert {one.explanation.delta for one in found.verdicts if one.explanation is not None} == {1.5}


def test_an_explanation_is_json() -> None:
    values = json.loads(json.dumps(explained("gloo-slow-rank", 70, rank=2).to_json(), allow_nan=False))
    assert values["judged"]["iteration"] == 70
    assert values["verdicts"][0]["kind"] == "slow_rank"
    assert values["rank"]["work_excess_ns"] > 40e6


@pytest.mark.parametrize(("iteration", "rank"), [(999, None), (70, 9)])
def test_an_iteration_or_rank_that_was_not_recorded_is_refused(iteration: int, rank: int | None) -> None:
    with pytest.raises(InputError, match="must be one"):
        explained("gloo-slow-nic", iteration, rank)
